"""``python -m benchmarks.peers.riemannian``: run what has not been run yet, one process at a time, and print the table.

``--only PROBLEM`` or ``--sampler NAME`` runs a part, both repeatable; ``--table`` runs nothing; ``--fresh`` forgets
what was measured.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.harness import RESULTS, keep_run, load
from benchmarks.peers.riemannian.problems import PROBLEMS
from benchmarks.peers.riemannian.table import AUTOMATIC, REFERENCE, print_table

RIEMANNIAN_RESULTS = RESULTS.with_name("riemannian.jsonl")
HERE = "benchmarks.peers.riemannian"
SAMPLERS = {
    AUTOMATIC: f"{HERE}.ours:automatic",
    "RMHMC leapfrog": f"{HERE}.ours:leapfrog",
    "RMHMC leapfrog, unchecked": f"{HERE}.ours:leapfrog_unchecked",
    "RMHMC leapfrog, whole model": f"{HERE}.ours:graph_leapfrog",
    "RMHMC midpoint": f"{HERE}.ours:midpoint",
    "RMHMC midpoint, unchecked": f"{HERE}.ours:midpoint_unchecked",
    "mici leapfrog": f"{HERE}.mici_chains:leapfrog",
    "mici midpoint": f"{HERE}.mici_chains:midpoint",
    "mici leapfrog, as it comes": f"{HERE}.mici_chains:as_it_comes",
    "BlackJAX midpoint": f"{HERE}.blackjax_chains:midpoint",
    REFERENCE: f"{HERE}.worker:reference",
}
# Which metric a sampler is run in; by default in both.
ONLY_IN = {"RMHMC leapfrog, whole model": "fisher", "mici leapfrog, as it comes": "softabs", REFERENCE: "fisher"}
# Seconds after which a worker that has handed in nothing is ended, and what each second of sampling adds.
LIMIT, LIMIT_PER_SECOND = 240.0, 20.0


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], choices=PROBLEMS, help="a problem; may be repeated")
    parser.add_argument("--sampler", action="append", default=[], choices=SAMPLERS, help="may be repeated")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="of sampling; on the funnel 4 x as many")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured")
    arguments = parser.parse_args()
    if arguments.fresh:
        RIEMANNIAN_RESULTS.unlink(missing_ok=True)
    started = time.perf_counter()
    if not arguments.table:
        _run_all(arguments)
    records = {_key(record): record for record in load(RIEMANNIAN_RESULTS)}
    print_table([
        records[key]
        for problem in PROBLEMS
        for sampler in SAMPLERS
        for key in records
        if key[:2] == (problem, sampler) and key[3] == arguments.seconds
    ])
    print(f"\nThis call took {(time.perf_counter() - started) / 60.0:.1f} min.")


def _run_all(arguments: argparse.Namespace) -> None:
    done = {_key(record) for record in load(RIEMANNIAN_RESULTS) if "error" not in record}
    for seed in range(arguments.seeds):
        for problem in arguments.only or PROBLEMS:
            for sampler in arguments.sampler or SAMPLERS:
                record = {"problem": problem, "sampler": sampler, "seed": seed, "seconds": arguments.seconds}
                meant = ONLY_IN.get(sampler, PROBLEMS[problem].metric) == PROBLEMS[problem].metric
                if meant and _key(record) not in done:
                    _run_one(record)


def _key(record: dict) -> tuple:
    return tuple(record[key] for key in ("problem", "sampler", "seed", "seconds"))


def _run_one(record: dict) -> None:
    print(f"{record['problem']} / {record['sampler']} / seed {record['seed']} ...", end=" ", flush=True)
    parts = (record["problem"], SAMPLERS[record["sampler"]], record["seed"], record["seconds"])
    command = [sys.executable, "-m", f"{HERE}.worker", *map(str, parts)]
    kept = keep_run(record, command, LIMIT + LIMIT_PER_SECOND * record["seconds"], RIEMANNIAN_RESULTS)
    print(f"{kept.get('error') or format(kept['ess_per_second'], '.3g') + ' ESS/s'} ({kept['wall']:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
