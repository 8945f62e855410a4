"""What the explicit integrators accept on the funnel, by ω and by place, and how biased the published acceptance is."""

from __future__ import annotations

import math

import arviz as az
import numpy as np

from benchmarks.papers.cobb.binding import OverwrittenBinding
from benchmarks.papers.cobb.funnel import PUBLISHED, SD, SHORT, SHORTER, SIZE, funnel, hamiltonian_of
from benchmarks.papers.paper import Run
from pymc_rmhmc import DenseField, ExplicitTao, GeneralizedLeapfrog
from pymc_rmhmc.kernels.trajectories import FixedSteps
from pymc_rmhmc.metrics.graph_metric import MatrixPoint

__all__ = ["ANGLES", "BINDINGS", "PLACES", "measure_bias", "measure_omega", "measure_reach"]

# 2ωε in units of π.
ANGLES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)
BINDINGS = ("printed", "released", "exact")
STEP, PATH, SIGMA = 0.05, 3.5, 0.03
# Values of v, up to three standard deviations.
PLACES = (-9.0, -7.5, -6.0, -4.5, -3.0, -1.5, 0.0, 1.5, 3.0, 4.5, 6.0, 7.5, 9.0)


def _integrator(binding: str, omega: float, sigma: float = SIGMA) -> ExplicitTao:
    if binding == "released":
        return OverwrittenBinding(omega)
    if binding == "exact":
        return ExplicitTao(omega, sigma)
    return ExplicitTao(omega, acceptance="one_copy_approximate")


def measure_omega(run: Run) -> dict:
    """Move exact draws of the funnel once, for each angle: what is accepted, and what fails."""
    base, record = hamiltonian_of(funnel()), {"angles": ANGLES, "acceptance": [], "failed": []}
    for angle in ANGLES:
        integrator = _integrator(run.sampler, 0.5 * math.pi * angle / STEP)
        flow, rng = integrator.extend(base), np.random.default_rng(run.seed)
        accepted, failed = 0.0, 0
        for _ in range(run.draws):
            v = SD * rng.standard_normal()
            start = flow.state(np.append(v, math.exp(-0.5 * v) * rng.standard_normal(SIZE)))
            with np.errstate(all="ignore"):
                moved = FixedSteps(round(PATH / STEP)).move(flow, integrator, start, STEP, rng)
            accepted, failed = accepted + moved.acceptance, failed + bool(moved.failure)
        record["acceptance"].append(accepted / run.draws)
        record["failed"].append(failed / run.draws)
    return record | {"said": f"accepted at most {max(record['acceptance']):.2f}"}


def measure_reach(run: Run) -> dict:
    """Start trajectories at each v, with x from its distribution there: what is accepted, with the table's settings."""
    integrator, settings = {
        "implicit": (GeneralizedLeapfrog(), PUBLISHED),
        "released": (OverwrittenBinding(10.0), PUBLISHED),
        "printed": (_integrator("printed", 5.0), SHORT),
        "exact": (_integrator("exact", 12.5, 0.01), SHORTER),
    }[run.sampler]
    flow, rng = integrator.extend(hamiltonian_of(funnel())), np.random.default_rng(run.seed)
    accepted = []
    for v in PLACES:
        total = 0.0
        for _ in range(run.draws):
            start = flow.state(np.append(v, math.exp(-0.5 * v) * rng.standard_normal(SIZE)))
            with np.errstate(all="ignore"):
                moved = FixedSteps(int(settings["n_steps"])).move(flow, integrator, start, settings["step_size"], rng)
            total += moved.acceptance
        accepted.append(total / run.draws)
    return {"places": PLACES, "acceptance": accepted, "said": f"{min(accepted):.2f} to {max(accepted):.2f}"}


class BentMetric(DenseField):
    """``1 + q²``, which does not fit a normal density."""

    def matrix(self, point):
        return np.diag(1.0 + point.position**2)

    def pullback(self, point, bar):
        return 2.0 * point.position * bar.diagonal()


class StandardNormal:
    """A standard normal density in one dimension."""

    def at(self, position):
        return MatrixPoint(position, -0.5 * float(position @ position), -position, np.eye(1))


def measure_bias(run: Run) -> dict:
    """Sample a standard normal density in the metric 1 + q², with two long steps, from two exact draws."""
    integrators = {"implicit": GeneralizedLeapfrog()} | {name: _integrator(name, 1.0, 0.3) for name in BINDINGS}
    integrator, rng = integrators[run.sampler], np.random.default_rng(run.seed)
    flow, q, accepted = integrator.extend(BentMetric(StandardNormal()).hamiltonian()), np.empty((2, run.draws)), 0.0
    for chain in q:
        state = flow.state(rng.standard_normal(1))
        for i in range(run.draws):
            with np.errstate(all="ignore"):
                moved = FixedSteps(2).move(flow, integrator, state, 1.0, rng)
            state, accepted, chain[i] = moved.state, accepted + moved.acceptance, moved.state.position[0]
    squares = az.from_dict({"posterior": {"s": q**2}})
    variance, mcse = float(np.mean(q**2)), float(az.mcse(squares, method="mean")["s"])
    return {
        "variance": variance, "mcse": mcse, "acceptance": accepted / q.size,
        "said": f"variance {variance:.3f} ± {mcse:.3f}",
    }  # fmt: skip
