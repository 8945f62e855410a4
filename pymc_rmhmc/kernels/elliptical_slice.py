"""Elliptical slice sampling: a point on an ellipse through the state, at no lower likelihood than a random level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.kernel import MoveBase, Transition

__all__ = ["EllipticalSlice"]

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

    def move(
        self, hamiltonian: GaussianHamiltonian, integrator: Any, state: Any, step_size: float, rng: np.random.Generator
    ) -> Transition[Any]:
        """Draw an ellipse and a level, and shrink the bracket."""
        start = hamiltonian.refresh(state, rng)
        level = state.point.log_density + math.log1p(-rng.random())
        outcome: Transition[Any] = Transition(state, energy=hamiltonian.energy(start))
        if not math.isfinite(level):
            outcome.failure = Failure.NON_FINITE
            return outcome
        angle = 2.0 * math.pi * rng.random()
        lower, upper = angle - 2.0 * math.pi, angle
        for _ in range(MOST_POINTS):
            end = hamiltonian.drift(start, angle)
            outcome.n_steps += 1
            if not end.point.failure and end.point.log_density > level:
                return _moved(outcome, end, hamiltonian.energy(end))
            lower, upper = (angle, upper) if angle < 0.0 else (lower, angle)
            angle = lower + (upper - lower) * rng.random()
        # Rounding alone has left no point above the level: the state stays, which is no worse.
        return outcome

    single_step = move


def _moved(outcome: Transition[Any], end: Any, energy: float) -> Transition[Any]:
    """Return the outcome with the point that was found."""
    outcome.energy_error, outcome.acceptance = energy - outcome.energy, 1.0
    outcome.state, outcome.energy, outcome.accepted = end, energy, True
    return outcome
