"""Gaussian processes: with a Normal likelihood integrated out, and latent under others."""

from __future__ import annotations

from functools import partial

import numpy as np
import pymc as pm

from benchmarks.catalogue.entry import Entry

__all__ = ["PROCESSES"]


def marginal(n: int, seed: int = 1) -> pm.Model:
    """``gp.Marginal`` over two inputs, each with its lengthscale."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0.0, 1.0, (n, 2))
    y = np.sin(6.0 * x[:, 0]) + 0.5 * np.cos(3.0 * x[:, 1]) + 0.3 * rng.standard_normal(n)
    with pm.Model() as model:
        lengthscale = pm.InverseGamma("lengthscale", 5.0, 2.0, shape=2)
        amplitude, sigma = pm.HalfNormal("amplitude", 2.0), pm.HalfNormal("sigma", 1.0)
        gp = pm.gp.Marginal(cov_func=amplitude**2 * pm.gp.cov.ExpQuad(2, ls=lengthscale))
        gp.marginal_likelihood("y", X=x, y=y, sigma=sigma)
    return model


def student_process(n: int = 50, seed: int = 2) -> pm.Model:
    """A smooth curve with outliers."""
    rng = np.random.default_rng(seed)
    x = np.linspace(0.0, 10.0, n)
    y = 3.0 * np.sin(x) * np.exp(-0.1 * x) + 0.4 * rng.standard_t(3.0, n)
    with pm.Model() as model:
        lengthscale, amplitude = pm.Gamma("lengthscale", 2.0, 1.0), pm.HalfCauchy("amplitude", 5.0)
        gp = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.ExpQuad(1, ls=lengthscale))
        f = gp.prior("f", X=x[:, None])
        sigma, nu = pm.HalfCauchy("sigma", 2.0), pm.Gamma("nu", 2.0, 0.1)
        pm.StudentT("y", nu=nu, mu=f, sigma=sigma, observed=y)
    return model


def ordinal_process(n: int = 60, seed: int = 3) -> pm.Model:
    """Grades that follow a curve."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 10.0, n))
    grade = np.digitize(2.0 * np.sin(x) + rng.logistic(size=n), [-1.5, 0.0, 1.5])
    with pm.Model() as model:
        lengthscale, amplitude = pm.InverseGamma("lengthscale", 3.0, 4.0), pm.HalfNormal("amplitude", 2.0)
        gp = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.Matern52(1, ls=lengthscale))
        f = gp.prior("f", X=x[:, None])
        cutpoints = pm.Normal(
            "cutpoints", [-1.5, 0.0, 1.5], 1.5, transform=pm.distributions.transforms.ordered,
            initval=[-1.5, 0.0, 1.5],
        )  # fmt: skip
        pm.OrderedLogistic("grade", eta=f, cutpoints=cutpoints, observed=grade)
    return model


def censored_process(free_level: bool, n: int = 60, seed: int = 4) -> pm.Model:
    """A curve of which nothing above one is seen."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 10.0, n))
    y = np.minimum(0.4 + np.sin(x) + 0.3 * rng.standard_normal(n), 1.0)
    with pm.Model() as model:
        lengthscale, amplitude = pm.InverseGamma("lengthscale", 5.0, 6.0), pm.HalfNormal("amplitude", 2.0)
        gp = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.ExpQuad(1, ls=lengthscale))
        f = gp.prior("f", X=x[:, None])
        level = pm.Normal("level", 0.0, 2.0) if free_level else 0.4
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Censored("y", pm.Normal.dist(level + f, sigma), lower=None, upper=1.0, observed=y)
    return model


PROCESSES: dict[str, Entry] = {
    "gp.Marginal 200": Entry(partial(marginal, 200)),
    "gp.Marginal 500": Entry(partial(marginal, 500)),
    "GP student t": Entry(student_process, logged=("amplitude", "nu")),
    "ordinal GP": Entry(ordinal_process),
    "censored GP": Entry(partial(censored_process, False)),
    "censored GP, free level": Entry(partial(censored_process, True)),
}
