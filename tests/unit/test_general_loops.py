"""Compiled trajectories of any density in flat coordinates, against the same written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.graph_chart.affine_map import fit_flat_map, identity_map, map_of_gradient, to_flat
from pymc_rmhmc.kernels.trajectories import JitteredPath
from tests.unit.general_toys import (
    BOUNDED,
    CORRELATED,
    FUNNEL,
    NORMAL,
    D,
    Grown,
    Problem,
    grow,
    matrix_of,
    normal,
    walk,
)

PROBLEMS = {"funnel": FUNNEL, "normal": NORMAL}


@pytest.fixture(params=PROBLEMS)
def problem(request) -> Problem:
    return PROBLEMS[request.param]


def phase(seed: int):
    rng = np.random.default_rng(seed)
    return 0.7 * rng.standard_normal(D), rng.standard_normal(D)


def followed(problem: Problem, u, p, n_steps: int, size: float):
    made, end, failure = problem.target.advance(problem.target.at(u), p, n_steps, size)
    assert (made, failure) == (n_steps, Failure.NONE)
    return end[0].position, end[1], end[0]


def test_the_density_is_that_of_the_map(problem):
    u, _ = phase(0)
    point = problem.target.at(u)
    value, slope = problem.phi(u)
    assert point.log_density == pytest.approx(value, rel=1e-13)
    np.testing.assert_allclose(point.gradient, slope, rtol=1e-12)
    np.testing.assert_allclose(point.values, problem.flat.centre + problem.matrix @ u, rtol=1e-13)
    steps = 1e-6 * np.eye(D)
    differences = [(problem.target.at(u + h).log_density - problem.target.at(u - h).log_density) / 2e-6 for h in steps]
    np.testing.assert_allclose(point.gradient, differences, atol=1e-7)


def test_a_path_is_that_of_the_integrator_step_for_step(problem):
    flow, (u, p) = GaussianHamiltonian(problem.target), phase(1)
    state, at = flow.state(u), (u, p)
    state = type(state)(state.point, p)
    for n_steps in range(1, 8):
        state, at = RotationSplitting().step(flow, state, 0.3).state, problem.step(*at, 0.3)
        position, momentum, point = followed(problem, u, p, n_steps, 0.3)
        for other in ((state.position, state.momentum), at):
            np.testing.assert_allclose((position, momentum), other, rtol=1e-11, atol=1e-13)
        assert point.log_density == pytest.approx(state.point.log_density, rel=1e-11)
        np.testing.assert_allclose(point.gradient, state.point.gradient, rtol=1e-10, atol=1e-12)


def test_a_path_leads_back(problem):
    u, p = phase(2)
    there, momentum, _ = followed(problem, u, p, 9, 0.25)
    assert np.abs(there - u).max() > 0.1
    for flip in (1.0, -1.0):  # by steps back, and by a momentum turned round
        back, again, _ = followed(problem, there, flip * momentum, 9, flip * -0.25)
        np.testing.assert_allclose(back, u, atol=1e-11)
        np.testing.assert_allclose(flip * again, p, atol=1e-11)


def test_a_path_is_symplectic():
    u, p = phase(3)

    def advance(x):
        return np.concatenate(followed(FUNNEL, x[:D].copy(), x[D:].copy(), 3, 0.4)[:2])

    start, h = np.concatenate((u, p)), 1e-5
    jacobian = np.column_stack([(advance(start + h * e) - advance(start - h * e)) / (2 * h) for e in np.eye(2 * D)])
    omega = np.kron([[0.0, 1.0], [-1.0, 0.0]], np.eye(D))
    np.testing.assert_allclose(jacobian.T @ omega @ jacobian, omega, atol=1e-7)
    # A path of a normal density would tell nothing.
    assert np.abs(jacobian - np.linalg.qr(jacobian)[0]).max() > 0.1


def test_the_energy_error_is_of_second_order():
    u, p = phase(4)
    initial = FUNNEL.energy(u, p)
    errors = [abs(FUNNEL.energy(*followed(FUNNEL, u, p, n, 1.2 / n)[:2]) - initial) for n in (24, 48, 96)]
    assert errors[0] > 1e-6
    np.testing.assert_allclose(np.log2(errors[:-1]) - np.log2(errors[1:]), 2.0, atol=0.1)


def test_a_path_of_a_density_that_is_the_map_is_exact():
    """Of N(c, SSᵀ) nothing is left to kick, at any step size."""
    factor = np.linalg.cholesky(CORRELATED)
    flat = identity_map(np.zeros(D))._replace(dense=np.arange(D), factor=factor)
    exact = Problem(normal, (np.ascontiguousarray(np.linalg.inv(CORRELATED)),), flat)
    (u, p), size = phase(5), 2.0
    position, momentum, _ = followed(exact, u, p, 3, size)
    np.testing.assert_allclose(position, np.cos(3 * size) * u + np.sin(3 * size) * p, atol=1e-12)
    assert exact.energy(position, momentum) == pytest.approx(exact.energy(u, p), abs=1e-12)


def test_a_path_ends_where_there_is_no_density():
    u, p = np.zeros(D), np.full(D, 3.0)
    made, end, failure = BOUNDED.target.advance(BOUNDED.target.at(u), p, 20, 0.1)
    assert (end, failure) == (None, Failure.NON_FINITE)
    assert 1 < made < 20


@pytest.mark.slow
def test_paths_that_leave_the_density_are_rejections():
    start, p = BOUNDED.target.at(np.zeros(D)), np.full(D, 3.0)
    moved = BOUNDED.target.walk(start, p, 0.1, (1.5, 0.0, 100), 1, 7)
    assert (moved.failure, moved.accepted, moved.acceptance) == (Failure.NON_FINITE, False, 0.0)
    assert np.isnan(moved.energy_error)
    np.testing.assert_array_equal(moved.point.position, start.position)
    tree = BOUNDED.target.grow(start, p, 0.1, 8, 1, 7)
    assert tree.failure is Failure.NON_FINITE
    assert np.isfinite(tree.point.log_density)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("path", [(2.0, 0.4, 100), (6.0, 0.2, 5)], ids=["whole", "cut short"])
def test_paths_are_walked_and_accepted_as_written_out(problem, path, rounds):
    seen = set()
    for seed in range(12):
        u, p = phase(seed)
        moved = problem.target.walk(problem.target.at(u), p, 0.6, path, rounds, seed)
        said = walk(problem, u, p, 0.6, path, rounds, np.random.RandomState(seed))
        np.testing.assert_allclose(moved.point.position, said.u, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(moved.momentum, said.p, rtol=1e-8, atol=1e-10)
        assert moved.acceptance == pytest.approx(said.acceptance, rel=1e-8)
        assert (moved.n_steps, moved.accepted, moved.failure) == (said.n_steps, said.moved, Failure.NONE)
        kept = problem.target.at(moved.point.position)
        assert moved.point.log_density == pytest.approx(kept.log_density, rel=1e-10)
        seen.add(moved.accepted)
    assert True in seen


class Stream:
    """In place of a generator: a first momentum, and then one stream of numbers in the order of the compiled code.

    That draws the momentum of a later path before its length, where the interpreted trajectory asks for the length.
    """

    def __init__(self, momentum, seed: int):
        self.momentum, self.stream, self.n_drawn = momentum, np.random.RandomState(seed), 0

    def random(self):
        if self.n_drawn and self.n_drawn % 2 == 0:
            self.momentum = self.stream.standard_normal(D)
        self.n_drawn += 1
        return self.stream.random_sample()

    def standard_normal(self, size):
        return self.momentum


@pytest.mark.parametrize("rounds", [1, 3])
def test_compiled_paths_are_those_of_the_interpreted_trajectory(problem, rounds):
    trajectory, flow = JitteredPath(2.0, 0.4, 100, rounds), GaussianHamiltonian(problem.target)
    for seed in range(6):
        u, p = phase(seed)
        outcome = trajectory.move(flow, RotationSplitting(), flow.state(u), 0.6, Stream(p, seed))
        moved = problem.target.walk(problem.target.at(u), p, 0.6, (2.0, 0.4, 100), rounds, seed)
        np.testing.assert_allclose(moved.point.position, outcome.state.position, rtol=1e-8, atol=1e-10)
        assert (moved.n_steps, moved.accepted) == (outcome.n_steps, outcome.accepted)
        assert moved.acceptance == pytest.approx(outcome.acceptance, rel=1e-8)
        if rounds == 1:
            assert moved.energy_error == pytest.approx(outcome.energy_error, rel=1e-6, abs=1e-10)


def grown(problem: Problem, u, p, size: float, max_depth: int, rounds: int, seed: int) -> Grown:
    """Several trajectories as written out, with what they were together."""
    random, found = np.random.RandomState(seed), []
    for one in range(rounds):
        p = random.standard_normal(D) if one else p
        found.append(grow(problem, u, p, size, max_depth, random))
        u, p = found[-1].u, found[-1].p
    return Grown(
        u, p, float(np.mean([each.acceptance for each in found])), sum(each.n_steps for each in found),
        any(each.moved for each in found), any(each.failed for each in found),
    )  # fmt: skip


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize(("size", "max_depth"), [(0.15, 10), (0.5, 10), (0.15, 3)])
def test_trees_grow_and_choose_as_written_out(problem, size, max_depth, rounds):
    lengths = set()
    for seed in range(15):
        u, p = phase(seed)
        moved = problem.target.grow(problem.target.at(u), p, size, max_depth, rounds, seed)
        said = grown(problem, u, p, size, max_depth, rounds, seed)
        assert (moved.n_steps, moved.accepted, bool(moved.failure)) == (said.n_steps, said.moved, said.failed)
        np.testing.assert_allclose(moved.point.position, said.u, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(moved.momentum, said.p, rtol=1e-7, atol=1e-9)
        assert moved.acceptance == pytest.approx(said.acceptance, rel=1e-7)
        lengths.add(moved.n_steps)
    assert len(lengths) > 1 or max_depth == 3


def test_a_tree_stops_within_about_half_a_period():
    """Of a standard normal density the flow is a rotation: no trajectory goes on past a turn and a half."""
    unit = Problem(normal, (np.eye(D),), identity_map(np.zeros(D)))
    for seed in range(20):
        u, p = phase(seed)
        moved = unit.target.grow(unit.target.at(u), p, 0.05, 10, 1, seed)
        assert 0.5 * np.pi / 0.05 < moved.n_steps < 3.0 * np.pi / 0.05
        assert moved.acceptance == pytest.approx(1.0, abs=1e-9)
        assert moved.failure is Failure.NONE


@pytest.mark.parametrize("unit", [1e-15, 1e-9, 1.0, 1e9, 1e15])
def test_scales_are_found_in_any_units(unit):
    draws = unit * np.random.default_rng(0).standard_normal((60, D))
    flat = fit_flat_map(draws, -draws / unit**2, np.empty(0, np.int64))
    np.testing.assert_allclose(flat.spread / unit, 1.0, rtol=1e-6)


def test_the_start_finds_how_wide_a_density_is_where_it_is_flat():
    widths = np.array([1.0, 1e5, 3e9, 1e12])

    def along(which, distance):
        return -0.5 * (distance / widths[which]) ** 2

    slope = np.array([0.5, 0.0, 1e-10, 1e-13])
    spread = map_of_gradient(np.zeros(4), slope, along).spread
    assert spread[0] == 1.0
    assert (spread[1:] > 0.1 * widths[1:]).all()
    assert (spread[1:] < 3.0 * widths[1:]).all()


def test_the_start_finds_how_narrow_a_density_is_where_it_is_steep():
    """A steep slope of a wide density is that of a start far out, and its scale need not be found."""
    widths = np.array([1e-9, 1e-6, 1e-3])
    slope = np.array([2.0, 300.0, 1e4]) / widths

    def along(which, distance):
        return slope[which] * distance - 0.5 * (distance / widths[which]) ** 2

    spread = map_of_gradient(np.zeros(3), slope, along).spread
    np.testing.assert_allclose(spread, widths, rtol=1e-3)


@pytest.mark.parametrize("dense", [np.arange(D), np.array([1, 2])], ids=["all", "a block"])
@pytest.mark.parametrize(("n_draws", "within"), [(12, 0.3), (120, 0.03)])
def test_the_map_of_a_normal_density_is_found_from_few_draws(n_draws, within, dense):
    """Off by the part of a draw that keeps covariances regular, and not by the error of a covariance of draws."""
    others = ~np.isin(np.arange(D), dense)
    covariance = np.where(np.eye(D, dtype=bool) | ~(others[:, None] | others), CORRELATED, 0.0)
    scale = np.array([0.01, 1.0, 30.0, 1.0]) * np.sqrt(np.diag(CORRELATED))
    covariance *= np.outer([0.01, 1.0, 30.0, 1.0], [0.01, 1.0, 30.0, 1.0])
    rng, centre = np.random.default_rng(0), np.array([3.0, -1.0, 40.0, 0.0])
    draws = rng.multivariate_normal(centre, covariance, size=n_draws)
    flat = fit_flat_map(draws, -(draws - centre) @ np.linalg.inv(covariance), dense)
    found = matrix_of(flat) @ matrix_of(flat).T
    np.testing.assert_allclose(found / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=within)
    np.testing.assert_allclose((flat.centre - centre) / scale, 0.0, atol=within)


def test_the_map_is_exact_without_what_keeps_it_regular(monkeypatch):
    monkeypatch.setattr("pymc_rmhmc.graph_chart.affine_map.PRIOR_DRAWS", 0.0)
    rng, centre = np.random.default_rng(1), np.array([3.0, -1.0, 40.0, 0.0])
    draws = 0.3 * rng.standard_t(3, (2 * D, D)) + 1.0  # not even draws of the density
    flat = fit_flat_map(draws, -(draws - centre) @ np.linalg.inv(CORRELATED), np.arange(D))
    np.testing.assert_allclose(matrix_of(flat) @ matrix_of(flat).T, CORRELATED, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(flat.centre, centre, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dense", [np.empty(0, np.int64), np.arange(3)], ids=["diagonal", "a block"])
def test_a_direction_in_which_many_values_go_together_is_found(dense):
    """Of 80 effects and their common level: no pair is far from independent, and their sum is."""
    d, together = 80, np.full(80, 1.0 / np.sqrt(80))
    covariance = np.eye(d) + 24.0 * np.outer(together, together)
    scale = np.random.default_rng(0).uniform(0.1, 10.0, d)
    covariance *= np.outer(scale, scale)
    rng, centre = np.random.default_rng(1), 3.0 * scale
    draws = rng.multivariate_normal(centre, covariance, size=90)
    flat = fit_flat_map(draws, -(draws - centre) @ np.linalg.inv(covariance), dense)
    root = matrix_of(flat)
    left = np.linalg.solve(root, np.linalg.solve(root, covariance).T)
    assert 1 <= flat.stretches.size <= 3
    values = np.linalg.eigvalsh(left)  # 25 would be left of the sum
    assert values[0] > 0.5
    assert values[-1] < 3.0
    np.testing.assert_allclose(root @ to_flat(flat, draws[0]) + flat.centre, draws[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose((flat.centre - centre) / scale, 0.0, atol=0.3)


def test_no_direction_is_found_where_there_is_none():
    rng = np.random.default_rng(2)
    draws = rng.standard_normal((90, 60))
    slopes = -draws + 0.3 * rng.standard_normal(draws.shape)  # of a density that is not quite normal
    assert fit_flat_map(draws, slopes, np.empty(0, np.int64)).stretches.size == 0
    assert fit_flat_map(draws[:10], slopes[:10], np.empty(0, np.int64)).stretches.size == 0


SPOILT = {
    "an overflow": (1e200, 1.0),
    "a steep slope": (1.0, 1e200),
    "infinity": (np.inf, 1.0),
    "nan": (1.0, np.nan),
    "far out": (1e13, 1e13),
}


@pytest.mark.parametrize("dense", [np.arange(D), np.arange(2), np.empty(0, np.int64)], ids=["all", "some", "none"])
@pytest.mark.parametrize("kind", SPOILT)
@pytest.mark.filterwarnings("ignore::scipy.linalg.LinAlgWarning")
def test_draws_that_overflow_give_no_error(kind, dense):
    draws = np.random.default_rng(5).normal(size=(30, D))
    of_draws, of_slopes = SPOILT[kind]
    first = (np.arange(30) == 0)[:, None]
    positions, slopes = np.where(first, of_draws * draws, draws), np.where(first, -of_slopes * draws, -draws)
    flat, without = fit_flat_map(positions, slopes, dense), fit_flat_map(draws[1:], -draws[1:], dense)
    assert flat is None or all(np.isfinite(part).all() for part in flat)
    if kind != "far out":
        assert all(np.array_equal(part, other) for part, other in zip(flat, without, strict=True))
    for factor in (1e200, np.nan):
        assert fit_flat_map(factor * draws, -draws, dense) is None
