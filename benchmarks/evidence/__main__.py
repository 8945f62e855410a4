"""``python -m benchmarks.evidence``: measure what has not been measured yet, and print it next to what is asked.

Each run is a process of its own, and resumes where it was stopped. ``--only WORD`` runs a part; ``--seeds 3`` more
seeds; ``--table`` runs nothing; ``--figures FOLDER`` draws the figures; ``--reference`` makes those
references again that come from long runs, each by two methods.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.evidence.cases import REFERENCE_RUNS, Run, all_runs
from benchmarks.evidence.figures import draw_figures
from benchmarks.evidence.problems import REFERENCES, references
from benchmarks.evidence.table import FAR, print_tables
from benchmarks.harness import RESULTS, keep_run, load

EVIDENCE_RESULTS = RESULTS.with_name("evidence.jsonl")
# Seconds that starting, reading and compiling may take besides a run's own.
GRACE = 600.0


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="runs whose kind, problem or method contains this word")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--reference", action="store_true", help="make the references again: ten minutes")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--figures", type=Path, help="a folder to draw the figures in")
    parser.add_argument("--format", default="svg", choices=("svg", "png"), help="of the figures")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured")
    arguments = parser.parse_args()
    if arguments.fresh:
        EVIDENCE_RESULTS.unlink(missing_ok=True)
    if arguments.reference:
        for problem, runs in REFERENCE_RUNS.items():
            _make_reference(problem, runs)
    elif not arguments.table:
        chosen = [run for run in all_runs(arguments.seeds) if _is_meant(run, arguments.only)]
        _run_missing(chosen)
    keys = [run.key for run in all_runs(arguments.seeds)]
    records = [record for record in load(EVIDENCE_RESULTS) if any(key.items() <= record.items() for key in keys)]
    print_tables(records)
    if arguments.figures:
        for path in draw_figures(records, arguments.figures, arguments.format):
            print(path)


def _is_meant(run: Run, word: str) -> bool:
    return any(word in name for name in (run.kind, run.problem, run.method))


def _run_missing(runs: list[Run] | tuple[Run, ...]) -> None:
    """Make the runs that have no record yet."""
    began = time.perf_counter()
    for run in runs:
        if any(run.key.items() <= record.items() for record in load(EVIDENCE_RESULTS)):
            continue
        print(f"{run.kind} / {run.problem} / {run.method} / seed {run.seed} ...", end=" ", flush=True)
        command = [sys.executable, "-m", "benchmarks.evidence.worker", json.dumps(asdict(run))]
        kept = keep_run(run.key | {"limit": run.limit}, command, 5.0 * run.limit + GRACE, EVIDENCE_RESULTS)
        said = kept.get("error") or (f"{kept['value']:.4f}" if "value" in kept else "done")
        print(f"{said} ({kept['wall']:.0f} s)", flush=True)
    print(f"{time.perf_counter() - began:.0f} s in this call")


def _make_reference(problem: str, runs: tuple[Run, ...]) -> None:
    """Combine two long estimates, by the inverses of their squared errors, if they agree."""
    _run_missing(runs)
    held = [next(r for r in load(EVIDENCE_RESULTS) if run.key.items() <= r.items() and "value" in r) for run in runs]
    values, errors = [r["value"] for r in held], [r["standard error"] for r in held]
    apart = abs(values[0] - values[1]) / math.hypot(*errors)
    if apart > FAR:
        raise SystemExit(
            f"{problem}: the two estimates are {apart:.1f} errors apart: {values}, {errors}. Nothing is stored."
        )
    weights = [error**-2 for error in errors]
    total = sum(weights)
    stored = {
        "log_evidence": round(sum(w * v for w, v in zip(weights, values, strict=True)) / total, 5),
        "standard_error": round(total**-0.5, 5), "apart_in_errors": round(apart, 2),
        "methods": [
            {"method": r["method"], "log_evidence": round(r["value"], 5),
             "standard_error": round(r["standard error"], 5), "seconds": round(r["tuning"] + r["estimating"]),
             "commit": r["commit"]}
            for r in held
        ],
    }  # fmt: skip
    REFERENCES.write_text(json.dumps(references() | {problem: stored}, indent=2) + "\n")
    print(f"{problem}: {json.dumps(stored, indent=2)}")


if __name__ == "__main__":
    main()
