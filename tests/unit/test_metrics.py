"""The latent metric against a dense reference, and the Hamiltonian's derivatives against differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import solve_triangular
from scipy.stats import multivariate_normal

from pymc_rmhmc.approximation import find_mode
from pymc_rmhmc.dynamics.hamiltonian import (
    GaussianHamiltonian,
    RiemannianHamiltonian,
    RiemannianState,
    SpannedHamiltonian,
)
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.evidence.methods.annealing import LatentBridge
from pymc_rmhmc.latent.charts import GaussianSites, SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget
from pymc_rmhmc.metrics import FisherMetric, FlatMetric, HessianMetric, LatentField
from tests.unit.toys import LIKELIHOODS, PRIORS, Poisson, ToyComponent, ToyPrior, kernel, problem, whole_likelihood

N = 6
CASES = [
    (prior, likelihood, kind, beta)
    for prior in PRIORS
    for likelihood, kind in zip(
        ("logit", "poisson", "poisson", "student_t"), ("hessian", "hessian", "fisher", "fisher"), strict=True
    )
    for beta in (1.0, 0.5)
]


def make_metric(prior: str, likelihood: str, kind: str, beta: float) -> LatentField:
    stated, family = problem(prior, likelihood, N)
    rng = np.random.default_rng(8)
    sites = GaussianSites(rng.standard_normal(N), rng.exponential(1.0, N))
    return LatentField(LatentBridge(FactorizedPrior(stated), family, sites).at(beta), kind)


def dense(metric: LatentField, z: np.ndarray) -> np.ndarray:
    predictor = metric.target.chart.predictor
    family, beta = whole_likelihood(metric.target)
    weight = beta * family.weight(predictor.apply(z), metric.kind)
    return np.eye(z.size) + predictor.matrix.T @ np.diag(weight) @ predictor.matrix


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case)))
def metric(request):
    return make_metric(*request.param)


@pytest.fixture
def z(metric):
    return 0.7 * np.random.default_rng(9).standard_normal(metric.target.chart.prior.n_latent)


def differences(function, z, h=1e-5):
    return np.array([(function(z + e) - function(z - e)) / (2 * h) for e in h * np.eye(z.size)])


def test_determinant_and_inverse_are_the_dense_metrics(metric, z):
    point, g = metric.evaluate(z), dense(metric, z)
    assert point.failure is Failure.NONE
    assert point.half_log_det == pytest.approx(0.5 * np.linalg.slogdet(g)[1], abs=1e-10)
    v = np.random.default_rng(1).standard_normal(z.size)
    np.testing.assert_allclose(point.solve(v), np.linalg.solve(g, v), atol=1e-10)


def test_contractions_match_differences_of_the_dense_metric(metric, z):
    point, u = metric.evaluate(z), np.random.default_rng(2).standard_normal(z.size)
    slopes = differences(lambda q: dense(metric, q), z)
    inverse = np.linalg.inv(dense(metric, z))
    trace = [0.5 * np.trace(inverse @ slope) for slope in slopes]
    quadratic = [-0.5 * u @ slope @ u for slope in slopes]
    np.testing.assert_allclose(point.trace_term, trace, atol=1e-7)
    np.testing.assert_allclose(point.quadratic_term(u), quadratic, atol=1e-7)


def test_the_implicit_equations_are_those_of_the_dense_metric(metric, z):
    rng, time = np.random.default_rng(3), 0.05
    point, p, u = metric.evaluate(z), rng.standard_normal(z.size), rng.standard_normal(z.size)
    kick, drift = point.kick_equation(p, time), point.drift_equation(u, time)
    (x, y), solver = (kick.start, drift.start), AndersonSolver(1e-13, 100)
    x, y = solver.solve(kick.function, x).value, solver.solve(drift.function, y).value
    momentum, velocity = kick.conclude(x)
    np.testing.assert_allclose(dense(metric, z) @ velocity, momentum, atol=1e-10)
    np.testing.assert_allclose(momentum, p - time * point.quadratic_term(velocity), atol=1e-10)
    position, velocity = drift.conclude(y)
    np.testing.assert_allclose(position, z + time * (u + velocity), atol=1e-12)
    np.testing.assert_allclose(dense(metric, position) @ velocity, dense(metric, z) @ u, atol=1e-9)


def test_a_position_nearby_is_seen_as_from_itself(metric, z):
    rng = np.random.default_rng(4)
    other, u = z + 0.3 * rng.standard_normal(z.size), rng.standard_normal(z.size)
    point, near = metric.evaluate(other), metric.evaluate(z).nearby(other)
    np.testing.assert_allclose(near.gradient, point.gradient, atol=1e-10)
    np.testing.assert_allclose(near.quadratic_term(u), point.quadratic_term(u), atol=1e-10)
    change = (dense(metric, other) - dense(metric, z)) @ u
    np.testing.assert_allclose(near.apply_change(u), change, atol=1e-10)


def test_log_density_and_gradient_are_consistent(metric, z):
    slope = differences(lambda q: metric.evaluate(q).log_density, z)
    np.testing.assert_allclose(metric.evaluate(z).gradient, slope, atol=1e-6)


def test_derivatives_of_the_hamiltonian(metric, z):
    """∂H/∂q = -∇L + trace + quadratic and ∂H/∂p = G⁻¹p, by differences of the energy itself."""
    flow = RiemannianHamiltonian(metric)
    p = np.random.default_rng(4).standard_normal(z.size)
    point = metric.evaluate(z)
    u = point.solve(p)
    in_q = differences(lambda q: flow.energy(RiemannianState(metric.evaluate(q), p)), z)
    in_p = differences(lambda m: flow.energy(RiemannianState(point, m)), p)
    np.testing.assert_allclose(-point.gradient + point.trace_term + point.quadratic_term(u), in_q, atol=1e-6)
    np.testing.assert_allclose(u, in_p, atol=1e-7)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_kinetic_energy_is_the_normal_log_density(n):
    """Catches a wrong factor of the log determinant, which no test of reversibility or volume can see."""
    covariance = np.eye(n) + 0.3
    prior = ToyPrior((ToyComponent(covariance=covariance),), np.zeros(n))
    chart = SiteChart(FactorizedPrior(prior))
    metric = LatentField(LatentTarget(chart, Poisson(np.arange(n) + 1.0)), "hessian")
    rng = np.random.default_rng(5)
    for _ in range(3):
        z, p = rng.standard_normal(n), rng.standard_normal(n)
        point = metric.evaluate(z)
        energy = RiemannianHamiltonian(metric).energy(RiemannianState(point, p))
        exact = multivariate_normal.logpdf(p, np.zeros(n), dense(metric, z))
        got = -(energy + point.log_density) - 0.5 * n * np.log(2 * np.pi)
        assert got == pytest.approx(exact, abs=1e-10)


def test_momentum_has_the_metric_as_covariance(metric, z):
    point, rng = metric.evaluate(z), np.random.default_rng(6)
    draws = np.array([point.sample_momentum(rng) for _ in range(20000)])
    whitened = np.linalg.solve(np.linalg.cholesky(dense(metric, z)), draws.T)
    # Each entry of a sample covariance of N standard normals has a standard error of about 1/sqrt(N).
    np.testing.assert_allclose(np.cov(whitened), np.eye(z.size), atol=5.5 * np.sqrt(2 / 20000))
    np.testing.assert_allclose(whitened.mean(axis=1), 0.0, atol=4.5 / np.sqrt(20000))


def test_in_the_models_coordinates_it_is_the_papers_metric():
    """Pulled back to f it is W + K⁻¹, the metric of Paquet and Fraccaro's equation 16."""
    stated, family = problem("centred", "logit", N)
    prior = FactorizedPrior(stated)
    metric = LatentField(LatentTarget(SiteChart(prior), family), "hessian")
    z = np.random.default_rng(7).standard_normal(N)
    covariance = stated.components[0].covariance
    inverse_root = np.linalg.inv(np.linalg.cholesky(covariance))
    pulled_back = inverse_root.T @ dense(metric, z) @ inverse_root
    papers = np.diag(family.weight(prior.predictor.apply(z), "hessian")) + np.linalg.inv(covariance)
    np.testing.assert_allclose(pulled_back, papers, rtol=1e-6, atol=1e-6 * np.abs(papers).max())


def test_metric_objects_make_the_hamiltonian_that_they_name():
    stated, family = problem("centred", "logit", N)
    target = LatentTarget(SiteChart(FactorizedPrior(stated)), family)
    for choice in (HessianMetric(), FisherMetric()):
        flow = choice.bind(LatentDensity(target)).hamiltonian()
        assert isinstance(flow, RiemannianHamiltonian)
        assert flow.field.kind == choice.name
    assert isinstance(FlatMetric().bind(LatentDensity(target)).hamiltonian(), GaussianHamiltonian)


@pytest.mark.parametrize(("n_sites", "spanned"), [(N, True), (2 * N, True), (3 * N, False)])
def test_a_lasting_chart_takes_the_representation_with_the_cheaper_steps(n_sites, spanned):
    stated = ToyPrior((ToyComponent(cholesky=np.eye(N), predictor=np.eye(n_sites, N)),), np.zeros(n_sites))
    target = LatentTarget(SiteChart(FactorizedPrior(stated), lasting=True), LIKELIHOODS["logit"](np.ones(n_sites)))
    flow = FlatMetric().bind(LatentDensity(target)).hamiltonian()
    assert isinstance(flow, SpannedHamiltonian if spanned else GaussianHamiltonian)


def test_a_curvature_that_the_likelihood_lacks_is_an_error():
    stated, family = problem("centred", "student_t", N)
    target = LatentTarget(SiteChart(FactorizedPrior(stated)), family)
    with pytest.raises(ConfigurationError, match=r'no "hessian".*Use RMHMC\(metric="fisher"\)'):
        LatentField(target, "hessian")


def test_a_chart_with_foreign_sites_is_an_error():
    stated, family = problem("centred", "logit", N)
    chart = SiteChart(FactorizedPrior(stated), GaussianSites(np.zeros(N), np.ones(N)))
    with pytest.raises(ConfigurationError, match="chart's sites"):
        LatentField(LatentTarget(chart, family), "hessian")


def test_an_overflow_is_a_failure_and_not_an_exception():
    stated, family = problem("centred", "poisson", N)
    metric = LatentField(LatentTarget(SiteChart(FactorizedPrior(stated)), family), "hessian")
    with np.errstate(over="ignore", invalid="ignore"):
        assert metric.evaluate(np.full(N, 2000.0)).failure is Failure.NON_FINITE


@pytest.mark.parametrize("count", [1e2, 1e8])
def test_implicit_steps_are_solved_however_precise_the_sites(count):
    """What an equation is solved to must not drown in what is cancelled: weights are up to 1e9 times the prior's."""
    n, rng = 40, np.random.default_rng(1)
    covariance = kernel(n, lengthscale=0.1, amplitude=2.0)
    f = 0.3 * np.linalg.cholesky(covariance) @ rng.standard_normal(n)
    prior = FactorizedPrior(ToyPrior((ToyComponent(covariance=covariance),), np.full(n, np.log(count))))
    target = LatentTarget(SiteChart(prior), Poisson(rng.poisson(count * np.exp(f)).astype(float)))
    flow, integrator = HessianMetric().bind(LatentDensity(target)).hamiltonian(), GeneralizedLeapfrog()
    predictor = target.chart.predictor
    mode = find_mode(predictor, target.likelihood).eta - predictor.offset
    state = flow.refresh(flow.state(solve_triangular(predictor.matrix, mode, lower=True)), rng)
    for _ in range(5):
        step = integrator.step(flow, state, 0.3)
        assert step.failure is Failure.NONE
        assert step.n_solver_iter < 40
        state = step.state


def test_a_negative_weight_is_not_positive_definite():
    stated, family = problem("centred", "logit", N)

    class Backwards(type(family)):
        def curvature(self, eta, kind):
            value, g, w, r = super().curvature(eta, kind)
            return value, g, -w, r

    metric = LatentField(LatentTarget(SiteChart(FactorizedPrior(stated)), Backwards(family.y)), "hessian")
    assert metric.evaluate(np.zeros(N)).failure is Failure.NOT_POSITIVE_DEFINITE


def test_a_nearly_singular_prior_needs_no_jitter():
    """Condition 10¹⁶ and a large amplitude: the dense form in f fails, B does not."""
    n = 60
    x = np.linspace(0.0, 1.0, n)
    covariance = 1e4 * (np.exp(-0.5 * ((x[:, None] - x) / 0.3) ** 2) + 1e-12 * np.eye(n))
    prior = FactorizedPrior(ToyPrior((ToyComponent(covariance=covariance),), np.zeros(n)))
    from tests.unit.toys import Logit

    y = np.where(np.arange(n) % 3 == 0, 1.0, -1.0)
    metric = LatentField(LatentTarget(SiteChart(prior), Logit(y)), "hessian")
    z = np.random.default_rng(0).standard_normal(n)
    point = metric.evaluate(z)
    assert point.failure is Failure.NONE
    v = np.ones(n)
    np.testing.assert_allclose(dense(metric, z) @ point.solve(v), v, atol=1e-6)


def test_the_divergence_of_the_inverse_is_that_of_differences(metric, z):
    step = 1e-5
    changes = [
        (np.linalg.inv(dense(metric, z + e)) - np.linalg.inv(dense(metric, z - e))) / (2.0 * step)
        for e in step * np.eye(z.size)
    ]
    found = metric.evaluate(z).inverse_divergence()
    np.testing.assert_allclose(found, np.einsum("jij->i", np.array(changes)), rtol=1e-5, atol=1e-7)


def test_a_point_multiplies_by_its_matrix(metric, z):
    vector = np.random.default_rng(3).standard_normal(z.size)
    np.testing.assert_allclose(metric.evaluate(z).times(vector), dense(metric, z) @ vector, rtol=1e-10)
