"""The grid as heat maps, and the error of estimates against time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.evidence.problems import PROBLEMS
from benchmarks.papers.looks import BLUE, GREEN, ORANGE, save_figures

__all__ = ["FIGURES", "draw_figures"]

COLOURS = {"ours": BLUE, "pymc": ORANGE, "blackjax": GREEN}
NAMES = {"ours": "log_evidence", "pymc": "pm.sample_smc", "blackjax": "BlackJAX, tempered SMC"}
# Each map: its title, and what it shows of a cell.
MAPS: tuple[tuple[str, Callable[[dict], float], str], ...] = (
    ("Bridge: log p(y)", lambda c: c["bridge"]["value"], ".0f"),
    ("Its standard error", lambda c: c["bridge"]["standard error"], ".3f"),
    ("Laplace, too low by", lambda c: c["bridge"]["value"] - c["laplace"]["value"], ".1f"),
    ("EP, too low by", lambda c: c["bridge"]["value"] - c["ep"]["value"], ".2f"),
    ("EP, second order, too low by", lambda c: c["bridge"]["value"] - c["corrected"]["value"], ".2f"),
    ("Laplace: bits", lambda c: c["laplace"]["bits"], ".2f"),
    ("EP: bits", lambda c: c["ep"]["bits"], ".2f"),
    ("EP: test error, %", lambda c: c["ep"]["test error"], ".1f"),
)  # fmt: skip


def _grid(plt: Any, held: dict[str, dict]) -> Any:
    """Over log ℓ and log σ."""
    cells = [cell for record in held.values() for cell in record["cells"]]
    across, up = (sorted({cell[name] for cell in cells}) for name in ("log lengthscale", "log amplitude"))
    figure, panels = plt.subplots(2, 4, figsize=(11.0, 5.4), sharex=True, sharey=True, layout="constrained")
    for axis, (title, what, form) in zip(panels.ravel(), MAPS, strict=True):
        values = np.full((len(up), len(across)), np.nan)
        for cell in cells:
            values[up.index(cell["log amplitude"]), across.index(cell["log lengthscale"])] = what(cell)
        shown = axis.imshow(values, origin="lower", cmap="viridis", aspect="auto")
        middle = 0.5 * (np.nanmin(values) + np.nanmax(values))
        for (i, j), value in np.ndenumerate(values):
            if np.isfinite(value):
                colour = "white" if value < middle else "black"
                axis.text(j, i, format(value, form), ha="center", va="center", fontsize=7, color=colour)
        figure.colorbar(shown, ax=axis, shrink=0.9)
        axis.set(title=title, xticks=range(len(across)), yticks=range(len(up)))
        axis.set_xticklabels([f"{v:g}" for v in across])
        axis.set_yticklabels([f"{v:g}" for v in up])
    for axis in panels[-1]:
        axis.set_xlabel("log ℓ")
    for axis in panels[:, 0]:
        axis.set_ylabel("log σ")
    return figure


def _paths(plt: Any, held: dict[str, dict]) -> Any:
    """Distance from the exact value; ours also with its own standard error."""
    problems = sorted({record["problem"] for record in held.values()})
    figure, panels = plt.subplots(
        1, len(problems), figsize=(4.4 * len(problems), 3.4), squeeze=False, layout="constrained"
    )
    for axis, problem in zip(panels[0], problems, strict=True):
        truth, _ = PROBLEMS[problem].truth()
        shown = set()
        for record in (r for r in held.values() if r["problem"] == problem):
            who = "ours" if record["kind"] == "path" else record["method"]
            label = NAMES[who] if who not in shown else None
            shown.add(who)
            if who == "ours":
                seconds, values, errors = np.array(record["history"]).T
                spent = record["tuning"] + seconds
                axis.plot(spent, np.abs(values - truth), "o-", color=BLUE, markersize=3, label=label)
                axis.plot(spent, errors, ":", color=BLUE, linewidth=1)
            else:
                axis.plot(record["estimating"], abs(record["value"] - truth), "s", color=COLOURS[who], label=label)
        axis.set(title=PROBLEMS[problem].label, xscale="log", yscale="log", xlabel="seconds, tuning included")
        # Over a single decade the labels of a logarithmic axis run into one another.
        axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.legend(fontsize=7)
    panels[0, 0].set_ylabel("error of log p(y); dotted: its standard error")
    return figure


FIGURES = {"grid": ("grid", _grid), "peers": ("peers", _paths)}


def draw_figures(records: Sequence[dict], folder: Path, suffix: str) -> list[Path]:
    """Draw each figure whose records exist; return where they are."""
    named = []
    for record in records:
        experiment = {"grid": "grid", "path": "peers", "peer": "peers"}.get(record["kind"])
        if experiment is not None and "error" not in record:
            sampler = f"{record['problem']} {record['method']} {record['target']:g} {record['seed']}"
            named.append(record | {"experiment": experiment, "sampler": sampler})
    return save_figures("evidence", FIGURES, named, folder, suffix)
