"""One run in one process: ``python -m benchmarks.peers.riemannian.worker PROBLEM MODULE:FUNCTION SEED SECONDS``."""

from __future__ import annotations

import json
import logging
import sys
import time
import warnings
from importlib import import_module

import numpy as np

from benchmarks.catalogue.entry import Entry
from benchmarks.catalogue.moments import moments
from benchmarks.deadline import NEVER
from benchmarks.measures import measured
from benchmarks.outcome import Outcome, merged
from benchmarks.peers.riemannian.problems import PROBLEMS, Funnel, Logistic

__all__ = ["reference"]

REFERENCE_DRAWS = 10000


def reference(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """A long run of nutpie, with which the others are compared."""
    del seconds
    from benchmarks.peers.nuts import nutpie_chains

    chains = nutpie_chains(problem.model(), ("beta",), 1000 + seed, NEVER, REFERENCE_DRAWS, time.process_time)
    return merged(chains)


def main(name: str, target: str, seed: str, seconds: str) -> None:
    """Run, measure, and print a line for the harness."""
    for logger in ("pymc", "pymc.rmhmc"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    module, function = target.split(":")
    problem = PROBLEMS[name]
    try:
        outcome = getattr(import_module(module), function)(problem, int(seed), problem.share * float(seconds))
    except Exception as error:  # noqa: BLE001 - it is what is recorded
        record = {"error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    else:
        record = measured(outcome)
        if np.ptp(outcome.draws, axis=1).max() == 0.0:  # a chain that stands still: its ESS is no number
            record |= {"ess": 0.0, "rhat": None, "ess_per_second": 0.0, "ess_per_second_sampling": 0.0}
        else:
            record["moments"] = moments(outcome.draws, list(problem.labels), Entry(problem.model))
    print("RESULT " + json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
