"""How long a flat-metric trajectory should be, and to which acceptance: the choice of the defaults.

For each path length, jitter and target acceptance: the smaller of bulk and tail ESS over all latent
values, a draw and a second. Run with ``python -m benchmarks.path_length``.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pymc as pm

from benchmarks.measures import smallest_ess
from benchmarks.problems import PROBLEMS
from pymc_rmhmc import RMHMC


def main(names: list[str]) -> None:
    """Print one line for each setting."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    print("| problem | path/π | jitter | target | steps | acceptance | ESS/draw | ESS/s |\n| --- |" + " --- |" * 7)
    for name in names:
        model = PROBLEMS[name]().centred()
        for path, jitter, target in itertools.product((0.4, 0.5, 0.54, 0.6), (0.1, 0.2, 0.4), (0.8, 0.9, 0.95)):
            with model:
                step = RMHMC(path_length=path * np.pi, jitter=jitter, target_accept=target)
                idata = pm.sample(
                    draws=1500, tune=300, chains=2, cores=1, step=step, progressbar=False, random_seed=1,
                    compute_convergence_checks=False,
                )  # fmt: skip
            stats = idata.sample_stats
            ess = smallest_ess(idata.posterior["f"].values)
            seconds = float(stats["perf_counter_diff"].sum())
            print(
                f"| {name} | {path} | {jitter} | {target} | {float(stats['n_steps'].mean()):.2f} |"
                f" {float(stats['acceptance_rate'].mean()):.3f} | {ess / 3000:.3f} | {ess / seconds:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:] or ["logit", "probit", "usps", "cox"])
