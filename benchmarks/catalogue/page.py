"""The documentation's one table: seconds to 1000 effective draws, beside nutpie in its better form."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from benchmarks.catalogue.headline import HEADLINE
from benchmarks.catalogue.table import best_peer, comparable, is_weak, runs_by_model, seconds

__all__ = ["write_page"]


def write_page(records: list[dict], path: Path) -> None:
    """Write the table of the models that were measured, and under what conditions."""
    by_model = runs_by_model([record for record in records if record["problem"] in HEADLINE])
    lines = [f"{_conditions(records)}", "", "| model | RMHMC | nutpie | ratio |", "| --- | --- | --- | --- |"]
    lines += [_line(title, comparable(by_model[name])) for name, title in HEADLINE.items() if name in by_model]
    path.write_text("\n".join(lines) + "\n")


def _conditions(records: list[dict]) -> str:
    newest = max(records, key=lambda record: record["finished"])
    versions = ", ".join(f"{name} {newest['versions'][name]}" for name in ("pymc", "nutpie", "numba"))
    oldest = min(record["finished"] for record in records)
    first, last = (datetime.fromtimestamp(at, tz=UTC).date() for at in (oldest, newest["finished"]))
    dates = f"on {last}" if first == last else f"from {first} to {last}"
    n_seeds = 1 + max(record["seed"] for record in records)
    seeds = "one seed" if n_seeds == 1 else f"{n_seeds} seeds"
    return (
        f"Measured {dates}, commit `{newest['commit'].rstrip('+')}`, {newest['machine']}, {versions}, {seeds}. A run "
        f"was stopped after {newest['limit']:.0f} seconds."
    )


def _line(title: str, good: dict[str, list[dict]]) -> str:
    best = best_peer(good)
    ours, theirs = good.get("rmhmc"), good.get(best) if best else None
    cells = [_cell(held) for held in (ours, theirs)]
    return f"| {title} | {cells[0]} | {cells[1]} | {_ratio(ours, theirs)} |"


def _cell(held: list[dict] | None) -> str:
    """Seconds to 1000 effective draws, and whether the chains agree."""
    if not held:
        return "failed"
    bound = "at least " if any(record["stopped"] for record in held) else ""
    middle = f"{bound}{_two_digits(np.median([seconds(record) for record in held]))}"
    return f"stuck, {middle}" if is_weak(held) else middle


def _ratio(ours: list[dict] | None, theirs: list[dict] | None) -> str:
    """How many times as long the peer takes; at least so many where its chains do not agree, or were stopped."""
    if not ours or not theirs:
        return ""
    ratio = np.median([seconds(record) for record in theirs]) / np.median([seconds(record) for record in ours])
    is_bound = is_weak(theirs) or any(record["stopped"] for record in theirs)
    if is_bound and ratio < 1.0:  # which says nothing
        return ""
    return f"{'≥ ' if is_bound else ''}{_two_digits(ratio)}"


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"
