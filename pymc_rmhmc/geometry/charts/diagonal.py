"""Coefficients of a linear predictor as a function of (θ, z): standard normal noise, placed by prior and sites.

A generalised linear or mixed model, or a Gaussian process in a basis: ``η = m + A D y`` with a constant design A
(n, k), ``y ~ N(0, I)`` a priori and a diagonal D(θ). As for a covariance matrix
(`pymc_rmhmc.geometry.charts.conditional`) the map of z is that of perturbation sampling,

    y = E⁻¹ (D (Aᵀ(b - W̄m) + F z₂) + z₁),      E = I + D G D,      F Fᵀ = G = AᵀW̄A,

but only D moves with θ: G and F are made once, and nothing but E is factorised. Value and gradient are k³ flops
(two thirds of that for value and derivative of E's determinant), and a few products with A; where there are fewer
observations than coefficients E⁻¹ is had from ``B = I + s A D² Aᵀ s`` (n, n), with ``s = sqrt(w̄)``.

References
----------
Papandreou and Yuille (2010), Gaussian sampling by local perturbations, for the map.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import blas

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.charts.site import GaussianSites
from pymc_rmhmc.geometry.linalg import cholesky, inverse_lower, multiply_symmetric, solve_lower
from pymc_rmhmc.geometry.prior import PriorFailure

__all__ = ["DiagonalConditional", "dense_design"]

type Array = NDArray[np.float64]

def dense_design(design: Any) -> Array:
    """A as an array."""
    return np.asarray(design.toarray() if sparse.issparse(design) else design)


class DiagonalConditional:
    """Independent coefficients times Gaussian sites on their predictor, at one θ.

    Parameters
    ----------
    design : (n, k) array or sparse array
        A.
    mean : (n,) array
        m, the predictor where y is 0.
    spread : (k,) array
        D, of any sign.
    location, scale : (k,) array
        The model's variables are ``location + scale y``.
    sites : GaussianSites
        With w̄ ≥ 0, of the predictor.
    like : DiagonalConditional, optional
        One with the same design and sites, whose G and F serve again.

    Attributes
    ----------
    log_evidence : float
        ``log ∫ N(y; 0, I) exp(bᵀη - ½ ηᵀW̄η) dy``.

    Raises
    ------
    PriorFailure
        If something is not finite, or E has no factor.
    """

    def __init__(
        self, design: Any, mean: Array, spread: Array, location: Array, scale: Array, sites: GaussianSites,
        like: DiagonalConditional | None = None,
    ) -> None:  # fmt: skip
        if not (np.isfinite(mean).all() and np.isfinite(spread).all() and np.isfinite(scale).all()):
            raise PriorFailure(Failure.NON_FINITE, 0)
        self._design, self._mean, self._spread = design, mean, spread
        self._location, self._scale, self._precision = location, scale, sites.precision
        self._weighted: WeightedDesign = (
            _weighted_design(design, sites.precision) if like is None else like._weighted
        )
        self._inner = self._weighted.inner(spread)
        slope = sites.gradient(mean)
        self._linear = self._transposed(slope)
        self._centre = self._inner.solve(spread * self._linear)
        self._centre_slope = slope - self._precision * self._multiplied(self._centre)
        self.log_evidence = float(
            sites.log_density(mean)
            + 0.5 * (spread * self._linear) @ self._centre
            - 0.5 * self._inner.log_determinant
        )

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each coefficient, and for each column of F."""
        return self._spread.size + self._weighted.n_noise

    def place(self, noise: Array) -> Array:
        """The predictor η (n,) of z."""
        k = self._spread.size
        self._pulled = self._linear + self._weighted.root(noise[k:])
        self._placed = self._inner.solve(self._spread * self._pulled + noise[:k])
        return self._mean + self._multiplied(self._placed)

    def enter(self, values: Array, noise: Array) -> Array:
        """A draw of z given the model's variables (k,); `noise` is standard normal.

        With z' any noise and T the linear part of the map, ``z = z' + Tᵀ(TTᵀ)⁻¹ (y - y(z'))``, where
        ``TTᵀ = E⁻¹`` and ``TᵀE = (I, FᵀD)``.
        """
        self.place(noise)
        missing = (values - self._location) / self._scale - self._placed
        other = self._weighted.root_adjoint(self._spread * missing)
        return np.asarray(noise + np.concatenate((missing, other)))

    @property
    def latents(self) -> Array:
        """The model's variables for the noise that was placed last, (k,)."""
        return self._location + self._scale * self._placed

    def log_prior(self) -> float:
        """Their log density."""
        y = self._placed
        return -0.5 * float(y @ y) - 0.5 * y.size * math.log(2.0 * math.pi) - float(np.log(np.abs(self._scale)).sum())

    def marginals(self) -> tuple[Array, Array]:
        """Mean and variance (n,) of each predictor under the prior times the sites."""
        return self._mean + self._multiplied(self._centre), self._inner.variances()

    def pullback(self, residual: Array) -> tuple[Array, Array, Array]:
        """The gradient of ``ψ(η) + log E`` by z, m and D, for the noise that was placed last.

        Parameters
        ----------
        residual : (n,) array
            ``∂ψ/∂η``.
        """
        spread, placed, centre, weighted = self._spread, self._placed, self._centre, self._weighted
        pulled = self._transposed(residual)
        moved = self._inner.solve(spread * pulled)
        noise = np.concatenate((moved, weighted.root_adjoint(spread * moved)))
        mean_bar = residual - self._precision * self._multiplied(moved) + self._centre_slope
        spread_bar = (
            pulled * placed
            + moved * (self._pulled - weighted.multiply(spread * placed))
            - placed * weighted.multiply(spread * moved)
            + centre * (self._linear - weighted.multiply(spread * centre))
            - self._inner.half_log_determinant_slope()
        )
        return noise, mean_bar, spread_bar

    def release(self) -> None:
        """Let go of what only another placing or pullback would need."""
        del self._inner

    def _multiplied(self, y: Array) -> Array:
        """``A D y``, (n,)."""
        return np.asarray(self._design @ (self._spread * y))

    def _transposed(self, sites: Array) -> Array:
        """``Aᵀ v``, (k,)."""
        return np.asarray(self._design.T @ sites)


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
    """``G = AᵀW̄A`` and a root of it."""

    n_noise: int

    def root(self, noise: Array) -> Array:
        """``F z₂``."""

    def root_adjoint(self, vector: Array) -> Array:
        """``Fᵀ v``."""

    def multiply(self, vector: Array) -> Array:
        """``G v``."""

    def inner(self, spread: Array) -> Inner:
        """E for a D."""


def _weighted_design(design: Any, precision: Array) -> WeightedDesign:
    n, k = design.shape
    return _ManyObservations(design, precision) if k <= n else _ManyCoefficients(design, precision)


class _ManyObservations:
    """The (k, k) form."""

    def __init__(self, design: Any, precision: Array) -> None:
        self._dense = dense = dense_design(design)
        gram = design.T @ (precision[:, None] * dense)
        self._gram = np.asfortranarray(0.5 * (gram + gram.T))
        values, vectors = np.linalg.eigh(self._gram)
        self._root = vectors * np.sqrt(np.maximum(values, 0.0))
        self.n_noise = dense.shape[1]

    def root(self, noise: Array) -> Array:
        return np.asarray(self._root @ noise)

    def root_adjoint(self, vector: Array) -> Array:
        return np.asarray(self._root.T @ vector)

    def multiply(self, vector: Array) -> Array:
        return multiply_symmetric(self._gram, vector)

    def inner(self, spread: Array) -> Inner:
        matrix = np.multiply(self._gram, spread[:, None], order="F")
        matrix *= spread
        matrix.flat[:: spread.size + 1] += 1.0
        return _ManyObservationsInner(_factor(matrix), spread, self._gram.diagonal(), self._dense)


class _ManyObservationsInner:
    def __init__(self, factor: Array, spread: Array, gram_diagonal: Array, design: Array) -> None:
        self._factor, self._spread, self._diagonal, self._design = factor, spread, gram_diagonal, design
        self.log_determinant = 2.0 * float(np.log(factor.diagonal()).sum())

    def solve(self, vector: Array) -> Array:
        return solve_lower(self._factor, solve_lower(self._factor, vector), transpose=True)

    def variances(self) -> Array:
        half = blas.dtrsm(1.0, self._factor, np.asfortranarray((self._design * self._spread).T), lower=1)
        return np.asarray(np.einsum("ij,ij->j", half, half))

    def half_log_determinant_slope(self) -> Array:
        # DGDE⁻¹ = I - E⁻¹ has the diagonal wanted, times D; where that is lost in rounding E is the identity.
        inverse = inverse_lower(self._factor)
        explained = 1.0 - np.einsum("ij,ij->j", inverse, inverse)
        first_order = self._spread * self._diagonal
        lost = np.abs(self._spread * first_order) < 1e-8
        return np.where(lost, first_order, explained / np.where(lost, 1.0, self._spread))


class _ManyCoefficients:
    """The (n, n) form."""

    def __init__(self, design: Any, precision: Array) -> None:
        self._dense = dense_design(design)
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
        matrix.flat[:: matrix.shape[0] + 1] += 1.0
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


def _factor(matrix: Array) -> Array:
    """The lower Cholesky factor of a matrix that may be overwritten, or the failure to count."""
    finite = bool(np.isfinite(matrix).all())
    factor = cholesky(matrix, overwrite=True) if finite else None
    if factor is None:
        raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE if finite else Failure.NON_FINITE, 0)
    return factor
