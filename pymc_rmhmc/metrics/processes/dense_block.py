"""``W + K⁻¹`` with a dense K, factorised.

With ``D = W^½`` and ``B = I + D K D = C Cᵀ``,

    (W + K⁻¹)⁻¹ = K - K D B⁻¹ D K,   log|W + K⁻¹| = log|B| - log|K|
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.linalg.cholesky import cholesky, identity_plus_scaled, inverse_lower, multiply_lower
from pymc_rmhmc.metrics.processes.process_density import Kernel

__all__ = ["DenseBar", "DenseBlock"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class DenseBar:
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


class DenseBlock:
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
        self.root_size = 2 * weight.size
        self.half_log_det = float(np.log(factor.diagonal()).sum()) - kernel.half_log_det

    @classmethod
    def factorize(cls, kernel: Kernel, weight: Array) -> DenseBlock | Failure:
        """Factorise B, or say why it has no factor."""
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
        """Return ``(W + K⁻¹)⁻¹ vector``, (n,)."""
        smoothed = self.kernel.covariance @ vector
        half = multiply_lower(self._inverse, self._root * smoothed)
        left = multiply_lower(self._inverse, half, transpose=True)
        return np.asarray(smoothed - self.kernel.covariance @ (self._root * left))

    def times(self, vector: Array) -> Array:
        """Return ``(W + K⁻¹) vector``, (n,)."""
        return self.weight * vector + self.kernel.solve(vector)

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``D v₁ + L⁻ᵀ v₂`` of (2n,) numbers."""
        n = self.weight.size
        return self._root * vector[:n] + multiply_lower(self.kernel.inverse_factor, vector[n:], transpose=True)

    def log_det_bar(self, theta: Array) -> DenseBar:
        """Return the bar of ``½ log|G|``, with that of G_θ."""
        kernel = self.kernel
        scaled = self._inverse * self._root
        joined = scaled.T @ scaled  # D B⁻¹ D = (K + W⁻¹)⁻¹
        image = multiply_lower(self._inverse, np.asfortranarray(self._root[:, None] * kernel.covariance))
        spread = kernel.covariance.diagonal() - (image * image).sum(axis=0)
        return DenseBar(0.5 * spread, 0.5 * (joined - kernel.inverse), np.zeros(0), theta)

    def quadratic_bar(self, velocity: Array, theta: Array) -> DenseBar:
        """Return the bar of ``-½ uᵀGu`` at a fixed u, with that of G_θ."""
        return DenseBar(-0.5 * velocity * velocity, None, velocity, theta)
