"""Gaussian sites for a likelihood: from the mode, and from draws.

Any sites give an exact sampler. Good ones leave little of the likelihood in the chart's residual, so that
long steps are accepted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation.newton import Mode
from pymc_rmhmc.geometry.charts.site import GaussianSites

__all__ = ["SiteRegression", "laplace_sites"]

type Array = NDArray[np.float64]


def laplace_sites(mode: Mode) -> GaussianSites:
    """The sites whose gradient and curvature are the likelihood's at the mode.

    ``w̄ = w(η̂)`` and ``b = g(η̂) + w̄ η̂``: the prior times the sites is the Laplace approximation.
    """
    return GaussianSites(mode.gradient + mode.weight * mode.eta, mode.weight)


class SiteRegression:
    """Sites fitted to draws: at every site the least-squares line of the likelihood's slope g on η.

    In the site chart the residual force at a site is ``g(η) - (b - w̄ η)``. Its mean square over draws of
    the posterior is least for the regression line, ``w̄ = -cov(g, η)/var(η)`` and ``b = E g + w̄ E η``.
    These are the moments that matter: by Stein's identity the first puts the chart's centre at the
    posterior's mean, since ``E g = K⁻¹(E f - m)`` there, and for a Gaussian marginal the second is the
    expected curvature ``E[-ℓ'']``. Noise is small even with few draws, because g is a function of η.

    Parameters
    ----------
    n_sites : int
        The number of sites.
    """

    # A line needs two draws; below this many its slope is mostly chance where g is far from linear.
    MIN_DRAWS = 10

    def __init__(self, n_sites: int) -> None:
        self.count = 0
        self._mean = np.zeros((2, n_sites))  # of η and g
        self._scatter = np.zeros((2, n_sites))  # Σ (η - mean)², Σ (η - mean)(g - mean)

    def add(self, eta: Array, gradient: Array) -> None:
        """Take one draw: the sites η and ``∂ℓ/∂η`` there, each (n,). Welford's update."""
        self.count += 1
        new = np.stack((eta, gradient))
        change = new - self._mean
        self._mean += change / self.count
        self._scatter += change[0] * (new - self._mean)

    @property
    def centre(self) -> Array:
        """The mean of the sites, (n,)."""
        return np.asarray(self._mean[0])

    @property
    def variance(self) -> Array:
        """The variance of the sites, (n,)."""
        return np.asarray(self._scatter[0] / max(self.count, 1))

    def fit(self, fallback: GaussianSites) -> GaussianSites | None:
        """The regression's sites, w̄ clipped at 0; None with fewer than `MIN_DRAWS` draws.

        A site that did not move keeps the fallback's precision.
        """
        if self.count < self.MIN_DRAWS:
            return None
        variance, covariance = self._scatter
        moved = variance > 0.0
        precision = np.where(moved, -covariance / np.where(moved, variance, 1.0), fallback.precision)
        precision = np.maximum(precision, 0.0)
        eta, gradient = self._mean
        return GaussianSites(gradient + precision * eta, precision)
