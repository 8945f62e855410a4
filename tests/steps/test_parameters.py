"""Likelihoods' own parameters moved with the latents held, inside the step: when, and what becomes of a draw."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC
from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.kernels import turns
from pymc_rmhmc.kernels.turns import ParameterMove, TurnState
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta
from pymc_rmhmc.sampled import joint
from pymc_rmhmc.tuning import joint_adapter
from pymc_rmhmc.tuning.joint_adapter import TURNS
from tests.model.conftest import exact_log_density
from tests.steps.conftest import N, X
from tests.steps.test_joint_sampling import advance, goes_on_alike, two_scales
from tests.steps.test_turns import TUNE, absurd, goes_on_alike_if_always_saved, tuned

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

# The chart has its first draws at the first refit, and by the last enough of them.
LONG = 2 * TUNE


def robust(*, reparameterize: bool = False) -> pm.Model:
    """A curve with a lengthscale, and a noise of heavy tails."""
    y = np.sin(6.0 * X[:, 0]) + 0.3 * np.cos(40.0 * X[:, 0]) + (np.arange(N) == 7)
    with pm.Model() as model:
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=pm.LogNormal("ls", -1.0, 0.3)))
        f = gp.prior("f", X=X, reparameterize=reparameterize)
        pm.StudentT("y", nu=pm.Gamma("nu", 4.0, 1.0), mu=f, sigma=pm.HalfNormal("sigma"), observed=y)
    return model


def always(monkeypatch) -> None:
    """However few turns were rejected, every draw begins with such a move."""
    monkeypatch.setattr(joint, "TURNS", replace(TURNS, parameters_from=-2.0, parameters_always=-1.0))


@dataclass
class Spy:
    """What each move led to, and whether the latent values were left where they were."""

    outcomes: list = field(default_factory=list)
    moved: list = field(default_factory=list)

    def watch(self, monkeypatch) -> Spy:
        usual = ParameterMove.step

        def watched(kernel, state, rng):
            before = [values.copy() for values in latents_of(kernel, state)], state.point.held.theta, state.noise
            outcome = usual(kernel, state, rng)
            there = outcome.state
            self.outcomes.append(outcome)
            self.moved.append((before, (latents_of(kernel, there), there.point.held.theta, there.noise)))
            return outcome

        monkeypatch.setattr(ParameterMove, "step", watched)
        return self


def latents_of(kernel: ParameterMove, state: TurnState) -> list[np.ndarray]:
    """The model's latent variables where a chain stands, of its factors and its z alone."""
    held = LatentsGivenTheta(kernel.target, state.point.held.standard)
    return [each.latents for each in held.place(state.noise)]


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["centred", "whitened"]
)
def model(request) -> pm.Model:
    return robust(reparameterize=request.param)


@pytest.fixture(scope="module")
def kept(model) -> bytes:
    """Of one tuning, which takes longer than what is asked of it."""
    return cloudpickle.dumps(tuned(model, tune=LONG))


@pytest.fixture
def moving(kept) -> tuple[RMHMC, dict]:
    """A step whose chain knows how to move its parameters, and where it stands."""
    step, point = cloudpickle.loads(kept)
    assert step.chains[0].tuned.parameters is not None
    return step, point


def own(step: RMHMC) -> np.ndarray:
    return step._samplers[0].density.model.of_likelihoods


def test_a_noise_and_its_tails_move_with_the_latent_values_held(model, moving, monkeypatch):
    always(monkeypatch)
    spy, (step, point), exact = Spy().watch(monkeypatch), moving, exact_log_density(model)
    state = step.chains[0]
    assert state.tuned.parameters.centre.size == own(step).size == 2
    assert len(state.tuned.scores) == len(state.tuned.thetas)
    for _ in range(60):
        point, (s,) = step.step(point)
        # What is written is what the log density is of, at every draw.
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
        assert s["failure"] == Failure.NONE
        assert s["tree_size"] >= 6  # the move's steps are counted, and its acceptance
        assert 0.0 < s["mean_tree_accept"] <= 1.0
        assert np.isfinite(s["energy_error"])
    assert len(spy.outcomes) == 60
    accepted = [outcome.accepted for outcome in spy.outcomes]
    assert np.mean(accepted) > 0.6
    for took, ((latents, theta, z), (latents_after, theta_after, z_after)) in zip(accepted, spy.moved, strict=True):
        which = np.isin(np.arange(theta.size), own(step))
        np.testing.assert_allclose(theta_after[~which], theta[~which], atol=1e-10)
        assert (np.abs(theta_after - theta)[which] > 1e-6).all() == took
        assert (np.abs(z_after - z) > 1e-6).any() == took
        for before, after in zip(latents, latents_after, strict=True):
            np.testing.assert_allclose(after, before, atol=1e-6)


def test_counts_without_a_dispersion_have_nothing_to_move(monkeypatch):
    always(monkeypatch)
    spy = Spy().watch(monkeypatch)
    step, point = tuned(two_scales(), tune=TUNE)
    assert step.chains[0].tuned.emulator is not None
    assert step.chains[0].tuned.parameters is None
    assert step.chains[0].tuned.scores == ()
    assert step._samplers[0]._coordinates.turns.parameters is None
    advance(step, point, 10)
    assert spy.outcomes == []


@pytest.mark.parametrize(("rejected", "share"), [(0.1, 0.0), (0.18, 0.0), (0.21, 0.5), (0.24, 1.0), (0.6, 1.0)])
def test_how_often_depends_on_what_was_rejected_in_tuning(moving, monkeypatch, rejected, share):
    spy, (step, point) = Spy().watch(monkeypatch), moving
    step.chains[0].tuned.trial = 100, 1.0 - rejected
    advance(step, point, 40)
    assert len(spy.outcomes) / 40 == pytest.approx(share, abs=0.25 * (0.0 < share < 1.0))


def test_a_restored_state_replays_exactly(model, moving, monkeypatch):
    always(monkeypatch)
    spy, (step, point) = Spy().watch(monkeypatch), moving
    with model:
        other = RMHMC()
    point, _, _ = advance(step, point, 7)
    goes_on_alike((step, other), point, 25)
    assert sum(outcome.accepted for outcome in spy.outcomes) > 50


def test_a_state_that_is_saved_at_every_draw_changes_nothing(model, moving, monkeypatch):
    """What is rebuilt from the state is what was there: factors that were borrowed are made anew."""
    always(monkeypatch)
    goes_on_alike_if_always_saved(model, *moving)


def test_a_replay_in_tuning_fits_the_same_chart(model):
    with model:
        step, other = RMHMC(), RMHMC()
    step.setup_chain(np.random.default_rng(1), LONG, 100)
    last = step.chains[0].refits[-1]
    point, _, _ = advance(step, model.initial_point(), last - 10)
    assert step.chains[0].tuned.parameters is None
    assert step.chains[0].tuned.scores
    saved = cloudpickle.dumps(step.sampling_state)
    goes_on_alike((step, other), point, 30)
    charts = []
    for each in (step, other):
        each.sampling_state = cloudpickle.loads(saved)
        advance(each, point, 15)
        charts.append(each.chains[0].tuned.parameters)
    np.testing.assert_array_equal(charts[0].factor, charts[1].factor)
    np.testing.assert_array_equal(charts[0].centre, charts[1].centre)


def test_a_chart_that_cannot_be_fitted_means_no_such_moves(model, monkeypatch):
    always(monkeypatch)
    monkeypatch.setattr(joint_adapter, "fit_parameters", lambda values, scores: None)
    step, point = tuned(model, tune=LONG)
    spy = Spy().watch(monkeypatch)
    assert step.chains[0].tuned.emulator is not None
    assert step.chains[0].tuned.parameters is None
    exact = exact_log_density(model)
    for _ in range(5):
        point, (s,) = step.step(point)
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
    assert spy.outcomes == []


@pytest.mark.parametrize("cause", ["NOT_POSITIVE_DEFINITE", "NON_FINITE"])
def test_parameters_that_cannot_be_gone_to_are_a_rejection_with_its_cause(model, moving, monkeypatch, cause):
    always(monkeypatch)
    (step, point), spy, exact = moving, Spy().watch(monkeypatch), exact_log_density(model)

    class Refusing(LatentsGivenTheta):
        def __init__(self, target, standard, like=None):
            if like is not None:
                raise PriorFailure(Failure[cause])
            super().__init__(target, standard)

    monkeypatch.setattr(turns, "LatentsGivenTheta", Refusing)
    before = step.step(point)[1][0]["n_failures"]
    refused = 0
    for _ in range(20):
        point, (s,) = step.step(point)
        outcome, (start, end) = spy.outcomes[-1], spy.moved[-1]
        assert not outcome.accepted
        # A trajectory that its own energy rejects is none that failed.
        if outcome.failure:
            refused += 1
            assert outcome.failure is Failure[cause]
            assert s["failure"] == Failure[cause]
            assert outcome.acceptance == 0.0
            assert np.isnan(outcome.energy_error)
        for mine, other in zip(start[0], end[0], strict=True):
            np.testing.assert_array_equal(mine, other)
        for mine, other in zip(start[1:], end[1:], strict=True):
            np.testing.assert_array_equal(mine, other)
        assert np.isfinite(s["energy_error"])  # of the turns, which go on
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
    assert refused > 10
    assert s["n_failures"] == before + refused


def test_turns_that_are_given_up_forget_the_chart(model, monkeypatch):
    always(monkeypatch)
    monkeypatch.setattr(joint_adapter, "emulate_marginal", absurd)
    with model:
        step = RMHMC()
    spy, exact = Spy().watch(monkeypatch), exact_log_density(model)
    step.setup_chain(np.random.default_rng(1), LONG, 20)
    point, state = model.initial_point(), step.chains[0]
    for i in range(LONG):
        point, (s,) = step.step(point)
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
        known = step.chains[0].tuned.parameters is not None
        assert known == (step.chains[0].tuned.emulator is not None)
        assert not (known and i + 1 < state.refits[2])
    assert step.chains[0].tuned.parameters is None
    # In every draw for as long as there were turns.
    assert len(spy.outcomes) == 2 * (TURNS.trial // 2)  # they are tried twice
    advance(step, point, 3)
    assert len(spy.outcomes) == 2 * (TURNS.trial // 2)


def test_a_new_chain_begins_without_the_chart_of_the_last(moving):
    step, _ = moving
    step.setup_chain(np.random.default_rng(2), TUNE, 10)
    assert step.chains[0].tuned.parameters is None
    assert step.chains[0].tuned.scores == ()
