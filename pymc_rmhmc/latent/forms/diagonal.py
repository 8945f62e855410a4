"""Coefficients of a linear predictor as a function of (θ, z): standard normal noise, placed by prior and sites.

A generalised linear or mixed model, or a Gaussian process in a basis: ``η = m + A D y`` with a constant design A
(n, k), ``y ~ N(0, I)`` a priori and a diagonal D(θ). As for a covariance matrix
(`pymc_rmhmc.latent.forms.conditional`) the map of z is that of perturbation sampling,

    y = E⁻¹ (D (Aᵀ(b - W̄m) + F z₂) + z₁),      E = I + D G D,      F Fᵀ = G = AᵀW̄A,

but only D moves with θ: G and F are made once, and nothing but E is factorised, in the cheapest of three forms
(`pymc_rmhmc.latent.forms.design`).

So sites that follow θ (`pymc_rmhmc.latent.charts.moving_sites`) have one multiple for all b, r, and one for all w̄, ρ:
b, W̄ and m, D are then ``(r/√ρ) b``, W̄ and ``√ρ m``, ``√ρ D`` for a predictor that is measured in units of ``1/√ρ``. G
and F stay, and the derivative by ρ is that by the unit, which the others contain.

References
----------
Papandreou and Yuille (2010), Gaussian sampling by local perturbations, for the map.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.charts.moving_sites import RaisedSites
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.forms.design import WeightedDesign, weighted_design
from pymc_rmhmc.latent.prior import PriorFailure

__all__ = ["DiagonalConditional", "log_prior_of"]

type Array = NDArray[np.float64]

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
        With w̄ ≥ 0, of the predictor; `RaisedSites` with one power for all.
    like : DiagonalConditional, optional
        One with the same design and sites, but for their multiples, whose G and F serve again.

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
        self._root_multiple = 1.0
        if isinstance(sites, RaisedSites):  # the predictor is in units of 1/√ρ here, but where it goes in or out
            linear_multiple, multiple = sites.power.item() * sites.growth
            if not 0.0 < multiple < math.inf:
                raise PriorFailure(Failure.NON_FINITE, 0)
            root = self._root_multiple = math.sqrt(multiple)
            mean, spread = root * mean, root * spread
            sites = GaussianSites(linear_multiple / root * sites.held.sites.linear, sites.held.sites.precision)
        if not (np.isfinite(mean).all() and np.isfinite(spread).all() and np.isfinite(scale).all()):
            raise PriorFailure(Failure.NON_FINITE, 0)
        self._sites, self._mean, self._spread = sites, mean, spread
        self._location, self._scale, self._precision = location, scale, sites.precision
        self._weighted: WeightedDesign = self._weigh(design, sites.precision, like)
        slope = sites.gradient(mean)
        inner = self._inner = self._weighted.inner(spread, slope)
        self._centre_slope, self._centre_mean = slope - self._precision * inner.explained, mean + inner.explained
        self.log_evidence = sites.log_density(mean) + 0.5 * (inner.gained - inner.log_determinant)

    @staticmethod
    def _weigh(design: Any, precision: Array, like: DiagonalConditional | None) -> WeightedDesign:
        """G, F and what goes with them."""
        return weighted_design(design, precision) if like is None else like._weighted

    @property
    def weighted(self) -> WeightedDesign:
        """G and F, and what goes with them."""
        return self._weighted

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each coefficient, and for each column of F."""
        return self._spread.size + self._weighted.n_noise

    def with_sites(self, sites: GaussianSites) -> DiagonalConditional:
        """The same coefficients times the same sites, but for their multiples."""
        root = self._root_multiple
        return type(self)(None, self._mean / root, self._spread / root, self._location, self._scale, sites, self)

    def place(self, noise: Array) -> Array:
        """The predictor η (n,) of z."""
        predicted = self._inner.place(noise)
        self._placed = self._inner.placed
        return (self._mean + predicted) / self._root_multiple

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
        return log_prior_of(self._placed, self._scale)

    def marginals(self) -> tuple[Array, Array]:
        """Mean and variance (n,) of each predictor under the prior times the sites."""
        return self._centre_mean / self._root_multiple, self._inner.variances() / self._root_multiple**2

    def pullback(self, residual: Array) -> tuple[Array, Array, Any]:
        """The gradient of ``ψ(η) + log E`` by z, m and D, for the noise that was placed last.

        Nothing can be placed afterwards.

        Parameters
        ----------
        residual : (n,) array
            ``∂ψ/∂η``.
        """
        residual = residual / self._root_multiple
        noise, pushed, spread_bar = self._inner.pullback(residual)
        mean_bar = residual - self._precision * pushed + self._centre_slope
        del self._inner  # a chain keeps several points
        self._pulled_back = residual, pushed, mean_bar, spread_bar
        return noise, self._root_multiple * mean_bar, self._root_multiple * spread_bar

    @property
    def centre(self) -> Array:
        """The predictor where z is 0, (n,)."""
        return self._centre_mean / self._root_multiple

    def apply(self, noise: Array) -> Array:
        """``T z`` of the map ``η = centre + T z``, (n,); z has then been placed."""
        return self.place(noise) - self.centre

    def adjoint(self, sites: Array) -> Array:
        """``Tᵀ v``, for a v (n,)."""
        return self._inner.adjoint(sites / self._root_multiple)

    def gram(self, sites: Array) -> Array:
        """``T Tᵀ v``, (n,)."""
        return self._inner.gram(sites) / self._root_multiple**2

    def sites_pullback(self, eta: Array) -> Array:
        """The derivative of ``ψ(η) + log E`` by log r and by log ρ, (2, 1), of the last pullback and its η.

        The second is half of that by log √ρ, along which m and D grow and b falls, and ψ is one of ``η/√ρ``.
        """
        residual, pushed, mean_bar, spread_bar = self._pulled_back
        placed, linear, linear_bar = self._root_multiple * eta, self._sites.linear, self._centre_mean + pushed
        by_unit = self._mean @ mean_bar + self._spread @ spread_bar - linear @ linear_bar
        by_precision = 0.5 * (by_unit - residual @ placed + self._precision @ placed**2)
        return np.array([[linear @ (linear_bar - placed)], [by_precision]])


def log_prior_of(standard: Array, scale: Array) -> float:
    """The log density of variables that are a multiple of y away from their means."""
    square = float(standard @ standard)
    return -0.5 * square - 0.5 * standard.size * math.log(2.0 * math.pi) - float(np.log(np.abs(scale)).sum())
