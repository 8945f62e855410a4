"""Predict held-out points by an average over draws of the hyperparameters, or at the best marginal likelihood."""

from __future__ import annotations

import time

import numpy as np
import pymc as pm
from scipy.special import logsumexp
from scipy.stats import norm

from benchmarks.papers.lalchand.processes import JITTER, Array, fit, predict, squared_exponential
from benchmarks.papers.lalchand.regressions import plain_kernel
from benchmarks.papers.paper import Run
from pymc_rmhmc import RMHMC

__all__ = ["SIZES", "data_set", "full_density", "measure_prediction"]

SIZES, HELD, WIDTH, KEPT = (8, 15, 30), 100, 5.0, 200
# Log-normal priors of lengthscale, amplitude and noise. Each data set has values of its own, drawn from these.
CENTRES, SPREAD = np.log([0.7, 1.0, 0.3]), 0.6


def data_set(n: int, seed: int) -> tuple[Array, Array, Array, Array]:
    """Return inputs and outputs of n points and of those held out, from the prior and its hyperparameters."""
    rng = np.random.default_rng(1000 * n + seed)
    theta = np.exp(CENTRES + SPREAD * rng.standard_normal(3))
    x = rng.uniform(0.0, WIDTH, n + HELD)[:, None]
    covariance = squared_exponential(x, x, *theta[:2]) + (theta[2] ** 2 + JITTER) * np.eye(n + HELD)
    y = np.linalg.cholesky(covariance) @ rng.standard_normal(n + HELD)
    return x[:n], y[:n], x[n:], y[n:]


def regression(n: int) -> pm.Model:
    """The regression, its data in containers so that it is compiled once for all data sets."""
    with pm.Model() as model:
        x, y = pm.Data("x", np.zeros((n, 1))), pm.Data("y_data", np.zeros(n))
        log_theta = pm.Normal("log_theta", CENTRES, SPREAD)
        theta = pm.math.exp(log_theta)
        square = (x - x.T) ** 2
        covariance = theta[1] ** 2 * pm.math.exp(-0.5 * square / theta[0] ** 2)
        covariance += (theta[2] ** 2 + JITTER) * np.eye(n)
        pm.MvNormal("y", np.zeros(n), cov=covariance, observed=y)
    return model


def full_density(x: Array, y: Array, new: Array, held: Array, draws: Array) -> tuple[float, Array, Array]:
    """Return the mean log density of held-out points under the average over draws, and the mixture's mean and sd."""
    pairs = [predict(plain_kernel, x, y, new, log_theta) for log_theta in draws]
    means, variances = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    each = logsumexp(norm.logpdf(held, means, np.sqrt(variances)), axis=0) - np.log(len(draws))
    return float(each.mean()), means.mean(axis=0), np.sqrt(variances.mean(axis=0) + means.var(axis=0))


def measure_prediction(run: Run) -> dict:
    """For each data set of a size: both predictions; `draws` counts data sets."""
    n = int(run.experiment.split()[1])
    model, rows, began = regression(n), [], time.perf_counter()
    starts = [CENTRES, *np.log([[0.2, 1.0, 0.05], [3.0, 1.0, 0.5]])]
    for i in range(run.draws):
        if time.perf_counter() - began > run.limit:
            break
        x, y, new, held = data_set(n, 100 * run.seed + i)
        with model:
            pm.set_data({"x": x, "y_data": y})
            idata = pm.sample(
                draws=300, chains=1, cores=1, step=RMHMC(), random_seed=i, progressbar=False,
                compute_convergence_checks=False,
            )  # fmt: skip
        draws = idata.posterior["log_theta"].values[0]
        best = fit(plain_kernel, x, y, starts)
        mean, variance = predict(plain_kernel, x, y, new, best.log_theta)
        full, full_mean, full_sd = full_density(x, y, new, held, draws[:: max(1, len(draws) // KEPT)])
        plug_in = float(norm.logpdf(held, mean, np.sqrt(variance)).mean())
        rows.append({"full": full, "plug-in": plug_in})
        if i == 0:
            shown = {
                "x": x[:, 0].tolist(), "y": y.tolist(), "new": new[:, 0].tolist(), "held": held.tolist(),
                "full": [full_mean.tolist(), full_sd.tolist()],
                "plug-in": [mean.tolist(), np.sqrt(variance).tolist()],
                "draws": np.round(np.exp(draws), 3).tolist(), "best": np.exp(best.log_theta).tolist(),
            }  # fmt: skip
    gain = [row["full"] - row["plug-in"] for row in rows]
    return {"rows": rows, "shown": shown, "said": f"full Bayes gains {np.mean(gain):.3f} in {len(rows)} data sets"}
