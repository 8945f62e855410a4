"""A density without its gradient in normalised coordinates, and the ways between charted and flat coordinates."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor
import pytest

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.graph_chart.affine_map import fit_flat_map, from_flat, identity_map, to_flat
from pymc_rmhmc.graph_chart.graph_target import ValueTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.model.general.density import GeneralModel
from pymc_rmhmc.model.general.roots import N_SHAPE
from tests.unit.general_toys import directions, matrix_of
from tests.unit.test_general_chart import by_python, derivative


@pytest.fixture(scope="module", autouse=True)
def without_compiling():
    with pytest.MonkeyPatch.context() as patch, pytensor.config.change_flags(mode="FAST_COMPILE"):
        patch.setattr("pymc_rmhmc.model.hyperparameters.compile_outputs", by_python)
        yield


def of_scales() -> pm.Model:
    """Values on transformed scales, which no parents move."""
    with pm.Model() as model:
        rate, share = pm.Gamma("rate", 2.0, 1.5), pm.Beta("share", 2.0, 3.0)
        pm.Normal("y", rate * share, pm.HalfNormal("noise"), observed=np.array([0.3, 0.9]))
    return model


def of_parents() -> pm.Model:
    """A hierarchy, whose children the chart moves."""
    with pm.Model() as model:
        top, spread = pm.Normal("top", 0.4, 1.0), pm.HalfNormal("spread", 0.8)
        pm.Normal("y", pm.Normal("child", top, spread, shape=3), 0.7, observed=np.array([0.2, -0.4, 1.5]))
    return model


MODELS = {"scales": of_scales, "parents": of_parents}


def linear(d: int) -> MarginalChart:
    factor = np.tril(0.2 * np.random.default_rng(1).standard_normal((d, d)), -1) + np.diag(np.linspace(0.4, 1.1, d))
    return MarginalChart.linear(np.linspace(-0.3, 0.5, d), factor)


def bent(d: int) -> MarginalChart:
    """With skewness and tails."""
    straight = linear(d)
    shape = np.linspace(-0.2, 0.3, d), np.linspace(0.7, 1.2, d), np.linspace(-0.4, 0.5, d), np.linspace(0.8, 1.3, d)
    return MarginalChart(straight.centre, straight.factor, *shape)


CHARTS = {"linear": linear, "bent": bent}


class Case:
    """A model, a chart of it with some constants, and a target in standard normals."""

    def __init__(self, model: pm.Model, make) -> None:
        self.logp, point = model.compile_logp(), model.initial_point()
        self.general = GeneralModel(model, model.free_RVs, point)
        self.general.bind(point)
        rng, n = np.random.default_rng(2), self.general.n_constants
        n_shapes = N_SHAPE * self.general.roots.size
        of_children = rng.exponential(1.0, (n - n_shapes) // 2), rng.standard_normal((n - n_shapes) // 2)
        constants = np.concatenate((*of_children, 0.3 * rng.standard_normal(n_shapes)))
        self.target = ValueTarget(self.general.value, constants, make(self.general.size))
        self.points = 0.8 * rng.standard_normal((6, self.general.size))

    def model_logp(self, values: np.ndarray) -> float:
        return float(self.logp(self.general.variables.unpack(values)))


@pytest.fixture(scope="module", params=[(m, c) for m in MODELS for c in CHARTS], ids="-".join)
def case(request, without_compiling) -> Case:
    model, chart = request.param
    return Case(MODELS[model](), CHARTS[chart])


def test_the_chart_of_a_hierarchy_moves_its_children():
    assert Case(of_parents(), linear).general.n_constants == 6 + 2 * N_SHAPE
    assert Case(of_scales(), linear).general.n_constants == 0


def test_what_the_density_is_beyond_a_standard_normal(case):
    """That of the values, and the volume from ϑ to them, which is counted by differences here."""
    gaps = []
    for position in case.points:
        found = case.target.at(position)
        jacobian = derivative(lambda at: case.target.at(at).values, position)
        sign, log_volume = np.linalg.slogdet(jacobian)
        assert sign > 0
        gaps.append(found.log_density - case.model_logp(found.values) - log_volume - 0.5 * position @ position)
    assert np.ptp(gaps) < 1e-5
    assert np.ptp([case.target.at(position).log_density for position in case.points]) > 0.1


def test_the_volume_between_standard_normals_and_the_models_chart_is_counted(case):
    """Of z alone, whose log density the function says: but for what is the same everywhere."""
    gaps = []
    for position in case.points:
        found = case.target.at(position)
        jacobian = derivative(lambda at: case.target.at(at).coordinates, position)
        of_z = float(case.general.value(found.coordinates, case.target.constants)[0])
        gaps.append(found.log_density - of_z - np.linalg.slogdet(jacobian)[1] - 0.5 * position @ position)
    assert np.ptp(gaps) < 1e-5


def test_the_models_log_density_is_the_models(case):
    for position in case.points:
        found = case.target.at(position)
        assert found.model_log_density == pytest.approx(case.model_logp(found.values), rel=1e-9, abs=1e-8)


def test_a_point_says_where_it_is(case):
    for position in case.points:
        found = case.target.at(position)
        np.testing.assert_array_equal(found.position, position)
        np.testing.assert_array_equal(found.coordinates, case.target.chart.place(position).theta)
        value, (*values, _) = case.general.density(found.coordinates, case.target.constants)
        np.testing.assert_allclose(found.values, values[case.general.size :], rtol=1e-12)
        assert case.target.beyond_normal(position) == found.log_density
        assert found.failure is Failure.NONE
        np.testing.assert_allclose(case.target.chart.recover(found.coordinates), position, atol=1e-9)


def test_another_chart_has_the_same_density_of_values(case):
    other = case.target.in_chart(MarginalChart.linear(np.full(case.general.size, 0.1), 0.9 * np.eye(case.general.size)))
    for position in case.points:
        here = case.target.at(position)
        there = other.at(other.chart.recover(here.coordinates))
        np.testing.assert_allclose(there.values, here.values, rtol=1e-10, atol=1e-12)
        assert there.model_log_density == pytest.approx(here.model_log_density, rel=1e-9)
    assert case.target.chart is not other.chart


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_no_finite_density_is_a_failure_and_lies_below_all(value):
    def function(z, constants):
        return np.array(value), np.append(z, 0.0)

    target = ValueTarget(function, np.empty(0), linear(2))
    found = target.at(np.zeros(2))
    assert found.failure is Failure.NON_FINITE
    assert target.beyond_normal(np.zeros(2)) == -math.inf


def test_where_the_log_jacobian_is_no_number_there_is_no_density(case):
    """Far out a scale is 0, or infinite."""
    with np.errstate(all="ignore"):
        for sign in (-1.0, 1.0):
            found = case.target.at(np.full(case.general.size, sign * 1e4))
            assert found.failure is (Failure.NONE if math.isfinite(found.log_density) else Failure.NON_FINITE)
            assert not math.isnan(case.target.beyond_normal(found.position))


D = 5


def made(dense=(), *, directed: bool = False) -> FlatMap:
    rng, k = np.random.default_rng(3), len(dense)
    factor = np.tril(0.3 * rng.standard_normal((k, k)), -1) + np.diag(rng.uniform(0.5, 1.5, k))
    ends = directions(D) if directed else (np.empty((0, D)), np.empty(0))
    return FlatMap(rng.standard_normal(D), rng.uniform(0.3, 2.0, D), np.array(dense, np.int64), factor, *ends)


MAPS = {
    "identity": identity_map(np.arange(float(D))),
    "diagonal": made(),
    "dense": made(range(D)),
    "a dense block": made((0, 2, 3)),
    "directions": made(directed=True),
    "a dense block and directions": made((1, 4), directed=True),
}


@pytest.mark.parametrize("flat", MAPS.values(), ids=MAPS)
def test_from_flat_coordinates_and_back(flat):
    rng = np.random.default_rng(4)
    for u in 2.0 * rng.standard_normal((5, D)):
        z = from_flat(flat, u)
        np.testing.assert_allclose(z, flat.centre + matrix_of(flat) @ u, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(to_flat(flat, z), u, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(from_flat(flat, to_flat(flat, u)), u, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("flat", MAPS.values(), ids=MAPS)
def test_the_way_back_changes_nothing_that_it_is_given(flat):
    u, kept = np.ones(D), [np.array(part) for part in flat]
    from_flat(flat, u)[:] = 7.0
    to_flat(flat, u)[:] = 7.0
    np.testing.assert_array_equal(u, 1.0)
    for part, before in zip(flat, kept, strict=True):
        np.testing.assert_array_equal(part, before)


@pytest.mark.parametrize("dense", [(), (0, 1), range(D)], ids=["diagonal", "a block", "dense"])
def test_a_map_that_is_fitted_to_draws_goes_both_ways(dense):
    rng = np.random.default_rng(5)
    draws = rng.standard_normal((60, D)) * np.array([0.1, 1.0, 3.0, 1.0, 1.0]) + 2.0
    draws[:, 3:] += 4.0 * rng.standard_normal((60, 1))  # a wide direction
    precision = np.linalg.inv(np.cov(draws.T))
    flat = fit_flat_map(draws, -(draws - draws.mean(axis=0)) @ precision, np.array(dense, np.int64))
    assert (flat.directions.size > 0) == (len(dense) < D)
    u = np.array([to_flat(flat, z) for z in draws])
    np.testing.assert_allclose([from_flat(flat, each) for each in u], draws, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("error", [ValueError, np.linalg.LinAlgError, FloatingPointError, RuntimeError])
def test_what_an_operation_raises_far_out_is_no_density(error):
    def raises(z, constants):
        raise error("out of range")

    target = ValueTarget(raises, np.empty(0), MarginalChart.linear(np.zeros(2), np.eye(2)))
    assert target.at(np.ones(2)).failure is Failure.NON_FINITE
    assert target.beyond_normal(np.ones(2)) == -np.inf
