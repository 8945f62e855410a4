"""Write random models, and check each: ``python -m tests.fuzz --models 200``; see `joint` for what is checked."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "fuzz"
# Compiling is most of a model's time. What is compiled so is not for anybody else's use: it has a folder of its own.
CHEAP = {
    "NUMBA_OPT": "1", "NUMBA_CACHE_DIR": str(FOLDER / "numba"), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
    "PYTENSOR_FLAGS": f"base_compiledir={FOLDER / 'pytensor'}",
}  # fmt: skip
# A turn judges ten models; those that are left on the way are replaced by as many of the next turn's.
BY_TURNS, TURNS = 10, 100


def main() -> int:
    """Run what the command line asks for; the exit status is 0 if some were judged, and none failed."""
    asked = _arguments()
    if os.environ.get("FUZZ_MODELS") != "cheap":  # the settings are read when Numba is imported
        os.chdir(ROOT)
        command = [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]]
        os.execve(sys.executable, command, os.environ | CHEAP | {"FUZZ_MODELS": "cheap"})
    from tests.fuzz.running import Limits, run, show, summary

    if asked.show is not None:
        print(show(asked.show))
        return 0
    results = FOLDER / asked.results
    if asked.summary:
        print(summary(results))
        return 0
    first, count, wanted = asked.first, asked.models, None
    if asked.turn:
        commit, wanted = _commit(), BY_TURNS
        first, count, results = BY_TURNS * (commit % TURNS), 2 * BY_TURNS, FOLDER / f"turn-{commit:08x}.jsonl"
    said = f"{wanted} of models" if wanted else "Models"
    print(f"{said} {first} to {first + count - 1}; results in {results.relative_to(ROOT)}", flush=True)
    limits = Limits(asked.seconds, asked.budget, not asked.no_shrink, asked.pairs, wanted, asked.share)
    judged, failed, minutes = run(range(first, first + count), results, limits)
    print(summary(results))
    print(f"{minutes:.1f} minutes, {judged} judged, {failed} failed")
    return int(failed > 0 or judged == 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--models", metavar="N", type=int, default=200, help="how many; 200 by default")
    parser.add_argument("--first", metavar="SEED", type=int, default=0, help="seed of the first; 0 by default")
    parser.add_argument("--turn", action="store_true", help="ten of the first thousand, by the commit's hash")
    parser.add_argument("--results", metavar="FILE", default="results.jsonl", help="models in it are not done again")
    parser.add_argument("--seconds", metavar="S", type=int, default=300, help="of processor time for a model")
    parser.add_argument("--share", metavar="S", type=int, help="leave a model after so much processor time")
    parser.add_argument("--budget", metavar="S", type=float, help="begin no model after so many seconds")
    parser.add_argument("--pairs", metavar="N", type=int, default=24, help="draws of θ and y a model; 24 by default")
    parser.add_argument("--no-shrink", action="store_true", help="leave failing models as they are")
    parser.add_argument("--show", metavar="SEED", type=int, help="print a model's code, and run nothing")
    parser.add_argument("--summary", action="store_true", help="sum up the results that there are")
    return parser.parse_args()


def _commit() -> int:
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True)
    return int(told.stdout[:8], 16)


if __name__ == "__main__":
    sys.exit(main())
