"""Rows of correlated effects in the graph's chart: exact draws stay exact, whatever the constants and however entered.

Parameters and data are drawn together, so that the parameters are an exact draw of their posterior. A chart of frozen
random constants moves them, and the means of what is watched must not change.
"""

from __future__ import annotations

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.graph_chart.affine_map import identity_map
from pymc_rmhmc.graph_chart.constants import RowsChart, charts_of
from pymc_rmhmc.graph_chart.graph_target import GeneralTarget
from pymc_rmhmc.kernels.trajectories import JitteredPath, UTurn
from pymc_rmhmc.model.general.density import GeneralModel
from pymc_rmhmc.tuning.graph_chart import ChartTuning, GraphChartAdapter
from tests.general_checks import unshaped
from tests.statistical.exact import changed, squash
from tests.statistical.ranks import Looks
from tests.statistical.test_general import without_jacobian

pytestmark = pytest.mark.slow

ROWS, K, NOISE = 3, 2, 0.7
# Of log_spread (2) and turn, which another step may move; mean (2); x (3, 2).
N_SPREAD, D = 3, 11
COUNT = 1500


def factor_of(spread) -> np.ndarray:
    """The factor of the covariance at log_spread (2) and turn."""
    s, t = np.exp(spread[:2]), spread[2]
    return np.array([[s[0], 0.0], [t * s[1], s[1]]])


class Rows:
    """The model, its joint distribution in plain NumPy, and a chart for what one step moves of it."""

    def __init__(self, *, alone: bool) -> None:
        with pm.Model() as model:
            y, log_spread = pm.Data("y", np.zeros((ROWS, K))), pm.Normal("log_spread", -0.4, 0.4, shape=K)
            turn, mean = pm.Normal("turn", 0.3, 0.5), pm.Normal("mean", 0.0, 0.8, shape=K)
            s = pt.exp(log_spread)
            chol = pt.stacklists([[s[0], 0.0], [turn * s[1], s[1]]])
            x = pm.MvNormal("x", mean, chol=chol, shape=(ROWS, K))
            pm.Normal("seen", x, NOISE, observed=y)
        self.model, self.point, self.alone = model, model.initial_point(), alone
        variables = [mean, x] if alone else model.free_RVs
        self.general = GeneralModel(model, variables, self.point)
        self.moved = slice(N_SPREAD if alone else 0, D)
        assert [k for _, k, _ in self.general.charts] == [K]
        rng = np.random.default_rng(3)
        halves = 0.8 * rng.standard_normal((ROWS, K, K))
        weights, pulls = halves @ halves.transpose(0, 2, 1), rng.standard_normal(ROWS * K)
        constants = np.concatenate([weights.ravel(), pulls, unshaped(self.general)])
        self.adapter = GraphChartAdapter(self.general, charts_of(self.general), str, may_repeat=False, most_dense=0)
        self.tuned = ChartTuning(constants, tuple(identity_map(np.zeros(self.general.size))))

    def parameters(self, rng) -> np.ndarray:
        """All values (11,) of the prior."""
        spread = np.append(-0.4 + 0.4 * rng.standard_normal(K), 0.3 + 0.5 * rng.standard_normal())
        mean = 0.8 * rng.standard_normal(K)
        x = mean + rng.standard_normal((ROWS, K)) @ factor_of(spread).T
        return np.concatenate([spread, mean, x.ravel()])

    def observe(self, values, rng) -> None:
        """Give the model data of some parameters."""
        with self.model:
            pm.set_data({"y": values[5:].reshape(ROWS, K) + NOISE * rng.standard_normal((ROWS, K))})

    def standing(self, values, function=None):
        """A Hamiltonian and its state at values, given all others among them."""
        given = {"log_spread": values[:K], "turn": values[K], "mean": values[3:5], "x": values[5:].reshape(ROWS, K)}
        self.general.bind({name: np.asarray(given[name]) for name in self.point})
        density = self.general.density
        made, rest = function or density.function, density.bound
        target = GeneralTarget(made, rest, self.tuned.chart, identity_map(np.zeros(self.general.size)))
        flow = GaussianHamiltonian(target, makes=target)
        return flow, flow.state(self.adapter.coordinates(self.tuned, np.ascontiguousarray(values[self.moved])))


def another_step(values, rng) -> np.ndarray:
    """Metropolis of log_spread and turn given the rest: what stands between two entries of the chart."""

    def log_density(spread):
        off = np.linalg.solve(factor_of(spread), (values[5:].reshape(ROWS, K) - values[3:5]).T)
        prior = np.square((spread - [-0.4, -0.4, 0.3]) / [0.4, 0.4, 0.5]).sum()
        return -0.5 * prior - 0.5 * np.square(off).sum() - ROWS * spread[:2].sum()

    there = values[:N_SPREAD] + 0.4 * rng.standard_normal(N_SPREAD)
    if np.log(rng.random()) < log_density(there) - log_density(values[:N_SPREAD]):
        values = np.concatenate([there, values[N_SPREAD:]])
    return values


def watched(values) -> np.ndarray:
    """The values, and the rows whitened, the log density of which is known."""
    white = np.linalg.solve(factor_of(values[:N_SPREAD]), (values[5:].reshape(ROWS, K) - values[3:5]).T)
    return np.concatenate([values, white.ravel(), np.square(white).sum(axis=1)])


# The trajectory, its step size, whether another step has its turns, and how many moves a chain makes.
KERNELS = {
    "a path": (JitteredPath(1.5, 0.3, 100), 0.25, False, 2),
    "a tree": (UTurn(6), 0.25, False, 2),
    "a path between another step's": (JitteredPath(1.5, 0.3, 100), 0.4, True, 8),
    "a tree between another step's": (UTurn(6), 0.4, True, 4),
}


@pytest.fixture(scope="module")
def problems() -> dict[bool, Rows]:
    return {alone: Rows(alone=alone) for alone in (False, True)}


def stationarity(problem: Rows, case: str, spoilt=None, seed: int = 1, until=None) -> tuple[float, float, float]:
    """The p-value of no change, the rate of failures, and the mean acceptance."""
    (trajectory, step_size, _, moves), rng = KERNELS[case], np.random.default_rng(seed)
    function = spoilt(problem.general.density.function) if spoilt else None
    like = np.array([watched(problem.parameters(rng)) for _ in range(4000)])
    changes, failures, accepted = [], 0, 0.0
    looks = Looks(COUNT, until, changed)
    while not looks.decided(changes):
        truth = problem.parameters(rng)
        problem.observe(truth, rng)
        values = truth
        for _ in range(moves):
            flow, state = problem.standing(values, function)
            outcome = trajectory.move(flow, None, state, step_size, rng)
            failures, accepted = failures + bool(outcome.failure), accepted + outcome.acceptance
            values = np.append(values[: problem.moved.start], outcome.state.point.values)
            values = another_step(values, rng) if problem.alone else values
        changes.append(squash(watched(values)[None], like)[0] - squash(watched(truth)[None], like)[0])
    total = moves * len(changes)
    return looks.p_value(changes), failures / total, accepted / total


@pytest.mark.parametrize("case", KERNELS)
def test_exact_draws_stay_exact(problems, case):
    p_value, failure_rate, acceptance = stationarity(problems[KERNELS[case][2]], case)
    assert p_value > 1e-4 / len(KERNELS)
    assert failure_rate < 0.05
    assert 0.3 < acceptance < 0.999


def turned(values, moments, constants):
    """The way in by the transpose of the factor."""
    location, factor = moments[:, : ROWS * K], moments[:, ROWS * K :].reshape(-1, K, K)
    other = np.concatenate([location, factor.transpose(0, 2, 1).reshape(len(values), -1)], axis=1)
    return RowsChart(np.arange(ROWS * K), K).standardised(values, other, constants)


def unpulled(values, moments, constants):
    """The way in as if no score pulled at the rows."""
    weights = np.append(constants[: ROWS * K * K], np.zeros(ROWS * K))
    return RowsChart(np.arange(ROWS * K), K).standardised(values, moments, weights)


@pytest.mark.parametrize("case", ["a path", "a tree"])
def test_a_density_without_its_jacobian_is_rejected(problems, case):
    """Where the correct sampler passes above."""
    p_values = [stationarity(problems[False], case, without_jacobian, seed, 1e-4)[0] for seed in range(2)]
    assert max(p_values) < 1e-4, p_values


@pytest.mark.parametrize("spoilt", [turned, unpulled], ids=["by the transpose", "without its pull"])
def test_a_wrong_way_in_is_rejected(problems, spoilt, monkeypatch):
    monkeypatch.setattr(problems[True].adapter.charts[0], "standardised", spoilt)
    p_values = [stationarity(problems[True], "a path between another step's", seed=s, until=1e-4)[0] for s in range(2)]
    assert max(p_values) < 1e-4, p_values


# Of the whole step, next to another one: given t all is normal, so that a grid of t knows the posterior.
SEEN, SLIP = np.array([[0.9, -0.4], [1.6, 0.2]]), 0.6
LEAN = np.array([[1.0, 0.0], [0.5, 0.8]])


def effects(form: str) -> pm.Model:
    with pm.Model() as model:
        t, mean = pm.Normal("t", -0.5, 0.7), pm.Normal("mean", 0.0, 1.0, shape=2)
        if form == "rows":
            x = pm.MvNormal("x", mean, chol=pt.exp(t) * LEAN, shape=(2, 2))
        else:
            x = pm.Normal("x", mean, pt.exp(t), shape=(2, 2))
        pm.Normal("y", x, SLIP, observed=SEEN)
    return model


def known(form: str) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of t, mean (2) and x (4), by a grid."""
    rows = LEAN if form == "rows" else np.eye(2)
    read = np.kron(np.ones((2, 1)), np.eye(2))  # of x, its mean
    weights, means, squares = [], [], []
    for t in np.linspace(-5.0, 3.5, 1500):
        own = np.exp(2.0 * t) * np.kron(np.eye(2), rows @ rows.T)
        prior = np.block([[np.eye(2), read.T], [read, read @ read.T + own]])
        seen = prior[2:, 2:] + SLIP**2 * np.eye(4)
        gain = prior[:, 2:] @ np.linalg.inv(seen)
        centre, spread = gain @ SEEN.ravel(), np.diag(prior - gain @ prior[2:])
        fit = -0.5 * SEEN.ravel() @ np.linalg.solve(seen, SEEN.ravel()) - 0.5 * np.linalg.slogdet(seen)[1]
        weights.append(fit - 0.5 * ((t + 0.5) / 0.7) ** 2)
        means.append(np.append(t, centre))
        squares.append(np.append(t**2, centre**2 + spread))
    share = np.exp(np.array(weights) - np.max(weights))
    first, second = (share @ np.array(moments) / share.sum() for moments in (means, squares))
    return first, np.sqrt(second - first**2)


@pytest.mark.parametrize("form", ["rows", "elements"])
def test_the_step_next_to_another_one_has_the_known_posterior(form):
    """Each draw of the other step moves a parent, and the chart is entered anew."""
    model = effects(form)
    with model:
        steps = [RMHMC(vars=["mean", "x"], metric=FlatMetric(chart="graph")), pm.Metropolis(vars=[model["t"]])]
        drawn = pm.sample(draws=6000, tune=1000, chains=4, cores=1, random_seed=3, progressbar=False, step=steps,
                          compute_convergence_checks=False).posterior  # fmt: skip
    values = [np.asarray(drawn[name]).reshape(4, 6000, -1) for name in ("t", "mean", "x")]
    values = np.concatenate(values, axis=2)
    for each, mean, deviation in zip(values.transpose(2, 0, 1), *known(form), strict=True):
        error = float(az.mcse(each))
        assert error < 0.06 * deviation
        assert abs(each.mean() - mean) < 4.5 * error
        assert abs(each.std() - deviation) < 4.5 * float(az.mcse(each, method="sd"))
