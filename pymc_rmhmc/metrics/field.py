"""Metrics of any density: from a matrix at every position to what the implicit integrators ask.

A metric says what its matrix G is at a position, and how the derivative of a number by G becomes one by the position
(a *pullback*). Everything else follows from these two. The momentum is ``R z`` with ``R Rᵀ = G``, and

    ½ tr(G⁻¹ ∂G/∂qᵢ)     is the pullback of ½ G⁻¹          the trace term
    -½ uᵀ(∂G/∂qᵢ)u       is the pullback of -½ uuᵀ         the quadratic term at a velocity u

The two implicit equations of the leapfrog are solved for the velocity u in units of its standard deviation. Both use
the factor at the step's beginning alone:

    kick    u = G⁻¹ e - t G⁻¹ quadratic(u),                  p' = e - t quadratic(u)
    drift   u' = u - G⁻¹ [G(q') - G] u',                     q' = q + t (u + u')
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import (
    Density,
    DensityPoint,
    Hamiltonian,
    ImplicitEquation,
    MakeSteps,
    MetricMatrix,
    MetricPoint,
    RiemannianHamiltonian,
)
from pymc_rmhmc.errors import Failure, failure_of
from pymc_rmhmc.linalg.cholesky import cholesky, inverse_lower, multiply_lower

__all__ = [
    "DenseField", "DenseMatrix", "FactorizedMatrix", "FactorizedPoint", "FieldDrift", "FieldPoint", "MetricFieldBase",
]  # fmt: skip

type Array = NDArray[np.float64]


class MetricFieldBase[Point: DensityPoint, Bar](ABC):
    """A metric bound to a density: the base of metrics of your own.

    A subclass says two things. `at` returns the matrix G at a position, factorised. `pullback` turns the derivative of
    a number by G into its derivative by the position. Use `DenseField` if G is a dense array.

    Parameters
    ----------
    density : density
        It has ``at(position)``, whose result has `position` (n,), `log_density`, `gradient` (n,) and `failure`.

    Notes
    -----
    A metric for ``RMHMC(metric=)`` is an object with a `name` and ``bind(density)``, which returns such a field.
    """

    def __init__(self, density: Density[Point]) -> None:
        self.density = density

    @abstractmethod
    def at(self, point: Point) -> MetricMatrix[Bar] | Failure:
        """Return the factorised matrix at a point of the density, or a `Failure` if it has no factor.

        The matrix has `half_log_det`, `scale`, `root_size`, `solve`, `times`, `sqrt_times`, `log_det_bar` and
        `quadratic_bar`; `DenseField` makes one from an array.
        """

    @abstractmethod
    def pullback(self, point: Point, bar: Bar) -> Array:
        """Return ``Σⱼₖ barⱼₖ ∂Gⱼₖ/∂qᵢ`` for every i, (n,)."""

    def product(self, point: Point, vector: Array) -> Array:
        """Return ``G vector``, (n,); nan if there is no G. Override it if a product needs no factor."""
        matrix = self.at(point)
        return np.full_like(vector, np.nan) if isinstance(matrix, Failure) else matrix.times(vector)

    def quadratic_term(self, point: Point, matrix: MetricMatrix[Bar], velocity: Array) -> Array:
        """Return ``-½ uᵀ(∂G/∂qᵢ)u`` for every i, (n,). Override it if that costs less than a pullback."""
        return self.pullback(point, matrix.quadratic_bar(velocity))

    def drift_equation(self, point: FieldPoint[Point, Bar], velocity: Array, time: float) -> ImplicitEquation:
        """Return ``q' = q + time (u + u')`` with ``G(q')u' = G(q)u`` for a velocity u."""
        return FieldDrift(point, velocity, time)

    def evaluate(self, position: Array) -> MetricPoint:
        """Evaluate the density and the metric, and factorise the metric; a failure is in the point."""
        return FieldPoint(self, self.density.at(position))

    def inverse_divergence(self, point: FieldPoint[Point, Bar]) -> Array:
        """Return ``Σⱼ ∂ⱼ(G⁻¹)ᵢⱼ = -Σ (G⁻¹)ᵢₐ ∂ⱼGₐᵦ (G⁻¹)ᵦⱼ`` for every i, (n,), by n(n + 1)/2 pullbacks."""
        unit, inverse = np.eye(point.position.size), np.array([point.solve(e) for e in np.eye(point.position.size)])
        # Of e_a, and of e_a + e_b, the quadratic terms are those of single entries of ∂G.
        own = np.array([-2.0 * point.quadratic_term(e) for e in unit])
        total = np.zeros_like(point.position)
        for a in range(total.size):
            total[a] += inverse[a] @ own[a]
            for b in range(a):
                entry = -point.quadratic_term(unit[a] + unit[b]) - 0.5 * (own[a] + own[b])
                total[a] += inverse[b] @ entry
                total[b] += inverse[a] @ entry
        return -inverse @ total

    def hamiltonian(self) -> Hamiltonian[Any]:
        """Return the Hamiltonian of the density in this metric."""
        return RiemannianHamiltonian(self, self.compiled_steps)

    def compiled_steps(self) -> MakeSteps | None:
        """Return what makes steps of the implicit integrators in compiled code; None if nothing does."""
        return None


class FactorizedPoint[Matrix: MetricMatrix[Any]]:
    """What a point with a factorised matrix G does with vectors."""

    matrix: Matrix

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``, (n,)."""
        return self.matrix.solve(vector)

    def times(self, vector: Array) -> Array:
        """Return ``G vector``, (n,)."""
        return self.matrix.times(vector)

    def sample_momentum(self, rng: np.random.Generator) -> Array:
        """Sample a momentum from ``N(0, G)``."""
        return self.matrix.sqrt_times(rng.standard_normal(self.matrix.root_size))


class FieldPoint[Point: DensityPoint, Bar](FactorizedPoint[MetricMatrix[Bar]]):
    """A metric and the density at one position; see `pymc_rmhmc.dynamics.hamiltonian.MetricPoint`.

    Where there is a `failure`, nothing else may be used.
    """

    def __init__(self, field: MetricFieldBase[Point, Bar], density_point: Point) -> None:
        self._field, self.density_point = field, density_point
        self.position = density_point.position
        self.log_density, self.gradient = density_point.log_density, density_point.gradient
        self.half_log_det = math.nan
        self.scale: float | Array = 1.0
        self.trace_term = np.full_like(self.position, np.nan)
        self.failure = density_point.failure or self._factorize()

    def _factorize(self) -> Failure:
        """Find the matrix and the trace term, or return why there are none."""
        matrix = self._field.at(self.density_point)
        if isinstance(matrix, Failure):
            return matrix
        self.matrix, self.half_log_det, self.scale = matrix, matrix.half_log_det, matrix.scale
        self.trace_term = self._field.pullback(self.density_point, matrix.log_det_bar())
        return failure_of(self.half_log_det, self.trace_term)

    def quadratic_term(self, velocity: Array) -> Array:
        """Return ``-½ uᵀ(∂G/∂qᵢ)u`` for every i."""
        return self._field.quadratic_term(self.density_point, self.matrix, velocity)

    def inverse_divergence(self) -> Array:
        """Return ``Σⱼ ∂ⱼ(G⁻¹)ᵢⱼ`` for every i, (n,)."""
        return self._field.inverse_divergence(self)

    def kick_equation(self, momentum: Array, time: float) -> FieldKick[Point, Bar]:
        """Return the equation ``p' = momentum - time · quadratic_term(G⁻¹p')``."""
        return FieldKick(self, momentum, time)

    def drift_equation(self, velocity: Array, time: float) -> ImplicitEquation:
        """Return the equation ``q' = q + time (u + u')`` with ``G(q')u' = G(q)u``, u the velocity."""
        return self._field.drift_equation(self, velocity, time)

    def nearby(self, position: Array) -> FieldNeighbour[Point, Bar]:
        """Return the density and the metric at another position, without a factor there."""
        return FieldNeighbour(self._field, self.matrix, self._field.density.at(position))


class FieldNeighbour[Point: DensityPoint, Bar]:
    """The density and the metric at one position, seen from another whose metric is factorised."""

    def __init__(self, field: MetricFieldBase[Point, Bar], there: MetricMatrix[Bar], here: Point) -> None:
        self._field, self._there, self._here = field, there, here

    @property
    def gradient(self) -> Array:
        """``∇ log π`` here, (n,)."""
        return self._here.gradient

    def quadratic_term(self, velocity: Array) -> Array:
        """Return ``-½ uᵀ(∂G/∂qᵢ)u`` here, for every i."""
        return self._field.quadratic_term(self._here, self._there, velocity)

    def apply_change(self, velocity: Array) -> Array:
        """Return ``(G(here) - G(there)) velocity``."""
        return self._field.product(self._here, velocity) - self._there.times(velocity)


class FieldKick[Point: DensityPoint, Bar](ImplicitEquation):
    """``p' = momentum - time · quadratic_term(G⁻¹p')``, solved for ``u = G⁻¹p'`` in units of its scale."""

    def __init__(self, point: FieldPoint[Point, Bar], momentum: Array, time: float) -> None:
        self._point, self._momentum, self._time = point, momentum, time
        self.start = point.solve(momentum) / point.scale

    def function(self, x: Array) -> Array:
        """Evaluate the map at x."""
        return self.start - self._point.solve(self._gained(x)) / self._point.scale

    def conclude(self, x: Array) -> tuple[Array, Array]:
        """Return p' and its velocity."""
        momentum = self._momentum - self._gained(x)
        return momentum, self._point.solve(momentum)

    def _gained(self, x: Array) -> Array:
        """Return ``time · quadratic_term(u)``."""
        return self._time * self._point.quadratic_term(self._point.scale * x)


class FieldDrift[Point: DensityPoint, Bar](ImplicitEquation):
    """``q' = q + time (u + u')`` with ``G(q')u' = G(q)u``, solved for u' in units of its scale."""

    def __init__(self, point: FieldPoint[Point, Bar], velocity: Array, time: float) -> None:
        self._point, self._velocity, self._time = point, velocity, time
        self.start = velocity / point.scale

    def function(self, x: Array) -> Array:
        """Evaluate the map at x."""
        position, velocity = self.conclude(x)
        changed = self._point.nearby(position).apply_change(velocity)
        return self.start - self._point.solve(changed) / self._point.scale

    def conclude(self, x: Array) -> tuple[Array, Array]:
        """Return q' and u'."""
        velocity = self._point.scale * x
        return self._point.position + self._time * (self._velocity + velocity), velocity


class FactorizedMatrix:
    """A positive definite dense matrix ``G = L Lᵀ``, whatever derivatives by it look like; `factorize` makes one."""

    def __init__(self, matrix: Array, factor: Array) -> None:
        self._matrix, self._factor = matrix, factor
        self.half_log_det = float(np.log(factor.diagonal()).sum())
        self.inverse_factor = inverse_lower(factor)
        self.scale: float | Array = np.sqrt((self.inverse_factor**2).sum(axis=0))

    @classmethod
    def factorize(cls, matrix: Array) -> Self | Failure:
        """Factorise G, or say why it has no factor."""
        if not np.isfinite(matrix).all():
            return Failure.NON_FINITE
        factor = cholesky(matrix)
        return Failure.NOT_POSITIVE_DEFINITE if factor is None else cls(matrix, factor)

    @property
    def root_size(self) -> int:
        """The size of a vector that `sqrt_times` takes: n."""
        return int(self._matrix.shape[0])

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``, (n,)."""
        half = multiply_lower(self.inverse_factor, vector)
        return multiply_lower(self.inverse_factor, half, transpose=True)

    def times(self, vector: Array) -> Array:
        """Return ``G vector``, (n,)."""
        return np.asarray(self._matrix @ vector)

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``L vector``, (n,)."""
        return multiply_lower(self._factor, vector)


class DenseMatrix(FactorizedMatrix):
    """The same, with a derivative by every entry."""

    def log_det_bar(self) -> Array:
        """Return ``½ G⁻¹``, (n, n)."""
        return np.asarray(0.5 * self.inverse_factor.T @ self.inverse_factor)

    def quadratic_bar(self, velocity: Array) -> Array:
        """Return ``-½ uuᵀ``, (n, n)."""
        return -0.5 * np.outer(velocity, velocity)


class DenseField[Point: DensityPoint](MetricFieldBase[Point, Array]):
    """A metric of your own whose matrix is a dense array.

    Write a subclass with `matrix`, and with `pullback` for its derivative. Bind it in a class with a `name` and
    ``bind(density)``, and give that to ``RMHMC(metric=)``. The integrators then need one Cholesky factor per step.

    Parameters
    ----------
    density : density
        It has ``at(position)``, whose result has `position` (n,), `log_density`, `gradient` (n,) and `failure`. RMHMC
        gives the density of the latent values in coordinates z whose prior is standard normal. There a result also has
        `eta`, the values ``η = η₁ + Φz`` that the likelihood reads, and ``density.predictor.matrix`` is Φ.

    Notes
    -----
    A metric of your own moves latent values alone, as `HessianMetric` does. Any positive definite matrix gives exact
    draws, if `pullback` is its derivative. A wrong derivative shows in the acceptance rate.

    Examples
    --------
    The matrix ``I + Φᵀ diag(w) Φ`` with ``w = 1 + tanh(η)²``:

    >>> import numpy as np
    >>> from pymc_rmhmc import RMHMC, DenseField
    >>> class CurvedField(DenseField):
    ...     def matrix(self, point):
    ...         design = self.density.predictor.matrix
    ...         weight = 1.0 + np.tanh(point.eta) ** 2
    ...         return np.eye(design.shape[1]) + design.T @ (weight[:, None] * design)
    ...
    ...     def pullback(self, point, bar):
    ...         design = self.density.predictor.matrix
    ...         slope = 2.0 * np.tanh(point.eta) / np.cosh(point.eta) ** 2
    ...         return design.T @ (slope * ((design @ bar) * design).sum(axis=1))
    >>> class CurvedMetric:
    ...     name = "curved"
    ...
    ...     def bind(self, density):
    ...         return CurvedField(density)
    >>> CurvedMetric().name  # for pm.sample(step=RMHMC(metric=CurvedMetric()))
    'curved'
    """

    @abstractmethod
    def matrix(self, point: Point) -> Array:
        """Return G at a point of the density, (n, n), symmetric."""

    def at(self, point: Point) -> DenseMatrix | Failure:
        """Factorise G; a `Failure` if it is not finite or not positive definite."""
        return DenseMatrix.factorize(self.matrix(point))

    def product(self, point: Point, vector: Array) -> Array:
        """Return ``G vector``, (n,), without a factor."""
        return np.asarray(self.matrix(point) @ vector)
