"""Which engine takes latent vectors with a sequential prior: latent blocks, or the chart of the model's graph.

Latent blocks factorise a dense covariance, in n³ operations. The graph's chart takes n operations a gradient, and
needs long paths where the data say little. Printed are effective draws a processor second (the smaller of
bulk and tail ESS over all free variables, tuning counted and compiling not), the largest R-hat, and seconds to the
first draw. What `pymc_rmhmc.model.general.blocks_or_graph` does with such vectors is read off this table. Run with
``python -m benchmarks.engines [NAME...]``.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from functools import partial

import arviz as az
import numpy as np
import pymc as pm

from benchmarks.catalogue.series import structural, walk_smoother
from pymc_rmhmc import RMHMC, FlatMetric

DRAWS, TUNE, CHAINS = 500, 500, 2


def walk(n: int, step: float, family: str, *, ar: bool = False, seed: int = 1) -> pm.Model:
    """A walk, or an AR(1) of persistence about 0.9, under a likelihood that says more or less of each value."""
    rng = np.random.default_rng(seed)
    truth = np.zeros(n)
    for i in range(1, n):
        truth[i] = (0.9 if ar else 1.0) * truth[i - 1] + step * rng.standard_normal()
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 0.5)
        start = pm.Normal.dist(0.0, 1.0)
        if ar:
            x = pm.AR("x", [pm.Uniform("rho", 0.5, 1.0)], sigma=scale, init_dist=start, shape=n)
        else:
            x = pm.GaussianRandomWalk("x", sigma=scale, init_dist=start, shape=n)
        if family == "Normal":
            pm.Normal("y", x, pm.HalfNormal("noise", 1.0), observed=truth + rng.standard_normal(n))
        elif family == "Poisson":
            pm.Poisson("y", pm.math.exp(x), observed=rng.poisson(np.exp(truth - truth.mean())))
        elif family == "many":
            pm.Poisson("y", pm.math.exp(x + 4.0), observed=rng.poisson(np.exp(truth + 4.0)))
        elif family == "volatility":
            nu = pm.Exponential("nu", 0.1)
            pm.StudentT("y", nu + 1.0, lam=pm.math.exp(-2.0 * x), observed=np.exp(truth) * rng.standard_normal(n))
    return model


def areas(rows: int, columns: int, seed: int = 3) -> pm.Model:
    """Counts in areas that are alike their neighbours on a grid, with a free level, dependence and scale."""
    rng = np.random.default_rng(seed)
    place = np.stack(np.meshgrid(np.arange(rows), np.arange(columns)), -1).reshape(-1, 2)
    neighbours = (np.abs(place[:, None] - place[None]).sum(axis=-1) == 1).astype(float)
    effect = np.linalg.cholesky(np.linalg.inv(np.diag(neighbours.sum(1)) - 0.9 * neighbours)) @ rng.standard_normal(
        len(place)
    )
    with pm.Model() as model:
        level, alpha = pm.Normal("level", 0.0, 2.0), pm.Beta("alpha", 2.0, 1.0)
        x = pm.CAR("x", np.zeros(len(place)), neighbours, alpha, pm.HalfNormal("scale", 1.0) ** -2)
        pm.Poisson("y", pm.math.exp(level + x), observed=rng.poisson(np.exp(1.0 + effect)))
    return model


PROBLEMS: dict[str, Callable[[], pm.Model]] = {
    "structural": structural,
    "smoother": walk_smoother,
    "volatility-150": partial(walk, 150, 0.15, "volatility"),
    "walk-poisson-100": partial(walk, 100, 0.1, "Poisson"),
    "car-56": partial(areas, 7, 8),
    "walk-normal-200": partial(walk, 200, 0.1, "Normal"),
    "walk-many-200": partial(walk, 200, 0.3, "many"),
    "ar-poisson-200": partial(walk, 200, 0.2, "Poisson", ar=True),
    "volatility-400": partial(walk, 400, 0.15, "volatility"),
    "walk-poisson-400": partial(walk, 400, 0.1, "Poisson"),
    "car-196": partial(areas, 14, 14),
    "walk-normal-50": partial(walk, 50, 0.1, "Normal"),
    "walk-many-1000": partial(walk, 1000, 0.3, "many"),
}


def measured(model: pm.Model, chart: str) -> str:
    """One line for one engine."""
    began = time.process_time()
    with model:
        step = RMHMC(metric=FlatMetric(chart=chart))
        built = time.process_time() - began
        data = pm.sample(
            DRAWS, tune=TUNE, chains=CHAINS, cores=1, step=step, random_seed=1, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    seconds = time.process_time() - began - built
    compiling = float(sum(data["sample_stats"]["compile_seconds_in_chain"].values[:, 1:].max(axis=1)))
    names = [str(v.name) for v in model.free_RVs]
    ess = min(
        float(az.ess(data, var_names=names, method=kind)[name].min()) for kind in ("bulk", "tail") for name in names
    )
    worst = max(float(az.rhat(data, var_names=names)[name].max()) for name in names)
    steps = float(data["sample_stats"]["n_steps"].mean())
    return (
        f"{chart:6} {ess / max(seconds - compiling, 1e-9):9.1f} ESS/s  ESS {ess:6.0f}  R-hat {worst:.3f}  "
        f"{steps:6.1f} steps  first draw {built:5.1f} s  draws {seconds:6.1f} s"
    )


def main(names: list[str]) -> None:
    """Measure both engines on each problem."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    for name in names or PROBLEMS:
        for chart in ("latent", "graph"):
            print(f"{name:18} {measured(PROBLEMS[name](), chart)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
