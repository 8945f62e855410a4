"""How long a run may take: slow peers look at it, stop by themselves and hand in what they have."""

from __future__ import annotations

import math
import time

__all__ = ["NEVER", "Deadline"]


class Deadline:
    """Seconds of a sampler's own work, tuning included; compilation is before `begin`, and not counted.

    Parameters
    ----------
    seconds : float
        In all, for both chains.
    """

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds
        self._end = math.inf

    def begin(self) -> None:
        """Start the clock."""
        self._end = time.perf_counter() + self.seconds

    @property
    def left(self) -> float:
        """Seconds that are left; infinite before `begin`."""
        return self._end - time.perf_counter()

    @property
    def passed(self) -> bool:
        """Whether it is time to stop."""
        return self.left <= 0.0

    def share(self, chains: int) -> Deadline:
        """One chain's part of what is left, where so many are still to run; its clock runs."""
        part = Deadline(self.left / chains)
        part.begin()
        return part


NEVER = Deadline()
