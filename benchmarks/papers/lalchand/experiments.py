"""The runs and the tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks.papers.lalchand.dynamics import SETTINGS, measure_leapfrog, measure_warped
from benchmarks.papers.lalchand.figures import FIGURES
from benchmarks.papers.lalchand.prediction import SIZES, measure_prediction
from benchmarks.papers.lalchand.regressions import (
    measure_additive,
    measure_composite,
    measure_lengthscales,
    measure_prior,
)
from benchmarks.papers.looks import save_figures
from benchmarks.papers.paper import Paper, Run
from benchmarks.papers.text import by_sampler, markdown, print_errors, spread

__all__ = ["PAPER", "prediction_rows", "warped_rows"]

MEASURES: dict[str, Callable[[Run], dict]] = {
    "prior": measure_prior,
    "lengthscales": measure_lengthscales,
    "composite": measure_composite,
    "additive": measure_additive,
    "leapfrog": measure_leapfrog,
    "warped": measure_warped,
}
ONCE = ("prior", "lengthscales", "leapfrog")


def _runs(full: bool) -> Sequence[Run]:
    draws, sets, seeds = (10_000, 100, 4) if full else (1000, 10, 2)
    limit = 1800.0 if full else 80.0
    made = [Run(name, "all", 0, 1, limit) for name in ONCE]
    for seed in range(seeds):
        made += [Run(name, "all", seed, 1, limit) for name in ("composite", "additive")]
        made += [Run("warped", name, seed, draws, limit) for name in SETTINGS]
        made += [Run(f"prediction {n}", "all", seed, sets, limit) for n in SIZES]
    return made


def _measure(run: Run) -> dict:
    return measure_prediction(run) if run.experiment.startswith("prediction") else MEASURES[run.experiment](run)


def warped_rows(records: list[dict]) -> list[list[str]]:
    """Return a row for each setting on the warped normal density."""
    held, rows = by_sampler(records, "warped"), []
    for name in (name for name in SETTINGS if name in held):
        runs = held[name]
        rows.append([
            SETTINGS[name].label, spread([r["acceptance"] for r in runs], ".2f"),
            spread([100.0 * r["failed"] for r in runs]), spread([100.0 * r["ess"] / r["draws"] for r in runs]),
            spread([r["rhat"] for r in runs], ".2f"), spread([r["seconds"] for r in runs]),
            spread([r["ess"] / r["seconds"] for r in runs]), spread([r["mean"][0] for r in runs], ".2f"),
            spread([r["variance"][0] for r in runs], ".2f"),
        ])  # fmt: skip
    return rows


def prediction_rows(records: list[dict]) -> list[list[str]]:
    """Return a row for each size: mean log density of a held-out point, both ways, and the difference by data sets."""
    rows = []
    for n in SIZES:
        sets = [row for run in by_sampler(records, f"prediction {n}").get("all", []) for row in run["rows"]]
        if not sets:
            continue
        full, plug_in = (np.array([each[name] for each in sets]) for name in ("full", "plug-in"))
        gain = full - plug_in
        rows.append([
            str(n), str(len(sets)), f"{full.mean():.3f}", f"{plug_in.mean():.3f}", f"{np.median(full):.3f}",
            f"{np.median(plug_in):.3f}", f"{gain.mean():.3f} ± {gain.std(ddof=1) / np.sqrt(len(gain)):.3f}",
            f"{np.mean(gain > 0.0):.0%}",
        ])  # fmt: skip
    return rows


def _fits(records: list[dict], experiment: str, keys: Sequence[str]) -> list[list[str]]:
    runs = by_sampler(records, experiment).get("all", [])
    names = runs[0]["fits"] if runs else {}
    return [[name, *(spread([r["fits"][name][key] for r in runs], ".3g") for key in keys)] for name in names]


def _report(records: list[dict]) -> None:
    tables = (
        (("fit", "lengthscale", "log marginal likelihood"),
         _fits(records, "lengthscales", ("lengthscale", "log_marginal"))),
        (("kernel, made CO2 series", "log marginal likelihood", "RMSE", "log density of a held-out month"),
         _fits(records, "composite", ("log_marginal", "rmse", "density"))),
        (("kernel, additive surface", "log marginal likelihood", "RMSE away from the data"),
         _fits(records, "additive", ("log_marginal", "rmse"))),
        (("leapfrog, L = 20", "range of H"),
         [[f"ε = {size}", f"{value:.3g}"] for run in by_sampler(records, "leapfrog").get("all", [])
          for size, value in run["largest"].items()]),
        (("warped normal", "accepted", "failed %", "ESS per 100 draws", "R-hat", "seconds", "ESS per second",
          "mean of θ₁" + _truth(records, "mean"), "mean of θ₂²" + _truth(records, "variance")), warped_rows(records)),
        (("points", "data sets", "RMHMC(), mean", "ML-II, mean", "RMHMC(), median", "ML-II, median", "difference",
          "RMHMC() is better"), prediction_rows(records)),
    )  # fmt: skip
    for headings, rows in tables:
        print(markdown(headings, rows) + "\n")
    print_errors(records)


def _truth(records: list[dict], key: str) -> str:
    runs = [run for made in by_sampler(records, "warped").values() for run in made]
    return f" (truth {runs[0][key][1]:.2f})" if runs else ""


PAPER = Paper(
    "Lalchand (2019), Gaussian processes and Hamiltonian Monte Carlo",
    _runs, _measure, _report, partial(save_figures, "lalchand", FIGURES),
)  # fmt: skip
