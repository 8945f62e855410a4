"""Gaussian sites for a likelihood: from the mode, and from draws.

Any sites give an exact sampler. Good ones leave little of the likelihood in the chart's residual, so that
long steps are accepted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation.newton import NEAREST_FIRST, Mode
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.prior import Predictor
from pymc_rmhmc.latent.target import Likelihood

__all__ = ["SiteFit", "SiteRegression", "laplace_sites", "prior_expected_sites"]

type Array = NDArray[np.float64]

# Of the quadrature: exact for a rate exp(η) to 1e-9 where a latent value has a standard deviation of 3.
N_NODES = 40


def laplace_sites(mode: Mode) -> GaussianSites:
    """Return the sites whose gradient and curvature are the likelihood's at the mode.

    ``w̄ = w(η̂)`` and ``b = g(η̂) + w̄ η̂``: the prior times the sites is the Laplace approximation.
    """
    return GaussianSites(mode.gradient + mode.weight * mode.eta, mode.weight)


def prior_expected_sites(predictor: Predictor, likelihood: Likelihood, mode: Mode) -> GaussianSites:
    """Return sites with the curvature that the prior expects, and the gradient of the likelihood at the mode.

    ``w̄ᵢ = E w(ηᵢ)`` for ``ηᵢ ~ N(mᵢ, Kᵢᵢ)``, by Gauss-Hermite quadrature. For a Poisson likelihood it is
    ``exp(mᵢ + Kᵢᵢ/2)``.

    References
    ----------
    Girolami and Calderhead (2011), sections 8 and 9; their code has ``exp(mᵢ + Kᵢᵢ)``.
    """
    kind = "fisher" if "fisher" in likelihood.kinds else next(k for k in NEAREST_FIRST if k in likelihood.kinds)
    nodes, weights = np.polynomial.hermite_e.hermegauss(N_NODES)
    spread = np.sqrt(np.einsum("ij,ij->i", predictor.matrix, predictor.matrix))
    precision = np.zeros(predictor.n_sites)
    for node, weight in zip(nodes, weights / weights.sum(), strict=True):
        precision += weight * likelihood.weight(predictor.offset + node * spread, kind)
    return GaussianSites(mode.gradient + precision * mode.eta, precision)


class SiteFit(ABC):
    """Base class of fits: it takes the draws of a tuning window one by one, and turns their moments into sites.

    To fit sites in your own way, write a subclass with its own `fit` and give it to ``FlatMetric(site_fit=...)``. The
    draws stay exact whatever `fit` returns, because sites are frozen when tuning ends. Better sites allow longer steps.

    Parameters
    ----------
    n_sites : int
        The number of sites, n.

    Attributes
    ----------
    count : int
        Number of draws taken.
    mean : (2, n) array
        Means of η and of the likelihood's slope ``g = ∂ℓ/∂η`` there.
    scatter : (2, n) array
        Sums over draws of ``(η - mean)²``, and of ``(η - mean)`` times ``(g - mean)``.

    Examples
    --------
    Sites that are always half as strong as the previous ones:

    >>> from pymc_rmhmc import FlatMetric, GaussianSites, SiteFit
    >>> class Half(SiteFit):
    ...     def fit(self, held):
    ...         return GaussianSites(0.5 * held.linear, 0.5 * held.precision)
    >>> FlatMetric(site_fit=Half)
    FlatMetric(refit=True, site_fit=Half, emulate=True)
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
        """Mean of η, (n,)."""
        return np.asarray(self.mean[0])

    @property
    def variance(self) -> Array:
        """Variance of η, (n,)."""
        return np.asarray(self.scatter[0] / max(self.count, 1))

    @abstractmethod
    def fit(self, held: GaussianSites) -> GaussianSites | None:
        """Return new sites; None to keep `held`, those in use while the draws were made."""


class SiteRegression(SiteFit):
    """Fit each site by the least-squares line of the likelihood's slope g on η: the default.

    Parameters
    ----------
    n_sites : int
        The number of sites.

    Notes
    -----
    The force that sites leave over is ``g(η) - (b - w̄ η)``. Its mean square over posterior draws is least for the
    regression line, ``w̄ = -cov(g, η)/var(η)`` and ``b = E g + w̄ E η``. By Stein's identity, b centres the
    approximation at the posterior mean. For a Gaussian marginal, w̄ is the expected curvature ``E[-ℓ'']``. Few draws
    are enough, because g is a function of η.
    """

    # A line needs two draws; below this many its slope is mostly chance where g is far from linear.
    MIN_DRAWS = 10

    def fit(self, held: GaussianSites) -> GaussianSites | None:
        """Return the regression's sites, with w̄ clipped at 0; None with fewer than `MIN_DRAWS` draws.

        A site whose value did not move keeps its precision.
        """
        if self.count < self.MIN_DRAWS:
            return None
        variance, covariance = self.scatter
        moved = variance > 0.0
        precision = np.where(moved, -covariance / np.where(moved, variance, 1.0), held.precision)
        precision = np.maximum(precision, 0.0)
        eta, slope = self.mean
        return GaussianSites(slope + precision * eta, precision)
