"""Chains that hardly move are told from chains that do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

from pymc_rmhmc.chains.judgement import (
    FEWEST_DRAWS,
    LEAST_EFFECTIVE,
    MOST_DRAWS,
    MOST_WATCHED,
    Movement,
    cut_path,
    hardly_moved,
    never_moved,
    sites_kept,
    slowness,
    stood_still,
)
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.trajectories import JitteredPath


def tuned(draws: np.ndarray, failure: Failure = Failure.NONE) -> Movement:
    movement = Movement()
    for values in draws:
        movement.note_tuning(values, failure)
    return movement


def drawn(draws: np.ndarray) -> Movement:
    movement = Movement()
    for values in draws:
        movement.note_draw(values, moved=True)
    return movement


@pytest.mark.parametrize("n_draws", [80, 1000, 5000])
@pytest.mark.parametrize(("memory", "may_be_told"), [(0.6, False), (0.8, True)])
def test_a_chain_that_mixes_is_no_alarm(n_draws, memory, may_be_told):
    """Sixty values of which a quarter, or a tenth, of the draws are effective: the worst seems to be much worse."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        lag = -memory if n_draws > 100 else 0.0
        movement = drawn(lfilter([1.0], [1.0, lag], rng.standard_normal((n_draws + 100, 60)), axis=0)[100:])
        said, is_trusted = slowness("f", movement, 60, str)
        assert is_trusted
        assert may_be_told or said == ""
        assert movement.n_draws == n_draws
        assert len(movement.draws) <= MOST_DRAWS


@pytest.mark.parametrize("size", [3, 10 * MOST_WATCHED])
def test_the_slowest_value_is_found(size):
    rng = np.random.default_rng(1)
    draws = rng.standard_normal((1000, size))
    which = size - 1  # the last is watched, however many there are
    draws[:, which] = np.linspace(0.0, 1.0, 1000) + 0.01 * rng.standard_normal(1000)
    effective, found = drawn(draws).slowest(size)
    assert found == which
    assert effective < LEAST_EFFECTIVE


@pytest.mark.parametrize(("memory", "n_draws", "is_slow"), [(0.98, 1000, True), (0.98, 300, True), (0.7, 1000, False)])
def test_a_value_of_few_effective_draws_is_told_and_trusted(memory, n_draws, is_slow):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        draws = rng.standard_normal((n_draws + 200, 5))
        draws[:, 2] = lfilter([1.0], [1.0, -memory], draws[:, 2])
        movement = drawn(draws[200:])
        said, is_trusted = slowness("f", movement, 5, lambda i: f"f[{i}]")
        effective = movement.slowest(5)
        if effective is None or effective[0] >= LEAST_EFFECTIVE:
            assert is_trusted
            assert bool(said) == is_slow
            assert not is_slow or said.startswith(f"f[2]: {n_draws} draws of this chain are worth about ")


def test_a_value_that_stands_still_is_told_though_others_move():
    draws = np.random.default_rng(2).standard_normal((200, 4))
    draws[:, 1] = 0.1
    movement = drawn(draws)
    assert movement.slowest(4) == (1.0, 1)
    said, is_trusted = slowness("f", movement, 4, lambda i: f"f[{i}]")
    assert said.startswith("f[1]")
    assert not is_trusted


def test_few_draws_say_nothing():
    assert drawn(np.linspace(0.0, 1.0, 2 * FEWEST_DRAWS - 1)[:, None]).slowest(1) is None
    assert not tuned(np.zeros((FEWEST_DRAWS - 1, 2))).stood_still


def test_a_chain_that_stands_still():
    movement = tuned(np.zeros((FEWEST_DRAWS, 2)), Failure.NON_FINITE)
    assert movement.stood_still
    movement.note_tuning(np.array([0.0, 1.0]), Failure.NONE)
    assert not movement.stood_still


def test_draws_after_tuning_that_never_move():
    movement = Movement()
    for _ in range(FEWEST_DRAWS):
        assert not movement.never_moved
        movement.note_draw(np.zeros(2), moved=False)
    assert movement.never_moved
    movement.note_draw(np.ones(2), moved=True)
    assert not movement.never_moved


def test_the_values_of_a_draw_are_copied():
    values, movement = np.zeros(2), Movement()
    movement.note_tuning(values, Failure.NONE)
    movement.note_draw(values, moved=True)
    values += 1.0
    assert not movement.tuning[0].any()
    assert not movement.draws[0].any()


def test_words():
    said = stood_still("f", [Failure.NON_FINITE] * 30 + [Failure.SOLVER] * 2)
    assert "32 tuning draws" in said
    assert "30 of their trajectories failed" in said
    assert "NON_FINITE" in said
    assert "Every proposal was rejected. Start elsewhere" in stood_still("f", [Failure.NONE] * 30)
    for rare in (0, 1):  # one failure of many is not the cause
        said = stood_still("f", [Failure.ENERGY] * rare + [Failure.NONE] * 30, 100.0)
        assert "Every proposal was rejected. step_size=100 is probably too large. Leave step_size out of RMHMC" in said
        assert "ENERGY" not in said
    said = stood_still("f", [Failure.NON_FINITE] * 30, 1e3)
    assert "(NON_FINITE). step_size=1e+03 is probably too large. Leave step_size out" in said
    assert said.index("too large") < said.index("Check the priors")


def test_a_step_size_that_was_given_is_blamed():
    for say in (hardly_moved, never_moved):
        assert "step_size" not in (say("f", 1.0, 100) if say is hardly_moved else say("f", 100))
    assert "you gave step_size=1e-06. Leave step_size out of RMHMC" in hardly_moved("f", 1.0, 100, 1e-6)
    assert "step_size=50 is probably too large" in never_moved("f", 100, 50.0)


def test_draws_are_not_called_correct_and_worthless():
    path = JitteredPath(1.7, 0.2, 100)
    assert "The draws are correct" in cut_path("f", path, 1e-3)
    assert "max_steps=" in cut_path("f", path, 1e-3, is_trusted=False)
    assert "correct" not in cut_path("f", path, 1e-3, is_trusted=False)
    assert "correct" not in sites_kept("f", 1, 3, is_trusted=False)
