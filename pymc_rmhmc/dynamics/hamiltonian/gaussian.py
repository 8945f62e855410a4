"""A density that is nearly standard normal, in the flat metric ``G = I``: its quadratic part is a rotation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from pymc_rmhmc.dynamics.hamiltonian.protocols import Density, DensityPoint, PhaseState
from pymc_rmhmc.errors import Failure

__all__ = ["GaussianHamiltonian", "GaussianState", "dot"]

type Array = NDArray[np.float64]

# NumPy's own product of two short vectors takes five times as long.
dot: Callable[[Array, Array], float] = blas.ddot


class GaussianState(PhaseState[DensityPoint]):
    """A position with the non-Gaussian part of the log density there, and a momentum (n,)."""

    __slots__ = ()


class GaussianHamiltonian:
    """``H(z, p) = ½ zᵀz - φ(z) + ½ pᵀp``: a standard normal times ``exp φ``, in the metric ``G = I``.

    The flow of ``½ zᵀz + ½ pᵀp`` is a rotation and is followed exactly (`drift`); ``-φ`` gives `kick`.
    Where φ is constant the composition is exact at any step size.

    Parameters
    ----------
    residual : Density
        φ and its gradient.
    follow : callable, optional
        What makes a trajectory's steps at once: from a point, a momentum, the number of steps and their size it gives
        the number that was made, and the point and momentum at the end, or None and why.
    makes : object, optional
        What makes whole trajectories, several at once: `grow` such as double until they turn back, `walk` paths.

    References
    ----------
    Shahbaba, Lan, Johnson and Neal (2014), Split Hamiltonian Monte Carlo, section 3.
    """

    def __init__(
        self,
        residual: Density[Any],
        advance: Callable[..., Any] | None = None,
        makes: Any = None,
    ) -> None:
        self.residual, self._advance, self.makes = residual, advance, makes

    def state(self, position: Array) -> GaussianState:
        """Evaluate φ; the momentum is zero until `refresh`."""
        return GaussianState(self.residual.at(position), np.zeros_like(position))

    def refresh(self, state: GaussianState, rng: np.random.Generator) -> GaussianState:
        """Draw ``p ~ N(0, I)``."""
        return GaussianState(state.point, rng.standard_normal(state.position.size))

    def kick(self, state: GaussianState, time: float) -> GaussianState:
        """Follow the flow of -φ for a time: ``p += time ∇φ(z)``."""
        return GaussianState(state.point, state.momentum + time * state.point.gradient)

    def drift(self, state: GaussianState, time: float) -> GaussianState:
        """Follow the flow of ``½ zᵀz + ½ pᵀp`` for a time: a rotation of every pair ``(zᵢ, pᵢ)``."""
        return self.moved(*blas.drot(state.position, state.momentum, math.cos(time), math.sin(time)))

    def moved(self, position: Array, momentum: Array) -> GaussianState:
        """Return the state of a position and momentum to which some flow has led."""
        return GaussianState(self.residual.at(position), momentum)

    def advances_from(self, state: GaussianState) -> bool:
        """Return whether the density makes the steps of a trajectory from here by itself, for `advance`."""
        return self._advance is not None

    def advance(
        self, state: GaussianState, n_steps: int, step_size: float
    ) -> tuple[int, GaussianState | None, Failure]:
        """Let the density make the steps: return how many it made, and the end, or None and why."""
        assert self._advance is not None
        n_steps, end, failure = self._advance(state.point, state.momentum, n_steps, step_size)
        return n_steps, None if end is None else GaussianState(*end), failure

    def velocity(self, state: GaussianState) -> Array:
        """Return ``dz/dt = p``."""
        return state.momentum

    def energy(self, state: GaussianState) -> float:
        """Return H, up to a constant."""
        z, p = state.position, state.momentum
        return 0.5 * (dot(z, z) + dot(p, p)) - state.point.log_density

    def failure(self, state: GaussianState) -> Failure:
        """Return NON_FINITE where φ or its gradient is."""
        return state.point.failure
