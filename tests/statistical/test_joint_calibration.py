"""The joint chart under every likelihood: whatever its frozen sites are, it must never bias.

Simulation-based calibration and Geweke's joint-distribution test over hyperparameters and latent values, and samplers
that are wrong on purpose, which the same tests reject.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import arviz as az
import numpy as np
import pytest
from scipy.stats import norm

from pymc_rmhmc.approximation import SiteRegression
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.errors import PriorFailure
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.model.likelihoods import registered_likelihoods
from tests.statistical.joint_cases import (
    BACKGROUND,
    BY_DERIVATIVES,
    LIKELIHOODS,
    LOGISTIC,
    ORDERED,
    RATED,
    WITH_A_RATE,
    About,
    Amplified,
    Beside,
    BesideWarped,
    Each,
    Grid,
    Loaded,
    Mixed,
    OwnRows,
    Problem,
    Process,
    Rows,
    Scaled,
    Shrunk,
    Sum,
    Warped,
    absurd_sites,
)
from tests.statistical.ranks import PLACES, Looks
from tests.statistical.test_joint import WithoutData, calibrate, following, poor_chart

pytestmark = pytest.mark.slow

INTEGRATOR = RotationSplitting()
FORMS = ("centred", "whitened", "fixed")
PROBLEMS = {
    **{f"{FORMS[i % 3]} process, {name}": Problem(Process(FORMS[i % 3]), name) for i, name in enumerate(LIKELIHOODS)},
    "groups, bernoulli_logit": Problem(Mixed("non-centred"), "bernoulli_logit"),
    "centred groups, negativebinomial_log": Problem(Mixed("centred"), "negativebinomial_log"),
    "more coefficients than data, poisson_log": Problem(Shrunk(), "poisson_log"),
    "groups, normal_identity": Problem(Mixed("non-centred"), "normal_identity"),
    "an effect for each, binomial_logit": Problem(Each(), "binomial_logit"),
    "more coefficients than data, studentt_identity": Problem(Shrunk(), "studentt_identity"),
    "sum of two vectors, negativebinomial_log": Problem(Sum(), "negativebinomial_log"),
    "vectors about vectors, poisson_log": Problem(About(), "poisson_log"),
    "scaled processes, normal_identity": Problem(Scaled(), "normal_identity"),
    "coefficients of warped inputs, poisson_log": Problem(Warped(), "poisson_log"),
    "processes times functions, normal_identity": Problem(Loaded(), "normal_identity"),
    "process beside slopes, poisson_log": Problem(Beside(), "poisson_log"),
    "process beside warped slopes, normal_identity": Problem(BesideWarped(), "normal_identity"),
    "grid, poisson_log": Problem(Grid(), "poisson_log"),
    "rows, normal_identity": Problem(Rows(), "normal_identity"),
    "rows of two covariances, normal_identity": Problem(OwnRows(), "normal_identity"),
    f"centred process, {LOGISTIC}": Problem(Process("centred"), LOGISTIC),
    f"groups, {LOGISTIC}": Problem(Mixed("non-centred"), LOGISTIC),
    f"coefficients of warped inputs, {LOGISTIC}": Problem(Warped(), LOGISTIC),
    f"process beside slopes, {LOGISTIC}": Problem(Beside(), LOGISTIC),
    f"scaled process, {LOGISTIC}": Problem(Amplified(), LOGISTIC),
    f"groups, {ORDERED}": Problem(Mixed("non-centred"), ORDERED),
    f"centred process, {BACKGROUND}": Problem(Process("centred"), BACKGROUND),
    f"centred process, {RATED}": Problem(Process("centred"), RATED),
}
# Some fifty tests of correct samplers by ranks; see test_sbc.
LEVEL = 1e-3 / 50 / 3


def calibrate_absurdly(problem: Problem, target_class=JointTarget, seed: int = 1, trend: float = 0.0):
    sites = absurd_sites(problem.latents.n)
    return calibrate(problem, target_class, seed, sites, n_steps=4, step_size=0.3, trend=trend)


# Likelihoods that another form has as well: their process is that of the others, and two of them are in a trend or in
# the chains of Geweke's test.
AGAIN = {
    "centred process, bernoulli_logit", "centred process, binomial_logit", "centred process, poisson_log",
    "fixed process, negativebinomial_log", "centred process, normal_identity", "whitened process, studentt_identity",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name not in AGAIN])
def test_ranks_of_the_truth_are_uniform_whatever_the_sites(name):
    problem = PROBLEMS[name]
    by_values = isinstance(problem.latents, Mixed | Each | Shrunk | Warped | Beside)
    assert (problem.joint.blocks[0].design_shape is not None) == by_values
    p, failure_rate, acceptance = calibrate_absurdly(problem)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.5 < acceptance < 0.9999


# Of every form of a prior one, with a power besides and without.
ALONG_A_TREND = [
    "whitened process, bernoulli_probit", "centred process, normal_identity", "centred groups, negativebinomial_log",
    "sum of two vectors, negativebinomial_log", "coefficients of warped inputs, poisson_log",
    "process beside warped slopes, normal_identity", "grid, poisson_log", "rows, normal_identity",
]  # fmt: skip


@pytest.mark.parametrize("name", ALONG_A_TREND)
def test_ranks_of_the_truth_are_uniform_whatever_the_trend(name):
    p, failure_rate, acceptance = calibrate_absurdly(PROBLEMS[name], trend=0.25)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.5 < acceptance < 0.9999


def test_every_registered_likelihood_is_calibrated():
    ours = {n for n, entry in registered_likelihoods().items() if entry.terms.__module__.startswith("pymc_rmhmc")}
    others = {*BY_DERIVATIVES, *WITH_A_RATE}
    assert ours == {PROBLEMS[name].likelihood for name in PROBLEMS if name not in AGAIN} - others


WORSE = {
    "none": GaussianSites(np.zeros(5), np.zeros(5)),
    "as narrow as a tenth of a unit, at the wrong places": GaussianSites(
        100.0 * np.array([-1.0, 2.0, 0.0, 1.5, -0.5]), np.full(5, 100.0)
    ),
}


@pytest.mark.parametrize("sites", WORSE.values(), ids=WORSE)
def test_ranks_of_the_truth_are_uniform_with_sites_that_hinder(sites):
    p, failure_rate, acceptance = calibrate(
        PROBLEMS["centred process, poisson_log"], sites=sites, n_steps=6, step_size=0.12
    )
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.3 < acceptance < 0.9999


# Every likelihood has its ranks above, which see as small a bias. A long chain goes to the tails besides: of a
# likelihood without a parameter, with one, with two, and read by derivatives, under a process and under coefficients.
GEWEKE = [
    "centred process, poisson_log", "whitened process, studentt_identity", "centred groups, negativebinomial_log",
    f"centred process, {LOGISTIC}",
]  # fmt: skip


def successive_conditional_draws(name: str, target_class=JointTarget) -> np.ndarray:
    """Parameters and data drawn in turn: by how many errors of theirs features miss their expectation.

    Those of parameters and latent values are the prior's. Those with the slope of the likelihood, between a move and
    the next data, have the expectation 0 given all that the slope is multiplied by: they see a kernel that ignores the
    data, which leaves the prior as it is.
    """
    problem, n_draws, rng = PROBLEMS[name], 5000, np.random.default_rng(6)
    joint, d = problem.joint, problem.joint.theta.size
    sites, chart = [absurd_sites(problem.latents.n)], poor_chart(d)
    theta, values, y = problem.simulate(rng)
    trace, slopes, failures = [], [], 0
    for _ in range(n_draws):
        problem.observe(y)
        target = target_class(joint, [following(joint.blocks[0], d, sites[0])], chart)
        flow = GaussianHamiltonian(target)
        outcome = transition(flow, INTEGRATOR, flow.state(target.enter(theta, [values], rng)), 4, 0.4, rng)
        failures += bool(outcome.failure)
        point = outcome.state.point
        theta, (values,) = point.theta, target.latents(point)
        slopes.append(np.tanh(point.eta[0]) * point.slope[0])
        y = problem.observations(problem.held(theta), point.eta[0], rng)
        trace.append(problem.standardised(theta, values))
    trace = np.array(trace)
    assert failures < 0.05 * n_draws
    products = trace[:, :d, None] * trace[:, None, d:]
    features = np.column_stack((trace, trace**2, products.reshape(n_draws, -1), slopes))
    expected = np.zeros(features.shape[1])
    expected[trace.shape[1] : 2 * trace.shape[1]] = 1.0
    errors = np.array([float(az.mcse(values[None, :])) for values in features.T])
    # It would have seen a bias of a third of a standard deviation of each variable.
    assert errors[: trace.shape[1]].max() < 0.07
    return np.abs(features.mean(axis=0) - expected) / errors


@pytest.mark.parametrize("name", GEWEKE)
def test_successive_conditional_draws_have_the_prior(name):
    # Some two hundred features in all: 5 standard errors is one false alarm in 9000 suites.
    assert successive_conditional_draws(name).max() < 5.0


def test_successive_conditional_draws_see_a_kernel_that_ignores_the_data():
    assert successive_conditional_draws("centred process, poisson_log", WithoutData).max() > 5.0


class StaleCentre(JointTarget):
    """The sites' centre, ``c(θ)`` or its dual, as it is at one θ while the rest moves, in map and evidence."""

    def conditional(self, which, theta, sites, **options):
        made = super().conditional(which, theta, sites, **options)
        fixed = super().conditional(which, np.zeros(self.n_theta), sites, **options)
        made.log_evidence += half_square_of_centre(fixed, made) - half_square_of_centre(made, made)
        for name in ("_linear", "_slope", "_centre_dual", "centre"):
            if name in vars(made):
                setattr(made, name, getattr(fixed, name))
        return made


def half_square_of_centre(centre, conditional) -> float:
    """The evidence's ``½ cᵀc``, with the centre of one conditional in the prior of another."""
    if hasattr(conditional, "_centre_dual"):
        return 0.5 * centre._slope @ (conditional._covariance @ centre._centre_dual)
    return 0.5 * conditional._stack.draw_adjoint(centre._linear) @ centre.centre_whitened


class WithoutDeterminant(JointTarget):
    """The evidence of the sites without ``½ log|I + sKs|`` or ``½ log|E|``."""

    def conditional(self, which, theta, sites, **options):
        made = super().conditional(which, theta, sites, **options)
        factor = made._factor if hasattr(made, "_factor") else made._inner
        made.log_evidence += np.log(factor.diagonal()).sum()
        return made


class WithoutSpreadsVolume(JointTarget):
    """A density of ``D y`` where one of y is wanted: off by ``log|D|``."""

    def conditional(self, which, theta, sites, **options):
        made = super().conditional(which, theta, sites, **options)
        made.log_evidence -= sum(np.log(np.abs(each.spread)).sum() for each in made._operators)
        return made


class StaleDesign(JointTarget):
    """The evidence of a design as it is at one θ, while the map takes it along."""

    def conditional(self, which, theta, sites, **options):
        made, block = super().conditional(which, theta, sites, **options), self.density.blocks[which]
        stale = replace(block.prior(theta), design=block.prior(np.zeros(self.n_theta)).design)
        with mock.patch.object(block, "prior", return_value=stale):
            made.log_evidence = super().conditional(which, theta, sites, **options).log_evidence
        return made


class WithoutTheSitesMoving(JointTarget):
    """The evidence of the sites as they were, while the map takes them along."""

    def conditional(self, which, theta, sites, **options):
        made = super().conditional(which, theta, sites, **options)
        made.log_evidence = super().conditional(which, theta, self.sites[which].sites).log_evidence
        return made


DENSE = Problem(Process("centred", amplitude=0.0, level=0.0), "poisson_log", simulations=250)
DIAGONAL = Problem(Mixed("centred"), "poisson_log", simulations=250)
NOISE = Problem(Mixed("non-centred"), "normal_identity", simulations=500)
WARPED = Problem(Warped(), "poisson_log", simulations=450)
LOADED = Problem(Loaded(), "poisson_log", simulations=350)
BESIDE = Problem(Beside(), "poisson_log", simulations=250)
BESIDE_NOISE = Problem(Beside(), "normal_identity", simulations=120)
MUTANTS = {
    "stale centre, covariance": (DENSE, StaleCentre),
    "stale centre, coefficients": (DIAGONAL, StaleCentre),
    "no determinant, covariance": (DENSE, WithoutDeterminant),
    "no determinant, coefficients": (DIAGONAL, WithoutDeterminant),
    "sites that move, evidence that does not": (
        Problem(Process("centred", amplitude=0.0, level=0.0), "normal_identity", simulations=500),
        WithoutTheSitesMoving,
    ),
    "sites of coefficients that move, evidence that does not": (NOISE, WithoutTheSitesMoving),
    "no volume of the spreads": (DIAGONAL, WithoutSpreadsVolume),
    "stale design, sum": (LOADED, StaleDesign),
    "no determinant, process beside slopes": (BESIDE, WithoutDeterminant),
    "sites of a process beside slopes that move, evidence that does not": (BESIDE_NOISE, WithoutTheSitesMoving),
}


def calibrate_in_cell(
    problem: Problem, target_class=JointTarget, seed: int = 1, until: float | None = None, trend: float = 0.0
):
    """With sites that are narrow, so that their evidence depends on the hyperparameters."""
    n = problem.latents.n
    # `following` makes sites that move weaker; and a design moves the evidence of strong ones alone.
    block = problem.joint.blocks[0]
    strength = 40.0 if block.has_moving_sites else 10.0 if block.has_moving_design else 1.0
    sites = GaussianSites(np.full(n, -strength), np.full(n, 3.0 * strength))
    # More sites than values are narrower yet, and one power for all sites of coefficients moves them together.
    moves_together = block.has_moving_sites and block.design_shape is not None
    step_size = 0.2 if isinstance(problem.latents, Beside) else 0.25 if moves_together else 0.35
    return calibrate(problem, target_class, seed, sites, step_size=step_size, until=until, trend=trend)


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_rejected(name):
    problem, mutant = MUTANTS[name]
    p_values = [calibrate_in_cell(problem, mutant, seed, LEVEL)[0] for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


# With the size of the exponents: see `tests.statistical.test_joint.along_a_trend`.
TRENDS = {
    "covariance": (DENSE, 0.6),
    "coefficients": (Problem(Mixed("centred"), "poisson_log", simulations=700), 0.7),
    "process beside slopes": (BESIDE, 0.6),
}


@pytest.mark.parametrize(("problem", "trend"), TRENDS.values(), ids=TRENDS)
def test_a_trend_that_the_evidence_does_not_follow_is_rejected(problem, trend):
    p_values = [calibrate_in_cell(problem, WithoutTheSitesMoving, seed, LEVEL, trend)[0] for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


@pytest.mark.parametrize(("problem", "trend"), TRENDS.values(), ids=TRENDS)
def test_a_trend_that_it_follows_passes(problem, trend):
    p, failure_rate, acceptance = calibrate_in_cell(problem, trend=trend)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.7 < acceptance < 0.9999


@pytest.mark.parametrize(
    "problem",
    [DENSE, DIAGONAL, NOISE, WARPED, LOADED, BESIDE, BESIDE_NOISE],
    ids=[
        "covariance", "coefficients", "coefficients under a noise", "coefficients, moving", "sum, moving",
        "process beside slopes", "process beside slopes under a noise",
    ],
)  # fmt: skip
def test_the_correct_target_passes_where_the_mutants_fail(problem):
    p, failure_rate, acceptance = calibrate_in_cell(problem)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.7 < acceptance < 0.9999


def test_a_wrong_gradient_costs_acceptance_and_does_not_bias(monkeypatch):
    """Exactness rests on the energy alone: a kick by any function of the position is reversible and keeps volume."""
    from pymc_rmhmc.latent.forms import dense

    _, _, usual = calibrate_in_cell(DENSE, seed=2)
    zeros = lambda factor, left, right: np.zeros_like(factor, order="F")  # noqa: E731
    monkeypatch.setattr(dense, "cholesky_adjoint_of_product", zeros)
    p, failure_rate, acceptance = calibrate_in_cell(DENSE, seed=2)
    assert acceptance < usual - 0.03
    assert p > LEVEL
    assert failure_rate < 0.05


# Few counts and a wide prior: the sites that suit the chain's last few draws depend on where it is.
SCARCE = Problem(Process("centred", amplitude=0.7, level=-1.0), "poisson_log", simulations=800)


def regression_on(draws, sites: GaussianSites) -> GaussianSites:
    """As in tuning, from fewer draws."""
    regression = SiteRegression(draws[0].eta[0].size)
    regression.MIN_DRAWS = len(draws)
    for point in draws:
        regression.add(point.eta[0], point.slope[0])
    found = regression.fit(sites)
    assert found is not None
    return found


def stationarity(problem: Problem, window: int, seed: int, until: float | None = None) -> tuple[float, float]:
    """Truths moved for a while given their data have the prior still: p-value, and how many trajectories failed.

    With a `window` the sites are refitted before each trajectory to as many of the last draws.
    """
    rng, joint, ranks, failures, n_moves = np.random.default_rng(seed), problem.joint, [], 0, 30
    chart, n, looks = poor_chart(joint.theta.size), problem.latents.n, Looks(problem.simulations, until)
    while not looks.decided(ranks):
        theta, values, y = problem.simulate(rng)
        problem.observe(y)
        sites, draws = GaussianSites(np.full(n, -0.2), np.full(n, 1.0)), []
        for move in range(n_moves):
            if window or not move:
                if len(draws) >= window > 0:
                    sites = regression_on(draws[-window:], sites)
                target = JointTarget(joint, [sites], chart)
                flow = GaussianHamiltonian(target)
                try:
                    state = flow.state(target.enter(theta, [values], rng))
                except PriorFailure:
                    if not window:
                        raise
                    # It has run away to where covariances are not finite: nothing that is stationary does.
                    return 0.0, 1.0
            outcome = transition(flow, INTEGRATOR, state, 1, 0.5, rng)
            state, failures = outcome.state, failures + bool(outcome.failure)
            theta, (values,) = state.point.theta, target.latents(state.point)
            draws.append(state.point)
        uniform = norm.cdf(problem.standardised(theta, values))
        ranks.append(np.minimum((PLACES * uniform).astype(int), PLACES - 1))
    return looks.p_value(ranks), failures / (n_moves * len(ranks))


def test_sites_that_change_during_the_draws_are_rejected():
    p_values = [stationarity(SCARCE, 4, seed, LEVEL)[0] for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


def test_sites_that_stay_pass_where_changing_ones_fail():
    p, failure_rate = stationarity(SCARCE, 0, 0)
    assert p > LEVEL
    assert failure_rate < 0.05
