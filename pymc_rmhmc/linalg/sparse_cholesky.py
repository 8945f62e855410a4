"""The factorisation of a sparse, symmetric, positive definite matrix of a fixed pattern that is factorised many times.

A layout is found once for a pattern. The matrix is one flat array: 0 but at `SparseLayout.places` of its entries, one
of each pair (i, j), (j, i). Compiled code factorises it in place, solves, and writes the entries of the inverse at the
same places. Two kinds: a band with a dense border (`banded`), and fronts (`multifrontal`). The choice is by seconds
predicted from the counts of operations. On fronts a number of last rows may be left out of the factor: whoever asks for
that has the rest of the matrix at them, and its inverse by other means.

    layout = sparse_layout(pattern)
    flat = np.zeros(layout.n_stored)
    flat[layout.places(rows, columns)] = values
    log_determinant = factorise(layout.kind, layout.index, flat)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.linalg import splu

from pymc_rmhmc.linalg.banded import band_order, factorise_band, select_band, solve_band
from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.multifrontal import (
    COLUMNS,
    N_FACTS,
    PANEL,
    ROWS,
    START,
    Fronts,
    factorise_fronts,
    find_fronts,
    row_in_front,
    select_fronts,
    solve_fronts,
)

__all__ = [
    "BAND", "FRONTS", "CostModel", "SparseLayout", "factorise", "last_panel", "select", "solve", "sparse_layout",
    "substitute",
]  # fmt: skip

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

BAND, FRONTS = 0, 1
# What compiled code is given: counts, the table of fronts, their rows below, and where these are in their parents.
N_INDEX = 4


@dataclass(frozen=True)
class CostModel:
    """Nanoseconds of a factor, a solve of two vectors and a selected inverse together.

    Fitted to 20 patterns on fronts and 35 bands, on one core of an AMD EPYC with one thread of OpenBLAS. Bands are
    within a seventh of what was measured, and fronts within a quarter, but for three of the twenty.
    """

    narrow: float = 9.7  # a row of a band of bandwidth 1, and what it takes more with 2
    narrow_step: float = 4.4
    row: float = 23.0  # a row of a wider band, then its bandwidth p and p²
    row_step: float = 3.8
    row_product: float = 0.36
    border: float = 2.0  # a row's k entries in the border, then k p and k²
    border_step: float = 1.4
    border_product: float = 0.12
    front: float = 58.0  # a front, then an entry of its panel and k m²
    entry: float = 11.0
    flop: float = 0.02
    least: float = 30.0  # a row on fronts at least, beside its entries

    def band(self, size: int, width: int, border: int) -> float:
        """Return the cost of a band with a border."""
        if width <= 2:
            row = self.narrow + self.narrow_step * max(0, width - 1)
        else:
            row = self.row + self.row_step * width + self.row_product * width**2
        beside = border * (self.border + self.border_step * width + self.border_product * border)
        return size * (row + beside) + border**3

    def fronts_at_least(self, full: sp.csr_array) -> float:
        """Return what fronts cost at least: a band that costs less needs no comparison."""
        return float(self.least * full.shape[0] + self.entry * (full.nnz + full.shape[0]) / 2.0)

    def fronts(self, fronts: Fronts) -> float:
        """Return the cost of fronts."""
        columns, rows = fronts.table[:, COLUMNS].astype(float), fronts.table[:, ROWS]
        return float(self.front * rows.size + self.entry * fronts.n_panels + self.flop * (columns * rows**2).sum())


COSTS = CostModel()
# Rows that nearly everything reads are left to the end, by AMD's rule: more neighbours than 10 sqrt(n).
DENSE_FROM = 10.0
# Columns that a border may take without being asked to, and how many times as many neighbours as the next they have.
WIDEST_BORDER, GAP = 16, 1.5


@dataclass(frozen=True)
class SparseLayout:
    """Where the lower triangle of a sparse matrix and of its factor are in a flat array."""

    size: int  # rows n of the matrix
    n_stored: int  # length of the flat array; what is no place of an entry is 0
    order: Indices  # (n,): the model's index of each row in the order of elimination
    kind: int  # `BAND` or `FRONTS`
    index: tuple[Indices, ...]  # what compiled code needs to know

    def places(self, rows: NDArray[np.integer], columns: NDArray[np.integer]) -> Indices:
        """Return where entries are in the flat array, by the model's indices; (i, j) is where (j, i) is.

        Raises a `ValueError` if an entry is neither in the pattern nor filled in by the factor.
        """
        position = np.empty(self.size, dtype=np.int64)
        position[self.order] = np.arange(self.size)
        first, second = position[np.asarray(rows)], position[np.asarray(columns)]
        row, column = np.maximum(first, second), np.minimum(first, second)
        return self._in_band(row, column) if self.kind == BAND else self._in_fronts(row, column)

    def _in_band(self, row: Indices, column: Indices) -> Indices:
        size, width, border = (int(count) for count in self.index[0][:3])
        if ((row < size) & (row - column > width)).any():
            raise ValueError("The matrix has an entry that its pattern lacks.")
        beside = size * (width + 1) + (row - size) * size + column
        corner = size * (width + 1 + border) + (column - size) * border + row - size
        return np.where(row < size, column * width + row, np.where(column < size, beside, corner))

    def _in_fronts(self, row: Indices, column: Indices) -> Indices:
        table = self.index[1].reshape(-1, N_FACTS)
        front = np.searchsorted(table[:, START], column, side="right") - 1
        at = row_in_front(table, self.index[2], front, row, self.size)
        places: Indices = table[front, PANEL] + (column - table[front, START]) * table[front, ROWS] + at
        return places


def sparse_layout(
    pattern: sp.sparray | sp.spmatrix, *, kind: int | None = None, dense_columns: NDArray[np.integer] | None = None,
    n_open: int = 0,
) -> SparseLayout:  # fmt: skip
    """Find the layout of a symmetric matrix for which factor, solves and inverse are fastest.

    `pattern` (n, n): entries of either triangle, of whatever value; the diagonal counts as full.
    `kind`: `BAND` or `FRONTS`, to force one.
    `dense_columns`: columns that nearly every row reads: they go into the border of a band.
    `n_open`: so many last rows, all of them neighbours, are left out of the factor, and remain the last.
    """
    given = sp.csr_array(pattern, dtype=float)
    given.data = np.ones(given.nnz)
    full = sp.csr_array(given + given.T + sp.eye_array(given.shape[0]))
    full.data = np.ones(full.nnz)
    if n_open:
        order, first = minimum_degree(full, np.inf), full.shape[0] - n_open
        order = np.concatenate([order[order < first], np.arange(first, full.shape[0])])
        return _front_layout(find_fronts(full, order, n_open), n_open)
    if kind == FRONTS:
        return _front_layout(find_fronts(full, minimum_degree(full)))
    band, cost = _best_band(full, np.empty(0, np.int64) if dense_columns is None else np.unique(dense_columns))
    if kind == BAND or cost < COSTS.fronts_at_least(full):
        return band
    fronts = find_fronts(full, minimum_degree(full))
    return band if cost < COSTS.fronts(fronts) else _front_layout(fronts)


def minimum_degree(pattern: sp.csr_array, dense_from: float = DENSE_FROM) -> Indices:
    """Return a fill-reducing order: SciPy's minimum degree, from an LU factor that is thrown away."""
    n = pattern.shape[0]
    degrees = np.diff(pattern.indptr)
    last = np.flatnonzero(degrees > max(16.0, dense_from * np.sqrt(n)))
    if last.size == n:
        return np.arange(n, dtype=np.int64)
    others = np.setdiff1d(np.arange(n, dtype=np.int64), last)
    inner = pattern if last.size == 0 else pattern[others][:, others]
    dominant = sp.csc_matrix(inner + sp.diags_array(np.diff(inner.indptr).astype(float)))
    factor = splu(dominant, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return np.concatenate([others[np.argsort(factor.perm_c)], last])


def _best_band(full: sp.csr_array, dense_columns: Indices) -> tuple[SparseLayout, float]:
    """Return the band that costs least, by which columns are its border, and its cost."""
    best, least = None, np.inf
    for border in _borders(full, dense_columns):
        found = _band_layout(full, border)
        size, width, n_border = (int(count) for count in found.index[0][:3])
        cost = COSTS.band(size, width, n_border)
        if cost < least:
            best, least = found, cost
    assert best is not None
    return best, least


def _borders(full: sp.csr_array, dense_columns: Indices) -> list[Indices]:
    """Return the borders to try: what is asked for, with those before each great gap in the numbers of neighbours."""
    degrees = np.diff(full.indptr) - 1
    degrees[dense_columns] = 0
    first = np.argsort(-degrees, kind="stable")[: WIDEST_BORDER + 1]
    ranked = degrees[first]
    cuts = 1 + np.flatnonzero((ranked[:-1] > GAP * ranked[1:]) & (ranked[:-1] > 4))
    return [np.concatenate([dense_columns, first[:cut]]).astype(np.int64) for cut in (0, *cuts)]


def _band_layout(full: sp.csr_array, border: Indices) -> SparseLayout:
    n = full.shape[0]
    inner = np.setdiff1d(np.arange(n, dtype=np.int64), border)
    order, width = band_order(full if border.size == 0 else full[inner][:, inner])
    counts = np.array([inner.size, width, border.size], dtype=np.int64)
    none = np.zeros(0, dtype=np.int64)
    n_stored = inner.size * (width + 1 + border.size) + border.size**2
    return SparseLayout(n, n_stored, np.concatenate([inner[order], border]), BAND, (counts, none, none, none))


def _front_layout(fronts: Fronts, n_open: int = 0) -> SparseLayout:
    counts = np.array([fronts.table.shape[0] - (n_open > 0), 0, 0], dtype=np.int64)
    index = (counts, fronts.table.ravel(), fronts.rows, fronts.in_parent)
    return SparseLayout(fronts.order.size, fronts.n_stored, fronts.order, FRONTS, index)


@compiled
def factorise(kind: int, index: tuple[Indices, ...], flat: Array) -> float:  # pragma: no cover - compiled
    """Factorise in place; return the log determinant, nan if the matrix is not positive definite."""
    counts, table, _, in_parent = index
    if kind == BAND:
        return factorise_band(counts[0], counts[1], counts[2], flat)
    return factorise_fronts(table.reshape(-1, N_FACTS), in_parent, counts[0], flat)


@compiled
def solve(kind: int, index: tuple[Indices, ...], flat: Array, vectors: Array) -> None:  # pragma: no cover - compiled
    """Overwrite vectors (r, n), in the order of elimination, with the inverse times each."""
    counts, table, rows, _ = index
    if kind == BAND:
        solve_band(counts[0], counts[1], counts[2], flat, vectors)
    else:
        solve_fronts(table.reshape(-1, N_FACTS), rows, flat, vectors, True, True)


@compiled
def select(kind: int, index: tuple[Indices, ...], flat: Array, inverse: Array) -> None:  # pragma: no cover - compiled
    """Write the inverse at the places of the pattern, with what the factor fills in."""
    counts, table, _, in_parent = index
    if kind == BAND:
        select_band(counts[0], counts[1], counts[2], flat, inverse)
    else:
        select_fronts(table.reshape(-1, N_FACTS), in_parent, counts[0], flat, inverse)


@compiled
def substitute(
    index: tuple[Indices, ...], flat: Array, vectors: Array, backward: bool
) -> None:  # pragma: no cover - compiled
    """Overwrite vectors (r, n) with ``L⁻¹``, or ``L⁻ᵀ``, times each, for fronts of which last rows are left out."""
    counts, table, rows, _ = index
    solve_fronts(table.reshape(-1, N_FACTS)[: counts[0]], rows, flat, vectors, not backward, backward)


@compiled
def last_panel(index: tuple[Indices, ...], flat: Array) -> Array:  # pragma: no cover - compiled
    """Return the last front's panel (k, k), of which the upper triangle counts."""
    table = index[1].reshape(-1, N_FACTS)
    k, start = table[-1, COLUMNS], table[-1, PANEL]
    return flat[start : start + k * k].reshape(k, k)
