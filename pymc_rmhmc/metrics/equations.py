"""The leapfrog's implicit equations under ``G(z) = I + ΦᵀW(η)Φ``, written for the sites.

The velocity enters both through its image ``s = Φu`` at the sites alone. With ``M = Φ G⁻¹ Φᵀ`` and ``c = ∂w/∂η``:

    kick    s = Φ G⁻¹ e + ε/4 M (c ∘ s²),             p' = e + ε/4 Φᵀ(c ∘ s²)
    drift   s' = s - M [(w(η') - w) ∘ s'],            η' = η + ε/2 (s + s'),  u' = u - G⁻¹Φᵀ[(w(η') - w) ∘ s']

Where there are as many latent values as sites ``M v = Q d`` with ``Q = ΦΦᵀ`` and ``d = (I + WQ)⁻¹v``, so that an
iteration is two products with a symmetric matrix and two with a triangle: half of what the same equation costs when it
is written for the velocity. The unknown is s in units of about one posterior standard deviation,
``(w + 1/Qᵢᵢ)^(-1/2)``.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import ImplicitEquation
from pymc_rmhmc.latent.prior import Predictor

__all__ = ["DriftEquation", "KickEquation"]

type Array = NDArray[np.float64]


class FactorizedPoint(Protocol):
    """A position with its factorised metric; see `pymc_rmhmc.metrics.latent_metric.LatentPoint`."""

    position: Array
    eta: Array
    weight: Array
    curvature_slope: Array
    predictor: Predictor

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``, (k,)."""

    def pull(self, sites: Array) -> Array:
        """Return ``G⁻¹ Φᵀ sites``, (k,)."""

    def spread(self, sites: Array) -> Array:
        """Return ``M sites``, (n,)."""

    def weight_at(self, eta: Array) -> Array:
        """Return W at other sites, (n,)."""


class _SiteEquation:
    """The units of the unknown, and M."""

    def __init__(self, point: FactorizedPoint) -> None:
        self._point = point
        variance = point.predictor.variance
        # What reads no latent value moves with none: any unit will do.
        self._unit = 1.0 / np.sqrt(point.weight + 1.0 / np.where(variance > 0.0, variance, 1.0))

    def _spread(self, sites: Array) -> Array:
        """Return ``M sites`` in units of the unknown."""
        return self._point.spread(sites) / self._unit


class KickEquation(_SiteEquation, ImplicitEquation):
    """``p' = momentum - time · quadratic_term(G⁻¹p')``.

    Parameters
    ----------
    point : FactorizedPoint
        Where.
    momentum : (k,) array
        The explicit part of p'.
    time : float
        Half a step.
    """

    def __init__(self, point: FactorizedPoint, momentum: Array, time: float) -> None:
        super().__init__(point)
        self._momentum = momentum
        self.start = point.predictor.linear(point.solve(momentum)) / self._unit
        self._slope = 0.5 * time * point.curvature_slope * self._unit**2

    def function(self, x: Array) -> Array:
        """Evaluate the map at x."""
        return self.start + self._spread(self._slope * x * x)

    def conclude(self, x: Array) -> tuple[Array, Array]:
        """Return p' and its velocity."""
        momentum = self._momentum + self._point.predictor.adjoint(self._slope * x * x)
        return momentum, self._point.solve(momentum)


class DriftEquation(_SiteEquation, ImplicitEquation):
    """``q' = q + time (u + u')`` with ``G(q')u' = G(q)u``.

    Parameters
    ----------
    point : FactorizedPoint
        At q.
    velocity : (k,) array
        u.
    time : float
        Half a step.
    """

    def __init__(self, point: FactorizedPoint, velocity: Array, time: float) -> None:
        super().__init__(point)
        self._velocity, self._time = velocity, time
        self.start = point.predictor.linear(velocity) / self._unit

    def function(self, x: Array) -> Array:
        """Evaluate the map at x."""
        return self.start - self._spread(self._changed(x))

    def conclude(self, x: Array) -> tuple[Array, Array]:
        """Return q' and u'."""
        point = self._point
        velocity = self._velocity - point.pull(self._changed(x))
        return point.position + self._time * (self._velocity + velocity), velocity

    def _changed(self, x: Array) -> Array:
        """Return ``(w(η') - w) ∘ s'``."""
        eta = self._point.eta + self._time * self._unit * (self.start + x)
        return (self._point.weight_at(eta) - self._point.weight) * self._unit * x
