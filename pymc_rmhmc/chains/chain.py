"""The loop of every chain: condition on the rest of a point, stand, refit, move, learn.

What a chain must remember is in `ChainState`, which is saved and restored. Everything else is rebuilt from it and from
the point, by a density.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.conditional_density import (
    REHEARSED_STEP,
    ConditionalDensity,
    NormalCoordinates,
    Plan,
    Point,
    Position,
    check_start,
)
from pymc_rmhmc.chains.judgement import Movement, cut_path, judge, sites_kept, slowness, stood_still
from pymc_rmhmc.chains.reference import ResidualReference
from pymc_rmhmc.errors import ConfigurationError, CovarianceError, PriorFailure, SamplingError
from pymc_rmhmc.kernels.kernel import Transition
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.tuning.adaptation import Moment, StepSize, postponed

__all__ = ["AnyChain", "Chain", "ChainState"]

type Array = NDArray[np.float64]
# A chain of whatever density.
type AnyChain = Chain[Any, Any]

# What of a chain is rebuilt from the point, in a worker too, and holds large factors: empty here.
NOWHERE = {
    "values": None, "log_density": -math.inf, "log_weight": math.nan, "_coordinates": None, "_phase": None,
    "_kernel": None,
}  # fmt: skip


@dataclass(kw_only=True)
class ChainState[Tuned]:
    """What a chain carries from draw to draw."""

    tuned: Tuned  # what the adapter knows
    started: bool = False  # whether it has a first position
    iteration: int = 0  # draws, but for those whose refit had to wait
    refits: tuple[int, ...] = ()  # iterations at whose beginning there is a refit
    step_size: StepSize | None = None  # None before the start
    # `position`, `values`: where the chain is in its coordinates, and the values that this stands for: recomputing one
    # from the other would cost a solve a draw, and rounding would break an exact replay.
    position: Position | None = None
    values: Any = None
    # The rest of the point on which coordinates depend: under another one they stand for other values.
    given: Point | None = None
    judged: bool = False  # whether the end of tuning has been looked at
    dropped_refits: int = 0  # refits after which the chain would have had no density
    # `n_tuned`, `watched_from`: tuning draws, and from which on the chain is watched: little is left to refit then.
    n_tuned: int = 0
    watched_from: int = 0
    movement: Movement = field(default_factory=Movement)  # what was seen of it


class Chain[Tuned, Phase]:
    """A chain of some variables that move together.

    `density`: how kernels are built.
    `plan`: the options.
    `initial_values` (k,): the model's initial point for them, by which a start that nobody chose is told from one that
      somebody did.
    `own_initval`: whether one of the variables has an initial value of its own.
    """

    values: Any
    log_density: float
    log_weight: float
    # Coordinates, a phase and a kernel; None before there are any: what a draw asks of them is not checked each time.
    _coordinates: Any
    _phase: Any
    _kernel: Any

    def __init__(
        self, density: ConditionalDensity[Tuned, Phase], plan: Plan, initial_values: Array, own_initval: bool
    ) -> None:
        self.density, self.plan = density, plan
        self.initial_values, self.own_initval = initial_values, own_initval
        self.state = self.new_state()
        self._stand_nowhere()

    def _stand_nowhere(self) -> None:
        for name, empty in NOWHERE.items():
            setattr(self, name, empty)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | NOWHERE

    @property
    def name(self) -> str:
        """For messages."""
        return self.density.name

    @property
    def slices(self) -> tuple[tuple[str, slice], ...]:
        """The value variables, and the parts of their raveled values."""
        return self.density.variables.slices

    @property
    def labels(self) -> Mapping[str, str]:
        """What users call the value variables."""
        return self.density.variables.labels

    def new_state(self, tune: int = 0) -> ChainState[Tuned]:
        """Return the state of a chain that has not begun."""
        adapter = self.density.adapter
        refits = adapter.schedule.iterations(tune) if self.density.refits else ()
        return ChainState(tuned=adapter.initial(), refits=refits, watched_from=adapter.schedule.watched_from(tune))

    def setup(self, tune: int) -> None:
        """Begin a chain. A state that was restored goes on as it is, unless a tuning is asked for."""
        self.restore(self.new_state(tune) if tune > 0 or not self.state.started else self.state)

    def restore(self, state: ChainState[Tuned]) -> None:
        """Take another state; what was built for the old one is dropped."""
        self.state = state
        self.density.forget()
        self._stand_nowhere()

    def rehearse(self, point: Point, rng: np.random.Generator) -> bool:
        """Call once all that a chain calls, with sites and scales of no use: what is called is compiled.

        Raises a `PriorFailure` or `RMHMCError` if nothing can be computed at the point.

        `bool`: whether there is a density with a gradient at the point; the rest is not called without.
        """
        self.density.bind(point)
        values = self.density.variables.read(point)
        for tuned in self.density.rehearsed(values, rng):
            self.state.tuned = tuned
            self._rebuild()
            self._enter(values, rng)
            if self._has_failed:
                return False
            self._phase = self._coordinates.rehearse(self._phase, REHEARSED_STEP, rng)
            self._remember()
        return True

    def draw(self, point: Point, rng: np.random.Generator, *, tuning: bool) -> Transition[Phase]:
        """Make one draw given the rest of the point; `values` holds the outcome."""
        if not self.state.started:
            self._leave_infinity(point)
            check_start(self.name, point)
        if not (tuning or self.state.judged) and self.state.movement.stood_still:
            raise SamplingError(stood_still(self.name, self.state.movement.failures, self.plan.step_size))
        outcome = self._draw(point, rng, tuning=tuning)
        state = self.state
        if not tuning:
            state.movement.note_draw(self.values[self.density.own], moved=outcome.accepted)
            return outcome
        state.n_tuned += 1
        if state.n_tuned > state.watched_from:
            state.movement.note_tuning(self.values[self.density.own], outcome.failure)
        return outcome

    def _draw(self, point: Point, rng: np.random.Generator, *, tuning: bool) -> Transition[Phase]:
        """Make the draw; a prior without a factor there is a rejection."""
        values = self.density.variables.read(point)
        try:
            self._stand(values, point, rng, tuning=tuning)
        except PriorFailure as failure:
            if not self.state.started:
                self._explain_start(point)
            self.values, self.log_density, self.log_weight = values, -math.inf, math.nan
            # A refit waits for a draw that has a factor.
            if not (tuning and self.state.iteration in self.state.refits):
                self.state.iteration += 1
            return Transition[Any](None, failure=failure.failure)
        state = self.state
        if not (tuning or state.judged):
            state.judged, self._kernel = True, None
            state.movement.end_tuning()
            self._judge()
        outcome = self._move(rng, tuning=tuning)
        # Where a slope cannot be computed, as next to a discrete value, there is nothing to fit to.
        if tuning and state.refits and state.iteration < state.refits[-1] and not self._has_failed:
            self.density.adapter.observe(state.tuned, self._coordinates.seen(self._phase))
        state.iteration += 1
        return outcome

    def _move(self, rng: np.random.Generator, *, tuning: bool) -> Transition[Phase]:
        """Make one step of the kernel, and let the adapter learn from it in tuning."""
        state, stood = self.state, tuning and not self._has_failed
        assert state.step_size is not None
        # Nothing that a kernel is made of changes after tuning.
        if tuning or self._kernel is None:
            self._kernel = self._coordinates.kernel(state.tuned, state.step_size, tuning=tuning)
        outcome: Transition[Phase] = self._kernel.step(self._taken(), rng)
        self._phase = outcome.state
        # Several moves place the values anew, even where none was accepted.
        if outcome.accepted or outcome.parts is not None:
            self._remember()
        if tuning:
            self._learn(outcome, stood=stood)
        return outcome

    def _learn(self, outcome: Transition[Phase], *, stood: bool) -> None:
        """Let the adapter learn, and build other kernels where it gives one up."""
        state = self.state
        assert state.step_size is not None
        if self.density.adapter.learn(state.tuned, state.step_size, outcome, stood=stood):
            state.position = None
            self._rebuild()

    def _taken(self) -> Phase:
        """Take the phase, which a kernel moves: the chain holds it no longer, so its factors can be freed."""
        phase: Phase = self._phase
        self._phase = None
        return phase

    def _stand(self, values: Array, point: Point, rng: np.random.Generator, *, tuning: bool) -> None:
        """Stand where the point says, given the rest of it; a prior without a factor there is a `PriorFailure`."""
        self._condition(point)
        state = self.state
        if not state.started:
            self._start(values, point, rng)
            return
        # Shapes are known to agree: what `array_equal` checks besides costs as much as the comparison.
        if self._phase is None or not (values == state.values).all():
            self._enter(values, rng)
        if tuning and state.iteration in state.refits:
            self._refit_where_it_holds(values, rng)

    def _condition(self, point: Point) -> None:
        """Take in what the point holds besides the chain's own values."""
        is_stale, given = self.density.bind(point)
        if is_stale:
            self._coordinates = self._phase = self._kernel = None
        state = self.state
        if state.given is not given:
            known = state.given
            # Position that depend on something else are worth nothing.
            if known is None or any(not np.array_equal(known[name], value) for name, value in given.items()):
                state.position = None
            state.given = given
        if self._coordinates is None:
            self._coordinates = self.density.coordinates(state.tuned)

    def _rebuild(self) -> None:
        """Make the coordinates of what is known now; then the chain stands nowhere."""
        self._coordinates = self._phase = self._kernel = None
        self.density.drop()
        self._coordinates = self.density.coordinates(self.state.tuned)

    def _enter(self, values: Array, rng: np.random.Generator) -> None:
        """Stand at given values: from memory where they are the ones that were kept."""
        state = self.state
        known = state.position is not None and np.array_equal(values, state.values)
        self._phase = self._coordinates.stand(values, state.position if known else None, rng)
        self._remember(values)

    def _remember(self, values: Array | None = None) -> None:
        """Note where the chain is, in both coordinates, and the model's log density and weight there."""
        state, found = self.state, self._coordinates.locate(self._phase, values)
        state.position, state.values, self.log_density, self.log_weight = found
        self.values = state.values

    @property
    def _has_failed(self) -> bool:
        """Whether the chain stands nowhere yet, or where the log density or its gradient cannot be computed."""
        return self._phase is None or bool(self._coordinates.failure(self._phase))

    def _refit_where_it_holds(self, values: Array, rng: np.random.Generator) -> None:
        """Refit, but not to a chart in which the chain would stand at no density and could never leave.

        Such are the sites of a window in which the chain hardly moved: they seem to know everything. They stay as they
        are then, and all else is refitted.
        """
        held = self.state
        if self._has_failed:  # nothing could be said of a refit here: it waits for the next draw
            held.refits = postponed(held.refits, held.iteration)
            return
        for with_sites in (True, False):
            self.state = copy.copy(held)
            self.state.step_size = copy.copy(held.step_size)
            if self._holds_after_refit(values, rng, with_sites=with_sites):
                return
            held.dropped_refits += int(with_sites)
        self.state = held
        self.density.adapter.forget(held.tuned)
        self._rebuild()
        self._enter(values, rng)

    def _holds_after_refit(self, values: Array, rng: np.random.Generator, *, with_sites: bool) -> bool:
        """Refit, and stand at the same values; whether the chain has a density there."""
        state, refits = self.state, self.state.refits
        assert state.step_size is not None
        moment = Moment(state.iteration, state.iteration == refits[0], state.iteration == refits[-1])
        self._phase = None  # it may hold large factors
        try:
            found = self.density.adapter.refit(state.tuned, state.step_size, moment, rng, with_sites=with_sites)
            state.tuned, state.refits = found.tuned, refits + found.more
            if found.changed:
                state.position = None
            if found.changed or not with_sites:
                self._rebuild()
            self._enter(values, rng)
        except PriorFailure:
            return False
        return not self._has_failed

    def _start(self, values: Array, point: Point, rng: np.random.Generator) -> None:
        """Find the chain's first position and step size."""
        approximated = self._starts_from_laplace(values)
        first = self.density.start(self.state.tuned, values, rng, approximated=approximated)
        self._coordinates = self.density.coordinates(self.state.tuned)
        self._begin(first, point, rng, approximated=approximated)

    def _starts_from_laplace(self, values: Array) -> bool:
        """Return whether the chain leaves the given point for a draw of the Laplace approximation."""
        if self.plan.init != "auto":
            return self.plan.init == "laplace"
        own = self.density.own
        return not self.own_initval and np.array_equal(values[own], self.initial_values[own], equal_nan=True)

    def _leave_infinity(self, point: Point) -> None:
        """Put 0 in the place of own values that are not finite where the model begins, as at an edge of its bounds."""
        values = self.density.variables.read(point)
        lost = ~np.isfinite(values)
        if lost.any() and self._starts_from_laplace(values):
            self.density.variables.write(np.where(lost, 0.0, values), point)

    def _explain_start(self, point: Point) -> None:
        """Raise what is wrong where a chain is to begin, unless another draw of other steps may mend it."""
        error = self.density.start_error(point)
        if error is None and self.density.start_is_final:
            error = CovarianceError(
                f"{self.name}: no Gaussian approximation was found at the chain's starting point. The prior covariance "
                "is next to singular there, or the likelihood too steep. Start elsewhere with `initvals`, or give "
                "narrower priors."
            )
        if error is not None:
            raise error from None

    def _begin(self, values: Array, point: Point, rng: np.random.Generator, *, approximated: bool) -> None:
        """Stand at the chain's first values, which must have a density, and choose a step size there.

        Whether they come of an approximation is for the words of the error.
        """
        self._enter(values, rng)
        if self._has_failed:
            error = self.density.start_error(point)
            if error is not None:
                raise error
            instead = (
                "Nor was a draw of the approximation of use." if approximated
                else 'Or let the chain start from the Laplace approximation with init="laplace".'
            )  # fmt: skip
            raise ConfigurationError(
                f"{self.name}: the log density or its gradient is not finite at the chain's starting point. "
                f"Give another `initvals`. {instead}"
            )
        coordinates, phase = self._coordinates, self._phase
        self.state.step_size = self.density.steps.first(lambda size: coordinates.acceptance(phase, size, rng))
        self.state.started = True

    def _judge(self) -> None:
        """Stop a chain that would hardly move, at the end of tuning.

        Raises a `SamplingError` if the trajectories cover less than a tenth of their path.
        """
        state, density = self.state, self.density
        judge(
            self.name, self._path, self.average_step_size(), state.iteration, lambda: density.curvatures(state.values),
            uses_sites=self.plan.uses_sites, prior_moves=density.prior_moves, flat_priors=self.plan.flat_priors,
        )  # fmt: skip
        density.adapter.finish(state.tuned)

    @property
    def _path(self) -> JitteredPath | None:
        """The path that steps of an adapted size should cover; None where there is none."""
        return self.plan.trajectory.path if self.plan.step_size is None else None

    def remarks(self) -> str:
        """Say what makes the chain slow, a line each; empty where nothing does."""
        state, first = self.state, self.density.own.start or 0
        slow, is_trusted = slowness(
            self.name, state.movement, self.values.size - first, lambda i: self.density.variables.label(first + i),
            self.plan.step_size,
        )  # fmt: skip
        said = [
            cut_path(self.name, self._path, self.average_step_size(), is_trusted=is_trusted),
            sites_kept(self.name, state.dropped_refits, len(state.refits), is_trusted=is_trusted),
            slow,
        ]
        return "\n".join(filter(None, said))

    def where_refused(self) -> str:
        """Say where the prior could last not be factorised; empty if it always could."""
        return self.density.where_refused()

    @property
    def step_size(self) -> StepSize | None:
        """The one that draws report; None where the chain has none yet."""
        state = self.state
        return None if state.step_size is None else self.density.adapter.step_size(state.tuned, state.step_size)

    def learn_from(self, draws: Iterable[Array], point: Point, rng: np.random.Generator) -> None:
        """Fit what tuning fits to draws that something else has made; those without a density are left out.

        `draws` of (k,): the chain's values.
        `point`: the model's other values.
        `rng`: for the start and the fit.
        """
        state = self.state
        for values in draws:
            with contextlib.suppress(PriorFailure):
                self._stand(values, point, rng, tuning=False)
            if state.started and not self._has_failed:
                self.density.adapter.observe(state.tuned, self._coordinates.seen(self._phase))
        if state.step_size is None:
            raise CovarianceError(
                f"{self.name}: at none of the draws does the prior covariance have a factor. They may be draws of "
                "another model; or add jitter."
            )
        moment = Moment(state.iteration, is_first=False, is_last=False)
        found = self.density.adapter.refit(state.tuned, state.step_size, moment, rng, with_sites=True)
        state.tuned, state.position = found.tuned, None
        self._rebuild()

    def reference(self) -> ResidualReference:
        """Return the normal approximation that its coordinates are, beside the model."""
        coordinates: NormalCoordinates[Tuned, Phase] = self._coordinates
        return coordinates.reference()

    def average_step_size(self) -> float:
        """Return the step size that the draws after tuning use."""
        return math.nan if self.step_size is None else self.step_size.average

    def write(self, point: Point) -> None:
        """Put `values` into a point whose arrays are its own."""
        self.density.variables.write(self.values, point)
