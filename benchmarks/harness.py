"""Runs every (problem, sampler, seed) in a process of its own with one BLAS thread, and keeps the figures.

Results are lines of JSON in ``benchmarks/results/``: a run that is there already is not repeated.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from benchmarks.joint_problems import JOINT_PROBLEMS
from benchmarks.linear_problems import LINEAR_PROBLEMS
from benchmarks.moving_problems import MOVING_PROBLEMS

RESULTS = Path(__file__).resolve().parent / "results" / "runs.jsonl"
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
SAMPLERS = {
    "flat": "benchmarks.peers.ours:flat",
    "hessian": "benchmarks.peers.ours:hessian",
    "midpoint": "benchmarks.peers.ours:midpoint",
    "papers": "benchmarks.peers.ours:papers",
    "nutpie": "benchmarks.peers.nuts:nutpie_whitened",
    "nutpie centred": "benchmarks.peers.nuts:nutpie_centred",
    "laplace NUTS": "benchmarks.peers.nuts:laplace_mass",
    "MCLMC": "benchmarks.peers.mclmc:adjusted",
    "elliptical slice": "benchmarks.peers.fixed_theta:elliptical_slice",
    "mgrad": "benchmarks.peers.fixed_theta:mgrad_gaussian",
    "BlackJAX": "benchmarks.peers.blackjax_rmhmc:run",
    "mici": "benchmarks.peers.mici_rmhmc:run",
}
# Which samplers are run on which problem.
FIXED = ("flat", "nutpie", "laplace NUTS", "MCLMC", "elliptical slice", "mgrad")
TABLE: dict[str, tuple[str, ...]] = {
    "logit": (*FIXED, "hessian", "midpoint", "BlackJAX", "mici"),
    "probit": (*FIXED, "hessian", "BlackJAX", "mici"),
    "usps": (*FIXED, "papers"),
    "cox": FIXED,
    "cox 64": FIXED,
    **dict.fromkeys(JOINT_PROBLEMS, ("flat", "nutpie", "laplace NUTS", "MCLMC")),
    **dict.fromkeys(LINEAR_PROBLEMS, ("flat", "nutpie", "nutpie centred", "laplace NUTS", "MCLMC")),
    **dict.fromkeys(MOVING_PROBLEMS, ("flat", "nutpie", "laplace NUTS", "MCLMC")),
}
# Draws a chain where a sampler's default does not reach 200 effective ones; the same for every seed.
WITH_HYPERPARAMETERS = {"flat": 4000, "nutpie": 4000, "nutpie centred": 4000, "laplace NUTS": 2000, "MCLMC": 20000}
DRAWS: dict[tuple[str, str], int] = {
    **{
        (problem, sampler): draws
        for problem in (*JOINT_PROBLEMS, *LINEAR_PROBLEMS, *MOVING_PROBLEMS)
        for sampler, draws in WITH_HYPERPARAMETERS.items()
        if sampler in TABLE[problem]
    },
    ("hsgp 100", "nutpie"): 20000,
    ("separable 24", "nutpie"): 20000,
    ("hsgp 100", "nutpie centred"): 20000,
    ("hsgp 20x20", "nutpie centred"): 30000,
    ("usps", "nutpie"): 2000,
}
# A worker stops its sampler after the limit of the sampler's own seconds. What it needs besides (to compile, to
# measure, to end a draw) may take so many seconds more.
GRACE = 900.0
VERSIONS = ("pymc", "pytensor", "nutpie", "blackjax", "jax", "mici", "numpy", "scipy", "numba")


def run_all(only: str, seeds: int, limit: float) -> None:
    """Run what is missing; seeds are the outer loop, so that what is compared is run side by side."""
    done = {(r["problem"], r["sampler"], r["seed"]) for r in load()}
    for seed in range(seeds):
        for problem, samplers in TABLE.items():
            for sampler in samplers:
                if only and only not in (problem, f"{problem}/{sampler}"):
                    continue
                if (problem, sampler, seed) not in done:
                    run_one(problem, sampler, seed, limit)


def run_one(problem: str, sampler: str, seed: int, limit: float) -> None:
    """One run in its own process; a run that fails or is stopped is recorded as such."""
    print(f"{problem} / {sampler} / seed {seed} ...", end=" ", flush=True)
    draws = DRAWS.get((problem, sampler))
    command = [
        sys.executable, "-m", "benchmarks.worker", problem, SAMPLERS[sampler], str(seed), str(limit),
        *([str(draws)] if draws else []),
    ]  # fmt: skip
    record = {"problem": problem, "sampler": sampler, "seed": seed, "limit": limit}
    record = keep_run(record, command, limit + GRACE, RESULTS)
    bound = f"at most, stopped in {record['stopped']}: " if record.get("stopped") else ""
    print(record.get("error") or f"{bound}{record['ess_per_second']:.3g} ESS/s")


def keep_run(record: dict, command: list[str], seconds: float, results: Path) -> dict:
    """Run a worker; its figures, or why there are none, with the versions and the machine, are a line of `results`."""
    started = time.perf_counter()
    record = record | _result(command, seconds)
    record["wall"], record["finished"] = time.perf_counter() - started, time.time()
    record["commit"] = _commit()
    record["versions"] = {name: metadata.version(name) for name in VERSIONS if _installed(name)}
    record["machine"] = _processor()
    results.parent.mkdir(exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps(record) + "\n")
    return record


def _result(command: list[str], seconds: float) -> dict:
    """What a worker measured, or why it did not."""
    try:
        finished = subprocess.run(
            command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"ended at {seconds:.0f} s with nothing handed in"}
    lines = [line for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
    if lines:
        return json.loads(lines[-1].removeprefix("RESULT "))
    if finished.returncode < 0:
        return {"error": f"ended by {signal.Signals(-finished.returncode).name}, as where memory runs out"}
    return {"error": finished.stderr.strip().splitlines()[-1] if finished.stderr else "no result"}


def _processor() -> str:
    """The processor's name, which Python does not know on Linux."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str:
    """Of this package, with a plus if files have changed since; nothing outside a clone."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=RESULTS.parents[2], capture_output=True, text=True, check=False)
    except OSError:  # no git
        return ""
    return found.stdout.strip()


def load(results: Path = RESULTS) -> list[dict]:
    """Everything that was measured."""
    if not results.exists():
        return []
    return [json.loads(line) for line in results.read_text().splitlines() if line]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
