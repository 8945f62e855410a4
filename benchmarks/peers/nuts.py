"""NUTS: nutpie on the whitened model (or the centred one), and PyMC's with a fixed Laplace mass matrix."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pymc as pm
from pymc.step_methods.hmc.quadpotential import QuadPotentialFull

from benchmarks.deadline import NEVER, Deadline
from benchmarks.joint_problems import JointProblem
from benchmarks.outcome import Outcome, merged, stacked
from benchmarks.peers.laplace import Gaussian, fixed_gaussian, joint_gaussian
from benchmarks.peers.pymc_chains import sample
from benchmarks.problems import Problem

CHAINS = 2


def nutpie_whitened(
    problem: Problem | JointProblem, seed: int, deadline: Deadline = NEVER, draws: int = 1000
) -> Outcome:
    """nutpie as it comes, its own number of tuning draws included, on ``f = mean + L v``."""
    return _nutpie(problem.whitened(), problem.parameters, seed, deadline, draws)


def nutpie_centred(
    problem: Problem | JointProblem, seed: int, deadline: Deadline = NEVER, draws: int = 1000
) -> Outcome:
    """The same on the centred model, where many data a coefficient make that its better form."""
    return _nutpie(problem.centred(), problem.parameters, seed, deadline, draws)


def _nutpie(model: pm.Model, parameters: tuple[str, ...], seed: int, deadline: Deadline, draws: int) -> Outcome:
    return merged(nutpie_chains(model, parameters, seed, deadline, draws))


def nutpie_chains(
    model: pm.Model, parameters: tuple[str, ...], seed: int, deadline: Deadline, draws: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Outcome]:  # fmt: skip
    """Chain after chain, each with its part of the time: a chain that is aborted hands in what it has.

    The clock tells the seconds that are handed in, and what compiling took; the deadline is in wall-clock seconds.
    """
    import nutpie

    began = clock()
    compiled = nutpie.compile_pymc_model(model)
    nutpie.sample(compiled, draws=5, tune=5, chains=1, seed=0, progress_bar=False)  # loads what there is
    compiling = clock() - began
    deadline.begin()
    chains = []
    for chain in range(CHAINS):
        started = clock()
        part = deadline.share(CHAINS - chain)
        sampler = nutpie.sample(
            compiled, draws=draws, chains=1, cores=1, seed=CHAINS * seed + chain, progress_bar=False, save_warmup=True,
            blocking=False,
        )  # fmt: skip
        try:
            idata = sampler.wait(timeout=part.left if np.isfinite(part.left) else None)
            cut = False
        except TimeoutError:
            idata, cut = sampler.abort(), True
        outcome = _nutpie_chain(idata, parameters, clock() - started, cut)
        outcome.extra["compile"] = compiling
        chains.append(outcome)
    return chains


def _nutpie_chain(idata, parameters: tuple[str, ...], seconds: float, cut: bool) -> Outcome:
    """One chain; tuning and sampling share its seconds as they share its gradients."""
    stats, tuned = idata.sample_stats, idata.warmup_sample_stats
    extra = {"tune": int(tuned.sizes["draw"])}
    if not stats.sizes.get("draw", 0):
        return Outcome(stacked(idata.warmup_posterior, parameters), seconds, 0.0, extra, "tuning")
    steps = float(stats["n_steps"].sum())
    part = float(tuned["n_steps"].sum()) / (float(tuned["n_steps"].sum()) + steps)
    extra |= {"divergences": float(stats["diverging"].mean()), "steps": steps / stats.sizes["draw"]}
    draws = stacked(idata.posterior, parameters)
    return Outcome(draws, part * seconds, (1 - part) * seconds, extra, "sampling" if cut else "")


def laplace_mass(
    problem: Problem | JointProblem, seed: int, deadline: Deadline = NEVER, draws: int = 1000, tune: int = 300
) -> Outcome:
    """PyMC's NUTS on the whitened model with the Laplace covariance as a fixed mass matrix, from the mode.

    The search for the mode and the Hessian count as tuning.
    """
    model = problem.whitened()
    gaussian: Gaussian = fixed_gaussian(problem) if isinstance(problem, Problem) else joint_gaussian(model)
    with model:
        step = pm.NUTS(potential=QuadPotentialFull(gaussian.covariance), target_accept=0.8)
        run = sample(
            step, problem.parameters, draws, tune, seed, Deadline(deadline.seconds - gaussian.seconds),
            ("tree_size", "diverging"), gaussian.start,
        )  # fmt: skip
    steps, tuned = float(run.drawn["tree_size"].sum()), float(run.tuned["tree_size"].sum())
    part = tuned / (tuned + steps)
    count = max(1, run.drawn["tree_size"].size)
    extra = {
        "divergences": float(run.drawn["diverging"].sum() / count), "steps": steps / count,
        "mode and Hessian": gaussian.seconds, "eigenvalues lifted": gaussian.lifted,
    }  # fmt: skip
    return Outcome(run.draws, part * run.seconds + gaussian.seconds, (1 - part) * run.seconds, extra, run.stopped)
