"""Time series: latent walks and autoregressions, and observed autoregressions."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from benchmarks.catalogue.entry import Entry

__all__ = ["SERIES"]


def walk_smoother(n: int = 100, seed: int = 1) -> pm.Model:
    """A walk through noisy data, with one precision for both."""
    rng = np.random.default_rng(seed)
    y = 5.0 + np.cumsum(0.3 * rng.standard_normal(n)) + 0.9 * rng.standard_normal(n)
    with pm.Model() as model:
        tau = pm.Exponential("tau", 1e-5)
        z = pm.GaussianRandomWalk("z", sigma=pt.sqrt(0.1 / tau), init_dist=pm.Normal.dist(0.0, 100.0), shape=n)
        pm.Normal("y", z, pt.sqrt(0.9 / tau), observed=y)
    return model


def structural(n: int = 200, seed: int = 2) -> pm.Model:
    """A latent AR(2), a linear trend and a season, with Normal noise."""
    rng = np.random.default_rng(seed)
    time, ar = np.arange(n) / n, np.zeros(n)
    for i in range(2, n):
        ar[i] = 0.6 * ar[i - 1] + 0.2 * ar[i - 2] + 0.5 * rng.standard_normal()
    angle = 2.0 * np.pi * np.arange(n)[:, None] / 12.0 * np.array([1.0, 2.0])
    fourier = np.hstack([np.sin(angle), np.cos(angle)])
    y = ar + 1.0 + 4.0 * time + fourier @ np.array([1.0, 0.3, -0.5, 0.2]) + 0.4 * rng.standard_normal(n)
    with pm.Model() as model:
        coefs = pm.Normal("coefs", [0.5, 0.0], 0.3)
        step, sigma = pm.HalfNormal("step", 1.0), pm.HalfNormal("sigma", 1.0)
        latent = pm.AR("ar", coefs, sigma=step, init_dist=pm.Normal.dist(0.0, 1.0, shape=2), steps=n - 2)
        alpha, slope = pm.Normal("alpha", 0.0, 5.0), pm.Normal("slope", 0.0, 5.0)
        season = pm.Normal("season", 0.0, 1.0, shape=4)
        pm.Normal("y", latent + alpha + slope * time + pm.math.dot(fourier, season), sigma, observed=y)
    return model


def local_linear_trend(n: int = 60, seed: int = 3) -> pm.Model:
    """A walk is the drift of another."""
    rng = np.random.default_rng(seed)
    drift = np.cumsum(0.1 * rng.standard_normal(n))
    y = np.cumsum(drift + 0.3 * rng.standard_normal(n)) + 0.5 * rng.standard_normal(n)
    with pm.Model() as model:
        s_drift, s_level = pm.HalfNormal("s_drift", 0.5), pm.HalfNormal("s_level", 1.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        slope = pm.GaussianRandomWalk("slope", sigma=s_drift, init_dist=pm.Normal.dist(0.0, 1.0), shape=n)
        walk = pm.GaussianRandomWalk("walk", sigma=s_level, init_dist=pm.Normal.dist(0.0, 5.0), shape=n)
        level = walk + pt.concatenate([[0.0], pt.cumsum(slope[:-1])])
        pm.Normal("y", level, sigma, observed=y)
    return model


def observed_ar(n: int = 200, seed: int = 4) -> pm.Model:
    """An AR(2) that is seen itself."""
    rng = np.random.default_rng(seed)
    y = np.zeros(n)
    for i in range(2, n):
        y[i] = 0.4 + 0.5 * y[i - 1] + 0.2 * y[i - 2] + 0.7 * rng.standard_normal()
    with pm.Model() as model:
        rho, sigma = pm.Normal("rho", 0.0, 1.0, shape=3), pm.HalfNormal("sigma", 1.0)
        pm.AR("y", rho, sigma=sigma, constant=True, init_dist=pm.Normal.dist(0.0, 2.0, shape=2), observed=y)
    return model


def vector_autoregression(n: int = 150, seed: int = 5) -> pm.Model:
    """A VAR(1) of two series, with a Normal likelihood."""
    rng = np.random.default_rng(seed)
    y = np.zeros((n, 2))
    for i in range(1, n):
        y[i] = [0.2, -0.1] + np.array([[0.6, 0.2], [-0.1, 0.5]]) @ y[i - 1] + [0.5, 0.8] * rng.standard_normal(2)
    with pm.Model() as model:
        intercept, matrix = pm.Normal("intercept", 0.0, 1.0, shape=2), pm.Normal("A", 0.0, 0.5, shape=(2, 2))
        sigma = pm.HalfNormal("sigma", 1.0, shape=2)
        pm.Normal("y", intercept + pm.math.dot(y[:-1], matrix.T), sigma, observed=y[1:])
    return model


SERIES: dict[str, Entry] = {
    "walk smoother": Entry(walk_smoother),
    "structural series": Entry(structural),
    "local linear trend": Entry(local_linear_trend),
    "observed AR": Entry(observed_ar),
    "VAR": Entry(vector_autoregression),
}
