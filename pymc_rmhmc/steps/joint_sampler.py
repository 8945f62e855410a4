"""Hyperparameters and latent values of all blocks in one chain, in the joint site chart."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.step_methods.state import dataclass_state

from pymc_rmhmc.approximation import SiteFit
from pymc_rmhmc.approximation.emulation import can_be_emulated, emulate_marginal
from pymc_rmhmc.approximation.joint import approximate_jointly, laplace_sites_at, moving_sites
from pymc_rmhmc.approximation.marginals import fit_marginals
from pymc_rmhmc.approximation.parameters import fit_parameters
from pymc_rmhmc.approximation.site_trend import ThinnedDraws, follow_trend
from pymc_rmhmc.dynamics.adaptation import DualAveraging
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.surrogates import SurrogateFlow, SurrogateSplitting
from pymc_rmhmc.errors import RMHMCError, listed
from pymc_rmhmc.geometry.charts import GaussianSites, MarginalChart, MovingSites
from pymc_rmhmc.geometry.charts.moving_sites import SiteTrend
from pymc_rmhmc.geometry.coefficients import compiled_coefficients
from pymc_rmhmc.geometry.emulator import Emulator
from pymc_rmhmc.geometry.held_sites import HeldSites
from pymc_rmhmc.geometry.joint import JointPoint, JointTarget
from pymc_rmhmc.geometry.latent_blocks import conditional_of
from pymc_rmhmc.geometry.prior import PriorFailure
from pymc_rmhmc.geometry.site_policy import SitePolicy
from pymc_rmhmc.kernels.kernel import HMC, Kernel, Sometimes, Transition
from pymc_rmhmc.kernels.trajectories import JitteredPath, transition
from pymc_rmhmc.kernels.turns import (
    HYPERPARAMETERS,
    JOINT,
    LATENTS,
    Alternation,
    BothMove,
    HyperparameterMove,
    JointMove,
    LatentMove,
    ParameterMove,
    Turn,
    stand,
)
from pymc_rmhmc.steps.chain_sampler import NEARNESS, REHEARSED_STEP, ChainSampler, ChainState
from pymc_rmhmc.steps.options import Plan
from pymc_rmhmc.steps.site_fits import fitted_sites, new_fit, rough_sites
from pymc_rmhmc.steps.start_errors import joint_start_error
from pymc_rmhmc.steps.words import in_words

__all__ = ["JointSampler", "JointState"]

type Array = NDArray[np.float64]
type Point = dict[str, Array]
type Sites = GaussianSites | MovingSites

# How much lower than at its mode a density may be, beyond what its Laplace approximation says, for a chain to begin.
FALL = 10.0
# Where there is no approximation from the model's initial θ: shares of it, then draws from -2 to 2 as Stan begins.
NEARER_ZERO = (0.75, 0.5, 0.25, 0.0)
N_AROUND_ZERO, AROUND_ZERO = 10, 2.0
# What is rejected of the hyperparameters' turns stands for how far the emulator, or z held, falls short: a chain then
# stays too long where it should not, and goes there too seldom. Three remedies are taken at random before a draw's
# turns, the more often the more is rejected. One holds neither half. One, four times as dear, is a joint trajectory in
# longer steps than where it is all that a chain has, for it knows nothing of the emulator either: some of both make as
# many effective draws as twice as many of the second. Where less than so much is rejected, they are taken by the square
# of that: there they gain less than they take. One moves the likelihoods' own parameters with the latent values held:
# below the first figure it gains nothing, and at the second every draw is worth it.
TOGETHER_BY_REJECTED = 0.35
JOINT_BY_REJECTED = 0.25
MUCH_REJECTED = 0.25
PARAMETERS_FROM, PARAMETERS_ALWAYS = 0.18, 0.24
STRETCH = 1.4
CORRECTION = 0.2
# Two turns cost less extra than they gain in tail ESS, because of what PyMC spends on a draw, and still less than one
# joint trajectory.
ROUNDS = 2
# After so many turns the hyperparameters' mean acceptance must be this at least: below it joint trajectories
# make more effective draws a second. Of few turns it is known with an error, `CHANCE` over the root of their number,
# by which it may be less, since it is looked at after every draw of tuning.
TRIAL = 30
LEAST_ACCEPTED = 0.4
CHANCE = 0.5
# Draws in turns are better than those before them. When there are a third as many as of all before, sites are refitted,
# or turns that were given up are tried once more.
TURNS_TO_REFIT = 1.0 / 3.0
REHEARSED_SPREAD = 0.1
# So many terms of a log density an error names one by one.
MOST_SUSPECTS = 10


@dataclass_state
class JointState(ChainState):
    """The state of a joint chain: sites and θ's chart, what they will be refitted to, and how its draws are made.

    To `fits` and `thinned`, one of each for a block, its sites will be refitted. With an emulator latents and
    hyperparameters move in turns, and `held_step_size` is that of the latents; `trial` counts the turns that tuning has
    made with it, and has the mean acceptance of their hyperparameters. So many times turns were `tried`. `scores` are
    the gradients, at each of `thetas`, by the likelihoods' own parameters given the latents; from them comes
    `parameters`, their chart.
    """

    sites: tuple[Sites, ...] = ()
    marginals: MarginalChart | None = None
    fits: tuple[SiteFit, ...] = ()
    thinned: tuple[ThinnedDraws, ...] = ()
    thetas: tuple[Array, ...] = ()
    emulator: Emulator | None = None
    held_step_size: DualAveraging | None = None
    trial: tuple[int, float] = (0, 0.0)
    tried: int = 0
    scores: tuple[Array, ...] = ()
    parameters: MarginalChart | None = None


@dataclass(frozen=True, slots=True)
class Turns:
    """What moves by halves are made of, for as long as sites and emulator stay."""

    target: JointTarget
    flow: SurrogateFlow
    splitting: SurrogateSplitting
    length: JitteredPath
    trends: tuple[SiteTrend, ...]
    parameters: ParameterMove | None

    @classmethod
    def of(
        cls, target: JointTarget, emulator: Emulator, length: JitteredPath, parameters: MarginalChart | None
    ) -> Turns:
        """Those of an emulator, and of the chart of the likelihoods' own parameters if it is known."""
        return cls(
            target, SurrogateFlow(emulator), SurrogateSplitting(emulator, target.n_theta), length,
            tuple(s.trend for s in target.sites if isinstance(s, MovingSites) and s.trend is not None),
            None if parameters is None else ParameterMove(target, parameters),
        )  # fmt: skip

    def kernel(self, step_size: float, *first: Kernel[Any], both: float, parameters: float) -> Alternation:
        """A draw's moves, of which those of both halves and of the parameters have a probability."""
        target, length = self.target, self.length
        before = (*first, Sometimes[Any](both, BothMove(target, self.splitting, length, step_size)))
        if self.parameters is not None:
            before = (*before, Sometimes[Any](parameters, self.parameters))
        latents = LatentMove(length, step_size, self.trends)
        return Alternation(target, Turn(latents, HyperparameterMove(target, self.flow, length)), ROUNDS, before)


class JointSampler(ChainSampler):
    """The chain of hyperparameters and latent values.

    Parameters
    ----------
    model : JointModel
        The blocks and the rest of the log density as functions of θ.
    blocks : sequence of CompiledBlock
        The same blocks, each row on its own, for their likelihoods' curvature.
    plan, initial_values, own_initval
        As in `ChainSampler`.
    """

    kept = ("model", "blocks", *ChainSampler.kept)
    state: JointState
    # One step from end to end is accepted nearly everywhere where data say little, and gets stuck in the tails of a
    # scale: on eight groups with a free spread two steps make six times as many effective draws of it.
    fewest_steps = 2

    def __init__(
        self, model: Any, blocks: Sequence[Any], plan: Plan, initial_values: Array, own_initval: bool
    ) -> None:
        self.model, self.blocks = model, tuple(blocks)
        theta = model.theta
        slices = [
            *((name, slice(0, part.stop - part.start)) for name, part in zip(theta.names, theta.slices, strict=True)),
            *(
                (value, slice(0, size))
                for block in model.blocks
                for value, size in zip(block.value_names, block.sizes, strict=True)
            ),
        ]
        name = " + ".join(block.name for block in model.blocks)
        super().__init__(name, plan, slices, initial_values, own_initval)

    def _new_state(self, refits: tuple[int, ...]) -> JointState:
        return JointState(refits=refits)

    def _forget(self) -> None:
        self._key: Point | None = None
        self._point: Point = {}
        self._target: Any = None
        self._turns: Any = None
        self._refused_at = ""

    @property
    def n_functions(self) -> int:
        """See `ChainSampler`."""
        return self.model.n_functions

    def rehearse(self, point: Point, rng: np.random.Generator) -> None:
        """See `ChainSampler`."""
        self._condition(point)
        state, values = self.state, self.read(point)
        theta = values[: self.model.theta.size]
        state.sites = tuple(self._rehearsed_sites(theta))
        state.marginals = _rehearsed_chart(theta)
        self._build()
        self._target.expectation(theta, [np.zeros(self._target.size - theta.size)])
        self._enter(values, rng)
        if self._has_failed:
            return
        self._keep(transition(self._hamiltonian, self.plan.integrator, self._phase, 1, REHEARSED_STEP, rng).state)
        self._observe()
        if self._may_emulate and can_be_emulated(self.model, theta.size):
            self._rehearse_turns(theta, rng)

    def _rehearsed_sites(self, theta: Array) -> Iterator[Sites]:
        """Standard ones for every block, with whatever they follow."""
        likelihoods = self._likelihoods(theta)
        laplace_sites_at(self.model, lambda _: likelihoods, theta, max_iter=1)
        for block, rows in zip(self.model.blocks, likelihoods, strict=True):
            for likelihood in rows:
                rough_sites(likelihood, np.zeros(likelihood.n_sites))
            sites = GaussianSites(np.zeros(block.n_sites), np.ones(block.n_sites))
            yield moving_sites(block, theta, sites, *conditional_of(block, theta, sites, derivative=False).marginals())

    def _rehearse_turns(self, theta: Array, rng: np.random.Generator) -> None:
        """Each move of an alternation, once and with one step."""
        self.plan = replace(self.plan, trajectory=JitteredPath(REHEARSED_STEP, 0.0, 1))
        own = self.model.of_likelihoods
        self.state.emulator = Emulator.flat(theta.size)
        self.state.parameters = _rehearsed_chart(theta[own]) if own.size else None
        position = self.state.coordinates
        self._build()
        self._turns.kernel(REHEARSED_STEP, both=2.0, parameters=2.0).step(stand(self._target, position), rng)

    def _condition(self, point: Point) -> None:
        """Bind what other steps have moved; the sites stay as they are."""
        names = self.model.inputs
        if self._key is None or any(not np.array_equal(self._key[name], point[name]) for name in names):
            self._note_refused()
            self._key = {name: np.array(point[name]) for name in names}
            self._take_given(self._key)
            self._point = point
            self.model.bind(point)
            self._phase = None
            if self.state.started:
                self._build()

    def _build(self) -> None:
        state = self.state
        assert state.marginals is not None
        self._note_refused()
        self._target = JointTarget(self.model, state.sites, state.marginals)
        compiled: Any = compiled_coefficients(self._target)
        self._hamiltonian = (
            GaussianHamiltonian(self._target, self._target.leave)
            if compiled is None
            else GaussianHamiltonian(compiled, follow=compiled.follow)
        )
        self._phase = self._turns = None
        if state.emulator is not None:
            assert isinstance(self.plan.trajectory, JitteredPath)  # no other has an emulator
            self._turns = Turns.of(self._target, state.emulator, self.plan.trajectory, state.parameters)

    def _start(self, values: Array, point: Point, rng: np.random.Generator) -> None:
        approximated, theta = self._starts_from_laplace(values), values[: self.model.theta.size]
        try:
            self._fit(theta, rng)
        except PriorFailure:
            if not (approximated and self._fit_elsewhere(theta, rng)):
                raise
        if approximated:
            values = self._draw_start(rng, values)
        self._begin(values, point, rng, approximated=approximated)

    @property
    def _start_is_final(self) -> bool:
        return True

    def _start_error(self, point: Point) -> RMHMCError | None:
        theta = self.model.theta.pack(point)
        names = listed(self.model.rest_names, most=MOST_SUSPECTS)
        return joint_start_error(self.model, theta, self._words(theta), names)

    def _fit_elsewhere(self, theta: Array, rng: np.random.Generator) -> bool:
        """Whether there is an approximation from another θ than the model's own, nearer 0 on the unconstrained scale.

        A prior's mean may be where nothing can be computed: that of `Exponential(1e-5)` is a precision of 100 000.
        """
        tried = [nearness * theta for nearness in NEARER_ZERO]
        tried += list(rng.uniform(-AROUND_ZERO, AROUND_ZERO, (N_AROUND_ZERO, theta.size)))
        for other in tried:
            with contextlib.suppress(PriorFailure):
                self._fit(other, rng)
                return True
        return False

    def _fit(self, theta: Array, rng: np.random.Generator) -> None:
        """Sites and θ's chart from the approximation that is found from θ, and the target in them."""
        found = approximate_jointly(self.model, self._likelihoods, theta, rng, self.model.of_hierarchies)
        self.state.sites, self.state.marginals = found.sites, found.marginals
        self._build()

    def _draw_start(self, rng: np.random.Generator, values: Array) -> Array:
        """A draw of the approximation, with θ nearer its centre where the posterior is much lower than there."""
        target = self._target
        position = rng.standard_normal(target.size)
        lowest = target.at(np.zeros(target.size)).log_density - FALL - target.n_theta
        for nearness in NEARNESS:
            tried = position.copy()
            tried[: target.n_theta] *= nearness
            point = target.at(tried)
            # What a standard normal leaves is nearly constant where the approximation is good.
            if not point.failure and point.log_density > lowest:
                return self._values(point)
        return values

    def where_refused(self) -> str:
        """Where a prior last had no factor: the unconstrained hyperparameters, and what other steps had given."""
        self._note_refused()
        return self._refused_at

    def _note_refused(self) -> None:
        """Take from the target where it met no factor: it is replaced where other steps move what it depends on."""
        refused = None if self._target is None else self._target.refused
        if refused is not None:
            self._refused_at = in_words(self.model.theta.unpack(refused) | (self._key or {}))
            self._target.refused = None

    def _words(self, theta: Array) -> str:
        return in_words(self.model.theta.unpack(theta))

    def _likelihoods(self, theta: Array) -> list[list[Any]]:
        """The blocks' likelihoods with the parameters that θ gives them, row by row."""
        point = self._point | self.model.theta.unpack(theta)
        blocks, found = iter(self.blocks), []
        for joint in self.model.blocks:
            n_rows = 1 if joint.rows is None else len(joint.rows)
            found.append([block.likelihood(point, joint.plain) for block in itertools.islice(blocks, n_rows)])
        return found

    @property
    def _prior_moves(self) -> bool:
        return True

    def _curvatures(self) -> set[str]:
        theta, _ = self._split(self.state.values)
        rows = itertools.chain.from_iterable(self._likelihoods(theta))
        return set.intersection(*(set(likelihood.kinds) for likelihood in rows))

    def _enter(self, values: Array, rng: np.random.Generator) -> None:
        """Stand at given values: from memory where they are the ones that were kept."""
        state = self.state
        if state.coordinates is not None and np.array_equal(values, state.values):
            position = state.coordinates
        else:
            theta, latents = self._split(values)
            position = self._target.enter(theta, latents, rng)
        turns = self._turns is not None
        self._phase = stand(self._target, position) if turns else self._hamiltonian.state(position)
        self._remember(values, self._joint_point)

    @property
    def _joint_point(self) -> JointPoint:
        """Where the chain stands."""
        return self._phase.point if self._turns is None else self._phase.joint_point

    @property
    def _has_failed(self) -> bool:
        return self._phase is None or bool(self._phase.point.failure)

    @property
    def _adaptation(self) -> DualAveraging | None:
        return self.state.step_size if self._turns is None else self.state.held_step_size

    def _kernel(self, *, tuning: bool) -> Kernel[Any]:
        """A joint trajectory; or turns, and before them what mends that many of them are rejected."""
        if self._turns is None:
            return super()._kernel(tuning=tuning)
        rejected, adaptation = 1.0 - self.state.trial[1], self.state.step_size
        assert adaptation is not None
        need = rejected * min(1.0, rejected / MUCH_REJECTED)
        share = (rejected - PARAMETERS_FROM) / (PARAMETERS_ALWAYS - PARAMETERS_FROM)
        longer = min(STRETCH * adaptation.average, adaptation.maximum)
        jointly = HMC[Any](self._hamiltonian, self.plan.integrator, self.plan.trajectory, longer)
        joint = Sometimes(JOINT_BY_REJECTED * need, JointMove(self._target, jointly))
        made: Kernel[Any] = self._turns.kernel(
            self.current_step_size(tuning=tuning), joint, both=TOGETHER_BY_REJECTED * need, parameters=share
        )
        return made

    def _move(self, rng: np.random.Generator, *, tuning: bool) -> Transition[Any]:
        if self._turns is None:
            return super()._move(rng, tuning=tuning)
        kernel, failed = self._kernel(tuning=tuning), self._has_failed
        outcome = kernel.step(self._taken(), rng)
        self._keep(outcome.state)
        if tuning and not failed:
            self._learn(outcome)
        return outcome

    def _taken(self) -> Any:
        """The chain's state, which it keeps no longer: as kernels move it, its factors can go."""
        phase, self._phase = self._phase, None
        return phase

    def _learn(self, outcome: Transition[Any]) -> None:
        """Adapt the step sizes, and give turns up where the hyperparameters are hardly ever accepted."""
        state = self.state
        assert state.held_step_size is not None
        self._learn_jointly(outcome)
        for move in outcome.of_kind(LATENTS):
            state.held_step_size.update(move.acceptance)
        for move in outcome.of_kind(HYPERPARAMETERS):
            count, mean = state.trial
            state.trial = count + 1, mean + (move.acceptance - mean) / (count + 1)
        count, mean = state.trial
        if count >= TRIAL and mean < LEAST_ACCEPTED - CHANCE / math.sqrt(count):
            state.emulator = state.held_step_size = state.parameters = None
            # An emulator that is no good may have made a chart that is none.
            state.marginals = fit_marginals(np.array(state.thetas)) or state.marginals
            state.coordinates = None
            self._build()

    def _learn_jointly(self, outcome: Transition[Any]) -> None:
        """Correct the step size of joint trajectories, which are too few for dual averaging."""
        adaptation = self.state.step_size
        assert adaptation is not None
        for move in outcome.of_kind(JOINT):
            adaptation.average *= math.exp(CORRECTION * (move.acceptance - self.plan.held_target_accept))

    @property
    def _policy(self) -> SitePolicy:
        """What the metric says of its sites: one without any takes no hyperparameters."""
        assert self.plan.policy is not None
        return self.plan.policy

    @property
    def _may_emulate(self) -> bool:
        """Whether steps and paths are left to tuning, and turns to it as well."""
        plan = self.plan
        return plan.step_size is None and isinstance(plan.trajectory, JitteredPath) and self._policy.emulate

    def _emulate(self, thetas: Array, scores: Array, rng: np.random.Generator) -> None:
        """Take turns from now on, where an emulator can be fitted; a trajectory that the user has set stays.

        θ's chart is then the one that the emulator was made for.
        """
        state = self.state
        if state.step_size is None or not self._may_emulate:
            return
        found = emulate_marginal(self._target, thetas, rng)
        if found is None:
            return
        state.marginals, state.emulator = found
        if not state.tried:
            state.refits += (state.iteration + math.ceil(TURNS_TO_REFIT * state.iteration),)
        state.tried, state.trial = state.tried + 1, (0, 0.0)
        state.parameters = self._parameters(thetas, scores)
        plan, first = self.plan, state.step_size.average
        state.held_step_size = DualAveraging(
            first, plan.held_target_accept, self._longest_step, plan.covering_step_size
        )
        self._build()

    def _parameters(self, thetas: Array, scores: Array) -> MarginalChart | None:
        """The chart of the likelihoods' own parameters; None where there are none."""
        return fit_parameters(thetas[:, self.model.of_likelihoods], scores) if scores.size else None

    def _split(self, values: Array) -> tuple[Array, list[Array]]:
        """θ, and every block's values."""
        ends = self.model.theta.size + np.cumsum([0, *(block.size for block in self.model.blocks)])
        return values[: ends[0]], [values[a:b] for a, b in itertools.pairwise(ends)]

    def _values(self, point: JointPoint) -> Array:
        """The model's variables at a point."""
        return np.concatenate((point.theta, *self._target.latents(point)))

    def _keep(self, phase: Any) -> None:
        self._phase = phase
        point = self._joint_point
        self._remember(self._values(point), point)

    def _remember(self, values: Array, point: JointPoint) -> None:
        """Note where the chain is, in both coordinates, and the model's log density there."""
        state = self.state
        state.coordinates, state.values, self.values = point.position, values, values
        self.log_density = np.nan if point.failure else self._target.model_log_density(point)

    def _observe(self) -> None:
        state, point = self.state, self._joint_point
        if not state.fits:
            state.fits = tuple(new_fit(self._policy, eta.size) for eta in point.eta)
            state.thinned = tuple(ThinnedDraws(eta.size) for eta in point.eta)
        state.thetas += (point.theta,)
        if self.model.of_likelihoods.size:
            state.scores += (HeldSites(self.model, point.theta, point.eta).score(point.theta)[1],)
        for fit, draws, eta, slope in zip(state.fits, state.thinned, point.eta, point.slope, strict=True):
            fit.add(eta, slope)
            draws.add(point.theta, eta)

    def _forget_window(self) -> None:
        self.state.thetas, self.state.scores = (), ()
        self._forget_sites()

    def _forget_sites(self) -> None:
        """Drop the draws to which sites would be refitted."""
        self.state.fits, self.state.thinned = (), ()

    def _refitted(self, block: Any, held: Sites, fit: SiteFit, draws: ThinnedDraws, theta: Array) -> Sites:
        """A block's sites from its draws; the old ones where these are too few."""
        fitted = fitted_sites(fit, held.sites if isinstance(held, MovingSites) else held)
        if fitted is None:
            return held
        moving = moving_sites(block, theta, fitted, fit.centre, fit.variance)
        if self._policy.site_fit is not None:  # these are what the user wants
            return moving
        free = np.ones(theta.size, dtype=bool)
        free[self.model.of_likelihoods] = False
        return follow_trend(block, moving, theta, draws, free)

    def _refit(self, rng: np.random.Generator, *, with_sites: bool) -> None:
        state = self.state
        if state.marginals is None or not state.thetas:
            return
        thetas, scores = np.array(state.thetas), np.array(state.scores)
        self._phase = self._turns = None  # they hold factors, and will be made anew
        if with_sites:
            given = zip(self.model.blocks, state.sites, state.fits, state.thinned, strict=True)
            state.sites = tuple(self._refitted(*each, thetas.mean(axis=0)) for each in given)
        else:
            self._forget_sites()
        # What an emulator knows of θ has nothing to do with sites, and its chart is better than the draws'.
        if state.emulator is None:
            state.marginals = fit_marginals(thetas) or state.marginals
        else:
            state.parameters = self._parameters(thetas, scores)
            state.held_step_size = copy.copy(state.held_step_size)  # the other is restored where this refit is dropped
        # What came before the first refit is the way from the start, and is forgotten; later draws add up.
        if state.iteration == state.refits[0]:
            self._forget_window()
        state.coordinates = None
        self._build()
        if state.iteration == state.refits[-1] and state.emulator is None:
            self._emulate(thetas, scores, rng)
        # The step size of joint trajectories keeps what it has learnt, as long as there are turns.
        if self._adaptation is not None:
            self._adaptation.restart(self._adaptation.average)


def _rehearsed_chart(centre: Array) -> MarginalChart:
    """A narrow chart, whose centre is as likely as the rest of it."""
    return MarginalChart.linear(centre, REHEARSED_SPREAD * np.eye(centre.size))
