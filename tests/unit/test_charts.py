"""Charts: inverse maps, densities with their Jacobians, and failures."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.evidence.methods.annealing import LatentBridge
from pymc_rmhmc.latent.charts import GaussianSites, SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentTarget
from tests.unit.toys import PRIORS, ToyComponent, ToyPrior, centred_prior, dense_log_posterior, problem

N = 6


def absurd_sites(rng: np.random.Generator) -> GaussianSites:
    return GaussianSites(3.0 * rng.standard_normal(N), rng.exponential(4.0, N))


@pytest.mark.parametrize("with_sites", [False, True])
@pytest.mark.parametrize("name", PRIORS)
def test_to_model_and_from_model_are_inverse(name, with_sites):
    rng = np.random.default_rng(0)
    prior = FactorizedPrior(PRIORS[name](N))
    chart = SiteChart(prior, absurd_sites(rng) if with_sites else None)
    z = rng.standard_normal(prior.n_latent)
    np.testing.assert_allclose(chart.from_model(chart.to_model(z)), z, atol=1e-8)
    eta = chart.predictor.apply(z)
    np.testing.assert_allclose(chart.to_model(z, eta), chart.to_model(z), atol=1e-9)


@pytest.mark.parametrize("with_sites", [False, True])
@pytest.mark.parametrize("name", PRIORS)
def test_gram_is_the_covariance_of_the_sites(name, with_sites):
    """A triangular Φ is multiplied by its own routine; both triangles are filled."""
    prior = FactorizedPrior(PRIORS[name](N))
    predictor = SiteChart(prior, absurd_sites(np.random.default_rng(0)) if with_sites else None).predictor
    np.testing.assert_allclose(predictor.gram, predictor.matrix @ predictor.matrix.T, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("likelihood", ["logit", "poisson", "student_t"])
@pytest.mark.parametrize("with_sites", [False, True])
@pytest.mark.parametrize("name", PRIORS)
def test_model_log_density_is_the_dense_one(name, with_sites, likelihood):
    rng = np.random.default_rng(1)
    stated, family = problem(name, likelihood, N)
    chart = SiteChart(FactorizedPrior(stated), absurd_sites(rng) if with_sites else None)
    target = LatentTarget(chart, family)
    z = rng.standard_normal(chart.prior.n_latent)
    point = target.at(z)
    got = target.model_log_density(z, point.eta, point.log_likelihood)
    assert got == pytest.approx(dense_log_posterior(stated, family, chart.to_model(z)), abs=1e-7)


@pytest.mark.parametrize("name", PRIORS)
def test_density_in_the_chart_differs_from_the_models_by_a_constant(name):
    """The Jacobian of the site chart is constant at one θ: a term that depended on z would bias."""
    rng = np.random.default_rng(2)
    stated, family = problem(name, "logit", N)
    chart = SiteChart(FactorizedPrior(stated), absurd_sites(rng))
    target = LatentTarget(chart, family)
    gaps = []
    for _ in range(5):
        z = rng.standard_normal(chart.prior.n_latent)
        in_chart = target.at(z).log_density - 0.5 * z @ z
        gaps.append(in_chart - dense_log_posterior(stated, family, chart.to_model(z)))
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-7)


@pytest.mark.parametrize("name", PRIORS)
def test_gradient_matches_finite_differences(name):
    rng = np.random.default_rng(3)
    stated, family = problem(name, "poisson", N)
    prior = FactorizedPrior(stated)
    target = LatentBridge(prior, family).in_chart(0.5, SiteChart(prior, absurd_sites(rng)))
    z = 0.5 * rng.standard_normal(target.chart.prior.n_latent)
    h = 1e-6
    for i, exact in enumerate(target.at(z).gradient):
        e = h * np.eye(z.size)[i]
        slope = (target.at(z + e).log_density - target.at(z - e).log_density) / (2 * h)
        assert slope == pytest.approx(exact, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("precision", [np.full(N, 0.7), np.array([0.5, -0.1, 0.3, 0.0, -0.05, 1.0])])
def test_tempered_density_is_the_papers(precision):
    """L_β = β [ℓ + log prior] + (1-β) log q, up to a constant, also where an EP site is negative."""
    rng = np.random.default_rng(4)
    stated, family = problem("centred", "logit", N)
    sites, beta = GaussianSites(rng.standard_normal(N), precision), 0.5
    target = LatentBridge(FactorizedPrior(stated), family, sites).at(beta)
    chart = target.chart
    assert target.residual_sites is None

    covariance, mean = stated.components[0].covariance, stated.components[0].mean
    q_precision = np.linalg.inv(covariance) + np.diag(precision)
    q_mean = np.linalg.solve(q_precision, np.linalg.solve(covariance, mean) + sites.linear)
    gaps = []
    for _ in range(4):
        z = rng.standard_normal(N)
        f = chart.to_model(z)
        log_q = -0.5 * (f - q_mean) @ q_precision @ (f - q_mean)
        dense = beta * dense_log_posterior(stated, family, f) + (1 - beta) * log_q
        gaps.append(target.at(z).log_density - 0.5 * z @ z - dense)
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-4)


def test_a_flat_charts_residual_sites_follow_the_tempering():
    rng = np.random.default_rng(5)
    stated, family = problem("centred", "logit", N)
    sites, prior = absurd_sites(rng), FactorizedPrior(stated)
    bridge = LatentBridge(prior, family, absurd_sites(rng))
    exact, charted = (bridge.in_chart(0.5, SiteChart(prior, held)) for held in (None, sites))
    gaps = []
    for _ in range(4):
        z = rng.standard_normal(N)
        nu = charted.chart.to_whitened(z)
        gaps.append(
            charted.at(z).log_density - 0.5 * z @ z - exact.at(nu).log_density + 0.5 * nu @ nu
        )
    np.testing.assert_allclose(gaps, gaps[0], atol=1e-9)


def test_a_bridge_ends_at_the_posterior_itself():
    rng = np.random.default_rng(5)
    stated, family = problem("centred", "logit", N)
    target = LatentBridge(FactorizedPrior(stated), family, absurd_sites(rng)).at(1.0)
    assert target.likelihood is family
    assert target.gaussian is target.chart.sites is None


def test_log_evidence_of_gaussian_sites_is_the_dense_integral():
    rng = np.random.default_rng(6)
    stated = centred_prior(N)
    sites = absurd_sites(rng)
    covariance, mean = stated.components[0].covariance, stated.components[0].mean
    precision = np.linalg.inv(covariance)
    posterior = precision + np.diag(sites.precision)
    shift = precision @ mean + sites.linear
    dense = 0.5 * shift @ np.linalg.solve(posterior, shift) - 0.5 * mean @ precision @ mean
    dense -= 0.5 * np.linalg.slogdet(np.eye(N) + covariance @ np.diag(sites.precision))[1]
    assert SiteChart(FactorizedPrior(stated), sites).log_evidence == pytest.approx(dense, abs=1e-5)


def test_a_covariance_that_is_not_positive_definite_is_named():
    bad = ToyPrior((ToyComponent(covariance=np.ones((3, 3)) - 2 * np.eye(3)),), np.zeros(3))
    with pytest.raises(PriorFailure) as caught:
        FactorizedPrior(bad)
    assert caught.value.failure is Failure.NOT_POSITIVE_DEFINITE


@pytest.mark.parametrize("where", ["covariance", "mean", "offset", "predictor", "cholesky"])
def test_values_that_are_not_finite_are_failures(where):
    component = ToyComponent(mean=np.zeros(3), covariance=np.eye(3), predictor=np.eye(3))
    offset = np.zeros(3)
    if where == "offset":
        offset[1] = np.nan
    elif where == "cholesky":
        component = ToyComponent(cholesky=np.diag([1.0, np.nan, 1.0]))
    else:
        getattr(component, where).flat[0] = np.inf
    with pytest.raises(PriorFailure):
        FactorizedPrior(ToyPrior((component,), offset))


def test_sites_that_leave_no_normal_density_are_a_failure():
    with pytest.raises(PriorFailure) as caught:
        SiteChart(FactorizedPrior(centred_prior(N)), GaussianSites(np.zeros(N), np.full(N, -10.0)))
    assert caught.value.failure is Failure.NOT_POSITIVE_DEFINITE
