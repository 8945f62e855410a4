"""Metrics whose matrix is a dense array."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import DensityPoint
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.linalg.cholesky import cholesky, inverse_lower, multiply_lower
from pymc_rmhmc.metrics.field import MetricFieldBase

__all__ = ["DenseField", "DenseMatrix"]

type Array = NDArray[np.float64]


class DenseMatrix:
    """A positive definite matrix ``G = L Lᵀ``; `factorize` makes one.

    Parameters
    ----------
    matrix : (n, n) array
        G.
    factor : (n, n) array
        L, lower.

    Attributes
    ----------
    half_log_det : float
        ``½ log|G|``.
    scale : (n,) array
        ``sqrt(diag(G⁻¹))``.
    inverse_factor : (n, n) array
        ``L⁻¹``.
    """

    def __init__(self, matrix: Array, factor: Array) -> None:
        self._matrix, self._factor = matrix, factor
        self.half_log_det = float(np.log(factor.diagonal()).sum())
        self.inverse_factor = inverse_lower(factor)
        self.scale: float | Array = np.sqrt((self.inverse_factor**2).sum(axis=0))

    @classmethod
    def factorize(cls, matrix: Array) -> DenseMatrix | Failure:
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
