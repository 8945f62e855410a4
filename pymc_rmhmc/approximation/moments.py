"""Mean and covariance of a few parameters, from draws and from what was known before them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["RunningMoments"]

type Array = NDArray[np.float64]

# What was known before counts as so many draws for a parameter, and some besides.
PRIOR_DRAWS = 5.0


class RunningMoments:
    """Mean and covariance over draws, by Welford's update.

    Parameters
    ----------
    size : int
        d, the number of parameters.
    """

    def __init__(self, size: int) -> None:
        self.count = 0
        self._mean = np.zeros(size)
        self._scatter = np.zeros((size, size))

    def add(self, values: Array) -> None:
        """Take one draw, (d,)."""
        self.count += 1
        change = values - self._mean
        self._mean += change / self.count
        self._scatter += np.outer(change, values - self._mean)

    def fit(self, centre: Array, factor: Array) -> tuple[Array, Array]:
        """Mean (d,) and lower factor (d, d) of the covariance, shrunk towards an earlier centre and factor."""
        if self.count < 2:
            return centre, factor
        weight = self.count / (self.count + PRIOR_DRAWS + self._mean.size)
        covariance = weight * self._scatter / (self.count - 1) + (1.0 - weight) * factor @ factor.T
        return weight * self._mean + (1.0 - weight) * centre, np.linalg.cholesky(covariance)
