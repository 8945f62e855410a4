"""The process, the samplers of its field and of its hyperparameters, and a run of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from benchmarks.papers.chains import measure_step, summary
from benchmarks.papers.paper import Run
from pymc_rmhmc import MALA, MMALA, RMHMC, EllipticalSlice, FlatMetric

__all__ = ["GIBBS", "LATENT", "SIDE", "TRUTH", "latent_model", "measure_gibbs", "measure_latent", "process"]

DATA = Path(__file__).resolve().parents[3] / "data" / "lgcp_testdata64.npz"
SIDE, SMALL = 64, 32
TRUTH = {"variance": 1.91, "beta": 1.0 / 33.0}
MEAN = float(np.log(126.0) - 0.5 * TRUTH["variance"])
KEPT = 500


def process(side: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances (n, n) between the cells of the unit square, and counts (n,); a coarser grid adds up four cells.

    The published counts follow coordinates from 0 to 1 and ``exp(-distance / (64 β))``. The slides measure distance in
    cells instead, which is a range 63 times as short.
    """
    with np.load(DATA) as data:
        counts = np.asarray(data["Y"]).reshape(SIDE, SIDE)
    times = SIDE // side
    counts = counts.reshape(side, times, side, times).sum(axis=(1, 3)).ravel()
    at = np.linspace(0.0, 1.0, side)
    x, y = (axis.ravel() for axis in np.meshgrid(at, at, indexing="ij"))
    return np.hypot(x[:, None] - x, y[:, None] - y), counts.astype(int)


@cache
def covariance(side: int) -> np.ndarray:
    """``σ² exp(-distance / (64 β))`` at the true values."""
    return TRUTH["variance"] * np.exp(-process(side)[0] / (SIDE * TRUTH["beta"]))


def latent_model(*, whitened: bool, side: int = SIDE) -> pm.Model:
    """The counts given the field, with the hyperparameters at their true values."""
    _, counts = process(side)
    with pm.Model() as model:
        if whitened:
            noise = pm.Normal("noise", 0.0, 1.0, shape=side**2)
            field = MEAN + pt.dot(np.linalg.cholesky(covariance(side)), noise)
            pm.Deterministic("x", field)
        else:
            field = pm.MvNormal("x", np.full(side**2, MEAN), cov=covariance(side))
        pm.Poisson("y", pm.math.exp(field) / side**2, observed=counts)
    return model


def full_model(side: int = SMALL) -> pm.Model:
    """The same with priors of σ² and β; their text has none that we could read."""
    distance, counts = process(side)
    with pm.Model() as model:
        variance = pm.LogNormal("variance", 0.5, 0.7)
        beta = pm.LogNormal("beta", -3.5, 0.7)
        matrix = variance * pt.exp(-distance / (SIDE * beta)) + 1e-8 * np.eye(side**2)
        field = pm.MvNormal("x", np.full(side**2, MEAN), cov=matrix)
        pm.Poisson("y", pm.math.exp(field) / side**2, observed=counts)
    return model


@dataclass(frozen=True)
class Sampler:
    """A name for tables, what makes the step in the model's context, and its tuning draws.

    Attributes
    ----------
    whitened : bool
        Whether the model is the one of independent normals.
    start : str
        "mean" begins at the prior's mean, "mode" near the mode of the posterior.
    """

    label: str
    make: Callable[[], Any]
    whitened: bool = False
    tune: int | None = None
    start: str = ""


CONSTANT = FlatMetric(sites="prior_expected")
LATENT: dict[str, Sampler] = {
    "mala transient": Sampler("MALA, whitened, from the mean", MALA, True, 500, "mean"),
    "mala stationary": Sampler("MALA, whitened, from the mode", MALA, True, 500, "mode"),
    "slice": Sampler("elliptical slice", EllipticalSlice, tune=500),
    "mmala": Sampler("mMALA, constant metric", partial(MMALA, metric=CONSTANT), tune=500),
    "constant": Sampler("RMHMC, constant metric", partial(RMHMC, metric=CONSTANT)),
    "flat": Sampler("RMHMC()", RMHMC),
}


def _start(sampler: Sampler, model: pm.Model, side: int) -> Any:
    """Where both chains begin, in the model's values; None where the step chooses."""
    if not sampler.start:
        return None
    noise = np.zeros(side**2)
    if sampler.start == "mode":
        mode = pm.find_MAP(model=model, progressbar=False)
        noise = np.asarray(mode["noise"])
    return [{"noise": noise}] * 2


def measure_latent(run: Run) -> dict:
    """Two chains of the field: the effective draws of every cell."""
    sampler = LATENT[run.sampler]
    model = latent_model(whitened=sampler.whitened)
    starts = _start(sampler, model, SIDE)
    draws, record = measure_step(model, sampler.make, ("x",), run, sampler.tune, starts=starts)
    found = summary(draws)
    centre = int(np.argmax(process(SIDE)[1]))
    return record | {
        "ess": [float(q) for q in np.quantile(found["ess"], (0.0, 0.5, 1.0))], "rhat": found["rhat"],
        "field": [round(v, 3) for v in found["mean"]] if run.sampler == "flat" else [],
        "kept": [round(float(v), 3) for v in draws[0, :KEPT, centre]],
        "mean_of_all": float(draws.mean()), "error_of_all": float(np.mean(found["mcse"])),
    }  # fmt: skip


def _in_turns(parameters: Callable[[list[Any]], Any]) -> Callable[[], Any]:
    """The field by `RMHMC`, and the hyperparameters by another step."""

    def make() -> list[Any]:
        model = pm.modelcontext(None)
        return [RMHMC(vars=["x"]), parameters([model[name] for name in TRUTH])]

    return make


GIBBS: dict[str, Sampler] = {
    "gibbs": Sampler(
        "field by RMHMC, σ² and β by Metropolis in turn", _in_turns(lambda v: pm.Metropolis(vars=v)), tune=500
    ),
    "joint": Sampler("RMHMC(): field, σ² and β together", RMHMC),
}


def measure_gibbs(run: Run) -> dict:
    """Two chains of σ² and β: all their draws."""
    sampler = GIBBS[run.sampler]
    draws, record = measure_step(full_model(), sampler.make, tuple(TRUTH), run, sampler.tune)
    found = summary(draws)
    kept = np.moveaxis(draws, -1, 0)[:, :, :: max(1, draws.shape[1] // KEPT)]
    return record | {k: found[k] for k in ("ess", "mean", "sd", "mcse", "rhat")} | {
        "kept": [[[round(float(v), 5) for v in chain] for chain in parameter] for parameter in kept]
    }
