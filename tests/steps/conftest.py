"""Small models that the step is run on."""

from __future__ import annotations

from functools import cache

import numpy as np
import pymc as pm
import pytest

N = 12
X = np.linspace(0.0, 1.0, N)[:, None]
COUNTS = np.array([0, 1, 3, 2, 5, 4, 6, 3, 1, 0, 2, 1])


def poisson_model(*, reparameterize: bool = False, sampled: bool = False) -> pm.Model:
    """Counts on a line; with `sampled` the lengthscale is a free variable as well."""
    with pm.Model() as model:
        lengthscale = pm.LogNormal("ls", -1.0, 0.3) if sampled else 0.3
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(0.5), cov_func=1.5 * pm.gp.cov.Matern52(1, ls=lengthscale))
        f = gp.prior("f", X=X, reparameterize=reparameterize)
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
    return model


@cache
def logistic() -> pm.Model:
    """An intercept and a slope."""
    at = np.linspace(-2.0, 2.0, 20)
    with pm.Model() as model:
        b = pm.Normal("b", 0.0, 2.0, shape=2)
        pm.Bernoulli("y", logit_p=b[0] + b[1] * at, observed=(at + np.sin(9.0 * at) > 0.3).astype(int))
    return model


@pytest.fixture
def model() -> pm.Model:
    return poisson_model()


def draw(model: pm.Model, step=None, **options):
    """A short run without noise."""
    from pymc_rmhmc import RMHMC

    options = {
        "draws": 30, "tune": 40, "chains": 1, "cores": 1, "progressbar": False, "random_seed": 7,
        "compute_convergence_checks": False, **options,
    }  # fmt: skip
    with model:
        return pm.sample(step=RMHMC() if step is None else step, **options)
