"""Parallel tempering: its swaps, its ladder, what is frozen, and the evidence, on targets that are known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.signal import lfilter

from pymc_rmhmc.errors import ConfigurationError, EvidenceError
from pymc_rmhmc.evidence.evidence_references import moment_map
from pymc_rmhmc.evidence.methods.ensemble import (
    NON_REVERSIBLE,
    REVERSIBLE,
    TEMPERING,
    Ensemble,
    check_ladder,
    equal_rejection,
    first_ladder,
    local_barrier,
    nearest_rungs,
    rungs_for,
    trip_rate,
)
from pymc_rmhmc.evidence.methods.estimate import Progress, check_acceptance, check_mixing
from pymc_rmhmc.evidence.methods.path_estimates import by_stepping_stones, integrate
from pymc_rmhmc.evidence.methods.tempering import (
    Tempering,
    _check_modes,
    _rounds,
    posterior_states,
)
from pymc_rmhmc.graph_chart.affine_map import to_flat
from tests.unit.tempering_toys import (
    ArrayReference,
    ArrayWalkers,
    normal_evidence,
    normal_moments,
    normal_phi,
    run,
    two_modes,
)

BETAS = np.array([0.0, 0.1, 0.4, 1.0])
# A right z-score is beyond this once in 300000 looks.
FAR = 4.7


def exact_ensemble(replicas: int, *, scheme: str = NON_REVERSIBLE) -> Ensemble:
    rng = np.random.default_rng(3)
    mean, sd = normal_moments(BETAS)
    states = mean[:, None] + sd[:, None] * rng.standard_normal((replicas, BETAS.size, 1))
    log_steps = np.log([0.6, 0.6, 0.5, 0.4])
    reference = ArrayReference(normal_phi, 1)
    return Ensemble(reference, BETAS, replicas, rng, states=states, log_steps=log_steps, n_steps=3, scheme=scheme)


def assert_exact(states: np.ndarray) -> None:
    """The states (R, K, 1) are draws of each temperature's law, independent of one another."""
    mean, sd = normal_moments(BETAS)
    z = (states[:, :, 0] - mean) / sd
    count = len(z)
    assert np.abs(z.mean(axis=0) * math.sqrt(count)).max() < FAR
    assert np.abs((z**2 - 1.0).mean(axis=0) * math.sqrt(count / 2.0)).max() < FAR
    between = (z[:, :, None] * z[:, None, :]).mean(axis=0) - np.eye(BETAS.size)
    assert np.abs(between[~np.eye(BETAS.size, dtype=bool)] * math.sqrt(count)).max() < FAR


@pytest.mark.parametrize("scheme", [NON_REVERSIBLE, REVERSIBLE])
def test_swaps_keep_exact_draws_of_every_temperature(scheme):
    ensemble = exact_ensemble(20000, scheme=scheme)
    for _ in range(3):
        ensemble.swap()
    assert_exact(ensemble.states)
    assert ensemble.rejection.min() > 0.05
    assert ensemble.rejection.max() < 0.95


def test_sweeps_keep_exact_draws_of_every_temperature():
    ensemble = exact_ensemble(20000)
    for _ in range(2):
        acceptance = ensemble.sweep()
    assert_exact(ensemble.states)
    assert acceptance.mean() > 0.5


def test_at_the_reference_every_draw_is_independent():
    ensemble = exact_ensemble(50)
    before, ensemble.log_steps = ensemble.states.copy(), np.full(BETAS.size, -40.0)
    ensemble.move()
    assert (np.abs(ensemble.states[:, 0] - before[:, 0]) > 1e-6).all()
    assert np.abs(ensemble.states[:, 1:] - before[:, 1:]).max() < 1e-6
    assert np.allclose(ensemble.phi, normal_phi(ensemble.states.reshape(-1, 1))[0].reshape(50, -1))


def test_round_trips_of_a_constant_density_take_twice_the_ladder():
    ensemble = Ensemble(
        ArrayReference(lambda x: (np.zeros(len(x)), np.zeros_like(x)), 1), BETAS, 2, np.random.default_rng(0)
    )
    for _ in range(800):
        ensemble.sweep()
    assert ensemble.rejection.max() == 0.0
    assert np.abs(ensemble.round_trips / 800 - trip_rate(0.0)).max() < 0.01


def exact_barrier(n: int = 400_000) -> float:
    """``Λ = ∫ λ dβ`` with ``λ = ½ E|φ - φ'|`` of two independent draws, in four coordinates."""
    rng, betas = np.random.default_rng(0), np.linspace(0.0, 1.0, 81)
    local = []
    for beta in betas:
        mean, sd = normal_moments([beta])
        first, second = (normal_phi(mean + sd * rng.standard_normal((n // 80, 4)))[0] for _ in range(2))
        local.append(0.5 * np.abs(first - second).mean())
    return float(np.trapezoid(local, betas))


def test_the_ladder_rejects_equally_and_knows_its_barrier():
    found = run(normal_phi, 4, draws=900, tune=600, temperatures=9, replicas=3).estimate.diagnostics
    assert np.ptp(found["rejection"]) < 0.06
    assert found["barrier"] == pytest.approx(exact_barrier(), rel=0.08)
    assert found["beta"].size == 9
    assert np.trapezoid(found["local_barrier"], found["beta"]) == pytest.approx(found["barrier"], rel=0.2)
    assert found["trip_rate"] == pytest.approx(found["expected_trip_rate"], rel=0.25)


def test_ladders_are_inverted_where_the_barrier_is_known():
    betas = np.linspace(0.0, 1.0, 30)
    rejection = np.diff(betas**2)  # Λ(β) = β²
    assert equal_rejection(betas, rejection, 5) == pytest.approx(np.sqrt(np.linspace(0.0, 1.0, 5)), abs=2e-3)
    assert local_barrier(betas, rejection)[5:-1] == pytest.approx(2.0 * betas[5:-1], rel=0.02)
    assert list(nearest_rungs(betas, np.array([0.0, 1.0]), rejection)) == [0, 29]
    assert [rungs_for(b, 6, 60) for b in (0.1, 4.0, 100.0)] == [6, 9, 60]
    for count in (2, 3, 8):
        assert check_ladder(first_ladder(count)).size == count


def test_rounds_double_and_take_all_sweeps():
    assert _rounds(900, 32) == [32, 64, 128, 256, 420]
    assert _rounds(10, 32) == [10]


class Watched(ArrayWalkers):
    """Walkers that keep how they were moved."""

    def move(self, beta, step_size, n_steps, rng):
        self.moves = [*getattr(self, "moves", []), (np.array(beta), np.array(step_size), n_steps)]
        return super().move(beta, step_size, n_steps, rng)


def test_counted_sweeps_adapt_nothing():
    reference = ArrayReference(normal_phi, 2, Watched)
    policy = replace(TEMPERING, first_steps=1, most_steps=1)  # so that steps are shorter than they may be at most
    tempering = Tempering(reference, 2, np.random.default_rng(0), policy=policy)
    tempering.tune(200, Progress(math.inf))
    ensemble, walkers = tempering.ensemble, tempering.ensemble.walkers
    assert ensemble.step_sizes[-1] < policy.path
    betas, steps, before = ensemble.betas.copy(), ensemble.step_sizes, len(walkers.moves)
    found = tempering.draw(300, Progress(math.inf))
    assert tempering.ensemble is ensemble
    assert ensemble.walkers is walkers
    counted = walkers.moves[before:]
    assert len(counted) == 300
    for beta, step_size, n_steps in counted:
        assert np.array_equal(beta, np.tile(betas, 2))
        assert np.abs(step_size / np.tile(steps, 2) - 1.0).max() <= ensemble.policy.jitter + 1e-12
        assert n_steps == counted[0][2]
    assert np.array_equal(found.estimate.diagnostics["beta"], betas)


def test_the_evidence_of_a_normal_target():
    found = run(normal_phi, 3, draws=1500, tune=500)
    estimate, known = found.estimate, found.estimate.diagnostics
    truth = normal_evidence(3)
    assert 0.0 < estimate.standard_error < 0.05
    assert abs(estimate.log_evidence - truth) < 4.0 * estimate.standard_error
    for name in ("thermodynamic_integration", "stepping_stones"):
        error = known[f"{name}_error"]
        assert error < 0.3
        assert abs(known[name] - truth) < 4.0 * error
    mean, sd = normal_moments([1.0])
    cold = found.states[:, :, -1].reshape(-1, 3)
    assert cold.mean(axis=0) == pytest.approx(np.repeat(mean, 3), abs=0.1 * sd[0])


def test_a_mode_that_draws_have_lost_is_noticed():
    rng = np.random.default_rng(0)
    cold, known = rng.standard_normal((1000, 2)), rng.standard_normal((400, 2))
    phi, known_phi = 0.1 * cold[:, 0], 0.1 * known[:, 0]
    _check_modes(known, known_phi, cold, phi)
    known[:10] += [0.0, 20.0]  # as dense as the rest, where the reference is not
    known_phi[:10] += 0.5 * 20.0**2 + 20.0 * (known[:10, 1] - 20.0)
    with pytest.raises(EvidenceError, match="2% lies where no draw does.*lost a mode"):
        _check_modes(known, known_phi, cold, phi)
    known_phi[:10] -= 100.0  # a tail that early draws have come through
    _check_modes(known, known_phi, cold, phi)


def test_draws_look_for_the_modes_that_tuning_saw():
    """The reference was fitted to values that lie where no draw does."""
    tempering = Tempering(ArrayReference(normal_phi, 1), 2, np.random.default_rng(0))
    tempering.tune(100, Progress(math.inf))
    tempering._fitted, tempering._known = tempering.ensemble.reference, [np.full((50, 1), 10.0)]
    tempering._placed = lambda reference, values: (values, np.full(len(values), 1e3))
    with pytest.raises(EvidenceError, match="lies where no draw does"):
        tempering.draw(200, Progress(math.inf))


def test_a_mode_that_only_hot_states_know_has_its_share():
    rng, n = np.random.default_rng(0), 2000
    states = rng.standard_normal((n, 1, 2, 1))
    states[:, 0, 1, 0] = rng.normal(-1.0, 0.4, n)  # β = 1 without the mode at 1
    phi = two_modes(states.reshape(-1, 1), 1.0, 0.4)[0].reshape(n, 1, 2)
    drawn, divergence, log_z = posterior_states(np.array([0.0, 1.0]), states, phi, 4000, rng)
    drawn = drawn[:, 0]
    assert log_z == pytest.approx(0.0, abs=0.2)
    assert 0.2 < divergence < 1.5
    assert 0.05 < (drawn > 0.0).mean() < 0.25  # 0.2, less what the draws without it deny
    assert drawn[drawn < 0.0].mean() == pytest.approx(-1.0, abs=0.05)
    assert drawn[drawn < 0.0].std() == pytest.approx(0.4, abs=0.05)


def test_both_modes_are_found_with_their_weights():
    found = run(two_modes, 1, draws=1500, tune=500)
    assert found.states.shape == (1500, 2, 1, 1)
    assert (found.states < 0.0).mean() == pytest.approx(0.8, abs=0.07)
    assert abs(found.estimate.log_evidence) < 4.0 * found.estimate.standard_error


def test_draws_are_doubled_until_the_error_is_met():
    tempering = Tempering(ArrayReference(normal_phi, 1), 2, np.random.default_rng(0))
    tempering.tune(200, Progress(0.02))
    progress = Progress(0.02)
    found = tempering.draw(100, progress, keep_all=True)
    assert found.estimate.standard_error <= 0.02
    assert len(found.phi) == 100 * 2 ** (len(progress.history) - 1)
    assert found.states.shape == (*found.phi.shape, 1)


def test_time_ends_a_run():
    progress = Progress(math.inf, 0.3)
    tempering = Tempering(ArrayReference(normal_phi, 1), 2, np.random.default_rng(0))
    tempering.tune(10_000_000, progress)
    assert progress.seconds < 20.0
    tempering.ensemble.move()


def test_the_trapezoid_with_derivatives_is_exact_for_cubics():
    betas = np.array([0.0, 0.2, 0.7, 1.0])
    assert integrate(betas, betas**3 - betas, 3.0 * betas**2 - 1.0) == pytest.approx(0.25 - 0.5)


def test_without_round_trips_there_is_no_answer():
    with pytest.raises(EvidenceError, match="no state has gone .* temperatures="):
        run(lambda x: two_modes(x, 6.0, 0.01), 1, draws=100, tune=50, temperatures=[0.0, 1.0])


def test_what_does_not_mix_is_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(EvidenceError, match="R-hat"):
        check_mixing("beta = 1", rng.standard_normal((2, 500)) + [[0.0], [1.0]])
    with pytest.raises(EvidenceError, match="R-hat"):
        check_mixing("beta = 1", (rng.standard_normal(1000) + np.repeat([0.0, 2.0], 500))[None])
    with pytest.raises(EvidenceError, match="effective draws"):
        check_mixing("beta = 1", lfilter([1.0], [1.0, -0.92], rng.standard_normal((4, 300))))
    with pytest.raises(EvidenceError, match="accepted"):
        check_acceptance(BETAS, np.array([1.0, 0.9, 0.2, 0.9]))
    assert check_mixing("beta = 1", np.ones((2, 90))) == (1.0, 180.0)


def test_a_target_without_a_density_is_refused():
    with pytest.raises(EvidenceError, match="every draw of the reference"):
        run(lambda x: (np.full(len(x), -np.inf), np.zeros_like(x)), 1)


def test_a_density_that_is_zero_in_places_is_tempered():
    def half(x):
        return np.where(x[:, 0] > 0.0, 0.0, -np.inf), np.zeros_like(x)

    found = run(half, 1, draws=600)
    assert found.estimate.log_evidence == pytest.approx(math.log(0.5), abs=4.0 * found.estimate.standard_error)
    assert math.isnan(found.estimate.diagnostics["thermodynamic_integration"])
    stones, error = (found.estimate.diagnostics[name] for name in ("stepping_stones", "stepping_stones_error"))
    assert stones == pytest.approx(math.log(0.5), abs=4.0 * error)


def test_errors_of_stepping_stones_are_what_they_say():
    """Of independent draws, a thousand times."""
    rng, betas = np.random.default_rng(0), np.array([0.0, 0.3, 1.0])
    mean, sd = normal_moments(betas)
    z = []
    for _ in range(1000):
        x = mean + sd * rng.standard_normal((400, 2, 3))
        value, error = by_stepping_stones(betas, normal_phi(x.reshape(-1, 1))[0].reshape(x.shape), 20)
        z.append((value - normal_evidence(1)) / error)
    assert 0.95 < np.sqrt(np.mean(np.square(z))) < 1.15


@pytest.mark.parametrize(
    ("ladder", "says"),
    [
        ([0.0, 0.5], "begin with 0 and end with 1"),
        ([0.1, 1.0], "begin with 0 and end with 1"),
        ([0.0, 0.5, 0.5, 1.0], "must increase"),
        ([1.0], "at least 2"),
        ([0.0, math.nan, 1.0], "begin with 0"),
    ],
)
def test_a_ladder_that_is_none_is_refused(ladder, says):
    with pytest.raises(ConfigurationError, match=says):
        check_ladder(ladder)


@pytest.mark.parametrize("dense", [[0, 1, 2], []])
def test_a_reference_takes_the_moments_of_draws(dense):
    rng = np.random.default_rng(0)
    root = np.array([[1.0, 0.5, 0.0], [0.0, 0.3, 0.2], [0.0, 0.0, 2.0]])
    z = rng.standard_normal((4000, 3)) @ root + [1.0, -2.0, 5.0]
    flat = moment_map(z, np.array(dense, dtype=np.int64))
    u = np.array([to_flat(flat, each) for each in z])
    assert np.abs(u.mean(axis=0)).max() < 1e-6
    covariance = np.cov(u.T) if dense else np.diag(u.var(axis=0))
    assert covariance == pytest.approx(np.eye(3), abs=0.02)
