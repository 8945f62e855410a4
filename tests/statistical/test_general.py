"""The flat chart of any model never biases: whatever its constants, its map and its trajectory are.

Simulation-based calibration of a hierarchy of two levels, of three families: the truth has a random place in a chain
that is run from it both ways. Kernels are reversible, and so is one kernel several times over. See `test_sbc`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import arviz as az
import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.graph_chart.affine_map import identity_map
from pymc_rmhmc.graph_chart.graph_target import GeneralTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.kernels.trajectories import JitteredPath, UTurn
from pymc_rmhmc.model.general.density import GeneralModel
from pymc_rmhmc.model.general.roots import N_SHAPE
from tests.general_checks import scored, weights_and_pulls
from tests.statistical.ranks import PLACES, Looks, p_value, rank
from tests.unit.general_toys import directions, matrix_of

pytestmark = pytest.mark.slow

NU, NOISE, SHAPE = 5.0, 0.8, 3.0
# Of top, log_spread, middle (2), effect (2), and the logarithms of rate (2).
D, CHARTED = 8, 6
SIMULATIONS = 600


class Hierarchy:
    """The model, read once, and its joint distribution in plain NumPy."""

    def __init__(self) -> None:
        with pm.Model() as model:
            y, counts = pm.Data("y", np.zeros(2)), pm.Data("counts", np.ones(2, dtype=np.int64))
            top, log_spread = pm.Normal("top", 0.0, 0.7), pm.Normal("log_spread", -0.8, 0.4)
            middle = pm.Normal("middle", top, pt.exp(log_spread), shape=2)
            effect = pm.StudentT("effect", nu=NU, mu=middle, sigma=pt.exp(0.5 * log_spread), shape=2)
            rate = pm.Gamma("rate", alpha=SHAPE, beta=pt.exp(effect), shape=2)
            pm.Normal("seen", effect, NOISE, observed=y)
            pm.Poisson("counted", rate, observed=counts)
        self.model, self.point = model, model.initial_point()
        self.general = GeneralModel(model, model.free_RVs, self.point)
        assert (self.general.size, self.general.places.size) == (D, CHARTED)

    def parameters(self, rng: np.random.Generator) -> np.ndarray:
        """Values x (8,) of the prior."""
        top, log_spread = 0.7 * rng.standard_normal(), -0.8 + 0.4 * rng.standard_normal()
        middle = top + np.exp(log_spread) * rng.standard_normal(2)
        effect = middle + np.exp(0.5 * log_spread) * rng.standard_t(NU, 2)
        return np.concatenate(([top, log_spread], middle, effect, np.log(rng.gamma(SHAPE, 1.0, 2)) - effect))

    def observe(self, x: np.ndarray, rng: np.random.Generator) -> None:
        """Give the model data of some parameters."""
        data = {"y": x[4:6] + NOISE * rng.standard_normal(2), "counts": rng.poisson(np.exp(x[6:]))}
        with self.model:
            pm.set_data(data)
        self.general.bind(self.point)

    def standardised(self, x: np.ndarray) -> np.ndarray:
        """Numbers of mean 0 and variance 1 under the prior."""
        spread = np.exp(x[1])
        effects = (x[4:6] - x[2:4]) / np.sqrt(spread) * np.sqrt((NU - 2.0) / NU)
        # Mean and variance of log Gamma(3).
        rates = (x[6:] + x[4:6] - 0.9227843350984671) / np.sqrt(0.3949340668482264)
        return np.concatenate(([x[0] / 0.7, (x[1] + 0.8) / 0.4], (x[2:4] - x[0]) / spread, effects, rates))


@pytest.fixture(scope="module")
def hierarchy() -> Hierarchy:
    return Hierarchy()


@dataclass(frozen=True)
class Coordinates:
    """The chart's constants w and b, the shapes of the roots, and the map to flat coordinates."""

    chart: np.ndarray
    flat: FlatMap

    def enter(self, general: GeneralModel, x: np.ndarray) -> np.ndarray:
        """U of values x, by the formula of the chart."""
        z, (weight, pull) = x.copy(), weights_and_pulls(general, self.chart)
        _, location, scale = scored(general, x)
        root = np.sqrt(1.0 + weight * scale**2)
        z[general.places] = (x[general.places] - location) / scale * root - scale * (pull - weight * location) / root
        shapes = self.chart[self.chart.size - N_SHAPE * general.roots.size :].reshape(N_SHAPE, -1)
        place, log_spread, skewness, log_tail = shapes
        stretched = np.arcsinh((x[general.roots] - place) / np.exp(log_spread))
        z[general.roots] = np.sinh(np.exp(log_tail) * stretched - skewness)
        return np.linalg.solve(matrix_of(self.flat), z - self.flat.centre)


def plain() -> Coordinates:
    """The non-centred form, and no map."""
    return Coordinates(np.zeros(2 * CHARTED + N_SHAPE * (D - CHARTED)), identity_map(np.zeros(D)))


def absurd() -> Coordinates:
    """Constants of no use, and a dense block of six of the coordinates."""
    rng, dense = np.random.default_rng(3), np.array([0, 1, 2, 4, 5, 7])
    factor = np.tril(0.15 * rng.standard_normal((6, 6)), -1) + np.diag(rng.uniform(0.6, 1.1, 6))
    # Variable by variable, of two elements each: w, then b.
    pairs = [(rng.exponential(1.5, 2), 1.5 * rng.standard_normal(2)) for _ in range(CHARTED // 2)]
    shapes = [[0.3, -0.4], [-0.3, 0.4], [0.6, -0.5], [-0.4, 0.2]]  # of the roots, by rows as the chart has them
    chart = np.concatenate([*(part for pair in pairs for part in pair), np.ravel(shapes)])
    centre, spread = 0.4 * rng.standard_normal(D), rng.uniform(0.6, 1.1, D)
    return Coordinates(chart, FlatMap(centre, spread, dense, factor, *directions(D)))


def paths(rounds: int) -> JitteredPath:
    return JitteredPath(1.5, 0.3, 100, rounds)


CASES = {
    "a path": (paths(1), absurd(), 0.3),
    "three paths": (paths(3), absurd(), 0.3),
    "three paths, non-centred": (paths(3), plain(), 0.15),
    "a path that is cut short": (JitteredPath(4.0, 0.3, 4, 1), absurd(), 0.3),
    "a tree": (UTurn(7), absurd(), 0.3),
    "three trees": (UTurn(7, 3), absurd(), 0.3),
    "a tree, non-centred": (UTurn(7), plain(), 0.15),
    "a shallow tree": (UTurn(2), absurd(), 0.3),
}
# Together a false alarm in a thousand choices of seeds, which are fixed; the 3 is for the test's own tail.
LEVEL = 1e-3 / (len(CASES) + 2) / 3


def quantities(x: np.ndarray, log_density: float) -> np.ndarray:
    """Of each level one value, the spread, a difference that the parents do not move, and the model's log density."""
    return np.array([x[0], x[1], x[2], x[4], x[6], x[5] - x[3], log_density])


def calibrate(
    hierarchy: Hierarchy, case: str, function: Callable | None = None, seed: int = 1, until: float | None = None
) -> tuple[float, float, float]:
    """The p-value of ranks, the rate of failures, and the mean acceptance."""
    trajectory, coordinates, step_size = CASES[case]
    general, rng = hierarchy.general, np.random.default_rng(seed)
    ranks, failures, accepted, looks = [], 0, 0.0, Looks(SIMULATIONS, until)
    while not looks.decided(ranks):
        truth = hierarchy.parameters(rng)
        hierarchy.observe(truth, rng)
        made = function or general.density.function
        target = GeneralTarget(made, general.density.bound, coordinates.chart, coordinates.flat)
        flow, before, others = GaussianHamiltonian(target, makes=target), rng.integers(PLACES), []
        start = flow.state(coordinates.enter(general, truth))
        if not ranks:
            np.testing.assert_allclose(start.point.values, truth, rtol=1e-9)
        for length in (before, PLACES - 1 - before):
            state = start
            for _ in range(length):
                outcome = trajectory.move(flow, None, state, step_size, rng)
                state, failures = outcome.state, failures + bool(outcome.failure)
                accepted += outcome.acceptance
                others.append(quantities(state.point.values, state.point.model_log_density))
        exact = quantities(start.point.values, start.point.model_log_density)
        ranks.append(rank(exact, np.array(others), rng))
    moves = len(ranks) * (PLACES - 1)
    return looks.p_value(ranks), failures / moves, accepted / moves


@pytest.mark.parametrize("case", CASES)
def test_ranks_of_the_truth_in_chains_through_it_are_uniform(hierarchy, case):
    p, failure_rate, acceptance = calibrate(hierarchy, case)
    assert p > LEVEL
    assert failure_rate < 0.05
    # A kernel that never moves leaves ranks to chance: they are then uniform for any sampler.
    assert 0.5 < acceptance < 0.9999


def without_jacobian(density):
    """The model's own density at the place of a z, as if nothing were stretched."""

    @numba.njit
    def function(z, chart, *rest):
        value, found = density(z, chart, *rest)
        return np.array(value[()] - found[-1]), found

    return function


def without_the_jacobian_of_the_weights(density):
    """With ``log σ`` alone, as if w were 0, of the two levels of which σ is known here."""

    @numba.njit
    def function(z, chart, *rest):
        value, found = density(z, chart, *rest)
        spread, half = np.exp(found[D + 1]), 0.0
        for i in range(4):
            # Of each variable two weights, then two pulls.
            weight = chart[4 * (i // 2) + i % 2]
            half += 0.5 * np.log1p(weight * (spread if i < 2 else np.sqrt(spread)) ** 2)
        return np.array(value[()] + half), found

    return function


MUTANTS = {
    "no Jacobian, path": ("a path", without_jacobian),
    "no Jacobian, tree": ("a tree", without_jacobian),
    "no Jacobian of the weights": ("three trees", without_the_jacobian_of_the_weights),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_rejected(hierarchy, name):
    """Where the correct sampler passes above."""
    case, spoilt = MUTANTS[name]
    function = spoilt(hierarchy.general.density.function)
    p_values = [calibrate(hierarchy, case, function, seed, LEVEL)[0] for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


def test_successive_conditional_draws_have_the_prior(hierarchy):
    """Parameters and data drawn in turn: first and second moments are those of the prior."""
    trajectory, coordinates, step_size = CASES["three trees"]
    # A chain comes to the tails too, where twice as long steps fail so often that it stays.
    step_size *= 0.5
    general, rng = hierarchy.general, np.random.default_rng(6)
    x, trace, failures, n_draws = hierarchy.parameters(rng), [], 0, 8000
    for _ in range(n_draws):
        hierarchy.observe(x, rng)
        target = GeneralTarget(general.density.function, general.density.bound, coordinates.chart, coordinates.flat)
        flow = GaussianHamiltonian(target, makes=target)
        outcome = trajectory.move(flow, None, flow.state(coordinates.enter(general, x)), step_size, rng)
        x, failures = np.array(outcome.state.point.values), failures + bool(outcome.failure)
        trace.append(hierarchy.standardised(x))
    trace = np.array(trace)
    assert failures < 0.05 * n_draws
    # Fourth moments of a Student t of five degrees of freedom have no variance: bounded functions stand for squares.
    reference = np.array([hierarchy.standardised(hierarchy.parameters(rng)) for _ in range(200_000)])
    features, known = (
        np.column_stack((np.tanh(t), np.tanh(t) ** 2, np.tanh(t[:, :1] * t[:, 1:]))) for t in (trace, reference)
    )
    errors = np.array([float(az.mcse(values[None, :])) for values in features.T])
    errors = np.hypot(errors, known.std(axis=0) / np.sqrt(len(known)))
    # It would have seen a bias of a fifth of a standard deviation.
    assert errors[:D].max() < 0.05
    # 23 features: 4.8 standard errors is one false alarm in ten thousand suites.
    assert (np.abs(features.mean(axis=0) - known.mean(axis=0)) / errors).max() < 4.8


@pytest.mark.parametrize("trajectory", ["static", "nuts"])
def test_ranks_of_the_truth_among_the_steps_own_draws_are_uniform(hierarchy, trajectory):
    """The whole step, tuning included, is given the data and nothing of the truth."""
    tune, thin, rng, ranks, of_shifted, failures = 100, 5, np.random.default_rng(4), [], [], 0
    with hierarchy.model:
        step = RMHMC(metric=FlatMetric(chart="graph"), trajectory=trajectory)
    names = [str(value.name) for value in hierarchy.model.value_vars]
    for _ in range(SIMULATIONS // 4):
        truth, draws, point = hierarchy.parameters(rng), [], hierarchy.point
        hierarchy.observe(truth, rng)
        step.setup_chain(rng, tune, thin * (PLACES - 1))
        for i in range(tune + thin * (PLACES - 1)):
            if i == tune:
                step.stop_tuning()
            point, (statistics,) = step.step(point)
            failures += i >= tune and bool(statistics["failure"])
            if i >= tune and (i - tune) % thin == thin - 1:
                draws.append(np.concatenate([np.ravel(point[name]) for name in names]))
        exact, others = quantities(truth, 0.0)[:-1], np.array([quantities(draw, 0.0)[:-1] for draw in draws])
        ranks.append(rank(exact, others, rng))
        of_shifted.append(rank(exact + 0.5 * others.std(axis=0), others, rng))
    assert failures < 0.05 * len(ranks) * thin * (PLACES - 1)
    assert p_value(np.array(ranks)) > LEVEL
    # It would have seen a bias of half a standard deviation.
    assert p_value(np.array(of_shifted)) < LEVEL


@pytest.mark.parametrize("trajectory", ["static", "nuts"])
def test_the_funnel_is_sampled_by_the_whole_step(trajectory):
    with pm.Model():
        v = pm.Normal("v", 0.0, 3.0)
        pm.Normal("x", 0.0, pt.exp(0.5 * v), shape=10)
        drawn = pm.sample(
            draws=1000, tune=300, chains=4, cores=1, progressbar=False, random_seed=11,
            step=RMHMC(metric=FlatMetric(chart="graph"), trajectory=trajectory), compute_convergence_checks=False,
        )  # fmt: skip
    posterior = drawn.posterior
    v, x = np.asarray(posterior["v"]), np.asarray(posterior["x"])
    for values, mean, deviation in ((v, 0.0, 3.0), (x[..., 0] * np.exp(-0.5 * v), 0.0, 1.0)):
        assert abs(values.mean() - mean) < 4.0 * float(az.mcse(values))
        assert abs(values.std() - deviation) < 4.0 * float(az.mcse(values, method="sd"))
        assert float(az.mcse(values)) < 0.05 * deviation
    assert not np.any(np.asarray(drawn.sample_stats["diverging"]))
