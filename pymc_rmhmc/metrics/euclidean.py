"""Constant metrics without tuning: the identity in the model's own values, and the prior of a latent Gaussian block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget, latent_target
from pymc_rmhmc.metrics.field import MetricFieldBase
from pymc_rmhmc.metrics.flat import Identity
from pymc_rmhmc.metrics.graph_metric import matrix_density
from pymc_rmhmc.metrics.matrix_density import MatrixPoint

__all__ = ["EuclideanMetric", "PriorMetric"]

type Array = NDArray[np.float64]


class EuclideanMetric:
    """``G = I`` in the model's unconstrained values: that of `MALA`."""

    name, chart = "euclidean", "graph"

    def __repr__(self) -> str:
        return "EuclideanMetric()"

    def bind(self, density: Any) -> EuclideanField:
        """Return the metric of a density."""
        return EuclideanField(matrix_density(density, self.name))


class EuclideanField(MetricFieldBase[MatrixPoint, None]):
    """The identity, at every point of a model's density."""

    def at(self, point: MatrixPoint) -> Identity:
        """Return the identity."""
        return Identity(point.position.size)

    def pullback(self, point: MatrixPoint, bar: None) -> Array:
        """Return zeros, (n,)."""
        return np.zeros_like(point.position)


class PriorMetric:
    """The inverse covariance of a latent Gaussian block's prior, without sites: that of `EllipticalSlice`."""

    name, chart = "prior", "latent"

    def __repr__(self) -> str:
        return "PriorMetric()"

    def bind(self, density: LatentDensity) -> PriorField:
        """Return the metric of a density."""
        return PriorField(latent_target(density, self.name))


class PriorField:
    """The identity, in coordinates in which the prior is standard normal.

    Parameters
    ----------
    target : LatentTarget
        In a chart without sites.
    """

    def __init__(self, target: LatentTarget) -> None:
        self._target = target

    def hamiltonian(self) -> GaussianHamiltonian:
        """Return the Hamiltonian of the target: the likelihood and a standard normal, without a gradient."""
        return GaussianHamiltonian(PriorTarget(self._target))


@dataclass(slots=True)
class PriorPoint:
    """A `TargetPoint` without a gradient.

    Attributes
    ----------
    position : (k,) array
        z.
    eta : (n,) array
        The sites there.
    log_likelihood, log_density : float
        ``Σ ℓ(η)`` and φ(z).
    """

    position: Array
    eta: Array
    log_likelihood: float
    log_density: float

    @property
    def failure(self) -> Failure:
        """NON_FINITE where φ is."""
        return Failure.NONE if math.isfinite(self.log_density) else Failure.NON_FINITE


class PriorTarget:
    """φ alone: half the products of a target that gives its gradient too.

    Parameters
    ----------
    target : LatentTarget
        Its φ.
    """

    def __init__(self, target: LatentTarget) -> None:
        self._target = target

    def at(self, position: Array) -> PriorPoint:
        """Evaluate φ: one product with Φ and one likelihood."""
        eta = self._target.chart.predictor.apply(position)
        log_likelihood, value, _ = self._target.evaluate(eta)
        return PriorPoint(position, eta, log_likelihood, value)
