"""What a chain in the graph's chart has learned in tuning stays as it is in the draws."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, FlatMetric

TUNE, DRAWS = 120, 60


def schools() -> pm.Model:
    with pm.Model() as model:
        mean, spread = pm.Normal("mean", 0.0, 5.0), pm.HalfNormal("spread", 5.0)
        effect = pm.StudentT("effect", nu=4.0, mu=mean, sigma=spread, shape=6)
        pm.Normal("y", effect, 3.0, observed=np.array([6.0, 1.0, -3.0, 9.0, 2.0, 4.0]))
    return model


def constants(step: RMHMC) -> list[np.ndarray]:
    """All that a transition depends on besides where it starts."""
    (sampler,) = step._samplers
    tuned = sampler.state.tuned
    return [np.array(tuned.chart), *map(np.array, tuned.flat), np.array(sampler.average_step_size()), tuned.rounds]


@pytest.mark.parametrize("trajectory", ["static", pytest.param("nuts", marks=pytest.mark.slow)])
def test_chart_mass_and_step_size_are_learned_in_tuning_and_then_kept(trajectory):
    with schools() as model:
        step = RMHMC(metric=FlatMetric(chart="graph"), trajectory=trajectory)
    step.setup_chain(np.random.default_rng(2), TUNE, DRAWS)
    point, seen = model.initial_point(), []
    for i in range(TUNE + DRAWS):
        if i == TUNE:
            step.stop_tuning()
        point, _ = step.step(point)
        seen.append(constants(step))
    weights, pulls = np.split(seen[-1][0][: 2 * 6], 2)
    assert np.all(weights >= 0.0)
    assert weights.max() > 0.0
    assert np.abs(pulls).max() > 0.0
    # They have been learned from the draws of tuning,
    assert len({each[0].tobytes() for each in seen[:TUNE]}) > 3
    assert len({each[2].tobytes() for each in seen[:TUNE]}) > 3
    # and each draw is made with the same.
    for each in seen[TUNE:]:
        for one, last in zip(each, seen[-1], strict=True):
            np.testing.assert_array_equal(one, last)
