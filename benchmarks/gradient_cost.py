"""The joint gradient beside its flops at the rate of this process's own dgemm, and what its parts take.

2n³ flops are what the factorisations and their adjoints need here, 3n³ what was asked. Kernel and derivative are
the model's own compiled functions, n² exponentials each. Run with ``python -m benchmarks.gradient_cost``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
from collections.abc import Callable

import numpy as np
from scipy.linalg import blas

from benchmarks.joint_target import build

SIZES = (100, 300, 1000)


def median_seconds(function: Callable[[], object], budget: float = 1.0) -> float:
    """Of calls for about so many seconds, after one that is not counted."""
    function()
    times: list[float] = []
    end = time.perf_counter() + budget
    while time.perf_counter() < end or len(times) < 5:
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def dgemm_rate(n: int) -> float:
    """Flops a second of a product of two n × n matrices."""
    rng = np.random.default_rng(0)
    a, b = (np.asfortranarray(rng.standard_normal((n, n))) for _ in range(2))
    return 2.0 * n**3 / median_seconds(lambda: blas.dgemm(1.0, a, b))


def main() -> None:
    """Print one line for each size."""
    columns = ("n", "gradient ms", "dgemm Gflop/s", "2n³ ms", "3n³ ms", "× 2n³", "× 3n³", "kernel", "derivative")
    print("| " + " | ".join((*columns, "likelihood and rest")) + " |\n| --- |" + " --- |" * len(columns))
    for n in SIZES:
        built = build(n)
        block, theta = built.model.blocks[0], built.theta
        position = np.random.default_rng(0).standard_normal(built.target.size)
        bar, eta = np.asfortranarray(np.ones((n, n))), np.zeros(n)
        whole = median_seconds(lambda t=built.target, p=position: t.at(p))
        rate = dgemm_rate(n)
        parts = [
            median_seconds(lambda b=block, t=theta: b.prior(t)),
            median_seconds(lambda b=block, t=theta, m=eta, c=bar: b.prior_pullback(t, m, c)),
            median_seconds(lambda b=block, t=theta, e=eta, m=built.model: (b.likelihood(t, e), m.rest(t))),
        ]
        least = n**3 / rate
        shares = " | ".join(f"{100 * part / whole:.0f} %" for part in parts)
        print(
            f"| {n} | {1e3 * whole:.3g} | {rate / 1e9:.1f} | {2e3 * least:.3g} | {3e3 * least:.3g} |"
            f" {whole / (2 * least):.2f} | {whole / (3 * least):.2f} | {shares} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
