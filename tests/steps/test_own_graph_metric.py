"""A dense metric of the user's own for all values of any model, by ``chart = "graph"``."""

from __future__ import annotations

import numpy as np
import pymc as pm

from pymc_rmhmc import RMHMC, DenseField
from tests.steps.conftest import draw


class WideningField(DenseField):
    """``diag(1 + x²)`` of every value."""

    def matrix(self, point):
        return np.diag(1.0 + point.position**2)

    def pullback(self, point, bar):
        return 2.0 * point.position * np.diag(bar)


class WideningMetric:
    name, chart = "widening", "graph"

    def bind(self, density):
        return WideningField(density)


def test_a_dense_metric_moves_all_values_of_a_model():
    with pm.Model() as model:
        pm.Normal("a", 1.0, 0.5)
        pm.Normal("b", 0.0, 1.0, shape=2)
        step = RMHMC(metric=WideningMetric())
    idata = draw(model, step, draws=800, tune=200)
    assert np.mean(idata.sample_stats["failure"].values != 0) < 0.05
    assert abs(idata.posterior["a"].mean() - 1.0) < 0.12
    assert abs(idata.posterior["b"].std() - 1.0) < 0.15
