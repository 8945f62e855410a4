"""Densities that are nearly standard normal, in the flat metric ``G = I``: their quadratic part is a rotation.

Compiled trajectories are made of `kick` and `rotate`, or of `turned` in one pass: they differ in what they evaluate in
between.
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

from pymc_rmhmc.dynamics.hamiltonian.protocols import (
    Advanced,
    Density,
    DensityPoint,
    PhaseState,
    Placed,
    SitePoint,
    ValuePoint,
)
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = [
    "GaussianHamiltonian", "GaussianState", "SiteHamiltonian", "SpannedHamiltonian", "SpannedState", "dot", "kick",
    "rotate", "turned",
]  # fmt: skip

type Array = NDArray[np.float64]
type Pair = tuple[Array, Array]
type FlatState = GaussianState[Any] | SpannedState | SiteState
# Makes a trajectory's steps at once: from a point, a momentum, the number of steps and their size it gives the number
# that was made, and the point and momentum at the end, or None and why.
type Advance[P] = Callable[[P, Array, int, float], tuple[int, tuple[P, Array] | None, Failure]]

# NumPy's own product of two short vectors takes five times as long.
dot: Callable[[Array, Array], float] = blas.ddot


@compiled
def kick(momentum: Array, force: Array, time: float) -> None:  # pragma: no cover - compiled
    """Add a time of a force to a momentum, in place: the flow of ``-φ``."""
    for i in range(momentum.size):
        momentum[i] += time * force[i]


@compiled
def turned(z: float, p: float, cosine: float, sine: float) -> tuple[float, float]:  # pragma: no cover - compiled
    """Return one pair ``(zᵢ, pᵢ)`` after the flow of ``½ zᵀz + ½ pᵀp``: a rotation by an angle."""
    return cosine * z + sine * p, cosine * p - sine * z


@compiled
def rotate(position: Array, momentum: Array, time: float) -> None:  # pragma: no cover - compiled
    """Follow that flow for a time, in place."""
    cosine, sine = math.cos(time), math.sin(time)
    for i in range(position.size):
        position[i], momentum[i] = turned(position[i], momentum[i], cosine, sine)


class _FlatMetric:
    """What Hamiltonians in ``G = I`` share."""

    def velocity(self, state: FlatState) -> Array:
        """Return ``dz/dt = p``."""
        return state.momentum

    def failure(self, state: FlatState) -> Failure:
        """Return NON_FINITE where the density that is left, or its gradient, is."""
        return state.point.failure


class GaussianState[P: ValuePoint](PhaseState[P]):
    """A position with the non-Gaussian part of the log density there, and a momentum (n,)."""

    __slots__ = ()


class GaussianHamiltonian[P: ValuePoint](_FlatMetric):
    """``H(z, p) = ½ zᵀz - φ(z) + ½ pᵀp``: a standard normal times ``exp φ``, in the metric ``G = I``.

    The flow of ``½ zᵀz + ½ pᵀp`` is a rotation and is followed exactly (`drift`); ``-φ`` gives `kick`.
    Where φ is constant the composition is exact at any step size.

    `residual`: φ and its gradient.
    `advance`: what makes a trajectory's steps at once.
    `makes`: what makes whole trajectories, several at once: `grow` such as double until they turn back, `walk` paths.

    References
    ----------
    Shahbaba, Lan, Johnson and Neal (2014), Split Hamiltonian Monte Carlo, section 3.
    """

    def __init__(self, residual: Density[P], advance: Advance[P] | None = None, makes: Any = None) -> None:
        self.residual, self._advance, self.makes = residual, advance, makes

    def state(self, position: Array) -> GaussianState[P]:
        """Evaluate φ; the momentum is zero until `refresh`."""
        return GaussianState(self.residual.at(position), np.zeros_like(position))

    def refresh(self, state: GaussianState[P], rng: np.random.Generator) -> GaussianState[P]:
        """Draw ``p ~ N(0, I)``."""
        return GaussianState(state.point, rng.standard_normal(state.point.position.size))

    def kick[D: DensityPoint](self: GaussianHamiltonian[D], state: GaussianState[D], time: float) -> GaussianState[D]:
        """Follow the flow of -φ for a time: ``p += time ∇φ(z)``."""
        return GaussianState(state.point, state.momentum + time * state.point.gradient)

    def drift(self, state: GaussianState[P], time: float) -> GaussianState[P]:
        """Follow the flow of ``½ zᵀz + ½ pᵀp`` for a time: a rotation of every pair ``(zᵢ, pᵢ)``."""
        position, momentum = blas.drot(state.position, state.momentum, math.cos(time), math.sin(time))
        return GaussianState(self.residual.at(position), momentum)

    def advance(
        self, state: GaussianState[P], n_steps: int, step_size: float
    ) -> tuple[int, GaussianState[P] | None, Failure] | None:
        """Let the density make the steps: return how many it made, and the end, or None and why. None if it cannot."""
        if self._advance is None:
            return None
        n_steps, end, failure = self._advance(state.point, state.momentum, n_steps, step_size)
        return n_steps, None if end is None else GaussianState(*end), failure

    def energy(self, state: GaussianState[P]) -> float:
        """Return H, up to a constant."""
        z, p = state.point.position, state.momentum
        return 0.5 * (dot(z, z) + dot(p, p)) - state.point.log_density


class _Sites(Protocol):
    """ψ, and the linear map Φ (n, k) through which it sees z."""

    def at_sites(self, displacement: Array) -> SitePoint:
        """Evaluate ψ at a (n,), with what a kick adds there."""

    def apply(self, vector: Array) -> Array:
        """Return ``Φ vector``, (n,)."""

    @property
    def advances(self) -> bool:
        """Whether it makes a trajectory's steps by itself."""

    def advance(self, origin: Placed, point: Any, n_steps: int, step_size: float) -> Advanced:
        """Make steps of half a kick, a rotation and half a kick, from a trajectory's origin, where ψ is `point`."""


class SiteDensity(_Sites, Protocol):
    """ψ and any Φ."""

    def adjoint(self, sites: Array) -> Array:
        """Return ``Φᵀ sites``, (k,)."""


class InvertibleSiteDensity(_Sites, Protocol):
    """ψ and an invertible Φ (n, n); kicks may be rounded."""

    def solve_pair(self, first: Array, second: Array) -> Pair:
        """Return ``Φ⁻¹`` times each of two vectors (n,)."""


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
    """A phase state by its displacement from a trajectory's origin."""

    density: SiteDensity
    origin: Origin
    point: SitePoint
    angle: float = 0.0  # how far the rotation has gone since
    along: Pair | None = None  # ``(u, a)`` and ``(v, b)``; None at the origin itself
    gained: float | None = None  # ``½ zᵀz + ½ pᵀp`` less that of the origin, where it is known

    @cached_property
    def _arrays(self) -> Pair:
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
        return self.origin.displacement if self.along is None else self.along[0][self.origin.displacement.size :]

    @property
    def n_sites(self) -> int:
        """The size of a."""
        return self.origin.displacement.size

    @property
    def density_point(self) -> SitePoint:
        """What the density itself gave at this position."""
        return self.point

    @property
    def coordinates(self) -> Pair:
        """What `SpannedHamiltonian.state` needs to stand here again to the last bit: z and a."""
        return self.position, self.displacement


class Standing(Protocol):
    """Where a trajectory can begin: a `SpannedState`, or whatever else knows z, ``Φ z`` and ψ there."""

    @property
    def coordinates(self) -> Pair:
        """Z and ``Φ z``."""

    @property
    def point(self) -> SitePoint:
        """ψ there."""


class SpannedHamiltonian(_FlatMetric):
    """``H(z, p) = ½ zᵀz - ψ(Φ z) + ½ pᵀp``: `GaussianHamiltonian` at one product a step, the same up to rounding.

    Gradients of ``φ(z) = ψ(Φ z)`` lie in the range of Φᵀ, so that along a trajectory from ``(z₀, p₀)``

        z = z₀ cos t + p₀ sin t + Φᵀu,    p = p₀ cos t - z₀ sin t + Φᵀv,

    with u and v of the size of a. What is followed is ``(u, a)`` and ``(v, b)`` with ``b = Φ p``: the rotation
    acts on them element by element, a kick adds ``(ψ', S ψ')`` with ``S = ΦΦᵀ``, and the energy follows from

        ½ zᵀz + ½ pᵀp = ½ z₀ᵀz₀ + ½ p₀ᵀp₀ + ½ uᵀ(Φw + a) + ½ vᵀ(Φw' + b),    w = z - Φᵀu,  w' = p - Φᵀv.

    A step reads one triangle of S where the product with Φ and then Φᵀ reads two, and the memory bus is what a
    step waits for. z itself is formed where somebody asks for it: once a trajectory that is accepted.
    """

    def __init__(self, residual: SiteDensity) -> None:
        self.residual = residual

    def state(self, position: Array, displacement: Array | None = None) -> SpannedState:
        """Evaluate ψ at z (k,), whose ``Φ z`` (n,) may be known; the momentum is zero until `refresh`."""
        displacement = self.residual.apply(position) if displacement is None else displacement
        momentum, drive = np.zeros(position.size), np.zeros(displacement.size)
        origin = Origin(position, momentum, displacement, drive, 0.5 * dot(position, position))
        return SpannedState(self.residual, origin, self.residual.at_sites(displacement), gained=0.0)

    def refresh(self, state: Standing, rng: np.random.Generator) -> SpannedState:
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

    def advance(
        self, state: SpannedState, n_steps: int, step_size: float
    ) -> tuple[int, SpannedState | None, Failure] | None:
        """Let the density make steps, which it can from the origin alone: how many, and the end if ψ is a number."""
        if state.along is not None or not self.residual.advances:
            return None
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


@dataclass
class SiteState:
    """A phase state in the coordinates of the sites: a and b (n,), ψ at a, and ``Φ⁻¹`` of two vectors."""

    displacement: Array
    drive: Array
    point: SitePoint
    solve_pair: Callable[[Array, Array], Pair]
    known: Pair | None = None

    @cached_property
    def standard(self) -> Pair:
        """Z and p (n,), which are solved for when they are first asked for, if they are not known."""
        return self.known or self.solve_pair(self.displacement, self.drive)

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


class SiteHamiltonian(_FlatMetric):
    """``H = ½ |Φ⁻¹a|² - ψ(a) + ½ |Φ⁻¹b|²``: the same in the coordinates a, with kicks that may be rounded.

    Where Φ is invertible, a and ``b = Φ p`` say where a state is. The rotation acts on them element by element, and a
    kick adds ``t S̃ ψ'(a)`` to b with an S̃ that need not be ``S = ΦΦᵀ`` to the last digit. Whatever it is, a kick leaves
    a alone and moves b by what depends on a alone: it preserves volume, and is undone by one of ``-t``. The steps are
    then exactly reversible, and with energies that are H itself at both ends of a trajectory, so is what is accepted: S̃
    costs acceptance at most. In single precision it is half as much to read, which is what a step of some thousands of
    sites waits for; the energy takes ``z = Φ⁻¹a`` and ``p = Φ⁻¹b`` once a trajectory.

    References
    ----------
    Neal (2011), MCMC using Hamiltonian dynamics, on approximations to compute the trajectory.
    """

    def __init__(self, residual: InvertibleSiteDensity) -> None:
        self.residual = residual

    def state(self, position: Array, displacement: Array | None = None) -> SiteState:
        """Evaluate ψ at z (n,), whose ``Φ z`` (n,) may be known; the momentum is zero until `refresh`."""
        displacement = self.residual.apply(position) if displacement is None else displacement
        nothing = np.zeros_like(position)
        return self._at(displacement, nothing, self.residual.at_sites(displacement), (position, nothing))

    def refresh(self, state: SiteState, rng: np.random.Generator) -> SiteState:
        """Draw ``p ~ N(0, I)``."""
        position = state.position
        momentum = rng.standard_normal(position.size)
        return self._at(state.displacement, self.residual.apply(momentum), state.point, (position, momentum))

    def kick(self, state: SiteState, time: float) -> SiteState:
        """Kick b: ``b += time S̃ ψ'(a)``."""
        return self._at(state.displacement, state.drive + time * state.point.force, state.point)

    def drift(self, state: SiteState, time: float) -> SiteState:
        """Follow the flow of ``½ zᵀz + ½ pᵀp`` for a time: a rotation."""
        displacement, drive = blas.drot(state.displacement, state.drive, math.cos(time), math.sin(time))
        return self._at(displacement, drive, self.residual.at_sites(displacement))

    def advance(self, state: SiteState, n_steps: int, step_size: float) -> tuple[int, SiteState | None, Failure] | None:
        """Let the density make the steps, if it can: how many it made, and the end if ψ is a number."""
        if not self.residual.advances:
            return None
        found = self.residual.advance(state, state.point, n_steps, step_size)
        if not found.finite:
            return found.n_steps, None, Failure.NON_FINITE
        return found.n_steps, self._at(found.moved, found.driven, found.point), Failure.NONE

    def energy(self, state: SiteState) -> float:
        """Return H, up to a constant; where z and p are not known, this costs two solves."""
        z, p = state.standard
        return 0.5 * (dot(z, z) + dot(p, p)) - state.point.log_density

    def _at(self, displacement: Array, drive: Array, point: SitePoint, known: Pair | None = None) -> SiteState:
        """Return a state, whose z and p may be known."""
        return SiteState(displacement, drive, point, self.residual.solve_pair, known)
