"""What metrics in two blocks share, of a process and of its hyperparameters: ``G = blockdiag(W + K⁻¹, G_θ)``.

With the likelihood's information W of s, and R, what everything but the prior of s says of θ, G_θ is R and the
information that s has about θ. How ``W + K⁻¹`` is factorised, and what a number's derivative by K⁻¹ is, subclasses say.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.general.process_density import CentredBase, CentredPoint, SomeKernel
from pymc_rmhmc.geometry.metrics.dense import DenseMatrix
from pymc_rmhmc.geometry.metrics.field import MetricFieldBase

__all__ = ["ProcessBar", "TwoBlockField", "TwoBlockMatrix"]

type Array = NDArray[np.float64]


class ProcessBar(Protocol):
    """The derivative of a number by G.

    Attributes
    ----------
    weight : (n,) array
        By W.
    theta : (d, d) array
        By G_θ.
    """

    weight: Array
    theta: Array


class TwoBlockMatrix[Bar: ProcessBar](ABC):
    """G at one point, factorised.

    Parameters
    ----------
    own_scale : (n,) array
        ``sqrt(diag((W + K⁻¹)⁻¹))``, or about that.
    half_log_det : float
        ``½ log|W + K⁻¹|``.
    root_size : int
        How many numbers `own_root_times` takes.
    theta : DenseMatrix
        G_θ.
    """

    def __init__(self, own_scale: Array, half_log_det: float, root_size: int, theta: DenseMatrix) -> None:
        self._n, self._root_size, self._theta = own_scale.size, root_size, theta
        self.root_size = root_size + theta.root_size
        self.half_log_det = half_log_det + theta.half_log_det
        self.scale: float | Array = np.concatenate((own_scale, theta.scale))

    @abstractmethod
    def own_solve(self, vector: Array) -> Array:
        """``(W + K⁻¹)⁻¹ vector``, (n,)."""

    @abstractmethod
    def own_times(self, vector: Array) -> Array:
        """``(W + K⁻¹) vector``, (n,)."""

    @abstractmethod
    def own_root_times(self, vector: Array) -> Array:
        """``R vector``, (n,), with ``R Rᵀ = W + K⁻¹``."""

    @abstractmethod
    def log_det_bar(self) -> Bar:
        """The bar of ``½ log|G|``."""

    @abstractmethod
    def quadratic_bar(self, velocity: Array) -> Bar:
        """The bar of ``-½ uᵀGu`` at a fixed u."""

    def solve(self, vector: Array) -> Array:
        """``G⁻¹ vector``, (n + d,)."""
        return np.concatenate((self.own_solve(vector[: self._n]), self._theta.solve(vector[self._n :])))

    def times(self, vector: Array) -> Array:
        """``G vector``, (n + d,)."""
        return np.concatenate((self.own_times(vector[: self._n]), self._theta.times(vector[self._n :])))

    def sqrt_times(self, vector: Array) -> Array:
        """``(R v₁, L_θ v₂)``, (n + d,)."""
        own, theta = vector[: self._root_size], vector[self._root_size :]
        return np.concatenate((self.own_root_times(own), self._theta.sqrt_times(theta)))


class TwoBlockField[K: SomeKernel, Bar: ProcessBar](MetricFieldBase[CentredPoint[K], Bar]):
    """``G(s, θ) = blockdiag(W + K⁻¹, G_θ)``.

    Parameters
    ----------
    density : CentredBase
        Of s and θ.
    """

    density: CentredBase[K]

    @abstractmethod
    def factorize(self, point: CentredPoint[K], weight: Array, theta: DenseMatrix) -> TwoBlockMatrix[Bar] | Failure:
        """Factorise ``W + K⁻¹``, with G_θ beside it."""

    @abstractmethod
    def pull_prior(self, point: CentredPoint[K], bar: Bar) -> Array:
        """``Σ bar ∘ ∂(K⁻¹)`` by the moving coordinates, (k,)."""

    def at(self, point: CentredPoint[K]) -> TwoBlockMatrix[Bar] | Failure:
        """G at a point of the density, factorised."""
        if not point.kernel.is_positive_definite:
            return Failure.NOT_POSITIVE_DEFINITE
        weight, _, _ = point.information
        if not math.isfinite(float(weight @ weight)):
            return Failure.NON_FINITE
        if (weight < 0.0).any():
            return Failure.NOT_POSITIVE_DEFINITE
        theta = DenseMatrix.factorize(self._theta_block(point))
        return theta if isinstance(theta, Failure) else self.factorize(point, weight, theta)

    def product(self, point: CentredPoint[K], vector: Array) -> Array:
        """``G vector``, (n + d,), without a factor of G."""
        if not point.kernel.is_positive_definite:
            return np.full_like(vector, np.nan)
        weight, _, _ = point.information
        own, theta = vector[: weight.size], vector[weight.size :]
        return np.concatenate((weight * own + point.kernel.solve(own), self._theta_block(point) @ theta))

    def pullback(self, point: CentredPoint[K], bar: Bar) -> Array:
        """``Σ bar ∘ ∂G/∂(s, θ)``, (n + d,): what is dear in it depends on θ alone, and is known after the first."""
        process, kernel = self.density.process, point.kernel
        if not kernel.is_positive_definite:
            return np.full_like(point.position, np.nan)
        n, moving = process.n_process, process.moving
        found = np.array(point.pull_information(bar.weight, np.zeros((n, process.n_theta)), bar.theta))
        own = bar.theta[np.ix_(moving, moving)]
        found[n + moving] += self.pull_prior(point, bar) + np.einsum("kij,ij->k", kernel.information_slopes, own)
        return found

    def _theta_block(self, point: CentredPoint[K]) -> Array:
        """G_θ, (d, d)."""
        moving = self.density.process.moving
        found = np.array(point.information[2])
        found[np.ix_(moving, moving)] += point.kernel.information
        return found
