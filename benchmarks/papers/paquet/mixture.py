"""A mixture of three correlated normal densities in the plane, and trajectories through it.

The paper does not print its densities, its metric for this figure, or its steps: these are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from benchmarks.measures import largest_rhat, smallest_ess
from benchmarks.papers.flows import constant_metric, flow_of, follow, run_chain
from benchmarks.papers.paper import Run
from pymc_rmhmc import GraphMetric, SoftAbsMetric

__all__ = [
    "COVARIANCES", "MEANS", "SCHEMES", "START", "log_density", "measure_chains", "measure_trajectories",
    "responsibilities",
]  # fmt: skip

type Array = NDArray[np.float64]

MEANS = np.array([[-2.0, 0.0], [1.5, 2.0], [1.5, -2.0]])
COVARIANCES = np.array([[[1.0, r], [r, 1.0]] for r in (0.95, -0.95, 0.9)])
PRECISIONS = np.linalg.inv(COVARIANCES)
START, CHAINS, SHOWN = np.array([-2.9, -1.1]), 2, 3


@dataclass(frozen=True)
class Scheme:
    """A name for tables, the metric, the step size and the number of steps."""

    label: str
    metric: Any
    step_size: float
    n_steps: int


def log_density(q: Array) -> Array:
    """Log density of the mixture at points (..., 2)."""
    return logsumexp(_log_parts(q), axis=-1)


def responsibilities(q: Array) -> Array:
    """The probability (..., 3) that each component made a point."""
    parts = _log_parts(q)
    return np.exp(parts - logsumexp(parts, axis=-1, keepdims=True))


def _log_parts(q: Array) -> Array:
    pairs = zip(MEANS, COVARIANCES, strict=True)
    return np.stack([multivariate_normal(m, s).logpdf(q) for m, s in pairs], axis=-1) - math.log(3.0)


def _symbolic_parts(x: Any) -> Any:
    """Log densities of the three components, without what they share."""
    apart = x[None, :] - MEANS
    square = (pt.as_tensor_variable(PRECISIONS) * apart[:, :, None] * apart[:, None, :]).sum(axis=(1, 2))
    return -0.5 * square + 0.5 * np.linalg.slogdet(PRECISIONS)[1]


def mixture() -> pm.Model:
    """The mixture as a PyMC model."""
    with pm.Model() as model:
        x = pm.Flat("x", shape=2)
        pm.Potential("mixture", pt.logsumexp(_symbolic_parts(x)))
    return model


def mean_precision(model: pm.Model) -> Any:
    """Return ``Σₖ rₖ(x) Σₖ⁻¹``, the precisions weighted by the responsibilities r: positive definite everywhere."""
    parts = _symbolic_parts(model.rvs_to_values[model["x"]])
    weights = pt.exp(parts - pt.logsumexp(parts))
    return (weights[:, None, None] * pt.as_tensor_variable(PRECISIONS)).sum(axis=0)


SCHEMES = {
    "hmc": Scheme("HMC, unit mass", constant_metric(np.eye(2)), 0.15, 20),
    "softabs": Scheme("RMHMC, SoftAbs of the Hessian, α = 1", SoftAbsMetric(1.0, structure="dense"), 0.15, 20),
    "precision": Scheme("RMHMC, mean precision", GraphMetric(mean_precision), 0.15, 20),
}


def measure_trajectories(run: Run) -> dict:
    """Follow trajectories from the same place; momenta are the metric's own draws of the same normal numbers."""
    scheme, rng, paths = SCHEMES[run.sampler], np.random.default_rng(run.seed), []
    flow = flow_of(mixture(), scheme.metric)
    for _ in range(SHOWN):
        momentum = flow.refresh(flow.state(START), rng).momentum
        path = follow(flow, START, momentum, scheme.step_size, scheme.n_steps)
        error = float(path.energy[-1] - path.energy[0])
        complete = len(path.q) == scheme.n_steps + 1
        paths.append({"q": np.round(path.q, 3).tolist(), "energy_error": error, "complete": complete})
    moved = [float(np.linalg.norm(np.subtract(path["q"][-1], START))) for path in paths]
    return {"paths": paths, "moved": moved, "said": "moved " + ", ".join(f"{each:.2f}" for each in moved)}


def measure_chains(run: Run) -> dict:
    """Two chains from the means of two components: acceptance, how far draws are apart, and the components' shares."""
    scheme = SCHEMES[run.sampler]
    flow, first = flow_of(mixture(), scheme.metric), CHAINS * run.seed
    with np.errstate(all="ignore"):
        made = [
            run_chain(flow, MEANS[i], run.draws, scheme.step_size, lambda rng: scheme.n_steps, first + i)
            for i in range(CHAINS)
        ]
    draws = np.stack([chain.draws for chain in made])
    moved = np.linalg.norm(np.diff(draws, axis=1), axis=-1)
    ess = smallest_ess(draws)
    return {
        "draws": CHAINS * run.draws, "acceptance": float(np.mean([chain.acceptance for chain in made])),
        "failed": float(np.mean([chain.failed for chain in made])), "moved": float(moved.mean()), "ess": ess,
        "rhat": largest_rhat(draws), "seconds": sum(chain.seconds for chain in made),
        "shares": responsibilities(draws).mean(axis=(0, 1)).tolist(), "said": f"ESS {ess:.0f}",
        "kept": np.round(draws[0, :500], 3).tolist(),
    }  # fmt: skip
