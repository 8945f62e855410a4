"""Integrators along a cheap density that stands in for a dear one, which judges where they lead.

Any map that is reversible and preserves volume leads to a valid proposal: a surrogate that is far off costs acceptance,
never exactness.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, GaussianState
from pymc_rmhmc.dynamics.integrators import IntegratorBase, Step

__all__ = ["Surrogate", "SurrogateFlow", "SurrogateSplitting"]

type Array = NDArray[np.float64]


class Surrogate(Protocol):
    """A log density near that of a `GaussianHamiltonian`, whose own flow is cheap."""

    def advance(self, position: Array, momentum: Array, time: float) -> tuple[Array, Array]:
        """Follow the surrogate's flow for a time, by a map that is reversible and preserves volume."""


class SurrogateFlow(IntegratorBase[GaussianHamiltonian, GaussianState]):
    """The flow of another Hamiltonian, near to the one that judges where it leads: one evaluation a step.

    The energy error is the density's own, whose gradient is not asked for.

    Parameters
    ----------
    surrogate : Surrogate
        With the metric ``G = I``, and constant.

    References
    ----------
    Neal (2011), MCMC using Hamiltonian dynamics, the section on using approximations to compute the trajectory.
    """

    def __init__(self, surrogate: Surrogate) -> None:
        self.surrogate = surrogate

    def step(
        self, hamiltonian: GaussianHamiltonian, state: GaussianState, step_size: float
    ) -> Step[GaussianState]:
        """Advance by `step_size`, however long."""
        end = hamiltonian.moved(*self.surrogate.advance(state.position, state.momentum, step_size))
        failure = hamiltonian.failure(end)
        return Step(None if failure else end, failure, n_metric_evals=1)


class SurrogateSplitting(IntegratorBase[GaussianHamiltonian, GaussianState]):
    """`RotationSplitting` with a surrogate in place of the dear part of a density's gradient.

    The first coordinates follow the surrogate, as in `SurrogateFlow`, while the others are rotated; before and after,
    the density's own gradient kicks the others. Every part is reversible and preserves volume, and so does the whole.

    Parameters
    ----------
    surrogate : Surrogate
        Of the first coordinates.
    size : int
        How many they are. The density's gradient is 0 there.

    References
    ----------
    Neal (2011), MCMC using Hamiltonian dynamics, the sections on splitting and on using approximations.
    """

    def __init__(self, surrogate: Surrogate, size: int) -> None:
        self.surrogate, self._size = surrogate, size

    def step(
        self, hamiltonian: GaussianHamiltonian, state: GaussianState, step_size: float
    ) -> Step[GaussianState]:
        """Advance by `step_size`."""
        return next(self.path(hamiltonian, state, 1, step_size))

    def path(
        self, hamiltonian: GaussianHamiltonian, state: GaussianState, n_steps: int, step_size: float
    ) -> Iterator[Step[GaussianState]]:
        """Advance so many times, as one step: what was evaluated on the way is freed before the next is."""
        end = state
        for done in range(1, n_steps + 1):
            kicked = hamiltonian.kick(end, 0.5 * step_size).momentum
            position, momentum = self._drift(end.position, kicked, step_size)
            del end
            end = hamiltonian.moved(position, momentum)
            failure = hamiltonian.failure(end)
            if failure:
                yield Step(None, failure, n_metric_evals=done, n_steps=done)
                return
            end = hamiltonian.kick(end, 0.5 * step_size)
        yield Step(end, n_metric_evals=n_steps, n_steps=n_steps)

    def _drift(self, position: Array, momentum: Array, time: float) -> tuple[Array, Array]:
        """Follow the surrogate's flow in the first coordinates, and rotate the others."""
        first, rest = slice(self._size), slice(self._size, None)
        led = self.surrogate.advance(position[first], momentum[first], time)
        turned = blas.drot(position[rest], momentum[rest], math.cos(time), math.sin(time))
        return np.concatenate((led[0], turned[0])), np.concatenate((led[1], turned[1]))
