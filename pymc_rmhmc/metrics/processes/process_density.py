"""The log density of a Gaussian process with its hyperparameters, in two charts, with the factors that metrics share.

The process is s ~ N(m(θ), K(θ)) with ``K = L Lᵀ``. A *centred* position is (s, θ), a *whitened* one (ν, θ) with
``s = m + L ν``. With ``Sᵢ = L⁻¹ ∂ᵢK L⁻ᵀ`` and Φ, which takes a lower triangle with half its diagonal,

    ∂ᵢL     = L Φ(Sᵢ)
    ∂ᵢ∂ⱼL   = L [Φ(Sᵢ) Φ(Sⱼ) + Φ(Sᵢⱼ - Φ(Sᵢ) Sⱼ - Sⱼ Φ(Sᵢ)ᵀ)],   Sᵢⱼ = L⁻¹ ∂ᵢ∂ⱼK L⁻ᵀ
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import permutations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import DensityPoint
from pymc_rmhmc.errors import Failure, failure_of
from pymc_rmhmc.linalg.cholesky import cholesky, inverse_lower, multiply_lower, solve_lower

__all__ = [
    "CentredBase", "CentredDensity", "CentredPoint", "Kernel", "Process", "ProcessDensity", "SomeKernel", "SomePoint",
    "WhitenedDensity", "WhitenedPoint",
]  # fmt: skip

type Array = NDArray[np.float64]


class Function(Protocol):
    """A compiled function of contiguous arrays."""

    def __call__(self, *arrays: Array) -> Sequence[Array]:
        """Evaluate it."""


class Process(Protocol):
    """What a model says of a process; see `pymc_rmhmc.model.general.latent_model.LatentModel`."""

    n_process: int  # N
    n_theta: int  # d
    whitened: bool  # whether the model's own values are ``L⁻¹ s``, and not s itself
    is_series: bool  # whether `prior` gives what a series is made of (see `SeriesKernel`), and not m and K
    moving: NDArray[np.int64]  # (k,), the coordinates of θ that move m or K
    pairs: NDArray[np.int64]  # (k (k + 1) / 2, 2), those of `moving` along which second derivatives are taken
    rest: Function
    information: Function
    information_pull: Function
    prior: Function
    prior_curvature: Function


class SomeKernel(Protocol):
    """What densities ask of m and K at one θ, dense or not: `Kernel`, `SeriesKernel`."""

    theta: Array
    is_positive_definite: bool
    half_log_det: float

    def whiten(self, values: Array) -> Array:
        """Return ``L⁻¹ (s - m)``; nan if K is not positive definite."""

    def colour(self, whitened: Array) -> Array:
        """Return ``m + L ν``; nan if K is not positive definite."""

    def score(self, whitened: Array) -> tuple[Array, Array]:
        """Return ``K⁻¹(s - m)``, (n,), and the gradient of ``log N(s; m, K)`` by the moving coordinates, (k,)."""

    def solve(self, vector: Array) -> Array:
        """Return ``K⁻¹ vector``."""

    @property
    def information(self) -> Array:
        """What s says of the moving coordinates of θ, (k, k)."""

    @property
    def information_slopes(self) -> Array:
        """The derivative of `information` by each moving coordinate, (k, k, k), that coordinate first."""


class Kernel:
    """M and K at one θ, with K's factor L (None if it has none) and their derivatives, each computed when asked for."""

    def __init__(self, process: Process, theta: Array) -> None:
        self.process, self.theta = process, theta
        self.mean, self.covariance, self.mean_slopes, self.slopes = process.prior(theta)
        self.factor = cholesky(self.covariance)
        self.is_positive_definite = self.factor is not None
        self.half_log_det = math.nan if self.factor is None else float(np.log(self.factor.diagonal()).sum())

    @cached_property
    def inverse_factor(self) -> Array:
        """``L⁻¹``."""
        assert self.factor is not None
        return inverse_lower(self.factor)

    @cached_property
    def scaled_slopes(self) -> Array:
        """``Sᵢ`` for each moving coordinate, (k, n, n)."""
        return self.scaled(self.slopes)

    def scaled(self, matrices: Array) -> Array:
        """Return ``L⁻¹ M L⁻ᵀ`` for symmetric matrices M (r, n, n)."""
        return _both_sides(self.inverse_factor, matrices) if len(matrices) else matrices

    @cached_property
    def curvatures(self) -> tuple[Array, Array]:
        """``∂∂m`` (pairs, n) and ``∂∂K`` (pairs, n, n)."""
        mean, covariance = self.process.prior_curvature(self.theta)
        return mean, covariance

    def whiten(self, values: Array) -> Array:
        """Return ``L⁻¹ (s - m)``; nan if K is not positive definite."""
        left = values - self.mean
        return np.full_like(left, np.nan) if self.factor is None else solve_lower(self.factor, left)

    def colour(self, whitened: Array) -> Array:
        """Return ``m + L ν``; nan if K is not positive definite."""
        if self.factor is None:
            return np.full_like(whitened, np.nan)
        return np.asarray(self.mean + multiply_lower(self.factor, whitened))

    def score(self, whitened: Array) -> tuple[Array, Array]:
        """Return ``K⁻¹(s - m)``, (n,), and the gradient of ``log N(s; m, K)`` by the moving coordinates, (k,)."""
        solved = multiply_lower(self.inverse_factor, whitened, transpose=True)
        traces = np.trace(self.scaled_slopes, axis1=1, axis2=2)
        squares = (self.slopes @ solved) @ solved
        return solved, 0.5 * (squares - traces) + self.mean_slopes @ solved

    def solve(self, vector: Array) -> Array:
        """Return ``K⁻¹ vector``."""
        half = multiply_lower(self.inverse_factor, vector)
        return multiply_lower(self.inverse_factor, half, transpose=True)

    @cached_property
    def inverse(self) -> Array:
        """``K⁻¹``, (n, n)."""
        return np.asarray(self.inverse_factor.T @ self.inverse_factor)

    @cached_property
    def scaled_mean_slopes(self) -> Array:
        """``L⁻¹ ∂ᵢm``, (n, k)."""
        return multiply_lower(self.inverse_factor, np.asfortranarray(self.mean_slopes.T))

    @cached_property
    def information(self) -> Array:
        """``½ tr(Sᵢ Sⱼ) + ∂ᵢmᵀ K⁻¹ ∂ⱼm``, (k, k): what s says of θ."""
        rows = self.scaled_slopes.reshape((len(self.slopes), self.covariance.size))
        return np.asarray(0.5 * rows @ rows.T + self.scaled_mean_slopes.T @ self.scaled_mean_slopes)

    @cached_property
    def information_slopes(self) -> Array:
        """The derivative of `information` by each moving coordinate, (k, k, k), that coordinate first."""
        scaled, whitened = self.scaled_slopes, self.scaled_mean_slopes
        k, n = scaled.shape[:2]
        mean_curvatures, curvatures = self.curvatures
        # <∂ᵢ∂ⱼK, L⁻ᵀ Sₖ L⁻¹> for each pair (i, j).
        turned = _both_sides(self.inverse_factor, scaled, transpose=True) if k else scaled
        by_pair = 0.5 * curvatures.reshape((-1, n * n)) @ turned.reshape((k, n * n)).T
        by_pair += multiply_lower(self.inverse_factor, np.asfortranarray(mean_curvatures.T)).T @ whitened
        seconds = np.empty((k, k, k))
        first, second = self.process.pairs.T
        seconds[first, second] = seconds[second, first] = by_pair
        return np.asarray(
            seconds + seconds.transpose(0, 2, 1) - _triple_traces(scaled) - whitened.T @ (scaled @ whitened)
        )

    # ------------------------------------------------------------------- of the factor

    @cached_property
    def lower_slopes(self) -> Array:
        """``Φ(Sᵢ) = L⁻¹ ∂ᵢL``, (k, n, n)."""
        return half_lower(self.scaled_slopes)

    @cached_property
    def factor_slopes(self) -> Array:
        """``∂ᵢL``, (k, n, n)."""
        return self._times_factor(self.lower_slopes)

    @cached_property
    def factor_curvatures(self) -> Array:
        """``∂ᵢ∂ⱼL`` for each pair, (pairs, n, n)."""
        lower = self.lower_slopes
        found = []
        for (i, j), both in zip(self.process.pairs, self.scaled(self.curvatures[1]), strict=True):
            product = lower[i] @ self.scaled_slopes[j]
            found.append(lower[i] @ lower[j] + half_lower(both - product - product.T))
        return self._times_factor(found)

    def _times_factor(self, matrices: Sequence[Array] | Array) -> Array:
        """Return ``L M`` for matrices M."""
        factor, n = self.factor, len(self.mean)
        assert factor is not None
        products = [multiply_lower(factor, np.asfortranarray(m)) for m in matrices]
        return np.stack(products) if products else np.empty((0, n, n))


def _triple_traces(matrices: Array) -> Array:
    """Return ``tr(Mᵢ Mⱼ Mₖ)`` of symmetric matrices, (k, k, k), by as few products of two as hold them all."""
    k, n = matrices.shape[:2]
    rows, found = matrices.reshape((k, n * n)), np.empty((k, k, k))
    for i in range(k):
        found[i, i] = found[i, :, i] = found[:, i, i] = rows @ (matrices[i].T @ matrices[i]).ravel()
        for j in range(i + 1, k - 1):
            traces = rows[j + 1 :] @ (matrices[i] @ matrices[j]).ravel()
            for offset, trace in enumerate(traces):
                for place in permutations((i, j, j + 1 + offset)):
                    found[place] = trace
    return found


@cache
def _half_lower_ones(n: int) -> Array:
    """Return a matrix with 1 below the diagonal, and ½ on it."""
    found = np.tril(np.ones((n, n)))
    found[np.diag_indices(n)] = 0.5
    return found


def half_lower(matrix: Array) -> Array:
    """Return Φ: the lower triangle with half the diagonal."""
    return np.asarray(matrix * _half_lower_ones(matrix.shape[-1]))


def _both_sides(lower: Array, matrices: Array, *, transpose: bool = False) -> Array:
    """Return ``T Mᵢ Tᵀ`` for symmetric matrices (k, n, n) and a lower, Fortran-ordered T, or with Tᵀ in its place."""
    k, n = matrices.shape[:2]
    columns = matrices.reshape((k * n, n)).T
    half = multiply_lower(lower, columns, transpose=transpose).T.reshape((k, n, n)).transpose(0, 2, 1)
    return multiply_lower(lower, half.reshape((k * n, n)).T, transpose=transpose).T.reshape((k, n, n))


class SomePoint(DensityPoint, Protocol):
    """What metrics ask of the density of (s, θ) at one position."""

    @property
    def process(self) -> Process:
        """The process."""

    @property
    def kernel(self) -> SomeKernel:
        """M and K there."""


class ProcessDensity[Point: SomePoint](Protocol):
    """A density of a process and θ in some chart."""

    process: Process

    def at(self, position: Array) -> Point:
        """Evaluate at a position (n + d,)."""


class ProcessPoint[K: SomeKernel]:
    """The density at one position (n + d,), whose values are (s, θ); a chart says where these are."""

    def __init__(self, process: Process, kernel: K, position: Array, values: Array, whitened: Array) -> None:
        self.process, self.kernel, self.position, self.values = process, kernel, position, values
        self.whitened = whitened

    @cached_property
    def rest(self) -> tuple[float, Array]:
        """The log density of everything but the process, and its gradient (n + d,)."""
        total, gradient = self.process.rest(self.values)
        return float(total), gradient

    @cached_property
    def standard(self) -> float:
        """The log density of the whitened values; that of the process has the factor's determinant besides."""
        square, n = float(self.whitened @ self.whitened), self.process.n_process
        return self.rest[0] - 0.5 * square - 0.5 * n * math.log(2.0 * math.pi)

    log_density: float
    gradient: Array

    @property
    def failure(self) -> Failure:
        """NOT_POSITIVE_DEFINITE where K is not; NON_FINITE where the density is no number."""
        if not self.kernel.is_positive_definite:
            return Failure.NOT_POSITIVE_DEFINITE
        return failure_of(self.log_density, self.gradient)

    @property
    def model_log_density(self) -> float:
        """The log density as the model has it, of its own values."""
        return self.standard - (0.0 if self.process.whitened else self.kernel.half_log_det)

    @property
    def model_values(self) -> Array:
        """The model's own values."""
        process, n = self.process, self.process.n_process
        return np.concatenate((self.whitened if process.whitened else self.values[:n], self.values[n:]))

    @cached_property
    def information(self) -> tuple[Array, Array, Array]:
        """W (n,), C (n, d) and R (d, d) of everything but the prior of s."""
        weight, cross, theta = self.process.information(self.values)
        return weight, cross, 0.5 * (theta + theta.T)

    def pull_information(self, weight_bar: Array, cross_bar: Array, theta_bar: Array) -> Array:
        """Return ``Σ bar ∘ ∂information/∂(s, θ)``, (n + d,)."""
        bars = (np.ascontiguousarray(bar) for bar in (weight_bar, cross_bar, theta_bar))
        return self.process.information_pull(self.values, *bars)[0]


class CentredPoint[K: SomeKernel](ProcessPoint[K]):
    """At (s, θ)."""

    @property
    def log_density(self) -> float:  # type: ignore[override]
        """Its value, with ``log N(s; m, K)``."""
        return self.standard - self.kernel.half_log_det

    @cached_property
    def gradient(self) -> Array:  # type: ignore[override]
        """``∇ log π``, (n + d,)."""
        process, kernel, n = self.process, self.kernel, self.process.n_process
        if not kernel.is_positive_definite:
            return np.full_like(self.position, np.nan)
        solved, by_theta = kernel.score(self.whitened)
        found = self.rest[1].copy()
        found[:n] -= solved
        found[n + process.moving] += by_theta
        return found


class WhitenedPoint(ProcessPoint[Kernel]):
    """At (ν, θ)."""

    @property
    def log_density(self) -> float:  # type: ignore[override]
        """Its value, with ``log N(ν; 0, I)``."""
        return self.standard

    @cached_property
    def moved(self) -> Array:
        """``∂ᵢs = ∂ᵢm + ∂ᵢL ν``, (n, k)."""
        kernel = self.kernel
        assert kernel.factor is not None
        turned = np.asfortranarray((kernel.lower_slopes @ self.whitened).T)
        return np.asarray(kernel.mean_slopes.T + multiply_lower(kernel.factor, turned))

    @cached_property
    def moved_twice(self) -> Array:
        """``∂ᵢ∂ⱼs``, (pairs, n)."""
        return self.kernel.curvatures[0] + self.kernel.factor_curvatures @ self.whitened

    @cached_property
    def gradient(self) -> Array:  # type: ignore[override]
        """``∇ log π``, (n + d,)."""
        process, kernel, n = self.process, self.kernel, self.process.n_process
        if kernel.factor is None:
            return np.full_like(self.position, np.nan)
        slope = self.rest[1][:n]
        found = self.rest[1].copy()
        found[:n] = multiply_lower(kernel.factor, slope, transpose=True) - self.whitened
        found[n + process.moving] += slope @ self.moved
        return found


class _ProcessDensity[K: SomeKernel]:
    """What the charts share: kernels by θ, of which the last is remembered."""

    # What is computed at one θ.
    kernel_class: Callable[[Process, Array], K]

    def __init__(self, process: Process) -> None:
        self.process = process
        self.size = process.n_process + process.n_theta
        self._last: K | None = None

    def kernel(self, theta: Array) -> K:
        """Return m and K at θ (d,)."""
        last, moving = self._last, self.process.moving
        if last is None or not np.array_equal(last.theta[moving], theta[moving]):
            last = self._last = self.kernel_class(self.process, np.ascontiguousarray(theta))
        return last

    def _split(self, position: Array) -> tuple[Array, K]:
        n = self.process.n_process
        return position[:n], self.kernel(position[n:])

    def whiten(self, position: Array) -> Array:
        """Return (ν, θ) of (s, θ)."""
        own, kernel = self._split(position)
        return np.concatenate((kernel.whiten(own), position[own.size :]))

    def colour(self, position: Array) -> Array:
        """Return (s, θ) of (ν, θ)."""
        own, kernel = self._split(position)
        return np.concatenate((kernel.colour(own), position[own.size :]))


class CentredBase[K: SomeKernel](_ProcessDensity[K]):
    """The density of (s, θ), with kernels of one class."""

    def at(self, position: Array) -> CentredPoint[K]:
        """Evaluate at (s, θ), (n + d,)."""
        values, kernel = self._split(position)
        return CentredPoint(self.process, kernel, position, position, kernel.whiten(values))

    def enter(self, values: Array) -> Array:
        """Return the position of the model's own values."""
        return self.colour(values) if self.process.whitened else np.array(values)


class CentredDensity(CentredBase[Kernel]):
    """The density of (s, θ)."""

    kernel_class = Kernel


class WhitenedDensity(_ProcessDensity[Kernel]):
    """The density of (ν, θ)."""

    kernel_class = Kernel

    def at(self, position: Array) -> WhitenedPoint:
        """Evaluate at (ν, θ), (n + d,)."""
        whitened, kernel = self._split(position)
        return WhitenedPoint(self.process, kernel, position, self.colour(position), whitened)

    def enter(self, values: Array) -> Array:
        """Return the position of the model's own values."""
        return np.array(values) if self.process.whitened else self.whiten(values)
