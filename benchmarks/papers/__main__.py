"""``python -m benchmarks.papers NAME``: measure what has not been measured yet, and print the paper's tables.

Each run is a process of its own, and resumes where it was stopped. ``--full`` makes more draws with more seeds;
``--only WORD`` runs a part; ``--table`` runs nothing; ``--figures FOLDER`` draws the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import RESULTS, keep_run, load
from benchmarks.papers.paper import PAPERS, Run, load_paper

# Seconds that starting, compiling and measuring may take besides a run's own.
GRACE = 240.0


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=sorted(PAPERS))
    parser.add_argument("--full", action="store_true", help="more draws and seeds: hours instead of minutes")
    parser.add_argument("--only", default="", help="runs whose experiment or sampler contains this word")
    parser.add_argument("--limit", type=float, help="seconds of sampling after which a run hands in what it has")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--figures", type=Path, help="a folder to draw the figures in")
    parser.add_argument("--format", default="svg", choices=("svg", "png"), help="of the figures")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured")
    arguments = parser.parse_args()
    paper, results = load_paper(arguments.paper), RESULTS.with_name(f"paper_{arguments.paper}.jsonl")
    if arguments.fresh:
        results.unlink(missing_ok=True)
    runs = [r for r in paper.runs(arguments.full) if arguments.only in r.experiment or arguments.only in r.sampler]
    if not arguments.table:
        limited = [replace(run, limit=arguments.limit) for run in runs] if arguments.limit else runs
        _run_missing(arguments.paper, limited, results)
    keys = [run.key for run in paper.runs(arguments.full)]
    records = [record for record in load(results) if any(key.items() <= record.items() for key in keys)]
    print(paper.title + "\n")
    paper.report(records)
    if arguments.figures:
        for path in paper.draw(records, arguments.figures, arguments.format):
            print(path)


def _run_missing(name: str, runs: list[Run], results: Path) -> None:
    """Make the runs that have no record yet; seeds are the outer loop."""
    began = time.perf_counter()
    for run in runs:
        if any(run.key.items() <= record.items() for record in load(results)):
            continue
        print(f"{run.experiment} / {run.sampler} / seed {run.seed} ...", end=" ", flush=True)
        spec = json.dumps(run.key | {"limit": run.limit})
        command = [sys.executable, "-m", "benchmarks.papers.worker", name, spec]
        kept = keep_run(run.key | {"limit": run.limit}, command, run.limit + GRACE, results)
        print(f"{kept.get('error') or kept.get('said', '')} ({kept['wall']:.0f} s)", flush=True)
    print(f"{time.perf_counter() - began:.0f} s in this call\n")


if __name__ == "__main__":
    main()
