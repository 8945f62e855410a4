"""Latents and hyperparameters in turns: whatever the emulator is, it must never bias.

Simulation-based calibration of the kernel with absurd frozen sites, a poor chart and an absurd emulator; kernels that
are wrong on purpose, which the same test rejects; and whole runs against joint trajectories and against a grid.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from pymc_rmhmc import RMHMC, FlatMetric, compare
from pymc_rmhmc.dynamics.integrators import SurrogateSplitting
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels import turns
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.kernels.turns import LatentMove, TurnState
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.theta_densities import ThetaGivenNoise, WithoutThetaForce
from tests.statistical.joint_cases import (
    LOGISTIC,
    Grid,
    Loaded,
    Problem,
    Process,
    Rows,
    Scaled,
    Sum,
    absurd_sites,
)
from tests.statistical.ranks import PLACES, Looks, rank
from tests.statistical.test_joint import along_a_trend, following, watched, width
from tests.steps.conftest import draw
from tests.steps.test_joint_sampling import two_scales
from tests.turning_chain import ROUNDS, TurningChain

pytestmark = pytest.mark.slow

LENGTH, STEP_SIZE = JitteredPath(1.7, 0.1, 100), 0.3
# Of both at once: along an absurd emulator a longer path is hardly ever accepted.
SHORT, SHORT_STEP = JitteredPath(0.6, 0.1, 100), 0.35
# Latent values move by the compiled path of their likelihood: `tests/model/test_compiled_paths.py` holds that of each
# against single steps, and `test_joint_calibration` has the ranks of each. Here are both forms, without a parameter and
# with.
PROBLEMS = {
    **{
        f"{form} process, {name}": Problem(Process(form), name, simulations=120)
        for form, name in (
            ("centred", "poisson_log"), ("centred", "negativebinomial_log"), ("whitened", "bernoulli_probit"),
            ("whitened", "normal_identity"),
        )
    },
    "fixed process, studentt_identity": Problem(Process("fixed"), "studentt_identity", simulations=120),
    "grid, poisson_log": Problem(Grid(), "poisson_log", simulations=120),
    "rows, bernoulli_probit": Problem(Rows(), "bernoulli_probit", simulations=120),
    "sum of two vectors, negativebinomial_log": Problem(Sum(), "negativebinomial_log", simulations=120),
    "scaled processes, normal_identity": Problem(Scaled(), "normal_identity", simulations=120),
    "processes times functions, poisson_log": Problem(Loaded(), "poisson_log", simulations=120),
    f"whitened process, {LOGISTIC}": Problem(Process("whitened"), LOGISTIC, simulations=120),
    f"sum of two vectors, {LOGISTIC}": Problem(Sum(), LOGISTIC, simulations=120),
}
ALONG_A_TREND = [
    "whitened process, bernoulli_probit",
    "centred process, poisson_log",
    "fixed process, studentt_identity",
]
# Steps down to a third of the longest, and less where hyperparameters are rare.
TREND = 1.0
# Thirty tests of correct samplers; see test_sbc.
LEVEL = 1e-3 / 30 / 3


def absurd_emulator(d: int, seed: int = 0) -> Emulator:
    """Bumps of either sign at random places and a parabola at random: it has nothing to do with any density."""
    rng = np.random.default_rng(seed)
    square = 0.15 * rng.standard_normal((d, d))
    return Emulator(
        rng.standard_normal((12, d)).T.copy(), 0.7 * rng.standard_normal(12), 1.2, 5.0, 0.4 * rng.standard_normal(d),
        square + square.T,
    )  # fmt: skip


def bent_chart(problem: Problem) -> MarginalChart:
    """About the prior's centre, and poor otherwise: nothing leads a chain back whose chart is far off as well."""
    d = len(problem.priors)
    centre = problem.joint.theta.pack(problem.values(np.zeros(d))[1])
    factor, bend = np.linalg.cholesky(0.25 * np.eye(d) + 0.05), np.linspace(-0.15, 0.15, d)
    return MarginalChart(np.full(d, 0.1), factor, centre, np.ones(d), bend, 1.0 + bend[::-1])


def skewed_chart(problem: Problem) -> MarginalChart:
    """Its volume grows to one side, all over the posterior: only so is its loss seen."""
    d = len(problem.priors)
    centre = problem.joint.theta.pack(problem.values(np.zeros(d))[1])
    return MarginalChart(np.zeros(d), 1.5 * np.eye(d), centre, np.full(d, 0.3), np.full(d, 0.8), np.full(d, 0.8))


def nothing_emulated(d: int) -> Emulator:
    """A constant, for a chart that is far off already."""
    return Emulator(np.zeros((d, 0)), np.zeros(0), 1.0, 0.0, np.zeros(d), np.zeros((d, d)))


def backwards(kernel: TurningChain, rng: np.random.Generator):
    """A draw of the kernel's reversal: every move is its own, and their order is the other."""
    moves = []
    for _ in range(ROUNDS):
        hyperparameters = kernel.move_hyperparameters(rng)
        moves += [kernel.move_latents(STEP_SIZE, rng), hyperparameters]
    return moves


def forwards(kernel: TurningChain, rng: np.random.Generator):
    return kernel.draw(STEP_SIZE, rng)


def at_once(kernel: TurningChain, rng: np.random.Generator):
    """Two trajectories of both halves, each its own reversal."""
    return [kernel.move_both(SHORT_STEP, rng) for _ in range(2)]


BOTH = {"turns": (at_once, at_once), "length": SHORT}
JOINT_STEP = 0.1  # in a poor chart, about absurd sites


def latents_and_both(kernel: TurningChain, rng: np.random.Generator):
    """As where turns were given up."""
    return kernel.draw_between(STEP_SIZE, JOINT_STEP, rng)


def both_and_latents(kernel: TurningChain, rng: np.random.Generator):
    both = kernel.move_jointly(JOINT_STEP, rng)
    return [kernel.move_latents(STEP_SIZE, rng), both]


def calibrate(
    problem: Problem, kernel_class=TurningChain, seed: int = 1, sites: GaussianSites | None = None,
    emulate=absurd_emulator, turns=(backwards, forwards), length=LENGTH, until: float | None = None,
    trend: float = 0.0, chart_of=bent_chart,
):  # fmt: skip
    """As `test_sbc.calibrate`, in one direction with the reversed order: p-value, failure rate, two acceptances.

    With sites that follow a trend of this size, by which the latents' steps go, and θ in a chart of the problem.
    """
    rng, joint, ranks, looks = np.random.default_rng(seed), problem.joint, [], Looks(problem.simulations, until)
    d, n = joint.theta.size, problem.latents.n
    sites = absurd_sites(n) if sites is None else sites
    chart, failures, accepted, count = chart_of(problem), 0, np.zeros(2), 0
    while not looks.decided(ranks):
        theta, values, y = problem.simulate(rng)
        problem.observe(y)
        held = following(joint.blocks[0], d, sites)
        target = JointTarget(joint, [along_a_trend(held, d, trend) if trend else held], chart)
        start, before, others = target.enter(theta, [values], rng), int(rng.integers(PLACES)), []
        for turn, places in zip(turns, (before, PLACES - 1 - before), strict=True):
            kernel = kernel_class(target, emulate(d), length)
            kernel.stand(start)
            for _ in range(places):
                moves = turn(kernel, rng)
                failures += sum(move.failure not in (Failure.NONE, Failure.ENERGY) for move in moves)
                accepted += np.reshape([move.acceptance for move in moves], (-1, 2)).sum(axis=0)
                count += len(moves)
                # The last draw of `backwards` has not evaluated z anew.
                kernel.stand(kernel.joint_point.position)
                others.append(watched(target, kernel.joint_point))
        kernel.stand(start)
        ranks.append(rank(watched(target, kernel.joint_point), np.array(others), rng))
    return looks.p_value(ranks), failures / count, *(accepted / (count / 2))


@pytest.mark.parametrize("name", PROBLEMS)
def test_ranks_of_the_truth_are_uniform_whatever_sites_and_emulator(name):
    p, failure_rate, latents, hyperparameters = calibrate(PROBLEMS[name])
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.5 < latents < 0.9999
    # Where data say much an absurd emulator is seldom right.
    assert 0.03 < hyperparameters < 0.9


@pytest.mark.parametrize("name", PROBLEMS)
def test_ranks_are_uniform_where_both_move_at_once(name):
    p, failure_rate, *acceptances = calibrate(PROBLEMS[name], **BOTH)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.05 < np.mean(acceptances) < 0.95


@pytest.mark.parametrize("name", ["centred process, poisson_log", "rows, bernoulli_probit"])
def test_ranks_are_uniform_where_latents_move_between_joint_trajectories(name):
    p, failure_rate, latents, both = calibrate(PROBLEMS[name], turns=(both_and_latents, latents_and_both))
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.5 < latents < 0.9999
    assert 0.3 < both < 0.9999


@pytest.mark.parametrize("name", ALONG_A_TREND)
def test_ranks_are_uniform_where_steps_go_by_the_hyperparameters_that_are_held(name):
    p, failure_rate, latents, hyperparameters = calibrate(PROBLEMS[name], trend=TREND)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.5 < latents < 0.9999
    assert 0.03 < hyperparameters < 0.9


class JudgedByTheEmulator(TurningChain):
    """The proposal judged by the density whose flow it follows."""

    def __init__(self, target, emulator, length) -> None:
        super().__init__(target, emulator, length)
        self._emulator = emulator

    def move_hyperparameters(self, rng):
        outer, emulator = self, self._emulator

        class Along(ThetaGivenNoise):
            def at(self, standard):
                return self.emulated(super().at(standard))

            @staticmethod
            def of(point):
                return Along.emulated(ThetaGivenNoise.of(point))

            @staticmethod
            def emulated(point):
                if not point.failure:
                    point.log_density = emulator.evaluate(point.position)[0]
                return point

        return moved_along(outer, Along, rng)


def instead(owner, name: str, other, move):
    """A move, with something else in place of what has that name."""
    usual = getattr(owner, name)
    setattr(owner, name, other)
    try:
        return move()
    finally:
        setattr(owner, name, usual)


def in_density(name: str, kind, move):
    """A move, with a class of another kind in place of the density that it takes by that name."""
    return instead(turns, name, kind, move)


def moved_along(kernel: TurningChain, kind, rng):
    """The move of ϑ in a density of another kind."""
    return in_density("ThetaGivenNoise", kind, lambda: TurningChain.move_hyperparameters(kernel, rng))


class WithoutEvidence(TurningChain):
    """The evidence of the blocks, or what else a ϑ has beyond z's density, left out of the judgement."""

    def move_hyperparameters(self, rng):
        class Along(ThetaGivenNoise):
            def at(self, standard):
                return without_evidence(super().at(standard))

            @staticmethod
            def of(point):
                return without_evidence(ThetaGivenNoise.of(point))

        return moved_along(self, Along, rng)


def without_evidence(point):
    if not point.failure:
        point.log_density -= sum(c.log_evidence for c in point.point.held.conditionals)
    return point


class WithoutVolume(TurningChain):
    """The volume of θ's normalising map left out of the judgement."""

    def move_hyperparameters(self, rng):
        chart = self.target.chart

        class Along(ThetaGivenNoise):
            def at(self, standard):
                return without_volume(super().at(standard), chart)

            @staticmethod
            def of(point):
                return without_volume(ThetaGivenNoise.of(point), chart)

        return moved_along(self, Along, rng)


def without_volume(point, chart: MarginalChart):
    if not point.failure:
        point.log_density -= chart.place(point.position).log_volume
    return point


class OfFreshNoise(TurningChain):
    """ϑ moved at a z that is drawn for it, and the z kept: the joint law of the two is lost."""

    def move_hyperparameters(self, rng):
        kept, other = self.here.noise, rng.standard_normal(self.here.noise.size)
        self.here = TurnState(other, self.here.point.held.at_noise(other))
        outcome = super().move_hyperparameters(rng)
        self.here = TurnState(kept, self.here.point.held.at_noise(kept))
        return outcome


class Following(TurningChain):
    """The emulator moves with the chain: a proposal's way back is along another."""

    def move_hyperparameters(self, rng):
        here = self.here.point.held.standard
        self.flow.surrogate = replace(self.flow.surrogate, linear=here.copy())
        return super().move_hyperparameters(rng)


def along(kernel: TurningChain, advance, step_size: float, rng):
    """The move of z along another path than the compiled one, which `advance` has for its first argument."""
    held = kernel.here.point.held
    assert held.advances
    other = partial(advance, held.advance)
    return instead(held, "advance", other, lambda: TurningChain.move_latents(kernel, step_size, rng))


class StepsByWhereItIs(TurningChain):
    """A step size that is chosen by what is about to move: the way back has another, and ends elsewhere."""

    class latent_move(LatentMove):  # noqa: N801
        def step_size_at(self, state):
            return self.step_size / (400.0 if state.point.displacement.sum() > 0.0 else 1.0)


class SitesCountedTwice(TurningChain):
    """The end of a compiled trajectory is judged without taking off what the chart has of the sites."""

    def move_latents(self, step_size, rng):
        def advance(usual, *arguments):
            found = usual(*arguments)
            found.point.log_density = found.point.log_likelihood
            return found

        return along(self, advance, step_size, rng)


class OfUnevenLength(TurningChain):
    """How long a compiled trajectory is depends on where it begins: its way back is another."""

    def move_latents(self, step_size, rng):
        def advance(usual, origin, point, n_steps, step_size):
            shorter = 1 if origin.displacement.sum() > 0.0 else n_steps
            return usual(origin, point, shorter, step_size)

        return along(self, advance, step_size, rng)


class WithoutWhatKicksAdd(TurningChain):
    """The end of a compiled trajectory is judged as if z and p were no longer than at its beginning."""

    def move_latents(self, step_size, rng):
        def advance(usual, *arguments):
            return replace(usual(*arguments), gained=0.0)

        return along(self, advance, step_size, rng)


class AtOnceWithoutEvidence(TurningChain):
    """What a ϑ has beyond z's density left out of the judgement."""

    def move_both(self, step_size, rng):
        class Both(WithoutThetaForce):
            def standing(self, noise, point):
                return without_evidence(super().standing(noise, point))

        return in_density("WithoutThetaForce", Both, lambda: TurningChain.move_both(self, step_size, rng))


class WithoutSecondKick(SurrogateSplitting):
    """The half kick at a path's end left out."""

    def path(self, hamiltonian, state, n_steps, step_size):
        step = super().path(hamiltonian, state, n_steps, step_size)
        return replace(step, state=None if step.state is None else hamiltonian.kick(step.state, -0.5 * step_size))


class AtOnceAndNotBack(TurningChain):
    """A trajectory of both halves that taken back leads elsewhere."""

    def __init__(self, target, emulator, length) -> None:
        super().__init__(target, emulator, length)
        self.splitting = WithoutSecondKick(emulator, target.n_theta)


INFORMED = Problem(Process("centred", amplitude=0.0, level=0.0), "poisson_log")
# Narrow ones, so that their evidence depends on the hyperparameters.
NARROW = GaussianSites(np.full(INFORMED.latents.n, -1.0), np.full(INFORMED.latents.n, 3.0))
MUTANTS = {
    JudgedByTheEmulator: 120,
    WithoutEvidence: 450,
    OfFreshNoise: 160,
    Following: 600,
    SitesCountedTwice: 450,
    OfUnevenLength: 1000,
    WithoutWhatKicksAdd: 200,
    StepsByWhereItIs: 1000,
}
AT_ONCE = {AtOnceWithoutEvidence: 300, AtOnceAndNotBack: 800}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_rejected(mutant):
    problem = replace(INFORMED, simulations=MUTANTS[mutant])
    sites = NARROW if mutant is WithoutEvidence else None
    p_values = [calibrate(problem, mutant, seed, sites, until=LEVEL)[0] for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


@pytest.mark.parametrize("mutant", AT_ONCE)
def test_every_mutant_that_moves_both_at_once_is_rejected(mutant):
    problem = replace(INFORMED, simulations=AT_ONCE[mutant])
    sites = NARROW if mutant is AtOnceWithoutEvidence else None
    p_values = [calibrate(problem, mutant, seed, sites, until=LEVEL, **BOTH)[0] for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


@pytest.mark.parametrize("sites", [None, NARROW], ids=["absurd", "narrow"])
def test_the_kernel_passes_where_the_mutants_fail(sites):
    p, failure_rate, latents, hyperparameters = calibrate(INFORMED, sites=sites)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.5 < latents < 0.9999
    assert 0.1 < hyperparameters < 0.9
    assert calibrate(INFORMED, sites=sites, **BOTH)[0] > LEVEL


def test_the_volume_of_a_skewed_chart_is_needed():
    problem = replace(INFORMED, simulations=600)
    skewed = {"chart_of": skewed_chart, "emulate": nothing_emulated, "length": SHORT}
    p, failure_rate, _, hyperparameters = calibrate(problem, **skewed)
    assert p > LEVEL
    assert failure_rate < 0.05
    assert 0.1 < hyperparameters < 0.9
    p_values = [calibrate(problem, WithoutVolume, seed, until=LEVEL, **skewed)[0] for seed in range(2)]
    assert max(p_values) < LEVEL, p_values


def test_whole_runs_in_turns_and_of_joint_trajectories_agree():
    model, runs = two_scales(), {}
    for emulate in (True, False):
        step = RMHMC(metric=FlatMetric(emulate=emulate), model=model)
        runs[f"emulate={emulate}"] = draw(model, step, draws=2000, tune=300, chains=2, random_seed=3 + emulate)
        assert (step.chains[0].tuned.emulator is not None) == emulate
    names = ["ls", "eta", "f"]
    frame = compare(runs, var_names=names)
    assert frame["mean difference"].max() < 4.0
    assert frame["R-hat max"].max() < 1.02
    turns, joint = runs.values()
    for name in names:  # widths as well as means
        ratio = width(turns.posterior[name]) / width(joint.posterior[name])
        assert (abs(np.log(ratio)) < 0.15).all()
