"""The second try of a path whose energy error was large: the chain stays exact, and enters what is thin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from pymc_rmhmc.dynamics.delayed_rejection import FINER, RETRIED_ABOVE, accepts_retry, chance
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import IntegratorBase, RotationSplitting, Step
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.trajectories import FixedSteps, JitteredPath
from tests.unit.general_toys import FUNNEL, D, walk

PATH, STEP = (2.0, 0.4, 100), 0.9


def funnel_draws(count: int) -> np.ndarray:
    """Exact draws of u (count, D)."""
    rng = np.random.default_rng(11)
    z = rng.standard_normal((count, D))
    z[:, 0] *= 1.5
    z[:, 1:] *= np.exp(0.5 * z[:, :1])
    return np.linalg.solve(FUNNEL.matrix, (z - FUNNEL.flat.centre).T).T


def test_the_funnel_is_left_as_it_is_by_many_second_tries():
    starts, rng, ends, n_retried = funnel_draws(12_000), np.random.default_rng(5), [], 0
    for seed, u in enumerate(starts):
        moved = FUNNEL.target.walk(FUNNEL.target.at(u), rng.standard_normal(D), STEP, PATH, 1, seed)
        ends.append(FUNNEL.flat.centre + FUNNEL.matrix @ moved.point.position)
        n_retried += moved.n_steps > math.ceil(PATH[0] * (1.0 + PATH[1]) / STEP)
    ends = np.array(ends)
    assert 0.1 < n_retried / len(starts) < 0.5
    uniform = stats.norm.cdf(ends[:, 0] / 1.5), stats.norm.cdf(ends[:, 1] * np.exp(-0.5 * ends[:, 0]))
    for each in uniform:
        assert stats.kstest(each, "uniform").pvalue > 1e-3
        assert stats.chisquare(np.histogram(each, 20, (0.0, 1.0))[0]).pvalue > 1e-3


class Given:
    """In place of a generator: a momentum, and the numbers of a length and of a decision."""

    def __init__(self, momentum, numbers):
        self.momentum, self.numbers = momentum, list(numbers)

    def standard_normal(self, size):
        return self.momentum

    def random(self):
        return self.numbers.pop(0)


def test_second_tries_are_those_written_out():
    flow, path, rng = GaussianHamiltonian(FUNNEL.target), JitteredPath(*PATH), np.random.default_rng(7)
    n_kept = 0
    for seed, u in enumerate(funnel_draws(150)):
        p, numbers = rng.standard_normal(D), np.random.RandomState(seed)
        said = walk(FUNNEL, u, p, STEP, PATH, 1, np.random.RandomState(seed))
        moved = FUNNEL.target.walk(FUNNEL.target.at(u), p, STEP, PATH, 1, seed)
        outcome = path.move(flow, RotationSplitting(), flow.state(u), STEP, Given(p, numbers.random_sample(2)))
        for position in (moved.point.position, outcome.state.position):
            np.testing.assert_allclose(position, said.u, rtol=1e-8, atol=1e-10)
        assert moved.n_steps == outcome.n_steps == said.n_steps
        n_kept += said.moved and said.acceptance < 0.1
    assert n_kept >= 5


def test_a_thin_neck_is_entered_and_left():
    neck = np.zeros(D)
    neck[0] = -3.5
    u, rng = np.linalg.solve(FUNNEL.matrix, neck - FUNNEL.flat.centre), np.random.default_rng(6)
    moves = [FUNNEL.target.walk(FUNNEL.target.at(u), rng.standard_normal(D), STEP, PATH, 1, s) for s in range(200)]
    assert np.mean([moved.acceptance for moved in moves]) < 0.1  # of first tries
    assert np.mean([moved.accepted for moved in moves]) > 0.3


def test_the_chance_of_a_second_try_balances_both_ways():
    rng = np.random.default_rng(0)
    for first_error, error, back in zip(*rng.uniform(RETRIED_ABOVE, 6.0, (3, 20)), strict=True):
        ways = []
        # From the start: the first try errs by first_error, the second by error; from the end back, by back and -error.
        for one, two, other in ((first_error, error - 4.0, back), (back, 4.0 - error, first_error)):
            refused = np.linspace(chance(one), 1.0, 20_001)[1:]
            kept = np.mean([accepts_retry(u, chance(one), two, other) for u in refused])
            ways.append((1.0 - chance(one)) * kept)
        assert ways[0] * math.exp(error - 4.0) == pytest.approx(ways[1], rel=5e-3)


def test_what_would_not_be_tried_again_from_the_end_is_not_kept():
    assert not accepts_retry(0.99, 0.0, -10.0, RETRIED_ABOVE)
    assert accepts_retry(0.99, 0.0, -10.0, math.inf)


class Stumbling(IntegratorBase):
    """An integrator whose steps fail if they are longer than a bound, and rotate otherwise."""

    def step(self, hamiltonian, state, step_size):
        if abs(step_size) > 0.3:
            return Step(None, Failure.SOLVER, n_solver_iter=5)
        return Step(hamiltonian.drift(state, step_size), n_solver_iter=2, n_metric_evals=1)


def test_a_path_that_failed_is_tried_again_and_counts_as_no_failure():
    flow, path = GaussianHamiltonian(FUNNEL.target), JitteredPath(1.0, 0.0, 100)
    state = flow.state(np.full(D, 0.1))
    outcome = path.move(flow, Stumbling(), state, 0.5, np.random.default_rng(0))
    assert (outcome.failure, outcome.acceptance) == (Failure.NONE, 0.0)
    assert (outcome.n_steps, outcome.n_solver_iter) == (2 * FINER + 2, 4 * FINER + 10)  # and both ways' first step
    fixed = FixedSteps(2).move(flow, Stumbling(), state, 0.5, np.random.default_rng(0))
    assert (fixed.failure, fixed.n_steps) == (Failure.SOLVER, 1)  # as many steps as the user asked for, and no more


def test_a_second_try_that_fails_is_a_failure():
    flow = GaussianHamiltonian(FUNNEL.target)
    outcome = JitteredPath(4.0, 0.0, 100).move(
        flow, Stumbling(), flow.state(np.full(D, 0.1)), 2.0, np.random.default_rng(0)
    )
    assert (outcome.failure, outcome.accepted) == (Failure.SOLVER, False)
    assert math.isnan(outcome.energy_error)


@pytest.mark.parametrize(("most", "finer"), [(100, FINER * 10), (20, 20)])
def test_no_more_steps_are_made_than_a_trajectory_may_have(most, finer):
    """Ten steps that are too long, then finer ones."""
    flow, counted = GaussianHamiltonian(FUNNEL.target), []

    class Watched(Stumbling):
        def path(self, hamiltonian, state, n_steps, step_size):
            counted.append(n_steps)
            return super().path(hamiltonian, state, n_steps, step_size)

    JitteredPath(10.0, 0.0, most).move(flow, Watched(), flow.state(np.full(D, 0.1)), 1.0, np.random.default_rng(0))
    assert counted[:2] == [10, finer]
