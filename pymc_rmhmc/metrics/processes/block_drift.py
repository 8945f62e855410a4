"""The leapfrog's implicit drift in the metric ``blockdiag(W + K⁻¹, G_θ)``, with few evaluations of K.

The step goes from (s, θ) with the velocity (u, w) to (s', θ') with (u', w'):

    θ' = θ + t (w + w'),   G_θ(s', θ') w' = G_θ(s, θ) w
    s' = s + t (u + u'),   (W(s', θ') + K(θ')⁻¹) u' = (W + K⁻¹) u

The coordinates of θ that move K come first: their equations depend on the others through R alone, and for most models
not at all. Then K(θ') and its factor stay while the rest is found. The two parts take turns until both hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from pymc_rmhmc.dynamics.hamiltonian import FixedPointSolver, ImplicitEquation, Solution
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics.processes.process_density import CentredBase

__all__ = ["BlockDrift"]

type Array = NDArray[np.float64]

# Of Newton's method for G_θ as its first derivatives at q continue it: each takes a d by d solution.
MOST_NEWTON = 8
# How little its last change must be, next to the velocity: the start of a search need not be exact.
ENOUGH = 1e-3
# How often the two parts take turns, where what the rest says of the first part depends on the second.
MOST_TURNS = 30


class TwoBlocks(Protocol):
    """What the drift asks of the metric; see `pymc_rmhmc.metrics.processes.process_blocks.TwoBlockField`."""

    density: CentredBase[Any]

    def theta_block(self, point: Any) -> Array:
        """Return G_θ, (d, d)."""

    def latent(self, kernel: Any, weight: Array) -> Any:
        """Return ``W + K⁻¹`` factorised, or a `Failure`."""


class BlockDrift(ImplicitEquation):
    """``q' = q + time (u + u')`` with ``G(q')u' = G(q)u``.

    Parameters
    ----------
    field : TwoBlockField
        The metric.
    point : FieldPoint
        At q.
    velocity : (n + d,) array
        u.
    time : float
        Half a step.
    """

    def __init__(self, field: TwoBlocks, point: Any, velocity: Array, time: float) -> None:
        self._field, self._point, self._velocity, self._time = field, point, velocity, time
        self._momentum, self._scale = point.times(velocity), point.scale
        process = field.density.process
        self._n, self._moving = process.n_process, process.moving
        self._still = np.setdiff1d(np.arange(process.n_theta), self._moving)
        self.start = velocity / self._scale

    def function(self, x: Array) -> Array:
        """Evaluate the map of all velocities in units of their scale."""
        found, parts = np.full_like(x, np.nan), self._parts
        found[parts[0]] = self._kernel_map(x)(x[parts[0]])
        rest = self._rest_map(x)
        if rest is not None:
            found[parts[1]] = rest(x[parts[1]])
        return found

    def solve(self, solver: FixedPointSolver) -> Solution:
        """Solve for the velocities that move K given the others, and for the others given those, until both hold."""
        x, count, (first, second) = self.start.copy(), 0, self._parts
        x[first] = self._continued / self._scale[first]
        for _ in range(MOST_TURNS):
            found = solver.solve(self._kernel_map(x), x[first])
            x[first], count = found.argument, count + found.n_iter
            rest = self._rest_map(x) if found.converged else None
            if rest is None:
                break
            found = solver.solve(rest, x[second])
            x[second], count = found.argument, count + found.n_iter
            left = self._kernel_map(x)(x[first]) - x[first]
            if not found.converged or np.abs(left).max(initial=0.0) <= solver.tolerance:
                return replace(found, argument=x, n_iter=count)
        return replace(found, argument=x, n_iter=count, converged=False)

    def conclude(self, x: Array) -> tuple[Array, Array]:
        """Return q' and u'."""
        velocity = self._scale * x
        return self._point.position + self._time * (self._velocity + velocity), velocity

    @cached_property
    def _parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the coordinates are that move K, and where all the others."""
        return self._n + self._moving, np.concatenate((np.arange(self._n), self._n + self._still))

    def _kernel_map(self, given: Array) -> Callable[[Array], Array]:
        """Return Newton's map of the velocities that move K, with the derivatives at q, and all others given."""
        x, first = given.copy(), self._parts[0]

        def mapped(part: Array) -> Array:
            x[first] = part
            position, velocity = self.conclude(x)
            there = self._field.density.at(position)
            if not there.kernel.is_positive_definite:
                return np.full_like(part, np.nan)
            missed = (self._field.theta_block(there) @ velocity[self._n :])[self._moving] - self._momentum[first]
            return np.asarray(part - solved(self._slope, missed) / self._scale[first])

        return mapped

    def _rest_map(self, given: Array) -> Callable[[Array], Array] | None:
        """Return the map of the other velocities, with θ' in K given; None where W + K⁻¹ has no factor."""
        x, n, (_, second) = given.copy(), self._n, self._parts
        kernel = self._field.density.kernel(self.conclude(x)[0][n:])
        block = self._field.latent(kernel, self._point.matrix.latent.weight)
        if isinstance(block, Failure):
            return None
        began, scale, still = block.solve(self._momentum[:n]), self._scale[second], np.ix_(self._still, self._still)

        def mapped(part: Array) -> Array:
            x[second] = part
            position, velocity = self.conclude(x)
            there = self._field.density.at(position)
            own = began - block.solve((there.information[0] - block.weight) * velocity[:n])
            missed = (self._field.theta_block(there) @ velocity[n:] - self._momentum[n:])[self._still]
            others = velocity[n + self._still] - solved(self._theta_block[still], missed)
            return np.asarray(np.concatenate((own, others)) / scale)

        return mapped

    # ------------------------------------------------------ G_θ as its derivatives at q continue it

    @cached_property
    def _theta_block(self) -> Array:
        """G_θ at q."""
        return self._field.theta_block(self._point.density_point)

    @cached_property
    def _own(self) -> Array:
        """The part of it that belongs to what moves K."""
        return self._theta_block[np.ix_(self._moving, self._moving)]

    @cached_property
    def _continued(self) -> Array:
        """The velocities that move K, if G_θ were ``G_θ(q) + Σ ∂ⱼG_θ (θ'ⱼ - θⱼ)``; as they are if none is found.

        It is a start that needs no other K.
        """
        began = self._velocity[self._parts[0]]
        wanted = self._own @ began
        found = began
        for _ in range(MOST_NEWTON):
            step = solved(self._slope_at(found), self._matrix_at(found) @ found - wanted)
            found = found - step
            if np.abs(step).max(initial=0.0) <= ENOUGH * np.abs(began).max(initial=0.0):
                return found
        return began

    @cached_property
    def _slope(self) -> Array:
        """About the derivative of ``G_θ(θ') w'`` by the velocities w' that move K."""
        return self._slope_at(self._continued)

    def _slope_at(self, velocity: Array) -> Array:
        slopes = self._point.density_point.kernel.information_slopes
        return np.asarray(self._matrix_at(velocity) + self._time * (slopes @ velocity).T)

    def _matrix_at(self, velocity: Array) -> Array:
        """Return G_θ where the velocities end, as its derivatives at q continue it."""
        moved = self._time * (self._velocity[self._parts[0]] + velocity)
        slopes = self._point.density_point.kernel.information_slopes
        return np.asarray(self._own + (moved @ slopes.reshape((moved.size, self._own.size))).reshape(self._own.shape))


def solved(matrix: Array, vector: Array) -> Array:
    """Return ``M⁻¹ v`` for a small matrix without symmetry; nan where it is singular."""
    if not vector.size:
        return vector
    _, _, found, info = lapack.dgesv(matrix, vector)
    return np.asarray(found) if info == 0 else np.full_like(vector, np.nan)
