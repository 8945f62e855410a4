"""The runs and the tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from benchmarks.papers.bivariate.figures import FIGURES
from benchmarks.papers.bivariate.target import SAMPLERS, leapfrog_angle, measure_chains, measure_trajectories
from benchmarks.papers.looks import save_figures
from benchmarks.papers.paper import Paper, Run
from benchmarks.papers.text import by_sampler, markdown, print_errors, spread

__all__ = ["PAPER"]

RHOS = ("0.6", "0.98")
# What the axes of slides 16 and 48 span.
SLIDES = {"hmc": "0.12 (slide 16, from 1.76 to 1.88)", "rmhmc": "0.04 (slide 48, from 1.57 to 1.61)"}
DRAWS, FULL_DRAWS, LIMIT = 2000, 20_000, 80.0


def _runs(full: bool) -> Sequence[Run]:
    draws, seeds = (FULL_DRAWS, 4) if full else (DRAWS, 2)
    made = [Run(f"trajectories {rho}", "all", 0, 1, LIMIT) for rho in RHOS]
    return made + [
        Run(f"chains {rho}", sampler, seed, draws, LIMIT)
        for seed in range(seeds)
        for rho in RHOS
        for sampler in SAMPLERS
    ]


def _measure(run: Run) -> dict:
    return measure_chains(run) if run.experiment.startswith("chains") else measure_trajectories(run)


def energy_rows(records: list[dict]) -> list[list[str]]:
    """Return how far the energy moves along a trajectory, here and on the slides."""
    rows = []
    for rho in RHOS:
        for run in by_sampler(records, f"trajectories {rho}").get("all", []):
            for name in ("hmc", "rmhmc"):
                ours = run[name]["H"]
                span = f"{np.ptp(ours):.3f} (from {min(ours):.2f} to {max(ours):.2f})"
                slide = SLIDES[name] if (name, rho) != ("rmhmc", "0.98") else ""
                rows.append([SAMPLERS[name].label, rho, span, slide])
    return rows


def chain_rows(records: list[dict], rho: str) -> list[list[str]]:
    """Return a row for each sampler of the chains at a correlation."""
    held, rows = by_sampler(records, f"chains {rho}"), []
    for name in (name for name in SAMPLERS if name in held):
        runs = held[name]
        rows.append([
            SAMPLERS[name].label, rho, spread([r["acceptance"] for r in runs]),
            spread([r["autocorrelation"][0][1] for r in runs], "+.2f"), expected_lag(name, float(rho)),
            spread([100.0 * r["ess"] / r["draws"] for r in runs]), spread([r["seconds"] for r in runs]),
            spread([r["ess"] / r["seconds"] for r in runs], ".0f"), spread([r["variance"] for r in runs], ".2f"),
        ])  # fmt: skip
    return rows


def expected_lag(sampler: str, rho: float) -> str:
    """The correlation of neighbouring draws if every trajectory is accepted: exact for Gibbs and for RMHMC."""
    if sampler == "gibbs":
        return f"{rho**2:+.2f}"
    if sampler == "rmhmc drawn":
        return f"{np.mean([math.cos(leapfrog_angle(0.8, n)) for n in range(1, 16)]):+.2f}"
    if sampler.startswith("rmhmc"):
        return f"{math.cos(leapfrog_angle(0.8, SAMPLERS[sampler].n_steps(np.random.default_rng(0)))):+.2f}"
    return ""


def _report(records: list[dict]) -> None:
    print(markdown(("trajectory", "ρ", "range of H, ours", "range of H, slides"), energy_rows(records)) + "\n")
    headings = (
        "sampler", "ρ", "accepted", "lag 1", "in theory", "ESS per 100 draws", "seconds", "ESS per second", "variance"
    )  # fmt: skip
    print(markdown(headings, [row for rho in RHOS for row in chain_rows(records, rho)]))
    print_errors(records)


PAPER = Paper(
    "Girolami (2010), introduction to Girolami and Calderhead (2011): a bivariate normal density",
    _runs, _measure, _report, partial(save_figures, "bivariate", FIGURES),
)  # fmt: skip
