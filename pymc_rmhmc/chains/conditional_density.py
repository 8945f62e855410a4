"""What a chain is told of its density: which values it moves, and how kernels are built.

Kernels are built from what tuning knows and from the rest of a point.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.reference import ResidualReference
from pymc_rmhmc.errors import ConfigurationError, Failure, RMHMCError
from pymc_rmhmc.kernels.kernel import HMC, Kernel, Trajectory, Transition
from pymc_rmhmc.latent.charts.site import SitePolicy
from pymc_rmhmc.tuning.adaptation import Adapter, StepSize, StepSizeRule

__all__ = [
    "DEFAULT_MAX_STEPS", "DEFAULT_PATH_LENGTH", "NEARNESS", "REHEARSED_STEP", "ConditionalDensity",
    "ConditionalDensityBase", "Coordinates", "HMCCoordinates", "Location", "NormalCoordinates", "Plan", "Position",
    "Variables", "changed", "check_start",
]  # fmt: skip

# ---------------------------------------------------- the plan

# The options of a step, settled into what a chain needs.

DEFAULT_MAX_STEPS = 100
# Measured on the smaller of bulk and tail ESS (benchmarks/path_length.py): in coordinates in which the
# posterior is nearly standard normal a quarter of a period makes the next draw nearly independent. A
# little more costs no step on most trajectories and makes up for those that are rejected; much more makes
# means antithetic and starves the tails.
DEFAULT_PATH_LENGTH = 1.7
# A draw of an approximation that has no density, or next to none, is tried again so much nearer its centre.
NEARNESS = (1.0, 0.5, 0.25, 0.0)

@dataclass(frozen=True, slots=True)
class Plan:
    """Options settled for one block."""

    metric: Any  # a metric, such as `FlatMetric`; a string is settled by now
    policy: SitePolicy | None  # what tuning does with the metric's sites; None if it uses none
    curvature: str | None  # the curvature of the likelihood that the metric is made of; None if it asks for none
    integrator: Any  # one that fits the metric
    trajectory: Trajectory  # how a draw is made
    general_trajectory: Trajectory  # the same for the chart that is read from the graph of a hierarchy
    block_trajectory: Trajectory  # the same for a process and its hyperparameters in two blocks
    # Whether a draw of a cheap model may take several trajectories: not where the number of steps is the user's.
    may_repeat: bool
    # Whether tuning may find a longer path than that of `general_trajectory`: not where length or jitter are the
    # user's.
    may_lengthen: bool
    step_size: float | None  # fixed, or None to adapt
    # `initial_step_size`, `max_step_size`: where the search begins, and its bound.
    initial_step_size: float
    max_step_size: float
    target_accept: float  # for the adaptation
    held_target_accept: float  # for that of latent values which move where their hyperparameters are held
    init: str  # "auto", "laplace" or "keep"
    covering_step_size: float  # with shorter steps the path is not covered, and a lower acceptance is enough
    flat_priors: tuple[str, ...] = ()  # the model's variables whose prior is improper, for messages
    sampler: str = "RMHMC"  # the step's name, for messages
    alone: bool = False  # whether latent values are sampled without hyperparameters in any metric

    def steps(self, fewest: int = 1) -> StepSizeRule:
        """Return how the step size is found; of a path there are at least so many steps."""
        few = 1 if self.trajectory.path is None else fewest
        return StepSizeRule(
            self.step_size, self.initial_step_size, self.max_step_size / few, self.target_accept,
            self.covering_step_size,
        )  # fmt: skip

    @property
    def may_emulate(self) -> bool:
        """Whether steps and paths are left to tuning, and turns along an emulator too."""
        tunes = self.step_size is None and self.trajectory.path is not None
        return tunes and self.policy is not None and self.policy.emulate

    @property
    def uses_sites(self) -> bool:
        """Whether the coordinates are those of Gaussian sites."""
        return self.policy is not None

    @property
    def takes_hyperparameters(self) -> bool:
        """Whether hyperparameters are sampled too: in the chart that fitted sites make for both."""
        return self.policy is not None and self.policy.sites == "fitted" and not self.alone


type Array = NDArray[np.float64]
type Point = dict[str, Array]
# What a state of a Hamiltonian is made of again, to the last bit.
type Position = tuple[Array, ...]

@dataclass(frozen=True, slots=True)
class Variables:
    """Variables that move together, as one vector (k,).

    `slices` tuple of (str, slice): the value variables, and the parts of their raveled values.
    `labels`: what users call them.
    """

    slices: tuple[tuple[str, slice], ...]
    labels: Mapping[str, str]

    def read(self, point: Point) -> Array:
        """Return the values in a point."""
        if len(self.slices) == 1:
            ((name, part),) = self.slices
            return np.array(np.ravel(point[name])[part])
        return np.concatenate([np.ravel(point[name])[part] for name, part in self.slices])

    def write(self, values: Array, point: Point) -> None:
        """Put values into a point whose arrays are its own."""
        start = 0
        for name, part in self.slices:
            size = part.stop - part.start
            point[name].reshape(-1)[part] = values[start : start + size]
            start += size

    def label(self, which: int) -> str:
        """Return one of the values by the name of its variable."""
        for name, part in self.slices:
            if which < part.stop - part.start:
                named = self.labels.get(name, name)
                return f"{named}[{part.start + which}]" if part.stop - part.start > 1 else named
            which -= part.stop - part.start
        raise IndexError(which)


def changed(known: Point | None, point: Point, names: tuple[str, ...]) -> Point | None:
    """Return a copy of the named values if any differs from what is known, else None."""
    if known is not None and all([np.array_equal(known[name], point[name]) for name in names]):  # noqa: C419
        return None
    return {name: np.array(point[name]) for name in names}


def check_start(name: str, point: Point) -> None:
    """Raise unless a chain's first point is of numbers: nothing that is computed there would say whose fault it is.

    Raises a `ConfigurationError` if a value is not finite.
    """
    values = {variable: np.asarray(value) for variable, value in point.items()}
    wrong = [v for v, value in values.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if wrong:
        raise ConfigurationError(
            f"{name}: the chain's starting point has values of {', '.join(wrong)} that are not finite. Give other "
            "`initvals`, within the bounds of these variables."
        )


# Of a trajectory that is made to compile its functions: too short to leave where it begins.
REHEARSED_STEP = 1e-3


class Location(NamedTuple):
    """Where a phase is."""

    position: Position  # what `Coordinates.stand` needs to stand there again
    values: Array  # (k,): the model's
    log_density: float  # the model's
    # The log density less that of the normal approximation in whose coordinates the phase is standard normal: its
    # exponential has the mean p(y) under the approximation. nan where coordinates are of no such approximation.
    log_weight: float = math.nan


class Coordinates[Tuned, Phase](Protocol):
    """Coordinates of the values, with kernels in them, for one state of tuning and one rest of the point.

    A *phase* is a state of the kernels. A position is what `stand` needs to stand at a phase again, to the last bit.
    """

    def stand(self, values: Array, known: Position | None, rng: np.random.Generator) -> Phase:
        """Return a phase at a known position or, where that is None, at given values.

        Raises a `PriorFailure` if a prior cannot be factorised there.
        """

    def failure(self, phase: Phase) -> Failure:
        """Return why there is no density or gradient at a phase."""

    def locate(self, phase: Phase, values: Array | None) -> Location:
        """Return where a phase is; the model's values (k,) may be known."""

    def seen(self, phase: Phase) -> object:
        """Return what the adapter observes of a phase."""

    def kernel(self, tuned: Tuned, step_size: StepSize, *, tuning: bool) -> Kernel[Phase]:
        """Return what makes a draw."""

    def acceptance(self, phase: Phase, step_size: float, rng: np.random.Generator) -> float:
        """Return the acceptance of a single step: what the search for a step size asks."""

    def rehearse(self, phase: Phase, step_size: float, rng: np.random.Generator) -> Phase:
        """Call what kernels call, with steps that are too short to leave; return a phase."""


class NormalCoordinates[Tuned, Phase](Coordinates[Tuned, Phase], Protocol):
    """Coordinates that are standard normal in an approximation of the posterior."""

    def reference(self) -> ResidualReference:
        """Return the approximation beside the model, for estimates of the evidence."""


@dataclass(slots=True)
class HMCCoordinates[Phase]:
    """What coordinates share whose phases are states of one Hamiltonian."""

    hamiltonian: Any
    plan: Plan

    def failure(self, phase: Phase) -> Failure:
        """See `Coordinates`."""
        failure: Failure = self.hamiltonian.failure(phase)
        return failure

    def hmc(self, step_size: float) -> HMC[Phase]:
        """Return the kernel that follows the Hamiltonian's flow, as the plan has it."""
        return HMC(self.hamiltonian, self.plan.integrator, self.plan.trajectory, step_size)

    def acceptance(self, phase: Phase, step_size: float, rng: np.random.Generator) -> float:
        """See `Coordinates`."""
        return self._single(phase, step_size, rng).acceptance

    def single_step(self, phase: Phase, step_size: float, rng: np.random.Generator) -> Phase:
        """Return the phase after one step."""
        return self._single(phase, step_size, rng).state

    def _single(self, phase: Phase, step_size: float, rng: np.random.Generator) -> Transition[Phase]:
        return self.plan.trajectory.single_step(self.hamiltonian, self.plan.integrator, phase, step_size, rng)


class ConditionalDensity[Tuned, Phase](Protocol):
    """The density of some variables given the others: it makes coordinates, and remembers those of its point."""

    name: str  # for messages
    variables: Variables  # what moves
    steps: StepSizeRule  # how the step size is found

    @property
    def adapter(self) -> Adapter[Tuned]:
        """What tunes the chain."""

    @property
    def n_functions(self) -> int:
        """How many functions of the model a chain calls."""

    @property
    def start_is_final(self) -> bool:
        """Whether no other step moves the prior, so that a chain which cannot begin now never will."""

    @property
    def refits(self) -> bool:
        """Whether tuning fits anything to its draws besides the step size."""

    @property
    def prior_moves(self) -> bool:
        """Whether anything that is sampled moves the latents' prior."""

    @property
    def own(self) -> slice:
        """Which of the values the chain samples; the others only follow them."""

    def bind(self, point: Point) -> tuple[bool, Point]:
        """Take in what a point holds besides the chain's own values.

        Returns
        -------
        bool
            Whether coordinates that were made before are of no use now.
        dict
            The values on which positions depend.
        """

    def coordinates(self, tuned: Tuned) -> Coordinates[Tuned, Phase] | None:
        """Return coordinates for what is known, made if they were dropped; None where a chain must start first.

        Raises a `PriorFailure` if a prior cannot be factorised at the point.
        """

    def drop(self) -> None:
        """Drop the coordinates: what they were made of has changed, and the next are as large."""

    def forget(self) -> None:
        """Drop everything that is rebuilt from a point and what is known."""

    def start(self, tuned: Tuned, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """Learn what a first point tells, and return the values at which a chain begins.

        Where it is to start from an approximation, that is a draw of it.
        """

    def start_error(self, point: Point) -> RMHMCError | None:
        """Return which part of the model has no number where a chain is to begin; None if each has."""

    def where_refused(self) -> str:
        """Say where a prior could last not be factorised; empty if it always could."""

    def curvatures(self, values: Array) -> set[str]:
        """Return the kinds of curvature that every likelihood gives."""

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[Tuned]:
        """Give states of tuning that are of no use, so that all that a chain calls can be called once."""


class ConditionalDensityBase[Tuned, Made](ABC):
    """A density whose fields with an underscore are memory: they are not pickled, since a worker rebuilds them.

    It keeps the coordinates that were made last.
    """

    plan: Plan
    _coordinates: Made | None = None

    @property
    def own(self) -> slice:
        """See `ConditionalDensity`: all."""
        return slice(None)

    @abstractmethod
    def forget(self) -> None:
        """See `ConditionalDensity`."""

    @abstractmethod
    def make(self, tuned: Tuned) -> Made:
        """Return coordinates for what is known now."""

    def coordinates(self, tuned: Tuned) -> Made | None:
        """See `ConditionalDensity`."""
        return self.made(tuned)

    def made(self, tuned: Tuned) -> Made:
        """Return the coordinates that were made last, or make some."""
        if self._coordinates is None:
            self._coordinates = self.make(tuned)
        return self._coordinates

    def drop(self) -> None:
        """See `ConditionalDensity`."""
        self._coordinates = None

    @property
    def refits(self) -> bool:
        """See `ConditionalDensity`: the sites, if the metric has some that are to be refitted."""
        return self.plan.policy is not None and self.plan.policy.refit

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self.forget()
