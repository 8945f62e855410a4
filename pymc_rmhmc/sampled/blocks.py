"""What one RMHMC samples of a model: blocks, with or without their hyperparameters, and a sampler for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.approximation import Mode, find_mode, laplace_sites, prior_expected_sites
from pymc_rmhmc.chains.chain import AnyChain, Chain
from pymc_rmhmc.chains.conditional_density import (
    NEARNESS,
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
from pymc_rmhmc.errors import ConfigurationError, Failure, PriorFailure, RMHMCError, counted, listed
from pymc_rmhmc.kernels.kernel import HMC
from pymc_rmhmc.latent.charts import GaussianSites, SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.latent_blocks import theta_requires_refactorization
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget, SiteTargetPoint, TargetPoint
from pymc_rmhmc.model import (
    CompiledBlock,
    CompiledModel,
    JointModel,
    ModelStructure,
    compile_model,
    names_by_value,
    read_structure,
    read_together,
    said_once,
    warnings_of,
)
from pymc_rmhmc.model.forms.joint_model import NO_HYPERPARAMETERS
from pymc_rmhmc.model.observed.site_likelihood import SiteLikelihood
from pymc_rmhmc.model.structure import has_own_initval
from pymc_rmhmc.model.together import about_means_or_not, check_together
from pymc_rmhmc.model.words.density_terms import DensityTerms
from pymc_rmhmc.model.words.refusals import step_in_words
from pymc_rmhmc.sampled.checks import check_block, likelihood_error
from pymc_rmhmc.sampled.joint import JointBlocksDensity
from pymc_rmhmc.tuning.adaptation import StepSize
from pymc_rmhmc.tuning.joint_adapter import SiteAdapter, SiteTuning, rough_sites

__all__ = ["BlockCoordinates", "BlockDensity", "FoundBlocks", "alone_in_words", "build_blocks", "find_blocks"]

type Array = NDArray[np.float64]

# Of each likelihood: its log density, with its slope, and with its curvature.
N_KERNEL_FUNCTIONS = 3


class BlockState(Protocol):
    """A state of trajectories, as a chain of one block asks for it."""

    @property
    def position(self) -> Array:
        """Z (k,)."""

    @property
    def coordinates(self) -> Position:
        """What stands here again."""

    @property
    def density_point(self) -> TargetPoint | SiteTargetPoint:
        """The density here."""


@dataclass(slots=True)
class BlockCoordinates(HMCCoordinates[BlockState]):
    """A chart for one prior and one set of sites, and a likelihood in it; see `Coordinates`."""

    chart: SiteChart
    likelihood: SiteLikelihood
    target: LatentTarget

    @classmethod
    def of(cls, chart: SiteChart, likelihood: SiteLikelihood, plan: Plan) -> BlockCoordinates:
        """Return the coordinates in the plan's metric."""
        target = LatentTarget(chart, likelihood)
        hamiltonian = plan.integrator.extend(plan.trajectory.hamiltonian(plan.metric.bind(LatentDensity(target))))
        return cls(hamiltonian, plan, chart, likelihood, target)

    def stand(self, values: Array, known: Position | None, rng: np.random.Generator) -> BlockState:
        """See `Coordinates`."""
        where = (self.chart.from_model(values),) if known is None else known
        phase: BlockState = self.hamiltonian.state(*where)
        return phase

    def locate(self, phase: BlockState, values: Array | None) -> Location:
        """See `Coordinates`."""
        point, position = phase.density_point, phase.position
        if values is None:
            values = self.chart.to_model(position, point.eta)
        log_density = self.target.model_log_density(position, point.eta, point.log_likelihood)
        log_weight = log_density + 0.5 * float(position @ position) + self.chart.log_evidence - self.chart.log_constant
        return Location(phase.coordinates, values, log_density, log_weight)

    def seen(self, phase: BlockState) -> tuple[Array, Array]:
        """Return η and the likelihood's slope there."""
        eta = phase.density_point.eta
        return eta, self.likelihood.gradient(eta)[1]

    def kernel(self, tuned: SiteTuning, step_size: StepSize, *, tuning: bool) -> HMC[BlockState]:
        """See `Coordinates`."""
        return self.hmc(step_size.in_use(tuning=tuning))

    def rehearse(self, phase: BlockState, step_size: float, rng: np.random.Generator) -> BlockState:
        """See `Coordinates`."""
        return self.single_step(phase, step_size, rng)


class BlockDensity(ConditionalDensityBase[SiteTuning, BlockCoordinates]):
    """Latent values of one block given everything else; see `ConditionalDensity`.

    `block`: how to read the block's prior and likelihood from a point.
    `plan`: metric, integrator, lengths.
    `labels`: what users call the value variables.
    `terms`: the terms of the model's log density, for errors.
    """

    def __init__(
        self, block: CompiledBlock, plan: Plan, labels: Mapping[str, str], terms: DensityTerms
    ) -> None:
        self.terms = terms
        self.block, self.plan, self.name = block, plan, block.name
        self.variables = Variables(tuple(block.slices), labels)
        self.adapter, self.steps = SiteAdapter(plan.policy), plan.steps()
        self.forget()

    def forget(self) -> None:
        """See `ConditionalDensity`."""
        self._point: Point = {}
        self._prior_key: Point | None = None
        self._likelihood_key: Point | None = None
        self._prior: FactorizedPrior | None = None
        self._likelihood: SiteLikelihood | None = None
        self._refused: PriorFailure | None = None
        self._refused_at = ""
        self._chart: SiteChart | None = None
        self._coordinates = None

    @property
    def n_functions(self) -> int:
        """See `ConditionalDensity`."""
        return N_KERNEL_FUNCTIONS * int(self.block.n_observed_variables)

    @property
    def start_is_final(self) -> bool:
        """See `ConditionalDensity`."""
        return not self.block.prior_inputs

    @property
    def prior_moves(self) -> bool:
        """See `ConditionalDensity`."""
        return bool(self.block.prior_inputs)

    def bind(self, point: Point) -> tuple[bool, Point]:
        """Take in the values of prior and likelihood that have changed."""
        prior = changed(self._prior_key, point, self.block.prior_inputs)
        if prior is not None:
            self._prior_key, self._prior, self._point = prior, None, point
            self.drop()
        likelihood = changed(self._likelihood_key, point, self.block.likelihood_inputs)
        if likelihood is not None:
            self._likelihood_key = likelihood
            self._likelihood = self.block.likelihood(point)
            self._coordinates = None
        assert self._prior_key is not None
        return prior is not None or likelihood is not None, self._prior_key

    def drop(self) -> None:
        """See `ConditionalDensity`."""
        self._chart = self._coordinates = self._refused = None

    def coordinates(self, tuned: SiteTuning) -> BlockCoordinates:
        """See `ConditionalDensity`: what is missing of prior, sites, chart and target is made, in this order."""
        if self._refused is None:
            try:
                return self.made(tuned)
            except PriorFailure as failure:
                self._refused = failure
                if failure.failure == Failure.NOT_POSITIVE_DEFINITE:
                    self._refused_at = in_words(self._prior_key or {})
        raise self._refused

    def make(self, tuned: SiteTuning) -> BlockCoordinates:
        """See `ConditionalDensityBase`."""
        if self._prior is None:
            self._prior = FactorizedPrior(self.block.prior(self._point))
        assert self._likelihood is not None
        if self.plan.uses_sites:
            if tuned.sites is None:
                tuned.sites = self._first_sites()
            # The mode is all that needs the covariance besides its factor.
            self._prior.predictor.forget_gram()
        if self._chart is None:
            # Where another step moves the covariance, the next draw has another chart.
            sites = tuned.sites if self.plan.uses_sites else None
            self._chart = SiteChart(self._prior, sites, lasting=not self.block.prior_inputs)
        return BlockCoordinates.of(self._chart, self._likelihood, self.plan)

    def _first_sites(self) -> GaussianSites:
        """Return the sites that the policy begins with."""
        assert self.plan.policy is not None
        if self.plan.policy.sites == "fitted":
            return self._laplace_sites()
        return prior_expected_sites(self._known_prior.predictor, self._known_likelihood, self._mode())

    def _laplace_sites(self) -> GaussianSites:
        return laplace_sites(self._mode())

    def _mode(self) -> Mode:
        return find_mode(self._known_prior.predictor, self._known_likelihood)

    @property
    def _known_prior(self) -> FactorizedPrior:
        assert self._prior is not None
        return self._prior

    @property
    def _known_likelihood(self) -> SiteLikelihood:
        assert self._likelihood is not None
        return self._likelihood

    def start(self, tuned: SiteTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `ConditionalDensity`: a draw of the Laplace approximation, nearer its mode where there is no density.

        At last the given values.
        """
        if not approximated:
            return values
        coordinates = self.coordinates(tuned)
        chart = coordinates.chart if self.plan.uses_sites else SiteChart(self._known_prior, self._laplace_sites())
        noise = rng.standard_normal(values.size)
        for nearness in NEARNESS:
            drawn = chart.to_model(nearness * noise)
            if not coordinates.failure(coordinates.stand(drawn, None, rng)):
                return drawn
        return values

    def start_error(self, point: Point) -> RMHMCError | None:
        """See `ConditionalDensity`."""
        # A prior that other steps move may have a factor at their next draw.
        if self._prior is None or self._likelihood is None:
            return None
        eta = self._prior.predictor.offset
        total, slope = self._likelihood.gradient(eta)
        where = in_words(self._prior_key or {})
        return likelihood_error(self.name, total, slope, where, lambda: self.terms.in_words(point))

    def where_refused(self) -> str:
        """Return the values from other steps at which the prior could last not be factorised."""
        return self._refused_at

    def curvatures(self, values: Array) -> set[str]:
        """See `ConditionalDensity`."""
        return set(self._known_likelihood.kinds)

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[SiteTuning]:
        """See `ConditionalDensity`."""
        likelihood = self._known_likelihood
        find_mode(FactorizedPrior(self.block.prior(self._point)).predictor, likelihood, max_iter=1)
        yield SiteTuning(rough_sites(likelihood, np.zeros(self.block.n_sites)))


@dataclass(frozen=True)
class FoundBlocks:
    """What is sampled."""

    structure: ModelStructure  # the latent Gaussian blocks
    compiled: CompiledModel  # the blocks as functions of a point
    joint: JointModel | str  # the blocks with their hyperparameters; or, where only the blocks are sampled, the reason

    @property
    def value_vars(self) -> list[TensorVariable]:
        """The value variables that are sampled."""
        held = list(self.structure.value_vars)
        if isinstance(self.joint, str):
            return held
        values = self.structure.model.rvs_to_values
        return [*(values[variable] for variable in self.joint.theta.variables), *held]

    @property
    def names(self) -> list[str]:
        """The variables that are sampled, latent functions by the names that the user gave them."""
        latents = [latent.name for block in self.structure.blocks for latent in block.latents]
        return latents + self.hyperparameters

    @property
    def hyperparameters(self) -> list[str]:
        """Those that are sampled with the latents."""
        return [] if isinstance(self.joint, str) else [str(variable.name) for variable in self.joint.theta.variables]

    def followers(self, plan: Plan) -> tuple[str, ...]:
        """Return the value variables that the step changes, although another one samples them."""
        return ()

    @property
    def data_names(self) -> frozenset[str]:
        """The shared data that are read."""
        return frozenset(name for block in self.compiled.blocks for name in block.shapes())

    @property
    def tune_steps(self) -> int | None:
        """How many draws tuning takes by default; None for as many as of latent values alone."""
        return None if isinstance(self.joint, str) else _draws_to_tune(self.joint)

    def samplers(self, point: Point, plan: Plan, initial: Point) -> list[AnyChain]:
        """Return a chain for each block, or one for all of them with their hyperparameters.

        The model is evaluated at the point; a chain that begins at the model's initial one has a start nobody chose.
        """
        blocks = self.compiled.blocks
        for block in blocks:
            check_block(block, point, plan)
        terms = DensityTerms(self.structure.given_model)
        labels, densities = names_by_value(self.structure.model), list[tuple[BlockDensity | JointBlocksDensity, bool]]()
        if isinstance(self.joint, str):
            for block, own in zip(blocks, self.compiled.own_initval, strict=True):
                densities.append((BlockDensity(block, plan, labels, terms), own))
        else:
            own = any(self.compiled.own_initval) or has_own_initval(self.structure.model, self.joint.theta.variables)
            densities.append((JointBlocksDensity(self.joint, blocks, plan, labels, terms), own))
        return [Chain(density, plan, density.variables.read(initial), own) for density, own in densities]

    def announcement(self, plan: Plan) -> str:
        """Say in one line what is sampled how and what is left to other steps, and what to write to change that."""
        said = listed([_in_words(block) for block in self.compiled.blocks], "blocks")
        left = list(self.structure.left_over)
        if not isinstance(self.joint, str):
            left = [name for name in left if name not in self.hyperparameters]
            said += f" together with {listed(self.hyperparameters)}" if self.hyperparameters else ""
        rest = f"; left to other steps: {self._left(left)}" if left else ""
        return f"{plan.sampler}: {plan.metric.name} metric for {said}{rest}{self._advice()}"

    def _left(self, names: Sequence[str]) -> str:
        """Name the variables that are left, and say why: those that could be hyperparameters since none are sampled."""
        model, reasons = self.structure.model, dict.fromkeys(names, "") | self.structure.reasons
        if isinstance(self.joint, str) and self.joint != NO_HYPERPARAMETERS:
            reasons |= {name: self.joint for name in names if model[name].dtype.startswith("float")}
        by_step = {name: step_in_words(model[name]) for name in names}
        groups = said_once({name: (reasons[name] + by_step[name]).removeprefix(", ") for name in names})
        return ", ".join(f"{held} ({why})" if why else held for held, why in groups)

    def _advice(self) -> str:
        """Say what to write for variables that are not sampled as latent ones, a paragraph each."""
        advice, warning = self.structure.explained_advice, self.warning()
        unsaid = {name: text for name, text in advice.items() if self.structure.advice[name] not in warning}
        return "".join(f"\n{names}: {text}" for names, text in said_once(unsaid))

    def warning(self) -> str:
        """Say what a user should know before waiting for draws; empty if there is nothing."""
        return warnings_of(self.structure, self.joint)


def _in_words(block: CompiledBlock) -> str:
    """Name a block's latent functions and give its size."""
    values = counted(block.n_latent, "value")
    return f"{listed(block.name.split(' + '), 'variables', ' + ')} ({values})"


def find_blocks(
    model: pm.Model, vars: Any, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None  # noqa: A002
) -> FoundBlocks:
    """Read and compile what ``RMHMC(vars)`` samples.

    The flat metric takes hyperparameters in wherever it can; the others sample latents given them.

    Raises
    ------
    UnsupportedModelError, UnsupportedLikelihoodError, ConfigurationError, CovarianceError, DataError
        As `RMHMC`.
    """
    if vars is None:
        return about_means_or_not(model, lambda read: build_blocks(read, point, plan, compile_kwargs))
    if plan.takes_hyperparameters:
        return _compiled(*read_together(model, vars, point), point, compile_kwargs)
    return _compiled(read_structure(model, vars), alone_in_words(plan), point, compile_kwargs)


def build_blocks(
    structure: ModelStructure, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None
) -> FoundBlocks:
    """Return the same of a whole model, whose structure has been read."""
    if plan.takes_hyperparameters:
        return _compiled(*read_together(structure.model, None, point, structure=structure), point, compile_kwargs)
    return _compiled(structure, alone_in_words(plan), point, compile_kwargs)


def alone_in_words(plan: Plan) -> str:
    """Say why a metric samples the blocks without hyperparameters."""
    taker = f"the {plan.metric.name} metric" if plan.sampler == "RMHMC" else plan.sampler
    if plan.policy is not None and plan.policy.sites != "fitted":
        taker += " with prior_expected sites"
    return f"{taker} takes latent values alone"


def _compiled(
    structure: ModelStructure, joint: JointModel | str, point: Point, compile_kwargs: dict[str, Any] | None
) -> FoundBlocks:
    """Compile the blocks."""
    check_together(structure, joint)
    if compile_kwargs and not isinstance(joint, str):
        raise ConfigurationError(
            f"compile_kwargs={compile_kwargs!r} has no effect here: RMHMC samples hyperparameters together with the "
            "latent values, and compiles all of that with Numba. Remove it, or name latent variables alone in vars=."
        )
    compiled = compile_model(structure, point, compile_kwargs, with_rest=isinstance(joint, str))
    if compile_kwargs and not compiled.rest_inputs:
        raise ConfigurationError(
            f"compile_kwargs={compile_kwargs!r} has no effect here: no other step method updates any term that RMHMC "
            "compiles. Remove it."
        )
    return FoundBlocks(structure, compiled, joint)


def _draws_to_tune(joint: JointModel) -> int:
    """Return from how many draws the hyperparameters' chart is learned by default.

    It takes longer to learn than sites do: half as many leave the steps shorter for good, and so does a dense mass
    matrix of more dimensions than a hundred. Where no emulator makes up for what the draws have not seen of a scale's
    tail, and draws are cheap, there are twice as many: on mixed models of 100 and 400 groups two of six runs made a
    third to a half as many effective draws of the scale after 300, and none of six after 600.
    """
    is_expensive = any(map(theta_requires_refactorization, joint.blocks))
    return max(300 if is_expensive else 600, 3 * joint.theta.size)
