"""Solvers: exact on linear maps, honest about failure, and never raising."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.errors import ConfigurationError


def linear_map(spectral_radius: float, n: int = 30, seed: int = 0):
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((n, n)))
    matrix = basis @ np.diag(np.linspace(-1.0, 1.0, n) * spectral_radius) @ basis.T
    shift = rng.standard_normal(n)
    return (lambda x: matrix @ x + shift), np.linalg.solve(np.eye(n) - matrix, shift)


@pytest.mark.parametrize("depth", [0, 1, 6])
def test_a_linear_contraction_is_solved_to_the_tolerance(depth):
    function, exact = linear_map(0.6)
    solution = AndersonSolver(1e-10, 200, depth).solve(function, np.zeros(30))
    assert solution.converged
    assert solution.residual <= 1e-10
    np.testing.assert_allclose(solution.value, exact, atol=1e-9)
    np.testing.assert_allclose(solution.value, function(solution.argument))


def test_acceleration_solves_an_expansion_on_which_plain_iteration_diverges():
    function, exact = linear_map(1.5, n=5)
    assert not AndersonSolver(1e-10, 200, depth=0).solve(function, np.zeros(5)).converged
    solution = AndersonSolver(1e-10, 200, depth=6).solve(function, np.zeros(5))
    assert solution.converged
    np.testing.assert_allclose(solution.value, exact, atol=1e-8)


def test_acceleration_needs_far_fewer_evaluations():
    function, _ = linear_map(0.9)
    plain = AndersonSolver(1e-9, 1000, depth=0).solve(function, np.zeros(30))
    accelerated = AndersonSolver(1e-9, 1000, depth=6).solve(function, np.zeros(30))
    assert accelerated.n_iter < plain.n_iter / 3


def test_what_does_not_converge_says_so():
    solution = AndersonSolver(1e-10, 7, depth=2).solve(lambda x: x + 1.0, np.zeros(3))
    assert not solution.converged
    assert solution.n_iter == 7
    assert solution.residual > 1e-10


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("first_bad", [1, 3])
def test_values_that_are_not_finite_end_the_iteration(bad, first_bad):
    calls = 0

    def function(x):
        nonlocal calls
        calls += 1
        return np.full(3, bad) if calls >= first_bad else 0.5 * x + 1.0

    solution = AndersonSolver(1e-10, 50, depth=4).solve(function, np.zeros(3))
    assert not solution.converged
    assert solution.residual == np.inf
    # A start that has a value is tried a second time.
    assert calls == solution.n_iter == first_bad + (first_bad > 1)


def test_a_shorter_memory_is_tried_where_a_long_one_turns_in_circles():
    rng = np.random.default_rng(9)
    matrix, shift = rng.standard_normal((10, 10)) * 1.6 / np.sqrt(10), rng.standard_normal(10)

    def function(x):
        return shift + 1.5 * matrix @ np.tanh(x)

    solver, start = AndersonSolver(1e-9, 100, depth=6), np.zeros(10)
    assert not solver._attempt(function, start, 6).converged
    solution = solver.solve(function, start)
    assert solution.converged
    assert solution.n_iter > 100
    np.testing.assert_allclose(function(solution.argument), solution.argument, atol=1e-9)


def test_the_start_is_not_changed_and_a_fixed_point_costs_one_evaluation():
    start = np.ones(4)
    solution = AndersonSolver(1e-10, 50).solve(lambda x: x.copy(), start)
    assert solution.n_iter == 1
    assert solution.converged
    np.testing.assert_array_equal(start, np.ones(4))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [((0.0, 10), "solver_tol"), ((0.5, 10), "solver_tol"), ((1e-9, 0), "solver_max_iter"),
     ((1e-9, 2.5), "solver_max_iter"), ((1e-9, 10, -1), "depth")],
)  # fmt: skip
def test_options_out_of_range_are_named(arguments, says):
    with pytest.raises(ConfigurationError, match=says):
        AndersonSolver(*arguments)
