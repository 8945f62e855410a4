"""One table, problem × sampler, and how far this package is ahead of the fastest peer."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from benchmarks.catalogue.moments import CHANCE, allowed
from benchmarks.peers.riemannian.problems import PROBLEMS

__all__ = ["AUTOMATIC", "REFERENCE", "print_table"]

AUTOMATIC, REFERENCE = "RMHMC()", "nutpie, long"
OURS = "RMHMC"
# How many times as fast as the fastest peer we want to be: with its metric and steps, and as we come.
LIKE_FOR_LIKE, AS_IT_COMES = 3.0, 20.0
# With fewer effective draws a rate is an order of magnitude, and the errors of moments are not known.
FEWEST_EFFECTIVE = 100.0
# Those that do the same work in a step; of BlackJAX's it is not checked whether it can be integrated back.
SAME_STEP = (
    ("RMHMC leapfrog", "mici leapfrog"),
    ("RMHMC midpoint", "mici midpoint"),
    ("RMHMC midpoint, unchecked", "BlackJAX midpoint"),
)
HEADINGS = (
    "problem", "sampler", "ms a trajectory", "ms a step", "acceptance", "failures", "draws", "ESS", "ESS/s", "R-hat",
    "z mean", "z sd", "compile s",
)  # fmt: skip

type Runs = dict[str, dict[str, list[dict]]]


def print_table(records: list[dict]) -> None:
    """Print what was measured; medians over seeds."""
    runs: Runs = defaultdict(lambda: defaultdict(list))
    for record in records:
        if "error" in record:
            where = f"{record['problem']} / {record['sampler']} / seed {record['seed']}"
            print(f"not counted: {where}: {record['error']}")
        else:
            runs[record["problem"]][record["sampler"]].append(record)
    print("\n| " + " | ".join(HEADINGS) + " |\n|" + " --- |" * len(HEADINGS))
    for problem, samplers in runs.items():
        truth = _truth(problem, samplers)
        for sampler, held in samplers.items():
            if sampler != REFERENCE:
                print(f"| {problem} | {sampler} | " + " | ".join(_cells(held, truth)) + " |")
    print(
        f"\n!: an ESS under {FEWEST_EFFECTIVE:.0f}. WRONG?: a mean or standard deviation is farther off than in one of"
        f" {1 / CHANCE:.0f} right chains."
    )
    for problem, samplers in runs.items():
        _print_ratios(problem, samplers)


def rate(record: dict) -> float:
    """Effective draws a second: with tuning where there is any."""
    return record["ess_per_second"]


def step_seconds(held: list[dict]) -> float:
    """Seconds a leapfrog step."""
    return float(np.median([r["sampling"] / (r["draws"] * r["extra"]["steps"]) for r in held if r["extra"]["steps"]]))


def _truth(problem: str, samplers: dict[str, list[dict]]) -> dict[str, list[float]]:
    """Means and standard deviations with their errors, known or from the long run."""
    known = PROBLEMS[problem].truth
    if known:
        return {label: [mean, 0.0, sd, 0.0] for label, (mean, sd) in known.items()}
    return samplers[REFERENCE][0]["moments"] if REFERENCE in samplers else {}


def _cells(held: list[dict], truth: dict[str, list[float]]) -> list[str]:
    median = {key: float(np.median([r["extra"][key] for r in held])) for key in held[0]["extra"]}
    per_draw = float(np.median([r["sampling"] / r["draws"] for r in held]))
    per_step = f"{1e3 * step_seconds(held):.3g}" if median["steps"] else ""
    ess = float(np.median([r["ess"] for r in held]))
    rhats = [r["rhat"] for r in held if r["rhat"] is not None]
    return [
        f"{1e3 * per_draw:.3g}", per_step, f"{median['acceptance']:.3f}", f"{100 * median['failures']:.1f} %",
        f"{np.median([r['draws'] for r in held]):.0f}", f"{ess:.0f}" + ("!" if ess < FEWEST_EFFECTIVE else ""),
        f"{np.median([rate(r) for r in held]):.3g}", f"{max(rhats):.3f}" if rhats else "",
        *_agreement(held, truth), f"{median['compile']:.1f}",
    ]  # fmt: skip


def _agreement(held: list[dict], truth: dict[str, list[float]]) -> list[str]:
    """The largest |z| of means and of standard deviations over values and seeds."""
    cells = []
    for at in (0, 2):
        found = [
            abs(r["moments"][label][at] - truth[label][at])
            / np.hypot(r["moments"][label][at + 1], truth[label][at + 1])
            for r in held
            for label in truth.keys() & r.get("moments", {}).keys()
        ]
        if not found:
            cells.append("")
            continue
        limit = allowed(held[0]["moments"], truth)
        cells.append(f"{max(found):.1f}" + (" WRONG?" if max(found) > limit else ""))
    return cells


def _print_ratios(problem: str, samplers: dict[str, list[dict]]) -> None:
    """The best of ours with fixed steps, and RMHMC(), over the fastest peer."""
    rates = {name: float(np.median([rate(r) for r in held])) for name, held in samplers.items() if name != REFERENCE}
    peers = {name: r for name, r in rates.items() if not name.startswith(OURS)}
    fixed = {name: r for name, r in rates.items() if name.startswith(OURS) and name != AUTOMATIC}
    if not peers or max(peers.values()) == 0.0 or len(peers) == len(rates):
        return
    best = max(peers, key=peers.__getitem__)
    said = []
    if fixed:
        ours = max(fixed, key=fixed.__getitem__)
        said.append(f"{ours} {fixed[ours] / peers[best]:.2g} × (wanted {LIKE_FOR_LIKE:g})")
    if AUTOMATIC in rates:
        said.append(f"{AUTOMATIC} {rates[AUTOMATIC] / peers[best]:.2g} × (wanted {AS_IT_COMES:g})")
    print(f"\n{problem}: ESS/s over {best}: " + ", ".join(said) + ".", end="")
    same = [(a, b) for a, b in SAME_STEP if a in samplers and b in samplers]
    faster = [f"{a} {step_seconds(samplers[b]) / step_seconds(samplers[a]):.2g} × {b}" for a, b in same]
    print(" Steps a second: " + ", ".join(faster) + "." if faster else "")
