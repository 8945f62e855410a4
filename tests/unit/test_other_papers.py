"""What the other papers' benchmarks compute and print, without sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from benchmarks.papers.bivariate.experiments import chain_rows, expected_lag
from benchmarks.papers.bivariate.target import energy, gibbs_chain, leapfrog_angle, sigma
from benchmarks.papers.filippone.samplers import CountedKernel, count_kernels
from benchmarks.papers.lalchand.dynamics import leapfrog, truth_of_moments
from benchmarks.papers.lalchand.experiments import prediction_rows
from benchmarks.papers.lalchand.prediction import data_set, full_density
from benchmarks.papers.lalchand.processes import fit, log_marginal, predict
from benchmarks.papers.lalchand.regressions import additive_kernel, composite_kernel, plain_kernel, series
from benchmarks.papers.logistic.experiments import largest_z
from benchmarks.papers.logistic.experiments import rows as logistic_rows
from benchmarks.papers.logistic.samplers import REFERENCE, SAMPLERS
from benchmarks.papers.looks import save_figures
from benchmarks.papers.paper import PAPERS, load_paper
from benchmarks.papers.paquet.mixture import MEANS, log_density, responsibilities
from benchmarks.papers.text import by_sampler
from benchmarks.papers.volatility.samplers import observations
from benchmarks.process_cost import Algebra, watched
from pymc_rmhmc import BlockMetric
from pymc_rmhmc.metrics.processes.process_density import CentredDensity, WhitenedDensity
from tests.unit.process_toy import N, ToyProcess, point


def test_the_slides_trajectory_ends_close_to_where_it_began():
    assert leapfrog_angle(0.8, 15) == pytest.approx(4.0 * math.pi, abs=0.25)
    assert expected_lag("rmhmc", 0.98) == "+0.98"
    assert expected_lag("gibbs", 0.98) == "+0.96"
    assert expected_lag("hmc", 0.98) == ""


@pytest.mark.parametrize("step_size, n_steps", [(0.3, 20), (0.8, 15), (1.9, 5)])
def test_leapfrog_turns_by_its_angle(step_size, n_steps):
    path = leapfrog(1.0, 0.0, step_size, n_steps)
    assert path[-1, 0] == pytest.approx(math.cos(leapfrog_angle(step_size, n_steps)))


def test_both_energies_are_those_of_the_joint_density():
    rng = np.random.default_rng(0)
    q, p = rng.standard_normal((2, 6, 2))
    for riemannian, mass in ((False, np.eye(2)), (True, np.linalg.inv(sigma(0.6)))):
        joint = multivariate_normal(cov=sigma(0.6)).logpdf(q) + multivariate_normal(cov=mass).logpdf(p)
        assert np.ptp(energy(q, p, 0.6, riemannian) + joint) == pytest.approx(0.0, abs=1e-10)


def test_gibbs_draws_have_the_correlation():
    chain = gibbs_chain(0.6, 20_000, 0, np.zeros(2))
    np.testing.assert_allclose(np.cov(chain.draws.T), sigma(0.6), atol=0.05)


def test_the_mixture_integrates_to_one_and_knows_its_components():
    side = np.linspace(-9.0, 9.0, 361)
    grid = np.stack(np.meshgrid(side, side), axis=-1)
    assert np.exp(log_density(grid)).sum() * 0.05**2 == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(responsibilities(MEANS), np.eye(3), atol=0.01)


KERNELS = {plain_kernel: 2, composite_kernel: 5, additive_kernel: 4}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_marginal_likelihood_and_prediction_are_those_of_the_normal(kernel):
    rng = np.random.default_rng(1)
    x, new = (rng.uniform(-1.0, 1.0, (n, 1 + (kernel is additive_kernel))) for n in (7, 3))
    y, log_theta = rng.standard_normal(7), np.append(0.3 * rng.standard_normal(KERNELS[kernel]), math.log(0.3))
    both = np.vstack([x, new])
    covariance = kernel(both, both, log_theta[:-1]) + 0.09 * np.eye(10)
    assert log_marginal(kernel, x, y, log_theta) == pytest.approx(
        multivariate_normal(cov=covariance[:7, :7]).logpdf(y), abs=1e-4
    )
    across = covariance[7:, :7] @ np.linalg.inv(covariance[:7, :7])
    mean, variance = predict(kernel, x, y, new, log_theta)
    np.testing.assert_allclose(mean, across @ y, atol=1e-5)
    np.testing.assert_allclose(variance, np.diag(covariance[7:, 7:] - across @ covariance[:7, 7:]), atol=1e-5)


def test_the_fit_is_the_best_of_its_starts():
    x, y, _, _ = data_set(15, 3)
    best = fit(plain_kernel, x, y, [np.zeros(3), np.log([0.3, 1.0, 0.3])])
    assert best.log_marginal >= log_marginal(plain_kernel, x, y, np.log([0.3, 1.0, 0.3]))


def test_the_average_over_equal_draws_is_the_plug_in_prediction():
    x, y, new, held = data_set(8, 0)
    log_theta = np.log([0.7, 1.0, 0.3])
    density, mean, sd = full_density(x, y, new, held, np.tile(log_theta, (4, 1)))
    expected_mean, expected_variance = predict(plain_kernel, x, y, new, log_theta)
    np.testing.assert_allclose(mean, expected_mean)
    np.testing.assert_allclose(sd**2, expected_variance)
    one, _, _ = full_density(x, y, new, held, log_theta[None])
    assert density == pytest.approx(one)


def test_the_made_series_is_standardised_where_it_is_learned_from():
    x, y, new, held = series(0)
    assert (len(y), len(held)) == (120, 36)
    assert (y.mean(), y.std()) == pytest.approx((0.0, 1.0))
    assert x[-1] < new[0]


def test_the_warped_densitys_moments_agree_with_its_bend():
    mean, variance = truth_of_moments()
    # θ₁ + θ₂² is close to 1 in the whole posterior.
    assert mean + variance == pytest.approx(1.0, abs=0.03)


def test_volatilities_are_those_of_the_truth():
    data = observations()
    assert (len(data["y"]), len(data["x"])) == (500, 500)
    assert [float(data[name]) for name in ("beta", "sigma", "phi")] == [0.65, 0.15, 0.98]


def _regression(sampler: str, **changed) -> dict:
    return {
        "experiment": "heart", "sampler": sampler, "seed": 0, "draws": 100, "tuning": 1.0, "sampling": 2.0,
        "acceptance": 0.9, "ess": [10.0, 30.0], "mean": [0.0, 1.0], "mcse": [0.3, 0.3], "sd": [1.0, 1.0], "rhat": 1.0,
    } | changed  # fmt: skip


def test_means_that_differ_from_the_long_runs_are_marked():
    reference = _regression(REFERENCE, mean=[0.0, 3.0], mcse=[0.4, 0.4])
    assert largest_z(_regression("hmc"), reference) == pytest.approx(4.0)
    wrong = _regression("flat", mean=[9.0, 3.0])
    table = logistic_rows([_regression("hmc"), wrong, reference], "heart")
    assert [row[0] for row in table] == [SAMPLERS["hmc"].label, SAMPLERS["flat"].label]
    assert table[0][-1] == "4.0"
    assert table[1][-1].endswith("!")
    assert table[0][8] == "0.3"  # three seconds for ten effective draws


def test_tables_without_records_are_empty():
    assert chain_rows([], "0.6") == prediction_rows([]) == logistic_rows([], "heart") == []
    assert by_sampler([{"experiment": "a", "sampler": "b", "error": "c"}], "a") == {}


def test_figures_are_named_after_the_paper(tmp_path):
    draw = {"1_line": ("a", lambda plt, held: plt.figure())}
    record = {"experiment": "a", "sampler": "b", "seed": 0}
    assert [path.name for path in save_figures("made", draw, [record], tmp_path, "svg")] == ["made_1_line.svg"]
    assert save_figures("made", draw, [], tmp_path, "svg") == []


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_reports_nothing_of_no_records(name, capsys):
    load_paper(name).report([])
    assert "failed" not in capsys.readouterr().out.replace("failed %", "")


def test_the_factors_of_a_process_are_counted(monkeypatch):
    for density in (CentredDensity, WhitenedDensity):
        monkeypatch.setattr(density, "kernel_class", density.kernel_class)  # as it was, afterwards
    monkeypatch.setattr(CountedKernel, "factors", 0)
    monkeypatch.setattr(CountedKernel, "informed", 0)
    count_kernels()
    algebra, field = Algebra(N), BlockMetric().bind(ToyProcess())
    with watched(algebra):
        assert not field.evaluate(field.density.enter(point())).failure
    assert (CountedKernel.factors, CountedKernel.informed) == (1, 1)
    assert algebra.factors == 2  # of K, and of I + D K D
