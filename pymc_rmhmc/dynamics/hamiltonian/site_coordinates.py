"""The Gaussian Hamiltonian of a density of ``a = Φ z`` in the coordinates a, with kicks that may be rounded.

Where Φ is invertible, a and ``b = Φ p`` say where a state is. The rotation acts on them element by element, and a kick
adds ``t S̃ ψ'(a)`` to b with an S̃ that need not be ``S = ΦΦᵀ`` to the last digit. Whatever it is, a kick leaves a alone
and moves b by what depends on a alone: it preserves volume, and is undone by one of ``-t``. The steps are then exactly
reversible, and with energies that are H itself at both ends of a trajectory, so is what is accepted: S̃ costs acceptance
at most. In single precision it is half as much to read, which is what a step of some thousands of sites waits for; the
energy takes ``z = Φ⁻¹a`` and ``p = Φ⁻¹b`` once a trajectory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from pymc_rmhmc.dynamics.hamiltonian.gaussian import dot
from pymc_rmhmc.dynamics.hamiltonian.protocols import Advanced, Placed, SitePoint
from pymc_rmhmc.errors import Failure

__all__ = ["InvertibleSiteDensity", "SiteHamiltonian", "SiteState"]

type Array = NDArray[np.float64]
type Pair = tuple[Array, Array]


class InvertibleSiteDensity(Protocol):
    """ψ, and the invertible map Φ (n, n) through which it sees z."""

    def at_sites(self, displacement: Array) -> SitePoint:
        """Evaluate ψ at a (n,), and ``S̃ ψ'(a)``."""

    def apply(self, vector: Array) -> Array:
        """Return ``Φ vector``, (n,)."""

    def solve_pair(self, first: Array, second: Array) -> Pair:
        """Return ``Φ⁻¹`` times each of two vectors (n,)."""

    @property
    def advances(self) -> bool:
        """Whether it makes a trajectory's steps by itself."""

    def advance(self, origin: Placed, point: Any, n_steps: int, step_size: float) -> Advanced:
        """Make steps of half a kick, a rotation and half a kick, from where ψ is `point`."""


@dataclass
class SiteState:
    """A phase state in the coordinates of the sites.

    Attributes
    ----------
    displacement, drive : (n,) array
        a and b.
    point : SitePoint
        ψ at a.
    solve_pair : callable
        ``Φ⁻¹`` of two vectors.
    """

    displacement: Array
    drive: Array
    point: SitePoint
    solve_pair: Callable[[Array, Array], Pair]

    @cached_property
    def standard(self) -> Pair:
        """Z and p (n,), which are solved for when they are first asked for."""
        return self.solve_pair(self.displacement, self.drive)

    @property
    def position(self) -> Array:
        """The position z (n,)."""
        return self.standard[0]

    @property
    def momentum(self) -> Array:
        """The momentum p (n,)."""
        return self.standard[1]

    @property
    def density_point(self) -> SitePoint:
        """What the density itself gave at this position."""
        return self.point

    @property
    def coordinates(self) -> Pair:
        """What `SiteHamiltonian.state` needs to stand here again to the last bit: z and a."""
        return self.position, self.displacement


class SiteHamiltonian:
    """``H = ½ |Φ⁻¹a|² - ψ(a) + ½ |Φ⁻¹b|²``: `SpannedHamiltonian` with kicks that may be rounded.

    Parameters
    ----------
    residual : InvertibleSiteDensity
        ψ and Φ.

    References
    ----------
    Shahbaba, Lan, Johnson and Neal (2014), Split Hamiltonian Monte Carlo, section 3, for the splitting; Neal (2011),
    MCMC using Hamiltonian dynamics, on approximations to compute the trajectory.
    """

    def __init__(self, residual: InvertibleSiteDensity) -> None:
        self.residual = residual

    def state(self, position: Array, displacement: Array | None = None) -> SiteState:
        """Evaluate ψ at z (n,), whose ``Φ z`` (n,) may be known; the momentum is zero until `refresh`."""
        displacement = self.residual.apply(position) if displacement is None else displacement
        nothing = np.zeros_like(position)
        return self._stand(displacement, nothing, self.residual.at_sites(displacement), (position, nothing))

    def refresh(self, state: SiteState, rng: np.random.Generator) -> SiteState:
        """Draw ``p ~ N(0, I)``."""
        position = state.position
        momentum = rng.standard_normal(position.size)
        return self._stand(state.displacement, self.residual.apply(momentum), state.point, (position, momentum))

    def kick(self, state: SiteState, time: float) -> SiteState:
        """Kick b: ``b += time S̃ ψ'(a)``."""
        return self._stand(state.displacement, state.drive + time * state.point.force, state.point)

    def drift(self, state: SiteState, time: float) -> SiteState:
        """Follow the flow of ``½ zᵀz + ½ pᵀp`` for a time: a rotation."""
        displacement, drive = blas.drot(state.displacement, state.drive, math.cos(time), math.sin(time))
        return self._stand(displacement, drive, self.residual.at_sites(displacement))

    def velocity(self, state: SiteState) -> Array:
        """Return ``dz/dt = p``."""
        return state.momentum

    def advances_from(self, state: SiteState) -> bool:
        """Return whether the density makes the steps of a trajectory from here by itself, for `advance`."""
        return self.residual.advances

    def advance(self, state: SiteState, n_steps: int, step_size: float) -> tuple[int, SiteState | None, Failure]:
        """Let the density make the steps: return how many it made, and the end; None where ψ is no number."""
        found = self.residual.advance(state, state.point, n_steps, step_size)
        if not found.finite:
            return found.n_steps, None, Failure.NON_FINITE
        return found.n_steps, self._stand(found.moved, found.driven, found.point), Failure.NONE

    def energy(self, state: SiteState) -> float:
        """Return H, up to a constant; where z and p are not known, this costs two solves."""
        z, p = state.standard
        return 0.5 * (dot(z, z) + dot(p, p)) - state.point.log_density

    def failure(self, state: SiteState) -> Failure:
        """Return NON_FINITE where ψ or its slope is."""
        return state.point.failure

    def _stand(self, displacement: Array, drive: Array, point: SitePoint, standard: Pair | None = None) -> SiteState:
        """Make a state, whose z and p may be known."""
        state = SiteState(displacement, drive, point, self.residual.solve_pair)
        if standard is not None:
            state.standard = standard
        return state
