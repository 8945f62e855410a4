"""A log-Gaussian Cox process: the intensity of a point pattern on a 16×16 grid, its hyperparameters free.

Run it with ``python examples/cox_process.py``: two minutes at most. The picture is in ``figures/``.
The counts are those of Girolami and Calderhead (2011), section 9, four by four cells of their 64×64 added up.
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

DATA = Path(__file__).resolve().parent.parent / "data" / "lgcp_testdata64.npz"
FIGURES, SIDE = Path("figures"), 16


def coarser(values: np.ndarray) -> np.ndarray:
    """The sums (16, 16) of blocks of a 64×64 grid."""
    width = 64 // SIDE
    return values.reshape(SIDE, width, SIDE, width).sum(axis=(1, 3))


def main() -> None:
    with np.load(DATA) as data:
        counts = coarser(data["Y"].astype(int))
        truth = np.log(coarser(np.exp(data["X"])) / 16.0)
    middle = (np.arange(SIDE) + 0.5) / SIDE
    cells = np.stack(np.meshgrid(middle, middle, indexing="ij"), axis=-1).reshape(-1, 2)

    with pm.Model():
        level = pm.Normal("level", np.log(126.0), 1.0)
        amplitude = pm.HalfNormal("amplitude", 2.0)
        lengthscale = pm.InverseGamma("lengthscale", 2.0, 1.0)
        covariance = amplitude**2 * pm.gp.cov.Exponential(2, ls=lengthscale)
        gp = pm.gp.Latent(mean_func=pm.gp.mean.Constant(level), cov_func=covariance)
        f = gp.prior("f", X=cells, reparameterize=False)
        pm.Poisson("y", mu=pm.math.exp(f) / SIDE**2, observed=counts.ravel())
        idata = pm.sample(draws=500, step=RMHMC(), chains=2, cores=1, random_seed=1, progressbar=False)
    print(az.summary(idata, var_names=["level", "amplitude", "lengthscale"]))

    posterior = idata.posterior["f"]
    mean = posterior.mean(("chain", "draw")).values.reshape(SIDE, SIDE)
    sd = posterior.std(("chain", "draw")).values.reshape(SIDE, SIDE)
    figure, panels = plt.subplots(1, 4, figsize=(9.6, 2.7), layout="constrained")
    pictures = {"counts": counts, "true log intensity": truth, "posterior mean": mean, "posterior sd": sd}
    for axis, (title, values) in zip(panels, pictures.items(), strict=True):
        shared = {"vmin": truth.min(), "vmax": truth.max()} if title in ("true log intensity", "posterior mean") else {}
        figure.colorbar(axis.imshow(values.T, origin="lower", **shared), ax=axis, shrink=0.75)
        axis.set(title=title, xticks=[], yticks=[])
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / "cox_process.png", dpi=130)


if __name__ == "__main__":
    main()
