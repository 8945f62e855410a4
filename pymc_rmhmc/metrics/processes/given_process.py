"""The metric of a process's hyperparameters alone, with the process held as s or as ``ν = L⁻¹(s - m)``.

Of the density and the metric of a chart of both, what is held stays at its value: the density of θ is that of the
chart there, and the matrix is the corner of G that belongs to θ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import MetricMatrix
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics.field import MetricFieldBase

__all__ = ["GivenDensity", "GivenField", "GivenPoint"]

type Array = NDArray[np.float64]


class GivenPoint:
    """The density at one θ; see `pymc_rmhmc.dynamics.hamiltonian.DensityPoint`.

    Parameters
    ----------
    whole : ProcessPoint
        The density of the chart there.
    """

    def __init__(self, whole: Any) -> None:
        self.whole, n = whole, whole.process.n_process
        self.position, self.gradient = whole.position[n:], whole.gradient[n:]
        self.log_density, self.failure = whole.log_density, whole.failure


class GivenDensity:
    """The density of θ with the other coordinates of a chart held.

    Parameters
    ----------
    whole : CentredDensity or WhitenedDensity
        The density of both.
    """

    def __init__(self, whole: Any) -> None:
        self.whole, self.size = whole, whole.process.n_theta
        self._held = np.full(whole.process.n_process, np.nan)

    def hold(self, position: Array) -> Array:
        """Hold what a position (n + d,) of the chart says, and return its θ (d,)."""
        n = self._held.size
        self._held = np.array(position[:n])
        return np.array(position[n:])

    def at(self, theta: Array) -> GivenPoint:
        """Evaluate at θ, (d,)."""
        return GivenPoint(self.whole.at(np.concatenate((self._held, theta))))


class GivenField[Bar](MetricFieldBase[GivenPoint, Bar]):
    """The corner of a metric's G that belongs to θ.

    Parameters
    ----------
    whole : TwoBlockField or WhitenedField
        The metric of both: s is held in the one, and ν in the other.
    """

    density: GivenDensity

    def __init__(self, whole: Any) -> None:
        super().__init__(GivenDensity(whole.density))
        self._whole, self._n = whole, whole.density.process.n_process

    def at(self, point: GivenPoint) -> MetricMatrix[Bar] | Failure:
        """Factorise G_θ at a point of the density."""
        if not point.whole.kernel.is_positive_definite:
            return Failure.NOT_POSITIVE_DEFINITE
        found: MetricMatrix[Bar] | Failure = self._whole.theta_matrix(point.whole)
        return found

    def product(self, point: GivenPoint, vector: Array) -> Array:
        """Return ``G_θ vector``, (d,), without a factor of G_θ."""
        if not point.whole.kernel.is_positive_definite:
            return np.full_like(vector, np.nan)
        return np.asarray(self._whole.theta_block(point.whole) @ vector)

    def pullback(self, point: GivenPoint, bar: Bar) -> Array:
        """Return ``Σ bar ∘ ∂G_θ/∂θ``, (d,): that of a derivative by G which is 0 outside its corner."""
        return np.asarray(self._whole.pullback(point.whole, self._whole.theta_bar(bar))[self._n :])
