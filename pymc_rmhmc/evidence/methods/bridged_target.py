"""Bridges: densities between a Gaussian approximation q of a latent block and its posterior.

The density at an inverse temperature β is ``[p(y given f) p(f)]^β q(f)^(1-β)`` with ``q ∝ p(f) exp(bᵀη - ½ ηᵀτ̃η)``.
The prior stays whole, so that this is a latent target again: its likelihood is raised to the power β, and its
Gaussian factor is q's sites to the power ``1 - β``.

References
----------
Paquet and Fraccaro (2016), eq. 4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.latent.charts.site import GaussianSites, SiteChart
from pymc_rmhmc.latent.prior import FactorizedPrior
from pymc_rmhmc.latent.target import LatentTarget, Likelihood

__all__ = ["LatentBridge", "TemperedLikelihood"]

type Array = NDArray[np.float64]


class TemperedLikelihood:
    """A likelihood raised to a power β, with everything that a `Likelihood` gives.

    Parameters
    ----------
    likelihood : Likelihood
        At β = 1.
    beta : float
        The power, in [0, 1].
    """

    # Compiled trajectories are those of whole likelihoods.
    compiled_gradient: tuple[Callable[..., Any], Array | None, tuple[Array, ...]] | None = None

    def __init__(self, likelihood: Likelihood, beta: float) -> None:
        self.likelihood, self.beta = likelihood, beta

    @property
    def kinds(self) -> tuple[str, ...]:
        """The curvatures that it can give: a power changes none."""
        return self.likelihood.kinds

    def gradient(self, eta: Array) -> tuple[float, Array]:
        """Return ``β Σ ℓ`` and ``β ∂ℓ/∂η`` (n,)."""
        value, slope = self.likelihood.gradient(eta)
        return self.beta * value, self.beta * slope

    def gradient_rows(self, eta: Array) -> tuple[Array, Array]:
        """Return ``β Σ ℓ`` (m,) and ``β ∂ℓ/∂η`` (m, n) at many η (m, n)."""
        values, slopes = self.likelihood.gradient_rows(eta)
        return self.beta * values, self.beta * slopes

    def curvature(self, eta: Array, kind: str) -> tuple[float, Array, Array, Array]:
        """Return ``β Σ ℓ``, and ``β g``, ``β w`` and ``r = ∂ log w/∂η``, each (n,)."""
        value, slope, weight, log_slope = self.likelihood.curvature(eta, kind)
        return self.beta * value, self.beta * slope, self.beta * weight, log_slope

    def weight(self, eta: Array, kind: str) -> Array:
        """Return ``β w`` alone, (n,)."""
        return self.beta * self.likelihood.weight(eta, kind)


class LatentBridge:
    """The path from a Gaussian approximation q of a latent block to its posterior.

    Parameters
    ----------
    prior : FactorizedPrior
        The block's prior.
    likelihood : Likelihood
        Over its sites.
    sites : GaussianSites, optional
        q's sites, such as a Laplace approximation's or EP's. Without them q is the prior.
    """

    def __init__(self, prior: FactorizedPrior, likelihood: Likelihood, sites: GaussianSites | None = None) -> None:
        self.prior, self.likelihood, self.sites = prior, likelihood, sites

    def at(self, beta: float) -> LatentTarget:
        """Return the density at β, in the chart that holds its Gaussian part.

        Raises
        ------
        ConfigurationError
            If β is not in [0, 1].
        """
        return self.in_chart(beta, SiteChart(self.prior, self.gaussian_part(beta)))

    def in_chart(self, beta: float, chart: SiteChart) -> LatentTarget:
        """Return the density at β, in a chart with other sites."""
        gaussian = self.gaussian_part(beta)
        likelihood = self.likelihood if beta == 1.0 else TemperedLikelihood(self.likelihood, beta)
        return LatentTarget(chart, likelihood, gaussian)

    def gaussian_part(self, beta: float) -> GaussianSites | None:
        """Return Q's sites to the power ``1 - β``; None if there is nothing left of them."""
        if not 0.0 <= beta <= 1.0:
            raise ConfigurationError(f"beta, the inverse temperature, must lie in [0, 1], got {beta:g}.")
        if self.sites is None or beta == 1.0:
            return None
        return self.sites.scaled(1.0 - beta)
