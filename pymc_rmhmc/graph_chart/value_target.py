"""A model's density without its gradient, in normalised coordinates ϑ: for trajectories along an emulator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.charts import MarginalChart

__all__ = ["ValuePoint", "ValueTarget"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class ValuePoint:
    """The density at one ϑ.

    Attributes
    ----------
    position, coordinates, values : (d,) array
        The standard normals ϑ, the coordinates z of the model's chart, and the model's values x.
    log_density : float
        What ϑ's has beyond a standard normal.
    charted_log_density, model_log_density : float
        The log density of z, and that of x as the model has it.
    """

    position: Array
    coordinates: Array
    values: Array
    log_density: float
    charted_log_density: float
    model_log_density: float

    @property
    def failure(self) -> Failure:
        """NON_FINITE where the density is."""
        return Failure.NONE if math.isfinite(self.log_density) else Failure.NON_FINITE


@dataclass(frozen=True, slots=True)
class ValueTarget:
    """The log density of ϑ beyond a standard normal, for `GaussianHamiltonian` and for an emulator.

    Parameters
    ----------
    function : callable
        ``(z, constants) -> (log density, [x (d,), log-Jacobian])``.
    constants : array
        Of the model's chart.
    chart : MarginalChart
        From ϑ to z.
    """

    function: Callable[[Array, Array], Sequence[Any]]
    constants: Array
    chart: MarginalChart

    def in_chart(self, chart: MarginalChart) -> ValueTarget:
        """Return this target for another chart's ϑ."""
        return ValueTarget(self.function, self.constants, chart)

    def at(self, position: Array) -> ValuePoint:
        """Evaluate at ϑ (d,); far out, where an emulator may ask, a user's own operation may raise."""
        placed = self.chart.place(position)
        try:
            value, found = self.function(placed.theta, self.constants)
        except (ArithmeticError, RuntimeError, ValueError):  # a matrix without a factor is a ValueError
            value, found = math.nan, np.full(position.size + 1, math.nan)
        log_density = float(value)
        beyond = log_density + placed.log_volume + 0.5 * float(position @ position)
        return ValuePoint(position, placed.theta, found[:-1], beyond, log_density, log_density - float(found[-1]))

    def beyond_normal(self, point: Array) -> float:
        """Return the log density alone; -inf where it cannot be computed."""
        found = self.at(point)
        return -math.inf if found.failure else found.log_density
