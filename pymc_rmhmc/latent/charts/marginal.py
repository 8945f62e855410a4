"""Hyperparameters as functions of standard normals: a normalising map of each, then a linear one of all.

    θ_j = location_j + spread_j sinh((asinh y_j + skewness_j) / tail_j),      y = centre + factor ϑ.

The first is Jones and Pewsey's: one to one from the real line onto itself, with one parameter for skewness and one
for the weight of the tails. A lengthscale's logarithm has a wall on one side, where data or prior forbid small
ones, and a slope on the other: against such a density steps that are right in one place are too long in another. In
ϑ it is nearly a normal.

References
----------
Jones and Pewsey (2009), Sinh-arcsinh distributions, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.linalg.cholesky import solve_lower
from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = ["MarginalChart", "PlacedHyperparameters", "place_hyperparameters", "sinh_arcsinh_inverse"]

type Array = NDArray[np.float64]


@compiled
def place_hyperparameters(
    standard: Array, centre: Array, factor: Array, location: Array, spread: Array, skewness: Array, tail: Array
) -> tuple[Array, float]:  # pragma: no cover - compiled
    """By rows θ, ``∂θ_j/∂y_j`` and the derivative by y of ``Σ log ∂θ_j/∂y_j``, and that: a dozen calls of NumPy."""
    d = standard.size
    placed, log_volume = np.empty((3, d)), 0.0
    theta, slope, log_slope = placed[0], placed[1], placed[2]
    for j in range(d):
        y = centre[j]
        for k in range(j + 1):
            y += factor[j, k] * standard[k]
        square = 1.0 + y * y
        angle, stretch = (np.arcsinh(y) + skewness[j]) / tail[j], tail[j] * np.sqrt(square)
        theta[j] = location[j] + spread[j] * np.sinh(angle)
        slope[j] = spread[j] * np.cosh(angle) / stretch
        log_volume += np.log(np.cosh(angle) / stretch)
        log_slope[j] = np.tanh(angle) / stretch - y / square
    return placed, log_volume


def sinh_arcsinh_inverse(x: Array, skewness: Array, tail: Array) -> Array:
    """The y of an x."""
    return np.asarray(np.sinh(tail * np.arcsinh(x) - skewness))


# Not frozen, though nobody writes to it: one is made for every θ, and freezing doubles what that takes.
@dataclass(slots=True)
class PlacedHyperparameters:
    """θ of a ϑ, with what a gradient needs."""

    theta: Array  # (d,): θ
    slope: Array  # (d,): ``∂θ_j/∂y_j``
    log_volume: float  # ``Σ log ∂θ_j/∂y_j``; the linear map's constant is left out
    log_volume_slope: Array  # (d,): its derivative by y


class MarginalChart(NamedTuple):
    """Where hyperparameters are expected, how widely and of what shape: a tuple, as compiled code takes one."""

    centre: Array  # (d,): of y
    factor: Array  # (d, d): lower triangular; its square is the covariance of y
    # `location`, `spread`, `skewness`, `tail`: (d,), of each θ_j; spread and tail are positive.
    location: Array
    spread: Array
    skewness: Array
    tail: Array

    @classmethod
    def linear(cls, centre: Array, factor: Array) -> MarginalChart:
        """``θ = centre + factor ϑ``."""
        nothing, one = np.zeros(centre.size), np.ones(centre.size)
        return cls(centre, factor, nothing, one, nothing, one)

    def place(self, standard: Array) -> PlacedHyperparameters:
        """θ of ϑ."""
        shape = self.location, self.spread, self.skewness, self.tail
        (theta, slope, log_slope), log_volume = place_hyperparameters(standard, self.centre, self.factor, *shape)
        return PlacedHyperparameters(theta, slope, log_volume, log_slope)

    def pullback(self, placed: PlacedHyperparameters, theta_bar: Array) -> Array:
        """The gradient by ϑ of a function of θ plus the log volume, given the function's gradient by θ."""
        return np.asarray((placed.slope * theta_bar + placed.log_volume_slope) @ self.factor)

    def recover(self, theta: Array) -> Array:
        """ϑ of θ."""
        y = sinh_arcsinh_inverse((theta - self.location) / self.spread, self.skewness, self.tail)
        return solve_lower(self.factor, y - self.centre) if y.size else y
