"""How kernels of hyperparameters and latent values of all blocks are built, in the joint site chart."""

from __future__ import annotations

import contextlib
import itertools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation.emulation import can_be_emulated
from pymc_rmhmc.approximation.joint_mode import approximate_jointly, laplace_sites_at, moving_sites
from pymc_rmhmc.chains.conditional_density import (
    NEARNESS,
    REHEARSED_STEP,
    ConditionalDensityBase,
    HMCCoordinates,
    Location,
    Plan,
    Point,
    Position,
    Variables,
    changed,
)
from pymc_rmhmc.chains.judgement import in_words
from pymc_rmhmc.chains.reference import LOG_2PI, ResidualReference
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, GaussianState, SpannedHamiltonian
from pymc_rmhmc.errors import Failure, PriorFailure, RMHMCError, listed
from pymc_rmhmc.interfaces.joint_density import JointBlock, JointDensity
from pymc_rmhmc.kernels.kernel import Kernel, Sometimes
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.kernels.turns import JointMove, LatentDraw, TurnMoves, TurnState, between_joint_moves, stand
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart, MovingSites
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.latent.joint_target import JointPoint, JointTarget
from pymc_rmhmc.latent.latent_blocks import conditional_of, theta_requires_refactorization
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta
from pymc_rmhmc.latent.theta_densities import ParametersGivenLatents
from pymc_rmhmc.model import CompiledBlock, JointModel
from pymc_rmhmc.model.observed.site_likelihood import SiteLikelihood
from pymc_rmhmc.model.words.density_terms import DensityTerms
from pymc_rmhmc.sampled.checks import joint_start_error
from pymc_rmhmc.tuning.adaptation import StepSize
from pymc_rmhmc.tuning.joint_adapter import TURNS, HyperparameterAdapter, JointTuning, rough_sites

__all__ = ["JointBlocksDensity", "JointCoordinates", "TurnCoordinates"]

type Array = NDArray[np.float64]
type Sites = GaussianSites | MovingSites
type JointPhase = GaussianState[JointPoint]
type AnyCoordinates = JointCoordinates | LatentCoordinates | TurnCoordinates

# How much lower than at its mode a density may be, beyond what its Laplace approximation says, for a chain to begin.
FALL = 10.0
# Where there is no approximation from the model's initial θ: shares of it, then draws from -2 to 2 as Stan begins.
NEARER_ZERO = (0.75, 0.5, 0.25, 0.0)
N_AROUND_ZERO, AROUND_ZERO = 10, 2.0
# One step from end to end is accepted nearly everywhere where data say little, and gets stuck in the tails of a
# scale: on eight groups with a free spread two steps make six times as many effective draws of it.
FEWEST_STEPS = 2
REHEARSED_SPREAD = 0.1
# So many terms of a log density an error names one by one.
MOST_SUSPECTS = 10


@dataclass(slots=True)
class JointCoordinatesBase[Phase: (JointPhase, TurnState)](HMCCoordinates[Phase]):
    """The density of (ϑ, z) for one set of sites and charts; see `Coordinates`."""

    target: JointTarget
    log_constant: float = field(init=False)  # what the log weight has beyond the target's log density

    def __post_init__(self) -> None:
        chart = self.target.chart
        volume = float(np.log(np.abs(chart.spread)).sum() + np.log(chart.factor.diagonal()).sum())
        self.log_constant = volume + 0.5 * self.target.n_theta * LOG_2PI

    def stand(self, values: Array, known: Position | None, rng: np.random.Generator) -> Phase:
        """See `Coordinates`."""
        (position,) = (self.enter(values, rng),) if known is None else known
        return self.stand_at(position)

    def enter(self, values: Array, rng: np.random.Generator) -> Array:
        """Return a (ϑ, z) that stands for the model's variables."""
        theta, latents = split(self.target.density.blocks, self.target.n_theta, values)
        return self.target.enter(theta, latents, rng)

    @abstractmethod
    def stand_at(self, position: Array) -> Phase:
        """Return the phase at a (ϑ, z)."""

    def failure(self, phase: Phase) -> Failure:
        """See `Coordinates`."""
        return phase.point.failure

    @abstractmethod
    def seen(self, phase: Phase) -> JointPoint:
        """Return the joint target's point."""

    def reference(self) -> ResidualReference:
        """See `NormalCoordinates`."""
        target = self.target
        return ResidualReference(
            target, target.size, self.log_constant,
            lambda values, rng: target.at(self.enter(values, rng)), self.values_at, target.n_theta,
        )  # fmt: skip

    def values_at(self, point: JointPoint) -> Array:
        """Return the model's variables at a point."""
        return np.concatenate((point.theta, *self.target.latents(point)))

    def locate(self, phase: Phase, values: Array | None) -> Location:
        """See `Coordinates`."""
        point = self.seen(phase)
        if values is None:
            values = self.values_at(point)
        if point.failure:
            return Location((point.position,), values, math.nan)
        log_weight = point.log_density + self.log_constant
        return Location((point.position,), values, self.target.model_log_density(point), log_weight)


@dataclass(slots=True)
class JointCoordinates(JointCoordinatesBase[JointPhase]):
    """Joint trajectories of (ϑ, z); see `Coordinates`."""

    @classmethod
    def of(cls, model: JointDensity, tuned: JointTuning, plan: Plan) -> JointCoordinates:
        """Return the coordinates of what is known."""
        assert tuned.marginals is not None
        target = JointTarget(model, tuned.sites, tuned.marginals, holds_long=tuned.moves_between)
        return cls.at_target(target, plan)

    @classmethod
    def at_target(cls, target: JointTarget, plan: Plan) -> JointCoordinates:
        """Return the coordinates of a target, which may make a trajectory's steps at once."""
        return cls(GaussianHamiltonian(target, advance=target.advance if target.advances else None), plan, target)

    def stand_at(self, position: Array) -> JointPhase:
        """Return the phase at a (ϑ, z)."""
        phase: JointPhase = self.hamiltonian.state(position)
        return phase

    def seen(self, phase: JointPhase) -> JointPoint:
        """Return the joint target's point."""
        return phase.point

    def kernel(self, tuned: JointTuning, step_size: StepSize, *, tuning: bool) -> Kernel[JointPhase]:
        """See `Coordinates`: a joint trajectory."""
        return self.hmc(step_size.in_use(tuning=tuning))

    def rehearse(self, phase: JointPhase, step_size: float, rng: np.random.Generator) -> JointPhase:
        """See `Coordinates`."""
        target, point = self.target, phase.point
        target.expectation(point.theta, [np.zeros(target.size - target.n_theta)])
        if target.density.of_likelihoods.size:
            ParametersGivenLatents(target.density, point.theta, point.eta).score(point.theta)
        return self.single_step(phase, step_size, rng)


@dataclass(slots=True)
class LatentCoordinates(JointCoordinatesBase[TurnState]):
    """Trajectories of z, where no ϑ is sampled with the latent values; see `Coordinates`."""

    @classmethod
    def of(cls, joint: JointCoordinates) -> LatentCoordinates:
        """Return the coordinates of the same target; raise a `PriorFailure` if a prior cannot be used."""
        held = LatentsGivenTheta(joint.target, np.zeros(0))
        return cls(SpannedHamiltonian(held), joint.plan, joint.target)

    def stand_at(self, position: Array) -> TurnState:
        """Return the phase at a z."""
        return TurnState(position, self.hamiltonian.residual.at_noise(position))

    def seen(self, phase: TurnState) -> JointPoint:
        """Return the joint target's point."""
        return phase.seen

    def kernel(self, tuned: JointTuning, step_size: StepSize, *, tuning: bool) -> Kernel[TurnState]:
        """See `Coordinates`: a trajectory of z."""
        return LatentDraw(self.hmc(step_size.in_use(tuning=tuning)))

    def rehearse(self, phase: TurnState, step_size: float, rng: np.random.Generator) -> TurnState:
        """See `Coordinates`."""
        return LatentDraw(self.hmc(step_size)).step(phase, rng).state


@dataclass(slots=True)
class TurnCoordinates(JointCoordinatesBase[TurnState]):
    """Turns of ϑ along an emulator and of z, or of both and of z; see `Coordinates`."""

    joint: JointCoordinates
    turns: TurnMoves | None  # None where no emulator is any good

    @classmethod
    def of(cls, joint: JointCoordinates, tuned: JointTuning) -> TurnCoordinates:
        """Return the coordinates of what is known."""
        path, turns = joint.plan.trajectory.path, None
        if tuned.emulator is not None:
            turns = TurnMoves.of(joint.target, tuned.emulator, path, tuned.parameters)
        return cls(joint.hamiltonian, joint.plan, joint.target, joint, turns)

    def stand_at(self, position: Array) -> TurnState:
        """Return the phase at a (ϑ, z)."""
        return stand(self.target, position)

    def seen(self, phase: TurnState) -> JointPoint:
        """Return the joint target's point."""
        return phase.seen

    def kernel(self, tuned: JointTuning, step_size: StepSize, *, tuning: bool) -> Kernel[TurnState]:
        """See `Coordinates`: turns, and before them what mends that many of them are rejected."""
        assert tuned.held_step_size is not None
        rejected, held = 1.0 - tuned.trial[1], tuned.held_step_size.in_use(tuning=tuning)
        if self.turns is None:
            joint = JointMove(self.target, self.joint.hmc(step_size.in_use(tuning=tuning)))
            return between_joint_moves(self.target, self.joint.plan.trajectory.path, held, TURNS.between, joint)
        longer = self.joint.hmc(min(TURNS.stretch * step_size.average, step_size.maximum))
        return self.turns.kernel(
            held,
            TURNS.rounds,
            Sometimes(TURNS.share_of_joint(rejected, self.target.n_sites), JointMove(self.target, longer)),
            both=TURNS.both_by_rejected * TURNS.need(rejected),
            parameters=TURNS.share_of_parameters(rejected),
        )

    def rehearse(self, phase: TurnState, step_size: float, rng: np.random.Generator) -> TurnState:
        """See `Coordinates`."""
        assert self.turns is not None
        end: TurnState = self.turns.kernel(step_size, TURNS.rounds, both=2.0, parameters=2.0).step(phase, rng).state
        return end


class JointBlocksDensity(ConditionalDensityBase[JointTuning, AnyCoordinates]):
    """Hyperparameters and latent values; see `ConditionalDensity`.

    `model`: the blocks and the rest of the log density as functions of θ.
    `blocks`: the same blocks, each row on its own, for their likelihoods' curvature.
    `plan`: metric, integrator, lengths.
    `labels`: what users call the value variables.
    `terms`: the terms of the model's log density, for errors.
    """

    start_is_final = prior_moves = True

    def __init__(
        self, model: JointModel, blocks: Sequence[CompiledBlock], plan: Plan, labels: Mapping[str, str],
        terms: DensityTerms,
    ) -> None:  # fmt: skip
        self.terms = terms
        self.model, self.blocks, self.plan = model, tuple(blocks), plan
        assert plan.policy is not None  # a metric without sites takes no hyperparameters
        self.name = " + ".join(block.name for block in model.blocks)
        self.variables = Variables(tuple(_slices(model)), labels)
        joint = plan.steps(FEWEST_STEPS)
        held = replace(joint, target=plan.held_target_accept)
        # Where nothing moves ϑ, steps of the latent values alone cost a hundredth of joint ones of a dense covariance.
        self.latents_alone = not model.theta.size and any(map(theta_requires_refactorization, model.blocks))
        self.steps = held if self.latents_alone else joint
        self.adapter = HyperparameterAdapter(model, plan.policy, held, plan.may_emulate)
        self.forget()

    def forget(self) -> None:
        """See `ConditionalDensity`."""
        self._key: Point | None = None
        self._point: Point = {}
        self._refused_at = ""
        self._coordinates = None

    @property
    def n_functions(self) -> int:
        """See `ConditionalDensity`."""
        return int(self.model.n_functions)

    def bind(self, point: Point) -> tuple[bool, Point]:
        """Bind what other steps have moved; the sites stay as they are."""
        key = changed(self._key, point, self.model.inputs)
        if key is not None:
            self.drop()
            self._key, self._point = key, point
            self.model.bind(point)
        assert self._key is not None
        return key is not None, self._key

    def drop(self) -> None:
        """See `ConditionalDensity`."""
        self._note_refused()
        self._coordinates = None

    def coordinates(self, tuned: JointTuning) -> AnyCoordinates | None:
        """See `ConditionalDensity`."""
        return None if tuned.marginals is None else self.made(tuned)

    def make(self, tuned: JointTuning) -> AnyCoordinates:
        """See `ConditionalDensityBase`."""
        joint = self.joint_coordinates(tuned)
        if self.latents_alone:
            return LatentCoordinates.of(joint)
        return joint if tuned.held_step_size is None else TurnCoordinates.of(joint, tuned)

    def joint_coordinates(self, tuned: JointTuning) -> JointCoordinates:
        """Return those of joint trajectories."""
        return JointCoordinates.of(self.model, tuned, self.plan)

    def start(self, tuned: JointTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `ConditionalDensity`."""
        theta = values[: self.model.theta.size]
        try:
            self._fit(tuned, theta, rng)
        except PriorFailure:
            if not (approximated and self._fit_elsewhere(tuned, theta, rng)):
                raise
        return self._draw_start(tuned, rng, values) if approximated else values

    def _fit(self, tuned: JointTuning, theta: Array, rng: np.random.Generator) -> None:
        """Take sites and θ's chart from the approximation that is found from θ."""
        found = approximate_jointly(self.model, self._first_sites(theta), theta, rng, self.model.of_hierarchies)
        tuned.sites, tuned.marginals = found.sites, found.marginals
        self.drop()

    def _first_sites(self, theta: Array) -> list[GaussianSites]:
        """Return sites to begin with at a θ."""
        return laplace_sites_at(self.model, self._likelihoods, theta)

    def _fit_elsewhere(self, tuned: JointTuning, theta: Array, rng: np.random.Generator) -> bool:
        """Fit at another θ than the model's own, nearer 0 on the unconstrained scale; return whether one worked.

        A prior's mean may be where nothing can be computed: that of `Exponential(1e-5)` is a precision of 100 000.
        """
        tried = [nearness * theta for nearness in NEARER_ZERO]
        tried += list(rng.uniform(-AROUND_ZERO, AROUND_ZERO, (N_AROUND_ZERO, theta.size)))
        for other in tried:
            with contextlib.suppress(PriorFailure):
                self._fit(tuned, other, rng)
                return True
        return False

    def _draw_start(self, tuned: JointTuning, rng: np.random.Generator, values: Array) -> Array:
        """Draw from the approximation, with θ nearer its centre where the posterior is much lower than there."""
        coordinates = self.made(tuned)
        target = coordinates.target
        position = rng.standard_normal(target.size)
        lowest = target.at(np.zeros(target.size)).log_density - FALL - target.n_theta
        for nearness in NEARNESS:
            tried = position.copy()
            tried[: target.n_theta] *= nearness
            point = target.at(tried)
            # What a standard normal leaves is nearly constant where the approximation is good.
            if not point.failure and point.log_density > lowest:
                return coordinates.values_at(point)
        return values

    def start_error(self, point: Point) -> RMHMCError | None:
        """See `ConditionalDensity`."""
        theta = self.model.theta.pack(point)
        names = listed(self.model.rest_names, most=MOST_SUSPECTS)
        where = in_words(self.model.theta.unpack(theta))
        return joint_start_error(self.model, theta, where, names, lambda: self.terms.in_words(point))

    def where_refused(self) -> str:
        """Say where a prior last had no factor: the unconstrained hyperparameters, and what other steps had given."""
        self._note_refused()
        return self._refused_at

    def _note_refused(self) -> None:
        """Take from the target where it met no factor: it is replaced where other steps move what it depends on."""
        target = None if self._coordinates is None else self._coordinates.target
        if target is not None and target.refused is not None:
            self._refused_at = in_words(self.model.theta.unpack(target.refused) | (self._key or {}))
            target.refused = None

    def _likelihoods(self, theta: Array) -> list[list[SiteLikelihood]]:
        """Return the blocks' likelihoods with the parameters that θ gives them, row by row."""
        point = self._point | self.model.theta.unpack(theta)
        blocks, found = iter(self.blocks), []
        for joint in self.model.blocks:
            n_rows = 1 if joint.rows is None else len(joint.rows)
            found.append([block.likelihood(point, joint.plain) for block in itertools.islice(blocks, n_rows)])
        return found

    def curvatures(self, values: Array) -> set[str]:
        """See `ConditionalDensity`."""
        theta = values[: self.model.theta.size]
        rows = itertools.chain.from_iterable(self._likelihoods(theta))
        return set.intersection(*(set[str](likelihood.kinds) for likelihood in rows))

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[JointTuning]:
        """See `ConditionalDensity`: joint trajectories, and turns where there may be any."""
        theta, own = values[: self.model.theta.size], self.model.of_likelihoods
        first = JointTuning(sites=tuple(self._rehearsed_sites(theta)), marginals=_rehearsed_chart(theta))
        yield first
        if self.plan.may_emulate and can_be_emulated(self.model, theta.size):
            self.plan = replace(self.plan, trajectory=JitteredPath(REHEARSED_STEP, 0.0, 1))
            parameters = _rehearsed_chart(theta[own]) if own.size else None
            held = self.adapter.held_steps.adapting(REHEARSED_STEP)
            yield replace(first, emulator=Emulator.flat(theta.size), parameters=parameters, held_step_size=held)

    def _rehearsed_sites(self, theta: Array) -> Iterator[Sites]:
        """Yield standard sites for every block, with whatever they follow."""
        likelihoods = self._likelihoods(theta)
        laplace_sites_at(self.model, lambda _: likelihoods, theta, max_iter=1)
        for block, rows in zip(self.model.blocks, likelihoods, strict=True):
            for likelihood in rows:
                rough_sites(likelihood, np.zeros(likelihood.n_sites))
            sites = GaussianSites(np.zeros(block.n_sites), np.ones(block.n_sites))
            yield moving_sites(block, theta, sites, *conditional_of(block, theta, sites).marginals())


def split(blocks: Sequence[JointBlock], n_theta: int, values: Array) -> tuple[Array, list[Array]]:
    """Return θ, and every block's values."""
    ends = n_theta + np.cumsum([0, *(block.size for block in blocks)])
    return values[: ends[0]], [values[a:b] for a, b in itertools.pairwise(ends)]


def _slices(model: JointModel) -> Iterator[tuple[str, slice]]:
    """Yield the value variables of θ and of every block, and their parts."""
    for name, part in zip(model.theta.names, model.theta.slices, strict=True):
        yield name, slice(0, part.stop - part.start)
    for block in model.blocks:
        for value, size in zip(block.value_names, block.sizes, strict=True):
            yield value, slice(0, size)


def _rehearsed_chart(centre: Array) -> MarginalChart:
    """Return a narrow chart, whose centre is as likely as the rest of it."""
    return MarginalChart.linear(centre, REHEARSED_SPREAD * np.eye(centre.size))
