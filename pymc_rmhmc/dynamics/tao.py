"""Tao's explicit integrator for a position-dependent metric: two copies of phase space, bound to each other.

It is here to reproduce published results. The generalised leapfrog is exact too, and far cheaper.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import (
    Hamiltonian,
    MetricField,
    MetricPoint,
    RiemannianHamiltonian,
    RiemannianState,
)
from pymc_rmhmc.dynamics.integrators import IntegratorBase, Step
from pymc_rmhmc.errors import ConfigurationError, Failure, shown
from pymc_rmhmc.usage import RANGES, called_as, real_number

__all__ = ["ExplicitTao", "TaoHamiltonian", "TaoState"]

type Array = NDArray[np.float64]

EXTENDED, ONE_COPY = "extended", "one_copy_approximate"
ACCEPTANCES = (EXTENDED, ONE_COPY)
DEFAULT_SIGMA = 0.1


@dataclass(slots=True)
class TaoState(RiemannianState):
    """A position q with its factorised metric, a momentum p, and a copy q̃ and p̃ of both."""

    copy_position: Array
    copy_momentum: Array


class TaoHamiltonian:
    """The energy by which `ExplicitTao` accepts, on two copies of phase space; `ExplicitTao.extend` makes it.

    Where it is exact it is that of the density ``exp(-H(q, p)) N(q̃; q, σ²M⁻¹) N(p̃; p, σ²M)``, whose marginal in q is
    the target. With ``acceptance="one_copy_approximate"`` it is H(q, p), and copies start equal.
    """

    def __init__(self, base: RiemannianHamiltonian, sigma: float, mass: float | Array, *, exact: bool) -> None:
        self.base, self.sigma, self.mass, self.exact = base, sigma, mass, exact
        self.field = base.field
        self._root_mass = np.sqrt(mass)

    def state(self, position: Array) -> TaoState:
        """Evaluate the metric at a position; the momentum is zero, and the copies are equal, until `refresh`.

        Raises a `ConfigurationError` if the mass has another number of values than the position.
        """
        if np.size(self.mass) not in (1, position.size):
            raise ConfigurationError(
                f"mass has {np.size(self.mass)} values, and a position has {position.size} coordinates. Give "
                "ExplicitTao one value for each, or a single number: mass=1.0."
            )
        momentum = np.zeros_like(position)
        return TaoState(self.field.evaluate(position), momentum, position, momentum)

    def refresh(self, state: TaoState, rng: np.random.Generator) -> TaoState:
        """Draw ``p ~ N(0, G(q))``, and then both copies given q and p.

        A copy that is kept would know the old p, and the new pair would not be a draw from the extended density.
        """
        position, momentum = state.position, state.point.sample_momentum(rng)
        if not self.exact:
            return replace(state, momentum=momentum, copy_position=position, copy_momentum=momentum)
        copy_position = position + self.sigma / self._root_mass * rng.standard_normal(position.size)
        copy_momentum = momentum + self.sigma * self._root_mass * rng.standard_normal(position.size)
        return replace(state, momentum=momentum, copy_position=copy_position, copy_momentum=copy_momentum)

    def velocity(self, state: TaoState) -> Array:
        """Return ``dq/dt = G⁻¹p``."""
        return self.base.velocity(state)

    def energy(self, state: TaoState) -> float:
        """Return the energy by which a trajectory is accepted, up to a constant."""
        energy = self.base.energy(state)
        if not self.exact:
            return energy
        apart = (state.copy_position - state.position) * self._root_mass
        momenta_apart = (state.copy_momentum - state.momentum) / self._root_mass
        return energy + 0.5 * float(apart @ apart + momenta_apart @ momenta_apart) / self.sigma**2

    def failure(self, state: TaoState) -> Failure:
        """Return what the evaluation of the metric reported."""
        return self.base.failure(state)


@called_as("ExplicitTao(omega=10.0)")
class ExplicitTao(IntegratorBase):
    """Tao's explicit integrator for a position-dependent metric, to reproduce published results.

    It solves no equations, but it is costly. On a funnel in 11 dimensions an accepted trajectory of length 1.5 took 65
    factorisations with ω = 10 and ε = 0.1, and 34 with the best settings that were tried (ω = 3, ε = 0.25, σ = 0.2).
    `GeneralizedLeapfrog` took 3. Use that to sample a model.

    Phase space has two copies, (q, p) and (q̃, p̃). A step is ``φ_A^{ε/2} ∘ φ_B^{ε/2} ∘ φ_C^ε ∘ φ_B^{ε/2} ∘ φ_A^{ε/2}``,
    with the exact flows of the three terms of

        H̄ = H(q, p̃) + H(q̃, p) + ω/2 [(q - q̃)ᵀM(q - q̃) + (p - p̃)ᵀM⁻¹(p - p̃)]

    (A) ``p ← p - δ ∂H/∂q(q, p̃)``, ``q̃ ← q̃ + δ ∂H/∂p(q, p̃)``;
    (B) ``p̃ ← p̃ - δ ∂H/∂q(q̃, p)``, ``q ← q + δ ∂H/∂p(q̃, p)``;
    (C) ``M^½(q - q̃)`` and ``M^-½(p - p̃)`` turn by the angle 2ωδ, and the sums q + q̃ and p + p̃ stay.

    A step costs three factorisations: of G(q̃) before and after (C), and of G(q) at its end.

    Parameters
    ----------
    omega : float
        ω, how strongly the copies are bound: well above the frequency of the motion, which is about 1 if the metric
        fits the density. You also give ``step_size``, at most 1/ω. It is not tuned.
    sigma : float
        σ, how far apart the copies begin, in units of M. It has an optimum, which is smaller for shorter steps.
    mass : float or (n,) array
        The diagonal of the constant M: about that of G where the draws are. The default is 1.
    acceptance : {"extended", "one_copy_approximate"}
        "extended" begins with copies that differ, and accepts by the density of both. Draws are exact.
        "one_copy_approximate" is the published algorithm: it begins with equal copies, and accepts by H(q, p). Draws
        are biased, even if nearly all trajectories are accepted.

    Raises
    ------
    ConfigurationError
        If a number is out of its range, or the acceptance is unknown.

    Notes
    -----
    A step is symplectic on the extended space only. There it is also reversible, if both momenta change sign. So
    accepting by a density of the extended space is exact, and so is choosing a state of a trajectory by its weight, as
    ``trajectory="nuts"`` does. As a map of (q, p) alone a trajectory from equal copies neither preserves volume nor is
    reversible, because it ends with copies that differ. How large the bias is depends on the model. A normal
    density of variance 1 in the metric ``1 + q²`` came out with variance 0.66 (ω = ε = 1, 86 % accepted).

    If the angle 2ωε is near π, the acceptance falls however short the step is: to 0.08 on that funnel, with ε = 0.016.
    Hence the bound on the step.

    References
    ----------
    Tao (2016), Explicit symplectic approximation of nonseparable Hamiltonians: algorithm and long time performance;
    Cobb, Baydin, Markham and Roberts (2019), Introducing an explicit symplectic integration scheme for Riemannian
    manifold Hamiltonian Monte Carlo, eq. 10-13 and algorithm 2.

    Examples
    --------
    >>> from pymc_rmhmc import ExplicitTao
    >>> ExplicitTao(omega=10.0).longest_step
    0.1
    """

    def __init__(
        self, omega: float, sigma: float = DEFAULT_SIGMA, *, mass: float | Array = 1.0, acceptance: str = EXTENDED
    ) -> None:
        self.omega, self.sigma = real_number("omega", omega), real_number("sigma", sigma)
        self.mass = _diagonal(mass)
        if not isinstance(acceptance, str) or acceptance not in ACCEPTANCES:
            known = " or ".join(f'"{name}"' for name in ACCEPTANCES)
            raise ConfigurationError(
                f"Unknown acceptance {shown(acceptance)}: it must be {known}. Leave it out for exact draws."
            )
        self.acceptance = acceptance
        self._root_mass = np.sqrt(self.mass)

    @property
    def longest_step(self) -> float:
        """``1/ω``; unbounded if the acceptance is approximate, as published results have longer ones."""
        return 1.0 / self.omega if self.acceptance == EXTENDED else math.inf

    def check_step_size(self, step_size: float | None) -> None:
        """Raise a `ConfigurationError` if no step size is given, or one that is too long."""
        if step_size is None:
            raise ConfigurationError(
                "ExplicitTao needs a step size: its acceptance need not rise as steps get shorter, and tuning could "
                f"shorten them for ever. Give a step_size of at most 1/omega: step_size={shown(1.0 / self.omega)}."
            )
        if step_size > self.longest_step:
            raise ConfigurationError(
                f"step_size={shown(step_size)} is longer than 1/omega: such a step does not follow how the two copies "
                f"turn, and acceptance can fall to nearly 0. Give step_size={shown(1.0 / self.omega)} or less, or a "
                f"smaller omega: ExplicitTao(omega={shown(1.0 / step_size)})."
            )

    def check_u_turn(self) -> None:
        """Raise a `ConfigurationError` if the acceptance is approximate: it judges a trajectory's end alone."""
        if self.acceptance == ONE_COPY:
            raise ConfigurationError(
                f'ExplicitTao(acceptance="{ONE_COPY}") judges the end of a trajectory that began with equal copies, '
                'but trajectory="nuts" draws one of all its states. Give trajectory="static", or '
                f'acceptance="{EXTENDED}".'
            )

    def extend(self, hamiltonian: Hamiltonian[Any]) -> TaoHamiltonian:
        """Return the Hamiltonian on two copies of phase space.

        Raises
        ------
        ConfigurationError
            If it is not that of a position-dependent metric.
        """
        if not isinstance(hamiltonian, RiemannianHamiltonian):
            raise ConfigurationError(
                f"ExplicitTao needs a position-dependent metric, got a {type(hamiltonian).__name__}, which is "
                'integrated explicitly already. Leave integrator out, or choose metric="hessian".'
            )
        return TaoHamiltonian(hamiltonian, self.sigma, self.mass, exact=self.acceptance == EXTENDED)

    def step(self, hamiltonian: TaoHamiltonian, state: TaoState, step_size: float) -> Step[TaoState]:
        """Advance by `step_size`; the given state is not changed."""
        half, metrics = 0.5 * step_size, _Metrics(hamiltonian.field)
        q, p, copy_q, copy_p = state.position, state.momentum, state.copy_position, state.copy_momentum
        # (A)
        p, copy_q = _pushed(state.point, copy_p, p, copy_q, half)
        if (copy := metrics.at(copy_q)) is None:
            return metrics.failed()
        # (B)
        copy_p, q = _pushed(copy, p, copy_p, q, half)
        # (C)
        q, p, copy_q, copy_p = self.bind(q, p, copy_q, copy_p, step_size)
        if (copy := metrics.at(copy_q)) is None:
            return metrics.failed()
        # (B)
        copy_p, q = _pushed(copy, p, copy_p, q, half)
        if (end := metrics.at(q)) is None:
            return metrics.failed()
        # (A), which leaves q where it is: the next step begins with the same metric.
        p, copy_q = _pushed(end, copy_p, p, copy_q, half)
        if not all(np.isfinite(each).all() for each in (p, copy_q, copy_p)):
            return Step(None, Failure.NON_FINITE, n_metric_evals=metrics.count)
        return Step(TaoState(end, p, copy_q, copy_p), n_metric_evals=metrics.count)

    def bind(self, q: Array, p: Array, copy_q: Array, copy_p: Array, time: float) -> tuple[Array, Array, Array, Array]:
        """Return where the flow of the binding leads in a time: q, p, q̃ and p̃.

        Half the sums stay. Half the differences, ``M^½(q - q̃)/2`` and ``M^-½(p - p̃)/2``, turn by the angle 2ωt.
        """
        cos, sin, root = math.cos(2.0 * self.omega * time), math.sin(2.0 * self.omega * time), self._root_mass
        middle_q, middle_p = 0.5 * (q + copy_q), 0.5 * (p + copy_p)
        apart_q, apart_p = 0.5 * root * (q - copy_q), 0.5 / root * (p - copy_p)
        apart_q, apart_p = apart_q * cos + apart_p * sin, apart_p * cos - apart_q * sin
        away_q, away_p = apart_q / root, apart_p * root
        return middle_q + away_q, middle_p + away_p, middle_q - away_q, middle_p - away_p


class _Metrics:
    """Metrics that a step evaluates: how many, and why there is none at the last position."""

    def __init__(self, field: MetricField) -> None:
        self._field = field
        self._failure = Failure.NONE
        self.count = 0

    def at(self, position: Array) -> MetricPoint | None:
        """Evaluate and factorise the metric; None if that fails."""
        # A model's own functions need not take numbers that are not finite.
        if not np.isfinite(position).all():
            self._failure = Failure.NON_FINITE
            return None
        self.count += 1
        point = self._field.evaluate(position)
        self._failure = point.failure
        return None if point.failure else point

    def failed(self) -> Step[TaoState]:
        """Return the step that has failed."""
        return Step(None, self._failure, n_metric_evals=self.count)


def _pushed(point: MetricPoint, held: Array, momentum: Array, position: Array, time: float) -> tuple[Array, Array]:
    """Follow H at a point and a momentum of the other copy, which stay: return what becomes of the other two."""
    velocity = point.solve(held)
    force = point.trace_term - point.gradient + point.quadratic_term(velocity)
    return momentum - time * force, position + time * velocity


def _diagonal(mass: object) -> float | Array:
    """Return the mass as a number, or as an array of positive numbers."""
    if isinstance(mass, numbers.Real | str) or mass is None:
        return real_number("mass", mass)
    allowed = RANGES["mass"]
    try:
        values = np.array(mass, dtype=float)
    except (TypeError, ValueError):
        values = np.full((0, 0), math.nan)
    if values.ndim != 1 or not values.size or not all(map(allowed.holds, values)):
        raise ConfigurationError(
            f"mass must be a number or a vector of numbers, each {allowed}, got {shown(mass)}. {allowed.advice}"
        )
    return values
