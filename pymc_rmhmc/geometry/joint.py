"""Latent values and hyperparameters together: the log density in the chart (ϑ, z).

ϑ places θ (`pymc_rmhmc.geometry.charts.marginal`), and z the latent values of every block given θ
(`pymc_rmhmc.geometry.charts.conditional`). Where both charts are good, (ϑ, z) is nearly standard normal. The metric is
the identity here: in (θ, f) it is position-dependent, and flat.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.charts.conditional import DenseConditional
from pymc_rmhmc.geometry.charts.diagonal import DiagonalConditional
from pymc_rmhmc.geometry.charts.kronecker import KroneckerConditional, KroneckerPart
from pymc_rmhmc.geometry.charts.marginal import MarginalChart
from pymc_rmhmc.geometry.charts.moving_sites import MovingSites, RaisedSites
from pymc_rmhmc.geometry.charts.rows import RowsConditional
from pymc_rmhmc.geometry.charts.site import GaussianSites
from pymc_rmhmc.geometry.charts.summed import CoefficientsPart, Part, SummedConditional, VectorPart
from pymc_rmhmc.geometry.prior import PriorFailure

__all__ = [
    "Conditional",
    "JointBlock",
    "JointDensity",
    "JointPoint",
    "JointTarget",
    "conditional_of",
    "parts_of",
    "prior_of",
    "sites_at",
]

type Array = NDArray[np.float64]
type Sites = GaussianSites | MovingSites


class BlockPart(Protocol):
    """One vector of a sum."""

    @property
    def design(self) -> Any:
        """A (n, k); None for the identity."""

    @property
    def kind(self) -> str:
        """"centred" or "whitened" for a vector with a covariance matrix, "independent" for coefficients.

        "kronecker" is a whitened one whose covariance is a Kronecker product.
        """


class JointBlock(Protocol):
    """Latent Gaussian variables that are read together, as functions of θ."""

    @property
    def design(self) -> Any:
        """A (n, k) of ``η = m + A D y``; None for one vector with a covariance matrix, whose values are sites."""

    @property
    def n_sites(self) -> int:
        """The number of sites, n."""

    @property
    def size(self) -> int:
        """The number of latent values."""

    @property
    def centred(self) -> bool:
        """Of a vector with a covariance, whether it is the model's variable itself, and not ``L⁻¹(η - m)``."""

    @property
    def fixed_covariance(self) -> bool:
        """Whether the covariance matrix is the same at every θ."""

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Of several vectors with one covariance, the sites of each (r, n); None for one vector."""

    @property
    def parts(self) -> Sequence[BlockPart] | None:
        """The vectors of a sum; None for one vector, or for coefficients alone."""

    @property
    def has_moving_sites(self) -> bool:
        """Whether parameters of the likelihood move the information of the sites."""

    def information(self, theta: Array, eta: Array) -> Array:
        """The Fisher information of each site at η, (n,), or with a design of all, (1,); needed where sites move."""

    def information_pullback(self, theta: Array, eta: Array, bar: Array) -> Array:
        """``Σ ∂I/∂θ Ī``, (d,)."""

    def prior(self, theta: Array) -> tuple[Any, ...]:
        """What the latents' prior is at θ.

        With a covariance: mean and covariance of the sites, and what they have beyond the model's latents, (n,). Of
        a vector on a grid, in place of the covariance, a tuple of those of which it is the Kronecker product.
        With a design: m (n,), D (k,), location and scale (k,) of the model's variables, and again what the
        sites have beyond them. Of a sum: m, and of every part its K or D, location and scale; and the last again.
        """

    def prior_pullback(self, theta: Array, mean_bar: Array, second_bar: Any) -> Array:
        """``Σ ∂m/∂θ m̄ + Σ ∂K/∂θ K̄`` or ``Σ ∂m/∂θ m̄ + Σ ∂D/∂θ D̄``, (d,).

        A Kronecker product has a K̄ for each factor, and a sum a K̄, D̄ or list of K̄ for each part.
        """

    def likelihood(self, theta: Array, eta: Array) -> tuple[float, Array, Array]:
        """``Σ ℓ``, its slope by site (n,), and its gradient by θ (d,)."""


class Conditional(Protocol):
    """A block's latents at one θ as a function of standard normal noise."""

    log_evidence: float

    @property
    def n_noise(self) -> int:
        """The size of z."""

    @property
    def latents(self) -> Array:
        """The model's variables for the noise that was placed last."""

    def place(self, noise: Array) -> Array:
        """The sites of z, (n,)."""

    def enter(self, values: Array, noise: Array) -> Array:
        """A draw of z given the model's variables, from standard normal noise."""

    def log_prior(self) -> float:
        """The log density of the model's variables for the noise that was placed last."""

    def marginals(self) -> tuple[Array, Array]:
        """Mean and variance (n,) of the sites under the prior times the sites' own factors."""

    def pullback(self, residual: Array) -> tuple[Array, Array, Any]:
        """The gradient of ``ψ(η) + log E`` by z and by what `JointBlock.prior_pullback` takes.

        What only another placing would need may be gone afterwards.
        """

    def sites_pullback(self, eta: Array) -> Array:
        """The gradient of ``ψ(η) + log E`` by the logarithm of the sites' powers, of the last pullback and its η.

        As `JointBlock.information`: for each site, or with a design for all.
        """


class JointDensity(Protocol):
    """The blocks, and what else of the log density depends on θ."""

    @property
    def blocks(self) -> Sequence[JointBlock]:
        """Independent of one another given θ."""

    def rest(self, theta: Array) -> tuple[float, Array]:
        """The log density beyond the blocks' priors and likelihoods, and its gradient (d,)."""


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
    conditionals : list of Conditional
        The blocks at θ.
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
    conditionals: list[Conditional]
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
    sites : sequence of GaussianSites or MovingSites
        One for each block; what they hold is constant.
    chart : MarginalChart
        For θ.

    Attributes
    ----------
    refused : (d,) array or None
        The last θ at which a prior could not be factorised.
    """

    def __init__(self, density: JointDensity, sites: Sequence[Sites], chart: MarginalChart) -> None:
        self.density = density
        self.sites = tuple(sites)
        self.chart = chart
        self.n_theta = chart.centre.size
        ends = self.n_theta + np.cumsum([0, *(_n_noise(block) for block in density.blocks)])
        self._slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
        self.size = int(ends[-1])
        self._made: dict[int, Any] = {}
        self.refused: Array | None = None

    def at(self, position: Array) -> JointPoint:
        """Evaluate the log density and its gradient; a failure is a value."""
        standard = position[: self.n_theta]
        placed = self.chart.place(standard)
        point = JointPoint(position, placed.theta, [], [], [])
        try:
            total, theta_bar, noise_bars = self._evaluate(point)
        except PriorFailure as failure:
            point.failure = failure.failure
            self.refused = placed.theta
            return point
        point.log_density = total + placed.log_volume + 0.5 * float(standard @ standard)
        point.gradient = np.concatenate((self.chart.pullback(placed, theta_bar) + standard, *noise_bars))
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
        for which, (block, held, part) in enumerate(zip(self.density.blocks, self.sites, self._slices, strict=True)):
            sites = sites_at(block, theta, held)
            conditional = self._conditional(which, theta, sites)
            eta = conditional.place(point.position[part])
            log_likelihood, slope, by_parameters = block.likelihood(theta, eta)
            noise_bar, *prior_bars = conditional.pullback(slope - sites.gradient(eta))
            point.log_given += log_likelihood
            total += log_likelihood - sites.log_density(eta) + conditional.log_evidence
            theta_bar = theta_bar + by_parameters + block.prior_pullback(theta, *prior_bars)
            if isinstance(sites, RaisedSites):
                information_bar = sites.pullback(conditional.sites_pullback(eta))
                theta_bar += block.information_pullback(theta, sites.held.eta, information_bar)
            noise_bars.append(noise_bar)
            point.eta.append(eta)
            point.slope.append(slope)
            point.conditionals.append(conditional)
        return total, theta_bar, noise_bars

    def _conditional(self, which: int, theta: Array, sites: GaussianSites) -> Conditional:
        """A block at θ; what does not move with θ is made once."""
        block = self.density.blocks[which]
        moving = isinstance(self.sites[which], MovingSites)
        made = conditional_of(block, theta, sites, self._made.get(which), same_sites=not moving)
        if block.design is not None or block.fixed_covariance:
            self._made.setdefault(which, made)
        return made

    def expectation(self, theta: Array, noises: Sequence[Array]) -> tuple[float, Array]:
        """The mean over some z of the log density at θ, a lower bound of log p(θ, y) where z are standard normal.

        Parameters
        ----------
        theta : (d,) array
            θ.
        noises : sequence of (2 Σk,) arrays
            Noise, z.

        Returns
        -------
        float, (d,) array
            The value, up to a constant, and its gradient by θ.

        Raises
        ------
        PriorFailure
            If a prior cannot be factorised at θ.
        """
        value, gradient = 0.0, np.zeros_like(theta)
        for noise in noises:
            position = np.concatenate((np.zeros(self.n_theta), noise))
            total, theta_bar, _ = self._evaluate(JointPoint(position, theta, [], [], []))
            value, gradient = value + total / len(noises), gradient + theta_bar / len(noises)
        return value, gradient

    def enter(
        self, theta: Array, values: Sequence[Array], rng: np.random.Generator
    ) -> Array:
        """A draw of (ϑ, z) of the positions that stand for given values of θ and of the blocks' variables.

        Raises
        ------
        PriorFailure
            If a prior cannot be factorised at θ.
        """
        parts = [self.chart.recover(theta)]
        for which, given in enumerate(values):
            sites = sites_at(self.density.blocks[which], theta, self.sites[which])
            conditional = self._conditional(which, theta, sites)
            parts.append(conditional.enter(given, rng.standard_normal(conditional.n_noise)))
        return np.concatenate(parts)

    def latents(self, point: JointPoint) -> list[Array]:
        """The model's latent variables of every block."""
        return [conditional.latents for conditional in point.conditionals]

    def model_log_density(self, point: JointPoint) -> float:
        """``log p(θ, x, y)`` of θ on its unconstrained scale and the model's latent variables x."""
        return point.log_given + sum(conditional.log_prior() for conditional in point.conditionals)


def sites_at(block: JointBlock, theta: Array, sites: Sites) -> GaussianSites:
    """The sites at θ."""
    return sites.at(block.information(theta, sites.eta)) if isinstance(sites, MovingSites) else sites


def prior_of(block: JointBlock, theta: Array) -> tuple[Any, ...]:
    """What a block's prior is at θ.

    Raises
    ------
    PriorFailure
        If it takes an inverse, as of a precision, that does not exist.
    """
    try:
        return block.prior(theta)
    except np.linalg.LinAlgError:
        raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE, 0) from None


def conditional_of(
    block: JointBlock, theta: Array, sites: GaussianSites, like: Any = None, *, same_sites: bool = True
) -> Conditional:
    """A block at θ, times sites; `like` is one of the block's whose constant parts serve again.

    Raises
    ------
    PriorFailure
        If the prior cannot be used at θ.
    """
    if block.parts is not None:
        mean, parts, _ = parts_of(block, theta)
        return SummedConditional(mean, parts, sites)
    if block.design is not None:
        mean, spread, location, scale, _ = prior_of(block, theta)
        return DiagonalConditional(block.design, mean, spread, location, scale, sites, like)
    mean, covariance, shift = prior_of(block, theta)
    if isinstance(covariance, tuple):
        return KroneckerConditional(
            mean, covariance, sites, like, by_covariance=not block.fixed_covariance, same_sites=same_sites
        )
    options = {"centred": block.centred, "by_covariance": not block.fixed_covariance, "same_sites": same_sites}
    if block.rows is not None:
        return RowsConditional(mean, covariance, sites, block.rows, like, shift=shift, **options)
    return DenseConditional(mean, covariance, sites, like, shift=shift, **options)


def parts_of(block: JointBlock, theta: Array) -> tuple[Array, list[Part], Array]:
    """A sum's m, its parts at θ, and what the sites have beyond the model's latents.

    Raises
    ------
    PriorFailure
        If one of the priors cannot be used at θ.
    """
    mean, seconds, locations, scales, shift = prior_of(block, theta)
    parts: list[Part] = []
    for form, second, location, scale in zip(block.parts or (), seconds, locations, scales, strict=True):
        if form.kind == "independent":
            parts.append(CoefficientsPart(form.design, second, location, scale))
        elif form.kind == "kronecker":
            parts.append(KroneckerPart(form.design, second))
        else:
            parts.append(VectorPart(form.design, second, location, centred=form.kind == "centred"))
    return mean, parts, shift


def _n_noise(block: JointBlock) -> int:
    """The size of a block's z."""
    if block.parts is not None:
        return block.size + block.n_sites
    if block.design is None:
        return 2 * block.n_sites
    n, k = block.design.shape
    return int(k + min(n, k))
