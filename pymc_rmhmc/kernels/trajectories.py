"""A trajectory of several steps, how long it is, and the Metropolis decision at its end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pymc_rmhmc.dynamics.delayed_rejection import FINER, RETRIED_ABOVE, accepts_retry
from pymc_rmhmc.dynamics.hamiltonian import Hamiltonian
from pymc_rmhmc.dynamics.integrators import Integrator, Step
from pymc_rmhmc.errors import MAX_ENERGY_ERROR, Failure
from pymc_rmhmc.kernels.kernel import MoveBase, Transition, repeat
from pymc_rmhmc.option_numbers import real_number, whole_number

__all__ = ["FixedSteps", "JitteredPath", "SingleSteps", "decide", "made", "transition"]

# Seeds of the random numbers within a trajectory.
SEEDS = 2**31


class SingleSteps(MoveBase):
    """What trajectories of several steps share: the search for a step size asks how one step is accepted."""

    __slots__ = ()

    def single_step[State](
        self, hamiltonian: Any, integrator: Any, state: State, step_size: float, rng: np.random.Generator
    ) -> Transition[State]:
        """Follow one step, whose acceptance is 0 if it fails."""
        return transition(hamiltonian, integrator, state, 1, step_size, rng)


class _Static(SingleSteps):
    """A trajectory whose number of steps is known before it starts; its end is accepted or not."""

    __slots__ = ()

    def draw(self, step_size: float, rng: np.random.Generator) -> tuple[int, float]:
        """Return the number of steps and the size of each."""
        raise NotImplementedError

    def move[State](
        self, hamiltonian: Any, integrator: Any, state: State, step_size: float, rng: np.random.Generator
    ) -> Transition[State]:
        """Draw a length, refresh the momentum, follow the flow, and accept or keep."""
        n_steps, size = self.draw(step_size, rng)
        return transition(hamiltonian, integrator, state, n_steps, size, rng, finer=self.finer(n_steps))

    def finer(self, n_steps: int) -> int:
        """Return how many finer steps walk the same path where so many err much; 0 where it is not tried again."""
        return 0


@dataclass(frozen=True, slots=True)
class FixedSteps(_Static):
    """Exactly `n_steps` steps of exactly the step size: no jitter."""

    n_steps: int
    path = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_steps", whole_number("n_steps", self.n_steps))

    def draw(self, step_size: float, rng: np.random.Generator) -> tuple[int, float]:
        """Return the fixed number, whatever the step size, and the step size."""
        return self.n_steps, step_size


@dataclass(frozen=True, slots=True)
class JitteredPath(_Static):
    """A path length drawn uniformly from ``path_length (1 ± jitter)``, divided into equal steps.

    The steps are as few as keep each within the step size, so that the whole path is walked; the draw
    depends on neither position nor momentum, so that the kernel stays exact. A path that is refused for a large energy
    error is tried again in finer steps: see `dynamics.delayed_rejection`.

    Parameters
    ----------
    path_length : float
        The mean length, in the time of the Hamiltonian: ``2π`` is a period where the posterior is as
        Gaussian as the metric assumes.
    jitter : float
        In [0, 1).
    max_steps : int
        The most steps in a trajectory: where it binds, the path is cut short.
    rounds : int
        Trajectories for each draw.
    """

    path_length: float
    jitter: float
    max_steps: int
    rounds: int = 1

    def __post_init__(self) -> None:
        for name in ("path_length", "jitter"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        object.__setattr__(self, "max_steps", whole_number("max_steps", self.max_steps))

    def move[State](
        self, hamiltonian: Any, integrator: Any, state: State, step_size: float, rng: np.random.Generator
    ) -> Transition[State]:
        """Move so many times as `_Static.move` does, or in compiled code if the Hamiltonian has that."""
        if getattr(hamiltonian, "makes", None) is not None:
            path = (self.path_length, self.jitter, self.max_steps)
            return made(hamiltonian, state, rng, lambda p, q, seed: hamiltonian.makes.walk(
                p, q, step_size, path, self.rounds, seed))  # fmt: skip
        return repeat(lambda at: _Static.move(self, hamiltonian, integrator, at, step_size, rng), state, self.rounds)

    @property
    def path(self) -> JitteredPath:
        """The path that is to be covered."""
        return self

    @property
    def longest(self) -> float:
        """The longest path that may be drawn."""
        return self.path_length * (1.0 + self.jitter)

    @property
    def longest_in_words(self) -> str:
        """The longest path, and the options that it comes of."""
        return f"{self.longest:.3g} (path_length={self.path_length:.3g} and jitter={self.jitter:.3g})"

    @property
    def covering(self) -> float:
        """The shortest steps of which `max_steps` cover the path."""
        return self.path_length / self.max_steps

    def draw(self, step_size: float, rng: np.random.Generator) -> tuple[int, float]:
        """Draw a length and divide it."""
        # `rng.uniform` takes longer than the rest of this function.
        length = self.path_length * (1.0 + self.jitter * (2.0 * rng.random() - 1.0))
        n_steps = max(1, math.ceil(length / step_size))
        if n_steps > self.max_steps:
            return self.max_steps, step_size
        return n_steps, length / n_steps

    def finer(self, n_steps: int) -> int:
        """See `_Static`."""
        return min(FINER * n_steps, self.max_steps)


def made(hamiltonian: Any, state: Any, rng: np.random.Generator, make: Any) -> Transition[Any]:
    """Make trajectories in a Hamiltonian's compiled code, from a fresh momentum, and report them as one outcome.

    Random numbers within them come from one seed, so that the chain's own stream does not depend on what happens there.
    """
    start = hamiltonian.refresh(state, rng)
    seed, energy = int(rng.integers(SEEDS)), hamiltonian.energy(start)
    if not math.isfinite(energy):
        return Transition(start, energy=energy, failure=Failure.NON_FINITE)
    moved = make(start.point, start.momentum, seed)
    end = replace(start, point=moved.point, momentum=moved.momentum)
    return Transition(
        end, accepted=moved.accepted, acceptance=moved.acceptance, energy=hamiltonian.energy(end),
        energy_error=moved.energy_error, failure=moved.failure, n_steps=moved.n_steps, n_metric_evals=moved.n_steps,
    )  # fmt: skip


def transition[State](
    hamiltonian: Hamiltonian[State],
    integrator: Integrator[Any, State],
    state: State,
    n_steps: int,
    step_size: float,
    rng: np.random.Generator,
    *,
    finer: int = 0,
) -> Transition[State]:
    """Refresh the momentum, follow the flow for `n_steps`, and accept or keep.

    Parameters
    ----------
    hamiltonian, integrator
        A Hamiltonian and an integrator that understands its states.
    state : State
        The current state; its momentum is not used.
    n_steps : int
        Steps in the trajectory.
    step_size : float
        Size of each.
    rng : numpy.random.Generator
        For the momentum and the decision.
    finer : int
        Steps of a second try where the error of the first was large; 0 for none.

    Returns
    -------
    Transition
        The kept state and everything that there is to report. A failed trajectory keeps the state. The acceptance is
        that of the first try, which tunes the step size.
    """
    start = hamiltonian.refresh(state, rng)
    initial_energy = hamiltonian.energy(start)
    # The decision's random number is drawn whether or not it is needed: the stream of random numbers
    # then does not depend on failures, and a run stays comparable when a tolerance changes.
    log_uniform = math.log1p(-rng.random())
    outcome = Transition(start, energy=initial_energy)
    if not math.isfinite(initial_energy):
        outcome.failure = Failure.NON_FINITE
        return outcome
    proposal = _end(outcome, integrator.path(hamiltonian, start, n_steps, step_size))
    if proposal is not None:
        decide(outcome, proposal, hamiltonian.energy(proposal), log_uniform)
        proposal = None  # a large one is kept no longer than it is needed
    # A path that failed has no energy error.
    if finer and not (outcome.accepted or outcome.energy_error <= RETRIED_ABOVE):
        _retry(outcome, hamiltonian, integrator, (n_steps, step_size), finer, math.exp(log_uniform))
    return outcome


def _end[State](outcome: Transition[State], path: Iterable[Step[State]]) -> State | None:
    """Count the steps of a path and return its end; None, with the cause noted, where a step failed."""
    end: State | None = None
    for step in path:
        outcome.count(step)
        if step.state is None:
            outcome.failure = step.failure
            return None
        end = step.state
    return end


def _retry(
    outcome: Transition[Any], hamiltonian: Any, integrator: Any, coarse: tuple[int, float], finer: int, uniform: float
) -> None:
    """Walk the path of a first try again in finer steps, and keep its end as `accepts_retry` says."""
    n_steps, step_size = coarse
    outcome.failure, outcome.energy_error = Failure.NONE, math.nan
    proposal = _end(outcome, integrator.path(hamiltonian, outcome.state, finer, step_size / FINER))
    if proposal is None:
        return
    energy = hamiltonian.energy(proposal)
    if not _note_error(outcome, energy - outcome.energy):
        return
    back: Transition[Any] = Transition(proposal)
    returned = _end(back, integrator.path(hamiltonian, proposal, n_steps, -step_size))
    outcome.count(back)
    error = math.inf if returned is None else hamiltonian.energy(returned) - energy
    if accepts_retry(uniform, outcome.acceptance, outcome.energy_error, error if math.isfinite(error) else math.inf):
        outcome.state, outcome.energy, outcome.accepted = proposal, energy, True


def decide[State](
    outcome: Transition[State], proposal: State, energy: float, log_uniform: float
) -> None:
    """Move to the proposal with probability ``min(1, exp(-energy_error))``, as Metropolis does.

    A divergence is judged at the trajectory's end alone: to stop on the way would not be time-reversible.
    """
    error = energy - outcome.energy
    noted = _note_error(outcome, error)
    if math.isfinite(error):
        outcome.acceptance = math.exp(min(0.0, -error))
    if noted and log_uniform < -error:
        outcome.state, outcome.energy, outcome.accepted = proposal, energy, True


def _note_error(outcome: Transition[Any], error: float) -> bool:
    """Note a proposal's energy error; return whether it is a number and not too large, and note a failure else."""
    if not math.isfinite(error):
        outcome.failure = Failure.NON_FINITE
        return False
    outcome.energy_error = error
    if error > MAX_ENERGY_ERROR:
        outcome.failure = Failure.ENERGY
        return False
    return True
