"""The values that a chain moves, in a point and out of it, and by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import ConfigurationError

__all__ = ["Variables", "changed", "check_start"]

type Array = NDArray[np.float64]
type Point = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Variables:
    """Variables that move together, as one vector (k,).

    Parameters
    ----------
    slices : tuple of (str, slice)
        The value variables, and the parts of their raveled values.
    labels : mapping of str to str
        What users call them.
    """

    slices: tuple[tuple[str, slice], ...]
    labels: Mapping[str, str]

    def read(self, point: Point) -> Array:
        """Return the values in a point."""
        if len(self.slices) == 1:
            ((name, part),) = self.slices
            return np.array(np.ravel(point[name])[part])
        return np.concatenate([np.ravel(point[name])[part] for name, part in self.slices])

    def write(self, values: Array, point: Point) -> None:
        """Put values into a point whose arrays are its own."""
        start = 0
        for name, part in self.slices:
            size = part.stop - part.start
            point[name].reshape(-1)[part] = values[start : start + size]
            start += size

    def label(self, which: int) -> str:
        """Return one of the values by the name of its variable."""
        for name, part in self.slices:
            if which < part.stop - part.start:
                named = self.labels.get(name, name)
                return f"{named}[{part.start + which}]" if part.stop - part.start > 1 else named
            which -= part.stop - part.start
        raise IndexError(which)


def changed(known: Point | None, point: Point, names: tuple[str, ...]) -> Point | None:
    """Return a copy of the named values if any differs from what is known, else None."""
    if known is not None and all(np.array_equal(known[name], point[name]) for name in names):
        return None
    return {name: np.array(point[name]) for name in names}


def check_start(name: str, point: Point) -> None:
    """Raise unless a chain's first point is of numbers: nothing that is computed there would say whose fault it is.

    Raises
    ------
    ConfigurationError
        If a value is not finite.
    """
    values = {variable: np.asarray(value) for variable, value in point.items()}
    wrong = [v for v, value in values.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if wrong:
        raise ConfigurationError(
            f"{name}: the chain's starting point has values of {', '.join(wrong)} that are not finite. Give other "
            "`initvals`, within the bounds of these variables."
        )
