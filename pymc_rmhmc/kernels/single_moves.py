"""Moves of one proposal: Langevin's in a metric, and elliptical slice sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import (
    GaussianHamiltonian,
    GaussianState,
    MetricField,
    MetricPoint,
    RiemannianHamiltonian,
    RiemannianState,
    ValuePoint,
)
from pymc_rmhmc.dynamics.integrators import IntegratorBase
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.kernel import MoveBase, Transition
from pymc_rmhmc.kernels.trajectories import decide

__all__ = ["EllipticalSlice", "Langevin"]

type Array = NDArray[np.float64]

# The bracket shrinks to the state itself, which is above the level: so many points are never needed.
MOST_POINTS = 200


@dataclass(frozen=True, slots=True)
class EllipticalSlice(MoveBase):
    """A standard normal prior times a likelihood: there is no step size, and no draw is rejected.

    A draw of the prior spans an ellipse with the state. Angles are tried from a bracket that shrinks towards the state,
    until the likelihood is above a level that was drawn beforehand.

    References
    ----------
    Murray, Adams and MacKay (2010), Elliptical slice sampling, figure 2.
    """

    path = None

    def move[P: ValuePoint](
        self, hamiltonian: GaussianHamiltonian[P], integrator: IntegratorBase, state: GaussianState[P],
        step_size: float, rng: np.random.Generator,
    ) -> Transition[GaussianState[P]]:  # fmt: skip
        """Draw an ellipse and a level, and shrink the bracket."""
        start = hamiltonian.refresh(state, rng)
        level = state.point.log_density + math.log1p(-rng.random())
        outcome = Transition(state, energy=hamiltonian.energy(start))
        if not math.isfinite(level):
            outcome.failure = Failure.NON_FINITE
            return outcome
        angle = 2.0 * math.pi * rng.random()
        lower, upper = angle - 2.0 * math.pi, angle
        for _ in range(MOST_POINTS):
            end = hamiltonian.drift(start, angle)
            outcome.n_steps += 1
            if not end.point.failure and end.point.log_density > level:
                energy = hamiltonian.energy(end)
                outcome.energy_error, outcome.acceptance = energy - outcome.energy, 1.0
                outcome.state, outcome.energy, outcome.accepted = end, energy, True
                return outcome
            lower, upper = (angle, upper) if angle < 0.0 else (lower, angle)
            angle = lower + (upper - lower) * rng.random()
        # Rounding alone has left no point above the level: the state stays, which is no worse.
        return outcome

    single_step = move


MOST_DIVERGED = 100


@dataclass(frozen=True, slots=True)
class Langevin(MoveBase):
    """One step of a discretised Langevin diffusion for each draw.

    The proposal is ``q' ~ N(q + ε²/2 d(q), ε² G(q)⁻¹)`` with the drift ``d = G⁻¹∇L``, and if it is not simplified
    ``d = G⁻¹∇L + ∇·G⁻¹``, of which the diffusion leaves ``exp L`` unchanged. In a constant metric both are the same.
    The draws are exact either way.

    References
    ----------
    Girolami and Calderhead (2011), sections 3.2 and 5. Their drift has an error; the right one is in Xifara, Sherlock,
    Livingstone, Byrne and Girolami (2014), Langevin diffusions and the Metropolis-adjusted Langevin algorithm.
    """

    simplified: bool = True
    path = None

    @property
    def most_values(self) -> float:
        """How many values of a whole model it can move: the divergence costs half their square in derivatives."""
        return math.inf if self.simplified else MOST_DIVERGED

    def hamiltonian(self, field: MetricField) -> RiemannianHamiltonian:
        """Return the Hamiltonian that takes the metric at every point, even where it is constant."""
        return RiemannianHamiltonian(field)

    def move(
        self, hamiltonian: RiemannianHamiltonian, integrator: IntegratorBase, state: RiemannianState, step_size: float,
        rng: np.random.Generator,
    ) -> Transition[RiemannianState]:  # fmt: skip
        """Propose, and accept or keep."""
        here = state.point
        mean = self._mean(here, step_size)
        noise = here.solve(here.sample_momentum(rng))
        log_uniform = math.log1p(-rng.random())
        end = hamiltonian.state(mean + step_size * noise)
        there = end.point
        outcome = Transition(state, energy=_energy(here, noise), n_steps=1, n_metric_evals=1)
        if there.failure:
            outcome.failure = there.failure
            return outcome
        back = (here.position - self._mean(there, step_size)) / step_size
        if not (math.isfinite(outcome.energy) and np.isfinite(back).all()):
            outcome.failure = Failure.NON_FINITE
            return outcome
        decide(outcome, end, _energy(there, back), log_uniform)
        return outcome

    single_step = move

    def _mean(self, point: MetricPoint, step_size: float) -> Array:
        """Return where a proposal is centred, (n,)."""
        drift = point.solve(point.gradient)
        if not self.simplified:
            drift = drift + point.inverse_divergence()
        return np.asarray(point.position + 0.5 * step_size**2 * drift)


def _energy(point: MetricPoint, noise: Array) -> float:
    """Return ``-log`` of the density at a point times that of its proposal with a noise in units of the step."""
    return float(-point.log_density - point.half_log_det + 0.5 * noise @ point.times(noise))
