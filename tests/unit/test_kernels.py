"""Composed kernels, and the one rule by which their moves are reported."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.kernel import HMC, Cycle, Sometimes, Transition, merge, merge_blocks
from pymc_rmhmc.kernels.trajectories import FixedSteps, transition


def moves() -> list[Transition]:
    first = Transition("a", True, 0.9, 1.0, 0.1, n_steps=3, n_solver_iter=5, n_metric_evals=4, reversal_error=1e-9)
    lost = Transition("b", False, 0.0, 2.0, failure=Failure.SOLVER, n_steps=1, n_solver_iter=7, n_metric_evals=2)
    last = Transition("c", False, 0.3, 4.0, 1.2, Failure.ENERGY, n_steps=2, reversal_error=1e-8)
    last.n_emulator_divergences = 1
    return [first, lost, last]


def test_moves_one_after_another_are_reported_as_one():
    merged = merge(moves())
    assert merged.state == "c"
    assert merged.accepted
    assert merged.acceptance == pytest.approx(0.4)
    assert (merged.energy, merged.energy_error) == (4.0, 1.2)
    assert merged.failure is Failure.SOLVER
    assert (merged.n_steps, merged.n_solver_iter, merged.n_metric_evals) == (6, 12, 6)
    assert merged.reversal_error == 1e-8
    assert merged.n_emulator_divergences == 1
    assert [part.state for part in merged.parts] == [None] * 3


def test_a_move_that_is_composed_counts_as_its_parts():
    one, two, three = moves()
    nested, flat = merge([merge([one, two]), three]), merge(moves())
    assert nested.acceptance == flat.acceptance
    assert nested.n_steps == flat.n_steps
    assert len(nested.parts) == 3


def test_energies_of_separate_blocks_add_up():
    one, two, three = moves()
    both = merge_blocks([one, three])
    assert both.energy == 5.0
    assert both.energy_error == pytest.approx(1.3)
    assert both.acceptance == pytest.approx(0.6)
    assert both.accepted
    assert both.n_emulator_divergences == 1
    assert math.isnan(merge_blocks([one, two]).energy_error)


@dataclass(frozen=True)
class Add:
    """Not random at all."""

    amount: int

    def step(self, state, rng):
        return Transition(state + self.amount, accepted=True, acceptance=1.0, n_steps=1)


def test_a_cycle_makes_its_moves_in_order_and_leaves_some_out():
    cycle, rng = Cycle((Add(1), Sometimes(0.25, Add(100)), Add(10))), np.random.default_rng(0)
    outcomes = [cycle.step(0, rng) for _ in range(400)]
    assert {outcome.state for outcome in outcomes} == {11, 111}
    assert {outcome.n_steps for outcome in outcomes} == {2, 3}
    assert all(outcome.acceptance == 1.0 for outcome in outcomes)
    assert np.mean([outcome.state == 111 for outcome in outcomes]) == pytest.approx(0.25, abs=0.09)


@pytest.mark.parametrize("probability", [-1.0, 2.0])
def test_a_probability_beyond_its_bounds_is_never_or_always(probability):
    rng = np.random.default_rng(0)
    states = {Sometimes(probability, Add(1)).step(0, rng).state for _ in range(50)}
    assert states == {int(probability > 0.0)}


class Quartic:
    """A density that is not quite normal."""

    def at(self, position):
        log_density, gradient = -float(np.sum(position**4)), -4.0 * position**3
        return SimpleNamespace(
            position=position, log_density=log_density, gradient=gradient, failure=Failure.NONE
        )


def test_hmc_makes_the_trajectory_it_is_made_of_and_cannot_be_changed():
    hamiltonian = GaussianHamiltonian(Quartic())
    kernel = HMC(hamiltonian, RotationSplitting(), FixedSteps(3), 0.2)
    start = hamiltonian.state(np.array([0.3, -0.2]))
    moved = kernel.step(start, np.random.default_rng(1))
    other = transition(hamiltonian, RotationSplitting(), start, 3, 0.2, np.random.default_rng(1))
    np.testing.assert_array_equal(moved.state.position, other.state.position)
    assert moved.parts is None
    with pytest.raises(FrozenInstanceError):
        kernel.step_size = 1.0
