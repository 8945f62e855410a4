"""What a kernel is, what it reports, and how several moves are reported as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pymc_rmhmc.dynamics.integrators import IntegratorBase
from pymc_rmhmc.errors import Failure

__all__ = [
    "HMC", "Cycle", "Kernel", "MoveBase", "Outcome", "Sometimes", "Trajectory", "Transition", "merge", "merge_blocks",
    "repeat",
]  # fmt: skip


@dataclass(slots=True)
class Transition[State]:
    """What became of a state."""

    state: State  # the kept state, with the momentum that it had when it was reached
    accepted: bool = False  # whether it is the proposal
    acceptance: float = 0.0  # ``min(1, exp(-energy_error))``; 0 where the trajectory failed
    energy: float = math.nan  # H of the kept state
    energy_error: float = math.nan  # H of the proposal less H of the start; nan where the trajectory failed
    # Why the trajectory failed, if it did. `Failure.ENERGY` marks an energy error beyond `MAX_ENERGY_ERROR`.
    failure: Failure = Failure.NONE
    n_steps: int = 0  # counted over the trajectory, failed steps included
    n_solver_iter: int = 0
    n_metric_evals: int = 0
    reversal_error: float = math.nan  # the largest over the steps that were checked; nan if none was
    # 1 if a trajectory along an emulator ended where the posterior density is not finite, or lower by more than
    # `MAX_ENERGY_ERROR`. That is a rejection and no failure.
    n_emulator_divergences: int = 0
    kind: str = ""  # which part of a composed kernel made it
    # The single moves of a composed kernel, without their states; None for a single move.
    parts: tuple[Outcome, ...] | None = None

    def of_kind(self, kind: str) -> list[Outcome]:
        """Return the parts of one kind, in the order in which they were made."""
        return [part for part in self.parts or () if part.kind == kind]


# A transition whose state nobody reads, or whose state becomes one of another kind.
type Outcome = Transition[Any]


class Kernel[State](Protocol):
    """Leaves a distribution as it is; immutable."""

    def step(self, state: State, rng: np.random.Generator) -> Transition[State]:
        """Move a state; the caller does not use the old one again."""


class Trajectory[State](Protocol):
    """How one draw is made of a Hamiltonian and an integrator."""

    @property
    def path(self) -> Any:
        """The `JitteredPath` that its steps are to cover; None where it has no such path."""

    @property
    def most_values(self) -> float:
        """How many values of a whole model it can move."""

    def check_integrator(self, integrator: IntegratorBase) -> None:
        """Raise a `ConfigurationError` for an integrator that it cannot use."""

    def hamiltonian(self, field: Any) -> object:
        """Return the Hamiltonian of a metric that it is made along."""

    def move(
        self, hamiltonian: Any, integrator: IntegratorBase, state: State, step_size: float, rng: np.random.Generator
    ) -> Transition[State]:
        """Refresh the momentum, follow the flow, and choose a state."""

    def single_step(
        self, hamiltonian: Any, integrator: IntegratorBase, state: State, step_size: float, rng: np.random.Generator
    ) -> Transition[State]:
        """Make the shortest move, by whose acceptance a step size is searched for."""


class MoveBase:
    """What most moves say: any integrator will do, the cheapest Hamiltonian, and any number of values."""

    __slots__ = ()

    @property
    def most_values(self) -> float:
        """See `Trajectory`."""
        return math.inf

    def check_integrator(self, integrator: IntegratorBase) -> None:
        """See `Trajectory`."""
        del integrator

    def hamiltonian(self, field: Any) -> object:
        """See `Trajectory`: the one with the cheapest steps."""
        return field.hamiltonian()


@dataclass(frozen=True, slots=True)
class HMC[State]:
    """Hamiltonian Monte Carlo: a Hamiltonian, an integrator that understands its states, and the longest step."""

    hamiltonian: Any
    integrator: Any
    trajectory: Trajectory[State]
    step_size: float

    def step(self, state: State, rng: np.random.Generator) -> Transition[State]:
        """Make one trajectory, or as many as it makes for a draw."""
        return self.trajectory.move(self.hamiltonian, self.integrator, state, self.step_size, rng)


@dataclass(frozen=True, slots=True)
class Sometimes[State]:
    """A kernel that is used with a probability (below 0 it counts as 0), which the state does not decide."""

    probability: float
    kernel: Kernel[State]

    def step(self, state: State, rng: np.random.Generator) -> Transition[State]:
        """Move, or report no moves."""
        return self.kernel.step(state, rng) if rng.random() < self.probability else Transition(state, parts=())


@dataclass(frozen=True, slots=True)
class Cycle[State]:
    """Kernels one after another."""

    kernels: tuple[Kernel[State], ...]

    def step(self, state: State, rng: np.random.Generator) -> Transition[State]:
        """Move with each in turn."""
        moves: list[Outcome] = []
        for kernel in self.kernels:
            moves.append(kernel.step(state, rng))
            state, moves[-1].state = moves[-1].state, None  # a large one is kept no longer than it is needed
        moves[-1].state = state
        return merge(moves)


def repeat[State](move: Callable[[State], Transition[State]], state: State, times: int) -> Transition[State]:
    """Move so many times."""
    outcome = move(state)
    if times == 1:
        return outcome
    moves = [outcome]
    for _ in range(times - 1):
        moves.append(move(moves[-1].state))
    return merge(moves)


def merge(moves: Sequence[Outcome]) -> Outcome:
    """Report moves that were made one after another as one. This is the only rule for it.

    State and energies are those of the last. Numbers of steps add up, the acceptance is the mean over single moves, and
    the failure is the first. The whole is accepted if any move is.
    """
    last, state = moves[-1], moves[-1].state
    # Annotated and not called: ``list[Outcome]()`` takes longer than the rest of this function.
    parts: list[Outcome] = []
    for move in moves:
        parts += (move,) if move.parts is None else move.parts
    accepted, failure, reversal_error = False, Failure.NONE, math.nan
    n_steps = n_solver_iter = n_metric_evals = n_emulator_divergences = 0
    for part in parts:  # a loop, since this is made three times a draw
        part.state = None
        accepted = accepted or part.accepted
        failure = failure or part.failure
        n_steps += part.n_steps
        n_solver_iter += part.n_solver_iter
        n_metric_evals += part.n_metric_evals
        n_emulator_divergences += part.n_emulator_divergences
        if part.reversal_error == part.reversal_error and not reversal_error >= part.reversal_error:  # nan: unchecked
            reversal_error = part.reversal_error
    return Transition(
        state, accepted, sum([part.acceptance for part in parts]) / len(parts), last.energy, last.energy_error, failure,
        n_steps, n_solver_iter, n_metric_evals, reversal_error, n_emulator_divergences, parts=tuple(parts),
    )  # fmt: skip


def merge_blocks(moves: Sequence[Outcome]) -> Outcome:
    """Report moves of separate variables as one, as `merge` does, but with energies that add up."""
    merged = merge(moves)
    merged.energy, merged.energy_error = sum(m.energy for m in moves), sum(m.energy_error for m in moves)
    return merged
