"""How a block's sites grow with θ: a trend fitted to draws.

The residual force at a site is ``g(η) - (r(θ) b - ρ(θ) w̄ η)``, with one pair of multiples for all sites
(`pymc_rmhmc.geometry.charts.moving_sites`). For given exponents b and w̄ are its least squares, as in
`pymc_rmhmc.approximation.sites.SiteRegression`; the exponents are those that leave the least, of a likelihood in which
the residual is normal and with a normal prior. With 24 observations in two classes that can be separated, under a
``HalfCauchy(5)`` amplitude, the effective draws of the amplitude were 160 of 6000 with sites that stood still and 1600
with sites of a trend.

Most models gain nothing: where the residual is small, as on logit regressions with three lengthscales, sites stay as
they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from pymc_rmhmc.geometry.charts.moving_sites import MovingSites, SiteTrend, grown
from pymc_rmhmc.geometry.charts.site import GaussianSites
from pymc_rmhmc.geometry.latent_blocks import JointBlock

__all__ = ["ThinnedDraws", "follow_trend"]

type Array = NDArray[np.float64]

# Draws for one number of a trend, at least.
FEWEST_DRAWS = 5
# The residual's mean square, one of nats, where nothing is to be gained; and what share of it a trend must take to be
# worth its noise. Classes that can be separated have 0.2 to 0.5; logit regressions that are not so 0.1 to 0.2, counts,
# robust regressions and coefficients 0 to 0.05.
SMALL, LEAST_SHARE = 0.1, 0.2
# Draws come one from another: so many count as one.
CORRELATED = 2.0
MOST_EXPONENT = 4.0


class ThinnedDraws:
    """A block's draws in a tuning window: all of few, and of many every second, fourth or eighth.

    Sites are kept in half precision, for they take memory beside a covariance.

    Parameters
    ----------
    most : int
        How many are kept at most.
    """

    def __init__(self, most: int = 200) -> None:
        self._most, self._every, self._seen = most, 1, 0
        self._thetas: list[Array] = []
        self._etas: list[NDArray[np.float32]] = []

    def add(self, theta: Array, eta: Array) -> None:
        """Take one draw: θ (d,), and the sites (n,)."""
        if self._seen % self._every == 0:
            self._thetas.append(theta)
            self._etas.append(eta.astype(np.float32))
        self._seen += 1
        if len(self._thetas) > self._most:
            self._thetas, self._etas, self._every = self._thetas[::2], self._etas[::2], 2 * self._every

    def values(self) -> tuple[Array, Array]:
        """Every θ (N, d), and its sites (N, n)."""
        return np.array(self._thetas), np.array(self._etas, dtype=np.float64)


@dataclass(slots=True)
class _Window:
    """What a trend is fitted to: θ less its centre (N, d); η, slopes and powers (N, n); what a site's force counts."""

    moved: Array
    eta: Array
    slope: Array
    power: Array
    weight: Array


@dataclass(slots=True)
class _Fitted:
    """The least squares of given exponents: b and w̄, the mean square that they leave, and its derivative (2, d)."""

    sites: GaussianSites
    left: float
    gradient: Array


def follow_trend(
    block: JointBlock, sites: GaussianSites | MovingSites, centre: Array, draws: ThinnedDraws, free: NDArray[np.bool_]
) -> GaussianSites | MovingSites:
    """Sites that follow a trend, where the draws show that it is worth it; those given, where they do not.

    Parameters
    ----------
    block : JointBlock
        The block.
    sites : GaussianSites or MovingSites
        As they are without a trend.
    centre : (d,) array
        The θ for which they were fitted.
    draws : ThinnedDraws
        Of the block.
    free : (d,) bool array
        The coordinates of θ that a trend may follow.
    """
    thetas, eta = draws.values()
    n_exponents = 2 * int(free.sum())
    if block.fixed_covariance or n_exponents == 0 or len(thetas) < FEWEST_DRAWS * n_exponents:
        return sites
    window = _window(block, sites, thetas, eta, centre)
    plain = _least_squares(window, np.zeros((2, centre.size)))
    if not plain.left > SMALL:
        return sites
    exponents = _fit(window, free)
    found = _least_squares(window, exponents)
    if not found.left <= (1.0 - LEAST_SHARE) * plain.left:
        return sites
    trend = SiteTrend(centre, exponents)
    if isinstance(sites, MovingSites):
        return MovingSites(found.sites, sites.eta, sites.information, trend)
    return MovingSites(found.sites, np.zeros((2, 0)), np.ones(1), trend)


def _window(
    block: JointBlock, sites: GaussianSites | MovingSites, thetas: Array, eta: Array, centre: Array
) -> _Window:
    """The draws at which the likelihood has a slope."""
    slope = np.array([block.likelihood(theta, each)[1] for theta, each in zip(thetas, eta, strict=True)])
    power = np.ones((len(thetas), 1))
    if isinstance(sites, MovingSites) and block.has_moving_sites:
        power = np.array([sites.at(theta, block.information(theta, sites.eta)).power for theta in thetas])
    usable = np.isfinite(slope).all(axis=1) & np.isfinite(power).all(axis=1)
    return _Window(thetas[usable] - centre, eta[usable], slope[usable], power[usable], eta[usable].var(axis=0))


def _fit(window: _Window, free: NDArray[np.bool_]) -> Array:
    """The most likely exponents (2, d), 0 where they are not free."""
    count = len(window.moved) / CORRELATED
    exponents = np.zeros((2, free.size))

    def deviance(flat: Array) -> tuple[float, Array]:
        exponents[:, free] = flat.reshape(2, -1)
        found = _least_squares(window, exponents)
        left = found.left + np.finfo(np.float64).tiny
        value = 0.5 * count * np.log(left) + 0.5 * float(flat @ flat)
        return value, 0.5 * count / left * found.gradient[:, free].ravel() + flat

    start = np.zeros(2 * int(free.sum()))
    bounds = [(-MOST_EXPONENT, MOST_EXPONENT)] * start.size
    found = optimize.minimize(deviance, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    exponents[:, free] = np.asarray(found).reshape(2, -1)
    return exponents


def _least_squares(window: _Window, exponents: Array) -> _Fitted:
    """Every site's b and w̄ for given exponents."""
    (by_linear, by_precision), slopes = grown(exponents @ window.moved.T)
    of_linear = window.power * by_linear[:, None]
    of_precision = -window.power * by_precision[:, None] * window.eta
    of_linear = np.broadcast_to(of_linear, of_precision.shape)
    # By Gram and Schmidt: of sites that hardly move the two are nearly one.
    square = np.einsum("ij,ij->j", of_linear, of_linear)
    shared = np.einsum("ij,ij->j", of_linear, of_precision) / square
    apart = of_precision - shared * of_linear
    own = np.einsum("ij,ij->j", apart, apart)
    precision = np.einsum("ij,ij->j", apart, window.slope) / np.where(own > 0.0, own, np.inf)
    precision = np.maximum(precision, 0.0)
    linear = np.einsum("ij,ij->j", of_linear, window.slope) / square - shared * precision
    rest = window.slope - of_linear * linear - of_precision * precision
    weighted = window.weight * rest
    n_draws = len(window.moved)
    pulled = -2.0 / n_draws * np.stack((
        np.einsum("ij,ij->i", weighted, of_linear * linear) * slopes[0],
        np.einsum("ij,ij->i", weighted, of_precision * precision) * slopes[1],
    ))  # fmt: skip
    left = float(np.einsum("ij,ij->", weighted, rest)) / n_draws
    return _Fitted(GaussianSites(linear, precision), left, pulled @ window.moved)
