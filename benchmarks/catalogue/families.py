"""Effects of other families, and models with a potential, a custom distribution or a mixture."""

from __future__ import annotations

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit

from benchmarks.catalogue.entry import Entry

__all__ = ["FAMILIES"]


def gamma_poisson(groups: int = 100, per_group: int = 5, seed: int = 1) -> pm.Model:
    """Counts with a multiplier of mean one for each group."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), per_group)
    y = rng.poisson(3.0 * rng.gamma(4.0, 0.25, groups)[group])
    with pm.Model() as model:
        mu, s = pm.LogNormal("mu", 1.0, 1.0), pm.HalfNormal("s", 1.0)
        a = pm.Gamma("a", 1.0 / s**2, 1.0 / s**2, shape=groups)
        pm.Poisson("y", mu * a[group], observed=y)
    return model


def beta_effects(groups: int = 70, seed: int = 2) -> pm.Model:
    """A share for each of many trials."""
    rng = np.random.default_rng(seed)
    n = rng.integers(10, 50, groups)
    y = rng.binomial(n, rng.beta(2.0, 12.0, groups))
    with pm.Model() as model:
        mean, kappa = pm.Beta("mean", 1.0, 1.0), pm.Gamma("kappa", 2.0, 0.1)
        p = pm.Beta("p", mean * kappa, (1.0 - mean) * kappa, shape=groups)
        pm.Binomial("y", n=n, p=p, observed=y)
    return model


def gamma_effects(groups: int = 10, seed: int = 3) -> pm.Model:
    """Failures of pumps, each with its rate."""
    rng = np.random.default_rng(seed)
    time = rng.uniform(1.0, 100.0, groups)
    y = rng.poisson(rng.gamma(0.8, 1.0, groups) * time)
    with pm.Model() as model:
        alpha, beta = pm.Exponential("alpha", 1.0), pm.Gamma("beta", 0.1, 1.0)
        theta = pm.Gamma("theta", alpha, beta, shape=groups)
        pm.Poisson("y", theta * time, observed=y)
    return model


def exponential_rates(groups: int = 30, per_group: int = 4, seed: int = 4) -> pm.Model:
    """Waiting times, with a rate for each group."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), per_group)
    y = rng.exponential(1.0 / rng.exponential(2.0, groups)[group])
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 5.0)
        rate = pm.Exponential("rate", 1.0 / scale, shape=groups)
        pm.Exponential("y", rate[group], observed=y)
    return model


def laplace_effects(centred: bool, n: int = 100, p: int = 30, seed: int = 5) -> pm.Model:
    """A Bayesian lasso."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p))
    y = x @ (rng.laplace(0.0, 0.4, p) * (np.arange(p) < 10)) + rng.standard_normal(n)
    with pm.Model() as model:
        s, sigma = pm.HalfNormal("s", 1.0), pm.HalfNormal("sigma", 2.0)
        if centred:
            b = pm.Laplace("b", 0.0, s, shape=p)
        else:
            b = pm.Deterministic("b", s * pm.Laplace("z", 0.0, 1.0, shape=p))
        pm.Normal("y", pm.math.dot(x, b), sigma, observed=y)
    return model


def weibull_survival(n: int = 150, seed: int = 6) -> pm.Model:
    """Survival times, the censored ones by a potential."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    time, end = rng.weibull(1.5, n) * np.exp(0.5 + 0.6 * x), rng.uniform(0.5, 4.0, n)
    seen, time = time <= end, np.minimum(time, end)
    with pm.Model() as model:
        alpha = pm.HalfNormal("alpha", 2.0)
        level, slope = pm.Normal("level", 0.0, 2.0), pm.Normal("slope", 0.0, 1.0)
        scale = pm.math.exp(level + slope * x)
        pm.Weibull("y", alpha, scale[seen], observed=time[seen])
        pm.Potential("censored", -(((time[~seen]) / scale[~seen]) ** alpha))
    return model


def zero_sum(groups: int = 12, per_group: int = 8, seed: int = 7) -> pm.Model:
    """Effects that add to zero."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), per_group)
    y = (rng.random(group.size) < expit(0.3 + 0.8 * rng.standard_normal(groups)[group])).astype(int)
    with pm.Model() as model:
        level, s = pm.Normal("level", 0.0, 2.0), pm.HalfNormal("s", 1.0)
        effect = pm.ZeroSumNormal("effect", sigma=s, shape=groups)
        pm.Bernoulli("y", logit_p=level + effect[group], observed=y)
    return model


def custom_prior(n: int = 80, seed: int = 8) -> pm.Model:
    """Slopes with a prior that is written by hand, a logistic one."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 3))
    y = x @ np.array([1.0, 0.0, -0.5]) + 0.7 * rng.standard_normal(n)

    def logp(value, scale):
        return -value / scale - pt.log(scale) - 2.0 * pt.softplus(-value / scale)

    def random(scale, rng=None, size=None):
        return rng.logistic(0.0, scale, size)

    with pm.Model() as model:
        scale, sigma = pm.HalfNormal("scale", 1.0), pm.HalfNormal("sigma", 1.0)
        b = pm.CustomDist("b", scale, logp=logp, random=random, shape=3)
        pm.Normal("y", pm.math.dot(x, b), sigma, observed=y)
    return model


def mixture(n: int = 200, seed: int = 9) -> pm.Model:
    """Three Normals, the component of each point summed out."""
    rng = np.random.default_rng(seed)
    part = rng.choice(3, size=n, p=[0.3, 0.4, 0.3])
    y = rng.normal(np.array([-3.0, 0.0, 3.5])[part], np.array([0.7, 0.5, 1.0])[part])
    with pm.Model() as model:
        w = pm.Dirichlet("w", np.full(3, 2.0))
        mu = pm.Normal("mu", 0.0, 5.0, shape=3, transform=pm.distributions.transforms.ordered, initval=[-2.0, 0.0, 2.0])
        sigma = pm.HalfNormal("sigma", 2.0, shape=3)
        pm.NormalMixture("y", w=w, mu=mu, sigma=sigma, observed=y)
    return model


FAMILIES: dict[str, Entry] = {
    "gamma-poisson": Entry(gamma_poisson),
    "beta effects": Entry(beta_effects),
    "gamma effects": Entry(gamma_effects, logged=("theta",)),
    "exponential rates": Entry(exponential_rates),
    "laplace effects": Entry(partial(laplace_effects, True), partial(laplace_effects, False)),
    "weibull survival": Entry(weibull_survival),
    "zero-sum effects": Entry(zero_sum),
    "custom prior": Entry(custom_prior),
    "mixture": Entry(mixture),
}
