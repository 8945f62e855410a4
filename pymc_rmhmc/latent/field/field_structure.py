"""What a Gaussian field has at every θ: its maps in the order of elimination, and where each product of rows goes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from pymc_rmhmc.interfaces.stated import AffineRows, FieldMaps
from pymc_rmhmc.latent.field.field_loops import DenseRows, FieldPattern, SparseRows
from pymc_rmhmc.linalg.sparse_cholesky import FRONTS, SparseLayout, sparse_layout

__all__ = ["FieldStructure", "structure_of"]

type Indices = NDArray[np.int64]

# Numbers in a factor, up to which θ and z move together: at 52,000 they made 57 effective draws a second so, and 37 in
# turns. From where on turns are better was not measured.
MOST_CHEAP = 200_000


class FieldStructure:
    """The symbolic part of a field's precision ``P = JᵀJ + AᵀW̄A``.

    Parameters
    ----------
    maps : FieldMaps
        J, c, A and a as multiples of the numbers u(θ).

    Attributes
    ----------
    layout : SparseLayout
        Of the lower triangle of P, without its dense rows.
    pattern : FieldPattern
        J and A, with columns in the order of elimination, and the constant rows that P leaves out.
    place_of : (n,) int array
        Where each latent value is in the order of elimination.
    """

    def __init__(self, maps: FieldMaps) -> None:
        self.maps = maps
        patterns = [_pattern(each, maps.size) for each in (maps.residuals, maps.predictors)]
        pattern = sum((each.T @ each for each in patterns), start=sparse.identity(maps.size, format="csc"))
        self.layout: SparseLayout = sparse_layout(pattern)
        order = self.layout.order
        self.place_of = np.empty(order.size, np.int64)
        self.place_of[order] = np.arange(order.size)
        rows = self._rows(maps.residuals), self._rows(maps.predictors)
        dense = self._dense_rows(patterns[0])
        self.pattern = FieldPattern(self.layout.kind, self.layout.index, *rows, dense, *_entries(rows))

    @property
    def is_expensive(self) -> bool:
        """Whether z moves for little where θ is held: no site sees it, or a factor of P costs several solves."""
        return not self.maps.predictors.n_rows or (self.layout.kind == FRONTS and self.layout.n_stored > MOST_CHEAP)

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each residual, and for each site."""
        return self.n_residuals + self.maps.predictors.n_rows

    @property
    def n_residuals(self) -> int:
        """The number of residuals, of sparse rows first."""
        return self.maps.residuals.n_rows + len(self.maps.dense)

    def _rows(self, given: AffineRows) -> SparseRows:
        """Return rows in the order of elimination, with the place of each pair of their entries."""
        order = np.lexsort((self.place_of[given.column], given.row))
        row, column = given.row[order], given.column[order]
        start = np.searchsorted(row, np.arange(given.n_rows + 1))
        first, second, pair_start = _pairs(start)
        moves = np.zeros(given.n_rows, bool)
        moves[row[given.number[order] != 0]] = True
        return SparseRows(
            start, self.place_of[column], given.coefficient[order], given.number[order], given.offset,
            given.offset_number, pair_start, self.layout.places(column[first], column[second]), moves,
        )  # fmt: skip

    def _dense_rows(self, residuals: sparse.csr_array) -> DenseRows:
        """Return the constant rows, and ground one value of each component of J that they read."""
        rows = np.ascontiguousarray(self.maps.dense[:, self.layout.order])
        grounded = np.empty(0, np.int64)
        if len(rows):
            labels = connected_components(residuals.T @ residuals)[1]
            read = np.unique(labels[(self.maps.dense != 0.0).any(axis=0)])
            grounded = np.array([np.flatnonzero(labels == each)[0] for each in read], np.int64)
        unit = np.zeros((grounded.size, self.maps.size))
        unit[np.arange(grounded.size), self.place_of[grounded]] = 1.0
        return DenseRows(
            np.vstack((rows, unit)), np.array([len(rows)]), self.maps.dense_offset,
            self.layout.places(grounded, grounded),
        )  # fmt: skip


@lru_cache(maxsize=8)
def structure_of(maps: FieldMaps) -> FieldStructure:
    """Return the structure of some maps, which is found once for all that is made of them."""
    return FieldStructure(maps)


def _pattern(rows: AffineRows, size: int) -> sparse.csr_array:
    return sparse.csr_array((np.ones(rows.row.size), (rows.row, rows.column)), shape=(rows.n_rows, size))


def _pairs(start: Indices) -> tuple[Indices, Indices, Indices]:
    """Return the entries of each pair within a row, triangle by triangle, and where the pairs of each row begin."""
    counts = np.diff(start)
    pair_start = np.concatenate(([0], np.cumsum(counts * (counts + 1) // 2)))
    first, second = np.empty((2, pair_start[-1]), np.int64)
    for count in np.unique(counts):
        rows = np.flatnonzero(counts == count)
        i, j = np.tril_indices(count)
        where = pair_start[rows][:, None] + np.arange(i.size)
        first[where], second[where] = start[rows][:, None] + i, start[rows][:, None] + j
    return first, second, pair_start


def _entries(both: tuple[SparseRows, SparseRows]) -> tuple[Indices, Indices, Indices]:
    """Return row and column, in the order of elimination, and place of every entry of P but for fill."""
    found = []
    for rows in both:
        first, second, _ = _pairs(rows.start)
        found.append((rows.column[first], rows.column[second], rows.place))
    row, column, place = (np.concatenate(parts) for parts in zip(*found, strict=True))
    place, first = np.unique(place, return_index=True)
    return row[first], column[first], place
