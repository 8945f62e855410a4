"""The path ``exp(β φ) N(z; 0, I)`` from a standard normal to a target, as densities that any kernel can move under."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure

__all__ = ["NormalBridge", "TemperedPoint", "TemperedResidual"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class TemperedPoint:
    """``β φ`` at one position.

    Attributes
    ----------
    position, gradient : (d,) array
        Z, and ``β ∇φ``.
    log_density : float
        ``β φ``.
    failure : Failure
        Why the evaluation cannot be used; never one at β = 0, where φ has no weight.
    origin : DensityPoint
        φ itself.
    """

    position: Array
    log_density: float
    gradient: Array
    failure: Failure
    origin: Any


@dataclass(frozen=True, slots=True)
class TemperedResidual:
    """The residual ``β φ``, for `GaussianHamiltonian`.

    Parameters
    ----------
    residual : Density
        φ.
    beta : float
        β.
    """

    residual: Any
    beta: float

    def at(self, position: Array) -> TemperedPoint:
        """Evaluate at z (d,)."""
        origin = self.residual.at(position)
        if self.beta == 0.0:
            return TemperedPoint(position, 0.0, np.zeros_like(position), Failure.NONE, origin)
        value, slope = self.beta * origin.log_density, self.beta * origin.gradient
        return TemperedPoint(position, value, slope, origin.failure, origin)


@dataclass(frozen=True, slots=True)
class NormalBridge:
    """The densities between N(0, I), at β = 0, and a target, at β = 1; see `Bridge`.

    Parameters
    ----------
    residual : Density
        φ: the target is ``exp φ(z) N(z; 0, I)`` up to a constant.

    Notes
    -----
    With the reference q this is the path ``p(z)^β q(z)^(1-β)`` of Syed et al. (2022), Non-reversible parallel
    tempering, section 2.
    """

    residual: Any

    def at(self, beta: float) -> TemperedResidual:
        """Return the residual at an inverse temperature from 0 to 1."""
        return TemperedResidual(self.residual, beta)
