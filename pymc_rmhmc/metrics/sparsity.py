"""Where the entries of a log density's Hessian are, and the few products with it that give all of them.

The pattern is found by products with vectors that are nan in one place: nan comes out wherever that place has an
effect. The parameters of highest degree become the *border*; what is left falls into *blocks* without an entry between
two of them, as the groups of a hierarchical model do:

    H = [[D, Bᵀ], [B, A]]        A (m, m) of the border, B (m, n) the coupling, D block diagonal, n = d - m

One product for each parameter of the border gives A and B. One for each place within a block gives D: a probe is 1 at
that place in every block at once.

A product sees only the branches of a model that are taken at a position. Unite the patterns of several positions, and
compare with direct products: `Probes.mismatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.metrics.bordered_loops import Layout

__all__ = ["MOST_OF_DENSE", "ArrowEntries", "Partition", "Probes", "hessian_pattern", "partition", "unite"]

type Array = NDArray[np.float64]
type Index = NDArray[np.int64]
# SciPy says nothing of the types of its sparse arrays.
type Sparse = Any
# Rows ``H v`` for the rows v of an array (r, d), at a position (d,).
type Products = Callable[[Array, Array], Array]

# A unit further than this from the median may belong to a row that holds rounding alone, as may a smaller row.
LARGEST_UNIT, SMALLEST_ROW = 1e4, 1e-2
# Blocks make another metric than SoftAbs of the whole Hessian where that is indefinite: they have to be much cheaper.
MOST_OF_DENSE = 1.0 / 3.0
# The most parameters that a border is looked for among.
MAX_BORDER = 500


def hessian_pattern(products: Products, x: Array, chunk: int = 256) -> Sparse:
    """Find where a Hessian may have entries, by products with vectors that are nan in one place.

    So many products as `chunk` says are taken at once.

    Raises a `ValueError` if the Hessian is not finite at x.

    Returns
    -------
    (d, d) csr_array of bool
        Symmetric, and True on the diagonal. An entry that happens to be 0 at x is True too. What the model computes
        elsewhere, in a branch that is not taken here, is not seen.
    """
    d = x.size
    if not np.isfinite(products(x, np.zeros((1, d)))).all():
        raise ValueError("The Hessian is not finite at this position, so its pattern cannot be read: choose another.")
    rows = []
    for start in range(0, d, chunk):
        places = np.arange(start, min(start + chunk, d))
        vectors = np.zeros((places.size, d))
        vectors[np.arange(places.size), places] = np.nan
        rows.append(sparse.csr_array(np.isnan(products(x, vectors))))
    found = sparse.vstack(rows, format="csr")
    return unite(found, found.T, sparse.eye_array(d, dtype=bool))


def unite(*patterns: Sparse) -> Sparse:
    """Return the pattern of all entries that any of the patterns has, (d, d) csr_array of bool."""
    total = sum(pattern.astype(np.int64) for pattern in patterns)
    return sparse.csr_array(total) > 0


@dataclass(frozen=True)
class Partition:
    """Which parameters are the border, and which blocks the others fall into; `partition` chooses one.

    `border` (m,) int: the border's parameters, in increasing order.
    `inner` (n,) int: the others, block after block.
    `starts` (k + 1,) int: where each block begins in `inner`, and n.
    """

    border: Index
    inner: Index
    starts: Index

    @classmethod
    def of(cls, border: Sequence[int] | Index, blocks: Sequence[Sequence[int] | Index]) -> Partition:
        """Make one of the border's parameters and a sequence of those of each block."""
        sizes = [len(block) for block in blocks]
        inner = np.concatenate([np.empty(0, np.int64), *(np.asarray(block, dtype=np.int64) for block in blocks)])
        return cls(np.sort(np.asarray(border, dtype=np.int64)), inner, _running_total(sizes))

    @cached_property
    def sizes(self) -> Index:
        """How many parameters each block has, (k,)."""
        return np.diff(self.starts)

    @cached_property
    def entry_starts(self) -> Index:
        """Where each block's entries begin among all entries of D, row by row, and how many there are, (k + 1,)."""
        return _running_total(self.sizes**2)

    @cached_property
    def layout(self) -> Layout:
        """The same as compiled code takes it."""
        return Layout(self.border, self.inner, self.starts, self.entry_starts)

    @property
    def size(self) -> int:
        """The number of parameters: d."""
        return self.border.size + self.inner.size

    @property
    def n_blocks(self) -> int:
        """The number of blocks."""
        return self.starts.size - 1

    @property
    def n_places(self) -> int:
        """The number of parameters in the largest block."""
        return int(self.sizes.max(initial=0))

    @property
    def is_dense(self) -> bool:
        """Whether all parameters are in the border: no structure is worth its cost."""
        return self.inner.size == 0


def _running_total(sizes: Sequence[int] | Index) -> Index:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)


class ArrowEntries(NamedTuple):
    """The entries of a symmetric matrix with a border and blocks, or the derivative of a number by each of them.

    A derivative counts every number here once: the coupling stands for both of its places in the matrix, and the two
    halves of the border and of a block count apart.
    """

    border: Array  # (m, m), A
    coupling: Array  # (m, n), B, whose columns are in the order of `Partition.inner`
    blocks: Array  # (e,), D: the entries of block after block, each row by row; see `Partition.entry_starts`


class Probes:
    """Vectors whose products with a matrix give all of its entries, one number at one place of one product.

    Attributes
    ----------
    vectors : (r, d) array
        One row for each parameter of the border, then one for each place within a block.
    found_at : (e,) int array
        Where the entries of the blocks are among all products, raveled.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        border, inner, sizes = partition.border, partition.inner, partition.sizes
        m, d = border.size, partition.size
        place = np.arange(inner.size) - np.repeat(partition.starts[:-1], sizes)
        self.vectors = np.zeros((m + partition.n_places, d))
        self.vectors[np.arange(m), border] = 1.0
        self.vectors[m + place, inner] = 1.0
        # Every entry's row and column within D, of which the products hold it at (its column's place, its row).
        width = np.repeat(sizes, sizes)
        row = np.repeat(np.arange(inner.size), width)
        column = _ranges(np.repeat(partition.starts[:-1], sizes), width)
        self._rows, self._columns = inner[row], inner[column]
        self.found_at = (m + place[column]) * d + self._rows

    def recover(self, found: Array) -> ArrowEntries:
        """Read a matrix's entries from its products with the probes, (r, d)."""
        rows = found[: self.partition.border.size]
        return ArrowEntries(rows[:, self.partition.border], rows[:, self.partition.inner], found.take(self.found_at))

    def weights(self, bar: ArrowEntries) -> Array:
        """Place the derivatives by the entries where `recover` reads them, (r, d): its adjoint."""
        made = np.zeros(self.vectors.shape)
        rows = made[: self.partition.border.size]
        rows[:, self.partition.border] = bar.border
        rows[:, self.partition.inner] = bar.coupling
        made.ravel()[self.found_at] = bar.blocks
        return made

    def matrix(self, entries: ArrowEntries) -> Sparse:
        """Return the matrix of the entries, (d, d) csr_array."""
        border, inner = self.partition.border, self.partition.inner
        rows = [np.repeat(border, border.size), np.repeat(border, inner.size), np.tile(inner, border.size), self._rows]
        columns = [np.tile(border, border.size), rows[2], rows[1], self._columns]
        values = [entries.border.ravel(), entries.coupling.ravel(), entries.coupling.ravel(), entries.blocks]
        places = (np.concatenate(rows), np.concatenate(columns))
        return sparse.csr_array((np.concatenate(values), places), shape=(self.partition.size, self.partition.size))

    def mismatch(self, products: Products, x: Array, rng: np.random.Generator) -> float:
        """Compare the recovered Hessian with a product with one random vector, in units that suit the Hessian.

        `float`: the largest difference of a row, relative to the size of the numbers that add up to it: about 1e-12 if
          the pattern holds at x, and about 1 if it misses an entry that matters. nan if the Hessian is not finite.
        """
        matrix = self.matrix(self.recover(products(x, self.vectors)))
        units = _units(matrix)
        vector = units * rng.standard_normal(x.size)
        direct = products(x, vector[None])[0]
        size = units * (abs(matrix) @ abs(vector) + abs(direct))
        floor = max(SMALLEST_ROW * float(size.max()), np.finfo(float).tiny)
        return float(np.max(units * abs(direct - matrix @ vector) / np.maximum(size, floor)))


def _units(matrix: Sparse) -> Array:
    """Find units of the parameters, (d,), in which the largest entry of every row is about 1."""
    size = abs(matrix)
    units = np.ones(matrix.shape[0])
    for _ in range(8):  # each halves the digits that are left
        largest = units * (size * units[None, :]).max(axis=1).toarray()
        units /= np.sqrt(np.where(largest > 0.0, largest, 1.0))
    middle = float(np.median(units))
    return np.clip(units, middle / LARGEST_UNIT, middle * LARGEST_UNIT)


def _ranges(first: Index, lengths: Index) -> Index:
    """Return ``first[i], first[i] + 1, ...``, ``lengths[i]`` of them for each i, in one array."""
    total = _running_total(lengths)
    return np.arange(total[-1]) - np.repeat(total[:-1] - first, lengths)


def partition(pattern: Sparse, *, most_of_dense: float = MOST_OF_DENSE) -> Partition:
    """Choose the border and the blocks of a pattern that make a point of the SoftAbs metric cheapest.

    All parameters are in the border (`Partition.is_dense`) where blocks would cost more than a part of a dense matrix.

    Parameters leave one after another, each time one of those with the most entries among what is left. The cost of
    every border that begins this list is known from one pass backwards, in which parameters come back and blocks merge.
    """
    pattern = sparse.csr_array(pattern)
    d = pattern.shape[0]
    starts, others = pattern.indptr.astype(np.int64), pattern.indices.astype(np.int64)
    removed = _by_degree(starts, others, np.diff(starts), min(d, MAX_BORDER))
    order = np.concatenate([np.setdiff1d(np.arange(d), removed), removed[::-1]])
    costs = _border_costs(starts, others, order, removed.size)
    m = int(np.argmin(costs))
    if costs[m] >= most_of_dense * _dense_cost(d):
        return Partition.of(np.arange(d), [])
    inner = np.setdiff1d(np.arange(d), removed[:m])
    _, label = connected_components(pattern[inner][:, inner], directed=False)
    sizes = np.bincount(label)[label]
    # Blocks of one size follow one another, each in the order of its first parameter.
    order = np.lexsort((inner, label, sizes))
    blocks = np.flatnonzero(np.diff(label[order], prepend=-1))
    return Partition(np.sort(removed[:m]), inner[order], np.append(blocks, inner.size).astype(np.int64))


@compiled
def _by_degree(starts: Index, others: Index, degree: Index, count: int) -> Index:  # pragma: no cover - compiled
    """Choose `count` parameters, each the first of those with most entries among the rest; overwrite the degrees."""
    removed = np.empty(count, dtype=np.int64)
    for k in range(count):
        best = 0
        for i in range(degree.size):
            if degree[i] > degree[best]:
                best = i
        removed[k] = best
        degree[best] = -degree.size
        for at in range(starts[best], starts[best + 1]):
            degree[others[at]] -= 1
    return removed


# Microseconds, as measured: of what a point of either metric takes besides its products, and of a number of a product.
PER_NUMBER = 0.01


@compiled
def _eigen_cost(size: int) -> float:  # pragma: no cover - compiled
    """Estimate the cost to decompose a symmetric matrix, soften it, and take its bars."""
    return 0.06 * size**2 + 2.5e-4 * size**3


@compiled
def _dense_cost(size: int) -> float:  # pragma: no cover - compiled
    """Estimate the cost of a dense matrix."""
    return 1.0 + _eigen_cost(size) + PER_NUMBER * size * size


@compiled
def _arrow_cost(d: int, m: int, places: int, squares: float, blocks: float) -> float:  # pragma: no cover - compiled
    """Estimate the cost of a border of m and blocks: of the largest, the sum of squared sizes, and their own costs."""
    products = PER_NUMBER * d * (m + places)
    return 2.0 + products + blocks + _eigen_cost(m) + 2e-3 * m * (d * m + squares)


@compiled
def _block_cost(size: int) -> float:  # pragma: no cover - compiled
    """Estimate the cost of one block."""
    return 0.15 if size == 1 else 0.5 + _eigen_cost(size)


@compiled
def _root(parents: Index, i: int) -> int:  # pragma: no cover - compiled
    """Find the parameter that represents a block."""
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


@compiled
def _border_costs(starts: Index, others: Index, order: Index, most: int) -> Array:  # pragma: no cover - compiled
    """Estimate the cost for each number of parameters in the border, from 0 to `most`: those that end the order."""
    d = starts.size - 1
    parents, sizes = np.empty(d, dtype=np.int64), np.empty(d, dtype=np.int64)
    for i in range(d):
        parents[i], sizes[i] = -1, 1
    costs = np.empty(most + 1)
    largest, squares, blocks = 0, 0.0, 0.0
    for turn in range(d + 1):
        m = d - turn
        if m <= most:
            costs[m] = _arrow_cost(d, m, largest, squares, blocks)
        if m == 0:
            break
        i = order[turn]
        parents[i] = i
        squares += 1.0
        blocks += _block_cost(1)
        for at in range(starts[i], starts[i + 1]):
            if parents[others[at]] >= 0:
                one, two = _root(parents, i), _root(parents, others[at])
                if one != two:
                    parents[two] = one
                    squares += 2.0 * sizes[one] * sizes[two]
                    blocks -= _block_cost(sizes[one]) + _block_cost(sizes[two])
                    sizes[one] += sizes[two]
                    blocks += _block_cost(sizes[one])
        largest = max(largest, sizes[_root(parents, i)])
    return costs
