"""Graphs that Python evaluates as they are written: the few evaluations of a test take less than rewriting would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker

AS_WRITTEN = Mode(linker=VMLinker(use_cloop=False, c_thunks=False), optimizer="merge")


class Unwritten:
    """A function of a graph that is rewritten only where it cannot be evaluated as it is.

    Parameters
    ----------
    build : callable
        Makes the function; it takes a ``mode``.
    *args, **kwargs
        What else it takes.
    """

    def __init__(self, build: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._build, self._given = build, (args, kwargs)
        self._function, self._is_rewritten = build(*args, mode=AS_WRITTEN, **kwargs), False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._is_rewritten:
            # An error that the graph means to raise comes again, and so does a nan that it means.
            try:
                found = self._function(*args, **kwargs)
                if not any(np.isnan(each).any() for each in (found if isinstance(found, list) else [found])):
                    return found
            except ValueError:
                pass
            given, named = self._given
            self._function, self._is_rewritten = self._build(*given, mode="FAST_COMPILE", **named), True
        return self._function(*args, **kwargs)
