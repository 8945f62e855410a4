"""The joint target where the sites are held: a density of what the likelihoods have as parameters of their own.

A noise, a dispersion or degrees of freedom say nothing of a latent's prior. Given the latent values their density is
that of the observations alone, and is had with its gradient in O(n). To move them so, and z with them, such that every
latent value stays, is what cannot be done with z held: where data say much of the latent values, a noise is tied to the
z that placed them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, failure_of
from pymc_rmhmc.interfaces.joint_density import JointDensity
from pymc_rmhmc.latent.charts.marginal import MarginalChart

__all__ = ["ChartedParameters", "ParameterPoint", "ParametersGivenLatents"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class ParameterPoint:
    """Parameters of the likelihoods, where the sites are held.

    Attributes
    ----------
    position : (k,) array
        In the chart.
    theta : (d,) array
        θ, of which the rest is held as well.
    log_density, gradient : float, (k,) array
        Of the density, what a standard normal leaves.
    """

    position: Array
    theta: Array
    log_density: float
    gradient: Array

    @property
    def failure(self) -> Failure:
        """NON_FINITE where the density or its slope is."""
        return failure_of(self.log_density, self.gradient)


class ParametersGivenLatents:
    """The density of the likelihoods' parameters given the latent values.

    Parameters
    ----------
    density : JointDensity
        The model.
    theta : (d,) array
        θ, of which all but these parameters is held.
    eta : sequence of (n,) arrays
        The sites of every block.
    """

    def __init__(self, density: JointDensity, theta: Array, eta: Sequence[Array]) -> None:
        self._density, self._theta, self._eta = density, theta, eta
        self._which = density.of_likelihoods

    def score(self, theta: Array) -> tuple[float, Array]:
        """The log density at a θ, up to a constant, and its gradient by the parameters (k,); nan where it has none."""
        try:
            total, gradient = self._density.rest(theta)
        except np.linalg.LinAlgError:  # of a matrix that is part of the rest
            return math.nan, np.zeros(self._which.size)
        for block, eta in zip(self._density.blocks, self._eta, strict=True):
            log_likelihood, _, by_theta = block.likelihood(theta, eta)
            total, gradient = total + log_likelihood, gradient + by_theta
        return total, gradient[self._which]

    def within(self, chart: MarginalChart) -> ChartedParameters:
        """The density in a chart of the parameters."""
        return ChartedParameters(self, chart, self._theta, self._which)


class ChartedParameters:
    """The same in coordinates in which it is nearly standard normal."""

    def __init__(
        self, held: ParametersGivenLatents, chart: MarginalChart, theta: Array, which: NDArray[np.int64]
    ) -> None:
        self._held, self._chart, self._theta, self._which = held, chart, theta, which

    @property
    def start(self) -> Array:
        """The coordinates (k,) of the θ that was given."""
        return self._chart.recover(self._theta[self._which])

    def at(self, position: Array) -> ParameterPoint:
        """Evaluate; a failure is a value."""
        placed, theta = self._chart.place(position), self._theta.copy()
        theta[self._which] = placed.theta
        log_density, score = self._held.score(theta)
        log_density += placed.log_volume + 0.5 * float(position @ position)
        return ParameterPoint(position, theta, log_density, self._chart.pullback(placed, score) + position)
