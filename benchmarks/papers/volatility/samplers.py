"""The model, its samplers, and a run of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.papers.chains import measure_nutpie, measure_step, summary
from benchmarks.papers.cobb.divergence import autocorrelation
from benchmarks.papers.paper import Run
from pymc_rmhmc import RMHMC, BlockMetric

__all__ = ["NAMES", "SAMPLERS", "SLIDES", "TIMES", "measure", "observations"]

DATA = Path(__file__).resolve().parents[3] / "data" / "sv_synth_T2000.npz"
TIMES, LONG, LAGS, KEPT = 500, 2000, 60, 1000
NAMES = ("beta", "sigma", "phi")
PARAMETERS = ("beta", "sigma2", "half")
# Acceptance that the slides print.
SLIDES = {"metropolis": "0.25 (slide 17)", "hmc": "0.95 (slide 19)", "fisher": "0.95 (slide 54)"}


@dataclass(frozen=True)
class Sampler:
    """A name for tables, what makes the step in the model's context (None for nutpie), its draws and its tuning."""

    label: str
    make: Callable[[], Any] | None
    times: int = 1
    tune: int | None = 1000


def observations(times: int = TIMES) -> dict[str, np.ndarray]:
    """The first of a series drawn at β = 0.65, σ = 0.15, φ = 0.98: y, its log volatilities x, and the truth."""
    with np.load(DATA) as data:
        return {name: data[name][:times] if data[name].ndim else data[name] for name in ("y", "x", *NAMES)}


def volatility(times: int = TIMES) -> pm.Model:
    """``y = β exp(x/2) ε`` and ``x = φ x' + σ η``, with the stationary distribution at the start."""
    with pm.Model() as model:
        beta = pm.HalfNormal("beta", 2.0)
        sigma = pm.Deterministic("sigma", pm.math.sqrt(pm.InverseGamma("sigma2", 5.0, 0.25)))
        phi = pm.Deterministic("phi", 2.0 * pm.Beta("half", 20.0, 1.5) - 1.0)
        start = pm.Normal.dist(0.0, sigma / pm.math.sqrt(1.0 - phi**2), shape=1)
        x = pm.AR("x", phi[None], sigma=sigma, init_dist=start, steps=times - 1)
        pm.Normal("y", 0.0, beta * pm.math.exp(0.5 * x), observed=observations(times)["y"])
    return model


def _in_turns(parameters: Callable[[list[Any]], Any]) -> Callable[[], Any]:
    """The log volatilities by `RMHMC`, and the parameters by another step."""

    def make() -> list[Any]:
        model = pm.modelcontext(None)
        return [RMHMC(vars=["x"]), parameters([model[name] for name in PARAMETERS])]

    return make


SAMPLERS: dict[str, Sampler] = {
    "metropolis": Sampler("Metropolis for the parameters", _in_turns(lambda v: pm.Metropolis(vars=v)), 3),
    "hmc": Sampler("HMC for all", lambda: pm.HamiltonianMC(target_accept=0.95)),
    "fisher": Sampler(
        "RMHMC, Fisher, for the parameters", _in_turns(lambda v: RMHMC(vars=v, metric=BlockMetric()))
    ),
    "block": Sampler("RMHMC, blocks, for all", partial(RMHMC, metric=BlockMetric()), tune=300),
    "flat": Sampler("RMHMC() for all", RMHMC, 1, None),
    "nutpie": Sampler("nutpie for all", None),
}


def measure(run: Run) -> dict:
    """Two chains: the parameters' moments and effective draws, and how many volatilities are covered."""
    times = LONG if run.experiment == "long" else TIMES
    sampler, names, model = SAMPLERS[run.sampler], (*NAMES, "x"), volatility(times)
    if sampler.make is None:
        draws, record = measure_nutpie(model, names, run)
    else:
        draws, record = measure_step(model, sampler.make, names, run, sampler.tune)
    found, x, truth = summary(draws), draws[..., len(NAMES) :], observations(times)["x"]
    low, high = np.quantile(x, (0.05, 0.95), axis=(0, 1))
    by_parameter = {key: found[key][: len(NAMES)] for key in ("mean", "sd", "mcse", "ess")}
    return record | by_parameter | {
        "rhat": found["rhat"], "x_ess": min(found["ess"][len(NAMES) :]),
        "covered": float(np.mean((truth >= low) & (truth <= high))),
        "autocorrelation": [autocorrelation(draws[..., i], LAGS) for i in range(len(NAMES))],
        "kept": np.round(draws[0, :KEPT, : len(NAMES)], 4).tolist(),
        "x": {key: np.round(v, 3).tolist() for key, v in (("low", low), ("mean", x.mean(axis=(0, 1))), ("high", high))},
        "said": f"ESS {min(by_parameter['ess']):.0f} in {record['tuning'] + record['sampling']:.1f} s",
    }  # fmt: skip
