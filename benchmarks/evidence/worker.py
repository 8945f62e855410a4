"""One run in one process: ``python -m benchmarks.evidence.worker JSON``."""

from __future__ import annotations

import json
import logging
import sys
import warnings

from benchmarks.evidence.cases import Run
from benchmarks.evidence.grid import measure_row
from benchmarks.evidence.measures import measure
from benchmarks.evidence.peers import PEERS

__all__ = ["made"]


def made(run: Run) -> dict:
    """Make a run in this process and return its record."""
    if run.kind == "grid":
        return measure_row(float(run.method), run.seed, run.limit)
    if run.kind == "peer":
        return PEERS[run.method](run.problem, int(run.target), run.seed)
    return measure(run.problem, run.method, run.seed, run.target, run.limit)


def main(spec: str) -> None:
    """Run, and print a line for the harness."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    try:
        record = made(Run(**json.loads(spec)))
    except Exception as error:  # noqa: BLE001 - it is what is recorded
        record = {"error": f"{type(error).__name__}: {error}"}
    print("RESULT " + json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
