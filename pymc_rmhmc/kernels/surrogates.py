"""Trajectories along a cheap surrogate of a density, judged by the density itself; and some along the density."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymc_rmhmc.dynamics.surrogate_integrators import SurrogateFlow
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.kernel import Kernel, Transition
from pymc_rmhmc.kernels.trajectories import JitteredPath, transition

__all__ = ["ALONG_DENSITY", "ALONG_SURROGATE", "DensityMove", "SurrogateHMC", "without_divergence"]

# The kinds of moves from which tuning learns what a surrogate is worth, and what steps the others take.
ALONG_SURROGATE, ALONG_DENSITY = "along a surrogate", "along the density"


@dataclass(frozen=True, slots=True)
class SurrogateHMC:
    """A trajectory along a surrogate's flow, which asks the density itself once, at the end.

    Parameters
    ----------
    hamiltonian : GaussianHamiltonian
        The density's own.
    flow : SurrogateFlow
        Of the surrogate.
    length : JitteredPath
        The rule for the path's length.

    References
    ----------
    Neal (2011), MCMC using Hamiltonian dynamics, the section on using approximations to compute the trajectory.
    """

    hamiltonian: Any
    flow: SurrogateFlow
    length: JitteredPath

    def step(self, state: Any, rng: np.random.Generator) -> Transition[Any]:
        """Move; the whole path is one step, which the flow divides as it needs."""
        _, length = self.length.draw(math.inf, rng)
        outcome: Transition[Any] = transition(self.hamiltonian, self.flow, state, 1, length, rng)
        outcome.kind = ALONG_SURROGATE
        return without_divergence(outcome)


@dataclass(frozen=True, slots=True)
class DensityMove:
    """A trajectory along the density itself, whose states have other coordinates.

    Parameters
    ----------
    kernel : Kernel
        Of the other states.
    enter, leave : callable
        From a state to one of the kernel's, and back.
    """

    kernel: Kernel[Any]
    enter: Callable[[Any], Any]
    leave: Callable[[Any], Any]

    def step(self, state: Any, rng: np.random.Generator) -> Transition[Any]:
        """Go there, move and come back; where the move is rejected, nothing is rounded on the way."""
        outcome = self.kernel.step(self.enter(state), rng)
        outcome.state, outcome.kind = self.leave(outcome.state) if outcome.accepted else state, ALONG_DENSITY
        return outcome


def without_divergence(outcome: Transition[Any]) -> Transition[Any]:
    """Count a divergence of the surrogate apart from others: it says nothing of the posterior.

    A start without a density is no divergence of the surrogate.
    """
    if outcome.failure in (Failure.ENERGY, Failure.NON_FINITE) and math.isfinite(outcome.energy):
        outcome.failure, outcome.energy_error, outcome.n_emulator_divergences = Failure.NONE, math.nan, 1
    return outcome
