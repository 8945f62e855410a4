"""How the papers' figures look, and how they are saved."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

__all__ = ["BLACK", "BLUE", "GREEN", "ORANGE", "PURPLE", "SKY", "STYLE", "YELLOW", "Figures", "save_figures"]

# Okabe and Ito's colours, which differ under every kind of colour blindness.
BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
STYLE = {
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "font.size": 9,
    "axes.titlesize": 10, "savefig.dpi": 130,
}  # fmt: skip

# File name, experiment, and a function of pyplot and the experiment's records by sampler.
type Figures = Mapping[str, tuple[str, Callable[[Any, dict[str, dict]], Any]]]


def save_figures(paper: str, figures: Figures, records: list[dict], folder: Path, suffix: str) -> list[Path]:
    """Draw each figure whose experiment has records, of the first seed; return where they are."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    held: dict[str, dict[str, dict]] = {}
    for record in sorted(records, key=lambda r: -r["seed"]):
        if "error" not in record:
            held.setdefault(record["experiment"], {})[record["sampler"]] = record
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context(STYLE | {"svg.hashsalt": paper}):
        for name, (experiment, draw) in figures.items():
            if experiment not in held:
                continue
            figure = draw(plt, held[experiment])
            paths.append(folder / f"{paper}_{name}.{suffix}")
            figure.savefig(paths[-1], metadata={"Date": None} if suffix == "svg" else None)
            plt.close(figure)
            if suffix == "svg":
                paths[-1].write_text(_shortened(paths[-1].read_text()))
    return paths


def _shortened(svg: str) -> str:
    """Paths with two decimals, and no spaces at the ends of lines."""
    rounded = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)
    return re.sub(r"[ \t]+\n", "\n", rounded)
