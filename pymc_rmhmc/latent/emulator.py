"""A smooth function of a few variables that stands in for one that is dear: a parabola and a Gaussian process.

What it is used for (`dynamics.integrators.SurrogateFlow`) leads along its gradient many times before the
function itself is asked once. Far from the points that it was fitted to, the parabola is what is left.

References
----------
Rasmussen (2003), Gaussian processes to speed up hybrid Monte Carlo for expensive Bayesian integrals; Rasmussen and
Williams (2006), section 4.2.1, for the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import kick, rotate
from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = ["Emulator"]

type Array = NDArray[np.float64]

# The flow is followed in steps as short as this: shorter ones bring a trajectory no nearer to its density's.
LONGEST_STEP = 0.25
# The kernel is a rational quadratic with 2^5 for its power: as smooth as a squared exponential and nearly the same, in
# five squarings that a processor makes for several points at a time.
SQUARINGS = 5
POWER = 2.0**SQUARINGS


@compiled
def _value_and_slope(
    x: Array, points: Array, weights: Array, lengthscale: float, linear: Array, quadratic: Array, floor: float,
    power: float, reach: float,
) -> tuple[float, Array]:  # pragma: no cover - compiled  # fmt: skip
    """``bᵀx + ½ xᵀQx + Σ wᵢ (1 + ½|x - xᵢ|²/(αℓ²))^-α``, on its floor, and its gradient; points are by coordinate."""
    d = x.size
    value, slope = 0.0, np.empty(d)
    for j in range(d):
        along = 0.0
        for k in range(d):
            along += quadratic[j, k] * x[k]
        slope[j] = linear[j] + along
        value += x[j] * (linear[j] + 0.5 * along)
    narrowness = 1.0 / lengthscale**2
    base = np.ones(weights.size)
    for j in range(d):
        along, first = points[j], x[j]
        for i in range(weights.size):
            base[i] += (0.5 * narrowness / POWER) * (first - along[i]) ** 2
    pull = 0.0
    for i in range(weights.size):
        inverse = 1.0 / base[i]
        weight = inverse
        for _ in range(SQUARINGS):
            weight *= weight
        weight *= weights[i]
        value += weight
        base[i] = weight * inverse * narrowness
        pull += base[i]
    slope += points @ base - pull * x
    square = 0.0
    for j in range(d):
        square += x[j] ** 2
    ground = floor + 0.5 * square - power * np.log1p(square / reach)
    lift = 1.0 - 2.0 * power / (reach + square)
    # log(exp value + exp ground), whose slope is a mean of the two.
    above = value - ground
    share = 1.0 / (1.0 + np.exp(-above)) if above > -700.0 else 0.0
    for j in range(d):
        slope[j] = share * slope[j] + (1.0 - share) * lift * x[j]
    return max(value, ground) + np.log1p(np.exp(-abs(above))), slope


@compiled
def _follow(
    position: Array, momentum: Array, time: float, n_steps: int, points: Array, weights: Array, lengthscale: float,
    linear: Array, quadratic: Array, floor: float, power: float,
    reach: float,
) -> Array:  # pragma: no cover - compiled  # fmt: skip
    """Half a kick, a rotation, half a kick, so many times; by rows, position and momentum."""
    step, moved = time / n_steps, np.empty((2, position.size))
    moved[0], moved[1] = position, momentum
    position, momentum = moved[0], moved[1]
    slope = _value_and_slope(position, points, weights, lengthscale, linear, quadratic, floor, power, reach)[1]
    for _ in range(n_steps):
        kick(momentum, slope, 0.5 * step)
        rotate(position, momentum, step)
        slope = _value_and_slope(position, points, weights, lengthscale, linear, quadratic, floor, power, reach)[1]
        kick(momentum, slope, 0.5 * step)
    return moved


@dataclass(frozen=True, slots=True)
class Emulator:
    """``g(x) = c + log(exp(bᵀx + ½ xᵀQx + Σ wᵢ k(x - xᵢ)) + exp(φ + ½|x|² - κ log(1 + |x|²/τ)))``.

    The kernel is ``k(x) = (1 + ½|x|²/(αℓ²))^-α`` with α = 32.
    """

    points: Array  # (d, m): the xᵢ, by coordinate, in C order
    weights: Array  # (m,): the wᵢ
    lengthscale: float  # ℓ
    level: float  # c
    linear: Array  # (d,): b
    quadratic: Array  # (d, d): Q, symmetric
    # `floor`, `power`, `reach`: φ, κ and τ: a multiple of a Student t's density, where ``exp g`` is multiplied by a
    # standard normal's.
    floor: float = -np.inf
    power: float = 1.0
    reach: float = 1.0

    @classmethod
    def flat(cls, size: int) -> Emulator:
        """One of so many variables that is 0 everywhere."""
        nothing = np.zeros(size)
        return cls(np.zeros((size, 1)), np.zeros(1), 1.0, 0.0, nothing, np.zeros((size, size)))

    @staticmethod
    def kernel(squares: Array, lengthscale: float) -> Array:
        """k, of squared distances."""
        return np.asarray((1.0 + squares / (2.0 * POWER * lengthscale**2)) ** -POWER)

    def evaluate(self, position: Array) -> tuple[float, Array]:
        """``g(x)``, and its gradient (d,)."""
        value, slope = _value_and_slope(
            position, self.points, self.weights, self.lengthscale, self.linear, self.quadratic, self.floor,
            self.power, self.reach,
        )  # fmt: skip
        return self.level + float(value), slope

    def advance(self, position: Array, momentum: Array, time: float) -> tuple[Array, Array]:
        """Position and momentum after a time of the flow of ``½|x|² - g(x) + ½|p|²``.

        Splitting in equal steps: reversible and volume preserving, as a proposal has to be, and nearly the flow.
        """
        n_steps = max(1, int(np.ceil(time / LONGEST_STEP)))
        position, momentum = _follow(
            position, momentum, time, n_steps, self.points, self.weights, self.lengthscale, self.linear, self.quadratic,
            self.floor, self.power, self.reach,
        )  # fmt: skip
        return position, momentum
