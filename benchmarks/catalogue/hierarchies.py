"""Models of groups: Normal, Student t and horseshoe effects, and those with several tables of effects."""

from __future__ import annotations

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit

from benchmarks.catalogue.entry import Entry

__all__ = ["HIERARCHIES"]


def funnel(groups: int, centred: bool) -> pm.Model:
    """Neal's funnel, without data."""
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 3.0)
        if centred:
            pm.Normal("x", 0.0, pm.math.exp(v / 2.0), shape=groups)
        else:
            pm.Deterministic("x", pm.math.exp(v / 2.0) * pm.Normal("z", shape=groups))
    return model


def eight_schools(centred: bool) -> pm.Model:
    """Effects of coaching in eight schools (Rubin, 1981)."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    error = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        if centred:
            theta = pm.Normal("theta", mu, tau, shape=8)
        else:
            theta = pm.Deterministic("theta", mu + tau * pm.Normal("z", shape=8))
        pm.Normal("y", theta, error, observed=y)
    return model


def horseshoe(centred: bool, n: int = 100, p: int = 50, signals: int = 5, seed: int = 1) -> pm.Model:
    """A regression with many small slopes and few large ones."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p))
    slopes = np.zeros(p)
    slopes[:signals] = [2.0, -1.5, 1.0, -3.0, 0.7][:signals]
    y = x @ slopes + rng.standard_normal(n)
    with pm.Model() as model:
        tau = pm.HalfCauchy("tau", 0.1)
        lam = pm.HalfCauchy("lam", 1.0, shape=p)
        sigma = pm.HalfNormal("sigma", 2.0)
        if centred:
            beta = pm.Normal("beta", 0.0, tau * lam, shape=p)
        else:
            beta = pm.Deterministic("beta", tau * lam * pm.Normal("z", shape=p))
        pm.Normal("y", pm.math.dot(x, beta), sigma, observed=y)
    return model


def student_slopes(centred: bool, groups: int = 1000, per_group: int = 5, seed: int = 2) -> pm.Model:
    """An intercept and a slope for each group, some far from the others."""
    rng = np.random.default_rng(seed)
    group, x = np.repeat(np.arange(groups), per_group), rng.standard_normal(groups * per_group)
    effects = np.array([1.0, -0.5]) + np.array([0.7, 0.4]) * rng.standard_t(4.0, (groups, 2))
    y = effects[group, 0] + effects[group, 1] * x + 0.8 * rng.standard_normal(group.size)
    with pm.Model() as model:
        nu = pm.Gamma("nu", 2.0, 0.1)
        mu, scale = pm.Normal("mu", 0.0, 2.0, shape=2), pm.HalfNormal("scale", 1.0, shape=2)
        sigma = pm.HalfNormal("sigma", 1.0)
        if centred:
            b = pm.StudentT("b", nu=nu, mu=mu, sigma=scale, shape=(groups, 2))
        else:
            b = pm.Deterministic("b", mu + scale * pm.StudentT("z", nu=nu, mu=0.0, sigma=1.0, shape=(groups, 2)))
        pm.Normal("y", b[group, 0] + b[group, 1] * x, sigma, observed=y)
    return model


def radon_slopes(centred: bool, groups: int = 85, n: int = 919, seed: int = 3) -> pm.Model:
    """Correlated intercepts and slopes of counties, with a Normal likelihood."""
    rng = np.random.default_rng(seed)
    group, floor = np.sort(rng.integers(0, groups, n)), (rng.random(n) < 0.17).astype(float)
    covariance = np.array([[0.12, -0.03], [-0.03, 0.1]])
    effects = rng.multivariate_normal([1.5, -0.7], covariance, groups)
    y = effects[group, 0] + effects[group, 1] * floor + 0.73 * rng.standard_normal(n)
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2))
        mu = pm.Normal("mu", 0.0, 5.0, shape=2)
        sigma = pm.Exponential("sigma", 1.0)
        if centred:
            ab = pm.MvNormal("ab", mu, chol=chol, shape=(groups, 2))
            pm.Deterministic("z", pt.linalg.solve_triangular(chol, (ab - mu).T, lower=True))
        else:
            ab = pm.Deterministic("ab", mu + pm.math.dot(chol, pm.Normal("z", 0.0, 1.0, shape=(2, groups))).T)
        pm.Normal("y", ab[group, 0] + ab[group, 1] * floor, sigma, observed=y)
    return model


def poisson_slopes(centred: bool, groups: int = 20, n: int = 400, seed: int = 4) -> pm.Model:
    """Correlated intercepts and slopes as rows of one MvNormal, with counts."""
    rng = np.random.default_rng(seed)
    group, x = np.arange(n) % groups, rng.standard_normal(n)
    effects = rng.multivariate_normal([1.0, 0.3], [[0.3, 0.1], [0.1, 0.15]], groups)
    y = rng.poisson(np.exp(effects[group, 0] + effects[group, 1] * x))
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2))
        mu = pm.Normal("mu", 0.0, 2.0, shape=2)
        if centred:
            ab = pm.MvNormal("ab", mu, chol=chol, shape=(groups, 2))
        else:
            ab = pm.Deterministic("ab", mu + pm.math.dot(chol, pm.Normal("z", shape=(2, groups))).T)
        pm.Poisson("y", pm.math.exp(ab[group, 0] + ab[group, 1] * x), observed=y)
    return model


def wine_judges(seed: int = 5) -> pm.Model:
    """Scores of 20 wines from two countries by nine judges."""
    rng = np.random.default_rng(seed)
    wine, judge = (axis.ravel() for axis in np.meshgrid(np.arange(20), np.arange(9), indexing="ij"))
    origin = (np.arange(20) % 2)[wine]
    score = 0.4 * rng.standard_normal(20)[wine] - 0.5 * rng.standard_normal(9)[judge] + 0.8 * rng.standard_normal(180)
    with pm.Model() as model:
        quality = pm.Normal("quality", 0.0, 1.0, shape=20)
        harshness = pm.Normal("harshness", 0.0, 1.0, shape=9)
        country = pm.Normal("country", 0.0, 1.0, shape=2)
        sigma = pm.Exponential("sigma", 1.0)
        pm.Normal("score", quality[wine] + country[origin] - harshness[judge], sigma, observed=score)
    return model


def measurement_error(n: int = 50, seed: int = 6) -> pm.Model:
    """Divorce and marriage rates of states, both known with an error that is given."""
    rng = np.random.default_rng(seed)
    age = rng.standard_normal(n)
    marriage = -0.7 * age + 0.7 * rng.standard_normal(n)
    divorce = -0.6 * age + 0.1 * marriage + 0.6 * rng.standard_normal(n)
    error_m, error_d = rng.uniform(0.1, 0.5, n), rng.uniform(0.2, 0.8, n)
    seen_m, seen_d = (v + e * rng.standard_normal(n) for v, e in ((marriage, error_m), (divorce, error_d)))
    with pm.Model() as model:
        a_m, b_m = pm.Normal("a_m", 0.0, 0.2), pm.Normal("b_m", 0.0, 0.5)
        a, b, c = pm.Normal("a", 0.0, 0.2), pm.Normal("b", 0.0, 0.5), pm.Normal("c", 0.0, 0.5)
        s_m, s = pm.Exponential("s_m", 1.0), pm.Exponential("s", 1.0)
        m = pm.Normal("M", a_m + b_m * age, s_m, shape=n)
        pm.Normal("M_obs", m, error_m, observed=seen_m)
        d = pm.Normal("D", a + b * m + c * age, s, shape=n)
        pm.Normal("D_obs", d, error_d, observed=seen_d)
    return model


def paired_experiment(centred: bool, pairs: int = 96, seed: int = 7) -> pm.Model:
    """Classes in pairs, one of each treated, in two grades."""
    rng = np.random.default_rng(seed)
    pair, treated = np.repeat(np.arange(pairs), 2), np.tile([0.0, 1.0], pairs)
    grade = (np.arange(pairs) % 2)[pair]
    y = (
        np.array([70.0, 100.0])[grade] + 8.0 * rng.standard_normal(pairs)[pair]
        + np.array([8.0, 3.0])[grade] * treated + 5.0 * rng.standard_normal(2 * pairs)
    )  # fmt: skip
    of_pair = grade[::2]
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 80.0, 30.0, shape=2), pm.HalfNormal("tau", 20.0)
        slope = pm.Normal("slope", 0.0, 10.0, shape=2)
        sigma = pm.HalfNormal("sigma", 20.0, shape=2)
        if centred:
            a = pm.Normal("a", mu[of_pair], tau, shape=pairs)
        else:
            a = pm.Deterministic("a", mu[of_pair] + tau * pm.Normal("z", shape=pairs))
        pm.Normal("y", a[pair] + slope[grade] * treated, sigma[grade], observed=y)
    return model


def item_response(centred: bool, people: int = 200, items: int = 30, seed: int = 8) -> pm.Model:
    """Answers of people to items, with a hierarchy over each."""
    rng = np.random.default_rng(seed)
    person, item = np.divmod(np.arange(people * items), items)
    ability, difficulty = 0.9 * rng.standard_normal(people), -0.5 + 1.2 * rng.standard_normal(items)
    y = (rng.random(person.size) < expit(ability[person] - difficulty[item])).astype(int)
    with pm.Model() as model:
        s_ability, s_difficulty = pm.HalfNormal("s_ability", 1.0), pm.HalfNormal("s_difficulty", 2.0)
        mu = pm.Normal("mu", 0.0, 2.0)
        if centred:
            able = pm.Normal("ability", 0.0, s_ability, shape=people)
            hard = pm.Normal("difficulty", mu, s_difficulty, shape=items)
        else:
            able = pm.Deterministic("ability", s_ability * pm.Normal("z_ability", shape=people))
            hard = pm.Deterministic("difficulty", mu + s_difficulty * pm.Normal("z_difficulty", shape=items))
        pm.Bernoulli("y", logit_p=able[person] - hard[item], observed=y)
    return model


def structural_equations(n: int = 100, seed: int = 9) -> pm.Model:
    """Two latent factors, one of which depends on the other, each with three indicators."""
    rng = np.random.default_rng(seed)
    first = rng.standard_normal(n)
    second = 0.6 * first + 0.8 * rng.standard_normal(n)
    loads = np.array([1.0, 0.8, 1.2])
    u = first[:, None] * loads + 0.6 * rng.standard_normal((n, 3))
    v = second[:, None] * loads[::-1] + 0.6 * rng.standard_normal((n, 3))
    with pm.Model() as model:
        s_first, s_second = pm.HalfNormal("s_first", 1.0), pm.HalfNormal("s_second", 1.0)
        path = pm.Normal("path", 0.0, 1.0)
        a = pm.Normal("first", 0.0, s_first, shape=n)
        b = pm.Normal("second", path * a, s_second, shape=n)
        for name, factor, seen in (("u", a, u), ("v", b, v)):
            level = pm.Normal(f"level_{name}", 0.0, 1.0, shape=3)
            free = pm.Normal(f"load_{name}", 1.0, 0.5, shape=2)
            noise = pm.HalfNormal(f"noise_{name}", 1.0, shape=3)
            load = pt.concatenate([[1.0], free])
            pm.Normal(name, level + load * factor[:, None], noise, observed=seen)
    return model


def both(build, **options) -> Entry:
    """An entry that is written centred, with the non-centred form beside it."""
    return Entry(partial(build, centred=True), partial(build, centred=False), **options)


HIERARCHIES: dict[str, Entry] = {
    **{
        f"funnel {groups}": Entry(
            partial(funnel, groups, True), partial(funnel, groups, False), compared=("v",), truth={"v": (0.0, 3.0)}
        )
        for groups in (10, 100, 1000)
    },
    "eight schools": both(eight_schools, logged=("tau",)),
    "horseshoe": both(horseshoe, logged=("tau", "lam")),
    "student t slopes": both(student_slopes),
    "correlated slopes": Entry(partial(radon_slopes, False), partial(radon_slopes, True)),
    "correlated slopes centred": both(poisson_slopes),
    "wine judges": Entry(wine_judges),
    "measurement error": Entry(measurement_error),
    "paired experiment": both(paired_experiment),
    "item response": both(item_response),
    "structural equations": Entry(structural_equations),
}
