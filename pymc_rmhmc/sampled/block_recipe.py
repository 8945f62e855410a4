"""How kernels of one latent Gaussian block are built, given everything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation import find_mode, laplace_sites, prior_expected_sites
from pymc_rmhmc.chains.messages import in_words
from pymc_rmhmc.chains.plan import NEARNESS, Plan
from pymc_rmhmc.chains.recipe import HMCSetting, Place, RecipeBase
from pymc_rmhmc.chains.variables import Point, Variables, changed
from pymc_rmhmc.errors import Failure, RMHMCError
from pymc_rmhmc.kernels.kernel import HMC
from pymc_rmhmc.latent.charts import GaussianSites, SiteChart
from pymc_rmhmc.latent.prior import FactorizedPrior, PriorFailure
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget
from pymc_rmhmc.sampled.start_errors import likelihood_error
from pymc_rmhmc.tuning.joint_adapter import SiteAdapter, SiteTuning, rough_sites
from pymc_rmhmc.tuning.step_size import StepSize

__all__ = ["BlockRecipe", "BlockSetting"]

type Array = NDArray[np.float64]

# Of each likelihood: its log density, with its slope, and with its curvature.
N_KERNEL_FUNCTIONS = 3


@dataclass(slots=True)
class BlockSetting(HMCSetting):
    """A chart for one prior and one set of sites, and a likelihood in it; see `Setting`."""

    chart: SiteChart
    likelihood: Any
    target: LatentTarget

    @classmethod
    def of(cls, chart: SiteChart, likelihood: Any, plan: Plan) -> BlockSetting:
        """Return the setting in the plan's metric."""
        target = LatentTarget(chart, likelihood)
        hamiltonian = plan.integrator.extend(plan.trajectory.hamiltonian(plan.metric.bind(LatentDensity(target))))
        return cls(hamiltonian, plan, chart, likelihood, target)

    def stand(self, values: Array, coordinates: Any, rng: np.random.Generator) -> Any:
        """See `Setting`."""
        where = (self.chart.from_model(values),) if coordinates is None else coordinates
        return self.hamiltonian.state(*where)

    def failure(self, phase: Any) -> Failure:
        """See `Setting`."""
        failure: Failure = self.hamiltonian.failure(phase)
        return failure

    def place(self, phase: Any, values: Array | None) -> Place:
        """See `Setting`."""
        point, position = phase.density_point, phase.position
        if values is None:
            values = self.chart.to_model(position, point.eta)
        log_density = self.target.model_log_density(position, point.eta, point.log_likelihood)
        log_weight = log_density + 0.5 * float(position @ position) + self.chart.log_evidence - self.chart.log_constant
        return Place(phase.coordinates, values, log_density, log_weight)

    def seen(self, phase: Any) -> tuple[Array, Array]:
        """Return η and the likelihood's slope there."""
        eta = phase.density_point.eta
        return eta, self.likelihood.gradient(eta)[1]

    def kernel(self, tuned: SiteTuning, step_size: StepSize, *, tuning: bool) -> HMC[Any]:
        """See `Setting`."""
        return self.hmc(step_size.in_use(tuning=tuning))

    def rehearse(self, phase: Any, step_size: float, rng: np.random.Generator) -> Any:
        """See `Setting`."""
        return self.single_step(phase, step_size, rng)


class BlockRecipe(RecipeBase):
    """Latent values of one block given everything else; see `Recipe`.

    Parameters
    ----------
    block : CompiledBlock
        How to read the block's prior and likelihood from a point.
    plan : Plan
        Metric, integrator, lengths.
    labels : mapping of str to str
        What users call the value variables.
    terms : DensityTerms
        The terms of the model's log density, for errors.
    """

    def __init__(self, block: Any, plan: Plan, labels: Mapping[str, str], terms: Any) -> None:
        self.terms = terms
        self.block, self.plan, self.name = block, plan, block.name
        self.variables = Variables(tuple(block.slices), labels)
        self.adapter, self.steps = SiteAdapter(plan.policy), plan.steps()
        self.forget()

    def forget(self) -> None:
        """See `Recipe`."""
        self._point: Point = {}
        self._prior_key: Point | None = None
        self._likelihood_key: Point | None = None
        self._prior: Any = None
        self._likelihood: Any = None
        self._refused: PriorFailure | None = None
        self._refused_at = ""
        self._chart: Any = None
        self._setting: Any = None

    @property
    def n_functions(self) -> int:
        """See `Recipe`."""
        return N_KERNEL_FUNCTIONS * int(self.block.n_observed_variables)

    @property
    def start_is_final(self) -> bool:
        """See `Recipe`."""
        return not self.block.prior_inputs

    @property
    def prior_moves(self) -> bool:
        """See `Recipe`."""
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
            self._setting = None
        assert self._prior_key is not None
        return prior is not None or likelihood is not None, self._prior_key

    def drop(self) -> None:
        """See `Recipe`."""
        self._chart = self._setting = self._refused = None

    def setting(self, tuned: SiteTuning) -> BlockSetting:
        """See `Recipe`: what is missing of prior, sites, chart and target is made, in this order."""
        if self._refused is None:
            try:
                return self._made(tuned)
            except PriorFailure as failure:
                self._refused = failure
                if failure.failure == Failure.NOT_POSITIVE_DEFINITE:
                    self._refused_at = in_words(self._prior_key or {})
        raise self._refused

    def _made(self, tuned: SiteTuning) -> BlockSetting:
        if self._prior is None:
            self._prior = FactorizedPrior(self.block.prior(self._point))
        if self.plan.uses_sites:
            if tuned.sites is None:
                tuned.sites = self._first_sites()
            # The mode is all that needs the covariance besides its factor.
            self._prior.predictor.forget_gram()
        if self._chart is None:
            # Where another step moves the covariance, the next draw has another chart.
            sites = tuned.sites if self.plan.uses_sites else None
            self._chart = SiteChart(self._prior, sites, lasting=not self.block.prior_inputs)
        if self._setting is None:
            self._setting = BlockSetting.of(self._chart, self._likelihood, self.plan)
        setting: BlockSetting = self._setting
        return setting

    def _first_sites(self) -> GaussianSites:
        """Return the sites that the policy begins with."""
        assert self.plan.policy is not None
        if self.plan.policy.sites == "fitted":
            return self._laplace_sites()
        predictor = self._prior.predictor
        return prior_expected_sites(predictor, self._likelihood, find_mode(predictor, self._likelihood))

    def _laplace_sites(self) -> GaussianSites:
        return laplace_sites(find_mode(self._prior.predictor, self._likelihood))

    def start(self, tuned: SiteTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `Recipe`: a draw of the Laplace approximation, nearer its mode where there is no density.

        At last the given values.
        """
        if not approximated:
            return values
        setting = self.setting(tuned)
        chart = setting.chart if self.plan.uses_sites else SiteChart(self._prior, self._laplace_sites())
        noise = rng.standard_normal(values.size)
        for nearness in NEARNESS:
            drawn = chart.to_model(nearness * noise)
            if not setting.failure(setting.stand(drawn, None, rng)):
                return drawn
        return values

    def start_error(self, point: Point) -> RMHMCError | None:
        """See `Recipe`."""
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
        """See `Recipe`."""
        return set(self._likelihood.kinds)

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[SiteTuning]:
        """See `Recipe`."""
        likelihood = self._likelihood
        find_mode(FactorizedPrior(self.block.prior(self._point)).predictor, likelihood, max_iter=1)
        yield SiteTuning(rough_sites(likelihood, np.zeros(self.block.n_sites)))
