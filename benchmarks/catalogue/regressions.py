"""Regressions: logistic, of choices, nonlinear, and by a small network."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
from scipy.special import softmax

from benchmarks.catalogue.entry import Entry

__all__ = ["REGRESSIONS", "logistic_data"]

DATA = Path(__file__).resolve().parents[2] / "data"


def logistic_data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardised inputs with a column of ones, and outcomes; ripley's inputs are a cubic of each."""
    table = np.genfromtxt(DATA / f"{name}.csv", delimiter=",", skip_header=1)
    x, y = table[:, :-1], table[:, -1].astype(int)
    x = (x - x.mean(axis=0)) / x.std(axis=0, ddof=1)
    if name == "ripley":
        x = np.hstack([x, x**2, x**3])
    return np.column_stack([np.ones(len(y)), x]), y


def logistic(name: str) -> pm.Model:
    """The regressions of Girolami and Calderhead (2011)."""
    x, y = logistic_data(name)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 10.0, shape=x.shape[1])
        pm.Bernoulli("y", logit_p=pm.math.dot(x, beta), observed=y)
    return model


def softmax_choice(n: int = 200, seed: int = 1) -> pm.Model:
    """A choice of three by two features."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 2))
    p = softmax(x @ np.array([[1.0, -0.5, 0.0], [0.0, 0.8, -1.0]]) + [0.2, 0.0, -0.3], axis=1)
    y = np.array([rng.choice(3, p=row) for row in p])
    with pm.Model() as model:
        level, weight = pm.Normal("level", 0.0, 1.0, shape=3), pm.Normal("weight", 0.0, 1.0, shape=(2, 3))
        pm.Categorical("y", p=pm.math.softmax(level + pm.math.dot(x, weight), axis=1), observed=y)
    return model


def multinomial(n: int = 40, trials: int = 50, seed: int = 2) -> pm.Model:
    """Shares of four kinds that depend on one feature."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n)
    p = softmax(np.array([0.5, 0.0, -0.5, 0.2]) + x[:, None] * np.array([0.3, -0.3, 0.5, 0.0]), axis=1)
    y = np.array([rng.multinomial(trials, row) for row in p])
    with pm.Model() as model:
        level, slope = pm.Normal("level", 0.0, 1.0, shape=4), pm.Normal("slope", 0.0, 1.0, shape=4)
        shares = pm.math.softmax(level + x[:, None] * slope, axis=1)
        pm.Multinomial("y", n=trials, p=shares, observed=y)
    return model


def two_exponentials(n: int = 60, seed: int = 3) -> pm.Model:
    """A decay in two phases, the rates in order."""
    rng = np.random.default_rng(seed)
    time = np.linspace(0.05, 8.0, n)
    y = 3.0 * np.exp(-2.0 * time) + 2.0 * np.exp(-0.3 * time) + 0.08 * rng.standard_normal(n)
    with pm.Model() as model:
        size = pm.HalfNormal("size", 5.0, shape=2)
        log_rate = pm.Normal(
            "log_rate", [-1.0, 0.5], 1.0, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.5]
        )
        sigma = pm.HalfNormal("sigma", 0.5)
        rate = pm.math.exp(log_rate)
        mean = size[0] * pm.math.exp(-rate[0] * time) + size[1] * pm.math.exp(-rate[1] * time)
        pm.Normal("y", mean, sigma, observed=y)
    return model


def network(n: int = 100, hidden: int = 5, seed: int = 4) -> pm.Model:
    """One hidden layer; only its values are the same in all modes."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, n)
    y = np.sin(2.0 * x) + 0.2 * rng.standard_normal(n)
    with pm.Model() as model:
        w_in, b_in = pm.Normal("w_in", 0.0, 1.5, shape=(1, hidden)), pm.Normal("b_in", 0.0, 1.5, shape=hidden)
        w_out, b_out = pm.Normal("w_out", 0.0, 1.0, shape=hidden), pm.Normal("b_out", 0.0, 1.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        f = pm.Deterministic("f", pm.math.dot(pm.math.tanh(pm.math.dot(x[:, None], w_in) + b_in), w_out) + b_out)
        pm.Normal("y", f, sigma, observed=y)
    return model


REGRESSIONS: dict[str, Entry] = {
    **{
        f"logistic {name}": Entry(partial(logistic, name))
        for name in ("australian", "german", "heart", "pima", "ripley")
    },
    "softmax choice": Entry(softmax_choice),
    "multinomial": Entry(multinomial),
    "two exponentials": Entry(two_exponentials),
    "network": Entry(network, names=("f", "sigma")),
}
