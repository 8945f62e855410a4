"""The metric of a series with its hyperparameters: against the dense process that is the same, and differences."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc import BlockMetric, ConfigurationError, GeneralizedLeapfrog, ImplicitMidpoint, WhitenedFisherMetric
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics.processes.series import SeriesKernel, factorize_series, follow, inverse_bands, solve_series
from tests.unit.process_toy import N
from tests.unit.series_toy import SERIES, DenseSeries, ToySeries, place
from tests.unit.step_checks import check_steps


@pytest.fixture(params=SERIES)
def name(request):
    return request.param


@pytest.fixture
def field(name):
    return BlockMetric().bind(ToySeries(name))


@pytest.fixture
def dense(name):
    return BlockMetric().bind(DenseSeries(name))


def differences(function, q, h=1e-5):
    return np.array([(function(q + e) - function(q - e)) / (2.0 * h) for e in h * np.eye(q.size)])


def matrix_at(field, q):
    return np.column_stack([field.product(field.density.at(q), e) for e in np.eye(q.size)])


@pytest.mark.parametrize("n", [1, 2, 7])
def test_loops_are_the_dense_matrices(n):
    rng = np.random.default_rng(0)
    weight, tau, rho, v = rng.random(n), rng.random(n), -0.7, rng.standard_normal(n)
    weight[0] = 0.0
    turn = np.eye(n) - rho * np.eye(n, k=-1)
    matrix = np.diag(weight) + turn.T @ np.diag(tau) @ turn
    inverse = np.linalg.inv(matrix)
    pivots, below = factorize_series(weight, tau, rho)
    diagonal, off = inverse_bands(pivots, below)
    assert np.log(pivots).sum() == pytest.approx(np.linalg.slogdet(matrix)[1], abs=1e-12)
    np.testing.assert_allclose(solve_series(pivots, below, v), inverse @ v, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(diagonal, inverse.diagonal(), rtol=1e-10)
    np.testing.assert_allclose(off, [*inverse.diagonal(1), 0.0], rtol=1e-10)
    np.testing.assert_allclose(follow(rho, v[None])[0], np.linalg.solve(turn, v), rtol=1e-10, atol=1e-12)


def test_the_factor_keeps_its_digits_where_data_say_little():
    """With differences of large numbers as pivots it would have lost all of them."""
    n = 50
    weight, tau = np.full(n, 1e-14), np.full(n, 1e8)
    tau[0] = 0.0
    pivots, below = factorize_series(weight, tau, 1.0)
    np.testing.assert_allclose(inverse_bands(pivots, below)[0], 1.0 / weight.sum(), rtol=1e-3)


def test_a_stationary_series_has_the_information_that_is_known():
    n, sigma, phi = 40, 0.7, 0.8

    class Known(ToySeries):
        def prior(self, theta):
            width = np.full(n, sigma)
            width[0] /= np.sqrt(1.0 - phi**2)
            by_phi = np.zeros(n)
            by_phi[0] = width[0] * phi / (1.0 - phi**2)
            return np.zeros(n), width, phi, np.zeros((2, n)), np.stack([width / sigma, by_phi]), np.array([0.0, 1.0])

    shared, left = 2.0 * phi / (sigma * (1.0 - phi**2)), 1.0 - phi**2
    known = [[2.0 * n / sigma**2, shared], [shared, (2.0 * phi**2 + (n - 1) * left) / left**2]]
    found = SeriesKernel(Known("stationary"), np.zeros(2)).information
    np.testing.assert_allclose(found, known, rtol=1e-12)


def test_density_and_metric_are_those_of_the_dense_process(field, dense):
    q, v = place(), np.random.default_rng(1).standard_normal(N + 3)
    at, same = field.evaluate(q), dense.evaluate(q)
    assert at.log_density == pytest.approx(same.log_density, abs=1e-10)
    assert at.half_log_det == pytest.approx(same.half_log_det, abs=1e-9)
    assert field.density.at(q).model_log_density == pytest.approx(same.density_point.model_log_density, abs=1e-10)
    for found, known in (
        (at.gradient, same.gradient), (at.scale, same.scale), (at.solve(v), same.solve(v)),
        (at.times(v), same.times(v)), (matrix_at(field, q), matrix_at(dense, q)),
        (at.trace_term, same.trace_term), (at.quadratic_term(v), same.quadratic_term(v)),
    ):  # fmt: skip
        np.testing.assert_allclose(found, known, rtol=1e-7, atol=1e-7)


def test_contractions_match_differences_of_the_matrix(field):
    q, u = place(), np.random.default_rng(2).standard_normal(N + 3)
    at = field.evaluate(q)
    slopes, inverse = differences(lambda x: matrix_at(field, x), q), np.linalg.inv(matrix_at(field, q))
    np.testing.assert_allclose(at.trace_term, [0.5 * np.trace(inverse @ s) for s in slopes], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(at.quadratic_term(u), [-0.5 * u @ s @ u for s in slopes], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        at.gradient, differences(lambda x: field.density.at(x).log_density, q), rtol=1e-6, atol=1e-6
    )


def test_momenta_have_the_metrics_covariance(field):
    matrix = field.at(field.density.at(place()))
    root = np.column_stack([matrix.sqrt_times(e) for e in np.eye(matrix.root_size)])
    np.testing.assert_allclose(root @ root.T, matrix_at(field, place()), rtol=1e-10, atol=1e-10)


def test_whitened_values_are_those_of_the_dense_process_and_lead_back(field, dense):
    q = place()
    white = field.density.whiten(q)
    np.testing.assert_allclose(white, dense.density.whiten(q), atol=1e-10)
    np.testing.assert_allclose(field.density.colour(white), q, atol=1e-12)


@pytest.mark.parametrize("integrator", [GeneralizedLeapfrog(), ImplicitMidpoint()], ids=["leapfrog", "midpoint"])
def test_steps_are_reversible_and_of_second_order(field, integrator):
    check_steps(field, place(), integrator)


def test_outside_the_stationary_region_there_is_a_failure():
    field, q = BlockMetric().bind(ToySeries("stationary")), place()
    q[N + 1] = 1.2
    with np.errstate(invalid="ignore"):
        assert field.evaluate(q).failure is Failure.NOT_POSITIVE_DEFINITE
        assert not np.isfinite(field.product(field.density.at(q), np.ones(q.size))).any()
        assert not np.isfinite(field.density.colour(q)[:N]).any()


def test_an_explosive_series_is_a_failure_without_a_warning():
    field, q = BlockMetric().bind(ToySeries("constant")), place()
    q[N + 1] = 1e60
    with np.errstate(all="raise"):
        assert field.evaluate(q).failure is Failure.NOT_POSITIVE_DEFINITE


def test_a_dense_metric_refuses_a_series():
    with pytest.raises(ConfigurationError, match=r"is dense, and takes no series\. Give RMHMC\(metric=\"block\"\)"):
        WhitenedFisherMetric().bind(ToySeries("walk"))
