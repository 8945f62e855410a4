"""The explicit integrator leaves its target alone if it is accepted by both copies, and not if by one, as published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from pymc_rmhmc.dynamics.tao import ExplicitTao, TaoHamiltonian
from pymc_rmhmc.kernels.trajectories import FixedSteps, UTurn
from tests.statistical.exact import changed, squash
from tests.statistical.ranks import Looks
from tests.unit.funnel import BentField, Funnel, FunnelField, Normal

pytestmark = pytest.mark.slow

SEEDS, RIGHT_SEEDS, REJECT = 10, 3, 1e-3
NORMAL, FUNNEL = BentField(Normal()), FunnelField(Funnel(10))
# The metric of the funnel where v = 0.
FUNNEL_MASS = np.append(6.0, np.ones(10))


@dataclass(frozen=True)
class Cell:
    """A metric, an integrator, and how it is used."""

    field: object
    omega: float
    sigma: float
    step_size: float
    trajectory: object
    count: int
    mass: object = 1.0
    acceptance: str = "extended"
    transitions: int = 2

    @property
    def integrator(self) -> ExplicitTao:
        return ExplicitTao(self.omega, self.sigma, mass=self.mass, acceptance=self.acceptance)


@dataclass(frozen=True)
class Outcome:
    p_value: float
    acceptance: float
    failure_rate: float
    before: np.ndarray
    after: np.ndarray


def stationarity(cell: Cell, seed: int, kind=None, until: float | None = None) -> Outcome:
    """Move exact draws, and test that no coordinate's distribution has changed."""
    integrator, rng = cell.integrator, np.random.default_rng(seed)
    flow = integrator.extend(cell.field.hamiltonian())
    if kind is not None:
        flow = kind(flow.base, flow.sigma, flow.mass, exact=flow.exact)
    before = np.array([cell.field.density.draw(rng) for _ in range(cell.count)])
    squashed = squash(before, before)
    looks = Looks(cell.count, until, lambda moved: changed(squash(moved, before) - squashed[: len(moved)]))
    after, failures, accepted = [], 0, 0.0
    while not looks.decided(after):
        state = flow.state(before[len(after)])
        for _ in range(cell.transitions):
            with np.errstate(all="ignore"):
                outcome = cell.trajectory.move(flow, integrator, state, cell.step_size, rng)
            failures += bool(outcome.failure)
            accepted += outcome.acceptance
            state = outcome.state
        after.append(state.position)
    total = len(after) * cell.transitions
    return Outcome(looks.p_value(after), accepted / total, failures / total, before, np.array(after))


CELLS = {
    "normal": Cell(NORMAL, 3.0, 0.3, 1 / 3, FixedSteps(4), 4000),
    "normal, coarse": Cell(NORMAL, 1.0, 0.3, 1.0, FixedSteps(2), 4000, transitions=4),
    "normal, u-turn": Cell(NORMAL, 3.0, 0.3, 1 / 3, UTurn(4), 2000),
    "funnel": Cell(FUNNEL, 10.0, 0.1, 0.1, FixedSteps(10), 2500, FUNNEL_MASS),
    "funnel, u-turn": Cell(FUNNEL, 10.0, 0.1, 0.1, UTurn(5), 1000, FUNNEL_MASS),
}


@pytest.mark.parametrize("name", CELLS)
def test_accepted_by_both_copies_exact_draws_stay_exact(name):
    cell = CELLS[name]
    outcome = stationarity(cell, seed=5)
    # Of all cells together: a false alarm in one of ten thousand runs of the whole table.
    assert outcome.p_value > 1e-4 / len(CELLS)
    assert outcome.failure_rate < 0.05
    # A kernel that hardly moves or hardly rejects would pass without being tested.
    assert np.abs(outcome.after - outcome.before).mean() > 0.4
    assert 0.2 < outcome.acceptance < 0.95


COARSE = replace(CELLS["normal, coarse"], count=2000)
# With copies further apart a fault in how they are drawn shows sooner.
APART = replace(COARSE, sigma=1.0, count=4000)
PUBLISHED = replace(COARSE, acceptance="one_copy_approximate")


class CopiesKept(TaoHamiltonian):
    """The copies go on as the last trajectory left them, beside a new momentum."""

    def refresh(self, state, rng):
        drawn = super().refresh(state, rng)
        if not state.copy_momentum.any():  # a chain's first
            return drawn
        return replace(drawn, copy_position=state.copy_position, copy_momentum=state.copy_momentum)


class JudgedByOne(TaoHamiltonian):
    """The copies are drawn as they should be, and the decision does not look at them."""

    def energy(self, state):
        return self.base.energy(state)


class DrawnEqual(TaoHamiltonian):
    """The decision looks at both copies, but they begin equal."""

    def refresh(self, state, rng):
        drawn = super().refresh(state, rng)
        return replace(drawn, copy_position=drawn.position, copy_momentum=drawn.momentum)


MUTANTS = {
    "published": partial(stationarity, PUBLISHED),
    "copies kept": partial(stationarity, APART, kind=CopiesKept),
    "judged by one copy": partial(stationarity, COARSE, kind=JudgedByOne),
    "copies drawn equal": partial(stationarity, APART, kind=DrawnEqual),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_rejected_in_all_of_ten_runs(name):
    p_values = [MUTANTS[name](seed, until=REJECT).p_value for seed in range(SEEDS)]
    assert max(p_values) < REJECT, p_values


@pytest.mark.parametrize("cell", [COARSE, APART], ids=["near", "apart"])
def test_the_correct_sampler_passes_where_the_mutants_fail(cell):
    p_values = [stationarity(cell, seed).p_value for seed in range(RIGHT_SEEDS)]
    assert min(p_values) > REJECT, p_values


def test_the_bias_of_the_published_acceptance_in_one_dimension():
    """A variance of 1 becomes 0.66, with 86 % accepted."""
    found = stationarity(replace(PUBLISHED, count=3000, transitions=10), seed=0)
    assert 0.8 < found.acceptance < 0.95
    assert 0.6 < found.after.var() < 0.75


def test_the_bias_of_the_published_acceptance_on_the_funnel():
    """The mean of v falls by 0.1, with 87 % accepted."""
    cell = Cell(
        FUNNEL, 10.0, 0.1, 0.3, FixedSteps(5), 3000, FUNNEL_MASS, acceptance="one_copy_approximate", transitions=4
    )
    found = stationarity(cell, seed=0)
    assert found.p_value < 1e-6
    assert 0.75 < found.acceptance < 0.95
