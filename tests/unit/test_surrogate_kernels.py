"""Trajectories along a surrogate, and moves in other coordinates: a wrong surrogate costs draws, never exactness."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.stats import norm

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting, SurrogateFlow
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.graph_chart.affine_map import from_flat, to_flat
from pymc_rmhmc.graph_chart.graph_target import ValueTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.kernels.kernel import HMC, Cycle, Sometimes, Transition
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.kernels.turns import ALONG_SURROGATE, DensityMove, SurrogateHMC
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.emulator import Emulator
from tests.unit.general_toys import directions

BEND, SPREAD = 0.4, 0.9
CHART = MarginalChart(
    np.array([0.1, -0.2]), np.array([[0.9, 0.0], [0.4, 0.8]]), np.array([0.0, 0.6]), np.array([1.1, 0.9]),
    np.array([0.2, -0.3]), np.array([0.9, 1.1]),
)  # fmt: skip
FLAT = FlatMap(
    np.array([0.2, 0.5]), np.array([0.9, 0.7]), np.array([0, 1]), np.array([[0.9, 0.0], [0.3, 0.7]]), *directions(2)
)
LENGTH = JitteredPath(1.7, 0.3, 100)


def bent(z) -> float:
    """``z₁ ~ N(0, 1)`` and ``z₂ ~ N(BEND z₁², SPREAD²)``."""
    return -0.5 * float(z[0] ** 2 + ((z[1] - BEND * z[0] ** 2) / SPREAD) ** 2)


def bent_slope(z) -> np.ndarray:
    off = (z[1] - BEND * z[0] ** 2) / SPREAD**2
    return np.array([-z[0] + 2.0 * BEND * z[0] * off, -off])


def drawn(rng, count: int) -> np.ndarray:
    """Exact draws of z."""
    z = rng.standard_normal((count, 2))
    return np.column_stack((z[:, 0], BEND * z[:, 0] ** 2 + SPREAD * z[:, 1]))


def in_chart(density: Callable = bent) -> ValueTarget:
    """The density in standard normals; the model's values are those of z."""
    return ValueTarget(lambda z, constants: (np.array(density(z)), np.append(z, 0.0)), np.empty(0), CHART)


class InFlatCoordinates:
    """The same density in u, with its gradient."""

    def at(self, position):
        z = from_flat(FLAT, position)
        columns = np.array([from_flat(FLAT, e) - from_flat(FLAT, np.zeros(2)) for e in np.eye(2)])
        return FlatPoint(position, bent(z) + 0.5 * position @ position, columns @ bent_slope(z) + position)


@dataclass
class FlatPoint:
    position: np.ndarray
    log_density: float
    gradient: np.ndarray
    failure: Failure = Failure.NONE


def wrong() -> Emulator:
    """It leans to one side, and is too wide."""
    lean, width = np.array([0.3, -0.2]), np.array([[0.2, 0.1], [0.1, -0.2]])
    return Emulator(np.array([[0.5, -1.0], [0.3, 0.2]]), np.array([0.4, -0.3]), 1.2, 3.0, lean, width)


def along(emulator: Emulator, target: ValueTarget | None = None) -> SurrogateHMC:
    target = in_chart() if target is None else target
    return SurrogateHMC(GaussianHamiltonian(target), SurrogateFlow(emulator), LENGTH)


def elsewhere(flat: FlatMap = FLAT, step_size: float = 1.0) -> DensityMove:
    there, here = GaussianHamiltonian(InFlatCoordinates()), GaussianHamiltonian(in_chart())
    return DensityMove(
        HMC(there, RotationSplitting(), LENGTH, step_size),
        lambda phase: there.state(to_flat(FLAT, phase.point.coordinates)),
        lambda phase: here.state(CHART.recover(from_flat(flat, phase.position))),
    )


@dataclass
class JudgedByItsEmulator:
    """What a sampler must not do."""

    kernel: SurrogateHMC

    def step(self, state, rng):
        emulator, exact = self.kernel.flow.surrogate, self.kernel.hamiltonian.residual

        class Emulated:
            def at(self, position):
                return replace(exact.at(position), log_density=emulator.evaluate(position)[0])

        kernel = replace(self.kernel, hamiltonian=GaussianHamiltonian(Emulated()))
        outcome = kernel.step(kernel.hamiltonian.state(state.position), rng)
        outcome.state = self.kernel.hamiltonian.state(outcome.state.position)
        return outcome


def moved(kernel, count: int, seed: int = 0, steps: int = 2) -> tuple[float, list[Transition]]:
    """p-value of the means of some functions of z before and after moves of exact draws, and what the moves report."""
    rng, here = np.random.default_rng(seed), GaussianHamiltonian(in_chart())
    before, after, outcomes = drawn(rng, count), [], []
    for z in before:
        state = here.state(CHART.recover(z))
        for _ in range(steps):
            outcomes.append(kernel.step(state, rng))
            state = outcomes[-1].state
        after.append(state.point.coordinates)
    changes = features(np.array(after)) - features(before)
    scores = np.sqrt(count) * changes.mean(axis=0) / changes.std(axis=0)
    return min(1.0, 2.0 * float(norm.sf(np.abs(scores)).min()) * scores.size), outcomes


def features(z: np.ndarray) -> np.ndarray:
    """Bounded functions, of means whose changes are nearly normal."""
    off = (z[:, 1] - BEND * z[:, 0] ** 2) / SPREAD
    odd = np.tanh(np.column_stack((z[:, 0], z[:, 1] - BEND, off)))
    return np.column_stack((odd, odd**2, odd[:, 0] * odd[:, 2]))


KERNELS = {
    "along a wrong emulator": lambda: along(wrong()),
    "elsewhere": elsewhere,
    "both": lambda: Cycle((Sometimes(0.5, elsewhere()), along(wrong()))),
}


@pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
def test_exact_draws_stay_exact(make):
    p_value, outcomes = moved(make(), 3000)
    assert p_value > 1e-3
    assert 0.3 < np.mean([outcome.acceptance for outcome in outcomes]) < 0.97
    assert 0.3 < np.mean([outcome.accepted for outcome in outcomes]) < 0.97
    assert np.mean([bool(outcome.failure) for outcome in outcomes]) < 0.01


def test_a_proposal_that_its_emulator_judges_would_be_found():
    p_value, outcomes = moved(JudgedByItsEmulator(along(wrong())), 2000)
    assert p_value < 1e-6
    assert np.mean([outcome.acceptance for outcome in outcomes]) > 0.97


def test_a_way_back_that_is_another_would_be_found():
    off = FLAT._replace(centre=FLAT.centre + 0.25)
    assert moved(elsewhere(off), 1500)[0] < 1e-6


def test_a_move_asks_the_density_once():
    asked = []

    def counting(z):
        asked.append(z)
        return bent(z)

    kernel = along(wrong(), in_chart(counting))
    state, rng = kernel.hamiltonian.state(np.array([0.3, -0.2])), np.random.default_rng(1)
    for count in range(1, 20):
        outcome = kernel.step(state, rng)
        state = outcome.state
        assert len(asked) == 1 + count
        assert outcome.kind == ALONG_SURROGATE
        assert (outcome.n_steps, outcome.n_metric_evals) == (1, 1)


def test_with_the_density_itself_for_an_emulator_next_to_all_is_accepted():
    """A normal density, of which the parabola is all."""
    quadratic, linear = np.array([[-0.5, 0.2], [0.2, 0.3]]), np.array([0.4, -0.1])
    chart = MarginalChart.linear(np.zeros(2), np.eye(2))

    def density(z, constants):
        return np.array(linear @ z + 0.5 * z @ quadratic @ z - 0.5 * z @ z), np.append(z, 0.0)

    exact = Emulator(np.zeros((2, 0)), np.zeros(0), 1.0, 0.0, linear, quadratic)
    kernel = along(exact, ValueTarget(density, np.empty(0), chart))
    state, rng, errors = kernel.hamiltonian.state(np.zeros(2)), np.random.default_rng(2), []
    for _ in range(200):
        outcome = kernel.step(state, rng)
        state = outcome.state
        errors.append(outcome.energy_error)
        assert outcome.energy == pytest.approx(kernel.hamiltonian.energy(state))
    assert np.abs(errors).max() < 0.1
    assert np.std(errors) > 0.0


def ends(z, worth: float) -> float:
    """A normal density that is worth something else beyond z₁ = 1."""
    return worth if z[0] > 1.0 else -0.5 * float(z @ z)


@pytest.mark.parametrize("worth", [math.nan, -math.inf, -1e5])
def test_a_surrogates_divergence_is_counted_apart_and_no_failure(worth):
    away = Emulator(np.zeros((2, 0)), np.zeros(0), 1.0, 0.0, np.array([9.0, 0.0]), np.zeros((2, 2)))
    kernel, rng = along(away, in_chart(lambda z: ends(z, worth))), np.random.default_rng(3)
    state = kernel.hamiltonian.state(np.array([-0.4, 0.2]))
    for _ in range(10):
        outcome = kernel.step(state, rng)
        assert outcome.n_emulator_divergences == 1
        assert outcome.failure is Failure.NONE
        assert not outcome.accepted
        assert outcome.acceptance == 0.0
        assert math.isnan(outcome.energy_error)
        assert math.isfinite(outcome.energy)
        np.testing.assert_array_equal(outcome.state.position, state.position)
    both = Cycle((kernel, kernel)).step(state, rng)
    assert (both.n_emulator_divergences, both.failure) == (2, Failure.NONE)


def test_a_rejection_that_is_no_divergence_is_none():
    kernel, rng = along(wrong()), np.random.default_rng(4)
    state, rejected = kernel.hamiltonian.state(np.array([0.5, 0.4])), 0
    for _ in range(50):
        outcome = kernel.step(state, rng)
        rejected += not outcome.accepted
        assert outcome.n_emulator_divergences == 0
        assert math.isfinite(outcome.energy_error)
        state = outcome.state
    assert rejected > 3


def test_a_divergence_of_a_trajectory_along_the_density_is_a_failure():
    """Whatever the coordinates in which it is made."""
    kernel = replace(elsewhere(), kernel=HMC(GaussianHamiltonian(Cliff()), RotationSplitting(), LENGTH, 0.3))
    outcome = kernel.step(GaussianHamiltonian(in_chart()).state(np.zeros(2)), np.random.default_rng(5))
    assert outcome.failure is Failure.ENERGY
    assert outcome.n_emulator_divergences == 0


class Cliff:
    """Where a trajectory begins there is a density, and nearly none elsewhere."""

    def __init__(self) -> None:
        self.count = 0

    def at(self, position):
        self.count += 1
        return FlatPoint(position, 0.0 if self.count == 1 else -1e5, np.zeros(2))


def test_a_rejected_move_elsewhere_leaves_the_very_state():
    """Nothing is rounded on the way there and back."""
    kernel, rng = elsewhere(step_size=1.6), np.random.default_rng(6)
    state, seen = GaussianHamiltonian(in_chart()).state(np.array([0.3, 0.1])), {True: 0, False: 0}
    for _ in range(60):
        outcome = kernel.step(state, rng)
        assert (outcome.state is state) == (not outcome.accepted)
        seen[outcome.accepted] += 1
        state = outcome.state
    assert min(seen.values()) > 5
