"""Likelihoods' own parameters moved with the latent values held: whatever their chart is, they must never bias.

Simulation-based calibration of the kernel that makes such a move before its turns, with absurd frozen sites, an absurd
emulator and a poor chart; and kernels that are wrong on purpose, which the same test rejects.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.turns import ParameterMove, TurnState
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta
from pymc_rmhmc.latent.theta_densities import ChartedParameters, ParametersGivenLatents
from pymc_rmhmc.model import JointModel
from tests.statistical.joint_cases import LIKELIHOODS, LOGISTIC, Grid, Problem, Process, Rows, Sum, absurd_sites
from tests.statistical.ranks import PLACES, Looks, rank
from tests.statistical.test_alternation import LENGTH, absurd_emulator, backwards, bent_chart, forwards, in_density
from tests.statistical.test_joint import following, watched
from tests.turning_chain import TurningChain

pytestmark = pytest.mark.slow

FORMS = ("centred", "whitened", "fixed")
# Every likelihood that has parameters.
PROBLEMS = {
    **{
        f"{FORMS[i % 3]} process, {name}": Problem(Process(FORMS[i % 3]), name, simulations=120)
        for i, name in enumerate(name for name, likelihood in LIKELIHOODS.items() if likelihood.parameters)
    },
    "sum of two vectors, negativebinomial_log": Problem(Sum(), "negativebinomial_log", simulations=120),
    "rows, studentt_identity": Problem(Rows(), "studentt_identity", simulations=120),
    "grid, normal_identity": Problem(Grid(), "normal_identity", simulations=120),
    f"fixed process, {LOGISTIC}": Problem(Process("fixed"), LOGISTIC, simulations=120),
    f"sum of two vectors, {LOGISTIC}": Problem(Sum(), LOGISTIC, simulations=120),
}
# Fifteen tests of correct samplers; see test_sbc.
LEVEL = 1e-3 / 15 / 3


def poor_chart(centre: np.ndarray) -> MarginalChart:
    """Bent so much that its volume changes threefold where the parameters are, and correlated where nothing is."""
    k = centre.size
    factor, skewness = 2.0 * np.eye(k) + np.tril(np.ones((k, k)), -1), np.linspace(1.0, -1.0, k)
    return MarginalChart(-2.0 * skewness, factor, centre, np.full(k, 0.15), skewness, np.full(k, 0.9))


@dataclass(frozen=True)
class Calibration:
    """The p-value, the share of moves that failed, and the acceptance of each kind of move."""

    p_value: float
    failure_rate: float
    parameters: float
    latents: float
    hyperparameters: float

    def assert_moved_well(self) -> None:
        """A kernel that never moves leaves ranks to chance: they are then uniform for any sampler."""
        assert self.failure_rate < 0.05
        assert 0.3 < self.parameters < 0.9999
        if not math.isnan(self.latents):
            assert 0.5 < self.latents < 0.9999
            assert 0.02 < self.hyperparameters < 0.9


def there(kernel: TurningChain, rng: np.random.Generator, count: int):
    """Moves of the parameters, then the turns."""
    return [move_parameters(kernel, rng) for _ in range(count)], forwards(kernel, rng)


def alone(kernel: TurningChain, rng: np.random.Generator, count: int):
    """No turns: the parameters given the latent values, which is its own reversal."""
    return [move_parameters(kernel, rng) for _ in range(count)], []


def back(kernel: TurningChain, rng: np.random.Generator, count: int):
    """The reversal: every move is its own, and their order is the other."""
    turns = backwards(kernel, rng)
    kernel.stand(kernel.joint_point.position)  # the last of them has not evaluated z anew
    return [move_parameters(kernel, rng) for _ in range(count)], turns


def move_parameters(kernel: TurningChain, rng: np.random.Generator):
    """Of which another may follow: z is placed anew."""
    outcome = kernel.move_parameters(rng)
    kernel.stand(kernel.joint_point.position)
    return outcome


def seen(target: JointTarget, kernel: TurningChain) -> np.ndarray:
    """What is ranked: of the latents' prior as well, or parameters that ignore it were uniform.

    All that a move holds comes back but for its last digits, which must not decide between values that are one.
    """
    point = kernel.joint_point
    return np.round([*watched(target, point), target.model_log_density(point)], 8)


def calibrate(
    problem: Problem, kernel_class=TurningChain, seed: int = 1, *, joint: JointModel | None = None, count: int = 1,
    sites: GaussianSites | None = None, turns: bool = True, until: float | None = None,
):  # fmt: skip
    """As `test_alternation.calibrate`, of a kernel that moves the parameters `count` times before its turns."""
    rng, joint, ranks = np.random.default_rng(seed), problem.joint if joint is None else joint, []
    d, sites, chart = joint.theta.size, sites or absurd_sites(problem.latents.n), bent_chart(problem)
    poor = poor_chart(chart.location[joint.of_likelihoods])
    failures, before, turned, looks = 0, [], [], Looks(problem.simulations, until)
    while not looks.decided(ranks):
        theta, values, y = problem.simulate(rng)
        problem.observe(y)
        target = JointTarget(joint, [following(joint.blocks[0], d, sites)], chart)
        start, place, others = target.enter(theta, [values], rng), int(rng.integers(PLACES)), []
        for turn, length in zip((back, there) if turns else (alone, alone), (place, PLACES - 1 - place), strict=True):
            kernel = kernel_class(target, absurd_emulator(d), LENGTH, poor)
            kernel.stand(start)
            for _ in range(length):
                moved, others_moved = turn(kernel, rng, count)
                failures += sum(move.failure not in (Failure.NONE, Failure.ENERGY) for move in (*moved, *others_moved))
                before += [move.acceptance for move in moved]
                turned += [move.acceptance for move in others_moved]
                kernel.stand(kernel.joint_point.position)
                others.append(seen(target, kernel))
        kernel.stand(start)
        ranks.append(rank(seen(target, kernel), np.array(others), rng))
    rates = np.reshape(turned, (-1, 2)).mean(axis=0) if turns else (np.nan, np.nan)
    return Calibration(looks.p_value(ranks), failures / (len(before) + len(turned)), np.mean(before), *rates)


@pytest.mark.parametrize("name", PROBLEMS)
def test_ranks_of_the_truth_are_uniform_whatever_sites_emulator_and_chart(name):
    found = calibrate(PROBLEMS[name])
    assert found.p_value > LEVEL
    found.assert_moved_well()


def moved_in(kernel: TurningChain, kind, rng):
    """The move in a density of another kind."""
    return in_density("ParametersGivenLatents", kind, lambda: TurningChain.move_parameters(kernel, rng))


class KeepingTheNoise(TurningChain):
    """Judged with the latent values held, and moved with z held: they go elsewhere."""

    class parameter_move(ParameterMove):  # noqa: N801
        def hold_latents(self, state, theta, rng):
            held = LatentsGivenTheta(self.target, self.target.chart.recover(theta), state.point.held)
            point = held.at_noise(state.noise)
            return point.failure or TurnState(state.noise, point)


class OfFreshNoise(TurningChain):
    """Any z, and not one of those that lead to the latent values."""

    class parameter_move(ParameterMove):  # noqa: N801
        def hold_latents(self, state, theta, rng):
            there = ParameterMove.hold_latents(self, state, theta, rng)
            if isinstance(there, Failure):
                return there
            noise = rng.standard_normal(there.noise.size)
            return TurnState(noise, there.point.held.at_noise(noise))


class WithoutTheLikelihood(TurningChain):
    """The parameters moved as their prior has them."""

    def move_parameters(self, rng):
        class Rest(ParametersGivenLatents):
            def score(self, theta):
                total, gradient = self._density.rest(theta)
                return total, gradient[self._which]

        return moved_in(self, Rest, rng)


class WithoutTheRest(TurningChain):
    """The parameters moved as if they had no prior."""

    def move_parameters(self, rng):
        class Observed(ParametersGivenLatents):
            def score(self, theta):
                (total, score), (rest, by_theta) = super().score(theta), self._density.rest(theta)
                return total - rest, score - by_theta[self._which]

        return moved_in(self, Observed, rng)


class WithoutTheVolume(TurningChain):
    """A density of θ where one of the chart's coordinates is wanted."""

    def move_parameters(self, rng):
        class Flat(ChartedParameters):
            def at(self, position):
                point = super().at(position)
                point.log_density -= self._chart.place(position).log_volume
                return point

        class Held(ParametersGivenLatents):
            def within(self, chart):
                return Flat(self, chart, self._theta, self._which)

        return moved_in(self, Held, rng)


@dataclass(frozen=True, eq=False)
class Altered(Problem):
    """Other means and deviations of some hyperparameters, so that what a mutant leaves out says much of them."""

    altered: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def priors(self):
        return tuple(
            (name, link, *self.altered.get(name, (mean, sd))) for name, link, mean, sd in super().priors
        )


# Five observations, as narrow a process, and a noise that could be of any size.
NOISY = Altered(Process("centred"), "normal_identity", altered={"sigma": (-0.3, 1.0), "amplitude": (-1.0, 1.0)})
# The latents are known, and say of what size they are.
KNOWN = Altered(Process("centred"), "normal_identity", altered={"sigma": (-1.0, 0.4), "amplitude": (0.0, 1.0)})
# What is known of the parameters is their prior.
VAGUE = Problem(Process("centred", amplitude=-1.0), "studentt_identity")
HEAVY = Problem(Process("fixed"), "studentt_identity")
# Strong and at the wrong place: the latent values are not where z was when the sites follow a noise.
STRONG = GaussianSites(np.full(NOISY.latents.n, -40.0), np.full(NOISY.latents.n, 120.0))
CELLS = {
    "noise": (NOISY, {"sites": STRONG, "count": 4}),
    "prior": (VAGUE, {"count": 2}),
    "latents held throughout": (HEAVY, {"count": 4, "turns": False}),
    "amplitude": (KNOWN, {"count": 2}),
}
MUTANTS = {
    KeepingTheNoise: ("noise", 200),
    OfFreshNoise: ("noise", 60),
    WithoutTheLikelihood: ("noise", 150),
    WithoutTheRest: ("prior", 60),
    WithoutTheVolume: ("latents held throughout", 200),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_rejected(mutant):
    cell, simulations = MUTANTS[mutant]
    problem, options = CELLS[cell]
    problem = replace(problem, simulations=simulations)
    p_values = [calibrate(problem, mutant, seed, until=LEVEL, **options).p_value for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


def with_the_amplitude(problem: Problem) -> JointModel:
    """A model that takes the amplitude of the process for a parameter of its likelihood."""
    wrong = copy.copy(problem.joint)
    amplitude = wrong.theta.slices[wrong.theta.names.index("amplitude_log__")].start
    wrong.of_likelihoods = np.sort(np.append(wrong.of_likelihoods, amplitude))
    return wrong


def test_a_parameter_that_the_latents_know_of_is_rejected():
    problem, options = CELLS["amplitude"]
    problem = replace(problem, simulations=80)
    wrong = with_the_amplitude(problem)
    p_values = [calibrate(problem, seed=seed, joint=wrong, until=LEVEL, **options).p_value for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


@pytest.mark.parametrize("cell", CELLS)
def test_the_kernel_passes_where_the_mutants_fail(cell):
    problem, options = CELLS[cell]
    found = calibrate(replace(problem, simulations=150), **options)
    assert found.p_value > LEVEL
    found.assert_moved_well()
