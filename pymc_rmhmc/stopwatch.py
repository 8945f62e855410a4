"""Seconds that a process has spent compiling, whoever compiles.

PyTensor builds functions and Numba compiles them, in two rooms that do not import each other. Both run this watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["COMPILING", "Stopwatch"]


class Stopwatch:
    """Wall-clock seconds of intervals that have ended; of nested ones the outermost alone is counted.

    `announce` is called before each interval begins; see `announced`.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth, self._started = 0, 0.0
        self.announce: Callable[[], None] | None = None

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

    def announced(self, announce: Callable[[], None] | None) -> _Announced:
        """Call a function before each interval that begins within; none for None."""
        return _Announced(self, announce)


class _Announced:
    """The context of `Stopwatch.announced`: a class, since a generator takes microseconds and stands in every draw."""

    __slots__ = ("_announce", "_before", "_watch")

    def __init__(self, watch: Stopwatch, announce: Callable[[], None] | None) -> None:
        self._watch, self._announce = watch, announce

    def __enter__(self) -> None:
        self._before, self._watch.announce = self._watch.announce, self._announce

    def __exit__(self, *error: object) -> None:
        self._watch.announce = self._before


COMPILING = Stopwatch()
