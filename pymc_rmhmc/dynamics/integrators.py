"""Integrators: one step of size ε along a Hamiltonian's flow. Reversible, volume preserving, second order.

Each integrator returns a `Step`. A failed step holds the cause and no state, and its trajectory is rejected.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from pymc_rmhmc.dynamics.hamiltonian import (
    DensityPoint,
    GaussianHamiltonian,
    GaussianState,
    Hamiltonian,
    ImplicitEquation,
    MetricPoint,
    RiemannianHamiltonian,
    RiemannianState,
    ValuePoint,
)
from pymc_rmhmc.dynamics.solvers import AndersonSolver, Solution
from pymc_rmhmc.errors import ConfigurationError, Failure, shown
from pymc_rmhmc.usage import called_as, switch

__all__ = [
    "GeneralizedLeapfrog", "ImplicitMidpoint", "IntegratorBase", "RotationSplitting", "Step", "Surrogate",
    "SurrogateFlow", "SurrogateSplitting", "count",
]  # fmt: skip

type Array = NDArray[np.float64]

# The integrate-back check compares in the metric's own scale, about one standard deviation. Two exact
# solves differ by a few solver tolerances times the step's condition; another root differs by O(1).
REVERSAL_TOLERANCE_FACTOR = 1e4


class Counted(Protocol):
    """What steps cost."""

    n_steps: int
    n_solver_iter: int
    n_metric_evals: int
    reversal_error: float


def count(total: Counted, step: Counted) -> None:
    """Add what one step, or a path of several, reported."""
    total.n_steps += step.n_steps
    total.n_solver_iter += step.n_solver_iter
    total.n_metric_evals += step.n_metric_evals
    # Unchecked steps report nan, and do not hide a checked one.
    if not math.isnan(step.reversal_error) and not total.reversal_error >= step.reversal_error:
        total.reversal_error = step.reversal_error


# Not frozen: freezing would make the making of one as dear as a short step.
@dataclass(slots=True)
class Step[State]:
    """Outcome of one step, or of several: a new state, or None and the cause."""

    state: State | None  # the new phase state; None if the step failed
    failure: Failure = Failure.NONE  # why it failed
    # How far the step, integrated back, ends from where it began; nan if that was not checked.
    reversal_error: float = math.nan
    n_solver_iter: int = 0  # evaluations of fixed-point maps, those of the check included
    n_metric_evals: int = 0  # metrics that were factorised
    n_steps: int = 1  # how many were made at once


class IntegratorBase(ABC):
    """What integrators share: a path is made step by step, where one knows no better.

    Which Hamiltonian and states it understands, its `step` says.

    Attributes
    ----------
    implicit : bool
        Whether its steps solve equations.
    accepts_any_step : bool
        Whether a step of any size is accepted if the density is normal: a tuned step size then needs a bound.
    """

    implicit = False
    accepts_any_step = False

    def extend(self, hamiltonian: Hamiltonian[Any]) -> Hamiltonian[Any]:
        """Return the Hamiltonian whose states this integrator moves; most take it as it is."""
        return hamiltonian

    def check_step_size(self, step_size: float | None) -> None:
        """Raise a `ConfigurationError` for a step size that it cannot take; None is one that is tuned."""
        del step_size

    def check_u_turn(self) -> None:
        """Raise a `ConfigurationError` if a trajectory cannot end where it turns back."""
        return

    @abstractmethod
    def step(self, hamiltonian: Any, state: Any, step_size: float) -> Step[Any]:
        """Advance by `step_size`; the given state is not changed."""

    def path(self, hamiltonian: Any, state: Any, n_steps: int, step_size: float) -> Step[Any]:
        """Advance so many times, one step after another or several at once; a step that failed is the last."""
        whole = self.step(hamiltonian, state, step_size)
        for _ in range(n_steps - 1):
            if whole.state is None:
                break
            step = self.step(hamiltonian, whole.state, step_size)
            whole.state, whole.failure = step.state, step.failure
            count(whole, step)
        return whole


class Rotating[State](Protocol):
    """A Hamiltonian in the flat metric; see `pymc_rmhmc.dynamics.hamiltonian.GaussianHamiltonian`."""

    def kick(self, state: State, time: float) -> State:
        """Follow the density's gradient for a time."""

    def drift(self, state: State, time: float) -> State:
        """Rotate for a time."""

    def failure(self, state: State) -> Failure:
        """Return why the state cannot be used."""

    def advance(self, state: State, n_steps: int, step_size: float) -> tuple[int, State | None, Failure] | None:
        """Make steps, if it makes them by itself from here: how many were made, and the end, or None and why."""


class RotationSplitting(IntegratorBase):
    """Strang's splitting for a Hamiltonian in the flat metric: half a kick, a rotation, half a kick.

    ``Φ_ε = K_{ε/2} ∘ R_ε ∘ K_{ε/2}`` with ``K_t: p ← p + t ∇φ(z)`` and ``R_t: (z, p) ← (z cos t + p sin t,
    p cos t - z sin t)``, each the exact flow of its part of H. It is explicit; one gradient a step.

    References
    ----------
    Shahbaba, Lan, Johnson and Neal (2014), Split Hamiltonian Monte Carlo, algorithm 1.
    """

    accepts_any_step = True

    def step[State](self, hamiltonian: Rotating[State], state: State, step_size: float) -> Step[State]:
        """Advance by `step_size`."""
        half_kicked = hamiltonian.kick(state, 0.5 * step_size)
        drifted = hamiltonian.drift(half_kicked, step_size)
        failure = hamiltonian.failure(drifted)
        if failure:
            return Step(None, failure, n_metric_evals=1)
        return Step(hamiltonian.kick(drifted, 0.5 * step_size), n_metric_evals=1)

    def path[State](
        self, hamiltonian: Rotating[State], state: State, n_steps: int, step_size: float
    ) -> Step[State]:
        """Advance so many times: at once where the Hamiltonian makes such steps by itself."""
        made = hamiltonian.advance(state, n_steps, step_size)
        if made is None:
            return super().path(hamiltonian, state, n_steps, step_size)
        return Step(made[1], made[2], n_metric_evals=made[0], n_steps=made[0])


class _ImplicitIntegrator(IntegratorBase):
    """What the implicit integrators share: the solver, the check, and the implicit half kick."""

    implicit = True
    # Which of the two a metric is to make in compiled code.
    is_midpoint = False

    def __init__(self, solver: AndersonSolver | None = None, *, check_reversibility: bool = True) -> None:
        if solver is not None and not isinstance(solver, AndersonSolver):
            raise ConfigurationError(
                f"{type(self).__name__} needs an AndersonSolver for its equations, got {shown(solver)}. Leave it "
                f"out, or give {type(self).__name__}(AndersonSolver(1e-9, 100))."
            )
        self.solver = AndersonSolver(1e-9, 100) if solver is None else solver
        self.check_reversibility = switch("check_reversibility", check_reversibility)

    def path(
        self, hamiltonian: RiemannianHamiltonian, state: RiemannianState, n_steps: int, step_size: float
    ) -> Step[RiemannianState]:
        """Advance so many times: at once where the metric makes such steps in compiled code."""
        if hamiltonian.advance is None:
            return super().path(hamiltonian, state, n_steps, step_size)
        return self._followed(hamiltonian, state, n_steps, step_size)

    def _followed(
        self, hamiltonian: RiemannianHamiltonian, state: RiemannianState, n_steps: int, step_size: float
    ) -> Step[RiemannianState]:
        """Let the metric make the steps, and evaluate the state to which they lead."""
        assert hamiltonian.advance is not None
        tolerance = self.reversal_tolerance if self.check_reversibility else -1.0
        rules = (self.solver.tolerance, self.solver.max_iter, self.solver.depth, tolerance)
        made = hamiltonian.advance(state.position, state.momentum, n_steps, step_size, rules, midpoint=self.is_midpoint)
        failure, end = made.failure, None
        if not failure:
            point = hamiltonian.field.evaluate(made.position)
            failure, end = point.failure, RiemannianState(point, made.momentum)
        return Step(
            None if failure else end, failure, made.reversal_error, made.n_solver_iter, made.n_metric_evals,
            made.n_steps,
        )  # fmt: skip

    @property
    def reversal_tolerance(self) -> float:
        """The reversal error above which a step counts as not reversible."""
        return REVERSAL_TOLERANCE_FACTOR * self.solver.tolerance

    def _half_kick(self, point: MetricPoint, momentum: Array, step_size: float) -> tuple[Array, Array, Solution]:
        """Solve ``p' = p - ε/2 ∂H/∂q(q, p')``; return p', its velocity ``G⁻¹p'`` and the solver's report."""
        half = 0.5 * step_size
        return self._solve(point.kick_equation(momentum - half * (point.trace_term - point.gradient), half))

    def _solve(self, equation: ImplicitEquation) -> tuple[Array, Array, Solution]:
        """Solve an equation: return what its solution says, and the solver's report."""
        solution = equation.solve(self.solver)
        return *equation.conclude(solution.argument), solution


@called_as("GeneralizedLeapfrog()")
class GeneralizedLeapfrog(_ImplicitIntegrator):
    """Generalised leapfrog, the papers' integrator for a position-dependent metric.

    The step is ``Φ_ε = C_{ε/2} ∘ B_ε ∘ A_{ε/2}`` with

    (a) ``p' = p - ε/2 ∂H/∂q(q, p')``, implicit in p';
    (b) ``q' = q + ε/2 [G(q)⁻¹p' + G(q')⁻¹p']``, implicit in q';
    (c) ``p'' = p' - ε/2 ∂H/∂q(q', p')``, explicit.

    (a) and (b) need only the factor of G(q), at O(n²) per iteration. So a step costs one new factorisation, that of
    G(q').

    Parameters
    ----------
    solver : AndersonSolver, optional
        Solver for (a) and (b). The default has tolerance 1e-9, at most 100 iterations and depth 6.
    check_reversibility : bool
        Integrate every step back from its end, and reject it if that does not return to its start. An implicit
        equation can have several solutions, and the way back may find another one. Without the check the draws are
        only approximately right.

    References
    ----------
    Leimkuhler and Reich (2004), section 4.2; Girolami and Calderhead (2011), eq. 14-16.

    Examples
    --------
    >>> from pymc_rmhmc import GeneralizedLeapfrog
    >>> GeneralizedLeapfrog().check_reversibility
    True
    """

    def step(
        self, hamiltonian: RiemannianHamiltonian, state: RiemannianState, step_size: float
    ) -> Step[RiemannianState]:
        """Advance by `step_size`."""
        if hamiltonian.advance is not None:
            return self._followed(hamiltonian, state, 1, step_size)
        point = state.point
        # (a)
        momentum, velocity, kicked = self._half_kick(point, state.momentum, step_size)
        n_iter = kicked.n_iter
        if not kicked.converged:
            return Step(None, Failure.SOLVER, n_solver_iter=n_iter)
        # (b)
        position, _, drifted = self._drift(point, velocity, step_size)
        n_iter += drifted.n_iter
        if not drifted.converged:
            return Step(None, Failure.SOLVER, n_solver_iter=n_iter)
        end = hamiltonian.field.evaluate(position)
        if end.failure:
            return Step(None, end.failure, n_solver_iter=n_iter, n_metric_evals=1)
        # (c)
        end_force = end.trace_term - end.gradient + end.quadratic_term(end.solve(momentum))
        new = RiemannianState(end, momentum - 0.5 * step_size * end_force)
        if not np.isfinite(new.momentum).all():
            return Step(None, Failure.NON_FINITE, n_solver_iter=n_iter, n_metric_evals=1)
        if not self.check_reversibility:
            return Step(new, n_solver_iter=n_iter, n_metric_evals=1)
        error, n_back = self._reversal_error(new, point.position, velocity, step_size)
        failure = Failure.NONE if error <= self.reversal_tolerance else Failure.NON_REVERSIBLE
        return Step(None if failure else new, failure, error, n_iter + n_back, 1)

    def _drift(self, point: MetricPoint, velocity: Array, step_size: float) -> tuple[Array, Array, Solution]:
        """Solve (b) from ``u = G(q)⁻¹p'``: return q', ``u' = G(q')⁻¹p'`` and the solver's report."""
        return self._solve(point.drift_equation(velocity, 0.5 * step_size))

    def _reversal_error(
        self, end: RiemannianState, position: Array, velocity: Array, step_size: float
    ) -> tuple[float, int]:
        """Return how far (a) and (b) of the reversed step, solved from the end, miss the beginning; and evaluations.

        (c) reversed is then (a) forward, read from right to left, and holds to the residual of (a).
        """
        _, back_velocity, kicked = self._half_kick(end.point, -end.momentum, step_size)
        if not kicked.converged:
            return math.inf, kicked.n_iter
        back_position, final_velocity, drifted = self._drift(end.point, back_velocity, step_size)
        n_iter = kicked.n_iter + drifted.n_iter
        if not drifted.converged:
            return math.inf, n_iter
        scale = end.point.scale
        miss = np.abs((back_position - position) / scale).max(), np.abs((final_velocity + velocity) / scale).max()
        return float(max(miss)), n_iter


@called_as("ImplicitMidpoint()")
class ImplicitMidpoint(_ImplicitIntegrator):
    """Implicit midpoint rule: more stable than the generalised leapfrog, with more factorisations per step.

    ``q' = q + ε ∂H/∂p(q̄, p̄)``, ``p' = p - ε ∂H/∂q(q̄, p̄)`` with ``q̄ = (q + q')/2``, ``p̄ = (p + p')/2``.
    The midpoint is found by iterating on its velocity. Each outer iteration factorises the metric at a new q̄. Inner
    iterations then solve the equations with the trace term fixed at q̄, at O(n²) each.

    Parameters
    ----------
    solver : AndersonSolver, optional
        Solver for the midpoint and the half kicks. The default has tolerance 1e-9 and at most 100 iterations.
    check_reversibility : bool
        Integrate every step back from its end, and reject it if that does not return to its start. With this
        integrator the check doubles the number of factorisations.

    References
    ----------
    Leimkuhler and Reich (2004), section 4.1; Brofos and Lederman (2021), Evaluating the implicit
    midpoint integrator for Riemannian Hamiltonian Monte Carlo.

    Examples
    --------
    >>> from pymc_rmhmc import ImplicitMidpoint
    >>> ImplicitMidpoint(check_reversibility=False).check_reversibility
    False
    """

    accepts_any_step = is_midpoint = True

    def step(
        self, hamiltonian: RiemannianHamiltonian, state: RiemannianState, step_size: float
    ) -> Step[RiemannianState]:
        """Advance by `step_size`."""
        if hamiltonian.advance is not None:
            return self._followed(hamiltonian, state, 1, step_size)
        forward = _Midpoint(self, hamiltonian, state, step_size)
        failure = forward.solve()
        if failure:
            return Step(None, failure, math.nan, forward.n_solver_iter, forward.n_metric_evals)
        end = hamiltonian.field.evaluate(forward.end_position)
        n_iter, n_metric = forward.n_solver_iter, forward.n_metric_evals + 1
        if end.failure:
            return Step(None, end.failure, math.nan, n_iter, n_metric)
        new = RiemannianState(end, forward.end_momentum)
        if not self.check_reversibility:
            return Step(new, Failure.NONE, math.nan, n_iter, n_metric)
        back = _Midpoint(self, hamiltonian, replace(new, momentum=-new.momentum), step_size)
        error = math.inf if back.solve() else self._miss(back, state)
        failure = Failure.NONE if error <= self.reversal_tolerance else Failure.NON_REVERSIBLE
        n_iter, n_metric = n_iter + back.n_solver_iter, n_metric + back.n_metric_evals
        return Step(None if failure else new, failure, error, n_iter, n_metric)

    @staticmethod
    def _miss(back: _Midpoint, state: RiemannianState) -> float:
        """Return how far the reversed step ends from the beginning, in position and in velocity."""
        scale = state.point.scale
        position_miss = np.abs((back.end_position - state.position) / scale).max()
        velocity_miss = np.abs(state.point.solve(back.end_momentum + state.momentum) / scale).max()
        return float(max(position_miss, velocity_miss))


class _Midpoint:
    """The search for a step's midpoint: a fixed point of its velocity, and what was counted on the way."""

    def __init__(
        self, integrator: ImplicitMidpoint, hamiltonian: RiemannianHamiltonian, state: RiemannianState, step_size: float
    ) -> None:
        self.integrator, self.hamiltonian, self.state, self.step_size = integrator, hamiltonian, state, step_size
        self.end_position, self.end_momentum = state.position, state.momentum
        self.n_metric_evals = self.n_solver_iter = 0
        self._failure, self._momentum = Failure.NONE, state.momentum

    def solve(self) -> Failure:
        """Find the midpoint and set the step's end, or say why there is none."""
        # A guess that costs no factorisation, and that the reversed step makes in its turn: the factor and the
        # trace term at the beginning.
        start = self.state.point.solve(self.state.momentum)
        guess = self._solve_from(self.state.point, start)
        start = guess.value if guess.converged else start
        solution = self._solve(self._implied_velocity, start)
        if not solution.converged:
            return self._failure or Failure.SOLVER
        self.end_position = self.state.position + self.step_size * solution.value
        self.end_momentum = 2.0 * self._momentum - self.state.momentum
        return Failure.NONE if np.isfinite(self.end_momentum).all() else Failure.NON_FINITE

    def _implied_velocity(self, velocity: Array) -> Array:
        """Return the midpoint's velocity where the trace term is that at ``q̄ = q + ε/2 velocity``; nan on failure."""
        nowhere = np.full_like(velocity, np.nan)
        self.n_metric_evals += 1
        self._failure = Failure.NONE
        midpoint = self.hamiltonian.field.evaluate(self.state.position + 0.5 * self.step_size * velocity)
        if midpoint.failure:
            self._failure = midpoint.failure
            return nowhere
        solution = self._solve_from(midpoint, velocity)
        implied = solution.value
        if not solution.converged:
            # The metric changes too much for the factor at q̄: move q̄ by a half kick there, in smaller moves. The
            # unknown of its equation is not the velocity.
            self._momentum, implied, solution = self.integrator._half_kick(
                midpoint, self.state.momentum, self.step_size
            )
            self.n_solver_iter += solution.n_iter
        if not solution.converged:
            self._failure = Failure.SOLVER
            return nowhere
        return implied

    def _solve_from(self, midpoint: MetricPoint, velocity: Array) -> Solution:
        """Solve for the midpoint with the factor and the trace term at a position near it.

        ``p̄ = p - ε/2 (trace - ∇L(q̄) + quadratic(q̄, u))`` and ``G(q̄)u = p̄`` give the fixed point
        ``u = G⁻¹[p̄ - (G(q̄) - G)u]`` with ``q̄ = q + ε/2 u``.
        """
        half = 0.5 * self.step_size

        def implied(velocity: Array) -> Array:
            near = midpoint.nearby(self.state.position + half * velocity)
            force = midpoint.trace_term - near.gradient + near.quadratic_term(velocity)
            self._momentum = self.state.momentum - half * force
            return midpoint.solve(self._momentum - near.apply_change(velocity))

        return self._solve(implied, velocity)

    def _solve(self, function: Callable[[Array], Array], start: Array) -> Solution:
        """Solve for a velocity, to a tolerance in the scale of the beginning; count what it takes."""
        scale, solver = self.state.point.scale, self.integrator.solver
        if isinstance(scale, float):  # it is 1
            found = solver.solve(function, start)
            self.n_solver_iter += found.n_iter
            return found
        found = solver.solve(lambda x: function(scale * x) / scale, start / scale)
        self.n_solver_iter += found.n_iter
        return replace(found, argument=scale * found.argument, value=scale * found.value)


class Surrogate(Protocol):
    """A log density near that of a `GaussianHamiltonian`, whose own flow is cheap."""

    def advance(self, position: Array, momentum: Array, time: float) -> tuple[Array, Array]:
        """Follow the surrogate's flow for a time, by a map that is reversible and preserves volume."""


class SurrogateFlow(IntegratorBase):
    """The flow of another Hamiltonian, near to the one that judges where it leads: one evaluation a step.

    Any map that is reversible and preserves volume leads to a valid proposal: a surrogate that is far off costs
    acceptance, never exactness. The energy error is the density's own, whose gradient is not asked for.

    References
    ----------
    Neal (2011), MCMC using Hamiltonian dynamics, the section on using approximations to compute the trajectory.
    """

    def __init__(self, surrogate: Surrogate) -> None:
        self.surrogate = surrogate

    def step[P: ValuePoint](
        self, hamiltonian: GaussianHamiltonian[P], state: GaussianState[P], step_size: float
    ) -> Step[GaussianState[P]]:
        """Advance by `step_size`, however long."""
        position, momentum = self.surrogate.advance(state.point.position, state.momentum, step_size)
        end = GaussianState(hamiltonian.residual.at(position), momentum)
        return Step(None if end.point.failure else end, end.point.failure, n_metric_evals=1)


class SurrogateSplitting(IntegratorBase):
    """`RotationSplitting` with a surrogate in place of the dear part of a density's gradient.

    The first coordinates follow the surrogate, as in `SurrogateFlow`, while the others are rotated; before and after,
    the density's own gradient kicks the others. Every part is reversible and preserves volume, and so does the whole.

    The density's gradient is 0 in the first coordinates, `size` of them.

    References
    ----------
    Neal (2011), MCMC using Hamiltonian dynamics, the sections on splitting and on using approximations.
    """

    def __init__(self, surrogate: Surrogate, size: int) -> None:
        self.surrogate, self._size = surrogate, size

    def step[P: DensityPoint](
        self, hamiltonian: GaussianHamiltonian[P], state: GaussianState[P], step_size: float
    ) -> Step[GaussianState[P]]:
        """Advance by `step_size`."""
        return self.path(hamiltonian, state, 1, step_size)

    def path[P: DensityPoint](
        self, hamiltonian: GaussianHamiltonian[P], state: GaussianState[P], n_steps: int, step_size: float
    ) -> Step[GaussianState[P]]:
        """Advance so many times, as one step: what was evaluated on the way is freed before the next is."""
        end = state
        for done in range(1, n_steps + 1):
            kicked = hamiltonian.kick(end, 0.5 * step_size).momentum
            position, momentum = self._drift(end.position, kicked, step_size)
            del end
            end = GaussianState(hamiltonian.residual.at(position), momentum)
            if end.point.failure:
                return Step(None, end.point.failure, n_metric_evals=done, n_steps=done)
            end = hamiltonian.kick(end, 0.5 * step_size)
        return Step(end, n_metric_evals=n_steps, n_steps=n_steps)

    def _drift(self, position: Array, momentum: Array, time: float) -> tuple[Array, Array]:
        """Follow the surrogate's flow in the first coordinates, and rotate the others."""
        first, rest = slice(self._size), slice(self._size, None)
        led = self.surrogate.advance(position[first], momentum[first], time)
        turned = blas.drot(position[rest], momentum[rest], math.cos(time), math.sin(time))
        return np.concatenate((led[0], turned[0])), np.concatenate((led[1], turned[1]))
