"""The Gaussian Hamiltonian of a density that sees z only through ``a = Φ z``, at one product a step.

Gradients of ``φ(z) = ψ(Φ z)`` lie in the range of Φᵀ, so that along a trajectory from ``(z₀, p₀)``

    z = z₀ cos t + p₀ sin t + Φᵀu,    p = p₀ cos t - z₀ sin t + Φᵀv,

with u and v of the size of a. What is followed is ``(u, a)`` and ``(v, b)`` with ``b = Φ p``: the rotation
acts on them element by element, a kick adds ``(ψ', S ψ')`` with ``S = ΦΦᵀ``, and the energy follows from

    ½ zᵀz + ½ pᵀp = ½ z₀ᵀz₀ + ½ p₀ᵀp₀ + ½ uᵀ(Φw + a) + ½ vᵀ(Φw' + b),    w = z - Φᵀu,  w' = p - Φᵀv.

A step reads one triangle of S where the product with Φ and then Φᵀ reads two, and the memory bus is what a
step waits for. z itself is formed where somebody asks for it: once a trajectory that is accepted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from pymc_rmhmc.dynamics.hamiltonian.gaussian import dot
from pymc_rmhmc.dynamics.hamiltonian.protocols import Advanced, Placed, SitePoint
from pymc_rmhmc.errors import Failure

__all__ = ["Origin", "SiteDensity", "SpannedHamiltonian", "SpannedState"]

type Array = NDArray[np.float64]


class SiteDensity(Protocol):
    """ψ, and the linear map Φ (n, k) through which it sees z."""

    def at_sites(self, displacement: Array) -> SitePoint:
        """Evaluate ψ, its slope, and S times the slope, at a (n,)."""

    def apply(self, vector: Array) -> Array:
        """Return ``Φ vector``, (n,)."""

    def adjoint(self, sites: Array) -> Array:
        """Return ``Φᵀ sites``, (k,)."""

    @property
    def advances(self) -> bool:
        """Whether it makes a trajectory's steps by itself."""

    def advance(self, origin: Placed, point: Any, n_steps: int, step_size: float) -> Advanced:
        """Make steps of half a kick, a rotation and half a kick, from a trajectory's origin, where ψ is `point`."""


# Not frozen, though nobody writes to them: freezing would make the making of a state, several times a step,
# as dear as its arithmetic at a hundred sites.
@dataclass(slots=True)
class Origin:
    """Where a trajectory began: z₀ and p₀ (k,), ``Φ z₀`` and ``Φ p₀`` (n,), and ``½ z₀ᵀz₀ + ½ p₀ᵀp₀``."""

    position: Array
    momentum: Array
    displacement: Array
    drive: Array
    energy: float


@dataclass
class SpannedState:
    """A phase state by its displacement from a trajectory's origin.

    Attributes
    ----------
    density : SiteDensity
        For Φᵀ.
    origin : Origin
        Where the trajectory began.
    point : SitePoint
        ψ at a.
    angle : float
        How far the rotation has gone since.
    along : two (2 n,) arrays, or None
        ``(u, a)`` and ``(v, b)``; None at the origin itself.
    gained : float or None
        ``½ zᵀz + ½ pᵀp`` less that of the origin, where it is known.
    """

    density: SiteDensity
    origin: Origin
    point: SitePoint
    angle: float = 0.0
    along: tuple[Array, Array] | None = None
    gained: float | None = None

    @cached_property
    def _arrays(self) -> tuple[Array, Array]:
        """`along`, formed at the origin where a single step asks for it."""
        if self.along is not None:
            return self.along
        nothing = np.zeros(self.n_sites)
        return np.concatenate((nothing, self.origin.displacement)), np.concatenate((nothing, self.origin.drive))

    @property
    def moved(self) -> Array:
        """``(u, a)``, (2 n,)."""
        return self._arrays[0]

    @property
    def driven(self) -> Array:
        """``(v, b)``, (2 n,)."""
        return self._arrays[1]

    @cached_property
    def position(self) -> Array:
        """The position z (k,), formed when it is first asked for."""
        if self.angle == 0.0:
            return self.origin.position
        turned = math.cos(self.angle) * self.origin.position + math.sin(self.angle) * self.origin.momentum
        return turned + self.density.adjoint(self.moved[: self.n_sites])

    @cached_property
    def momentum(self) -> Array:
        """The momentum p (k,)."""
        turned = math.cos(self.angle) * self.origin.momentum - math.sin(self.angle) * self.origin.position
        return turned + self.density.adjoint(self.driven[: self.n_sites])

    @property
    def displacement(self) -> Array:
        """``a = Φ z``, (n,)."""
        return self.origin.displacement if self.along is None else self.moved[self.n_sites :]

    @property
    def n_sites(self) -> int:
        """The size of a."""
        return self.origin.displacement.size

    @property
    def density_point(self) -> SitePoint:
        """What the density itself gave at this position."""
        return self.point

    @property
    def coordinates(self) -> tuple[Array, Array]:
        """What `SpannedHamiltonian.state` needs to stand here again to the last bit: z and a."""
        return self.position, self.displacement


class SpannedHamiltonian:
    """``H(z, p) = ½ zᵀz - ψ(Φ z) + ½ pᵀp``: `GaussianHamiltonian` for a density of this form.

    The two give the same trajectories, up to rounding.

    Parameters
    ----------
    residual : SiteDensity
        ψ and Φ.

    References
    ----------
    Shahbaba, Lan, Johnson and Neal (2014), Split Hamiltonian Monte Carlo, section 3, for the splitting.
    """

    def __init__(self, residual: SiteDensity) -> None:
        self.residual = residual

    def state(self, position: Array, displacement: Array | None = None) -> SpannedState:
        """Evaluate ψ at z (k,), whose ``Φ z`` (n,) may be known; the momentum is zero until `refresh`."""
        displacement = self.residual.apply(position) if displacement is None else displacement
        return self.stand(position, displacement, self.residual.at_sites(displacement))

    def stand(self, position: Array, displacement: Array, point: SitePoint) -> SpannedState:
        """Make the state at a position whose ``Φ z``, and ψ there, are known; the momentum is zero until `refresh`."""
        momentum, drive = np.zeros(position.size), np.zeros(displacement.size)
        origin = Origin(position, momentum, displacement, drive, 0.5 * dot(position, position))
        return SpannedState(self.residual, origin, point, gained=0.0)

    def refresh(self, state: SpannedState, rng: np.random.Generator) -> SpannedState:
        """Draw ``p ~ N(0, I)``, and measure from here."""
        position, displacement = state.coordinates
        momentum = rng.standard_normal(position.size)
        energy = 0.5 * (dot(position, position) + dot(momentum, momentum))
        origin = Origin(position, momentum, displacement, self.residual.apply(momentum), energy)
        return SpannedState(self.residual, origin, state.point, gained=0.0)

    def kick(self, state: SpannedState, time: float) -> SpannedState:
        """Follow the flow of -φ for a time: ``v += time ψ'``, ``b += time S ψ'``."""
        driven = blas.daxpy(state.point.force, state.driven.copy(), a=time)
        return SpannedState(self.residual, state.origin, state.point, state.angle, (state.moved, driven))

    def drift(self, state: SpannedState, time: float) -> SpannedState:
        """Follow the flow of ``½ zᵀz + ½ pᵀp`` for a time: a rotation."""
        moved, driven = blas.drot(state.moved, state.driven, math.cos(time), math.sin(time))
        point = self.residual.at_sites(moved[state.n_sites :])
        return SpannedState(self.residual, state.origin, point, state.angle + time, (moved, driven))

    def velocity(self, state: SpannedState) -> Array:
        """Return ``dz/dt = p``."""
        return state.momentum

    def advances_from(self, state: SpannedState) -> bool:
        """Return whether the density makes the steps of a trajectory from here by itself, for `advance`."""
        return state.along is None and self.residual.advances

    def advance(self, state: SpannedState, n_steps: int, step_size: float) -> tuple[int, SpannedState | None, Failure]:
        """Let the density make steps from the origin: return how many, and the end; None where ψ is no number."""
        found = self.residual.advance(state.origin, state.point, n_steps, step_size)
        if not found.finite:
            return found.n_steps, None, Failure.NON_FINITE
        angle, along = found.n_steps * step_size, (found.moved, found.driven)
        end = SpannedState(self.residual, state.origin, found.point, angle, along, found.gained)
        return found.n_steps, end, Failure.NONE

    def energy(self, state: SpannedState) -> float:
        """Return H, up to a constant, in O(n)."""
        gained = self._gained(state) if state.gained is None else state.gained
        return state.origin.energy + gained - state.point.log_density

    @staticmethod
    def _gained(state: SpannedState) -> float:
        """Return ``½ zᵀz + ½ pᵀp`` less that of the origin."""
        origin, n = state.origin, state.n_sites
        u, v = state.moved[:n], state.driven[:n]
        cosine, sine = math.cos(state.angle), math.sin(state.angle)
        return 0.5 * (
            cosine * (dot(u, origin.displacement) + dot(v, origin.drive))
            + sine * (dot(u, origin.drive) - dot(v, origin.displacement))
            + dot(u, state.moved[n:])
            + dot(v, state.driven[n:])
        )

    def failure(self, state: SpannedState) -> Failure:
        """Return NON_FINITE where ψ or its slope is."""
        return state.point.failure
