"""What a step of each integrator costs on the funnel, measured in turns so that other work slows all of them alike."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from benchmarks.papers.cobb.binding import OverwrittenBinding
from benchmarks.papers.cobb.funnel import PUBLISHED, SHORT, SIZE, Calls, funnel, hamiltonian_of
from benchmarks.papers.paper import Run
from pymc_rmhmc import AndersonSolver, ExplicitTao, GeneralizedLeapfrog, ImplicitMidpoint
from pymc_rmhmc.dynamics.hamiltonian import RiemannianHamiltonian

__all__ = ["measure_cost"]

STEPS = 10
# Starts from which no integrator fails at once.
LARGEST_V = 2.0


def measure_cost(run: Run) -> dict:
    """Median milliseconds of a step, and derivatives per step, from exact draws with moderate v."""
    integrators = {
        "implicit": (GeneralizedLeapfrog(), PUBLISHED["step_size"]),
        "implicit unchecked": (GeneralizedLeapfrog(check_reversibility=False), PUBLISHED["step_size"]),
        "implicit loose": (
            GeneralizedLeapfrog(AndersonSolver(1e-5, 100), check_reversibility=False), PUBLISHED["step_size"]
        ),
        "midpoint": (ImplicitMidpoint(), PUBLISHED["step_size"]),
        "explicit released": (OverwrittenBinding(10.0), PUBLISHED["step_size"]),
        "explicit printed": (ExplicitTao(5.0, acceptance="one_copy_approximate"), SHORT["step_size"]),
        "explicit exact": (ExplicitTao(12.5, 0.01), 0.02),
    }  # fmt: skip
    base, rng, calls = hamiltonian_of(funnel()), np.random.default_rng(run.seed), Calls()
    spent: dict[str, list[float]] = {name: [] for name in integrators}
    counted = {name: np.zeros(2) for name in integrators}
    for _ in range(run.draws):
        v = rng.uniform(-LARGEST_V, LARGEST_V)
        start = np.append(v, math.exp(-0.5 * v) * rng.standard_normal(SIZE))
        for name, (integrator, step_size) in integrators.items():
            flow = integrator.extend(base)
            state = flow.refresh(flow.state(start), rng)
            began = time.thread_time()
            if _steps(integrator, flow, state, step_size) == STEPS:
                spent[name].append(1e3 * (time.thread_time() - began) / STEPS)
                # Once more without compiled code, whose calls are not seen.
                before = (calls.hessians, calls.thirds)
                _steps(integrator, integrator.extend(RiemannianHamiltonian(base.field)), state, step_size)
                counted[name] += np.subtract((calls.hessians, calls.thirds), before) / STEPS
    record = {
        name: {
            "ms": float(np.median(times)), "hessians": counted[name][0] / len(times),
            "thirds": counted[name][1] / len(times),
        }
        for name, times in spent.items()
    }  # fmt: skip
    ratio = record["implicit"]["ms"] / record["explicit exact"]["ms"]
    return {"steps": record, "said": f"an implicit step costs {ratio:.2g} explicit ones"}


def _steps(integrator: Any, flow: Any, state: Any, step_size: float) -> int:
    """Follow a path, and return how many steps succeeded."""
    with np.errstate(all="ignore"):
        return sum(step.n_steps for step in integrator.path(flow, state, STEPS, step_size) if step.state is not None)
