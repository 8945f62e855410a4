"""This package inside ``pm.sample``: PyMC's own share of each draw is counted."""

from __future__ import annotations

import time

import numpy as np
import pymc as pm

from benchmarks.catalogue.worker import Clock
from benchmarks.deadline import NEVER
from benchmarks.outcome import Outcome
from benchmarks.peers.pymc_chains import CHAINS, collected
from benchmarks.peers.riemannian.budget import draws_within
from benchmarks.peers.riemannian.problems import ALPHA, TOLERANCE, Funnel, Logistic
from pymc_rmhmc import RMHMC, FisherMetric, ImplicitMidpoint, SoftAbsMetric
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog
from pymc_rmhmc.dynamics.solvers import AndersonSolver

__all__ = ["automatic", "graph_leapfrog", "leapfrog", "leapfrog_unchecked", "midpoint", "midpoint_unchecked"]

PILOT = 20
# What PyMC spends on a draw, next to which a pilot of a few draws would say too little.
LEAST = 1e-4


def automatic(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """``RMHMC()``: nothing is given, tuning counts."""
    return _run(problem, seed, seconds, None, {})


def leapfrog(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """Generalised leapfrog."""
    return _fixed(problem, seed, seconds, GeneralizedLeapfrog)


def leapfrog_unchecked(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """Generalised leapfrog without the check of reversibility."""
    return _fixed(problem, seed, seconds, GeneralizedLeapfrog, check_reversibility=False)


def midpoint(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """Implicit midpoint rule."""
    return _fixed(problem, seed, seconds, ImplicitMidpoint)


def midpoint_unchecked(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """Implicit midpoint rule without the check of reversibility, as BlackJAX's."""
    return _fixed(problem, seed, seconds, ImplicitMidpoint, check_reversibility=False)


def graph_leapfrog(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """Generalised leapfrog in the metric of the whole model's Fisher information."""
    return _fixed(problem, seed, seconds, GeneralizedLeapfrog, metric=FisherMetric(chart="graph"))


def _fixed(problem, seed, seconds, integrator, metric=None, check_reversibility: bool = True) -> Outcome:
    if metric is None:
        metric = SoftAbsMetric(alpha=ALPHA, structure="dense") if problem.metric == "softabs" else "fisher"
    options = {
        "metric": metric, "step_size": problem.step_size, "n_steps": problem.n_steps,
        "integrator": integrator(AndersonSolver(TOLERANCE, 100), check_reversibility=check_reversibility),
    }  # fmt: skip
    starts = [problem.point(q) for q in problem.starts(seed)]
    return _run(problem, seed, seconds, starts, options)


def _run(problem, seed: int, seconds: float, starts, options: dict) -> Outcome:
    quiet = {"cores": 1, "progressbar": False, "compute_convergence_checks": False}
    tune = None if starts is None else 1
    began = time.process_time()
    with problem.model():
        step = RMHMC(**options)
        pilot = pm.sample(draws=PILOT, tune=tune, chains=1, step=step, random_seed=1000 + seed, **quiet)
        compiling = time.process_time() - began
        per_draw = LEAST + float(np.median(pilot.sample_stats["process_time_diff"].values))
        watch = Clock(NEVER, time.process_time())
        pm.sample(
            draws=draws_within(seconds, per_draw), tune=tune, chains=CHAINS, step=step, initvals=starts,
            random_seed=seed, discard_tuned_samples=False, callback=watch, **quiet,
        )  # fmt: skip
    run = collected(watch, [label.split("[")[0] for label in problem.labels[:1]], (), float("nan"))
    tuning, sampling = (sum(spent[i] for spent in watch.seconds.values()) for i in range(2))
    stats = {name: np.array([s[name] for s in watch.reported]) for name in ("failure", "mean_tree_accept", "tree_size")}
    extra = {
        "acceptance": float(stats["mean_tree_accept"].mean()), "failures": float((stats["failure"] > 0).mean()),
        "steps": float(stats["tree_size"].mean()), "compile": compiling - PILOT * per_draw,
    }  # fmt: skip
    return Outcome(run.draws, tuning if starts is None else 0.0, sampling, extra)
