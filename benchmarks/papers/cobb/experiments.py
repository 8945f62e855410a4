"""All runs of the paper's benchmark, and who makes them."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.papers.cobb.cost import measure_cost
from benchmarks.papers.cobb.figures import draw_figures
from benchmarks.papers.cobb.funnel import SAMPLERS, measure_funnel
from benchmarks.papers.cobb.logistic import SCHEMES, measure_paths, measure_regression, measure_start
from benchmarks.papers.cobb.omega import BINDINGS, measure_bias, measure_omega, measure_reach
from benchmarks.papers.cobb.table import print_tables
from benchmarks.papers.paper import Paper, Run

__all__ = ["PAPER"]

MEASURES = {
    "funnel": measure_funnel,
    "start": measure_start,
    "regression": measure_regression,
    "paths": measure_paths,
    "omega": measure_omega,
    "bias": measure_bias,
    "reach": measure_reach,
    "cost": measure_cost,
}
# Draws per chain and seconds of sampling: by default, and with --full.
DRAWS, FULL_DRAWS = 1000, 5000
LIMIT, FULL_LIMIT = 80.0, 1800.0
# The paper gave HMC a hundred times as many draws.
MANY = 50


def _runs(full: bool) -> Sequence[Run]:
    draws, limit, seeds = (FULL_DRAWS, FULL_LIMIT, 4) if full else (DRAWS, LIMIT, 2)
    made = [
        Run("funnel", sampler, seed, draws * (MANY if sampler in ("nuts", "hmc") else 1), limit)
        for seed in range(seeds)
        for sampler in SAMPLERS
    ]
    made += [Run("start", sampler, 0, 60, limit) for sampler in SCHEMES]
    made += [Run("regression", sampler, 0, 500, limit) for sampler in SCHEMES]
    made += [Run("paths", "all", 0, 600, limit)]
    made += [Run("cost", "all", 0, 100, limit)]
    made += [Run("omega", binding, 0, 1000 if full else 100, limit) for binding in BINDINGS]
    made += [Run("bias", sampler, 0, 5 * draws, limit) for sampler in ("implicit", *BINDINGS)]
    made += [Run("reach", sampler, 0, 200 if full else 30, limit) for sampler in ("implicit", *BINDINGS)]
    return made


PAPER = Paper(
    "Cobb, Baydin, Markham and Roberts (2019), arXiv:1910.06243",
    _runs, lambda run: MEASURES[run.experiment](run), print_tables, draw_figures,
)  # fmt: skip
