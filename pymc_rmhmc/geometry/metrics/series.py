"""The metric of a Gaussian series of the first order and its hyperparameters: ``G = blockdiag(W + Q, G_θ)``.

``W + Q`` has three bands. Its factor, the products with its inverse, and the bands of the inverse, which are all that
derivatives ask of it, take time in proportion to the length of the series.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.general.series_density import SeriesDensity, SeriesKernel, SeriesPoint
from pymc_rmhmc.geometry.general.series_loops import factorize_series, inverse_bands, solve_series
from pymc_rmhmc.geometry.metrics.dense import DenseMatrix
from pymc_rmhmc.geometry.metrics.process_blocks import TwoBlockField, TwoBlockMatrix

__all__ = ["SeriesBar", "SeriesField", "SeriesMatrix"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class SeriesBar:
    """The derivative of a number by G.

    Attributes
    ----------
    weight : (n,) array
        By W, which is that by the diagonal of Q.
    off : (n,) array
        By the entries beside Q's diagonal, of both together; the last is 0.
    theta : (d, d) array
        By G_θ.
    """

    weight: Array
    off: Array
    theta: Array


class SeriesMatrix(TwoBlockMatrix[SeriesBar]):
    """G at one point, factorised.

    Parameters
    ----------
    kernel : SeriesKernel
        Of Q.
    weight : (n,) array
        W.
    pivots, below : (n,) array
        Of ``W + Q``; see `pymc_rmhmc.geometry.general.series_loops`.
    theta : DenseMatrix
        G_θ.
    """

    def __init__(self, kernel: SeriesKernel, weight: Array, pivots: Array, below: Array, theta: DenseMatrix) -> None:
        self._kernel, self._weight, self._pivots, self._below = kernel, weight, pivots, below
        self._root = np.sqrt(pivots)
        self._bands = inverse_bands(pivots, below)
        super().__init__(np.sqrt(self._bands[0]), float(np.log(self._root).sum()), weight.size, theta)

    def own_solve(self, vector: Array) -> Array:
        """``(W + Q)⁻¹ vector``, (n,)."""
        return solve_series(self._pivots, self._below, np.ascontiguousarray(vector))

    def own_times(self, vector: Array) -> Array:
        """``(W + Q) vector``, (n,)."""
        return self._weight * vector + self._kernel.solve(vector)

    def own_root_times(self, vector: Array) -> Array:
        """``L δ^½ vector``, (n,)."""
        found = self._root * vector
        found[1:] += (self._below * found)[:-1]
        return found

    def log_det_bar(self) -> SeriesBar:
        """The bar of ``½ log|G|``."""
        diagonal, off = self._bands
        return SeriesBar(0.5 * diagonal, off, self._theta.log_det_bar())

    def quadratic_bar(self, velocity: Array) -> SeriesBar:
        """The bar of ``-½ uᵀGu`` at a fixed u."""
        own, theta = velocity[: self._n], velocity[self._n :]
        off = np.zeros_like(own)
        off[:-1] = -own[:-1] * own[1:]
        return SeriesBar(-0.5 * own * own, off, self._theta.quadratic_bar(theta))


class SeriesField(TwoBlockField[SeriesKernel, SeriesBar]):
    """``G(x, θ) = blockdiag(W + Q, G_θ)``.

    Parameters
    ----------
    density : SeriesDensity
        Of x and θ.
    """

    density: SeriesDensity

    def factorize(self, point: SeriesPoint, weight: Array, theta: DenseMatrix) -> SeriesMatrix | Failure:
        """See `TwoBlockField`."""
        pivots, below = factorize_series(np.ascontiguousarray(weight), point.kernel.tau, point.kernel.rho)
        if not (pivots > 0.0).all():
            return Failure.NOT_POSITIVE_DEFINITE
        return SeriesMatrix(point.kernel, weight, pivots, below, theta)

    def pull_prior(self, point: SeriesPoint, bar: SeriesBar) -> Array:
        """See `TwoBlockField`."""
        return point.kernel.pull_bands(bar.weight, bar.off)
