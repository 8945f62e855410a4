"""The tables: the funnel's samplers, the cost of a step, the bias, and the logistic regressions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.papers.cobb.funnel import LABELS, SETTINGS
from benchmarks.papers.text import by_sampler, markdown, print_errors, spread

__all__ = ["HEADINGS", "cost_ratios", "funnel_rows", "print_tables"]

HEADINGS = (
    "scheme", "settings", "draws", "seconds", "accepted", "failed %", "KL of v", "KL by bins", "v: mean", "sd", "ESS",
    "R-hat", "ESS per second",
)  # fmt: skip
IMPLICIT = "implicit"
EXPLICIT = ("explicit released", "explicit printed", "explicit exact")


def print_tables(records: list[dict]) -> None:
    """Print everything that was measured."""
    print(markdown(HEADINGS, funnel_rows(records)) + "\n")
    costs = ("a step", "Hessians", "third derivatives", "ms", "times as fast as the implicit leapfrog")
    print(markdown(costs, _costs(records)))
    for text in (_ratios(records), _bias(records), _regressions(records), _starts(records)):
        print("\n" + text)
    print_errors(records)


def funnel_rows(records: list[dict]) -> list[list[str]]:
    """Return the rows of the paper's table 1, a scheme each."""
    held = by_sampler(records, "funnel")
    return [_row(sampler, held[sampler]) for sampler in LABELS if sampler in held]


def _row(sampler: str, runs: list[dict]) -> list[str]:
    def column(value: Callable[[dict], float], form: str = ".2g") -> str:
        return spread([value(run) for run in runs], form)

    # A chain whose R-hat is large has an ESS that means nothing.
    is_stuck = any(not run["rhat"] < 1.1 for run in runs)
    rate = column(lambda r: r["ess"] / (r["tuning"] + r["sampling"]))
    return [
        LABELS[sampler],
        SETTINGS[sampler],
        column(lambda r: r["draws"], "d") + (" (stopped)" if any(run["stopped"] for run in runs) else ""),
        column(lambda r: r["tuning"] + r["sampling"], ".3g"),
        column(lambda r: r["acceptance"]),
        column(lambda r: 100.0 * r["failed"]),
        column(lambda r: r["kl"]),
        column(lambda r: r["kl_bins"]),
        column(lambda r: r["mean"], "+.2f") + " ± " + column(lambda r: r["mcse"]),
        column(lambda r: r["sd"], ".2f"),
        column(lambda r: r["ess"], ".0f"),
        column(lambda r: r["rhat"], ".3f"),
        f"({rate})" if is_stuck else rate,
    ]


def _costs(records: list[dict]) -> list[list[str]]:
    """A row for each integrator: what a step takes, and how many of them one implicit step would pay for."""
    rows = []
    for run in (run for runs in by_sampler(records, "cost").values() for run in runs):
        for name, step in run["steps"].items():
            ratio = run["steps"][IMPLICIT]["ms"] / step["ms"]
            counts = (f"{step['hessians']:.3g}", f"{step['thirds']:.3g}")
            rows.append([LABELS.get(name, name), *counts, f"{step['ms']:.2g}", f"{ratio:.2g}"])
    return rows


def cost_ratios(records: list[dict]) -> dict[str, dict[str, float]]:
    """Return, for each explicit scheme, the seconds of the implicit leapfrog over its own.

    Per step, per draw, and per effective draw of v: above 1 the explicit one is faster. Medians over seeds.
    """
    held = by_sampler(records, "funnel")
    costs: dict[str, Callable[[dict], float]] = {
        "step": lambda r: r["sampling"] / (r["draws"] * r["steps"]),
        "draw": lambda r: r["sampling"] / r["draws"],
        "effective draw": lambda r: r["sampling"] / r["ess"],
    }
    if IMPLICIT not in held:
        return {}

    def median(sampler: str, cost: Callable[[dict], float]) -> float:
        return float(np.median([cost(run) for run in held[sampler]]))

    return {
        sampler: {name: median(IMPLICIT, cost) / median(sampler, cost) for name, cost in costs.items()}
        for sampler in ("implicit loose", "midpoint", *EXPLICIT)
        if sampler in held
    }


def _ratios(records: list[dict]) -> str:
    rows = [[LABELS[s], *(f"{value:.2g}" for value in ratio.values())] for s, ratio in cost_ratios(records).items()]
    return markdown(("times as fast as the implicit leapfrog", "a step", "a draw", "an effective draw"), rows)


def _bias(records: list[dict]) -> str:
    rows = [
        [sampler, f"{run['variance']:.3f} ± {run['mcse']:.3f}", f"{run['acceptance']:.2f}"]
        for sampler, runs in by_sampler(records, "bias").items()
        for run in runs
    ]
    return markdown(("scheme", "variance of a standard normal, metric 1 + q²", "accepted"), rows)


def _regressions(records: list[dict]) -> str:
    rows = []
    for sampler, runs in by_sampler(records, "regression").items():
        for run in runs:
            for setting in (key for key in run if isinstance(run[key], dict) and "accuracy" in run[key]):
                found = run[setting]
                rows.append([
                    sampler, setting, f"{found['seconds']:.2g}", f"{found['acceptance']:.2f}",
                    f"{100 * found['accuracy']:.1f}", f"{found['autocorrelation'][1]:+.2f}",
                ])  # fmt: skip
    return markdown(("scheme", "prior, path", "seconds", "accepted", "held-out accuracy %", "lag 1"), rows)


def _starts(records: list[dict]) -> str:
    rows = [
        [sampler, f"{run['draws']}", f"{run['seconds']:.2g}", f"{run['acceptance']:.2f}"]
        for sampler, runs in by_sampler(records, "start").items()
        for run in runs
    ]
    return markdown(("two weights", "draws", "seconds", "accepted"), rows)
