"""Coefficients of a linear predictor whose design A moves with θ, as a function of (θ, z).

As with a constant design (`pymc_rmhmc.latent.forms.diagonal`), ``η = m + A D y``, but G = AᵀW̄A is made at every θ,
and there is a derivative by A. The root of G is ``F = Aᵀ s`` with ``s = sqrt(w̄)``, which has one too, with a z₂ for
every site:

    y = E⁻¹ (D Aᵀ(b - W̄m + s z₂) + z₁),      E = I + D G D.

With ``Φ = A D``, the gradient r by the predictor, ``p = E⁻¹Φᵀr``, ``g = b - W̄m`` and the mean ``c = E⁻¹Φᵀg`` of y,

    Φ̄ = (r - W̄Φp) yᵀ + (g + s z₂ - W̄Φy) pᵀ + (g - W̄Φc) cᵀ - W̄ΦE⁻¹,      Ā = Φ̄ D,

of which a sparse A wants no more than its own entries.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.arrow.arrow_design import MovingArrow
from pymc_rmhmc.latent.arrow.arrow_pattern import ArrowPattern, arrow_pattern
from pymc_rmhmc.latent.forms.design import (
    ManyCoefficients,
    ManyCoefficientsInner,
    ManyObservations,
    ManyObservationsInner,
    WeightedDesign,
)
from pymc_rmhmc.latent.forms.diagonal import DiagonalConditional
from pymc_rmhmc.latent.prior import PriorFailure
from pymc_rmhmc.linalg.products import is_finite, products_of

__all__ = ["MovingDesignConditional"]

type Array = NDArray[np.float64]


class MovingDesignConditional(DiagonalConditional):
    """Independent coefficients times Gaussian sites on their predictor, at one θ that has a design of its own.

    Parameters and attributes are those of `DiagonalConditional`.

    Raises
    ------
    PriorFailure
        If something is not finite, or E has no factor.
    """

    _inner: Any

    @staticmethod
    def _weigh(design: Any, precision: Array, like: DiagonalConditional | None) -> WeightedDesign:
        """As for a constant design; of another θ's no more than where A may be other than 0 serves again."""
        if design is None:
            assert like is not None
            return like._weighted
        if not is_finite(design):
            raise PriorFailure(Failure.NON_FINITE, 0)
        pattern = _pattern(design) if like is None else getattr(like._weighted, "pattern", None)
        if pattern is not None:
            return MovingArrow(pattern, design.data, precision)
        n, k = design.shape
        return _MovingCoefficients(design, precision) if k > n else _MovingObservations(design, precision)

    def place(self, noise: Array) -> Array:
        """The predictor η (n,) of z."""
        self._site_noise = noise[self._spread.size :]
        return super().place(noise)

    def pullback(self, residual: Array) -> tuple[Array, Array, Any]:
        """The gradient of ``ψ(η) + log E`` by z, by m, and by D and A, for the noise that was placed last.

        Nothing can be placed afterwards. The derivative by a sparse A is one of its entries, (nnz,).

        Parameters
        ----------
        residual : (n,) array
            ``∂ψ/∂η``.
        """
        inner, weighted = self._inner, cast("_MovingObservations | _MovingCoefficients | MovingArrow", self._weighted)
        noise, mean_bar, spread_bar = super().pullback(residual)
        scaled_residual, pushed, *_ = self._pulled_back
        spread, precision = self._spread, self._precision
        predicted = weighted.predict(spread * inner.placed)
        slope = self._sites.gradient(self._mean)
        left = np.stack((
            scaled_residual - precision * pushed,
            slope + np.sqrt(precision) * self._site_noise - precision * predicted,
            self._centre_slope,
        ))  # fmt: skip
        right = np.stack((inner.placed, noise[: spread.size], inner.centre))
        return noise, mean_bar, (spread_bar, weighted.design_bar(inner, left, right * spread))


def _pattern(design: Any) -> ArrowPattern | None:
    """That of an arrow; an array may be 0 at one θ alone, and has none.

    Nor has one with more columns than rows: Ā is the sum of differences that `ManyCoefficients` does not lose.
    """
    return arrow_pattern(design) if sparse.issparse(design) and design.shape[1] <= design.shape[0] else None


class _MovingObservations(ManyObservations):
    """The (k, k) form, with the root of G that has a derivative."""

    def __init__(self, design: Any, precision: Array) -> None:
        # As `ManyObservations`, but for the products.
        self.design, self._products = design, products_of(design)
        self.precision, self._site_root = precision, np.sqrt(precision)
        self.gram = self._products.gram(precision)
        self.n_noise = design.shape[0]

    def predict(self, coefficients: Array) -> Array:
        """``A x``, (n,)."""
        return self._products.predict(coefficients)

    def collect(self, sites: Array) -> Array:
        """``Aᵀ v``, (k,)."""
        return self._products.collect(sites)

    def root(self, noise: Array) -> Array:
        """``F z₂``."""
        return self.collect(self._site_root * noise)

    def root_adjoint(self, vector: Array) -> Array:
        """``Fᵀ v``."""
        return np.asarray(self._site_root * self.predict(vector))

    def design_bar(self, inner: ManyObservationsInner, left: Array, right: Array) -> Array:
        """Ā, of a sparse A by its entries, from the pairs of which it is the sum and what the determinant adds."""
        covariance = inner.inverse() * np.outer(inner.spread, inner.spread)
        return self._products.bar(left, right, self.precision, covariance)


class _MovingCoefficients(ManyCoefficients):
    """The (n, n) form, whose root of G has a derivative as it is."""

    def design_bar(self, inner: ManyCoefficientsInner, left: Array, right: Array) -> Array:
        """Ā, or that of a sparse A's entries, from the pairs of which it is the sum and what the determinant adds."""
        whole = left.T @ right - self.site_root[:, None] * inner.scaled_by_inverse() * inner.spread
        return np.asarray(whole[_where(self.design)] if sparse.issparse(self.design) else whole)


def _where(design: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of a sparse array's entries, in their order."""
    return np.repeat(np.arange(design.shape[0]), np.diff(design.indptr)), design.indices
