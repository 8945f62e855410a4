"""What chains in the charts of sites learn: sites alone where θ is given, else θ's chart too and whether to take turns.

Sites are refitted to the draws of a window, by the policy's fit or the default, and checked. In turns hyperparameters
follow an emulator.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation import SiteFit, SiteRegression
from pymc_rmhmc.approximation.emulation import emulate_marginal
from pymc_rmhmc.approximation.joint_mode import moving_sites
from pymc_rmhmc.approximation.newton import NEAREST_FIRST
from pymc_rmhmc.approximation.site_fit import ThinnedDraws, follow_trend
from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.interfaces.joint_density import JointBlock, JointDensity
from pymc_rmhmc.kernels.kernel import Outcome
from pymc_rmhmc.kernels.turns import HYPERPARAMETERS, JOINT, LATENTS
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart, MovingSites
from pymc_rmhmc.latent.charts.marginal import fit_marginals, fit_parameters
from pymc_rmhmc.latent.charts.site import SitePolicy
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.latent.joint_target import JointPoint, JointTarget
from pymc_rmhmc.latent.theta_densities import ParametersGivenLatents
from pymc_rmhmc.tuning.adaptation import (
    REFITS,
    DualAveraging,
    Moment,
    Refit,
    RefitPolicy,
    StepSize,
    StepSizeAdapter,
    StepSizeRule,
)

__all__ = [
    "TURNS", "HyperparameterAdapter", "JointTuning", "SiteAdapter", "SiteTuning", "TurnPolicy", "fitted_sites",
    "new_fit", "rough_sites",
]  # fmt: skip

type Array = NDArray[np.float64]
type Sites = GaussianSites | MovingSites


@dataclass
class SiteTuning:
    """What is known of a block: its sites, and the fit that has taken the draws since the last refit."""

    sites: GaussianSites | None = None
    fit: SiteFit | None = None


@dataclass(frozen=True, slots=True)
class SiteAdapter(StepSizeAdapter[SiteTuning]):
    """Refits one block's sites by what the metric says of them; None if it has none."""

    policy: SitePolicy | None
    schedule: RefitPolicy = REFITS

    def initial(self) -> SiteTuning:
        """Return no sites: they come with the first prior."""
        return SiteTuning()

    def observe(self, tuned: SiteTuning, seen: tuple[Array, Array]) -> None:
        """Take η and the slope there."""
        eta, slope = seen
        if tuned.fit is None:
            assert self.policy is not None  # without sites there is no refit, and nothing to observe
            tuned.fit = new_fit(self.policy, eta.size)
        tuned.fit.add(eta, slope)

    def forget(self, tuned: SiteTuning) -> None:
        """Drop the window."""
        tuned.fit = None

    def refit(
        self, tuned: SiteTuning, step_size: StepSize, moment: Moment, rng: np.random.Generator, *, with_sites: bool
    ) -> Refit[SiteTuning]:
        """Fit the sites to the window, or keep those that there are."""
        kept = replace(tuned, fit=None)
        if tuned.fit is None or tuned.sites is None or not with_sites:
            return Refit(kept, changed=False)
        sites = fitted_sites(tuned.fit, tuned.sites)
        if sites is None:
            return Refit(kept, changed=False)
        step_size.restart(step_size.average)
        return Refit(replace(kept, sites=sites))


def new_fit(policy: SitePolicy, n_sites: int) -> SiteFit:
    """Make the fit that takes the draws of a window; raise a `ConfigurationError` for one that is no `SiteFit`."""
    made = SiteRegression(n_sites) if policy.site_fit is None else policy.site_fit(n_sites)
    if not isinstance(made, SiteFit):
        raise ConfigurationError(
            f"site_fit({n_sites}) returned a {type(made).__name__}, not a SiteFit. Give a subclass of "
            "pymc_rmhmc.SiteFit."
        )
    return made


def fitted_sites(fit: SiteFit, held: GaussianSites) -> GaussianSites | None:
    """Return the sites that a fit gives in place of those held; None where it keeps them.

    Raises a `ConfigurationError` if they are not finite, not as many as those held, or have a negative precision.
    """
    found = fit.fit(held)
    if found is None:
        return None
    if not isinstance(found, GaussianSites):
        raise ConfigurationError(
            f"{type(fit).__name__}.fit returned a {type(found).__name__}. It must return GaussianSites, or None to "
            "keep the sites."
        )
    shape = held.linear.shape
    for name, values in (("linear", found.linear), ("precision", found.precision)):
        wrong = ""
        if np.shape(values) != shape:
            wrong = f"has the shape {np.shape(values)}"
        elif not np.isfinite(values).all():
            wrong = f"is not finite for {np.count_nonzero(~np.isfinite(values))} of them"
        if wrong:
            raise ConfigurationError(
                f"{type(fit).__name__}.fit returned sites whose {name} {wrong}. It must be an array {shape} of finite "
                "numbers. Return None to keep the sites."
            )
    if (found.precision < 0.0).any():
        raise ConfigurationError(
            f"{type(fit).__name__}.fit returned sites with negative precisions, with which the approximation need not "
            "be a Gaussian. Clip them at 0."
        )
    return found


def rough_sites(likelihood: Any, eta: NDArray[np.float64]) -> GaussianSites:
    """Return sites like a likelihood at η (n,), or standard ones where it has no numbers; call all its functions."""
    likelihood.log_density(eta)
    _, slope = likelihood.gradient(eta)
    kind = next(known for known in NEAREST_FIRST if known in likelihood.kinds)
    weight = likelihood.curvature(eta, kind)[2]
    if not (np.isfinite(slope).all() and np.isfinite(weight).all()):
        return GaussianSites(np.zeros_like(eta), np.ones_like(eta))
    return GaussianSites(slope + weight * eta, np.maximum(weight, 0.0))


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """When the halves of a joint chain take turns, and what is done besides.

    What is rejected of the hyperparameters' turns stands for how far the emulator, or z held, falls short: a chain then
    stays too long where it should not, and goes there too seldom. Three remedies are taken at random before a draw's
    turns, the more often the more is rejected. One moves both halves. One, four times as costly, is a joint trajectory.
    Some of both make as many effective draws as twice as many of the second. One moves the likelihoods' own parameters
    with the latent values held. All numbers were measured in effective draws per second, the smaller of bulk and tail,
    on the models with hyperparameters of `benchmarks/joint_problems.py`.
    """

    # Turns in a draw. Two cost less extra than they gain in tail ESS, because of what PyMC spends on a draw, and still
    # less than one joint trajectory.
    rounds: int = 2
    # The probability of each of the first two remedies, over the share that is rejected.
    both_by_rejected: float = 0.35
    joint_by_rejected: float = 0.25
    # Where no site sees z the second is the only one, taken at least so often, and one turn of ϑ is enough: z is drawn
    # anew. In effective draws a second of drawing (four series of normal data, three seeds each, geometric means), two
    # turns and .5 made 2260, 950, 1220 and 400; these make 3480, 985, 1600 and 430. With .1 one chain stayed in a tail
    # that the emulator did not know.
    joint_without_sites: float = 0.3
    # Where a smaller share is rejected, both are taken by its square: there they gain less than they take.
    much_rejected: float = 0.25
    # The share that is rejected below which moving the parameters gains nothing, and from which on every draw is worth
    # it.
    parameters_from: float = 0.18
    parameters_always: float = 0.24
    stretch: float = 1.4  # how much longer steps a joint trajectory takes than where it is all that a chain has
    # Of the logarithm of its step size, by what its acceptance is off: there are too few for dual averaging.
    correction: float = 0.2
    # Where turns are given up, so many trajectories of the latents are made before each joint one. They cost a fifth of
    # it together, and of ten classes (100 observations, 400 draws) the least effective draws became 152, 233 and 227 of
    # latent values, amplitude and lengthscale, from 35, 107 and 145 without.
    between: int = 10
    trial: int = 30  # after so many turns their acceptance is judged
    least_accepted: float = 0.4  # below so much joint trajectories make more effective draws per second
    # Over the root of the number of turns: the error of an acceptance, which is judged after every draw.
    chance: float = 0.5
    # Draws in turns are better than those before them. When there are so many as a share of all before, sites are
    # refitted, or turns that were given up are tried once more.
    turns_to_refit: float = 1.0 / 3.0
    stays: int = 40  # draws where a chain stayed longest along an emulator, which the next one knows

    def need(self, rejected: float) -> float:
        """Return how much the first two remedies are needed."""
        return rejected * min(1.0, rejected / self.much_rejected)

    def share_of_joint(self, rejected: float, n_sites: int) -> float:
        """Return the probability of the second."""
        share = self.joint_by_rejected * self.need(rejected)
        return share if n_sites else max(share, self.joint_without_sites)

    def share_of_parameters(self, rejected: float) -> float:
        """Return the probability of the third."""
        return (rejected - self.parameters_from) / (self.parameters_always - self.parameters_from)

    def tried(self, trial: tuple[int, float], moves: Sequence[Outcome]) -> tuple[int, float]:
        """Return the number of moves along an emulator and their mean acceptance, with some more of them."""
        count, mean = trial
        for move in moves:
            count, mean = count + 1, mean + (move.acceptance - mean) / (count + 1)
        return count, mean

    def corrected(self, step_size: float, acceptance: float, target: float) -> float:
        """Return the step size of trajectories along the density, which are too few for dual averaging."""
        return step_size * math.exp(self.correction * (acceptance - target))

    def is_given_up(self, count: int, acceptance: float) -> bool:
        """Return whether turns are worth less than joint trajectories."""
        return count >= self.trial and acceptance < self.least_accepted - self.chance / math.sqrt(count)


TURNS = TurnPolicy()


@dataclass
class JointTuning:
    """What is known of a joint chain."""

    sites: tuple[Sites, ...] = ()  # of every block
    marginals: MarginalChart | None = None  # θ's chart
    fits: tuple[SiteFit, ...] = ()  # one of each for a block: what its sites will be refitted to
    thinned: tuple[ThinnedDraws, ...] = ()
    # θ at the draws since the last refit, and the gradients there by the likelihoods' own parameters given the latents.
    thetas: tuple[Array, ...] = ()
    scores: tuple[Array, ...] = ()
    # With an emulator latents and hyperparameters move in turns, the latents with a step size of their own. It stays
    # where turns are given up: the latents then move by themselves between joint trajectories.
    emulator: Emulator | None = None
    held_step_size: DualAveraging | None = None
    parameters: MarginalChart | None = None  # the chart of the likelihoods' own parameters
    # How many turns tuning has made with the emulator, and the mean acceptance of their hyperparameters.
    trial: tuple[int, float] = field(default=(0, 0.0))
    tried: int = 0  # how often turns were tried

    @property
    def moves_between(self) -> bool:
        """Whether latent values move by themselves between joint trajectories."""
        return self.emulator is None and self.held_step_size is not None


@dataclass(frozen=True, slots=True)
class HyperparameterAdapter(StepSizeAdapter[JointTuning]):
    """Refits sites and θ's chart, tries turns, and gives them up where they are no use.

    The step sizes of latents' trajectories where ϑ is held go by a rule of their own. Turns may be taken where steps
    and paths are left to tuning.
    """

    model: JointDensity
    policy: SitePolicy
    held_steps: StepSizeRule
    may_emulate: bool
    schedule: RefitPolicy = REFITS

    def initial(self) -> JointTuning:
        """Return nothing: sites come with an approximation at the first point."""
        return JointTuning()

    def step_size(self, tuned: JointTuning, step_size: StepSize) -> StepSize:
        """Return that of the latents where they take turns; of joint trajectories where these alone move ϑ."""
        return step_size if tuned.emulator is None or tuned.held_step_size is None else tuned.held_step_size

    def learn(self, tuned: JointTuning, step_size: StepSize, outcome: Outcome, *, stood: bool) -> bool:
        """Adapt the step sizes, and give turns up where the hyperparameters are hardly ever accepted."""
        if not stood:
            return False
        if tuned.held_step_size is None:
            step_size.update(outcome.acceptance)
            return False
        latents = [move.acceptance for move in outcome.of_kind(LATENTS)]
        if tuned.emulator is None:
            # At one ϑ they are alike: each by itself would push the step as far as it takes, and back at the next ϑ.
            tuned.held_step_size.update(sum(latents) / len(latents))
            for move in outcome.of_kind(JOINT):
                step_size.update(move.acceptance)
            return False
        for acceptance in latents:
            tuned.held_step_size.update(acceptance)
        self.correct(step_size, outcome)
        tuned.trial = TURNS.tried(tuned.trial, outcome.of_kind(HYPERPARAMETERS))
        if not TURNS.is_given_up(*tuned.trial):
            return False
        tuned.emulator = tuned.parameters = None
        step_size.restart(step_size.average)
        if not self._has_sites:  # a joint trajectory draws z anew
            tuned.held_step_size = None
        # An emulator that is no good may have made a chart that is none.
        tuned.marginals = fit_marginals(np.array(tuned.thetas)) or tuned.marginals
        return True

    @property
    def _has_sites(self) -> bool:
        return any(block.n_sites for block in self.model.blocks)

    def correct(self, step_size: StepSize, outcome: Outcome) -> None:
        """Correct the step size of joint trajectories, which are too few for dual averaging."""
        for move in outcome.of_kind(JOINT):
            step_size.average = TURNS.corrected(step_size.average, move.acceptance, self.held_steps.target)

    def observe(self, tuned: JointTuning, seen: JointPoint) -> None:
        """Take a point into the window."""
        if not tuned.fits:
            tuned.fits = tuple(new_fit(self.policy, eta.size) for eta in seen.eta)
            tuned.thinned = tuple(ThinnedDraws(eta.size) for eta in seen.eta)
        tuned.thetas += (seen.theta,)
        if self.model.of_likelihoods.size:
            tuned.scores += (ParametersGivenLatents(self.model, seen.theta, seen.eta).score(seen.theta)[1],)
        for fit, draws, eta, slope in zip(tuned.fits, tuned.thinned, seen.eta, seen.slope, strict=True):
            fit.add(eta, slope)
            draws.add(seen.theta, eta)

    def forget(self, tuned: JointTuning) -> None:
        """Drop the window."""
        tuned.thetas, tuned.scores, tuned.fits, tuned.thinned = (), (), (), ()

    def refit(
        self, tuned: JointTuning, step_size: StepSize, moment: Moment, rng: np.random.Generator, *, with_sites: bool
    ) -> Refit[JointTuning]:
        """Refit sites and charts; at the last refit that is planned, try turns."""
        found = copy.copy(tuned)
        if tuned.marginals is None or not tuned.thetas:
            return Refit(found, changed=False)
        thetas, scores = np.array(tuned.thetas), np.array(tuned.scores)
        if with_sites:
            given = zip(self.model.blocks, tuned.sites, tuned.fits, tuned.thinned, strict=True)
            found.sites = tuple(self._refitted(*each, thetas.mean(axis=0)) for each in given)
        else:
            found.fits, found.thinned = (), ()
        # What an emulator knows of θ has nothing to do with sites, and its chart is better than the draws'.
        if tuned.emulator is None:
            found.marginals = fit_marginals(thetas) or tuned.marginals
        else:
            found.parameters = self._parameters(thetas, scores)
        found.held_step_size = copy.copy(tuned.held_step_size)
        # What came before the first refit is the way from the start, and is forgotten; later draws add up.
        if moment.is_first:
            self.forget(found)
        more: tuple[int, ...] = ()
        # Where no site sees z, a value of the density costs little, and its emulator is made a second time.
        is_wanted = tuned.emulator is None or not self._has_sites
        if moment.is_last and is_wanted and self.may_emulate:
            more = self._emulate(found, thetas, scores, step_size, moment, rng)
        # The step size of joint trajectories keeps what it has learnt, as long as there are turns.
        if found.emulator is None:
            step_size.restart(step_size.average)
        if found.held_step_size is not None:
            found.held_step_size.restart(found.held_step_size.average)
        return Refit(found, more=more)

    def _refitted(self, block: JointBlock, held: Sites, fit: SiteFit, draws: ThinnedDraws, theta: Array) -> Sites:
        """Return a block's sites from its draws; the old ones where these are too few."""
        fitted = fitted_sites(fit, held.sites)
        if fitted is None:
            return held
        moving = moving_sites(block, theta, fitted, fit.centre, fit.variance)
        if self.policy.site_fit is not None:  # these are what the user wants
            return moving
        free = np.ones(theta.size, dtype=bool)
        free[self.model.of_likelihoods] = False
        return follow_trend(block, moving, theta, draws, free)

    def _emulate(
        self, found: JointTuning, thetas: Array, scores: Array, step_size: StepSize, moment: Moment,
        rng: np.random.Generator,
    ) -> tuple[int, ...]:  # fmt: skip
        """Take turns from now on, where an emulator can be fitted; return when there is another refit.

        θ's chart is then the one that the emulator was made for.
        """
        assert found.marginals is not None
        stays = 0 if found.emulator is None else TURNS.stays
        made = emulate_marginal(JointTarget(self.model, found.sites, found.marginals), thetas, rng, stays)
        if made is None:
            return ()
        found.marginals, found.emulator = made
        found.tried, found.trial = found.tried + 1, (0, 0.0)
        found.parameters = self._parameters(thetas, scores)
        known = step_size if found.held_step_size is None else found.held_step_size
        found.held_step_size = self.held_steps.adapting(known.average)
        again = moment.iteration + math.ceil(TURNS.turns_to_refit * moment.iteration)
        return (again,) if found.tried == 1 else ()

    def _parameters(self, thetas: Array, scores: Array) -> MarginalChart | None:
        """Return the chart of the likelihoods' own parameters; None where there are none."""
        return fit_parameters(thetas[:, self.model.of_likelihoods], scores) if scores.size else None
