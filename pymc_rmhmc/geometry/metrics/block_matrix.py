"""The matrix ``blockdiag(W + K⁻¹, G_θ)`` at one position, factorised.

B = I + D K D = C Cᵀ with D = W^½
(W + K⁻¹)⁻¹ = K - K D B⁻¹ D K,   log|W + K⁻¹| = log|B| - log|K|
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.general.process_density import Kernel
from pymc_rmhmc.geometry.linalg import cholesky, identity_plus_scaled, inverse_lower, multiply_lower
from pymc_rmhmc.geometry.metrics.dense import DenseMatrix

__all__ = ["BlockBar", "BlockMatrix", "LatentBlock"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class BlockBar:
    """The derivative of a number by G.

    Attributes
    ----------
    weight : (n,) array
        By W.
    covariance : (n, n) array or None
        By K; where there is none, that of ``-½ velocityᵀ K⁻¹ velocity``.
    velocity : (n,) array
        Of s.
    theta : (d, d) array
        By G_θ.
    """

    weight: Array
    covariance: Array | None
    velocity: Array
    theta: Array


class LatentBlock:
    """``W + K⁻¹`` by the factor of B, with W and K of one position or of two.

    Parameters
    ----------
    kernel : Kernel
        K, positive definite.
    weight : (n,) array
        W, nowhere negative.
    factor : (n, n) array
        C.
    """

    def __init__(self, kernel: Kernel, weight: Array, factor: Array) -> None:
        self.kernel, self.weight, self._root = kernel, weight, np.sqrt(weight)
        self._inverse = inverse_lower(factor)
        self.half_log_det = float(np.log(factor.diagonal()).sum()) - kernel.half_log_det

    @classmethod
    def factorize(cls, kernel: Kernel, weight: Array) -> LatentBlock | Failure:
        """Factorise B, or say why it has no factor."""
        if kernel.factor is None:
            return Failure.NOT_POSITIVE_DEFINITE
        if not math.isfinite(float(weight @ weight)):
            return Failure.NON_FINITE
        if (weight < 0.0).any():
            return Failure.NOT_POSITIVE_DEFINITE
        factor = cholesky(identity_plus_scaled(kernel.covariance, np.sqrt(weight)))
        return Failure.NOT_POSITIVE_DEFINITE if factor is None else cls(kernel, weight, factor)

    @cached_property
    def scale(self) -> Array:
        """About ``sqrt(diag((W + K⁻¹)⁻¹))``: where data say nothing, the difference is rounding."""
        variance = self.kernel.covariance.diagonal()
        left = (self._inverse**2).sum(axis=0)
        narrowed = np.divide(1.0 - left, self.weight, out=variance.copy(), where=self.weight * variance > 1e-6)
        return np.asarray(np.sqrt(narrowed))

    def solve(self, vector: Array) -> Array:
        """``(W + K⁻¹)⁻¹ vector``, (n,)."""
        smoothed = self.kernel.covariance @ vector
        half = multiply_lower(self._inverse, self._root * smoothed)
        left = multiply_lower(self._inverse, half, transpose=True)
        return np.asarray(smoothed - self.kernel.covariance @ (self._root * left))

    def times(self, vector: Array) -> Array:
        """``(W + K⁻¹) vector``, (n,)."""
        return self.weight * vector + self.kernel.solve(vector)

    def sqrt_times(self, vector: Array) -> Array:
        """``D v₁ + L⁻ᵀ v₂`` of (2n,) numbers."""
        n = self.weight.size
        return self._root * vector[:n] + multiply_lower(self.kernel.inverse_factor, vector[n:], transpose=True)

    def log_det_bars(self) -> tuple[Array, Array]:
        """The derivatives of ``½ log|W + K⁻¹|`` by W (n,) and by K (n, n)."""
        kernel = self.kernel
        scaled = self._inverse * self._root
        joined = scaled.T @ scaled  # D B⁻¹ D = (K + W⁻¹)⁻¹
        image = multiply_lower(self._inverse, np.asfortranarray(self._root[:, None] * kernel.covariance))
        spread = kernel.covariance.diagonal() - (image * image).sum(axis=0)
        return 0.5 * spread, 0.5 * (joined - kernel.inverse)


class BlockMatrix:
    """G at one point, factorised.

    Parameters
    ----------
    latent : LatentBlock
        ``W + K⁻¹``.
    theta : DenseMatrix
        G_θ.
    """

    def __init__(self, latent: LatentBlock, theta: DenseMatrix) -> None:
        self.latent, self.theta = latent, theta
        self._n = latent.weight.size
        self.root_size = 2 * self._n + theta.root_size
        self.half_log_det = latent.half_log_det + theta.half_log_det
        self.scale: float | Array = np.concatenate((latent.scale, theta.scale))

    def solve(self, vector: Array) -> Array:
        """``G⁻¹ vector``, (n + d,)."""
        return np.concatenate((self.latent.solve(vector[: self._n]), self.theta.solve(vector[self._n :])))

    def times(self, vector: Array) -> Array:
        """``G vector``, (n + d,)."""
        return np.concatenate((self.latent.times(vector[: self._n]), self.theta.times(vector[self._n :])))

    def sqrt_times(self, vector: Array) -> Array:
        """``(D v₁ + L⁻ᵀ v₂, L_θ v₃)`` of (2n + d,) numbers."""
        split = 2 * self._n
        return np.concatenate((self.latent.sqrt_times(vector[:split]), self.theta.sqrt_times(vector[split:])))

    def log_det_bar(self) -> BlockBar:
        """The bar of ``½ log|G|``."""
        return BlockBar(*self.latent.log_det_bars(), np.zeros(0), self.theta.log_det_bar())

    def quadratic_bar(self, velocity: Array) -> BlockBar:
        """The bar of ``-½ uᵀGu`` at a fixed u."""
        own, theta = velocity[: self._n], velocity[self._n :]
        return BlockBar(-0.5 * own * own, None, own, self.theta.quadratic_bar(theta))
