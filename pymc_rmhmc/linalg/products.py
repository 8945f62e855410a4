"""Products of matrices and vectors: of a symmetric matrix, and of the matrix A of a predictor that θ moves.

A step at fixed hyperparameters is made of symmetric products. BLAS's dsymv is the fastest while the matrix is in the
processor's cache. A larger one takes as long as memory takes to be read, and several streams come faster than one: with
eight columns at once a product of 2000 or 4000 takes 0.7 to 0.8 of dsymv's time, and half of that where the matrix is
in single precision.

A sparse A has compiled products: SciPy takes longer to look at a few thousand entries of a sparse array than their
products take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import blas

from pymc_rmhmc.linalg.compiled.blas import symmetric_product
from pymc_rmhmc.linalg.compiled.compilation import compiled, compiled_in_any_order

__all__ = [
    "LARGE", "Products", "congruence", "contraction", "is_finite", "multiply_in_streams", "multiply_symmetric",
    "products_of",
]  # fmt: skip

type Array = NDArray[np.float64]
type Single = NDArray[np.float32]
type Index = NDArray[np.int64]
type Design = Array | sparse.csr_array
type Products = _Dense | _Sparse

# From here on eight columns at once are faster: of 1500 values a triangle takes 9 MB.
LARGE = 1500


@compiled_in_any_order
def _by_eight(columns: Array, end: int, vector: Array, product: Array) -> None:  # pragma: no cover - compiled
    """Multiply by eight columns at once up to the end, a multiple of eight; what the product holds is overwritten."""
    for j in range(0, end, 8):
        a, b, c, d = columns[j, :j], columns[j + 1, :j], columns[j + 2, :j], columns[j + 3, :j]
        e, f, g, h = columns[j + 4, :j], columns[j + 5, :j], columns[j + 6, :j], columns[j + 7, :j]
        by_a, by_b, by_c, by_d = vector[j], vector[j + 1], vector[j + 2], vector[j + 3]
        by_e, by_f, by_g, by_h = vector[j + 4], vector[j + 5], vector[j + 6], vector[j + 7]
        of_a = of_b = of_c = of_d = of_e = of_f = of_g = of_h = 0.0
        before, made = vector[:j], product[:j]
        for i in range(j):
            by = before[i]
            of_a, of_b, of_c, of_d = of_a + a[i] * by, of_b + b[i] * by, of_c + c[i] * by, of_d + d[i] * by
            of_e, of_f, of_g, of_h = of_e + e[i] * by, of_f + f[i] * by, of_g + g[i] * by, of_h + h[i] * by
            more = a[i] * by_a + b[i] * by_b + c[i] * by_c + d[i] * by_d
            made[i] += more + e[i] * by_e + f[i] * by_f + g[i] * by_g + h[i] * by_h
        product[j], product[j + 1], product[j + 2], product[j + 3] = of_a, of_b, of_c, of_d
        product[j + 4], product[j + 5], product[j + 6], product[j + 7] = of_e, of_f, of_g, of_h
        for p in range(j, j + 8):
            for q in range(j, p):
                product[p] += columns[p, q] * vector[q]
                product[q] += columns[p, q] * vector[p]
            product[p] += columns[p, p] * vector[p]


@compiled_in_any_order
def _one_column(column: Array, by: float, vector: Array, product: Array) -> float:  # pragma: no cover - compiled
    """Return the column's product with what the vector begins with; add ``by`` times the column to the product."""
    total = 0.0
    for i in range(column.size):
        total += column[i] * vector[i]
        product[i] += column[i] * by
    return total


def _columns_by_rows(matrix: Array | Single) -> Array:
    """Return the columns of a symmetric matrix as the rows of one in C order; for compiled code alone."""
    raise NotImplementedError


@overload(_columns_by_rows, strict=False)
def _compiled_columns_by_rows(matrix: types.Array) -> Callable[[Array], Array]:
    if matrix.layout == "C":
        return lambda matrix: matrix
    return lambda matrix: matrix.T


@compiled
def multiply_in_streams(matrix: Array | Single, vector: Array) -> Array:  # pragma: no cover - compiled
    """Multiply as `multiply_symmetric`, for any size and precision, in several streams; sum in double precision."""
    n = vector.size
    columns, product, whole = _columns_by_rows(matrix), np.empty(n), n - n % 8
    _by_eight(columns, whole, vector, product)
    for j in range(whole, n):
        product[j] = _one_column(columns[j, :j], vector[j], vector, product) + columns[j, j] * vector[j]
    return product


@compiled
def multiply_symmetric(matrix: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``S v`` (n,) for a symmetric S and a contiguous v; of a Fortran-ordered S the upper triangle is read."""
    return symmetric_product(matrix, vector) if vector.size < LARGE else multiply_in_streams(matrix, vector)


def products_of(design: Design) -> Products:
    """Return the products of an array, or of a sparse array by rows."""
    return _Sparse(design) if sparse.issparse(design) else _Dense(design)


def congruence(design: Design, matrix: Array) -> Array:
    """Return ``A K Aᵀ`` (n, n) for a symmetric K (k, k)."""
    if not _has_one_entry_by_row(design):
        return np.asarray(design @ (design @ matrix).T)
    return np.asarray(_picked(design.indices, design.data, np.ascontiguousarray(matrix)).T)


def contraction(design: Design, matrix: Array) -> Array:
    """Return ``Aᵀ M A`` (k, k) for any M (n, n)."""
    if not _has_one_entry_by_row(design):
        return np.asarray(design.T @ np.asarray(matrix @ design))
    return np.asarray(_collected(design.indices, design.data, np.ascontiguousarray(matrix.T), design.shape[1]).T)


def _has_one_entry_by_row(design: Design) -> TypeGuard[sparse.csr_array]:
    """Return whether A picks one value for each row, as an index does: SciPy takes three times as long."""
    if not sparse.issparse(design):
        return False
    held: sparse.csr_array = design
    return held.nnz == held.shape[0] and bool((held.indptr == np.arange(held.shape[0] + 1)).all())


def is_finite(design: Design) -> bool:
    """Return whether all entries of an array or a sparse array are numbers."""
    return bool(np.isfinite(design.data if sparse.issparse(design) else design).all())


class _Dense:
    """A with its zeros."""

    def __init__(self, design: Array) -> None:
        self._design = design

    def predict(self, values: Array) -> Array:
        """Return ``A x``, (n,)."""
        return np.asarray(self._design @ values)

    def collect(self, sites: Array) -> Array:
        """Return ``Aᵀ v``, (k,)."""
        return np.asarray(self._design.T @ sites)

    def gram(self, precision: Array) -> Array:
        """Return ``AᵀW̄A``, (k, k), in Fortran order."""
        rooted = np.sqrt(precision)[:, None] * self._design
        # A product with its own transpose takes half of the flops, and is symmetric: its order is any.
        return np.asarray((rooted.T @ rooted).T)

    def variances(self, root: Array) -> Array:
        """Return the diagonal of ``A R Rᵀ Aᵀ`` (n,), for an R (k, k)."""
        half = self._design @ root
        return np.asarray(np.einsum("ij,ij->i", half, half))

    def bar(self, left: Array, right: Array, precision: Array, covariance: Array) -> Array:
        """Return ``Σ leftᵀ right - W̄ A S`` (n, k), of pairs (p, n) and (p, k), and the lower triangle of S."""
        solved = blas.dsymm(1.0, covariance, np.asfortranarray(self._design.T), lower=1).T
        return np.asarray(left.T @ right - precision[:, None] * solved)


class _Sparse:
    """A by its entries, row by row."""

    def __init__(self, design: sparse.csr_array) -> None:
        self._entries, self._n_columns = (design.indptr, design.indices, design.data), design.shape[1]

    def predict(self, values: Array) -> Array:
        """Return ``A x``, (n,)."""
        return _predict(*self._entries, values)

    def collect(self, sites: Array) -> Array:
        """Return ``Aᵀ v``, (k,)."""
        return _collect(*self._entries, sites, self._n_columns)

    def gram(self, precision: Array) -> Array:
        """Return ``AᵀW̄A``, (k, k), in Fortran order."""
        return np.asarray(_gram(*self._entries, precision, self._n_columns).T)

    def variances(self, root: Array) -> Array:
        """Return the diagonal of ``A R Rᵀ Aᵀ`` (n,), for an R (k, k)."""
        return _variances(*self._entries, np.ascontiguousarray(root))

    def bar(self, left: Array, right: Array, precision: Array, covariance: Array) -> Array:
        """Return ``Σ leftᵀ right - W̄ A S`` at A's entries."""
        return _by_entry(*self._entries, precision, covariance.T, left, right)


@compiled
def _predict(starts: Index, columns: Index, entries: Array, x: Array) -> Array:  # pragma: no cover - compiled
    """Return ``A x``."""
    predicted = np.zeros(starts.size - 1)
    for i in range(predicted.size):
        for at in range(starts[i], starts[i + 1]):
            predicted[i] += entries[at] * x[columns[at]]
    return predicted


@compiled
def _collect(
    starts: Index, columns: Index, entries: Array, sites: Array, k: int
) -> Array:  # pragma: no cover - compiled
    """Return ``Aᵀ v``."""
    collected = np.zeros(k)
    for i in range(sites.size):
        for at in range(starts[i], starts[i + 1]):
            collected[columns[at]] += entries[at] * sites[i]
    return collected


@compiled
def _gram(
    starts: Index, columns: Index, entries: Array, precision: Array, k: int
) -> Array:  # pragma: no cover - compiled
    """Return ``AᵀW̄A``."""
    gram = np.zeros((k, k))
    for i in range(precision.size):
        for at in range(starts[i], starts[i + 1]):
            weighted = precision[i] * entries[at]
            for other in range(starts[i], starts[i + 1]):
                gram[columns[at], columns[other]] += weighted * entries[other]
    return gram


@compiled
def _variances(starts: Index, columns: Index, entries: Array, root: Array) -> Array:  # pragma: no cover - compiled
    """Return the squared length of every row of ``A R``."""
    variances, row = np.zeros(starts.size - 1), np.empty(root.shape[1])
    for i in range(variances.size):
        row[:] = 0.0
        for at in range(starts[i], starts[i + 1]):
            scale, held = entries[at], root[columns[at]]
            for j in range(row.size):
                row[j] += scale * held[j]
        for j in range(row.size):
            variances[i] += row[j] * row[j]
    return variances


@compiled
def _by_entry(
    starts: Index, columns: Index, entries: Array, precision: Array, covariance: Array, left: Array, right: Array
) -> Array:  # pragma: no cover - compiled
    """Return ``Σ leftᵀ right - W̄ A S`` at the entries of a sparse A, given the upper triangle of S."""
    bar = np.empty(entries.size)
    for i in range(precision.size):
        for at in range(starts[i], starts[i + 1]):
            total, column = 0.0, columns[at]
            for other in range(starts[i], starts[i + 1]):
                total += entries[other] * covariance[min(columns[other], column), max(columns[other], column)]
            bar[at] = -precision[i] * total
            for pair in range(left.shape[0]):
                bar[at] += left[pair, i] * right[pair, column]
    return bar


@compiled
def _picked(columns: Index, entries: Array, matrix: Array) -> Array:  # pragma: no cover - compiled
    """Return ``A K Aᵀ`` for an A with one entry a row."""
    n = columns.size
    product = np.empty((n, n))
    for i in range(n):
        row, scale, made = matrix[columns[i]], entries[i], product[i]
        for j in range(n):
            made[j] = scale * entries[j] * row[np.uintp(columns[j])]
    return product


@compiled
def _collected(columns: Index, entries: Array, matrix: Array, k: int) -> Array:  # pragma: no cover - compiled
    """Return ``Aᵀ M A`` for an A with one entry a row."""
    product, row = np.zeros((k, k)), np.empty(k)
    for i in range(columns.size):
        row[:] = 0.0
        given = matrix[i]
        for j in range(columns.size):
            row[np.uintp(columns[j])] += given[j] * entries[j]
        made, scale = product[columns[i]], entries[i]
        for j in range(k):
            made[j] += scale * row[j]
    return product
