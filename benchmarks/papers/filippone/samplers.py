"""The classifier, its samplers, and a run of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit

from benchmarks.papers.chains import measure_nutpie, measure_step, summary
from benchmarks.papers.paper import Run
from pymc_rmhmc import MMALA, RMHMC, BlockMetric, WhitenedFisherMetric

__all__ = ["PARAMETERS", "SAMPLERS", "TRUTH", "classifier", "measure"]

POINTS, LEAPFROGS = 100, 30
PARAMETERS = ("sigma", "tau1", "tau2")
# The paper's text has neither its true values nor its prior: these are ours, on the scale of ψ.
TRUTH = {"sigma": 1.5, "tau1": -1.5, "tau2": -0.5}
PRIOR_SD = 1.0
JITTER = 1e-6


def data(points: int = POINTS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs (n, 2), the latent values that were drawn (n,), and outcomes (n,)."""
    rng = np.random.default_rng(100)
    x = rng.uniform(-1.0, 1.0, (points, 2))
    left = (x[:, None, :] - x) ** 2 / np.exp([TRUTH["tau1"], TRUTH["tau2"]])
    matrix = np.exp(TRUTH["sigma"] - 0.5 * left.sum(axis=-1)) + JITTER * np.eye(points)
    f = np.linalg.cholesky(matrix) @ rng.standard_normal(points)
    return x, f, (rng.random(points) < expit(f)).astype(int)


def classifier(*, whitened: bool, points: int = POINTS) -> pm.Model:
    """``p(y = 1) = σ(f)`` and ``k = exp(ψ_σ) exp(-½ Σ (x - x')²/exp(ψ_τ))``."""
    x, _, y = data(points)
    with pm.Model() as model:
        sigma, *tau = (pm.Normal(name, TRUTH[name], PRIOR_SD) for name in PARAMETERS)
        scale = pt.exp(0.5 * pt.stack(tau))
        gp = pm.gp.Latent(cov_func=pt.exp(sigma) * pm.gp.cov.ExpQuad(2, ls=scale))
        f = gp.prior("f", X=x, reparameterize=whitened, jitter=JITTER)
        pm.Bernoulli("y", logit_p=f, observed=y)
    return model


@dataclass(frozen=True)
class Sampler:
    """A name for tables, what makes the step in the model's context (None for nutpie), and the model's form.

    Attributes
    ----------
    paper : bool
        Whether the paper has it, with its tuning of 1000 draws.
    """

    label: str
    make: Callable[[], Any] | None
    whitened: bool = False
    paper: bool = True


def _in_turns(latent: Callable[[], Any], parameters: Callable[[list[Any]], Any]) -> Callable[[], Any]:
    """The latent values by one step, and the hyperparameters by another."""
    return lambda: [latent(), parameters([pm.modelcontext(None)[name] for name in PARAMETERS])]


def _latent_metropolis() -> Any:
    return pm.Metropolis(vars=[pm.modelcontext(None)["f"]])


CURVED = {"max_steps": LEAPFROGS}
SAMPLERS: dict[str, Sampler] = {
    "gibbs mh": Sampler("Gibbs MH", _in_turns(_latent_metropolis, lambda v: pm.Metropolis(vars=v))),
    "gibbs s-mmala": Sampler(
        "Gibbs S-MMALA", _in_turns(partial(MMALA, ["f"]), lambda v: MMALA(v, metric=BlockMetric()))
    ),
    "gibbs rm-hmc": Sampler("Gibbs RM-HMC", _in_turns(
        partial(RMHMC, ["f"], metric="fisher", **CURVED), lambda v: RMHMC(v, metric=BlockMetric(), **CURVED)
    )),
    # Metropolis samples what the model has, so that this row alone is of the whitened model.
    "gibbs wht": Sampler(
        "Gibbs whitening", _in_turns(partial(RMHMC, ["f"], metric="fisher", **CURVED), lambda v: pm.Metropolis(vars=v)),
        True,
    ),
    # From the centred model too: the metric says what is held, here ν = L⁻¹(f - m).
    "gibbs rm-hmc whitened": Sampler("Gibbs RM-HMC, whitened", _in_turns(
        partial(RMHMC, ["f"], metric="fisher", **CURVED), lambda v: RMHMC(v, metric=WhitenedFisherMetric(), **CURVED)
    ), paper=False),
    "hmc": Sampler("HMC", partial(pm.HamiltonianMC, max_steps=LEAPFROGS)),
    "s-mmala": Sampler("S-MMALA", partial(MMALA, metric=BlockMetric())),
    "rm-hmc": Sampler("RM-HMC", partial(RMHMC, metric=BlockMetric(), **CURVED)),
    "whitened": Sampler(
        "RM-HMC, whitened Fisher", partial(RMHMC, metric=WhitenedFisherMetric(), **CURVED), True, False
    ),
    "flat": Sampler("RMHMC()", RMHMC, paper=False),
    "nutpie": Sampler("nutpie, whitened", None, True, False),
}  # fmt: skip


def measure(run: Run) -> dict:
    """Two chains: the effective draws of all latent values and hyperparameters."""
    sampler = SAMPLERS[run.sampler]
    model, names = classifier(whitened=sampler.whitened), (*PARAMETERS, "f")
    if sampler.make is None:
        draws, record = measure_nutpie(model, names, run)
    else:
        draws, record = measure_step(model, sampler.make, names, run, 1000 if sampler.paper else None)
    found = summary(draws)
    k = len(PARAMETERS)
    latent = found["ess"][k:]
    return record | {
        "ess": found["ess"][:k], "mean": found["mean"][:k], "sd": found["sd"][:k], "mcse": found["mcse"][:k],
        "rhat": found["rhat"], "latent": [min(latent), float(np.mean(latent)), max(latent)],
    }  # fmt: skip
