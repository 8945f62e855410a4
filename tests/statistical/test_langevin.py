"""Langevin proposals leave latent values alone: exact draws stay exact."""

from __future__ import annotations

import pytest

from pymc_rmhmc.kernels.single_moves import Langevin
from tests.statistical.exact import Cell, hamiltonian_of, make_target, stationarity

pytestmark = pytest.mark.slow

FULL, SIMPLE = Langevin(simplified=False), Langevin()


def moved_by(kernel):
    """A move as `stationarity` makes it."""
    return lambda flow, integrator, state, n_steps, step_size, rng: kernel.move(
        flow, integrator, state, step_size, rng
    )


LATENT = [
    (Cell("hessian", "poisson", "centred", step_size=1.0), SIMPLE),
    (Cell("hessian", "poisson", "additive", step_size=1.0), FULL),
    (Cell("fisher", "poisson", "narrow", step_size=1.2), FULL),
    (Cell("fisher", "student_t", "rotated", beta=0.5, step_size=1.3), FULL),
]


@pytest.mark.parametrize(("cell", "kernel"), LATENT, ids=str)
def test_langevin_keeps_exact_draws_of_latent_values(cell, kernel):
    target = make_target(cell)
    flow = hamiltonian_of(target, cell.metric)
    outcome = stationarity(target, flow, None, cell, 2500, seed=6, transitions=3, move=moved_by(kernel))
    assert outcome.p_value > 1e-4 / len(LATENT)
    assert outcome.failure_rate < 0.05
    assert outcome.moved > 0.2
    assert 0.3 < outcome.acceptance < 0.97
