"""The joint target where z is held, or moves along: a density of ϑ without its derivative.

A value takes the priors' factors, and its derivative by ϑ, twice as costly, is not asked for. Where both move the
derivative by z is had for a few products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta, LatentsPoint
from pymc_rmhmc.latent.prior import PriorFailure

__all__ = ["ThetaGivenNoise", "ThetaPoint", "WithoutThetaForce"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class ThetaPoint:
    """The joint target where it is not differentiated by ϑ.

    Attributes
    ----------
    position : array
        ϑ (d,) where z is held; (ϑ, z) where it is not.
    log_density : float
        Of ``log π(ϑ, z)``, what a standard normal of ϑ leaves, and one of z if that moves; but for a constant.
    gradient : array or None
        By z, after zeros for ϑ; None where z is held, or a prior cannot be used.
    failure : Failure
        Why the rest may not be used.
    point : LatentsPoint or None
        z at this ϑ.
    """

    position: Array
    log_density: float = math.nan
    gradient: Any = None
    failure: Failure = Failure.NONE
    point: LatentsPoint | None = None


class _ThetaDensity:
    """A density of ϑ, whatever else moves.

    Parameters
    ----------
    target : JointTarget
        Of (ϑ, z).
    """

    def __init__(self, target: JointTarget) -> None:
        self._target = target

    def _hold(self, standard: Array) -> LatentsGivenTheta | Failure:
        """The target at a ϑ, or why there is none."""
        try:
            return LatentsGivenTheta(self._target, standard)
        except PriorFailure as failure:
            return failure.failure

    @staticmethod
    def of(point: LatentsPoint) -> ThetaPoint:
        """The ϑ at which z has been evaluated."""
        log_density = point.held.log_marginal + point.log_density
        failure = point.failure if math.isfinite(log_density) else Failure.NON_FINITE
        return ThetaPoint(point.held.standard, log_density, None, failure, point)


class ThetaGivenNoise(_ThetaDensity):
    """The joint target where z is held: a density of ϑ. Latent values move with it.

    Parameters
    ----------
    target : JointTarget
        Of (ϑ, z).
    noise : (2 Σk,) array
        z.
    """

    def __init__(self, target: JointTarget, noise: Array) -> None:
        super().__init__(target)
        self._noise = noise

    def at(self, standard: Array) -> ThetaPoint:
        """Evaluate the density of ϑ; a failure is a value."""
        held = self._hold(standard)
        if isinstance(held, Failure):
            return ThetaPoint(standard, failure=held)
        return self.of(held.at_noise(self._noise))


class WithoutThetaForce(_ThetaDensity):
    """The joint target of ϑ and z, differentiated by z alone: a third of what its whole gradient takes."""

    def at(self, position: Array) -> ThetaPoint:
        """Evaluate at (ϑ, z); a failure is a value."""
        d = self._target.n_theta
        held = self._hold(position[:d])
        if isinstance(held, Failure):
            return ThetaPoint(position, failure=held)
        return self.standing(position[d:], held.at_noise(position[d:]))

    def standing(self, noise: Array, point: LatentsPoint) -> ThetaPoint:
        """The point (ϑ, z) of a z that has been evaluated."""
        held, found = point.held, self.of(point)
        found.position = np.concatenate((held.standard, noise))
        found.gradient = np.concatenate((np.zeros_like(held.standard), held.adjoint(point.residual)))
        return found
