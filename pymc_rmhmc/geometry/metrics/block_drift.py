"""The leapfrog's implicit drift in the metric ``blockdiag(W + K⁻¹, G_θ)``, solved one block after the other.

The step goes from (s, θ) with the velocity (u, w) to (s', θ') with (u', w'):

    θ' = θ + t (w + w'),   G_θ(s', θ') w' = G_θ(s, θ) w
    s' = s + t (u + u'),   (W(s', θ') + K(θ')⁻¹) u' = (W + K⁻¹) u

G_θ depends on s through what the likelihood says of θ alone, which for most likelihoods is nothing. So θ' comes first,
in as many evaluations of K as d equations need; then K(θ') and its factor stay as they are while s' is found.
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
from pymc_rmhmc.geometry.general.process_density import CentredDensity, CentredPoint
from pymc_rmhmc.geometry.metrics.block_matrix import LatentBlock

__all__ = ["BlockDrift"]

type Array = NDArray[np.float64]

# Of Newton's method for G_θ as its first derivatives at q continue it: each takes a d by d solution.
MOST_NEWTON = 8
# How little its last change must be, next to the velocity: the start of a search need not be exact.
ENOUGH = 1e-3
# How often the blocks take turns, where the likelihood's information about θ depends on s.
MOST_TURNS = 30


class TwoBlocks(Protocol):
    """What the drift asks of the metric; see `pymc_rmhmc.geometry.metrics.block.BlockField`."""

    density: CentredDensity

    def theta_block(self, point: CentredPoint) -> Array:
        """G_θ, (d, d)."""


class BlockDrift(ImplicitEquation):
    """``q' = q + time (u + u')`` with ``G(q')u' = G(q)u``.

    Parameters
    ----------
    field : BlockField
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
        self._n = field.density.process.n_process
        self._momentum = point.times(velocity)
        self.start = velocity / point.scale

    def function(self, x: Array) -> Array:
        """The map, with the factor of W at q and of K at x's θ'."""
        theta = x[self._n :]
        latent = self._latent_map(theta)
        found = np.full_like(theta, np.nan) if latent is None else latent(x[: self._n])
        return np.concatenate((found, self._theta_map(x[: self._n])(theta)))

    def solve(self, solver: FixedPointSolver) -> Solution:
        """Solve for θ's velocity given s's and for s's given θ's, until both hold."""
        n, count = self._n, 0
        x = np.concatenate((self.start[:n], self._continued / self._scale[n:]))
        for _ in range(MOST_TURNS):
            moved = self._theta_map(x[:n])
            found = solver.solve(moved, x[n:])
            x[n:], count = found.argument, count + found.n_iter
            latent = self._latent_map(x[n:]) if found.converged else None
            if latent is None:
                break
            found = solver.solve(latent, x[:n])
            x[:n], count = found.argument, count + found.n_iter
            left = self._theta_map(x[:n])(x[n:]) - x[n:]
            if not found.converged or np.abs(left).max(initial=0.0) <= solver.tolerance:
                return replace(found, argument=x, n_iter=count)
        return replace(found, argument=x, n_iter=count, converged=False)

    def conclude(self, x: Array) -> tuple[Array, Array]:
        """Q' and u'."""
        velocity = self._scale * x
        return self._point.position + self._time * (self._velocity + velocity), velocity

    @property
    def _scale(self) -> Array:
        scale: Array = self._point.scale
        return scale

    def _latent_map(self, theta: Array) -> Callable[[Array], Array] | None:
        """The map of s's velocity at a velocity of θ; None where W + K⁻¹ has no factor."""
        n, scale, matrix = self._n, self._scale[: self._n], self._point.matrix
        values = self._moved(theta, n)
        block = LatentBlock.factorize(self._field.density.kernel(values), matrix.latent.weight)
        if isinstance(block, Failure):
            return None
        start = block.solve(self._momentum[:n]) / scale

        def mapped(x: Array) -> Array:
            there = self._field.density.at(np.concatenate((self._moved(x, 0), values)))
            changed = (there.information[0] - block.weight) * scale * x
            return start - block.solve(changed) / scale

        return mapped

    def _theta_map(self, latent: Array) -> Callable[[Array], Array]:
        """The map of θ's velocity at a velocity of s: Newton's, with the derivatives at q."""
        n, scale = self._n, self._scale[self._n :]
        values = self._moved(latent, 0)

        def mapped(x: Array) -> Array:
            there = self._field.density.at(np.concatenate((values, self._moved(x, n))))
            if there.kernel.factor is None:
                return np.full_like(x, np.nan)
            missed = self._field.theta_block(there) @ (scale * x) - self._momentum[n:]
            return x - solved(self._slope, missed) / scale

        return mapped

    def _moved(self, x: Array, begin: int) -> Array:
        """S' or θ' of a velocity in units of its scale, of which `begin` is the first place."""
        part = slice(begin, begin + x.size)
        return np.ascontiguousarray(
            self._point.position[part] + self._time * (self._velocity[part] + self._scale[part] * x)
        )

    # ------------------------------------------------------ G_θ as its derivatives at q continue it

    @cached_property
    def _theta_slopes(self) -> Array:
        """``∂ⱼG_θ`` at q, (d, d, d), j first: of what s says of θ."""
        point, process = self._point.density_point, self._field.density.process
        found = np.zeros((process.n_theta,) * 3)
        found[np.ix_(process.moving, process.moving, process.moving)] = point.kernel.information_slopes
        return found

    @cached_property
    def _continued(self) -> Array:
        """The velocity of θ that solves its equation with ``G_θ + Σ ∂ⱼG_θ (θ'ⱼ - θⱼ)`` for G_θ(θ'); w if none is found.

        It is a start that needs no other K.
        """
        began, slopes, time = self._velocity[self._n :], self._theta_slopes, self._time
        here, wanted, found = self._field.theta_block(self._point.density_point), self._momentum[self._n :], began
        for _ in range(MOST_NEWTON):
            matrix = here + time * np.tensordot(began + found, slopes, axes=1)
            step = solved(matrix + time * (slopes @ found).T, matrix @ found - wanted)
            found = found - step
            if np.abs(step).max(initial=0.0) <= ENOUGH * np.abs(began).max(initial=0.0):
                return found
        return began

    @cached_property
    def _slope(self) -> Array:
        """About the derivative of ``G_θ(θ') w'`` by w'."""
        began, found, slopes = self._velocity[self._n :], self._continued, self._theta_slopes
        here = self._field.theta_block(self._point.density_point)
        return here + self._time * (np.tensordot(began + found, slopes, axes=1) + (slopes @ found).T)


def solved(matrix: Array, vector: Array) -> Array:
    """``M⁻¹ v`` of a small matrix without symmetry; nan where it is singular."""
    _, _, found, info = lapack.dgesv(matrix, vector)
    return np.asarray(found) if info == 0 else np.full_like(vector, np.nan)
