"""The log density of a Gaussian series of the first order with its hyperparameters, in time proportional to its length.

The series is ``xₜ = aₜ + ρ xₜ₋₁ + sₜ νₜ`` from ``x₀ = 0``; a, s and ρ depend on θ. Its precision has three bands:

    Qₜₜ = τₜ + ρ² τₜ₊₁,   Qₜ,ₜ₊₁ = -ρ τₜ₊₁,   τ = 1/s²

Each value adds the information of its own Normal, given the one before, whose mean m and variance v are those of the
series: ``Sᵢ = ∂ᵢs/s``, ``Aᵢ = (∂ᵢa + m₋ ∂ᵢρ)/s`` and ``V = Σ v₋/s²``, with m₋ and v₋ one step before, give

    Iᵢⱼ = 2 Sᵢᵀ Sⱼ + Aᵢᵀ Aⱼ + V ∂ᵢρ ∂ⱼρ

The metric is ``G = blockdiag(W + Q, G_θ)``. ``W + Q`` has three bands too. Its factor, the products with its inverse,
and the bands of the inverse, which are all that derivatives ask of it, take time in proportion to the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.metrics.processes.process_blocks import LatentBlock, ProcessBar, TwoBlockField
from pymc_rmhmc.metrics.processes.process_density import CentredBase, CentredPoint, Process

__all__ = [
    "SeriesDensity", "SeriesField", "SeriesKernel", "factorize_series", "follow", "inverse_bands", "solve_series",
]  # fmt: skip

type Array = NDArray[np.float64]
type SeriesPoint = CentredPoint[SeriesKernel]

# Larger means, variances and inverse deviations have no square, as an explosive series has them.
LARGEST = 1e150


class SeriesKernel:
    """A, s and ρ at one θ, with their derivatives, and what they say of the series; see `SomeKernel`.

    K is positive definite where s is positive, and the mean and variance of each value are numbers that can be squared.
    """

    def __init__(self, process: Process, theta: Array) -> None:
        self.process, self.theta = process, theta
        self._level, self._deviation, rho, self._level_slopes, self._deviation_slopes, slopes = process.prior(theta)
        self.rho, self._rho_slopes = float(rho), slopes
        mean = self._follow(self.rho, self._level)
        variance = self._follow(self.rho**2, self._deviation * self._deviation)
        self._mean_before, self._variance_before = before(mean), before(variance)
        # Not so where any of them is nan.
        has_bounds = np.abs(mean).max() < LARGEST and variance.max() < LARGEST
        self.is_positive_definite = bool(has_bounds and self._deviation.min() > 1.0 / LARGEST)
        if not self.is_positive_definite:
            self._deviation = np.full_like(self._deviation, np.nan)
        self.tau = self._deviation**-2
        self.half_log_det = float(np.log(self._deviation).sum())

    def whiten(self, values: Array) -> Array:
        """Return ν of x; nan if there is no density."""
        return (values - self._level - self.rho * before(values)) / self._deviation

    def colour(self, whitened: Array) -> Array:
        """Return x of ν; nan if there is no density."""
        return self._follow(self.rho, self._level + self._deviation * whitened)

    def score(self, whitened: Array) -> tuple[Array, Array]:
        """Return ``K⁻¹(x - m)``, (n,), and the gradient of ``log N(x; m, K)`` by the moving coordinates, (k,)."""
        scaled = whitened / self._deviation
        values = self.colour(whitened)
        by_deviation = (whitened * whitened - 1.0) / self._deviation
        by_theta = self._level_slopes @ scaled + self._deviation_slopes @ by_deviation
        return self._turned(scaled), by_theta + self._rho_slopes * float(before(values) @ scaled)

    def solve(self, vector: Array) -> Array:
        """Return ``Q vector``."""
        return self._turned(self.tau * (vector - self.rho * before(vector)))

    def _turned(self, vector: Array) -> Array:
        """Return ``Mᵀ vector``."""
        found = vector.copy()
        found[:-1] -= self.rho * vector[1:]
        return found

    def _follow(self, rho: float, rows: Array) -> Array:
        """Return x with ``xₜ = uₜ + ρ xₜ₋₁`` for one row u or several."""
        return follow(rho, np.ascontiguousarray(np.atleast_2d(rows))).reshape(rows.shape)

    # ---------------------------------------------------------------- of the information

    @cached_property
    def _scaled(self) -> tuple[Array, Array, float]:
        """S (k, n), A (k, n) and V."""
        turned = (self._level_slopes + self._rho_slopes[:, None] * self._mean_before) / self._deviation
        return self._deviation_slopes / self._deviation, turned, float(self._variance_before @ self.tau)

    @cached_property
    def information(self) -> Array:
        """``2 Sᵢᵀ Sⱼ + Aᵢᵀ Aⱼ + V ∂ᵢρ ∂ⱼρ``, (k, k): what x says of θ."""
        widths, means, spread = self._scaled
        slopes = self._rho_slopes
        return np.asarray(2.0 * widths @ widths.T + means @ means.T + spread * np.outer(slopes, slopes))

    @cached_property
    def information_slopes(self) -> Array:
        """The derivative of `information` by each moving coordinate, (k, k, k), that coordinate first."""
        mean, variance = self._mean_before, self._variance_before
        widths, means, spread = self._scaled
        slopes, deviation = self._rho_slopes, self._deviation
        level_twice, deviation_twice, rho_twice = (self._square(c) for c in self.process.prior_curvature(self.theta))
        column = slopes[:, None]
        moved_mean = before(self._follow(self.rho, self._level_slopes + column * mean))
        grown = 2.0 * (deviation * self._deviation_slopes + self.rho * column * variance)
        moved_variance = before(self._follow(self.rho**2, grown))
        by_widths = deviation_twice / deviation - widths[:, None] * widths
        turned = level_twice + moved_mean[:, None] * slopes[:, None] + rho_twice[..., None] * mean
        by_means = turned / deviation - widths[:, None] * means
        by_spread = (moved_variance - 2.0 * variance * widths) @ self.tau
        parts = 2.0 * by_widths @ widths.T + by_means @ means.T + spread * rho_twice[..., None] * slopes
        found = parts + parts.transpose(0, 2, 1) + by_spread[:, None, None] * np.outer(slopes, slopes)
        return np.asarray(found)

    def _square(self, pairs: Array) -> Array:
        """Return second derivatives by both coordinates, (k, k, ...), from those of each pair."""
        k = self._rho_slopes.size
        found = np.empty((k, k, *pairs.shape[1:]))
        first, second = self.process.pairs.T
        found[first, second] = pairs
        found[second, first] = pairs
        return found

    def pull_bands(self, diagonal: Array, off: Array) -> Array:
        """Return ``Σ bar ∘ ∂Q`` by the moving coordinates, (k,), of the bars in `SeriesBar`."""
        ahead, beside = before(diagonal), before(off)
        by_tau = diagonal + self.rho * (self.rho * ahead - beside)
        by_rho = float(self.tau @ (2.0 * self.rho * ahead - beside))
        by_deviation = -2.0 * by_tau * self.tau / self._deviation
        return np.asarray(self._deviation_slopes @ by_deviation + self._rho_slopes * by_rho)


def before(values: Array) -> Array:
    """Return the values one step before, along the last axis; 0 before the first."""
    found = np.zeros_like(values)
    found[..., 1:] = values[..., :-1]
    return found


class SeriesDensity(CentredBase[SeriesKernel]):
    """The density of (x, θ)."""

    kernel_class = SeriesKernel


@dataclass(slots=True)
class SeriesBar(ProcessBar):
    """The derivative of a number by G: by W is that by Q's diagonal."""

    off: Array  # (n,), by the entries beside Q's diagonal, of both together; the last is 0


class SeriesBlock(LatentBlock[SeriesKernel, SeriesBar]):
    """``W + Q``, which is tridiagonal, by its pivots and what is below them, (n,)."""

    def __init__(self, kernel: SeriesKernel, weight: Array, pivots: Array, below: Array) -> None:
        super().__init__(kernel, weight)
        self._pivots, self._below = pivots, below
        self._root, self.root_size = np.sqrt(pivots), weight.size
        self.half_log_det = float(np.log(self._root).sum())

    @cached_property
    def _bands(self) -> tuple[Array, Array]:
        """The diagonal of the inverse, and what is next to it."""
        return inverse_bands(self._pivots, self._below)

    @property
    def scale(self) -> Array:
        """``sqrt(diag((W + Q)⁻¹))``, (n,)."""
        return np.asarray(np.sqrt(self._bands[0]))

    def solve(self, vector: Array) -> Array:
        """Return ``(W + Q)⁻¹ vector``, (n,)."""
        return solve_series(self._pivots, self._below, np.ascontiguousarray(vector))

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``L δ^½ vector``, (n,)."""
        found = self._root * vector
        found[1:] += (self._below * found)[:-1]
        return found

    def log_det_bar(self, theta: Array) -> SeriesBar:
        """Return the bar of ``½ log|G|``, with that of G_θ."""
        diagonal, off = self._bands
        return SeriesBar(0.5 * diagonal, theta, off)

    def quadratic_bar(self, velocity: Array, theta: Array) -> SeriesBar:
        """Return the bar of ``-½ uᵀGu`` at a fixed u, with that of G_θ."""
        off = np.zeros_like(velocity)
        off[:-1] = -velocity[:-1] * velocity[1:]
        return SeriesBar(-0.5 * velocity * velocity, theta, off)


class SeriesField(TwoBlockField[SeriesKernel, SeriesBar]):
    """``G(x, θ) = blockdiag(W + Q, G_θ)``."""

    def factorize(self, kernel: SeriesKernel, weight: Array) -> SeriesBlock | Failure:
        """See `TwoBlockField`."""
        pivots, below = factorize_series(np.ascontiguousarray(weight), kernel.tau, kernel.rho)
        if not (pivots > 0.0).all():
            return Failure.NOT_POSITIVE_DEFINITE
        return SeriesBlock(kernel, weight, pivots, below)

    def pull_prior(self, point: SeriesPoint, bar: SeriesBar) -> Array:
        """See `TwoBlockField`."""
        return point.kernel.pull_bands(bar.weight, bar.off)

    def theta_bar(self, bar: Array) -> SeriesBar:
        """See `ProcessField`."""
        n = self.density.process.n_process
        return SeriesBar(np.zeros(n), bar, np.zeros(n))


@compiled
def follow(rho: float, rows: Array) -> Array:  # pragma: no cover - compiled
    """Return x with ``xₜ = uₜ + ρ xₜ₋₁`` for each row u of (r, n)."""
    found = np.empty_like(rows)
    for row in range(rows.shape[0]):
        last = 0.0
        for t in range(rows.shape[1]):
            last = rows[row, t] + rho * last
            found[row, t] = last
    return found


@compiled
def factorize_series(weight: Array, tau: Array, rho: float) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """Factorise T: return δ (n,), and L below its diagonal (n,), of which the last is 0."""
    n = weight.size
    pivots, below = np.empty(n), np.zeros(n)
    known = weight[0] + tau[0]
    for t in range(n - 1):
        pivots[t] = known + rho * rho * tau[t + 1]
        below[t] = -rho * tau[t + 1] / pivots[t]
        known = weight[t + 1] + tau[t + 1] * (known / pivots[t])
    pivots[n - 1] = known
    return pivots, below


@compiled
def solve_series(pivots: Array, below: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``T⁻¹ vector``, (n,)."""
    n = vector.size
    found = vector.copy()
    for t in range(n - 1):
        found[t + 1] -= below[t] * found[t]
    found[n - 1] /= pivots[n - 1]
    for t in range(n - 2, -1, -1):
        found[t] = found[t] / pivots[t] - below[t] * found[t + 1]
    return found


@compiled
def inverse_bands(pivots: Array, below: Array) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """Return the diagonal of T⁻¹ (n,), and its entries below (n,), of which the last is 0."""
    n = pivots.size
    diagonal, off = np.empty(n), np.zeros(n)
    diagonal[n - 1] = 1.0 / pivots[n - 1]
    for t in range(n - 2, -1, -1):
        off[t] = -below[t] * diagonal[t + 1]
        diagonal[t] = 1.0 / pivots[t] - below[t] * off[t]
    return diagonal, off
