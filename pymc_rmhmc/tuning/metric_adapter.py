"""What a chain in a metric of a whole model learns: lengths of paths, and whether its Hessian's structure holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.kernels.kernel import Transition
from pymc_rmhmc.tuning.path_length import PathTrial
from pymc_rmhmc.tuning.schedule import REFITS, Moment, Refit, RefitPolicy, StepSizeAdapter
from pymc_rmhmc.tuning.step_size import StepSize

__all__ = ["MetricTuning", "StructureAdapter"]

type Array = NDArray[np.float64]

# Positions of a window that are compared, from all over it: each costs a few products with the Hessian.
MOST_COMPARED = 20


@dataclass
class MetricTuning:
    """What is known of a metric of a whole model.

    Attributes
    ----------
    partition : Partition or None
        The structure of the Hessian; None if the metric has none or does not use it.
    seen : list of (d,) arrays
        Where the chain has been since the last comparison.
    path : PathTrial
        How long paths are.
    """

    partition: Any = None
    seen: list[Array] = field(default_factory=list)
    path: PathTrial = field(default_factory=PathTrial)


@dataclass(frozen=True, slots=True)
class StructureAdapter(StepSizeAdapter):
    """Adapts step size and lengths, and drops a structure that does not hold.

    Parameters
    ----------
    holds : callable
        Whether a partition holds at a position (d,), by random numbers.
    may_lengthen : bool
        Whether longer paths may be tried.
    """

    holds: Callable[[Any, Array, np.random.Generator], bool]
    may_lengthen: bool = False
    schedule: RefitPolicy = REFITS

    def initial(self) -> MetricTuning:
        """Return no structure: it is read at the start."""
        return MetricTuning()

    def learn(self, tuned: MetricTuning, step_size: StepSize, outcome: Transition[Any], *, stood: bool) -> bool:
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
