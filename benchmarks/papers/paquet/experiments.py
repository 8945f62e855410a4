"""The runs, the table and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.papers.looks import BLUE, GREEN, ORANGE, Figures, save_figures
from benchmarks.papers.paper import Paper, Run
from benchmarks.papers.paquet.mixture import SCHEMES, START, log_density, measure_chains, measure_trajectories
from benchmarks.papers.text import by_sampler, markdown, print_errors, spread

__all__ = ["FIGURES", "PAPER", "rows"]

HEADINGS = (
    "scheme", "ε, L", "accepted", "failed %", "distance of neighbouring draws", "ESS per 100 draws", "R-hat",
    "seconds", "shares of the components",
)  # fmt: skip


def _runs(full: bool) -> Sequence[Run]:
    draws, seeds = (10_000, 4) if full else (1000, 2)
    made = [Run("trajectories", name, 0, 3, 80.0) for name in SCHEMES]
    return made + [Run("chains", name, seed, draws, 80.0) for seed in range(seeds) for name in SCHEMES]


def _measure(run: Run) -> dict:
    return measure_chains(run) if run.experiment == "chains" else measure_trajectories(run)


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


def _report(records: list[dict]) -> None:
    print(markdown(HEADINGS, rows(records)))
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


FIGURES: Figures = {"1_trajectories": ("trajectories", _trajectories), "2_draws": ("chains", _draws)}
PAPER = Paper(
    "Paquet and Fraccaro (2016), figure 1: a mixture of three normal densities",
    _runs, _measure, _report, partial(save_figures, "paquet", FIGURES),
)  # fmt: skip
