"""A model's density in coordinates in which it is nearly standard normal: with its trajectories, or its value alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.graph_chart.constants import Angles
from pymc_rmhmc.graph_chart.path_loops import FlatMap, State, evaluate, follow_path, grow_trees, walk_paths
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.linalg.compiled.native import call_for_value_and_slope, native_function

__all__ = ["GeneralPoint", "GeneralTarget", "Moved", "PeriodTarget", "ValuePoint", "ValueTarget"]

type Array = NDArray[np.float64]

_FAILURES = (Failure.NONE, Failure.NON_FINITE, Failure.ENERGY)


# Not frozen, though nobody writes to them: one is made for every trajectory.
@dataclass(slots=True)
class GeneralPoint:
    """The density at one u."""

    # `position`, `gradient`: (d,), U, and ∇φ.
    position: Array
    log_density: float  # ``φ(u) = log density of z + ½ uᵀu``
    gradient: Array
    found: Array  # (2 d + 1,): the gradient by z, the values x, and the log-Jacobian of z to x

    @property
    def failure(self) -> Failure:
        """NON_FINITE where φ or its gradient is."""
        finite = math.isfinite(self.log_density) and math.isfinite(float(self.gradient @ self.gradient))
        return Failure.NONE if finite else Failure.NON_FINITE

    @property
    def values(self) -> Array:
        """The model's values x (d,)."""
        d = self.position.size
        return self.found[d : 2 * d]

    @property
    def slope(self) -> Array:
        """The gradient of z's log density (d,)."""
        return self.found[: self.position.size]

    @property
    def model_log_density(self) -> float:
        """The log density of x as the model has it."""
        u = self.position
        return self.log_density - 0.5 * float(u @ u) - float(self.found[-1])

    def log_density_at(self, position: Array) -> float:
        """Return φ at another u (d,) that stands for the same point on circles."""
        u = self.position
        return self.log_density + 0.5 * float(position @ position - u @ u)


@dataclass(slots=True)
class Moved:
    """What trajectories in compiled code have led to."""

    # `point`, `momentum`: of the state that was kept.
    point: Any
    momentum: Array
    initial_energy: float  # H where the last of the trajectories began
    # The mean of ``min(1, exp(-energy error))``: over all states of trajectories that double, else over ends.
    acceptance: float
    energy_error: float  # of the last proposal; nan if that failed
    n_steps: int  # how many were made
    failure: Failure  # the first that there was
    accepted: bool  # whether any trajectory led elsewhere


class GeneralTarget:
    """φ of a model at ``z = c + S u``, for `GaussianHamiltonian`.

    `function`: ``(z, chart, *rest) -> (log density, [gradient, x, log-Jacobian])``, compiled by Numba.
    `rest`: what it takes after z and the chart's constants.
    `chart` (n,): the constants.
    `flat`: C and S.
    """

    def __init__(
        self, function: Callable[..., Any], rest: Sequence[np.ndarray], chart: Array, flat: FlatMap
    ) -> None:
        native = native_function(function, (flat.centre, chart), rest, call_for_value_and_slope)
        assert native is not None, "Numba returns a number and a vector"
        self._owner = function
        self._arguments = (native.address, native.rest, chart, flat)

    def at(self, position: Array) -> GeneralPoint:
        """Evaluate at u (d,)."""
        return GeneralPoint(position, *evaluate(*self._arguments, position))

    def advance(
        self, point: GeneralPoint, momentum: Array, n_steps: int, step_size: float
    ) -> tuple[int, tuple[GeneralPoint, Array] | None, Failure]:
        """Make so many steps: return how many were made, and the point and momentum at the end, or None and why."""
        made, finite, u, p, phi, slope, found = follow_path(
            *self._arguments, point.position, momentum, point.gradient, n_steps, step_size
        )
        if not finite:
            return made, None, Failure.NON_FINITE
        return made, (GeneralPoint(u, phi, slope, found), p), Failure.NONE

    def grow(
        self, point: GeneralPoint, momentum: Array, step_size: float, max_depth: int, rounds: int, seed: int
    ) -> Moved:
        """Make trajectories that double until they turn back."""
        state, p, initial, mean, n_steps, failure, moved = grow_trees(
            *self._arguments, _state(point), momentum, step_size, max_depth, rounds, seed
        )
        end = _point(state)
        error = 0.5 * float(end.position @ end.position + p @ p) - end.log_density - initial
        return Moved(end, p, initial, mean, error, n_steps, _FAILURES[failure], moved)

    def walk(
        self, point: GeneralPoint, momentum: Array, step_size: float, path: tuple[float, float, int], rounds: int,
        seed: int,
    ) -> Moved:  # fmt: skip
        """Walk paths of drawn lengths: `path` is their mean length, the jitter, and the most steps."""
        state, p, initial, mean, error, n_steps, failure, moved = walk_paths(
            *self._arguments, _state(point), momentum, step_size, *path, rounds, seed
        )
        return Moved(_point(state), p, initial, mean, error, n_steps, _FAILURES[failure], moved)


@dataclass(frozen=True, slots=True)
class PeriodTarget:
    """The same density on one period of each angle, and 0 elsewhere, which integrates to that on the circles.

    `target`: the density.
    `angles`: which of its values are angles.
    `centre` (k,): of each period.
    """

    target: GeneralTarget
    angles: Angles
    centre: Array

    def at(self, position: Array) -> GeneralPoint:
        """Evaluate at u (d,)."""
        point = self.target.at(position)
        if not self.angles.are_within(point.values, self.centre):
            point.log_density = -math.inf
        return point


def _state(point: GeneralPoint) -> State:
    """Convert a point to a state of compiled code."""
    return point.position, point.log_density, point.gradient, point.found


def _point(state: State) -> GeneralPoint:
    """Convert a state of compiled code to a point."""
    return GeneralPoint(*state)


@dataclass(slots=True)
class ValuePoint:
    """The density at one ϑ."""

    # `position`, `coordinates`, `values`: (d,), the standard normals ϑ, the coordinates z of the model's chart, and the
    # model's values x.
    position: Array
    coordinates: Array
    values: Array
    log_density: float  # what ϑ's has beyond a standard normal
    # `charted_log_density`, `model_log_density`: the log density of z, and that of x as the model has it.
    charted_log_density: float
    model_log_density: float

    @property
    def failure(self) -> Failure:
        """NON_FINITE where the density is."""
        return Failure.NONE if math.isfinite(self.log_density) else Failure.NON_FINITE


@dataclass(frozen=True, slots=True)
class ValueTarget:
    """The log density of ϑ beyond a standard normal, for `GaussianHamiltonian` and for an emulator.

    `function`: ``(z, constants) -> (log density, [x (d,), log-Jacobian])``.
    `constants`: of the model's chart.
    `chart`: from ϑ to z.
    """

    function: Callable[[Array, Array], Sequence[Any]]
    constants: Array
    chart: MarginalChart

    def in_chart(self, chart: MarginalChart) -> ValueTarget:
        """Return this target for another chart's ϑ."""
        return ValueTarget(self.function, self.constants, chart)

    def at(self, position: Array) -> ValuePoint:
        """Evaluate at ϑ (d,); far out, where an emulator may ask, a user's own operation may raise."""
        placed = self.chart.place(position)
        try:
            value, found = self.function(placed.theta, self.constants)
        except (ArithmeticError, RuntimeError, ValueError):  # a matrix without a factor is a ValueError
            value, found = math.nan, np.full(position.size + 1, math.nan)
        log_density = float(value)
        beyond = log_density + placed.log_volume + 0.5 * float(position @ position)
        return ValuePoint(position, placed.theta, found[:-1], beyond, log_density, log_density - float(found[-1]))

    def beyond_normal(self, point: Array) -> float:
        """Return the log density alone; -inf where it cannot be computed."""
        found = self.at(point)
        return -math.inf if found.failure else found.log_density
