"""The catalogue's table: seconds to 1000 effective draws of the worst value, and whether the samplers agree."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from benchmarks.bars import LARGEST_RHAT
from benchmarks.catalogue.models import CATALOGUE
from benchmarks.catalogue.moments import agreement, allowed, truths

__all__ = ["best_peer", "comparable", "is_weak", "print_table", "runs_by_model", "seconds"]

OURS = ("rmhmc", "rmhmc-latent", "rmhmc-graph", "rmhmc-fisher", "rmhmc-softabs")
PEERS = ("nutpie", "nutpie-other")
EFFECTIVE = 1000.0
# With fewer effective draws a run is not one to compare with.
SMALLEST_ESS = 100.0
HEADINGS = (
    "model", "sampler", "chart", "s to 1000", "cold", "ratio", "ESS", "R-hat", "failed %", "tuning s", "draws s",
    "first draw s", "steps", "largest z",
)  # fmt: skip

type Runs = dict[str, list[dict]]


def print_table(records: list[dict]) -> None:
    """Print what was measured, the medians over seeds, and what failed. The longest run of each is taken."""
    by_model = runs_by_model(records)
    print("| " + " | ".join(HEADINGS) + " |\n|" + " --- |" * len(HEADINGS))
    for name in CATALOGUE:
        if name in by_model:
            _print_model(name, by_model[name])
    for record in records:
        if "error" in record:
            where = " < ".join(reversed(record.get("where", [])[-3:]))
            run = f"{record['problem']} / {record['sampler']} / seed {record['seed']}"
            print(f"\nfailed: {run}: {record['error']}\n  {where}")


def runs_by_model(records: list[dict]) -> dict[str, Runs]:
    """The records of each model, by sampler."""
    by_model: dict[str, Runs] = defaultdict(lambda: defaultdict(list))
    for record in records:
        by_model[record["problem"]][record["sampler"]].append(record)
    return by_model


def best_peer(good: Runs) -> str | None:
    """The form in which nutpie is fastest, of those whose chains agree if there is one."""
    peers = [s for s in PEERS if s in good]
    return min(peers, key=lambda s: (is_weak(good[s]), _median(good[s], seconds)), default=None)


def _print_model(name: str, runs: Runs) -> None:
    good = comparable(runs)
    peers = [s for s in PEERS if s in good]
    best = best_peer(good)
    surest = max(peers, key=lambda s: _median(good[s], _ess), default=None)
    for sampler in (*OURS, *PEERS):
        if sampler not in good:
            if runs.get(sampler):
                print(f"| {name} | {sampler} | failed |" + " |" * (len(HEADINGS) - 3))
            continue
        held = good[sampler]
        ratio = _median(good[best], seconds) / _median(held, seconds) if best and sampler in OURS else None
        print(f"| {name} | {sampler} | " + " | ".join(_cells(name, sampler, held, ratio, good, surest)) + " |")


def comparable(runs: Runs) -> Runs:
    """The runs of each sampler with figures, of the most draws that were asked for."""
    good = {}
    for sampler, records in runs.items():
        held = [record for record in records if "error" not in record]
        most = max((record["asked"] for record in held), default=0)
        if held:
            good[sampler] = [record for record in held if record["asked"] == most]
    return good


def seconds(record: dict) -> float:
    """Seconds to 1000 effective draws, compiled: a lower bound where a run was stopped."""
    return EFFECTIVE / max(1e-12, record["ess_per_second"])


def _ess(record: dict) -> float:
    """Zero where there were too few draws to tell."""
    return record["ess"] if np.isfinite(record["ess"]) else 0.0


def is_weak(held: list[dict]) -> bool:
    """Whether there are too few effective draws, or chains that differ."""
    return min(map(_ess, held)) < SMALLEST_ESS or any(not (r["rhat"] or np.inf) < LARGEST_RHAT for r in held)


def _median(held: list[dict], what) -> float:
    return float(np.median([what(record) for record in held]))


def _cells(name: str, sampler: str, held: list[dict], ratio: float | None, good: Runs, surest: str | None) -> list[str]:
    extra = [record["extra"] for record in held]
    compile_seconds = float(np.median([e["compile"] for e in extra]))
    failed = [100.0 * e.get("failures", e.get("divergences", np.nan)) for e in extra]
    rhat = max(record["rhat"] or np.inf for record in held)
    bound = "≥ " if any(record["stopped"] for record in held) else ""
    weak = " !" if is_weak(held) else ""
    charts = [s.removeprefix("chart: ") for s in held[0].get("said", ()) if s.startswith("chart: ")]
    return [
        *(charts or [""]),
        f"{bound}{_median(held, seconds):.3g}{weak}",
        f"{bound}{_median(held, seconds) + compile_seconds:.3g}",
        f"{ratio:.2g}" if ratio is not None else "",
        f"{_median(held, _ess):.0f}",
        f"{rhat:.3f}",
        f"{np.median(failed):.2g}",
        f"{_median(held, lambda r: r['tuning']):.3g}",
        f"{_median(held, lambda r: r['sampling']):.3g}",
        f"{np.median([e.get('first draw', e['compile']) for e in extra]):.3g}",
        f"{np.median([e.get('steps', np.nan) for e in extra]):.3g}",
        _largest_z(name, sampler, held, good, surest),
    ]


def _largest_z(name: str, sampler: str, held: list[dict], good: Runs, surest: str | None) -> str:
    """Against what is known, and ours against the nutpie with the most effective draws."""
    said = []
    mine = held[0]["moments"]
    if CATALOGUE[name].truth:
        z, where = truths(mine, CATALOGUE[name])
        said.append(f"{z:.1f} from the truth ({where})")
    if sampler in OURS and surest and mine:
        theirs = good[surest][0]
        z, where = agreement(mine, theirs["moments"])
        limit = allowed(mine, theirs["moments"])
        weak = min(theirs["ess"], held[0]["ess"]) < SMALLEST_ESS
        verdict = f" WRONG? over {limit:.1f}, {where}" if z > limit else ""
        said.append(f"{z:.1f}{verdict}{' (few effective draws)' if weak and verdict else ''}")
    return "; ".join(said)
