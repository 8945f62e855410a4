"""How long paths are, and what else a chain in a metric of a whole model learns: whether its structure holds.

Several lengths are tried in tuning where some value moves slowly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.kernels.kernel import Outcome
from pymc_rmhmc.tuning.adaptation import REFITS, Moment, Refit, RefitPolicy, StepSize, StepSizeAdapter

__all__ = ["PATHS", "MetricTuning", "PathPolicy", "PathTrial", "StructureAdapter", "correlations"]

type Array = NDArray[np.float64]

SMALLEST = 1e-30  # in place of the variance of what did not move
# A correlation beyond these is not told apart from them by as few draws as there are.
REMEMBERED = (0.1, 0.999)


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """Which lengths are tried, and when. Measured on ridges like those of `benchmarks/ridges.py`."""

    # Multiples of the default length, and how many draws in a row tuning makes of each: as much path of every length.
    # Along a curved ridge paths of 10 made five to ten times as many effective draws as paths of 2, and those of 20
    # fewer again.
    turns: tuple[tuple[float, int], ...] = ((1.0, 5), (2.5, 2), (5.0, 1))
    jitter: float = 0.5  # of longer paths, whose lengths must not all lead back to where they began
    fewest: int = 80  # draws of a window, below which lengths are not compared
    slow: float = 0.5  # a lag-one autocorrelation above this is slow
    # What longer paths may cost beyond what they are seen to gain: they reach tails that few draws of a window have
    # seen, and make more effective draws of as many.
    worth: float = 1.5
    n_slowest: int = 4  # coordinates that are compared: those that move most slowly in the whole window

    @property
    def cycle(self) -> list[float]:
        """The multiples of successive tuning draws."""
        return [multiple for multiple, count in self.turns for _ in range(count)]

    def is_slow(self, positions: Array) -> bool:
        """Return whether successive draws (t, d) of some coordinate are much alike."""
        return float(correlations(positions).max(initial=0.0)) > self.slow


PATHS = PathPolicy()


@dataclass
class PathTrial:
    """What tuning knows of lengths."""

    multiple: float = 1.0  # of the default length: that of draws
    is_slow: bool = False  # whether some coordinate moves slowly at that length
    explores: bool = False  # whether tuning draws take all lengths in turn
    n_made: int = 0  # tuning draws since the last refit
    last: tuple[int, int] = (0, 0)  # which of them the last was, and its number of steps
    # The same for the draws that are kept since the last refit.
    moves: list[tuple[int, int]] = field(default_factory=list)

    @property
    def current(self) -> float:
        """The multiple of the next tuning draw."""
        return PATHS.cycle[self.n_made % len(PATHS.cycle)] if self.explores else self.multiple

    def lengthened(self, path: Any, *, tuning: bool) -> Any:
        """Return the trajectory of the next draw, given that of the plan."""
        multiple = self.current if tuning else self.multiple
        if multiple == 1.0:
            return path
        return replace(path, path_length=multiple * path.path_length, jitter=max(path.jitter, PATHS.jitter))

    def note_steps(self, n_steps: int) -> None:
        """Take the steps of a tuning draw."""
        self.last, self.n_made = (self.n_made, n_steps), self.n_made + 1

    def note_draw(self) -> None:
        """Keep the last tuning draw."""
        self.moves.append(self.last)

    def next(self, positions: Array, free_steps: float, *, may_explore: bool, is_last: bool) -> PathTrial:
        """Return what is known after a window.

        Its draws (t, d), one for each of `moves`, are in coordinates in which they are about standard normal. So many
        steps as are free take as long as all else that a trajectory costs.
        """
        if self.explores and len(positions) >= PATHS.fewest:
            multiple, is_slow = self._fastest(positions, free_steps)
        else:
            multiple, is_slow = self.multiple, PATHS.is_slow(positions)
        return PathTrial(multiple, is_slow, explores=may_explore and is_slow and not is_last)

    def _fastest(self, positions: Array, free_steps: float) -> tuple[float, bool]:
        """Find the multiple at which the slowest values forget most for their time, and whether that is still slow."""
        # Squares tell how widths are explored: a path of half a period changes every sign, and no width.
        both = np.hstack([positions, (positions - positions.mean(axis=0)) ** 2])
        alike = correlations(both)
        which = np.argsort(alike)[-PATHS.n_slowest :]
        slowest, weights = both[:, which], np.maximum(alike[which], SMALLEST) ** 2
        numbers, steps = np.array(self.moves).T
        jumps, made = 0.5 * np.diff(slowest, axis=0) ** 2, np.array(PATHS.cycle)[numbers % len(PATHS.cycle)]
        found = []
        for multiple in dict.fromkeys(PATHS.cycle):
            own = made == multiple
            lost = jumps[own[1:]].mean(axis=0) / np.maximum(slowest.var(axis=0), SMALLEST)
            correlation = float(np.clip(1.0 - np.average(lost, weights=weights), *REMEMBERED))
            speed = -math.log(correlation) / (free_steps + steps[own].mean())
            found.append((speed if multiple == 1.0 else PATHS.worth * speed, multiple, correlation))
        _, multiple, correlation = max(found)
        return multiple, correlation > PATHS.slow


def correlations(positions: Array) -> Array:
    """Return the lag-one autocorrelation of each coordinate of draws (t, d)."""
    centred = positions - positions.mean(axis=0)
    products, squares = (centred[1:] * centred[:-1]).sum(axis=0), (centred**2).sum(axis=0)
    found: Array = np.divide(products, squares, out=np.zeros_like(products), where=squares > 0.0)
    return found


# Positions of a window that are compared, from all over it: each costs a few products with the Hessian.
MOST_COMPARED = 20


@dataclass
class MetricTuning:
    """What is known of a metric of a whole model."""

    partition: Any = None  # the structure of the Hessian; None if the metric has none or does not use it
    seen: list[Array] = field(default_factory=list)  # where the chain has been since the last comparison
    path: PathTrial = field(default_factory=PathTrial)


@dataclass(frozen=True, slots=True)
class StructureAdapter(StepSizeAdapter[MetricTuning]):
    """Adapts step size and lengths, and drops a structure of the Hessian that does not hold at all positions (d,)."""

    holds: Callable[[Any, Array, np.random.Generator], bool]
    may_lengthen: bool = False
    schedule: RefitPolicy = REFITS

    def initial(self) -> MetricTuning:
        """Return no structure: it is read at the start."""
        return MetricTuning()

    def learn(self, tuned: MetricTuning, step_size: StepSize, outcome: Outcome, *, stood: bool) -> bool:
        """Adapt the step size, and count steps."""
        tuned.path.note_steps(outcome.n_steps)
        return StepSizeAdapter.learn(self, tuned, step_size, outcome, stood=stood)

    def observe(self, tuned: MetricTuning, seen: Array) -> None:
        """Take where the chain is."""
        tuned.seen.append(seen)
        tuned.path.note_draw()

    def forget(self, tuned: MetricTuning) -> None:
        """Drop the window."""
        tuned.seen, tuned.path = [], PathTrial(tuned.path.multiple)

    def refit(
        self, tuned: MetricTuning, step_size: StepSize, moment: Moment, rng: np.random.Generator, *, with_sites: bool
    ) -> Refit[MetricTuning]:
        """Compare; without its structure the metric is another, and the step size begins anew."""
        # A step takes so much longer than all else that only steps count.
        path = tuned.path.next(np.array(tuned.seen), 0.0, may_explore=self.may_lengthen, is_last=moment.is_last)
        kept, stride = replace(tuned, seen=[], path=path), 1 + len(tuned.seen) // MOST_COMPARED
        # From the end on, where the chain has got furthest.
        compared = tuned.seen[::-stride]
        if tuned.partition is None or all(self.holds(tuned.partition, at, rng) for at in compared):
            return Refit(kept, changed=False)
        step_size.restart(step_size.average)
        return Refit(replace(kept, partition=None))
