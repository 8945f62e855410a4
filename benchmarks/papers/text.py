"""Tables in Markdown, and records by sampler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

__all__ = ["by_sampler", "drawn", "markdown", "print_errors", "spread"]


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def spread(values: Sequence[float], form: str = ".2g") -> str:
    """Return the seeds' values: both of two, the median and the range of more; without those that are not known."""
    values = [value for value in values if not np.isnan(value)]
    if not values:
        return ""
    shown = [format(value, form) for value in values]
    if len(set(shown)) == 1:
        return shown[0]
    if len(shown) <= 2:
        return ", ".join(shown)
    return f"{np.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


def drawn(runs: Sequence[dict]) -> str:
    """Return how many draws both chains of each run made, and whether any was stopped."""
    stopped = " (stopped)" if any(run["stopped"] for run in runs) else ""
    return spread([2 * run["draws"] for run in runs], "d") + stopped


def by_sampler(records: Iterable[dict], experiment: str) -> dict[str, list[dict]]:
    """Return the records of an experiment without those that failed, by sampler."""
    found: dict[str, list[dict]] = {}
    for record in records:
        if record["experiment"] == experiment and "error" not in record:
            found.setdefault(record["sampler"], []).append(record)
    return found


def print_errors(records: Iterable[dict]) -> None:
    """Print which runs failed, and why."""
    for record in records:
        if "error" in record:
            print(f"failed: {record['experiment']} / {record['sampler']} / seed {record['seed']}: {record['error']}")
