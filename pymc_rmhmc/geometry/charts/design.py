"""A constant design with weights: products with A, ``G = AᵀW̄A``, and ``E = I + D G D`` for any diagonal D.

Three forms. With more observations than coefficients E itself is factorised, (k, k). With more coefficients it is had
from ``B = I + s A D² Aᵀ s``, (n, n), with ``s = sqrt(w̄)``. And where most columns share no row with one another, as the
indicators of a mixed model's groups do, E is an arrow: these columns are eliminated one by one, and what is factorised
has the size of the others.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import blas

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.linalg import cholesky, inverse_lower, multiply_symmetric, solve_lower
from pymc_rmhmc.geometry.prior import PriorFailure

__all__ = ["Inner", "WeightedDesign", "dense_design", "weighted_design"]

type Array = NDArray[np.float64]

# Below this the identity less E⁻¹ is lost in rounding, and its first order is exact.
LOST = 1e-8


class Inner(Protocol):
    """E at one D."""

    log_determinant: float

    def solve(self, vector: Array) -> Array:
        """``E⁻¹ v``."""

    def variances(self) -> Array:
        """The diagonal of ``A D E⁻¹ D Aᵀ``, (n,)."""

    def half_log_determinant_slope(self) -> Array:
        """``½ ∂ log|E| / ∂D``, the diagonal of ``G D E⁻¹``, (k,)."""


class WeightedDesign(Protocol):
    """A, ``G = AᵀW̄A`` and a root F of it."""

    n_noise: int

    def predict(self, coefficients: Array) -> Array:
        """``A x``, (n,)."""

    def collect(self, sites: Array) -> Array:
        """``Aᵀ v``, (k,)."""

    def root(self, noise: Array) -> Array:
        """``F z₂``."""

    def root_adjoint(self, vector: Array) -> Array:
        """``Fᵀ v``."""

    def multiply(self, vector: Array) -> Array:
        """``G v``."""

    def inner(self, spread: Array) -> Inner:
        """E for a D; a `PriorFailure` where it has no factor."""


def dense_design(design: Any) -> Array:
    """A as an array."""
    return np.asarray(design.toarray() if sparse.issparse(design) else design)


def weighted_design(design: Any, precision: Array) -> WeightedDesign:
    """The form that is cheapest.

    Parameters
    ----------
    design : (n, k) array or sparse array
        A.
    precision : (n,) array
        w̄ ≥ 0.
    """
    n, k = design.shape
    apart = _columns_apart(design)
    if 2 * apart.size >= k and k <= n:
        return _Arrow(dense_design(design), precision, apart)
    return _ManyObservations(design, precision) if k <= n else _ManyCoefficients(design, precision)


def _columns_apart(design: Any) -> NDArray[np.int64]:
    """Columns that have no row in common, taken greedily from those with the fewest entries."""
    columns = sparse.csc_array(design)
    starts, rows = columns.indptr, columns.indices
    taken, chosen = np.zeros(design.shape[0], dtype=bool), []
    for j in np.argsort(np.diff(starts), kind="stable"):
        held = rows[starts[j] : starts[j + 1]]
        if not taken[held].any():
            taken[held] = True
            chosen.append(j)
    return np.sort(np.asarray(chosen, dtype=np.int64))


class _Products:
    """Products with A as it is given."""

    def __init__(self, design: Any) -> None:
        # A sparse array would be transposed anew for every product.
        self._design, self._transposed = design, design.T.tocsr() if sparse.issparse(design) else design.T
        self._dense = dense_design(design)

    def predict(self, coefficients: Array) -> Array:
        return np.asarray(self._design @ coefficients)

    def collect(self, sites: Array) -> Array:
        return np.asarray(self._transposed @ sites)


class _ManyObservations(_Products):
    """The (k, k) form."""

    def __init__(self, design: Any, precision: Array) -> None:
        super().__init__(design)
        gram = self._transposed @ (precision[:, None] * self._dense)
        self._gram = np.asfortranarray(0.5 * (gram + gram.T))
        values, vectors = np.linalg.eigh(self._gram)
        self._root = vectors * np.sqrt(np.maximum(values, 0.0))
        self.n_noise = self._dense.shape[1]

    def root(self, noise: Array) -> Array:
        return np.asarray(self._root @ noise)

    def root_adjoint(self, vector: Array) -> Array:
        return np.asarray(self._root.T @ vector)

    def multiply(self, vector: Array) -> Array:
        return multiply_symmetric(self._gram, vector)

    def inner(self, spread: Array) -> Inner:
        return _ManyObservationsInner(_factor(_identity_plus(self._gram, spread)), spread, self._gram, self._dense)


class _ManyObservationsInner:
    def __init__(self, factor: Array, spread: Array, gram: Array, design: Array) -> None:
        self._factor, self._spread, self._gram, self._design = factor, spread, gram, design
        self.log_determinant = 2.0 * float(np.log(factor.diagonal()).sum())

    def solve(self, vector: Array) -> Array:
        return solve_lower(self._factor, solve_lower(self._factor, vector), transpose=True)

    def variances(self) -> Array:
        half = blas.dtrsm(1.0, self._factor, np.asfortranarray((self._design * self._spread).T), lower=1)
        return np.asarray(np.einsum("ij,ij->j", half, half))

    def half_log_determinant_slope(self) -> Array:
        return _slope_of_factor(self._factor, self._spread, self._gram.diagonal())


class _ManyCoefficients(_Products):
    """The (n, n) form."""

    def __init__(self, design: Any, precision: Array) -> None:
        super().__init__(design)
        self._rooted = np.asfortranarray(np.sqrt(precision)[:, None] * self._dense)
        self.n_noise = self._dense.shape[0]

    def root(self, noise: Array) -> Array:
        return np.asarray(noise @ self._rooted)

    def root_adjoint(self, vector: Array) -> Array:
        return np.asarray(self._rooted @ vector)

    def multiply(self, vector: Array) -> Array:
        return np.asarray((self._rooted @ vector) @ self._rooted)

    def inner(self, spread: Array) -> Inner:
        scaled = self._rooted * spread
        matrix = np.asfortranarray(scaled @ scaled.T)
        matrix.reshape(-1, order="F")[:: matrix.shape[0] + 1] += 1.0
        return _ManyCoefficientsInner(_factor(matrix), spread, self._rooted, scaled, self._dense)


class _ManyCoefficientsInner:
    def __init__(self, factor: Array, spread: Array, rooted: Array, scaled: Array, design: Array) -> None:
        self._factor, self._spread, self._rooted, self._scaled, self._design = factor, spread, rooted, scaled, design
        self.log_determinant = 2.0 * float(np.log(factor.diagonal()).sum())

    def solve(self, vector: Array) -> Array:
        half = solve_lower(self._factor, self._scaled @ vector)
        return np.asarray(vector - solve_lower(self._factor, half, transpose=True) @ self._scaled)

    def variances(self) -> Array:
        moved = self._design * self._spread
        half = blas.dtrsm(1.0, self._factor, np.asfortranarray(self._scaled @ moved.T), lower=1)
        variance = np.einsum("ij,ij->i", moved, moved) - np.einsum("ij,ij->j", half, half)
        return np.asarray(np.maximum(variance, 0.0))

    def half_log_determinant_slope(self) -> Array:
        half = blas.dtrsm(1.0, self._factor, self._rooted, lower=1)
        return np.asarray(self._spread * np.einsum("ij,ij->j", half, half))


class _Arrow:
    """Columns that are apart (1), and the others (2): ``G = [[Δ, H], [Hᵀ, C]]`` with a diagonal Δ."""

    def __init__(self, dense: Array, precision: Array, apart: NDArray[np.int64]) -> None:
        n, self._size = dense.shape
        self._first = apart
        self._second = np.setdiff1d(np.arange(self._size), apart)
        alone = dense[:, apart]
        # Every row has one entry at most: where it is, and what.
        self._column = np.argmax(alone != 0.0, axis=1)
        self._entry = alone[np.arange(n), self._column]
        self._others = np.ascontiguousarray(dense[:, self._second])
        weighted = precision[:, None] * self._others
        self.diagonal = self._by_column(precision * self._entry)
        self.cross = np.column_stack([self._by_column(w) for w in weighted.T] or [np.empty((apart.size, 0))])
        self.corner = np.asfortranarray(self._others.T @ weighted)
        self._roots = np.sqrt(self.diagonal)
        safe = np.where(self._roots > 0.0, self._roots, 1.0)
        self._below = self.cross / safe[:, None]
        values, vectors = np.linalg.eigh(self.corner - self._below.T @ self._below)
        self._corner_root = vectors * np.sqrt(np.maximum(values, 0.0))
        self.n_noise = self._size

    def _by_column(self, sites: Array) -> Array:
        """``A₁ᵀ v``."""
        return np.bincount(self._column, self._entry * sites, self._first.size)

    def split(self, vector: Array) -> tuple[Array, Array]:
        """The parts of coefficients."""
        return vector[self._first], vector[self._second]

    def joined(self, first: Array, second: Array) -> Array:
        """Coefficients of their parts."""
        vector = np.empty(self._size)
        vector[self._first] = first
        vector[self._second] = second
        return vector

    def predict(self, coefficients: Array) -> Array:
        first, second = self.split(coefficients)
        return np.asarray(self._entry * first[self._column] + self._others @ second)

    def collect(self, sites: Array) -> Array:
        return self.joined(self._by_column(sites), sites @ self._others)

    def root(self, noise: Array) -> Array:
        first, second = noise[: self._first.size], noise[self._first.size :]
        return self.joined(self._roots * first, first @ self._below + self._corner_root @ second)

    def root_adjoint(self, vector: Array) -> Array:
        first, second = self.split(vector)
        return np.concatenate((self._roots * first + self._below @ second, second @ self._corner_root))

    def multiply(self, vector: Array) -> Array:
        first, second = self.split(vector)
        return self.joined(self.diagonal * first + self.cross @ second, first @ self.cross + self.corner @ second)

    def inner(self, spread: Array) -> Inner:
        return _ArrowInner(self, spread)

    def rows(self, spread: Array) -> tuple[Array, NDArray[np.int64], Array]:
        """Every row of ``A D``: its entry among the first columns and where, and the others."""
        first, second = self.split(spread)
        return self._entry * first[self._column], self._column, self._others * second


class _ArrowInner:
    """E by elimination of its diagonal part: ``S = E₂₂ - E₂₁ E₁₁⁻¹ E₁₂``."""

    def __init__(self, whole: _Arrow, spread: Array) -> None:
        self._whole, self._spread = whole, spread
        self._first, self._second = whole.split(spread)
        self._pivots = 1.0 + self._first**2 * whole.diagonal
        if not np.isfinite(self._pivots).all():
            raise PriorFailure(Failure.NON_FINITE, 0)
        self._cross = self._first[:, None] * whole.cross * self._second
        self._reduced = self._cross / self._pivots[:, None]
        matrix = _identity_plus(whole.corner, self._second)
        matrix -= self._cross.T @ self._reduced
        self._factor = _factor(matrix)
        log_pivots = np.log(self._pivots).sum() + 2.0 * np.log(self._factor.diagonal()).sum()
        self.log_determinant = float(log_pivots)

    def solve(self, vector: Array) -> Array:
        first, second = self._whole.split(vector)
        second = _solve(self._factor, second - first @ self._reduced)
        return self._whole.joined((first - self._cross @ second) / self._pivots, second)

    def variances(self) -> Array:
        entry, column, others = self._whole.rows(self._spread)
        rows = others - entry[:, None] * self._reduced[column]
        half = _half(self._factor, rows.T)
        return np.asarray(entry**2 / self._pivots[column] + np.einsum("ij,ij->j", half, half))

    def half_log_determinant_slope(self) -> Array:
        # E⁻¹₁₁ is E₁₁⁻¹ + (…)(…)ᵀ: what is left of 1 - E⁻¹ on its diagonal, over D, without a difference.
        half = _half(self._factor, (self._whole.cross * self._second / self._pivots[:, None]).T)
        first = self._first * (self._whole.diagonal / self._pivots - np.einsum("ij,ij->j", half, half))
        second = _slope_of_factor(self._factor, self._second, self._whole.corner.diagonal())
        return self._whole.joined(first, second)


def _slope_of_factor(factor: Array, spread: Array, gram_diagonal: Array) -> Array:
    """The diagonal of ``G D E⁻¹`` for ``E = R Rᵀ``: ``D G D E⁻¹ = I - E⁻¹`` has it, times D."""
    inverse = inverse_lower(factor) if factor.size else factor
    explained = 1.0 - np.einsum("ij,ij->j", inverse, inverse)
    first_order = spread * gram_diagonal
    lost = np.abs(spread * first_order) < LOST
    return np.asarray(np.where(lost, first_order, explained / np.where(lost, 1.0, spread)))


def _identity_plus(gram: Array, spread: Array) -> Array:
    """``I + D G D``, to be overwritten by its factor."""
    matrix = np.multiply(gram, spread[:, None], order="F")
    matrix *= spread
    matrix.reshape(-1, order="F")[:: spread.size + 1] += 1.0
    return matrix


def _solve(factor: Array, vector: Array) -> Array:
    if not vector.size:
        return vector
    return solve_lower(factor, solve_lower(factor, vector), transpose=True)


def _half(factor: Array, matrix: Array) -> Array:
    """``R⁻¹ M``."""
    if not matrix.shape[0]:
        return matrix
    return np.asarray(blas.dtrsm(1.0, factor, np.asfortranarray(matrix), lower=1))


def _factor(matrix: Array) -> Array:
    """The lower Cholesky factor of a matrix that may be overwritten, or the failure to count."""
    if not matrix.size:
        return matrix
    finite = bool(np.isfinite(matrix).all())
    factor = cholesky(matrix, overwrite=True) if finite else None
    if factor is None:
        raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE if finite else Failure.NON_FINITE, 0)
    return factor
