"""The runs, the tables and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import gaussian_kde

from benchmarks.papers.cox.samplers import GIBBS, LATENT, SIDE, TRUTH, measure_gibbs, measure_latent, process
from benchmarks.papers.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW, Figures, save_figures
from benchmarks.papers.paper import Paper, Run
from benchmarks.papers.text import by_sampler, drawn, markdown, print_errors, spread

__all__ = ["FIGURES", "PAPER", "gibbs_rows", "latent_rows"]

# Slide 64: time, minimal, median and maximal ESS of 5000 draws, seconds for the minimal one.
SLIDE = {
    "mala transient": (31577, 3, 8, 50, 10605), "mala stationary": (31118, 4, 16, 80, 7836),
    "mmala": (634, 26, 84, 174, 24.1), "constant": (2936, 1951, 4545, 5000, 1.5),
}  # fmt: skip
COLOURS = dict(zip(LATENT, (YELLOW, ORANGE, SKY, PURPLE, BLUE, GREEN), strict=True))


def _runs(full: bool) -> Sequence[Run]:
    draws, seeds, limit = (5000, 5, 3600.0) if full else (500, 2, 150.0)
    made = [Run("latent", name, seed, draws, limit) for seed in range(seeds) for name in LATENT]
    gibbs, limit = (4000, 3600.0) if full else (1000, 150.0)
    return made + [Run("gibbs", name, 0, gibbs, limit) for name in GIBBS]


def latent_rows(records: list[dict]) -> list[list[str]]:
    """Return a row for each sampler of the field, with the slide's figures."""
    held, made = by_sampler(records, "latent"), []
    for name in (name for name in LATENT if name in held):
        runs = held[name]
        slide = SLIDE.get(name)
        made.append([
            LATENT[name].label, drawn(runs),
            spread([r["acceptance"] for r in runs], ".2f"),
            *(spread([r["ess"][i] for r in runs], ".0f") for i in range(3)),
            spread([r["rhat"] for r in runs], ".2f"), spread([r["tuning"] + r["sampling"] for r in runs], ".3g"),
            spread([(r["tuning"] + r["sampling"]) / r["ess"][0] for r in runs]),
            "" if slide is None else f"{slide[1]}, {slide[2]}, {slide[3]}", "" if slide is None else f"{slide[4]:g}",
        ])  # fmt: skip
    return made


def gibbs_rows(records: list[dict]) -> list[list[str]]:
    """Return a row for each sampler of the hyperparameters."""
    held, made = by_sampler(records, "gibbs"), []
    for name in (name for name in GIBBS if name in held):
        runs = held[name]
        made.append([
            GIBBS[name].label, drawn(runs),
            *(f"{spread([r['mean'][i] for r in runs], '.3g')} ± {np.mean([r['sd'][i] for r in runs]):.2g}"
              for i in range(2)),
            *(spread([r["ess"][i] for r in runs], ".0f") for i in range(2)),
            spread([r["rhat"] for r in runs], ".2f"), spread([r["tuning"] + r["sampling"] for r in runs], ".3g"),
            spread([min(r["ess"]) / (r["tuning"] + r["sampling"]) for r in runs]),
        ])  # fmt: skip
    return made


def _report(records: list[dict]) -> None:
    print(markdown(
        ("sampler of the field", "draws", "accepted", "ESS: min", "median", "max", "R-hat", "seconds", "s per min ESS",
         "slide 64: ESS", "s per min ESS"),
        latent_rows(records),
    ))  # fmt: skip
    print("\n" + markdown(
        ("σ² and β, 32 × 32", "draws", f"σ² (true {TRUTH['variance']:g})", f"β (true {TRUTH['beta']:.3g})", "ESS of σ²",
         "of β", "R-hat", "seconds", "ESS per second"),
        gibbs_rows(records),
    ))  # fmt: skip
    print_errors(records)


def _fields(plt: Any, held: dict[str, dict]) -> Any:
    """Slide 62: the counts, the mean of the field, and the mean of the rate."""
    if not held.get("flat", {}).get("field"):
        return plt.figure()
    counts = process(SIDE)[1].reshape(SIDE, SIDE)
    field = np.array(held["flat"]["field"]).reshape(SIDE, SIDE)
    figure, panels = plt.subplots(1, 3, figsize=(9.2, 3.2), layout="constrained")
    shown = (("Counts", counts), ("Mean of the field x", field), ("exp of it, for a cell", np.exp(field) / SIDE**2))
    for axis, (title, values) in zip(panels, shown, strict=True):
        figure.colorbar(axis.imshow(values, cmap="viridis"), ax=axis, shrink=0.8)
        axis.set(title=title, xticks=(), yticks=())
    return figure


def _traces(plt: Any, held: dict[str, dict]) -> Any:
    """Slide 63: draws of one cell, that with the most points."""
    names = [name for name in LATENT if name in held]
    figure, panels = plt.subplots(
        len(names), 1, figsize=(8.0, 1.25 * len(names)), sharex=True, sharey=True, layout="constrained", squeeze=False
    )
    for axis, name in zip(panels[:, 0], names, strict=True):
        axis.plot(held[name]["kept"], color=COLOURS[name], linewidth=0.7)
        axis.set_title(LATENT[name].label, loc="left", fontsize=9)
    panels[-1, 0].set_xlabel("draw")
    figure.supylabel("field in the cell with the most points", fontsize=9)
    return figure


def _densities(plt: Any, held: dict[str, dict]) -> Any:
    """Slide 65: densities of σ² and β."""
    figure, panels = plt.subplots(1, 2, figsize=(8.0, 3.0), layout="constrained")
    for name, colour in (("gibbs", ORANGE), ("joint", GREEN)):
        if name not in held:
            continue
        for axis, draws in zip(panels, np.array(held[name]["kept"]), strict=True):
            at = np.linspace(0.0, 1.15 * np.quantile(draws, 0.995), 200)
            axis.plot(at, gaussian_kde(draws.ravel())(at), color=colour, label=GIBBS[name].label)
    for axis, (name, symbol) in zip(panels, (("variance", "σ²"), ("beta", "β")), strict=True):
        axis.axvline(TRUTH[name], color=BLACK, linestyle=":", linewidth=1, label="drawn with")
        axis.set(xlabel=symbol, yticks=(), xlim=(0, None), ylim=(0, None))
    panels[0].set_ylabel("posterior density")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return figure


FIGURES: Figures = {
    "field": ("latent", _fields), "traces": ("latent", _traces), "hyperparameters": ("gibbs", _densities),
}  # fmt: skip
MEASURES = {"latent": measure_latent, "gibbs": measure_gibbs}
PAPER = Paper(
    "Girolami and Calderhead (2011), section 9, and slides 56-65: a log-Gaussian Cox process",
    _runs, lambda run: MEASURES[run.experiment](run), _report,
    lambda records, folder, suffix: save_figures("cox", FIGURES, records, folder, suffix),
)  # fmt: skip
