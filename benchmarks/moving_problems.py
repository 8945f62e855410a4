"""Problems in which hyperparameters move the matrix by which a predictor reads latent values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit

from benchmarks.joint_problems import JointProblem

__all__ = ["MOVING_PROBLEMS", "item_response", "loaded_counts"]


def item_response(persons: int = 100, items: int = 15, seed: int = 0) -> JointProblem:
    """Answers of persons to a test: each item has a discrimination, which multiplies ability less difficulty."""
    rng = np.random.default_rng(seed)
    person, item = np.divmod(np.arange(persons * items), items)
    ability, difficulty = rng.standard_normal(persons), rng.standard_normal(items)
    y = (rng.random(person.size) < expit(rng.lognormal(0.0, 0.4, items)[item] * (ability[person] - difficulty[item])))

    def build(whitened: bool) -> pm.Model:
        with pm.Model() as model:
            discrimination = pm.LogNormal("discrimination", 0.0, 0.5, shape=items)
            sigma = pm.HalfNormal("sigma", 1.0)
            ability = pm.Normal("ability", 0.0, 1.0, shape=persons)
            if whitened:
                difficulty = pm.Deterministic("difficulty", sigma * pm.Normal("z", shape=items))
            else:
                difficulty = pm.Normal("difficulty", 0.0, sigma, shape=items)
            eta = discrimination[item] * (ability[person] - difficulty[item])
            pm.Bernoulli("y", logit_p=eta, observed=y.astype(int))
        return model

    names = ("discrimination", "sigma", "ability", "difficulty")
    return JointProblem(f"item response, {persons} persons, {items} items", build, names)


def loaded_counts(n: int = 60, loads: tuple[float, ...] = (1.0, 0.5, -0.7), seed: int = 0) -> JointProblem:
    """Several series of counts that follow one process, each times a load of its own; the first load is 1."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 1.0, n))
    series, place = np.repeat(np.arange(len(loads)), n), np.tile(np.arange(n), len(loads))
    y = rng.poisson(np.exp(1.0 + np.array(loads)[series] * np.sin(6.0 * x)[place]))

    def build(whitened: bool) -> pm.Model:
        with pm.Model() as model:
            lengthscale, amplitude = pm.InverseGamma("lengthscale", 3.0, 0.6), pm.HalfNormal("amplitude", 1.0)
            level, load = pm.Normal("level", 0.0, 2.0), pm.Normal("load", 0.0, 1.0, shape=len(loads) - 1)
            gp = pm.gp.Latent(cov_func=amplitude**2 * pm.gp.cov.Matern52(1, ls=lengthscale))
            f = gp.prior("f", x[:, None], reparameterize=whitened)
            eta = level + pt.concatenate([[1.0], load])[series] * f[place]
            pm.Poisson("y", mu=pm.math.exp(eta), observed=y)
        return model

    names = ("lengthscale", "amplitude", "level", "load", "f")
    return JointProblem(f"loaded counts, {len(loads)} series of {n}", build, names)


MOVING_PROBLEMS: dict[str, Callable[[], JointProblem]] = {
    "item response 100": item_response,
    "loaded counts 60": loaded_counts,
}
