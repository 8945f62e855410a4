"""One run in one process: ``python -m benchmarks.worker PROBLEM MODULE:FUNCTION SEED``."""

from __future__ import annotations

import json
import logging
import sys
from importlib import import_module

from benchmarks.joint_problems import JOINT_PROBLEMS
from benchmarks.measures import largest_rhat, smallest_ess
from benchmarks.problems import PROBLEMS


def main(problem: str, target: str, seed: str) -> None:
    """Run, measure, and print a line for the harness."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    module, function = target.split(":")
    outcome = getattr(import_module(module), function)((PROBLEMS | JOINT_PROBLEMS)[problem](), int(seed))
    ess, total = smallest_ess(outcome.draws), outcome.tuning + outcome.sampling
    record = {
        "draws": int(outcome.draws.shape[0] * outcome.draws.shape[1]), "ess": ess, "rhat": largest_rhat(outcome.draws),
        "tuning": outcome.tuning, "sampling": outcome.sampling, "ess_per_second": ess / total,
        "ess_per_second_sampling": ess / outcome.sampling, "extra": outcome.extra,
    }  # fmt: skip
    print("RESULT " + json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
