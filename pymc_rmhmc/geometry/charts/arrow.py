"""A design most of whose columns have no row in common, as the indicators of a mixed model's groups: E is an arrow.

With these columns first, ``G = [[Δ, H], [Hᵀ, C]]`` with a diagonal Δ, and ``E = I + D G D`` is factorised by
eliminating them one by one: what is left, ``S = E₂₂ - E₂₁ E₁₁⁻¹ E₁₂``, has the size of the other columns, and is empty
for groups alone. An evaluation is a few passes over the observations, each less than what NumPy takes to begin with it:
so they are compiled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.compilation import compiled
from pymc_rmhmc.geometry.prior import PriorFailure

__all__ = ["Arrow"]

type Array = NDArray[np.float64]


class _Arrays(NamedTuple):
    """What the compiled functions read of a design; 1 are the columns apart, 2 the others.

    Attributes
    ----------
    first, second : (p,), (q,) int array
        Which columns.
    column : (n,) int array
        Of the one entry that a row has in 1, its place there.
    entry : (n,) array
        That entry.
    others : (q, n) array
        A₂ᵀ.
    diagonal, cross, corner : (p,), (p, q), (q, q) array
        Δ, H and C.
    roots, below, corner_root : (p,), (p, q), (q, q) array
        ``F = [[sqrt Δ, 0], [belowᵀ, corner_root]]``.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    column: NDArray[np.int64]
    entry: Array
    others: Array
    diagonal: Array
    cross: Array
    corner: Array
    roots: Array
    below: Array
    corner_root: Array


class _Factors(NamedTuple):
    """E at one D.

    Attributes
    ----------
    first, second : (p,), (q,) array
        D.
    pivots : (p,) array
        ``E₁₁``.
    cross, reduced : (p, q) array
        ``E₁₂``, and ``E₁₁⁻¹ E₁₂``.
    inverse : (q, q) array
        R⁻¹ of ``S = R Rᵀ``.
    """

    first: Array
    second: Array
    pivots: Array
    cross: Array
    reduced: Array
    inverse: Array


class Arrow:
    """A with columns apart, and its weights.

    Parameters
    ----------
    design : (n, k) array or sparse array
        A.
    precision : (n,) array
        w̄ ≥ 0.
    apart : (p,) int array
        Columns that have no row in common.
    """

    def __init__(self, design: Any, precision: Array, apart: NDArray[np.int64]) -> None:
        n, k = design.shape
        columns = sparse.csc_array(design, dtype=np.float64)
        second = np.setdiff1d(np.arange(k), apart)
        alone = columns[:, apart].tocoo()
        # Every row has one entry at most: where it is, and what.
        column, entry = np.zeros(n, dtype=np.int64), np.zeros(n)
        column[alone.row], entry[alone.row] = alone.col, alone.data
        others = np.ascontiguousarray(columns[:, second].toarray().T)
        weighted = precision * others
        diagonal = np.bincount(column, entry**2 * precision, apart.size)
        cross = np.array([np.bincount(column, entry * w, apart.size) for w in weighted]).reshape(-1, apart.size)
        cross = np.ascontiguousarray(cross.T)
        corner = np.ascontiguousarray(others @ weighted.T)
        roots = np.sqrt(diagonal)
        below = cross / np.where(roots > 0.0, roots, 1.0)[:, None]
        values, vectors = np.linalg.eigh(corner - below.T @ below)
        corner_root = np.ascontiguousarray(vectors * np.sqrt(np.maximum(values, 0.0)))
        self.arrays = _Arrays(
            apart, second, column, entry, others, diagonal, cross, corner, roots, below, corner_root
        )
        self.n_noise = k

    def root_adjoint(self, vector: Array) -> Array:
        """``Fᵀ v``, (k,)."""
        return np.asarray(_root_adjoint(self.arrays, vector))

    def inner(self, spread: Array, slope: Array) -> ArrowInner:
        """Coefficients at a D (k,) and a slope (n,)."""
        return ArrowInner(self.arrays, spread, slope)


class ArrowInner:
    """The coefficients at one D; see `pymc_rmhmc.geometry.charts.design.Inner`.

    Raises
    ------
    PriorFailure
        If E is not finite, or not positive definite.
    """

    def __init__(self, arrays: _Arrays, spread: Array, slope: Array) -> None:
        self._arrays, self._spread = arrays, spread
        self._factors, self.log_determinant, self._linear, self.centre, self.gained, self.explained = _begin(
            arrays, spread, slope
        )
        if not np.isfinite(self.log_determinant):
            corner = self._factors.second**2 * arrays.corner.diagonal()
            finite = bool(np.isfinite(self._factors.pivots).all() and np.isfinite(corner).all())
            raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE if finite else Failure.NON_FINITE, 0)

    def place(self, noise: Array) -> Array:
        """``A D y`` (n,)."""
        self._pulled, self.placed, predicted = _place(self._arrays, self._factors, self._spread, self._linear, noise)
        return np.asarray(predicted)

    def pullback(self, residual: Array) -> tuple[Array, Array, Array]:
        """By z, ``A D E⁻¹ D Aᵀ residual``, and by D."""
        noise, predicted, spread_bar = _pullback(
            self._arrays, self._factors, self._spread, residual, self._pulled, self.placed, self._linear, self.centre
        )
        return noise, predicted, spread_bar

    def adjoint(self, sites: Array) -> Array:
        """The derivative by z of ``sitesᵀ A D y``."""
        return np.asarray(_adjoint(self._arrays, self._factors, self._spread, sites)[0])

    def gram(self, sites: Array) -> Array:
        """``A D E⁻¹ D Aᵀ sites``, (n,)."""
        return np.asarray(_gram(self._arrays, self._factors, self._spread, sites))

    def variances(self) -> Array:
        """The diagonal of ``A D E⁻¹ D Aᵀ``, (n,)."""
        arrays, factors = self._arrays, self._factors
        entry = arrays.entry * factors.first[arrays.column]
        rows = arrays.others.T * factors.second - entry[:, None] * factors.reduced[arrays.column]
        half = rows @ factors.inverse.T
        return np.asarray(entry**2 / factors.pivots[arrays.column] + np.einsum("ij,ij->i", half, half))


@compiled
def _predict(arrays: _Arrays, x: Array) -> Array:  # pragma: no cover - compiled
    """``A x``."""
    first = x[arrays.first]
    predicted: Array = np.dot(x[arrays.second], arrays.others)
    for i in range(predicted.size):
        predicted[i] += arrays.entry[i] * first[arrays.column[i]]
    return predicted


@compiled
def _collect(arrays: _Arrays, sites: Array) -> Array:  # pragma: no cover - compiled
    """``Aᵀ v``."""
    first = np.zeros(arrays.first.size)
    for i in range(sites.size):
        first[arrays.column[i]] += arrays.entry[i] * sites[i]
    return _joined(arrays, first, np.dot(arrays.others, sites))


@compiled
def _joined(arrays: _Arrays, first: Array, second: Array) -> Array:  # pragma: no cover - compiled
    """Coefficients of their parts."""
    joined = np.empty(first.size + second.size)
    joined[arrays.first] = first
    joined[arrays.second] = second
    return joined


@compiled
def _multiply(arrays: _Arrays, x: Array) -> Array:  # pragma: no cover - compiled
    """``G x``."""
    first, second = x[arrays.first], x[arrays.second]
    above = arrays.diagonal * first + np.dot(arrays.cross, second)
    return _joined(arrays, above, np.dot(first, arrays.cross) + np.dot(arrays.corner, second))


@compiled
def _root(arrays: _Arrays, noise: Array) -> Array:  # pragma: no cover - compiled
    """``F z``."""
    p = arrays.first.size
    first, second = noise[:p], noise[p:]
    return _joined(arrays, arrays.roots * first, np.dot(first, arrays.below) + np.dot(arrays.corner_root, second))


@compiled
def _root_adjoint(arrays: _Arrays, x: Array) -> Array:  # pragma: no cover - compiled
    """``Fᵀ x``."""
    p = arrays.first.size
    first, second = x[arrays.first], x[arrays.second]
    noise = np.empty(x.size)
    noise[:p] = arrays.roots * first + np.dot(arrays.below, second)
    noise[p:] = np.dot(second, arrays.corner_root)
    return noise


@compiled
def _factorise(arrays: _Arrays, spread: Array) -> tuple[_Factors, float]:  # pragma: no cover - compiled
    """E at a D, and its log determinant, which is nan where there is no factor."""
    first, second = spread[arrays.first], spread[arrays.second]
    p, q = arrays.cross.shape
    pivots = 1.0 + first**2 * arrays.diagonal
    cross, reduced = np.empty((p, q)), np.empty((p, q))
    for i in range(p):
        for j in range(q):
            cross[i, j] = first[i] * arrays.cross[i, j] * second[j]
            reduced[i, j] = cross[i, j] / pivots[i]
    remainder = -np.dot(cross.T, reduced)
    for i in range(q):
        for j in range(q):
            remainder[i, j] += second[i] * arrays.corner[i, j] * second[j]
        remainder[i, i] += 1.0
    inverse, half_log_determinant = _inverse_factor(remainder)
    log_determinant = np.log(pivots).sum() + 2.0 * half_log_determinant
    return _Factors(first, second, pivots, cross, reduced, inverse), log_determinant


@compiled
def _inverse_factor(matrix: Array) -> tuple[Array, float]:  # pragma: no cover - compiled
    """R⁻¹ and ``log|R|`` of ``S = R Rᵀ``, by rows; nan where there is no factor. S is overwritten by R."""
    q = matrix.shape[0]
    inverse, log_determinant = np.zeros((q, q)), 0.0
    for i in range(q):
        for j in range(i):
            matrix[i, j] = (matrix[i, j] - np.dot(matrix[i, :j], matrix[j, :j])) / matrix[j, j]
        pivot = matrix[i, i] - np.dot(matrix[i, :i], matrix[i, :i])
        if not pivot > 0.0:
            return inverse, np.nan
        matrix[i, i] = np.sqrt(pivot)
        log_determinant += np.log(matrix[i, i])
        inverse[i, i] = 1.0 / matrix[i, i]
        for k in range(i):
            for j in range(k + 1):
                inverse[i, j] -= matrix[i, k] * inverse[k, j]
        for j in range(i):
            inverse[i, j] /= matrix[i, i]
    return inverse, log_determinant


@compiled
def _solve(arrays: _Arrays, factors: _Factors, x: Array) -> Array:  # pragma: no cover - compiled
    """``E⁻¹ x``."""
    first, second = x[arrays.first], x[arrays.second]
    reduced = np.dot(factors.inverse, second - np.dot(first, factors.reduced))
    second = np.dot(reduced, factors.inverse)
    return _joined(arrays, (first - np.dot(factors.cross, second)) / factors.pivots, second)


@compiled
def _begin(
    arrays: _Arrays, spread: Array, slope: Array
) -> tuple[_Factors, float, Array, Array, float, Array]:  # pragma: no cover - compiled
    """E and ``log|E|``, ``l = Aᵀ slope``, the mean, ``(D l)ᵀ`` mean, and ``A D`` mean."""
    factors, log_determinant = _factorise(arrays, spread)
    linear = _collect(arrays, slope)
    centre = _solve(arrays, factors, spread * linear)
    gained = np.dot(spread * linear, centre)
    return factors, log_determinant, linear, centre, gained, _predict(arrays, spread * centre)


@compiled
def _place(
    arrays: _Arrays, factors: _Factors, spread: Array, linear: Array, noise: Array
) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled
    """``l + F z₂``, y and ``A D y``."""
    k = spread.size
    pulled = linear + _root(arrays, noise[k:])
    placed = _solve(arrays, factors, spread * pulled + noise[:k])
    return pulled, placed, _predict(arrays, spread * placed)


@compiled
def _gram(arrays: _Arrays, factors: _Factors, spread: Array, sites: Array) -> Array:  # pragma: no cover - compiled
    """``A D E⁻¹ D Aᵀ sites``."""
    return _predict(arrays, spread * _solve(arrays, factors, spread * _collect(arrays, sites)))


@compiled
def _adjoint(
    arrays: _Arrays, factors: _Factors, spread: Array, sites: Array
) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled
    """By z, and ``Aᵀ sites`` and ``E⁻¹ D Aᵀ sites`` on the way."""
    collected = _collect(arrays, sites)
    moved = _solve(arrays, factors, spread * collected)
    k = spread.size
    noise = np.empty(2 * k)
    noise[:k] = moved
    noise[k:] = _root_adjoint(arrays, spread * moved)
    return noise, collected, moved


@compiled
def _pullback(
    arrays: _Arrays, factors: _Factors, spread: Array, residual: Array, pulled: Array, placed: Array, linear: Array,
    centre: Array,
) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """By z, ``A D E⁻¹ D Aᵀ residual``, and by D."""
    noise, collected, moved = _adjoint(arrays, factors, spread, residual)
    spread_bar = (
        collected * placed
        + moved * (pulled - _multiply(arrays, spread * placed))
        - placed * _multiply(arrays, spread * moved)
        + centre * (linear - _multiply(arrays, spread * centre))
        - _half_log_determinant_slope(arrays, factors)
    )
    return noise, _predict(arrays, spread * moved), spread_bar


@compiled
def _half_log_determinant_slope(arrays: _Arrays, factors: _Factors) -> Array:  # pragma: no cover - compiled
    """The diagonal of ``G D E⁻¹``, without a difference that D near 0 would lose."""
    p, q = arrays.cross.shape
    first = np.empty(p)
    # E⁻¹₁₁ is E₁₁⁻¹ + reduced S⁻¹ reducedᵀ, and 1 - E₁₁⁻¹ = D² Δ / E₁₁.
    half = np.dot(arrays.cross * factors.second, factors.inverse.T)
    for i in range(p):
        total = 0.0
        for j in range(q):
            total += half[i, j] ** 2
        first[i] = factors.first[i] * (arrays.diagonal[i] - total / factors.pivots[i]) / factors.pivots[i]
    # G D E⁻¹ below is Hᵀ D₁ E⁻¹₁₂ + C D₂ S⁻¹, and E⁻¹₁₂ = -reduced S⁻¹; H without D₂ keeps what D₂ near 0 would lose.
    alone = arrays.corner * factors.second
    for g in range(p):
        scale = factors.first[g]
        for i in range(q):
            for j in range(q):
                alone[i, j] -= arrays.cross[g, i] * scale * factors.reduced[g, j]
    second = np.empty(q)
    precision_inverse = np.dot(factors.inverse.T, factors.inverse)
    for i in range(q):
        second[i] = np.dot(alone[i], precision_inverse[i])
    return _joined(arrays, first, second)
