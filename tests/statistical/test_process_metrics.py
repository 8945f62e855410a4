"""Metrics of a process with its hyperparameters, or of these alone, leave their target alone: draws stay exact."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc import BlockMetric, GeneralizedLeapfrog, ImplicitMidpoint, WhitenedFisherMetric
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.metrics.processes.process_blocks import GivenField
from tests.statistical.exact import changed, squash
from tests.unit.process_toy import PRECISION, SEEN, N, ToyProcess
from tests.unit.series_toy import DenseSeries, ToySeries

pytestmark = pytest.mark.slow

# With a step that is long enough to be rejected now and then.
CASES = {
    "block": (BlockMetric(), GeneralizedLeapfrog(), 0.6, 800),
    "whitened": (WhitenedFisherMetric(), GeneralizedLeapfrog(), 0.5, 800),
    "block midpoint": (BlockMetric(), ImplicitMidpoint(), 1.0, 200),
    "series": (BlockMetric(), GeneralizedLeapfrog(), 0.6, 400),
    "walk": (BlockMetric(), GeneralizedLeapfrog(), 0.6, 200),
}
# The series of a case, if it is not the toy process; draws are made with the same dense.
SERIES = {"series": "constant", "walk": "walk"}

# Of θ alone, with the process held.
ALONE = {
    "block": (BlockMetric(), 0.8, 800),
    "whitened": (WhitenedFisherMetric(), 0.6, 800),
}


def exact_draws(process: ToyProcess, count: int, rng: np.random.Generator) -> np.ndarray:
    """Independent draws of (ν, θ), by rejection from the prior."""
    peak = SEEN @ np.log(np.maximum(SEEN, 1e-300)) - SEEN.sum()
    kept: list[np.ndarray] = []
    while len(kept) < count:
        nu, theta = rng.standard_normal(N), rng.standard_normal(3) / np.sqrt(PRECISION)
        mean, covariance, *_ = process.prior(theta)
        eta = mean + np.linalg.cholesky(covariance) @ nu + theta[2]
        if np.log(rng.random()) < SEEN @ eta - np.exp(eta).sum() - peak:
            kept.append(np.concatenate((nu, theta)))
    return np.array(kept)


@pytest.mark.parametrize("name", CASES)
def test_exact_draws_stay_exact(name):
    metric, integrator, step_size, count = CASES[name]
    if name in SERIES:
        drawn, field = DenseSeries(SERIES[name]), metric.bind(ToySeries(SERIES[name], whitened=True))
    else:
        drawn = ToyProcess()
        field = metric.bind(drawn)
    check(field, drawn, field.density.enter, integrator, step_size, count)


@pytest.mark.parametrize("name", ALONE)
def test_exact_draws_stay_exact_where_hyperparameters_move_alone(name):
    metric, step_size, count = ALONE[name]
    field = metric.bind(ToyProcess())
    alone = GivenField(field)

    def stand(values: np.ndarray) -> np.ndarray:
        return alone.density.hold(field.density.enter(values))

    check(alone, ToyProcess(), stand, GeneralizedLeapfrog(), step_size, count)


def check(field, drawn, stand, integrator, step_size, count) -> None:
    """Move exact draws of a process, each from where `stand` puts its values."""
    rng, flow = np.random.default_rng(8), field.hamiltonian()
    before, after, failures, accepted = [], [], 0, 0.0
    for values in exact_draws(drawn, count, rng):
        state = flow.state(stand(values))
        before.append(watched(state))
        for _ in range(2):
            outcome = transition(flow, integrator, state, 3, step_size, rng)
            state = outcome.state
            failures += bool(outcome.failure)
            accepted += outcome.acceptance
        after.append(watched(state))
    like, moved = np.array(before), np.array(after)
    changes = squash(moved, like) - squash(like, like)
    changes = changes[:, changes.any(axis=0)]  # what is held says nothing
    assert changed(changes) > 1e-3 / (len(CASES) + len(ALONE))
    assert failures / (2 * count) < 0.1
    assert 0.3 < accepted / (2 * count) < 0.995
    assert np.abs(moved - like)[:, -2].mean() > 0.1


def watched(state) -> np.ndarray:
    """The process's values, θ and the log density."""
    point = getattr(state.density_point, "whole", state.density_point)
    return np.append(point.values, point.model_log_density)
