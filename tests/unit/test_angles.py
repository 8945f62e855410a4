"""Values on circles: which they are, and trajectories, maps and densities that keep to the circle."""

from __future__ import annotations

import math

import numba
import numpy as np
import pymc as pm
import pytest
from pymc.distributions.transforms import Transform, circular, log
from scipy import integrate, special, stats

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.graph_chart.affine_map import fit_flat_map, log_volume, to_flat
from pymc_rmhmc.graph_chart.constants import Angles
from pymc_rmhmc.graph_chart.graph_target import GeneralTarget, PeriodTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.model.general import families
from pymc_rmhmc.model.general.blocks_or_graph import InGraphChart, blocks_or_graph
from pymc_rmhmc.model.general.density import GeneralModel, period_of
from pymc_rmhmc.model.general.families import register_family
from pymc_rmhmc.tuning.graph_chart import GraphChartAdapter
from tests.unit.general_toys import matrix_of

TURN = 2.0 * math.pi
KAPPA = 2.0
# The second of three values is an angle.
ANGLES = Angles(np.array([1]), np.array([TURN]))


@numba.njit
def winding(z, chart):
    """An angle around another value, which has a normal density, and one that depends on both."""
    found, away, beyond = np.zeros(2 * z.size + 1), z[1] - z[0], z[2] - math.cos(z[1])
    found[0] = -z[0] + KAPPA * math.sin(away)
    found[1] = -KAPPA * math.sin(away) - beyond * math.sin(z[1])
    found[2] = -beyond
    found[z.size : 2 * z.size] = z
    return np.array(-0.5 * z[0] ** 2 + KAPPA * math.cos(away) - 0.5 * beyond**2), found


@numba.njit
def von_mises(z, chart):
    """One angle with a normalised density."""
    value = KAPPA * math.cos(z[0]) - chart[0]
    return np.array(value), np.array([-KAPPA * math.sin(z[0]), z[0], 0.0])


LOG_CONSTANT = np.array([math.log(TURN * special.i0(KAPPA))])


def winding_map() -> FlatMap:
    """A map that was fitted to some draws and their gradients, all in one dense block."""
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((60, 3)) @ np.array([[0.7, 0.6, 0.0], [0.0, 0.5, 0.3], [0.0, 0.0, 0.8]])
    slopes = np.array([winding(z, np.zeros(0))[1][:3] for z in draws])
    return fit_flat_map(draws, slopes, np.arange(3), ANGLES)


def test_no_other_coordinate_of_a_fitted_map_depends_on_an_angle():
    flat = winding_map()
    assert (flat.dense.tolist(), flat.free.tolist()) == ([0, 2, 1], [1])
    matrix = matrix_of(flat)
    np.testing.assert_array_equal(matrix[[0, 2], 1], 0.0)
    assert np.abs(matrix[1, [0, 2]]).min() > 1e-3  # that an angle depends on them is of use
    np.testing.assert_allclose(flat.centre[1], winding_map().centre[1])


@pytest.mark.parametrize("dense", [np.arange(30), np.empty(0, np.int64)], ids=["dense", "directions"])
def test_no_angle_is_wider_than_its_circle(dense):
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((80, 30)) + 3.0 * rng.standard_normal((80, 1))  # one direction is far wider
    slopes = -(draws - draws.mean(axis=1, keepdims=True))
    draws[:, 4] = rng.uniform(-math.pi, math.pi, 80)
    slopes[:, 4] = 0.0
    flat = fit_flat_map(draws, slopes, dense, Angles(np.array([4]), np.array([TURN])))
    widths = np.linalg.norm(matrix_of(flat), axis=1)
    assert 1.0 < widths[4] <= TURN / math.sqrt(12.0) * (1 + 1e-12)
    assert (len(flat.directions) > 0) == (dense.size == 0)
    np.testing.assert_array_equal(flat.directions[:, 4], 0.0)
    assert flat.centre[4] == pytest.approx(draws[:, 4].mean())


@pytest.mark.parametrize("way", ["follow", "walk", "grow"])
def test_a_trajectory_commutes_with_a_move_by_a_period(way):
    flat = winding_map()
    target, rng = GeneralTarget(winding, (), np.zeros(0), flat), np.random.default_rng(2)
    move = to_flat(flat, flat.centre + np.array([0.0, TURN, 0.0]))
    for _ in range(5):
        u, p = rng.standard_normal(3), rng.standard_normal(3)
        ends = []
        for start in (u, u + 3.0 * move):
            point = target.at(start)
            if way == "follow":
                made, (end, momentum), failure = target.advance(point, p, 7, 0.4)
                assert (made, failure) == (7, Failure.NONE)
                ends.append((end.position - start, momentum, target.at(end.position).slope))
            else:
                moved = target.walk(point, p, 0.4, (2.0, 0.3, 50), 3, 5) if way == "walk" else (
                    target.grow(point, p, 0.4, 5, 3, 5))
                ends.append((moved.point.position - start, moved.momentum, moved.acceptance))
        assert np.abs(ends[0][0]).max() > 0.1
        for here, there in zip(*ends, strict=True):
            np.testing.assert_allclose(there, here, atol=1e-9)


def test_paths_of_free_coordinates_lead_back_and_keep_energy():
    flat = winding_map()
    target, rng = GeneralTarget(winding, (), np.zeros(0), flat), np.random.default_rng(3)
    flow = GaussianHamiltonian(target)
    for _ in range(5):
        u, p = rng.standard_normal(3), rng.standard_normal(3)
        start = flow.state(u)
        start = type(start)(start.point, p)
        errors = []
        for n in (10, 20):
            _, (end, momentum), _ = target.advance(start.point, p, n, 3.0 / n)
            errors.append(flow.energy(type(start)(end, momentum)) - flow.energy(start))
            _, (back, _), _ = target.advance(end, momentum, n, -3.0 / n)
            np.testing.assert_allclose(back.position, u, atol=1e-11)
        assert abs(errors[1]) < max(0.5 * abs(errors[0]), 1e-3)  # of second order


def test_draws_of_an_angle_have_the_right_tail_wherever_the_map_lies():
    centre, spread = np.array([1.3]), np.array([0.8])
    none = np.empty((0, 0))
    flat = FlatMap(centre, spread, np.empty(0, np.int64), none, np.empty((0, 1)), np.empty(0), np.array([0]))
    target = GeneralTarget(von_mises, (), LOG_CONSTANT, flat)
    flow, rng = GaussianHamiltonian(target, advance=target.advance, makes=target), np.random.default_rng(4)
    path, state, angles = JitteredPath(1.7, 0.3, 100), flow.state(np.zeros(1)), []
    for _ in range(10_000):
        state = path.move(flow, None, state, 0.6, rng).state
        angles.append(state.point.values[0])
    wrapped = np.angle(np.exp(1j * np.array(angles)))
    for bound in (1.0, 2.0, 2.7):
        exact = 2.0 * stats.vonmises(KAPPA).sf(bound)
        error = math.sqrt(exact * (1.0 - exact) / 5_000)  # at least half of the draws count
        assert abs((np.abs(wrapped) > bound).mean() - exact) < 4.0 * error
    assert np.abs(np.array(angles)).max() > TURN


def test_the_density_of_one_period_is_normalised_on_the_circle():
    centre, spread = np.array([1.3]), np.array([0.8])
    none = np.empty((0, 0))
    flat = FlatMap(centre, spread, np.empty(0, np.int64), none, np.empty((0, 1)), np.empty(0), np.array([0]))
    angles = Angles(np.array([0]), np.array([TURN]))
    residual = PeriodTarget(GeneralTarget(von_mises, (), LOG_CONSTANT, flat), angles, centre)

    def weighed(u: float) -> float:
        return math.exp(residual.at(np.array([u])).log_density - 0.5 * u * u)

    ends = [-math.pi / 0.8, math.pi / 0.8]
    total, _ = integrate.quad(weighed, -12.0, 12.0, points=ends, limit=200)
    assert math.log(total) + log_volume(flat) == pytest.approx(0.0, abs=1e-6)
    outside = residual.at(np.array([math.pi / 0.8 + 0.01]))
    assert outside.failure == Failure.NON_FINITE


class OneAngle:
    """A model of one angle, as an adapter sees it: von Mises, or uniform."""

    n_constants, size, scores = 0, 1, None

    def __init__(self, kappa: float) -> None:
        self.kappa = kappa

    def density(self, z, constants):
        return np.array(self.kappa * math.cos(z[0])), np.array([-self.kappa * math.sin(z[0]), z[0], 0.0])


def tuned_to(draws: np.ndarray, kappa: float):
    """An adapter of one angle, and what it learns of draws."""
    angles = Angles(np.array([0]), np.array([TURN]))
    adapter = GraphChartAdapter(OneAngle(kappa), (), str, False, 50, angles)
    tuned = adapter.initial()
    adapter.fit(tuned, draws[:, None])
    return adapter, tuned


def test_a_map_is_fitted_on_the_circle_and_stands_in_one_period():
    rng = np.random.default_rng(5)
    draws = rng.vonmises(0.0, 30.0, 200)
    adapter, tuned = tuned_to(draws + TURN * rng.integers(-3, 4, 200), 30.0)
    _, same = tuned_to(draws, 30.0)
    for found, expected in zip(FlatMap(*tuned.flat), FlatMap(*same.flat), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    assert FlatMap(*tuned.flat).free.tolist() == [0]
    here, there = (adapter.coordinates(tuned, np.array([0.2 + by])) for by in (0.0, 4 * TURN))
    np.testing.assert_allclose(there, here, atol=1e-9)
    np.testing.assert_allclose(adapter.wrapped(tuned, np.array([0.2 - TURN])), [0.2], atol=1e-12)


def test_an_angle_that_nothing_depends_on_is_uniform_on_its_circle():
    _, tuned = tuned_to(np.random.default_rng(6).uniform(-math.pi, math.pi, 200), 0.0)
    assert FlatMap(*tuned.flat).factor[0, 0] == pytest.approx(TURN / math.sqrt(12.0))


def test_values_are_wrapped_around_a_centre():
    angles = Angles(np.array([0, 2]), np.array([TURN, 1.0]))
    values = np.array([[7.0, 50.0, 3.2], [-0.1, 50.0, 3.9], [0.3, 50.0, -1.1]])
    centre = angles.centre(values)
    assert centre[1] == pytest.approx(0.0, abs=0.05)
    wrapped = angles.wrapped(values, centre)
    np.testing.assert_allclose(wrapped, [[7.0 - TURN, 50.0, 0.2], [-0.1, 50.0, -0.1], [0.3, 50.0, -0.1]])
    np.testing.assert_array_equal(angles.wrapped(wrapped, centre), wrapped)
    assert all(angles.are_within(row, centre) for row in wrapped)
    assert not angles.are_within(values[0], centre)


class Turning(Transform):
    """A user's transform: the value counts turns."""

    name, ndim_supp, circumference = "turning", 0, 360.0

    def backward(self, value, *inputs):
        return self.circumference * (value % 1.0) - 180.0

    def forward(self, value, *inputs):
        return (value + 180.0) / self.circumference

    def log_jac_det(self, value, *inputs):
        return pm.math.log(self.circumference) + 0.0 * value


class Weighted(Turning):
    """One whose density is not that of a circle."""

    def log_jac_det(self, value, *inputs):
        return -0.5 * value**2


class Stretched(Turning):
    """One that goes to the positive numbers."""

    def backward(self, value, *inputs):
        return pm.math.exp(value) - 180.0


PERIODS = {
    "pymc": (lambda: pm.VonMises("a", 0.0, 1.0, shape=2), TURN),
    "uniform": (lambda: pm.Uniform("a", -np.pi, np.pi, default_transform=None, transform=circular), TURN),
    "chained": (lambda: pm.Uniform("a", -np.pi, np.pi, transform=circular), TURN),
    "own": (lambda: pm.Uniform("a", -180, 180, shape=(2, 1), default_transform=None, transform=Turning()), 1.0),
    "line": (lambda: pm.Normal("a", 0.0, 1.0), None),
    "bounded": (lambda: pm.Beta("a", 2.0, 2.0), None),
    "positive": (lambda: pm.HalfNormal("a", 2.0), None),
    "ordered": (lambda: pm.Normal("a", 0, 1, shape=3, transform=pm.distributions.transforms.ordered), None),
    "circle first": (lambda: pm.HalfNormal("a", 1.0, default_transform=circular, transform=log), None),
    "weighted": (lambda: pm.Uniform("a", -180, 180, default_transform=None, transform=Weighted()), None),
    "stretched": (lambda: pm.Uniform("a", -180, 180, default_transform=None, transform=Stretched()), None),
}


@pytest.mark.parametrize("name", PERIODS)
def test_angles_are_told_by_their_transform(name):
    make, period = PERIODS[name]
    with pm.Model() as model:
        a = make()
    found = period_of(model, a, model.initial_point())
    assert found == (None if period is None else pytest.approx(period, rel=1e-9))


def test_an_angle_of_a_registered_family_is_an_error(monkeypatch):
    monkeypatch.setattr(families, "_families", dict(families._families))
    register_family("VonMises", lambda mu, kappa: (mu, kappa**-0.5), transform="CircularTransform")
    with pm.Model() as model:
        pm.VonMises("a", 0.0, pm.HalfNormal("k", 1.0))
    with pytest.raises(ConfigurationError, match=r"a: .* angle .*register_family"):
        GeneralModel(model, model.free_RVs, model.initial_point())


def test_a_process_with_an_angle_is_sampled_in_the_chart_of_the_graph():
    t = np.linspace(0.0, 10.0, 12)
    with pm.Model() as model:
        phase, scale = pm.VonMises("phase", 0.0, 1.0), pm.HalfNormal("scale", 1.0)
        f = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.Matern52(1, 2.0)).prior("f", t[:, None])
        pm.Poisson("y", pm.math.exp(f + pm.math.cos(t - phase)), observed=np.ones(12, int))
    found = blocks_or_graph(model, model.initial_point(), lambda structure: structure)
    assert isinstance(found, InGraphChart)
    assert found.why == "phase is an angle"
