"""Gaussian sites for a likelihood: from the mode, and from draws.

Any sites give an exact sampler. Good ones leave little of the likelihood in the chart's residual, so that
long steps are accepted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation.newton import Mode
from pymc_rmhmc.geometry.charts.site import GaussianSites

__all__ = ["SiteFit", "SiteRegression", "laplace_sites"]

type Array = NDArray[np.float64]


def laplace_sites(mode: Mode) -> GaussianSites:
    """The sites whose gradient and curvature are the likelihood's at the mode.

    ``w̄ = w(η̂)`` and ``b = g(η̂) + w̄ η̂``: the prior times the sites is the Laplace approximation.
    """
    return GaussianSites(mode.gradient + mode.weight * mode.eta, mode.weight)


class SiteFit(ABC):
    """What makes sites of the draws of a tuning window: it takes them one by one, and keeps their moments.

    A fit of your own is a subclass with another `fit`; ``FlatMetric(site_fit=...)`` takes it. Whatever it gives, the
    draws stay exact, for sites are frozen when tuning ends: what a fit decides is how long steps may be.

    Parameters
    ----------
    n_sites : int
        The number of sites, n.

    Attributes
    ----------
    count : int
        Draws taken.
    mean : (2, n) array
        Of η, and of the likelihood's slope ``g = ∂ℓ/∂η`` there.
    scatter : (2, n) array
        The sums over draws of ``(η - mean)²``, and of ``(η - mean)`` times ``(g - mean)``.

    Examples
    --------
    Sites that are always half as strong as those before them:

    >>> from pymc_rmhmc import FlatMetric
    >>> from pymc_rmhmc.approximation import SiteFit
    >>> from pymc_rmhmc.geometry.charts import GaussianSites
    >>> class Half(SiteFit):
    ...     def fit(self, held):
    ...         return GaussianSites(0.5 * held.linear, 0.5 * held.precision)
    >>> FlatMetric(site_fit=Half).site_fit is Half
    True
    """

    def __init__(self, n_sites: int) -> None:
        self.count = 0
        self.mean = np.zeros((2, n_sites))
        self.scatter = np.zeros((2, n_sites))

    def add(self, eta: Array, slope: Array) -> None:
        """Take one draw: the sites η and ``∂ℓ/∂η`` there, each (n,). Welford's update."""
        self.count += 1
        new = np.stack((eta, slope))
        change = new - self.mean
        self.mean += change / self.count
        self.scatter += change[0] * (new - self.mean)

    @property
    def centre(self) -> Array:
        """The mean of η, (n,)."""
        return np.asarray(self.mean[0])

    @property
    def variance(self) -> Array:
        """The variance of η, (n,)."""
        return np.asarray(self.scatter[0] / max(self.count, 1))

    @abstractmethod
    def fit(self, held: GaussianSites) -> GaussianSites | None:
        """New sites in place of those of the window's draws; None to keep these."""


class SiteRegression(SiteFit):
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

    def fit(self, held: GaussianSites) -> GaussianSites | None:
        """The regression's sites, w̄ clipped at 0; None with fewer than `MIN_DRAWS` draws.

        A site that did not move keeps the precision that it had.
        """
        if self.count < self.MIN_DRAWS:
            return None
        variance, covariance = self.scatter
        moved = variance > 0.0
        precision = np.where(moved, -covariance / np.where(moved, variance, 1.0), held.precision)
        precision = np.maximum(precision, 0.0)
        eta, slope = self.mean
        return GaussianSites(slope + precision * eta, precision)
