"""Trajectories, lengths and adaptation: decisions, counts, failures."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import IntegratorBase, RotationSplitting, Step
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.kernels.trajectories import FixedSteps, JitteredPath, transition
from pymc_rmhmc.latent.charts import SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentTarget
from pymc_rmhmc.tuning.adaptation import DualAveraging, search_step_size
from tests.unit.toys import problem

N = 5


@pytest.fixture
def flow():
    stated, family = problem("centred", "poisson", N)
    return GaussianHamiltonian(LatentTarget(SiteChart(FactorizedPrior(stated)), family))


class Broken(IntegratorBase):
    """An integrator that fails at a given step, for a given reason."""

    def __init__(self, at: int, failure: Failure):
        self.at, self.failure, self.calls = at, failure, 0

    def step(self, hamiltonian, state, step_size):
        self.calls += 1
        if self.calls == self.at:
            return Step(None, self.failure, 0.5, 7, 1)
        return Step(hamiltonian.drift(state, step_size), Failure.NONE, 0.1, 3, 1)


@pytest.mark.parametrize("cause", [Failure.SOLVER, Failure.NON_REVERSIBLE, Failure.NOT_POSITIVE_DEFINITE])
def test_a_failed_trajectory_keeps_the_state_and_reports_its_cause(flow, cause):
    rng = np.random.default_rng(0)
    state = flow.state(rng.standard_normal(N))
    outcome = transition(flow, Broken(3, cause), state, 10, 0.1, rng)
    assert outcome.failure is cause
    assert not outcome.accepted
    assert outcome.acceptance == 0.0
    assert math.isnan(outcome.energy_error)
    np.testing.assert_array_equal(outcome.state.position, state.position)
    assert outcome.energy == flow.energy(outcome.state)  # of the kept position, with this draw's momentum
    assert (outcome.n_steps, outcome.n_solver_iter, outcome.n_metric_evals) == (3, 13, 3)
    assert outcome.reversal_error == 0.5


def test_accepted_and_rejected_states_carry_their_own_energy(flow):
    rng = np.random.default_rng(1)
    state = flow.state(np.zeros(N))
    seen = set()
    for _ in range(200):
        outcome = transition(flow, RotationSplitting(), state, 2, 1.2, rng)
        assert outcome.energy == pytest.approx(flow.energy(outcome.state), abs=1e-12)
        assert outcome.acceptance == pytest.approx(min(1.0, math.exp(-outcome.energy_error)))
        assert outcome.accepted == (not np.array_equal(outcome.state.position, state.position))
        seen.add(outcome.accepted)
        state = outcome.state
    assert seen == {True, False}


def test_acceptance_has_the_metropolis_frequency(flow):
    rng = np.random.default_rng(2)
    state = flow.state(np.full(N, 0.5))
    outcomes = [transition(flow, RotationSplitting(), state, 1, 0.6, rng) for _ in range(4000)]
    expected = np.mean([outcome.acceptance for outcome in outcomes])
    assert 0.2 < expected < 0.95
    accepted = np.mean([outcome.accepted for outcome in outcomes])
    assert accepted == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(4000))


def test_a_divergence_is_judged_at_the_end(flow):
    class Climber(IntegratorBase):
        def step(self, hamiltonian, state, step_size):
            return Step(type(state)(state.point, state.momentum + 100.0))

    rng = np.random.default_rng(3)
    outcome = transition(flow, Climber(), flow.state(np.zeros(N)), 3, 0.1, rng)
    assert outcome.failure is Failure.ENERGY
    assert outcome.n_steps == 3
    assert not outcome.accepted
    assert outcome.energy_error > 1000.0


def test_an_energy_that_is_not_finite_is_a_failure(flow):
    with np.errstate(over="ignore", invalid="ignore"):
        outcome = transition(
            flow, RotationSplitting(), flow.state(np.full(N, 1e4)), 1, 0.1, np.random.default_rng(4)
        )
    assert outcome.failure is Failure.NON_FINITE
    assert outcome.n_steps == 0


def test_a_failed_single_step_counts_as_acceptance_zero(flow):
    rng = np.random.default_rng(5)
    state = flow.state(np.zeros(N))
    assert FixedSteps(3).single_step(flow, Broken(1, Failure.SOLVER), state, 0.1, rng).acceptance == 0.0


def test_fixed_steps_have_no_jitter():
    rng = np.random.default_rng(0)
    assert FixedSteps(10).draw(0.1, rng) == (10, 0.1)
    assert rng.random() == np.random.default_rng(0).random()


def test_a_jittered_path_is_walked_whole_in_steps_within_the_step_size():
    rng, rule = np.random.default_rng(0), JitteredPath(1.5, 0.4, 50)
    lengths = []
    for _ in range(2000):
        n_steps, size = rule.draw(0.35, rng)
        assert size <= 0.35
        assert n_steps == math.ceil(n_steps * size / 0.35 - 1e-12)
        lengths.append(n_steps * size)
    assert 0.9 <= min(lengths) < 0.91
    assert 2.09 < max(lengths) <= 2.1
    assert np.mean(lengths) == pytest.approx(1.5, abs=0.04)


def test_max_steps_binds():
    assert JitteredPath(10.0, 0.0, 4).draw(0.5, np.random.default_rng(0)) == (4, 0.5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: FixedSteps(0), "n_steps"),
        (lambda: FixedSteps(2.5), "n_steps"),
        (lambda: JitteredPath(0.0, 0.1, 5), "path_length"),
        (lambda: JitteredPath(math.inf, 0.1, 5), "path_length"),
        (lambda: JitteredPath(1.0, 1.0, 5), "jitter"),
        (lambda: JitteredPath(1.0, 0.1, 0), "max_steps"),
        (lambda: DualAveraging(0.1, 1.0), "target_accept"),
        (lambda: DualAveraging(-0.1, 0.8), "step_size"),
        (lambda: DualAveraging(math.nan, 0.8), "step_size"),
    ],
)
def test_options_out_of_range_are_named(make, says):
    with pytest.raises(ConfigurationError, match=says):
        make()


@pytest.mark.parametrize("target", [0.6, 0.7, 0.8])
def test_dual_averaging_finds_the_step_size_of_a_known_curve(target):
    rng, adaptation = np.random.default_rng(0), DualAveraging(0.01, target)
    for _ in range(2000):
        adaptation.update(math.exp(-adaptation.current) + 0.05 * rng.standard_normal())
    assert adaptation.average == pytest.approx(-math.log(target), rel=0.15)


@pytest.mark.parametrize(
    ("scale", "reached"),
    [
        (1.0, 0.9),  # a step that is long enough: the target is reached
        (0.05, None),  # between the two acceptances at the shortest step that covers the path: that one
        (0.01, 0.5),  # still shorter ones, until half of them are accepted
    ],
)
def test_a_step_that_no_longer_covers_the_path_need_not_be_accepted_as_often(scale, reached):
    rng, adaptation = np.random.default_rng(0), DualAveraging(0.01, 0.9, covering=0.02)
    expected = 0.02 if reached is None else -math.log(reached) * scale
    for _ in range(4000):
        adaptation.update(math.exp(-adaptation.current / scale) + 0.05 * rng.standard_normal())
    assert adaptation.average == pytest.approx(expected, rel=0.15)


def test_a_target_below_a_half_is_kept_where_the_path_is_cut_short():
    adaptation = DualAveraging(0.01, 0.3, covering=0.1)
    for _ in range(4000):
        adaptation.update(math.exp(-adaptation.current / 0.01))
    assert adaptation.average == pytest.approx(-math.log(0.3) * 0.01, rel=0.1)


def test_dual_averaging_keeps_within_its_bound_and_can_restart():
    adaptation = DualAveraging(1.0, 0.8, maximum=1.7)
    for _ in range(200):
        adaptation.update(1.0)
        assert adaptation.current <= 1.7
    assert adaptation.average == pytest.approx(1.7, rel=0.05)
    adaptation.restart(0.3)
    assert adaptation.current == adaptation.average == 0.3


def test_dual_averaging_ends_in_a_number_where_nothing_is_ever_accepted():
    adaptation, path = DualAveraging(1.0, 0.9, maximum=1.7), JitteredPath(1.7, 0.1, 50)
    for _ in range(20000):
        adaptation.update(0.0)
    assert 0.0 < adaptation.current <= adaptation.average < 1e-6
    assert path.draw(adaptation.current, np.random.default_rng(0)) == (50, adaptation.current)
    adaptation.restart(adaptation.average)


def test_what_is_used_after_tuning_is_an_average_and_not_the_last_iterate():
    rng, adaptation = np.random.default_rng(1), DualAveraging(0.5, 0.8)
    iterates, averages = [], []
    for _ in range(1000):
        adaptation.update(math.exp(-adaptation.current) > rng.random())  # accepted or not
        iterates.append(math.log(adaptation.current))
        averages.append(math.log(adaptation.average))
    assert np.std(averages[500:]) < 0.2 * np.std(iterates[500:])
    assert averages[-1] == pytest.approx(np.mean(iterates[500:]), abs=np.std(iterates[500:]))


@pytest.mark.parametrize(("initial", "expected"), [(0.01, 0.64), (10.0, 0.625), (1.0, 0.5)])
def test_search_crosses_the_threshold(initial, expected):
    found = search_step_size(lambda size: float(size < 0.7), initial, math.inf)
    assert found == pytest.approx(expected)


def test_search_respects_the_maximum():
    assert search_step_size(lambda size: 1.0, 1.0, 1.5) == 1.5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: JitteredPath("a", 0.1, 10), "path_length must be a number, got 'a'"),
        (lambda: JitteredPath(1.0, True, 10), "jitter must be a number, got True"),
        (lambda: AndersonSolver(None, 10), "solver_tol must be a number, got None"),
    ],
)
def test_what_is_no_number_is_an_error_where_an_object_is_built(make, says):
    with pytest.raises(ConfigurationError, match=says):
        make()
