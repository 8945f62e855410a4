"""Langevin proposals in a metric, accepted or not by both of their densities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import Hamiltonian, RiemannianHamiltonian
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.kernel import MoveBase, Transition
from pymc_rmhmc.kernels.trajectories import decide

__all__ = ["Langevin"]

type Array = NDArray[np.float64]

MOST_DIVERGED = 100


@dataclass(frozen=True, slots=True)
class Langevin(MoveBase):
    """One step of a discretised Langevin diffusion for each draw.

    The proposal is ``q' ~ N(q + ε²/2 d(q), ε² G(q)⁻¹)`` with the drift ``d = G⁻¹∇L``, and if it is not simplified
    ``d = G⁻¹∇L + ∇·G⁻¹``, of which the diffusion leaves ``exp L`` unchanged. In a constant metric both are the same.

    Parameters
    ----------
    simplified : bool
        Whether the drift leaves out the divergence of G⁻¹. The draws are exact either way.

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

    def hamiltonian(self, field: Any) -> RiemannianHamiltonian:
        """Return the Hamiltonian that takes the metric at every point, even where it is constant."""
        return RiemannianHamiltonian(field)

    def move(
        self, hamiltonian: Hamiltonian[Any], integrator: Any, state: Any, step_size: float, rng: np.random.Generator
    ) -> Transition[Any]:
        """Propose, and accept or keep."""
        here = state.point
        mean = self._mean(here, step_size)
        noise = here.solve(here.sample_momentum(rng))
        log_uniform = math.log1p(-rng.random())
        end = hamiltonian.state(mean + step_size * noise)
        there = end.point
        outcome: Transition[Any] = Transition(state, energy=_energy(here, noise), n_steps=1, n_metric_evals=1)
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

    def _mean(self, point: Any, step_size: float) -> Array:
        """Return where a proposal is centred, (n,)."""
        drift = point.solve(point.gradient)
        if not self.simplified:
            drift = drift + point.inverse_divergence()
        return np.asarray(point.position + 0.5 * step_size**2 * drift)


def _energy(point: Any, noise: Array) -> float:
    """Return ``-log`` of the density at a point times that of its proposal with a noise in units of the step."""
    return float(-point.log_density - point.half_log_det + 0.5 * noise @ point.times(noise))
