"""Neal's funnel, sampled as it is written: by ``RMHMC()``, and in the position-dependent SoftAbs metric.

Run it with ``python examples/funnel.py``: a minute or two. The picture is in ``figures/``.
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

from pymc_rmhmc import RMHMC, SoftAbsMetric, summarize_failures

FIGURES = Path("figures")
# The path is longer in SoftAbs, whose unit of time is that of a wide funnel.
STEPS = {
    "NUTS": (lambda: None, 1000),
    "RMHMC()": (RMHMC, 1000),
    "RMHMC, SoftAbs": (lambda: RMHMC(metric=SoftAbsMetric(), path_length=10.0), 200),
}


def main() -> None:
    found = {}
    for name, (step, draws) in STEPS.items():
        with pm.Model():
            v = pm.Normal("v", 0.0, 3.0)
            pm.Normal("x", 0.0, pm.math.exp(-0.5 * v), shape=10)
            found[name] = pm.sample(draws=draws, step=step(), chains=2, cores=1, random_seed=1, progressbar=False)
        posterior = found[name].posterior["v"]
        print(f"{name}: v = {float(posterior.mean()):.2f} ± {float(posterior.std()):.2f} (truth: 0 ± 3),",
              f"{float(az.ess(posterior.values)):.0f} effective draws of {posterior.size}")  # fmt: skip
    print(summarize_failures(found["RMHMC, SoftAbs"]))

    heights = np.linspace(-9.0, 9.0, 100)
    figure, panels = plt.subplots(1, len(found), figsize=(8.4, 3.4), sharex=True, sharey=True, layout="constrained")
    for axis, (name, idata) in zip(panels, found.items(), strict=True):
        v, x = (idata.posterior[each].values for each in ("v", "x"))
        axis.plot(x[..., 0].ravel(), v.ravel(), ".", color="#0072B2", markersize=2.5)
        for side in (-2.33, 2.33):
            axis.plot(side * np.exp(-0.5 * heights), heights, color="0.5", linewidth=0.8)
        axis.set(xlim=(-25.0, 25.0), ylim=(-9.5, 9.5), xlabel="first x", title=f"{name}: {v.size} draws")
    panels[0].set_ylabel("v")
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / "funnel.png", dpi=130)


if __name__ == "__main__":
    main()
