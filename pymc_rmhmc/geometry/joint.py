"""Latent values and hyperparameters together: the log density in the chart (ϑ, z).

``θ = θ̂ + C ϑ`` with constant θ̂ and C, and z places the latent values of every block given θ
(`pymc_rmhmc.geometry.charts.conditional`). Where the sites are good and C is the posterior's scale, (ϑ, z) is nearly
standard normal. The metric is the identity here: in (θ, f) it is position-dependent, and flat.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.charts.conditional import DenseConditional
from pymc_rmhmc.geometry.charts.site import GaussianSites
from pymc_rmhmc.geometry.prior import PriorFailure

__all__ = ["JointBlock", "JointDensity", "JointPoint", "JointTarget", "Scale"]

type Array = NDArray[np.float64]


class JointBlock(Protocol):
    """One latent Gaussian vector as functions of θ."""

    @property
    def size(self) -> int:
        """The number of sites, k: each is a latent value, and what θ adds to it."""

    @property
    def centred(self) -> bool:
        """Whether the model's variable is the latent values themselves, and not ``L⁻¹(η - m)``."""

    @property
    def fixed_covariance(self) -> bool:
        """Whether the covariance is the same at every θ."""

    def prior(self, theta: Array) -> tuple[Array, Array, Array]:
        """Mean (k,) and covariance (k, k) of the sites, and what they have beyond the model's latents, (k,)."""

    def prior_pullback(self, theta: Array, mean_bar: Array, covariance_bar: Array) -> Array:
        """``Σ ∂m/∂θ m̄ + Σ ∂K/∂θ K̄``, (d,), for any matrix K̄."""

    def likelihood(self, theta: Array, eta: Array) -> tuple[float, Array, Array]:
        """``Σ ℓ``, its slope by site (k,), and its gradient by θ (d,)."""


class JointDensity(Protocol):
    """The blocks, and what else of the log density depends on θ."""

    @property
    def blocks(self) -> Sequence[JointBlock]:
        """Independent of one another given θ."""

    def rest(self, theta: Array) -> tuple[float, Array]:
        """The log density beyond the blocks' priors and likelihoods, and its gradient (d,)."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Where θ is expected, and how widely: ``θ = centre + factor ϑ``.

    Attributes
    ----------
    centre : (d,) array
        θ̂.
    factor : (d, d) array
        C, lower triangular; ``C Cᵀ`` is the inverse mass matrix of θ.
    """

    centre: Array
    factor: Array

    def to_theta(self, standard: Array) -> Array:
        """θ of ϑ."""
        return np.asarray(self.centre + self.factor @ standard)

    def from_theta(self, theta: Array) -> Array:
        """ϑ of θ."""
        return np.linalg.solve(self.factor, theta - self.centre)


@dataclass(slots=True)
class JointPoint:
    """The target at one (ϑ, z).

    Attributes
    ----------
    position : (d + 2 Σk,) array
        (ϑ, z).
    theta : (d,) array
        θ.
    eta, slope : list of (k,) arrays
        The sites of every block, and ``∂ℓ/∂η`` there.
    conditionals : list of DenseConditional
        The blocks at θ.
    shift : list of (k,) arrays
        What the sites of every block have beyond the model's latents.
    log_given : float
        The model's log density without the blocks' priors.
    log_density, gradient : float, array
        Of ``log π(ϑ, z) + ½|ϑ|² + ½|z|²``: what a standard normal leaves.
    failure : Failure
        Why the rest may not be used.
    """

    position: Array
    theta: Array
    eta: list[Array]
    slope: list[Array]
    conditionals: list[DenseConditional]
    shift: list[Array]
    log_given: float = math.nan
    log_density: float = math.nan
    gradient: Array | None = None
    failure: Failure = Failure.NONE


class JointTarget:
    """The log density of hyperparameters and latent values in the chart (ϑ, z).

    ``log π(θ) + Σ_blocks [Σ ℓ(η) - sites(η) + log E(θ)]``, and the standard normal of z.

    Parameters
    ----------
    density : JointDensity
        The model.
    sites : sequence of GaussianSites
        One for each block, constant.
    scale : Scale
        For θ.
    """

    def __init__(self, density: JointDensity, sites: Sequence[GaussianSites], scale: Scale) -> None:
        self.density = density
        self.sites = tuple(sites)
        self.scale = scale
        self.n_theta = scale.centre.size
        ends = self.n_theta + np.cumsum([0, *(2 * block.size for block in density.blocks)])
        self._slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
        self.size = int(ends[-1])
        self._lasting: dict[int, DenseConditional] = {}

    def at(self, position: Array) -> JointPoint:
        """Evaluate the log density and its gradient; a failure is a value."""
        standard = position[: self.n_theta]
        point = JointPoint(position, self.scale.to_theta(standard), [], [], [], [])
        try:
            total, theta_bar, noise_bars = self._evaluate(point)
        except PriorFailure as failure:
            point.failure = failure.failure
            return point
        point.log_density = total + 0.5 * float(standard @ standard)
        point.gradient = np.concatenate((self.scale.factor.T @ theta_bar + standard, *noise_bars))
        finite = math.isfinite(point.log_density) and math.isfinite(float(point.gradient @ point.gradient))
        point.failure = Failure.NONE if finite else Failure.NON_FINITE
        return point

    def _evaluate(self, point: JointPoint) -> tuple[float, Array, list[Array]]:
        """The log density, its gradient by θ, and by each block's z."""
        theta = point.theta
        if not np.isfinite(theta).all():
            raise PriorFailure(Failure.NON_FINITE, -1)
        total, theta_bar = self.density.rest(theta)
        point.log_given = total
        noise_bars = []
        for which, (block, sites, part) in enumerate(zip(self.density.blocks, self.sites, self._slices, strict=True)):
            conditional, shift = self._conditional(which, theta)
            eta = conditional.place(point.position[part])
            log_likelihood, slope, by_parameters = block.likelihood(theta, eta)
            residual = slope - sites.gradient(eta)
            noise_bar, mean_bar, covariance_bar = conditional.pullback(
                residual, by_covariance=not block.fixed_covariance
            )
            point.log_given += log_likelihood
            total += log_likelihood - sites.log_density(eta) + conditional.log_evidence
            theta_bar = theta_bar + by_parameters + block.prior_pullback(theta, mean_bar, covariance_bar)
            noise_bars.append(noise_bar)
            point.eta.append(eta)
            point.slope.append(slope)
            point.conditionals.append(conditional)
            point.shift.append(shift)
        return total, theta_bar, noise_bars

    def _conditional(self, which: int, theta: Array) -> tuple[DenseConditional, Array]:
        """A block at θ, and its shift; the factors of a covariance that does not move are made once."""
        block = self.density.blocks[which]
        mean, covariance, shift = block.prior(theta)
        made = DenseConditional(mean, covariance, self.sites[which], self._lasting.get(which))
        if block.fixed_covariance:
            self._lasting.setdefault(which, made)
        return made, shift

    def marginal(self, theta: Array) -> tuple[float, Array]:
        """The log density at z = 0, up to a constant that of log p(θ, y) with the sites in place of the likelihood.

        Returns
        -------
        float, (d,) array
            The value and its gradient by θ.

        Raises
        ------
        PriorFailure
            If a prior cannot be factorised at θ.
        """
        point = JointPoint(np.zeros(self.size), theta, [], [], [], [])
        total, theta_bar, _ = self._evaluate(point)
        return total, theta_bar

    def enter(
        self, theta: Array, values: Sequence[Array], rng: np.random.Generator
    ) -> Array:
        """A draw of (ϑ, z) of the positions that stand for given values of θ and of the blocks' variables.

        Raises
        ------
        PriorFailure
            If a prior cannot be factorised at θ.
        """
        parts = [self.scale.from_theta(theta)]
        for which, (block, given) in enumerate(zip(self.density.blocks, values, strict=True)):
            conditional, shift = self._conditional(which, theta)
            eta = given + shift if block.centred else conditional.unwhiten(given)
            parts.append(conditional.recover(eta, rng.standard_normal(conditional.n_noise)))
        return np.concatenate(parts)

    def latents(self, point: JointPoint) -> list[Array]:
        """The model's latent variables of every block."""
        held = zip(self.density.blocks, point.eta, point.shift, point.conditionals, strict=True)
        return [eta - shift if block.centred else made.whiten(eta) for block, eta, shift, made in held]

    def model_log_density(self, point: JointPoint) -> float:
        """``log p(θ, x, y)`` of θ on its unconstrained scale and the model's latent variables x."""
        held = zip(self.density.blocks, point.eta, point.conditionals, strict=True)
        return point.log_given + sum(made.log_prior(eta, whitened=not block.centred) for block, eta, made in held)
