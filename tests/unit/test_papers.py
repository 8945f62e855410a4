"""What the papers' benchmarks compute and print, without sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from benchmarks.papers.cobb.binding import OverwrittenBinding
from benchmarks.papers.cobb.divergence import (
    autocorrelation,
    binned_divergence,
    normal_divergence,
    running_divergence,
)
from benchmarks.papers.cobb.figures import FIGURES, draw_figures
from benchmarks.papers.cobb.funnel import LABELS, SAMPLERS, SETTINGS
from benchmarks.papers.cobb.table import HEADINGS, cost_ratios, funnel_rows
from benchmarks.papers.paper import PAPERS, load_paper
from benchmarks.papers.text import markdown, spread
from pymc_rmhmc import ExplicitTao


def test_the_divergence_of_moments_is_that_of_two_normals():
    draws = np.array([-1.0, 1.0, 0.5, 3.5])
    q, p = norm(draws.mean(), draws.std()), norm(0.0, 3.0)
    expected, _ = quad(lambda v: p.pdf(v) * (p.logpdf(v) - q.logpdf(v)), -30.0, 30.0)
    assert normal_divergence(draws) == pytest.approx(expected, abs=1e-8)
    assert normal_divergence(np.ones(5)) == math.inf


def test_the_divergence_by_bins_sees_what_two_moments_miss():
    rng = np.random.default_rng(0)
    truth, two = 3.0 * rng.standard_normal(20_000), 3.0 * rng.choice([-1.0, 1.0], 20_000)
    assert normal_divergence(two) < 1e-3
    assert binned_divergence(truth) < 2e-3
    assert binned_divergence(two) == pytest.approx(math.log(10.0), abs=0.01)


def test_the_running_divergence_ends_with_that_of_all_draws():
    draws = np.random.default_rng(0).standard_normal((2, 50))
    assert running_divergence(draws, [10, 50]) == [normal_divergence(draws[:, :10]), normal_divergence(draws)]


def test_the_autocorrelation_of_an_autoregression():
    rng, chains = np.random.default_rng(0), np.zeros((2, 20_000))
    for i in range(1, chains.shape[1]):
        chains[:, i] = 0.8 * chains[:, i - 1] + rng.standard_normal(2)
    np.testing.assert_allclose(autocorrelation(chains, 3), [1.0, 0.8, 0.64, 0.512], atol=0.03)
    assert autocorrelation(np.ones((2, 9)), 3) == [1.0] * 4


def _jacobian(integrator: ExplicitTao, time: float) -> np.ndarray:
    columns = [np.ravel(integrator.bind(*np.split(unit, 4), time)) for unit in np.eye(4)]
    return np.array(columns).T


@pytest.mark.parametrize("angle", [0.3, 1.0, 2.8])
def test_the_released_binding_loses_volume_and_the_printed_one_does_not(angle):
    printed, released = ExplicitTao(1.0, acceptance="one_copy_approximate"), OverwrittenBinding(1.0)
    assert np.linalg.det(_jacobian(printed, 0.5 * angle)) == pytest.approx(1.0)
    lost = (0.5 * (1.0 + math.cos(angle))) ** 4
    assert np.linalg.det(_jacobian(released, 0.5 * angle)) == pytest.approx(lost, rel=1e-6, abs=1e-12)


def test_the_released_binding_makes_copies_equal_at_half_a_turn():
    q, p, copy_q, copy_p = OverwrittenBinding(1.0).bind(*(np.array([x]) for x in (1.0, 2.0, 3.0, 4.0)), 0.5 * math.pi)
    np.testing.assert_allclose((q, p), (copy_q, copy_p))


def test_seeds_are_shown_side_by_side():
    assert spread([0.5, 0.5]) == "0.5"
    assert spread([1.0, 2.0]) == "1, 2"
    assert spread([1.0, 2.0, 9.0]) == "2 (1-9)"
    assert markdown(("a", "b"), [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def _record(sampler: str, **changed) -> dict:
    record = {
        "experiment": "funnel", "sampler": sampler, "seed": 0, "draws": 200, "stopped": "", "tuning": 0.0,
        "sampling": 10.0, "acceptance": 0.9, "steps": 5.0, "failed": 0.0, "kl": 0.1, "kl_bins": 0.2, "mean": 0.0,
        "sd": 3.0, "mcse": 0.1, "ess": 50.0, "rhat": 1.01, "hessians": 100.0, "thirds": 90.0, "counts": [20, 200],
        "running": [0.3, 0.1], "autocorrelation": [1.0, 0.5], "v": [[0.0, 1.0]] * 2, "x": [[0.0, 1.0]] * 2,
    }  # fmt: skip
    return record | changed


def test_a_row_for_each_scheme_and_the_rate_of_a_stuck_one_in_brackets():
    failed = {"experiment": "funnel", "sampler": "hmc", "seed": 0, "error": "what went wrong"}
    rows = funnel_rows([_record("nuts", rhat=2.0), _record("flat"), failed])
    assert [row[0] for row in rows] == [LABELS["nuts"], LABELS["flat"]]
    assert [row[-1] for row in rows] == ["(5)", "5"]
    assert all(len(row) == len(HEADINGS) for row in rows)


def test_ratios_are_those_of_seconds():
    half = _record("explicit exact", sampling=5.0, steps=10.0, ess=100.0)
    ratios = cost_ratios([_record("implicit"), half])["explicit exact"]
    assert ratios == pytest.approx({"step": 4.0, "draw": 2.0, "effective draw": 4.0})


def test_every_scheme_has_a_label_and_its_settings():
    assert set(LABELS) == set(SETTINGS) == set(SAMPLERS)


def test_figures_are_drawn_of_what_there_is(tmp_path):
    paths = draw_figures([_record("nuts"), _record("flat")], tmp_path, "png")
    assert [path.stem for path in paths] == [f"cobb_{n}" for n, (e, _) in FIGURES.items() if e == "funnel"]
    assert all(path.stat().st_size for path in paths)


@pytest.mark.parametrize("name", PAPERS)
def test_a_paper_names_each_run_once(name):
    for full in (False, True):
        keys = [tuple(run.key.values()) for run in load_paper(name).runs(full)]
        assert len(set(keys)) == len(keys)
