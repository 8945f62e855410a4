"""Comparing results: figures, tables, notes, failures; on real runs and on made-up ones."""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, compare, plot_compare, summarize_failures
from pymc_rmhmc.diagnostics.failures import ADVICE, failure_advice
from pymc_rmhmc.diagnostics.statistics import statistic
from pymc_rmhmc.errors import ConfigurationError, DataError, Failure
from tests.steps.conftest import draw, poisson_model


def made_up(seed=0, shape=(2, 400), correlation=0.0, stats=None, **attrs):
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((*shape, 3))
    f = np.empty_like(noise)
    f[:, 0] = noise[:, 0]
    for i in range(1, shape[1]):
        f[:, i] = correlation * f[:, i - 1] + np.sqrt(1 - correlation**2) * noise[:, i]
    start = np.arange(shape[1]) * 0.01 + np.zeros((shape[0], 1))
    sample_stats = {
        "perf_counter_start": start, "perf_counter_diff": np.full(shape, 0.01), "energy": rng.standard_normal(shape),
        "failure": np.zeros(shape, dtype=int), **(stats or {}),
    }  # fmt: skip
    idata = az.from_dict({"posterior": {"f": f, "a": f[..., 0]}, "sample_stats": sample_stats})
    idata["posterior"].attrs.update({"sampling_time": 5.0, "tuning_steps": 100, **attrs})
    return idata


def nutpie_like(seed=1):
    idata = made_up(seed)
    idata["sample_stats"] = az.from_dict(
        {"sample_stats": {"depth": np.ones((2, 400)), "diverging": np.zeros((2, 400), dtype=bool)}}
    )["sample_stats"]
    return idata


def test_compare_counts_effective_samples_and_seconds():
    frame = compare({"good": made_up(0), "slow": made_up(1, correlation=0.9)})
    assert list(frame.index) == ["good", "slow"]
    assert frame.loc["good", "ESS bulk min"] > 4 * frame.loc["slow", "ESS bulk min"]
    # Two chains side by side: 400 draws of 10 ms are 4 s of wall-clock, and 1 of the 5 s was tuning.
    assert frame.loc["good", "seconds (sampling)"] == pytest.approx(4.0)
    assert frame.loc["good", "seconds"] == pytest.approx(5.0)
    smallest = min(frame.loc["good", "ESS bulk min"], frame.loc["good", "ESS tail min"])
    assert frame.loc["good", "ESS/s"] == pytest.approx(smallest / 5.0)
    assert frame.loc["good", "ESS/s (sampling)"] == pytest.approx(smallest / 4.0)
    assert frame.loc["good", "mean difference"] < 4.0
    assert np.isnan(frame.loc["slow", "mean difference"])
    assert frame.loc["good", "failures"] == 0
    assert 1.5 < frame.loc["good", "E-BFMI min"] < 2.5  # independent energies
    assert frame.attrs["notes"] == []


def test_chains_one_after_another_add_up():
    idata = made_up()
    idata["sample_stats"]["perf_counter_start"].values[1] += 100.0
    assert compare({"x": idata}).loc["x", "seconds (sampling)"] == pytest.approx(8.0)


def test_a_difference_of_means_is_seen():
    shifted = made_up(1)
    shifted["posterior"]["f"].values[..., 1] += 0.5
    frame = compare({"a": made_up(0), "b": shifted})
    assert frame.loc["a", "mean difference"] > 5.0
    assert compare({"a": made_up(0), "b": shifted}, reference="a").loc["b", "mean difference"] > 5.0


def test_results_without_times_get_nan_with_a_note_or_the_times_given():
    results = {"ours": made_up(0), "nutpie": nutpie_like()}
    frame = compare(results)
    assert np.isnan(frame.loc["nutpie", "ESS/s"])
    assert "timings" in frame.attrs["notes"][0]
    assert np.isnan(frame.loc["nutpie", "E-BFMI min"])
    assert frame.loc["nutpie", "failures"] == 0
    frame = compare(results, {"nutpie": (1.0, 2.0)})
    assert frame.loc["nutpie", "seconds"] == pytest.approx(3.0)
    frame = compare(results, {"nutpie": 10.0})
    assert frame.loc["nutpie", "seconds (sampling)"] == pytest.approx(8.0)
    assert "divided" in frame.attrs["notes"][0]


@pytest.mark.parametrize("function", [compare, plot_compare])
def test_what_cannot_be_compared_is_named(function):
    with pytest.raises(ConfigurationError, match="nothing"):
        function({})
    with pytest.raises(DataError, match="no posterior"):
        function({"x": az.from_dict({"sample_stats": {"lp": np.zeros((1, 5))}})})
    other = az.from_dict({"posterior": {"g": np.zeros((1, 5))}})
    with pytest.raises(DataError, match="no variable in common"):
        function({"x": made_up(), "y": other})
    with pytest.raises(DataError, match="has no variable q"):
        function({"x": made_up()}, var_names=["q"])
    wider = az.from_dict({"posterior": {"f": np.zeros((1, 5, 4))}})
    with pytest.raises(DataError, match="different shapes"):
        function({"x": made_up(), "y": wider})


def test_unknown_names_are_errors():
    with pytest.raises(ConfigurationError, match='"NUTS" is not among'):
        compare({"x": made_up()}, reference="NUTS")
    with pytest.raises(ConfigurationError, match='"NUTS" is not among'):
        compare({"x": made_up()}, {"NUTS": 1.0})


@pytest.fixture(scope="module")
def runs():
    model = poisson_model(sampled=True)
    with model:
        compound = draw(
            model, [RMHMC(vars=["f"]), pm.NUTS(vars=[model["ls"]])], draws=60, chains=2, discard_tuned_samples=False
        )
    fixed = poisson_model()
    return compound, draw(fixed, draws=60, chains=2)


def test_real_runs_and_compounds(runs):
    compound, alone = runs
    frame = compare({"compound": compound, "alone": alone}, var_names=["f"])
    assert frame.loc["compound", "failures"] == 0
    assert np.isfinite(frame[["seconds", "ESS/s", "R-hat max", "E-BFMI min"]].values).all()
    ours = statistic(compound, "energy", 0)
    np.testing.assert_array_equal(statistic(compound, "energy"), ours)
    assert not np.array_equal(statistic(compound, "energy", 1), ours)
    with pytest.raises(ConfigurationError, match="samplers 0 to 1"):
        compare({"compound": compound}, sampler=5)


def test_the_figure_shows_the_worst_parameters_of_every_result(runs, tmp_path):
    figure = plot_compare({"compound": runs[0], "alone": runs[1], "slow": runs[1]}, var_names=["f"], n_parameters=2)
    titles = [axis.get_title() for axis in figure.axes]
    assert len(titles) == 6
    assert sum(title.startswith("f[") for title in titles) == 4
    figure.savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    with pytest.raises(ConfigurationError, match="n_parameters"):
        plot_compare({"x": runs[1]}, n_parameters=0)


def test_the_figure_does_without_energy():
    figure = plot_compare({"nutpie": nutpie_like()}, n_parameters=1)
    assert any(text.get_text() == "no energy recorded" for axis in figure.axes for text in axis.texts)


def with_failures():
    codes = np.zeros((2, 400), dtype=int)
    codes[0, :30] = Failure.SOLVER
    codes[1, 5:8] = Failure.NON_FINITE
    return made_up(stats={"failure": codes})


def test_failures_are_counted_by_cause_and_chain_with_what_to_do():
    summary = summarize_failures(with_failures())
    assert summary.total == 33
    assert summary.rate == pytest.approx(33 / 800)
    np.testing.assert_array_equal(summary.counts[Failure.SOLVER], [30, 0])
    text = str(summary)
    assert "33 of 800" in text
    assert "SOLVER: 30 (by chain: 30, 0)" in text
    assert ADVICE[Failure.NON_FINITE][1] in text
    assert "ENERGY" not in text
    assert compare({"x": with_failures()}).loc["x", "failures"] == 33


def test_failures_of_real_runs(runs):
    summary = summarize_failures(runs[0])
    assert summary.total == 0
    assert "No trajectory failed" in str(summary)
    assert "In tuning: none" in str(summary)
    assert summarize_failures(runs[1]).tuning_counts is None


def test_results_without_failures_say_so():
    with pytest.raises(DataError, match="no `failure` statistic"):
        summarize_failures(nutpie_like())


def test_advice_is_given_for_what_matters_alone():
    assert failure_advice({}, 100) is None
    assert failure_advice({Failure.SOLVER: 1}, 100) is None
    text = failure_advice({Failure.SOLVER: 3, Failure.NOT_POSITIVE_DEFINITE: 9}, 100)
    assert "12 of 100" in text
    assert "jitter" in text
    assert set(ADVICE) == set(Failure) - {Failure.NONE}
