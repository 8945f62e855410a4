"""Gaussian sites for a likelihood: from the mode, and from draws.

Any sites give an exact sampler. Good ones leave little of the likelihood in the chart's residual, so that
long steps are accepted.

Sites may grow with θ, along a trend fitted to draws. The residual force at a site is ``g(η) - (r(θ) b - ρ(θ) w̄ η)``,
with one pair of multiples for all sites (`pymc_rmhmc.latent.charts.moving_sites`). Along a given trend b and w̄ are its
least squares, as in `SiteRegression`; the trend is the one that leaves the least, of a likelihood in which the residual
is normal, and a prior by what scale the latents' own prior has. With 24 observations in two classes that can be
separated, under a ``HalfCauchy(5)`` amplitude, its 95 % quantile of 115 was 42 in 6000 draws with sites that stood
still, and is 102 to 121 with sites of a trend. With exponents about 0 in place of what the scale says it was 80 to 170,
for what tuning sees says little of how sites fall off beyond. Most models have nothing to gain, and their sites stand
still.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from pymc_rmhmc.approximation.newton import NEAREST_FIRST, Mode
from pymc_rmhmc.errors import PriorFailure
from pymc_rmhmc.interfaces.joint_density import JointBlock
from pymc_rmhmc.latent.charts.moving_sites import MovingSites, RaisedSites, SiteTrend, grown
from pymc_rmhmc.latent.charts.site import GaussianSites, Predictor
from pymc_rmhmc.latent.field.field_parts import sites_of_twins
from pymc_rmhmc.latent.latent_blocks import conditional_of, prior_of, sites_at
from pymc_rmhmc.latent.target import Likelihood

__all__ = ["SiteFit", "SiteRegression", "ThinnedDraws", "follow_trend", "laplace_sites", "prior_expected_sites"]

type Array = NDArray[np.float64]

# Of the quadrature: exact for a rate exp(η) to 1e-9 where a latent value has a standard deviation of 3.
N_NODES = 40
# Draws that a trend needs, and for each coordinate of θ. Of a long window a hundred or more are kept: no trend follows
# more coordinates than sixteen.
FEWEST_DRAWS, DRAWS_BY_COORDINATE = 20, 6
# Two covariances are made for each coordinate to see which move the scale: where they are very many, none is followed.
MOST_COORDINATES = 50
# Draws of a window, and numbers of all its sites, that are kept at most.
MOST_DRAWS, MOST_NUMBERS = 200, 2_000_000
# Below this mean square, in squared nats, the residual costs nothing. Above, a trend must take this share of it to be
# worth what it costs. Of classes that can be separated it takes 0.1 to 0.7, of logit regressions that are not so 0.1 to
# 0.2, and of counts, robust regressions and coefficients 0 to 0.05.
SMALL, LEAST_SHARE = 0.1, 0.08
# A chain that cannot go far along the trend sees little of it, and much is left by any sites: then so many squared nats
# are enough, if they are this share.
MUCH, SHARE_OF_MUCH = 1.0, 0.01
# Vectors of one covariance have one w̄, where this many times as much is left by it: one factor serves all of them.
LEFT_BY_TWINS = 1.5
# Of a site's squares: where less varies, the draws have no digits to tell b from w̄ by.
STILL = 1e-14
# Draws come one from another: so many count as one.
CORRELATED = 2.0
# How widely an exponent is normal about what the prior's variance says, and log M about 0; and the furthest that they
# may be.
SPREADS, FURTHEST = (0.25, 2.0), (6.0, 6.0)
# On the unconstrained scale, for the growth of that variance. What moves the sites but not their scale, as effects that
# are hyperparameters do, is not followed: a trend in it would be one of chance.
DIFFERENCE, LEAST_GROWTH = 0.1, 0.1


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


class ThinnedDraws:
    """A block's draws in a tuning window: all of few, and of many every second, fourth or eighth.

    Sites are kept in single precision, for they take memory beside a covariance: of very many fewer draws are kept.
    """

    def __init__(self, n_sites: int) -> None:
        self._most = int(np.clip(MOST_NUMBERS // max(n_sites, 1), 2 * FEWEST_DRAWS, MOST_DRAWS))
        self._every, self._seen = 1, 0
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
        """Return every θ (N, d), and its sites (N, n)."""
        return np.array(self._thetas), np.array(self._etas, dtype=np.float64)


@dataclass(slots=True)
class _Window:
    """What a trend is fitted to: θ less its centre (N, d); η, slopes and powers (N, n).

    And of every site (n,) η's variance, by which a force counts as it does in z, and w̄ without a trend. Of sites of
    vectors that are to have one w̄, each (r, n), where they are.
    """

    moved: Array
    eta: Array
    slope: Array
    power: Array
    variance: Array
    precision: Array
    twins: tuple[NDArray[np.int64], ...] = ()


@dataclass(slots=True)
class _Fitted:
    """The least squares along a trend: b and w̄, the mean square that they leave, and its derivatives by the trend.

    Those by exponents (2, d) and by log M (2,).
    """

    sites: GaussianSites
    left: float
    by_exponents: Array
    by_log_most: Array


def follow_trend(
    block: JointBlock, sites: GaussianSites | MovingSites, centre: Array, draws: ThinnedDraws, free: NDArray[np.bool_]
) -> GaussianSites | MovingSites:
    """Return sites that follow a trend if the draws show that it is worth it, and the given ones if not.

    The given sites were fitted for the θ of the centre (d,). A trend may follow the coordinates of θ that are free
    (d,).
    """
    thetas, eta = draws.values()
    if block.fixed_covariance or not 0 < free.sum() <= MOST_COORDINATES or len(thetas) < FEWEST_DRAWS:
        return sites
    window = _window(block, sites, thetas, eta, centre)
    if len(window.moved) < FEWEST_DRAWS:
        return sites
    nowhere = SiteTrend(centre, np.zeros((2, centre.size)), np.zeros(2))
    plain = _least_squares(window, nowhere)
    together = replace(window, twins=() if block.maps is None else tuple(sites_of_twins(block.maps)))
    if together.twins:
        tied = _least_squares(together, nowhere)
        if tied.left <= max(LEFT_BY_TWINS * plain.left, SMALL):
            window, plain, sites = together, tied, _with_sites(sites, tied.sites)
    if not plain.left > SMALL:
        return sites
    growth = _growth(block, centre, free)
    followed = np.abs(growth) > LEAST_GROWTH
    if not followed.any() or len(window.moved) < DRAWS_BY_COORDINATE * followed.sum():
        return sites
    trend = _fit(window, centre, followed, growth)
    found = _least_squares(window, trend)
    if not plain.left - found.left >= min(LEAST_SHARE * plain.left, max(MUCH, SHARE_OF_MUCH * plain.left)):
        return sites
    if sites.moves:
        return replace(cast("MovingSites", _with_sites(sites, found.sites)), trend=trend)
    return MovingSites(found.sites, np.zeros((2, 0)), np.ones(1), trend)


def _with_sites(sites: GaussianSites | MovingSites, fitted: GaussianSites) -> GaussianSites | MovingSites:
    return replace(cast("MovingSites", sites), sites=fitted) if sites.moves else fitted


def _window(
    block: JointBlock, sites: GaussianSites | MovingSites, thetas: Array, eta: Array, centre: Array
) -> _Window:
    """Select the draws at which the likelihood has a slope."""
    slope = np.array([block.likelihood(theta, each)[1] for theta, each in zip(thetas, eta, strict=True)])
    power = np.ones((len(thetas), 1))
    if sites.moves:
        held = cast("MovingSites", sites)
        power = np.array([cast("RaisedSites", sites_at(block, theta, held)).power for theta in thetas])
        if held.tilt is not None:
            slope -= np.array([held.tilt.at(theta) for theta in thetas])
    usable = np.isfinite(slope).all(axis=1) & np.isfinite(power).all(axis=1)
    eta = eta[usable]
    variance = eta.var(axis=0) if len(eta) else np.zeros(block.n_sites)
    return _Window(thetas[usable] - centre, eta, slope[usable], power[usable], variance, sites.sites.precision)


def _growth(block: JointBlock, centre: Array, free: NDArray[np.bool_]) -> Array:
    """Estimate how the sites' log prior variance grows with θ on average, (d,); 0 where that cannot be told."""
    growth = np.zeros(centre.size)
    for j in np.flatnonzero(free):
        step = DIFFERENCE * np.eye(centre.size)[j]
        with contextlib.suppress(PriorFailure):
            below, above = (_prior_variances(block, theta) for theta in (centre - step, centre + step))
            known = (below > 0.0) & (above > 0.0) & np.isfinite(below) & np.isfinite(above)
            if known.any():
                growth[j] = np.log(above[known] / below[known]).mean() / (2.0 * DIFFERENCE)
    return np.clip(growth, -FURTHEST[0], FURTHEST[0])


def _prior_variances(block: JointBlock, theta: Array) -> Array:
    """Return the prior variance of every site, or of a row's sites where all rows have one covariance.

    It looks at a covariance's diagonal alone: a chain has no room for its factors next to its own.
    """
    if block.design_shape is None and not (block.is_sum or block.maps is not None):
        return np.concatenate([each.variances() for each in prior_of(block, theta, derivative=False).vectors])
    nothing = GaussianSites(*np.zeros((2, block.n_sites)))
    return conditional_of(block, theta, nothing).marginals()[1]


def _fit(window: _Window, centre: Array, free: NDArray[np.bool_], growth: Array) -> SiteTrend:
    """Fit the most likely trend, with exponents of 0 where they are not free.

    Where the prior alone says how far latent values go, b falls as its standard deviation grows, and w̄ as its variance
    does: exponents are near what is so of this prior, and M says from where on.
    """
    count, k = len(window.moved) / CORRELATED, int(free.sum())
    middle = np.concatenate((-0.5 * growth[free], -growth[free], np.zeros(2)))
    spread, furthest = (np.repeat(pair, (2 * k, 2)) for pair in (SPREADS, FURTHEST))

    def trend(flat: Array) -> SiteTrend:
        exponents = np.zeros((2, free.size))
        exponents[:, free] = flat[: 2 * k].reshape(2, k)
        return SiteTrend(centre, exponents, flat[2 * k :])

    def deviance(flat: Array) -> tuple[float, Array]:
        found, far = _least_squares(window, trend(flat)), (flat - middle) / spread
        left = found.left + np.finfo(np.float64).tiny
        slopes = np.concatenate((found.by_exponents[:, free].ravel(), found.by_log_most))
        return 0.5 * count * np.log(left) + 0.5 * float(far @ far), 0.5 * count / left * slopes + far / spread

    bounds = np.column_stack((-furthest, furthest))
    return trend(optimize.minimize(deviance, middle, jac=True, method="L-BFGS-B", bounds=bounds).x)


def _least_squares(window: _Window, trend: SiteTrend) -> _Fitted:
    """Fit every site's b and w̄ along a given trend; a site that hardly moves keeps its w̄."""
    log_most, along = trend.log_most[:, None], trend.exponents @ window.moved.T
    (linear_multiple, precision_multiple), slopes = grown(along, log_most)
    of_precision = -window.power * precision_multiple[:, None] * window.eta
    of_linear = np.broadcast_to(window.power * linear_multiple[:, None], of_precision.shape)
    # By Gram and Schmidt: of sites that hardly move the two are nearly one.
    square = np.einsum("ij,ij->j", of_linear, of_linear)
    along_linear = np.einsum("ij,ij->j", of_linear, of_precision) / square
    apart = of_precision - along_linear * of_linear
    own = np.einsum("ij,ij->j", apart, apart)
    moves = own > STILL * np.einsum("ij,ij->j", of_precision, of_precision)
    found = np.einsum("ij,ij->j", apart, window.slope) / np.where(moves, own, np.inf)
    precision = np.where(moves, found, window.precision)
    weight = np.where(moves, window.variance * own, 0.0)
    for twins in window.twins:
        total = weight[twins].sum(axis=0)
        shared = (weight[twins] * precision[twins]).sum(axis=0) / np.where(total > 0.0, total, 1.0)
        precision[twins] = np.where(total > 0.0, shared, window.precision[twins[0]])
    precision = np.maximum(precision, 0.0)
    linear = np.einsum("ij,ij->j", of_linear, window.slope) / square - along_linear * precision
    rest = window.slope - of_linear * linear - of_precision * precision
    weighted, n_draws = window.variance * rest, len(window.moved)
    # Where b and w̄ are least squares, or at their bound, their own derivatives come to nothing.
    by_logarithms = -2.0 / n_draws * np.stack((
        np.einsum("ij,ij->i", weighted, of_linear * linear),
        np.einsum("ij,ij->i", weighted, of_precision * precision),
    ))  # fmt: skip
    return _Fitted(
        GaussianSites(linear, precision),
        float(np.einsum("ij,ij->", weighted, rest)) / n_draws,
        (by_logarithms * slopes) @ window.moved,
        (by_logarithms * (special.expit(log_most) - slopes)).sum(axis=1),
    )
