"""The mode and the sites: against direct optimisation, and against moments that are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import kurtosis, skew

from pymc_rmhmc.approximation import SiteRegression, find_mode, laplace_sites, prior_expected_sites
from pymc_rmhmc.approximation.joint_mode import _curvature, approximate_jointly, variational_sites_at
from pymc_rmhmc.approximation.newton import Latents
from pymc_rmhmc.interfaces.stated import StatedDense, StatedPrior
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart, SiteChart
from pymc_rmhmc.latent.charts.marginal import _deviance, fit_marginals
from pymc_rmhmc.latent.charts.site import FactorizedPrior, Predictor
from pymc_rmhmc.latent.forms import operator_of
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.solvers.site_space import SiteSpace, Term
from pymc_rmhmc.latent.target import LatentTarget
from tests.unit.toys import PRIORS, Logit, Poisson, ToyComponent, ToyPrior, kernel, problem

N = 8


@pytest.mark.parametrize("likelihood", ["logit", "poisson", "student_t"])
@pytest.mark.parametrize("name", PRIORS)
def test_mode_is_where_the_gradient_vanishes(name, likelihood):
    stated, family = problem(name, likelihood, N)
    prior = FactorizedPrior(stated)
    mode = find_mode(prior.predictor, family, family.kinds[-1])
    assert mode.converged
    target = LatentTarget(SiteChart(prior), family)

    def objective(z):
        point = target.at(z)
        return 0.5 * z @ z - point.log_density, z - point.gradient

    direct = minimize(objective, np.zeros(prior.n_latent), jac=True, method="BFGS", options={"gtol": 1e-9})
    assert mode.log_density == pytest.approx(-direct.fun, abs=1e-6)
    np.testing.assert_allclose(mode.eta, prior.predictor.apply(direct.x), atol=1e-3)


def test_the_line_search_tames_counts_far_from_the_prior():
    """A full Newton step from η = 0 with counts of 10⁴ overshoots into overflow."""
    prior = FactorizedPrior(ToyPrior((ToyComponent(covariance=kernel(N, amplitude=5.0)),), np.zeros(N)))
    mode = find_mode(prior.predictor, Poisson(np.full(N, 1e4)), "hessian")
    assert mode.converged
    np.testing.assert_allclose(mode.eta, np.log(1e4), atol=0.01)


def test_a_start_that_is_not_finite_is_reported():
    prior = FactorizedPrior(ToyPrior((ToyComponent(covariance=kernel(N)),), np.full(N, 1e4)))
    with np.errstate(over="ignore", invalid="ignore"):
        mode = find_mode(prior.predictor, Poisson(np.ones(N)), "hessian")
    assert not mode.converged


def test_laplace_sites_make_the_chart_flat_at_the_mode():
    stated, family = problem("centred", "logit", N)
    prior = FactorizedPrior(stated)
    sites = laplace_sites(find_mode(prior.predictor, family, "hessian"))
    target = LatentTarget(SiteChart(prior, sites), family)
    origin = np.zeros(N)
    np.testing.assert_allclose(target.at(origin).gradient, 0.0, atol=1e-5)
    h = 1e-4
    curvature = [
        (target.at(h * e).log_density + target.at(-h * e).log_density - 2 * target.at(origin).log_density) / h**2
        for e in np.eye(N)
    ]
    np.testing.assert_allclose(curvature, 0.0, atol=1e-4)


def test_laplace_evidence_of_the_digits_is_reproduced_in_small():
    """The Laplace approximation's log Z by the chart's evidence equals the textbook formula."""
    stated, family = problem("centred", "logit", N)
    prior = FactorizedPrior(stated)
    mode = find_mode(prior.predictor, family, "hessian")
    sites = laplace_sites(mode)
    gap = family.log_density(mode.eta) - sites.log_density(mode.eta)
    evidence = SiteChart(prior, sites).log_evidence + gap
    covariance = stated.components[0].covariance
    _, log_det = np.linalg.slogdet(np.eye(N) + covariance @ np.diag(mode.weight))
    assert evidence == pytest.approx(mode.log_density - 0.5 * log_det, abs=1e-8)


def test_regression_recovers_a_gaussian_likelihood_exactly():
    rng, regression = np.random.default_rng(0), SiteRegression(N)
    linear, precision = rng.standard_normal(N), rng.exponential(1.0, N)
    for _ in range(12):
        eta = 2.0 * rng.standard_normal(N) - 0.5
        regression.add(eta, linear - precision * eta)
    sites = regression.fit(GaussianSites(np.zeros(N), np.zeros(N)))
    np.testing.assert_allclose(sites.linear, linear, atol=1e-10)
    np.testing.assert_allclose(sites.precision, precision, atol=1e-10)


def test_regression_is_least_squares():
    rng, regression = np.random.default_rng(1), SiteRegression(1)
    eta = rng.standard_normal(200)
    slope = Logit(np.ones(1)).gradient
    g = np.array([slope(np.array([e]))[1][0] for e in eta])
    for e, s in zip(eta, g, strict=True):
        regression.add(np.array([e]), np.array([s]))
    sites = regression.fit(GaussianSites(np.zeros(1), np.zeros(1)))
    negative_slope, intercept = np.polyfit(eta, g, 1)
    assert sites.precision[0] == pytest.approx(-negative_slope)
    assert sites.linear[0] == pytest.approx(intercept)
    assert (regression.centre[0], regression.variance[0]) == pytest.approx((eta.mean(), eta.var()))


def test_regression_never_gives_a_negative_precision_and_waits_for_enough_draws():
    rng, regression = np.random.default_rng(2), SiteRegression(N)
    fallback = GaussianSites(np.zeros(N), np.full(N, 0.5))
    for count in range(1, 31):
        eta = rng.standard_normal(N)
        eta[0] = 1.0  # a site that never moves
        regression.add(eta, 3.0 * eta)  # a log density that is not concave
        if count < SiteRegression.MIN_DRAWS:
            assert regression.fit(fallback) is None
    sites = regression.fit(fallback)
    np.testing.assert_array_equal(sites.precision[1:], 0.0)
    assert sites.precision[0] == 0.5


def test_normalising_maps_make_skewed_draws_standard_normal():
    rng = np.random.default_rng(20)
    y = rng.multivariate_normal([0.0, 0.0, 0.0], [[1.0, 0.7, 0.0], [0.7, 1.0, -0.3], [0.0, -0.3, 1.0]], 4000)
    draws = np.column_stack((np.log(np.exp(0.5 * y[:, 0]) + 0.3), np.sinh(0.8 * y[:, 1] - 0.4), 5.0 + 3.0 * y[:, 2]))
    chart = fit_marginals(draws)
    standard = np.array([chart.recover(theta) for theta in draws])
    np.testing.assert_allclose(standard.mean(axis=0), 0.0, atol=0.02)
    np.testing.assert_allclose(np.cov(standard.T), np.eye(3), atol=0.03)
    assert np.abs(skew(draws)).max() > 0.8
    np.testing.assert_allclose(skew(standard), 0.0, atol=0.1)
    np.testing.assert_allclose(kurtosis(standard), 0.0, atol=0.3)


def test_the_gradient_of_the_maps_likelihood_is_its_differences():
    rng = np.random.default_rng(21)
    scaled, at, h = rng.standard_normal((30, 2)), 0.3 * rng.standard_normal(8), 1e-6
    exact = [(_deviance(at + h * e, scaled)[0] - _deviance(at - h * e, scaled)[0]) / (2 * h) for e in np.eye(8)]
    np.testing.assert_allclose(_deviance(at, scaled)[1], exact, rtol=1e-6, atol=1e-6)


def test_few_draws_and_draws_that_do_not_move_are_not_trusted():
    rng = np.random.default_rng(22)
    assert fit_marginals(rng.standard_normal((1, 2))) is None
    assert fit_marginals(np.column_stack((rng.standard_normal(9), np.ones(9)))) is None
    chart = fit_marginals(rng.standard_normal((3, 6)))
    assert np.isfinite(chart.place(rng.standard_normal(6)).theta).all()


class CountBlock:
    """Poisson counts of a vector with a covariance: the sites' fixed point is known by quadrature."""

    design_shape, rows, is_sum, has_moving_design, fixed_covariance = None, None, False, False, False
    n_sites, size, has_moving_sites, maps = 3, 3, False, None
    y = np.array([0.0, 3.0, 9.0])
    covariance = np.asfortranarray(np.eye(3) + 0.5)

    def prior(self, theta):
        mean = np.full(3, 0.5)
        return StatedPrior(mean, np.zeros(3), (StatedDense(self.covariance, mean, True),))

    def forget(self):
        pass

    def prior_pullback(self, theta, mean_bar, vector_bars, design_bar):
        return np.zeros(theta.size)

    def compiled_likelihood(self):
        return self.likelihood, ()

    def likelihood(self, theta, eta):
        return float(self.y @ eta - np.exp(eta).sum()), self.y - np.exp(eta), np.zeros(theta.size)


class CountDensity:
    blocks = (CountBlock(),)

    def rest(self, theta):
        return -0.5 * float((theta - 1.0) @ (theta - 1.0)), 1.0 - theta


class BoundedBlock(CountBlock):
    """Its prior has no factor beyond a θ on either side."""

    def __init__(self, least: float, most: float) -> None:
        self.least, self.most = least, most

    def prior(self, theta):
        if not self.least <= theta[0] <= self.most:
            raise np.linalg.LinAlgError
        return super().prior(theta)


class SharpDensity(CountDensity):
    """-2 |θ - 1|²: its curvature is 4 everywhere, well above the least precision."""

    def rest(self, theta):
        return -2.0 * float((theta - 1.0) @ (theta - 1.0)), 4.0 * (1.0 - theta)


@pytest.mark.parametrize(
    ("least", "most"), [(-9.0, 9.0), (0.7, 9.0), (-9.0, 0.7), (0.7, 0.7)], ids=["inside", "below", "above", "between"]
)
def test_a_curvature_beside_a_wall_is_taken_from_the_other_side(least, most):
    density = SharpDensity()
    density.blocks = (BoundedBlock(least, most),)
    sites = [GaussianSites(CountBlock.y, np.full(3, 5.0))]
    target = JointTarget(density, sites, MarginalChart.linear(np.zeros(2), np.eye(2)))
    noise = np.random.default_rng(0).standard_normal(6)
    chart = _curvature(target, np.array([0.7, 0.2]), (noise, -noise))
    # Between two walls the least precision, 1, is all that can be said.
    np.testing.assert_allclose(chart.factor, np.diag([1.0 if least == most else 0.5, 0.5]), atol=1e-6)
    np.testing.assert_allclose(chart.centre, [0.7, 0.2])


def test_variational_sites_have_the_expected_slope_and_curvature():
    block, theta = CountBlock(), np.zeros(1)
    (sites,) = variational_sites_at(CountDensity(), theta, [GaussianSites(block.y, np.full(3, 5.0))])
    spread = np.linalg.inv(np.linalg.inv(block.covariance) + np.diag(sites.precision))
    centre = spread @ (np.linalg.solve(block.covariance, np.full(3, 0.5)) + sites.linear)
    rate = np.exp(centre + 0.5 * spread.diagonal())
    np.testing.assert_allclose(sites.precision, rate, rtol=0.05)
    np.testing.assert_allclose(sites.gradient(centre), block.y - rate, atol=0.2)


def test_the_joint_approximation_is_centred_where_the_bound_is_highest():
    block = CountBlock()

    # The Laplace sites at the start are those of the counts themselves.
    start = np.array([4.0, -3.0])
    first = [GaussianSites(block.y - 1.0, np.ones(3))]
    found = approximate_jointly(CountDensity(), first, start, np.random.default_rng(0))
    np.testing.assert_allclose(found.marginals.centre, 1.0, atol=1e-3)
    np.testing.assert_allclose(found.marginals.factor, np.eye(2), atol=1e-3)
    held = np.array([1])
    found = approximate_jointly(CountDensity(), first, start, np.random.default_rng(0), held)
    assert found.marginals.centre[1] == -3.0
    assert abs(found.marginals.centre[0] - 4.0) > 0.5


def test_newtons_method_finds_the_same_mode_in_both_coordinates():
    rng = np.random.default_rng(23)
    matrix, offset, y = rng.standard_normal((12, 3)), rng.standard_normal(12), rng.poisson(3.0, 12).astype(float)

    class Likelihood:
        kinds = ("hessian",)

        def gradient(self, eta):
            return float(y @ eta - np.exp(eta).sum()), y - np.exp(eta)

        def curvature(self, eta, kind):
            return *self.gradient(eta), np.exp(eta), np.ones(12)

    few = find_mode(Predictor(offset, matrix, triangular=False), Likelihood())
    # Columns of zeros make more latents than sites, and change nothing.
    many = find_mode(Predictor(offset, np.hstack((matrix, np.zeros((12, 20)))), triangular=False), Likelihood())
    assert few.converged
    assert many.converged
    np.testing.assert_allclose(few.eta, many.eta, atol=1e-5)
    assert few.log_density == pytest.approx(many.log_density, abs=1e-8)


def test_sites_of_the_priors_expectation_have_the_mean_curvature_of_a_rate():
    stated, family = problem("centred", "poisson", 5)
    prior = FactorizedPrior(stated)
    mode = find_mode(prior.predictor, family)
    sites = prior_expected_sites(prior.predictor, family, mode)
    variance = np.diag(prior.predictor.matrix @ prior.predictor.matrix.T)
    np.testing.assert_allclose(sites.precision, np.exp(prior.predictor.offset + 0.5 * variance), rtol=1e-9)
    np.testing.assert_allclose(sites.linear - sites.precision * mode.eta, mode.gradient, atol=1e-9)


@pytest.mark.parametrize(("sd", "count"), [(1.0, 1e8), (3.0, 1e8), (10.0, 1e9)])
def test_counts_that_are_huge_where_newton_begins_have_a_mode(sd, count):
    """Far from the mode the evidence of the sites is lost in rounding, and nobody asks for it."""
    n, rng = 40, np.random.default_rng(0)
    covariance = np.asfortranarray(sd**2 * kernel(n, lengthscale=0.3, jitter=1e-6))
    y = rng.poisson(count * np.exp(0.1 * rng.standard_normal(n))).astype(float)

    class Counts:
        kinds = ("hessian",)

        def gradient(self, eta):
            return float(y @ eta - np.exp(eta).sum()), y - np.exp(eta)

        def curvature(self, eta, kind):
            return *self.gradient(eta), np.exp(eta), np.ones(n)

    nothing = GaussianSites(np.zeros(n), np.zeros(n))
    operator = operator_of(StatedDense(covariance, np.zeros(n), True))
    prior = SiteSpace(np.zeros(n), [Term(operator)], nothing, covariances=[covariance])
    with np.errstate(over="ignore"):
        mode = find_mode(Latents(np.zeros(n), prior), Counts())
    assert mode.converged
    np.testing.assert_allclose(mode.eta, np.log(y), atol=0.2)
