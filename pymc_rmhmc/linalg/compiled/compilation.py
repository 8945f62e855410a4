"""Compiling loops over numbers where NumPy's own passes would take longer to begin than to do."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numba
from numba.core import caching, event

from pymc_rmhmc.stopwatch import COMPILING

__all__ = ["COMPILED_ROOMS", "KeptCode", "compiled", "compiled_in_any_order"]


# The rooms with compiled functions; no file of another room may define one.
COMPILED_ROOMS = ("linalg", "dynamics", "latent", "graph_chart", "metrics")
# Sums in any order, a product and a sum in one rounding; NaN and infinities are what they are.
ANY_ORDER = {"reassoc", "contract", "nsz"}


def compiled[F: Callable[..., object]](function: F) -> F:
    """Compile a function with Numba at its first call, and keep it on disk for the next process."""
    return _kept(function, fastmath=False)


def compiled_in_any_order[F: Callable[..., object]](function: F) -> F:
    """Compile as `compiled`, and let the compiler sum in any order, so that it takes several numbers at a time."""
    return _kept(function, fastmath=ANY_ORDER)


def _kept[F: Callable[..., object]](function: F, fastmath: bool | set[str]) -> F:
    try:
        made = numba.njit(cache=True, fastmath=fastmath)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        made = numba.njit(fastmath=fastmath)(function)
    kept: Any = getattr(made, "_cache", None)
    if hasattr(kept, "_cache_file"):
        kept._cache_file = KeptCode(kept._cache_path, kept._impl.filename_base, _stamp())
    return cast("F", made)


# Numba's own class has no types.
_Files: Any = caching.IndexDataCacheFile


class KeptCode(_Files):  # type: ignore[misc]
    """What Numba keeps of a function on disk, safe where several processes compile it at once.

    Numba numbers the files, and notes one in its index before it is written. A process that reads between the two finds
    what an older version of the code has left under that number; and two that compile for different arguments may take
    the same one, of which the last to write serves both. Here a file's name says what is in it, and it is noted when it
    is there. Two that note at once may forget one of the two, which is then compiled again.
    """

    def save(self, key: object, data: object) -> None:
        """Keep what was compiled for a key."""
        stem = self._index_name.removesuffix(".nbi")
        version = f"{stem}.{self._digest(self._source_stamp)}"
        name = f"{version}.{self._digest(key)}.nbc"
        self._save_data(name, data)
        overloads = self._load_index()
        overloads[key] = name
        self._save_index(overloads)
        if len(overloads) == 1:
            self._remove_older(stem, version)

    def _digest(self, contents: object) -> str:
        return hashlib.sha256(self._dump(contents)).hexdigest()[:12]

    def _remove_older(self, stem: str, version: str) -> None:
        """Remove what other versions of the code have left; a process that still runs one compiles it again."""
        for path in Path(self._cache_path).glob(f"{stem}.*.nbc"):
            if not path.name.startswith(f"{version}."):
                with contextlib.suppress(OSError):
                    path.unlink()


@cache
def _stamp() -> tuple[int, int]:
    """Return a stamp of all files with compiled code: what one takes in of another is compiled into it.

    Numba looks at a function's own file alone, and would keep on disk what an edit of another has made stale.
    """
    package = Path(__file__).parents[2]
    found = [path.stat() for room in COMPILED_ROOMS for path in (package / room).rglob("*.py")]
    return max(each.st_mtime_ns for each in found), sum(each.st_size for each in found)


class _Watch(event.Listener):
    """Runs the stopwatch while Numba compiles anything in this process."""

    def on_start(self, event: event.Event) -> None:
        COMPILING.start()

    def on_end(self, event: event.Event) -> None:
        COMPILING.stop()


event.register("numba:compile", _Watch())
