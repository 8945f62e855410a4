"""A metric of the user's own, as the docstring of `DenseField` writes it, inside pm.sample."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from pymc_rmhmc import RMHMC, DenseField, ImplicitMidpoint
from pymc_rmhmc.dynamics.hamiltonian import RiemannianState
from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.latent.charts import SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget
from tests.model.conftest import exact_log_density
from tests.steps.conftest import N, draw, poisson_model
from tests.unit.toys import PRIORS, problem


@pytest.fixture(scope="module")
def metric():
    """The example's, which runs and prints what it says."""
    example = doctest.DocTestParser().get_doctest(DenseField.__doc__, {}, "DenseField", None, None)
    runner = doctest.DocTestRunner()
    assert runner.run(example, clear_globs=False).failed == 0
    return example.globs["CurvedMetric"]()


@pytest.mark.parametrize("prior", PRIORS)
def test_the_examples_pullback_is_its_matrixs_derivative(metric, prior):
    stated, family = problem(prior, "poisson", 5)
    field = metric.bind(LatentDensity(LatentTarget(SiteChart(FactorizedPrior(stated)), family)))
    flow, rng, h = field.hamiltonian(), np.random.default_rng(0), 1e-5
    z, p = rng.standard_normal((2, field.density.predictor.n_latent))
    point = field.evaluate(z)

    def energy(at):
        return flow.energy(RiemannianState(field.evaluate(at), p))

    slopes = [(energy(z + e) - energy(z - e)) / (2 * h) for e in h * np.eye(z.size)]
    force = -point.gradient + point.trace_term + point.quadratic_term(point.solve(p))
    np.testing.assert_allclose(force, slopes, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"integrator": ImplicitMidpoint()}], ids=["leapfrog", "midpoint"])
def test_it_samples_with_every_integrator(metric, options):
    model = poisson_model()
    with model:
        step = RMHMC(metric=metric, **options)
    idata = draw(model, step)
    stats = idata.sample_stats
    assert idata.posterior["f"].shape == (1, 30, N)
    assert np.count_nonzero(stats["failure"] != Failure.NONE) <= 1
    assert stats["acceptance_rate"].mean() > 0.5
    assert np.unique(idata.posterior["f"].values[0, :, 0]).size > 15
    last = {"f": idata.posterior["f"].values[0, -1]}
    assert stats["lp"].values[0, -1] == pytest.approx(float(exact_log_density(model)(last)), abs=1e-6)


def test_it_leaves_hyperparameters_to_other_steps(metric, caplog):
    with caplog.at_level("INFO"), poisson_model(sampled=True):
        RMHMC(metric=metric)
    assert "curved metric for f (12 values); left to other steps" in caplog.text
    assert "the curved metric takes latent values alone" in caplog.text


@pytest.mark.parametrize("lacking", ["bind", "name"])
def test_what_a_metric_lacks_is_named(metric, lacking):
    given = {"bind": metric.bind, "name": "curved"}
    given.pop(lacking)
    with poisson_model(), pytest.raises(ConfigurationError, match=f"which lacks {lacking}"):
        RMHMC(metric=type("Half", (), given)())
