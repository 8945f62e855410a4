"""Models of which one observation reads several predictors: classes, mean and spread, rate and zero inflation.

Data are drawn from the model at chosen parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt

__all__ = ["PROBLEMS"]

JITTER = 1e-6


def _process(rng: np.random.Generator, x: np.ndarray, lengthscale: float, amplitude: float) -> np.ndarray:
    distance = ((x[:, None] - x) / lengthscale) ** 2
    factor = np.linalg.cholesky(amplitude**2 * np.exp(-0.5 * distance) + JITTER * np.eye(x.size))
    return factor @ rng.standard_normal(x.size)


def _latent(name: str, x: np.ndarray) -> pt.TensorVariable:
    """A process on a line, with a lengthscale and an amplitude of its own."""
    lengthscale, amplitude = pm.InverseGamma(f"ell_{name}", 5.0, 5.0), pm.HalfNormal(f"amp_{name}", 2.0)
    covariance = amplitude**2 * pm.gp.cov.ExpQuad(1, ls=lengthscale)
    return pm.gp.Latent(cov_func=covariance).prior(f"f_{name}", X=x[:, None], jitter=JITTER)


def three_classes(n: int = 100) -> pm.Model:
    """Three classes on a line, a process for each."""
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0.0, 10.0, n))
    f = np.column_stack([_process(rng, x, 1.5, 1.5) for _ in range(3)])
    odds = np.exp(f - f.max(axis=1, keepdims=True))
    y = (rng.random(n)[:, None] > np.cumsum(odds / odds.sum(axis=1, keepdims=True), axis=1)).sum(axis=1)
    with pm.Model() as model:
        logits = pt.stack([_latent(str(k), x) for k in range(3)], axis=1)
        pm.Categorical("y", logit_p=logits, observed=y)
    return model


def mean_and_noise(n: int = 133) -> pm.Model:
    """A process for the mean and one for the logarithm of the noise."""
    rng = np.random.default_rng(2)
    x = np.sort(rng.uniform(0.0, 10.0, n))
    f, g = _process(rng, x, 1.2, 1.5), _process(rng, x, 2.5, 0.8) - 1.0
    y = f + np.exp(g) * rng.standard_normal(n)
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 2.0)
        pm.Normal("y", _latent("mean", x), pt.exp(level + _latent("noise", x)), observed=y)
    return model


def effects_on_both(groups: int = 200, n: int = 4000) -> pm.Model:
    """Effects of groups on the mean and on the logarithm of the spread, correlated."""
    rng = np.random.default_rng(3)
    g, x = rng.integers(groups, size=n), rng.standard_normal(n)
    effects = rng.standard_normal((groups, 2)) @ np.linalg.cholesky(np.array([[0.5, 0.1], [0.1, 0.15]])).T
    y = 0.5 + 0.4 * x + effects[g, 0] + np.exp(-0.2 + effects[g, 1]) * rng.standard_normal(n)
    with pm.Model() as model:
        chol, *_ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
        a, b, c = pm.Normal("a", 0.0, 5.0), pm.Normal("b", 0.0, 5.0), pm.Normal("c", 0.0, 2.0)
        u = pm.MvNormal("u", mu=np.zeros(2), chol=chol, shape=(groups, 2))
        pm.Normal("y", a + b * x + u[g, 0], pt.exp(c + u[g, 1]), observed=y)
    return model


def rate_and_zeros(n: int = 500, groups: int = 25) -> pm.Model:
    """Zero-inflated counts, a process for the rate and effects of groups for the inflation."""
    rng = np.random.default_rng(4)
    x, g = np.sort(rng.uniform(0.0, 10.0, n)), rng.integers(groups, size=n)
    rate = np.exp(1.5 + _process(rng, x, 1.5, 0.7))
    counted = rng.random(n) < 1.0 / (1.0 + np.exp(-1.0 - 0.8 * rng.standard_normal(groups)[g]))
    y = np.where(counted, rng.negative_binomial(3.0, 3.0 / (3.0 + rate)), 0)
    with pm.Model() as model:
        level, alpha = pm.Normal("level", 0.0, 2.0), pm.Exponential("alpha", 0.3)
        s, base = pm.HalfNormal("s", 1.0), pm.Normal("base", 0.0, 1.5)
        effects = pm.Normal("u", 0.0, s, shape=groups)
        rate_ = pt.exp(level + _latent("rate", x))
        pm.ZeroInflatedNegativeBinomial("y", psi=pm.math.invlogit(base + effects[g]), mu=rate_, alpha=alpha, observed=y)
    return model


def mean_and_volatility(n: int = 1000) -> pm.Model:
    """A series whose level is a walk and whose log volatility is an autoregression."""
    rng = np.random.default_rng(5)
    h = np.zeros(n)
    for t in range(1, n):
        h[t] = 0.95 * h[t - 1] + 0.25 * rng.standard_normal()
    y = np.cumsum(0.1 * rng.standard_normal(n)) + np.exp(0.5 * (h - 1.0)) * rng.standard_normal(n)
    with pm.Model() as model:
        step, sigma = pm.HalfNormal("step", 0.5), pm.HalfNormal("sigma", 1.0)
        phi, mu = 2.0 * pm.Beta("phi01", 20.0, 1.5) - 1.0, pm.Normal("mu", 0.0, 2.0)
        level = pm.GaussianRandomWalk("level", sigma=step, init_dist=pm.Normal.dist(0.0, 5.0), shape=n)
        first = pm.Normal.dist(0.0, sigma / pt.sqrt(1.0 - phi**2))
        h_ = pm.AR("h", rho=pt.stack([phi]), sigma=sigma, init_dist=first, shape=n)
        pm.Normal("y", level, pt.exp(0.5 * (mu + h_)), observed=y)
    return model


PROBLEMS: dict[str, Callable[..., pm.Model]] = {
    each.__name__: each
    for each in (three_classes, mean_and_noise, effects_on_both, rate_and_zeros, mean_and_volatility)
}
