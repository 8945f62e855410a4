"""One latent Gaussian block in one chain, given everything else: condition on the rest, draw, adapt."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.step_methods.state import dataclass_state

from pymc_rmhmc.approximation import SiteFit, find_mode, laplace_sites
from pymc_rmhmc.errors import Failure, RMHMCError
from pymc_rmhmc.geometry.charts import GaussianSites, SiteChart
from pymc_rmhmc.geometry.prior import FactorizedPrior, PriorFailure
from pymc_rmhmc.geometry.target import LatentDensity, LatentTarget
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.steps.chain_sampler import NEARNESS, REHEARSED_STEP, ChainSampler, ChainState
from pymc_rmhmc.steps.options import Plan
from pymc_rmhmc.steps.site_fits import fitted_sites, new_fit, rough_sites
from pymc_rmhmc.steps.start_errors import likelihood_error
from pymc_rmhmc.steps.words import in_words

__all__ = ["BlockSampler", "BlockState"]

type Array = NDArray[np.float64]
type Point = dict[str, Array]

# Of each likelihood: its log density, with its slope, and with its curvature.
N_KERNEL_FUNCTIONS = 3


@dataclass_state
class BlockState(ChainState):
    """The state of one block's chain: its sites, and what they will be refitted to."""

    sites: GaussianSites | None = None
    fit: SiteFit | None = None


class BlockSampler(ChainSampler):
    """The chain of one block.

    Parameters
    ----------
    block : CompiledBlock
        How to read the block's prior and likelihood from a point.
    plan, initial_values, own_initval
        As in `ChainSampler`.
    """

    kept = ("block", *ChainSampler.kept)
    state: BlockState

    def __init__(self, block: Any, plan: Plan, initial_values: Array, own_initval: bool) -> None:
        self.block = block
        super().__init__(block.name, plan, block.slices, initial_values, own_initval)

    def _new_state(self, refits: tuple[int, ...]) -> BlockState:
        return BlockState(refits=refits)

    def _forget(self) -> None:
        self._prior_key: Point | None = None
        self._likelihood_key: Point | None = None
        self._prior: Any = None
        self._likelihood: Any = None
        self._refused: PriorFailure | None = None
        self._refused_at = ""
        self._chart: Any = None
        self._target: Any = None

    @property
    def n_functions(self) -> int:
        """See `ChainSampler`."""
        return N_KERNEL_FUNCTIONS * self.block.n_observed_variables

    def rehearse(self, point: Point, rng: np.random.Generator) -> None:
        """See `ChainSampler`."""
        likelihood = self.block.likelihood(point)
        find_mode(FactorizedPrior(self.block.prior(point)).predictor, likelihood, max_iter=1)
        self.state.sites = rough_sites(likelihood, np.zeros(self.block.n_sites))
        self._condition(point)
        self._enter(self.read(point), rng)
        if self._has_failed:
            return
        outcome = transition(self._hamiltonian, self.plan.integrator, self._phase, 1, REHEARSED_STEP, rng)
        self._keep(outcome.state)

    def _condition(self, point: Point) -> None:
        """Rebuild whatever depends on values of the point that have changed."""
        new_prior = _changed(self._prior_key, point, self.block.prior_inputs)
        if new_prior is not None:
            self._prior_key, self._prior, self._refused = new_prior, None, None
            self._let_go()
            self._take_given(new_prior)
        new_likelihood = _changed(self._likelihood_key, point, self.block.likelihood_inputs)
        if new_likelihood is not None:
            self._likelihood_key = new_likelihood
            self._likelihood = self.block.likelihood(point)
            self._target = None
        if self._refused is None:
            try:
                self._prepare(point)
            except PriorFailure as failure:
                self._refused = failure
                if failure.failure == Failure.NOT_POSITIVE_DEFINITE:
                    self._refused_at = in_words(self._prior_key or {})
        if self._refused is not None:
            raise self._refused

    def where_refused(self) -> str:
        """The values from other steps at which the prior could last not be factorised."""
        return self._refused_at

    def _let_go(self) -> None:
        """Drop a chart, and what is made of it, before there is another: each is as large as a covariance matrix."""
        self._chart = self._target = self._hamiltonian = self._phase = None

    def _prepare(self, point: Point) -> None:
        """Build what is missing of prior, sites, chart and target, in this order."""
        if self._prior is None:
            self._prior = FactorizedPrior(self.block.prior(point))
        if self.plan.uses_sites:
            if self.state.sites is None:
                self.state.sites = self._laplace_sites()
            # The mode is all that needs the covariance beside its factor.
            self._prior.predictor.forget_gram()
        if self._chart is None:
            self._build_chart()
        elif self._target is None:
            self._build_target()

    def _laplace_sites(self) -> GaussianSites:
        return laplace_sites(find_mode(self._prior.predictor, self._likelihood))

    def _build(self) -> None:
        self._let_go()
        self._build_chart()

    def _build_chart(self) -> None:
        sites = self.state.sites if self.plan.uses_sites else None
        # Where another step moves the covariance, the next draw has another chart.
        self._chart = SiteChart(self._prior, sites, lasting=not self.block.prior_inputs)
        self._build_target()

    def _build_target(self) -> None:
        self._target = LatentTarget(self._chart, self._likelihood)
        self._hamiltonian = self.plan.metric.bind(LatentDensity(self._target)).hamiltonian()
        self._phase = None

    def _start_error(self, point: Point) -> RMHMCError | None:
        # A prior that other steps move may have a factor at their next draw.
        if self._prior is None or self._likelihood is None:
            return None
        eta = self._prior.predictor.offset
        total, slope = self._likelihood.gradient(eta)
        return likelihood_error(self.name, total, slope, in_words(self._prior_key or {}))

    @property
    def _start_is_final(self) -> bool:
        return not self.block.prior_inputs

    def _start(self, values: Array, point: Point, rng: np.random.Generator) -> None:
        approximated = self._starts_from_laplace(values)
        first = self._draw_start(values, rng) if approximated else values
        self._begin(first, point, rng, approximated=approximated)

    def _draw_start(self, values: Array, rng: np.random.Generator) -> Array:
        """A draw of the Laplace approximation, nearer its mode where there is no density; at last the given values."""
        chart = self._chart
        if not self.plan.uses_sites:
            chart = SiteChart(self._prior, self._laplace_sites())
        noise = rng.standard_normal(values.size)
        for nearness in NEARNESS:
            drawn = chart.to_model(nearness * noise)
            self._enter(drawn, rng)
            if not self._hamiltonian.failure(self._phase):
                return drawn
        return values

    def _enter(self, values: Array, rng: np.random.Generator) -> None:
        """Stand at given values: from memory where they are the ones that were kept."""
        state = self.state
        known = state.coordinates is not None and np.array_equal(values, state.values)
        coordinates = state.coordinates if known else (self._chart.from_model(values),)
        self._phase = self._hamiltonian.state(*coordinates)
        self._remember(values)

    def _curvatures(self) -> set[str]:
        return set(self._likelihood.kinds)

    @property
    def _prior_moves(self) -> bool:
        return bool(self.block.prior_inputs)

    def _keep(self, phase: Any) -> None:
        self._phase = phase
        self._remember(self._chart.to_model(phase.position, phase.density_point.eta))

    def _remember(self, values: Array) -> None:
        """Note where the chain is, in both coordinates, and the model's log density there."""
        phase, state = self._phase, self.state
        state.coordinates, state.values, self.values = phase.coordinates, values, values
        point = phase.density_point
        self.log_density = self._target.model_log_density(phase.position, point.eta, point.log_likelihood)

    def _observe(self) -> None:
        state, eta = self.state, self._phase.density_point.eta
        if state.fit is None:
            assert self.plan.policy is not None  # without sites there is no refit, and nothing to observe
            state.fit = new_fit(self.plan.policy, eta.size)
        state.fit.add(eta, self._likelihood.gradient(eta)[1])

    def _forget_window(self) -> None:
        self.state.fit = None

    def _refit(self, rng: np.random.Generator, *, with_sites: bool) -> None:
        state = self.state
        fit, state.fit = state.fit, None
        sites = None if fit is None or state.sites is None or not with_sites else fitted_sites(fit, state.sites)
        if sites is not None:
            state.sites, state.coordinates = sites, None
        if sites is not None or not with_sites:
            self._build()
        if state.step_size is not None and sites is not None:
            state.step_size.restart(state.step_size.average)


def _changed(known: Point | None, point: Point, names: tuple[str, ...]) -> Point | None:
    """A copy of the named values if any differs from what is known, else None."""
    if known is not None and all(np.array_equal(known[name], point[name]) for name in names):
        return None
    return {name: np.array(point[name]) for name in names}
