"""Where hyperparameters and latent values are likely: a variational approximation for a chain to begin with.

The posterior of the latents given θ is taken for the prior times Gaussian sites, and θ for a point. Both raise the
same bound on log p(θ, y): sites with the expected slope and curvature of the likelihood, and θ by its gradient in the
joint chart. A Laplace approximation in its place is drawn to narrow modes: a Student t with little noise and heavy
tails passes through half of the data and is far from the other half, and its density is high there, but on next to
no volume.

References
----------
Opper and Archambeau (2009), The variational Gaussian approximation revisited, for the sites.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from pymc_rmhmc.approximation.newton import Latents, find_mode
from pymc_rmhmc.approximation.site_fit import laplace_sites
from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.joint_density import JointBlock, JointDensity
from pymc_rmhmc.latent.charts.marginal import MarginalChart
from pymc_rmhmc.latent.charts.moving_sites import MovingSites, RaisedSites, SiteTilt
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latent_blocks import conditional_from, conditional_of, prior_of, sites_at
from pymc_rmhmc.latent.solvers.apart import Rows
from pymc_rmhmc.latent.target import Likelihood

__all__ = [
    "JointApproximation", "approximate_jointly", "laplace_sites_at", "moving_sites", "sites_from_nothing",
    "variational_sites_at",
]  # fmt: skip

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]
# Of each block, the likelihoods of its rows.
type Likelihoods = Callable[[Array], Sequence[Sequence[Likelihood]]]

MAX_ROUNDS = 10
ITERATIONS = 20
# In a round the sites are those of its beginning: θ goes no further than they are likely to hold.
REACH = 2.0
# On the unconstrained scale, on which a hyperparameter's posterior is rarely narrower than a few hundredths.
SETTLED = 0.05
DIFFERENCE = 1e-3
# Bounds on the precision of θ. A direction that seems to be held by nothing is curved elsewhere: one unit of the
# unconstrained scale, a factor of e, is as far as the chain is sent at first.
LEAST_PRECISION, MOST_PRECISION = 1.0, 1e6
# Gauss-Hermite nodes for a site's expectations, and rounds of them: sites need not be exact.
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(11)
WEIGHTS /= WEIGHTS.sum()
SITE_ROUNDS = 20
DAMPING = 0.7
# Of the first fit where there is no mode to begin with: its rounds, those at the end without a floor, the widest
# standard deviation at which slopes are looked at, and bounds of precisions and of how fast they grow.
FIRST_ROUNDS, SETTLING_ROUNDS = 24, 8
WIDEST, TINY, LEAST_SITE, FASTEST = 5.0, 1e-6, 1e-5, 20.0
SITE_TOLERANCE = 0.05
# Slopes beyond this lead too far in the first round; how often the distance is doubled and halved instead.
STEEP, DOUBLINGS, HALVINGS = 40.0, 40, 50


@dataclass(frozen=True, slots=True)
class JointApproximation:
    """A θ, with sites for each block, and a chart that is centred at θ and has the curvature there."""

    sites: tuple[GaussianSites | MovingSites, ...]
    marginals: MarginalChart


def approximate_jointly(
    density: JointDensity, sites: Sequence[GaussianSites], theta: Array, rng: np.random.Generator,
    held: Iterable[int] = (),
) -> JointApproximation:  # fmt: skip
    """Maximise the bound on log p(θ, y) from a given θ (d,): sites at θ, and θ with the sites held, in turns.

    It begins with some sites of that θ. The noise by which the bound is estimated is the same throughout. Some
    coordinates of θ are held where they are: those by which the bound may have none itself.

    Raises a `PriorFailure` if a prior cannot be factorised at the θ given.
    """
    unscaled = MarginalChart.linear(np.zeros(theta.size), np.eye(theta.size))
    noise = rng.standard_normal(JointTarget(density, sites, unscaled).size - theta.size)
    pair = (noise, -noise)
    reach = np.full(theta.size, REACH)
    reach[list(held)] = 0.0
    for _ in range(MAX_ROUNDS if theta.size else 0):
        sites = variational_sites_at(density, theta, sites)
        target = JointTarget(density, _anchored(density, theta, sites), unscaled)
        found = optimize.minimize(
            lambda at, target=target: _negative_bound(target, at, pair),
            theta, jac=True, method="L-BFGS-B", bounds=np.column_stack((theta - reach, theta + reach)),
            options={"maxiter": ITERATIONS},
        ).x  # fmt: skip
        moved = float(np.abs(found - theta).max(initial=0.0))
        theta = np.asarray(found)
        if moved < SETTLED:
            break
    sites = variational_sites_at(density, theta, sites)
    anchored = _anchored(density, theta, sites)
    marginals = _curvature(JointTarget(density, anchored, unscaled), theta, pair)
    return JointApproximation(tuple(anchored), marginals)


def _anchored(
    density: JointDensity, theta: Array, sites: Sequence[GaussianSites]
) -> list[GaussianSites | MovingSites]:
    """Return the sites of a θ, which follow the likelihood's parameters where it has some."""
    return [
        moving_sites(block, theta, each, *conditional_of(block, theta, each).marginals())
        if block.has_moving_sites or _may_tilt(block)
        else each
        for block, each in zip(density.blocks, sites, strict=True)
    ]


def moving_sites(
    block: JointBlock, theta: Array, sites: GaussianSites, centre: Array, variance: Array
) -> GaussianSites | MovingSites:
    """Let sites fitted at a θ move, where η has this mean and variance (n,); keep them if nothing moves them."""
    nodes = centre + np.array([[-1.0], [1.0]]) * np.sqrt(variance)
    moving = MovingSites(sites, np.zeros((2, 0)), np.ones(1))
    if block.has_moving_sites:
        moving = MovingSites(sites, nodes, block.information(theta, nodes))
    tilt = _tilt_of(block, theta, moving, nodes)
    return sites if tilt is None and not block.has_moving_sites else replace(moving, tilt=tilt)


def _may_tilt(block: JointBlock) -> bool:
    """Return whether sites may have a tilt: in dense blocks, where every θ costs a factor, they gain nothing by it."""
    return block.maps is not None


def _tilt_of(block: JointBlock, theta: Array, moving: MovingSites, nodes: Array) -> SiteTilt | None:
    """Find how the mean of the likelihood's slopes at two η (2, n) grows with its parameters beyond the sites' power.

    None where nothing does.
    """
    which = np.flatnonzero(block.likelihood(theta, nodes[0])[2]) if _may_tilt(block) else np.zeros(0, np.int64)
    if not which.size:
        return None
    slopes, here = np.zeros((which.size, block.n_sites)), _mean_slope(block, theta, nodes)
    for row, j in enumerate(which):
        step = DIFFERENCE * np.eye(theta.size)[j]
        sides = theta - step, theta + step
        below, above = (_mean_slope(block, side, nodes) for side in sides)
        weaker, stronger = (cast("RaisedSites", sites_at(block, side, moving)).power for side in sides)
        slopes[row] = (above - below - (stronger - weaker) * here) / (2.0 * DIFFERENCE)
    return SiteTilt(theta, which, slopes) if np.isfinite(slopes).all() else None


def _mean_slope(block: JointBlock, theta: Array, eta: Array) -> Array:
    """Return the mean of the likelihood's slopes by site at two η (2, n)."""
    return np.mean([block.likelihood(theta, node)[1] for node in eta], axis=0)


def _negative_bound(target: JointTarget, theta: Array, noises: Sequence[Array]) -> tuple[float, Array]:
    """Return minus the bound, and its gradient, for a minimiser that steps back from a value that is very large."""
    try:
        value, gradient = target.expectation(theta, noises)
    except PriorFailure:
        return 1e100, np.zeros_like(theta)
    if not (np.isfinite(value) and np.isfinite(gradient).all()):
        return 1e100, np.zeros_like(theta)
    return -value, -gradient


def laplace_sites_at(
    density: JointDensity, likelihoods: Likelihoods, theta: Array, max_iter: int = 100
) -> list[GaussianSites]:
    """Find every block's Laplace sites at θ, where each likelihood is one of the latents without their shift.

    They are those of the mode, or of where so many Newton steps have come.
    """
    found = []
    for block, rows in zip(density.blocks, likelihoods(theta), strict=True):
        predictors, shift = _predictors(block, theta)
        linear, precision = np.empty((2, shift.size))
        for (where, predictor), likelihood in zip(predictors, rows, strict=True):
            mode = find_mode(predictor, likelihood, max_iter=max_iter)
            sites = laplace_sites(replace(mode, eta=mode.eta + shift[where]))
            linear[where], precision[where] = sites.linear, sites.precision
        found.append(GaussianSites(linear, precision))
    return found


def _predictors(block: JointBlock, theta: Array) -> tuple[list[tuple[slice | Indices, Latents]], Array]:
    """Return, for each row, its sites and the map from whitened latents to them without their shift; and the shift."""
    stated, nothing = prior_of(block, theta, derivative=False), np.zeros(block.n_sites)
    prior, shift = conditional_from(block, stated, GaussianSites(nothing, nothing)), stated.shift
    if block.rows is None:
        return [(slice(None), Latents(prior.mean - shift, prior))], shift
    rows = zip(block.rows, cast("Rows", prior).rows, strict=True)
    return [(where, Latents(row.mean - shift[where], row)) for where, row in rows], shift


def sites_from_nothing(block: JointBlock, theta: Array) -> GaussianSites:
    """Find sites of a block at a θ from its expected slopes alone, however far its prior is from the data.

    Where a likelihood is not log-concave its first fits have precisions that are next to nothing, and the next centre
    is far away: they are held above the size of the slope, less and less.
    """
    n = block.n_sites
    sites = _near_steep_data(block, theta, GaussianSites(np.zeros(n), np.ones(n)))
    for k in range(FIRST_ROUNDS):
        try:
            centre, variance = conditional_of(block, theta, sites).marginals()
        except PriorFailure:
            sites = GaussianSites(sites.linear, 4.0 * sites.precision + 0.1)
            continue
        spread = np.minimum(np.sqrt(variance), WIDEST)
        slope, tilt = _expected(block, theta, centre, spread)
        least = np.abs(slope) * 2.0 ** (-0.5 * k) if k < FIRST_ROUNDS - SETTLING_ROUNDS else np.zeros(n)
        curvature = -tilt / np.maximum(spread, TINY)
        precision = np.clip(np.maximum(curvature, least), LEAST_SITE, FASTEST * sites.precision + 1.0)
        linear = slope + precision * centre
        if not np.isfinite(linear).all():
            sites = GaussianSites(sites.linear, 4.0 * sites.precision + 0.1)
            continue
        sites = GaussianSites(
            sites.linear + DAMPING * (linear - sites.linear),
            sites.precision + DAMPING * (precision - sites.precision),
        )
    return sites


def _near_steep_data(block: JointBlock, theta: Array, sites: GaussianSites) -> GaussianSites:
    """Put each site whose likelihood is steep where its slope is 0: a step by that slope would lead far beyond."""
    try:
        inner = conditional_of(block, theta, sites).centre.copy()
    except PriorFailure:
        return sites
    slope = block.likelihood(theta, inner)[1]
    opened = steep = np.abs(slope) > STEEP
    if not steep.any():
        return sites
    sign, outer = np.sign(slope), inner.copy()

    def leads_on(at: Array) -> NDArray[np.bool_]:
        return np.asarray(block.likelihood(theta, at)[1] * sign > 0.0)

    with np.errstate(all="ignore"):
        for k in range(DOUBLINGS):
            outer = np.where(opened, inner + sign * 2.0**k, outer)
            on = leads_on(outer) & opened
            inner, opened = np.where(on, outer, inner), on
            if not on.any():
                break
        for _ in range(HALVINGS):
            middle = np.where(steep, 0.5 * (inner + outer), inner)
            on = leads_on(middle)
            inner, outer = np.where(on, middle, inner), np.where(on, outer, middle)
        width = DIFFERENCE * (1.0 + np.abs(inner)) * steep
        above, below = (block.likelihood(theta, inner + by)[1] for by in (width, -width))
        curvature = np.where(steep, (below - above) / np.where(steep, 2.0 * width, 1.0), 1.0)
    found = steep & np.isfinite(curvature) & np.isfinite(inner)
    precision = np.where(found, np.maximum(curvature, LEAST_SITE), sites.precision)
    return GaussianSites(np.where(found, precision * inner, sites.linear), precision)


def variational_sites_at(
    density: JointDensity, theta: Array, sites: Sequence[GaussianSites]
) -> list[GaussianSites]:
    """Fit sites with the likelihood's expected slope and curvature under the prior times themselves, from given ones.

    A prior without a factor is a `PriorFailure`.
    """
    held = zip(density.blocks, sites, strict=True)
    return [_variational_sites(block, theta, first) for block, first in held]


def _variational_sites(block: JointBlock, theta: Array, sites: GaussianSites) -> GaussianSites:
    """Find the fixed point, or return what the iteration has when it leaves the numbers or runs out."""
    last: tuple[Array, Array] | None = None
    for _ in range(SITE_ROUNDS):
        try:
            centre, variance = conditional_of(block, theta, sites).marginals()
        except PriorFailure:
            if last is None:
                raise
            return sites
        spread = np.sqrt(variance)
        if last is not None and _near(last, (centre, spread)):
            return sites
        last = centre, spread
        found = _matched(block, theta, centre, spread)
        if found is None:
            return sites
        sites = GaussianSites(
            sites.linear + DAMPING * (found.linear - sites.linear),
            sites.precision + DAMPING * (found.precision - sites.precision),
        )
    return sites


def _matched(block: JointBlock, theta: Array, centre: Array, spread: Array) -> GaussianSites | None:
    """Return the sites with the likelihood's expected slope and curvature, by Stein's identity; None if not finite."""
    slope, tilt = _expected(block, theta, centre, spread)
    precision = np.maximum(-tilt / np.where(spread > 0.0, spread, np.inf), 0.0)
    linear = slope + precision * centre
    return GaussianSites(linear, precision) if np.isfinite(linear).all() else None


def _expected(block: JointBlock, theta: Array, centre: Array, spread: Array) -> tuple[Array, Array]:
    """Return the mean of the likelihood's slope, and of it times how many spreads η is from its centre."""
    slopes = np.array([block.likelihood(theta, centre + node * spread)[1] for node in NODES])
    return WEIGHTS @ slopes, (WEIGHTS * NODES) @ slopes


def _near(before: tuple[Array, Array], now: tuple[Array, Array]) -> bool:
    """Return whether means have moved by little of their spread, and spreads by little."""
    allowed = SITE_TOLERANCE * now[1]
    return bool((np.abs(now[0] - before[0]) <= allowed).all() and (np.abs(now[1] - before[1]) <= allowed).all())


def _curvature(target: JointTarget, theta: Array, noises: Sequence[Array]) -> MarginalChart:
    """Return θ's chart from the curvature of the bound, by differences of its gradient."""
    columns = [_curvature_along(target, theta, direction, noises) for direction in np.eye(theta.size)]
    hessian = np.array(columns).reshape(theta.size, theta.size)
    if not np.isfinite(hessian).all():
        raise PriorFailure(Failure.NON_FINITE)
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    covariance = (vectors / np.clip(values, LEAST_PRECISION, MOST_PRECISION)) @ vectors.T
    return MarginalChart.linear(theta, np.linalg.cholesky(0.5 * (covariance + covariance.T)))


def _curvature_along(target: JointTarget, theta: Array, direction: Array, noises: Sequence[Array]) -> Array:
    """Return a column of the curvature, one-sided if a prior has no factor on one side, and the least if on both."""
    slopes: dict[float, Array] = {}
    for step in (-DIFFERENCE, DIFFERENCE, 0.0):
        if len(slopes) == 2:
            break
        with contextlib.suppress(PriorFailure):
            slopes[step] = target.expectation(theta + step * direction, noises)[1]
    if len(slopes) < 2:
        return LEAST_PRECISION * direction
    (first, behind), (last, ahead) = slopes.items()
    return np.asarray((behind - ahead) / (last - first))
