"""BLAS threads, held down for as long as a chain runs."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from threadpoolctl import threadpool_limits

__all__ = ["BlasThreads"]


class _Process:
    """What all chains of a process hold: the first notes how many threads there were, the last gives them back.

    Two steps of a compound begin and end one after the other, and the second would take the first one's limit for
    what was there before.
    """

    def __init__(self) -> None:
        # What is collected while a limit is made may release another, in the same thread.
        self._lock, self._holders, self._before = threading.RLock(), 0, None

    def hold(self, n_threads: int) -> None:
        """Set a limit."""
        with self._lock:
            limits: Any = threadpool_limits(limits=n_threads, user_api="blas")
            self._before = self._before if self._holders else limits
            self._holders += 1

    def release(self) -> None:
        """Lift one; there is none left when the last is lifted."""
        with self._lock:
            self._holders -= 1
            if not self._holders and self._before is not None:
                self._before.restore_original_limits()


_process = _Process()


class BlasThreads:
    """A limit on BLAS threads that is set when a chain begins and lifted when it ends.

    Chains run side by side in processes; two of them with two BLAS threads each on two cores wait for
    one another, and run five times slower than with one each. The limit is lifted as well when the
    object is collected, so that an interrupted run leaves nothing behind for long.

    `n_threads`: None leaves BLAS alone.
    """

    def __init__(self, n_threads: int | None) -> None:
        self.n_threads = n_threads
        self._finalizer: weakref.finalize[..., BlasThreads] | None = None

    def hold(self) -> None:
        """Set the limit in this process; holding twice is holding once."""
        if self.n_threads is None or (self._finalizer is not None and self._finalizer.alive):
            return
        _process.hold(self.n_threads)
        self._finalizer = weakref.finalize(self, _process.release)

    def release(self) -> None:
        """Give back what was there before, unless another holds it."""
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None

    def __getstate__(self) -> dict[str, int | None]:
        # A limit belongs to a process: a copy in another one begins without it.
        return {"n_threads": self.n_threads}

    def __setstate__(self, state: dict[str, int | None]) -> None:
        self.n_threads = state["n_threads"]
        self._finalizer = None
