"""Seconds that a process has spent compiling, whoever compiles.

PyTensor builds functions and Numba compiles them, in two rooms that do not import each other. Both run this watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["COMPILING", "Stopwatch"]

type Announce = Callable[[], None] | None


class Stopwatch:
    """Wall-clock seconds of intervals that have ended; of nested ones the outermost alone is counted.

    `announce` is called before each interval begins; see `announced`.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth, self._started = 0, 0.0
        self.announce: Announce = None

    def start(self) -> None:
        """Begin an interval."""
        self._depth += 1
        if self._depth == 1:
            if self.announce is not None:
                self.announce()
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

    def announce_with(self, announce: Announce) -> Announce:
        """Call a function before each interval from now on, none for None; return what was called before."""
        before, self.announce = self.announce, announce
        return before

    @contextmanager
    def announced(self, announce: Announce) -> Iterator[None]:
        """Call a function before each interval that begins within; what each draw does takes no generator's time."""
        before = self.announce_with(announce)
        try:
            yield
        finally:
            self.announce_with(before)


COMPILING = Stopwatch()
