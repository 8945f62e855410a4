"""The joint target of coefficients in groups in compiled calls: values and gradients, and whole trajectories.

With a few observations a group the arithmetic of an evaluation takes a third of what Python takes to lead through it.
So `coefficient_density` evaluates the commonest form in one call: one block of coefficients that an
arrow reads, in a model that PyTensor has compiled. What this cannot evaluate, the target does, and says why.
"""

from __future__ import annotations

from typing import Any, cast

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import kick, rotate
from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.joint_density import JointBlock
from pymc_rmhmc.interfaces.stated import StatedCoefficients
from pymc_rmhmc.latent.arrow import arrow_loops as loops
from pymc_rmhmc.latent.arrow.arrow_design import Arrow, MovingArrow
from pymc_rmhmc.latent.arrow.coefficient_density import (
    Evaluated,
    Functions,
    MovingForm,
    Multiples,
    Passes,
    Powers,
    StandingForm,
    Trend,
    evaluate,
)
from pymc_rmhmc.latent.charts.moving_sites import MovingSites
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import LatentPlacement
from pymc_rmhmc.latent.forms import operator_of
from pymc_rmhmc.latent.joint_target import JointPoint, JointTarget
from pymc_rmhmc.latent.latent_blocks import Sites, sites_at
from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.compiled.native import (
    NativeFunction,
    call_for_five_vectors,
    call_for_five_vectors_and_matrix,
    call_for_value_and_slope,
    call_for_vector,
    native_function,
    native_likelihood,
    resolved,
)

__all__ = ["CoefficientsTarget", "compiled_coefficients"]

type Array = NDArray[np.float64]
type Form = StandingForm | MovingForm

NOTHING = np.zeros(0)


@compiled
def _follow(
    functions: Functions, form: Form, position: Array, momentum: Array, gradient: Array, n_steps: int,
    step_size: float,
) -> tuple[int, Array, Array, Evaluated]:  # pragma: no cover - compiled  # fmt: skip
    """Half a kick, then so many rotations with kicks between them, and half a kick; how many, and where that is.

    As `pymc_rmhmc.dynamics.integrators.RotationSplitting` makes them. It ends where something is not a number. No steps
    at all are an evaluation: a function of its own would take as long to compile.
    """
    position, momentum, done = position.copy(), momentum.copy(), 0
    kick(momentum, gradient, 0.5 * step_size)
    while True:
        if n_steps > 0:
            rotate(position, momentum, step_size)
        found = evaluate(functions, form, position)
        if done == n_steps:
            return done, position, momentum, found
        done += 1
        kick(momentum, found.gradient, step_size if done < n_steps else 0.5 * step_size)
        if done == n_steps or not found.usable:
            return done, position, momentum, found


class CoefficientsTarget:
    """A joint target's density of (ϑ, z) in compiled calls.

    Parameters
    ----------
    target : JointTarget
        Of the same density; asked wherever something is not a number.
    functions, form
        What the compiled calls take.
    """

    def __init__(self, target: JointTarget, functions: Functions, form: Form) -> None:
        self._target, self._functions, self._form = target, functions, form

    def at(self, position: Array) -> JointPoint:
        """Evaluate the log density and its gradient; a failure is a value."""
        try:
            *_, found = _follow(self._functions, self._form, position, NOTHING, NOTHING, 0, 0.0)
        except np.linalg.LinAlgError:  # of a covariance that is part of the rest
            return self._target.at(position)
        return self._point(position, found) if found.usable else self._target.at(position)

    def advance(
        self, point: JointPoint, momentum: Array, n_steps: int, step_size: float
    ) -> tuple[int, tuple[JointPoint, Array] | None, Failure]:
        """Steps of a trajectory: how many, the point and momentum at the end, or None and why it failed."""
        assert point.gradient is not None
        try:
            done, position, momentum, found = _follow(
                self._functions, self._form, point.position, momentum, point.gradient, n_steps, step_size
            )
        except np.linalg.LinAlgError:
            return self._retrace(point, momentum, n_steps, step_size)
        if found.usable:
            return done, (self._point(position, found), momentum), Failure.NONE
        return done, None, self._target.at(position).failure or Failure.NON_FINITE

    def _retrace(
        self, point: JointPoint, momentum: Array, n_steps: int, step_size: float
    ) -> tuple[int, None, Failure]:
        """A trajectory on which a covariance has no factor, by the target, which notes where: the step, and why."""
        there, time, momentum = point, 0.5 * step_size, momentum.copy()
        for done in range(1, n_steps + 1):
            assert there.gradient is not None
            kick(momentum, there.gradient, time)
            position, time = there.position.copy(), step_size
            rotate(position, momentum, step_size)
            there = self._target.at(position)
            if there.failure:
                return done, None, there.failure
        return n_steps, None, Failure.NOT_POSITIVE_DEFINITE

    @staticmethod
    def _point(position: Array, found: Evaluated) -> JointPoint:
        operator = operator_of(StatedCoefficients(found.scale, found.location, found.scale))
        placed = LatentPlacement(found.eta, NOTHING, NOTHING, operator, None, found.standard)
        return JointPoint(
            position, found.theta, [found.eta], [found.slope], [placed], found.log_given, found.log_density,
            found.gradient,
        )  # fmt: skip


def compiled_coefficients(target: JointTarget) -> CoefficientsTarget | None:
    """A target's density in compiled calls; None where it has another form, or a part that is not compiled."""
    (block, *others), (sites, *_) = target.density.blocks, target.sites
    prior = None if others else block.compiled_prior()
    if prior is None:
        return None
    theta = target.chart.place(np.zeros(target.n_theta)).theta
    try:
        conditional = target.conditional(0, theta, sites_at(block, theta, sites))
    except PriorFailure:
        return None
    form = _form(target, sites.sites, conditional)
    functions = None if form is None else _functions(target, prior, theta, block, sites)
    return None if form is None or functions is None else CoefficientsTarget(target, functions, form)


def _form(target: JointTarget, sites: GaussianSites, conditional: Any) -> Form | None:
    """What stands still; None if that is no arrow."""
    weighted = getattr(conditional, "arrow", None)
    chart = target.chart
    given = sites.linear, sites.precision, (
        chart.centre, chart.factor, chart.location, chart.spread, chart.skewness, chart.tail,
    )  # fmt: skip
    if weighted is None:
        return None
    if not weighted.by_design:
        return StandingForm(_passes(weighted), weighted.rows, weighted.gram, weighted.root, *given)
    places = target.density.blocks[0].places
    if places is not None:
        return MovingForm(_passes(weighted), weighted.pattern, *places, weighted.root, *given)
    return None


def _passes(weighted: Arrow | MovingArrow) -> Passes:
    """Where the passes are that the density of such a form calls, for arguments of the types that it gives them."""
    type_of: Any = numba.typeof
    rows, gram, root, vector = (type_of(a) for a in (weighted.rows, weighted.gram, weighted.root, np.zeros(1)))
    begin, (factors, _, linear, mean, *_) = resolved(loops.begin, (rows, gram, vector, vector))
    place, (*drawn, _, _) = resolved(weighted.passes.place, (rows, root, factors, linear, vector))
    tuple_of: Any = types.Tuple
    placed = tuple_of((*drawn, linear, mean))
    pullback, _ = resolved(weighted.passes.pullback, (rows, gram, root, factors, vector, placed))
    if not weighted.by_design:
        return Passes(begin, place, pullback)
    by_rows, _ = resolved(loops.gram_of, (rows, vector, types.int64))
    pairs = type_of(np.zeros((3, 1)))
    bars, _ = resolved(loops.entry_bars, (type_of(weighted.pattern), rows, factors, vector, pairs, pairs))
    return Passes(begin, place, pullback, by_rows, bars)


def _functions(
    target: JointTarget, prior: Any, theta: Array, block: JointBlock, sites: Sites
) -> Functions | None:
    """The model's functions by their addresses; None if one has none."""
    (values, values_rest), (gradient, gradient_rest), centre_moves = prior
    rest, rest_rest = target.density.compiled_rest()
    likelihood, likelihood_rest = block.compiled_likelihood()
    n, k = np.zeros(block.n_sites), np.zeros(block.size)
    moves = [] if block.places is None else [np.zeros((1, block.n_sites))]
    found = native_likelihood(likelihood, theta, n, likelihood_rest)
    call = call_for_five_vectors_and_matrix if moves else call_for_five_vectors
    others = (
        native_function(rest, (theta,), rest_rest, call_for_value_and_slope),
        native_function(values, (theta,), values_rest, call),
        native_function(gradient, (theta, k, k, n, *moves), gradient_rest, call_for_vector),
    )
    held = cast("MovingSites", sites) if sites.moves else None
    moves_by_power = held is not None and block.has_moving_sites
    powers = _powers(block, theta, held) if held is not None and moves_by_power else None
    missing = moves_by_power and powers is None
    if found is None or missing or any(each is None for each in others):
        return None
    followed = None if held is None else held.trend
    trend = None if followed is None else Trend(followed.centre, followed.exponents, np.exp(followed.log_most))
    likelihood_here = NativeFunction(found.address, found.rest)
    return Functions(*others, likelihood_here, bool(centre_moves), Multiples(powers, trend))  # type: ignore[arg-type]


def _powers(block: JointBlock, theta: Array, sites: MovingSites) -> Powers | None:
    """What sites follow; None if that is not compiled."""
    (information, rest), (gradient, gradient_rest) = block.compiled_information()
    one, other = (
        native_function(information, (theta, sites.eta), rest, call_for_vector),
        native_function(gradient, (theta, sites.eta, sites.information), gradient_rest, call_for_vector),
    )
    return None if one is None or other is None else Powers(one, other, sites.eta, sites.information)
