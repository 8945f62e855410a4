"""mici's DenseRiemannianMetricSystem with its implicit integrator, step size adapted by its own adapter."""

from __future__ import annotations

import time

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from benchmarks.outcome import Outcome
from benchmarks.peers.blackjax_rmhmc import laplace_draw
from benchmarks.problems import Problem


def run(
    problem: Problem, seed: int, draws: int = 60, tune: int = 40, n_steps: int = 6, step_size: float | None = None,
    integrator: str = "ImplicitMidpointIntegrator",
) -> Outcome:  # fmt: skip
    """``G(f) = W(f) + K⁻¹``, a fixed number of steps; the step size adapted where none is given."""
    import mici

    precision = np.linalg.inv(problem.covariance)
    sign = 2.0 * problem.y - 1.0

    def curvature(f):
        if problem.likelihood == "logit":
            p = expit(f)
            return sign * expit(-sign * f), p * (1 - p), p * (1 - p) * (1 - 2 * p)
        z = sign * f
        rho = np.exp(norm.logpdf(z) - norm.logcdf(z))
        return sign * rho, rho * (z + rho), sign * rho * ((1 - z**2) - 3 * z * rho - 2 * rho**2)

    def neg_log_density(f):
        value = np.logaddexp(0, -sign * f).sum() if problem.likelihood == "logit" else -norm.logcdf(sign * f).sum()
        return value + 0.5 * f @ precision @ f

    system = mici.systems.DenseRiemannianMetricSystem(
        neg_log_density,
        grad_neg_log_dens=lambda f: precision @ f - curvature(f)[0],
        metric_func=lambda f: precision + np.diag(curvature(f)[1]),
        vjp_metric_func=lambda f: lambda matrix: np.diag(matrix) * curvature(f)[2],
    )
    moves = getattr(mici.integrators, integrator)(system, step_size=step_size)
    sampler = mici.samplers.StaticMetropolisHMC(system, moves, np.random.default_rng(seed), n_step=n_steps)
    adapters = [mici.adapters.DualAveragingStepSizeAdapter(adapt_stat_target=0.8)] if step_size is None else []
    starts = [laplace_draw(problem, 100 * seed + chain) for chain in range(2)]
    times = []

    def trace(state):
        times.append(time.perf_counter())
        return {"f": state.pos}

    started = time.perf_counter()
    result = sampler.sample_chains(
        tune, draws, starts, trace_funcs=[trace], adapters=adapters, n_process=1, trace_warm_up=True,
        display_progress=False,
    )  # fmt: skip
    total = time.perf_counter() - started
    traces = np.array(result.traces["f"])
    per_draw = total / (2 * (tune + draws))
    accept = float(np.mean(list(result.statistics["accept_stat"])))
    return Outcome(
        traces[:, -draws:], 2 * tune * per_draw, 2 * draws * per_draw,
        {"acceptance": accept, "step size": float(moves.step_size)},
    )  # fmt: skip
