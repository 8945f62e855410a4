"""When tuning refits, what an adapter is told of it, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pymc_rmhmc.kernels.kernel import Outcome
from pymc_rmhmc.tuning.step_size import StepSize

__all__ = ["REFITS", "Adapter", "Moment", "Refit", "RefitPolicy", "StepSizeAdapter", "postponed"]


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
