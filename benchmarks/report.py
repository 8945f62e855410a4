"""Tables of what was measured, in Markdown: medians over seeds, with the spread, and ratios side by side."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from benchmarks.harness import TABLE, load

# The flat metric is held against the best of these; the position-dependent one against its peers.
CHALLENGES = {"flat": ("nutpie", "laplace NUTS"), "hessian": ("BlackJAX", "mici")}


def print_report() -> None:
    """Print both tables."""
    runs = defaultdict(list)
    for record in load():
        if "error" not in record:
            runs[record["problem"], record["sampler"]].append(record)
        else:
            where = f"{record['problem']} / {record['sampler']} / seed {record['seed']}"
            print(f"not counted: {where}: {record['error']}")
    headings = ("problem", "sampler", "ESS/s", "ESS/s, sampling only", "ESS", "R-hat", "tuning s", "sampling s")
    print("\n| " + " | ".join(headings) + " |\n| --- | --- |" + " --- |" * 6)
    for problem, samplers in TABLE.items():
        for sampler in samplers:
            held = runs.get((problem, sampler))
            if held:
                print(f"| {problem} | {sampler} | " + " | ".join(_cells(held)) + " |")
    print("\n| problem | ours | best peer | ratio, tuning included | sampling only |\n| --- | --- | --- | --- | --- |")
    for problem in TABLE:
        for ours, peers in CHALLENGES.items():
            _print_ratio(problem, ours, peers, runs)


def _cells(held: list[dict]) -> list[str]:
    columns = ("ess_per_second", "ess_per_second_sampling", "ess", "rhat", "tuning", "sampling")
    return [_spread([record[column] for record in held]) for column in columns]


def _spread(values: list[float]) -> str:
    median = f"{np.median(values):.3g}"
    return median if len(values) == 1 else f"{median} ({min(values):.3g}-{max(values):.3g})"


def _print_ratio(problem: str, ours: str, peers: tuple[str, ...], runs: dict) -> None:
    held = {p: runs[problem, p] for p in peers if runs.get((problem, p))}
    if not held or not runs.get((problem, ours)):
        return
    best = max(held, key=lambda p: np.median([r["ess_per_second"] for r in held[p]]))
    cells = []
    for column in ("ess_per_second", "ess_per_second_sampling"):
        by_seed = {r["seed"]: r[column] for r in held[best]}
        ratios = [r[column] / by_seed[r["seed"]] for r in runs[problem, ours] if r["seed"] in by_seed]
        cells.append(_spread(ratios))
    print(f"| {problem} | {ours} | {best} | " + " | ".join(cells) + " |")
