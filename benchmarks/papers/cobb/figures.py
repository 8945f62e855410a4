"""The paper's seven figures, drawn from what was measured, and two more: on the binding ω, and on where steps fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from benchmarks.papers.cobb.funnel import LABELS, SD
from benchmarks.papers.cobb.logistic import PATH_STEP, PRIORS, ROWS, START, TRUTH, data_set
from benchmarks.papers.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW, Figures, save_figures

__all__ = ["FIGURES", "draw_figures"]

LOOKS = {
    "nuts": (YELLOW, "-"), "hmc": (SKY, "-"), "implicit": (BLUE, "-"), "midpoint": (BLUE, ":"),
    "explicit released": (GREEN, "-"), "explicit printed": (PURPLE, "-"), "explicit exact": (ORANGE, "-"),
    "flat": (BLACK, "--"),
}  # fmt: skip
SCHEMES = {"hmc": ("HMC", SKY, "s"), "implicit": ("implicit", BLUE, "o"), "explicit": ("explicit", ORANGE, "^")}
BINDINGS = {
    "printed": ("as printed", PURPLE, "o"), "released": ("as released", GREEN, "s"), "exact": ("exact", ORANGE, "^")
}  # fmt: skip


def draw_figures(records: list[dict], folder: Path, suffix: str) -> list[Path]:
    """Draw each figure whose experiments have records, of the first seed; return where they are."""
    return save_figures("cobb", FIGURES, records, folder, suffix)


def _start(plt: Any, held: dict[str, dict]) -> Any:
    """Figure 1: the way from a distant start to the mode, one panel per scheme."""
    data = data_set(TRUTH, ROWS, seed=0)
    figure, panels = plt.subplots(1, 3, figsize=(8.0, 3.0), sharex=True, sharey=True, layout="constrained")
    first, second = np.meshgrid(np.linspace(-1.5, 4.0, 50), np.linspace(-3.5, 3.6, 50))
    logits = np.stack([first, second], axis=-1) @ data.design.T
    density = logits @ data.labels - np.logaddexp(0.0, logits).sum(axis=-1) - 0.5 * (first**2 + second**2)
    for axis, (scheme, (label, colour, marker)) in zip(panels, SCHEMES.items(), strict=True):
        if scheme not in held:
            continue
        run = held[scheme]
        way = np.array([START, *run["w"]])
        levels = density.max() - np.array([150.0, 80.0, 40.0, 20.0, 10.0, 3.0])
        axis.contour(first, second, density, levels=levels, colors="0.8", linewidths=0.7, linestyles="-")
        axis.plot(*way.T, color=colour, marker=marker, markersize=3.0, linewidth=0.8)
        axis.plot(*TRUTH, "x", color=BLACK, markersize=9, markeredgewidth=2)
        axis.set(title=f"{label}: {run['draws']} draws, {run['seconds']:.2g} s", xlabel="weight")
    panels[0].set_ylabel("bias")
    return figure


def _convergence(plt: Any, held: dict[str, dict]) -> Any:
    """Figure 2: the KL divergence of v as draws are made, and its autocorrelation."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.5), layout="constrained")
    for sampler, (colour, line) in LOOKS.items():
        if sampler in held:
            run = held[sampler]
            counts = np.array(run["counts"])
            left.plot(counts[counts >= 20], np.array(run["running"])[counts >= 20], line, color=colour, lw=1.4)
            right.plot(run["autocorrelation"], line, color=colour, lw=1.4, label=LABELS[sampler])
    left.set(xscale="log", yscale="log", ylim=(1e-5, 30.0), xlabel="draws of two chains", ylabel="KL of v, by moments")
    right.set(xlabel="lag in draws", ylabel="autocorrelation of v", ylim=(-0.25, 1.02))
    figure.legend(loc="outside right center")
    return figure


def _panels(plt: Any, held: dict[str, dict], draw: Callable[[Any, dict, str], None]) -> Any:
    """A panel for every scheme of the funnel."""
    shown = [sampler for sampler in LOOKS if sampler in held]
    figure, panels = plt.subplots(
        2, (len(shown) + 1) // 2, figsize=(8.4, 4.6), sharex=True, sharey=True, layout="constrained", squeeze=False
    )
    for axis in panels.flat[len(shown) :]:
        axis.set_axis_off()
    for axis, sampler in zip(panels.flat, shown, strict=False):
        draw(axis, held[sampler], LOOKS[sampler][0])
        axis.set_title(LABELS[sampler])
    return figure, panels


def _scatter(plt: Any, held: dict[str, dict]) -> Any:
    """Figure 3: a thousand draws of v and one x; the lines hold 98 % of the truth."""
    heights = np.linspace(-9.0, 9.0, 100)
    edge = norm.ppf(0.99) * np.exp(-0.5 * heights)

    def panel(axis: Any, run: dict, colour: str) -> None:
        axis.plot(np.ravel(run["x"]), np.ravel(run["v"]), ".", color=colour, markersize=2.0, rasterized=True)
        for side in (-1.0, 1.0):
            axis.plot(side * edge, heights, color="0.4", linewidth=0.7)
        axis.set(xlim=(-25.0, 25.0), ylim=(-9.5, 9.5))

    figure, panels = _panels(plt, held, panel)
    for axis in panels[:, 0]:
        axis.set_ylabel("v")
    for axis in panels[-1]:
        axis.set_xlabel("first x")
    return figure


def _marginals(plt: Any, held: dict[str, dict]) -> Any:
    """Figure 4: histograms of v with its known density."""
    grid = np.linspace(-10.0, 10.0, 200)

    def panel(axis: Any, run: dict, colour: str) -> None:
        axis.hist(np.ravel(run["v"]), bins=np.arange(-10.0, 10.1, 0.8), density=True, color=colour, alpha=0.6)
        axis.plot(grid, norm.pdf(grid, scale=SD), color=BLACK, linewidth=1.2)
        axis.text(0.98, 0.95, f"KL {run['kl']:.2g}", transform=axis.transAxes, ha="right", va="top")
        axis.set(ylim=(0.0, 0.3))

    figure, panels = _panels(plt, held, panel)
    for axis in panels[-1]:
        axis.set_xlabel("v")
    for axis in panels[:, 0]:
        axis.set_ylabel("density")
    return figure


def _autocorrelation(plt: Any, held: dict[str, dict]) -> Any:
    """Figure 5: a path that is too long gives draws on alternating sides."""
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.0), sharey=True, layout="constrained")
    for axis, path in zip(panels, ("long", "short"), strict=True):
        for scheme, (label, colour, marker) in SCHEMES.items():
            if scheme in held:
                shown = held[scheme][f"weak {path}"]["autocorrelation"][:21]
                axis.plot(shown, color=colour, marker=marker, markersize=3.5, linewidth=1.1, label=label)
        axis.axhline(0.0, color="0.6", linewidth=0.7)
        axis.set(title=f"{path} path", xlabel="lag in draws")
    panels[0].set_ylabel("autocorrelation of the first weight")
    panels[1].legend()
    return figure


def _priors(plt: Any, held: dict[str, dict]) -> Any:
    """Figure 6: five of eleven weights under a weak and a strong prior."""
    figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.2), sharey=True, layout="constrained")
    for axis, (prior, precision) in zip(panels, PRIORS.items(), strict=True):
        for shift, scheme in ((0.14, "hmc"), (-0.14, "explicit")):
            if scheme not in held:
                continue
            (label, colour, marker), found = SCHEMES[scheme], held[scheme][f"{prior} short"]
            places = np.arange(5) + shift
            draws, (low, high) = np.array(found["w"]), np.array(found["quantiles"])[:, :5]
            axis.plot(draws.ravel(), np.tile(places, len(draws)), "|", color=colour, alpha=0.15, rasterized=True)
            axis.hlines(places, low, high, color=colour, linewidth=2.0)
            axis.plot(found["mean"][:5], places, marker, color=colour, label=label)
        axis.plot(held["hmc"]["truth"][:5], np.arange(5), "x", color=BLACK, markersize=8, label="truth")
        axis.set(title=f"{prior} prior, precision {precision:g}", xlabel="weight")
        axis.axvline(0.0, color="0.7", linewidth=0.7)
    panels[0].set_yticks(range(5), [f"w{i + 1}" for i in range(5)])
    panels[1].legend(loc="center right")
    return figure


def _paths(plt: Any, held: dict[str, dict]) -> Any:
    """Figure 7: trajectories from one start and one momentum, and how far they are from the implicit one."""
    run = held["all"]
    paths = {name: np.array(path) for name, path in run["paths"].items()}
    implicit = paths.pop("implicit")
    colours = dict(zip(paths, (SKY, YELLOW, PURPLE, GREEN, BLUE, ORANGE), strict=False))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.6), layout="constrained")
    for name, path in paths.items():
        shared = min(len(path), len(implicit))
        apart = np.linalg.norm(path[:shared] - implicit[:shared], axis=1)
        line = "-." if name == "6" else "-"
        left.plot(*path[:200].T, line, color=colours[name], linewidth=1.1)
        times, shown = PATH_STEP * np.arange(shared), np.where(apart < 1e-3, np.nan, apart)
        right.plot(times, shown, line, color=colours[name], label=f"explicit, ω = {name}")
        if shared < len(implicit):
            right.plot(times[-1], shown[-1], "x", color=colours[name], markersize=8)
    left.plot(*implicit[:200].T, "--", color=BLACK, linewidth=1.2)
    right.plot([], [], "--", color=BLACK, label="implicit")
    shown = implicit[:200]
    reach = np.array([shown.min(axis=0) - 1.0, shown.max(axis=0) + 1.0])
    left.set(xlim=reach[:, 0], ylim=reach[:, 1], xlabel="weight", ylabel="bias", title="the first 200 steps")
    right.set(yscale="log", xlabel="time", ylabel="distance from the implicit trajectory", ylim=(1e-3, 60.0))
    figure.legend(loc="outside right center")
    return figure


def _binding(plt: Any, held: dict[str, dict]) -> Any:
    """What is accepted, and what fails, as the binding turns by a larger angle in each step."""
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 3.0), sharey=True, layout="constrained")
    for axis, key, title in zip(panels, ("acceptance", "failed"), ("accepted", "failed"), strict=True):
        for binding, (label, colour, marker) in BINDINGS.items():
            if binding in held:
                run = held[binding]
                axis.plot(run["angles"], run[key], color=colour, marker=marker, markersize=4, lw=1.1, label=label)
        axis.axvline(1.0, color="0.7", linewidth=0.7)
        axis.set(title=title, xlabel="angle 2ωε in units of π")
    panels[0].set_ylabel("share of trajectories")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")
    return figure


def _reach(plt: Any, held: dict[str, dict]) -> Any:
    """What is accepted of trajectories that start at each v."""
    figure, axis = plt.subplots(figsize=(6.6, 3.0), layout="constrained")
    for scheme, (label, colour, marker) in {"implicit": ("implicit", BLUE, "D"), **BINDINGS}.items():
        if scheme in held:
            name = label if scheme == "implicit" else f"explicit, {label}"
            axis.plot(
                held[scheme]["places"], held[scheme]["acceptance"], color=colour, marker=marker, markersize=4, lw=1.1,
                label=name,
            )  # fmt: skip
    axis.set(xlabel="v at the start", ylabel="accepted", ylim=(-0.03, 1.03))
    axis.set_xticks([-9, -6, -3, 0, 3, 6, 9])
    figure.legend(loc="outside right center")
    return figure


FIGURES: Figures = {
    "1_start": ("start", _start),
    "2_convergence": ("funnel", _convergence),
    "3_funnel": ("funnel", _scatter),
    "4_marginals": ("funnel", _marginals),
    "5_autocorrelation": ("regression", _autocorrelation),
    "6_priors": ("regression", _priors),
    "7_trajectories": ("paths", _paths),
    "8_binding": ("omega", _binding),
    "9_reach": ("reach", _reach),
}
