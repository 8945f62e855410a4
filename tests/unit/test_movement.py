"""Chains that hardly move are told from chains that do."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.steps.movement import FEWEST_DRAWS, LEAST_EFFECTIVE, MOST_WATCHED, Movement
from pymc_rmhmc.steps.words import in_model_words, stood_still


def movement_of(draws: np.ndarray, failure: Failure = Failure.NONE) -> Movement:
    movement = Movement()
    for values in draws:
        movement.note_tuning(values, failure)
    return movement


def test_independent_draws_are_not_slow():
    for seed in range(20):
        movement = movement_of(np.random.default_rng(seed).standard_normal((80, 30)))
        assert not movement.stood_still
        movement.end_tuning(30)
        assert movement.slowest is None


@pytest.mark.parametrize("size", [3, 10 * MOST_WATCHED])
def test_the_slowest_value_is_found(size):
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((100, size))
    which = size - 1  # the last is watched, however many there are
    draws[:, which] = np.linspace(0.0, 1.0, 100) + 0.01 * rng.standard_normal(100)
    movement = movement_of(draws)
    movement.end_tuning(size)
    effective, found, n_draws = movement.slowest
    assert (found, n_draws) == (which, 100)
    assert effective < LEAST_EFFECTIVE
    assert not movement.tuning


def test_few_draws_say_nothing():
    movement = movement_of(np.linspace(0.0, 1.0, 2 * FEWEST_DRAWS - 1)[:, None])
    movement.end_tuning(1)
    assert movement.slowest is None
    assert not movement_of(np.zeros((FEWEST_DRAWS - 1, 2))).stood_still


def test_a_chain_that_stands_still():
    movement = movement_of(np.zeros((FEWEST_DRAWS, 2)), Failure.NON_FINITE)
    assert movement.stood_still
    movement.note_tuning(np.array([0.0, 1.0]), Failure.NONE)
    assert not movement.stood_still


def test_draws_after_tuning_that_never_move():
    movement = Movement()
    for _ in range(FEWEST_DRAWS):
        assert not movement.never_moved
        movement.note_draw(moved=False)
    assert movement.never_moved
    movement.note_draw(moved=True)
    assert not movement.never_moved


def test_the_values_of_a_draw_are_copied():
    values, movement = np.zeros(2), Movement()
    movement.note_tuning(values, Failure.NONE)
    values += 1.0
    assert not movement.tuning[0].any()


def test_words():
    assert [in_model_words(n) for n in ("ls_log__", "f_rotated_", "b_interval__", "beta")] == ["ls", "f", "b", "beta"]
    said = stood_still("f", [Failure.NON_FINITE] * 30 + [Failure.SOLVER] * 2)
    assert "32 tuning draws" in said
    assert "30 of their trajectories failed" in said
    assert "NON_FINITE" in said
    assert "Every proposal was rejected" in stood_still("f", [Failure.NONE] * 30)
