"""A check of integrators' steps in any metric."""

from __future__ import annotations

import numpy as np

from pymc_rmhmc.dynamics.hamiltonian import RiemannianState
from pymc_rmhmc.errors import Failure

__all__ = ["check_steps"]


def check_steps(field, q, integrator) -> None:
    """Steps from q succeed, which includes that they are reversible, and are of second order."""
    flow, point = field.hamiltonian(), field.evaluate(q)
    start = RiemannianState(point, point.sample_momentum(np.random.default_rng(6)))
    errors = []
    for step_size in (0.1, 0.05):
        state = start
        for _ in range(round(0.4 / step_size)):
            step = integrator.step(flow, state, step_size)
            assert step.failure is Failure.NONE
            state = step.state
        errors.append(abs(flow.energy(state) - flow.energy(start)))
    assert errors[0] < 0.5
    assert 2.0 < errors[0] / errors[1] < 8.0
