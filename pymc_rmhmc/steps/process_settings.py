"""What a process is set to for as long as a chain runs: few BLAS threads, and memory that is kept.

A gradient of some hundred values makes a dozen matrices, each of which is free when it is done. The C library gives
such memory back to the system at once, and has it cleared page by page when the next gradient asks for it: with 600
values that took a third of the time.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref

from threadpoolctl import threadpool_limits

__all__ = ["ProcessSettings"]

# Of `mallopt` in the GNU C library, by its header: free memory at the end above which it is given back, and the size
# from which an array has pages of its own, which are given back with it.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
KEPT = 1 << 30
# What the library itself comes to, where arrays are large.
USUAL_TRIM, USUAL_MMAP = 64 << 20, 32 << 20
# With any of these a user has said what is kept.
OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


class _FreeMemory:
    """Memory that the C library keeps between gradients; nothing where it has no such setting."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None) if os.name == "posix" else None
        is_known = hasattr(library, "mallopt") and hasattr(library, "malloc_trim")
        self._library = library if is_known and not any(name in os.environ for name in OF_THE_USER) else None

    def keep(self) -> None:
        """Keep up to a gigabyte."""
        self._set(KEPT, KEPT)

    def give_back(self) -> None:
        """Keep what is usual, and give back the rest."""
        self._set(USUAL_TRIM, USUAL_MMAP)
        if self._library is not None:
            self._library.malloc_trim(0)

    def _set(self, trim: int, mmap: int) -> None:
        if self._library is not None:
            self._library.mallopt(MMAP_THRESHOLD, mmap)
            self._library.mallopt(TRIM_THRESHOLD, trim)


class _Process:
    """What all chains of a process hold: the first notes how it was set before, the last gives that back.

    Two steps of a compound begin and end one after the other, and the second would take the first one's limit for
    what was there before.
    """

    def __init__(self) -> None:
        # What is collected while a limit is made may release another, in the same thread.
        self._lock, self._holders = threading.RLock(), 0
        self._before: threadpool_limits | None = None
        self._memory = _FreeMemory()

    def hold(self, n_threads: int | None) -> None:
        """Set a limit on threads, if there is one, and keep memory."""
        with self._lock:
            if not self._holders:
                self._memory.keep()
            if n_threads is not None:
                limits = threadpool_limits(limits=n_threads, user_api="blas")
                self._before = self._before or limits
            self._holders += 1

    def release(self) -> None:
        """Lift one; nothing is left of what was set when the last is lifted."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
            self._memory.give_back()
            if self._before is not None:
                self._before.restore_original_limits()
                self._before = None


_process = _Process()


class ProcessSettings:
    """A limit on BLAS threads, and memory that is kept, from when a chain begins until it ends.

    Chains run side by side in processes; two of them with two BLAS threads each on two cores wait for
    one another, and run five times slower than with one each. All is as before as well when the
    object is collected, so that an interrupted run leaves nothing behind for long.

    `n_threads`: None leaves BLAS alone.
    """

    def __init__(self, n_threads: int | None) -> None:
        self.n_threads = n_threads
        self._finalizer: weakref.finalize[..., ProcessSettings] | None = None

    def hold(self) -> None:
        """Set this process; holding twice is holding once."""
        if self._finalizer is not None and self._finalizer.alive:
            return
        _process.hold(self.n_threads)
        self._finalizer = weakref.finalize(self, _process.release)

    def release(self) -> None:
        """Give back what was there before, unless another holds it."""
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = None

    def __getstate__(self) -> dict[str, int | None]:
        # What is set belongs to a process: a copy in another one begins without it.
        return {"n_threads": self.n_threads}

    def __setstate__(self, state: dict[str, int | None]) -> None:
        self.n_threads = state["n_threads"]
        self._finalizer = None
