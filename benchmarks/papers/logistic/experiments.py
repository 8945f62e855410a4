"""The runs, the table and the figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.papers.logistic.samplers import DATA_SETS, REFERENCE, SAMPLERS, measure
from benchmarks.papers.looks import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, YELLOW, save_figures
from benchmarks.papers.paper import Paper, Run
from benchmarks.papers.text import by_sampler, markdown, print_errors, spread

__all__ = ["PAPER", "largest_z", "rows"]

HEADINGS = (
    "sampler", "draws per chain", "accepted", "ESS: min", "median", "max", "seconds", "of which tuning",
    "s per min ESS", "R-hat", "largest z",
)  # fmt: skip
REFERENCE_SEED, MAX_Z = 1000, 4.0
COLOURS = (YELLOW, "0.6", "0.4", PURPLE, ORANGE, BLUE, SKY, GREEN, BLACK)


def _runs(full: bool) -> Sequence[Run]:
    draws, seeds, limit = (5000, 5, 600.0) if full else (1000, 2, 30.0)
    made = [Run(name, REFERENCE, REFERENCE_SEED, 20_000, 120.0) for name in DATA_SETS]
    return made + [
        Run(name, key, seed, draws * sampler.times, limit)
        for seed in range(seeds)
        for name in DATA_SETS
        for key, sampler in SAMPLERS.items()
    ]


def largest_z(record: dict, reference: dict) -> float:
    """Return how many errors the means are from those of the long run, at most."""
    apart = np.abs(np.subtract(record["mean"], reference["mean"]))
    return float(np.max(apart / np.hypot(record["mcse"], reference["mcse"])))


def rows(records: list[dict], name: str) -> list[list[str]]:
    """Return a row of a data set's table for each sampler."""
    held, made = by_sampler(records, name), []
    for key in (key for key in SAMPLERS if key in held):
        runs = held[key]
        z = [largest_z(run, held[REFERENCE][0]) for run in runs] if REFERENCE in held else []
        made.append([
            SAMPLERS[key].label, spread([r["draws"] for r in runs], "d"),
            spread([r["acceptance"] for r in runs], ".2f"),
            *(spread([f(r["ess"]) for r in runs], ".0f") for f in (min, np.median, max)),
            spread([r["tuning"] + r["sampling"] for r in runs]), spread([r["tuning"] for r in runs]),
            spread([_cost(r) for r in runs]), spread([r["rhat"] for r in runs], ".2f"),
            spread(z, ".1f") + (" !" if z and max(z) > MAX_Z else ""),
        ])  # fmt: skip
    return made


def _cost(record: dict) -> float:
    """Seconds of tuning and sampling for an effective draw of the worst coefficient."""
    return (record["tuning"] + record["sampling"]) / min(record["ess"])


def _report(records: list[dict]) -> None:
    for name in DATA_SETS:
        size = len(next((r["mean"] for r in records if r["experiment"] == name and "mean" in r), []))
        print(f"{name}, {size} coefficients\n\n" + markdown(HEADINGS, rows(records, name)) + "\n")
    print_errors(records)


def _draw(records: list[dict], folder: Any, suffix: str) -> list[Any]:
    """A single figure of all data sets."""
    joined = [record | {"experiment": "all", "sampler": f"{record['experiment']}/{record['sampler']}"}
              for record in records]  # fmt: skip
    return save_figures("logistic", {"1_costs": ("all", _costs)}, joined, folder, suffix)


def _costs(plt: Any, held: dict[str, dict]) -> Any:
    """Seconds for an effective draw of the worst coefficient, of the first seed."""
    figure, axis = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
    colours = dict(zip(("metropolis", "mala", "mmala", "simplified", "hmc", "fisher", "flat", "nutpie"), COLOURS,
                       strict=False))  # fmt: skip
    for i, (key, sampler) in enumerate(SAMPLERS.items()):
        shown = [(place, held[f"{name}/{key}"]) for place, name in enumerate(DATA_SETS) if f"{name}/{key}" in held]
        places = [place + 0.1 * (i - 0.5 * (len(SAMPLERS) - 1)) for place, _ in shown]
        axis.plot(places, [_cost(record) for _, record in shown], "osD^vP*X"[i % 8], color=colours.get(key, BLACK),
                  markersize=6, label=sampler.label)  # fmt: skip
    for place in range(1, len(DATA_SETS)):
        axis.axvline(place - 0.5, color="0.9", linewidth=0.8)
    axis.set(yscale="log", ylabel="seconds per effective draw")
    axis.set_xticks(range(len(DATA_SETS)), DATA_SETS)
    figure.legend(loc="outside right center")
    return figure


PAPER = Paper(
    "Girolami and Calderhead (2011), section 7: logistic regressions", _runs, measure, _report, _draw
)
