"""What metrics in two blocks share, of a process and of its hyperparameters: ``G = blockdiag(W + K⁻¹, G_θ)``.

With the likelihood's information W of s, and R, what everything but the prior of s says of θ, G_θ is R and the
information that s has about θ. How ``W + K⁻¹`` is factorised, and what a number's derivative by K⁻¹ is, subclasses say.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics.dense_metric import DenseMatrix
from pymc_rmhmc.metrics.field import FieldPoint, MetricFieldBase
from pymc_rmhmc.metrics.processes.block_drift import BlockDrift
from pymc_rmhmc.metrics.processes.process_density import CentredBase, CentredPoint, SomeKernel

__all__ = ["LatentBlock", "ProcessBar", "TwoBlockField", "TwoBlockMatrix"]

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


class LatentBlock[Bar: ProcessBar](Protocol):
    """``W + K⁻¹``, factorised.

    Attributes
    ----------
    weight : (n,) array
        W.
    half_log_det : float
        ``½ log|W + K⁻¹|``.
    root_size : int
        How many numbers `sqrt_times` takes.
    """

    weight: Array
    half_log_det: float
    root_size: int

    @property
    def scale(self) -> Array:
        """``sqrt(diag((W + K⁻¹)⁻¹))``, or about that, (n,)."""

    def solve(self, vector: Array) -> Array:
        """Return ``(W + K⁻¹)⁻¹ vector``, (n,)."""

    def times(self, vector: Array) -> Array:
        """Return ``(W + K⁻¹) vector``, (n,)."""

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``R vector``, (n,), with ``R Rᵀ = W + K⁻¹``."""

    def log_det_bar(self, theta: Array) -> Bar:
        """Return the bar of ``½ log|G|``, with that of G_θ."""

    def quadratic_bar(self, velocity: Array, theta: Array) -> Bar:
        """Return the bar of ``-½ uᵀGu`` at a fixed velocity of s, with that of G_θ."""


class TwoBlockMatrix[Bar: ProcessBar]:
    """G at one point, factorised.

    Parameters
    ----------
    latent : LatentBlock
        ``W + K⁻¹``.
    theta : DenseMatrix
        G_θ.
    """

    def __init__(self, latent: LatentBlock[Bar], theta: DenseMatrix) -> None:
        self.latent, self._theta, self._n = latent, theta, latent.weight.size
        self.root_size = latent.root_size + theta.root_size
        self.half_log_det = latent.half_log_det + theta.half_log_det
        self.scale: float | Array = np.concatenate((latent.scale, theta.scale))

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``, (n + d,)."""
        return np.concatenate((self.latent.solve(vector[: self._n]), self._theta.solve(vector[self._n :])))

    def times(self, vector: Array) -> Array:
        """Return ``G vector``, (n + d,)."""
        return np.concatenate((self.latent.times(vector[: self._n]), self._theta.times(vector[self._n :])))

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``(R v₁, L_θ v₂)``, (n + d,)."""
        own, theta = vector[: self.latent.root_size], vector[self.latent.root_size :]
        return np.concatenate((self.latent.sqrt_times(own), self._theta.sqrt_times(theta)))

    def log_det_bar(self) -> Bar:
        """Return the bar of ``½ log|G|``."""
        return self.latent.log_det_bar(self._theta.log_det_bar())

    def quadratic_bar(self, velocity: Array) -> Bar:
        """Return the bar of ``-½ uᵀGu`` at a fixed u."""
        own, theta = velocity[: self._n], velocity[self._n :]
        return self.latent.quadratic_bar(own, self._theta.quadratic_bar(theta))


class TwoBlockField[K: SomeKernel, Bar: ProcessBar](MetricFieldBase[CentredPoint[K], Bar]):
    """``G(s, θ) = blockdiag(W + K⁻¹, G_θ)``.

    Parameters
    ----------
    density : CentredBase
        Of s and θ.
    """

    density: CentredBase[K]

    def __init__(self, density: CentredBase[K]) -> None:
        super().__init__(density)
        moving = density.process.moving
        # Where the coordinates that move K are in G_θ; made once, since an index takes as long as a small product.
        self._own, self._places = np.ix_(moving, moving), density.process.n_process + moving

    @abstractmethod
    def factorize(self, kernel: K, weight: Array) -> LatentBlock[Bar] | Failure:
        """Factorise ``W + K⁻¹``, of a W that is nowhere negative and a K that is positive definite."""

    @abstractmethod
    def pull_prior(self, point: CentredPoint[K], bar: Bar) -> Array:
        """Return ``Σ bar ∘ ∂(K⁻¹)`` by the moving coordinates, (k,)."""

    @abstractmethod
    def theta_bar(self, bar: Array) -> Bar:
        """Turn a derivative by G_θ into one by G."""

    def at(self, point: CentredPoint[K]) -> TwoBlockMatrix[Bar] | Failure:
        """Factorise G at a point of the density."""
        latent = self.latent(point.kernel, point.information[0])
        if isinstance(latent, Failure):
            return latent
        theta = self.theta_matrix(point)
        return theta if isinstance(theta, Failure) else TwoBlockMatrix(latent, theta)

    def latent(self, kernel: K, weight: Array) -> LatentBlock[Bar] | Failure:
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

    def drift_equation(self, point: FieldPoint[Any, Any], velocity: Array, time: float) -> BlockDrift:
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
