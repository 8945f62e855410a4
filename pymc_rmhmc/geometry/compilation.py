"""Compiling loops over numbers where NumPy's own passes would take longer to begin than to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numba

__all__ = ["compiled"]


def compiled[F: Callable[..., Any]](function: F) -> F:
    """A function compiled by Numba at its first call, and kept on disk for the next process."""
    try:
        made: Any = numba.njit(cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        made = numba.njit(function)
    kept: Any = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if hasattr(kept, "_source_stamp"):
        kept._source_stamp = _stamp()
    return cast("F", made)


@cache
def _stamp() -> tuple[int, int]:
    """Of all files with compiled code: what one takes in of another is compiled into it.

    Numba looks at a function's own file alone, and would keep on disk what an edit of another has made stale.
    """
    found = [path.stat() for path in Path(__file__).parent.rglob("*.py")]
    return max(each.st_mtime_ns for each in found), sum(each.st_size for each in found)
