"""The runs, the table and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.evidence.problems import PROBLEMS
from benchmarks.papers.looks import BLACK, BLUE, GREEN, ORANGE, Figures, save_figures
from benchmarks.papers.paper import Paper, Run
from benchmarks.papers.paquet.annealing import OURS, PANELS, measure_annealing
from benchmarks.papers.paquet.mixture import SCHEMES, START, log_density, measure_chains, measure_trajectories
from benchmarks.papers.text import by_sampler, markdown, print_errors, spread

__all__ = ["FIGURES", "PAPER", "annealing_rows", "rows"]

HEADINGS = (
    "scheme", "ε, L", "accepted", "failed %", "distance of neighbouring draws", "ESS per 100 draws", "R-hat",
    "seconds", "shares of the components",
)  # fmt: skip
ANNEALING_HEADINGS = (
    "panel", "method", "B", "replicates", "log p(y)", "off by", "s per replicate", "accepted", "EP", "EP, second order",
)  # fmt: skip
# Estimates outside are drawn at the edge, with their value.
BOUNDS = (-109.5, -102.5)
# What a replicate of the longest ladder may take on a busy machine.
LIMIT = 1500.0


def _runs(full: bool) -> Sequence[Run]:
    draws, seeds = (10_000, 4) if full else (1000, 2)
    made = [Run("trajectories", name, 0, 3, 80.0) for name in SCHEMES]
    made += [Run("chains", name, seed, draws, 80.0) for seed in range(seeds) for name in SCHEMES]
    replicates = 10 if full else 1
    made += [Run("annealing", name, 0, 1, 60.0) for name in OURS]
    return made + [Run("annealing", name, 0, replicates, LIMIT * replicates) for name in PANELS]


def _measure(run: Run) -> dict:
    return MEASURES[run.experiment](run)


def rows(records: list[dict]) -> list[list[str]]:
    """Return a row for each scheme."""
    held, made = by_sampler(records, "chains"), []
    for name in (name for name in SCHEMES if name in held):
        runs, scheme = held[name], SCHEMES[name]
        made.append([
            scheme.label, f"{scheme.step_size:g}, {scheme.n_steps}", spread([r["acceptance"] for r in runs], ".2f"),
            spread([100.0 * r["failed"] for r in runs]), spread([r["moved"] for r in runs]),
            spread([100.0 * r["ess"] / r["draws"] for r in runs]), spread([r["rhat"] for r in runs], ".2f"),
            spread([r["seconds"] for r in runs]),
            "; ".join(" ".join(f"{share:.2f}" for share in r["shares"]) for r in runs),
        ])  # fmt: skip
    return made


def annealing_rows(records: list[dict]) -> list[list[str]]:
    """Return a row for each panel of figure 2, and for ours."""
    held, made = by_sampler(records, "annealing"), []
    truth, _ = PROBLEMS["usps"].truth()
    for name, (label, _) in OURS.items():
        for record in held.get(name, ()):
            value = f"{record['values'][0]:.3f} ± {record['standard error']:.3f}"
            off = "" if np.isnan(truth) else f"{record['values'][0] - truth:+.3f}"
            made.append(["", label, "", "", value, off, f"{record['seconds'][0]:.3g}", "", "", ""])
    return made + [_panel_row(name, record, truth) for name in PANELS for record in held.get(name, ())]


def _panel_row(name: str, record: dict, truth: float) -> list[str]:
    panel = PANELS[name]
    return [
        name, panel.label, str(panel.n_rungs), str(record["draws"]), spread(record["values"], ".2f"),
        spread([value - truth for value in record["values"]], "+.2f"), spread(record["seconds"], ".3g"),
        spread(record["acceptance"], ".2f"), f"{record['ep']:.3f}", f"{record['second order']:.3f}",
    ]  # fmt: skip


def _report(records: list[dict]) -> None:
    print(markdown(HEADINGS, rows(records)))
    print("\n" + markdown(ANNEALING_HEADINGS, annealing_rows(records)))
    print_errors(records)


def _contours(axis: Any) -> None:
    x, y = np.meshgrid(np.linspace(-5.0, 5.0, 160), np.linspace(-5.0, 5.0, 160))
    density = log_density(np.stack([x, y], axis=-1))
    axis.contour(x, y, density, levels=density.max() - np.array([6.0, 3.0, 1.5, 0.5]), colors="0.75", linewidths=0.7,
                 linestyles="-")  # fmt: skip
    axis.set(xlim=(-5.0, 5.0), ylim=(-5.0, 5.0), aspect="equal", xlabel="$x_1$")


def _panels(plt: Any, held: dict[str, dict], what: Any) -> Any:
    figure, panels = plt.subplots(1, len(SCHEMES), figsize=(8.6, 3.2), sharey=True, layout="constrained")
    for axis, (name, scheme) in zip(panels, SCHEMES.items(), strict=True):
        _contours(axis)
        axis.set_title(scheme.label, fontsize=9)
        if name in held:
            what(axis, held[name])
    panels[0].set_ylabel("$x_2$")
    return figure


def _trajectories(plt: Any, held: dict[str, dict]) -> Any:
    """Figure 1: three trajectories of each scheme from the black cross; a circle is where one ends."""

    def draw(axis: Any, record: dict) -> None:
        for path, colour in zip(record["paths"], (ORANGE, BLUE, GREEN), strict=True):
            q = np.array(path["q"])
            axis.plot(*q.T, ".-", color=colour, markersize=3, linewidth=0.9)
            axis.plot(*q[-1], "o", color=colour, markersize=6, markerfacecolor="white", markeredgewidth=1.4)
        axis.plot(*START, "x", color="black", markersize=8, markeredgewidth=2, zorder=5)

    return _panels(plt, held, draw)


def _draws(plt: Any, held: dict[str, dict]) -> Any:
    """The first 500 draws of a chain."""
    return _panels(plt, held, lambda axis, r: axis.plot(*np.array(r["kept"]).T, ".", color=BLUE, markersize=2.5))


def _annealing(plt: Any, held: dict[str, dict]) -> Any:
    """Figure 2: estimates of the evidence against time, one for each replicate; ours as they grow."""
    names = [name for name in (*PANELS, *OURS) if name in held]
    lines = next((record for record in held.values() if "ep" in record), None)
    figure, panels = plt.subplots(
        1,
        len(names),
        figsize=(1.1 * len(names) + 0.6, 3.0),
        sharex=True,
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for axis, name in zip(panels[0], names, strict=True):
        record = held[name]
        if lines is not None:
            axis.axhline(lines["ep"], color=BLACK, linestyle=":", linewidth=1, label="EP")
            axis.axhline(lines["second order"], color=BLACK, linewidth=1, label="EP, second order")
        if name in OURS:
            seconds, values, errors = np.array(record["history"]).T
            axis.errorbar(seconds, values, errors, fmt=".", color=BLUE, markersize=4, linewidth=0.8)
            axis.set_title("ours:\n" + name, fontsize=8)
        else:
            _replicates(axis, record)
            panel = PANELS[name]
            axis.set_title(f"({name}) {panel.label}\nB = {panel.n_rungs}", fontsize=7)
        axis.set(xlabel="seconds", xscale="log", xlim=(1.0, 1000.0), ylim=BOUNDS)
    panels[0, 0].set_ylabel("log p(y)")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2, fontsize=8)
    return figure


def _replicates(axis: Any, record: dict) -> None:
    """Estimates, at the edge if they are outside, against the seconds up to each."""
    seconds, values = np.cumsum(record["seconds"]), np.array(record["values"])
    axis.plot(seconds, np.clip(values, *BOUNDS), "o", color=ORANGE, markersize=4, clip_on=False)
    for second, value in zip(seconds, values, strict=True):
        if not BOUNDS[0] <= value <= BOUNDS[1]:
            axis.annotate(f"{value:.1f}", (second, np.clip(value, *BOUNDS)), xytext=(0, 6), textcoords="offset points",
                          fontsize=7, ha="center")  # fmt: skip


FIGURES: Figures = {
    "1_trajectories": ("trajectories", _trajectories), "2_draws": ("chains", _draws),
    "3_annealing": ("annealing", _annealing),
}  # fmt: skip
MEASURES = {"trajectories": measure_trajectories, "chains": measure_chains, "annealing": measure_annealing}
PAPER = Paper(
    "Paquet and Fraccaro (2016): trajectories through a mixture of three normal densities, and a classifier's evidence",
    _runs, _measure, _report, partial(save_figures, "paquet", FIGURES),
)  # fmt: skip
