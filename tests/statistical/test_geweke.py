"""Geweke's joint-distribution test: data and latents drawn in turn have the prior's marginal.

With compiled likelihoods, sites that are far from their own, and the position-dependent metric as well as the flat one.
Every registered likelihood has its ranks in `test_joint_calibration`, and its slopes and information are compared with
their definitions in `tests/model/test_likelihoods.py`: what is left for these runs is how a likelihood meets a chart.
"""

from __future__ import annotations

import arviz as az
import numpy as np
import pytest

from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, RotationSplitting
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.latent.charts import GaussianSites, SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentTarget
from pymc_rmhmc.model.likelihoods import LikelihoodKernel, registered_likelihoods
from pymc_rmhmc.model.observed.site_likelihood import BoundTerm, SiteLikelihood
from tests.statistical.exact import hamiltonian_of
from tests.unit.toys import ToyComponent, ToyPrior, kernel

pytestmark = pytest.mark.slow

N = 3


def probability(link):
    from scipy.special import expit, ndtr

    return {"logit": expit, "probit": ndtr, "cloglog": lambda e: -np.expm1(-np.exp(e))}[link]


def bernoulli(link):
    return lambda eta, rng: (rng.random(eta.size) < probability(link)(eta)).astype(float)


def binomial(link):
    return lambda eta, rng, n: rng.binomial(n.astype(int), probability(link)(eta)).astype(float)


def zero_inflated(eta, rng, psi):
    return np.where(rng.random(eta.size) < psi, rng.poisson(np.exp(eta)), 0).astype(float)


SIMULATORS = {
    "bernoulli_logit": (bernoulli("logit"), ()),
    "bernoulli_probit": (bernoulli("probit"), ()),
    "bernoulli_cloglog": (bernoulli("cloglog"), ()),
    "binomial_logit": (binomial("logit"), (5.0,)),
    "binomial_probit": (binomial("probit"), (5.0,)),
    "binomial_cloglog": (binomial("cloglog"), (5.0,)),
    "poisson_log": (lambda eta, rng: rng.poisson(np.exp(eta)).astype(float), ()),
    "zeroinflatedpoisson_log": (zero_inflated, (0.6,)),
    "negativebinomial_log": (
        lambda eta, rng, a: rng.negative_binomial(a, a / (a + np.exp(eta))).astype(float),
        (2.0,),
    ),
    "normal_identity": (lambda eta, rng, s: rng.normal(eta, s), (0.8,)),
    "studentt_identity": (lambda eta, rng, nu, s: eta + s * rng.standard_t(nu), (4.0, 0.8)),
    "exponential_log": (lambda eta, rng: rng.exponential(np.exp(eta)), ()),
    "gamma_log": (lambda eta, rng, a: rng.gamma(a, np.exp(eta) / a), (2.0,)),
    "weibull_log": (lambda eta, rng, a: np.exp(eta) * rng.weibull(a), (1.5,)),
}


def test_every_registered_likelihood_has_a_simulator():
    ours = {n for n, entry in registered_likelihoods().items() if entry.terms.__module__.startswith("pymc_rmhmc")}
    assert ours == set(SIMULATORS)


# Bounded data and counts, parameters and none, and a density that is not concave. That the slope of each information is
# its derivative has a test of its own; of the metrics' likelihoods those that `test_stationarity` has not.
CASES = [
    ("bernoulli_probit", "flat"), ("negativebinomial_log", "flat"), ("studentt_identity", "flat"),
    ("weibull_log", "flat"), ("binomial_cloglog", "fisher"), ("zeroinflatedpoisson_log", "fisher"),
    ("gamma_log", "fisher"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "metric"), CASES)
def test_successive_conditional_draws_have_the_prior(name, metric):
    simulate, constants = SIMULATORS[name]
    parameters = tuple(np.full(N, c) for c in constants)
    compiled = LikelihoodKernel(name)
    mean, covariance = np.array([-0.3, 0.2, 0.4]), 0.5 * kernel(N, amplitude=1.0)
    prior = FactorizedPrior(ToyPrior((ToyComponent(mean=mean, covariance=covariance),), np.zeros(N)))
    rng = np.random.default_rng(42)
    sites = GaussianSites(0.3 * rng.standard_normal(N), rng.exponential(0.7, N)) if metric == "flat" else None
    chart = SiteChart(prior, sites)
    integrator = RotationSplitting() if metric == "flat" else GeneralizedLeapfrog()
    z = chart.from_model(rng.multivariate_normal(mean, covariance))
    n_draws, trace, failures = (6000 if metric == "flat" else 2500), [], 0
    for _ in range(n_draws):
        y = simulate(chart.predictor.apply(z), rng, *parameters)
        if name in ("gamma_log", "weibull_log"):
            y = np.maximum(y, 1e-300)
        target = LatentTarget(chart, SiteLikelihood(N, [BoundTerm(compiled, (y, *parameters))]))
        flow = hamiltonian_of(target, metric)
        outcome = transition(flow, integrator, flow.state(z), 4, 0.4, rng)
        failures += bool(outcome.failure)
        z = outcome.state.position
        trace.append(chart.predictor.apply(z))
    trace = np.array(trace)
    assert failures < 0.05 * n_draws
    deviance = trace - mean
    features = np.column_stack((deviance, deviance**2, deviance[:, :1] * deviance[:, 1:2]))
    expected = np.concatenate((np.zeros(N), np.diag(covariance), [covariance[0, 1]]))
    for values, value in zip(features.T, expected, strict=True):
        error = float(az.mcse(values[None, :]))
        # 7 runs, 7 features: 4.8 standard errors is one false alarm in 10,000 suites.
        assert abs(values.mean() - value) < 4.8 * error
