"""One latent Gaussian block in one chain: condition on the rest, draw, adapt.

What a chain must remember is in `ChainState`, which is saved and restored; everything else here is
rebuilt from it and from the point.
"""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.step_methods.state import DataClassState, dataclass_state

from pymc_rmhmc.approximation import SiteRegression, find_mode, laplace_sites
from pymc_rmhmc.dynamics.adaptation import DualAveraging, search_step_size
from pymc_rmhmc.dynamics.trajectory import Transition, single_step_acceptance, transition
from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.geometry.charts import GaussianSites, SiteChart
from pymc_rmhmc.geometry.prior import FactorizedPrior, PriorFailure
from pymc_rmhmc.geometry.target import LatentTarget
from pymc_rmhmc.steps.options import Plan

__all__ = ["BlockSampler", "ChainState", "refit_iterations"]

type Array = NDArray[np.float64]
type Point = dict[str, Array]

# Fractions of the tuning at which sites are refitted. The last window goes to the step size alone.
REFIT_FRACTIONS = (0.1, 0.3, 0.6)
MIN_REFIT_WINDOW = 15


def refit_iterations(tune: int) -> tuple[int, ...]:
    """The tuning iterations at whose beginning the sites are refitted; none in a short tuning."""
    ends, last = [], 0
    for fraction in REFIT_FRACTIONS:
        end = int(fraction * tune)
        if end - last >= MIN_REFIT_WINDOW:
            ends.append(end)
            last = end
    return tuple(ends)


@dataclass_state
class ChainState(DataClassState):
    """What one block's chain carries from draw to draw: sites, position, adaptation."""

    started: bool = False
    iteration: int = 0
    refits: tuple[int, ...] = ()
    sites: GaussianSites | None = None
    regression: SiteRegression | None = None
    step_size: DualAveraging | None = None
    fixed_step_size: float = math.nan
    # Where the chain is in the chart, and the values that this stands for: recomputing one from the
    # other would cost a solve a draw, and rounding would break an exact replay.
    coordinates: Any = field(default=None)
    values: Any = field(default=None)


class BlockSampler:
    """The chain of one block.

    Parameters
    ----------
    block : CompiledBlock
        How to read the block's prior and likelihood from a point.
    plan : Plan
        Metric, integrator, lengths.
    initial_values : (k,) array
        The model's initial point for the block, by which a start that nobody chose is told from one
        that somebody did.
    own_initval : bool
        Whether a variable of the block has an initial value of its own.
    """

    def __init__(self, block: Any, plan: Plan, initial_values: Array, own_initval: bool) -> None:
        self.block = block
        self.plan = plan
        self.initial_values = initial_values
        self.own_initval = own_initval
        self.state = ChainState()
        self.values: Any = None
        self._forget()

    def setup(self, tune: int) -> None:
        """Begin a chain. A state that was restored goes on as it is, unless a tuning is asked for."""
        self._forget()
        if tune > 0 or not self.state.started:
            refit = self.plan.metric.uses_sites and self.plan.metric.refit
            self.state = ChainState(refits=refit_iterations(tune) if refit else ())

    def draw(self, point: Point, rng: np.random.Generator, *, tuning: bool) -> Transition[Any]:
        """One transition of the block given the rest of the point; `values` holds the outcome."""
        values = self.block_values(point)
        failure = self._condition(point)
        if failure:
            self.values = values
            self.log_density = -math.inf
            return Transition(None, failure=failure)
        state = self.state
        if not state.started:
            self._start(values, rng)
        else:
            if tuning and state.iteration in state.refits:
                self._refit()
            # Shapes are known to agree: what `array_equal` checks besides costs as much as the comparison.
            if self._phase is None or not (values == state.values).all():
                self._enter(values)
        n_steps, step_size = self.plan.length.draw(self.current_step_size(tuning=tuning), rng)
        outcome = transition(self._hamiltonian, self.plan.integrator, self._phase, n_steps, step_size, rng)
        if outcome.accepted:
            self._keep(outcome.state)
        if tuning:
            self._adapt(outcome)
        state.iteration += 1
        return outcome

    def current_step_size(self, *, tuning: bool) -> float:
        """The step size in use: the iterate in tuning, its average afterwards, or the fixed one."""
        adaptation = self.state.step_size
        if adaptation is None:
            return self.state.fixed_step_size
        return adaptation.current if tuning else adaptation.average

    def average_step_size(self) -> float:
        """The adapted step size that the draws after tuning use."""
        adaptation = self.state.step_size
        return self.state.fixed_step_size if adaptation is None else adaptation.average

    def block_values(self, point: Point) -> Array:
        """The block's values in a point, its components concatenated, (k,)."""
        if len(self.block.slices) == 1:
            ((name, part),) = self.block.slices
            return np.array(np.ravel(point[name])[part])
        return np.concatenate([np.ravel(point[name])[part] for name, part in self.block.slices])

    def write(self, point: Point) -> None:
        """Put `values` into a point whose arrays are its own."""
        start = 0
        for name, part in self.block.slices:
            size = part.stop - part.start
            point[name].reshape(-1)[part] = self.values[start : start + size]
            start += size

    def _forget(self) -> None:
        """Drop everything that is rebuilt from the point and the state."""
        self.values = None
        self.log_density = -math.inf
        self._prior_key: Point | None = None
        self._likelihood_key: Point | None = None
        self._prior: Any = None
        self._likelihood: Any = None
        self._prior_failure = Failure.NONE
        self._chart: Any = None
        self._target: Any = None
        self._hamiltonian: Any = None
        self._phase: Any = None

    def __getstate__(self) -> dict[str, Any]:
        # Factors are rebuilt in the worker from the point: only small things travel.
        kept = ("block", "plan", "initial_values", "own_initval", "state")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def restore(self, state: ChainState) -> None:
        """Take another state; what was built for the old one is dropped."""
        self.state = state
        self._forget()

    def _condition(self, point: Point) -> Failure:
        """Rebuild whatever depends on values of the point that have changed."""
        new_prior = _changed(self._prior_key, point, self.block.prior_inputs)
        if new_prior is not None:
            self._prior_key, self._prior, self._chart = new_prior, None, None
            self._prior_failure = Failure.NONE
        new_likelihood = _changed(self._likelihood_key, point, self.block.likelihood_inputs)
        if new_likelihood is not None:
            self._likelihood_key = new_likelihood
            self._likelihood = self.block.likelihood(point)
            self._target = None
        if not self._prior_failure:
            try:
                self._prepare(point)
            except PriorFailure as failure:
                self._prior_failure = failure.failure
        return self._prior_failure

    def _prepare(self, point: Point) -> None:
        """Build what is missing of prior, sites, chart and target, in this order."""
        if self._prior is None:
            self._prior = FactorizedPrior(self.block.prior(point))
        if self.plan.metric.uses_sites and self.state.sites is None:
            self.state.sites = self._laplace_sites()
        if self._chart is None:
            self._build_chart()
        elif self._target is None:
            self._build_target()

    def _laplace_sites(self) -> GaussianSites:
        kinds = self._likelihood.kinds
        kind = next(kind for kind in ("hessian", "fisher", "softabs") if kind in kinds)
        return laplace_sites(find_mode(self._prior.predictor, self._likelihood, kind))

    def _build_chart(self) -> None:
        sites = self.state.sites if self.plan.metric.uses_sites else None
        # Where another step moves the covariance, the next draw has another chart.
        self._chart = SiteChart(self._prior, sites, lasting=not self.block.prior_inputs)
        self._build_target()

    def _build_target(self) -> None:
        self._target = LatentTarget(self._chart, self._likelihood)
        self._hamiltonian = self.plan.metric.hamiltonian(self._target)
        self._phase = None

    def _start(self, values: Array, rng: np.random.Generator) -> None:
        """The chain's first position, and a step size to begin with."""
        if self._starts_from_laplace(values):
            chart = self._chart
            if not self.plan.metric.uses_sites:
                chart = SiteChart(self._prior, self._laplace_sites())
            values = chart.to_model(rng.standard_normal(values.size))
        self._enter(values)
        if self._hamiltonian.failure(self._phase):
            raise ConfigurationError(
                f"{self.block.name}: the log density or its gradient is not finite at the chain's starting point. "
                'Give another `initvals`, or let the chain start from the Laplace approximation with init="laplace".'
            )
        self._choose_step_size(rng)
        self.state.started = True

    def _starts_from_laplace(self, values: Array) -> bool:
        """Whether the chain leaves the given point for a draw of the Laplace approximation."""
        if self.plan.init != "auto":
            return self.plan.init == "laplace"
        return not self.own_initval and np.array_equal(values, self.initial_values)

    def _choose_step_size(self, rng: np.random.Generator) -> None:
        """The fixed step size, or one from the search, to be adapted."""
        plan, state = self.plan, self.state
        if plan.step_size is not None:
            state.fixed_step_size = plan.step_size
            return
        first = search_step_size(
            lambda size: single_step_acceptance(self._hamiltonian, plan.integrator, self._phase, size, rng),
            plan.initial_step_size,
            plan.max_step_size,
        )
        state.step_size = DualAveraging(first, plan.target_accept, plan.max_step_size)

    def _enter(self, values: Array) -> None:
        """Stand at given values: from memory where they are the ones that were kept."""
        state = self.state
        known = state.coordinates is not None and np.array_equal(values, state.values)
        coordinates = state.coordinates if known else (self._chart.from_model(values),)
        self._phase = self._hamiltonian.state(*coordinates)
        self._remember(values)

    def _keep(self, phase: Any) -> None:
        """Make a proposal the chain's position."""
        self._phase = phase
        self._remember(self._chart.to_model(phase.position, phase.point.eta))

    def _remember(self, values: Array) -> None:
        """Note where the chain is, in both coordinates, and the model's log density there."""
        phase, state = self._phase, self.state
        state.coordinates, state.values, self.values = phase.coordinates, values, values
        point = phase.point
        self.log_density = self._target.model_log_density(phase.position, point.eta, point.log_likelihood)

    def _adapt(self, outcome: Transition[Any]) -> None:
        """Let the step size and the sites see what happened."""
        state = self.state
        if state.step_size is not None:
            state.step_size.update(outcome.acceptance)
        if state.refits and state.iteration < state.refits[-1]:
            eta = self._phase.point.eta
            if state.regression is None:
                state.regression = SiteRegression(eta.size)
            state.regression.add(eta, self._likelihood.gradient(eta)[1])

    def _refit(self) -> None:
        """Fit the sites to the window's draws, and stand at the same values in the new chart."""
        state = self.state
        regression, state.regression = state.regression, None
        sites = None if regression is None or state.sites is None else regression.fit(state.sites)
        if sites is None:
            return
        state.sites, state.coordinates = sites, None
        self._build_chart()
        if state.step_size is not None:
            state.step_size.restart(state.step_size.average)


def _changed(known: Point | None, point: Point, names: tuple[str, ...]) -> Point | None:
    """A copy of the named values if any differs from what is known, else None."""
    if known is not None and all(np.array_equal(known[name], point[name]) for name in names):
        return None
    return {name: np.array(point[name]) for name in names}
