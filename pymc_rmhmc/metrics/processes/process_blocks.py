"""What metrics of a process with its hyperparameters share: two blocks, their implicit drift, and θ's corner alone.

With the likelihood's information W of s, and R, what everything but the prior of s says of θ, a metric in two blocks is
``G = blockdiag(W + K⁻¹, G_θ)``, where G_θ is R and the information that s has about θ. How ``W + K⁻¹`` is factorised,
and what a number's derivative by K⁻¹ is, subclasses say.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from pymc_rmhmc.dynamics.hamiltonian import AndersonSolver, ImplicitEquation, MetricMatrix, Solution
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics.field import DenseMatrix, FieldPoint, MetricFieldBase
from pymc_rmhmc.metrics.processes.process_density import (
    CentredBase,
    CentredPoint,
    ProcessDensity,
    SomeKernel,
    SomePoint,
)

__all__ = ["BlockDrift", "GivenField", "LatentBlock", "ProcessBar", "ProcessField", "TwoBlockField"]

type Array = NDArray[np.float64]

# Of Newton's method for G_θ as its first derivatives at q continue it: each takes a d by d solution.
MOST_NEWTON = 8
# How little its last change must be, next to the velocity: the start of a search need not be exact.
ENOUGH = 1e-3
# How often the two parts take turns, where what the rest says of the first part depends on the second.
MOST_TURNS = 30


class ProcessField[Point: SomePoint, Bar, Corner](MetricFieldBase[Point, Bar]):
    """A metric of a process and θ; `Corner` is the derivative of a number by the corner of G that belongs to θ."""

    density: ProcessDensity[Point]

    @abstractmethod
    def theta_block(self, point: Point) -> Array:
        """Return the corner of θ, (d, d)."""

    @abstractmethod
    def theta_matrix(self, point: Point) -> MetricMatrix[Corner] | Failure:
        """Factorise the corner of θ: the metric of θ where the other coordinates are held."""

    @abstractmethod
    def theta_bar(self, bar: Corner) -> Bar:
        """Turn a derivative by the corner of θ into one by G."""


class GivenPoint[Point: SomePoint]:
    """The density at one θ, of a `whole` point of the chart of both; see `pymc_rmhmc.dynamics.hamiltonian`."""

    def __init__(self, whole: Point) -> None:
        self.whole, n = whole, whole.process.n_process
        self.position, self.gradient = whole.position[n:], whole.gradient[n:]
        self.log_density, self.failure = whole.log_density, whole.failure


class GivenDensity[Point: SomePoint]:
    """The density of θ with the other coordinates of a chart held: s, or ``ν = L⁻¹(s - m)``."""

    def __init__(self, whole: ProcessDensity[Point]) -> None:
        self.whole, self.size = whole, whole.process.n_theta
        self._held = np.full(whole.process.n_process, np.nan)

    def hold(self, position: Array) -> Array:
        """Hold what a position (n + d,) of the chart says, and return its θ (d,)."""
        n = self._held.size
        self._held = np.array(position[:n])
        return np.array(position[n:])

    def at(self, theta: Array) -> GivenPoint[Point]:
        """Evaluate at θ, (d,)."""
        return GivenPoint(self.whole.at(np.concatenate((self._held, theta))))


class GivenField[Point: SomePoint, Bar, Corner](MetricFieldBase[GivenPoint[Point], Corner]):
    """The corner of a metric's G that belongs to θ, with the process held."""

    density: GivenDensity[Point]

    def __init__(self, whole: ProcessField[Point, Bar, Corner]) -> None:
        super().__init__(GivenDensity(whole.density))
        self._whole, self._n = whole, whole.density.process.n_process

    def at(self, point: GivenPoint[Point]) -> MetricMatrix[Corner] | Failure:
        """Factorise G_θ at a point of the density."""
        if not point.whole.kernel.is_positive_definite:
            return Failure.NOT_POSITIVE_DEFINITE
        return self._whole.theta_matrix(point.whole)

    def product(self, point: GivenPoint[Point], vector: Array) -> Array:
        """Return ``G_θ vector``, (d,), without a factor of G_θ."""
        if not point.whole.kernel.is_positive_definite:
            return np.full_like(vector, np.nan)
        return np.asarray(self._whole.theta_block(point.whole) @ vector)

    def pullback(self, point: GivenPoint[Point], bar: Corner) -> Array:
        """Return ``Σ bar ∘ ∂G_θ/∂θ``, (d,): that of a derivative by G which is 0 outside its corner."""
        return self._whole.pullback(point.whole, self._whole.theta_bar(bar))[self._n :]


@dataclass(slots=True)
class ProcessBar:
    """The derivative of a number by G: by W (n,), and by G_θ (d, d)."""

    weight: Array
    theta: Array


class LatentBlock[K: SomeKernel, Bar: ProcessBar](ABC):
    """``W + K⁻¹``, factorised, of a W (n,); `root_size` is how many numbers `sqrt_times` takes."""

    root_size: int
    half_log_det: float

    def __init__(self, kernel: K, weight: Array) -> None:
        self.kernel, self.weight = kernel, weight

    @property
    @abstractmethod
    def scale(self) -> Array:
        """``sqrt(diag((W + K⁻¹)⁻¹))``, or about that, (n,)."""

    @abstractmethod
    def solve(self, vector: Array) -> Array:
        """Return ``(W + K⁻¹)⁻¹ vector``, (n,)."""

    def times(self, vector: Array) -> Array:
        """Return ``(W + K⁻¹) vector``, (n,)."""
        return self.weight * vector + self.kernel.solve(vector)

    @abstractmethod
    def sqrt_times(self, vector: Array) -> Array:
        """Return ``R vector``, (n,), with ``R Rᵀ = W + K⁻¹``."""

    @abstractmethod
    def log_det_bar(self, theta: Array) -> Bar:
        """Return the bar of ``½ log|G|``, with that of G_θ."""

    @abstractmethod
    def quadratic_bar(self, velocity: Array, theta: Array) -> Bar:
        """Return the bar of ``-½ uᵀGu`` at a fixed velocity of s, with that of G_θ."""


class TwoBlockMatrix[K: SomeKernel, Bar: ProcessBar]:
    """G at one point, factorised: ``W + K⁻¹``, and G_θ."""

    def __init__(self, latent: LatentBlock[K, Bar], theta: DenseMatrix) -> None:
        self._latent, self._theta, self._n = latent, theta, latent.weight.size
        self.root_size = latent.root_size + theta.root_size
        self.half_log_det = latent.half_log_det + theta.half_log_det
        self.scale: float | Array = np.concatenate((latent.scale, theta.scale))

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``, (n + d,)."""
        return np.concatenate((self._latent.solve(vector[: self._n]), self._theta.solve(vector[self._n :])))

    def times(self, vector: Array) -> Array:
        """Return ``G vector``, (n + d,)."""
        return np.concatenate((self._latent.times(vector[: self._n]), self._theta.times(vector[self._n :])))

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``(R v₁, L_θ v₂)``, (n + d,)."""
        own, theta = vector[: self._latent.root_size], vector[self._latent.root_size :]
        return np.concatenate((self._latent.sqrt_times(own), self._theta.sqrt_times(theta)))

    def log_det_bar(self) -> Bar:
        """Return the bar of ``½ log|G|``."""
        return self._latent.log_det_bar(self._theta.log_det_bar())

    def quadratic_bar(self, velocity: Array) -> Bar:
        """Return the bar of ``-½ uᵀGu`` at a fixed u."""
        own, theta = velocity[: self._n], velocity[self._n :]
        return self._latent.quadratic_bar(own, self._theta.quadratic_bar(theta))


class TwoBlockField[K: SomeKernel, Bar: ProcessBar](ProcessField[CentredPoint[K], Bar, Array]):
    """``G(s, θ) = blockdiag(W + K⁻¹, G_θ)``."""

    density: CentredBase[K]

    def __init__(self, density: CentredBase[K]) -> None:
        super().__init__(density)
        moving = density.process.moving
        # Where the coordinates that move K are in G_θ; made once, since an index takes as long as a small product.
        self._own, self._places = np.ix_(moving, moving), density.process.n_process + moving

    @abstractmethod
    def factorize(self, kernel: K, weight: Array) -> LatentBlock[K, Bar] | Failure:
        """Factorise ``W + K⁻¹``, of a W that is nowhere negative and a K that is positive definite."""

    @abstractmethod
    def pull_prior(self, point: CentredPoint[K], bar: Bar) -> Array:
        """Return ``Σ bar ∘ ∂(K⁻¹)`` by the moving coordinates, (k,)."""

    def at(self, point: CentredPoint[K]) -> TwoBlockMatrix[K, Bar] | Failure:
        """Factorise G at a point of the density."""
        latent = self.latent(point.kernel, point.information[0])
        if isinstance(latent, Failure):
            return latent
        theta = self.theta_matrix(point)
        return theta if isinstance(theta, Failure) else TwoBlockMatrix(latent, theta)

    def latent(self, kernel: K, weight: Array) -> LatentBlock[K, Bar] | Failure:
        """Factorise ``W + K⁻¹`` with W and K of one position or of two, or return why it has no factor."""
        if not kernel.is_positive_definite:
            return Failure.NOT_POSITIVE_DEFINITE
        if not math.isfinite(float(weight @ weight)):
            return Failure.NON_FINITE
        if (weight < 0.0).any():
            return Failure.NOT_POSITIVE_DEFINITE
        return self.factorize(kernel, weight)

    def theta_matrix(self, point: CentredPoint[K]) -> DenseMatrix | Failure:
        """Factorise G_θ: the metric of θ where s is held."""
        return DenseMatrix.factorize(self.theta_block(point))

    def theta_block(self, point: CentredPoint[K]) -> Array:
        """Return G_θ, (d, d)."""
        found = np.array(point.information[2])
        found[self._own] += point.kernel.information
        return found

    def drift_equation(
        self, point: FieldPoint[CentredPoint[K], Bar], velocity: Array, time: float
    ) -> BlockDrift[K, Bar]:
        """See `MetricFieldBase`: the blocks are solved one after the other."""
        return BlockDrift(self, point, velocity, time)

    def product(self, point: CentredPoint[K], vector: Array) -> Array:
        """Return ``G vector``, (n + d,), without a factor of G."""
        if not point.kernel.is_positive_definite:
            return np.full_like(vector, np.nan)
        weight, _, _ = point.information
        own, theta = vector[: weight.size], vector[weight.size :]
        return np.concatenate((weight * own + point.kernel.solve(own), self.theta_block(point) @ theta))

    def pullback(self, point: CentredPoint[K], bar: Bar) -> Array:
        """Return ``Σ bar ∘ ∂G/∂(s, θ)``, (n + d,). Its costly part depends on θ alone, and is known after the first."""
        process, kernel = self.density.process, point.kernel
        if not kernel.is_positive_definite:
            return np.full_like(point.position, np.nan)
        cross = np.zeros((process.n_process, process.n_theta))
        found = np.array(point.pull_information(bar.weight, cross, bar.theta))
        own = bar.theta[self._own].ravel()
        by_information = kernel.information_slopes.reshape((len(process.moving), own.size)) @ own
        found[self._places] += self.pull_prior(point, bar) + by_information
        return found


class BlockDrift[K: SomeKernel, Bar: ProcessBar](ImplicitEquation):
    """The leapfrog's implicit drift in the metric ``blockdiag(W + K⁻¹, G_θ)``, with few evaluations of K.

    The step goes from (s, θ) with the velocity (u, w) to (s', θ') with (u', w'):

        θ' = θ + t (w + w'),   G_θ(s', θ') w' = G_θ(s, θ) w
        s' = s + t (u + u'),   (W(s', θ') + K(θ')⁻¹) u' = (W + K⁻¹) u

    The coordinates of θ that move K come first: their equations depend on the others through R alone, and for most
    models not at all. Then K(θ') and its factor stay while the rest is found. The two parts take turns until both hold.
    """

    def __init__(
        self, field: TwoBlockField[K, Bar], point: FieldPoint[CentredPoint[K], Bar], velocity: Array, time: float
    ) -> None:
        self._field, self._point, self._velocity, self._time = field, point, velocity, time
        self._momentum, self._scale = point.times(velocity), np.asarray(point.scale)
        process = field.density.process
        self._n, self._moving = process.n_process, process.moving
        self._still = np.setdiff1d(np.arange(process.n_theta), self._moving)
        self.start = velocity / self._scale

    def function(self, x: Array) -> Array:
        """Evaluate the map of all velocities in units of their scale."""
        found, parts = np.full_like(x, np.nan), self._parts
        found[parts[0]] = self._kernel_map(x)(x[parts[0]])
        rest = self._rest_map(x)
        if rest is not None:
            found[parts[1]] = rest(x[parts[1]])
        return found

    def solve(self, solver: AndersonSolver) -> Solution:
        """Solve for the velocities that move K given the others, and for the others given those, until both hold."""
        x, count, (first, second) = self.start.copy(), 0, self._parts
        x[first] = self._continued / self._scale[first]
        for _ in range(MOST_TURNS):
            found = solver.solve(self._kernel_map(x), x[first])
            x[first], count = found.argument, count + found.n_iter
            rest = self._rest_map(x) if found.converged else None
            if rest is None:
                break
            found = solver.solve(rest, x[second])
            x[second], count = found.argument, count + found.n_iter
            left = self._kernel_map(x)(x[first]) - x[first]
            if not found.converged or np.abs(left).max(initial=0.0) <= solver.tolerance:
                return replace(found, argument=x, n_iter=count)
        return replace(found, argument=x, n_iter=count, converged=False)

    def conclude(self, x: Array) -> tuple[Array, Array]:
        """Return q' and u'."""
        velocity = self._scale * x
        return self._point.position + self._time * (self._velocity + velocity), velocity

    @cached_property
    def _parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the coordinates are that move K, and where all the others."""
        return self._n + self._moving, np.concatenate((np.arange(self._n), self._n + self._still))

    def _kernel_map(self, given: Array) -> Callable[[Array], Array]:
        """Return Newton's map of the velocities that move K, with the derivatives at q, and all others given."""
        x, first = given.copy(), self._parts[0]

        def mapped(part: Array) -> Array:
            x[first] = part
            position, velocity = self.conclude(x)
            there = self._field.density.at(position)
            if not there.kernel.is_positive_definite:
                return np.full_like(part, np.nan)
            missed = (self._field.theta_block(there) @ velocity[self._n :])[self._moving] - self._momentum[first]
            return np.asarray(part - solved(self._slope, missed) / self._scale[first])

        return mapped

    def _rest_map(self, given: Array) -> Callable[[Array], Array] | None:
        """Return the map of the other velocities, with θ' in K given; None where W + K⁻¹ has no factor."""
        x, n, (_, second) = given.copy(), self._n, self._parts
        kernel = self._field.density.kernel(self.conclude(x)[0][n:])
        block = self._field.latent(kernel, self._point.density_point.information[0])
        if isinstance(block, Failure):
            return None
        began, scale, still = block.solve(self._momentum[:n]), self._scale[second], np.ix_(self._still, self._still)

        def mapped(part: Array) -> Array:
            x[second] = part
            position, velocity = self.conclude(x)
            there = self._field.density.at(position)
            own = began - block.solve((there.information[0] - block.weight) * velocity[:n])
            missed = (self._field.theta_block(there) @ velocity[n:] - self._momentum[n:])[self._still]
            others = velocity[n + self._still] - solved(self._theta_block[still], missed)
            return np.asarray(np.concatenate((own, others)) / scale)

        return mapped

    # ------------------------------------------------------ G_θ as its derivatives at q continue it

    @cached_property
    def _theta_block(self) -> Array:
        """G_θ at q."""
        return self._field.theta_block(self._point.density_point)

    @cached_property
    def _own(self) -> Array:
        """The part of it that belongs to what moves K."""
        return self._theta_block[np.ix_(self._moving, self._moving)]

    @cached_property
    def _continued(self) -> Array:
        """The velocities that move K, if G_θ were ``G_θ(q) + Σ ∂ⱼG_θ (θ'ⱼ - θⱼ)``; as they are if none is found.

        It is a start that needs no other K.
        """
        began = self._velocity[self._parts[0]]
        wanted = self._own @ began
        found = began
        for _ in range(MOST_NEWTON):
            step = solved(self._slope_at(found), self._matrix_at(found) @ found - wanted)
            found = found - step
            if np.abs(step).max(initial=0.0) <= ENOUGH * np.abs(began).max(initial=0.0):
                return found
        return began

    @cached_property
    def _slope(self) -> Array:
        """About the derivative of ``G_θ(θ') w'`` by the velocities w' that move K."""
        return self._slope_at(self._continued)

    def _slope_at(self, velocity: Array) -> Array:
        slopes = self._point.density_point.kernel.information_slopes
        return np.asarray(self._matrix_at(velocity) + self._time * (slopes @ velocity).T)

    def _matrix_at(self, velocity: Array) -> Array:
        """Return G_θ where the velocities end, as its derivatives at q continue it."""
        moved = self._time * (self._velocity[self._parts[0]] + velocity)
        slopes = self._point.density_point.kernel.information_slopes
        return np.asarray(self._own + (moved @ slopes.reshape((moved.size, self._own.size))).reshape(self._own.shape))


def solved(matrix: Array, vector: Array) -> Array:
    """Return ``M⁻¹ v`` for a small matrix without symmetry; nan where it is singular."""
    if not vector.size:
        return vector
    _, _, found, info = lapack.dgesv(matrix, vector)
    return np.asarray(found) if info == 0 else np.full_like(vector, np.nan)
