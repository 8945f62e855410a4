"""Gaussian-process regression: the lengthscale, amplitude and noise are sampled, and predictions average over them.

Run it with ``python examples/gp_regression.py``: a minute at most. The picture is in ``figures/``.
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

FIGURES = Path("figures")


def main() -> None:
    rng = np.random.default_rng(1)
    x = np.sort(rng.uniform(0.0, 10.0, 40))[:, None]
    y = np.sin(x[:, 0]) + 0.3 * np.cos(3.0 * x[:, 0]) + 0.2 * rng.standard_normal(40)
    new = np.linspace(-1.0, 12.0, 150)[:, None]

    with pm.Model():
        lengthscale = pm.InverseGamma("lengthscale", 3.0, 3.0)
        amplitude = pm.HalfNormal("amplitude", 2.0)
        noise = pm.HalfNormal("noise", 1.0)
        gp = pm.gp.Marginal(cov_func=amplitude**2 * pm.gp.cov.ExpQuad(1, ls=lengthscale))
        gp.marginal_likelihood("y", X=x, y=y, sigma=noise)
        idata = pm.sample(step=RMHMC(), chains=2, cores=1, random_seed=1)
        print(az.summary(idata, var_names=["lengthscale", "amplitude", "noise"]))
        gp.conditional("f_new", Xnew=new)
        thinned = idata.sel(draw=slice(None, None, 20))
        f = pm.sample_posterior_predictive(thinned, var_names=["f_new"], random_seed=1, progressbar=False)
    draws = f.posterior_predictive["f_new"].values.reshape(-1, len(new))

    low, high = np.quantile(draws, (0.05, 0.95), axis=0)
    figure, axis = plt.subplots(figsize=(7.0, 3.4), layout="constrained")
    axis.fill_between(new[:, 0], low, high, color="#0072B2", alpha=0.2, linewidth=0.0, label="90 % of the draws of f")
    axis.plot(new[:, 0], draws[:6].T, color="#0072B2", linewidth=0.6, alpha=0.7)
    axis.plot(new[:, 0], draws.mean(axis=0), color="#0072B2", linewidth=1.6, label="mean")
    axis.plot(x[:, 0], y, ".", color="black", label="data")
    axis.set(xlabel="x", ylabel="f(x)", ylim=(-3.2, 3.2))
    axis.legend(frameon=False, loc="upper center", ncols=3)
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / "gp_regression.png", dpi=130)


if __name__ == "__main__":
    main()
