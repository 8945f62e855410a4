"""What every sampler of a block shares: the order of a draw, the step size, reading and writing points.

What a chain must remember is in `ChainState`, which is saved and restored; everything else in a sampler is
rebuilt from it and from the point.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.step_methods.state import DataClassState, dataclass_state

from pymc_rmhmc.dynamics.adaptation import DualAveraging, search_step_size
from pymc_rmhmc.errors import ConfigurationError, CovarianceError, RMHMCError, SamplingError
from pymc_rmhmc.geometry.prior import PriorFailure
from pymc_rmhmc.kernels.kernel import HMC, Kernel, Transition
from pymc_rmhmc.kernels.trajectories import JitteredPath, single_step_acceptance
from pymc_rmhmc.steps.checks import check_start
from pymc_rmhmc.steps.movement import Movement
from pymc_rmhmc.steps.options import Plan
from pymc_rmhmc.steps.words import (
    IF_SLOW,
    advice_for,
    barely_moves,
    cut_short,
    hardly_moved,
    is_cut_by_options,
    more_steps,
    never_moved,
    part_of_path,
    path_in_words,
    sites_kept,
    stood_still,
)

__all__ = ["NEARNESS", "REHEARSED_STEP", "ChainSampler", "ChainState", "refit_iterations"]

type Array = NDArray[np.float64]
type Point = dict[str, Array]

# Fractions of the tuning at which what is fitted to draws is refitted. The last window goes to the step size alone; but
# a kind of sampler may refit once more in it.
REFIT_FRACTIONS = (0.1, 0.3, 0.6)
MIN_REFIT_WINDOW = 15
# A step size is judged after so many tuning draws, and a chain is stopped that covers less than a tenth of its path.
ENOUGH_TUNING = 50
LEAST_OF_PATH = 0.1
# Of a path that is covered but for so much nothing is said.
WHOLE_PATH = 0.9
# A draw of an approximation that has no density, or next to none, is tried again so much nearer its centre.
NEARNESS = (1.0, 0.5, 0.25, 0.0)
# Of a trajectory that is made to compile its functions: too short to leave where it begins.
REHEARSED_STEP = 1e-3


def refit_iterations(tune: int) -> tuple[int, ...]:
    """The tuning iterations at whose beginning sites and scales are refitted at least; none in a short tuning."""
    ends, last = [], 0
    for fraction in REFIT_FRACTIONS:
        end = int(fraction * tune)
        if end - last >= MIN_REFIT_WINDOW:
            ends.append(end)
            last = end
    return tuple(ends)


@dataclass_state
class ChainState(DataClassState):
    """What a sampler's chain carries from draw to draw: position and adaptation."""

    started: bool = False
    iteration: int = 0
    refits: tuple[int, ...] = ()
    step_size: DualAveraging | None = None
    fixed_step_size: float = math.nan
    # Where the chain is in the chart, and the values that this stands for: recomputing one from the
    # other would cost a solve a draw, and rounding would break an exact replay.
    coordinates: Any = field(default=None)
    values: Any = field(default=None)
    judged: bool = False
    dropped_refits: int = 0
    # The rest of the point on which the chart depends: under another one the coordinates stand for other values.
    given: Any = field(default=None)
    # Tuning draws, and from which on the chain is watched: little is left to refit then.
    n_tuned: int = 0
    watched_from: int = 0
    movement: Movement = field(default_factory=Movement)


class ChainSampler(ABC):
    """The chain of some variables that move together.

    Parameters
    ----------
    name : str
        For messages.
    plan : Plan
        Metric, integrator, lengths.
    slices : sequence of (str, slice)
        The value variables, and the parts of their raveled values.
    initial_values : (k,) array
        The model's initial point for them, by which a start that nobody chose is told from one that
        somebody did.
    own_initval : bool
        Whether one of the variables has an initial value of its own.
    """

    # A step size that would make fewer steps of a path is not taken.
    fewest_steps = 1
    # What travels to a worker: factors are rebuilt there from the point.
    kept: tuple[str, ...] = ("name", "plan", "slices", "initial_values", "own_initval", "labels", "state")

    def __init__(
        self, name: str, plan: Plan, slices: Sequence[tuple[str, slice]], initial_values: Array, own_initval: bool
    ) -> None:
        self.name = name
        self.plan = plan
        self.slices = tuple(slices)
        self.initial_values = initial_values
        self.own_initval = own_initval
        self.labels: dict[str, str] = {}
        self.state = self._new_state(())
        self.values: Any = None
        self.forget()

    def setup(self, tune: int) -> None:
        """Begin a chain. A state that was restored goes on as it is, unless a tuning is asked for."""
        self.forget()
        if tune > 0 or not self.state.started:
            policy = self.plan.policy
            self.state = self._new_state(refit_iterations(tune) if policy is not None and policy.refit else ())
            self.state.watched_from = int(REFIT_FRACTIONS[-1] * tune)

    def draw(self, point: Point, rng: np.random.Generator, *, tuning: bool) -> Transition[Any]:
        """One transition given the rest of the point; `values` holds the outcome."""
        if not self.state.started:
            check_start(self.name, point)
        if not (tuning or self.state.judged) and self.state.movement.stood_still:
            raise SamplingError(stood_still(self.name, self.state.movement.failures, self.plan.step_size))
        outcome = self._draw(point, rng, tuning=tuning)
        state = self.state
        if not tuning:
            state.movement.note_draw(self.values, moved=outcome.accepted)
            return outcome
        state.n_tuned += 1
        if state.n_tuned > state.watched_from:
            state.movement.note_tuning(self.values, outcome.failure)
        return outcome

    def _draw(self, point: Point, rng: np.random.Generator, *, tuning: bool) -> Transition[Any]:
        """The same; a prior without a factor there is a rejection."""
        values = self.read(point)
        try:
            self._stand(values, point, rng, tuning=tuning)
        except PriorFailure as failure:
            if not self.state.started:
                self._explain_start(point)
            self.values = values
            self.log_density = -math.inf
            # A refit waits for a draw that has a factor.
            if not (tuning and self.state.iteration in self.state.refits):
                self.state.iteration += 1
            return Transition(None, failure=failure.failure)
        state = self.state
        if not (tuning or state.judged):
            state.judged = True
            state.movement.end_tuning()
            self._judge()
        outcome = self._move(rng, tuning=tuning)
        # Where a slope cannot be computed, as beside a discrete value, there is nothing to fit to.
        if tuning and state.refits and state.iteration < state.refits[-1] and not self._has_failed:
            self._observe()
        state.iteration += 1
        return outcome

    def _move(self, rng: np.random.Generator, *, tuning: bool) -> Transition[Any]:
        """One step of the kernel, and in tuning what it says of the step size."""
        kernel, failed = self._kernel(tuning=tuning), self._has_failed
        outcome = kernel.step(self._phase, rng)
        if outcome.accepted:
            self._keep(outcome.state)
        # Where not even a first step can be made, none is too long.
        if tuning and self.state.step_size is not None and not failed:
            self.state.step_size.update(outcome.acceptance)
        return outcome

    def _kernel(self, *, tuning: bool) -> Kernel[Any]:
        """What makes a draw, of what tuning has found by now."""
        step_size = self.current_step_size(tuning=tuning)
        return HMC(self._hamiltonian, self.plan.integrator, self.plan.trajectory, step_size)

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

    def _refit_where_it_holds(self, values: Array, rng: np.random.Generator) -> None:
        """Refit, but not to a chart in which the chain would stand at no density and could never leave.

        Such are the sites of a window in which the chain hardly moved: they seem to know everything. They stay as they
        are then, and all else is refitted.
        """
        held = self.state
        if self._has_failed:  # nothing could be said of a refit here: it waits for the next draw
            held.refits = tuple(at + 1 if at == held.iteration else at for at in held.refits)
            return
        for with_sites in (True, False):
            self.state = copy.copy(held)
            self.state.step_size = copy.copy(held.step_size)
            if self._holds_after_refit(values, rng, with_sites=with_sites):
                return
            held.dropped_refits += int(with_sites)
        self.state = held
        self._forget_window()
        self._build()
        self._enter(values, rng)

    def _holds_after_refit(self, values: Array, rng: np.random.Generator, *, with_sites: bool) -> bool:
        """Refit, and stand at the same values; whether the chain has a density there."""
        try:
            self._refit(rng, with_sites=with_sites)
            if self._phase is None:
                self._enter(values, rng)
        except PriorFailure:
            return False
        return not self._has_failed

    @property
    def _has_failed(self) -> bool:
        """Whether the chain stands nowhere yet, or where the log density or its gradient cannot be computed."""
        return self._phase is None or bool(self._hamiltonian.failure(self._phase))

    def _judge(self) -> None:
        """At the end of tuning, stop a chain that would hardly move.

        Any acceptance is reached by steps that are short enough: sites that are hopeless show in a path that is out
        of reach.

        Raises
        ------
        SamplingError
            If the trajectories cover less than a tenth of their path.
        """
        if self.state.iteration >= ENOUGH_TUNING and self._part_of_path() < LEAST_OF_PATH:
            length, step_size = self.plan.trajectory, self.average_step_size()
            path = path_in_words(length, step_size)
            if is_cut_by_options(length, self._part_of_path(), LEAST_OF_PATH):
                raise SamplingError(barely_moves(self.name, self.state.iteration, path, more_steps(length, step_size)))
            advice = advice_for(self._curvatures, uses_sites=self.plan.uses_sites, prior_moves=self._prior_moves)
            advice += IF_SLOW
            raise SamplingError(barely_moves(self.name, self.state.iteration, path, advice))

    def remarks(self) -> str:
        """What makes the chain slow, in words; empty where nothing does.

        It may be that `max_steps` ends trajectories before their path does, or that sites could not be refitted.
        """
        said = [
            self._cut_path(),
            sites_kept(self.name, self.state.dropped_refits, len(self.state.refits)),
            self._slowness(),
        ]
        return " ".join(filter(None, said))

    def _cut_path(self) -> str:
        """That `max_steps` ends trajectories early, in words; empty where it does not."""
        covered, length = self._part_of_path(), self.plan.trajectory
        if covered >= WHOLE_PATH:
            return ""
        by_options = is_cut_by_options(length, covered, WHOLE_PATH)
        return cut_short(self.name, length, self.average_step_size(), by_options=by_options)

    def _slowness(self) -> str:
        """That the chain hardly moved, in words; empty where it did."""
        movement = self.state.movement
        if movement.never_moved:
            return never_moved(self.name, movement.n_draws)
        slowest = movement.slowest(self.values.size)
        if slowest is None:
            return ""
        effective, which = slowest
        return hardly_moved(self._label(which), effective, movement.n_draws)

    def _label(self, which: int) -> str:
        """One of the values by the name of its variable."""
        for name, part in self.slices:
            if which < part.stop - part.start:
                named = self.labels.get(name, name)
                return f"{named}[{part.start + which}]" if part.stop - part.start > 1 else named
            which -= part.stop - part.start
        raise IndexError(which)

    def _part_of_path(self) -> float:
        """What `max_steps` of the adapted steps cover of the path."""
        return 1.0 if self._adaptation is None else part_of_path(self.plan.trajectory, self._adaptation.average)

    def where_refused(self) -> str:
        """Where the prior could last not be factorised, in words; empty if it always could."""
        return ""

    @property
    def _adaptation(self) -> DualAveraging | None:
        """Of the step size in use; None where it is fixed."""
        return self.state.step_size

    def current_step_size(self, *, tuning: bool) -> float:
        """The step size in use: the iterate in tuning, its average afterwards, or the fixed one."""
        adaptation = self._adaptation
        if adaptation is None:
            return self.state.fixed_step_size
        return adaptation.current if tuning else adaptation.average

    def average_step_size(self) -> float:
        """The adapted step size that the draws after tuning use."""
        adaptation = self._adaptation
        return self.state.fixed_step_size if adaptation is None else adaptation.average

    def read(self, point: Point) -> Array:
        """The values in a point, concatenated, (k,)."""
        if len(self.slices) == 1:
            ((name, part),) = self.slices
            return np.array(np.ravel(point[name])[part])
        return np.concatenate([np.ravel(point[name])[part] for name, part in self.slices])

    def write(self, point: Point) -> None:
        """Put `values` into a point whose arrays are its own."""
        start = 0
        for name, part in self.slices:
            size = part.stop - part.start
            point[name].reshape(-1)[part] = self.values[start : start + size]
            start += size

    def forget(self) -> None:
        """Drop everything that is rebuilt from the point and the state."""
        self.values = None
        self.log_density = -math.inf
        self._hamiltonian: Any = None
        self._phase: Any = None
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.forget()

    def restore(self, state: ChainState) -> None:
        """Take another state; what was built for the old one is dropped."""
        self.state = state
        self.forget()

    @property
    @abstractmethod
    def n_functions(self) -> int:
        """How many functions of the model a chain calls."""

    @abstractmethod
    def rehearse(self, point: Point, rng: np.random.Generator) -> None:
        """Call each of them once, with sites and scales of no use: what is called is compiled.

        Raises
        ------
        PriorFailure, RMHMCError
            If nothing can be computed at the point.
        """

    def _take_given(self, given: Point) -> None:
        """Note what the chart depends on; coordinates of the chart of something else are worth nothing."""
        state, known = self.state, self.state.given
        if known is None or any(not np.array_equal(known[name], value) for name, value in given.items()):
            state.coordinates = None
        state.given = given

    @abstractmethod
    def _new_state(self, refits: tuple[int, ...]) -> ChainState:
        """The state of a chain that has not begun."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop what a kind of sampler rebuilds."""

    @abstractmethod
    def _condition(self, point: Point) -> None:
        """Take in what the point holds besides the sampler's own values.

        Raises
        ------
        PriorFailure
            If a prior cannot be factorised there.
        """

    @abstractmethod
    def _build(self) -> None:
        """Everything that is made of the state's sites and scales, anew; afterwards the chain stands nowhere."""

    @property
    @abstractmethod
    def _start_is_final(self) -> bool:
        """Whether no other step moves the prior, so that a chain which cannot begin now never will."""

    @abstractmethod
    def _start_error(self, point: Point) -> RMHMCError | None:
        """Which part of the model has no number where a chain is to begin; None if each has."""

    @abstractmethod
    def _start(self, values: Array, point: Point, rng: np.random.Generator) -> None:
        """The chain's first position and step size."""

    @abstractmethod
    def _enter(self, values: Array, rng: np.random.Generator) -> None:
        """Stand at given values."""

    @abstractmethod
    def _curvatures(self) -> set[str]:
        """The kinds of curvature that every likelihood gives."""

    @property
    @abstractmethod
    def _prior_moves(self) -> bool:
        """Whether anything that is sampled moves the latents' prior."""

    @abstractmethod
    def _keep(self, phase: Any) -> None:
        """Make a proposal the chain's position."""

    @abstractmethod
    def _observe(self) -> None:
        """Take a tuning draw into what will be refitted."""

    @abstractmethod
    def _forget_window(self) -> None:
        """Drop the draws to which sites and scales would be refitted."""

    @abstractmethod
    def _refit(self, rng: np.random.Generator, *, with_sites: bool) -> None:
        """Refit scales, and sites if they are to be, to the window's draws; then the chain may stand nowhere.

        Draws that gave sites of no use are forgotten.
        """

    def _explain_start(self, point: Point) -> None:
        """Raise what is wrong where a chain is to begin, unless another draw of other steps may mend it."""
        error = self._start_error(point)
        if error is None and self._start_is_final:
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
            error = self._start_error(point)
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
        self._choose_step_size(rng)
        self.state.started = True

    def _starts_from_laplace(self, values: Array) -> bool:
        """Whether the chain leaves the given point for a draw of the Laplace approximation."""
        if self.plan.init != "auto":
            return self.plan.init == "laplace"
        return not self.own_initval and np.array_equal(values, self.initial_values)

    @property
    def _longest_step(self) -> float:
        """The largest step size that is adapted to; where the number of steps is given it is for so many already."""
        few = self.fewest_steps if isinstance(self.plan.trajectory, JitteredPath) else 1
        return self.plan.max_step_size / few

    def _choose_step_size(self, rng: np.random.Generator) -> None:
        """The fixed step size, or one from the search, to be adapted."""
        plan, state = self.plan, self.state
        if plan.step_size is not None:
            state.fixed_step_size = plan.step_size
            return
        longest = self._longest_step
        first = search_step_size(
            lambda size: single_step_acceptance(self._hamiltonian, plan.integrator, self._phase, size, rng),
            min(plan.initial_step_size, longest),
            longest,
        )
        state.step_size = DualAveraging(first, plan.target_accept, longest, plan.covering_step_size)
