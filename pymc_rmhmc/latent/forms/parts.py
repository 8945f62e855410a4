"""Latent vectors that are read together: what the charts of sums ask of each of them at one θ.

A vector is ``x = L y`` with ``y ~ N(0, I)`` a priori, where ``L Lᵀ`` is its covariance matrix, or L diagonal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.forms.conditional import factor_or_fail
from pymc_rmhmc.latent.prior import PriorFailure
from pymc_rmhmc.linalg.dense import cholesky_adjoint_of_product, multiply_lower, solve_lower

__all__ = ["CoefficientsPart", "Part", "VectorPart"]

type Array = NDArray[np.float64]


class Part(ABC):
    """One vector of a sum.

    Parameters
    ----------
    design : (n, k) array or sparse array, or None
        A_s; None for the identity.
    """

    size: int

    def __init__(self, design: Any) -> None:
        self.design = design

    def predict(self, values: Array) -> Array:
        """``A v``, (n,)."""
        return values if self.design is None else np.asarray(self.design @ values)

    def collect(self, sites: Array) -> Array:
        """``Aᵀ v``, (k,)."""
        return sites if self.design is None else np.asarray(self.design.T @ sites)

    def between(self, matrix: Array) -> Array:
        """``Aᵀ S A`` of a symmetric S, (k, k)."""
        return matrix if self.design is None else np.asarray(self.design.T @ (self.design.T @ matrix).T)

    def design_bar(self, covariance_bar: Array, spread: Array, noise: Array) -> Array:
        """The derivative by A (n, k), from that by Q and from that by ``A L z``, which is `spread`."""
        both_ways = np.asarray((covariance_bar + covariance_bar.T) @ self.design)
        return self.times_covariance(both_ways) + np.outer(spread, self.scale(noise))

    @abstractmethod
    def scale(self, whitened: Array) -> Array:
        """``L y`` for a vector (k,), or for a matrix (k, m)."""

    @abstractmethod
    def times_covariance(self, matrix: Array) -> Array:
        """``M L Lᵀ`` for an M (n, k)."""

    @abstractmethod
    def unscale_adjoint(self, values: Array) -> Array:
        """``Lᵀ v`` for a vector (k,), or for a matrix (k, m)."""

    @abstractmethod
    def covariance(self) -> Array:
        """``A L Lᵀ Aᵀ``, (n, n)."""

    @abstractmethod
    def to_model(self, whitened: Array) -> Array:
        """The model's variable for a y."""

    @abstractmethod
    def from_model(self, values: Array) -> Array:
        """The y of the model's variable."""

    @abstractmethod
    def log_volume(self) -> float:
        """``log |∂ variable / ∂y|``."""

    @abstractmethod
    def pullback(self, covariance_bar: Array, collected: Array, noise: Array) -> Any:
        """The derivative by K, by all K_i or by D, of what has two: by ``L Lᵀ`` (k, k), and by ``L z`` `collected`."""


class VectorPart(Part):
    """A vector x with a covariance matrix, which the predictor reads times d: ``d x = d m + L y``.

    Parameters
    ----------
    design : (n, k) array or sparse array, or None
        A; None for the identity.
    covariance : (k, k) array
        Of ``d x``, in Fortran order.
    location : (k,) array
        m, the mean of x.
    centred : bool
        Whether the model's variable is x itself. If not it is the whitened vector ``sign(d) y``, which is the same
        whatever d is.
    multiplier : (k,) array or float
        d, of any sign.
    """

    def __init__(
        self, design: Any, covariance: Array, location: Array, *, centred: bool, multiplier: Array | float = 1.0
    ) -> None:
        super().__init__(design)
        self.size = covariance.shape[0]
        self._covariance, self._factor = covariance, factor_or_fail(covariance)
        self._location, self._centred, self._multiplier = location, centred, np.asarray(multiplier)

    def scale(self, whitened: Array) -> Array:
        """``L y``."""
        return multiply_lower(self._factor, whitened)

    def times_covariance(self, matrix: Array) -> Array:
        """``M L Lᵀ`` for an M (n, k)."""
        return np.asarray(matrix @ self._covariance)

    def unscale_adjoint(self, values: Array) -> Array:
        """``Lᵀ v``."""
        return multiply_lower(self._factor, values, transpose=True)

    def covariance(self) -> Array:
        """``A L Lᵀ Aᵀ``, (n, n)."""
        if self.design is None:
            return self._covariance
        return np.asarray(self.design @ (self.design @ self._covariance).T)

    def to_model(self, whitened: Array) -> Array:
        """The model's variable for a y."""
        if not self._centred:
            return np.asarray(np.sign(self._multiplier) * whitened)
        return np.asarray(self._location + self.scale(whitened) / self._multiplier)

    def from_model(self, values: Array) -> Array:
        """The y of the model's variable."""
        if not self._centred:
            return np.asarray(np.sign(self._multiplier) * values)
        return solve_lower(self._factor, self._multiplier * (values - self._location))

    def log_volume(self) -> float:
        """``log |∂ variable / ∂y|``."""
        if not self._centred:
            return 0.0
        return float((np.log(self._factor.diagonal()) - np.log(np.abs(self._multiplier))).sum())

    def pullback(self, covariance_bar: Array, collected: Array, noise: Array) -> Array:
        """The derivative by the covariance, which is let go of."""
        del self._covariance
        return covariance_bar + cholesky_adjoint_of_product(self._factor, collected, noise)


class CoefficientsPart(Part):
    """Independent coefficients; the model's variable is ``location + deviation y``, and ``spread y`` is read."""

    def __init__(self, design: Any, spread: Array, location: Array, deviation: Array) -> None:
        super().__init__(design)
        if not (np.isfinite(spread).all() and np.isfinite(deviation).all()):
            raise PriorFailure(Failure.NON_FINITE, 0)
        self.size = spread.size
        self._spread, self._location, self._deviation = spread, location, deviation

    def scale(self, whitened: Array) -> Array:
        """``L y``."""
        return np.asarray((self._spread * whitened.T).T)

    def times_covariance(self, matrix: Array) -> Array:
        """``M D²`` for an M (n, k)."""
        return np.asarray(matrix * self._spread**2)

    def unscale_adjoint(self, values: Array) -> Array:
        """``Lᵀ v``."""
        return np.asarray((self._spread * values.T).T)

    def covariance(self) -> Array:
        """``A L Lᵀ Aᵀ``, (n, n)."""
        if self.design is None:
            return np.diag(self._spread**2)
        scaled = self.design @ np.diag(self._spread)
        return np.asarray(scaled @ scaled.T)

    def to_model(self, whitened: Array) -> Array:
        """The model's variable for a y."""
        return self._location + self._deviation * whitened

    def from_model(self, values: Array) -> Array:
        """The y of the model's variable."""
        return (values - self._location) / self._deviation

    def log_volume(self) -> float:
        """``log |∂ variable / ∂y|``."""
        return float(np.log(np.abs(self._deviation)).sum())

    def pullback(self, covariance_bar: Array, collected: Array, noise: Array) -> Array:
        """The derivative by D."""
        return np.asarray(2.0 * self._spread * covariance_bar.diagonal() + collected * noise)
