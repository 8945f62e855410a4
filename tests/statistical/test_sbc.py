"""Simulation-based calibration: the values that made the data rank uniformly among the posterior's draws.

Two forms. In the first the simulated truth has a random place in a chain that is run from it both ways. The kernels
are reversible, so that its rank is exactly uniform, however correlated the draws are: the test needs neither burn-in
nor thinning, and its false alarms are those of the chi-square alone (Gandy and Scott, 2021). In the second the whole
step, tuning included, is given the data and nothing of the truth, as in a user's run (Talts and others, 2018).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC
from pymc_rmhmc.approximation import find_mode, laplace_sites
from pymc_rmhmc.dynamics.hamiltonian import RiemannianHamiltonian
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, RotationSplitting
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.latent.charts import SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentTarget
from pymc_rmhmc.model.likelihoods import LikelihoodKernel
from pymc_rmhmc.model.observed.site_likelihood import BoundTerm, SiteLikelihood
from tests.statistical.exact import hamiltonian_of
from tests.statistical.ranks import PLACES, Looks, p_value, rank
from tests.statistical.test_geweke import SIMULATORS
from tests.statistical.test_mutants import UNCHECKED, MutantField, log_det_times
from tests.unit.toys import ToyComponent, ToyPrior, kernel

pytestmark = pytest.mark.slow

N = 8
MEAN = np.linspace(-0.4, 0.4, N)
# Seven tests of correct samplers: together a false alarm in a thousand choices of their seeds, which are fixed. The 3
# is for the test's own tail: with a hundred simulations it is up to three times the chi-square's that far out.
LEVEL = 1e-3 / 7 / 3


@dataclass(frozen=True)
class Case:
    """What is simulated, with which constants and as what the sampler reads it, and how it is sampled."""

    metric: str
    likelihood: str
    simulations: int
    step_size: float
    n_steps: int
    amplitude: float = 1.5
    read_with: tuple[float, ...] | None = None

    def __str__(self) -> str:
        return f"{self.metric}-{self.likelihood}"

    @cached_property
    def covariance(self) -> np.ndarray:
        return kernel(N, lengthscale=0.15, amplitude=self.amplitude)

    @cached_property
    def prior(self) -> FactorizedPrior:
        return FactorizedPrior(ToyPrior((ToyComponent(mean=MEAN, covariance=self.covariance),), np.zeros(N)))

    @cached_property
    def kernel(self) -> LikelihoodKernel:
        return LikelihoodKernel(self.likelihood)

    def simulate(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """A truth and its data."""
        draw, constants = SIMULATORS[self.likelihood]
        f = rng.multivariate_normal(MEAN, self.covariance)
        return f, draw(f, rng, *(np.full(N, c) for c in constants))

    def target(self, y: np.ndarray) -> LatentTarget:
        """The posterior of data; a flat metric's chart has the Laplace sites that a chain begins with."""
        constants = SIMULATORS[self.likelihood][1] if self.read_with is None else self.read_with
        family = SiteLikelihood(N, [BoundTerm(self.kernel, (y, *(np.full(N, c) for c in constants)))])
        sites = None
        if self.metric == "flat":
            sites = laplace_sites(find_mode(self.prior.predictor, family, family.kinds[0]))
        return LatentTarget(SiteChart(self.prior, sites), family)


def flat(likelihood: str) -> Case:
    return Case("flat", likelihood, simulations=400, step_size=0.9, n_steps=2)


STRONG = Case("hessian", "poisson_log", simulations=110, step_size=0.5, n_steps=3)
CASES = [
    flat("bernoulli_logit"),
    flat("poisson_log"),
    flat("negativebinomial_log"),
    Case("hessian", "bernoulli_logit", simulations=100, step_size=0.7, n_steps=2, amplitude=2.0),
    Case("fisher", "negativebinomial_log", simulations=100, step_size=0.6, n_steps=2),
    STRONG,
]


def quantities(target: LatentTarget, f: np.ndarray) -> np.ndarray:
    """One value, the sum, the squared distance from the prior's mean, and the log likelihood."""
    log_likelihood = target.likelihood.log_density(f)
    distance = -target.model_log_density(target.chart.from_model(f), f, 0.0)
    return np.array([f[0], f.sum(), distance, log_likelihood])


@dataclass(frozen=True)
class Calibration:
    """The p-value, and whether the chains did what the test needs of them."""

    p_value: float
    failure_rate: float
    acceptance: float


def calibrate(
    case: Case, build: Callable = hamiltonian_of, integrator=None, seed: int = 1, until: float | None = None
) -> Calibration:
    """Rank truths among the states of chains that pass through them at a random place."""
    rng = np.random.default_rng(seed)
    integrator = integrator or (RotationSplitting() if case.metric == "flat" else GeneralizedLeapfrog())
    ranks, failures, accepted, looks = [], 0, 0.0, Looks(case.simulations, until)
    while not looks.decided(ranks):
        f, y = case.simulate(rng)
        target = case.target(y)
        flow, before, others = build(target, case.metric), rng.integers(PLACES), []
        start = flow.state(target.chart.from_model(f))
        for length in (before, PLACES - 1 - before):
            state = start
            for _ in range(length):
                outcome = transition(flow, integrator, state, case.n_steps, case.step_size, rng)
                state = outcome.state
                failures += bool(outcome.failure)
                accepted += outcome.acceptance
                others.append(quantities(target, target.chart.to_model(state.position)))
        # From the same coordinates as the others, or rounding would decide the ties.
        truth = quantities(target, target.chart.to_model(start.position))
        ranks.append(rank(truth, np.array(others), rng))
    moves = len(ranks) * (PLACES - 1)
    return Calibration(looks.p_value(ranks), failures / moves, accepted / moves)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_of_the_truth_in_chains_through_it_are_uniform(case):
    outcome = calibrate(case)
    assert outcome.p_value > LEVEL
    assert outcome.failure_rate < 0.05
    # A kernel that never moves leaves ranks to chance: they are then uniform for any sampler.
    assert 0.5 < outcome.acceptance < 0.9999


def without_log_det(target, metric):
    return RiemannianHamiltonian(MutantField(target, metric, log_det_times(0.0)))


def without_site_term(target, metric):
    target.residual_sites = None
    return hamiltonian_of(target, metric)


MUTANTS = {
    "log-det dropped": (STRONG, without_log_det, UNCHECKED),
    "site term of the chart dropped": (flat("poisson_log"), without_site_term, RotationSplitting()),
    # The sampler is right and its density is not: stationarity cannot see this, calibration does.
    "dispersion inverted": (
        replace(flat("negativebinomial_log"), read_with=(0.5,)),
        hamiltonian_of,
        RotationSplitting(),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_rejected(name):
    """Where the correct sampler passes above."""
    case, build, integrator = MUTANTS[name]
    p_values = [calibrate(case, build, integrator, seed, LEVEL).p_value for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


def run_step(step: RMHMC, start: dict, rng: np.random.Generator, tune: int = 40, thin: int = 2):
    """One less than `PLACES` thinned draws of a tuned chain, and how many of its trajectories failed."""
    step.setup_chain(rng, tune, thin * (PLACES - 1))
    point, draws, failures = start, [], 0
    for i in range(tune + thin * (PLACES - 1)):
        if i == tune:
            step.stop_tuning()
        point, (statistics,) = step.step(point)
        failures += statistics["failure"] != Failure.NONE
        if i >= tune and (i - tune) % thin == thin - 1:
            draws.append(point["f"])
    return draws, failures


def test_ranks_of_the_truth_among_the_steps_own_draws_are_uniform():
    """With a constant of the likelihood; `test_joint` has its like where hyperparameters are free."""
    case, rng = flat("negativebinomial_log"), np.random.default_rng(3)
    with pm.Model() as model:
        data = pm.Data("data", np.ones(N, dtype=int))
        f = pm.MvNormal("f", MEAN, cov=case.covariance)
        pm.NegativeBinomial("y", mu=pm.math.exp(f), alpha=2.0, observed=data)
        step = RMHMC()
    ranks, of_shifted, failures = [], [], 0
    for _ in range(case.simulations):
        truth, y = case.simulate(rng)
        with model:
            pm.set_data({"data": y.astype(int)})
        draws, failed = run_step(step, model.initial_point(), rng)
        failures += failed
        target = case.target(y)
        exact, others = quantities(target, truth), np.array([quantities(target, draw) for draw in draws])
        ranks.append(rank(exact, others, rng))
        of_shifted.append(rank(exact + 0.3 * others.std(axis=0), others, rng))
    assert failures == 0
    assert p_value(np.array(ranks)) > LEVEL
    # It would have seen a bias of a third of a standard deviation.
    assert p_value(np.array(of_shifted)) < LEVEL
