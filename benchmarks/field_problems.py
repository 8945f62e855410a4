"""Models whose latent values have a sparse precision, as PyMC users write them: series, maps and crossed effects.

Each function returns a model with simulated data of a fixed seed, but for one map; sizes are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
from scipy import sparse
from scipy.sparse.linalg import splu

__all__ = ["PROBLEMS"]

DATA = Path(__file__).resolve().parents[1] / "data"


def stochastic_volatility(n: int = 2000) -> pm.Model:
    """Daily returns whose log volatility is an autoregression of the first order."""
    rng = np.random.default_rng(1)
    h, phi, sigma = np.empty(n), 0.97, 0.15
    h[0] = sigma / np.sqrt(1.0 - phi**2) * rng.standard_normal()
    for t in range(1, n):
        h[t] = phi * h[t - 1] + sigma * rng.standard_normal()
    y = np.exp((h - 0.8) / 2.0) * rng.standard_normal(n)
    with pm.Model() as model:
        phi = 2.0 * pm.Beta("phi01", 20.0, 1.5) - 1.0
        sigma, mu = pm.HalfNormal("sigma", 1.0), pm.Normal("mu", 0.0, 2.0)
        first = pm.Normal.dist(0.0, sigma / pt.sqrt(1.0 - phi**2))
        h = pm.AR("h", rho=pt.stack([phi]), sigma=sigma, init_dist=first, shape=n)
        pm.Normal("y", 0.0, pt.exp((mu + h) / 2.0), observed=y)
    return model


def heavy_tailed_volatility(n: int = 2905) -> pm.Model:
    """Returns of a Student t on a random walk of log volatility: the model of PyMC's first notebook."""
    rng = np.random.default_rng(4)
    v = np.cumsum(rng.standard_normal(n) * 0.08) - 4.5
    y = np.exp(v) * rng.standard_t(8, size=n)
    with pm.Model() as model:
        step, nu = pm.Exponential("step", 10.0), pm.Exponential("nu", 0.1)
        v = pm.GaussianRandomWalk("v", sigma=step, init_dist=pm.Normal.dist(0.0, 100.0), shape=n)
        pm.StudentT("y", nu, lam=pt.exp(-2.0 * v), observed=y)
    return model


def local_linear_trend(n: int = 1000) -> pm.Model:
    """Counts whose level is a walk with a drift that is a walk."""
    rng = np.random.default_rng(5)
    drift = np.cumsum(rng.standard_normal(n) * 0.003)
    level = 2.0 + np.cumsum(np.r_[0.0, drift[:-1]] + rng.standard_normal(n) * 0.05)
    y = rng.poisson(np.exp(np.clip(level, -3.0, 6.0)))
    with pm.Model() as model:
        of_drift, of_level = pm.HalfNormal("of_drift", 0.1), pm.HalfNormal("of_level", 0.5)
        drift = pm.GaussianRandomWalk("drift", sigma=of_drift, init_dist=pm.Normal.dist(0.0, 0.5), shape=n)
        level = pm.GaussianRandomWalk(
            "level", mu=drift[:-1], sigma=of_level, init_dist=pm.Normal.dist(0.0, 5.0), shape=n
        )
        pm.Poisson("y", pt.exp(level), observed=y)
    return model


def trend_and_season(n: int = 200) -> pm.Model:
    """An autoregression of the second order, a trend and a Fourier season, with Normal noise."""
    rng, t = np.random.default_rng(6), np.arange(n)
    z = np.zeros(n)
    for i in range(2, n):
        z[i] = 0.5 * z[i - 1] + 0.2 * z[i - 2] + 0.3 * rng.standard_normal()
    waves = np.column_stack([f(2.0 * np.pi * k * t / 12.0) for k in (1, 2, 3) for f in (np.sin, np.cos)])
    y = 1.0 + 0.02 * t + waves @ rng.standard_normal(6) + z + 0.2 * rng.standard_normal(n)
    with pm.Model() as model:
        rho = pm.Normal("rho", 0.0, 0.5, shape=2)
        sigma, noise = pm.HalfNormal("sigma", 1.0), pm.HalfNormal("noise", 1.0)
        z = pm.AR("z", rho=rho, sigma=sigma, init_dist=pm.Normal.dist(0.0, 1.0), shape=n)
        level, slope = pm.Normal("level", 0.0, 5.0), pm.Normal("slope", 0.0, 0.5)
        season = pm.Normal("season", 0.0, 1.0, shape=6)
        pm.Normal("y", level + slope * t + pt.dot(waves, season) + z, noise, observed=y)
    return model


def trend_and_process(n: int = 1000, period: int = 52) -> pm.Model:
    """Weekly counts: a walk, and a periodic Gaussian process of the week of the year."""
    rng, weeks = np.random.default_rng(3), np.arange(period)
    season = 0.5 * np.sin(2.0 * np.pi * weeks / period) + 0.2 * np.cos(6.0 * np.pi * weeks / period)
    eta = 1.0 + np.cumsum(0.05 * rng.standard_normal(n)) + season[np.arange(n) % period]
    with pm.Model() as model:
        s, amplitude, ls = pm.HalfNormal("s", 0.2), pm.HalfNormal("amplitude", 1.0), pm.InverseGamma("ls", 5.0, 5.0)
        trend = pm.GaussianRandomWalk("trend", sigma=s, init_dist=pm.Normal.dist(0.0, 3.0), shape=n)
        process = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.Periodic(1, period=period, ls=ls))
        f = process.prior("f", weeks[:, None].astype(float))
        y = rng.poisson(np.exp(np.clip(eta, -3.0, 6.0)))
        pm.Poisson("y", pt.exp(trend + f[np.arange(n) % period]), observed=y)
    return model


def walk_smoother(n: int = 100) -> pm.Model:
    """A random walk seen with noise."""
    rng = np.random.default_rng(7)
    x = np.cumsum(0.3 * rng.standard_normal(n))
    with pm.Model() as model:
        step, noise = pm.HalfNormal("step", 1.0), pm.HalfNormal("noise", 1.0)
        x_ = pm.GaussianRandomWalk("x", sigma=step, init_dist=pm.Normal.dist(0.0, 5.0), shape=n)
        pm.Normal("y", x_, noise, observed=x + 0.5 * rng.standard_normal(n))
    return model


def correlated_walks(n: int = 100) -> pm.Model:
    """Three walks whose steps are correlated, in rows, seen with noise."""
    rng = np.random.default_rng(8)
    factor = np.linalg.cholesky(np.array([[1.0, 0.6, 0.2], [0.6, 1.0, 0.1], [0.2, 0.1, 1.0]]))
    x = np.cumsum(0.3 * rng.standard_normal((n, 3)) @ factor.T, axis=0)
    with pm.Model() as model:
        chol, *_ = pm.LKJCholeskyCov("chol", n=3, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=3))
        first = pm.MvNormal.dist(np.zeros(3), 25.0 * np.eye(3))
        walk = pm.MvGaussianRandomWalk("x", mu=np.zeros(3), chol=chol, init_dist=first, shape=(n, 3))
        noise = pm.HalfNormal("noise", 1.0)
        pm.Normal("y", walk, noise, observed=x + 0.5 * rng.standard_normal((n, 3)))
    return model


def bym2(side: int = 40) -> pm.Model:
    """Counts on a lattice, with effects of neighbours and of each area by itself."""
    n, at = side**2, np.arange(side**2).reshape(side, side)
    pairs = np.vstack([np.column_stack((at[:, :-1].ravel(), at[:, 1:].ravel())),
                       np.column_stack((at[:-1].ravel(), at[1:].ravel()))])
    weights = sparse.coo_array((np.ones(len(pairs)), pairs.T), shape=(n, n)).tocsr()
    weights = weights + weights.T
    precision = sparse.diags_array(np.asarray(weights.sum(axis=0)).ravel()) - weights
    rng = np.random.default_rng(2)
    # The geometric mean of the variances of draws, instead of a generalised inverse.
    solver = splu((precision + 1e-4 * sparse.identity(n)).tocsc())
    drawn = rng.standard_normal((len(pairs), 200))
    noise = np.zeros((n, 200))
    np.add.at(noise, pairs[:, 0], drawn)
    np.add.at(noise, pairs[:, 1], -drawn)
    fields = solver.solve(noise)
    fields -= fields.mean(axis=0)
    scale = float(np.exp(np.log((fields**2).mean(axis=1)).mean()))
    effect = np.sqrt(0.3) * rng.standard_normal(n) + np.sqrt(0.7 / scale) * fields[:, 0]
    y = rng.poisson(np.exp(1.0 + 0.6 * effect))
    with pm.Model() as model:
        mu, s, rho = pm.Normal("mu", 0.0, 2.0), pm.HalfNormal("s", 1.0), pm.Beta("rho", 1.0, 1.0)
        phi, theta = pm.ICAR("phi", W=weights.toarray()), pm.Normal("theta", 0.0, 1.0, shape=n)
        effect = pt.sqrt(1.0 - rho) * theta + pt.sqrt(rho / scale) * phi
        pm.Poisson("y", pt.exp(mu + s * effect), observed=y)
    return model


def scotland() -> pm.Model:
    """Lip cancer in 56 districts, with the share of people who work outdoors, by a conditional autoregression."""
    rows = pd.read_csv(DATA / "lip_cancer.csv", keep_default_na=False)
    weights = np.zeros((len(rows), len(rows)))
    for i, numbers in enumerate(rows["neighbours"]):
        weights[i, [int(j) - 1 for j in str(numbers).split()]] = 1.0
    weights = np.maximum(weights, weights.T)
    with pm.Model() as model:
        b0, b1, tau = pm.Normal("b0", 0.0, 5.0), pm.Normal("b1", 0.0, 5.0), pm.Gamma("tau", 2.0, 2.0)
        alpha = pm.Beta("alpha", 1.0, 1.0)
        phi = pm.CAR("phi", mu=np.zeros(len(rows)), tau=tau, alpha=alpha, W=weights, shape=len(rows))
        offset, outdoor = np.log(rows["expected"].to_numpy()), rows["outdoor"].to_numpy() / 10.0
        pm.Poisson("y", pt.exp(offset + b0 + b1 * outdoor + phi), observed=rows["observed"].to_numpy())
    return model


def besag_york_mollie(side: int = 44) -> pm.Model:
    """Counts of 1936 areas, with their population, a covariate, and effects with and without neighbours."""
    n, at, rng = side**2, np.arange(side**2).reshape(side, side), np.random.default_rng(12)
    weights = np.zeros((n, n))
    for first, second in ((at[:, :-1], at[:, 1:]), (at[:-1], at[1:])):
        weights[first.ravel(), second.ravel()] = weights[second.ravel(), first.ravel()] = 1.0
    x, population = rng.standard_normal(n), rng.gamma(2.0, 5.0, n)
    smooth = np.sin(at // side / 7.0).ravel() * np.cos(at % side / 5.0).ravel()
    y = rng.poisson(population * np.exp(-0.5 + 0.3 * x + 0.6 * smooth + 0.2 * rng.standard_normal(n)))
    with pm.Model() as model:
        b0, b1 = pm.Normal("b0", 0.0, 1.0), pm.Normal("b1", 0.0, 1.0)
        rough, sigma = pm.HalfNormal("rough", 1.0), pm.HalfNormal("sigma", 1.0)
        theta, phi = pm.Normal("theta", 0.0, 1.0, shape=n), pm.ICAR("phi", W=weights)
        pm.Poisson("y", population * pt.exp(b0 + b1 * x + rough * theta + sigma * phi), observed=y)
    return model


def crossed_effects(first: int = 3000, second: int = 200, n: int = 20_000) -> pm.Model:
    """Answers that depend on two sets of effects."""
    rng = np.random.default_rng(0)
    i, j = rng.integers(first, size=n), rng.integers(second, size=n)
    logit = 0.3 + (0.8 * rng.standard_normal(first))[i] + (0.5 * rng.standard_normal(second))[j]
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-logit))).astype(int)
    with pm.Model() as model:
        mu, s1, s2 = pm.Normal("mu", 0.0, 2.0), pm.HalfNormal("s1", 1.0), pm.HalfNormal("s2", 1.0)
        a, b = pm.Normal("a", 0.0, s1, shape=first), pm.Normal("b", 0.0, s2, shape=second)
        pm.Bernoulli("y", logit_p=mu + a[i] + b[j], observed=y)
    return model


def item_response() -> pm.Model:
    """47,000 answers of 1500 persons to 60 questions."""
    return crossed_effects(1500, 60, 47_000)


def mixed_poisson(groups: int = 100) -> pm.Model:
    """Counts with an effect of their group and a slope."""
    rng = np.random.default_rng(9)
    g, x = rng.integers(groups, size=10 * groups), rng.standard_normal(10 * groups)
    y = rng.poisson(np.exp(0.5 + 0.5 * rng.standard_normal(groups)[g] + 0.3 * x))
    with pm.Model() as model:
        mu, b, s = pm.Normal("mu", 0.0, 5.0), pm.Normal("b", 0.0, 2.0), pm.HalfNormal("s", 1.0)
        a = pm.Normal("a", mu, s, shape=groups)
        pm.Poisson("y", pt.exp(a[g] + b * x), observed=y)
    return model


PROBLEMS: dict[str, Callable[..., pm.Model]] = {
    each.__name__: each
    for each in (
        stochastic_volatility, heavy_tailed_volatility, local_linear_trend, trend_and_season, trend_and_process,
        walk_smoother, correlated_walks, bym2, scotland, besag_york_mollie, crossed_effects, item_response,
        mixed_poisson,
    )
}  # fmt: skip
