"""The bivariate normal density ``N(0, Σ)`` of unit variances and correlation ρ, and its samplers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from benchmarks.measures import largest_rhat, smallest_ess
from benchmarks.papers.cobb.divergence import autocorrelation
from benchmarks.papers.flows import Chain, Path, constant_metric, flow_of, follow, run_chain
from benchmarks.papers.paper import Run

__all__ = ["SAMPLERS", "energy", "gibbs_chain", "leapfrog_angle", "measure_chains", "measure_trajectories", "sigma"]

type Array = NDArray[np.float64]

# Steps of the slides.
HMC_STEP, HMC_STEPS = 0.18, 20
STEP, STEPS = 0.8, 15
# Where trajectories start, in coordinates in which the density is N(0, I): an orbit that is nearly a circle.
START, MOMENTUM = np.array([1.3, 0.0]), np.array([0.0, 1.25])
LAGS, KEPT, CHAINS = 100, 400, 2


@dataclass(frozen=True)
class Sampler:
    """A name for tables, whether its metric is Σ⁻¹, its step size, and how many steps a trajectory has."""

    label: str
    riemannian: bool
    step_size: float
    n_steps: Callable[[np.random.Generator], int]


SAMPLERS = {
    "hmc": Sampler("HMC, ε = 0.18, L = 20", False, HMC_STEP, lambda rng: HMC_STEPS),
    "gibbs": Sampler("Gibbs", False, math.nan, lambda rng: 0),
    "rmhmc": Sampler("RMHMC, ε = 0.8, L = 15", True, STEP, lambda rng: STEPS),
    "rmhmc drawn": Sampler("RMHMC, ε = 0.8, L drawn from 1 to 15", True, STEP, lambda rng: int(rng.integers(1, 16))),
    "rmhmc quarter": Sampler("RMHMC, ε = 0.8, L = 2", True, STEP, lambda rng: 2),
}


def sigma(rho: float) -> Array:
    """The covariance."""
    return np.array([[1.0, rho], [rho, 1.0]])


def energy(q: Array, p: Array, rho: float, riemannian: bool) -> Array:
    """The Hamiltonian of the slides without its constants: ``½ qᵀΣ⁻¹q`` and ``½ pᵀp`` or ``½ pᵀΣp``, for each row."""
    mass = sigma(rho) if riemannian else np.eye(2)
    return 0.5 * np.einsum("ti,ij,tj->t", q, np.linalg.inv(sigma(rho)), q) + 0.5 * np.einsum("ti,ij,tj->t", p, mass, p)


def leapfrog_angle(step_size: float, n_steps: int) -> float:
    """The angle by which leapfrog steps turn ``N(0, 1)``; its cosine is the correlation of neighbouring draws."""
    return n_steps * math.acos(1.0 - 0.5 * step_size**2)


def gibbs_chain(rho: float, draws: int, seed: int, start: Array) -> Chain:
    """Draw each value given the other, in turns."""
    rng, x, sd = np.random.default_rng(seed), start.copy(), math.sqrt(1.0 - rho**2)
    kept, began = np.empty((draws, 2)), time.thread_time()
    for row in kept:
        x[0] = rho * x[1] + sd * rng.standard_normal()
        x[1] = rho * x[0] + sd * rng.standard_normal()
        row[:] = x
    return Chain(kept, 1.0, 0.0, time.thread_time() - began)


def model(rho: float) -> pm.Model:
    """The density as a PyMC model."""
    with pm.Model() as made:
        pm.MvNormal("x", np.zeros(2), cov=sigma(rho))
    return made


def measure_chains(run: Run) -> dict:
    """Two chains of a sampler from exact draws; the experiment's name ends with ρ."""
    rho, sampler = float(run.experiment.split()[1]), SAMPLERS[run.sampler]
    starts = np.random.default_rng(run.seed).multivariate_normal(np.zeros(2), sigma(rho), CHAINS)
    seeds = [CHAINS * run.seed + i for i in range(CHAINS)]
    if run.sampler == "gibbs":
        made = [gibbs_chain(rho, run.draws, seed, start) for seed, start in zip(seeds, starts, strict=True)]
    else:
        flow = flow_of(model(rho), constant_metric(np.linalg.inv(sigma(rho)) if sampler.riemannian else np.eye(2)))
        made = [
            run_chain(flow, start, run.draws, sampler.step_size, sampler.n_steps, seed)
            for seed, start in zip(seeds, starts, strict=True)
        ]
    draws = np.stack([chain.draws for chain in made])
    ess = smallest_ess(draws)
    return {
        "draws": draws.shape[0] * draws.shape[1], "acceptance": float(np.mean([chain.acceptance for chain in made])),
        "seconds": sum(chain.seconds for chain in made), "ess": ess, "rhat": largest_rhat(draws),
        "variance": float((draws**2).mean()), "correlation": float((draws[..., 0] * draws[..., 1]).mean()),
        "autocorrelation": [autocorrelation(draws[..., i], LAGS) for i in range(2)],
        "kept": np.round(draws[0, :KEPT], 3).tolist(), "said": f"ESS {ess:.0f}",
    }  # fmt: skip


def measure_trajectories(run: Run) -> dict:
    """Trajectories of HMC and RMHMC, one each, and of RMHMC three with new momenta."""
    rho = float(run.experiment.split()[1])
    # z = R⁻¹q turns Σ into I; RMHMC's momentum is R⁻ᵀ times that of z.
    root = np.linalg.cholesky(sigma(rho))
    start, record = root @ START, {}
    for name, matrix, momentum, size, steps in (
        ("hmc", np.eye(2), MOMENTUM, HMC_STEP, HMC_STEPS),
        ("rmhmc", np.linalg.inv(sigma(rho)), np.linalg.solve(root.T, MOMENTUM), STEP, STEPS),
    ):
        flow, riemannian = flow_of(model(rho), constant_metric(matrix)), name == "rmhmc"
        path = follow(flow, start, momentum, size, steps)
        record[name] = _kept(path, rho, riemannian)
    rng, q, three = np.random.default_rng(run.seed), start, []
    for _ in range(3):
        path = follow(flow, q, np.linalg.solve(root.T, rng.standard_normal(2)), STEP, STEPS)
        three.append(_kept(path, rho, True))
        q = path.q[-1]
    spans = (f"{np.ptp(record[name]['H']):.3f}" for name in ("hmc", "rmhmc"))
    return record | {"three": three, "said": "ranges of H: " + ", ".join(spans)}


def _kept(path: Path, rho: float, riemannian: bool) -> dict:
    values = {"q": path.q, "p": path.p, "H": energy(path.q, path.p, rho, riemannian)}
    return {name: np.round(value, 4).tolist() for name, value in values.items()}
