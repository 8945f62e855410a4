"""A constant design with weights: ``G = AᵀW̄A``, and coefficients whose precision is ``E = I + D G D`` for any D.

Three forms. With more observations than coefficients E itself is factorised, (k, k). With more coefficients it is had
from ``B = I + sQs``, (n, n), with ``s = sqrt(w̄)`` and the predictor's covariance ``Q = A D² Aᵀ``: as

    E⁻¹ D Aᵀ v = D Aᵀ (I + W̄Q)⁻¹ v,    Aᵀv - G D E⁻¹ D Aᵀ v = Aᵀ (I + W̄Q)⁻¹ v,

in `pymc_rmhmc.latent.forms.dual`'s form, since ``E⁻¹ = I - D Aᵀ s B⁻¹ s A D`` would take the difference of vectors
that are w̄Q times as large as what it comes to. And where most columns share no row with one another, as the indicators
of a mixed model's groups do, E is an arrow (`pymc_rmhmc.latent.arrow.arrow_design`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from pymc_rmhmc.latent.arrow.arrow_design import Arrow
from pymc_rmhmc.latent.arrow.arrow_pattern import arrow_pattern
from pymc_rmhmc.latent.forms.conditional import factor_in_place
from pymc_rmhmc.latent.forms.dual import dual, roots_of_sites, variances_of_sites
from pymc_rmhmc.linalg.dense import (
    identity_plus_scaled,
    inverse_lower,
    multiply_lower,
    solve_columns,
    solve_lower,
)
from pymc_rmhmc.linalg.symmetric import multiply_symmetric

__all__ = [
    "Inner",
    "ManyCoefficients",
    "ManyCoefficientsInner",
    "ManyObservations",
    "ManyObservationsInner",
    "WeightedDesign",
    "weighted_design",
]

type Array = NDArray[np.float64]

# Below this the identity less E⁻¹ is lost in rounding.
LOST = 1e-8


class Inner(Protocol):
    """The coefficients y at one D: ``N(E⁻¹ D l, E⁻¹)`` with ``l = Aᵀ slope``.

    Attributes
    ----------
    log_determinant : float
        Of E.
    gained : float
        ``(D l)ᵀ E⁻¹ D l``.
    explained : (n,) array
        ``A D`` times it.
    placed : (k,) array
        y, of the noise that was placed last.
    """

    log_determinant: float
    gained: float
    explained: Array
    placed: Array

    @property
    def centre(self) -> Array:
        """Their mean, (k,)."""

    def place(self, noise: Array) -> Array:
        """``A D y`` (n,) of ``y = E⁻¹ (D (l + F z₂) + z₁)``."""

    def pullback(self, residual: Array) -> tuple[Array, Array, Array]:
        """By z, and by D, of ``residualᵀ A D y + ½ gained - ½ log|E|``; and ``A D E⁻¹ D Aᵀ residual`` (n,) between."""

    def adjoint(self, sites: Array) -> Array:
        """The derivative by z of ``sitesᵀ A D y``."""

    def gram(self, sites: Array) -> Array:
        """``A D E⁻¹ D Aᵀ sites``, (n,)."""

    def variances(self) -> Array:
        """The diagonal of ``A D E⁻¹ D Aᵀ``, (n,)."""


class WeightedDesign(Protocol):
    """A, ``G = AᵀW̄A`` and a root F of it."""

    n_noise: int

    def root_adjoint(self, vector: Array) -> Array:
        """``Fᵀ v``."""

    def inner(self, spread: Array, slope: Array) -> Inner:
        """Coefficients at a D (k,) and a slope (n,); a `PriorFailure` where E has no factor."""


def weighted_design(design: Any, precision: Array) -> WeightedDesign:
    """The form that is cheapest.

    Parameters
    ----------
    design : (n, k) array or sparse array
        A.
    precision : (n,) array
        w̄ ≥ 0.
    """
    rows = sparse.csr_array(design, copy=True)
    rows.eliminate_zeros()
    pattern = arrow_pattern(rows)
    if pattern is not None:
        return Arrow(pattern, rows.data, precision)
    n, k = design.shape
    return ManyObservations(design, precision) if k <= n else ManyCoefficients(design, precision)


class _Products(ABC):
    """Products with A as it is given."""

    n_noise: int

    def __init__(self, design: Any) -> None:
        # A sparse array would be transposed anew for every product.
        self.design, self._transposed = design, design.T.tocsr() if sparse.issparse(design) else design.T

    @cached_property
    def dense(self) -> Array:
        """A with its zeros."""
        return np.asarray(self.design.toarray() if sparse.issparse(self.design) else self.design)

    def predict(self, coefficients: Array) -> Array:
        """``A x``, (n,)."""
        return np.asarray(self.design @ coefficients)

    def collect(self, sites: Array) -> Array:
        """``Aᵀ v``, (k,)."""
        return np.asarray(self._transposed @ sites)

    @abstractmethod
    def root_adjoint(self, vector: Array) -> Array:
        """``Fᵀ v``."""

    @abstractmethod
    def multiply(self, vector: Array) -> Array:
        """``G v``."""


class _Inner(ABC):
    """The coefficients at one D, from products with A and G and solutions with E."""

    log_determinant: float

    def __init__(self, whole: _Products, spread: Array, slope: Array) -> None:
        self._whole, self.spread = whole, spread
        self._factorise()
        self.centre = self._centre(slope)
        self.explained = whole.predict(spread * self.centre)
        self.gained = float(slope @ self.explained)

    def place(self, noise: Array) -> Array:
        """``A D y`` (n,)."""
        k = self.spread.size
        self.placed = self._placed(noise[:k], noise[k:])
        return self._whole.predict(self.spread * self.placed)

    def pullback(self, residual: Array) -> tuple[Array, Array, Array]:
        """By z, ``A D E⁻¹ D Aᵀ residual``, and by D."""
        moved, (of_residual, of_placed, of_centre) = self._remaining(residual)
        noise = self._pull_noise(moved)
        spread_bar = of_residual * self.placed + moved * of_placed + self.centre * of_centre
        return noise, self._whole.predict(self.spread * moved), spread_bar - self._half_log_determinant_slope()

    def adjoint(self, sites: Array) -> Array:
        """The derivative by z of ``sitesᵀ A D y``."""
        return self._pull_noise(self._moved(sites))

    def gram(self, sites: Array) -> Array:
        """``A D E⁻¹ D Aᵀ sites``, (n,)."""
        return self._whole.predict(self.spread * self._moved(sites))

    def _pull_noise(self, moved: Array) -> Array:
        return np.concatenate((moved, self._whole.root_adjoint(self.spread * moved)))

    @abstractmethod
    def _factorise(self) -> None:
        """What E⁻¹ needs, and the determinant."""

    @abstractmethod
    def _centre(self, slope: Array) -> Array:
        """``E⁻¹ D l`` of ``l = Aᵀ slope``; the slope is the one that is placed from."""

    @abstractmethod
    def _placed(self, noise: Array, root_noise: Array) -> Array:
        """``y = E⁻¹ (D (l + F z₂) + z₁)``, (k,)."""

    @abstractmethod
    def _moved(self, sites: Array) -> Array:
        """``p = E⁻¹ D Aᵀ sites``, (k,)."""

    @abstractmethod
    def _remaining(self, residual: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        """The residual's p, and ``Aᵀ residual - G D p``, ``l + F z₂ - G D y``, ``l - G D E⁻¹ D l``."""

    @abstractmethod
    def _half_log_determinant_slope(self) -> Array:
        """``½ ∂ log|E| / ∂D``, the diagonal of ``G D E⁻¹``, (k,)."""


class ManyObservations(_Products):
    """The (k, k) form."""

    def __init__(self, design: Any, precision: Array) -> None:
        super().__init__(design)
        gram = self._transposed @ (precision[:, None] * design)
        gram = gram.toarray() if sparse.issparse(gram) else gram
        self.gram = np.asfortranarray(0.5 * (gram + gram.T))
        self.n_noise = design.shape[1]

    def root(self, noise: Array) -> Array:
        """``F z₂``."""
        return np.asarray(self._root @ noise)

    def root_adjoint(self, vector: Array) -> Array:
        """``Fᵀ v``."""
        return np.asarray(self._root.T @ vector)

    def multiply(self, vector: Array) -> Array:
        """``G v``."""
        return multiply_symmetric(self.gram, vector)

    def inner(self, spread: Array, slope: Array) -> Inner:
        """Coefficients at a D (k,) and a slope (n,); a `PriorFailure` where E has no factor."""
        return ManyObservationsInner(self, spread, slope)

    @cached_property
    def _root(self) -> Array:
        """F, which a search for a mode has no use for."""
        values, vectors = np.linalg.eigh(self.gram)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


class ManyObservationsInner(_Inner):
    """The coefficients at one D by the (k, k) form."""

    _whole: ManyObservations

    def _factorise(self) -> None:
        self._factor = factor_in_place(identity_plus_scaled(self._whole.gram, self.spread))
        self.log_determinant = 2.0 * float(np.log(self._factor.diagonal()).sum())

    def _centre(self, slope: Array) -> Array:
        self._linear = self._whole.collect(slope)
        return self._solve(self.spread * self._linear)

    def _placed(self, noise: Array, root_noise: Array) -> Array:
        self._pulled = self._linear + self._whole.root(root_noise)
        return self._solve(self.spread * self._pulled + noise)

    def _moved(self, sites: Array) -> Array:
        return self._solve(self.spread * self._whole.collect(sites))

    def _remaining(self, residual: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        collected = self._whole.collect(residual)
        moved = self._solve(self.spread * collected)
        return moved, (
            collected - self._multiply(moved),
            self._pulled - self._multiply(self.placed),
            self._linear - self._multiply(self.centre),
        )

    def _multiply(self, coefficients: Array) -> Array:
        """``G D x``."""
        return self._whole.multiply(self.spread * coefficients)

    def _solve(self, vector: Array) -> Array:
        return solve_lower(self._factor, solve_lower(self._factor, vector), transpose=True)

    @cached_property
    def _half_inverse(self) -> Array:
        """The inverse of E's factor."""
        return inverse_lower(self._factor)

    def inverse(self) -> Array:
        """The lower triangle of E⁻¹, (k, k); what is above it is not to be read."""
        product, _ = lapack.dlauum(self._half_inverse, lower=1)
        return np.asarray(product)

    def variances(self) -> Array:
        """The diagonal of ``A D E⁻¹ D Aᵀ``, (n,)."""
        half = solve_columns(self._factor, np.asfortranarray((self._whole.dense * self.spread).T))
        return np.asarray(np.einsum("ij,ij->j", half, half))

    def _half_log_determinant_slope(self) -> Array:
        # D G D E⁻¹ = I - E⁻¹ has it, times D.
        half, spread, gram = self._half_inverse, self.spread, self._whole.gram
        explained = 1.0 - np.einsum("ij,ij->j", half, half)
        lost = spread**2 * gram.diagonal() < LOST
        slope = explained / np.where(lost, 1.0, spread)
        if lost.any():
            inverse = multiply_lower(half, half[:, lost], transpose=True)
            slope[lost] = np.einsum("ij,ij->j", gram[:, lost] * spread[:, None], inverse)
        return np.asarray(slope)


class ManyCoefficients(_Products):
    """The (n, n) form."""

    def __init__(self, design: Any, precision: Array) -> None:
        super().__init__(design)
        self.precision, self.site_root = precision, np.sqrt(precision)
        self.rooted = np.asfortranarray(self.site_root[:, None] * self.dense)
        self.n_noise = design.shape[0]

    def root_adjoint(self, vector: Array) -> Array:
        """``Fᵀ v``."""
        return np.asarray(self.rooted @ vector)

    def multiply(self, vector: Array) -> Array:
        """``G v``."""
        return np.asarray((self.rooted @ vector) @ self.rooted)

    def inner(self, spread: Array, slope: Array) -> Inner:
        """Coefficients at a D (k,) and a slope (n,); a `PriorFailure` where E has no factor."""
        return ManyCoefficientsInner(self, spread, slope)


class ManyCoefficientsInner(_Inner):
    """The coefficients at one D by the (n, n) form."""

    _whole: ManyCoefficients

    def _factorise(self) -> None:
        whole = self._whole
        self._scaled, moved = whole.rooted * self.spread, whole.dense * self.spread
        self._covariance = np.asfortranarray(moved @ moved.T)
        self._roots = roots_of_sites(whole.precision, self._covariance.diagonal().copy())
        self._factor = factor_in_place(identity_plus_scaled(self._covariance, whole.site_root))
        self.log_determinant = 2.0 * float(np.log(self._factor.diagonal()).sum())

    def _collect_dual(self, sites: Array) -> Array:
        """``Aᵀ (I + W̄Q)⁻¹ v``, (k,)."""
        return self._whole.collect(dual(self._covariance, self._factor, self._roots, sites))

    def _centre(self, slope: Array) -> Array:
        self._slope, self._of_centre = slope, self._collect_dual(slope)
        return self.spread * self._of_centre

    def _placed(self, noise: Array, root_noise: Array) -> Array:
        half = solve_lower(self._factor, self._scaled @ noise)
        # E⁻¹ z₁, of numbers that no site has made large.
        self._apart = noise - solve_lower(self._factor, half, transpose=True) @ self._scaled
        self._pulled = self._collect_dual(self._slope + self._whole.site_root * root_noise)
        return self.spread * self._pulled + self._apart

    def _moved(self, sites: Array) -> Array:
        return self.spread * self._collect_dual(sites)

    def _remaining(self, residual: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        collected = self._collect_dual(residual)
        of_placed = self._pulled - self._whole.multiply(self.spread * self._apart)
        return self.spread * collected, (collected, of_placed, self._of_centre)

    def scaled_by_inverse(self) -> Array:
        """``s A D E⁻¹``, (n, k)."""
        inverse = inverse_lower(self._factor)
        return multiply_lower(inverse, multiply_lower(inverse, self._scaled), transpose=True)

    def variances(self) -> Array:
        """The diagonal of ``A D E⁻¹ D Aᵀ``, (n,)."""
        return variances_of_sites(self._covariance, self._factor, self._roots)

    def _half_log_determinant_slope(self) -> Array:
        half = solve_columns(self._factor, self._whole.rooted.copy(order="F"))
        return np.asarray(self.spread * np.einsum("ij,ij->j", half, half))
