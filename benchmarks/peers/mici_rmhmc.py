"""mici's DenseRiemannianMetricSystem with its implicit leapfrog; step size and length were searched by hand."""

from __future__ import annotations

import time

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from benchmarks.deadline import NEVER, Deadline
from benchmarks.outcome import Outcome
from benchmarks.peers.blackjax_rmhmc import laplace_draw
from benchmarks.problems import Problem

# (step size, steps) and draws a chain: the best of a few pairs. Its leapfrog goes 2ε in a step. Its own dual
# averaging ends near the same step size, but pays for that with longer tuning than these draws take. Its
# implicit midpoint accepted nothing at ε = 0.1 and above, by plain fixed-point iteration.
SETTINGS = {"logit": ((0.2, 4), 300), "probit": ((0.1, 8), 50)}


def run(problem: Problem, seed: int, deadline: Deadline = NEVER, draws: int | None = None, tune: int = 5) -> Outcome:
    """``G(f) = W(f) + K⁻¹``, a fixed number of steps of a fixed size, from a draw of the Laplace approximation."""
    (step_size, n_steps), settled = SETTINGS[problem.likelihood]
    draws = settled if draws is None else draws
    deadline.begin()  # not looked at: a few draws, a minute or two
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
    integrator = mici.integrators.ImplicitLeapfrogIntegrator(system, step_size=step_size)
    sampler = mici.samplers.StaticMetropolisHMC(system, integrator, np.random.default_rng(seed), n_step=n_steps)
    starts = [laplace_draw(problem, 100 * seed + chain) for chain in range(2)]
    started = time.perf_counter()
    result = sampler.sample_chains(
        tune, draws, starts, trace_funcs=[lambda state: {"f": state.pos}], adapters=[], n_process=1, trace_warm_up=True,
        display_progress=False,
    )  # fmt: skip
    total = time.perf_counter() - started
    traces = np.array(result.traces["f"])
    per_draw = total / (2 * (tune + draws))
    accept = float(np.mean(list(result.statistics["accept_stat"])))
    return Outcome(
        traces[:, -draws:], 2 * tune * per_draw, 2 * draws * per_draw,
        {"acceptance": accept, "step size": step_size},
    )  # fmt: skip
