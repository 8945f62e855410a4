"""The joint density of a Gaussian field and its hyperparameters in compiled code, and trajectories in it.

It is what `pymc_rmhmc.latent.joint_target` adds up of the same loops, with nothing of Python between steps: of a small
field that takes longer than they do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import kick, rotate
from pymc_rmhmc.latent.charts.marginal import MarginalChart, place_hyperparameters
from pymc_rmhmc.latent.charts.moving_sites import raised, slope_by_sites, tilted
from pymc_rmhmc.latent.charts.site import residual_of_sites
from pymc_rmhmc.latent.field.field_loops import (
    FieldPattern,
    WeightedField,
    drawn,
    log_evidence_at,
    of_sites,
    predictors_at,
    pull_field,
    selected,
    solve_field,
    variances_of_rows,
    weigh_field,
)
from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.compiled.native import (
    NativeFunction,
    call_for_value_and_slope,
    call_for_value_and_two_slopes,
    call_for_vector,
)

__all__ = ["FieldFunctions", "FieldSites", "evaluate_field", "follow_field"]

type Array = NDArray[np.float64]
# Whether there is a density: yes, something is not finite, or P has no factor.
WHOLE, NOT_FINITE, NO_FACTOR = 0, 1, 2


class FieldFunctions(NamedTuple):
    """A model's functions.

    Attributes
    ----------
    numbers, pullback : NativeFunction
        Of θ the log normaliser with u, and its derivative.
    rest : NativeFunction
        The rest of the log density.
    likelihood : NativeFunction
        Of θ and η.
    information, information_pullback : NativeFunction
        Where sites follow parameters of likelihoods, their information and its derivative; elsewhere at the address 0.
    """

    numbers: NativeFunction
    pullback: NativeFunction
    rest: NativeFunction
    likelihood: NativeFunction
    information: NativeFunction
    information_pullback: NativeFunction


class FieldSites(NamedTuple):
    """Sites at θ̂, and what they follow; see `pymc_rmhmc.latent.charts.moving_sites`.

    Attributes
    ----------
    linear, precision : (n,) array
        b and w̄.
    constants : array
        What `of_sites` returns of them; empty where θ moves them.
    eta : (2, n) array
        Where the information is taken.
    information : (n,) or (1,) array
        Of each site there.
    theta : (d,) array
        The centre of trend and tilt.
    exponents, log_most : (2, d), (2,) array
        Of the trend; 0 where there is none.
    which, tilt : (k,), (k, n) array
        The coordinates of θ with which b grows beside its multiples, and how.
    """

    linear: Array
    precision: Array
    constants: Array
    eta: Array
    information: Array
    theta: Array
    exponents: Array
    log_most: Array
    which: NDArray[np.int64]
    tilt: Array


class PlacedSites(NamedTuple):
    """Sites at one θ.

    Attributes
    ----------
    linear, precision : (n,) array
        b and w̄.
    multiplied : (n,) array
        b less what the tilt adds.
    power : (n,) or (1,) array
        ρ.
    growth_slope : (2,) array
        How the logarithms of both multiples grow along the trend.
    tilt_slope : (k,) array
        How each coordinate's share of the tilt grows.
    """

    linear: Array
    precision: Array
    multiplied: Array
    power: Array
    growth_slope: Array
    tilt_slope: Array


class FieldState(NamedTuple):
    """The density at one (ϑ, z).

    Attributes
    ----------
    status : int
        Whether there is one.
    log_density, gradient : float, array
        What a standard normal leaves.
    theta : (d,) array
        θ.
    log_rest, log_normaliser, log_likelihood : float
        Of the rest, of the prior where residuals are 0, and of the likelihood.
    eta, slope, values : arrays
        The sites, the likelihood's slope there, and x in the order of elimination.
    field : WeightedField
        At this θ.
    """

    status: int
    log_density: float
    gradient: Array
    theta: Array
    log_rest: float
    log_normaliser: float
    log_likelihood: float
    eta: Array
    slope: Array
    values: Array
    field: WeightedField


@compiled
def _sites_bar(
    functions: FieldFunctions, sites: FieldSites, theta: Array, placed: PlacedSites, by_logarithms: Array,
    by_theta: Array,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Add the derivative by θ of what has these by b and by the logarithms of w̄, (2, n), which are overwritten."""
    for j in range(sites.which.size):
        by_theta[sites.which[j]] += placed.tilt_slope[j] * (sites.tilt[j] * by_logarithms[0]).sum()
    by_logarithms[0] *= placed.multiplied
    for row in range(2):
        total = by_logarithms[row].sum() * placed.growth_slope[row]
        for j in range(theta.size):
            by_theta[j] += total * sites.exponents[row, j]
    if functions.information.address == 0:
        return
    bar = np.zeros(placed.power.size)
    for i in range(bar.size):
        if sites.information[i] > 0.0:
            bar[i] = (by_logarithms[0, i] + by_logarithms[1, i]) / (placed.power[i] * sites.information[i])
    given, bound = (theta, sites.eta, bar), functions.information_pullback.rest
    found = call_for_vector(functions.information_pullback.address, given, bound)[0]
    for j in range(theta.size):
        by_theta[j] += found[j]


@compiled
def _sites_at(
    functions: FieldFunctions, sites: FieldSites, theta: Array
) -> PlacedSites:  # pragma: no cover - compiled
    """Return the sites at θ."""
    information = sites.information
    if functions.information.address != 0:
        known = call_for_vector(functions.information.address, (theta, sites.eta), functions.information.rest)
        information = known[0].copy()
    multiplied, precision, power, growth_slope = raised(
        theta, information, sites.information, sites.linear, sites.precision, sites.theta, sites.exponents,
        sites.log_most,
    )  # fmt: skip
    if sites.which.size == 0:
        return PlacedSites(multiplied, precision, multiplied, power, growth_slope, np.zeros(0))
    added, tilt_slope = tilted(theta, sites.theta, sites.which, sites.tilt)
    return PlacedSites(multiplied + added, precision, multiplied, power, growth_slope, tilt_slope)


@compiled
def _chart_pullback(
    chart: MarginalChart, placed: Array, by_theta: Array, gradient: Array
) -> None:  # pragma: no cover - compiled
    """Add the derivative by ϑ in front of a gradient."""
    for j in range(by_theta.size):
        for k in range(j, by_theta.size):
            gradient[j] += chart.factor[k, j] * (placed[1, k] * by_theta[k] + placed[2, k])


@compiled
def _is_whole(value: float, vector: Array) -> bool:  # pragma: no cover - compiled
    """Return whether a number and all of a vector are finite."""
    square = 0.0
    for i in range(vector.size):
        square += vector[i] * vector[i]
    return math.isfinite(value) and math.isfinite(square)


@compiled
def evaluate_field(
    pattern: FieldPattern, functions: FieldFunctions, chart: MarginalChart, sites: FieldSites, position: Array,
) -> FieldState:  # pragma: no cover - compiled  # fmt: skip
    """Evaluate the joint density of (ϑ, z)."""
    d, moves, nothing = chart.centre.size, sites.constants.size == 0, np.zeros(0)
    standard, noise = position[:d], position[d:]
    placed, volume = place_hyperparameters(
        standard, chart.centre, chart.factor, chart.location, chart.spread, chart.skewness, chart.tail
    )
    theta = placed[0]
    if not _is_whole(volume, theta):
        empty = np.zeros((0, 0))
        field = WeightedField(math.nan, nothing, np.zeros((3, 0, 0)), nothing, empty, empty, nothing)
        return FieldState(NOT_FINITE, -math.inf, nothing, theta, 0.0, 0.0, 0.0, nothing, nothing, nothing, field)
    prior, given = call_for_value_and_slope(functions.numbers.address, (theta,), functions.numbers.rest)
    rest, by_rest = call_for_value_and_slope(functions.rest.address, (theta,), functions.rest.rest)
    numbers, log_normaliser, log_rest = given.copy(), prior.item(), rest.item()
    at_theta = _sites_at(functions, sites, theta)
    linear, precision = at_theta.linear, at_theta.precision
    constants = of_sites(pattern.products, linear, precision) if moves else sites.constants
    field = weigh_field(pattern, constants, numbers)
    status = NO_FACTOR if math.isfinite(log_normaliser + log_rest) else NOT_FINITE
    if status == NOT_FINITE or not math.isfinite(field.log_determinant):
        return FieldState(
            status, -math.inf, nothing, theta, log_rest, log_normaliser, 0.0, nothing, nothing, nothing, field
        )
    moved = drawn(pattern, field, np.sqrt(precision), noise)
    vectors = np.concatenate((field.linear, field.linear + moved)).reshape(2, moved.size)
    solve_field(pattern, field, vectors)
    mean, values = vectors[0], vectors[1]
    log_evidence, missed, centre = log_evidence_at(pattern, field, linear, precision, mean)
    eta = predictors_at(pattern, field, values, 1.0)
    log_likelihood, slope, by_theta = 0.0, np.zeros(0), np.zeros(d)
    if eta.size:
        found = call_for_value_and_two_slopes(functions.likelihood.address, (theta, eta), functions.likelihood.rest)
        log_likelihood, slope, by_theta = found[0].item(), found[1].copy(), found[2].copy()
    at_sites, residual = residual_of_sites(linear, precision, eta, slope)
    by_numbers, inverse = np.zeros(numbers.size), selected(pattern, field)
    by_noise, pushed = pull_field(
        pattern, field, constants, linear, precision, noise, residual, values, mean, eta, missed, centre, inverse,
        by_numbers,
    )  # fmt: skip
    by_prior = call_for_vector(functions.pullback.address, (theta, by_numbers), functions.pullback.rest)[0]
    by_theta += by_rest + by_prior
    if moves:
        explained = precision  # of what moves b alone nothing is asked
        if functions.information.address != 0 or sites.exponents.any():
            explained = precision * variances_of_rows(pattern.products, numbers, inverse, eta.size)
        by_sites = slope_by_sites(precision, centre, explained, pushed, noise[noise.size - eta.size :], eta)
        _sites_bar(functions, sites, theta, at_theta, by_sites, by_theta)
    total = log_rest + log_normaliser + log_evidence + log_likelihood - at_sites + volume
    gradient = np.concatenate((standard, by_noise))
    _chart_pullback(chart, placed, by_theta, gradient)
    total += 0.5 * (standard * standard).sum()
    status = WHOLE if _is_whole(total, gradient) else NOT_FINITE
    return FieldState(
        status, total, gradient, theta, log_rest, log_normaliser, log_likelihood, eta, slope, values, field
    )


@compiled
def follow_field(
    pattern: FieldPattern, functions: FieldFunctions, chart: MarginalChart, sites: FieldSites, position: Array,
    momentum: Array, gradient: Array, n_steps: int, step_size: float,
) -> tuple[int, Array, Array, FieldState]:  # pragma: no cover - compiled  # fmt: skip
    """Make so many steps of half a kick, a rotation and half a kick; stop after one where there is no density.

    Return how many were made, position and momentum, and the density there.
    """
    position, momentum = position.copy(), momentum.copy()
    kick(momentum, gradient, 0.5 * step_size)
    rotate(position, momentum, step_size)
    state = evaluate_field(pattern, functions, chart, sites, position)
    for step in range(1, n_steps):
        if state.status != WHOLE:
            return step, position, momentum, state
        kick(momentum, state.gradient, step_size)
        rotate(position, momentum, step_size)
        state = evaluate_field(pattern, functions, chart, sites, position)
    if state.status == WHOLE:
        kick(momentum, state.gradient, 0.5 * step_size)
    return n_steps, position, momentum, state
