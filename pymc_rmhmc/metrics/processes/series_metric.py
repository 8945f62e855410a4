"""The metric of a Gaussian series of the first order and its hyperparameters: ``G = blockdiag(W + Q, G_θ)``.

``W + Q`` has three bands. Its factor, the products with its inverse, and the bands of the inverse, which are all that
derivatives ask of it, take time in proportion to the length of the series.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.linalg.tridiagonal import factorize_series, inverse_bands, solve_series
from pymc_rmhmc.metrics.processes.process_blocks import TwoBlockField
from pymc_rmhmc.metrics.processes.series_density import SeriesDensity, SeriesKernel, SeriesPoint

__all__ = ["SeriesBar", "SeriesBlock", "SeriesField"]

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


class SeriesBlock:
    """``W + Q``, factorised.

    Parameters
    ----------
    kernel : SeriesKernel
        Of Q.
    weight : (n,) array
        W.
    pivots, below : (n,) array
        Of ``W + Q``; see `pymc_rmhmc.linalg.tridiagonal`.
    """

    def __init__(self, kernel: SeriesKernel, weight: Array, pivots: Array, below: Array) -> None:
        self._kernel, self.weight, self._pivots, self._below = kernel, weight, pivots, below
        self._root, self.root_size = np.sqrt(pivots), weight.size
        self.half_log_det = float(np.log(self._root).sum())

    @cached_property
    def _bands(self) -> tuple[Array, Array]:
        """The diagonal of the inverse, and what is next to it."""
        return inverse_bands(self._pivots, self._below)

    @property
    def scale(self) -> Array:
        """``sqrt(diag((W + Q)⁻¹))``, (n,)."""
        return np.asarray(np.sqrt(self._bands[0]))

    def solve(self, vector: Array) -> Array:
        """Return ``(W + Q)⁻¹ vector``, (n,)."""
        return solve_series(self._pivots, self._below, np.ascontiguousarray(vector))

    def times(self, vector: Array) -> Array:
        """Return ``(W + Q) vector``, (n,)."""
        return self.weight * vector + self._kernel.solve(vector)

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``L δ^½ vector``, (n,)."""
        found = self._root * vector
        found[1:] += (self._below * found)[:-1]
        return found

    def log_det_bar(self, theta: Array) -> SeriesBar:
        """Return the bar of ``½ log|G|``, with that of G_θ."""
        diagonal, off = self._bands
        return SeriesBar(0.5 * diagonal, off, theta)

    def quadratic_bar(self, velocity: Array, theta: Array) -> SeriesBar:
        """Return the bar of ``-½ uᵀGu`` at a fixed u, with that of G_θ."""
        off = np.zeros_like(velocity)
        off[:-1] = -velocity[:-1] * velocity[1:]
        return SeriesBar(-0.5 * velocity * velocity, off, theta)


class SeriesField(TwoBlockField[SeriesKernel, SeriesBar]):
    """``G(x, θ) = blockdiag(W + Q, G_θ)``.

    Parameters
    ----------
    density : SeriesDensity
        Of x and θ.
    """

    density: SeriesDensity

    def factorize(self, kernel: SeriesKernel, weight: Array) -> SeriesBlock | Failure:
        """See `TwoBlockField`."""
        pivots, below = factorize_series(np.ascontiguousarray(weight), kernel.tau, kernel.rho)
        if not (pivots > 0.0).all():
            return Failure.NOT_POSITIVE_DEFINITE
        return SeriesBlock(kernel, weight, pivots, below)

    def pull_prior(self, point: SeriesPoint, bar: SeriesBar) -> Array:
        """See `TwoBlockField`."""
        return point.kernel.pull_bands(bar.weight, bar.off)

    def theta_bar(self, bar: Array) -> SeriesBar:
        """See `TwoBlockField`."""
        n = self.density.process.n_process
        return SeriesBar(np.zeros(n), np.zeros(n), bar)
