"""What a Gaussian field has at every θ: its maps in the order of elimination, and where each product of rows goes."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from pymc_rmhmc.interfaces.stated import AffineRows, FieldMaps
from pymc_rmhmc.latent.field.field_loops import DenseRows, FieldPattern, Products, SparseRows
from pymc_rmhmc.linalg.sparse_cholesky import FRONTS, SparseLayout, sparse_layout

__all__ = ["MOST_CHEAP_DENSE", "FieldStructure", "structure_of"]

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

# Numbers in a factor, up to which θ and z move together: at 52,000 they made 57 effective draws a second so, and 37 in
# turns. From where on turns are better was not measured.
MOST_CHEAP = 200_000
# Values with a dense covariance, up to which they do: with 52 they made 319 effective draws a second so and 200 in
# turns, with 100 they made 53 and 163.
MOST_CHEAP_DENSE = 75


class Entries(NamedTuple):
    """Entries of rows, with columns in the order of elimination."""

    row: Indices
    column: Indices
    coefficient: Array
    number: Indices


class Pairs(NamedTuple):
    """Products of two numbers, the smaller index first, times a coefficient and the weight of a row."""

    row: Indices
    column: Indices
    other: Indices
    smaller: Indices
    number: Indices
    coefficient: Array


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
        k = maps.n_dense
        if k:
            pattern += sparse.block_diag((sparse.csc_array((maps.size - k, maps.size - k)), np.ones((k, k))))
        self.layout: SparseLayout = sparse_layout(pattern, n_open=k)
        order = self.layout.order
        self.place_of = np.empty(order.size, np.int64)
        self.place_of[order] = np.arange(order.size)
        rows = self._entries(maps.residuals, -1.0), self._entries(maps.predictors, 1.0)
        residuals, predictors = (_sparse_rows(*each, maps.size) for each in zip(rows, self._n_rows, strict=True))
        places, products = self._products(*rows)
        kernels = np.array([(each.size, each.is_factor) for each in maps.kernels], np.int64).reshape(-1, 2)
        self.pattern = FieldPattern(
            self.layout.kind, self.layout.index, self.layout.n_stored, residuals, predictors, products,
            self._dense_rows(patterns[0]), *places, kernels,
        )  # fmt: skip

    @property
    def is_expensive(self) -> bool:
        """Whether z moves for little where θ is held: no site sees it, or a factor of P costs several solves."""
        is_large = self.layout.kind == FRONTS and self.layout.n_stored > MOST_CHEAP
        return is_large or not self.maps.predictors.n_rows

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each residual, and for each site."""
        return self.n_residuals + self.maps.predictors.n_rows

    @property
    def n_residuals(self) -> int:
        """The number of residuals: of sparse rows, of dense rows, and of kernels."""
        return self.maps.residuals.n_rows + len(self.maps.dense) + self.maps.n_dense

    @property
    def _n_rows(self) -> tuple[int, int]:
        return self.maps.residuals.n_rows, self.maps.predictors.n_rows

    def _entries(self, given: AffineRows, sign: float) -> Entries:
        """Return the entries of rows, with their constants times a sign, in the order of their runs."""
        constants = np.flatnonzero(given.offset)
        row = np.concatenate((given.row, constants))
        column = np.concatenate((self.place_of[given.column], np.full(constants.size, self.maps.size)))
        coefficient = np.concatenate((given.coefficient, sign * given.offset[constants]))
        number = np.concatenate((given.number, given.offset_number[constants]))
        order = np.lexsort((column, number, row))
        begins = np.ones(order.size, bool)
        begins[1:] = (np.diff(row[order]) != 0) | (np.diff(number[order]) != 0)
        # Which of its row's entries with its number each one is.
        rank = np.arange(order.size) - np.maximum.accumulate(np.where(begins, np.arange(order.size), 0))
        order = order[np.lexsort((row[order], rank, number[order]))]
        return Entries(row[order], column[order], coefficient[order], number[order])

    def _products(self, residuals: Entries, predictors: Entries) -> tuple[tuple[Indices, Indices, Indices], Products]:
        """Return row, column and place of the entries of P but for fill, and what is added up there."""
        n, n_stored, order = self.maps.size, self.layout.n_stored, self.layout.order
        of_residuals, of_sites = _pairs(residuals, n), _pairs(predictors, n)
        linear = predictors.column < n
        nothing = np.zeros(linear.sum(), np.int64)
        of_linear = Pairs(
            predictors.row[linear] + self.maps.predictors.n_rows, predictors.column[linear], nothing + n,
            nothing, predictors.number[linear], predictors.coefficient[linear],
        )  # fmt: skip
        pairs = Pairs(*(np.concatenate(parts) for parts in zip(of_residuals, of_sites, of_linear, strict=True)))
        place, is_in_vector = n_stored + pairs.column, pairs.other == n
        column, other = pairs.column[~is_in_vector], pairs.other[~is_in_vector]
        place[~is_in_vector] = self.layout.places(order[column], order[other])
        twice = np.where(is_in_vector, 0.0, np.where(pairs.column == pairs.other, 1.0, 2.0))
        n_numbers, n_places = pairs.number.max(initial=0) + 1, n_stored + n
        keys, first, term = np.unique(
            (pairs.smaller * n_numbers + pairs.number) * n_places + place, return_index=True, return_inverse=True
        )
        groups, start = np.unique(keys // n_places, return_index=True)
        n_first = of_residuals.row.size
        constants = np.bincount(term[:n_first], pairs.coefficient[:n_first], keys.size).astype(float)  # int of nothing
        products = Products(
            np.column_stack((groups // n_numbers, groups % n_numbers)), np.append(start, keys.size), place[first],
            twice[first], constants, pairs.row[n_first:], term[n_first:], pairs.coefficient[n_first:],
        )  # fmt: skip
        places, first = np.unique(place[~is_in_vector], return_index=True)
        return (column[first], other[first], places), products

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


def _sparse_rows(entries: Entries, n_rows: int, constant: int) -> SparseRows:
    """Return rows with their entries in runs, of constants alone or of none."""
    row, column, coefficient, number = entries
    begins = np.ones(row.size, bool)
    begins[1:] = (np.diff(row) != 1) | (np.diff(number) != 0) | np.diff(column == constant)
    first, which = np.flatnonzero(begins), np.cumsum(begins) - 1
    one_column = np.bincount(which, column != column[first][which], first.size) == 0.0
    run = np.column_stack((row[first], first, np.diff(first, append=row.size), number[first], one_column))
    return SparseRows(n_rows, run.astype(np.int64), column, coefficient)


def _pairs(entries: Entries, constant: int) -> Pairs:
    """Return the pairs of entries of each row, but for a constant with itself; with a constant they count less."""
    order = np.argsort(entries.row, kind="stable")
    row, column, coefficient, number = (each[order] for each in entries)
    counts = np.unique(row, return_counts=True)[1]
    start = np.cumsum(counts) - counts
    found = []
    for count in np.unique(counts):
        i, j = np.tril_indices(count)
        at = start[counts == count][:, None]
        found.append(np.stack(((at + i).ravel(), (at + j).ravel())))
    first, second = np.concatenate([np.empty((2, 0), np.int64), *found], axis=1)
    first, second = np.where(column[first] < column[second], (first, second), (second, first))
    kept = column[first] < constant
    first, second = first[kept], second[kept]
    product = np.where(column[second] == constant, -1.0, 1.0) * coefficient[first] * coefficient[second]
    both = np.sort((number[first], number[second]), axis=0)
    return Pairs(row[first], column[first], column[second], both[0], both[1], product)
