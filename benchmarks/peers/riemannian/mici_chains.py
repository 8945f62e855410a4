"""mici: its SoftAbs and dense Riemannian systems, with hand-written NumPy derivatives.

They are twenty times faster on the funnel than mici's JAX back-end, which runs each vector-Jacobian product uncompiled.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.outcome import Outcome
from benchmarks.peers.riemannian.budget import draws_within
from benchmarks.peers.riemannian.problems import ALPHA, TOLERANCE, Funnel, Logistic

__all__ = ["as_it_comes", "leapfrog", "midpoint"]

PILOT = 5


def leapfrog(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """Its implicit leapfrog, at half of the step size, since it goes 2ε in a step."""
    return _run(problem, seed, seconds, "ImplicitLeapfrogIntegrator", 0.5 * problem.step_size)


def midpoint(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """Its implicit midpoint rule."""
    return _run(problem, seed, seconds, "ImplicitMidpointIntegrator", problem.step_size)


def as_it_comes(problem: Funnel | Logistic, seed: int, seconds: float) -> Outcome:
    """Its implicit leapfrog where the derivative of SoftAbs divides zero by zero at equal eigenvalues."""
    return _run(problem, seed, seconds, "ImplicitLeapfrogIntegrator", 0.5 * problem.step_size, guarded=False)


def _run(
    problem: Funnel | Logistic, seed: int, seconds: float, name: str, step_size: float, guarded: bool = True
) -> Outcome:
    import mici

    system = _system(problem, guarded=guarded)
    # The tolerance of its check of reversibility is mici's own, 2e-8.
    integrator = getattr(mici.integrators, name)(
        system, step_size=step_size, fixed_point_solver_kwargs={"convergence_tol": TOLERANCE, "max_iters": 100}
    )

    def chains(starts, draws, seed):
        sampler = mici.samplers.StaticMetropolisHMC(
            system, integrator, np.random.default_rng(seed), n_step=problem.n_steps
        )
        started = time.process_time()
        result = sampler.sample_chains(
            0, draws, starts, trace_funcs=[lambda state: {"q": problem.measured(state.pos)}], adapters=[], n_process=1,
            display_progress=False,
        )  # fmt: skip
        return result, time.process_time() - started

    starts = problem.starts(seed)
    _, pilot = chains(starts[:1], PILOT, seed + 1000)
    result, spent = chains(starts, draws_within(seconds, pilot / PILOT), seed)
    held = {name: np.concatenate(list(values)) for name, values in result.statistics.items()}
    failed = (held["convergence_error"] > 0) | (held["non_reversible_step"] > 0)
    extra = {
        "acceptance": float(held["accept_stat"].mean()), "failures": float(failed.mean()),
        "steps": float(held["n_step"].mean()),
        "compile": 0.0,
    }  # fmt: skip
    return Outcome(np.array(result.traces["q"]), 0.0, spent, extra)


def _system(problem: Funnel | Logistic, guarded: bool):
    import mici

    def pull(q):
        return lambda bar: problem.pullback(q, bar)

    if problem.metric == "fisher":
        return mici.systems.DenseRiemannianMetricSystem(
            problem.energy, grad_neg_log_dens=problem.gradient, metric_func=problem.matrix, vjp_metric_func=pull
        )
    system = mici.systems.SoftAbsRiemannianMetricSystem(
        problem.energy, grad_neg_log_dens=problem.gradient, hess_neg_log_dens=problem.matrix, mtp_neg_log_dens=pull,
        softabs_coeff=ALPHA,
    )  # fmt: skip
    if guarded:
        system._metric_matrix_class = _guarded_matrix()
    return system


def _guarded_matrix():
    """mici's matrix, with the limit where two eigenvalues are equal: without it every step on the funnel is NaN."""
    from mici.matrices import SoftAbsRegularizedPositiveDefiniteMatrix

    class Guarded(SoftAbsRegularizedPositiveDefiniteMatrix):
        def grad_quadratic_form_inv(self, vector):
            gap = self.unreg_eigval[:, None] - self.unreg_eigval
            equal = gap == 0.0
            slopes = self.grad_softabs(self.unreg_eigval)[:, None]
            ratio = np.where(equal, slopes, (self.eigval[:, None] - self.eigval) / np.where(equal, 1.0, gap))
            u = (self.eigvec.T @ vector) / self.eigval
            return -((self.eigvec @ (np.outer(u, u) * ratio)) @ self.eigvec.T)

    return Guarded
