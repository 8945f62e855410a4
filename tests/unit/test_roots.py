"""The roots of a model in the graph's chart: one map there and back, its volume, and shapes that draws show."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pymc_rmhmc.graph_chart.constants import FEWEST_SHAPED, LEAST_GAIN, RootChart
from pymc_rmhmc.latent.charts.marginal import fit_shapes
from pymc_rmhmc.model.general.roots import MOST_SHAPED, N_SHAPE
from pymc_rmhmc.tuning.graph_chart import EmulatingAdapter, GraphChartAdapter
from tests.unit.test_general_chart import Charted, derivative, without_compiling  # noqa: F401

NO_RATIOS = np.empty((0, 2), np.int64)


@pytest.fixture(scope="module")
def charted(without_compiling) -> Charted:  # noqa: F811
    """Roots of every kind, whose shapes differ from value to value, and a child of one of them."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.5)
        chol, *_ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=3))
        level = pm.Normal("level", 0.3, 1.2, shape=(2, 1))
        turn, flat, slope = pm.VonMises("turn", 0.2, 1.5), pm.Flat("flat"), pm.Normal("slope")
        many = pm.Normal("many", 0.0, 1.0, shape=MOST_SHAPED + 1)
        child = pm.Normal("child", level.sum() + pm.math.sin(turn) + flat + 0.1 * many.sum(), scale, shape=2)
        rows = pm.MvNormal("rows", np.zeros(3), chol=chol, shape=(2, 3))
        pm.Normal("y", rows.sum() + child.sum() + slope, 0.7, observed=0.4)
    found = Charted(model, chart=np.empty(0))
    shapes = 0.4 * np.random.default_rng(5).standard_normal(N_SHAPE * found.general.roots.size)
    found.chart = np.append(np.zeros(found.general.n_constants - shapes.size), shapes)
    return found


def test_roots_move_others_and_are_few_values_of_a_proper_prior_and_no_angles(charted):
    variables = charted.general.variables
    parts = zip(variables.names, variables.slices, strict=True)
    names = np.concatenate([[name] * (part.stop - part.start) for name, part in parts])
    expected = ["scale_log__", *["chol_cholesky-cov-packed__"] * 6, "level", "level"]
    assert list(names[charted.general.roots]) == expected


def test_beside_its_diagonal_a_factors_row_is_relative_to_it(charted):
    """Of [L11, L21, L22, L31, L32, L33], which begins after the scale."""
    np.testing.assert_array_equal(charted.general.ratios - 1, [(1, 2), (3, 5), (4, 5)])


def test_the_density_is_the_models_and_the_volume_of_the_map(charted):
    logp = charted.model.compile_logp()
    for seed in range(3):
        z = charted.point(seed)
        value, _, x, log_jacobian = charted.at(z)
        assert value - log_jacobian == pytest.approx(float(logp(charted.general.variables.unpack(x))), rel=1e-9)
        jacobian = derivative(lambda at: charted.at(at)[2], z)
        assert log_jacobian == pytest.approx(np.linalg.slogdet(jacobian)[1], abs=1e-5)


def test_the_way_in_leads_to_where_the_map_began(charted):
    z = charted.point(4)
    np.testing.assert_allclose(charted.entered(charted.at(z)[2]), z, rtol=1e-9, atol=1e-10)


def test_the_gradient_is_that_of_the_density(charted):
    z = charted.point(5)
    np.testing.assert_allclose(charted.at(z)[1], derivative(lambda at: charted.at(at)[0], z), rtol=2e-5, atol=2e-5)


def test_draws_of_a_slope_become_normal_and_others_stay_as_they_are():
    """The logarithm of a scale that may be 0 has an exponential tail; normal values have no shape to learn."""
    rng = np.random.default_rng(1)
    draws = np.column_stack([np.log(rng.exponential(1.0, 400)), 3.0 + 2.0 * rng.standard_normal(400), np.ones(400)])
    chart = RootChart(np.arange(3), NO_RATIOS)
    constants = chart.fit(draws, np.empty((400, 0)), np.empty((400, 0)), np.empty((400, 0)))
    found = chart.standardised(draws, np.empty((400, 0)), constants)
    assert stats.skew(draws[:, 0]) < -0.7
    assert abs(stats.skew(found[:, 0])) < 0.3
    assert abs(stats.kurtosis(found[:, 0])) < 0.4
    np.testing.assert_allclose(found[:, 1:], draws[:, 1:], rtol=1e-12)
    assert not constants.reshape(N_SHAPE, 3)[:, 1:].any()


def test_few_draws_tell_no_shape():
    draws = np.log(np.random.default_rng(1).exponential(1.0, (FEWEST_SHAPED - 1, 1)))
    nothing = np.empty((len(draws), 0))
    assert not RootChart(np.arange(1), NO_RATIOS).fit(draws, nothing, nothing, nothing).any()


def test_many_draws_do_not_make_a_slight_shape_worth_a_map():
    draws = np.random.default_rng(3).standard_t(12.0, (4000, 1))
    assert fit_shapes(draws).gain(draws)[0] > 3.0 * LEAST_GAIN
    nothing = np.empty((len(draws), 0))
    assert not RootChart(np.arange(1), NO_RATIOS).fit(draws, nothing, nothing, nothing).any()


def test_shapes_are_of_what_is_left_of_a_ratio():
    """A value that is another's exponential times a normal one is normal relative to it, with a tail by itself."""
    rng = np.random.default_rng(2)
    logarithm, ratio = 1.5 * rng.standard_normal(400), rng.standard_normal(400)
    draws, nothing = np.column_stack([np.exp(logarithm) * ratio, logarithm]), np.empty((400, 0))
    apart, together = (RootChart(np.arange(2), pairs) for pairs in (NO_RATIOS, np.array([[0, 1]])))
    assert apart.fit(draws, nothing, nothing, nothing).any()
    constants = together.fit(draws, nothing, nothing, nothing)
    assert not constants.any()
    np.testing.assert_allclose(together.standardised(draws, nothing, constants)[:, 0], ratio, rtol=1e-12)


class OneScale:
    """Four values that the chart leaves alone but for their shapes: one with a slope, two Student t, and a Normal one.

    With a ridge the last is all but the sum of the two before it: straight only without shapes.
    """

    size, scores, places, gradient_seconds = 4, None, np.empty(0, np.int64), 1e-6
    n_constants = 4 * N_SHAPE

    def __init__(self, has_ridge: bool) -> None:
        self._has_ridge = has_ridge

    def log_density(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Of the logarithm of an exponential value, two Student t values, and a Normal one around 0 or their sum."""
        width, centre = (0.01, x[1] + x[2]) if self._has_ridge else (1.0, 0.0)
        gap = (x[3] - centre) / width
        slope = np.array([1.0 - np.exp(x[0]), *(-1.25 * x[1:3] / (1.0 + x[1:3] ** 2 / 4.0)), -gap / width])
        slope[1:3] += self._has_ridge * gap / width
        return x[0] - np.exp(x[0]) - 2.5 * np.log1p(x[1:3] ** 2 / 4.0).sum() - 0.5 * gap**2, slope

    def density(self, z: np.ndarray, constants: np.ndarray) -> tuple[float, np.ndarray]:
        """In the chart."""
        place, log_spread, skewness, log_tail = constants.reshape(N_SHAPE, 4)
        a, root = (np.arcsinh(z) + skewness) * np.exp(-log_tail), np.sqrt(1.0 + z**2)
        x, stretch = place + np.exp(log_spread) * np.sinh(a), np.exp(log_spread - log_tail) * np.cosh(a) / root
        value, slope = self.log_density(x)
        of_stretch = np.tanh(a) * np.exp(-log_tail) / root - z / root**2
        return value + np.log(stretch).sum(), np.concatenate([slope * stretch + of_stretch, x, [0.0]])

    def draws(self, count: int) -> np.ndarray:
        """Of the posterior."""
        rng = np.random.default_rng(4)
        before = [np.log(rng.exponential(1.0, count)), *rng.standard_t(4.0, (2, count))]
        noise = rng.standard_normal(count)
        return np.column_stack([*before, before[1] + before[2] + 0.01 * noise if self._has_ridge else noise])


@pytest.mark.parametrize("has_ridge", [False, True])
def test_shapes_that_would_bend_a_ridge_are_left(has_ridge):
    model = OneScale(has_ridge)
    adapter = GraphChartAdapter(model, (RootChart(np.arange(4), NO_RATIOS),), str, may_repeat=False, most_dense=50)
    tuned, draws = adapter.initial(), model.draws(300)
    assert adapter._fitted_chart(draws, *3 * (np.empty((300, 0)),)).any()
    z = adapter.fit(tuned, draws)
    assert tuned.chart.any() != has_ridge
    np.testing.assert_allclose(model.density(z[7], tuned.chart)[1][4:8], draws[7], rtol=1e-9)


def test_shapes_are_no_matter_where_there_is_an_emulator():
    """It maps marginals itself, and whether shapes pay is known only after a dear gradient at each draw."""
    model = OneScale(has_ridge=False)
    adapter = EmulatingAdapter(model, (RootChart(np.arange(4), NO_RATIOS),), str, may_repeat=False, most_dense=50)
    tuned, counted = adapter.initial(), []
    of_the_model = model.density
    model.density = lambda z, constants: counted.append(1) or of_the_model(z, constants)
    adapter.fit(tuned, model.draws(300))
    assert not tuned.chart.any()
    assert len(counted) == 300
