"""Values on circles: coordinates along which a density has a period."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_ANGLES", "Angles"]

type Array = NDArray[np.float64]


class Angles(NamedTuple):
    """Which of a model's values stand for points on a circle.

    Attributes
    ----------
    places : (k,) int array
        Where they are among all values.
    periods : (k,) array
        The circumference of each circle: the density is the same at a value and a period further on.
    """

    places: NDArray[np.int64]
    periods: Array

    @property
    def widest(self) -> Array:
        """The standard deviation (k,) of a uniform distribution on each circle: no scale is larger."""
        found: Array = self.periods / np.sqrt(12.0)
        return found

    def centre(self, values: Array) -> Array:
        """Return the circular means (k,) of values (t, d)."""
        turns = np.exp(2j * np.pi * values[:, self.places] / self.periods).mean(axis=0)
        found: Array = np.angle(turns) * self.periods / (2.0 * np.pi)
        return found

    def wrapped(self, values: Array, centre: Array) -> Array:
        """Return values (..., d) with each angle in the period around its centre (k,)."""
        found = values.copy()
        beyond = values[..., self.places] - centre
        # A value within the period stays as it is, to the last bit.
        found[..., self.places] -= self.periods * np.round(beyond / self.periods)
        return found

    def are_within(self, values: Array, centre: Array) -> bool:
        """Return whether all angles of one point (d,) lie in the period around their centres."""
        return bool((np.abs(values[self.places] - centre) <= 0.5 * self.periods).all())


NO_ANGLES = Angles(np.empty(0, np.int64), np.empty(0))
