"""Lengths of paths: which are tried out, and which is taken."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.tuning.adaptation import DualAveraging, Moment
from pymc_rmhmc.tuning.path_length import PATHS, PathTrial, StructureAdapter, correlations

T, D = 240, 30


def window(kept: dict[float, float], seed: int = 0, *, explores: bool = True) -> tuple[PathTrial, np.ndarray]:
    """A trial, and draws whose first coordinate is an autoregression that the length decides."""
    rng, trial, draws = np.random.default_rng(seed), PathTrial(explores=explores), [np.zeros(D)]
    for _ in range(T):
        multiple = trial.current
        rho = kept.get(multiple, 0.0)
        new = rng.standard_normal(D)
        new[0] = rho * draws[-1][0] + np.sqrt(1.0 - rho**2) * new[0]
        trial.note_steps(int(4 * multiple))
        trial.note_draw()
        draws.append(new)
    return trial, np.array(draws[1:])


def after(trial: PathTrial, draws: np.ndarray, *, free_steps: float = 0.0, may_explore=True, is_last=False):
    return trial.next(draws, free_steps, may_explore=may_explore, is_last=is_last)


@pytest.mark.parametrize("seed", range(5))
def test_long_paths_are_taken_where_short_ones_hardly_move(seed):
    found = after(*window({1.0: 0.99, 2.5: 0.95, 5.0: 0.0}, seed))
    assert (found.multiple, found.explores, found.is_slow) == (5.0, False, False)


@pytest.mark.parametrize("seed", range(5))
def test_short_paths_stay_where_long_ones_are_no_better_for_their_time(seed):
    # After five short draws 0.8**5 of a value is left, after as much path of the others 0.9 of it.
    assert after(*window({1.0: 0.8, 2.5: 0.95, 5.0: 0.9}, seed)).multiple == 1.0


def test_longer_paths_are_taken_where_steps_cost_nothing():
    draws = window({1.0: 0.9, 2.5: 0.85, 5.0: 0.7})
    assert after(*draws, free_steps=1e3).multiple == 5.0


def test_squares_are_looked_at_too():
    # Half a period changes every sign, and no draw's distance from the centre.
    trial, draws = window({})
    rng, place = np.random.default_rng(1), 0
    for t in range(1, T):
        place = (place + 1) % len(PATHS.cycle)
        if PATHS.cycle[place] == 2.5:
            draws[t] = -draws[t - 1] + 0.02 * rng.standard_normal(D)
    assert after(trial, draws, free_steps=1e3).multiple == 5.0
    assert after(*window({}), free_steps=0.0).multiple == 1.0


def test_lengths_are_tried_where_something_is_slow():
    slow, fast = window({1.0: 0.95}, explores=False), window({}, explores=False)
    assert after(*slow).explores
    assert after(*slow).is_slow
    assert not after(*fast).explores
    assert not after(*slow, is_last=True).explores
    assert not after(*slow, may_explore=False).explores


def test_tuning_makes_as_much_path_of_every_length():
    trial, seen = PathTrial(explores=True), []
    for _ in range(len(PATHS.cycle)):
        seen.append(trial.current)
        trial.note_steps(1)
    assert len({seen.count(multiple) * multiple for multiple in seen}) == 1
    assert trial.current == seen[0]
    assert PathTrial(2.5).current == 2.5


def test_what_was_known_is_left_as_it_was():
    trial, draws = window({1.0: 0.95})
    before = copy.deepcopy(trial)
    after(trial, draws)
    assert trial == before


def test_longer_paths_vary_more():
    short = JitteredPath(2.0, 0.3, 100)
    assert PathTrial().lengthened(short, tuning=False) is short
    longer = PathTrial(5.0).lengthened(short, tuning=False)
    assert (longer.path_length, longer.jitter, longer.max_steps) == (10.0, PATHS.jitter, 100)


def test_draws_in_a_row_that_are_alike_are_slow():
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((90, 40))
    walk = noise.copy()
    for t in range(1, 90):
        walk[t, 3] = 0.9 * walk[t - 1, 3] + 0.44 * noise[t, 3]
    assert not PATHS.is_slow(noise)
    assert PATHS.is_slow(walk)
    assert (correlations(np.zeros((9, 2))) == 0.0).all()


@pytest.mark.parametrize("fails_at", [None, 3.0])
def test_a_structure_that_fails_at_a_position_of_the_window_is_dropped(fails_at):
    adapter, step_size = StructureAdapter(lambda partition, at, rng: at[0] != fails_at), DualAveraging(0.1, 0.8, 2.0)
    tuned = adapter.initial()
    tuned.partition = "blocks"
    for value in range(8):
        adapter.observe(tuned, np.array([float(value), 0.0]))
    found = adapter.refit(tuned, step_size, Moment(8, True, False), np.random.default_rng(0), with_sites=True)
    assert (found.changed, found.tuned.partition) == ((False, "blocks") if fails_at is None else (True, None))
    assert found.tuned.seen == []
