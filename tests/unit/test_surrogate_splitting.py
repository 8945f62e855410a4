"""Hyperparameters along a surrogate and latents by their own force, in one trajectory."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, GaussianState
from pymc_rmhmc.dynamics.integrators import RotationSplitting, SurrogateSplitting
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta
from pymc_rmhmc.latent.theta_densities import WithoutThetaForce
from tests.unit.test_emulator import emulator
from tests.unit.test_held import TARGETS, each_failure, without_jitter
from tests.unit.test_joint_chart import THETA, joint

D = 4
NOTHING = Emulator(np.zeros((D, 0)), np.zeros(0), 1.0, 0.0, np.zeros(D), np.zeros((D, D)))


@pytest.fixture(params=TARGETS.values(), ids=TARGETS)
def target(request) -> JointTarget:
    return request.param()


def start_of(target: JointTarget, seed: int = 0) -> tuple[GaussianHamiltonian, GaussianState]:
    rng = np.random.default_rng(seed)
    hamiltonian = GaussianHamiltonian(WithoutThetaForce(target))
    return hamiltonian, hamiltonian.refresh(hamiltonian.state(0.5 * rng.standard_normal(target.size)), rng)


def phase(state) -> np.ndarray:
    return np.concatenate((state.position, state.momentum))


def test_the_density_is_the_whole_ones_and_its_gradient_the_latents_half(target):
    for position in np.random.default_rng(3).standard_normal((3, target.size)):
        whole, point = target.at(position), WithoutThetaForce(target).at(position)
        assert point.failure is Failure.NONE
        assert point.log_density == pytest.approx(whole.log_density, rel=1e-12, abs=1e-9)
        np.testing.assert_array_equal(point.position, position)
        np.testing.assert_array_equal(point.gradient[:D], 0.0)
        np.testing.assert_allclose(point.gradient[D:], whole.gradient[D:], rtol=1e-9, atol=1e-9)


def test_a_point_that_has_been_evaluated_is_not_evaluated_again(target, monkeypatch):
    rng = np.random.default_rng(4)
    standard, noise = rng.standard_normal(D), rng.standard_normal(target.size - D)
    held = LatentsGivenTheta(target, standard)
    density, point = WithoutThetaForce(target), held.at_noise(noise)
    expected = density.at(np.concatenate((standard, noise)))
    monkeypatch.setattr(LatentsGivenTheta, "__init__", None)
    found = density.standing(noise, point)
    np.testing.assert_array_equal(found.position, expected.position)
    np.testing.assert_allclose(found.gradient, expected.gradient, rtol=1e-12, atol=1e-12)
    assert found.log_density == pytest.approx(expected.log_density, rel=1e-12)
    assert found.point is point


def test_without_a_surrogates_force_it_is_the_splitting_by_rotations(target):
    hamiltonian, state = start_of(target)
    ours = SurrogateSplitting(NOTHING, D).step(hamiltonian, state, 0.6)
    other = RotationSplitting().step(hamiltonian, state, 0.6)
    np.testing.assert_allclose(phase(ours.state), phase(other.state), rtol=1e-9, atol=1e-10)


def test_without_latents_to_kick_it_is_the_surrogates_flow():
    class Flat:
        def at(self, position):
            return GaussianPoint(position)

    class GaussianPoint:
        log_density, failure = 0.0, Failure.NONE

        def __init__(self, position):
            self.position, self.gradient = position, np.zeros_like(position)

    made, hamiltonian = emulator(D), GaussianHamiltonian(Flat())
    state = hamiltonian.refresh(hamiltonian.state(np.arange(6.0)), np.random.default_rng(5))
    end = SurrogateSplitting(made, D).step(hamiltonian, state, 0.9).state
    position, momentum = made.advance(state.position[:D], state.momentum[:D], 0.9)
    np.testing.assert_array_equal(end.position[:D], position)
    np.testing.assert_array_equal(end.momentum[:D], momentum)
    turned = np.cos(0.9) * state.position[D:] + np.sin(0.9) * state.momentum[D:]
    np.testing.assert_allclose(end.position[D:], turned, rtol=1e-14)


def test_steps_taken_back_lead_to_the_beginning(target):
    hamiltonian, state = start_of(target)
    splitting = SurrogateSplitting(emulator(D, strength=0.3), D)
    forth = splitting.path(hamiltonian, state, 3, 0.6)
    turned = GaussianState(forth.state.point, -forth.state.momentum)
    back = splitting.path(hamiltonian, turned, 3, 0.6)
    assert np.abs(phase(forth.state) - phase(state)).max() > 0.1
    np.testing.assert_allclose(back.state.position, state.position, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(-back.state.momentum, state.momentum, rtol=1e-7, atol=1e-7)


def test_a_step_preserves_volume():
    target = TARGETS["one block"]()
    hamiltonian, state = start_of(target)
    splitting, start, size, h = SurrogateSplitting(emulator(D, strength=0.3), D), phase(state), target.size, 1e-5

    def step(at):
        found = GaussianState(hamiltonian.residual.at(at[:size]), at[size:])
        return phase(splitting.step(hamiltonian, found, 0.7).state)

    jacobian = np.array([(step(start + h * e) - step(start - h * e)) / (2.0 * h) for e in np.eye(2 * size)])
    assert np.linalg.slogdet(jacobian)[1] == pytest.approx(0.0, abs=1e-6)
    assert np.abs(jacobian - np.eye(2 * size)).max() > 0.5


def test_a_path_is_its_steps_and_the_error_is_that_of_the_density(target):
    hamiltonian, start = start_of(target)
    splitting, state = SurrogateSplitting(emulator(D, strength=0.3), D), start
    for _ in range(3):
        step = splitting.step(hamiltonian, state, 0.5)
        assert (step.n_steps, step.n_metric_evals) == (1, 1)
        state = step.state
    path = splitting.path(hamiltonian, start, 3, 0.5)
    assert (path.n_steps, path.n_metric_evals) == (3, 3)
    np.testing.assert_allclose(phase(path.state), phase(state), rtol=1e-12, atol=1e-12)
    exact = [
        0.5 * at.position @ at.position + 0.5 * at.momentum @ at.momentum - target.at(at.position).log_density
        for at in (start, path.state)
    ]
    error = hamiltonian.energy(path.state) - hamiltonian.energy(start)
    assert error == pytest.approx(exact[1] - exact[0], rel=1e-9, abs=1e-8)


@each_failure
def test_a_failure_is_a_value(index, value, cause):
    centre = THETA.copy()
    centre[index] = value
    target = without_jitter(centre)
    with np.errstate(all="ignore"):
        point = WithoutThetaForce(target).at(np.zeros(target.size))
    assert point.failure is Failure[cause]
    if cause == "NOT_POSITIVE_DEFINITE":
        np.testing.assert_allclose(target.refused, centre, rtol=1e-12)
    else:
        assert target.refused is None


def test_a_path_to_where_there_is_no_density_ends_there():
    target = joint()
    away = Emulator(np.zeros((D, 0)), np.zeros(0), 1.0, 0.0, np.array([0.0, 40.0, 0.0, 0.0]), np.zeros((D, D)))
    for block in target.density.blocks:
        block.jitter = 0.0
    hamiltonian, state = start_of(target)
    splitting = SurrogateSplitting(away, D)
    with np.errstate(all="ignore"):
        step = splitting.path(hamiltonian, state, 50, 0.4)
        outcome = transition(hamiltonian, splitting, state, 50, 0.4, np.random.default_rng(0))
    assert step.state is None
    assert step.failure in (Failure.NOT_POSITIVE_DEFINITE, Failure.NON_FINITE)
    assert 1 < step.n_steps == step.n_metric_evals < 50
    assert outcome.failure is step.failure
    assert not outcome.accepted
    np.testing.assert_array_equal(outcome.state.position, state.position)


def test_a_beginning_without_a_slope_is_left_by_no_path():
    """Another step may have led there; what is not a number then is found where the first step ends."""
    target = joint()
    hamiltonian, state = start_of(target)
    with np.errstate(all="ignore"):
        state.point.gradient[D:] = np.nan
        step = SurrogateSplitting(NOTHING, D).path(hamiltonian, state, 3, 0.4)
    assert step.state is None
    assert step.failure is Failure.NON_FINITE
    assert step.n_steps == 1


def test_no_more_is_held_on_the_way_than_the_beginning_and_what_is_evaluated():
    """Each point holds three matrices as large as a covariance."""
    target, alive, most = joint(), [], []

    class Watched(WithoutThetaForce):
        def at(self, position):
            most.append(sum(ref() is not None for ref in alive))
            found = super().at(position)
            alive.append(weakref.ref(found.point.held))
            return found

    hamiltonian = GaussianHamiltonian(Watched(target))
    state = hamiltonian.refresh(hamiltonian.state(np.zeros(target.size)), np.random.default_rng(6))
    gc.disable()  # reference counts do it alone
    try:
        step = SurrogateSplitting(emulator(D, strength=0.3), D).path(hamiltonian, state, 4, 0.3)
    finally:
        gc.enable()
    assert step.failure is Failure.NONE
    assert most == [0, 1, 1, 1, 1]
