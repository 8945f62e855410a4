"""One model of the catalogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pymc as pm

__all__ = ["Entry"]


@dataclass(frozen=True)
class Entry:
    """A model as people write it, and its other form if it has one.

    Attributes
    ----------
    written : callable
        Returns the model, with seeded data.
    other : callable, optional
        Returns the same posterior, non-centred where `written` is centred and the reverse. It has a variable with the
        name of each variable that is measured.
    names : tuple of str
        The variables measured: by default all free variables of `written`. A model with symmetric modes gives
        variables that are the same in each mode.
    logged : tuple of str
        Positive variables with such long tails that the samplers are compared by the moments of their logarithms.
    compared : tuple of str
        The variables whose moments are compared; by default all measured.
    truth : dict
        Known mean and standard deviation by scalar variable.
    """

    written: Callable[[], pm.Model]
    other: Callable[[], pm.Model] | None = None
    names: tuple[str, ...] = ()
    logged: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    truth: dict[str, tuple[float, float]] = field(default_factory=dict)
