"""Trajectories, energies and chains, as on the slides."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.papers.bivariate.target import SAMPLERS, sigma
from benchmarks.papers.looks import BLUE, GREEN, ORANGE, SKY, YELLOW, Figures

__all__ = ["FIGURES"]

COLOURS = {"hmc": ORANGE, "gibbs": YELLOW, "rmhmc": BLUE, "rmhmc drawn": GREEN, "rmhmc quarter": SKY}


def _contours(axis: Any, rho: float) -> None:
    """One and two standard deviations of the density."""
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    circle = np.linalg.cholesky(sigma(rho)) @ np.array([np.cos(angle), np.sin(angle)])
    for radius in (1.0, 2.0):
        axis.plot(*(radius * circle), color="0.8", linewidth=0.8, zorder=0)


def _row(panels: Any, paths: list[dict], rho: float, colours: list[str], label: str) -> None:
    """Position, momentum and energy of trajectories that follow one another."""
    _contours(panels[0], rho)
    first = 0
    for path, colour in zip(paths, colours, strict=True):
        for axis, key in zip(panels, ("q", "p"), strict=False):
            values = np.array(path[key])
            axis.plot(*values.T, "o-", color=colour, markersize=3, linewidth=0.9)
            axis.plot(*values[0], "x", color="black", markersize=7, markeredgewidth=1.6, zorder=5)
        panels[2].plot(first + np.arange(len(path["H"])), path["H"], "o-", color=colour, markersize=3, linewidth=0.9)
        first += len(path["H"]) - 1
    panels[0].set(xlabel="$\\theta_1$", ylabel="$\\theta_2$", aspect="equal", title=label)
    panels[1].set(xlabel="$p_1$", ylabel="$p_2$", title="momentum")
    panels[2].set(xlabel="step", title="Hamiltonian")


def _trajectories(plt: Any, held: dict[str, dict], rho: float) -> Any:
    """Slides 16 and 48: a trajectory of each sampler."""
    figure, panels = plt.subplots(2, 3, figsize=(8.4, 5.4), layout="constrained")
    for row, name in zip(panels, ("hmc", "rmhmc"), strict=True):
        _row(row, [held["all"][name]], rho, [COLOURS[name]], SAMPLERS[name].label)
    return figure


def _three(plt: Any, held: dict[str, dict]) -> Any:
    """Slide 49: three trajectories of RMHMC, each with a new momentum."""
    figure, panels = plt.subplots(1, 3, figsize=(8.4, 2.9), layout="constrained")
    _row(panels, held["all"]["three"], 0.98, [BLUE, ORANGE, GREEN], "RMHMC, three momenta")
    return figure


def _chains(plt: Any, held: dict[str, dict]) -> Any:
    """Slides 50 and 51: the first 400 draws, and their autocorrelation over all draws."""
    shown = [name for name in SAMPLERS if name in held]
    figure, panels = plt.subplots(
        len(shown), 3, figsize=(8.4, 1.45 * len(shown)), sharex="col", layout="constrained", width_ratios=(1.3, 1.3, 1),
        squeeze=False,
    )  # fmt: skip
    for row, name in zip(panels, shown, strict=True):
        kept = np.array(held[name]["kept"])
        for i in range(2):
            row[i].plot(kept[:, i], color=COLOURS[name], linewidth=0.6)
            row[i].set(ylim=(-4.0, 4.0))
            row[2].plot(held[name]["autocorrelation"][i], "-:"[i], color=COLOURS[name], linewidth=1.2)
        row[0].set_title(SAMPLERS[name].label, loc="left", fontsize=9)
        row[2].axhline(0.0, color="0.7", linewidth=0.7)
        row[2].set(ylim=(-1.05, 1.05))
    panels[0, 2].set_title("autocorrelation")
    for axis, label in zip(panels[-1], ("draw of $x_1$", "draw of $x_2$", "lag"), strict=True):
        axis.set_xlabel(label)
    return figure


FIGURES: Figures = {
    "1_moderate": ("trajectories 0.6", partial(_trajectories, rho=0.6)),
    "2_strong": ("trajectories 0.98", partial(_trajectories, rho=0.98)),
    "3_three": ("trajectories 0.98", _three),
    "4_chains": ("chains 0.98", _chains),
}
