"""Densities of θ within the joint target: where z is held or moves along, and where the latent values are held.

A value takes the priors' factors, and its derivative by ϑ, twice as costly, is not asked for. Where both move the
derivative by z is had for a few products.

A noise, a dispersion or degrees of freedom say nothing of a latent's prior. Given the latent values their density is
that of the observations alone, and is had with its gradient in O(n). To move them so, and z with them, such that every
latent value stays, is what cannot be done with z held: where data say much of the latent values, a noise is tied to the
z that placed them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure, failure_of
from pymc_rmhmc.interfaces.joint_density import JointDensity
from pymc_rmhmc.latent.charts.marginal import MarginalChart
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta, LatentsPoint

__all__ = [
    "ChartedParameters", "ParameterPoint", "ParametersGivenLatents", "ThetaGivenNoise", "ThetaPoint",
    "WithoutThetaForce",
]  # fmt: skip

type Array = NDArray[np.float64]

@dataclass(slots=True)
class ThetaPoint:
    """The joint target where it is not differentiated by ϑ."""

    position: Array  # ϑ (d,) where z is held; (ϑ, z) where it is not
    # Of ``log π(ϑ, z)``, what a standard normal of ϑ leaves, and one of z if that moves; but for a constant.
    log_density: float = math.nan
    gradient: Any = None  # by z, after zeros for ϑ; None where z is held, or a prior cannot be used
    failure: Failure = Failure.NONE  # why the rest may not be used
    point: LatentsPoint | None = None  # z at this ϑ


class _ThetaDensity:
    """A density of ϑ, whatever else moves."""

    @staticmethod
    def of(point: LatentsPoint) -> ThetaPoint:
        """The ϑ at which z has been evaluated."""
        log_density = point.held.log_marginal + point.log_density
        failure = point.failure if math.isfinite(log_density) else Failure.NON_FINITE
        return ThetaPoint(point.held.standard, log_density, None, failure, point)


class ThetaGivenNoise(_ThetaDensity):
    """The joint target where z is held: a density of ϑ. Latent values move with it.

    `target`: of (ϑ, z).
    `noise` (2 Σk,): z.
    """

    def __init__(self, target: JointTarget, noise: Array) -> None:
        self._target, self._noise = target, noise

    def at(self, standard: Array) -> ThetaPoint:
        """Evaluate the density of ϑ; a failure is a value."""
        try:
            held = LatentsGivenTheta(self._target, standard)
        except PriorFailure as failure:
            return ThetaPoint(standard, failure=failure.failure)
        return self.of(held.at_noise(self._noise))


class WithoutThetaForce(_ThetaDensity):
    """The joint target of ϑ and z, differentiated by z alone: a third of what its whole gradient takes."""

    def __init__(self, target: JointTarget) -> None:
        self._target = target

    def at(self, position: Array) -> ThetaPoint:
        """Evaluate at (ϑ, z); a failure is a value."""
        d = self._target.n_theta
        try:
            held = LatentsGivenTheta(self._target, position[:d])
        except PriorFailure as failure:
            return ThetaPoint(position, failure=failure.failure)
        return self.standing(position[d:], held.at_noise(position[d:]))

    def standing(self, noise: Array, point: LatentsPoint) -> ThetaPoint:
        """The point (ϑ, z) of a z that has been evaluated."""
        held, found = point.held, self.of(point)
        found.position = np.concatenate((held.standard, noise))
        found.gradient = np.concatenate((np.zeros_like(held.standard), held.adjoint(point.residual)))
        return found


@dataclass(slots=True)
class ParameterPoint:
    """Parameters of the likelihoods, where the sites are held."""

    position: Array  # (k,): in the chart
    theta: Array  # (d,): θ, of which the rest is held as well
    # `log_density`, `gradient`: of the density, what a standard normal leaves.
    log_density: float
    gradient: Array

    @property
    def failure(self) -> Failure:
        """NON_FINITE where the density or its slope is."""
        return failure_of(self.log_density, self.gradient)


class ParametersGivenLatents:
    """The density of the likelihoods' parameters given the latent values.

    `density`: the model.
    `theta` (d,): θ, of which all but these parameters is held.
    `eta` of (n,): the sites of every block.
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
