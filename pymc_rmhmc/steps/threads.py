"""BLAS threads, held down for as long as a chain runs."""

from __future__ import annotations

import weakref

from threadpoolctl import threadpool_limits

__all__ = ["BlasThreads"]


class BlasThreads:
    """A limit on BLAS threads that is set when a chain begins and lifted when it ends.

    Chains run side by side in processes; two of them with two BLAS threads each on two cores wait for
    one another, and run five times slower than with one each. The limit is lifted as well when the
    object is collected, so that an interrupted run leaves nothing behind for long.

    Parameters
    ----------
    n_threads : int or None
        None leaves BLAS alone.
    """

    def __init__(self, n_threads: int | None) -> None:
        self.n_threads = n_threads
        self._finalizer: weakref.finalize[..., BlasThreads] | None = None

    def hold(self) -> None:
        """Set the limit in this process; holding twice is holding once."""
        if self.n_threads is None or (self._finalizer is not None and self._finalizer.alive):
            return
        limits = threadpool_limits(limits=self.n_threads, user_api="blas")
        self._finalizer = weakref.finalize(self, limits.restore_original_limits)

    def release(self) -> None:
        """Give back what was there before."""
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None

    def __getstate__(self) -> dict[str, int | None]:
        # A limit belongs to a process: a copy in another one begins without it.
        return {"n_threads": self.n_threads}

    def __setstate__(self, state: dict[str, int | None]) -> None:
        self.n_threads = state["n_threads"]
        self._finalizer = None
