"""The site chart: coordinates in which a prior times Gaussian sites is standard normal.

Sites ``exp(bᵀη - ½ ηᵀW̄η)`` stand in for the likelihood. With ``η = η₀ + Φ ν`` and ν standard normal,

    E = I + ΦᵀW̄Φ = R Rᵀ (R upper),   c = R⁻¹Φᵀ(b - W̄η₀),   ν = R⁻ᵀ(c + z),

and z is standard normal under the prior times the sites. What remains of a likelihood in z is its
residual from the sites; z is then nearly standard normal under the posterior. Any sites for which E is
positive definite give an exact chart, however poor they are.

With no sites (b = W̄ = 0) the chart is the whitened one. With a part ``1 - β`` of an approximation's
sites it is where the tempered densities of annealing live: their Gaussian part is the prior times
those sites.

References
----------
Rasmussen and Williams (2006), section 3.6, for site parameters and B; the flat metric ``W̄ + K⁻¹`` at a
fixed covariance is Girolami and Calderhead's (2011, section 9) for the log-Gaussian Cox process.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from pymc_rmhmc.errors import ConfigurationError, Failure, PriorFailure, shown
from pymc_rmhmc.interfaces.stated import StatedPrior
from pymc_rmhmc.latent.forms import operator_of
from pymc_rmhmc.latent.operators import stacked
from pymc_rmhmc.linalg.cholesky import (
    cogram_lower,
    gram_lower,
    inverse_lower,
    multiply_lower,
    reverse_cholesky,
    solve_lower,
)
from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.usage import one_of

__all__ = ["FactorizedPrior", "GaussianSites", "Predictor", "SiteChart", "SitePolicy", "residual_of_sites"]

# ---------------------------------------------------- the prior

# A block's prior at one θ in standard normal coordinates, and as an affine map from these to its sites.
#
# A latent Gaussian block is a set of vectors ``x_j ~ N(μ_j, Σ_j)`` and sites ``η = c + Σ_j A_j x_j``.
# With ``Σ_j = L_j L_jᵀ`` and ``x_j = μ_j + L_j ν_j`` the coordinates ν are standard normal a priori and
# ``η = η₀ + Φ ν`` with ``Φ = [A_1 L_1, A_2 L_2, ...]``.

type Array = NDArray[np.float64]


class Predictor:
    """The affine map ``η = η₀ + Φ z`` from standard normal coordinates to the sites.

    `offset` (n,): η₀.
    `matrix` (n, k): Φ.
    `triangular`: whether Φ is square and lower triangular: products then cost half.
    `gram` (n, n): ``Φ Φᵀ`` where it is known already (a GP's covariance).
    """

    def __init__(self, offset: Array, matrix: Array, *, triangular: bool, gram: Array | None = None) -> None:
        self.offset = offset
        self.matrix = np.asfortranarray(matrix)
        self.triangular = triangular
        self._gram = gram
        self.n_sites, self.n_latent = matrix.shape

    def apply(self, z: Array) -> Array:
        """Return ``η₀ + Φ z``, (n,)."""
        return self.offset + self.linear(z)

    def linear(self, z: Array) -> Array:
        """Return ``Φ z``, (n,)."""
        if self.triangular:
            return multiply_lower(self.matrix, z)
        return self.matrix @ z

    def adjoint(self, sites: Array) -> Array:
        """Return ``Φᵀ v``, (k,)."""
        if self.triangular:
            return multiply_lower(self.matrix, sites, transpose=True)
        return self.matrix.T @ sites

    @property
    def gram(self) -> Array:
        """``Φ Φᵀ`` (n, n), the prior covariance of the sites; computed once."""
        if self._gram is None:
            dense = not self.triangular
            self._gram = np.asfortranarray(self.matrix @ self.matrix.T) if dense else gram_lower(self.matrix)
        return self._gram

    @cached_property
    def variance(self) -> Array:
        """The diagonal of ``Φ Φᵀ``, (n,)."""
        return np.asarray(np.einsum("ij,ij->i", self.matrix, self.matrix))

    def forget_gram(self) -> None:
        """Let go of ``Φ Φᵀ``, which is computed again for who asks."""
        self._gram = None


class FactorizedPrior:
    """The whitened chart ν of a block's prior at one θ: ``x_j = μ_j + L_j ν_j`` or ``x_j = ν_j``.

    Raises a `PriorFailure` if a covariance is not positive definite or an input is not finite.

    `stated`: what the model states, with a matrix for each vector, or none; every covariance is factorised here, once.

    Attributes
    ----------
    root : Root
        The L of all vectors, and the model's variables of a ν.
    predictor : Predictor
        ``η = η₀ + Φ ν``.
    shift : (n,) array
        What the sites have beyond the latent values.
    sites_are_model_values : bool
        Whether ``η - shift`` are the model's variables themselves (a centred GP seen at every input).
    """

    def __init__(self, stated: StatedPrior) -> None:
        designs = [None] * len(stated.vectors) if stated.design is None else stated.design
        inputs = [stated.mean, *(design for design in designs if design is not None)]
        if not all(np.isfinite(each).all() for each in inputs):
            raise PriorFailure(Failure.NON_FINITE)
        operators = [operator_of(vector) for vector in stated.vectors]
        self.root, self.shift = stacked(operators), stated.shift
        is_plain = len(operators) == 1 and designs[0] is None
        self.sites_are_model_values = is_plain and stated.vectors[0].is_variable
        if is_plain:
            # The covariance stays at hand for the mode alone: see `Predictor.forget_gram`.
            known = getattr(stated.vectors[0], "covariance", None)
            self.predictor = Predictor(stated.mean, operators[0].matrix(), triangular=True, gram=known)
        else:
            pairs = zip(designs, (operator.matrix() for operator in operators), strict=True)
            columns = [matrix if design is None else design @ matrix for design, matrix in pairs]
            self.predictor = Predictor(stated.mean, np.hstack(columns), triangular=False)

    @property
    def n_latent(self) -> int:
        """The number of latent values, all vectors together."""
        return self.root.size


@compiled
def residual_of_sites(
    linear: Array, precision: Array, eta: Array, slope: Array
) -> tuple[float, Array]:  # pragma: no cover - compiled
    """``Σ bᵢηᵢ - ½ w̄ᵢηᵢ²``, and a slope less that of this."""
    value, residual = 0.0, np.empty(eta.size)
    for i in range(eta.size):
        pull = linear[i] - precision[i] * eta[i]
        value += 0.5 * (linear[i] + pull) * eta[i]
        residual[i] = slope[i] - pull
    return value, residual


@dataclass(frozen=True, slots=True)
class GaussianSites:
    """One Gaussian factor ``exp(b η - ½ w̄ η²)`` for each value η that the likelihood reads.

    Attributes
    ----------
    linear : (n,) array
        b.
    precision : (n,) array
        w̄. A negative value is allowed if prior times sites is still a Gaussian.
    moves : bool
        False: what follows θ is `MovingSites`.
    trend, tilt : None
        What they follow.
    """

    linear: Array
    precision: Array
    moves: ClassVar[Literal[False]] = False
    trend: ClassVar[None] = None
    tilt: ClassVar[None] = None

    @property
    def sites(self) -> GaussianSites:
        """These, as `MovingSites` has those of one θ."""
        return self

    def log_density(self, eta: Array) -> float:
        """``Σ bᵢηᵢ - ½ w̄ᵢηᵢ²``."""
        if not eta.size:
            return 0.0
        return 0.5 * float(blas.ddot(self.linear, eta) + blas.ddot(self.gradient(eta), eta))

    def gradient(self, eta: Array) -> Array:
        """``b - w̄ η``, (n,)."""
        return self.linear - self.precision * eta

    def residual(self, eta: Array, slope: Array) -> tuple[float, Array]:
        """`log_density`, and what is left of a slope (n,) beyond `gradient`, in one pass."""
        value, residual = residual_of_sites(self.linear, self.precision, eta, slope)
        return value, residual

    @property
    def standing(self) -> tuple[GaussianSites, float]:
        """Sites that no θ moves, and by what all their w̄ are multiplied here."""
        return self, 1.0

    def scaled(self, factor: float | Array) -> GaussianSites:
        """The sites raised to a power."""
        return GaussianSites(factor * self.linear, factor * self.precision)


class SiteChart:
    """Coordinates z of a block, given its factorised prior and Gaussian sites.

    Raises a `PriorFailure` if ``I + ΦᵀW̄Φ`` is not positive definite (never for w̄ ≥ 0).

    `prior`: the block's prior at one θ.
    `sites`: None gives the whitened chart, z = ν.
    `lasting`: whether the chart is for many draws: then preparing for cheaper steps pays.

    Attributes
    ----------
    predictor : Predictor
        ``η = η₁ + (Φ R⁻ᵀ) z``: lower triangular where Φ is.
    log_constant : float
        ``log [N(ν) exp(sites) ∂ν/∂x] - log N(z)``, the same at every z, without the Jacobian of z.
    """

    def __init__(
        self, prior: FactorizedPrior, sites: GaussianSites | None = None, *, lasting: bool = False
    ) -> None:
        self.prior = prior
        self.sites = sites
        self.lasting = lasting
        self._factor: Array | None = None  # Rᵀ, lower; kept where Φ is no triangle
        self._half_log_determinant = 0.0
        self._centre = np.zeros(prior.n_latent)  # c
        self.predictor = prior.predictor
        if sites is not None:
            self._absorb(sites)
        self.log_constant = self._log_constant()

    def to_model(self, z: Array, eta: Array | None = None) -> Array:
        """Z to the model's variables (k,); where η at z is known already it saves a product."""
        if eta is not None and self.prior.sites_are_model_values:
            return eta - self.prior.shift
        return self.prior.root.to_model(self.to_whitened(z, eta))

    def from_model(self, values: Array) -> Array:
        """The model's variables (k,) to z; of a triangular Φ through η, as exact as that is."""
        whitened = self.prior.root.from_model(values)
        if self.sites is None:
            return whitened
        if self._factor is not None:
            return multiply_lower(self._factor, whitened) - self._centre
        return solve_lower(self.predictor.matrix, self.prior.predictor.apply(whitened) - self.predictor.offset)

    def to_whitened(self, z: Array, eta: Array | None = None) -> Array:
        """``ν = R⁻ᵀ(c + z)``, (k,); η at z may be known."""
        if self.sites is None:
            return z
        if self._factor is not None:
            return solve_lower(self._factor, self._centre + z)
        base = self.prior.predictor
        eta = self.predictor.apply(z) if eta is None else eta
        return solve_lower(base.matrix, eta - base.offset)

    @property
    def model_factor(self) -> Array:
        """The lower triangular J of ``x = x₁ + J z``, (k, k): ``J Jᵀ`` is the covariance of x under prior and sites."""
        if self.sites is None:
            whitened = np.eye(self.prior.n_latent)
        elif self._factor is not None:
            whitened = inverse_lower(self._factor)
        elif self.prior.sites_are_model_values:
            return self.predictor.matrix
        else:
            whitened = blas.dtrsm(1.0, self.prior.predictor.matrix, self.predictor.matrix, lower=1)
        return self.prior.root.displace(np.asfortranarray(whitened))

    def log_prior(self, z: Array, eta: Array) -> float:
        """``log p(x)`` of the model's variables at z, in O(n): no solve, from the chart's own identity."""
        sites = 0.0 if self.sites is None else self.sites.log_density(eta)
        return self.log_constant - 0.5 * float(blas.ddot(z, z)) - sites

    def _absorb(self, sites: GaussianSites) -> None:
        """Factorise E and re-base the predictor."""
        base = self.prior.predictor
        factor = reverse_cholesky(_weighted_gram(base, sites.precision))
        if factor is None:
            raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE)
        linear = base.adjoint(sites.gradient(base.offset))
        self._half_log_determinant = float(np.log(factor.diagonal()).sum())
        # R x = y with R = factorᵀ.
        self._centre = solve_lower(factor, linear, transpose=True)
        # Φ R⁻ᵀ: a triangular solve from the right, X factor = Φ.
        matrix = blas.dtrsm(1.0, factor, base.matrix, side=1, lower=1)
        # Where these are triangles, R is had from the two: one matrix less to keep.
        self._factor = None if base.triangular else factor
        offset = base.offset + _product(matrix, self._centre)
        self.predictor = Predictor(offset, matrix, triangular=base.triangular)

    def _log_constant(self) -> float:
        """The constant of `log_prior`, from the one point z = 0."""
        origin = np.zeros(self.prior.n_latent)
        sites = 0.0 if self.sites is None else self.sites.log_density(self.predictor.offset)
        return self.prior.root.log_prior(self.to_whitened(origin)) + sites

    @property
    def log_evidence(self) -> float:
        """``log ∫ N(ν) exp(sites(η)) dν``, the evidence of the model with Gaussian sites."""
        k = self.prior.n_latent
        normal = -0.5 * k * math.log(2.0 * math.pi)
        return self.log_constant + self.prior.root.log_volume() - normal - self._half_log_determinant


def _weighted_gram(predictor: Predictor, weights: Array) -> Array:
    """The lower triangle of ``I + Φᵀ diag(w) Φ``, (k, k), for weights of any sign; it may be overwritten."""
    if predictor.triangular and (weights >= 0.0).all():
        gram = cogram_lower(predictor.matrix * np.sqrt(weights)[:, None])
    else:
        gram = np.asfortranarray(predictor.matrix.T @ (weights[:, None] * predictor.matrix))
    gram[np.diag_indices_from(gram)] += 1.0
    return gram


def _product(matrix: Array, vector: Array) -> Array:
    return np.asarray(matrix @ vector)


SITES = ("fitted", "prior_expected")


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """How a chain tunes its sites, and what it builds on them; see `FlatMetric` for the meaning of each.

    Raises a `ConfigurationError` if one is not of its type, or `site_fit` is given with ``refit=False``.
    """

    refit: bool = True  # refit the sites in tuning
    # What makes a `SiteFit` from the number of sites; None for the default.
    site_fit: Callable[[int], Any] | None = None
    emulate: bool = True  # fit an emulator of the hyperparameters' marginal density in tuning
    sites: str = "fitted"  # "fitted" or "prior_expected"

    def __post_init__(self) -> None:
        one_of("sites", self.sites, SITES, 'Leave it out, or give FlatMetric(sites="prior_expected").')
        for option in ("refit", "emulate"):
            value = getattr(self, option)
            if not isinstance(value, bool | np.bool_):
                raise ConfigurationError(
                    f"{option} must be True or False, got {shown(value)}. "
                    f"Give FlatMetric({option}=False) to switch it off."
                )
            object.__setattr__(self, option, bool(value))
        if self.sites == "prior_expected":
            if self.site_fit is not None:
                raise ConfigurationError(
                    'site_fit refits the sites, but those of sites="prior_expected" are constant: leave one of them '
                    "out."
                )
            object.__setattr__(self, "refit", False)
        if self.site_fit is None:
            return
        if not callable(self.site_fit):
            raise ConfigurationError(
                "site_fit must make a SiteFit from the number of sites, such as the class SiteRegression, got "
                f"{shown(self.site_fit)}."
            )
        if not self.refit:
            raise ConfigurationError("site_fit refits the sites, but refit=False keeps them: leave one of them out.")
