"""The slides' pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator

from benchmarks.papers.lalchand.dynamics import SETTINGS, START, warped_log_density
from benchmarks.papers.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, YELLOW, Figures

__all__ = ["FIGURES"]

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, YELLOW)
FITS = {"squared exponential": ORANGE, "trend and season": BLUE}


def _prior(plt: Any, held: dict[str, dict]) -> Any:
    """Functions drawn from the squared-exponential prior."""
    record = held["all"]
    figure, panels = plt.subplots(1, 3, figsize=(8.4, 2.6), sharey=True, layout="constrained")
    for axis, (lengthscale, functions) in zip(panels, record["functions"].items(), strict=True):
        for values, colour in zip(functions, COLOURS, strict=False):
            axis.plot(record["x"], values, color=colour, linewidth=1.0)
        axis.set(title=f"lengthscale {lengthscale}", xlabel="x")
    panels[0].set_ylabel("f(x)")
    return figure


def _band(axis: Any, x: Any, mean: Any, sd: Any, colour: str, label: str | None = None) -> None:
    mean, sd = np.array(mean), np.array(sd)
    axis.fill_between(x, mean - 2.0 * sd, mean + 2.0 * sd, color=colour, alpha=0.18, linewidth=0.0)
    axis.plot(x, mean, color=colour, linewidth=1.2, label=label)


def _lengthscales(plt: Any, held: dict[str, dict]) -> Any:
    """Three fits, and the marginal likelihood of every lengthscale."""
    record = held["all"]
    figure, panels = plt.subplots(2, 2, figsize=(8.4, 5.0), layout="constrained")
    curve = panels[0, 0]
    curve.plot(record["grid"], record["curve"], color=BLACK, linewidth=1.2)
    for axis, (label, each), colour in zip(panels.flat[1:], record["fits"].items(), (ORANGE, BLUE, GREEN), strict=True):
        curve.plot(each["lengthscale"], each["log_marginal"], "o", color=colour, label=label)
        _band(axis, record["new"], each["mean"], each["sd"], colour)
        axis.plot(record["x"], record["y"], ".", color=BLACK, markersize=5)
        axis.set(title=f"{label}: lengthscale {each['lengthscale']:.2g}", xlabel="x", ylim=(-2.6, 2.6))
    curve.set(xscale="log", xlabel="lengthscale", title="log marginal likelihood")
    curve.legend(loc="lower center")
    return figure


def _composite(plt: Any, held: dict[str, dict]) -> Any:
    """Predictions of a made series by one kernel and by the sum of two."""
    record = held["all"]
    figure, panels = plt.subplots(2, 1, figsize=(8.4, 4.6), sharex=True, sharey=True, layout="constrained")
    for axis, (name, colour) in zip(panels, FITS.items(), strict=True):
        each = record["fits"][name]
        axis.plot(record["x"], record["y"], ".", color="0.35", markersize=3, label="learned from")
        axis.plot(record["new"], record["held"], ".", color=BLACK, markersize=5, label="held out")
        _band(axis, record["new"], each["mean"], each["sd"], colour, "prediction, ± 2 sd")
        axis.set(title=f"{name}: log density of a held-out month {each['density']:.2f}", ylabel="series")
    panels[0].legend(loc="upper left", ncols=3)
    panels[1].set_xlabel("years")
    return figure


def _additive(plt: Any, held: dict[str, dict]) -> Any:
    """The surface, and its posterior mean under both kernels."""
    record = held["all"]
    side, x = np.array(record["side"]), np.array(record["x"])
    surfaces = {"truth, and where the data are": record["truth"]} | {
        f"{name}: RMSE {each['rmse']:.2f}": each["mean"] for name, each in record["fits"].items()
    }
    levels = np.linspace(-2.0, 2.0, 17)
    figure, panels = plt.subplots(1, 3, figsize=(8.6, 3.0), sharey=True, layout="constrained")
    for axis, (title, values) in zip(panels, surfaces.items(), strict=True):
        shape = (len(side), len(side))
        filled = axis.contourf(side, side, np.reshape(values, shape), levels=levels, cmap="viridis", extend="both")
        axis.set(title=title, xlabel="$x_1$", aspect="equal")
    panels[0].plot(*x.T, ".", color="white", markersize=4, markeredgecolor=BLACK, markeredgewidth=0.4)
    panels[0].set_ylabel("$x_2$")
    figure.colorbar(filled, ax=panels, shrink=0.8, ticks=[-2, -1, 0, 1, 2])
    return figure


def _leapfrog(plt: Any, held: dict[str, dict]) -> Any:
    """Twenty leapfrog steps of several sizes in the plane of q and p."""
    paths = held["all"]["paths"]
    figure, panels = plt.subplots(1, len(paths), figsize=(9.2, 2.5), layout="constrained")
    angle, radius = np.linspace(0.0, 2.0 * np.pi, 200), np.hypot(*next(iter(paths.values()))[0])
    for axis, (size, path) in zip(panels, paths.items(), strict=True):
        axis.plot(radius * np.cos(angle), radius * np.sin(angle), color="0.7", linewidth=0.9)
        axis.plot(*np.array(path).T, ".-", color=BLUE, markersize=4, linewidth=0.7)
        axis.plot(*path[0], "x", color=BLACK, markersize=7, markeredgewidth=1.6)
        axis.set(title=f"ε = {size}", xlabel="q")
        axis.set_box_aspect(1.0)
        if np.abs(path).max() < 5.0:
            axis.set(xlim=(-2.2, 2.2), ylim=(-2.2, 2.2))
    panels[0].set_ylabel("p")
    return figure


def _warped(plt: Any, held: dict[str, dict]) -> Any:
    """A hundred draws and one trajectory of each setting."""
    figure, panels = plt.subplots(2, 4, figsize=(9.2, 5.0), sharex=True, sharey=True, layout="constrained")
    first, second = np.meshgrid(np.linspace(-3.5, 2.0, 150), np.linspace(-2.3, 2.3, 150))
    density = warped_log_density(first, second)
    levels = density.max() - np.array([8.0, 3.0, 1.0])
    shown = [name for name in SETTINGS if name in held]
    for axis, name in zip(panels.flat, shown, strict=False):
        record, colour = held[name], BLUE if SETTINGS[name].riemannian else ORANGE
        axis.contour(first, second, density, levels=levels, colors="0.75", linewidths=0.7, linestyles="-")
        axis.plot(*np.array(record["kept"]).T, "o", color=colour, markersize=2.5)
        axis.plot(*np.array(record["path"]).T, "-", color=BLACK, linewidth=0.8)
        axis.plot(*START, "x", color=BLACK, markersize=7, markeredgewidth=1.6)
        axis.set(xlim=(-3.5, 2.0), ylim=(-2.3, 2.3))
        axis.set_title(f"{SETTINGS[name].label}\naccepted {record['acceptance']:.2f}", fontsize=9)
    for axis in panels.flat[len(shown) :]:
        axis.set_axis_off()
    for axis in panels[-1]:
        axis.set_xlabel("$\\theta_1$")
    for axis in panels[:, 0]:
        axis.set_ylabel("$\\theta_2$")
    return figure


def _prediction(plt: Any, held: dict[str, dict]) -> Any:
    """One data set: both predictions, and the draws of two hyperparameters with the best marginal likelihood."""
    shown = held["all"]["shown"]
    order = np.argsort(shown["new"])
    new = np.array(shown["new"])[order]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), layout="constrained", width_ratios=(1.5, 1))
    for name, label, colour in (("plug-in", "ML-II", ORANGE), ("full", "average over draws", BLUE)):
        mean, sd = (np.array(values)[order] for values in shown[name])
        _band(left, new, mean, sd, colour, f"{label}, ± 2 sd")
    left.plot(shown["new"], shown["held"], ".", color="0.55", markersize=3, label="held out")
    left.plot(shown["x"], shown["y"], "o", color=BLACK, markersize=5, label="learned from")
    left.set(xlabel="x", ylabel="y")
    draws = np.array(shown["draws"])
    right.plot(draws[:, 0], draws[:, 2], ".", color=BLUE, markersize=3, label="draws of RMHMC()")
    right.plot(shown["best"][0], shown["best"][2], "X", color=ORANGE, markersize=9, label="ML-II")
    right.set(xscale="log", yscale="log", xlabel="lengthscale", ylabel="noise, sd")
    for each in (right.xaxis, right.yaxis):
        each.set_minor_formatter("")
        each.set_major_locator(FixedLocator((0.1, 0.2, 0.5, 1.0, 2.0)))
        each.set_major_formatter("{x:g}")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


FIGURES: Figures = {
    "1_prior": ("prior", _prior),
    "2_lengthscales": ("lengthscales", _lengthscales),
    "3_composite": ("composite", _composite),
    "4_additive": ("additive", _additive),
    "5_leapfrog": ("leapfrog", _leapfrog),
    "6_warped": ("warped", _warped),
    "7_prediction": ("prediction 8", _prediction),
}
