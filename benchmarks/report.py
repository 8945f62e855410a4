"""Tables of what was measured, in Markdown: medians over seeds, with the spread, and ratios side by side."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from benchmarks.bars import BARS, verdict
from benchmarks.harness import TABLE, load

# The flat metric is held against the best of these; the position-dependent one against its peers.
PEERS = ("nutpie", "nutpie centred", "laplace NUTS", "MCLMC", "elliptical slice", "mgrad")
CHALLENGES = {"flat": PEERS, "hessian": ("BlackJAX", "mici")}
COLUMNS = ("ess_per_second", "ess_per_second_sampling", "ess", "rhat", "tuning", "sampling")

type Runs = dict[tuple[str, str], list[dict]]


def print_report() -> None:
    """Print all tables, and what took how long."""
    records = load()
    runs: Runs = defaultdict(list)
    for record in records:
        if "error" not in record:
            runs[record["problem"], record["sampler"]].append(record)
        else:
            where = f"{record['problem']} / {record['sampler']} / seed {record['seed']}"
            print(f"not counted: {where}: {record['error']}")
    _print_runs(runs)
    _print_ratios(runs)
    _print_commits(runs)
    hours = sum(record["wall"] for record in records) / 3600.0
    print(f"\nAll {len(records)} runs together took {hours:.2f} h.")


def _print_runs(runs: Runs) -> None:
    headings = (
        "problem", "sampler", "ESS/s", "ESS/s, sampling only", "ESS", "R-hat", "tuning s", "sampling s", "divergences",
        "seeds",
    )  # fmt: skip
    print("\n| " + " | ".join(headings) + " |\n| --- | --- |" + " --- |" * 8)
    for problem, samplers in TABLE.items():
        for sampler in samplers:
            held = runs.get((problem, sampler))
            if held:
                print(f"| {problem} | {sampler} | " + " | ".join(_cells(held)) + " |")


def _cells(held: list[dict]) -> list[str]:
    cells = [_spread([r[column] for r in held if r[column] is not None]) for column in COLUMNS]
    if any(record.get("stopped") for record in held):
        cells[:2] = [f"≤ {cell}" for cell in cells[:2]]
    diverged = [r["extra"]["divergences"] for r in held if "divergences" in r["extra"]]
    return [*cells, _spread([100 * share for share in diverged]) + " %" if diverged else "", str(len(held))]


def _print_commits(runs: Runs) -> None:
    """Where ours were measured at several commits: such a row is of no one version."""
    for (problem, sampler), held in runs.items():
        commits = sorted({record.get("commit", "") or "unknown" for record in held})
        if sampler in CHALLENGES and len(commits) > 1:
            print(f"\n{problem} / {sampler} was measured at several commits: {', '.join(commits)}.")


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    median = f"{np.median(values):.3g}"
    return median if len(values) == 1 else f"{median} ({min(values):.3g}-{max(values):.3g})"


def _print_ratios(runs: Runs) -> None:
    """Each of ours against the best of its peers, by the median over seeds; bounds of stopped peers included."""
    print(
        "\n| problem | ours | best peer | ratio, tuning included | 90 % interval | lower end | asked | verdict |"
        " ratio, sampling only |\n| --- | --- | --- |" + " --- |" * 6
    )
    for problem in TABLE:
        for ours, peers in CHALLENGES.items():
            held = {p: runs[problem, p] for p in peers if runs.get((problem, p))}
            if held and runs.get((problem, ours)):
                best = max(held, key=lambda p: np.median([r["ess_per_second"] for r in held[p]]))
                _print_ratio(problem, ours, best, runs)


def _print_ratio(problem: str, ours: str, best: str, runs: Runs) -> None:
    whole, alone = (verdict(runs[problem, ours], runs[problem, best], c) for c in COLUMNS[:2])
    if whole is None or alone is None:
        return
    asked = BARS[problem] if ours == "flat" else None
    said = "; ".join(whole.missing) if asked is None else whole.words(asked)
    span, end = ("", "") if np.isnan(whole.lower) else (f"{whole.lower:.3g}-{whole.upper:.3g}", f"{whole.lower:.3g}")
    print(
        f"| {problem} | {ours} | {best} | {whole.median:.3g} | {span} | {end} |"
        f" {'' if asked is None else f'{asked:g}'} | {said} | {alone.median:.3g} |"
    )
