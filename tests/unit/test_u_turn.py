"""Trajectories that end where they turn back, over any Hamiltonian."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, IntegratorBase, RotationSplitting, Step
from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.kernels.trajectories import FixedSteps, JitteredPath, UTurn
from pymc_rmhmc.steps.options import Options, settle
from tests.statistical.exact import Cell, hamiltonian_of, make_target, stationarity
from tests.unit.general_toys import BOUNDED, FUNNEL, NORMAL, D, grow

PROBLEMS = {"funnel": FUNNEL, "normal": NORMAL}
SEEDS = 2**31


def start_of(seed: int):
    """Where a trajectory starts, and the momentum and the seed that a generator gives it."""
    u, rng = 0.7 * np.random.default_rng(seed).standard_normal(D), np.random.default_rng(seed + 1000)
    return u, rng.standard_normal(D), int(rng.integers(SEEDS)), np.random.default_rng(seed + 1000)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize(("size", "max_depth"), [(0.15, 10), (0.5, 10), (0.15, 2)])
def test_a_trajectory_is_the_one_that_is_written_out(problem, size, max_depth):
    flow = GaussianHamiltonian(problem.target)
    for number in range(25):
        u, p, seed, rng = start_of(number)
        outcome = UTurn(max_depth).move(flow, RotationSplitting(), flow.state(u), size, rng)
        said = grow(problem, u, p, size, max_depth, np.random.RandomState(seed))
        np.testing.assert_allclose(outcome.state.position, said.u, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(outcome.state.momentum, said.p, rtol=1e-8, atol=1e-10)
        assert (outcome.n_steps, outcome.accepted, bool(outcome.failure)) == (said.n_steps, said.moved, said.failed)
        assert outcome.acceptance == pytest.approx(said.acceptance, rel=1e-8)
        assert outcome.energy == pytest.approx(problem.energy(said.u, said.p), rel=1e-10)
        assert outcome.energy_error == pytest.approx(outcome.energy - problem.energy(u, p), abs=1e-9)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("trajectory", [UTurn(), UTurn(3)], ids=["free", "shallow"])
def test_compiled_and_interpreted_trajectories_are_the_same(problem, trajectory):
    slow, fast = GaussianHamiltonian(problem.target), GaussianHamiltonian(problem.target, makes=problem.target)
    for number in range(12):
        one = trajectory.move(slow, RotationSplitting(), slow.state(start_of(number)[0]), 0.2, start_of(number)[3])
        other = trajectory.move(fast, RotationSplitting(), fast.state(start_of(number)[0]), 0.2, start_of(number)[3])
        np.testing.assert_allclose(other.state.position, one.state.position, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(other.state.momentum, one.state.momentum, rtol=1e-8, atol=1e-10)
        assert (other.n_steps, other.accepted, other.failure) == (one.n_steps, one.accepted, one.failure)
        assert other.acceptance == pytest.approx(one.acceptance, rel=1e-8)
        assert other.energy == pytest.approx(one.energy, rel=1e-9)
        assert other.energy_error == pytest.approx(one.energy_error, rel=1e-6, abs=1e-9)


def test_several_trajectories_are_one_after_another():
    flow, integrator = GaussianHamiltonian(FUNNEL.target), RotationSplitting()
    u, _, _, rng = start_of(3)
    outcome = UTurn(rounds=3).move(flow, integrator, flow.state(u), 0.2, rng)
    state, again, n_steps, acceptances = flow.state(u), start_of(3)[3], 0, []
    for _ in range(3):
        each = UTurn().move(flow, integrator, state, 0.2, again)
        state, n_steps = each.state, n_steps + each.n_steps
        acceptances.append(each.acceptance)
    np.testing.assert_array_equal(outcome.state.position, state.position)
    assert (outcome.n_steps, outcome.energy) == (n_steps, each.energy)
    assert outcome.acceptance == pytest.approx(np.mean(acceptances))


class Broken(IntegratorBase):
    """An integrator that fails at a given step."""

    def __init__(self, at: int):
        self.at, self.calls = at, 0

    def step(self, hamiltonian, state, step_size):
        self.calls += 1
        if self.calls == self.at:
            return Step(None, Failure.SOLVER, 0.5, 7, 1)
        return RotationSplitting().step(hamiltonian, state, step_size)


def test_nothing_is_chosen_of_a_half_in_which_a_step_fails():
    flow = GaussianHamiltonian(NORMAL.target)
    for at in (1, 2, 3, 5, 7):
        u, _, _, rng = start_of(at)
        outcome = UTurn().move(flow, Broken(at), flow.state(u), 0.01, rng)
        assert (outcome.failure, outcome.n_steps) == (Failure.SOLVER, at)
        # Of one, three or seven states beyond the start: those of the halves that were whole.
        steps_away = np.linalg.norm(outcome.state.position - u) / (0.01 * np.linalg.norm(outcome.state.momentum))
        assert steps_away < {1: 0.1, 2: 1.1, 3: 1.1, 5: 3.1, 7: 3.1}[at]


def test_a_start_without_density_is_a_failure_without_steps():
    for flow in (GaussianHamiltonian(BOUNDED.target), GaussianHamiltonian(BOUNDED.target, makes=BOUNDED.target)):
        outcome = UTurn().move(flow, RotationSplitting(), flow.state(np.full(D, 9.0)), 0.1, np.random.default_rng(0))
        assert (outcome.failure, outcome.n_steps, outcome.accepted) == (Failure.NON_FINITE, 0, False)


CELLS = [
    (Cell("hessian", "poisson", "centred", 1.0, step_size=0.4), GeneralizedLeapfrog(), 100),
    (Cell("spanned", "poisson", "centred", 1.0, step_size=0.4), RotationSplitting(), 400),
    (Cell("rounded", "poisson", "centred", 1.0, step_size=0.3), RotationSplitting(), 300),
    (Cell("flat", "poisson", "additive", 1.0, step_size=0.4), RotationSplitting(), 300),
]


@pytest.mark.parametrize(("cell", "integrator", "count"), CELLS, ids=[cell.metric for cell, _, _ in CELLS])
def test_exact_draws_of_other_hamiltonians_stay_exact(cell, integrator, count):
    lengths = []

    def move(flow, integrator, state, n_steps, step_size, rng):
        outcome = UTurn(6).move(flow, integrator, state, step_size, rng)
        assert math.isfinite(outcome.energy)
        assert math.isfinite(outcome.energy_error)
        assert outcome.energy == pytest.approx(flow.energy(outcome.state), abs=1e-6)
        lengths.append(outcome.n_steps)
        return outcome

    target = make_target(cell)
    outcome = stationarity(
        target, hamiltonian_of(target, cell.metric), integrator, cell, count, 5, transitions=1, move=move
    )
    assert outcome.p_value > 1e-3 / len(CELLS)
    assert outcome.failure_rate < 0.05
    assert outcome.moved > 0.2
    assert 0.3 < outcome.acceptance < 0.9999
    # No trajectory is as long as it may be.
    assert np.mean(lengths) > 2
    assert max(lengths) < 63


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"n_steps": 3}, "n_steps fixes how long a trajectory is"),
        ({"path_length": 2.0}, "path_length fixes"),
        ({"jitter": 0.2}, "jitter fixes"),
        ({"path_length": 2.0, "jitter": 0.2}, "path_length and jitter fix"),
    ],
)
def test_what_would_fix_the_length_does_not_go_with_nuts(options, says):
    with pytest.raises(ConfigurationError, match=f"{says}.*leave one of them out"):
        settle(Options(trajectory="nuts", **options), "flat")


@pytest.mark.parametrize("trajectory", ["hmc", "NUTS", "", None, 3])
def test_an_unknown_trajectory_is_named_with_those_that_there_are(trajectory):
    with pytest.raises(ConfigurationError, match='Unknown trajectory.*"auto", "static", "nuts"'):
        settle(Options(trajectory=trajectory), "flat")


@pytest.mark.parametrize(("max_steps", "depth"), [(None, 10), (1, 1), (7, 3), (100, 6), (1023, 10)])
def test_max_steps_limits_the_doublings(max_steps, depth):
    plan = settle(Options(trajectory="nuts", max_steps=max_steps), "flat")
    assert plan.trajectory == plan.general_trajectory == UTurn(depth)
    assert 2**plan.trajectory.max_depth - 1 <= (max_steps or 1023)
    assert plan.may_repeat


def test_a_static_trajectory_is_a_path_or_a_number_of_steps():
    for name in ("auto", "static"):
        assert isinstance(settle(Options(trajectory=name), "flat").trajectory, JitteredPath)
        assert settle(Options(trajectory=name, n_steps=4), "flat").trajectory == FixedSteps(4)


@pytest.mark.parametrize("max_depth", [0, -1, 2.5, "3", True])
def test_a_depth_that_is_no_number_of_doublings_is_an_error(max_depth):
    with pytest.raises(ConfigurationError, match="max_depth"):
        UTurn(max_depth)
