"""Time from ``RMHMC(...)`` to its first draw, without imports: with an empty cache, another model's, its own.

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
from benchmarks.problems import logit, probit
from pymc_rmhmc import RMHMC
kind, what = {kind!r}, {what!r}
model = (logit(200) if kind == "logit" else probit(200)).centred()
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


def main() -> None:
    """Print the table."""
    print("| what | cache | seconds |\n| --- | --- | --- |")
    for what in ("rmhmc", "logp_dlogp_function"):
        with tempfile.TemporaryDirectory() as cache:
            for label, kind in (
                ("empty (logit)", "logit"), ("its own (logit)", "logit"), ("another model's (probit)", "probit"),
                ("its own (probit)", "probit"),
            ):  # fmt: skip
                print(f"| {what} | {label} | {seconds(kind, what, cache):.2f} |", flush=True)


if __name__ == "__main__":
    main()
