"""Whole runs inside pm.sample against what is known: a grid, and a long run of NUTS."""

from __future__ import annotations

import arviz as az
import numpy as np
import nutpie
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, compare
from tests.steps.conftest import draw

pytestmark = pytest.mark.slow

OPTIONS = {
    "flat": {},
    # Rates over decades: at the default target one trajectory in eight is given up by the solver.
    "hessian": {"metric": "hessian", "target_accept": 0.95},
    "midpoint": {"metric": "fisher", "integrator": "implicit_midpoint", "target_accept": 0.95},
}
COVARIANCE = np.array([[4.0, 3.0], [3.0, 5.0]])
MEAN, COUNTS = np.array([0.5, -0.5]), np.array([0, 4])


def grid_moments():
    """Means, second moments and the probability of a quadrant, by summing over a fine grid."""
    axis = np.linspace(-14.0, 8.0, 1500)
    a, b = np.meshgrid(axis, axis, indexing="ij")
    height = np.stack((a - MEAN[0], b - MEAN[1]), -1)
    log_density = -0.5 * np.einsum("...i,ij,...j", height, np.linalg.inv(COVARIANCE), height)
    log_density += COUNTS[0] * a - np.exp(a) + COUNTS[1] * b - np.exp(b)
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    return [float((weight * h).sum()) for h in (a, b, a**2, b**2, a * b, (a > 0) & (b > 1))]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_moments_are_those_of_a_grid(options):
    with pm.Model() as model:
        f = pm.MvNormal("f", MEAN, cov=COVARIANCE)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        idata = draw(model, RMHMC(**options), draws=1000 if "integrator" in options else 3000, tune=300, chains=2)
    assert float((idata.sample_stats["failure"] > 0).mean()) < 0.05
    a, b = np.moveaxis(idata.posterior["f"].values, -1, 0)
    features = (a, b, a**2, b**2, a * b, ((a > 0) & (b > 1)).astype(float))
    for values, exact in zip(features, grid_moments(), strict=True):
        assert abs(values.mean() - exact) < 4.5 * float(az.mcse(values))


def classes(*, reparameterize: bool) -> pm.Model:
    x = np.linspace(0.0, 1.0, 20)[:, None]
    y = (np.random.default_rng(0).random(20) < 0.5).astype(int)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=6.0 * pm.gp.cov.ExpQuad(1, ls=0.2))
        pm.Bernoulli("y", logit_p=gp.prior("f", X=x, reparameterize=reparameterize), observed=y)
    return model


@pytest.fixture(scope="module")
def nuts():
    """A long run, for all that is compared with it."""
    return nutpie.sample(
        nutpie.compile_pymc_model(classes(reparameterize=True)), draws=3000, tune=800, chains=2, cores=1, seed=7,
        progress_bar=False,
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"metric": "hessian"}], ids=["flat", "hessian"])
def test_a_long_run_of_nuts_agrees(options, nuts):
    centred = classes(reparameterize=False)
    with centred:
        step = RMHMC(**options)
    ours = draw(centred, step, draws=1500, tune=300, chains=2)
    frame = compare({"ours": ours, "NUTS": nuts}, var_names=["f"])
    # Twenty means: 4 Monte Carlo errors is one false alarm in 800 runs.
    assert frame.loc["ours", "mean difference"] < 4.0
    assert frame.loc["ours", "R-hat max"] < 1.02
