"""A smooth function of a few variables that stands in for one that is dear: the mean of a Gaussian process.

What it is used for (`pymc_rmhmc.dynamics.integrators.SurrogateFlow`) leads along its gradient many times before the
function itself is asked once. Far from the points that it was fitted to it is constant.

References
----------
Rasmussen (2003), Gaussian processes to speed up hybrid Monte Carlo for expensive Bayesian integrals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.geometry.compilation import compiled

__all__ = ["Emulator"]

type Array = NDArray[np.float64]

# The flow is followed in steps as short as this: shorter ones bring a trajectory no nearer to its density's.
LONGEST_STEP = 0.25


@compiled
def _value(x: Array, points: Array, weights: Array, lengthscale: float) -> float:  # pragma: no cover - compiled
    """``Σ wᵢ exp(-½|x - xᵢ|²/ℓ²)``."""
    total = 0.0
    for i in range(weights.size):
        square = 0.0
        for j in range(x.size):
            square += (x[j] - points[i, j]) ** 2
        total += weights[i] * np.exp(-0.5 * square / lengthscale**2)
    return total


@compiled
def _slope(x: Array, points: Array, weights: Array, lengthscale: float) -> Array:  # pragma: no cover - compiled
    """Its gradient."""
    slope = np.zeros(x.size)
    for i in range(weights.size):
        square = 0.0
        for j in range(x.size):
            square += (x[j] - points[i, j]) ** 2
        weight = weights[i] * np.exp(-0.5 * square / lengthscale**2) / lengthscale**2
        for j in range(x.size):
            slope[j] += weight * (points[i, j] - x[j])
    return slope


@compiled
def _follow(
    position: Array, momentum: Array, time: float, n_steps: int, points: Array, weights: Array, lengthscale: float
) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """Half a kick, a rotation, half a kick, so many times."""
    step = time / n_steps
    cosine, sine = np.cos(step), np.sin(step)
    slope = _slope(position, points, weights, lengthscale)
    for _ in range(n_steps):
        kicked = momentum + 0.5 * step * slope
        position, momentum = cosine * position + sine * kicked, cosine * kicked - sine * position
        slope = _slope(position, points, weights, lengthscale)
        momentum = momentum + 0.5 * step * slope
    return position, momentum


@dataclass(frozen=True, slots=True)
class Emulator:
    """``g(x) = mean + Σ wᵢ exp(-½|x - xᵢ|²/ℓ²)``.

    Attributes
    ----------
    points : (m, d) array
        The xᵢ, in C order.
    weights : (m,) array
        The wᵢ.
    lengthscale : float
        ℓ.
    mean : float
        What it is far from all points.
    """

    points: Array
    weights: Array
    lengthscale: float
    mean: float

    def value(self, position: Array) -> float:
        """``g(x)``."""
        return self.mean + float(_value(position, self.points, self.weights, self.lengthscale))

    def slope(self, position: Array) -> Array:
        """``∂g/∂x``, (d,)."""
        return np.asarray(_slope(position, self.points, self.weights, self.lengthscale))

    def follow(self, position: Array, momentum: Array, time: float) -> tuple[Array, Array]:
        """Position and momentum after a time of the flow of ``½|x|² - g(x) + ½|p|²``.

        Splitting in equal steps: reversible and volume preserving, as a proposal has to be, and nearly the flow.
        """
        n_steps = max(1, int(np.ceil(time / LONGEST_STEP)))
        position, momentum = _follow(
            position, momentum, time, n_steps, self.points, self.weights, self.lengthscale
        )
        return position, momentum
