"""The catalogue's figure: how many times as fast as nutpie, model by model, both ways."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

from benchmarks.catalogue.models import CATALOGUE
from benchmarks.catalogue.table import best_peer, comparable, is_weak, runs_by_model, seconds

__all__ = ["draw_figure"]

OURS, THEIRS, MARGIN = "#1f6f8b", "#c1440e", 1.15


def draw_figure(records: list[dict], path: Path) -> None:
    """Draw the ratios of each model's seeds, the slowest at the bottom.

    A point is hollow where nutpie's chains do not agree, in neither form.
    """
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = sorted(_rows(records), key=lambda row: np.median(row[1]))
    figure, axes = plt.subplots(figsize=(8.0, 0.27 * len(rows) + 1.2), layout="constrained")
    for place, (_, ratios, is_sure) in enumerate(rows):
        middle = float(np.median(ratios))
        colour = OURS if middle > 1.0 else THEIRS
        axes.plot([min(ratios), max(ratios)], [place, place], color=colour, linewidth=2.0, alpha=0.4)
        axes.plot(middle, place, "o", color=colour, markerfacecolor=colour if is_sure else "white")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set(xscale="log", ylim=(-0.7, len(rows) - 0.3))
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set_xlabel("effective draws a second, RMHMC over the better form of nutpie")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(axis="x", alpha=0.3)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _rows(records: list[dict]) -> list[tuple[str, list[float], bool]]:
    """Of each model that both have sampled: name, ratios by seed, and whether the peer's chains agree."""
    by_model, rows = runs_by_model(records), []
    for name in (name for name in CATALOGUE if name in by_model):
        good = comparable(by_model[name])
        peer = best_peer(good)
        if "rmhmc" not in good or peer is None or is_weak(good["rmhmc"]):
            continue
        theirs = {record["seed"]: seconds(record) for record in good[peer]}
        ratios = [theirs[r["seed"]] / seconds(r) for r in good["rmhmc"] if r["seed"] in theirs]
        if ratios:
            rows.append((name, ratios, not is_weak(good[peer])))
    return rows
