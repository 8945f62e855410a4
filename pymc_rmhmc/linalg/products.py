"""Products with the matrix A of a predictor that is made anew at every θ: dense, or sparse and compiled.

SciPy takes longer to look at a few thousand entries of a sparse array than their products take.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import blas

from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = ["Products", "is_finite", "products_of"]

type Array = NDArray[np.float64]
type Index = NDArray[np.int64]


class Products(Protocol):
    """What charts ask of A, (n, k)."""

    def predict(self, values: Array) -> Array:
        """Return ``A x``, (n,)."""

    def collect(self, sites: Array) -> Array:
        """Return ``Aᵀ v``, (k,)."""

    def gram(self, precision: Array) -> Array:
        """Return ``AᵀW̄A``, (k, k), in Fortran order."""

    def variances(self, root: Array) -> Array:
        """Return the diagonal of ``A R Rᵀ Aᵀ`` (n,), for an R (k, k)."""

    def bar(self, left: Array, right: Array, precision: Array, covariance: Array) -> Array:
        """Return ``Σ leftᵀ right - W̄ A S``, (n, k), or for a sparse A its values at A's entries.

        Of pairs (p, n) and (p, k), and the lower triangle of S.
        """


def products_of(design: Any) -> Products:
    """Return the products of an array, or of a sparse array by rows."""
    return _Sparse(design) if sparse.issparse(design) else _Dense(design)


def is_finite(design: Any) -> bool:
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
        """Return ``Σ leftᵀ right - W̄ A S``, (n, k)."""
        solved = blas.dsymm(1.0, covariance, np.asfortranarray(self._design.T), lower=1).T
        return np.asarray(left.T @ right - precision[:, None] * solved)


class _Sparse:
    """A by its entries, row by row."""

    def __init__(self, design: Any) -> None:
        self._entries, self._n_columns = (design.indptr, design.indices, design.data), design.shape[1]

    def predict(self, values: Array) -> Array:
        """Return ``A x``, (n,)."""
        predicted: Array = _predict(*self._entries, values)
        return predicted

    def collect(self, sites: Array) -> Array:
        """Return ``Aᵀ v``, (k,)."""
        collected: Array = _collect(*self._entries, sites, self._n_columns)
        return collected

    def gram(self, precision: Array) -> Array:
        """Return ``AᵀW̄A``, (k, k), in Fortran order."""
        return np.asarray(_gram(*self._entries, precision, self._n_columns).T)

    def variances(self, root: Array) -> Array:
        """Return the diagonal of ``A R Rᵀ Aᵀ`` (n,), for an R (k, k)."""
        variances: Array = _variances(*self._entries, np.ascontiguousarray(root))
        return variances

    def bar(self, left: Array, right: Array, precision: Array, covariance: Array) -> Array:
        """Return ``Σ leftᵀ right - W̄ A S`` at A's entries."""
        bar: Array = _by_entry(*self._entries, precision, covariance.T, left, right)
        return bar


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
def _variances(
    starts: Index, columns: Index, entries: Array, root: Array
) -> Array:  # pragma: no cover - compiled
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
