"""Trajectories of several steps: how long they are, and which of their states is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.delayed_rejection import FINER, RETRIED_ABOVE, accepts_retry
from pymc_rmhmc.dynamics.hamiltonian import Hamiltonian
from pymc_rmhmc.dynamics.integrators import IntegratorBase, count
from pymc_rmhmc.errors import MAX_ENERGY_ERROR, Failure
from pymc_rmhmc.kernels.kernel import MoveBase, Outcome, Transition, repeat
from pymc_rmhmc.usage import real_number, whole_number

__all__ = ["FixedSteps", "JitteredPath", "UTurn", "decide", "transition"]

type Array = NDArray[np.float64]

# Seeds of the random numbers within a trajectory.
SEEDS = 2**31


class Moving(Protocol):
    """A state with a momentum (n,)."""

    @property
    def momentum(self) -> Array:
        """The momentum."""


class SingleSteps(MoveBase):
    """What trajectories of several steps share: the search for a step size asks how one step is accepted."""

    __slots__ = ()

    def single_step[State](
        self, hamiltonian: Hamiltonian[State], integrator: IntegratorBase, state: State, step_size: float,
        rng: np.random.Generator,
    ) -> Transition[State]:  # fmt: skip
        """Follow one step, whose acceptance is 0 if it fails."""
        return transition(hamiltonian, integrator, state, 1, step_size, rng)


class _Static(SingleSteps):
    """A trajectory whose number of steps is known before it starts; its end is accepted or not."""

    __slots__ = ()

    @property
    def most_finer(self) -> int:
        """How many finer steps may walk the same path where those err much; 0 where it is not tried again."""
        return 0

    def draw(self, step_size: float, rng: np.random.Generator) -> tuple[int, float]:
        """Return the number of steps and the size of each."""
        raise NotImplementedError

    def move[State](
        self, hamiltonian: Hamiltonian[State], integrator: IntegratorBase, state: State, step_size: float,
        rng: np.random.Generator,
    ) -> Transition[State]:  # fmt: skip
        """Draw a length, refresh the momentum, follow the flow, and accept or keep."""
        n_steps, size = self.draw(step_size, rng)
        return transition(hamiltonian, integrator, state, n_steps, size, rng, most_finer=self.most_finer)


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

    """

    # The mean, in the time of the Hamiltonian: ``2π`` is a period where the posterior is as Gaussian as the metric is.
    path_length: float
    jitter: float  # in [0, 1)
    max_steps: int  # in a trajectory: where it binds, the path is cut short
    rounds: int = 1  # trajectories for each draw

    def __post_init__(self) -> None:
        for name in ("path_length", "jitter"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        object.__setattr__(self, "max_steps", whole_number("max_steps", self.max_steps))

    def move[State](
        self, hamiltonian: Hamiltonian[State], integrator: IntegratorBase, state: State, step_size: float,
        rng: np.random.Generator,
    ) -> Transition[State]:  # fmt: skip
        """Move so many times as `_Static.move` does, or in compiled code if the Hamiltonian has that."""
        makes = getattr(hamiltonian, "makes", None)
        if makes is not None:
            path = (self.path_length, self.jitter, self.max_steps)
            return made(hamiltonian, state, rng, lambda p, q, seed: makes.walk(
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
    def most_finer(self) -> int:
        """See `_Static`."""
        return self.max_steps

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


def made(hamiltonian: Any, state: Any, rng: np.random.Generator, make: Callable[[Any, Array, int], Any]) -> Outcome:
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
    hamiltonian: Hamiltonian[State], integrator: IntegratorBase, state: State, n_steps: int, step_size: float,
    rng: np.random.Generator, *, most_finer: int = 0,
) -> Transition[State]:  # fmt: skip
    """Refresh the momentum, follow the flow for `n_steps`, and accept or keep.

    A failed trajectory keeps the state. Where the error was large, a second try takes finer steps, but no more than
    `most_finer`. The acceptance is that of the first try, which tunes the step size.
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
    path = integrator.path(hamiltonian, start, n_steps, step_size)
    outcome.failure, outcome.n_steps, outcome.reversal_error = path.failure, path.n_steps, path.reversal_error
    outcome.n_solver_iter, outcome.n_metric_evals = path.n_solver_iter, path.n_metric_evals
    if path.state is not None:
        decide(outcome, path.state, hamiltonian.energy(path.state), log_uniform)
    del path  # a large end is kept no longer than it is needed
    # A path that failed has no energy error.
    if most_finer and not (outcome.accepted or outcome.energy_error <= RETRIED_ABOVE):
        finer = min(FINER * n_steps, most_finer)
        _retry(outcome, hamiltonian, integrator, (n_steps, step_size), finer, math.exp(log_uniform))
    return outcome


def _retry[State](
    outcome: Transition[State], hamiltonian: Hamiltonian[State], integrator: IntegratorBase, coarse: tuple[int, float],
    finer: int, uniform: float,
) -> None:  # fmt: skip
    """Walk the path of a first try again in finer steps, and keep its end as `accepts_retry` says."""
    n_steps, step_size = coarse
    path = integrator.path(hamiltonian, outcome.state, finer, step_size / FINER)
    count(outcome, path)
    outcome.failure, outcome.energy_error = path.failure, math.nan
    if path.state is None:
        return
    proposal, acceptance = path.state, outcome.acceptance
    energy = hamiltonian.energy(proposal)
    decide(outcome, proposal, energy, math.inf)
    outcome.acceptance = acceptance
    if outcome.failure:
        return
    back = integrator.path(hamiltonian, proposal, n_steps, -step_size)
    count(outcome, back)
    error = math.inf if back.state is None else hamiltonian.energy(back.state) - energy
    if accepts_retry(uniform, outcome.acceptance, outcome.energy_error, error if math.isfinite(error) else math.inf):
        outcome.state, outcome.energy, outcome.accepted = proposal, energy, True


def decide[State](outcome: Transition[State], proposal: State, energy: float, log_uniform: float) -> None:
    """Move to the proposal with probability ``min(1, exp(-energy_error))``, as Metropolis does.

    A divergence is judged at the trajectory's end alone: to stop on the way would not be time-reversible.
    """
    error = energy - outcome.energy
    if not math.isfinite(error):
        outcome.failure = Failure.NON_FINITE
        return
    outcome.energy_error, outcome.acceptance = error, math.exp(min(0.0, -error))
    if error > MAX_ENERGY_ERROR:
        outcome.failure = Failure.ENERGY
    elif log_uniform < -error:
        outcome.state, outcome.energy, outcome.accepted = proposal, energy, True


# ---------------------------------------------------- a trajectory that doubles until it turns back


@dataclass(frozen=True, slots=True)
class UTurn(SingleSteps):
    """Multinomial no-U-turn trajectories.

    A trajectory is doubled, forward or backward in time, until its ends would come closer if it went on. That is asked
    of the velocity at each end and the sum of the momenta between them, and of every part that is a tree of its own. A
    state of the last half is preferred to one of the first.

    References
    ----------
    Hoffman and Gelman (2014), The No-U-Turn Sampler; Betancourt (2017), A Conceptual Introduction to Hamiltonian Monte
    Carlo, appendix A.
    """

    max_depth: int = 10  # the most doublings: a trajectory has fewer than ``2**max_depth`` steps
    rounds: int = 1  # trajectories for each draw
    path = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_depth", whole_number("max_depth", self.max_depth))

    def check_integrator(self, integrator: IntegratorBase) -> None:
        """Raise a `ConfigurationError` for an integrator whose trajectories cannot end where they turn back."""
        integrator.check_u_turn()

    def move[State: Moving](
        self, hamiltonian: Hamiltonian[State], integrator: IntegratorBase, state: State, step_size: float,
        rng: np.random.Generator,
    ) -> Transition[State]:  # fmt: skip
        """Refresh the momentum, grow a trajectory, and draw a state of it."""
        makes = getattr(hamiltonian, "makes", None)
        if makes is not None:
            return made(hamiltonian, state, rng, lambda p, q, seed: makes.grow(
                p, q, step_size, self.max_depth, self.rounds, seed))  # fmt: skip
        return repeat(lambda at: self._grown(hamiltonian, integrator, at, step_size, rng), state, self.rounds)

    def _grown[State: Moving](
        self, hamiltonian: Hamiltonian[State], integrator: IntegratorBase, state: State, step_size: float,
        rng: np.random.Generator,
    ) -> Transition[State]:  # fmt: skip
        """Make one trajectory, step by step."""
        start = hamiltonian.refresh(state, rng)
        random, energy = np.random.RandomState(int(rng.integers(SEEDS))), hamiltonian.energy(start)
        if not math.isfinite(energy):
            return Transition(start, energy=energy, failure=Failure.NON_FINITE)
        tree = _Tree(hamiltonian, integrator, start, energy, step_size, random)
        tree.grow(self.max_depth)
        return tree.outcome()


@dataclass(slots=True)
class _Leaf[State]:
    """A state of a trajectory, with the energy that it lost since the start, and its momentum."""

    state: State
    gain: float
    momentum: Array


class _Tree[State: Moving]:
    """A trajectory that grows, over any Hamiltonian and integrator."""

    def __init__(
        self, hamiltonian: Hamiltonian[State], integrator: IntegratorBase, start: State, energy: float,
        step_size: float, random: np.random.RandomState,
    ) -> None:  # fmt: skip
        self._hamiltonian, self._integrator, self._step_size = hamiltonian, integrator, step_size
        self._energy, self._random = energy, random
        first = _Leaf(start, 0.0, start.momentum)
        self._left = self._right = self._chosen = first
        self._total, self._log_weight, self._accepted = start.momentum.copy(), 0.0, 0.0
        self._report = Transition(start, energy=energy)

    def outcome(self) -> Transition[State]:
        """Return the state that was chosen, and what is to be reported."""
        report = self._report
        report.state, report.energy_error = self._chosen.state, -self._chosen.gain
        report.energy = self._energy - self._chosen.gain
        report.acceptance = self._accepted / max(report.n_steps, 1)
        return report

    def grow(self, max_depth: int) -> None:
        """Double until it turns back, a step fails, or so many times."""
        for depth in range(max_depth):
            forward = self._random.random_sample() < 0.5
            new = self._half(self._right if forward else self._left, depth, forward=forward)
            if new is None:
                return
            chosen, end, log_weight, total = new
            if forward:
                self._right = end
            else:
                self._left = end
            if self._random.random_sample() < math.exp(min(0.0, log_weight - self._log_weight)):
                self._chosen, self._report.accepted = chosen, True
            self._log_weight = float(np.logaddexp(self._log_weight, log_weight))
            self._total = self._total + total
            if self._turns(self._total, self._left, self._right):
                return

    def _half(
        self, end: _Leaf[State], depth: int, *, forward: bool
    ) -> tuple[_Leaf[State], _Leaf[State], float, Array] | None:
        """Return a new half of ``2**depth`` states: the one chosen, the last, its weight and summed momenta.

        None if a step failed, or a part of it turns back: nothing of it may be chosen then.
        """
        chosen, log_weight, total = end, -math.inf, np.zeros_like(self._total)
        # The first leaf of each part that is a tree of its own, and what was summed before it.
        firsts: dict[int, tuple[_Leaf[State], Array]] = {}
        for number, leaf in enumerate(self._leaves(end, 2**depth, forward=forward)):
            if leaf is None:
                return None
            end = leaf
            log_weight = float(np.logaddexp(log_weight, leaf.gain))
            if self._random.random_sample() < math.exp(leaf.gain - log_weight):
                chosen = leaf
            before, total = total, total + leaf.momentum
            level = (number >> 1).bit_count()
            if number % 2 == 0:
                firsts[level] = (leaf, before)
                continue
            trailing = (number ^ (number + 1)).bit_length() - 1
            parts = [firsts[each] for each in range(level, level - trailing, -1)]
            if any(self._turns(total - before, first, leaf) for first, before in parts):
                return None
        return chosen, end, log_weight, total

    def _leaves(self, end: _Leaf[State], number: int, *, forward: bool) -> Iterator[_Leaf[State] | None]:
        """Yield the next states; None, with the cause noted, where a step fails."""
        state = end.state
        for _ in range(number):
            step = self._integrator.step(self._hamiltonian, state, self._step_size if forward else -self._step_size)
            count(self._report, step)
            if step.state is None:
                self._report.failure = step.failure
                yield None
                return
            state = step.state
            gain = self._energy - self._hamiltonian.energy(state)
            if not math.isfinite(gain) or gain < -MAX_ENERGY_ERROR:
                self._report.failure = Failure.ENERGY if gain < -MAX_ENERGY_ERROR else Failure.NON_FINITE
                yield None
                return
            self._accepted += math.exp(min(0.0, gain))
            yield _Leaf(state, gain, state.momentum)

    def _turns(self, total: Array, first: _Leaf[State], last: _Leaf[State]) -> bool:
        """Return whether a part turns back; of its summed momenta those at the ends count half."""
        way = total - 0.5 * (first.momentum + last.momentum)
        velocity = self._hamiltonian.velocity
        return bool(velocity(first.state) @ way <= 0.0 or velocity(last.state) @ way <= 0.0)
