"""Seconds that a process has spent compiling, whoever compiles.

PyTensor builds functions and Numba compiles them, in two rooms that do not import each other. Both run this watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["COMPILING", "Stopwatch"]


class Stopwatch:
    """Wall-clock seconds within intervals that may be nested; the outermost alone is counted.

    Attributes
    ----------
    seconds : float
        Of all intervals that have ended.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth, self._started = 0, 0.0
        self._announce: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin an interval."""
        self._depth += 1
        if self._depth == 1:
            if self._announce is not None:
                self._announce()
            self._started = time.perf_counter()

    def stop(self) -> None:
        """End the interval that began last."""
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._started

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what is within."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    @contextmanager
    def announced(self, announce: Callable[[], None] | None) -> Iterator[None]:
        """Call a function before each interval that begins within; none for None."""
        before, self._announce = self._announce, announce
        try:
            yield
        finally:
            self._announce = before


COMPILING = Stopwatch()
