"""What a chain in the graph's chart learns: the lines that scores follow, and a map in the chart of the same refit."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.graph_chart.affine_map import fit_flat_map, log_volume
from pymc_rmhmc.graph_chart.constants import ElementwiseChart, charts_of
from pymc_rmhmc.graph_chart.graph_target import GeneralPoint
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.kernels.kernel import Transition
from pymc_rmhmc.sampled.whole_model import WholeModelDensity
from pymc_rmhmc.tuning.adaptation import DualAveraging, Moment
from pymc_rmhmc.tuning.graph_chart import ChartTuning, GraphChartAdapter
from tests.unit.general_toys import flat_map, matrix_of
from tests.unit.test_general_chart import Charted, without_compiling  # noqa: F401

NOISE, SEEN = np.array([0.5, 0.8, 1.3]), np.array([0.4, -1.0, 2.0])
MOMENT = Moment(20, is_first=False, is_last=False)


@pytest.fixture(scope="module")
def charted(without_compiling) -> Charted:  # noqa: F811
    """Two levels of elements and rows: scores, moments and constants of one have others before and after them."""
    with pm.Model() as model:
        top, log_spread = pm.Normal("top", 0.0, 1.0), pm.Normal("log_spread", -0.3, 0.4)
        middle = pm.Normal("middle", top, pm.math.exp(log_spread), shape=2)
        rows = pm.MvNormal("rows", middle, cov=pm.math.exp(2.0 * log_spread) * np.array([[1.0, 0.4], [0.4, 2.0]]))
        leaf = pm.Normal("leaf", middle[0], pm.math.exp(log_spread), shape=3)
        pm.Normal("y", leaf, NOISE, observed=SEEN)
        pm.Normal("z", rows.sum(), 0.6, observed=1.5)
    return Charted(model, chart=np.empty(0))


def adapter_of(charted: Charted, most_dense: int = 50) -> GraphChartAdapter:
    charts = charts_of(charted.general)
    return GraphChartAdapter(charted.general, charts, str, may_repeat=True, most_dense=most_dense)


def refitted(adapter, draws, *, with_sites: bool = True, step_size=None):
    tuned = adapter.initial()
    tuned.draws = list(draws)
    step_size = DualAveraging(0.3, 0.8) if step_size is None else step_size
    return tuned, adapter.refit(tuned, step_size, MOMENT, np.random.default_rng(0), with_sites=with_sites)


def draws_of(charted: Charted, count: int = 30) -> np.ndarray:
    return 0.5 * np.random.default_rng(3).standard_normal((count, charted.d)) + 0.2


def test_each_variable_has_the_line_of_its_own_scores(charted):
    """A Normal likelihood's score is ``(y - x)/σ²``: exactly a line, from any draws."""
    found, start = refitted(adapter_of(charted), draws_of(charted))[1].tuned.chart, 0
    names = [each.variable.name for each in charted.general.charted]
    assert sorted(names) == ["leaf", "middle", "rows"]
    for each in charted.general.charted:
        own, start = found[start : start + each.n_constants], start + each.n_constants
        if each.variable.name == "leaf":
            np.testing.assert_allclose(own, np.concatenate([NOISE**-2, SEEN / NOISE**2]), rtol=1e-8)
        if each.variable.name == "rows":
            expected = np.concatenate([np.full(4, 0.6**-2), np.full(2, 1.5 / 0.6**2)])
            np.testing.assert_allclose(own, expected, rtol=1e-3, atol=1e-3)


def test_a_line_that_rises_has_no_weight_and_its_mean_for_a_pull():
    """And where no score is, no constants."""
    chart, rng = ElementwiseChart(np.arange(3)), np.random.default_rng(0)
    draws = rng.standard_normal((20, 3))
    scores = np.column_stack([2.0 - 3.0 * draws[:, 0], 1.0 + 0.7 * draws[:, 1], np.zeros(20)])
    found = chart.fit(draws, scores, -draws, np.repeat([0.0, 1.0], 3) * np.ones((20, 1)))
    np.testing.assert_allclose(found, [3.0, 0.0, 0.0, 2.0, scores[:, 1].mean(), 0.0], atol=1e-12)


def test_the_map_is_fitted_in_the_chart_of_the_same_refit(charted):
    """In the chart before it a chain would take steps of other scales than its coordinates have."""
    adapter, draws = adapter_of(charted), draws_of(charted)
    tuned, refit = refitted(adapter, draws)
    found = refit.tuned
    assert np.abs(found.chart).max() > 0.1
    positions, slopes = [], []
    for x in draws:
        z = adapter.charted_point(found, x)
        value = charted.general.density(z, found.chart)[1]
        np.testing.assert_allclose(value[charted.d : 2 * charted.d], x, rtol=1e-8, atol=1e-8)
        positions.append(z)
        slopes.append(value[: charted.d])
    expected = fit_flat_map(np.array(positions), np.array(slopes), np.arange(charted.d))
    for one, other in zip(found.flat, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-9)
    # A chain goes back to what it knew where it has no density in the new chart.
    assert not tuned.chart.any()
    assert len(tuned.draws) == len(draws)
    np.testing.assert_array_equal(FlatMap(*tuned.flat).spread, 1.0)
    assert found.draws == []


@pytest.mark.parametrize(("most", "expected"), [(50, "all"), (5, "unmoved"), (1, "none")])
def test_few_coordinates_share_a_dense_block(charted, most, expected):
    dense = set(adapter_of(charted, most).dense_places())
    unmoved = set(range(charted.d)) - set(charted.general.places)
    assert dense == {"all": set(range(charted.d)), "unmoved": unmoved, "none": set()}[expected]


@pytest.mark.parametrize(("count", "with_sites"), [(1, True), (30, False)])
def test_without_draws_or_leave_nothing_is_refitted(charted, count, with_sites):
    step_size = DualAveraging(0.3, 0.8)
    before = vars(step_size).copy()
    tuned, refit = refitted(adapter_of(charted), draws_of(charted, count), with_sites=with_sites, step_size=step_size)
    assert not refit.changed
    assert refit.tuned.chart is tuned.chart
    assert refit.tuned.draws == []
    assert vars(step_size) == before


def test_a_refit_restarts_the_step_size_and_what_is_counted(charted):
    adapter, step_size = adapter_of(charted), DualAveraging(0.3, 0.8)
    tuned = adapter.initial()
    tuned.draws, tuned.n_steps = list(draws_of(charted)), [3, 9]
    found = adapter.refit(tuned, step_size, MOMENT, np.random.default_rng(0), with_sites=True).tuned
    assert found.n_steps == []
    assert tuned.n_steps == [3, 9]
    assert step_size.average == 1.0


def test_nothing_is_learnt_of_steps_where_a_draw_began_without_a_density(charted):
    adapter, tuned, step_size = adapter_of(charted), ChartTuning(np.zeros(1), ()), DualAveraging(0.3, 0.8)
    before = vars(step_size).copy()
    adapter.learn(tuned, step_size, Transition(None, acceptance=0.0, n_steps=4), stood=False)
    assert vars(step_size) == before
    adapter.learn(tuned, step_size, Transition(None, acceptance=0.0, n_steps=4), stood=True)
    assert vars(step_size) != before
    assert tuned.n_steps == [4, 4]


def test_the_volume_of_a_map_is_its_determinant():
    """The evidence counts it: of the diagonal where it is one, of the dense block, and of the directions."""
    flat = flat_map()
    assert log_volume(flat) == pytest.approx(np.linalg.slogdet(matrix_of(flat))[1], rel=1e-12)


@pytest.mark.parametrize("n_dense", [0, 3], ids=["diagonal", "a block"])
def test_the_centre_is_where_the_mean_gradient_would_be_0(n_dense):
    """``c = mean + S Sᵀ ḡ`` of any draws, with directions and without."""
    rng, d = np.random.default_rng(0), 12
    together = np.full(d, 1.0 / np.sqrt(d))
    covariance = np.eye(d) + 24.0 * np.outer(together, together)
    covariance[np.ix_([0, 1, 2], [0, 1, 2])] += [[2.0, 1.0, 0.3], [1.0, 2.0, 0.5], [0.3, 0.5, 1.0]]
    draws = 2.0 + rng.multivariate_normal(np.zeros(d), covariance, size=60)
    slopes = -draws @ np.linalg.inv(covariance)
    flat = fit_flat_map(draws, slopes, np.arange(n_dense))
    assert flat.stretches.size > 0
    root = matrix_of(flat)
    expected = draws.mean(axis=0) + root @ root.T @ slopes.mean(axis=0)
    np.testing.assert_allclose(flat.centre, expected, rtol=1e-9, atol=1e-9)


def test_a_direction_in_which_values_hold_each_other_is_found():
    """As those of a sum that the data know: the gradients show it, and draws hardly do."""
    rng, d = np.random.default_rng(2), 80
    together = np.full(d, 1.0 / np.sqrt(d))
    covariance = np.eye(d) - 0.96 * np.outer(together, together)
    draws = rng.multivariate_normal(np.zeros(d), covariance, size=90)
    flat = fit_flat_map(draws, -draws @ np.linalg.inv(covariance), np.empty(0, np.int64))
    along = np.linalg.solve(matrix_of(flat), together)
    assert along @ covariance @ along > 0.3  # 0.04 without it


def test_a_point_says_what_the_model_has_of_it():
    """And where a gradient is no number, that is no place to be."""
    u, found = np.array([0.3, -2.0]), np.array([0.5, 1.5, 4.0, 5.0, 0.7])
    point = GeneralPoint(u, -1.1, np.array([0.2, 0.4]), found)
    np.testing.assert_array_equal(point.values, [4.0, 5.0])
    np.testing.assert_array_equal(point.slope, [0.5, 1.5])
    assert point.model_log_density == pytest.approx(-1.1 - 0.5 * u @ u - 0.7)
    assert point.failure is Failure.NONE
    assert GeneralPoint(u, -1.1, np.array([0.2, np.nan]), found).failure is Failure.NON_FINITE
    assert GeneralPoint(u, np.inf, np.array([0.2, 0.4]), found).failure is Failure.NON_FINITE


def test_no_direction_is_found_in_what_a_dense_block_has_told():
    """However its values are correlated: draws and gradients are whitened by it before directions are looked for."""
    rng, lower = np.random.default_rng(1), np.array([[1.0, 0.0, 0.0], [3.0, 0.5, 0.0], [-2.0, 4.0, 0.3]])
    covariance = np.eye(8)
    covariance[:3, :3] = lower @ lower.T
    draws = rng.multivariate_normal(np.zeros(8), covariance, size=90)
    flat = fit_flat_map(draws, -draws @ np.linalg.inv(covariance), np.arange(3))
    assert flat.stretches.size == 0


class Bound(WholeModelDensity):
    def make(self, tuned):
        raise AssertionError("nothing is asked for its coordinates")


def test_a_density_is_bound_anew_where_another_step_has_moved_what_it_reads():
    """Though the array is the same: other steps may write into it."""
    bound = []
    model = SimpleNamespace(
        inputs=("t",), shared=[], bind=lambda point: bound.append(float(point["t"])),
        variables=SimpleNamespace(names=("x",), slices=(slice(0, 2),)),
    )  # fmt: skip
    density = Bound(model, "x", SimpleNamespace(steps=lambda: None), {})
    point = {"x": np.zeros(2), "t": np.array(1.0)}
    assert density.bind(point)[0]
    density._coordinates = "made of the density at t = 1"
    is_stale, given = density.bind(point | {"x": np.ones(2)})
    assert (is_stale, float(given["t"]), bound) == (False, 1.0, [1.0])
    assert density._coordinates is not None
    point["t"][...] = 2.0
    is_stale, given = density.bind(point)
    assert (is_stale, float(given["t"]), bound) == (True, 2.0, [1.0, 2.0])
    assert density._coordinates is None
