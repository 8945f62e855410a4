"""Whether a Hessian's structure, read at the start of a chain, holds where the chain goes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """

    partition: Any = None
    seen: list[Array] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StructureAdapter(StepSizeAdapter):
    """Adapts the step size, and drops a structure that does not hold.

    Parameters
    ----------
    holds : callable
        Whether a partition holds at a position (d,), by random numbers.
    """

    holds: Callable[[Any, Array, np.random.Generator], bool]
    schedule: RefitPolicy = REFITS

    def initial(self) -> MetricTuning:
        """Return no structure: it is read at the start."""
        return MetricTuning()

    def observe(self, tuned: MetricTuning, seen: Array) -> None:
        """Take where the chain is."""
        tuned.seen = [*tuned.seen, seen]

    def forget(self, tuned: MetricTuning) -> None:
        """Drop the window."""
        tuned.seen = []

    def refit(
        self, tuned: MetricTuning, step_size: StepSize, moment: Moment, rng: np.random.Generator, *, with_sites: bool
    ) -> Refit[MetricTuning]:
        """Compare; without its structure the metric is another, and the step size begins anew."""
        kept, stride = replace(tuned, seen=[]), 1 + len(tuned.seen) // MOST_COMPARED
        # From the end on, where the chain has got furthest.
        compared = tuned.seen[::-stride]
        if tuned.partition is None or all(self.holds(tuned.partition, at, rng) for at in compared):
            return Refit(kept, changed=False)
        step_size.restart(step_size.average)
        return Refit(replace(kept, partition=None))
