"""Latents and hyperparameters in turns, inside the step: when they are taken, and what a draw reports."""

from __future__ import annotations

from dataclasses import replace

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.kernel import Transition, merge
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.kernels.turns import HYPERPARAMETERS, LATENTS
from pymc_rmhmc.latent.charts.marginal import MarginalChart
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.sampled.joint import JointCoordinates
from pymc_rmhmc.tuning import joint_adapter
from pymc_rmhmc.tuning.joint_adapter import TURNS
from tests.model.conftest import exact_log_density
from tests.steps.conftest import N, draw
from tests.steps.test_joint_sampling import advance, goes_on_alike, two_scales, value_points

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

def rounds(acceptance: float, count: int) -> Transition:
    """What a draw of so many turns reports."""
    return merge([Transition(None, acceptance=acceptance, kind=kind) for kind in (LATENTS, HYPERPARAMETERS) * count])


TUNE = 160  # by the last refit there are enough draws for two hyperparameters


@pytest.fixture(scope="module")
def model() -> pm.Model:
    return two_scales()


def tuned(model: pm.Model, *, tune: int = TUNE, seed: int = 1, draws: int = 100, **options):
    """A step that has been tuned, and where it stands."""
    with model:
        step = RMHMC(**options)
    step.setup_chain(np.random.default_rng(seed), tune, draws)
    point, _, _ = advance(step, model.initial_point(), tune)
    step.stop_tuning()
    return step, point


@pytest.fixture(scope="module")
def kept(model) -> bytes:
    """Of one tuning, which takes longer than what is asked of it."""
    return cloudpickle.dumps(tuned(model))


@pytest.fixture
def turning(kept) -> tuple[RMHMC, dict]:
    """A step that takes turns, and where it stands."""
    step, point = cloudpickle.loads(kept)
    assert step.chains[0].tuned.emulator is not None
    return step, point


def test_a_process_with_free_scales_takes_turns_and_says_so_in_its_statistics(model):
    step, point = tuned(model, tune=300)
    state = step.chains[0]
    assert isinstance(state.tuned.emulator, Emulator)
    assert state.tuned.emulator.points.shape[0] == 2
    count, mean = state.tuned.trial
    assert state.refits == (30, 90, 180, 240)
    assert count == 2 * (300 - 180)
    assert TURNS.least_accepted < mean <= 1.0
    exact, kept, positions = exact_log_density(model), [], []
    for _ in range(100):
        point, (s,) = step.step(point)
        kept.append(s)
        positions.append(np.concatenate([np.ravel(v) for v in point.values()]))
        # What is written is what the log density is of, at every draw.
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
        assert s["step_size"] == state.tuned.held_step_size.average == s["step_size_bar"]
        assert s["failure"] == Failure.NONE
    assert state.tuned.trial[0] == count  # the draws teach nothing
    assert state.tuned.held_step_size is not state.step_size
    energies = np.array([s["energy"] for s in kept])
    assert np.isfinite(energies).all()
    assert np.isfinite([s["energy_error"] for s in kept]).all()
    acceptance = np.array([s["mean_tree_accept"] for s in kept])
    assert ((acceptance > 0.0) & (acceptance <= 1.0)).all()
    assert acceptance.mean() > 0.6
    # Two rounds of a trajectory and a flow, and now and then a joint trajectory before them.
    sizes = np.array([s["tree_size"] for s in kept])
    assert sizes.min() >= 4
    assert np.unique(np.array(positions), axis=0).shape[0] > 95
    assert np.ptp(np.array(positions), axis=0).min() > 0.1


def test_the_energy_is_that_of_the_position_and_of_two_momenta(model, turning):
    """It is known but for the momenta: twice a chi-square of each half's size more than the density has."""
    step, point = turning
    sampler, gaps = step._samplers[0], []
    for _ in range(60):
        point, (s,) = step.step(point)
        here = sampler._coordinates.seen(sampler._phase)
        potential = 0.5 * here.position @ here.position - here.log_density
        gaps.append(s["energy"] - potential)
    size = 2 * N + 2
    assert min(gaps) > 0.0
    # Of z the momentum at the end of a trajectory: nearly a chi-square of as many degrees.
    assert np.mean(gaps) == pytest.approx(0.5 * size, rel=0.25)


@pytest.mark.parametrize(
    "options",
    [{"metric": FlatMetric(emulate=False)}, {"step_size": 0.3}, {"n_steps": 4}, {"metric": FlatMetric(refit=False)}],
    ids=["not wanted", "step size given", "steps given", "nothing refitted"],
)
def test_joint_trajectories_stay_where_they_are_asked_for(model, options):
    step, point = tuned(model, **options)
    assert step.chains[0].tuned.emulator is None
    assert step.chains[0].tuned.held_step_size is None
    assert isinstance(step._samplers[0]._coordinates, JointCoordinates)
    exact = exact_log_density(model)
    for _ in range(3):
        point, (s,) = step.step(point)
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)


def test_the_metric_says_whether_it_emulates():
    assert FlatMetric().policy.emulate
    assert repr(FlatMetric(emulate=False)) == "FlatMetric(refit=True, emulate=False)"


@pytest.mark.slow
def test_coefficients_take_no_turns():
    rng, group = np.random.default_rng(0), np.arange(24) % 6
    with pm.Model() as mixed:
        spread, slopes = pm.HalfNormal("spread"), pm.Normal("slopes", shape=2)
        effects = pm.Normal("effects", 0.0, spread, shape=6)
        eta = pm.math.dot(rng.standard_normal((24, 2)), slopes) + effects[group]
        pm.Bernoulli("y", logit_p=eta, observed=rng.integers(0, 2, 24))
    step, _ = tuned(mixed, metric=FlatMetric(chart="latent"))
    assert len(step.chains) == 1
    assert "spread_log__" in {v.name for v in step.vars}
    assert step.chains[0].tuned.emulator is None


def test_a_short_tuning_makes_no_emulator(model):
    idata = draw(model, RMHMC(model=model), tune=20, draws=20)
    assert (idata.sample_stats["failure"] == Failure.NONE).all()
    step, point = tuned(model, tune=20)
    assert step.chains[0].tuned.emulator is None
    point, points, _ = advance(step, point, 10)
    assert np.ptp(points, axis=0).min() > 0.0


def absurd(target, thetas, rng, stays=0) -> tuple[MarginalChart, Emulator]:
    """It leads far away, where the posterior is not."""
    d = target.n_theta
    return target.chart, Emulator(np.zeros((d, 0)), np.zeros(0), 1.0, 0.0, np.full(d, 8.0), np.zeros((d, d)))


def test_turns_are_given_up_where_hyperparameters_are_hardly_accepted(model, monkeypatch):
    monkeypatch.setattr(joint_adapter, "emulate_marginal", absurd)
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), TUNE, 100)
    point, seen = model.initial_point(), []
    exact = exact_log_density(model)
    for i in range(TUNE + 100):
        if i == TUNE:
            step.stop_tuning()
        point, (s,) = step.step(point)
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
        assert 0.0 <= s["mean_tree_accept"] <= 1.0
        position = np.concatenate([np.ravel(v) for v in point.values()])
        seen.append((step.chains[0].tuned.emulator is not None, s["step_size"], position))
    state = step.chains[0]
    took = [i for i, (turns, *_) in enumerate(seen) if turns]
    # They are tried once more, with the sites of more draws.
    length = TURNS.trial // 2 - 1
    assert took == [i for begin in state.refits[-2:] for i in range(begin, begin + length)]
    assert state.tuned.trial[0] == TURNS.trial
    assert state.tuned.trial[1] < TURNS.least_accepted - TURNS.chance / np.sqrt(TURNS.trial)
    # Draws are joint trajectories, with the latents' own between them.
    assert step._samplers[0]._coordinates.turns is None
    assert state.step_size.average > 0.05
    assert seen[-1][1] == state.step_size.average
    positions = np.array([position for *_, position in seen[TUNE:]])
    assert np.unique(positions, axis=0).shape[0] > 60
    assert np.ptp(positions, axis=0).min() > 0.1


@pytest.mark.parametrize(("count", "mean", "stays"), [
    (30, 0.32, True), (30, 0.3, False), (400, 0.38, True), (400, 0.37, False),
])  # fmt: skip
def test_turns_are_not_given_up_by_the_chance_of_a_few(turning, count, mean, stays):
    step, _ = turning
    state = step.chains[0]
    state.tuned.trial = count - 2, mean
    step._samplers[0]._learn(rounds(mean, 2), stood=True)
    assert state.tuned.trial == (count, pytest.approx(mean))
    assert (state.tuned.emulator is not None) == stays


def test_an_absurd_emulator_that_stays_does_not_stop_the_chain(model, monkeypatch):
    """With no trial the hyperparameters move in the joint trajectories alone, one draw in four."""
    monkeypatch.setattr(joint_adapter, "emulate_marginal", absurd)
    monkeypatch.setattr(joint_adapter, "TURNS", replace(TURNS, least_accepted=0.0))
    step, point = tuned(model)
    assert step.chains[0].tuned.emulator is not None
    _, points, stats = advance(step, point, 100)
    assert np.isfinite(stats).all()
    moved = np.ptp(points, axis=0)
    assert moved.min() > 0.1


def test_divergences_of_the_emulator_are_counted_and_are_no_failures(model, monkeypatch):
    def far(target, thetas, rng, stays=0) -> tuple[MarginalChart, Emulator]:
        """It ends where the amplitude is far too large, and the lengthscale far too small."""
        slope = np.where(np.array(target.density.theta.names) == "ls_log__", -30.0, 30.0)
        return target.chart, Emulator(np.zeros((2, 0)), np.zeros(0), 1.0, 0.0, slope, np.zeros((2, 2)))

    monkeypatch.setattr(joint_adapter, "emulate_marginal", far)
    monkeypatch.setattr(joint_adapter, "TURNS", replace(TURNS, least_accepted=0.0))
    step, point = tuned(model)
    divergences = []
    for _ in range(20):
        before = {name: point[name].copy() for name in ("ls_log__", "eta_log__")}
        point, (s,) = step.step(point)
        assert s["failure"] == Failure.NONE
        assert not s["diverging"]
        divergences.append(s["n_emulator_divergences"])
        if s["tree_size"] < 8:  # no trajectory of both before the turns
            assert all(point[name] == value for name, value in before.items())
    assert sum(divergences) > 10
    assert max(divergences) >= 2


@pytest.mark.parametrize(
    "when", ["in tuning, before turns", "in tuning, with turns", "in tuning, before the last refit", "in the draws"]
)
def test_a_restored_state_replays_exactly(model, when):
    with model:
        step, other = RMHMC(), RMHMC()
    step.setup_chain(np.random.default_rng(1), TUNE, 100)
    begin = {
        "in tuning, before turns": 80, "in tuning, with turns": 98, "in tuning, before the last refit": 110,
        "in the draws": TUNE + 7,
    }[when]  # fmt: skip
    point, _, _ = advance(step, model.initial_point(), min(begin, TUNE))
    if begin > TUNE:
        step.stop_tuning()
        point, _, _ = advance(step, point, begin - TUNE)
    assert (step.chains[0].tuned.emulator is not None) == (begin > 0.6 * TUNE)
    goes_on_alike((step, other), point, 30)  # across a refit, in tuning
    assert step.chains[0].tuned.emulator is not None


def watch_lengths(monkeypatch) -> list[float]:
    """The step sizes that trajectories are asked for, as they are asked for."""
    usual, asked = JitteredPath.draw, []

    def watched(length, step_size, rng):
        asked.append(step_size)
        return usual(length, step_size, rng)

    monkeypatch.setattr(JitteredPath, "draw", watched)
    return asked


def learnt(state) -> dict:
    """All that tuning teaches a chain, by value."""
    adapted = {"step_size": state.step_size, "held_step_size": state.tuned.held_step_size}
    averages = {name: None if found is None else vars(found).copy() for name, found in adapted.items()}
    lasting = {name: getattr(state.tuned, name) for name in ("sites", "marginals", "emulator", "parameters", "trial")}
    return averages | lasting | {"draws": len(state.tuned.thetas), "refits": state.refits, "tried": state.tuned.tried}


def test_the_draws_teach_nothing_and_are_made_with_averages(turning, monkeypatch):
    """Of the latents' step size and of joint trajectories', which are taken where many turns are rejected."""
    step, point = turning
    (state,) = step.chains
    state.tuned.trial = state.tuned.trial[0], 0.0
    # The last iterates of dual averaging are what chance has made of them.
    state.step_size.current = state.tuned.held_step_size.current = 1e-6
    before, asked = learnt(state), watch_lengths(monkeypatch)
    advance(step, point, 40)
    after = learnt(state)
    assert all(after[name] is before[name] for name in ("sites", "marginals", "emulator"))
    assert after == before
    jointly = min(TURNS.stretch * state.step_size.average, state.step_size.maximum)
    assert set(asked) == {state.tuned.held_step_size.average, jointly, np.inf}


def test_giving_turns_up_leaves_the_chain_where_it_is(turning):
    """θ's chart is another one then: the same coordinates stand for other values."""
    step, point = turning
    (state,) = step.chains
    point, _, _ = advance(step, point, 1)
    state.tuned.trial, chart = (400, 0.1), state.tuned.marginals
    step._samplers[0]._learn(rounds(0.1, 1), stood=True)
    assert state.tuned.emulator is None
    assert state.tuned.marginals is not chart
    state.step_size.average = state.tuned.held_step_size.average = 1e-9
    moved, _ = step.step(point)
    for name, values in point.items():
        np.testing.assert_allclose(moved[name], values, atol=1e-5)


def test_a_state_after_turns_were_given_up_replays_exactly(model, turning):
    step, point = turning
    step.chains[0].tuned.trial = (400, 0.1)
    step._samplers[0]._learn(rounds(0.1, 1), stood=True)
    point, _, _ = advance(step, point, 3)
    assert step._samplers[0]._coordinates.turns is None
    goes_on_alike_if_always_saved(model, step, point)


def goes_on_alike_if_always_saved(model: pm.Model, step: RMHMC, point: dict) -> None:
    """Draws of a step, and of another that is given its own state anew before each of them."""
    with model:
        other = RMHMC()
    other.sampling_state = cloudpickle.loads(cloudpickle.dumps(step.sampling_state))
    _, straight, _ = advance(step, point, 40)
    for row in straight:
        other.sampling_state = cloudpickle.loads(cloudpickle.dumps(other.sampling_state))
        point, points, _ = advance(other, point, 1)
        np.testing.assert_array_equal(points[0], row)


def test_a_state_that_is_saved_at_every_draw_changes_nothing(model, turning):
    """What is rebuilt from the state is what was there, wherever between two draws."""
    goes_on_alike_if_always_saved(model, *turning)


def test_a_pickled_step_goes_on_where_it_was(model, turning):
    step, point = turning
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    assert copy.chains[0].tuned.emulator is not None
    np.testing.assert_array_equal(advance(step, point, 15)[1], advance(copy, point, 15)[1])


@pytest.mark.slow
def test_one_and_two_cores_give_the_same_draws(model):
    options = {"tune": TUNE, "draws": 25, "chains": 2}
    step = RMHMC(model=model)
    here = draw(model, step, **options)
    assert step.chains[0].tuned.emulator is not None
    there = draw(model, RMHMC(model=model), cores=2, **options)
    for name in ("f", "ls", "eta"):
        np.testing.assert_array_equal(here.posterior[name].values, there.posterior[name].values)
    assert not np.array_equal(here.posterior["ls"].values[0], here.posterior["ls"].values[1])


def test_the_trace_holds_what_the_log_density_is_of():
    whitened = two_scales(reparameterize=True)
    step = RMHMC(model=whitened)
    idata = draw(whitened, step, tune=TUNE)
    assert step.chains[0].tuned.emulator is not None
    exact = exact_log_density(whitened)
    logp = [float(exact(point)) for point in value_points(whitened, idata)]
    np.testing.assert_allclose(idata.sample_stats["lp"].values[0], logp, atol=1e-6)


def test_a_new_chain_begins_without_the_emulator_of_the_last(model, turning):
    step, _ = turning
    assert step.chains[0].tuned.emulator is not None
    step.setup_chain(np.random.default_rng(2), TUNE, 10)
    assert step.chains[0].tuned.emulator is None
    assert step._samplers[0]._coordinates is None
    _, points, _ = advance(step, model.initial_point(), 5)
    assert np.isfinite(points).all()


def test_values_that_another_step_moves_are_entered(model, turning):
    """A point that is not the chain's own is stood at, and its values are kept where nothing moves."""
    step, point = turning
    exact = exact_log_density(model)
    for _ in range(10):
        point = {name: value + 0.01 for name, value in point.items()}
        point, (s,) = step.step(point)
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
        assert s["failure"] == Failure.NONE
