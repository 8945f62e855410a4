"""Figures of estimates of the evidence, of results that are made by hand."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import xarray as xr

from pymc_rmhmc import plot_evidence, plot_rungs
from pymc_rmhmc.errors import ConfigurationError, DataError


def bridge(offset=0.0, method="bridge", **more):
    values, errors = np.array([-38.6, -38.1, -38.2]) + offset, np.array([0.4, 0.1, 0.04])
    data = {
        "log_evidence": values[-1], "standard_error": errors[-1], "estimate": ("update", values),
        "error": ("update", errors), "beta": ("rung", [0.0, 0.3, 1.0]), "acceptance": ("rung", [1.0, 0.9, 0.8]),
        "phi_ess": ("rung", [3200.0, 400.0, 800.0]), "phi_sd": ("rung", [3.0, 1.0, 0.5]), **more,
    }  # fmt: skip
    return xr.Dataset(data, {"seconds": ("update", [0.5, 2.0, 8.0])}, {"method": method, "seconds": 12.0})


def annealing(**more):
    betas = np.concatenate(([0.0], np.geomspace(1e-4, 1.0, 20)))
    found = bridge().drop_vars(["beta", "acceptance", "phi_ess", "phi_sd"])
    found = found.assign(beta=("rung", betas), acceptance=("rung", np.r_[np.nan, np.full(19, 0.8), np.nan]), **more)
    return found.assign_attrs(method="annealing")


def approximation(value=-38.5, **more):
    return xr.Dataset({"log_evidence": value, "standard_error": np.nan, **more}, attrs={"method": "ep"})


def labels(figure):
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


def dotted(axis):
    return {round(float(line.get_ydata()[0]), 6) for line in axis.lines if line.get_linestyle() == ":"}


def test_each_result_has_a_line_of_its_estimates_and_a_band_of_two_errors():
    figure = plot_evidence({"a": bridge(), "b": bridge(0.5)}, truth=-38.15)
    (axis,) = figure.axes
    assert labels(figure) == ["known value", "a: -38.200 ± 0.040", "b: -37.700 ± 0.040"]
    first, second = axis.containers
    assert list(first.lines[0].get_xdata()) == [0.5, 2.0, 8.0]
    assert list(second.lines[0].get_ydata()) == pytest.approx([-38.1, -37.6, -37.7])
    corners = axis.collections[1].get_paths()[0].vertices  # the bars of a, its band, and those of b
    assert (corners[:, 1].min(), corners[:, 1].max()) == pytest.approx((-39.4, -37.8))
    assert axis.get_xscale() == "log"
    figure.canvas.draw()
    assert {"1", "2", "5"} <= {label.get_text() for label in axis.get_xticklabels()}
    assert any(list(line.get_ydata()) == [-38.15, -38.15] for line in axis.lines)


def test_a_single_result_is_named_after_its_method():
    assert labels(plot_evidence(bridge())) == ["bridge: -38.200 ± 0.040"]


def test_an_error_has_two_digits():
    assert labels(plot_evidence(bridge(standard_error=0.0123))) == ["bridge: -38.200 ± 0.012"]
    assert labels(plot_evidence(bridge(standard_error=2e-15))) == ["bridge: -38.200000 ± 0.000000"]
    assert labels(plot_evidence(bridge(standard_error=0.0))) == ["bridge: -38.20 ± 0.00"]
    assert labels(plot_evidence(bridge(standard_error=14.0))) == ["bridge: -38 ± 14"]


def test_seconds_that_are_close_have_a_linear_axis():
    close = bridge().assign_coords(seconds=("update", [5.0, 6.0, 7.0]))
    assert plot_evidence(close).axes[0].get_xscale() == "linear"


def test_approximations_are_dotted_lines_and_equal_ones_are_drawn_once():
    results = {"a": bridge(ep=-38.9, ep_second_order=-38.3), "b": bridge(ep=-38.9), "c": bridge(laplace=-40)}
    figure = plot_evidence(results)
    assert dotted(figure.axes[0]) == {-38.9, -38.3, -40.0}
    assert labels(figure)[:3] == ["EP", "EP, second order", "Laplace"]


def test_a_result_without_an_error_is_a_dotted_line_under_its_name():
    figure = plot_evidence({"mine": approximation(ep_second_order=-38.1), "a": bridge(ep=-38.5)})
    assert dotted(figure.axes[0]) == {-38.5, -38.1}
    assert labels(figure)[:2] == ["mine", "EP, second order"]


def test_an_approximation_alone_can_be_drawn():
    assert labels(plot_evidence(approximation())) == ["ep"]


def test_a_result_of_several_blocks_is_a_point_at_its_seconds():
    found = bridge().drop_vars(["estimate", "error", "seconds"])
    (container,) = plot_evidence(found).axes[0].containers
    assert list(container.lines[0].get_xdata()) == [12.0]


def test_bounds_of_annealing_are_triangles():
    axis = plot_evidence(annealing(lower_bound=-39.0, upper_bound=-37.5)).axes[0]
    assert {(line.get_marker(), float(line.get_ydata()[0])) for line in axis.lines if line.get_marker() in "^v"} == {
        ("^", -39.0), ("v", -37.5),
    }  # fmt: skip


def test_an_estimate_that_is_not_finite_is_left_out():
    found = bridge()
    found["error"][0] = np.inf
    (container,) = plot_evidence(found).axes[0].containers
    assert list(container.lines[0].get_xdata()) == [2.0, 8.0]


def test_given_axes_are_drawn_on():
    from matplotlib.figure import Figure

    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert plot_evidence(bridge(), ax=right) is figure
    assert right.containers
    assert not left.containers


def test_a_bridge_has_three_panels_and_annealing_one(tmp_path):
    figure = plot_rungs(bridge())
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["acceptance", "effective draws of φ", "standard deviation of φ"]
    assert list(figure.axes[1].lines[0].get_ydata()) == [3200.0, 400.0, 800.0]
    assert [dotted(axis) for axis in figure.axes] == [{0.4}, {100.0}, set()]
    assert {axis.get_xscale() for axis in figure.axes} == {"linear"}
    assert [axis.get_yscale() for axis in figure.axes] == ["linear", "log", "log"]
    exact = plot_rungs(bridge(phi_sd=("rung", [0.0, 0.0, 0.0])))
    assert exact.axes[2].get_yscale() == "linear"
    (axis,) = plot_rungs(annealing()).axes
    assert axis.get_xscale() == "function"
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0", "0.001", "0.01", "0.1", "1"]
    figure.savefig(tmp_path / "rungs.png")
    assert (tmp_path / "rungs.png").stat().st_size > 5_000


def test_each_block_has_a_line_of_its_own():
    rungs = xr.concat([bridge().drop_dims("update")[["beta", "acceptance"]]] * 2, "rung")
    found = rungs.assign(log_evidence=-70.0, standard_error=0.1).assign_coords(block=("rung", ["f"] * 3 + ["g"] * 3))
    (axis,) = plot_rungs(found).axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["f", "g"]
    assert [line.get_xdata().size for line in axis.lines[:2]] == [3, 3]


@pytest.mark.parametrize(
    ("given", "options", "error", "said"),
    [
        ({}, {}, ConfigurationError, "nothing to draw: give at least one result of log_evidence"),
        ([bridge()], {}, ConfigurationError, 'by name, such as {"bridge": found'),
        (xr.DataTree(), {}, ConfigurationError, "got DataTree"),
        ({"a": bridge(), "b": -38.2}, {}, DataError, "b: this is no result of log_evidence, but float. Give the"),
        (xr.Dataset({"f": 1.0}), {}, DataError, "results: this is no result of log_evidence, but a Dataset without"),
        (bridge(), {"truth": "large"}, ConfigurationError, "truth must be a finite number, got 'large'"),
        (bridge(), {"truth": np.nan}, ConfigurationError, "truth must be a finite number, got nan"),
        (bridge(), {"truth": True}, ConfigurationError, "truth must be a finite number, got True"),
        (bridge(), {"ax": 3}, ConfigurationError, "ax must be axes of Matplotlib, got 3"),
        (bridge(), {"colour": "red"}, ConfigurationError, 'Write plot_evidence({"bridge": found'),
    ],
)
def test_what_cannot_be_drawn_is_said(given, options, error, said):
    with pytest.raises(error, match=re.escape(said)):
        plot_evidence(given, **options)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (approximation(), "has no densities between the approximation and the posterior, because ep needs none"),
        (bridge()["beta"], "result: this is no result of log_evidence, but DataArray"),
        ({"a": bridge()}, "result: this is no result of log_evidence, but dict"),
    ],
)
def test_a_result_without_rungs_is_refused(given, said):
    with pytest.raises(DataError, match=re.escape(said)):
        plot_rungs(given)


@pytest.mark.parametrize("function", [plot_evidence, plot_rungs])
def test_figures_need_matplotlib(function, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=rf"{function.__name__} needs Matplotlib: pip install matplotlib"):
        function(bridge())
