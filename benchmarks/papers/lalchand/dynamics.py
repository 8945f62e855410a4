"""The slides on HMC: the leapfrog's error, and a warped normal density."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.measures import largest_rhat, smallest_ess
from benchmarks.papers.flows import constant_metric, flow_of, follow, run_chain
from benchmarks.papers.paper import Run
from pymc_rmhmc import FisherMetric, ImplicitMidpoint

__all__ = ["SETTINGS", "STEP_SIZES", "leapfrog", "measure_leapfrog", "measure_warped", "warped_log_density"]

STEPS, STEP_SIZES = 20, (0.1, 0.3, 1.0, 1.9, 2.05)
ROWS, NOISE, TRUTH, CHAINS, SHOWN = 100, 2.0, 1.0, 2, 100
START = np.array([0.0, 1.0])


def leapfrog(q: float, p: float, step_size: float, n_steps: int) -> np.ndarray:
    """Return the states (n_steps + 1, 2) of the leapfrog for ``q²/2 + p²/2``."""
    states = [(q, p)]
    for _ in range(n_steps):
        p -= 0.5 * step_size * q
        q += step_size * p
        p -= 0.5 * step_size * q
        states.append((q, p))
    return np.array(states)


def measure_leapfrog(run: Run) -> dict:
    """Twenty steps of several sizes from one state."""
    paths = {f"{size:g}": leapfrog(1.0, 0.5, size, STEPS) for size in STEP_SIZES}
    largest = {size: float(np.ptp(0.5 * (path**2).sum(axis=1))) for size, path in paths.items()}
    return {
        "paths": {size: np.round(path, 4).tolist() for size, path in paths.items()}, "largest": largest,
        "said": f"error {max(largest.values()):.3g} at most",
    }  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """A name for tables, whether the metric is Fisher's, the step size, and the number of steps."""

    label: str
    riemannian: bool
    step_size: float
    n_steps: int
    integrator: Any = None


SETTINGS = {
    f"{'rmhmc' if riemannian else 'hmc'} {size:g} {steps}": Setting(
        f"{'RMHMC' if riemannian else 'HMC'}, ε = {size:g}, L = {steps}", riemannian, size, steps
    )
    for riemannian, size, steps in (
        (False, 0.05, 20), (False, 0.01, 20), (False, 0.2, 20), (False, 0.05, 2), (False, 0.05, 100),
        (True, 0.05, 20), (True, 0.2, 10),
    )
}  # fmt: skip
SETTINGS["midpoint 0.2 10"] = Setting("RMHMC, midpoint, ε = 0.2, L = 10", True, 0.2, 10, ImplicitMidpoint())


def _observations() -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal(ROWS)
    return TRUTH + NOISE * (noise - noise.mean())


def warped() -> pm.Model:
    """A normal prior of two values, and data whose mean is ``θ₁ + θ₂²``: the posterior is a bent band."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, shape=2)
        pm.Normal("y", theta[0] + theta[1] ** 2, NOISE, observed=_observations())
    return model


def warped_log_density(first: Any, second: Any) -> Any:
    """The posterior's log density but for a constant."""
    apart = first + second**2 - TRUTH
    return -0.5 * (first**2 + second**2) - 0.5 * ROWS * apart**2 / NOISE**2


def truth_of_moments() -> tuple[float, float]:
    """Return the posterior's mean of θ₁ and variance of θ₂ from a fine grid."""
    first, second = np.meshgrid(np.linspace(-6.0, 3.0, 1501), np.linspace(-4.0, 4.0, 1501))
    weights = np.exp(warped_log_density(first, second))
    weights /= weights.sum()
    return float((weights * first).sum()), float((weights * second**2).sum())


def measure_warped(run: Run) -> dict:
    """Two chains: acceptance, effective draws, moments; and a hundred trajectories of the first."""
    setting = SETTINGS[run.sampler]
    metric = FisherMetric(chart="graph") if setting.riemannian else constant_metric(np.eye(2))
    flow = flow_of(warped(), metric)
    with np.errstate(all="ignore"):
        made = [
            run_chain(
                flow, START, run.draws, setting.step_size, lambda rng: setting.n_steps, CHAINS * run.seed + i,
                setting.integrator,
            )
            for i in range(CHAINS)
        ]
        rng = np.random.default_rng(run.seed)
        momentum = flow.refresh(flow.state(START), rng).momentum
        path = follow(flow, START, momentum, setting.step_size, setting.n_steps, setting.integrator)
    draws = np.stack([chain.draws for chain in made])
    ess, (mean, variance) = smallest_ess(draws), truth_of_moments()
    return {
        "draws": draws.shape[0] * draws.shape[1], "ess": ess, "rhat": largest_rhat(draws),
        "acceptance": float(np.mean([chain.acceptance for chain in made])),
        "failed": float(np.mean([chain.failed for chain in made])),
        "seconds": sum(chain.seconds for chain in made), "mean": [float(draws[..., 0].mean()), mean],
        "variance": [float((draws[..., 1] ** 2).mean()), variance], "kept": np.round(draws[0, :SHOWN], 3).tolist(),
        "path": np.round(path.q, 3).tolist(), "said": f"ESS {ess:.0f}" if math.isfinite(ess) else "",
    }  # fmt: skip
