"""A latent vector with a dense covariance K, or a number times it: ``L Lᵀ = d K d``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import StatedDense
from pymc_rmhmc.latent.operators import Operator, factor_or_fail
from pymc_rmhmc.linalg.cholesky import (
    cholesky_adjoint,
    cholesky_adjoint_of_product,
    gram_lower,
    log_diagonal,
    multiply_lower,
    solve_lower,
)

__all__ = ["DenseOperator"]

type Array = NDArray[np.float64]


class DenseOperator(Operator):
    """A vector x with a covariance matrix, which the predictor reads times d: ``d x = d m + L y``.

    If the model's variable is not x itself, it is the whitened vector ``sign(d) y``, which is the same whatever d is.

    Raises a `PriorFailure` if the covariance is not finite, or not positive definite.

    `stated`: covariance, mean m and d.
    `like`: one with the same covariance, whose factor serves again.
    """

    def __init__(self, stated: StatedDense, like: DenseOperator | None = None) -> None:
        if like is not None:
            self.factor: Array = like.factor
        elif stated.covariance is not None:
            self.factor = factor_or_fail(stated.covariance)
        else:
            self.factor = _factor_of(stated.factor)
        self.size, self.moves = self.factor.shape[0], stated.moves
        self._centred, self._multiplier = stated.is_variable, stated.multiplier
        self.location = stated.location if stated.is_variable else 0.0

    def draw(self, whitened: Array) -> Array:
        """Return ``L y``."""
        return multiply_lower(self.factor, whitened)

    def draw_adjoint(self, values: Array) -> Array:
        """Return ``Lᵀ v``."""
        return multiply_lower(self.factor, values, transpose=True)

    def undraw(self, values: Array) -> Array:
        """Return ``L⁻¹ v``."""
        return solve_lower(self.factor, values)

    def covariance(self) -> Array:
        """Return ``L Lᵀ``: whoever needs it often keeps it, for a chain keeps several operators."""
        return gram_lower(self.factor)

    def matrix(self) -> Array:
        """Return L itself, lower triangular."""
        return self.factor

    def displace(self, whitened: Array) -> Array:
        """Return how far from `location` the model's variable of a y is, of a vector or of each column of a matrix."""
        if not self._centred:
            return np.asarray((np.sign(self._multiplier) * whitened.T).T)
        return np.asarray((self.draw(whitened).T / self._multiplier).T)

    def from_model(self, values: Array) -> Array:
        """Return the y of the model's variable."""
        if not self._centred:
            return np.asarray(np.sign(self._multiplier) * values)
        return solve_lower(self.factor, self._multiplier * (values - self.location))

    def log_volume(self) -> float:
        """Return ``log |∂ variable / ∂y|``."""
        if not self._centred:
            return 0.0
        by_multiplier = np.log(np.abs(self._multiplier)) * np.ones(self.size)
        return log_diagonal(self.factor) - float(by_multiplier.sum())

    def pullback(self, covariance_bar: Array, drawn_bar: Array, noise: Array) -> Array:
        """Return the derivative by the covariance, (k, k)."""
        bar = self.pullback_of_draw(drawn_bar, noise)
        bar += covariance_bar
        return bar

    def pullback_of_draw(self, drawn_bar: Array, noise: Array) -> Array:
        """Return a derivative by the covariance that stands for one by ``L z``: a lower triangle.

        Of several draws, the columns of matrices, the sum.
        """
        if drawn_bar.ndim == 2:
            return cholesky_adjoint(self.factor, (noise @ drawn_bar.T).T)
        return cholesky_adjoint_of_product(self.factor, drawn_bar, noise)


def _factor_of(given: Array | None) -> Array:
    """Return a factor that a model gives as it is read, or raise the failure to count."""
    assert given is not None
    factor = np.asfortranarray(np.tril(given), dtype=np.float64)
    if not np.isfinite(factor).all():
        raise PriorFailure(Failure.NON_FINITE)
    if not (factor.diagonal() > 0.0).all():
        raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE)
    return factor
