"""RMHMC of this package, inside pm.sample, chains one after another."""

from __future__ import annotations

import time

import numpy as np
import pymc as pm

from benchmarks.outcome import Outcome, stacked
from benchmarks.problems import Problem
from pymc_rmhmc import RMHMC, ImplicitMidpoint


def flat(problem: Problem, seed: int, draws: int = 1000) -> Outcome:
    """``RMHMC()`` as it comes."""
    return _run(problem, seed, draws, None)


def hessian(problem: Problem, seed: int, draws: int = 1000) -> Outcome:
    """The position-dependent metric, generalised leapfrog, step size adapted."""
    return _run(problem, seed, draws, None, metric="hessian")


def midpoint(problem: Problem, seed: int, draws: int = 300) -> Outcome:
    """The position-dependent metric with the implicit midpoint rule, step size adapted."""
    return _run(problem, seed, draws, 100, metric="hessian", integrator=ImplicitMidpoint())


def papers(problem: Problem, seed: int, draws: int = 300) -> Outcome:
    """Paquet and Fraccaro's setting: ε = 0.1, 10 steps."""
    return _run(problem, seed, draws, 20, metric="hessian", step_size=0.1, n_steps=10)


def _run(problem: Problem, seed: int, draws: int, tune: int | None, **options) -> Outcome:
    with problem.centred():
        step = RMHMC(**options)
        pm.sample(draws=2, tune=2, chains=1, step=step, random_seed=0, progressbar=False)  # compiles what there is
        started = time.perf_counter()
        idata = pm.sample(
            draws=draws, tune=tune, chains=2, cores=1, step=step, random_seed=seed, progressbar=False,
            compute_convergence_checks=False, discard_tuned_samples=False,
        )  # fmt: skip
        total = time.perf_counter() - started
    stats, tuned = idata.sample_stats, idata.warmup_sample_stats
    spans = [_span(group) for group in (tuned, stats)]
    extra = {
        "acceptance": float(stats["acceptance_rate"].mean()),
        "failures": float((stats["failure"] > 0).mean()),
        "steps": float(stats["n_steps"].mean()),
        "step size": float(stats["step_size"].mean()),
        "outside": total - sum(spans),
        "metrics a step": float(stats["n_metric_evals"].sum() / stats["n_steps"].sum()),
    }
    # What PyMC spends between the draws and around them counts as well: in proportion.
    scale = total / sum(spans)
    return Outcome(stacked(idata.posterior, problem.parameters), spans[0] * scale, spans[1] * scale, extra)


def _span(group) -> float:
    """Seconds from the first draw's start to the last one's end, summed over chains."""
    start, length = group["perf_counter_start"].values, group["perf_counter_diff"].values
    return float(np.sum(start[:, -1] + length[:, -1] - start[:, 0]))
