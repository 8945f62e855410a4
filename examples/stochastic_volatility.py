"""Stochastic volatility: 200 latent values of an autoregression are sampled together with its three parameters.

Run it with ``python examples/stochastic_volatility.py``: under two minutes. The picture is in ``figures/``.
Girolami and Calderhead (2011), section 8; the data are simulated at β = 0.65, σ = 0.15, φ = 0.98.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from pathlib import Path

import arviz as az
import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pymc as pm

from pymc_rmhmc import RMHMC

DATA = Path(__file__).resolve().parent.parent / "data" / "sv_synth_T2000.npz"
FIGURES, TIMES = Path("figures"), 200


def main() -> None:
    with np.load(DATA) as data:
        y, truth = data["y"][:TIMES], data["x"][:TIMES]

    with pm.Model():
        beta = pm.HalfNormal("beta", 2.0)
        sigma = pm.Deterministic("sigma", pm.math.sqrt(pm.InverseGamma("sigma2", 5.0, 0.25)))
        phi = pm.Deterministic("phi", 2.0 * pm.Beta("half", 20.0, 1.5) - 1.0)
        start = pm.Normal.dist(0.0, sigma / pm.math.sqrt(1.0 - phi**2), shape=1)
        x = pm.AR("x", phi[None], sigma=sigma, init_dist=start, steps=TIMES - 1)
        pm.Normal("y", 0.0, beta * pm.math.exp(0.5 * x), observed=y)
        idata = pm.sample(draws=300, step=RMHMC(), chains=2, cores=1, random_seed=1, progressbar=False)
    print(az.summary(idata, var_names=["beta", "sigma", "phi"]))

    draws = idata.posterior["x"].values.reshape(-1, TIMES)
    low, high = np.quantile(draws, (0.05, 0.95), axis=0)
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.6, 4.2), sharex=True, layout="constrained")
    times = np.arange(TIMES)
    top.fill_between(times, low, high, color="#0072B2", alpha=0.2, linewidth=0.0, label="90 % interval")
    top.plot(times, draws.mean(axis=0), color="#0072B2", label="mean")
    top.plot(times, truth, color="black", linewidth=0.8, label="truth")
    top.set(ylabel="log volatility", ylim=(low.min() - 0.2, high.max() + 1.2))
    top.legend(frameon=False, loc="upper center", ncols=3)
    bottom.plot(times, y, color="0.4", linewidth=0.6)
    bottom.set(xlabel="time", ylabel="return")
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / "stochastic_volatility.png", dpi=130)


if __name__ == "__main__":
    main()
