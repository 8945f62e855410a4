"""A trajectory of several steps, how long it is, and the Metropolis decision at its end."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pymc_rmhmc.dynamics.hamiltonian import Hamiltonian
from pymc_rmhmc.dynamics.integrators import Integrator
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
        """The number of steps and the size of each."""
        raise NotImplementedError

    def move[State](
        self, hamiltonian: Any, integrator: Any, state: State, step_size: float, rng: np.random.Generator
    ) -> Transition[State]:
        """Draw a length, refresh the momentum, follow the flow, and accept or keep."""
        n_steps, size = self.draw(step_size, rng)
        return transition(hamiltonian, integrator, state, n_steps, size, rng)


@dataclass(frozen=True, slots=True)
class FixedSteps(_Static):
    """Exactly `n_steps` steps of exactly the step size: no jitter."""

    n_steps: int
    path = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_steps", whole_number("n_steps", self.n_steps))

    def draw(self, step_size: float, rng: np.random.Generator) -> tuple[int, float]:
        """The fixed number, whatever the step size."""
        return self.n_steps, step_size


@dataclass(frozen=True, slots=True)
class JitteredPath(_Static):
    """A path length drawn uniformly from ``path_length (1 ± jitter)``, divided into equal steps.

    The steps are as few as keep each within the step size, so that the whole path is walked; the draw
    depends on neither position nor momentum, so that the kernel stays exact.

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
        """As `_Static.move`, or what the Hamiltonian makes of it in compiled code, so many times."""
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


def made(hamiltonian: Any, state: Any, rng: np.random.Generator, make: Any) -> Transition[Any]:
    """Trajectories that a Hamiltonian makes in compiled code, from a fresh momentum, as one outcome.

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

    Returns
    -------
    Transition
        The kept state and everything that there is to report. A failed trajectory keeps the state.
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
    proposal = start
    for step in integrator.path(hamiltonian, start, n_steps, step_size):
        outcome.count(step)
        if step.state is None:
            outcome.failure = step.failure
            return outcome
        proposal = step.state
    decide(outcome, proposal, hamiltonian.energy(proposal), log_uniform)
    return outcome


def decide[State](
    outcome: Transition[State], proposal: State, energy: float, log_uniform: float
) -> None:
    """Metropolis: move to the proposal with probability ``min(1, exp(-energy_error))``.

    A divergence is judged at the trajectory's end alone: to stop on the way would not be time-reversible.
    """
    error = energy - outcome.energy
    if not math.isfinite(error):
        outcome.failure = Failure.NON_FINITE
        return
    outcome.energy_error = error
    outcome.acceptance = math.exp(min(0.0, -error))
    if error > MAX_ENERGY_ERROR:
        outcome.failure = Failure.ENERGY
    elif log_uniform < -error:
        outcome.state, outcome.energy, outcome.accepted = proposal, energy, True
