"""The classifier, its samplers, and a run of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import expit

from benchmarks.papers.chains import measure_nutpie, measure_step, summary
from benchmarks.papers.paper import Run
from pymc_rmhmc import MMALA, RMHMC, BlockMetric, WhitenedFisherMetric
from pymc_rmhmc.metrics.processes.process_density import CentredDensity, Kernel, WhitenedDensity

__all__ = ["PARAMETERS", "SAMPLERS", "TRUTH", "classifier", "measure"]

POINTS, LEAPFROGS = 100, 30
PARAMETERS = ("sigma", "tau1", "tau2")
# The paper's text has neither its true values nor its prior: these are ours, on the scale of ψ.
TRUTH = {"sigma": 1.5, "tau1": -1.5, "tau2": -0.5}
PRIOR_SD = 1.0
# Draws of tuning, and those of samplers that need fewer: an implicit step is dear.
TUNE, SHORT = 1000, 300
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
    with pm.Model(model=None) as model:  # on its own, also where another model is in context
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
    tune : int or None
        Draws of tuning; None leaves them to the step.
    limit : float
        How many times the usual seconds it may take.
    """

    label: str
    make: Callable[[], Any] | None
    whitened: bool = False
    tune: int | None = TUNE
    limit: float = 1.0


def _in_turns(latent: Callable[[], Any], parameters: Callable[[list[Any]], Any]) -> Callable[[], Any]:
    """The latent values by one step, and the hyperparameters by another."""
    return lambda: [latent(), parameters([pm.modelcontext(None)[name] for name in PARAMETERS])]


@cache
def pilot() -> np.ndarray:
    """Covariance of (ψ, f) under the posterior, by which the paper too tunes Metropolis and HMC."""
    with classifier(whitened=False):
        found = pm.sample(draws=1000, chains=1, step=RMHMC(), random_seed=1, progressbar=False)["posterior"]
    drawn = [np.atleast_2d(found[name].to_numpy()[0].T) for name in (*PARAMETERS, "f")]
    return np.cov(np.concatenate(drawn))


def _latent_metropolis() -> Any:
    k = len(PARAMETERS)
    return pm.Metropolis(vars=[pm.modelcontext(None)["f"]], S=pilot()[k:, k:])


def _metropolis(parameters: list[Any]) -> Any:
    k = len(PARAMETERS)
    return pm.Metropolis(vars=parameters, S=pilot()[:k, :k], blocked=True)


def _hamiltonian() -> Any:
    return pm.HamiltonianMC(scaling=pilot(), is_cov=True, max_steps=LEAPFROGS)


CURVED = {"max_steps": LEAPFROGS}
SAMPLERS: dict[str, Sampler] = {
    "gibbs mh": Sampler("Gibbs MH", _in_turns(_latent_metropolis, _metropolis)),
    "gibbs s-mmala": Sampler(
        "Gibbs S-MMALA", _in_turns(partial(MMALA, ["f"]), lambda v: MMALA(v, metric=BlockMetric()))
    ),
    "gibbs rm-hmc": Sampler("Gibbs RM-HMC", _in_turns(
        partial(RMHMC, ["f"], metric="fisher", **CURVED), lambda v: RMHMC(v, metric=BlockMetric(), **CURVED)
    ), tune=SHORT),
    # Metropolis samples what the model has, so that this row alone is of the whitened model.
    "gibbs wht": Sampler(
        "Gibbs whitening", _in_turns(partial(RMHMC, ["f"], metric="fisher", **CURVED), _metropolis),
        whitened=True, tune=SHORT,
    ),
    # From the centred model too: the metric says what is held, here ν = L⁻¹(f - m).
    "gibbs rm-hmc whitened": Sampler("Gibbs RM-HMC, whitened", _in_turns(
        partial(RMHMC, ["f"], metric="fisher", **CURVED), lambda v: RMHMC(v, metric=WhitenedFisherMetric(), **CURVED)
    ), tune=SHORT),
    "hmc": Sampler("HMC", _hamiltonian),
    "s-mmala": Sampler("S-MMALA", partial(MMALA, metric=BlockMetric())),
    "rm-hmc": Sampler("RM-HMC", partial(RMHMC, metric=BlockMetric(), **CURVED), tune=SHORT, limit=3.0),
    "whitened": Sampler(
        "RM-HMC, whitened Fisher", partial(RMHMC, metric=WhitenedFisherMetric(), **CURVED), tune=SHORT, limit=1.5
    ),
    "flat": Sampler("RMHMC()", RMHMC, tune=None),
    "nutpie": Sampler("nutpie, whitened", None, whitened=True),
}  # fmt: skip


class CountedKernel(Kernel):
    """It counts the factors of K, and how often G_θ is made of one."""

    factors = informed = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        CountedKernel.factors += 1

    @cached_property
    def information(self) -> np.ndarray:
        """See `Kernel`."""
        CountedKernel.informed += 1
        return super().information


def count_kernels() -> None:
    """Let the densities make kernels that count, which they take from their class."""
    CentredDensity.kernel_class = WhitenedDensity.kernel_class = CountedKernel


def measure(run: Run) -> dict:
    """Two chains: the effective draws of all latent values and hyperparameters, and what they took."""
    sampler = SAMPLERS[run.sampler]
    model, names = classifier(whitened=sampler.whitened), (*PARAMETERS, "f")
    count_kernels()
    run = replace(run, limit=run.limit * sampler.limit)
    if sampler.make is None:
        draws, record = measure_nutpie(model, names, run)
    else:
        draws, record = measure_step(model, sampler.make, names, run, sampler.tune)
    found, k = summary(draws), len(PARAMETERS)
    latent, all_draws = found["ess"][k:], draws.shape[0] * (draws.shape[1] + (sampler.tune or 0))
    return record | {
        "ess": found["ess"][:k], "mean": found["mean"][:k], "sd": found["sd"][:k], "mcse": found["mcse"][:k],
        "rhat": found["rhat"], "latent": [min(latent), float(np.mean(latent)), max(latent)],
        "factors": CountedKernel.factors / all_draws, "informed": CountedKernel.informed / all_draws,
    }  # fmt: skip
