"""The slides on Gaussian processes: prior draws, lengthscales, a composite and an additive kernel. No sampling."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from benchmarks.papers.lalchand.processes import (
    JITTER,
    Array,
    fit,
    log_marginal,
    periodic,
    predict,
    squared_exponential,
)
from benchmarks.papers.paper import Run

__all__ = [
    "additive_kernel", "composite_kernel", "measure_additive", "measure_composite", "measure_lengthscales",
    "measure_prior", "plain_kernel", "series",
]  # fmt: skip

LENGTHSCALES = (0.3, 1.0, 3.0)
YEARS, HELD_YEARS = 10, 3


def plain_kernel(a: Array, b: Array, log_theta: Array) -> Array:
    """Squared exponential: log lengthscale, log amplitude."""
    return squared_exponential(a, b, *np.exp(log_theta))


def composite_kernel(a: Array, b: Array, log_theta: Array) -> Array:
    """A slow trend and a season of one year that changes slowly: amplitudes and lengthscales of both."""
    trend, trend_scale, season, season_scale, decay = np.exp(log_theta)
    yearly = squared_exponential(a, b, decay, season) * periodic(a, b, season_scale, 1.0)
    return squared_exponential(a, b, trend_scale, trend) + yearly


def additive_kernel(a: Array, b: Array, log_theta: Array) -> Array:
    """A squared exponential of each input, added up: log lengthscale and log amplitude of each."""
    return sum(
        squared_exponential(a[:, [i]], b[:, [i]], *np.exp(log_theta[2 * i : 2 * i + 2])) for i in range(a.shape[1])
    )


def measure_prior(run: Run) -> dict:
    """Draw functions from the squared-exponential prior at three lengthscales."""
    rng, x = np.random.default_rng(run.seed), np.linspace(0.0, 10.0, 201)[:, None]
    draws = {}
    for lengthscale in LENGTHSCALES:
        root = np.linalg.cholesky(squared_exponential(x, x, lengthscale) + JITTER * np.eye(len(x)))
        draws[f"{lengthscale:g}"] = np.round(root @ rng.standard_normal((len(x), 4)), 3).T.tolist()
    return {"x": x[:, 0].tolist(), "functions": draws, "said": "drawn"}


def measure_lengthscales(run: Run) -> dict:
    """Marginal likelihood by lengthscale for one data set, and fits that are too rough, best and too smooth."""
    rng = np.random.default_rng(run.seed)
    x = np.sort(rng.uniform(0.0, 10.0, 25))[:, None]
    y = np.sin(1.2 * x[:, 0]) + 0.25 * rng.standard_normal(25)
    grid, others = np.geomspace(0.05, 20.0, 80), np.log([1.0, 0.25])
    curve = [log_marginal(plain_kernel, x, y, np.array([np.log(g), *others])) for g in grid]
    best, new, fits = float(grid[np.argmax(curve)]), np.linspace(0.0, 10.0, 200)[:, None], {}
    for label, lengthscale in (("over-fit", 0.1), ("best", best), ("under-fit", 8.0)):
        log_theta = np.array([np.log(lengthscale), *others])
        mean, variance = predict(plain_kernel, x, y, new, log_theta)
        value = log_marginal(plain_kernel, x, y, log_theta)
        fits[label] = {"lengthscale": lengthscale, "mean": mean.tolist(), "sd": np.sqrt(variance).tolist(),
                       "log_marginal": value}  # fmt: skip
    return {
        "x": x[:, 0].tolist(), "y": y.tolist(), "new": new[:, 0].tolist(), "grid": grid.tolist(), "curve": curve,
        "fits": fits, "said": f"best lengthscale {best:.2f}",
    }  # fmt: skip


def series(seed: int) -> tuple[Array, Array, Array, Array]:
    """Return a made series like that of CO2, (months, values) to learn from and to predict: trend, season and noise."""
    rng, months = np.random.default_rng(seed), 12 * (YEARS + HELD_YEARS)
    time = np.arange(months) / 12.0
    y = 1.4 * time + 0.04 * time**2 + 3.0 * np.sin(2.0 * np.pi * time) + 1.0 * np.cos(4.0 * np.pi * time)
    y += 0.4 * rng.standard_normal(months)
    held = 12 * YEARS
    y = (y - y[:held].mean()) / y[:held].std()
    return time[:held, None], y[:held], time[held:, None], y[held:]


def measure_composite(run: Run) -> dict:
    """Predict three more years of a made series by one kernel and by two, at their best marginal likelihood."""
    x, y, new, held = series(run.seed)
    starts = {
        "squared exponential": (plain_kernel, [np.log([1.0, 1.0, 0.3]), np.log([0.2, 1.0, 0.1])]),
        "trend and season": (composite_kernel, [np.log([2.0, 8.0, 0.5, 1.0, 10.0, 0.1])]),
    }
    found = {}
    for name, (kernel, places) in starts.items():
        best = fit(kernel, x, y, places)
        mean, variance = predict(kernel, x, y, new, best.log_theta)
        found[name] = {
            "mean": mean.tolist(), "sd": np.sqrt(variance).tolist(), "log_marginal": best.log_marginal,
            "theta": np.exp(best.log_theta).tolist(), "rmse": float(np.sqrt(np.mean((mean - held) ** 2))),
            "density": float(norm.logpdf(held, mean, np.sqrt(variance)).mean()),
        }  # fmt: skip
    return {
        "x": x[:, 0].tolist(), "y": y.tolist(), "new": new[:, 0].tolist(), "held": held.tolist(), "fits": found,
        "said": ", ".join(f"{name}: {each['density']:.2f}" for name, each in found.items()),
    }  # fmt: skip


def _surface(x: Array) -> Array:
    return np.sin(1.5 * x[:, 0]) + 0.8 * np.cos(1.8 * x[:, 1])


def measure_additive(run: Run) -> dict:
    """Learn an additive surface from points on two strips, and predict the whole square."""
    rng = np.random.default_rng(run.seed)
    strips = [np.column_stack([rng.uniform(-3.0, 3.0, 30), rng.uniform(-3.0, -2.2, 30)]),
              np.column_stack([rng.uniform(-3.0, -2.2, 30), rng.uniform(-3.0, 3.0, 30)])]  # fmt: skip
    x = np.vstack(strips)
    y = _surface(x) + 0.05 * rng.standard_normal(len(x))
    side = np.linspace(-3.0, 3.0, 31)
    grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    truth, found = _surface(grid), {}
    for name, kernel, start in (
        ("squared exponential", plain_kernel, [1.0, 1.0, 0.1]),
        ("additive", additive_kernel, [1.0, 1.0, 1.0, 1.0, 0.1]),
    ):
        best = fit(kernel, x, y, [np.log(start)])
        mean, _ = predict(kernel, x, y, grid, best.log_theta)
        far = (grid > -1.0).all(axis=1)
        found[name] = {
            "mean": np.round(mean, 3).tolist(), "log_marginal": best.log_marginal,
            "rmse": float(np.sqrt(np.mean((mean - truth)[far] ** 2))),
        }  # fmt: skip
    return {
        "x": x.tolist(), "side": side.tolist(), "truth": truth.tolist(), "fits": found,
        "said": ", ".join(f"{name}: {each['rmse']:.2f}" for name, each in found.items()),
    }  # fmt: skip
