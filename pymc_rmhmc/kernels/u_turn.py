"""A trajectory that doubles until it turns back, from which a state is drawn by its weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import MAX_ENERGY_ERROR, Failure
from pymc_rmhmc.kernels.kernel import Transition, repeat
from pymc_rmhmc.kernels.trajectories import SEEDS, SingleSteps, made
from pymc_rmhmc.option_numbers import whole_number

__all__ = ["UTurn"]

type Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class UTurn(SingleSteps):
    """Multinomial no-U-turn trajectories.

    A trajectory is doubled, forward or backward in time, until its ends would come closer if it went on. That is asked
    of the velocity at each end and the sum of the momenta between them, and of every part that is a tree of its own. A
    state of the last half is preferred to one of the first.

    Parameters
    ----------
    max_depth : int
        The most doublings: a trajectory has fewer than ``2**max_depth`` steps.
    rounds : int
        Trajectories for each draw.

    References
    ----------
    Hoffman and Gelman (2014), The No-U-Turn Sampler; Betancourt (2017), A Conceptual Introduction to Hamiltonian Monte
    Carlo, appendix A.
    """

    max_depth: int = 10
    rounds: int = 1
    path = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_depth", whole_number("max_depth", self.max_depth))

    def check_integrator(self, integrator: Any) -> None:
        """Raise a `ConfigurationError` for an integrator whose trajectories cannot end where they turn back."""
        integrator.check_u_turn()

    def move(
        self, hamiltonian: Any, integrator: Any, state: Any, step_size: float, rng: np.random.Generator
    ) -> Transition[Any]:
        """Refresh the momentum, grow a trajectory, and draw a state of it."""
        if getattr(hamiltonian, "makes", None) is not None:
            return made(hamiltonian, state, rng, lambda p, q, seed: hamiltonian.makes.grow(
                p, q, step_size, self.max_depth, self.rounds, seed))  # fmt: skip
        return repeat(lambda at: self._grown(hamiltonian, integrator, at, step_size, rng), state, self.rounds)

    def _grown(
        self, hamiltonian: Any, integrator: Any, state: Any, step_size: float, rng: np.random.Generator
    ) -> Transition[Any]:
        """Make one trajectory, step by step."""
        start = hamiltonian.refresh(state, rng)
        random, energy = np.random.RandomState(int(rng.integers(SEEDS))), hamiltonian.energy(start)
        if not math.isfinite(energy):
            return Transition(start, energy=energy, failure=Failure.NON_FINITE)
        tree = _Tree(hamiltonian, integrator, start, energy, step_size, random)
        tree.grow(self.max_depth)
        return tree.outcome()


@dataclass(slots=True)
class _Leaf:
    """A state of a trajectory, with the energy that it lost since the start, and its momentum."""

    state: Any
    gain: float
    momentum: Array


class _Tree:
    """A trajectory that grows, over any Hamiltonian and integrator."""

    def __init__(
        self, hamiltonian: Any, integrator: Any, start: Any, energy: float, step_size: float,
        random: np.random.RandomState,
    ) -> None:  # fmt: skip
        self._hamiltonian, self._integrator, self._step_size = hamiltonian, integrator, step_size
        self._energy, self._random = energy, random
        first = _Leaf(start, 0.0, start.momentum)
        self._left = self._right = self._chosen = first
        self._total, self._log_weight, self._accepted = start.momentum.copy(), 0.0, 0.0
        self._report: Transition[Any] = Transition(start, energy=energy)

    def outcome(self) -> Transition[Any]:
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

    def _half(self, end: _Leaf, depth: int, *, forward: bool) -> tuple[_Leaf, _Leaf, float, Array] | None:
        """Return a new half of ``2**depth`` states: the one chosen, the last, its weight and summed momenta.

        None if a step failed, or a part of it turns back: nothing of it may be chosen then.
        """
        chosen, log_weight, total = end, -math.inf, np.zeros_like(self._total)
        # The first leaf of each part that is a tree of its own, and what was summed before it.
        firsts: dict[int, tuple[_Leaf, Array]] = {}
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

    def _leaves(self, end: _Leaf, number: int, *, forward: bool) -> Iterator[_Leaf | None]:
        """Yield the next states; None, with the cause noted, where a step fails."""
        state = end.state
        for _ in range(number):
            step = self._integrator.step(self._hamiltonian, state, self._step_size if forward else -self._step_size)
            self._report.count(step)
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

    def _turns(self, total: Array, first: _Leaf, last: _Leaf) -> bool:
        """Return whether a part turns back; of its summed momenta those at the ends count half."""
        way = total - 0.5 * (first.momentum + last.momentum)
        velocity = self._hamiltonian.velocity
        return bool(velocity(first.state) @ way <= 0.0 or velocity(last.state) @ way <= 0.0)
