"""The roots of a model in the graph's chart: one map there and back, its volume, and shapes that draws show."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest
from scipy import stats

from pymc_rmhmc.graph_chart.constants import FEWEST_SHAPED, RootChart
from pymc_rmhmc.model.general.roots import MOST_SHAPED, N_SHAPE
from tests.unit.test_general_chart import Charted, derivative, without_compiling  # noqa: F401

NO_RATIOS = np.empty((0, 2), np.int64)


@pytest.fixture(scope="module")
def charted(without_compiling) -> Charted:  # noqa: F811
    """Roots of every kind, whose shapes differ from value to value, and a child of one of them."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.5)
        chol, *_ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=3))
        level = pm.Normal("level", 0.3, 1.2, shape=(2, 1))
        pm.VonMises("turn", 0.2, 1.5)
        flat = pm.Flat("flat")
        many = pm.Normal("many", 0.0, 1.0, shape=MOST_SHAPED + 1)
        child = pm.Normal("child", level.sum(), scale, shape=2)
        pm.Normal("y", chol.sum() + child.sum() + 0.1 * many.sum() + flat, 0.7, observed=0.4)
    found = Charted(model)
    n_shapes = N_SHAPE * found.general.roots.size
    found.chart[-n_shapes:] = 0.4 * np.random.default_rng(5).standard_normal(n_shapes)
    return found


def test_roots_are_few_values_of_a_proper_prior_that_nothing_moves_and_no_angles(charted):
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
