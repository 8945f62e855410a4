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
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from pymc_rmhmc.errors import Failure

__all__ = ["SiteDensity", "SitePoint", "SpannedHamiltonian", "SpannedState"]

type Array = NDArray[np.float64]

# At a hundred sites NumPy's own product of two vectors takes five times as long.
dot: Callable[[Array, Array], float] = blas.ddot


class SitePoint(Protocol):
    """ψ evaluated at one a."""

    @property
    def log_density(self) -> float:
        """ψ(a), up to a constant."""

    @property
    def force(self) -> Array:
        """``(ψ'(a), S ψ'(a))`` in one array, (2 n,)."""

    @property
    def failure(self) -> Failure:
        """Why the evaluation cannot be used, `Failure.NONE` if it can."""


class SiteDensity(Protocol):
    """ψ, and the linear map Φ (n, k) through which it sees z."""

    def at_sites(self, displacement: Array) -> SitePoint:
        """Evaluate ψ, its slope, and S times the slope, at a (n,)."""

    def apply(self, vector: Array) -> Array:
        """``Φ vector``, (n,)."""

    def adjoint(self, sites: Array) -> Array:
        """``Φᵀ sites``, (k,)."""

    @property
    def follows(self) -> bool:
        """Whether it makes a trajectory's steps by itself."""

    def follow(
        self, moved: Array, driven: Array, point: Any, n_steps: int, step_size: float
    ) -> tuple[int, bool, Array, Array, SitePoint]:
        """Steps of half a kick, a rotation and half a kick.

        How many were made, and whether ψ and its slope are numbers after the last: it is the last where they are not.
        Then `SpannedState.moved`, `driven` and `point` there.
        """


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
    angle : float
        How far the rotation has gone since.
    moved : (2 n,) array
        ``(u, a)``.
    driven : (2 n,) array
        ``(v, b)``.
    point : SitePoint
        ψ at a.
    """

    density: SiteDensity
    origin: Origin
    angle: float
    moved: Array
    driven: Array
    point: SitePoint

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
    def n_sites(self) -> int:
        """The size of a."""
        return self.moved.size // 2

    @property
    def coordinates(self) -> tuple[Array, Array]:
        """What `SpannedHamiltonian.state` needs to stand here again to the last bit: z and a."""
        return self.position, self.moved[self.n_sites :]


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
        """The same where ψ at ``Φ z`` is known."""
        nothing = np.zeros_like(displacement)
        origin = Origin(position, np.zeros_like(position), displacement, nothing, 0.5 * dot(position, position))
        return self._at(origin, point)

    def refresh(self, state: SpannedState, rng: np.random.Generator) -> SpannedState:
        """Draw ``p ~ N(0, I)``, and measure from here."""
        position, displacement = state.coordinates
        momentum = rng.standard_normal(position.size)
        energy = 0.5 * (dot(position, position) + dot(momentum, momentum))
        origin = Origin(position, momentum, displacement, self.residual.apply(momentum), energy)
        return self._at(origin, state.point)

    def _at(self, origin: Origin, point: SitePoint) -> SpannedState:
        """The state at an origin itself, where u = v = 0."""
        n = origin.displacement.size
        moved, driven = np.zeros(2 * n), np.zeros(2 * n)
        moved[n:], driven[n:] = origin.displacement, origin.drive
        return SpannedState(self.residual, origin, 0.0, moved, driven, point)

    def kick(self, state: SpannedState, time: float) -> SpannedState:
        """The flow of -φ for a time: ``v += time ψ'``, ``b += time S ψ'``."""
        driven = blas.daxpy(state.point.force, state.driven.copy(), a=time)
        return SpannedState(self.residual, state.origin, state.angle, state.moved, driven, state.point)

    def drift(self, state: SpannedState, time: float) -> SpannedState:
        """The flow of ``½ zᵀz + ½ pᵀp`` for a time: a rotation."""
        moved, driven = blas.drot(state.moved, state.driven, math.cos(time), math.sin(time))
        point = self.residual.at_sites(moved[state.n_sites :])
        return SpannedState(self.residual, state.origin, state.angle + time, moved, driven, point)

    @property
    def follows(self) -> bool:
        """Whether the density makes a trajectory's steps by itself, for `follow`."""
        return self.residual.follows

    def follow(self, state: SpannedState, n_steps: int, step_size: float) -> tuple[int, SpannedState | None]:
        """So many steps, made by the density: how many they were, and where they end; None where ψ is not a number."""
        n_steps, finite, moved, driven, point = self.residual.follow(
            state.moved, state.driven, state.point, n_steps, step_size
        )
        angle = state.angle + n_steps * step_size
        return n_steps, SpannedState(self.residual, state.origin, angle, moved, driven, point) if finite else None

    def energy(self, state: SpannedState) -> float:
        """H, up to a constant, in O(n)."""
        origin, n = state.origin, state.n_sites
        u, v = state.moved[:n], state.driven[:n]
        if state.angle == 0.0 and not v.any():
            return origin.energy - state.point.log_density
        cosine, sine = math.cos(state.angle), math.sin(state.angle)
        gained = (
            cosine * (dot(u, origin.displacement) + dot(v, origin.drive))
            + sine * (dot(u, origin.drive) - dot(v, origin.displacement))
            + dot(u, state.moved[n:])
            + dot(v, state.driven[n:])
        )
        return origin.energy + 0.5 * gained - state.point.log_density

    def failure(self, state: SpannedState) -> Failure:
        """NON_FINITE where ψ or its slope is."""
        return state.point.failure
