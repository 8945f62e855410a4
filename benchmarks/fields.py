"""Effective draws a second of series, maps, crossed effects and several predictors: `RMHMC()` and nutpie.

``python -m benchmarks.fields stochastic_volatility bym2:40 --draws 2000 --chart auto field graph --seeds 1 2 3``; a
number after a colon is the size. Two chains one after another, one BLAS thread; seconds are of the process, tuning
included and building apart; ESS is the smaller of bulk and tail over θ and at most 600 latent values.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings

import numpy as np
import pymc as pm

from benchmarks import field_problems, predictor_problems
from benchmarks.measures import largest_rhat, smallest_ess
from pymc_rmhmc import RMHMC, FlatMetric

MOST_VALUES = 600
PROBLEMS = {**field_problems.PROBLEMS, **predictor_problems.PROBLEMS}


def main() -> None:
    """Print a line for each problem, chart and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--chart", nargs="*", default=["auto"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    for named in asked.problems:
        name, *sizes = named.split(":")
        model = PROBLEMS[name](*map(int, sizes))
        for seed in asked.seeds:
            for chart in asked.chart:
                print(named, chart, seed, _measured(model, chart, asked.draws, seed), flush=True)


def _measured(model: pm.Model, chart: str, draws: int, seed: int) -> str:
    """Sample a model, and say how fast that was."""
    if chart == "nutpie":
        return _of_nutpie(model, draws, seed)
    begun = time.process_time()
    with model:
        step = RMHMC(metric=FlatMetric(chart=chart))
        built = time.process_time()
        result = pm.sample(
            draws, chains=2, cores=1, step=step, random_seed=seed, progressbar=False,
            compute_convergence_checks=False,
        )  # fmt: skip
    seconds, statistics = time.process_time() - built, result.sample_stats
    drawing = float(np.sum(statistics["process_time_diff"].values))
    steps = float(np.mean(statistics["n_steps"].values))
    return _line(model, result.posterior, built - begun, seconds, drawing) + f", {steps:.1f} steps a draw"


def _of_nutpie(model: pm.Model, draws: int, seed: int) -> str:
    import nutpie

    begun = time.process_time()
    compiled = nutpie.compile_pymc_model(model)
    built = time.process_time()
    result = nutpie.sample(compiled, draws=draws, chains=2, cores=1, seed=seed, progress_bar=False)
    return _line(model, result.posterior, built - begun, time.process_time() - built, float("nan"))


def _line(model: pm.Model, posterior: object, building: float, seconds: float, drawing: float) -> str:
    free = [v.name for v in model.free_RVs if v.name in posterior]
    least, worst, where = np.inf, 0.0, ""
    for name in free:
        values = np.asarray(posterior[name]).reshape(*posterior[name].shape[:2], -1)
        size = values.shape[-1]
        chosen = values[..., np.unique(np.linspace(0, size - 1, min(size, MOST_VALUES)).astype(int))]
        if (np.ptp(chosen, axis=(0, 1)) == 0.0).any():
            return f"{name} stands still"
        ess, worst = smallest_ess(chosen), max(worst, largest_rhat(chosen))
        if ess < least:
            least, where = ess, name
    rates = f"{least / seconds:.1f} ESS/s, {least / drawing:.1f} in draws"
    return f"{rates}; ESS {least:.0f} ({where}), R-hat {worst:.3f}, {building:.1f} s built, {seconds:.1f} s sampled"


if __name__ == "__main__":
    main()
