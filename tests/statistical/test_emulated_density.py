"""An emulator of a density never biases, however wrong it is: simulation-based calibration of kernels and of the step.

See `test_general`, whose hierarchy this is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import SurrogateFlow
from pymc_rmhmc.graph_chart.affine_map import from_flat, identity_map, to_flat
from pymc_rmhmc.graph_chart.graph_target import GeneralTarget, ValueTarget
from pymc_rmhmc.kernels.kernel import HMC, Cycle, Sometimes
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.kernels.turns import DensityMove, SurrogateHMC
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.emulator import Emulator
from tests.statistical.ranks import PLACES, Looks, p_value, rank
from tests.statistical.test_general import Coordinates, D, Hierarchy, absurd, paths, quantities
from tests.unit.test_surrogate_kernels import JudgedByItsEmulator

pytestmark = pytest.mark.slow

SIMULATIONS, OF_THE_STEP = 600, 140
# Together a false alarm in a thousand choices of seeds, which are fixed; the 3 is for the test's own tail.
LEVEL = 1e-3 / 4 / 3
# A path that is a third of what chains walk: an emulator as wrong as this one is seldom accepted further away.
LENGTH = JitteredPath(0.6, 0.3, 100)


@pytest.fixture(scope="module")
def hierarchy() -> Hierarchy:
    return Hierarchy()


def chart() -> MarginalChart:
    """Of some skewness, and no use."""
    rng = np.random.default_rng(5)
    factor = np.tril(0.1 * rng.standard_normal((D, D)), -1) + np.diag(rng.uniform(0.7, 1.0, D))
    shape = np.zeros(D), np.ones(D), 0.3 * rng.standard_normal(D), rng.uniform(0.8, 1.2, D)
    return MarginalChart(0.2 * rng.standard_normal(D), factor, *shape)


def wrong() -> Emulator:
    """A parabola and a few bumps, which have nothing to do with the density."""
    rng = np.random.default_rng(6)
    square = 0.05 * rng.standard_normal((D, D))
    return Emulator(
        rng.standard_normal((D, 5)), 0.3 * rng.standard_normal(5), 1.5, 0.0, 0.2 * rng.standard_normal(D),
        square + square.T - 0.3 * np.eye(D),
    )  # fmt: skip


@dataclass
class Kernels:
    """What a chain moves with, of data that the model has been given."""

    hierarchy: Hierarchy

    def __post_init__(self) -> None:
        coordinates, general = absurd(), self.hierarchy.general
        self.constants, self.flat, self.chart = coordinates.chart, coordinates.flat, chart()
        self.here = GaussianHamiltonian(self.residual())
        target = GeneralTarget(general.density.function, general.density.bound, self.constants, self.flat)
        self.there = GaussianHamiltonian(target, makes=target)

    def residual(self) -> Any:
        return ValueTarget(self.hierarchy.general.value, self.constants, self.chart)

    def stand(self, x: np.ndarray):
        z = Coordinates(self.constants, identity_map(np.zeros(D))).enter(self.hierarchy.general, x)
        return self.here.state(self.chart.recover(z))

    def back(self, phase):
        return self.here.state(self.chart.recover(from_flat(self.flat, phase.position)))

    @property
    def along(self) -> Any:
        return SurrogateHMC(self.here, SurrogateFlow(wrong()), LENGTH)

    @property
    def elsewhere(self) -> DensityMove:
        return DensityMove(
            HMC(self.there, None, paths(1), 0.4),
            lambda phase: self.there.state(to_flat(self.flat, phase.point.coordinates)), self.back,
        )  # fmt: skip

    @property
    def both(self) -> Cycle:
        return Cycle((Sometimes(0.5, self.elsewhere), self.along))


class NormalTwice(Kernels):
    """As if the density beyond a standard normal were the whole one."""

    def residual(self):
        kept = super().residual()

        class Spoilt:
            def at(self, position):
                found = kept.at(position)
                return replace(found, log_density=found.log_density - 0.5 * float(position @ position))

        return Spoilt()


class WithoutCentre(Kernels):
    """As if coordinates along the density had another origin on the way back."""

    def back(self, phase):
        z = from_flat(self.flat, phase.position)
        return self.here.state(self.chart.recover(z - 0.5 * self.flat.centre))


class JudgedByTheEmulator(Kernels):
    @property
    def along(self):
        return JudgedByItsEmulator(super().along)


def calibrate(
    hierarchy: Hierarchy, moves: str, kind=Kernels, seed: int = 1, until: float | None = None
) -> tuple[float, float, float]:
    """The p-value of ranks, the rate of failures, and the mean acceptance."""
    rng, looks, ranks, failures, accepted = np.random.default_rng(seed), Looks(SIMULATIONS, until), [], 0, 0.0
    while not looks.decided(ranks):
        truth = hierarchy.parameters(rng)
        hierarchy.observe(truth, rng)
        kernels = kind(hierarchy)
        kernel, start, before, others = getattr(kernels, moves), kernels.stand(truth), rng.integers(PLACES), []
        np.testing.assert_allclose(start.point.values, truth, rtol=1e-8, atol=1e-8)
        for length in (before, PLACES - 1 - before):
            state = start
            for _ in range(length):
                # Of so short paths three are a move.
                for _ in range(3):
                    outcome = kernel.step(state, rng)
                    state, failures = outcome.state, failures + bool(outcome.failure)
                    accepted += outcome.acceptance
                others.append(quantities(state.point.values, state.point.model_log_density))
        exact = quantities(start.point.values, start.point.model_log_density)
        ranks.append(rank(exact, np.array(others), rng))
    n_moves = 3 * len(ranks) * (PLACES - 1)
    return looks.p_value(ranks), failures / n_moves, accepted / n_moves


@pytest.mark.parametrize("moves", ["along", "both"])
def test_ranks_of_the_truth_in_chains_through_it_are_uniform(hierarchy, moves):
    p, failure_rate, acceptance = calibrate(hierarchy, moves)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.1 < acceptance < 0.9


MUTANTS = {
    "the normal twice": ("along", NormalTwice), "another centre": ("both", WithoutCentre),
    "judged by the emulator": ("along", JudgedByTheEmulator),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_rejected(hierarchy, name):
    moves, kind = MUTANTS[name]
    p_values = [calibrate(hierarchy, moves, kind, seed, LEVEL)[0] for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


class Pair:
    """A mean and a spread of four numbers, and their joint distribution in plain NumPy."""

    def __init__(self) -> None:
        with pm.Model() as model:
            y = pm.Data("y", np.zeros(4))
            mean, spread = pm.Normal("mean", 0.3, 1.0), pm.Gamma("spread", 3.0, 2.0)
            pm.Normal("seen", mean, spread, observed=y)
        self.model, self.point = model, model.initial_point()

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """A mean and the logarithm of a spread, of which the model is given data."""
        mean, spread = 0.3 + rng.standard_normal(), rng.gamma(3.0, 0.5)
        with self.model:
            pm.set_data({"y": mean + spread * rng.standard_normal(4)})
        return np.array([mean, np.log(spread)])


def test_ranks_of_the_truth_among_the_steps_own_draws_are_uniform(monkeypatch):
    """The whole step, tuning and the making of the emulator included, is given the data and nothing of the truth."""
    monkeypatch.setattr("pymc_rmhmc.model.general.cost.DEAR", 0.0)
    pair, tune, thin = Pair(), 160, 4
    step, rng = RMHMC(model=pair.model, metric=FlatMetric(chart="graph")), np.random.default_rng(4)
    ranks, of_shifted, failures, n_emulated = [], [], 0, 0
    for _ in range(OF_THE_STEP):
        truth, draws, point = pair.draw(rng), [], pair.point
        step.setup_chain(rng, tune, thin * (PLACES - 1))
        for i in range(tune + thin * (PLACES - 1)):
            if i == tune:
                step.stop_tuning()
            point, (statistics,) = step.step(point)
            failures += i >= tune and bool(statistics["failure"])
            if i >= tune and (i - tune) % thin == thin - 1:
                draws.append(np.array([float(point["mean"]), float(point["spread_log__"])]))
        n_emulated += step.chains[0].tuned.emulator is not None
        others = np.array(draws)
        ranks.append(rank(truth, others, rng))
        of_shifted.append(rank(truth + 0.6 * others.std(axis=0), others, rng))
    assert n_emulated > 0.9 * OF_THE_STEP
    assert failures < 0.01 * OF_THE_STEP * thin * (PLACES - 1)
    assert p_value(np.array(ranks)) > LEVEL
    # It would have seen a bias of so much of a standard deviation.
    assert p_value(np.array(of_shifted)) < LEVEL
