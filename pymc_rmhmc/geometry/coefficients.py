"""The joint target of coefficients in groups, compiled from end to end: value and gradient, and whole trajectories.

With a few observations a group the arithmetic of an evaluation takes a third of what Python takes to lead through it.
So the same formulas as `pymc_rmhmc.geometry.joint.JointTarget` has them are followed here in one compiled call, for the
commonest form: one block of coefficients that a constant arrow reads (`pymc_rmhmc.geometry.charts.arrow`), sites that
stand still, and a model that PyTensor has compiled. What this cannot evaluate, the target does, and says why.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.charts import arrow_loops as loops
from pymc_rmhmc.geometry.charts.arrow import Arrow
from pymc_rmhmc.geometry.charts.arrow_factors import Gram
from pymc_rmhmc.geometry.charts.diagonal import DiagonalConditional
from pymc_rmhmc.geometry.charts.marginal import place_hyperparameters
from pymc_rmhmc.geometry.charts.site import GaussianSites, residual_of_sites
from pymc_rmhmc.geometry.compilation import compiled
from pymc_rmhmc.geometry.joint import JointPoint, JointTarget
from pymc_rmhmc.geometry.native import (
    NativeFunction,
    call_for_five_vectors,
    call_for_value_and_slope,
    call_for_vector,
    call_likelihood,
    native_function,
    native_likelihood,
)
from pymc_rmhmc.geometry.prior import PriorFailure

__all__ = ["CoefficientsTarget", "compiled_coefficients"]

type Array = NDArray[np.float64]


class _Functions(NamedTuple):
    """The model: see `pymc_rmhmc.geometry.latent_blocks.JointDensity` and its blocks."""

    rest: NativeFunction
    prior: NativeFunction
    prior_gradient: NativeFunction
    likelihood: NativeFunction
    centre_moves: bool


class _Form(NamedTuple):
    """What stands still: A, ``AᵀW̄A`` and its root, the sites' b and w̄, and θ's chart."""

    rows: loops.Rows
    gram: Gram
    root: loops.Root
    linear: Array
    precision: Array
    chart: tuple[Array, Array, Array, Array, Array, Array]


class _Evaluated(NamedTuple):
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


@compiled
def _mean(rows: loops.Rows, centre: Array, shift: Array) -> Array:  # pragma: no cover - compiled
    """The predictor where y is 0."""
    mean, is_zero = np.empty(shift.size), True
    for i in range(mean.size):
        mean[i] = shift[i]
    gathered = np.empty(centre.size)
    for j in range(centre.size):
        gathered[j] = centre[rows.order[j]]
        is_zero = is_zero and gathered[j] == 0.0
    return mean if is_zero else mean + loops.predict(rows, gathered)


@compiled
def _pull_prior_back(
    functions: _Functions, rows: loops.Rows, theta: Array, mean_bar: Array, spread_bar: Array
) -> Array:  # pragma: no cover - compiled
    centre_bar = np.zeros(spread_bar.size)
    if functions.centre_moves:
        centre_bar = loops.scattered(rows.order, loops.collect(rows, mean_bar))
    return call_for_vector(  # type: ignore[no-any-return]
        functions.prior_gradient.address, (theta, centre_bar, spread_bar, mean_bar), functions.prior_gradient.rest
    )[0]


@compiled
def _pull_chart_back(
    chart: tuple[Array, Array, Array, Array, Array, Array], standard: Array, by_theta: Array, gradient: Array
) -> None:  # pragma: no cover - compiled
    """The first d numbers of a gradient, by ϑ, of its derivative by each y: see `MarginalChart.pullback`."""
    factor = chart[1]
    for k in range(standard.size):
        gradient[k] = standard[k]
        for j in range(k, standard.size):
            gradient[k] += by_theta[j] * factor[j, k]


@compiled
def _evaluate(functions: _Functions, form: _Form, position: Array) -> _Evaluated:  # pragma: no cover - compiled
    """The log density and its gradient at (ϑ, z)."""
    d, rows = form.chart[0].size, form.rows
    standard, noise = position[:d].copy(), position[d:].copy()
    theta, stretch, log_volume, log_stretch = place_hyperparameters(standard, *form.chart)
    value, by_theta = call_for_value_and_slope(functions.rest.address, (theta,), functions.rest.rest)
    log_rest = value.item()
    centre, given, location, scale, shift = call_for_five_vectors(
        functions.prior.address, (theta,), functions.prior.rest
    )
    mean, spread = _mean(rows, centre, shift), given.copy()
    site_slope = form.linear - form.precision * mean
    factors, log_determinant, linear, centred, gained, explained = loops.begin(rows, form.gram, spread, site_slope)
    pulled, moved, placed, predicted = loops.place_by_root(rows, form.root, factors, linear, noise)
    eta = mean + predicted
    value, slope, by_parameters = call_likelihood(
        functions.likelihood.address, theta, eta, functions.likelihood.rest
    )
    at_sites, residual = residual_of_sites(form.linear, form.precision, eta, slope)
    noise_bar, pushed, spread_bar = loops.pullback_by_root(
        rows, form.gram, form.root, factors, residual, (pulled, moved, linear, centred)
    )
    mean_bar = residual - form.precision * pushed + site_slope - form.precision * explained
    by_prior = _pull_prior_back(functions, rows, theta, mean_bar, spread_bar)
    log_density = log_rest + value.item() - at_sites + log_volume + 0.5 * (gained - log_determinant)
    gradient = np.empty(position.size)
    for j in range(d):
        log_density += 0.5 * standard[j] ** 2
        theta_bar = by_theta[j] + by_parameters[j] + by_prior[j]
        log_stretch[j] += stretch[j] * theta_bar
    for i in range(mean.size):
        log_density += 0.5 * (form.linear[i] + site_slope[i]) * mean[i]
    _pull_chart_back(form.chart, standard, log_stretch, gradient)
    gradient[d:] = noise_bar
    # What is not a number anywhere is none in one of these.
    total = log_density + np.dot(gradient, gradient) + np.dot(mean, mean) + np.dot(spread, spread)
    for j in range(scale.size):
        total += abs(scale[j])
    usable = math.isfinite(total)
    return _Evaluated(
        usable, theta, eta, slope, placed, location, scale, log_rest + value.item(), log_density, gradient
    )


@compiled
def _follow(
    functions: _Functions, form: _Form, position: Array, momentum: Array, gradient: Array, n_steps: int,
    step_size: float,
) -> tuple[int, Array, Array, _Evaluated]:  # pragma: no cover - compiled  # fmt: skip
    """Half a kick, then so many rotations with kicks between them, and half a kick; how many, and where that is.

    As `pymc_rmhmc.dynamics.integrators.RotationSplitting` makes them. It ends where something is not a number.
    """
    position, momentum = position.copy(), momentum + 0.5 * step_size * gradient
    cosine, sine, done = math.cos(step_size), math.sin(step_size), 0
    while True:
        for i in range(position.size):
            turned = cosine * position[i] + sine * momentum[i]
            momentum[i] = cosine * momentum[i] - sine * position[i]
            position[i] = turned
        found = _evaluate(functions, form, position)
        done += 1
        time = step_size if done < n_steps else 0.5 * step_size
        for i in range(momentum.size):
            momentum[i] += time * found.gradient[i]
        if done == n_steps or not found.usable:
            return done, position, momentum, found


class _Placed:
    """The model's variables of an evaluation: see `pymc_rmhmc.geometry.charts.diagonal.DiagonalConditional`."""

    __slots__ = ("_location", "_scale", "_standard")

    def __init__(self, found: _Evaluated) -> None:
        self._standard, self._location, self._scale = found.standard, found.location, found.scale

    @property
    def latents(self) -> Array:
        """``location + scale y``, (k,)."""
        return self._location + self._scale * self._standard

    def log_prior(self) -> float:
        """Their log density."""
        y = self._standard
        return -0.5 * float(y @ y) - 0.5 * y.size * math.log(2.0 * math.pi) - float(np.log(np.abs(self._scale)).sum())


class CoefficientsTarget:
    """A joint target's density of (ϑ, z) in compiled calls.

    Parameters
    ----------
    target : JointTarget
        Of the same density; asked wherever something is not a number.
    functions, form
        What the compiled calls take.
    """

    def __init__(self, target: JointTarget, functions: _Functions, form: _Form) -> None:
        self._target, self._functions, self._form = target, functions, form

    def at(self, position: Array) -> JointPoint:
        """Evaluate the log density and its gradient; a failure is a value."""
        try:
            found = _evaluate(self._functions, self._form, position)
        except np.linalg.LinAlgError:  # of a covariance that is part of the rest
            return self._target.at(position)
        return self._point(position, found) if found.usable else self._target.at(position)

    def follow(
        self, point: JointPoint, momentum: Array, n_steps: int, step_size: float
    ) -> tuple[int, tuple[JointPoint, Array] | None, Failure]:
        """Steps of a trajectory: how many, the point and momentum at the end, or None and why it failed."""
        assert point.gradient is not None
        try:
            done, position, momentum, found = _follow(
                self._functions, self._form, point.position, momentum, point.gradient, n_steps, step_size
            )
        except np.linalg.LinAlgError:
            return 0, None, Failure.NOT_POSITIVE_DEFINITE
        if found.usable:
            return done, (self._point(position, found), momentum), Failure.NONE
        return done, None, self._target.at(position).failure or Failure.NON_FINITE

    @staticmethod
    def _point(position: Array, found: _Evaluated) -> JointPoint:
        placed: Any = _Placed(found)
        return JointPoint(
            position, found.theta, [found.eta], [found.slope], [placed], found.log_given, found.log_density,
            found.gradient,
        )  # fmt: skip


def compiled_coefficients(target: JointTarget) -> CoefficientsTarget | None:
    """A target's density in compiled calls; None where it has another form, or a part that is not compiled."""
    (block, *others), (sites, *_) = target.density.blocks, target.sites
    prior = None if others else block.compiled_prior()
    if prior is None or not isinstance(sites, GaussianSites):
        return None
    chart = target.chart
    theta = chart.place(np.zeros(target.n_theta)).theta
    try:
        conditional = target.conditional(0, theta, sites)
    except PriorFailure:
        return None
    if not isinstance(conditional, DiagonalConditional) or not isinstance(conditional.weighted, Arrow):
        return None
    arrow = conditional.weighted
    functions = _functions(target, prior, theta, block.size, block.n_sites)
    form = _Form(
        arrow.rows, arrow.gram, arrow.root, sites.linear, sites.precision,
        (chart.centre, chart.factor, chart.location, chart.spread, chart.skewness, chart.tail),
    )  # fmt: skip
    return None if functions is None else CoefficientsTarget(target, functions, form)


def _functions(target: JointTarget, prior: Any, theta: Array, k: int, n: int) -> _Functions | None:
    """The model's functions by their addresses; None if one has none."""
    (values, values_rest), (gradient, gradient_rest), centre_moves = prior
    rest, rest_rest = target.density.compiled_rest()
    likelihood, likelihood_rest = target.density.blocks[0].compiled_likelihood()
    found = native_likelihood(likelihood, theta, np.zeros(n), likelihood_rest)
    others = (
        native_function(rest, (theta,), rest_rest, call_for_value_and_slope),
        native_function(values, (theta,), values_rest, call_for_five_vectors),
        native_function(gradient, (theta, np.zeros(k), np.zeros(k), np.zeros(n)), gradient_rest, call_for_vector),
    )
    if found is None or any(each is None for each in others):
        return None
    return _Functions(*others, NativeFunction(found.address, found.rest), bool(centre_moves))  # type: ignore[arg-type]
