"""The general, non-separable ``H(q, p) = -L(q) + ½ log|G(q)| + ½ pᵀG(q)⁻¹p``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian.protocols import DensityPoint, MakeSteps, MetricPoint, PhaseState
from pymc_rmhmc.errors import Failure

__all__ = ["MetricField", "RiemannianHamiltonian", "RiemannianState"]

type Array = NDArray[np.float64]


class MetricField(Protocol):
    """A metric bound to a density: a matrix at every position. See `pymc_rmhmc.metrics.field`."""

    def evaluate(self, position: Array) -> MetricPoint:
        """Evaluate the density and the metric, and factorise the metric; a failure is in the point."""


class RiemannianState(PhaseState[MetricPoint]):
    """A position with its factorised metric, and a momentum (n,)."""

    __slots__ = ()

    @property
    def density_point(self) -> DensityPoint:
        """What the density itself gave at this position."""
        return self.point.density_point


class RiemannianHamiltonian:
    """``H(q, p) = -L(q) + ½ log|G(q)| + ½ pᵀ G(q)⁻¹ p`` with a position-dependent metric.

    The metric is bound to the density that is sampled, since it is usually made of the density's derivatives. It may
    make steps of an implicit integrator at once.

    References
    ----------
    Girolami and Calderhead (2011), eq. 13; Paquet and Fraccaro (2016), eq. 11.
    """

    def __init__(self, field: MetricField, make_advance: Callable[[], MakeSteps | None] | None = None) -> None:
        self.field, self._make_advance = field, make_advance

    @cached_property
    def advance(self) -> MakeSteps | None:
        """What makes steps at once, compiled when an integrator first asks for it; None if there is nothing."""
        return None if self._make_advance is None else self._make_advance()

    def state(self, position: Array) -> RiemannianState:
        """Evaluate the metric at a position; the momentum is zero until `refresh`."""
        return RiemannianState(self.field.evaluate(position), np.zeros_like(position))

    def refresh(self, state: RiemannianState, rng: np.random.Generator) -> RiemannianState:
        """Draw ``p ~ N(0, G(q))``."""
        return replace(state, momentum=state.point.sample_momentum(rng))

    def velocity(self, state: RiemannianState) -> Array:
        """Return ``dq/dt = G⁻¹p``."""
        return state.point.solve(state.momentum)

    def energy(self, state: RiemannianState) -> float:
        """Return H, up to the constant ``½ n log 2π``."""
        kinetic = 0.5 * float(state.momentum @ state.point.solve(state.momentum))
        return -state.point.log_density + state.point.half_log_det + kinetic

    def failure(self, state: RiemannianState) -> Failure:
        """Return what the evaluation of the metric reported."""
        return state.point.failure
