"""The runs, the table and its figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.papers.filippone.samplers import SAMPLERS, measure
from benchmarks.papers.looks import BLUE, GREEN, ORANGE, Figures, save_figures
from benchmarks.papers.paper import Paper, Run
from benchmarks.papers.text import by_sampler, drawn, markdown, print_errors, spread

__all__ = ["FIGURES", "PAPER", "rows"]

# Table 1: ESS of 2000 draws: min, mean and max over f, then ψ_σ, ψ_τ₁, ψ_τ₂; standard deviations over 10 runs.
TABLE = {
    "gibbs mh": "3, 6, 18; 30, 30, 36", "gibbs s-mmala": "27, 102, 205; 54, 6, 8",
    "gibbs rm-hmc": "78, 404, 888; 30, 6, 7", "gibbs wht": "26, 112, 309; 56, 203, 136",
    "hmc": "3, 6, 21; 5, 12, 10", "s-mmala": "17, 51, 94; 18, 6, 7",
    "rm-hmc": "182 (50), 531, 1001; 530 (250), 86 (33), 111 (40)",
}  # fmt: skip


def _runs(full: bool) -> Sequence[Run]:
    draws, seeds, limit = (1000, 10, 3600.0) if full else (1000, 2, 60.0)
    return [Run("classifier", name, seed, draws, limit) for seed in range(seeds) for name in SAMPLERS]


def _of_2000(run: dict, values: Sequence[float]) -> list[float]:
    """Effective draws as they would be of 2000, where a run was stopped."""
    return [1000.0 * v / max(1, run["draws"]) for v in values]


def rows(records: list[dict]) -> list[list[str]]:
    """Return a row for each sampler: effective draws of 2000."""
    held, made = by_sampler(records, "classifier"), []
    for name in (name for name in SAMPLERS if name in held):
        runs = held[name]
        made.append([
            SAMPLERS[name].label, drawn(runs),
            *(spread([_of_2000(r, r["latent"])[i] for r in runs], ".0f") for i in range(3)),
            *(spread([_of_2000(r, r["ess"])[i] for r in runs], ".0f") for i in range(3)),
            TABLE.get(name, ""),
            *(spread([r[key] for r in runs], ".0f") if runs[0][key] else "" for key in ("factors", "informed")),
            "> 10" if max(r["rhat"] for r in runs) > 10.0 else spread([r["rhat"] for r in runs], ".2f"),
            spread([r["tuning"] + r["sampling"] for r in runs], ".3g"),
            spread([min(*r["ess"], r["latent"][0]) / (r["tuning"] + r["sampling"]) for r in runs]),
            "; ".join(f"{np.mean([r['mean'][i] for r in runs]):.2f}" for i in range(3)),
        ])  # fmt: skip
    return made


def _report(records: list[dict]) -> None:
    print(markdown(
        ("method", "draws", "f: min", "mean", "max", "ψ_σ", "ψ_τ₁", "ψ_τ₂", "the paper's",
         "chol(K) a draw", "G_θ", "R-hat", "seconds",
         "ESS per second", "means of ψ"),
        rows(records),
    ))  # fmt: skip
    print_errors(records)


def _bars(plt: Any, held: dict[str, dict]) -> Any:
    """Effective draws of 2000: the worst latent value, and the worst hyperparameter; and their rate."""
    names = [name for name in SAMPLERS if name in held]
    at = np.arange(len(names))
    figure, (draws, rate) = plt.subplots(1, 2, figsize=(8.6, 3.6), sharey=True, layout="constrained")
    latent = [_of_2000(held[name], held[name]["latent"])[0] for name in names]
    worst = [min(_of_2000(held[name], held[name]["ess"])) for name in names]
    draws.barh(at - 0.2, latent, 0.4, color=BLUE, label="worst latent value")
    draws.barh(at + 0.2, worst, 0.4, color=ORANGE, label="worst hyperparameter")
    draws.set(xscale="log", xlabel="effective draws of 2000", yticks=at, yticklabels=[SAMPLERS[n].label for n in names])
    draws.invert_yaxis()
    draws.legend(loc="upper right", fontsize=8)
    rates = [
        min(*held[n]["ess"], held[n]["latent"][0]) / (held[n]["tuning"] + held[n]["sampling"]) for n in names
    ]
    rate.barh(at, rates, 0.6, color=GREEN)
    rate.set(xscale="log", xlabel="effective draws per second, worst value")
    return figure


FIGURES: Figures = {"methods": ("classifier", _bars)}
PAPER = Paper(
    "Filippone (2011), discussion of Girolami and Calderhead, table 1",
    _runs, measure, _report,
    lambda records, folder, suffix: save_figures("filippone", FIGURES, records, folder, suffix),
)  # fmt: skip
