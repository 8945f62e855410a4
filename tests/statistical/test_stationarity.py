"""The kernel leaves its target alone: exact draws stay exact, at β = 1 and 0.5, whatever the sites."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint, RotationSplitting
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.kernels.trajectories import transition
from tests.statistical.exact import Cell, changed, hamiltonian_of, make_target, squash, stationarity
from tests.unit.banana import Banana, InformationField, TwistedField

pytestmark = pytest.mark.slow

LEAPFROG, MIDPOINT, SPLITTING = GeneralizedLeapfrog(), ImplicitMidpoint(), RotationSplitting()

# A pairwise cover of metric, integrator, likelihood, prior form and β.
CELLS = [
    (Cell("hessian", "logit", "centred", 1.0, step_size=0.8), LEAPFROG),
    (Cell("hessian", "poisson", "rotated", 0.5, step_size=0.4), LEAPFROG),
    (Cell("fisher", "student_t", "additive", 1.0, step_size=0.8), LEAPFROG),
    (Cell("fisher", "poisson", "centred", 1.0, step_size=0.3), MIDPOINT),
    (Cell("hessian", "logit", "additive", 0.5, step_size=0.8), MIDPOINT),
    (Cell("fisher", "student_t", "rotated", 0.5, step_size=0.8), MIDPOINT),
    (Cell("hessian", "poisson", "narrow", 1.0, step_size=0.5), LEAPFROG),
    (Cell("fisher", "logit", "narrow", 0.5, step_size=1.6), MIDPOINT),
    (Cell("flat", "logit", "centred", 1.0, step_size=0.7), SPLITTING),
    (Cell("flat", "logit", "rotated", 0.5, step_size=0.7), SPLITTING),
    (Cell("flat", "poisson", "additive", 1.0, step_size=0.3), SPLITTING),
    (Cell("flat", "poisson", "centred", 0.5, step_size=0.4), SPLITTING),
    (Cell("flat", "student_t", "centred", 1.0, step_size=0.7), SPLITTING),
    (Cell("flat", "student_t", "additive", 0.5, sites="none", step_size=0.7), SPLITTING),
    (Cell("spanned", "poisson", "centred", 1.0, step_size=0.4), SPLITTING),
    (Cell("spanned", "logit", "additive", 0.5, step_size=0.7), SPLITTING),
    (Cell("spanned", "student_t", "rotated", 1.0, step_size=0.7), SPLITTING),
    (Cell("rounded", "poisson", "centred", 1.0, step_size=0.3), SPLITTING),
    (Cell("rounded", "logit", "centred", 0.5, step_size=0.7), SPLITTING),
    (Cell("rounded", "student_t", "centred", 1.0, step_size=0.5), SPLITTING),
]


def label(value):
    if isinstance(value, Cell | float):
        return str(value)
    return getattr(value, "__name__", type(value).__name__)


@pytest.mark.parametrize(("cell", "integrator"), CELLS, ids=label)
def test_exact_draws_stay_exact(cell, integrator):
    target = make_target(cell)
    count = 700 if integrator is MIDPOINT else 2500
    outcome = stationarity(target, hamiltonian_of(target, cell.metric), integrator, cell, count, seed=5)
    # Of all cells together: a false alarm in one of ten thousand runs of the whole table.
    assert outcome.p_value > 1e-4 / len(CELLS)
    assert outcome.failure_rate < 0.05
    # A kernel that hardly moves or hardly rejects would pass without being tested.
    assert outcome.moved > 0.2
    assert 0.3 < outcome.acceptance < 0.999


# The leapfrog's equations have no solution for longer steps in the tails of the first.
OWN = [(InformationField, LEAPFROG, 0.12), (InformationField, MIDPOINT, 0.3), (TwistedField, LEAPFROG, 0.3)]


@pytest.mark.parametrize(("field", "integrator", "step_size"), OWN, ids=label)
def test_exact_draws_of_any_density_stay_exact_in_a_metric_of_ones_own(field, integrator, step_size):
    density, rng = Banana((1e-3, 1.0, 1e3)), np.random.default_rng(5)
    flow, failures, accepted = field(density).hamiltonian(), 0, 0.0
    before = np.array([density.draw(rng) for _ in range(400)])
    after = []
    for start in before:
        state = flow.state(start)
        for _ in range(2):
            outcome = transition(flow, integrator, state, 3, step_size, rng)
            state = outcome.state
            failures += bool(outcome.failure)
            accepted += outcome.acceptance
        after.append(state.position)
    moved = np.array(after) / density.units - before / density.units
    assert changed(squash(np.array(after), before) - squash(before, before)) > 1e-5
    assert failures / 800 < 0.05
    assert 0.3 < accepted / 800 < 0.999
    assert np.abs(moved).mean() > 0.2


@pytest.mark.parametrize("integrator", [GeneralizedLeapfrog, ImplicitMidpoint])
def test_halving_the_tolerance_changes_neither_means_nor_acceptance(integrator):
    cell = Cell("hessian", "poisson", step_size=0.4)
    target = make_target(cell)
    flow = hamiltonian_of(target, "hessian")
    runs = []
    for tolerance in (1e-9, 5e-10):
        rng, state = np.random.default_rng(0), flow.state(np.zeros(3))
        method, trace, decisions = integrator(AndersonSolver(tolerance, 100)), [], []
        for _ in range(300):
            outcome = transition(flow, method, state, 3, cell.step_size, rng)
            state = outcome.state
            trace.append(state.position)
            decisions.append(outcome.accepted)
        runs.append((np.array(trace), decisions))
    assert runs[0][1] == runs[1][1]
    np.testing.assert_allclose(runs[0][0].mean(axis=0), runs[1][0].mean(axis=0), atol=1e-4)
