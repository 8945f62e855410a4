"""The position-dependent metric of a latent Gaussian model, ``G(z) = I + ΦᵀW(η)Φ``.

In the model's own coordinates f it is the papers' ``W(f) + K⁻¹``: a metric is a tensor, the coordinates
z with ``η = η₁ + Φz`` are linear in f, and every integrator here commutes with linear maps, so that the
sampler is the same. The coordinates z keep K⁻¹, with its condition of 10¹⁰, out of the arithmetic.

G is factorised in the size of the sites or of the latent values: see `pymc_rmhmc.metrics.latent_matrix`. With
``s = sqrt(w)`` and the leverage ``h_i = w_i (Φ G⁻¹ Φᵀ)_ii``:

    ½ tr(G⁻¹ ∂G) = ½ Φᵀ [r ∘ h]
    p = Φᵀ(s ∘ z₁) + z₂ ~ N(0, G)

References
----------
Paquet and Fraccaro (2016), sections 4.2-4.3 and algorithms 2 and 3; Girolami and Calderhead (2011),
section 9, for the Fisher form.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import ImplicitEquation
from pymc_rmhmc.errors import ConfigurationError, Failure, failure_of
from pymc_rmhmc.latent.charts.site import Predictor
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget, TargetPoint, latent_target
from pymc_rmhmc.metrics.field import FactorizedPoint, MetricFieldBase
from pymc_rmhmc.metrics.graph_metric import MatrixDensity, MatrixField
from pymc_rmhmc.metrics.latent_matrix import LatentMatrix, factorise, times_metric
from pymc_rmhmc.usage import one_of

__all__ = ["CurvatureMetric", "FisherMetric", "HessianMetric", "LatentField", "LatentPoint", "SoftAbsCurvatureMetric"]

type Array = NDArray[np.float64]

CHARTS = ("auto", "latent", "graph")
ADVICE = 'Leave it out, or give FisherMetric(chart="graph").'


class CurvatureMetric:
    """Base of the metrics that differ only in the kind of curvature, which is also their name."""

    name: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def bind(self, density: LatentDensity) -> LatentField:
        """Return the metric of a density; raise a `ConfigurationError` if no likelihood gives this curvature."""
        return LatentField(latent_target(density, self.name), self.name)


class HessianMetric(CurvatureMetric):
    """Position-dependent metric ``G(f) = W(f) + K⁻¹`` with the observed curvature ``W = -ℓ''`` of the likelihood.

    The likelihood must be log-concave in the latent values. With `GeneralizedLeapfrog` this is the sampler of the
    papers. It samples latent values alone, and is much slower than `FlatMetric` on every problem measured.

    References
    ----------
    Paquet and Fraccaro (2016), eq. 16.

    Examples
    --------
    >>> from pymc_rmhmc import HessianMetric
    >>> HessianMetric().name
    'hessian'
    """

    name = "hessian"


class FisherMetric(CurvatureMetric):
    """Position-dependent metric of the Fisher information.

    On a latent Gaussian block it is ``G(f) = W(f) + K⁻¹`` with W the information of the likelihood, and RMHMC samples
    latent values alone. On any other model it is the information of all variables, observed or not, in all sampled
    values, with the curvature of the priors, and RMHMC samples all continuous variables.

    The Fisher information is never negative, so this metric also suits likelihoods that are not log-concave, such as
    StudentT.

    Parameters
    ----------
    chart : {"auto", "latent", "graph"}
        "latent" is the metric of a latent Gaussian block, "graph" that of all values. "auto" is "latent" where the
        model has such a block, and "graph" elsewhere.

    Raises
    ------
    ConfigurationError
        If `chart` is none of these. When RMHMC is built: if the information of a variable is not known, or the matrix
        may be singular.

    References
    ----------
    Girolami and Calderhead (2011), section 5, section 7 for logistic regression and section 9 for a log-Gaussian Cox
    process.

    Examples
    --------
    >>> from pymc_rmhmc import FisherMetric
    >>> FisherMetric(chart="graph").name
    'fisher'
    """

    name, source = "fisher", "information"

    def __init__(self, chart: str = "auto") -> None:
        self.chart = one_of("chart", chart, CHARTS, ADVICE)

    def __repr__(self) -> str:
        return f"FisherMetric(chart={self.chart!r})"

    def bind(self, density: LatentDensity | MatrixDensity) -> LatentField | MatrixField:  # type: ignore[override]
        """Return the metric of a density; raise a `ConfigurationError` if the information is not known."""
        if getattr(density, "is_whole_model", False):
            return MatrixField(cast("MatrixDensity", density))
        return super().bind(cast("LatentDensity", density))


class SoftAbsCurvatureMetric(CurvatureMetric):
    """Position-dependent metric ``G(f) = W(f) + K⁻¹`` with ``w = ℓ'' coth(α ℓ'')``, a smooth form of ``abs(ℓ'')``.

    It is for likelihoods that are not registered. It samples latent values alone.

    References
    ----------
    Betancourt (2013), A general metric for Riemannian manifold Hamiltonian Monte Carlo.
    """

    name = "softabs_curvature"


class LatentField(MetricFieldBase[TargetPoint, Array]):
    """``G(z) = I + ΦᵀW(η)Φ`` with the curvature W of one kind.

    A bar is the derivative by W, (n,). `evaluate` gives a `LatentPoint`, whose terms and equations cost less than those
    that follow from `at` and `pullback`. The chart must hold the whole Gaussian part of the density, so that only the
    likelihood has a curvature that moves.

    Raises a `ConfigurationError` if the likelihood does not give this curvature or the chart's sites are not the
    target's.
    """

    def __init__(self, target: LatentTarget, kind: str) -> None:
        if kind not in target.likelihood.kinds:
            raise ConfigurationError(
                f'The likelihood has no "{kind}" curvature. It has: {", ".join(target.likelihood.kinds)}. '
                'Only a likelihood that is log-concave in the latent values has "hessian". '
                f'Use RMHMC(metric="{target.likelihood.kinds[0]}").'
            )
        if target.residual_sites is not None:
            raise ConfigurationError(
                "The chart's sites differ from the target's Gaussian part. Build the chart with the sites in "
                "LatentTarget.gaussian."
            )
        super().__init__(LatentDensity(target))
        self.target = target
        self.kind = kind

    def at(self, point: TargetPoint) -> LatentMatrix | Failure:
        """Factorise G at a point of the density."""
        weight = self.target.likelihood.weight(point.eta, self.kind)
        return factorise(self.target.chart.predictor, weight)

    def pullback(self, point: TargetPoint, bar: Array) -> Array:
        """Return ``Φᵀ(∂w/∂η ∘ bar)``, (k,)."""
        _, _, weight, log_slope = self.target.likelihood.curvature(point.eta, self.kind)
        return self.target.chart.predictor.adjoint(log_slope * weight * bar)

    def product(self, point: TargetPoint, vector: Array) -> Array:
        """Return ``G vector``, (k,), without a factor."""
        weight = self.target.likelihood.weight(point.eta, self.kind)
        return times_metric(self.target.chart.predictor, weight, vector)

    def evaluate(self, position: Array) -> LatentPoint:
        """Evaluate the target, and factorise G: one Cholesky and one triangular inverse."""
        return LatentPoint(self, position)


class _Curved:
    """Where the map to the sites is known, and ``∂w/∂η`` there."""

    predictor: Predictor
    curvature_slope: Array

    def quadratic_term(self, velocity: Array) -> Array:
        """Return ``-½ uᵀ(∂G/∂zᵢ)u = -½ Φᵀ[∂w/∂η ∘ (Φu)∘(Φu)]`` for every i."""
        along = self.predictor.linear(velocity)
        return -0.5 * self.predictor.adjoint(self.curvature_slope * along * along)


class LatentPoint(_Curved, FactorizedPoint[LatentMatrix]):
    """The target and the factorised metric at one position z; see `pymc_rmhmc.dynamics.hamiltonian.MetricPoint`.

    Attributes
    ----------
    eta, weight, curvature_slope : (n,) array
        The sites, their curvature w, and ``∂w/∂η``.
    log_likelihood : float
        ``Σ ℓ(η)``.
    """

    scale: float | Array = LatentMatrix.scale

    def __init__(self, field: LatentField, position: Array) -> None:
        target = field.target
        self._field = field
        self.predictor = target.chart.predictor
        self.position = position
        self.eta = self.predictor.apply(position)
        self.log_likelihood, slope, weight, log_slope = target.likelihood.curvature(self.eta, field.kind)
        self.weight = weight
        self.curvature_slope = log_slope * self.weight
        self.log_density = self.log_likelihood - 0.5 * float(position @ position)
        self.gradient = self.predictor.adjoint(slope) - position
        self.half_log_det = math.nan
        self.trace_term = np.full_like(position, np.nan)
        # Where the likelihood could not be evaluated, not all of these are numbers.
        failure = failure_of(self.log_density, self.gradient) or failure_of(self.log_density, self.curvature_slope)
        self.failure = failure or self._factorize(log_slope)

    def _factorize(self, log_slope: Array) -> Failure:
        """Find the factor, ``½ log|G|`` and the trace term, or return why there are none."""
        matrix = factorise(self.predictor, self.weight)
        if isinstance(matrix, Failure):
            return matrix
        self.matrix, self.half_log_det = matrix, matrix.half_log_det
        self.trace_term = 0.5 * self.predictor.adjoint(log_slope * matrix.leverage)
        return Failure.NONE

    @property
    def density_point(self) -> LatentPoint:
        """The point itself, which has what the density gives."""
        return self

    def inverse_divergence(self) -> Array:
        """Return ``Σⱼ ∂ⱼ(G⁻¹)ᵢⱼ`` for every i: ``-2 G⁻¹`` times the trace term.

        The two agree because ``∂ⱼGₐᵦ`` is the same in any order of j, a and β.
        """
        return -2.0 * self.solve(self.trace_term)

    def kick_equation(self, momentum: Array, time: float) -> KickEquation:
        """Return it for the sites."""
        return KickEquation(self, momentum, time)

    def drift_equation(self, velocity: Array, time: float) -> DriftEquation:
        """Return it for the sites."""
        return DriftEquation(self, velocity, time)

    def weight_at(self, eta: Array) -> Array:
        """Return the curvature w at other sites, (n,)."""
        target = self._field.target
        return target.likelihood.weight(eta, self._field.kind)

    def nearby(self, position: Array) -> LatentNeighbour:
        """Evaluate the target and the curvature at another position, in O(n²)."""
        return LatentNeighbour(self, position)


class LatentNeighbour(_Curved):
    """The target and the curvature at one position, with what a factorised metric at another lacks of it."""

    def __init__(self, point: LatentPoint, position: Array) -> None:
        target, self.predictor = point._field.target, point.predictor
        eta = self.predictor.apply(position)
        _, slope, weight, log_slope = target.likelihood.curvature(eta, point._field.kind)
        self.gradient = self.predictor.adjoint(slope) - position
        self.curvature_slope = weight * log_slope
        self._change = weight - point.weight

    def apply_change(self, velocity: Array) -> Array:
        """Return ``Φᵀ[(w(here) - w(there)) ∘ Φu]``."""
        return self.predictor.adjoint(self._change * self.predictor.linear(velocity))


class _SiteEquation(ImplicitEquation):
    """One of the leapfrog's implicit equations, written for the sites.

    The velocity enters both through its image ``s = Φu`` at the sites alone. With ``M = Φ G⁻¹ Φᵀ`` and ``c = ∂w/∂η``:

        kick    s = Φ G⁻¹ e + ε/4 M (c ∘ s²),             p' = e + ε/4 Φᵀ(c ∘ s²)
        drift   s' = s - M [(w(η') - w) ∘ s'],            η' = η + ε/2 (s + s'),  u' = u - G⁻¹Φᵀ[(w(η') - w) ∘ s']

    Where there are as many latent values as sites ``M v = Q d`` with ``Q = ΦΦᵀ`` and ``d = (I + WQ)⁻¹v``, so that an
    iteration is two products with a symmetric matrix and two with a triangle: half of what the same equation costs when
    it is written for the velocity. The unknown is s in units of about one posterior standard deviation,
    ``(w + 1/Qᵢᵢ)^(-1/2)``.
    """

    def __init__(self, point: LatentPoint, velocity: Array) -> None:
        self._point = point
        variance = point.predictor.variance
        # What reads no latent value moves with none: any unit will do.
        self._unit = 1.0 / np.sqrt(point.weight + 1.0 / np.where(variance > 0.0, variance, 1.0))
        self.start = point.predictor.linear(velocity) / self._unit

    def _spread(self, sites: Array) -> Array:
        """Return ``M sites`` in units of the unknown."""
        return self._point.matrix.spread(sites) / self._unit


class KickEquation(_SiteEquation):
    """``p' = momentum - time · quadratic_term(G⁻¹p')``."""

    def __init__(self, point: LatentPoint, momentum: Array, time: float) -> None:
        super().__init__(point, point.solve(momentum))
        self._momentum = momentum
        self._slope = 0.5 * time * point.curvature_slope * self._unit**2

    def function(self, x: Array) -> Array:
        """Evaluate the map at x."""
        return self.start + self._spread(self._slope * x * x)

    def conclude(self, x: Array) -> tuple[Array, Array]:
        """Return p' and its velocity."""
        momentum = self._momentum + self._point.predictor.adjoint(self._slope * x * x)
        return momentum, self._point.solve(momentum)


class DriftEquation(_SiteEquation):
    """``q' = q + time (u + u')`` with ``G(q')u' = G(q)u``."""

    def __init__(self, point: LatentPoint, velocity: Array, time: float) -> None:
        super().__init__(point, velocity)
        self._velocity, self._time = velocity, time

    def function(self, x: Array) -> Array:
        """Evaluate the map at x."""
        return self.start - self._spread(self._changed(x))

    def conclude(self, x: Array) -> tuple[Array, Array]:
        """Return q' and u'."""
        point = self._point
        velocity = self._velocity - point.matrix.pull(self._changed(x))
        return point.position + self._time * (self._velocity + velocity), velocity

    def _changed(self, x: Array) -> Array:
        """Return ``(w(η') - w) ∘ s'``."""
        eta = self._point.eta + self._time * self._unit * (self.start + x)
        return (self._point.weight_at(eta) - self._point.weight) * self._unit * x
