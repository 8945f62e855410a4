"""NUTS: nutpie on the whitened model, and PyMC's with a fixed Laplace mass matrix."""

from __future__ import annotations

import time

import numpy as np
import pymc as pm
from pymc.step_methods.hmc.quadpotential import QuadPotentialFull

from benchmarks.outcome import Outcome, stacked
from benchmarks.problems import Problem


def nutpie_whitened(problem: Problem, seed: int, draws: int = 1000) -> Outcome:
    """nutpie as it comes, its own number of tuning draws included, on ``f = mean + L v``."""
    import nutpie

    compiled = nutpie.compile_pymc_model(problem.whitened())
    nutpie.sample(compiled, draws=5, tune=5, chains=1, seed=0, progress_bar=False)  # loads what there is
    started = time.perf_counter()
    idata = nutpie.sample(
        compiled, draws=draws, chains=2, cores=1, seed=seed, progress_bar=False, save_warmup=True
    )
    total = time.perf_counter() - started
    steps = idata.sample_stats["n_steps"].values.sum()
    tuned = idata.warmup_sample_stats["n_steps"].values.sum()
    part = tuned / (tuned + steps)
    return Outcome(
        stacked(idata.posterior, problem.parameters), part * total, (1 - part) * total,
        {"divergences": float(idata.sample_stats["diverging"].mean()), "steps": float(steps / (2 * draws)),
         "tune": int(idata.warmup_sample_stats.sizes["draw"])},
    )  # fmt: skip


def laplace_mass(problem: Problem, seed: int, draws: int = 1000, tune: int = 300) -> Outcome:
    """PyMC's NUTS on the whitened model with the Laplace covariance as a fixed mass matrix."""
    model = problem.whitened()
    covariance = _laplace_covariance(problem)
    start = {"v": np.zeros(problem.n)}
    with model:
        potential = QuadPotentialFull(covariance)
        step = pm.NUTS([model["v"]], potential=potential, target_accept=0.8)
        pm.sample(draws=2, tune=2, chains=1, step=step, random_seed=0, progressbar=False)  # compiles what there is
        started = time.perf_counter()
        idata = pm.sample(
            draws=draws, tune=tune, chains=2, cores=1, step=step, initvals=start, random_seed=seed, progressbar=False,
            compute_convergence_checks=False, discard_tuned_samples=False,
        )  # fmt: skip
        total = time.perf_counter() - started
    steps = float(idata.sample_stats["n_steps"].sum())
    tuned = float(idata.warmup_sample_stats["n_steps"].sum())
    part = tuned / (tuned + steps)
    extra = {"divergences": float(idata.sample_stats["diverging"].mean()), "steps": steps / (2 * draws)}
    return Outcome(stacked(idata.posterior, problem.parameters), part * total, (1 - part) * total, extra)


def _laplace_covariance(problem: Problem) -> np.ndarray:
    """``(I + LᵀWL)⁻¹`` at the mode, in the whitened coordinates."""
    from pymc_rmhmc.approximation import find_mode
    from pymc_rmhmc.geometry.prior import FactorizedPrior
    from pymc_rmhmc.model import compile_model, read_structure

    model = problem.centred()
    block = compile_model(read_structure(model)).blocks[0]
    point = model.initial_point()
    prior, likelihood = FactorizedPrior(block.prior(point)), block.likelihood(point)
    mode = find_mode(prior.predictor, likelihood, "hessian")
    factor = prior.predictor.matrix
    return np.linalg.inv(np.eye(problem.n) + factor.T @ (mode.weight[:, None] * factor))
