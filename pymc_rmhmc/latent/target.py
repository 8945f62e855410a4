"""The log density of a latent Gaussian block in the coordinates of a chart.

With thousands of sites kicks may be rounded to single precision, which halves what a step has to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from pymc_rmhmc.dynamics.hamiltonian import Advanced, Placed
from pymc_rmhmc.errors import ConfigurationError, Failure, failure_of
from pymc_rmhmc.latent.charts.site import GaussianSites, Predictor, SiteChart
from pymc_rmhmc.latent.rotation import CompiledSites, advance_rotation, evaluate_sites
from pymc_rmhmc.linalg.cholesky import solve_lower, solve_pair_in_place
from pymc_rmhmc.linalg.compiled.native import native_likelihood
from pymc_rmhmc.linalg.products import LARGE, multiply_in_streams, multiply_symmetric

__all__ = [
    "LatentDensity", "LatentTarget", "Likelihood", "RoundedTarget", "SiteTargetPoint", "TargetPoint",
    "latent_target", "rounded",
]  # fmt: skip

type Array = NDArray[np.float64]
type Single = NDArray[np.float32]

class Likelihood(Protocol):
    """A log likelihood that factorises over the sites, bound to its data and parameters."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The curvatures that it can give: of "hessian", "fisher", "softabs_curvature"."""

    def gradient(self, eta: Array) -> tuple[float, Array]:
        """``Σ ℓ`` and ``∂ℓ/∂η`` (n,)."""

    def gradient_rows(self, eta: Array) -> tuple[Array, Array]:
        """``Σ ℓ`` (m,) and ``∂ℓ/∂η`` (m, n) at many η (m, n)."""

    def curvature(self, eta: Array, kind: str) -> tuple[float, Array, Array, Array]:
        """``Σ ℓ``, g, w and ``r = ∂ log w/∂η``, each (n,)."""

    def weight(self, eta: Array, kind: str) -> Array:
        """The curvature w alone, (n,)."""

    @property
    def compiled_gradient(self) -> tuple[Callable[..., Any], Array | None, tuple[Array, ...]] | None:
        """A compiled function for `gradient`, what is added to η if anything, and what it takes after that sum.

        None where `gradient` has to be asked for.
        """


@dataclass(frozen=True, slots=True)
class TargetPoint:
    """The non-Gaussian part φ of a `LatentTarget` at z, or the whole density of a `LatentDensity`."""

    position: Array  # (k,): z
    eta: Array  # (n,): the sites there
    log_likelihood: float  # ``Σ ℓ(η)``
    # `log_density`, `gradient`: φ(z) and ∇φ(z), or ``log π(z)`` and its gradient.
    log_density: float
    gradient: Array

    @property
    def failure(self) -> Failure:
        """NON_FINITE where φ or its gradient is."""
        return failure_of(self.log_density, self.gradient)


@dataclass(slots=True)
class SiteTargetPoint:
    """φ and its slope as functions of the sites; see `LatentTarget.at_sites`."""

    eta: Array  # (n,): the sites
    log_likelihood: float  # ``Σ ℓ(η)``
    log_density: float  # φ
    # What a kick adds: (2 n,), ``s = ∂φ/∂η``, then ``ΦΦᵀ s``; or as `pymc_rmhmc.latent.target` has it, (n,).
    force: Array

    @property
    def failure(self) -> Failure:
        """NON_FINITE where φ or its slope is."""
        finite = math.isfinite(self.log_density) and math.isfinite(blas.ddot(self.force, self.force))
        return Failure.NONE if finite else Failure.NON_FINITE


class LatentTarget:
    """``log π(z) = -½ zᵀz + φ(z)`` with ``φ(z) = Σ ℓ(η) + residual sites(η)``, ``η = η₁ + Φ z``.

    The density of z is the prior times the likelihood, times `gaussian` if there is such a factor. The chart has its
    own sites in ``-½ zᵀz``. The residual sites are `gaussian` less those.

    `chart`: the coordinates.
    `likelihood`: over the chart's sites.
    `gaussian`: a Gaussian factor of the density besides prior and likelihood, such as a bridge has.
    """

    def __init__(
        self, chart: SiteChart, likelihood: Likelihood, gaussian: GaussianSites | None = None
    ) -> None:
        self.chart = chart
        self.likelihood = likelihood
        self.gaussian = gaussian
        self.residual_sites = _difference(gaussian, chart.sites)

    def at(self, position: Array) -> TargetPoint:
        """Evaluate φ and its gradient: two products with Φ and one likelihood."""
        predictor = self.chart.predictor
        eta = predictor.apply(position)
        log_likelihood, value, slope = self._evaluate(eta)
        return TargetPoint(position, eta, log_likelihood, value, predictor.adjoint(slope))

    def at_sites(self, displacement: Array) -> SiteTargetPoint:
        """Evaluate φ and its slope at ``Φ z`` (n,): one product with ``ΦΦᵀ`` and one likelihood."""
        predictor = self.chart.predictor
        eta = predictor.offset + displacement
        log_likelihood, value, slope = self.evaluate(eta)
        n = slope.size
        force = np.empty(2 * n)
        force[:n], force[n:] = slope, multiply_symmetric(predictor.gram, slope)
        return SiteTargetPoint(eta, log_likelihood, value, force)

    @cached_property
    def _compiled(self) -> CompiledSites | None:
        """φ for compiled code; None where the likelihood is not, or where φ is not it less the chart's sites."""
        found = self.likelihood.compiled_gradient
        if self.residual_sites is None or found is None:
            return None
        (function, shift, rest), predictor = found, self.chart.predictor
        native = native_likelihood(function, None, predictor.offset, rest, shift)
        if native is None:
            return None
        sites = self.residual_sites.scaled(-1.0)
        return native.address, None, native.rest, native.shift, sites.linear, sites.precision

    @property
    def advances(self) -> bool:
        """Whether `advance` can be asked for."""
        return self._compiled is not None

    def advance(self, origin: Placed, point: SiteTargetPoint, n_steps: int, step_size: float) -> Advanced:
        """The steps that were made of a trajectory, and where it is then."""
        return self.follow_spread((self.chart.predictor.gram,), origin, point, n_steps, step_size)

    def follow_spread(
        self, spread: tuple[Any, ...], origin: Placed, point: SiteTargetPoint, n_steps: int, step_size: float
    ) -> Advanced:
        """`advance` with what multiplies the slope in place of ``ΦΦᵀ``."""
        assert self._compiled is not None
        n_steps, finite, (moved, driven, force), gained, eta, log_likelihood, value, _ = advance_rotation(
            *self._compiled, self.chart.predictor.offset, spread, origin.displacement, origin.drive, point.force,
            n_steps, step_size,
        )  # fmt: skip
        return Advanced(n_steps, finite, moved, driven, gained, SiteTargetPoint(eta, log_likelihood, value, force))

    def __getstate__(self) -> dict[str, object]:
        # An address is of this process alone, and found again.
        return {name: held for name, held in self.__dict__.items() if name != "_compiled"}

    def apply(self, vector: Array) -> Array:
        """``Φ vector``, (n,)."""
        return self.chart.predictor.linear(vector)

    def adjoint(self, sites: Array) -> Array:
        """``Φᵀ sites``, (k,)."""
        return self.chart.predictor.adjoint(sites)

    def evaluate(self, eta: Array) -> tuple[float, float, Array]:
        """``Σ ℓ``, φ and ``∂φ/∂η``, where a trajectory can be followed as it has them, to the last bit."""
        if self._compiled is None:
            return self._evaluate(eta)
        log_likelihood, value, _, _, slope = evaluate_sites(*self._compiled, eta)
        return log_likelihood, value, slope

    def residual_rows(self, eta: Array) -> tuple[Array, Array]:
        """φ (m,) and ``∂φ/∂η`` (m, n) at many η (m, n)."""
        values, slopes = self.likelihood.gradient_rows(eta)
        if self.residual_sites is not None:
            of_sites = self.residual_sites.gradient(eta)
            values = values + 0.5 * np.einsum("ij,ij->i", self.residual_sites.linear + of_sites, eta)
            slopes = slopes + of_sites
        return values, slopes

    def _evaluate(self, eta: Array) -> tuple[float, float, Array]:
        """The same by NumPy."""
        log_likelihood, gradient = self.likelihood.gradient(eta)
        value = log_likelihood
        if self.residual_sites is not None:
            slope = self.residual_sites.gradient(eta)
            # b η - ½ w η² = ½ (b + (b - w η)) η
            value += 0.5 * (blas.ddot(self.residual_sites.linear, eta) + blas.ddot(slope, eta))
            gradient = gradient + slope
        return log_likelihood, value, gradient

    def model_log_density(self, z: Array, eta: Array, log_likelihood: float) -> float:
        """``log p(x) + log p(y given x)`` of the model's own variables."""
        return self.chart.log_prior(z, eta) + log_likelihood


class LatentDensity:
    """The whole ``log π(z) = -½ zᵀz + φ(z)`` of a `LatentTarget`: what a metric is bound to.

    `target`: φ, and the chart that z is of.
    """

    is_whole_model: Literal[False] = False

    def __init__(self, target: LatentTarget) -> None:
        self.target = target

    @property
    def predictor(self) -> Predictor:
        """``η = η₁ + Φz``."""
        return self.target.chart.predictor

    @property
    def likelihood(self) -> Likelihood:
        """Over the sites η."""
        return self.target.likelihood

    def at(self, position: Array) -> TargetPoint:
        """Evaluate ``log π`` and its gradient at z (k,)."""
        point = self.target.at(position)
        value = point.log_density - 0.5 * float(position @ position)
        return TargetPoint(position, point.eta, point.log_likelihood, value, point.gradient - position)


def latent_target(density: Any, metric: str) -> LatentTarget:
    """The target of a density whose metric needs one.

    Raises a `ConfigurationError` if it is no density of latent Gaussian values.
    """
    if not isinstance(density, LatentDensity):
        raise ConfigurationError(
            f"The {metric} metric needs a Gaussian prior and a likelihood that factorises, and got a "
            f"{type(density).__name__}. Bind a metric that asks for the log density alone."
        )
    return density.target


def _difference(wanted: GaussianSites | None, held: GaussianSites | None) -> GaussianSites | None:
    """Sites that multiply `held` to `wanted`; None if there is nothing to multiply."""
    if held is None:
        return wanted
    if wanted is None:
        return held.scaled(-1.0)
    linear, precision = wanted.linear - held.linear, wanted.precision - held.precision
    if not linear.any() and not precision.any():
        return None
    return GaussianSites(linear, precision)


# Of the energy that rounding may cost a kick of one unit of time, in squares: a trajectory's acceptance feels nothing.
MOST_ENERGY = 1e-4


class RoundedTarget:
    """A `LatentTarget` for `pymc_rmhmc.dynamics.hamiltonian.SiteHamiltonian`.

    `target`: of a chart with a triangular Φ.
    `gram` (n, n) array in single precision: S̃, for ``ΦΦᵀ``: of a Fortran-ordered one the upper triangle is read.
    """

    def __init__(self, target: LatentTarget, gram: Single) -> None:
        self._target, self._gram = target, gram

    def at_sites(self, displacement: Array) -> SiteTargetPoint:
        """Evaluate φ at ``Φ z`` (n,), and S̃ times its slope."""
        eta = self._target.chart.predictor.offset + displacement
        log_likelihood, value, slope = self._target.evaluate(eta)
        return SiteTargetPoint(eta, log_likelihood, value, multiply_in_streams(self._gram, slope))

    def apply(self, vector: Array) -> Array:
        """``Φ vector``, (n,)."""
        return self._target.apply(vector)

    def solve_pair(self, first: Array, second: Array) -> tuple[Array, Array]:
        """``Φ⁻¹`` of two vectors (n,), for which Φ is read once."""
        first, second = first.copy(), second.copy()
        solve_pair_in_place(self._target.chart.predictor.matrix, first, second)
        return first, second

    @property
    def advances(self) -> bool:
        """Whether `advance` can be asked for."""
        return self._target.advances

    def advance(self, origin: Placed, point: SiteTargetPoint, n_steps: int, step_size: float) -> Advanced:
        """The steps that were made of a trajectory, and where it is then."""
        return self._target.follow_spread((self._gram,), origin, point, n_steps, step_size)


def rounded(target: LatentTarget) -> RoundedTarget | None:
    """The target with rounded kicks; None where a step would gain nothing, or where rounding would be felt.

    A slope of a likelihood is of the size of the roots of its sites' precisions. What rounding changes of the momentum
    after a kick of such a slope, with signs at random, says what it costs: only a covariance whose smallest eigenvalues
    are next to nothing beside its largest feels it.
    """
    predictor, sites = target.chart.predictor, target.chart.sites
    if not predictor.triangular or predictor.n_sites < LARGE or sites is None:
        return None
    exact = predictor.gram
    gram = exact.astype(np.float32)
    signs = np.where(np.random.default_rng(0).random(predictor.n_sites) < 0.5, -1.0, 1.0)
    slope = signs * np.sqrt(np.abs(sites.precision))
    missed = solve_lower(predictor.matrix, multiply_in_streams(gram, slope) - multiply_in_streams(exact, slope))
    energy = float(missed @ missed)
    if not (math.isfinite(energy) and energy <= MOST_ENERGY):
        return None
    predictor.forget_gram()
    return RoundedTarget(target, gram)
