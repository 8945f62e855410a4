"""Metrics of whole models leave their target alone: exact draws stay exact, and ranks of a truth are uniform."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.metrics import FisherMetric, GraphMetric, SoftAbsMetric
from pymc_rmhmc.metrics.graph_metric import MatrixDensity
from pymc_rmhmc.metrics.sparsity import Partition
from pymc_rmhmc.sampled.whole_model_metric import find_riemannian
from tests.statistical.exact import changed, squash
from tests.statistical.ranks import PLACES, p_value, rank

pytestmark = pytest.mark.slow

LEAPFROG = GeneralizedLeapfrog()


def funnel() -> pm.Model:
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 0.7)
        pm.Normal("x", 0.0, pt.exp(0.5 * v), shape=3)
    return model


def widths(model):
    v = model.rvs_to_values[model["v"]]
    return pt.diag(pt.concatenate([3.5 * pt.ones(1), pt.exp(-v) * pt.ones(3)]))


def values_of(model, metric):
    """The density with what the metric is made of, and a field that is bound to it."""
    found = find_riemannian(model, model.free_RVs, model.initial_point(), metric, None)
    return found.density_model


def field_of(values, metric, partition=None):
    density = MatrixDensity(values.evaluate, values.pull, values.size, partition=partition, along=values.along)
    return metric.bind(density)


# The metric, its structure, and a step that is long enough to be rejected now and then.
CASES = {
    "dense": (SoftAbsMetric(alpha=1.0), None, 0.25),
    "blocks": (SoftAbsMetric(alpha=1.0), Partition.of([0], [[1], [2], [3]]), 0.25),
    "fisher": (FisherMetric(chart="graph"), None, 0.5),
    "graph": (GraphMetric(widths), None, 0.5),
}


@pytest.mark.parametrize("name", CASES)
def test_exact_draws_of_a_funnel_stay_exact(name):
    metric, partition, step_size = CASES[name]
    model, rng, count = funnel(), np.random.default_rng(8), 1000
    flow = field_of(values_of(model, metric), metric, partition).hamiltonian()
    v = 0.7 * rng.standard_normal(count)
    before = np.column_stack((v, np.exp(0.5 * v)[:, None] * rng.standard_normal((count, 3))))
    after, failures, accepted = [], 0, 0.0
    for start in before:
        state = flow.state(start)
        for _ in range(2):
            outcome = transition(flow, LEAPFROG, state, 4, step_size, rng)
            state = outcome.state
            failures += bool(outcome.failure)
            accepted += outcome.acceptance
        after.append(state.position)
    after = np.array(after)

    def watched(x):
        return np.column_stack((x, np.sum(x[:, 1:] ** 2, axis=1) * np.exp(-x[:, 0])))

    like = watched(before)
    assert changed(squash(watched(after), like) - squash(like, like)) > 1e-3 / len(CASES) / 3
    assert failures / (2 * count) < 0.2
    assert 0.3 < accepted / (2 * count) < 0.995
    assert np.abs(after - before)[:, 0].mean() > 0.15


AT = np.linspace(-1.5, 1.5, 8)


def logistic() -> pm.Model:
    with pm.Model() as model:
        y = pm.Data("y", np.zeros(AT.size, dtype=int))
        b = pm.Normal("b", [0.3, -0.2], [1.0, 1.5], shape=2)
        pm.Bernoulli("seen", logit_p=b[0] + b[1] * AT, observed=y)
    return model


# The first makes its steps in compiled code.
@pytest.mark.parametrize(
    ("metric", "simulations"), [(SoftAbsMetric(), 250), (FisherMetric(chart="graph"), 100)], ids=["softabs", "fisher"]
)
def test_ranks_of_a_logistic_regressions_truth_are_uniform(metric, simulations):
    model, rng, ranks, failures = logistic(), np.random.default_rng(3), [], 0
    values, point = values_of(model, metric), model.initial_point()
    for _ in range(simulations):
        truth = np.array([0.3, -0.2]) + np.array([1.0, 1.5]) * rng.standard_normal(2)
        seen = (rng.random(AT.size) < 1.0 / (1.0 + np.exp(-truth[0] - truth[1] * AT))).astype(int)
        with model:
            pm.set_data({"y": seen})
        values.bind(point)
        flow, before, others = field_of(values, metric).hamiltonian(), rng.integers(PLACES), []
        for length in (before, PLACES - 1 - before):
            state = flow.state(truth)
            for _ in range(length):
                outcome = transition(flow, LEAPFROG, state, 3, 0.5, rng)
                state = outcome.state
                failures += bool(outcome.failure)
                others.append([*state.position, state.position @ state.position])
        ranks.append(rank(np.array([*truth, truth @ truth]), np.array(others), rng))
    assert p_value(np.array(ranks)) > 1e-3 / 6
    assert failures / (simulations * (PLACES - 1)) < 0.05
