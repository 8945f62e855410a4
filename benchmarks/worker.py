"""One run in one process: ``python -m benchmarks.worker PROBLEM MODULE:FUNCTION SEED SECONDS [DRAWS]``."""

from __future__ import annotations

import json
import logging
import sys
from importlib import import_module

from benchmarks.deadline import Deadline
from benchmarks.joint_problems import JOINT_PROBLEMS
from benchmarks.linear_problems import LINEAR_PROBLEMS
from benchmarks.measures import measured
from benchmarks.moving_problems import MOVING_PROBLEMS
from benchmarks.outcome import CannotRunError
from benchmarks.problems import PROBLEMS


def main(problem: str, target: str, seed: str, seconds: str, draws: str = "") -> None:
    """Run, measure, and print a line for the harness."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    module, function = target.split(":")
    options = {"draws": int(draws)} if draws else {}
    problems = PROBLEMS | JOINT_PROBLEMS | LINEAR_PROBLEMS | MOVING_PROBLEMS
    try:
        sampler = getattr(import_module(module), function)
        outcome = sampler(problems[problem](), int(seed), Deadline(float(seconds)), **options)
    except CannotRunError as reason:
        record = {"error": str(reason)}
    else:
        record = measured(outcome)
    print("RESULT " + json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
