"""What the dynamics ask of a density and of a metric, and what a trajectory asks of a Hamiltonian."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.solvers import AndersonSolver, Solution
from pymc_rmhmc.errors import Failure

__all__ = [
    "Advanced", "AdvancedSteps", "AndersonSolver", "Density", "DensityPoint", "Hamiltonian", "ImplicitEquation",
    "MakeSteps", "MetricMatrix", "MetricPoint", "NearbyPoint", "PhaseState", "Placed", "SitePoint", "Solution",
    "ValuePoint",
]  # fmt: skip

type Array = NDArray[np.float64]


class ValuePoint(Protocol):
    """A log density evaluated at one position."""

    @property
    def position(self) -> Array:
        """Where, (n,)."""

    @property
    def log_density(self) -> float:
        """The value there, up to a constant."""

    @property
    def failure(self) -> Failure:
        """Why the evaluation cannot be used, `Failure.NONE` if it can."""


class DensityPoint(ValuePoint, Protocol):
    """The same with its gradient."""

    @property
    def gradient(self) -> Array:
        """The gradient, (n,)."""


class NearbyPoint(Protocol):
    """The target and the metric at one position, seen from another whose metric is factorised."""

    @property
    def gradient(self) -> Array:
        """Of the target's log density here, (n,); nan where it cannot be computed."""

    def quadratic_term(self, velocity: Array) -> Array:
        """Return ``-½ uᵀ(∂G/∂qᵢ)u`` here, for every i."""

    def apply_change(self, velocity: Array) -> Array:
        """Return ``(G(here) - G(there)) velocity``."""


class ImplicitEquation(Protocol):
    """One of the leapfrog's implicit equations as a fixed point ``x = f(x)``.

    The unknown x is the metric's choice: a velocity, or whatever the velocity enters the equation through.
    It is measured in standard deviations, so that one tolerance serves all.
    """

    # Where the velocity does not change: what the step in the other direction begins with as well.
    start: Array

    def function(self, x: Array) -> Array:
        """Evaluate the map at x."""

    def solve(self, solver: AndersonSolver) -> Solution:
        """Find x; override it where parts of x are found one after the other."""
        return solver.solve(self.function, self.start)

    def conclude(self, x: Array) -> tuple[Array, Array]:
        """Return what the solution says: momentum and velocity, or position and velocity."""


class MetricPoint(DensityPoint, Protocol):
    """A metric and the target at one position; everything that is factorised is factorised once, here.

    Derivatives of the metric appear only contracted, never as an (n, n, n) array: `trace_term` is
    ``½ tr(G⁻¹ ∂G/∂qᵢ)`` and `quadratic_term` is ``-½ uᵀ(∂G/∂qᵢ)u``, both of shape (n,). `scale` is that of
    `MetricMatrix`.
    """

    half_log_det: float
    trace_term: Array
    scale: float | Array

    @property
    def density_point(self) -> DensityPoint:
        """What the density itself gave at this position."""

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``."""

    def times(self, vector: Array) -> Array:
        """Return ``G vector``."""

    def sample_momentum(self, rng: np.random.Generator) -> Array:
        """Sample a momentum from ``N(0, G)``."""

    def quadratic_term(self, velocity: Array) -> Array:
        """Return ``-½ uᵀ(∂G/∂qᵢ)u`` for every i."""

    def inverse_divergence(self) -> Array:
        """Return ``Σⱼ ∂ⱼ(G⁻¹)ᵢⱼ`` for every i."""

    def kick_equation(self, momentum: Array, time: float) -> ImplicitEquation:
        """Return the equation ``p' = momentum - time · quadratic_term(G⁻¹p')``; it concludes with p' and ``G⁻¹p'``."""

    def drift_equation(self, velocity: Array, time: float) -> ImplicitEquation:
        """Return the equation ``q' = q + time (u + u')`` with ``G(q')u' = G(q)u``, u the velocity.

        It concludes with q' and u'.
        """

    def nearby(self, position: Array) -> NearbyPoint:
        """Return what can be known of another position without a new factorisation."""


class Density[Point: ValuePoint](Protocol):
    """A log density that can be evaluated."""

    def at(self, position: Array) -> Point:
        """Evaluate at a position (n,)."""


class MetricMatrix[Bar](Protocol):
    """The matrix G of a metric at one position, factorised.

    A *bar* is the derivative of a number by G, in whatever form the field takes it back: an (n, n) array for a dense
    matrix, or fewer numbers if G has a structure. `scale` is about one standard deviation of a velocity, (n,), or 1.0
    if the coordinates have unit scale already: tolerances of solvers are in these units.
    """

    half_log_det: float
    scale: float | Array

    @property
    def root_size(self) -> int:
        """The size of a vector that `sqrt_times` takes."""

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``, (n,)."""

    def times(self, vector: Array) -> Array:
        """Return ``G vector``, (n,)."""

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``R vector`` with ``R Rᵀ = G``, (n,); R may have more columns than rows."""

    def log_det_bar(self) -> Bar:
        """Return the bar of ``½ log|G|``: ``½ G⁻¹``."""

    def quadratic_bar(self, velocity: Array) -> Bar:
        """Return the bar of ``-½ uᵀGu`` at a fixed u: ``-½ uuᵀ``, whatever G is."""


class Placed(Protocol):
    """Where a trajectory of the sites begins."""

    @property
    def displacement(self) -> Array:
        """``a = Φ z``, (n,)."""

    @property
    def drive(self) -> Array:
        """``b = Φ p``, (n,)."""


class SitePoint(Protocol):
    """ψ evaluated at one a."""

    @property
    def log_density(self) -> float:
        """ψ(a), up to a constant."""

    @property
    def force(self) -> Array:
        """What a kick adds: ``(ψ'(a), S ψ'(a))`` in one array, (2 n,), or the second alone, (n,)."""

    @property
    def failure(self) -> Failure:
        """Why the evaluation cannot be used, `Failure.NONE` if it can."""


@dataclass(slots=True)
class Advanced:
    """Steps that a density has made."""

    n_steps: int  # how many
    finite: bool  # whether ψ and its slope are numbers after the last: it is the last where they are not
    moved: Array  # (2 n,), as in `SpannedState`; of a `SiteState`, a and b
    driven: Array
    gained: float  # ``½ zᵀz + ½ pᵀp`` less that of the origin; of a `SiteState`, 0
    point: SitePoint  # ψ at a


# Makes steps of an implicit integrator at once: of a position, a momentum, the number of steps, their size, the rules
# of the solver, and whether it is the midpoint rule.
type MakeSteps = Callable[..., AdvancedSteps]


@dataclass(slots=True)
class AdvancedSteps:
    """Implicit steps that a metric's field has made by itself, in compiled code."""

    position: Array  # (n,), after the last step that succeeded
    momentum: Array
    failure: Failure  # why the last step failed, if it did
    reversal_error: float  # the largest; nan if no step was integrated back
    n_solver_iter: int  # what was counted, a failed step included
    n_metric_evals: int
    n_steps: int


class Hamiltonian[State](Protocol):
    """What a trajectory asks: it never looks inside a state, so that a state can be extended."""

    def refresh(self, state: State, rng: np.random.Generator) -> State:
        """Return the same position with a fresh momentum (and fresh auxiliaries, if there are any)."""

    def energy(self, state: State) -> float:
        """Return H of a state: finite, or nan/inf where it cannot be computed."""

    def velocity(self, state: State) -> Array:
        """Return what its position moves by in a unit of time, (n,)."""

    def failure(self, state: State) -> Failure:
        """Return why the state cannot be used, `Failure.NONE` if it can."""


# Not frozen, though nobody writes to them: several are made for every trajectory, and freezing doubles what one takes.
@dataclass(slots=True)
class PhaseState[Point: ValuePoint]:
    """A position with what was evaluated there, and a momentum (n,)."""

    point: Point
    momentum: Array

    @property
    def position(self) -> Array:
        """The position (n,)."""
        return self.point.position

    @property
    def density_point(self) -> ValuePoint:
        """What the density itself gave at this position."""
        return self.point

    @property
    def coordinates(self) -> tuple[Array]:
        """What the Hamiltonian's `state` needs to stand here again."""
        return (self.point.position,)
