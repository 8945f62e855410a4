"""Compiling loops over numbers where NumPy's own passes would take longer to begin than to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba

__all__ = ["compiled"]


def compiled[F: Callable[..., Any]](function: F) -> F:
    """A function compiled by Numba at its first call, and kept on disk for the next process."""
    try:
        made: Any = numba.njit(cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        made = numba.njit(function)
    return cast("F", made)
