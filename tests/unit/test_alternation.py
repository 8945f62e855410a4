"""A draw by turns on a toy target: where the chain stands after each move, and how long steps are."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels import turns
from pymc_rmhmc.kernels.kernel import Transition
from pymc_rmhmc.kernels.trajectories import JitteredPath, transition
from pymc_rmhmc.kernels.turns import JOINT, LATENTS, JointMove, Turn
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.solvers.site_space import SiteSpace
from tests.turning_chain import TurningChain
from tests.unit.test_joint_chart import THETA, ToyDensity, joint

D = THETA.size
# The noise of the toy's observations: the likelihoods' own parameter.
NOISE = np.array([3])
OF_NOISE = MarginalChart.linear(np.array([0.0]), np.array([[0.2]]))


def led(slope: float) -> Emulator:
    """A plane: with no slope it leads nowhere but where a standard normal does, and with much of it far away."""
    return Emulator(np.zeros((D, 0)), np.zeros(0), 1.0, 0.0, np.full(D, slope), np.zeros((D, D)))


def chain_at(target: JointTarget, slope: float = 0.0) -> TurningChain:
    """A chain that stands where latent values and noise are likely."""
    target.density.of_likelihoods = NOISE
    made = TurningChain(target, led(slope), JitteredPath(0.1, 0.1, 20), OF_NOISE)
    rng = np.random.default_rng(1)
    made.stand(np.concatenate((target.chart.recover(THETA), 0.3 * rng.standard_normal(target.size - D))))
    for _ in range(40):
        made.draw(0.1, rng)
    return made


MOVES = {
    "together": lambda chain, rng: chain.move_both(0.05, rng).accepted,
    "parameters": lambda chain, rng: chain.move_parameters(rng).accepted,
    "latents alone": lambda chain, rng: chain.draw_latents(0.1, rng).accepted,
    "between joint trajectories": lambda chain, rng: any(m.accepted for m in chain.draw_between(0.1, 0.05, rng)),
    "in turns": lambda chain, rng: any(move.accepted for move in chain.draw(0.1, rng)),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_chain_stands_where_the_density_has_been_evaluated(name):
    """ϑ and z on one side, latent values and log density on the other: with a z left behind the kernel is wrong."""
    target, rng = joint(moving=True), np.random.default_rng(2)
    chain, moves = chain_at(target), []
    for _ in range(40):
        before = chain.joint_point.position
        moves.append(MOVES[name](chain, rng))
        here = chain.joint_point
        exact = target.at(here.position)
        assert here.log_density == pytest.approx(exact.log_density, rel=1e-9, abs=1e-8)
        for eta, values in zip(here.eta, exact.eta, strict=True):
            np.testing.assert_allclose(eta, values, rtol=1e-7, atol=1e-8)
        assert np.array_equal(here.position, before) != moves[-1]
        chain.draw(0.1, rng)  # after which what was placed last is the chain's own
    assert sum(moves) >= 10
    assert name != "together" or not all(moves)


def test_latents_move_before_a_joint_trajectory():
    chain, rng = chain_at(joint(moving=True)), np.random.default_rng(6)
    theta = chain.here.point.held.standard
    moves = [chain.draw_between(0.1, 0.05, rng) for _ in range(5)]
    assert {tuple(move.kind for move in draw) for draw in moves} == {(LATENTS, JOINT)}
    assert not np.array_equal(chain.here.point.held.standard, theta)


def test_factors_that_were_borrowed_are_not_kept_when_a_draw_ends(monkeypatch):
    """They may differ from a θ's own in their last digits, and a chain that is restored there has its own."""
    usual = SiteSpace.with_sites

    def by_the_last_digits(conditional: SiteSpace, sites: GaussianSites) -> SiteSpace:
        other = usual(conditional, sites)
        other._covariance = (1.0 + 1e-12) * other._covariance
        return other

    monkeypatch.setattr(SiteSpace, "with_sites", by_the_last_digits)
    target, rng = joint(moving=True), np.random.default_rng(3)
    chain, n_borrowed = chain_at(target, slope=8.0), 0  # hyperparameters' turns are rejected
    for _ in range(20):
        moved = chain.move_parameters(rng).accepted
        turns = chain.draw(0.1, rng)
        n_borrowed += moved and not any(move.accepted for move in turns[1::2])
        left = chain.joint_point
        restored = TurningChain(target, led(0.0), JitteredPath(0.1, 0.1, 20), OF_NOISE)
        restored.stand(left.position)
        assert left.log_density == restored.joint_point.log_density
        for one, other in itertools.chain(
            zip(left.eta, restored.joint_point.eta, strict=True),
            zip(target.latents(left), target.latents(restored.joint_point), strict=True),
        ):
            np.testing.assert_array_equal(one, other)
    assert n_borrowed >= 5


@pytest.mark.parametrize(
    ("amplitude", "step_size", "shortest"),
    [
        (0.0, 0.3, 0.3),  # where the sites were fitted
        (1.0, 0.3, 0.3 / np.exp(0.85)),  # latent values lie e^0.85 times as far out
        (3.0, 0.3, 0.05),  # so far out that the path could not be walked in 20 of such steps
        (3.0, 0.01, 0.01),  # steps that are short in any case are not made longer
    ],
)
def test_steps_are_shortened_far_out_but_the_path_is_still_walked(monkeypatch, amplitude, step_size, shortest):
    taken = []

    def watched(hamiltonian, integrator, state, n_steps, size, rng, **options):
        taken.append((n_steps, size))
        return transition(hamiltonian, integrator, state, n_steps, size, rng, **options)

    target = joint(trend=True)
    blocks = target.density.blocks[:1]  # whose w̄ falls off with the amplitude
    target = JointTarget(ToyDensity(blocks), target.sites[:1], target.chart)
    (held,) = target.sites
    theta = held.trend.centre + np.array([amplitude, 0.0, 0.0, 0.0])
    chain = TurningChain(target, led(0.0), JitteredPath(1.0, 0.0, 20))
    chain.stand(np.concatenate((target.chart.recover(theta), np.zeros(target.size - D))))
    monkeypatch.setattr(turns, "transition", watched)
    chain.draw(step_size, np.random.default_rng(4))
    n_steps, size = taken[0]
    assert n_steps == min(20, np.ceil(1.0 / shortest - 1e-9))
    assert 0.8 * shortest <= size <= shortest * (1.0 + 1e-9)


class Reported:
    """A move that stays, and reports energies."""

    def __init__(self, energy: float, error: float, divergences: int = 0) -> None:
        self.found = {"energy": energy, "energy_error": error, "n_emulator_divergences": divergences}

    def step(self, state, rng):
        return Transition(state, accepted=True, acceptance=0.5, n_steps=1, **self.found)


@pytest.mark.parametrize(("divergences", "error"), [(0, 0.3), (1, 0.1)])
def test_a_turns_energy_is_that_of_both_momenta_and_its_error_that_of_both_halves(divergences, error):
    """Both halves' energies hold the density of z, which counts once; a divergence of the emulator has no error."""
    state = chain_at(joint()).here
    turn = Turn(Reported(2.0, 0.1), Reported(3.0, 0.2, divergences)).step(state, np.random.default_rng(0))
    assert turn.energy == pytest.approx(2.0 + state.point.log_density + 3.0)
    assert turn.energy_error == pytest.approx(error)


class Led:
    """A joint trajectory that leads to a given (ϑ, z)."""

    hamiltonian = SimpleNamespace(state=lambda position: SimpleNamespace(position=position))

    def __init__(self, end: np.ndarray) -> None:
        self.end = end

    def step(self, state, rng):
        return Transition(SimpleNamespace(position=self.end), accepted=True, acceptance=0.9, n_steps=3)


def test_a_joint_trajectorys_end_is_where_the_turns_go_on():
    target = joint()
    state, rng = chain_at(target).here, np.random.default_rng(5)
    end = state.position + 0.1 * rng.standard_normal(target.size)
    outcome = JointMove(target, Led(end)).step(state, rng)
    np.testing.assert_array_equal(outcome.state.position, end)
    there = outcome.state.point.held.joint(outcome.state.noise, outcome.state.point)
    assert there.log_density == pytest.approx(target.at(end).log_density, rel=1e-9)
    # Where it had a factor a moment ago, and has none now, nothing has moved.
    before = outcome.state.position
    failed = JointMove(target, Led(np.full(target.size, np.nan))).step(outcome.state, rng)
    assert (failed.failure, failed.accepted) == (Failure.NON_FINITE, False)
    np.testing.assert_array_equal(failed.state.position, before)
