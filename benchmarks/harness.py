"""Runs every (problem, sampler, seed) in a process of its own with one BLAS thread, and keeps the figures.

Results are lines of JSON in ``benchmarks/results/``: a run that is there already is not repeated.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from benchmarks.joint_problems import JOINT_PROBLEMS

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
    "laplace NUTS": "benchmarks.peers.nuts:laplace_mass",
    "BlackJAX": "benchmarks.peers.blackjax_rmhmc:run",
    "mici": "benchmarks.peers.mici_rmhmc:run",
}
# Which samplers are run on which problem.
TABLE: dict[str, tuple[str, ...]] = {
    "logit": ("flat", "nutpie", "laplace NUTS", "hessian", "midpoint", "BlackJAX", "mici"),
    "probit": ("flat", "nutpie", "laplace NUTS", "hessian", "BlackJAX", "mici"),
    "usps": ("flat", "nutpie", "laplace NUTS", "papers"),
    "cox": ("flat", "nutpie", "laplace NUTS"),
    **dict.fromkeys(JOINT_PROBLEMS, ("flat", "nutpie")),
}
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
    command = [sys.executable, "-m", "benchmarks.worker", problem, SAMPLERS[sampler], str(seed)]
    started = time.perf_counter()
    record = {"problem": problem, "sampler": sampler, "seed": seed}
    try:
        finished = subprocess.run(
            command, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        record["error"] = f"stopped at {limit:.0f} s"
    else:
        lines = [line for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
        if lines:
            record.update(json.loads(lines[-1].removeprefix("RESULT ")))
        else:
            record["error"] = finished.stderr.strip().splitlines()[-1] if finished.stderr else "no result"
    record["wall"] = time.perf_counter() - started
    record["versions"] = {name: metadata.version(name) for name in VERSIONS if _installed(name)}
    record["machine"] = platform.processor() or platform.machine()
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(record) + "\n")
    print(record.get("error") or f"{record['ess_per_second']:.3g} ESS/s")


def load() -> list[dict]:
    """Everything that was measured."""
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines() if line]


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
