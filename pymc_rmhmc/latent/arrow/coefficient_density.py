"""The joint density of coefficients in groups at one (ϑ, z), compiled from end to end.

The formulas are those of `pymc_rmhmc.latent.joint_target.JointTarget` with an arrow (`arrow_design`),
constant or moved by θ. The model's own functions are called by their addresses. Where sites follow θ all w̄ have a
multiple ρ, and predictors are in units of ``1/√ρ`` (`pymc_rmhmc.latent.arrow.arrow_design`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from pymc_rmhmc.latent.arrow import arrow_loops as loops
from pymc_rmhmc.latent.arrow.arrow_loops import ArrowPattern, Gram
from pymc_rmhmc.latent.charts.marginal import place_hyperparameters
from pymc_rmhmc.latent.charts.site import residual_of_sites
from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.compiled.native import (
    NativeFunction,
    call_apart,
    call_for_five_vectors,
    call_for_five_vectors_and_matrix,
    call_for_value_and_slope,
    call_for_vector,
    call_likelihood,
)

__all__ = [
    "Evaluated", "Functions", "MovingForm", "Multiples", "Passes", "Powers", "StandingForm", "Trend", "evaluate",
    "multiples_at", "multiples_pullback",
]  # fmt: skip

type Array = NDArray[np.float64]
type Index = NDArray[np.int64]
type Chart = tuple[Array, Array, Array, Array, Array, Array]

class Powers(NamedTuple):
    """What sites are raised by: see `pymc_rmhmc.latent.charts.moving_sites.MovingSites`."""

    information: NativeFunction
    information_gradient: NativeFunction
    eta: Array
    fitted: Array


class Trend(NamedTuple):
    """What they grow along: see `pymc_rmhmc.latent.charts.moving_sites.SiteTrend`."""

    centre: Array
    exponents: Array
    most: Array


class Multiples(NamedTuple):
    """Both; of sites that stand still both are None."""

    powers: Powers | None
    trend: Trend | None


def _power(powers: Powers | None, theta: Array) -> float:
    """The power; for compiled code alone."""
    raise NotImplementedError


def _information_share(powers: Powers, theta: Array) -> Any:  # pragma: no cover - compiled
    information = powers.information
    (found,) = call_for_vector(information.address, (theta, powers.eta), information.rest)
    fitted = powers.fitted[0]
    return found[0] / fitted if fitted > 0.0 else 1.0


@overload(_power, strict=False)
def _any_power(powers: Any, theta: Any) -> Any:
    return (lambda powers, theta: 1.0) if isinstance(powers, types.NoneType) else _information_share


def _power_pullback(powers: Powers | None, theta: Array, power: float, power_bar: float) -> Array:
    """The derivative by θ of a function of the power, from that by its logarithm; for compiled code alone."""
    raise NotImplementedError


def _information_pullback(
    powers: Powers, theta: Array, power: float, power_bar: float
) -> Any:  # pragma: no cover - compiled
    gradient, information = powers.information_gradient, power * powers.fitted[0]
    bar = np.array([power_bar / information if information > 0.0 else 0.0])
    (by_theta,) = call_for_vector(gradient.address, (theta, powers.eta, bar), gradient.rest)
    return by_theta.copy()


@overload(_power_pullback, strict=False)
def _any_power_pullback(powers: Any, theta: Any, power: Any, power_bar: Any) -> Any:
    if isinstance(powers, types.NoneType):
        return lambda powers, theta, power, power_bar: np.zeros(theta.size)
    return _information_pullback


@compiled
def _damping(trend: Trend, theta: Array, which: int) -> float:  # pragma: no cover - compiled
    """``M exp(-t)`` of b or of w̄."""
    centre, exponents = trend.centre, trend.exponents
    along: float = 0.0
    for j in range(theta.size):
        along += exponents[which, j] * (theta[j] - centre[j])
    most: float = trend.most[which]
    return most * math.exp(-along)


def _growth(trend: Trend | None, theta: Array) -> tuple[float, float]:
    """What b and w̄ are multiplied by along the trend; for compiled code alone."""
    raise NotImplementedError


def _growth_along(trend: Trend, theta: Array) -> Any:  # pragma: no cover - compiled
    linear_multiple = (1.0 + trend.most[0]) / (1.0 + _damping(trend, theta, 0))
    return linear_multiple, (1.0 + trend.most[1]) / (1.0 + _damping(trend, theta, 1))


@overload(_growth, strict=False)
def _any_growth(trend: Any, theta: Any) -> Any:
    return (lambda trend, theta: (1.0, 1.0)) if isinstance(trend, types.NoneType) else _growth_along


def _trend_pullback(trend: Trend | None, theta: Array, by_linear: float, by_precision: float) -> Array:
    """The derivative by θ of a function of the two multiples, from those by logarithms; for compiled code alone."""
    raise NotImplementedError


def _growth_pullback(
    trend: Trend, theta: Array, by_linear: float, by_precision: float
) -> Any:  # pragma: no cover - compiled
    along_linear = by_linear * (1.0 - 1.0 / (1.0 + _damping(trend, theta, 0)))
    along_precision = by_precision * (1.0 - 1.0 / (1.0 + _damping(trend, theta, 1)))
    return along_linear * trend.exponents[0] + along_precision * trend.exponents[1]


@overload(_trend_pullback, strict=False)
def _any_trend_pullback(trend: Any, theta: Any, by_linear: Any, by_precision: Any) -> Any:
    if isinstance(trend, types.NoneType):
        return lambda trend, theta, by_linear, by_precision: np.zeros(theta.size)
    return _growth_pullback


@compiled
def multiples_at(multiples: Multiples, theta: Array) -> tuple[float, float, float]:  # pragma: no cover - compiled
    """The power, and what b and w̄ are multiplied by in all."""
    power, (linear_multiple, multiple) = _power(multiples.powers, theta), _growth(multiples.trend, theta)
    return power, power * linear_multiple, power * multiple


@compiled
def multiples_pullback(
    multiples: Multiples, theta: Array, power: float, by_linear: float, by_precision: float
) -> Array:  # pragma: no cover - compiled
    """The derivative by θ (d,) of a function of b and w̄, from those by their logarithms."""
    of_power = _power_pullback(multiples.powers, theta, power, by_linear + by_precision)
    return of_power + _trend_pullback(multiples.trend, theta, by_linear, by_precision)


class Functions(NamedTuple):
    """The model: see `pymc_rmhmc.latent.latent_blocks.JointDensity` and its blocks."""

    rest: NativeFunction
    prior: NativeFunction
    prior_gradient: NativeFunction
    likelihood: NativeFunction
    centre_moves: bool
    multiples: Multiples


class Passes(NamedTuple):
    """Where the passes over A's entries are, which make the most of the code: see `linalg.compiled.native`."""

    begin: int
    place: int
    pullback: int
    gram: int = 0
    entry_bars: int = 0


class StandingForm(NamedTuple):
    """What stands still: A, ``AᵀW̄A`` and its root, the sites' b and w̄, and θ's chart."""

    passes: Passes
    rows: loops.Rows
    gram: Gram
    root: loops.Root
    linear: Array
    precision: Array
    chart: Chart


class MovingForm(NamedTuple):
    """What stands still of an A that moves: where its entries are, in it and in its directions."""

    passes: Passes
    pattern: ArrowPattern
    direction: Index
    row: Index
    column: Index
    root: Array
    linear: Array
    precision: Array
    chart: Chart


class Evaluated(NamedTuple):
    """As in `JointPoint`, with y, location and scale of the model's variables; `usable` is whether all are numbers."""

    usable: bool
    theta: Array
    eta: Array
    slope: Array
    standard: Array
    location: Array
    scale: Array
    log_given: float
    log_density: float
    gradient: Array


class _Theta(NamedTuple):
    """θ, what a gradient by ϑ needs, what of the density and of its gradient is of θ alone, and what moves the sites.

    That is their power, √ρ, and what b is multiplied by in units of ``1/√ρ``.
    """

    standard: Array
    theta: Array
    stretch: Array
    log_stretch: Array
    bar: Array
    log_rest: float
    log_volume: float
    power: float
    root: float
    linear_multiple: float


class _Observed(NamedTuple):
    """η and the likelihood's slope there; then in units of ``1/√ρ`` what of a slope the sites leave."""

    eta: Array
    slope: Array
    residual: Array
    value: float
    at_sites: float
    by_theta: Array


@compiled
def _place(functions: Functions, chart: Chart, position: Array) -> _Theta:  # pragma: no cover - compiled
    standard = position[: chart[0].size].copy()
    theta, stretch, log_volume, log_stretch = place_hyperparameters(standard, *chart)
    value, given = call_for_value_and_slope(functions.rest.address, (theta,), functions.rest.rest)
    bar, (power, linear_multiple, multiple) = given.copy(), multiples_at(functions.multiples, theta)
    root = math.sqrt(multiple)
    linear_multiple = linear_multiple / root if root > 0.0 else math.nan
    return _Theta(standard, theta, stretch, log_stretch, bar, value.item(), log_volume, power, root, linear_multiple)


@compiled
def _observe(
    functions: Functions, at: _Theta, sites: tuple[Array, Array], predictor: Array
) -> _Observed:  # pragma: no cover - compiled
    """The likelihood of a predictor, and what the sites' b and w̄ leave of it."""
    eta, (linear, precision) = predictor / at.root, sites
    value, slope, by_theta = call_likelihood(functions.likelihood.address, at.theta, eta, functions.likelihood.rest)
    at_sites, residual = residual_of_sites(linear, precision, predictor, slope / at.root)
    return _Observed(eta, slope, residual, value.item(), at_sites, by_theta.copy())


@compiled
def _mean(rows: loops.Rows, centre: Array, shift: Array) -> Array:  # pragma: no cover - compiled
    """The predictor where y is 0."""
    mean, is_zero = np.empty(shift.size), True
    for i in range(mean.size):
        mean[i] = shift[i]
    for j in range(centre.size):
        is_zero = is_zero and centre[j] == 0.0
    return mean if is_zero else mean + loops.predict(rows, loops.gathered(rows.order, centre))


@compiled
def _centre_bar(functions: Functions, rows: loops.Rows, mean_bar: Array) -> Array:  # pragma: no cover - compiled
    """By what A reads where y is 0."""
    if functions.centre_moves:
        return loops.scattered(rows.order, loops.collect(rows, mean_bar))
    return np.zeros(rows.order.size)


@compiled
def _by_likelihood(
    functions: Functions, at: _Theta, seen: _Observed, predictor: Array, precision: Array,
    linear: tuple[Array, Array], others: tuple[tuple[Array, Array], ...],
) -> Array:  # pragma: no cover - compiled  # fmt: skip
    """The gradient by θ of the likelihood, and of its sites' multiples.

    Of the sites' b, and of m and D, each with the derivative by it in units of ``1/√ρ``: see
    `pymc_rmhmc.latent.arrow.arrow_design.ArrowConditional.sites_pullback`.
    """
    height, height_bar = linear
    by_unit = -np.dot(height, height_bar) - np.dot(seen.residual, predictor)
    for value, bar in others:
        by_unit += np.dot(value, bar)
    by_linear, by_precision = 0.0, 0.5 * by_unit
    for i in range(predictor.size):
        by_linear += height[i] * (height_bar[i] - predictor[i])
        by_precision += 0.5 * precision[i] * predictor[i] ** 2
    return seen.by_theta + multiples_pullback(functions.multiples, at.theta, at.power, by_linear, by_precision)


@compiled
def _conclude(
    at: _Theta, chart: Chart, gaussians: tuple[Array, Array, Array], evidence: float, seen: _Observed,
    arrays: tuple[Array, Array, Array, Array], scales: tuple[Array, Array],
) -> Evaluated:  # pragma: no cover - compiled  # fmt: skip
    """Value and gradient, of all parts.

    Of the sites' b and their slope at the mean, and the mean; what the arrow adds to the evidence; the likelihood; the
    gradient by z, y, D, all derivatives by θ; location and scale.
    """
    linear, site_slope, mean = gaussians
    (noise_bar, standard, spread, by_theta), (location, scale), factor = arrays, scales, chart[1]
    chart_point, stretch, log_stretch, bar = at.standard, at.stretch, at.log_stretch, at.bar
    d = chart_point.size
    log_density = at.log_rest + seen.value - seen.at_sites + at.log_volume + evidence
    for i in range(mean.size):
        log_density += 0.5 * (linear[i] + site_slope[i]) * mean[i]
    gradient, total = np.empty(d + noise_bar.size), np.dot(mean, mean) + np.dot(spread, spread)
    gradient[d:] = noise_bar
    # As `MarginalChart.pullback`.
    for k in range(d):
        log_density += 0.5 * chart_point[k] ** 2
        gradient[k] = chart_point[k]
        for j in range(k, d):
            gradient[k] += (stretch[j] * (bar[j] + by_theta[j]) + log_stretch[j]) * factor[j, k]
    for j in range(scale.size):
        total += abs(scale[j])
    # What is not a number anywhere is none in one of these.
    usable = math.isfinite(total + log_density + np.dot(gradient, gradient))
    return Evaluated(
        usable, at.theta, seen.eta, seen.slope, standard, location, scale, at.log_rest + seen.value, log_density,
        gradient,
    )  # fmt: skip


def _evaluate_standing(
    functions: Functions, form: StandingForm, position: Array
) -> Evaluated:  # pragma: no cover - compiled
    at, rows, noise = _place(functions, form.chart, position), form.rows, position[form.chart[0].size :].copy()
    centre, given, location, scale, shift = call_for_five_vectors(
        functions.prior.address, (at.theta,), functions.prior.rest
    )
    # From here to the derivatives that the model's functions take, in units of 1/√ρ.
    root = at.root
    mean, spread, linear = root * _mean(rows, centre, shift), root * given, at.linear_multiple * form.linear
    site_slope = linear - form.precision * mean
    factors, log_determinant, pull, centred, gained, explained = call_apart(
        form.passes.begin, loops.begin, (rows, form.gram, spread, site_slope)
    )
    apart, pulled, moved, placed, predicted = call_apart(
        form.passes.place, loops.place_by_root, (rows, form.root, factors, pull, noise)
    )
    predictor = mean + predicted
    seen = _observe(functions, at, (linear, form.precision), predictor)
    noise_bar, pushed, spread_bar = call_apart(
        form.passes.pullback, loops.pullback_by_root,
        (rows, form.gram, form.root, factors, seen.residual, (apart, pulled, moved, pull, centred)),
    )  # fmt: skip
    mean_bar = seen.residual - form.precision * pushed + site_slope - form.precision * explained
    of_linear, others = (linear, mean + explained + pushed), ((mean, mean_bar), (spread, spread_bar))
    by_theta = _by_likelihood(functions, at, seen, predictor, form.precision, of_linear, others)
    weights = root * mean_bar
    gradient = functions.prior_gradient
    (by_prior,) = call_for_vector(
        gradient.address, (at.theta, _centre_bar(functions, rows, weights), root * spread_bar, weights), gradient.rest
    )
    return _conclude(
        at, form.chart, (linear, site_slope, mean), 0.5 * (gained - log_determinant), seen,
        (noise_bar, placed, spread, by_theta + by_prior), (location, scale),
    )  # fmt: skip


@compiled
def _rows_of(form: MovingForm, directions: Array) -> loops.Rows:  # pragma: no cover - compiled
    """A by its rows."""
    pattern, direction, row = form.pattern, form.direction, form.row
    entries = np.empty(row.size)
    for j in range(entries.size):
        entries[j] = directions[direction[j], row[j]]
    entry, others = loops.entries_of(pattern, entries)
    wide_at, wide = np.zeros(0, dtype=np.uint64), np.zeros((0, entry.size))
    return loops.Rows(pattern.order, pattern.column, entry, pattern.starts, pattern.others, others, wide_at, wide)


@compiled
def _directions_bar(
    form: MovingForm, shape: tuple[int, int], bars: Array, mean_bar: Array, centre: Array
) -> Array:  # pragma: no cover - compiled
    """Of Ā at A's entries, and of what A reads where y is 0."""
    direction, row, column = form.direction, form.row, form.column
    directions = np.zeros(shape)
    for j in range(bars.size):
        directions[direction[j], row[j]] = bars[j] + mean_bar[row[j]] * centre[column[j]]
    return directions


def _evaluate_moving(
    functions: Functions, form: MovingForm, position: Array
) -> Evaluated:  # pragma: no cover - compiled
    at, noise = _place(functions, form.chart, position), position[form.chart[0].size :].copy()
    precision = form.precision
    centre, given, location, scale, shift, directions = call_for_five_vectors_and_matrix(
        functions.prior.address, (at.theta,), functions.prior.rest
    )
    rows = _rows_of(form, directions)
    gram = call_apart(form.passes.gram, loops.gram_of, (rows, precision, form.pattern.n_apart))
    # From here to the derivatives that the model's functions take, in units of 1/√ρ.
    root = at.root
    mean, spread, linear = root * _mean(rows, centre, shift), root * given, at.linear_multiple * form.linear
    site_slope = linear - precision * mean
    factors, log_determinant, pull, centred, gained, explained = call_apart(
        form.passes.begin, loops.begin, (rows, gram, spread, site_slope)
    )
    apart, pulled, moved, placed, predicted = call_apart(
        form.passes.place, loops.place_by_sites, (rows, form.root, factors, pull, noise)
    )
    predictor = mean + predicted
    seen = _observe(functions, at, (linear, precision), predictor)
    noise_bar, pushed, spread_bar = call_apart(
        form.passes.pullback, loops.pullback_by_sites,
        (rows, gram, form.root, factors, seen.residual, (apart, pulled, moved, pull, centred)),
    )  # fmt: skip
    k, centre_slope = spread.size, site_slope - precision * explained
    mean_bar = seen.residual - precision * pushed + centre_slope
    # See `pymc_rmhmc.latent.arrow.arrow_design`.
    left, right = np.empty((3, mean.size)), np.empty((3, k))
    left[0] = seen.residual - precision * pushed
    left[1] = site_slope + form.root * noise[k:] - precision * predicted
    left[2] = centre_slope
    right[0], right[1] = placed * spread, noise_bar[:k] * spread
    right[2] = loops.scattered(rows.order, centred) * spread
    bars = call_apart(
        form.passes.entry_bars, loops.entry_bars, (form.pattern, rows, factors, precision, left, right)
    )
    of_linear, others = (linear, mean + explained + pushed), ((mean, mean_bar), (spread, spread_bar))
    by_theta = _by_likelihood(functions, at, seen, predictor, form.precision, of_linear, others)
    weights = root * mean_bar
    directions_bar, gradient = _directions_bar(form, directions.shape, bars, weights, centre), functions.prior_gradient
    (by_prior,) = call_for_vector(
        gradient.address,
        (at.theta, _centre_bar(functions, rows, weights), root * spread_bar, weights, directions_bar), gradient.rest,
    )  # fmt: skip
    return _conclude(
        at, form.chart, (linear, site_slope, mean), 0.5 * (gained - log_determinant), seen,
        (noise_bar, placed, spread, by_theta + by_prior), (location, scale),
    )  # fmt: skip


def evaluate(functions: Functions, form: StandingForm | MovingForm, position: Array) -> Evaluated:
    """The log density and its gradient at (ϑ, z); for compiled code alone."""
    raise NotImplementedError


# Taken in by what calls it: a function of its own would compile all that they call once more.
@overload(evaluate, strict=False)
def _evaluate(functions: Any, form: Any, position: Any) -> Any:
    return _evaluate_standing if form.instance_class is StandingForm else _evaluate_moving
