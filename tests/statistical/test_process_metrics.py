"""Metrics of a process with its hyperparameters leave their target alone: exact draws stay exact."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc import BlockMetric, GeneralizedLeapfrog, ImplicitMidpoint, WhitenedFisherMetric
from pymc_rmhmc.kernels.trajectories import transition
from tests.statistical.exact import changed, squash
from tests.unit.process_toy import PRECISION, SEEN, N, ToyProcess
from tests.unit.series_toy import DenseSeries, ToySeries

pytestmark = pytest.mark.slow

# With a step that is long enough to be rejected now and then.
CASES = {
    "block": (BlockMetric(), GeneralizedLeapfrog(), 0.6, 800),
    "whitened": (WhitenedFisherMetric(), GeneralizedLeapfrog(), 0.5, 800),
    "block midpoint": (BlockMetric(), ImplicitMidpoint(), 1.0, 200),
    "series": (BlockMetric(), GeneralizedLeapfrog(), 0.6, 800),
    "walk": (BlockMetric(), GeneralizedLeapfrog(), 0.6, 400),
}
# The series of a case, if it is not the toy process; draws are made with the same dense.
SERIES = {"series": "constant", "walk": "walk"}


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
    is_series = name in SERIES
    drawn = DenseSeries(SERIES[name]) if is_series else ToyProcess()
    rng, field = np.random.default_rng(8), metric.bind(ToySeries(SERIES[name], whitened=True) if is_series else drawn)
    flow, starts = field.hamiltonian(), exact_draws(drawn, count, rng)
    before, after, failures, accepted = [], [], 0, 0.0
    for values in starts:
        state = flow.state(field.density.enter(values))
        before.append(watched(state))
        for _ in range(2):
            outcome = transition(flow, integrator, state, 3, step_size, rng)
            state = outcome.state
            failures += bool(outcome.failure)
            accepted += outcome.acceptance
        after.append(watched(state))
    like, moved = np.array(before), np.array(after)
    assert changed(squash(moved, like) - squash(like, like)) > 1e-3 / len(CASES)
    assert failures / (2 * count) < 0.1
    assert 0.3 < accepted / (2 * count) < 0.995
    assert np.abs(moved - like)[:, -2].mean() > 0.1


def watched(state) -> np.ndarray:
    """The process's values, θ and the log density."""
    point = state.density_point
    return np.append(point.values, point.model_log_density)
