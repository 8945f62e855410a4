"""The joint chart under every likelihood: whatever its frozen sites are, it must never bias.

Simulation-based calibration and Geweke's joint-distribution test over hyperparameters and latent values, and samplers
that are wrong on purpose, which the same tests reject.
"""

from __future__ import annotations

import arviz as az
import numpy as np
import pytest
from scipy.stats import norm

from pymc_rmhmc.approximation import SiteRegression
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.dynamics.trajectory import transition
from pymc_rmhmc.geometry.charts import GaussianSites
from pymc_rmhmc.geometry.joint import JointTarget
from pymc_rmhmc.model.likelihoods import registered_likelihoods
from tests.statistical.joint_cases import LIKELIHOODS, Mixed, Problem, Process, Shrunk, absurd_sites
from tests.statistical.test_joint import calibrate, poor_chart
from tests.statistical.test_sbc import PLACES, p_value

pytestmark = pytest.mark.slow

INTEGRATOR = RotationSplitting()
FORMS = ("centred", "whitened", "fixed")
PROBLEMS = {
    **{f"{FORMS[i % 3]} process, {name}": Problem(Process(FORMS[i % 3]), name) for i, name in enumerate(LIKELIHOODS)},
    "groups, bernoulli_logit": Problem(Mixed("non-centred"), "bernoulli_logit"),
    "centred groups, negativebinomial_log": Problem(Mixed("centred"), "negativebinomial_log"),
    "more coefficients than data, poisson_log": Problem(Shrunk(), "poisson_log"),
}
# Twenty tests of correct samplers; see test_sbc.
LEVEL = 1e-3 / 20 / 3


def calibrate_absurdly(problem: Problem, target_class=JointTarget, seed: int = 1):
    return calibrate(problem, target_class, seed, absurd_sites(problem.latents.n), n_steps=3, step_size=0.4)


def test_every_registered_likelihood_is_calibrated():
    ours = {n for n, entry in registered_likelihoods().items() if entry.terms.__module__.startswith("pymc_rmhmc")}
    assert ours == {problem.likelihood for problem in PROBLEMS.values()}


@pytest.mark.parametrize("name", PROBLEMS)
def test_ranks_of_the_truth_are_uniform_whatever_the_sites(name):
    problem = PROBLEMS[name]
    assert (problem.joint.blocks[0].design is None) == isinstance(problem.latents, Process)
    p, failure_rate, acceptance = calibrate_absurdly(problem)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.5 < acceptance < 0.9999


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


GEWEKE = {
    "centred process, poisson_log": 5000,
    "whitened process, studentt_identity": 5000,
    "centred groups, negativebinomial_log": 5000,
}


@pytest.mark.parametrize("name", GEWEKE)
def test_successive_conditional_draws_have_the_prior(name):
    problem, n_draws, rng = PROBLEMS[name], GEWEKE[name], np.random.default_rng(6)
    joint, d = problem.joint, problem.joint.theta.size
    sites, chart = [absurd_sites(problem.latents.n)], poor_chart(d)
    theta, values, y = problem.simulate(rng)
    trace, failures = [], 0
    for _ in range(n_draws):
        problem.observe(y)
        target = JointTarget(joint, sites, chart)
        flow = GaussianHamiltonian(target)
        outcome = transition(flow, INTEGRATOR, flow.state(target.enter(theta, [values], rng)), 4, 0.4, rng)
        failures += bool(outcome.failure)
        point = outcome.state.point
        theta, (values,) = point.theta, target.latents(point)
        y = problem.observations(problem.held(theta), point.eta[0], rng)
        trace.append(problem.standardised(theta, values))
    trace = np.array(trace)
    assert failures < 0.05 * n_draws
    products = trace[:, :d, None] * trace[:, None, d:]
    features = np.column_stack((trace, trace**2, products.reshape(n_draws, -1)))
    expected = np.concatenate((np.zeros(trace.shape[1]), np.ones(trace.shape[1]), np.zeros(products[0].size)))
    errors = np.array([float(az.mcse(values[None, :])) for values in features.T])
    # It would have seen a bias of a third of a standard deviation of each variable.
    assert errors[: trace.shape[1]].max() < 0.07
    # About a hundred features in all: 4.8 standard errors is one false alarm in 6000 suites.
    assert (np.abs(features.mean(axis=0) - expected) / errors).max() < 4.8
