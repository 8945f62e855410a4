"""RMHMC of this package, inside pm.sample, chains one after another."""

from __future__ import annotations

import numpy as np

from benchmarks.deadline import NEVER, Deadline
from benchmarks.joint_problems import JointProblem
from benchmarks.outcome import Outcome
from benchmarks.peers.pymc_chains import sample
from benchmarks.problems import Problem
from pymc_rmhmc import RMHMC, ImplicitMidpoint

STATISTICS = (
    "mean_tree_accept", "failure", "n_emulator_divergences", "tree_size", "step_size", "n_metric_evals",
    "perf_counter_start", "perf_counter_diff",
)  # fmt: skip


def flat(problem: Problem | JointProblem, seed: int, deadline: Deadline = NEVER, draws: int = 1000) -> Outcome:
    """``RMHMC()`` as it comes."""
    # What draws in turns need is compiled when tuning ends.
    first_tune = None if isinstance(problem, JointProblem) else 2
    return _run(problem, seed, deadline, draws, None, first_tune)


def hessian(problem: Problem, seed: int, deadline: Deadline = NEVER, draws: int = 1000) -> Outcome:
    """The position-dependent metric, generalised leapfrog, step size adapted."""
    return _run(problem, seed, deadline, draws, None, metric="hessian")


def midpoint(problem: Problem, seed: int, deadline: Deadline = NEVER, draws: int = 300) -> Outcome:
    """The position-dependent metric with the implicit midpoint rule, step size adapted."""
    return _run(problem, seed, deadline, draws, 100, metric="hessian", integrator=ImplicitMidpoint())


def papers(problem: Problem, seed: int, deadline: Deadline = NEVER, draws: int = 300) -> Outcome:
    """Paquet and Fraccaro's setting: ε = 0.1, 10 steps."""
    return _run(problem, seed, deadline, draws, 20, metric="hessian", step_size=0.1, n_steps=10)


def _run(
    problem, seed: int, deadline: Deadline, draws: int, tune: int | None, first_tune: int | None = 2, **options
) -> Outcome:
    with problem.centred():
        step = RMHMC(**options)
        names = [name for name in STATISTICS if name in step.stats_dtypes_shapes]
        run = sample(step, problem.parameters, draws, tune, seed, deadline, names, first_tune=first_tune)
    stats = run.drawn
    spans = [sum(_span(end[i]) for end in run.ends) for i in range(2)]
    extra = {
        "acceptance": float(stats["mean_tree_accept"].mean()),
        "failures": float((stats["failure"] > 0).mean()),
        "emulator_divergences": float((stats["n_emulator_divergences"] > 0).mean()),
        "steps": float(stats["tree_size"].mean()),
        "step size": float(stats["step_size"].mean()),
        "outside": run.seconds - sum(spans),
        "metrics a step": float(stats["n_metric_evals"].sum() / stats["tree_size"].sum()),
    }
    # What PyMC spends between the draws and around them counts as well: in proportion.
    scale = run.seconds / sum(spans)
    return Outcome(run.draws, spans[0] * scale, spans[1] * scale, extra, run.stopped)


def _span(statistics: dict[str, np.ndarray]) -> float:
    """Seconds from the first draw's start to the last one's end."""
    start, length = statistics["perf_counter_start"], statistics["perf_counter_diff"]
    return float(start[-1] + length[-1] - start[0]) if start.size else 0.0
