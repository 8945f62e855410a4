"""Metrics of a process with its hyperparameters: against dense matrices, differences, and the scores' covariance."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from pymc_rmhmc import BlockMetric, ConfigurationError, GeneralizedLeapfrog, ImplicitMidpoint, WhitenedFisherMetric
from pymc_rmhmc.dynamics.hamiltonian import RiemannianState
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics.field import FieldDrift
from pymc_rmhmc.metrics.processes.process_blocks import BlockDrift, GivenField
from pymc_rmhmc.metrics.processes.process_density import CentredDensity, WhitenedDensity
from pymc_rmhmc.sampled.process import GivenProcessCoordinates
from tests.unit.process_toy import PRECISION, N, ToyProcess, point
from tests.unit.step_checks import check_steps

METRICS = {"block": BlockMetric(), "whitened": WhitenedFisherMetric()}


class CountedProcess(ToyProcess):
    """It counts how often K is evaluated; what the rest says of the amplitude may depend on s."""

    n_kernels, coupled = 0, False

    def information(self, x):
        weight, cross, own = super().information(x)
        own[0, 0] += self.coupled * x[:N] @ x[:N]
        return weight, cross, own

    def prior(self, theta):
        self.n_kernels += 1
        return super().prior(theta)


@pytest.fixture(params=METRICS)
def field(request):
    return METRICS[request.param].bind(ToyProcess())


def place(field, seed=0):
    """The coordinates of whitened values and θ."""
    return field.density.enter(point(seed))


def differences(function, q, h=1e-5):
    return np.array([(function(q + e) - function(q - e)) / (2.0 * h) for e in h * np.eye(q.size)])


def moments(theta):
    """m and K."""
    return ToyProcess().prior(theta)[:2]


def dense(field, q):
    """G by its definition, with m, K and L differentiated by differences."""
    process = field.density.process
    values = field.density.at(q).values
    theta, d = values[N:], values.size - N
    weight, cross, own = process.information(values)
    mean_slopes, slopes = (differences(lambda t, i=i: moments(t)[i], theta) for i in (0, 1))
    if not np.array_equal(q, values):  # it is whitened
        nu = q[:N]
        moved = differences(lambda t: moments(t)[0] + np.linalg.cholesky(moments(t)[1]) @ nu, theta)
        jacobian = np.hstack((np.linalg.cholesky(moments(theta)[1]), moved.T))
        shared = np.hstack((np.zeros((N, N)), cross))
        g = jacobian.T @ np.diag(weight) @ jacobian + jacobian.T @ shared + shared.T @ jacobian
        g[:N, :N] += np.eye(N)
        g[N:, N:] += own
        return g
    inverse = np.linalg.inv(moments(theta)[1])
    g = np.zeros((N + d, N + d))
    g[:N, :N] = np.diag(weight) + inverse
    for i in range(d):
        for j in range(d):
            g[N + i, N + j] = 0.5 * np.trace(inverse @ slopes[i] @ inverse @ slopes[j])
            g[N + i, N + j] += mean_slopes[i] @ inverse @ mean_slopes[j] + own[i, j]
    return g


def matrix_at(field, q):
    return np.column_stack([field.product(field.density.at(q), e) for e in np.eye(q.size)])


def test_the_factorised_matrix_is_the_definition(field):
    q = place(field)
    g, matrix = dense(field, q), field.at(field.density.at(q))
    v = np.random.default_rng(1).standard_normal(q.size)
    root = np.column_stack([matrix.sqrt_times(e) for e in np.eye(matrix.root_size)])
    assert matrix.half_log_det == pytest.approx(0.5 * np.linalg.slogdet(g)[1], abs=1e-8)
    np.testing.assert_allclose(matrix.solve(v), np.linalg.solve(g, v), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(matrix.times(v), g @ v, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(field.product(field.density.at(q), v), g @ v, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(root @ root.T, g, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(matrix.scale, np.sqrt(np.linalg.inv(g).diagonal()), rtol=1e-6)


def test_the_densitys_gradient_is_a_difference(field):
    q = place(field)
    slopes = differences(lambda at: field.density.at(at).log_density, q)
    np.testing.assert_allclose(field.density.at(q).gradient, slopes, rtol=1e-6, atol=1e-6)


def test_contractions_match_differences_of_the_matrix(field):
    q = place(field)
    at, u = field.evaluate(q), np.random.default_rng(2).standard_normal(q.size)
    slopes = differences(lambda x: matrix_at(field, x), q)
    inverse = np.linalg.inv(matrix_at(field, q))
    np.testing.assert_allclose(at.trace_term, [0.5 * np.trace(inverse @ s) for s in slopes], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(at.quadratic_term(u), [-0.5 * u @ s @ u for s in slopes], rtol=1e-5, atol=1e-6)
    near = field.evaluate(place(field, seed=1)).nearby(q)
    np.testing.assert_allclose(near.quadratic_term(u), at.quadratic_term(u), rtol=1e-10)
    np.testing.assert_allclose(near.gradient, at.gradient, rtol=1e-10)


def test_the_hamiltonians_derivative_is_the_force(field):
    q = place(field)
    flow, at = field.hamiltonian(), field.evaluate(q)
    p = at.sample_momentum(np.random.default_rng(3))
    slopes = differences(lambda x: flow.energy(RiemannianState(field.evaluate(x), p)), q)
    force = -at.gradient + at.trace_term + at.quadratic_term(at.solve(p))
    np.testing.assert_allclose(force, slopes, rtol=1e-5, atol=1e-5)


def test_momenta_have_the_metrics_covariance(field):
    at, rng = field.evaluate(place(field)), np.random.default_rng(4)
    drawn = np.array([at.sample_momentum(rng) for _ in range(4000)])
    g = dense(field, place(field))
    scale = np.sqrt(g.diagonal())
    np.testing.assert_allclose(np.cov(drawn.T) / np.outer(scale, scale), g / np.outer(scale, scale), atol=0.1)


def test_the_block_of_hyperparameters_is_the_covariance_of_the_scores():
    """Scores of log N(s; m, K) by θ, at draws of s: nothing of the closed form is in them."""
    theta, rng = point()[N:], np.random.default_rng(5)
    mean, covariance = moments(theta)
    drawn = rng.multivariate_normal(mean, covariance, size=4000)
    scores = differences(lambda t: multivariate_normal(*moments(t)).logpdf(drawn), theta)[:2]
    field = BlockMetric().bind(ToyProcess())
    q = place(field)
    found = matrix_at(field, q)[N : N + 2, N : N + 2] - PRECISION * np.eye(2)
    np.testing.assert_allclose(scores @ scores.T / len(drawn), found, rtol=0.1, atol=0.05 * np.abs(found).max())


@pytest.mark.parametrize("whitened", [True, False])
def test_values_and_log_densities_are_the_models(whitened):
    process, theta = ToyProcess(whitened=whitened), point()[N:]
    mean, covariance = moments(theta)
    factor = np.linalg.cholesky(covariance)
    s = mean + factor @ point()[:N]
    values = point() if whitened else np.concatenate((s, theta))
    prior = multivariate_normal(np.zeros(N)).logpdf(point()[:N])
    expected = float(process.rest(np.concatenate((s, theta)))[0]) + prior
    if not whitened:
        expected -= np.log(factor.diagonal()).sum()
    for density in (CentredDensity(process), WhitenedDensity(process)):
        at = density.at(density.enter(values))
        np.testing.assert_allclose(at.model_values, values, atol=1e-12)
        assert at.model_log_density == pytest.approx(expected, abs=1e-10)


def test_both_charts_have_the_density_that_the_jacobian_says():
    process = ToyProcess()
    centred, whitened = CentredDensity(process), WhitenedDensity(process)
    gap = centred.at(centred.enter(point())).log_density - whitened.at(point()).log_density
    assert gap == pytest.approx(-0.5 * np.linalg.slogdet(moments(point()[N:])[1])[1])


@pytest.mark.parametrize("integrator", [GeneralizedLeapfrog(), ImplicitMidpoint()], ids=["leapfrog", "midpoint"])
def test_steps_are_reversible_and_of_second_order(field, integrator):
    check_steps(field, place(field), integrator)


@pytest.mark.parametrize("coupled", [False, True])
def test_the_blocks_drift_is_the_general_equations_in_fewer_factors(coupled):
    process, solver = CountedProcess(), AndersonSolver(1e-11, 100)
    process.coupled = coupled
    field = BlockMetric().bind(process)
    at = field.evaluate(place(field))
    velocity = at.solve(at.sample_momentum(np.random.default_rng(7)))
    found, counts = [], []
    for equation in (BlockDrift(field, at, velocity, 0.1), FieldDrift(at, velocity, 0.1)):
        before = process.n_kernels
        solution = equation.solve(solver)
        assert solution.converged
        counts.append(process.n_kernels - before)
        found.append(np.concatenate(equation.conclude(solution.argument)))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-8, atol=1e-8)
    x = BlockDrift(field, at, velocity, 0.1).solve(solver).argument
    np.testing.assert_allclose(BlockDrift(field, at, velocity, 0.1).function(x), x, atol=1e-8)
    assert coupled or counts[0] < counts[1]


def test_a_covariance_that_is_not_positive_definite_is_a_failure(field):
    q = place(field)
    q[N] = np.nan
    assert field.evaluate(q).failure is not Failure.NONE
    assert not np.isfinite(field.product(field.density.at(q), np.ones(q.size))).any()


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_another_density_is_refused(metric):
    with pytest.raises(ConfigurationError, match="needs a Gaussian process with its hyperparameters"):
        metric.bind(object())


@pytest.fixture
def given(field):
    """The metric of θ alone with the process held, and θ."""
    found = GivenField(field)
    return found, found.density.hold(place(field))


def test_given_the_process_the_matrix_is_the_corner_of_the_whole(field, given):
    alone, theta = given
    g = dense(field, place(field))[N:, N:]
    matrix, v = alone.at(alone.density.at(theta)), np.array([0.3, -1.0, 0.5])
    np.testing.assert_allclose(matrix.solve(v), np.linalg.solve(g, v), rtol=1e-6)
    np.testing.assert_allclose(alone.product(alone.density.at(theta), v), g @ v, rtol=1e-6)
    assert matrix.half_log_det == pytest.approx(0.5 * np.linalg.slogdet(g)[1], abs=1e-7)


def test_given_the_process_the_density_is_the_charts(field, given):
    alone, theta = given
    at, whole = alone.density.at(theta), field.density.at(place(field))
    assert at.log_density == whole.log_density
    other = theta + [0.1, -0.2, 0.3]
    moved = field.density.at(np.concatenate((place(field)[:N], other)))
    assert alone.density.at(other).log_density == moved.log_density
    slopes = differences(lambda x: alone.density.at(x).log_density, theta)
    np.testing.assert_allclose(at.gradient, slopes, rtol=1e-6, atol=1e-6)


def test_given_the_process_contractions_match_differences(given):
    alone, theta = given
    at, u = alone.evaluate(theta), np.array([0.7, -0.4, 1.1])
    slopes = differences(lambda x: matrix_at(alone, x), theta)
    inverse = np.linalg.inv(matrix_at(alone, theta))
    np.testing.assert_allclose(at.trace_term, [0.5 * np.trace(inverse @ s) for s in slopes], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(at.quadratic_term(u), [-0.5 * u @ s @ u for s in slopes], rtol=1e-5, atol=1e-6)
    assert alone.evaluate(np.full(3, np.nan)).failure is not Failure.NONE
    assert not np.isfinite(alone.product(alone.density.at(np.full(3, np.nan)), u)).any()


@pytest.mark.parametrize("whitened", [True, False], ids=["whitened model", "centred model"])
@pytest.mark.parametrize("metric", METRICS)
def test_given_the_process_the_models_values_follow(metric, whitened):
    """Where θ moves, s stays and ν changes, or ν stays and s changes, whichever of them the model has."""
    process = ToyProcess(whitened=whitened)
    field = METRICS[metric].bind(process)
    alone, start, end = GivenField(field), point()[N:], point()[N:] + [0.2, 0.3, -0.1]

    def factor(theta):
        mean, covariance = moments(theta)
        return mean, np.linalg.cholesky(covariance)

    nu = point()[:N]
    s = factor(start)[0] + factor(start)[1] @ nu
    alone.density.hold(field.density.enter(np.concatenate((nu if whitened else s, start))))
    found = alone.density.at(end).whole.model_values
    mean, lower = factor(end)
    if metric == "block":
        nu = np.linalg.solve(lower, s - mean)
    else:
        s = mean + lower @ nu
    np.testing.assert_allclose(found, np.concatenate((nu if whitened else s, end)), atol=1e-10)


def test_given_the_process_what_is_held_is_what_was_last_given(field):
    """Though others write into what was given afterwards."""
    alone = GivenField(field)
    for seed in range(2):
        position = place(field, seed)
        exact, theta = field.density.at(position.copy()).log_density, alone.density.hold(position)
        position += 1.0
        assert alone.density.at(theta).log_density == exact


@pytest.mark.parametrize("metric", METRICS)
def test_a_step_for_hyperparameters_holds_the_process_in_its_metrics_coordinates(metric):
    """Whichever of s and ν the model has: it is held as the metric has it, and written back as the model does."""
    for whitened in (True, False):
        field = METRICS[metric].bind(ToyProcess(whitened=whitened))
        alone = GivenField(field)
        setting = GivenProcessCoordinates(alone.hamiltonian(), None, alone.density)
        density = (WhitenedDensity if whitened else CentredDensity)(field.density.process)
        for seed in range(2):  # the second time another step has moved the process
            nu = point(seed)
            values = nu if whitened else density.colour(nu)
            phase = setting.stand(values, None, None)
            np.testing.assert_array_equal(phase.position, nu[N:])
            coordinates, written, log_density, _ = setting.locate(phase, None)
            np.testing.assert_allclose(written, values, rtol=1e-9, atol=1e-9)
            assert log_density == pytest.approx(density.at(values).model_log_density, rel=1e-9)
            again = setting.stand(values + 5.0, coordinates, None)
            np.testing.assert_allclose(setting.seen(again), values, rtol=1e-9, atol=1e-9)
