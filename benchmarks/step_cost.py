"""What an implicit step costs in units of its own factorisation, and how many it makes.

A step of the generalised leapfrog against dpotrf + dtrtri of the same size, without and with the reversal
check, side by side; and the implicit midpoint's factorisations. Run with ``python -m benchmarks.step_cost``.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time

import numpy as np
from scipy.linalg import lapack

from benchmarks.problems import logit, usps
from pymc_rmhmc.approximation import find_mode, laplace_sites
from pymc_rmhmc.dynamics.hamiltonian import RiemannianHamiltonian
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.latent.charts import SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentTarget
from pymc_rmhmc.metrics import LatentField
from pymc_rmhmc.model import compile_model, read_structure
from pymc_rmhmc.tuning.adaptation import DualAveraging

N_STEPS = 6


def build(problem):
    """The Hamiltonian of a problem, and a draw of its Laplace approximation to start from."""
    model = problem.centred()
    block = compile_model(read_structure(model)).blocks[0]
    point = model.initial_point()
    prior, likelihood = FactorizedPrior(block.prior(point)), block.likelihood(point)
    start = SiteChart(prior, laplace_sites(find_mode(prior.predictor, likelihood, "hessian")))
    chart = SiteChart(prior)
    flow = RiemannianHamiltonian(LatentField(LatentTarget(chart, likelihood), "hessian"))
    z = np.random.default_rng(0).standard_normal(problem.n)
    return flow, chart.from_model(start.to_model(z))


def factorisation(n: int, repeats: int = 7) -> float:
    """Seconds of dpotrf + dtrtri."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, n))
    matrix = np.asfortranarray(x @ x.T / n + np.eye(n))
    times = []
    for _ in range(repeats):
        copy = matrix.copy(order="F")
        started = time.perf_counter()
        factor, _ = lapack.dpotrf(copy, lower=1, overwrite_a=1)
        lapack.dtrtri(factor, lower=1, overwrite_c=1)
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def measure(problem, integrator, draws: int):
    """Seconds a step, metrics a step, acceptance and step size, at an acceptance adapted to 0.85."""
    flow, z = build(problem)
    rng, state, adaptation = np.random.default_rng(1), flow.state(z), DualAveraging(0.1, 0.85)
    times, metrics, steps, iterations, acceptance = [], 0, 0, 0, []
    for i in range(2 * draws):
        size = adaptation.current if i < draws else adaptation.average
        started = time.perf_counter()
        outcome = transition(flow, integrator, state, N_STEPS, size, rng)
        spent = time.perf_counter() - started
        state = outcome.state
        if i < draws:
            adaptation.update(outcome.acceptance)
            continue
        times.append(spent / outcome.n_steps)
        metrics, steps = metrics + outcome.n_metric_evals, steps + outcome.n_steps
        iterations += outcome.n_solver_iter
        acceptance.append(outcome.acceptance)
    return float(np.median(times)), metrics / steps, iterations / steps, float(np.mean(acceptance)), adaptation.average


def main() -> None:
    """Print one line for each size and integrator."""
    columns = ("problem", "n", "integrator", "metrics a step", "iterations", "acceptance", "step size", "ms a step")
    print("| " + " | ".join(columns) + " | × (dpotrf + dtrtri) |")
    print("| --- |" + " --- |" * 8)
    np.seterr(all="ignore")  # what overflows in a trajectory is a counted failure, as in the step itself
    for problem in (logit(200), logit(500), usps(), logit(1000)):
        base = factorisation(problem.n)
        draws = 40 if problem.n < 600 else 25
        for name, integrator in (
            ("leapfrog, unchecked", GeneralizedLeapfrog(check_reversibility=False)),
            ("leapfrog, checked", GeneralizedLeapfrog()),
            ("midpoint, checked", ImplicitMidpoint()),
        ):
            seconds, metrics, iterations, acceptance, size = measure(
                problem, integrator, 15 if "midpoint" in name else draws
            )
            print(
                f"| {problem.name} | {problem.n} | {name} | {metrics:.2f} | {iterations:.1f} | {acceptance:.2f} |"
                f" {size:.3f} | {1e3 * seconds:.2f} | {seconds / base:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
