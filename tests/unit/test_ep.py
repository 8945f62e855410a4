"""Expectation propagation against integrals, closed forms and its own plain form."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytensor.tensor as pt
import pytest
from scipy.stats import multivariate_normal

from pymc_rmhmc.approximation.ep import correction_of, fit_ep, second_order_correction, sweep
from pymc_rmhmc.approximation.tilted import tilted_moments
from pymc_rmhmc.errors import UnsupportedLikelihoodError
from pymc_rmhmc.latent.charts import GaussianSites, SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.model.likelihoods import FallbackKernel, LikelihoodKernel, registered_likelihoods
from pymc_rmhmc.model.observed.site_likelihood import BoundTerm, SiteLikelihood
from tests.model.test_likelihoods import ROWS
from tests.unit.toys import ToyComponent, ToyPrior, kernel, narrow_prior

OURS = [name for name, entry in registered_likelihoods().items() if entry.terms.__module__.startswith("pymc_rmhmc")]
NAMES = [*OURS, "fallback"]
# What integrals by panels may be wrong by.
CLOSE = 4e-8


def term(name, y, *parameters, index=None):
    """Observations of one likelihood with the same parameters; "fallback" is a Cauchy density that PyTensor derives."""
    y = np.atleast_1d(np.asarray(y, dtype=float))
    if name != "fallback":
        return BoundTerm(LikelihoodKernel(name), (y, *(np.full(y.size, float(p)) for p in parameters)), index)
    eta, data = pt.dvector("eta"), pt.dvector("data")
    return BoundTerm(FallbackKernel(eta, (data,), -pt.log(np.pi * (1.0 + (data - eta) ** 2))), (y,), index)


def observed(name, y, *parameters):
    return SiteLikelihood(np.size(y), [term(name, y, *parameters)])


def example(name, n):
    """Data of a likelihood for n sites."""
    if name == "fallback":
        return observed(name, np.resize([-2.0, 0.3, 1.0], n))
    row = ROWS[name]
    ys = [y for y in row.ys if abs(y) <= 7.0]
    return observed(name, np.resize(ys, n), *row.parameters)


def gaussian_process(n, mean=0.3, amplitude=1.3):
    component = ToyComponent(mean=np.full(n, mean), covariance=kernel(n, amplitude=amplitude))
    return FactorizedPrior(ToyPrior((component,), np.zeros(n)))


def integrated(likelihood, mean, variance, n_points=20_001):
    """Moments of tilted densities by the trapezoid rule on a dense grid: log Z, mean and variance, (3, n)."""
    u = np.linspace(-14.0, 14.0, n_points)[:, None]
    log_density = likelihood.pointwise(mean + np.sqrt(variance) * u)[0] - 0.5 * u**2
    highest = log_density.max(axis=0)
    weights = np.exp(log_density - highest)
    total = np.trapezoid(weights, u, axis=0)
    first = np.trapezoid(weights * u, u, axis=0) / total
    second = np.trapezoid(weights * (u - first) ** 2, u, axis=0) / total
    log_normalizer = highest + np.log(total) - 0.5 * np.log(2.0 * np.pi)
    return np.stack((log_normalizer, mean + np.sqrt(variance) * first, variance * second))


def assert_moments(found, log_normalizer, mean, variance, tolerance=CLOSE):
    np.testing.assert_allclose(found.log_normalizer, log_normalizer, rtol=1e-14, atol=tolerance)
    np.testing.assert_allclose((found.mean - mean) / np.sqrt(variance), 0.0, atol=tolerance)
    np.testing.assert_allclose(found.variance / variance, 1.0, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_tilted_moments_are_the_integrals(name):
    """Of every registered likelihood, and of one that is not, under cavities near and far."""
    likelihood = example(name, 3)
    for mean, variance in ((0.4, 1.0), (-1.5, 9.0), (2.5, 0.04)):
        given = np.full(3, mean), np.full(3, variance)
        assert_moments(tilted_moments(likelihood, *given), *integrated(likelihood, *given))


FAR_PROBIT = [(1, -1000.0, 1.0), (1, -30.0, 400.0), (1, 0.0, 27000.0), (1, 5.0, 1e6), (0, 2.0, 3.0)]


@pytest.mark.parametrize("y, m, v", FAR_PROBIT)
def test_probit_moments_are_those_in_closed_form(y, m, v):
    """Rasmussen and Williams (2006), section 3.9, in 60 digits: far tails, and cavities much wider than the link."""
    sign, m, v = 2 * y - 1, mp.mpf(m), mp.mpf(v)
    z = sign * m / mp.sqrt(1 + v)
    normalizer = mp.erfc(-z / mp.sqrt(2)) / 2
    ratio = mp.npdf(z) / normalizer
    mean = m + sign * v * ratio / mp.sqrt(1 + v)
    variance = v - v**2 * ratio * (z + ratio) / (1 + v)
    found = tilted_moments(observed("bernoulli_probit", y), np.array([float(m)]), np.array([float(v)]))
    assert_moments(found, float(mp.log(normalizer)), float(mean), float(variance))


FAR = {
    "no counts": ("poisson_log", (0,), 0.0, 100.0),
    "small exposure": ("poisson_log", (421,), 4.0 - np.log(4096.0), 2.0),
    "many counts": ("poisson_log", (1000,), 0.0, 25.0),
    "counts far from the prior": ("poisson_log", (3,), -20.0, 4.0),
    "logit far away": ("bernoulli_logit", (1,), -1000.0, 1.0),
    "wide logit": ("bernoulli_logit", (1,), 0.0, 1e5),
    "outlier at 5": ("studentt_identity", (5, 4.0, 0.1), 0.0, 1.0),
    "outlier at 20": ("studentt_identity", (20, 4.0, 0.5), 0.0, 1.0),
    "two modes": ("studentt_identity", (3, 4.0, 0.05), 0.0, 0.36),
    "narrow and far": ("studentt_identity", (10, 4.0, 0.05), 0.0, 4.0),
    "a step": ("zeroinflatedpoisson_log", (0, 0.3), 30.0, 100.0),
}


@pytest.mark.parametrize("case", FAR)
def test_tilted_moments_are_the_integrals_far_from_the_cavity(case):
    """A grid around the cavity and one around the observation, both dense."""
    name, (y, *parameters), m, v = FAR[case]
    likelihood = observed(name, y, *parameters)
    found = tilted_moments(likelihood, np.array([m]), np.array([v]))
    place = y if name == "studentt_identity" else float(found.mean[0])
    width = parameters[-1] if name == "studentt_identity" else float(np.sqrt(found.variance[0]))
    fine = np.linspace(-200.0, 200.0, 200_001) if name == "studentt_identity" else np.linspace(-30.0, 30.0, 200_001)
    x = np.unique(np.concatenate((m + np.sqrt(v) * np.linspace(-14.0, 14.0, 200_001), place + width * fine)))
    log_density = likelihood.pointwise(x[:, None])[0][:, 0] - 0.5 * (x - m) ** 2 / v
    weights = np.exp(log_density - log_density.max())
    total = np.trapezoid(weights, x)
    mean = np.trapezoid(weights * x, x) / total
    variance = np.trapezoid(weights * (x - mean) ** 2, x) / total
    log_normalizer = log_density.max() + np.log(total) - 0.5 * np.log(2.0 * np.pi * v)
    assert_moments(found, log_normalizer, mean, variance)


def test_both_modes_of_a_tilted_density_are_integrated():
    """Where two observations of a site disagree, and where prior and observation do: masses go by the prior there."""
    apart = SiteLikelihood(1, [term("studentt_identity", [0.0, 3.0], 4.0, 0.001, index=np.zeros(2, dtype=int))])
    found = tilted_moments(apart, np.array([1.4]), np.array([4.0]))
    share = 1.0 / (1.0 + np.exp((1.6**2 - 1.4**2) / 8.0))
    assert found.mean[0] == pytest.approx(3.0 * share, rel=1e-3)
    assert found.variance[0] == pytest.approx(9.0 * share * (1.0 - share), rel=1e-3)
    narrow = observed("studentt_identity", 6.0, 4.0, 0.01)
    found = tilted_moments(narrow, np.zeros(1), np.ones(1))
    by_observation = np.exp(-0.5 * 6.0**2 - found.log_normalizer[0]) / np.sqrt(2.0 * np.pi)
    assert found.mean[0] == pytest.approx(6.0 * by_observation, rel=0.2)


def test_sites_without_observations_keep_their_cavities():
    likelihood = SiteLikelihood(4, [term("poisson_log", [2, 0, 1], index=np.array([0, 2, 2]))])
    mean, variance = np.array([0.3, -1.7, 0.2, 5.0]), np.array([1.0, 0.3, 2.0, 7.0])
    found = tilted_moments(likelihood, mean, variance, cumulants=True)
    unread = [1, 3]
    np.testing.assert_array_equal(found.mean[unread], mean[unread])
    np.testing.assert_array_equal(found.variance[unread], variance[unread])
    np.testing.assert_array_equal(found.log_normalizer[unread], 0.0)
    np.testing.assert_array_equal(found.cumulants[:, unread], 0.0)


def test_cumulants_are_derivatives_of_the_log_moment_generating_function():
    """Under ``N(m, v) exp ℓ`` tilted by t it is log Z with the mean m + v t."""
    mean, variance, likelihood = np.full(2, 0.4), np.full(2, 1.5), observed("poisson_log", [0, 3])
    found = tilted_moments(likelihood, mean, variance, cumulants=True)

    def generating(t):
        moved = tilted_moments(likelihood, mean + variance * t, variance).log_normalizer
        return moved + mean * t + 0.5 * variance * t**2

    h = 0.05
    third = (-generating(-2 * h) + 2 * generating(-h) - 2 * generating(h) + generating(2 * h)) / (2 * h**3)
    outer, inner = generating(-2 * h) + generating(2 * h), generating(-h) + generating(h)
    fourth = (outer - 4 * inner + 6 * generating(0.0)) / h**4
    np.testing.assert_allclose(found.cumulants[0], third / found.variance**1.5, rtol=0.02, atol=2e-3)
    np.testing.assert_allclose(found.cumulants[1], fourth / found.variance**2, rtol=0.05, atol=2e-2)


def pieces_of(likelihood):
    return [likelihood.restricted(np.array([i])) for i in range(likelihood.n_sites)]


@pytest.mark.parametrize("name", NAMES)
def test_one_site_is_exact(name):
    """With a single site EP is the tilted density of the prior: mean, variance and evidence are the integrals."""
    likelihood, prior = example(name, 1), gaussian_process(1)
    fit = fit_ep(prior, likelihood)
    assert fit.converged
    log_evidence, mean, variance = integrated(likelihood, prior.predictor.offset, prior.predictor.variance)
    assert fit.log_evidence == pytest.approx(log_evidence[0], abs=1e-6)
    np.testing.assert_allclose([fit.mean, fit.variance], [mean, variance], rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_fixed_point_against_an_integral_in_three_dimensions(name):
    """Marginals have their tilted moments; the evidence is near the exact one, and nearer with the second order."""
    likelihood, prior = example(name, 3), gaussian_process(3)
    fit = fit_ep(prior, likelihood)
    assert fit.converged
    tilted = tilted_moments(likelihood, fit.cavity_mean, fit.cavity_variance)
    np.testing.assert_allclose((tilted.mean - fit.mean) / np.sqrt(fit.variance), 0.0, atol=1e-6)
    np.testing.assert_allclose(tilted.variance / fit.variance, 1.0, atol=1e-6)
    exact, mean, variance = posterior_by_grid(prior, likelihood)
    error = fit.log_evidence - exact
    assert abs(error) < 0.02
    assert abs(error + second_order_correction(fit, likelihood)) < max(0.5 * abs(error), 1e-3)
    np.testing.assert_allclose((fit.mean - mean) / np.sqrt(variance), 0.0, atol=0.02)
    np.testing.assert_allclose(fit.variance, variance, rtol=0.05)


def posterior_by_grid(prior, likelihood, n_points=61):
    """The evidence and the sites' means and variances, on a grid of whitened coordinates about Laplace's mode."""
    start = fit_ep(prior, likelihood)
    axes = np.linspace(-7.0, 7.0, n_points)
    z = np.stack(np.meshgrid(*[axes] * prior.n_latent, indexing="ij"), axis=-1).reshape(-1, prior.n_latent)
    # Z of the chart: any coordinates do, and in these the posterior is near a standard normal density.
    eta = start.chart.predictor.offset + z @ start.chart.predictor.matrix.T
    sites = eta @ start.sites.linear - 0.5 * eta**2 @ start.sites.precision
    log_density = likelihood.pointwise(eta)[0].sum(axis=1) - sites - 0.5 * (z**2).sum(axis=1)
    highest = log_density.max()
    weights = np.exp(log_density - highest)
    total = weights.sum()
    normal = -0.5 * prior.n_latent * np.log(2.0 * np.pi) + prior.n_latent * np.log(axes[1] - axes[0])
    mean = weights @ eta / total
    return start.chart.log_evidence + highest + np.log(total) + normal, mean, weights @ (eta - mean) ** 2 / total


NORMAL = {
    "square": lambda n: gaussian_process(n),
    "fewer latents": lambda n: FactorizedPrior(narrow_prior(n)),
    "sites that none moves": lambda n: FactorizedPrior(narrow_prior(n, n_blind=2)),
}


@pytest.mark.parametrize("form", NORMAL)
def test_a_normal_likelihood_is_exact(form):
    n, sigma = 6, 0.7
    prior = NORMAL[form](n)
    y = np.linspace(-1.0, 2.0, n)
    fit = fit_ep(prior, observed("normal_identity", y, sigma))
    covariance = prior.predictor.gram + sigma**2 * np.eye(n)
    assert fit.converged
    exact = multivariate_normal.logpdf(y, prior.predictor.offset, covariance)
    assert fit.log_evidence == pytest.approx(exact, abs=1e-8)
    gain = prior.predictor.gram @ np.linalg.inv(covariance)
    np.testing.assert_allclose(fit.mean, prior.predictor.offset + gain @ (y - prior.predictor.offset), atol=1e-8)
    variance = np.diag(prior.predictor.gram - gain @ prior.predictor.gram)
    np.testing.assert_allclose(fit.variance, variance, rtol=1e-7, atol=1e-15)
    assert second_order_correction(fit, observed("normal_identity", y, sigma)) == pytest.approx(0.0, abs=1e-12)


def test_fewer_latents_than_sites_against_an_integral():
    prior, likelihood = FactorizedPrior(narrow_prior(7)), observed("bernoulli_logit", [0, 1, 1, 0, 1, 0, 1])
    fit = fit_ep(prior, likelihood)
    exact, mean, variance = posterior_by_grid(prior, likelihood)
    assert fit.log_evidence == pytest.approx(exact, abs=5e-3)
    np.testing.assert_allclose(fit.mean, mean, atol=0.02)
    np.testing.assert_allclose(fit.variance, variance, rtol=0.02)


def swept_plainly(prior, likelihood, sites, damping):
    """Sequential EP as the textbook has it: the covariance is computed again from scratch for each site."""
    linear, precision = sites.linear.copy(), sites.precision.copy()
    for i, piece in enumerate(pieces_of(likelihood)):
        predictor = SiteChart(prior, GaussianSites(linear.copy(), precision.copy())).predictor
        mean, variance = predictor.offset[i], predictor.variance[i]
        cavity_variance = 1.0 / (1.0 / variance - precision[i])
        cavity_mean = cavity_variance * (mean / variance - linear[i])
        found = tilted_moments(piece, np.array([cavity_mean]), np.array([cavity_variance]))
        linear[i] += damping * (found.mean[0] / found.variance[0] - mean / variance)
        precision[i] += damping * (1.0 / found.variance[0] - 1.0 / variance)
    return GaussianSites(linear, precision)


@pytest.mark.parametrize("block", [1, 3, 7, 32])
@pytest.mark.parametrize("form", ["square", "fewer latents"])
def test_updates_by_blocks_are_updates_one_by_one(form, block):
    """The covariance is updated after each block, and the result is that of updating it after each site."""
    n = 7
    prior = FactorizedPrior(narrow_prior(n)) if form == "fewer latents" else gaussian_process(n)
    likelihood = observed("studentt_identity", [0.1, 0.4, -0.2, 5.0, 0.3, 0.0, 0.6], 4.0, 0.3)
    start = GaussianSites(np.full(n, 0.2), np.full(n, 0.5))
    plain = swept_plainly(prior, likelihood, start, 0.8)
    found = sweep(SiteChart(prior, start), start, pieces_of(likelihood), 0.8, block)
    np.testing.assert_allclose(found.linear, plain.linear, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.precision, plain.precision, rtol=1e-7, atol=1e-9)


OUTLIERS = observed("studentt_identity", [0.1, 3.0, 0.3], 4.0, 0.3)


def test_sites_of_outliers_are_negative_and_the_marginals_right():
    prior = gaussian_process(3, amplitude=0.8)
    fit = fit_ep(prior, OUTLIERS)
    assert fit.converged
    assert fit.sites.precision[1] < 0.0
    exact, mean, variance = posterior_by_grid(prior, OUTLIERS)
    assert fit.log_evidence == pytest.approx(exact, abs=3e-3)
    np.testing.assert_allclose((fit.mean - mean) / np.sqrt(variance), 0.0, atol=5e-3)
    np.testing.assert_allclose(fit.variance, variance, rtol=0.02)


@pytest.mark.parametrize("how", ["damped", "one by one", "from other sites"])
def test_every_way_leads_to_the_same_fixed_point(how, monkeypatch):
    prior, plain = gaussian_process(5), observed("studentt_identity", [0.1, 0.4, 4.0, 0.0, 0.2], 4.0, 0.3)
    options = {}
    if how == "damped":
        options = {"damping": 0.5}
    elif how == "one by one":
        monkeypatch.setattr("pymc_rmhmc.approximation.ep._Search.parallel", lambda self, start: (start, "it stalled"))
    else:
        options = {"sites": GaussianSites(np.zeros(5), np.full(5, 0.1))}
    found = fit_ep(prior, plain, **options, tolerance=1e-9)
    monkeypatch.undo()
    expected = fit_ep(prior, plain, tolerance=1e-9)
    assert found.converged
    assert found.is_sequential == (how == "one by one")
    assert found.log_evidence == pytest.approx(expected.log_evidence, abs=1e-7)
    np.testing.assert_allclose(found.sites.precision, expected.sites.precision, rtol=1e-6, atol=1e-7)


def test_a_fit_that_did_not_converge_says_so():
    fit = fit_ep(gaussian_process(5), observed("bernoulli_logit", [0, 1, 1, 0, 1]), max_iter=1)
    assert not fit.converged
    assert fit.n_iter == 1
    assert "max_iter=1" in fit.problem
    assert fit.error > 1e-6


def test_sites_that_start_without_a_density_are_replaced():
    prior, likelihood = gaussian_process(3), observed("poisson_log", [0, 2, 1])
    fit = fit_ep(prior, likelihood, sites=GaussianSites(np.zeros(3), np.full(3, -50.0)))
    assert fit.log_evidence == pytest.approx(fit_ep(prior, likelihood).log_evidence, abs=1e-7)


def test_the_second_order_sums_over_pairs_of_different_sites():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((4, 4))
    covariance, cumulants = root @ root.T, rng.standard_normal((6, 4))
    sd = np.sqrt(np.diag(covariance))
    total = 0.0
    for i in range(4):
        for j in range(i):
            rho = covariance[i, j] / (sd[i] * sd[j])
            for k, kappa in enumerate(cumulants, 3):
                total += kappa[i] * kappa[j] * rho**k / float(mp.factorial(k))
    assert correction_of(covariance, cumulants) == pytest.approx(total, rel=1e-12)


def test_likelihoods_by_site_sum_to_the_whole():
    """Several variables, gathers, offsets, sites without observations, and one that is not registered."""
    terms = [
        term("poisson_log", [2, 0, 1], index=np.array([4, 0, 4])),
        term("fallback", [0.2, -1.0, 0.5], index=np.array([0, 2, 2])),
        BoundTerm(LikelihoodKernel("normal_identity"), (np.zeros(5), np.ones(5)), None, np.linspace(0.0, 1.0, 5)),
    ]
    for likelihood in (SiteLikelihood(5, terms), SiteLikelihood(5, terms[:2]), SiteLikelihood(5, terms[2:])):
        eta = np.random.default_rng(1).standard_normal((4, 5))
        log_density, slope = likelihood.pointwise(eta)
        for row, values, slopes in zip(eta, log_density, slope, strict=True):
            total, gradient = likelihood.gradient(row)
            assert values.sum() == pytest.approx(total, rel=1e-12)
            np.testing.assert_allclose(slopes, gradient, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(likelihood.pointwise(row)[0], values, rtol=1e-12)
        some = np.array([4, 1, 0])
        part = likelihood.restricted(some).pointwise(np.ascontiguousarray(eta[:, some]))
        np.testing.assert_allclose(part, [log_density[:, some], slope[:, some]], rtol=1e-12, atol=1e-14)


def test_one_density_for_several_sites_has_no_value_by_site():
    eta, data = pt.dvector("eta"), pt.dvector("data")
    whole = BoundTerm(FallbackKernel(eta, (data,), -0.5 * ((data - eta) ** 2).sum()), (np.zeros(3),))
    with pytest.raises(UnsupportedLikelihoodError, match="one log density for observations of several"):
        SiteLikelihood(3, [whole]).pointwise(np.zeros((2, 3)))
