"""What the dynamics ask of a metric, and the two Hamiltonians that are built on it.

`RiemannianHamiltonian` is the general, non-separable ``H(q, p) = -L(q) + ½ log|G(q)| + ½ pᵀG(q)⁻¹p``.
`GaussianHamiltonian` is the special case of a density that is nearly standard normal, in the flat
metric ``G = I``: its quadratic part is integrated exactly, by a rotation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure

__all__ = [
    "Density",
    "DensityPoint",
    "GaussianHamiltonian",
    "GaussianState",
    "Hamiltonian",
    "Metric",
    "MetricPoint",
    "RiemannianHamiltonian",
    "RiemannianState",
]

type Array = NDArray[np.float64]


class DensityPoint(Protocol):
    """A log density evaluated at one position."""

    @property
    def position(self) -> Array:
        """Where, (n,)."""

    @property
    def log_density(self) -> float:
        """The value there, up to a constant."""

    @property
    def gradient(self) -> Array:
        """Its gradient, (n,)."""

    @property
    def failure(self) -> Failure:
        """Why the evaluation cannot be used, `Failure.NONE` if it can."""


class MetricPoint(DensityPoint, Protocol):
    """A metric and the target at one position; everything that is factorised is factorised once, here.

    Derivatives of the metric appear only contracted, never as an (n, n, n) array: `trace_term` is
    ``½ tr(G⁻¹ ∂G/∂qᵢ)`` and `quadratic_term` is ``-½ uᵀ(∂G/∂qᵢ)u``, both of shape (n,).
    """

    half_log_det: float
    trace_term: Array

    def solve(self, vector: Array) -> Array:
        """``G⁻¹ vector``."""

    def sample_momentum(self, rng: np.random.Generator) -> Array:
        """A draw from ``N(0, G)``."""

    def quadratic_term(self, velocity: Array) -> Array:
        """``-½ uᵀ(∂G/∂qᵢ)u`` for every i."""

    def apply_change(self, position: Array, velocity: Array) -> Array:
        """``(G(position) - G(self.position)) velocity`` without a new factorisation."""


class Metric(Protocol):
    """A map from a position to a `MetricPoint`. It reports what fails in `MetricPoint.failure`."""

    def at(self, position: Array) -> MetricPoint:
        """Evaluate the target and the metric, and factorise the metric."""


class Density(Protocol):
    """A log density that can be evaluated with its gradient."""

    def at(self, position: Array) -> DensityPoint:
        """Evaluate at a position (n,)."""


class Hamiltonian[State](Protocol):
    """What a trajectory asks: it never looks inside a state, so that a state can be extended."""

    def state(self, position: Array) -> State:
        """A phase state at a position, with no momentum yet."""

    def refresh(self, state: State, rng: np.random.Generator) -> State:
        """The same position with a fresh momentum (and fresh auxiliaries, if there are any)."""

    def energy(self, state: State) -> float:
        """H of a state: finite, or nan/inf where it cannot be computed."""

    def failure(self, state: State) -> Failure:
        """Why the state cannot be used, `Failure.NONE` if it can."""


@dataclass(frozen=True, slots=True)
class RiemannianState:
    """A position with its factorised metric, and a momentum (n,)."""

    point: MetricPoint
    momentum: Array

    @property
    def position(self) -> Array:
        """The position (n,)."""
        return self.point.position


class RiemannianHamiltonian:
    """``H(q, p) = -L(q) + ½ log|G(q)| + ½ pᵀ G(q)⁻¹ p`` with a position-dependent metric.

    Parameters
    ----------
    metric : Metric
        Carries the target as well, since a metric is usually made of the target's own derivatives.

    References
    ----------
    Girolami and Calderhead (2011), eq. 13; Paquet and Fraccaro (2016), eq. 11.
    """

    def __init__(self, metric: Metric) -> None:
        self.metric = metric

    def state(self, position: Array) -> RiemannianState:
        """The metric at a position; the momentum is zero until `refresh`."""
        return RiemannianState(self.metric.at(position), np.zeros_like(position))

    def refresh(self, state: RiemannianState, rng: np.random.Generator) -> RiemannianState:
        """Draw ``p ~ N(0, G(q))``."""
        return replace(state, momentum=state.point.sample_momentum(rng))

    def energy(self, state: RiemannianState) -> float:
        """H, up to the constant ``½ n log 2π``."""
        kinetic = 0.5 * float(state.momentum @ state.point.solve(state.momentum))
        return -state.point.log_density + state.point.half_log_det + kinetic

    def failure(self, state: RiemannianState) -> Failure:
        """What the evaluation of the metric reported."""
        return state.point.failure


@dataclass(frozen=True, slots=True)
class GaussianState:
    """A position with the non-Gaussian part of the log density there, and a momentum (n,)."""

    point: DensityPoint
    momentum: Array

    @property
    def position(self) -> Array:
        """The position (n,)."""
        return self.point.position


class GaussianHamiltonian:
    """``H(z, p) = ½ zᵀz - φ(z) + ½ pᵀp``: a standard normal times ``exp φ``, in the metric ``G = I``.

    The flow of ``½ zᵀz + ½ pᵀp`` is a rotation and is followed exactly (`drift`); ``-φ`` gives `kick`.
    Where φ is constant the composition is exact at any step size.

    Parameters
    ----------
    residual : Density
        φ and its gradient.

    References
    ----------
    Shahbaba, Lan, Johnson and Neal (2014), Split Hamiltonian Monte Carlo, section 3.
    """

    def __init__(self, residual: Density) -> None:
        self.residual = residual

    def state(self, position: Array) -> GaussianState:
        """Evaluate φ; the momentum is zero until `refresh`."""
        return GaussianState(self.residual.at(position), np.zeros_like(position))

    def refresh(self, state: GaussianState, rng: np.random.Generator) -> GaussianState:
        """Draw ``p ~ N(0, I)``."""
        return GaussianState(state.point, rng.standard_normal(state.position.size))

    def kick(self, state: GaussianState, time: float) -> GaussianState:
        """The flow of -φ for a time: ``p += time ∇φ(z)``."""
        return GaussianState(state.point, state.momentum + time * state.point.gradient)

    def drift(self, state: GaussianState, time: float) -> GaussianState:
        """The flow of ``½ zᵀz + ½ pᵀp`` for a time: a rotation of every pair ``(zᵢ, pᵢ)``."""
        cosine, sine = math.cos(time), math.sin(time)
        position = cosine * state.position + sine * state.momentum
        momentum = cosine * state.momentum - sine * state.position
        return GaussianState(self.residual.at(position), momentum)

    def energy(self, state: GaussianState) -> float:
        """H, up to a constant."""
        z, p = state.position, state.momentum
        return 0.5 * float(z @ z) + 0.5 * float(p @ p) - state.point.log_density

    def failure(self, state: GaussianState) -> Failure:
        """NON_FINITE where φ or its gradient is."""
        return state.point.failure
