"""How long a flat-metric trajectory should be, and to which acceptance: the choice of the defaults.

For each path length, jitter and target acceptance: bulk and tail ESS, the smallest over all parameters, a draw, and the
smaller of the two a second. Where the coordinates are standard normal, the rules that would choose a length for
themselves have known answers: ChEES (Hoffman, Radul and Sountsov 2021), the variance of the change of ‖z‖², is largest
at a quarter of a period, π/2, and its own jitter spreads lengths uniformly between 0 and twice that mean; a path turns
back on itself (the U-turn rule) at half a period, π. Both are among the `RULES`. Run with ``python -m
benchmarks.path_length``, or ``python -m benchmarks.path_length grid``; problems may follow.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import arviz as az
import numpy as np
import pymc as pm

from benchmarks.joint_problems import JOINT_PROBLEMS
from benchmarks.measures import all_values
from benchmarks.problems import PROBLEMS
from pymc_rmhmc import RMHMC

DRAWS = 2000
RULES = {
    "the default": {},
    "shorter, 0.3 π": {"path_length": 0.3 * np.pi},
    "ChEES' length, π/2": {"path_length": 0.5 * np.pi},
    "ChEES' length and jitter": {"path_length": 0.5 * np.pi, "jitter": 0.999},
    "longer, 0.75 π": {"path_length": 0.75 * np.pi},
    "a U-turn, π": {"path_length": np.pi},
    "a U-turn, spread": {"path_length": np.pi, "jitter": 0.5},
}
GRID = {
    f"{path} π, jitter {jitter}, to {target}": {
        "path_length": path * np.pi, "jitter": jitter, "target_accept": target,
    }
    for path, jitter, target in itertools.product((0.4, 0.5, 0.54, 0.6), (0.1, 0.2, 0.4), (0.8, 0.9, 0.95))
}  # fmt: skip


def measured(problem, options: dict) -> str:
    """The cells of a line."""
    with problem.centred():
        idata = pm.sample(
            draws=DRAWS, tune=300, chains=2, cores=1, step=RMHMC(**options), progressbar=False, random_seed=1,
            compute_convergence_checks=False,
        )  # fmt: skip
    data = az.from_dict({"posterior": {"x": all_values(idata, problem.parameters)}})
    bulk, tail = (float(az.ess(data, method=method)["x"].min()) for method in ("bulk", "tail"))
    stats = idata.sample_stats
    seconds, total = float(stats["perf_counter_diff"].sum()), 2 * DRAWS
    return (
        f"{float(stats['n_steps'].mean()):.1f} | {float(stats['acceptance_rate'].mean()):.2f} | {bulk / total:.3f} | "
        f"{tail / total:.3f} | {min(bulk, tail) / seconds:.0f}"
    )


def main(arguments: list[str]) -> None:
    """Print one line for each problem and setting."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    settings = GRID if arguments[:1] == ["grid"] else RULES
    names = [name for name in arguments if name != "grid"]
    print("| problem | path | steps | acceptance | bulk/draw | tail/draw | ESS/s |\n| --- |" + " --- |" * 6)
    for name in names or ["logit", "probit", "usps", "cox", "logit ARD 100", "poisson ARD 100"]:
        problem = (PROBLEMS | JOINT_PROBLEMS)[name]()
        for said, options in settings.items():
            print(f"| {name} | {said} | {measured(problem, options)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
