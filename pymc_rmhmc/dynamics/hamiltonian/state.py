"""A phase state that is a point with a momentum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian.protocols import DensityPoint

__all__ = ["PhaseState"]

type Array = NDArray[np.float64]


# Not frozen, though nobody writes to them: several are made for every trajectory, and freezing doubles what one takes.
@dataclass(slots=True)
class PhaseState[Point: DensityPoint]:
    """A position with what was evaluated there, and a momentum (n,)."""

    point: Point
    momentum: Array

    @property
    def position(self) -> Array:
        """The position (n,)."""
        return self.point.position

    @property
    def density_point(self) -> DensityPoint:
        """What the density itself gave at this position."""
        return self.point

    @property
    def coordinates(self) -> tuple[Array]:
        """What the Hamiltonian's `state` needs to stand here again."""
        return (self.point.position,)
