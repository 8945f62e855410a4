"""Logistic regression on the heart data, in the metric of the Fisher information and by ``RMHMC()``.

Run it with ``python examples/logistic_regression.py``: a minute at most. The picture is in ``figures/``.
Girolami and Calderhead (2011), section 7.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from pymc_rmhmc import RMHMC, FisherMetric, compare

DATA = Path(__file__).resolve().parent.parent / "data" / "heart.csv"
FIGURES = Path("figures")


def main() -> None:
    table = np.genfromtxt(DATA, delimiter=",", skip_header=1)
    x, y = table[:, :-1], table[:, -1].astype(int)
    x = np.column_stack([np.ones(len(y)), (x - x.mean(axis=0)) / x.std(axis=0, ddof=1)])

    found = {}
    for name, step in (
        ("RMHMC()", RMHMC),
        ("Fisher metric", lambda: RMHMC(metric=FisherMetric(chart="graph"), integrator="generalized_leapfrog")),
    ):
        with pm.Model():
            beta = pm.Normal("beta", 0.0, 10.0, shape=x.shape[1])
            pm.Bernoulli("y", logit_p=pm.math.dot(x, beta), observed=y)
            found[name] = pm.sample(step=step(), chains=2, cores=1, random_seed=1, progressbar=False)
    print(compare(found, var_names=["beta"]).T)

    figure, axis = plt.subplots(figsize=(7.0, 3.4), layout="constrained")
    places = np.arange(x.shape[1])
    for shift, colour, (name, idata) in zip((-0.15, 0.15), ("#0072B2", "#D55E00"), found.items(), strict=True):
        draws = idata.posterior["beta"].values.reshape(-1, x.shape[1])
        low, high = np.quantile(draws, (0.05, 0.95), axis=0)
        axis.vlines(places + shift, low, high, color=colour, linewidth=2.0)
        axis.plot(places + shift, draws.mean(axis=0), "o", color=colour, label=name)
    axis.axhline(0.0, color="0.7", linewidth=0.8, zorder=0)
    axis.set_xticks(places, ["one", *(f"x{i}" for i in places[1:])])
    axis.set(ylabel="coefficient, 90 % interval", xlabel="standardised input")
    axis.legend(frameon=False, loc="lower right")
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / "logistic_regression.png", dpi=130)


if __name__ == "__main__":
    main()
