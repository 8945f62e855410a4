"""Problems that are linear in coefficients: HSGPs, mixed models, a process beside groups, hyperparameters sampled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
from scipy.special import expit

from benchmarks.joint_problems import JointProblem

__all__ = ["LINEAR_PROBLEMS", "hsgp", "mixed", "weeks_and_stores"]


def hsgp(basis: tuple[int, ...] = (100,), n: int = 500, seed: int = 0) -> JointProblem:
    """Counts over a Hilbert-space GP of as many basis functions a dimension, amplitude and lengthscale free.

    The coefficients are drawn at their own scale ("centered") for RMHMC, and at scale one for NUTS; both are
    compared at their own.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1.0, 1.0, (n, len(basis)))
    f = 0.5 + sum(np.sin(3.0 * x[:, i] + i) for i in range(len(basis)))
    y = rng.poisson(np.exp(f))

    def build(whitened: bool) -> pm.Model:
        with pm.Model() as model:
            intercept = pm.Normal("intercept", 0.0, 2.0)
            lengthscale = pm.InverseGamma("lengthscale", 5.0, 3.0)
            amplitude = pm.HalfNormal("amplitude", 2.0)
            covariance = amplitude**2 * pm.gp.cov.Matern52(len(basis), ls=lengthscale)
            gp = pm.gp.HSGP(m=list(basis), c=1.5, cov_func=covariance)
            phi, deviation = gp.prior_linearized(x)
            size = int(np.prod(basis))
            if whitened:
                weights = pm.Deterministic("weights", pm.Normal("z", 0.0, 1.0, shape=size) * deviation)
            else:
                weights = pm.Normal("weights", 0.0, deviation, shape=size)
            pm.Poisson("y", mu=pm.math.exp(intercept + phi @ weights), observed=y)
        return model

    name = "x".join(map(str, basis))
    return JointProblem(f"HSGP m={name} n={n}", build, ("intercept", "lengthscale", "amplitude", "weights"))


def mixed(likelihood: str = "poisson", groups: int = 100, per_group: int = 5, seed: int = 0) -> JointProblem:
    """``η = intercept + Xβ + u[group]`` with a free scale of u; non-centred for NUTS, centred for RMHMC.

    A negative binomial's dispersion is free too, and a beta's precision, which is not registered.
    """
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), per_group)
    x = rng.standard_normal((group.size, 3))
    eta = 0.5 + x @ np.array([0.5, -0.3, 0.2]) + 0.7 * rng.standard_normal(groups)[group]
    if likelihood == "bernoulli":
        y = (rng.random(eta.size) < expit(eta)).astype(int)
    elif likelihood == "beta":
        y = rng.beta(10.0 * expit(eta), 10.0 * expit(-eta))
    else:
        y = rng.poisson(np.exp(eta) * (1.0 if likelihood == "poisson" else rng.gamma(3.0, 1.0 / 3.0, eta.size)))
    own = {"negative binomial": ("alpha",), "beta": ("nu",)}.get(likelihood, ())

    def build(whitened: bool) -> pm.Model:
        with pm.Model() as model:
            intercept = pm.Normal("intercept", 0.0, 2.0)
            beta = pm.Normal("beta", 0.0, 1.0, shape=3)
            sigma = pm.HalfNormal("sigma", 1.0)
            if whitened:
                u = pm.Deterministic("u", sigma * pm.Normal("z", 0.0, 1.0, shape=groups))
            else:
                u = pm.Normal("u", 0.0, sigma, shape=groups)
            predictor = intercept + pm.math.dot(x, beta) + u[group]
            if likelihood == "poisson":
                pm.Poisson("y", mu=pm.math.exp(predictor), observed=y)
            elif likelihood == "negative binomial":
                pm.NegativeBinomial("y", mu=pm.math.exp(predictor), alpha=pm.Exponential("alpha", 0.2), observed=y)
            elif likelihood == "beta":
                pm.Beta("y", mu=pm.math.invlogit(predictor), nu=pm.Gamma("nu", 2.0, 0.2), observed=y)
            else:
                pm.Bernoulli("y", logit_p=predictor, observed=y)
        return model

    size = "" if per_group > 1 else " of one"
    return JointProblem(f"mixed {likelihood}, {groups} groups{size}", build, ("intercept", "beta", "sigma", "u", *own))


def weeks_and_stores(weeks: int = 100, stores: int = 50, n: int = 2000, seed: int = 0) -> JointProblem:
    """Sales, of which each has a week and a store: a process over the weeks beside an effect of every store."""
    rng = np.random.default_rng(seed)
    time, week, store = np.linspace(0.0, 10.0, weeks), rng.integers(0, weeks, n), rng.integers(0, stores, n)
    y = rng.poisson(np.exp(0.5 + np.sin(time)[week] + 0.5 * rng.standard_normal(stores)[store]))

    def build(whitened: bool) -> pm.Model:
        with pm.Model() as model:
            lengthscale, amplitude = pm.InverseGamma("lengthscale", 5.0, 5.0), pm.HalfNormal("amplitude", 1.0)
            level, spread = pm.Normal("level", 0.0, 1.0), pm.HalfNormal("spread", 1.0)
            gp = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.Matern52(1, ls=lengthscale))
            trend = gp.prior("trend", time[:, None])
            if whitened:
                effect = pm.Deterministic("effect", spread * pm.Normal("z", shape=stores))
            else:
                effect = pm.Normal("effect", 0.0, spread, shape=stores)
            pm.Poisson("y", mu=pm.math.exp(level + trend[week] + effect[store]), observed=y)
        return model

    names = ("lengthscale", "amplitude", "level", "spread", "trend", "effect")
    return JointProblem(f"{n} sales in {weeks} weeks and {stores} stores", build, names)


LINEAR_PROBLEMS: dict[str, Callable[[], JointProblem]] = {
    "hsgp 100": hsgp,
    "hsgp 20x20": lambda: hsgp((20, 20), 1000),
    **{
        f"mixed {likelihood} {groups}": lambda likelihood=likelihood, groups=groups: mixed(likelihood, groups)
        for likelihood in ("poisson", "negative binomial", "bernoulli", "beta")
        for groups in (100, 400)
    },
    "effects poisson 300": lambda: mixed("poisson", 300, 1),
    "weeks and stores 2000": weeks_and_stores,
}
