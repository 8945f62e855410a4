"""How tuning adapts: when it refits, what an adapter is told of that and gives back, and the step size."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.kernels.kernel import Outcome

__all__ = [
    "REFITS", "Adapter", "DualAveraging", "FixedStepSize", "Moment", "Refit", "RefitPolicy", "StepSize",
    "StepSizeAdapter", "StepSizeRule", "postponed", "search_step_size",
]  # fmt: skip



@dataclass(frozen=True, slots=True)
class RefitPolicy:
    """When what is fitted to draws is refitted. Nothing depends on it much: these numbers were not measured."""

    # Shares of the tuning. The last window goes to the step size alone; but an adapter may add a refit in it.
    fractions: tuple[float, ...] = (0.1, 0.3, 0.6)
    min_window: int = 15  # draws: a refit to fewer is left out
    early: tuple[int, ...] = ()  # tuning draws at which there is a refit before the first of these

    def iterations(self, tune: int) -> tuple[int, ...]:
        """Return the tuning iterations at whose beginning there is a refit; none in a short tuning."""
        ends, last = [], 0
        for fraction in self.fractions:
            end = int(fraction * tune)
            if end - last >= self.min_window:
                ends.append(end)
                last = end
        return (*(at for at in self.early if ends and at < ends[0]), *ends)

    def watched_from(self, tune: int) -> int:
        """Return the tuning draw after which little is left to refit."""
        return int(self.fractions[-1] * tune)


REFITS = RefitPolicy()


def postponed(refits: tuple[int, ...], iteration: int) -> tuple[int, ...]:
    """Return the same refits, but that of this iteration with the next draw."""
    return tuple(at + 1 if at == iteration else at for at in refits)


@dataclass(frozen=True, slots=True)
class Moment:
    """When a refit is made."""

    iteration: int  # so many tuning draws have been made
    is_first: bool  # whether it is the first refit of the tuning
    is_last: bool  # whether it is the last that is planned


@dataclass(frozen=True, slots=True)
class Refit[Tuned]:
    """What came of a refit."""

    tuned: Tuned  # what is known now
    changed: bool = True  # whether coordinates stand for other values now
    more: tuple[int, ...] = ()  # iterations at which there shall be refits besides those that are planned


class Adapter[Tuned](Protocol):
    """Learns from the draws of tuning. What it has learned belongs to the chain."""

    @property
    def schedule(self) -> RefitPolicy:
        """When there are refits."""

    def initial(self) -> Tuned:
        """Return what is known before the first draw."""

    def learn(self, tuned: Tuned, step_size: StepSize, outcome: Outcome, *, stood: bool) -> bool:
        """Take what became of a tuning draw; return whether a kernel has been given up, for which others are built.

        `stood` is whether there was a density where the draw began. Where there was none, no step is too long.
        """

    def observe(self, tuned: Tuned, seen: Any) -> None:
        """Take where a tuning draw has led into the window that will be refitted to."""

    def forget(self, tuned: Tuned) -> None:
        """Drop the window."""

    def refit(
        self, tuned: Tuned, step_size: StepSize, moment: Moment, rng: np.random.Generator, *, with_sites: bool
    ) -> Refit[Tuned]:
        """Refit scales, and sites if they are to be, to the window; restart the step size where that has changed.

        What was known is left as it is: a chain goes back to it where it would have no density in the new chart.
        """

    def step_size(self, tuned: Tuned, step_size: StepSize) -> StepSize:
        """Return the step size that draws report: that of the chain, or one of this adapter's own."""

    def finish(self, tuned: Tuned) -> None:
        """Settle what depends on the whole tuning, before the first draw after it."""


class StepSizeAdapter[Tuned]:
    """What adapters share that leave the chain's own step size to it, and adapt nothing else to single draws."""

    __slots__ = ()

    def learn(self, tuned: Tuned, step_size: StepSize, outcome: Outcome, *, stood: bool) -> bool:
        """Adapt the step size."""
        if stood:
            step_size.update(outcome.acceptance)
        return False

    def step_size(self, tuned: Tuned, step_size: StepSize) -> StepSize:
        """Return the chain's."""
        return step_size

    def finish(self, tuned: Tuned) -> None:
        """Leave everything as it is."""


class StepSize(ABC):
    """What is known of a step size."""

    current: float  # that of tuning draws
    average: float  # that of the draws after it
    maximum: float  # it does not get longer

    def in_use(self, *, tuning: bool) -> float:
        """Return the step size of a draw: the iterate in tuning, and its average afterwards."""
        return self.current if tuning else self.average

    @abstractmethod
    def update(self, acceptance: float) -> None:
        """Take the acceptance of one trajectory (0 if it failed)."""

    @abstractmethod
    def restart(self, initial: float) -> None:
        """Forget what was learned, and begin again from a step size."""


@dataclass
class FixedStepSize(StepSize):
    """A step size that was given."""

    current: float
    average: float
    maximum: float = math.inf

    def update(self, acceptance: float) -> None:
        """Learn nothing."""

    def restart(self, initial: float) -> None:
        """Stay."""


class DualAveraging(StepSize):
    """Nesterov's dual averaging of the log step size towards a target acceptance.

    Iterates are shrunk towards ten times the initial step size. None above the maximum is proposed: for a jittered
    path, the path itself. With steps shorter than those that cover the path, a trajectory ends before its path does.
    How far it gets is worth more there than how often it is accepted, and half of the proposals are enough.

    References
    ----------
    Hoffman and Gelman (2014), The No-U-Turn Sampler, section 3.2.1 and algorithm 5.
    """

    SHRINKAGE = 0.05  # γ, t₀ and κ of the paper's section 3.2.1
    DELAY = 10.0
    DECAY = 0.75
    # Of binary groups all alike, whose scale nothing bounds, a chain that had tuned far out took steps of 0.005 for
    # good: with a half in place of 0.9 five times as long ones, and as many more effective draws a second.
    CUT_SHORT = 0.5
    SMALLEST = 1e-12  # where thousands of trajectories fail one after another, still a number to divide by

    def __init__(self, initial: float, target: float, maximum: float = math.inf, covering: float = 0.0) -> None:
        if not 0.0 < target < 1.0:
            raise ConfigurationError(f"target_accept must lie in (0, 1), got {target:g}.")
        self.target = float(target)
        self.maximum, self.covering = float(maximum), float(covering)
        self.restart(initial)

    def restart(self, initial: float) -> None:
        """Forget everything but the target, and begin again from a step size."""
        if not (math.isfinite(initial) and initial > 0.0):
            raise ConfigurationError(f"step_size must be positive and finite, got {initial:g}.")
        self.current = min(float(initial), self.maximum)
        self.average = self.current
        self._centre = math.log(10.0 * self.current)
        self._shortfall = 0.0
        self._count = 0

    def update(self, acceptance: float) -> None:
        """Take the acceptance of one trajectory (0 if it failed) and move the step size."""
        self._count += 1
        target = self.target if self.current >= self.covering else min(self.target, self.CUT_SHORT)
        weight = 1.0 / (self._count + self.DELAY)
        self._shortfall += weight * (target - acceptance - self._shortfall)
        log_step = self._centre - math.sqrt(self._count) / self.SHRINKAGE * self._shortfall
        log_step = min(max(log_step, math.log(self.SMALLEST)), math.log(self.maximum))
        self.current = math.exp(log_step)
        weight = self._count**-self.DECAY
        log_average = weight * log_step + (1.0 - weight) * math.log(self.average)
        self.average = math.exp(log_average)


def search_step_size(
    acceptance: Callable[[float], float], initial: float, maximum: float, threshold: float = 0.8,
    max_doublings: int = 40,
) -> float:  # fmt: skip
    """Search for a step size at which a single step's acceptance crosses a threshold.

    The acceptance is that of one step of the very integrator that will be used, from a fresh momentum; 0 where the step
    fails. The result is the largest step size tried that passed, or the smallest tried if none did.

    References
    ----------
    Hoffman and Gelman (2014), algorithm 4, with the crossing kept on the accepted side.
    """
    step_size = min(initial, maximum)
    if acceptance(step_size) >= threshold:
        for _ in range(max_doublings):
            if step_size >= maximum:
                break
            longer = min(2.0 * step_size, maximum)
            if acceptance(longer) < threshold:
                break
            step_size = longer
        return step_size
    for _ in range(max_doublings):
        step_size *= 0.5
        if acceptance(step_size) >= threshold:
            break
    return step_size


@dataclass(frozen=True, slots=True)
class StepSizeRule:
    """How a chain gets its step size."""

    fixed: float | None  # given, or None to adapt
    initial: float  # where the search begins
    longest: float  # its bound
    target: float  # the acceptance to reach
    covering: float  # as in `DualAveraging`

    def first(self, acceptance: Callable[[float], float]) -> StepSize:
        """Return the fixed step size, or one from the search, to be adapted."""
        if self.fixed is not None:
            return FixedStepSize(self.fixed, self.fixed)
        found = search_step_size(acceptance, min(self.initial, self.longest), self.longest)
        return self.adapting(found)

    def adapting(self, initial: float) -> DualAveraging:
        """Return one that is adapted from a first value."""
        return DualAveraging(initial, self.target, self.longest, self.covering)
