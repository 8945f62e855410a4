"""Time from ``RMHMC(...)`` to its first draw, without imports: with an empty cache, another model's, its own.

At fixed hyperparameters and with them; another model is one with another likelihood.

Beside it PyMC's ``logp_dlogp_function`` for the same model. Run with ``python -m benchmarks.startup``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

CODE = """
import os, time
import numpy as np, pymc as pm
from benchmarks.joint_problems import regression
from benchmarks.problems import logit, probit
from pymc_rmhmc import RMHMC
kind, what = {kind!r}, {what!r}
makers = dict(
    logit=lambda: logit(200), probit=lambda: probit(200),
    joint_logit=lambda: regression("logit", 100), joint_poisson=lambda: regression("poisson", 100),
)
model = makers[kind]().centred()
started = time.perf_counter()
with model:
    if what == "rmhmc":
        step = RMHMC()
        step.setup_chain(np.random.default_rng(0), 10, 10)
        step.step(model.initial_point())
    else:
        function = model.logp_dlogp_function(ravel_inputs=True)
        function.set_extra_values({{}})
        from pymc.blocking import DictToArrayBijection
        function(DictToArrayBijection.map(model.initial_point()))
print("SECONDS", time.perf_counter() - started)
"""


def seconds(kind: str, what: str, cache: str) -> float:
    """One measurement in a process of its own, with its own cache folder."""
    env = {**os.environ, "PYTENSOR_FLAGS": f"base_compiledir={cache}", "NUMBA_CACHE_DIR": f"{cache}/numba",
           "OPENBLAS_NUM_THREADS": "1"}  # fmt: skip
    finished = subprocess.run(
        [sys.executable, "-c", CODE.format(kind=kind, what=what)], env=env, capture_output=True, text=True, check=True
    )
    return float(finished.stdout.split("SECONDS")[1])


# One model, and another that fills its cache: at fixed θ, and with θ sampled.
PAIRS = {"fixed θ, n = 200": ("logit", "probit"), "joint, n = 100": ("joint_logit", "joint_poisson")}


def main() -> None:
    """Print the table."""
    print("| sampler | what | empty cache | another model's cache | its own cache |\n| --- | --- | --- | --- | --- |")
    for name, (kind, other) in PAIRS.items():
        for what in ("rmhmc", "logp_dlogp_function"):
            with tempfile.TemporaryDirectory() as cache:
                empty = seconds(kind, what, cache)
            with tempfile.TemporaryDirectory() as cache:
                seconds(other, what, cache)
                filled, own = seconds(kind, what, cache), seconds(kind, what, cache)
            print(f"| {name} | {what} | {empty:.2f} | {filled:.2f} | {own:.2f} |", flush=True)


if __name__ == "__main__":
    main()
