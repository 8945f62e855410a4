"""The runs, the table and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.papers.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW, Figures, save_figures
from benchmarks.papers.paper import Paper, Run
from benchmarks.papers.text import by_sampler, markdown, print_errors, spread
from benchmarks.papers.volatility.samplers import NAMES, SAMPLERS, SLIDES, measure, observations

__all__ = ["FIGURES", "PAPER", "rows"]

HEADINGS = (
    "sampler", "draws", "accepted", "on the slides", "ESS of β", "of σ", "of φ", "worst x", "R-hat", "seconds",
    "ESS per second", "β", "σ", "φ", "x in 90 % intervals",
)  # fmt: skip
COLOURS = {"metropolis": YELLOW, "hmc": ORANGE, "fisher": BLUE, "block": PURPLE, "flat": GREEN, "nutpie": SKY}
JOINED = 100
# What is run on the whole series, of 2000 values.
AT_LENGTH = ("block", "nutpie")


def _runs(full: bool) -> Sequence[Run]:
    draws, seeds, limit = (5000, 5, 1200.0) if full else (1000, 2, 100.0)
    made = [
        Run("chains", name, seed, draws * sampler.times, limit)
        for seed in range(seeds)
        for name, sampler in SAMPLERS.items()
    ]
    return made + [Run("long", name, 0, draws, limit) for name in AT_LENGTH]


def rows(records: list[dict], experiment: str = "chains") -> list[list[str]]:
    """Return a row for each sampler."""
    held, made = by_sampler(records, experiment), []
    for name in (name for name in SAMPLERS if name in held):
        runs = held[name]
        # A run that was stopped in tuning hands in its tuning draws.
        stopped = "".join(sorted({f" (stopped in {run['stopped']})" for run in runs if run["stopped"]}))
        made.append([
            SAMPLERS[name].label, spread([2 * r["draws"] for r in runs], "d") + stopped,
            spread([r["acceptance"] for r in runs], ".2f"), SLIDES.get(name, ""),
            *(spread([r["ess"][i] for r in runs], ".0f") for i in range(len(NAMES))),
            spread([r["x_ess"] for r in runs], ".0f"), spread([r["rhat"] for r in runs], ".2f"),
            spread([r["tuning"] + r["sampling"] for r in runs]),
            spread([min(*r["ess"], r["x_ess"]) / (r["tuning"] + r["sampling"]) for r in runs]),
            *(f"{spread([r['mean'][i] for r in runs], '.3f')} ± {np.mean([r['sd'][i] for r in runs]):.3f}"
              for i in range(len(NAMES))),
            spread([100.0 * r["covered"] for r in runs], ".0f"),
        ])  # fmt: skip
    return made


def _report(records: list[dict]) -> None:
    truth = observations()
    print("Truth: " + ", ".join(f"{name} = {float(truth[name]):g}" for name in NAMES) + "\n")
    print(markdown(HEADINGS, rows(records)))
    print("\n2000 values\n\n" + markdown(HEADINGS, rows(records, "long")))
    print_errors(records)


def _traces(plt: Any, held: dict[str, dict]) -> Any:
    """Slides 17-20 and 52-55: draws of σ and φ, all of a chain, and the way of the first hundred."""
    shown, truth = [name for name in SAMPLERS if name in held], observations()
    figure, panels = plt.subplots(
        2, len(shown), figsize=(9.2, 4.6), sharex=True, sharey=True, layout="constrained", squeeze=False
    )
    for column, name in zip(panels.T, shown, strict=True):
        _, sigma, phi = np.array(held[name]["kept"]).T
        column[0].plot(sigma, phi, ".", color=COLOURS[name], markersize=2)
        column[1].plot(sigma[:JOINED], phi[:JOINED], ".-", color=COLOURS[name], markersize=3, linewidth=0.5)
        for axis in column:
            axis.plot(truth["sigma"], truth["phi"], "x", color=BLACK, markersize=8, markeredgewidth=2, zorder=5)
            axis.set(xlim=(0.08, 0.45), ylim=(0.86, 1.002))
        column[0].set_title(SAMPLERS[name].label.replace(" for", "\nfor"), fontsize=9)
        column[1].set_xlabel("σ")
    panels[0, 0].set_ylabel("φ, all that are kept")
    panels[1, 0].set_ylabel(f"φ, {JOINED} draws")
    return figure


def _autocorrelations(plt: Any, held: dict[str, dict]) -> Any:
    """How slowly each sampler forgets each parameter."""
    figure, panels = plt.subplots(1, len(NAMES), figsize=(8.6, 2.8), sharey=True, layout="constrained")
    for i, (axis, name) in enumerate(zip(panels, ("β", "σ", "φ"), strict=True)):
        for key in (key for key in SAMPLERS if key in held):
            axis.plot(held[key]["autocorrelation"][i], color=COLOURS[key], label=SAMPLERS[key].label)
        axis.axhline(0.0, color="0.7", linewidth=0.7)
        axis.set(title=name, xlabel="lag in draws", ylim=(-0.2, 1.02))
    panels[0].set_ylabel("autocorrelation")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _volatilities(plt: Any, held: dict[str, dict]) -> Any:
    """The log volatilities with their 90 % intervals, and the returns."""
    name = "flat" if "flat" in held else next(iter(held))
    x, data = held[name]["x"], observations()
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(8.4, 4.0), sharex=True, layout="constrained", height_ratios=(1.6, 1)
    )
    times = np.arange(len(data["y"]))
    top.fill_between(times, x["low"], x["high"], color=BLUE, alpha=0.2, linewidth=0.0, label="90 % interval")
    top.plot(times, x["mean"], color=BLUE, linewidth=1.1, label=f"mean, {SAMPLERS[name].label}")
    top.plot(times, data["x"], color=BLACK, linewidth=0.8, label="truth")
    top.set_ylabel("log volatility x")
    top.legend(loc="upper center", ncols=3)
    top.margins(y=0.25)
    bottom.plot(times, data["y"], color="0.4", linewidth=0.6)
    bottom.set(ylabel="return y", xlabel="time")
    return figure


FIGURES: Figures = {
    "1_traces": ("chains", _traces),
    "2_autocorrelation": ("chains", _autocorrelations),
    "3_volatilities": ("chains", _volatilities),
}
PAPER = Paper(
    "Girolami (2010), slides 17-20 and 52-55: stochastic volatility",
    _runs, measure, _report, partial(save_figures, "volatility", FIGURES),
)  # fmt: skip
