"""Latent values and hyperparameters together: the log density in the chart (ϑ, z).

ϑ places θ (`pymc_rmhmc.latent.charts.marginal`), and z the latent values of every block given θ
(`pymc_rmhmc.latent.conditional`). Where both charts are good, (ϑ, z) is nearly standard normal. The metric is
the identity here: in (θ, f) it is position-dependent, and flat.

What costs is θ: the factors of every block's prior at a θ, and their derivatives. Where ϑ is held, z may move for the
price of a few products of matrix and vector (`pymc_rmhmc.latent.latents_given_theta`).
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure, failure_of
from pymc_rmhmc.interfaces.joint_density import JointBlock, JointDensity
from pymc_rmhmc.latent.charts.marginal import MarginalChart
from pymc_rmhmc.latent.charts.moving_sites import RaisedSites
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import Conditional, Placement
from pymc_rmhmc.latent.latent_blocks import Sites, conditional_from, n_noise, outlasts_theta, prior_of, sites_at
from pymc_rmhmc.latent.rotation import CompiledSites
from pymc_rmhmc.linalg.compiled.native import NativeLikelihood, native_likelihood

__all__ = ["JointPoint", "JointTarget"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class JointPoint:
    """The target at one (ϑ, z)."""

    position: Array  # (d + 2 Σk,): (ϑ, z)
    theta: Array  # (d,): θ
    # `eta`, `slope`: of (k,) arrays, the sites of every block, and ``∂ℓ/∂η`` there.
    eta: list[Array] = field(default_factory=list)
    slope: list[Array] = field(default_factory=list)
    placed: list[Placement] = field(default_factory=list)  # where the noise of every block is placed
    log_given: float = math.nan  # the model's log density without the blocks' priors
    # `log_density`, `gradient`: of ``log π(ϑ, z) + ½|ϑ|² + ½|z|²``: what a standard normal leaves.
    log_density: float = math.nan
    gradient: Array | None = None
    failure: Failure = Failure.NONE  # why the rest may not be used


class JointTarget:
    """The log density of hyperparameters and latent values in the chart (ϑ, z).

    ``log π(θ) + Σ_blocks [Σ ℓ(η) - sites(η) + log E(θ)]``, and the standard normal of z.

    `density`: the model.
    `sites`: one for each block; what they hold is constant.
    `chart`: for θ.
    `holds_long`: whether the latent values make several trajectories at each ϑ.

    Attributes
    ----------
    lasts : bool
        Whether one map of the latent values serves for good: nothing that is sampled moves their prior.
    n_sites : int
        How many sites see z; where there are none, it is standard normal whatever ϑ is.
    refused : (d,) array or None
        The last θ at which a prior could not be factorised.
    """

    def __init__(
        self, density: JointDensity, sites: Sequence[Sites], chart: MarginalChart, *, holds_long: bool = False
    ) -> None:
        self.density = density
        self.sites = tuple(sites)
        self.chart = chart
        self.n_theta = chart.centre.size
        ends = self.n_theta + np.cumsum([0, *(n_noise(block) for block in density.blocks)])
        self._slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
        self.size = int(ends[-1])
        self.lasts = not (self.n_theta or density.inputs)
        self.holds_long = holds_long
        self.n_sites = sum(held.sites.linear.size for held in self.sites)
        self._made: dict[int, Any] = {}
        self._outlast_theta = [outlasts_theta(block) for block in density.blocks]
        # Of the only block, once it has been looked for: with what it was bound to, which data may replace.
        self._native: tuple[Any, NativeLikelihood | None] = (None, None)
        self.refused: Array | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_native": (None, None)}

    def in_chart(self, chart: MarginalChart) -> JointTarget:
        """The same density in another chart for θ, of which nothing else that a target keeps depends."""
        other = copy.copy(self)
        other.chart = chart
        return other

    def at(self, position: Array) -> JointPoint:
        """Evaluate the log density and its gradient; a failure is a value."""
        standard = position[: self.n_theta]
        placed = self.chart.place(standard)
        point = JointPoint(position, placed.theta)
        try:
            total, theta_bar, noise_bars = self._evaluate(point)
        except PriorFailure as failure:
            point.failure = failure.failure
            return point
        point.log_density = total + placed.log_volume + 0.5 * float(standard @ standard)
        point.gradient = np.concatenate((self.chart.pullback(placed, theta_bar) + standard, *noise_bars))
        point.failure = failure_of(point.log_density, point.gradient)
        return point

    @property
    def advances(self) -> bool:
        """Whether `advance` can be asked for."""
        return False

    def advance(
        self, point: JointPoint, momentum: Array, n_steps: int, step_size: float
    ) -> tuple[int, tuple[JointPoint, Array] | None, Failure]:
        """Make so many steps at once; see `pymc_rmhmc.dynamics.hamiltonian.GaussianHamiltonian`."""
        raise NotImplementedError

    def _evaluate(self, point: JointPoint) -> tuple[float, Array, list[Array]]:
        """The log density, its gradient by θ, and by each block's z."""
        theta = point.theta
        if not np.isfinite(theta).all():
            raise PriorFailure(Failure.NON_FINITE)
        total, theta_bar = self.rest(theta)
        point.log_given = total
        noise_bars = []
        for which, (block, held, part) in enumerate(zip(self.density.blocks, self.sites, self._slices, strict=True)):
            sites = sites_at(block, theta, held)
            conditional = self.conditional(which, theta, sites)
            placed = conditional.place(point.position[part])
            log_likelihood, slope, by_parameters = block.likelihood(theta, placed.eta)
            at_sites, residual = sites.residual(placed.eta, slope)
            pulled = conditional.pullback(placed, residual)
            point.log_given += log_likelihood
            if held.moves:
                slopes = conditional.sites_pullback(placed, pulled)
                theta_bar = theta_bar + _sites_pullback(block, theta, cast("RaisedSites", sites), slopes)
            total += log_likelihood - at_sites + conditional.log_evidence
            del conditional  # its matrices are as large as those that the model is about to make
            by_prior = block.prior_pullback(theta, pulled.mean, pulled.vectors, pulled.design)
            theta_bar = theta_bar + by_parameters + by_prior
            noise_bars.append(pulled.noise)
            point.eta.append(placed.eta)
            point.slope.append(slope)
            point.placed.append(placed)
        return total, theta_bar, noise_bars

    def rest(self, theta: Array) -> tuple[float, Array]:
        """The log density beyond the blocks at a θ, and its gradient (d,).

        Raises a `PriorFailure` if a covariance that is part of it has no factor there; which θ that was is noted.
        """
        try:
            return self.density.rest(theta)
        except np.linalg.LinAlgError:
            self.refused = theta
            raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE) from None

    def conditional(
        self, which: int, theta: Array, sites: GaussianSites, *, derivative: bool = True
    ) -> Conditional:
        """A block at θ, times sites; what does not move with θ is made once.

        Without a derivative to come, the block may let go of what that would need.

        Raises a `PriorFailure` if its prior cannot be used there; where it has no factor, which θ that was is noted.
        """
        block = self.density.blocks[which]
        try:
            made = conditional_from(block, prior_of(block, theta, derivative=derivative), sites, self._made.get(which))
        except PriorFailure as failure:
            if failure.failure is Failure.NOT_POSITIVE_DEFINITE:
                self.refused = theta
            raise
        if self._outlast_theta[which]:
            self._made.setdefault(which, made)
        return made

    def compiled_sites(self, theta: Array, eta: Array, sites: GaussianSites) -> CompiledSites | None:
        """ψ of the only block for compiled code; None where its likelihood has to be asked from Python."""
        function, rest = self.density.blocks[0].compiled_likelihood()
        if self._native[0] is not rest:
            self._native = rest, native_likelihood(function, theta, eta, rest)
        native = self._native[1]
        if native is None:
            return None
        return native.address, theta, native.rest, native.shift, sites.linear, sites.precision

    def expectation(self, theta: Array, noises: Sequence[Array]) -> tuple[float, Array]:
        """The mean over some z of the log density at θ, a lower bound of log p(θ, y) where z are standard normal.

        Raises a `PriorFailure` if a prior cannot be factorised at θ.

        `theta` (d,): θ.
        `noises` of (2 Σk,): noise, z.

        `float`, `(d`, `) array`: the value, up to a constant, and its gradient by θ.
        """
        value, gradient = 0.0, np.zeros_like(theta)
        for noise in noises:
            position = np.concatenate((np.zeros(self.n_theta), noise))
            total, theta_bar, _ = self._evaluate(JointPoint(position, theta))
            value, gradient = value + total / len(noises), gradient + theta_bar / len(noises)
        return value, gradient

    def enter(
        self, theta: Array, values: Sequence[Array], rng: np.random.Generator
    ) -> Array:
        """A draw of (ϑ, z) of the positions that stand for given values of θ and of the blocks' variables.

        Raises a `PriorFailure` if a prior cannot be factorised at θ.
        """
        parts = [self.chart.recover(theta)]
        for which, given in enumerate(self.density.from_model(theta, values)):
            sites = sites_at(self.density.blocks[which], theta, self.sites[which])
            conditional = self.conditional(which, theta, sites)
            parts.append(conditional.enter(given, rng.standard_normal(conditional.n_noise)))
        return np.concatenate(parts)

    def latents(self, point: JointPoint) -> list[Array]:
        """The model's latent variables of every block."""
        return self.density.to_model(point.theta, [placed.latents for placed in point.placed])

    @staticmethod
    def model_log_density(point: JointPoint) -> float:
        """``log p(θ, x, y)`` of θ on its unconstrained scale and the model's latent variables x."""
        return point.log_given + sum([placed.log_prior for placed in point.placed])


def _sites_pullback(block: JointBlock, theta: Array, sites: RaisedSites, slopes: Array) -> Array:
    """The derivative by θ (d,) of what has these by the sites, (2, n) or (2, 1)."""
    total, held, by_logarithms = np.zeros_like(theta), sites.held, sites.by_logarithms(slopes)
    if block.has_moving_sites:
        total += block.information_pullback(theta, held.eta, sites.pullback(by_logarithms))
    if held.trend is not None:
        total += held.trend.pullback(theta, by_logarithms.sum(axis=1))
    return total if held.tilt is None else total + held.tilt.pullback(theta, slopes[0])
