"""A model beside a standard normal reference, from which every estimate of the evidence starts.

In the coordinates z of a chart the model's density is ``exp(C + φ(z)) N(z; 0, I)``, with φ nearly constant where the
chart is good. So ``log p(y) = C + log E[exp φ(z)]``, the mean over standard normal z. Between the two lie the densities
``exp(β φ) N(z; 0, I)`` with β from 0 to 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.kernels.walkers import ResidualWalkers, SiteWalkers, Walkers
from pymc_rmhmc.latent.charts.site import SiteChart
from pymc_rmhmc.latent.target import LatentTarget, Likelihood

__all__ = ["LOG_2PI", "LatentReference", "Reference", "ResidualReference"]

type Array = NDArray[np.float64]

LOG_2PI = math.log(2.0 * math.pi)


class Reference(ABC):
    """What estimates need of a model."""

    size: int  # of z
    log_constant: float  # C

    @abstractmethod
    def walkers(self, count: int, rng: np.random.Generator) -> Walkers:
        """Return walkers at independent draws of the reference."""

    @abstractmethod
    def at(self, position: Array) -> tuple[float, Array]:
        """Return φ and its gradient at z."""

    @abstractmethod
    def values(self, states: Array, rng: np.random.Generator) -> Array:
        """Return the model's values (n, k) at some states of walkers (n, m), some of them drawn given the others."""

    @abstractmethod
    def residuals(self, values: Iterable[Array], rng: np.random.Generator) -> Array:
        """Return φ at some values of the model, each (k,); -inf where it cannot be computed."""


class LatentReference(Reference):
    """A latent Gaussian block with everything else fixed: its prior times Gaussian sites is the reference.

    `chart`: prior and sites.
    `likelihood`: over the sites.
    `constant`: what the model's log density has besides.
    """

    def __init__(self, chart: SiteChart, likelihood: Likelihood, constant: float = 0.0) -> None:
        self.chart, self.likelihood = chart, likelihood
        self.target = LatentTarget(chart, likelihood)
        self.size, self.log_constant = chart.prior.n_latent, chart.log_evidence + constant

    def walkers(self, count: int, rng: np.random.Generator) -> SiteWalkers:
        """See `Reference`."""
        return SiteWalkers(self.target, count, rng)

    def at(self, position: Array) -> tuple[float, Array]:
        """See `Reference`."""
        point = self.target.at(position)
        return point.log_density, point.gradient

    def values(self, states: Array, rng: np.random.Generator) -> Array:
        """See `Reference`: states are displacements ``a = Φ z`` (count, n).

        What Φ does not see of z has its normal law still, so it is drawn: ``z = ε + Φ⁺ (a - Φ ε)``.
        """
        predictor = self.chart.predictor
        noise = rng.standard_normal((len(states), self.size))
        lacking = states - noise @ predictor.matrix.T
        positions = noise + np.linalg.lstsq(predictor.matrix, lacking.T, rcond=None)[0].T
        placed = zip(positions, states, strict=True)
        return np.array([self.chart.to_model(z, predictor.offset + a) for z, a in placed])

    def residuals(self, values: Iterable[Array], rng: np.random.Generator) -> Array:
        """See `Reference`."""
        found = np.array([self.target.at(self.chart.from_model(each)).log_density for each in values])
        return np.where(np.isfinite(found), found, -math.inf)


class ResidualReference(Reference):
    """A whole model in the coordinates of a chain.

    `residual`: φ.
    `size`: of z.
    `log_constant`: C.
    `stand`: from values of the model and random numbers to the point that stands for them.
    `values_at`: from a point to the model's values.
    `n_own`: so many coordinates at first may have tails of their own; the others are normal given these. By default
      all.
    """

    def __init__(
        self, residual: Any, size: int, log_constant: float,
        stand: Callable[[Array, np.random.Generator], Any], values_at: Callable[[Any], Array],
        n_own: int | None = None,
    ) -> None:  # fmt: skip
        self.residual, self.size, self.log_constant = residual, size, log_constant
        self.values_at, self.stand = values_at, stand
        self.own_tails = np.arange(size if n_own is None else n_own)

    def point_of(self, values: Array, rng: np.random.Generator) -> Any:
        """Return the point that stands for some values; None where there is no density."""
        try:
            point = self.stand(values, rng)
        except PriorFailure:
            return None
        return point if point.failure == Failure.NONE else None

    def positions(self, values: Array, rng: np.random.Generator) -> Array:
        """Return z (n, d) at some values of the model (n, k); not a number where there is no density."""
        points, nowhere = (self.point_of(each, rng) for each in values), np.full(self.size, math.nan)
        found = [nowhere if point is None else point.position for point in points]
        return np.array(found).reshape(-1, self.size)

    def walkers(self, count: int, rng: np.random.Generator) -> ResidualWalkers:
        """See `Reference`."""
        return ResidualWalkers(self.residual, self.size, count, rng)

    def at(self, position: Array) -> tuple[float, Array]:
        """See `Reference`."""
        point = self.residual.at(position)
        return (math.nan, position) if point.failure else (point.log_density, point.gradient)

    def values(self, states: Array, rng: np.random.Generator) -> Array:
        """See `Reference`."""
        return np.array([self.values_at(self.residual.at(position)) for position in states])

    def residuals(self, values: Iterable[Array], rng: np.random.Generator) -> Array:
        """See `Reference`."""
        points = (self.point_of(each, rng) for each in values)
        return np.array([-math.inf if point is None else float(point.log_density) for point in points])
