"""The joint density of coefficients in groups at one (ϑ, z), compiled from end to end.

The formulas are those of `pymc_rmhmc.geometry.joint.JointTarget` with an arrow (`pymc_rmhmc.geometry.charts.arrow`),
constant or moved by θ. The model's own functions are called by their addresses.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from pymc_rmhmc.geometry.charts import arrow_loops as loops
from pymc_rmhmc.geometry.charts.arrow_factors import Gram
from pymc_rmhmc.geometry.charts.arrow_pattern import ArrowPattern
from pymc_rmhmc.geometry.charts.marginal import place_hyperparameters
from pymc_rmhmc.geometry.charts.site import residual_of_sites
from pymc_rmhmc.geometry.compilation import compiled
from pymc_rmhmc.geometry.native import (
    NativeFunction,
    call_apart,
    call_for_five_vectors,
    call_for_five_vectors_and_matrix,
    call_for_value_and_slope,
    call_for_vector,
    call_likelihood,
)

__all__ = ["Evaluated", "Functions", "MovingForm", "Passes", "StandingForm", "evaluate"]

type Array = NDArray[np.float64]
type Index = NDArray[np.int64]
type Chart = tuple[Array, Array, Array, Array, Array, Array]


class Functions(NamedTuple):
    """The model: see `pymc_rmhmc.geometry.latent_blocks.JointDensity` and its blocks."""

    rest: NativeFunction
    prior: NativeFunction
    prior_gradient: NativeFunction
    likelihood: NativeFunction
    centre_moves: bool


class Passes(NamedTuple):
    """Where the passes over A's entries are, which make the most of the code: see `pymc_rmhmc.geometry.native`."""

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
    """θ, what a gradient by ϑ needs, and what of the density and of its gradient is of θ alone."""

    standard: Array
    theta: Array
    stretch: Array
    log_stretch: Array
    bar: Array
    log_rest: float
    log_volume: float


@compiled
def _place(functions: Functions, chart: Chart, position: Array) -> _Theta:  # pragma: no cover - compiled
    standard = position[: chart[0].size].copy()
    theta, stretch, log_volume, log_stretch = place_hyperparameters(standard, *chart)
    value, given = call_for_value_and_slope(functions.rest.address, (theta,), functions.rest.rest)
    bar = given.copy()
    return _Theta(standard, theta, stretch, log_stretch, bar, value.item(), log_volume)


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
def _conclude(
    at: _Theta, chart: Chart, gaussians: tuple[Array, Array, Array], evidence: float, residual: float, value: float,
    noise_bar: Array, arrays: tuple[Array, Array, Array, Array, Array], scales: tuple[Array, Array],
) -> Evaluated:  # pragma: no cover - compiled  # fmt: skip
    """Value and gradient, of all parts.

    Of the sites' b and their slope at the mean, and the mean; what the arrow adds to the evidence; ψ; ``Σ ℓ``; the
    gradient by z; η, the likelihood's slope, y, D, all derivatives by θ; location and scale.
    """
    linear, site_slope, mean = gaussians
    eta, slope, standard, spread, by_theta = arrays
    d = at.standard.size
    log_density = at.log_rest + residual + at.log_volume + evidence
    for i in range(mean.size):
        log_density += 0.5 * (linear[i] + site_slope[i]) * mean[i]
    gradient, total = np.empty(d + noise_bar.size), np.dot(mean, mean) + np.dot(spread, spread)
    gradient[d:] = noise_bar
    # As `MarginalChart.pullback`.
    for k in range(d):
        log_density += 0.5 * at.standard[k] ** 2
        gradient[k] = at.standard[k]
        for j in range(k, d):
            gradient[k] += (at.stretch[j] * (at.bar[j] + by_theta[j]) + at.log_stretch[j]) * chart[1][j, k]
    for j in range(scales[1].size):
        total += abs(scales[1][j])
    # What is not a number anywhere is none in one of these.
    usable = math.isfinite(total + log_density + np.dot(gradient, gradient))
    return Evaluated(
        usable, at.theta, eta, slope, standard, scales[0], scales[1], at.log_rest + value, log_density, gradient
    )


def _evaluate_standing(
    functions: Functions, form: StandingForm, position: Array
) -> Evaluated:  # pragma: no cover - compiled
    at, rows, noise = _place(functions, form.chart, position), form.rows, position[form.chart[0].size :].copy()
    centre, given, location, scale, shift = call_for_five_vectors(
        functions.prior.address, (at.theta,), functions.prior.rest
    )
    mean, spread = _mean(rows, centre, shift), given.copy()
    site_slope = form.linear - form.precision * mean
    factors, log_determinant, linear, centred, gained, explained = call_apart(
        form.passes.begin, loops.begin, (rows, form.gram, spread, site_slope)
    )
    pulled, moved, placed, predicted = call_apart(
        form.passes.place, loops.place_by_root, (rows, form.root, factors, linear, noise)
    )
    eta = mean + predicted
    found, slope, by_theta = call_likelihood(functions.likelihood.address, at.theta, eta, functions.likelihood.rest)
    at_sites, residual = residual_of_sites(form.linear, form.precision, eta, slope)
    noise_bar, pushed, spread_bar = call_apart(
        form.passes.pullback, loops.pullback_by_root,
        (rows, form.gram, form.root, factors, residual, (pulled, moved, linear, centred)),
    )  # fmt: skip
    mean_bar = residual - form.precision * pushed + site_slope - form.precision * explained
    gradient = functions.prior_gradient
    (by_prior,) = call_for_vector(
        gradient.address, (at.theta, _centre_bar(functions, rows, mean_bar), spread_bar, mean_bar), gradient.rest
    )
    value = found.item()
    return _conclude(
        at, form.chart, (form.linear, site_slope, mean), 0.5 * (gained - log_determinant), value - at_sites, value,
        noise_bar, (eta, slope, placed, spread, by_theta + by_prior), (location, scale),
    )  # fmt: skip


@compiled
def _rows_of(form: MovingForm, directions: Array) -> loops.Rows:  # pragma: no cover - compiled
    """A by its rows."""
    entries = np.empty(form.row.size)
    for j in range(entries.size):
        entries[j] = directions[form.direction[j], form.row[j]]
    pattern = form.pattern
    entry, others = loops.entries_of(pattern, entries)
    wide_at, wide = np.zeros(0, dtype=np.uint64), np.zeros((0, entry.size))
    return loops.Rows(pattern.order, pattern.column, entry, pattern.starts, pattern.others, others, wide_at, wide)


@compiled
def _directions_bar(
    form: MovingForm, shape: tuple[int, int], bars: Array, mean_bar: Array, centre: Array
) -> Array:  # pragma: no cover - compiled
    """Of Ā at A's entries, and of what A reads where y is 0."""
    directions = np.zeros(shape)
    for j in range(bars.size):
        row = form.row[j]
        directions[form.direction[j], row] = bars[j] + mean_bar[row] * centre[form.column[j]]
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
    mean, spread = _mean(rows, centre, shift), given.copy()
    site_slope = form.linear - precision * mean
    factors, log_determinant, linear, centred, gained, explained = call_apart(
        form.passes.begin, loops.begin, (rows, gram, spread, site_slope)
    )
    pulled, moved, placed, predicted = call_apart(
        form.passes.place, loops.place_by_sites, (rows, form.root, factors, linear, noise)
    )
    eta = mean + predicted
    found, slope, by_theta = call_likelihood(functions.likelihood.address, at.theta, eta, functions.likelihood.rest)
    at_sites, residual = residual_of_sites(form.linear, precision, eta, slope)
    noise_bar, pushed, spread_bar = call_apart(
        form.passes.pullback, loops.pullback_by_sites,
        (rows, gram, form.root, factors, residual, (pulled, moved, linear, centred)),
    )  # fmt: skip
    k, centre_slope = spread.size, site_slope - precision * explained
    mean_bar = residual - precision * pushed + centre_slope
    # See `pymc_rmhmc.geometry.charts.moving_design`.
    left, right = np.empty((3, mean.size)), np.empty((3, k))
    left[0] = residual - precision * pushed
    left[1] = site_slope + form.root * noise[k:] - precision * predicted
    left[2] = centre_slope
    right[0], right[1] = placed * spread, noise_bar[:k] * spread
    right[2] = loops.scattered(rows.order, centred) * spread
    bars = call_apart(
        form.passes.entry_bars, loops.entry_bars, (form.pattern, rows, factors, precision, left, right)
    )
    directions_bar, gradient = _directions_bar(form, directions.shape, bars, mean_bar, centre), functions.prior_gradient
    (by_prior,) = call_for_vector(
        gradient.address,
        (at.theta, _centre_bar(functions, rows, mean_bar), spread_bar, mean_bar, directions_bar), gradient.rest,
    )  # fmt: skip
    value = found.item()
    return _conclude(
        at, form.chart, (form.linear, site_slope, mean), 0.5 * (gained - log_determinant), value - at_sites, value,
        noise_bar, (eta, slope, placed, spread, by_theta + by_prior), (location, scale),
    )  # fmt: skip


def evaluate(functions: Functions, form: StandingForm | MovingForm, position: Array) -> Evaluated:
    """The log density and its gradient at (ϑ, z); for compiled code alone."""
    raise NotImplementedError


# Taken in by what calls it: a function of its own would compile all that they call once more.
@overload(evaluate, strict=False)
def _evaluate(functions: Any, form: Any, position: Any) -> Any:
    return _evaluate_standing if form.instance_class is StandingForm else _evaluate_moving
