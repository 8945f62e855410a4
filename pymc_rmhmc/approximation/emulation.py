"""A dear log density of a few variables, emulated from its values: a whole one, or a marginal one.

An emulator through values at some points is the most likely parabola and Gaussian process. The marginal density is of
hyperparameters in a joint chart. With z standard normal given ϑ, as it nearly is in the posterior,
``log ∫ N(z; 0, I) exp φ(ϑ, z) dz`` is what the posterior of ϑ has beyond a standard normal: a smooth
function of a few variables. It is estimated from the same noise at every point, so that it stays smooth, and
interpolated by a Gaussian process.

The first points are draws of a tuning window, pushed outwards by up to a factor of four. A proposal is judged by the
density itself, so that any emulator will do; but where it falls short of the density by a factor w, the chain stays for
about w proposals. That is in tails which a short window has not seen. On logit regressions of a hundred points the
worst of the hundred furthest of 10⁴ draws was off by e¹⁰ to e⁴⁰ with points and a level alone, and by e to e³ with
such points and a parabola. To these come points that are far out in one coordinate alone, where a scale is next to
nothing: of two processes with an amplitude each, one chain in ten stayed for up to 110 draws there, and its smallest
effective sample size fell from 2600 of 4000 draws to 80; with them none stayed for more than 8. What is still missing a
floor bounds.

A window's draws are few, and the chart that was fitted to them is worse than what an emulator of the same values knows:
where no draw had a long lengthscale, its tail was eighteen of that chart's standard deviations away, too far for any
path. So the emulator is a draft at first. Its own draws, of which any number can be had, say what the chart should be;
there some of them are pushed outwards, and all values serve again, for they are those of one function of θ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special, stats

from pymc_rmhmc.errors import PriorFailure
from pymc_rmhmc.interfaces.joint_density import JointDensity
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.charts.marginal import fit_marginals
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latent_blocks import theta_requires_refactorization
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta

__all__ = [
    "LogDensity", "are_few", "can_be_emulated", "emulate", "emulate_marginal", "interpolate",
    "n_coefficients", "on_a_floor",
]  # fmt: skip

type Array = NDArray[np.float64]

# Of a draft: so many for each hyperparameter, within these bounds.
POINTS_EACH, FEWEST_POINTS, MOST_POINTS = 50, 160, 300
# Fewer distinct draws say little of a density.
FEWEST_DRAWS = 40
# By which the draws are pushed outwards, in turn.
SCALES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
# A scale that may be next to nothing has a tail that on its unconstrained scale falls off no faster than an
# exponential. No window of tuning has draws of it, and what is pushed outwards is seldom far out in one coordinate.
# In ϑ, whose map to θ was fitted to the draws, such a tail is long: a chain may go there as far as the last of these.
REACHES = (4.0, 6.0, 9.0, 13.5, 20.0)
# Of the values, that the coefficients of a parabola may be at most: it is one of up to eleven hyperparameters.
SHARE_OF_TREND = 0.3
N_NOISES = 16
# A point that is so much less likely than the best, on the log scale, is out of reach: no emulator need hold there.
OUT_OF_REACH = 40.0
# Of a draft: so many chains make so many moves each of about a quarter of a period, after which little is left of where
# they began.
N_CHAINS, N_MOVES, MOVE = 500, 4, (0.3 * math.pi, 0.7 * math.pi)
# Draws of the draft that are evaluated: some as they are, and so many for each factor that pushes them outwards.
N_CHECKED, N_PUSHED, OUTWARDS = 20, 20, (1.5, 2.0, 2.5, 3.0)
# Weighted by the density, the first must be worth such a share of their number, or they say nothing of it.
LEAST_AGREED = 0.15
# Where values cost little an emulator is made again until its draws are worth so much, but not more often than this.
ENOUGH_AGREED, ROUNDS = 0.8, 4
# Along its flow an emulator that curves upwards faster than a standard normal downwards would run away.
MOST_CURVATURE = 0.9
# In standard deviations of ϑ: the marginal likelihood chooses.
LENGTHSCALES = (1.5, 2.0, 3.0, 4.5, 7.0, 10.0)
NUGGETS = (1e-6, 1e-4, 1e-2)
# Of what an emulator makes likely, a Student t of this width, in standard deviations of ϑ, has this share everywhere. A
# normal will not do: on an unconstrained scale a scale's density falls off no faster than an exponential.
SHARE_OF_FLOOR, WIDTH_OF_FLOOR, FREEDOM_OF_FLOOR = 0.02, 1.5, 3.0
N_INTEGRAL = 1000


def interpolate(points: Array, values: Array) -> Emulator:
    """Fit a parabola and a Gaussian process to values (m,) at points (m, d), the most likely among some.

    The parabola's coefficients and the variance are profiled out: Rasmussen and Williams (2006), section 2.7 and
    equation 5.8, at their maximum. The parabola curves upwards by less than 1.
    """
    d = points.shape[1]
    _, lengthscale, trend, weights = max(_candidates(points, values), key=lambda candidate: candidate[0])
    return Emulator(
        np.ascontiguousarray(points.T), weights, lengthscale, float(trend[0]), trend[1 : d + 1], _quadratic(trend, d)
    )


def on_a_floor(emulator: Emulator, rng: np.random.Generator) -> Emulator:
    """Keep an emulator above a share of a wide Student t: what it leaves out in the tails is bounded.

    A chain stays for about w proposals where a density is w times what an emulator makes of it, and the emulator is at
    least the floor. Random numbers are for its integral over a standard normal.

    References
    ----------
    Hesterberg (1995), Weighted average importance sampling and defensive mixture distributions.
    """
    d = emulator.linear.size
    values = np.array([emulator.evaluate(x)[0] for x in rng.standard_normal((N_INTEGRAL, d))])
    log_integral = float(special.logsumexp(values)) - math.log(N_INTEGRAL)
    # At 0, and against a standard normal there.
    student = stats.multivariate_t(np.zeros(d), WIDTH_OF_FLOOR**2 * np.eye(d), FREEDOM_OF_FLOOR)
    log_density = float(student.logpdf(np.zeros(d))) + 0.5 * d * math.log(2.0 * math.pi)
    floor = math.log(SHARE_OF_FLOOR) + log_integral + log_density - emulator.level
    power, reach = 0.5 * (FREEDOM_OF_FLOOR + d), FREEDOM_OF_FLOOR * WIDTH_OF_FLOOR**2
    return replace(emulator, floor=floor, power=power, reach=reach)


def n_coefficients(d: int) -> int:
    """Count the coefficients of a parabola in d variables."""
    return 1 + d + d * (d + 1) // 2


def _quadratic(trend: Array, d: int) -> Array:
    """Return Q (d, d) of a parabola's coefficients."""
    half = np.zeros((d, d))
    half[np.tril_indices(d)] = trend[d + 1 :]
    return half + half.T


def _bounded(trend: Array, d: int) -> Array:
    """Bound the eigenvalues of Q in a parabola's coefficients."""
    values, vectors = np.linalg.eigh(_quadratic(trend, d))
    if values[-1] <= MOST_CURVATURE:
        return trend
    bounded = (vectors * np.minimum(values, MOST_CURVATURE)) @ vectors.T
    np.fill_diagonal(bounded, 0.5 * bounded.diagonal())
    return np.concatenate((trend[: d + 1], bounded[np.tril_indices(d)]))


def _basis(points: Array) -> Array:
    """Return 1, x, and the products of two coordinates, by columns."""
    first, second = np.tril_indices(points.shape[1])
    return np.column_stack((np.ones(len(points)), points, points[:, first] * points[:, second]))


def _candidates(points: Array, values: Array) -> Iterator[tuple[float, float, Array, Array]]:
    """Yield the log likelihood, lengthscale, parabola's coefficients and weights of every kernel that has a factor."""
    basis = _basis(points)
    squares = ((points[:, None] - points) ** 2).sum(axis=-1)
    for lengthscale in LENGTHSCALES:
        kernel = Emulator.kernel(squares, lengthscale)
        for nugget in NUGGETS:
            try:
                factor = linalg.cho_factor(kernel + nugget * np.eye(values.size), lower=True)
            except linalg.LinAlgError:
                continue
            solved = linalg.cho_solve(factor, basis)
            trend = _bounded(np.linalg.lstsq(basis.T @ solved, solved.T @ values)[0], points.shape[1])
            rest = values - basis @ trend
            weights = linalg.cho_solve(factor, rest)
            variance = float(rest @ weights) / values.size
            half_log_determinant = float(np.log(factor[0].diagonal()).sum())
            log_likelihood = -0.5 * values.size * np.log(max(variance, np.finfo(float).tiny)) - half_log_determinant
            if np.isfinite(log_likelihood):
                yield log_likelihood, lengthscale, trend, weights


class LogDensity(Protocol):
    """The log density of some variables θ in a chart of them, each evaluation of which is dear."""

    @property
    def chart(self) -> MarginalChart:
        """From ϑ to θ."""

    def in_chart(self, chart: MarginalChart) -> LogDensity:
        """Return the same density in another chart's ϑ."""

    def beyond_normal(self, point: Array) -> float:
        """Return what it has at a ϑ beyond a standard normal, but for a constant; -inf where it cannot be computed."""


def emulate_marginal(
    target: JointTarget, thetas: Array, rng: np.random.Generator, stays: int = 0
) -> tuple[MarginalChart, Emulator] | None:
    """Emulate what the marginal posterior of ϑ has beyond a standard normal, in a chart that is made for it.

    The target is in a chart that was fitted to draws of θ (m, d). Of draws that followed an emulator, it is also asked
    for where so many of the longest stays were: that emulator was too low there. None if there are too few distinct
    draws or finite densities for a parabola in so many hyperparameters, or if no block's hyperparameters are dear:
    joint trajectories are cheaper there.
    """
    if not can_be_emulated(target.density, target.n_theta):
        return None
    points = _design(target.chart, thetas, rng, stays)
    if points is None:
        return None
    noises = rng.standard_normal((N_NOISES if target.n_sites else 1, target.size - target.n_theta))
    return _emulate(_Marginal(target, noises), points, thetas, rng, 0 if target.n_sites else ROUNDS)


def emulate(
    density: LogDensity, thetas: Array, rng: np.random.Generator
) -> tuple[MarginalChart, Emulator] | None:
    """Emulate what a density of ϑ has beyond a standard normal, in a chart that is made for it, from draws of θ (m, d).

    None if there are too few distinct draws or finite densities for a parabola in so many variables.
    """
    points = _design(density.chart, thetas, rng)
    return None if points is None else _emulate(density, points, thetas, rng)


def _emulate(
    density: LogDensity, points: Array, thetas: Array, rng: np.random.Generator, rounds: int = 0
) -> tuple[MarginalChart, Emulator] | None:
    """Emulate a density from values at some points, and again with values further out; None if too few are usable.

    Where its own draws are not the density's, the emulator is made again with what they are worth, in so many rounds.
    """
    known = _Known(density)
    known.evaluate(density.chart, points)
    draft = _through(*known.within(density.chart))
    if draft is None:
        return None
    drawn = _draws_along(draft, np.array([density.chart.recover(theta) for theta in thetas]), rng)
    chart = _chart_of(draft, drawn, known)
    known.evaluate(chart, _outwards(drawn[N_CHECKED:], density.chart, chart))
    final = _through(*known.within(chart))
    for _ in range(rounds):
        if final is None:
            return None
        checked = _draws_along(final, np.array([chart.recover(theta) for theta in thetas]), rng)[: 2 * N_CHECKED]
        said = [final.evaluate(point)[0] for point in checked]
        if _share_of_independent(known.evaluate(chart, checked) - said) > ENOUGH_AGREED:
            break
        final = _through(*known.within(chart))
    return None if final is None else (chart, on_a_floor(final, rng))


def can_be_emulated(density: JointDensity, n_theta: int) -> bool:
    """Return whether an emulator saves anything and has points enough for a parabola in so many hyperparameters."""
    return n_theta > 0 and are_few(n_theta) and any(map(theta_requires_refactorization, density.blocks))


def are_few(n_theta: int) -> bool:
    """Return whether an emulator of so many variables has points enough for a parabola."""
    return n_coefficients(n_theta) <= SHARE_OF_TREND * len(SCALES) * _n_each(n_theta)


def _n_each(n_theta: int) -> int:
    """Return how many draws each factor pushes outwards for a draft, where there are enough."""
    n_points = min(max(FEWEST_POINTS, POINTS_EACH * n_theta), MOST_POINTS)
    # Draws that serve twice are pushed by different factors.
    return math.ceil(n_points / len(SCALES))


@dataclass(frozen=True, slots=True)
class _Marginal:
    """``log ∫ N(z; 0, I) exp φ(ϑ, z) dz``, estimated from a few z (k, n) that are the same at every ϑ."""

    target: JointTarget
    noises: Array

    @property
    def chart(self) -> MarginalChart:
        """From ϑ to θ."""
        return self.target.chart

    def in_chart(self, chart: MarginalChart) -> _Marginal:
        """Return the same integral in another chart's ϑ."""
        return _Marginal(self.target.in_chart(chart), self.noises)

    def beyond_normal(self, point: Array) -> float:
        """Return the integral; -inf where a prior cannot be used."""
        try:
            held = LatentsGivenTheta(self.target, point)
        except PriorFailure:
            return -np.inf
        values = np.array([held.at_noise(noise).log_density for noise in self.noises])
        if not np.isfinite(values).all():
            return -np.inf
        best = float(values.max())
        return held.log_marginal + best + float(np.log(np.exp(values - best).mean()))


class _Known:
    """A log density of θ but for a constant, wherever it has been evaluated."""

    def __init__(self, density: LogDensity) -> None:
        self.density = density
        self._thetas: list[Array] = []
        self._log_densities: list[float] = []

    def evaluate(self, chart: MarginalChart, points: Array) -> Array:
        """Add the points (m, d) of a chart; what the log density has beyond a standard normal there, (m,)."""
        there = self.density.in_chart(chart)
        values = np.array([there.beyond_normal(point) for point in points])
        for point, value in zip(points, values, strict=True):
            placed = chart.place(point)
            self._thetas.append(placed.theta)
            self._log_densities.append(value - placed.log_volume - 0.5 * float(point @ point))
        return values

    def within(self, chart: MarginalChart) -> tuple[Array, Array]:
        """Return all points in a chart, (m, d), and what the log density has beyond a standard normal there, (m,)."""
        points = np.array([chart.recover(theta) for theta in self._thetas])
        volumes = np.array([chart.place(point).log_volume for point in points])
        return points, np.array(self._log_densities) + volumes + 0.5 * np.einsum("ij,ij->i", points, points)


def _chart_of(draft: Emulator, drawn: Array, known: _Known) -> MarginalChart:
    """Fit a chart to a draft's draws (m, d) if they follow the density; if not, return the one they were made in."""
    held = known.density.chart
    checked = drawn[:N_CHECKED]
    said = [draft.evaluate(point)[0] for point in checked]
    if _share_of_independent(known.evaluate(held, checked) - said) < LEAST_AGREED:
        return held
    return fit_marginals(np.array([held.place(point).theta for point in drawn])) or held


def _outwards(drawn: Array, held: MarginalChart, chart: MarginalChart) -> Array:
    """Return the first of the draws in one chart, pushed outwards in another, (m, d)."""
    scales = np.repeat(OUTWARDS, N_PUSHED)
    thetas = [held.place(point).theta for point in drawn[: scales.size]]
    return np.array([scale * chart.recover(theta) for scale, theta in zip(scales, thetas, strict=True)])


def _share_of_independent(log_weights: Array) -> float:
    """Return how many unweighted draws the weighted ones are worth, as a share of their number."""
    if not np.isfinite(log_weights).any():
        return 0.0
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / (weights.size * (weights @ weights)))


def _draws_along(emulator: Emulator, starts: Array, rng: np.random.Generator) -> Array:
    """Draw ϑ from an emulator, by chains that begin at some of the starts, (N_CHAINS, d)."""
    draws = starts[rng.integers(len(starts), size=N_CHAINS)]
    for _ in range(N_MOVES):
        draws = np.array([_moved(emulator, position, rng) for position in draws])
    return draws


def _moved(emulator: Emulator, position: Array, rng: np.random.Generator) -> Array:
    """Move along an emulator's flow, and let the emulator accept or refuse the move."""
    momentum = rng.standard_normal(position.size)
    end, final = emulator.advance(position, momentum, rng.uniform(*MOVE))
    here, there = emulator.evaluate(position)[0], emulator.evaluate(end)[0]
    gain = there - here + 0.5 * (position @ position + momentum @ momentum - end @ end - final @ final)
    return end if math.log1p(-rng.random()) < gain else position


def _through(points: Array, values: Array) -> Emulator | None:
    """Fit an emulator to the values that are finite and within reach; None if these are too few."""
    reach = values - 0.5 * np.einsum("ij,ij->i", points, points)
    kept = np.isfinite(values)
    if kept.any():
        kept &= reach > reach[kept].max() - OUT_OF_REACH
    if n_coefficients(points.shape[1]) > SHARE_OF_TREND * kept.sum():
        return None
    return interpolate(points[kept], values[kept])


def _design(chart: MarginalChart, thetas: Array, rng: np.random.Generator, stays: int = 0) -> Array | None:
    """Choose the ϑ at which the density is evaluated for a draft, (m, d); None if the draws are too few."""
    distinct, lengths = np.unique(thetas, axis=0, return_counts=True)
    d = thetas.shape[1]
    n_each = min(_n_each(d), len(distinct))
    if len(distinct) < FEWEST_DRAWS or n_coefficients(d) > SHARE_OF_TREND * n_each * len(SCALES):
        return None
    draws = np.array([chart.recover(theta) for theta in rng.permutation(distinct)])
    scales = np.repeat(SCALES, n_each)
    points = np.resize(draws, (scales.size, d)) * scales[:, None]
    longest = distinct[np.argsort(-lengths, kind="stable")[:stays]]
    return np.concatenate((points, _along_axes(draws), *([chart.recover(theta)] for theta in longest)))


def _along_axes(draws: Array) -> Array:
    """Return draws in which one coordinate is far out."""
    places = [(j, sign * reach) for reach in REACHES for j in range(draws.shape[1]) for sign in (-1.0, 1.0)]
    points = np.resize(draws, (len(places), draws.shape[1])).copy()
    for point, (j, place) in zip(points, places, strict=True):
        point[j] = place
    return points
