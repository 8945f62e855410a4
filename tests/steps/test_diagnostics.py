"""Comparing results: figures, tables, notes, failures; on real runs and on made-up ones."""

from __future__ import annotations

import re

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, SoftAbsMetric, compare, plot_compare, summarize_failures
from pymc_rmhmc.chains.judgement import stood_still
from pymc_rmhmc.diagnostics.failures import ADVICE, failure_advice
from pymc_rmhmc.diagnostics.result_statistics import four_digits, statistic
from pymc_rmhmc.errors import ConfigurationError, DataError, Failure
from pymc_rmhmc.steps.reports import FailureCount
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


def compiled(total, within, *, starts=(0.0, 0.0), tuned=None, whole=5.0, slow_first=0.0):
    """A result of chains of 4 s of draws each, with what each compiled: until its last draw, and in the chain."""
    shape = (len(starts), 400)
    lengths = np.full(shape, 0.01)
    lengths[:, 0] += slow_first
    start = np.array(starts)[:, None] + np.cumsum(lengths, axis=1) - lengths
    in_chain = np.broadcast_to(np.array(within)[..., None], shape) if np.ndim(within) < 2 else np.array(within)
    base = np.array(total)[:, None] - in_chain[:, -1:]
    stats = {
        "perf_counter_start": start, "perf_counter_diff": lengths,
        "compile_seconds": base + in_chain, "compile_seconds_in_chain": in_chain,
    }  # fmt: skip
    result = made_up(shape=shape, stats=stats, sampling_time=whole)
    if tuned is not None:
        result["warmup_sample_stats"] = az.from_dict(
            {"sample_stats": {"compile_seconds_in_chain": np.broadcast_to(np.array(tuned)[:, None], (2, 50))}}
        )["sample_stats"]
    return result


SECONDS = ["seconds", "seconds (sampling)", "seconds (compiling)"]


def seconds(result):
    frame = compare({"x": result})
    assert frame.loc["x", "ESS/s"] == pytest.approx(
        min(frame.loc["x", "ESS bulk min"], frame.loc["x", "ESS tail min"]) / frame.loc["x", "seconds"]
    )
    return frame.loc["x", SECONDS].tolist()


def test_compiling_before_the_chains_counts_once_and_is_no_part_of_their_seconds():
    assert seconds(compiled([20.0, 20.0], [0.0, 0.0])) == pytest.approx([5.0, 4.0, 20.0])


def test_compiling_in_chains_side_by_side_counts_once():
    """Both compile 3 s in tuning, which PyMC's clock has in its 8 s; their draws take 4 s each."""
    assert seconds(compiled([23.0, 23.0], [3.0, 3.0], whole=8.0)) == pytest.approx([5.0, 4.0, 23.0])
    # One compiled 1 s, and its draws began 2 s before the other's.
    result = compiled([23.0, 21.0], [3.0, 1.0], starts=(4.0, 2.0), whole=8.0)
    assert seconds(result) == pytest.approx([5.0, 4.0, 23.0])


def test_compiling_in_chains_one_after_another_adds_up():
    """The second finds compiled what the first has, and compiles a little more: 20 s before, 3 and 1 within."""
    result = compiled([23.0, 24.0], [3.0, 1.0], starts=(3.5, 10.0), whole=14.0)
    assert seconds(result) == pytest.approx([10.0, 8.0, 24.0])


def test_four_chains_on_two_cores():
    starts = (3.0, 3.0, 11.0, 11.0)
    result = compiled([13.0] * 4, [3.0] * 4, starts=starts, whole=16.0)
    assert seconds(result) == pytest.approx([10.0, 8.0, 16.0])


def test_compiling_among_the_draws_is_taken_out_of_them():
    """Of 4 s of draws each 2 s are compiling, in the 100th draw; 1 s was compiled in tuning."""
    within = np.ones((2, 400))
    within[:, 100:] = 3.0
    expected = [3.0, 2.0, 13.0]
    assert seconds(compiled([13.0, 13.0], within, whole=6.0)) == pytest.approx(expected)
    assert seconds(compiled([13.0, 13.0], within, whole=6.0, tuned=[1.0, 1.0])) == pytest.approx(expected)


@pytest.mark.parametrize("tuned", [None, [0.0, 0.0]])
def test_compiling_in_the_first_draw_is_no_tuning(tuned):
    result = compiled([12.0, 12.0], [2.0, 2.0], whole=7.0, slow_first=2.0, tuned=tuned)
    assert seconds(result) == pytest.approx([5.0, 4.0, 12.0])


def test_compiling_of_several_steps_adds_up():
    """PyMC stacks what two of them record, and what a third does not is nan."""
    result = compiled([12.0, 12.0], [2.0, 2.0], whole=7.0)
    stats = result["sample_stats"].to_dataset()
    for name in ("compile_seconds", "compile_seconds_in_chain"):
        value = stats[name].values
        parts = [0.25 * value, np.full_like(value, np.nan), 0.75 * value]
        stats[name] = (("chain", "draw", "step"), np.stack(parts, axis=-1))
    result["sample_stats"] = stats
    assert seconds(result) == pytest.approx([5.0, 4.0, 12.0])


def test_results_that_record_no_compiling_have_none():
    frame = compare({"x": made_up(), "nutpie": nutpie_like()}, {"nutpie": 3.0})
    assert frame["seconds (compiling)"].isna().all()
    assert not any("compil" in note for note in frame.attrs["notes"])


def test_given_seconds_are_taken_as_they_are():
    frame = compare({"x": compiled([20.0, 20.0], [3.0, 3.0])}, {"x": (1.0, 2.0)})
    assert frame.loc["x", SECONDS].tolist() == pytest.approx([3.0, 2.0, 20.0])


def test_the_table_shows_as_many_digits_as_mean_something():
    results = {"ours": made_up(0), "<b>": nutpie_like()}
    frame = compare(results)
    assert isinstance(frame, pd.DataFrame)
    assert frame.loc["ours", "ESS bulk min"] != round(frame.loc["ours", "ESS bulk min"], 3)  # the values have them all
    for table in (frame, frame.T, frame[["draws", "ESS bulk min", "seconds"]]):
        text, page = str(table), table._repr_html_()
        assert repr(table) == text
        for shown_text in (text, page):
            assert "400" in shown_text
            assert "400.0" not in shown_text
            assert not re.search(r"\d\.\d{4}", shown_text.replace("0.00", ""))
        assert text.count("Note: <b>: its draws have no times") == 1
        assert page.count("Note: &lt;b&gt;: its draws have no times") == 1
    assert "Note" not in str(compare({"ours": made_up(0)}))
    assert frame.round(1).loc["ours", "seconds"] == 5.0


@pytest.mark.parametrize(
    ("value", "text"),
    [(4.0, "4"), (400, "400"), (12345678, "12345678"), (1234.56, "1235"), (0.00123456, "0.001235"), (1.00449, "1.004"),
     (np.float64(99.999), "100"), (np.nan, "nan"), (np.inf, "inf"), (-3.14159, "-3.142"), (True, "True"), ("a", "a")],
)  # fmt: skip
def test_numbers_in_text(value, text):
    assert four_digits(value) == text


def test_a_difference_of_means_is_seen():
    shifted = made_up(1)
    shifted["posterior"]["f"].values[..., 1] += 0.5
    frame = compare({"a": made_up(0), "b": shifted})
    assert frame.loc["a", "mean difference"] > 5.0
    assert compare({"a": made_up(0), "b": shifted}, reference="a").loc["b", "mean difference"] > 5.0


def test_results_without_times_get_nan_with_a_note_or_the_times_given():
    results = {"ours": made_up(0), "nutpie": nutpie_like()}
    del results["nutpie"]["posterior"].attrs["sampling_time"]
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
    with pytest.raises(DataError, match='x has no variable "q". x has f, a'):
        function({"x": made_up()}, var_names=["q"])
    wider = az.from_dict({"posterior": {"f": np.zeros((1, 5, 4))}})
    with pytest.raises(DataError, match="different shapes"):
        function({"x": made_up(), "y": wider})


def test_unknown_names_are_errors():
    with pytest.raises(ConfigurationError, match='reference: "NUTS" is not among the results.*names: x'):
        compare({"x": made_up()}, reference="NUTS")
    with pytest.raises(ConfigurationError, match='timings: "NUTS" is not among the results'):
        compare({"x": made_up()}, {"NUTS": 1.0})


@pytest.mark.parametrize("function", [compare, plot_compare])
def test_results_come_by_name(function):
    for given in ([made_up()], (made_up(), made_up()), None, "idata"):
        with pytest.raises(ConfigurationError, match="given by name"):
            function(given)


@pytest.mark.parametrize("function", [compare, plot_compare])
def test_one_result_without_its_name(function):
    with pytest.raises(ConfigurationError, match="given by name"):
        function(made_up())


@pytest.mark.parametrize(
    "bad",
    [-1.0, 0.0, np.nan, np.inf, "fast", "12", [], (1.0,), (1.0, 2.0, 3.0), (-1.0, 2.0), (1.0, 0.0),
     (np.nan, 1.0), ("a", "b"), [[1.0, 2.0]]],
    ids=repr,
)  # fmt: skip
def test_timings_that_are_no_seconds_are_errors(bad):
    with pytest.raises(ConfigurationError, match=r'timings\["x"\] must be'):
        compare({"x": made_up()}, {"x": bad})


@pytest.mark.parametrize("given", [[1, 2], np.array([0.0, 3.0])], ids=repr)
def test_pairs_of_seconds_may_be_any_sequence(given):
    frame = compare({"x": made_up()}, {"x": given})
    assert frame.loc["x", "seconds"] == pytest.approx(3.0)
    assert frame.loc["x", "seconds (sampling)"] == pytest.approx(given[1])


@pytest.mark.parametrize(
    ("library", "says"),
    [("nutpie", "without compiling"), ("numpyro", "for all of it, with compiling"), ("else", "perhaps with compiling")],
)
def test_seconds_that_pymc_recorded_are_taken_where_the_draws_have_none(library, says):
    """nutpie's: PyMC's clock starts once the model is compiled."""
    idata = nutpie_like()
    idata["posterior"].attrs["inference_library"] = library
    frame = compare({"x": idata})
    note, energies = frame.attrs["notes"]
    assert "E-BFMI" in energies
    assert says in note
    assert "timings={'x': (tuning, sampling)}" in note
    assert frame.loc["x", "seconds"] == 5.0
    assert np.isnan(frame.loc["x", ["seconds (sampling)", "ESS/s (sampling)"]].astype(float)).all()
    assert np.isfinite(frame.loc["x", "ESS/s"])


@pytest.mark.parametrize("n_results", [1, 2, 4])
def test_a_table_fits_a_terminal(n_results):
    lines = repr(compare({f"result {i}": made_up(i) for i in range(n_results)})).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 16  # a head, and a line for each figure


def stuck(seed=0, where=1, value=0.7):
    """A result in which one latent value stayed where it began."""
    idata = made_up(seed)
    idata["posterior"]["f"].values[..., where] = value
    return idata


def test_a_parameter_that_never_moved_has_no_effective_samples():
    results = {"stuck": stuck(), "good": made_up(1)}
    frame = compare(results)
    assert frame.loc["stuck", ["ESS bulk min", "ESS tail min", "ESS/s", "ESS/s (sampling)"]].tolist() == [0.0] * 4
    assert frame.loc["good", "ESS bulk min"] > 400
    assert frame.loc["stuck", "mean difference"] > 5.0  # 0.7 against a mean of 0
    (note,) = frame.attrs["notes"]
    assert note == "stuck: f[1] never moved, so its ESS is 0."
    titles = [axis.get_title() for axis in plot_compare(results, n_parameters=1).axes]
    assert titles[0].startswith("f[1]")
    # Chains that stayed in different places are stuck, and no constant.
    results["stuck"]["posterior"]["f"].values[1, :, 1] = -0.7
    frame = compare(results)
    assert frame.loc["stuck", "ESS bulk min"] == 0.0
    assert frame.attrs["notes"] == [note]
    alone = compare({"stuck": results["stuck"], "same": results["stuck"]}, var_names="f")
    assert alone.loc["stuck", "ESS bulk min"] > 0.0  # with nothing that moved to hold it against, f[1] is a constant


def test_constants_of_all_results_are_left_out():
    def with_constant(seed):
        idata = made_up(seed)
        idata["posterior"]["corner"] = 0.0 * idata["posterior"]["a"] + 1.0
        return idata

    plain, constant = {"a": made_up(0), "b": made_up(1)}, {"a": with_constant(0), "b": with_constant(1)}
    frame = compare(constant)
    np.testing.assert_array_equal(frame.values, compare(plain).values)
    assert frame.attrs["notes"] == []
    titles = [axis.get_title() for axis in plot_compare(constant, n_parameters=9).axes]
    assert not any(title.startswith("corner") for title in titles)
    assert sum(title.endswith("autocorrelation") for title in titles) == 3  # a is f[0]


@pytest.mark.parametrize("function", [compare, plot_compare])
def test_constants_alone_are_an_error(function):
    constant = az.from_dict({"posterior": {"c": np.ones((2, 400))}})
    with pytest.raises(DataError, match="No parameter moved"):
        function({"x": constant, "y": constant})


def test_samplers_stuck_at_different_values_differ():
    frame = compare({"here": stuck(0), "there": stuck(1, value=-0.7)})
    assert frame.loc["here", "ESS bulk min"] == 0.0
    assert not frame.loc["here", "mean difference"] < 10.0


@pytest.mark.parametrize("function", [compare, plot_compare])
def test_truths_are_compared_as_zeros_and_ones(function):
    results = {"a": made_up(0), "b": made_up(1)}
    for result in results.values():
        result["posterior"]["above"] = result["posterior"]["a"] > 0.5
    function(results)
    assert results["a"]["posterior"]["above"].dtype == bool  # the result stays as it is
    assert compare(results, var_names="above").loc["a", "ESS bulk min"] > 400


def test_what_is_not_known_has_a_note():
    def notes(**kwargs):
        return compare({"x": made_up(**kwargs)}).attrs["notes"]

    assert notes(shape=(1, 400)) == ["x: R-hat takes two chains, of which it has one."]
    assert notes(shape=(2, 3)) == ["x: ESS, R-hat and errors take 4 draws per chain, of which it has 3."]
    assert notes(stats={"energy": np.full((2, 400), np.nan)}) == [
        "x: E-BFMI takes energies of two draws in every chain, which it has not recorded."
    ]
    bare = made_up()
    del bare["sample_stats"].dataset["failure"]
    bare["sample_stats"] = bare["sample_stats"].to_dataset().drop_vars(["failure", "energy"])
    assert compare({"x": bare}).attrs["notes"] == [
        "x: E-BFMI takes energies of two draws in every chain, which it has not recorded.",
        "x: it has recorded neither failures nor divergences.",
    ]


def test_a_draw_without_an_energy_is_left_out_of_ebfmi():
    energy = np.random.default_rng(0).standard_normal((2, 400))
    whole = compare({"x": made_up(stats={"energy": energy.copy()})}).loc["x", "E-BFMI min"]
    energy[1, 7] = np.nan
    assert compare({"x": made_up(stats={"energy": energy})}).loc["x", "E-BFMI min"] == pytest.approx(whole, rel=0.02)


def test_the_worst_of_two_steps_is_told():
    energy = np.random.default_rng(0).standard_normal((2, 400, 2))
    energy[..., 1] = np.cumsum(energy[..., 1], axis=1)
    result = made_up(stats={"energy": energy, "failure": np.zeros((2, 400, 2))})
    frame = compare({"x": result})
    assert frame.loc["x", "E-BFMI min"] < 0.2 < 1.5 < compare({"x": result}, sampler=0).loc["x", "E-BFMI min"]
    assert frame.attrs["notes"] == []


def with_draw(value):
    idata = made_up()
    idata["posterior"]["f"].values[0, 5, 2] = value
    return idata


UNKNOWN = ["ESS bulk min", "ESS tail min", "ESS/s", "ESS/s (sampling)", "R-hat max", "mean difference"]


def test_a_draw_that_is_nan_is_not_dropped():
    results = {"broken": with_draw(np.nan), "good": made_up(1)}
    frame = compare(results)
    assert frame.loc["broken", UNKNOWN].isna().all()
    assert frame.loc["good", UNKNOWN[:-1]].notna().all()
    # And the figure is drawn: it is where one looks for what went wrong.
    figure = plot_compare(results, var_names="f")
    assert [axis.get_title() for axis in figure.axes][-2].startswith("smallest ESS")


def test_a_reference_with_a_nan_leaves_differences_unknown():
    assert np.isnan(compare({"good": made_up(1), "broken": with_draw(np.nan)}).loc["good", "mean difference"])


@pytest.mark.parametrize(
    "value",
    [
        np.inf,  # ranks and ESS exist, the mean does not
        np.nan,
    ],
)
def test_draws_that_are_not_finite_are_noted(value):
    frame = compare({"broken": with_draw(value), "good": made_up(1)})
    assert np.isnan(frame.loc["broken", "mean difference"])
    assert frame.attrs["notes"] == ["broken: f[2] has draws that are not finite."]


def test_variables_may_be_named_by_one_string():
    results = {"x": made_up(0, correlation=0.5), "y": made_up(1)}
    np.testing.assert_array_equal(compare(results, var_names="f").values, compare(results, var_names=["f"]).values)
    titles = [axis.get_title() for axis in plot_compare(results, var_names="a").axes]
    assert titles[0] == "a: ranks among all draws"
    longer = {name: made_up() for name in results}
    for idata in longer.values():
        idata["posterior"]["slope"] = idata["posterior"]["a"] * 2.0
    assert compare(longer, var_names="slope").loc["x", "ESS bulk min"] > 0


def test_samplers_that_agree_agree_in_ranks_with_ties():
    counts = np.random.default_rng(0).integers(0, 3, (2, 400))
    result = az.from_dict({"posterior": {"k": counts}})
    ranks = plot_compare({"a": result, "b": result, "c": result}, n_parameters=1).axes[0]
    heights = [patch.get_data().values for patch in ranks.patches]
    assert len(heights) == 3
    for height in heights[1:]:
        np.testing.assert_array_equal(height, heights[0])


def test_few_draws_are_drawn():
    figure = plot_compare({"short": made_up(shape=(2, 8))}, n_parameters=1)
    assert figure.axes[-2].lines[0].get_xdata()[-1] == 16


def test_every_panel_says_what_its_axes_are():
    for axis in plot_compare({"a": made_up(0), "b": made_up(1)}).axes:
        assert axis.get_xlabel()
        assert axis.get_ylabel()
        assert axis.get_title()


def test_ranks_have_no_line_at_their_edges():
    """A line from the first bin down to 0 is taken for a bin of its own."""
    for patch in plot_compare({"a": made_up(0), "b": made_up(1)}, n_parameters=1).axes[0].patches:
        vertices = patch.get_path().vertices
        heights = patch.get_data().values
        assert vertices[0].tolist() == [0.0, heights[0]]
        assert vertices[-1].tolist() == [1.0, heights[-1]]


def test_effective_draws_are_shown_against_seconds_without_compiling():
    within = np.zeros((2, 400))
    within[:, 200:] = 1.0
    results = {"plain": made_up(0), "compiled": compiled([1.0, 1.0], within), "nutpie": nutpie_like()}
    by_draws, by_seconds = plot_compare(results, n_parameters=1).axes[-2:]
    assert [line.get_xdata()[-1] for line in by_draws.lines[:3]] == [800, 800, 800]
    plain, other = by_seconds.lines
    assert plain.get_xdata()[-1] == pytest.approx(4.0)
    assert other.get_xdata()[-1] == pytest.approx(3.0)
    assert plain.get_ydata()[-1] == by_draws.lines[0].get_ydata()[-1]
    (text,) = by_seconds.texts
    assert text.get_text() == "no times recorded: nutpie"
    assert not plot_compare({"plain": made_up(0)}, n_parameters=1).axes[-1].texts


def test_all_samplers_of_a_compound_take_time():
    """A draw lasts from the first sampler's start to the last one's end, whoever kept no times."""
    start = np.arange(400) * 0.01 + np.zeros((2, 1))
    starts = np.stack((start, start + 0.004), axis=-1)
    lengths = np.broadcast_to([0.004, 0.006], (2, 400, 2)).copy()
    stats = {"perf_counter_start": starts, "perf_counter_diff": lengths}
    assert compare({"x": made_up(stats=stats)}).loc["x", "seconds (sampling)"] == pytest.approx(4.0)
    starts[..., 0] = np.nan
    assert compare({"x": made_up(stats=stats)}).loc["x", "seconds (sampling)"] == pytest.approx(3.996)


def test_failures_of_a_compound_are_those_of_all_its_samplers():
    failure = np.zeros((2, 400, 3))
    failure[..., 0] = np.nan  # a sampler that records none
    failure[0, :4, 1], failure[1, 9, 2] = Failure.SOLVER, Failure.ENERGY
    energy = np.random.default_rng(0).standard_normal((2, 400, 3))
    energy[..., 0] = np.cumsum(energy[..., 0], axis=1)
    result = made_up(stats={"failure": failure, "energy": energy})
    frame = compare({"x": result})
    assert frame.loc["x", "failures"] == 5
    assert compare({"x": result}, sampler=2).loc["x", "failures"] == 1
    # `failure` says which sampler is RMHMC: its energy is read, and nothing needs saying.
    assert frame.loc["x", "E-BFMI min"] > 1.5
    assert frame.attrs["notes"] == []


def test_places_among_other_numbers_of_samplers_are_not_taken_for_the_same():
    """PyMC stacks what several record: of [NUTS, RMHMC, RMHMC] failures of two, and energies of three."""
    failure, energy = np.zeros((2, 400, 2)), np.random.default_rng(0).standard_normal((2, 400, 3))
    failure[0, :4, 0] = Failure.SOLVER
    result = made_up(stats={"failure": failure, "energy": energy})
    (note,) = compare({"x": result}).attrs["notes"]
    assert note.startswith("x: E-BFMI is of the first sampler")


def test_divergences_are_those_of_the_sampler_that_is_chosen():
    """Beside NUTS `failure` is RMHMC's alone, and PyMC has dropped that it is."""
    failure, diverging = np.zeros((2, 400)), np.zeros((2, 400, 2))
    failure[0, :4], diverging[1, :3, 1] = Failure.SOLVER, 1.0
    result = made_up(stats={"failure": failure, "diverging": diverging})
    assert compare({"x": result}).loc["x", "failures"] == 4
    assert compare({"x": result}, sampler=1).loc["x", "failures"] == 3


@pytest.fixture(scope="module")
def runs(pymc_by_python):
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
    # PyMC has dropped which of the samplers `failure` is of: it is said whose energy is shown.
    (note,) = frame.attrs["notes"]
    assert note.startswith("compound: E-BFMI is of the first sampler")
    assert compare({"compound": compound}, var_names=["f"], sampler=1).attrs["notes"] == []
    with pytest.raises(ConfigurationError, match="samplers 0 to 1"):
        compare({"compound": compound}, sampler=5)


def test_the_figure_shows_the_worst_parameters_of_every_result(runs, tmp_path):
    figure = plot_compare({"compound": runs[0], "alone": runs[1], "slow": runs[1]}, var_names=["f"], n_parameters=2)
    titles = [axis.get_title() for axis in figure.axes]
    assert len(titles) == 7
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


N_DRAWS = (4, 1000)


def failing(rate, seed=0, shape=N_DRAWS, **others):
    """A result with failures at a rate that depends on a scalar v, next to 20 values that tell nothing."""
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(shape)
    codes = np.where(rng.random(shape) < rate(v), int(Failure.SOLVER), int(Failure.NONE))
    posterior = {"x": rng.standard_normal((*shape, 20)), "v": v, **others}
    return az.from_dict({"posterior": posterior, "sample_stats": {"failure": codes}})


def bounds(condition):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", condition)]


@pytest.mark.parametrize(
    ("inside", "words", "edges"),
    [
        (lambda v: v > 1.5, r"v is above \S+", [1.5]),
        (lambda v: v < -1.2, r"v is at most \S+", [-1.2]),
        (lambda v: abs(v) > 1.9, r"v is at most \S+ or above \S+", [-1.9, 1.9]),
        (lambda v: abs(v - 0.5) < 0.15, r"v is above \S+ and at most \S+", [0.35, 0.65]),
    ],
    ids=["upper", "lower", "tails", "between"],
)
def test_the_region_of_failures_is_found(inside, words, edges):
    result = failing(lambda v: np.where(inside(v), 0.5, 0.001))
    summary = summarize_failures(result)
    assert re.fullmatch(words, summary.region)
    np.testing.assert_allclose(bounds(summary.region), edges, atol=0.15)
    v, failed = result["posterior"]["v"].values, result["sample_stats"]["failure"].values > 0
    assert summary.region_draws == pytest.approx(inside(v).mean(), rel=0.2)
    assert summary.region_failures == pytest.approx(inside(v[failed]).mean(), abs=0.1)
    assert summary.region_rate == pytest.approx(failed[inside(v)].mean(), rel=0.2)
    assert not summary.is_trusted
    text = str(summary)
    assert f"lie where {summary.region}: " in text
    assert "Do not trust the draws there or beyond" in text
    assert "raise its alpha" in text


@pytest.mark.parametrize(("bound", "rate"), [(0.8, 0.06), (2.0, 0.1)], ids=["80 failures", "10 failures"])
def test_failures_that_lie_together_are_not_trusted_however_rare(bound, rate):
    summary = summarize_failures(failing(lambda v: np.where(v > bound, rate, 0.0)))
    assert summary.region.startswith("v is above")
    assert not summary.is_trusted
    assert "They lie where v is above" in str(summary)
    assert "Do not trust the draws there or beyond" in str(summary)


def test_six_failures_in_the_last_hundredth_of_the_draws_lie_together():
    result = failing(lambda v: 0.0)
    v, codes = result["posterior"]["v"].values, result["sample_stats"]["failure"].values
    last = np.argsort(v.ravel())[-36::6]
    codes.ravel()[last] = int(Failure.ENERGY)
    assert summarize_failures(result).region.startswith("v is above 2.")
    codes.ravel()[last[1:]] = int(Failure.NONE)  # one alone may lie anywhere
    assert summarize_failures(result).region == ""


@pytest.mark.parametrize("rate", [0.0005, 0.003, 0.02, 0.2])
def test_failures_everywhere_have_no_region_and_are_harmless(rate):
    for seed in range(5):
        summary = summarize_failures(failing(lambda v: rate, seed))
        assert summary.region == ""
        assert np.isnan([summary.region_failures, summary.region_draws, summary.region_rate]).all()
        assert summary.is_trusted
        assert "lie where" not in str(summary)


def test_too_many_failures_are_not_trusted_wherever_they_lie():
    summary = summarize_failures(failing(lambda v: 0.6))
    assert (summary.region, summary.is_trusted) == ("", False)
    assert re.search(r"Do not trust the draws: \d\d % of all trajectories failed", str(summary))


def test_a_chain_that_failed_long_in_one_place_has_no_region():
    """The place is extreme in some value or other, and that says nothing about the others like it."""
    codes = np.zeros(N_DRAWS, dtype=int)
    codes[0, 100:200] = Failure.SOLVER
    result = failing(lambda v: 0.0)
    result["sample_stats"]["failure"].values[:] = codes
    result["posterior"]["v"].values[0, 100:200] = 3.0
    assert summarize_failures(result).region == ""


def test_regions_of_awkward_variables():
    """Whole numbers, truths, constants, draws that are no numbers, and an element with coordinates."""
    rng = np.random.default_rng(1)
    count = rng.integers(0, 6, N_DRAWS)
    failed = (rng.random(N_DRAWS) < 0.5) & (count == 4)
    others = {
        "k": np.stack([rng.integers(0, 6, N_DRAWS), count], axis=-1), "same": np.ones(N_DRAWS), "truth": count == 2,
        "broken": np.where(failed, np.nan, 0.0), "word": np.full(N_DRAWS, "a"),
        "none": np.zeros((*N_DRAWS, 0)),
    }  # fmt: skip
    result = failing(lambda v: failed, **others)
    result["posterior"] = result["posterior"].to_dataset().assign_coords(k_dim_0=["left", "right"])
    summary = summarize_failures(result)
    assert summary.region == "k[right] is above 3 and at most 4"
    assert summary.region_failures == 1.0
    result["posterior"] = result["posterior"].to_dataset().drop_vars("k")
    assert summarize_failures(result).region == ""
    with_infinities = failing(lambda v: failed, endless=np.where(failed, np.inf, rng.standard_normal(N_DRAWS)))
    assert summarize_failures(with_infinities).region.startswith("endless is above")


def test_regions_are_looked_for_with_less_than_a_whole_result():
    codes = failing(lambda v: v > 1.5)["sample_stats"].to_dataset()
    alone = az.from_dict({"sample_stats": {"failure": codes["failure"].values}})
    assert summarize_failures(alone).region == ""
    # A compound, in which the second RMHMC fails, and a ZarrTrace, which keeps the steps apart.
    result = failing(lambda v: v > 1.5)
    stacked = np.stack([np.full(N_DRAWS, np.nan), codes["failure"].values, np.zeros(N_DRAWS)], axis=-1)
    for stats in ({"failure": stacked}, {"sampler_1__failure": codes["failure"].values}):
        result["sample_stats"] = az.from_dict({"sample_stats": stats})["sample_stats"]
        assert summarize_failures(result).region.startswith("v is above 1.")


def test_long_results_are_compared_in_part(monkeypatch):
    """Short variables come first, and of the longest some elements are left out."""
    monkeypatch.setattr("pymc_rmhmc.diagnostics.failures.MOST_NUMBERS", 6 * 4000)
    named = []
    monkeypatch.setattr(
        "pymc_rmhmc.diagnostics.failures._label", lambda name, _, i: named.append((name, i)) or f"{name}{i}"
    )
    assert summarize_failures(failing(lambda v: v > 1.5)).region.startswith("v0 is above 1.")
    assert named == [("v", 0), *(("x", i) for i in (0, 4, 9, 14, 19))]


def test_steps_that_are_too_large_for_the_neck_of_a_funnel():
    """The standard deviation of v is 3, and a chain that fails in the neck hardly enters it."""
    with pm.Model() as funnel:
        v = pm.Normal("v", 0, 3)
        pm.Normal("x", 0, pm.math.exp(v / 2), shape=5)
        step = RMHMC(
            metric=SoftAbsMetric(alpha=1.0), integrator="generalized_leapfrog", step_size=0.5, n_steps=5
        )
    result = draw(funnel, step, draws=600, tune=50, initvals={"v": 0.0, "x": np.full(5, 0.1)})
    summary = summarize_failures(result)
    assert summary.region.startswith("v is at most -")
    assert not summary.is_trusted
    assert "lie where v is at most -" in str(summary)
    assert "Do not trust the draws there or beyond" in str(summary)
    assert "RMHMC(step_size=0.25)" in str(summary)


@pytest.mark.parametrize(
    "shift",
    [lambda v: v + np.c_[[0, 0, 0, 3]], lambda v: v * np.c_[[1, 1, 1, 4]], lambda v: v.cumsum(axis=1)],
    ids=["in place", "in spread", "in time"],
)
def test_chains_that_differ_are_not_trusted_without_any_failure(shift):
    v = shift(np.random.default_rng(3).standard_normal(N_DRAWS))
    summary = summarize_failures(failing(lambda _: 0.0, w=v))
    assert (summary.total, summary.disagreement, summary.is_trusted) == (0, "w", False)
    assert summary.rhat == pytest.approx(float(az.rhat(v)))
    assert "the chains differ in w (R-hat" in str(summary)
    one = summarize_failures(failing(lambda _: 0.0, shape=(1, 1000), w=v[:1]))
    assert one.is_trusted


@pytest.mark.parametrize("shape", [(2, 5), (2, 30), (4, 100), (4, 1000)])
def test_equal_chains_are_trusted_however_short(shape):
    for seed in range(20):
        summary = summarize_failures(failing(lambda v: 0.0, seed, shape))
        assert (summary.disagreement, summary.is_trusted) == ("", True)
        assert "differ" not in str(summary)


def test_failures_of_real_runs(runs):
    summary = summarize_failures(runs[0])
    assert summary.total == 0
    assert "No trajectory failed" in str(summary)
    assert "In tuning: none" in str(summary)
    assert summarize_failures(runs[1]).tuning_counts is None


def test_results_without_failures_say_so():
    with pytest.raises(DataError, match=r"no `failure` statistic.*Its statistics are .*depth"):
        summarize_failures(nutpie_like())
    with pytest.raises(DataError, match="Its groups are posterior, without sample_stats"):
        summarize_failures(az.from_dict({"posterior": {"f": np.zeros((1, 4))}}))


def test_failures_that_are_kept_by_the_number_of_the_step():
    """A ZarrTrace writes the statistics of every step apart."""
    codes = with_failures()["sample_stats"]["failure"].values
    summary = summarize_failures(made_up(stats={"sampler_1__failure": codes, "failure": np.zeros_like(codes)}))
    np.testing.assert_array_equal(summary.counts[Failure.SOLVER], [30, 0])


def test_advice_is_given_for_what_matters_alone():
    assert failure_advice({}, 100) is None
    assert failure_advice({Failure.SOLVER: 1}, 100) is None
    text = failure_advice({Failure.SOLVER: 3, Failure.NOT_POSITIVE_DEFINITE: 9}, 100)
    assert "12 of 100" in text
    assert "jitter=1e-4" in text
    assert "RMHMC(target_accept=0.95)" in failure_advice({Failure.ENERGY: 9}, 100)
    assert set(ADVICE) == set(Failure) - {Failure.NONE}


@pytest.mark.parametrize("cause", [Failure.SOLVER, Failure.NON_REVERSIBLE, Failure.ENERGY])
def test_a_given_step_size_is_advised_to_be_smaller(cause):
    """There is nothing that `target_accept` would tune."""
    count = FailureCount()
    count.add(cause)
    codes = np.full((2, 400), int(cause))
    steps = {"step_size": np.full((2, 400), 0.8), "step_size_bar": np.full((2, 400), np.nan)}
    for said in (
        count.warning(step_size=0.8).message, str(summarize_failures(made_up(stats={"failure": codes, **steps}))),
    ):  # fmt: skip
        assert "RMHMC(step_size=0.4)" in said
        assert "target_accept" not in said
    still = stood_still("f", [cause] * 30, 0.8)
    assert "step_size=0.8 is probably too large. Leave step_size out" in still
    assert "target_accept" not in still
    adapted = steps | {"step_size_bar": steps["step_size"]}
    assert "target_accept=0.95" in str(summarize_failures(made_up(stats={"failure": codes, **adapted})))


def test_a_covariance_that_was_lost_once_is_told_without_alarm():
    count = FailureCount()
    for i in range(1000):
        count.add(Failure.NOT_POSITIVE_DEFINITE if i == 7 else Failure.NONE)
    told = count.warning("ls_log__ = 3.0")
    assert told.level == "info"
    assert told.message == (
        "RMHMC: 1 of 1000 trajectories failed because a covariance or metric was not positive definite. This is "
        "harmless while it is rare. The covariance was last not positive definite at ls_log__ = 3.0."
    )
    assert count.warning("", "It is cut short.").level == "warn"
    assert FailureCount().warning() is None


def test_a_value_and_what_is_made_of_it_are_drawn_once():
    """A whitened process next to its values, and a logarithm next to its exponential, look alike twice."""
    idata = made_up()
    f = idata["posterior"]["f"].values
    given = {"f_rotated_": 0.9 * f[..., ::-1], "f": f, "rate": np.exp(f[..., :2]), "minus": -f[..., 2]}
    figure = plot_compare({"x": az.from_dict({"posterior": given})}, n_parameters=9)
    titles = [axis.get_title() for axis in figure.axes]
    assert {title.split(":")[0] for title in titles if "ranks" in title} == {"f[0]", "f[1]", "f[2]"}
