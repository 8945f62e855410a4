"""Models whose gradient is dear, inside the step: trajectories follow an emulator, which decides nothing.

How dear a gradient has to be is set to nothing here: models are small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import arviz as az
import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest
from scipy.stats import multivariate_normal, norm

from pymc_rmhmc import RMHMC, FlatMetric, describe, summarize_failures
from pymc_rmhmc.approximation.emulation import FEWEST_DRAWS, emulate
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.kernel import Transition, merge
from pymc_rmhmc.kernels.turns import ALONG_SURROGATE
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.model.general.cost import DEAR
from pymc_rmhmc.sampled import graph
from pymc_rmhmc.tuning import graph_chart
from pymc_rmhmc.tuning.graph_chart import EmulatingAdapter
from pymc_rmhmc.tuning.joint_adapter import TURNS
from tests.model.conftest import exact_log_density
from tests.steps.conftest import draw
from tests.steps.test_joint_sampling import advance, goes_on_alike, value_points
from tests.steps.test_turns import watch_lengths

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")

TUNE = 160
REFITS = (6, 15, 48, 96)  # the last of these has draws enough for an emulator


@pytest.fixture(scope="module", autouse=True)
def nothing_is_cheap():
    with pytest.MonkeyPatch.context() as patch, pytensor.config.change_flags(mode="FAST_COMPILE"):
        patch.setattr("pymc_rmhmc.model.general.cost.DEAR", 0.0)
        yield


def process() -> pm.Model:
    """A process that is integrated out, with three hyperparameters."""
    inputs = np.linspace(0.0, 1.0, 20)
    with pm.Model() as model:
        ls, eta, noise = pm.LogNormal("ls", -1.0, 0.5), pm.HalfNormal("eta", 1.5), pm.HalfNormal("noise", 0.5)
        gp = pm.gp.Marginal(cov_func=eta**2 * pm.gp.cov.ExpQuad(1, ls=ls))
        y = np.sin(6.0 * inputs) + 0.3 * np.random.default_rng(0).standard_normal(20)
        gp.marginal_likelihood("y", X=inputs[:, None], y=y, sigma=noise)
    return model


@pytest.fixture(scope="module")
def model(nothing_is_cheap) -> pm.Model:
    return process()


@pytest.fixture(scope="module")
def steps(model) -> Iterator[tuple[RMHMC, RMHMC]]:
    """Two that are compiled once: each test begins chains of its own, and none of these ends by itself."""
    both = RMHMC(model=model), RMHMC(model=model)
    yield both
    for step in both:
        step._process.release()


@pytest.fixture(scope="module")
def start(model) -> dict[str, np.ndarray]:
    return model.initial_point()


@pytest.fixture(scope="module")
def exact(model):
    return exact_log_density(model)


def tuned(step: RMHMC, start, *, until: int = TUNE, tune: int = TUNE, seed: int = 1) -> dict[str, np.ndarray]:
    """Begin a chain and make so many draws; where it stands."""
    step.setup_chain(np.random.default_rng(seed), tune, 100)
    point, _, _ = advance(step, start, min(until, tune))
    if until >= tune:
        step.stop_tuning()
        point, _, _ = advance(step, point, until - tune) if until > tune else (point, None, None)
    return point


@pytest.fixture(scope="module")
def kept(steps, start):
    """The state of a chain after tuning, and where it stands."""
    point = tuned(steps[0], start)
    return cloudpickle.dumps((steps[0].sampling_state, point))


@pytest.fixture
def following(steps, kept) -> tuple[RMHMC, dict]:
    """A step that follows an emulator, and where it stands."""
    step, (state, point) = steps[0], cloudpickle.loads(kept)
    step.setup_chain(np.random.default_rng(0), 0, 100)
    step.sampling_state = state
    assert step.chains[0].tuned.emulator is not None
    return step, point


def test_an_emulator_is_made_in_tuning_and_the_densitys_values_are_told(steps, start, exact):
    step, point, has_one = steps[0], start, []
    step.setup_chain(np.random.default_rng(1), TUNE, 100)
    assert step.chains[0].refits == REFITS
    for i in range(TUNE + 60):
        if i == TUNE:
            step.stop_tuning()
        point, (s,) = step.step(point)
        state = step.chains[0]
        has_one.append(state.tuned.emulator is not None)
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
        assert s["failure"] == Failure.NONE
        assert 0.0 <= s["mean_tree_accept"] <= 1.0
        assert np.isfinite(s["energy"])
    assert has_one == [i >= REFITS[-1] for i in range(TUNE + 60)]
    assert isinstance(state.tuned.emulator, Emulator)
    assert state.tuned.emulator.points.shape[0] == 3
    count, mean = state.tuned.trial
    assert count == TUNE - REFITS[-1]  # one move in every draw of tuning, and the draws teach nothing
    assert mean > 0.8
    assert s["step_size"] == state.step_size.average
    (chain,) = step._samplers
    reference = chain.reference()
    expected = reference.log_constant + reference.residuals([chain.values], np.random.default_rng(0))[0]
    assert s["log_weight"] == pytest.approx(expected, abs=1e-8)


def leaning(density, positions, rng):
    """An emulator that is wrong, but not of no use."""
    found = emulate(density, positions, rng)
    if found is None:
        return None
    chart, made = found
    lean = np.linspace(-0.5, 0.5, made.linear.size)
    return chart, replace(made, linear=made.linear + lean, quadratic=made.quadratic - 0.3 * np.eye(lean.size))


@pytest.fixture(scope="module")
def reference(model, start):
    """Of trajectories along the density."""
    step = RMHMC(model=model, metric=FlatMetric(emulate=False))
    point = tuned(step, start, seed=3)
    assert step.chains[0].tuned.emulator is None
    return advance(step, point, 4000)[1]


def errors_of(values: np.ndarray) -> np.ndarray:
    """Of the mean and the standard deviation."""
    return np.array([float(az.mcse(values[None, :], method=method)) for method in ("mean", "sd")])


@pytest.mark.parametrize(("make", "accepted"), [(emulate, (0.9, 1.0)), (leaning, (0.4, 0.9))], ids=["made", "wrong"])
def test_the_posterior_is_that_of_trajectories_along_the_density(
    steps, start, reference, monkeypatch, make, accepted
):
    """Whatever the emulator is: it decides nothing."""
    monkeypatch.setattr(graph_chart, "emulate", make)
    point = tuned(steps[0], start, seed=4)
    assert accepted[0] < steps[0].chains[0].tuned.trial[1] < accepted[1]
    points = advance(steps[0], point, 8000)[1]
    for ours, theirs in zip(points.T, reference.T, strict=True):
        errors = np.hypot(errors_of(ours), errors_of(theirs))
        assert errors.max() < 0.1 * np.std(theirs)
        found, expected = (np.array([values.mean(), values.std()]) for values in (ours, theirs))
        assert (np.abs(found - expected) < 4.0 * errors).all()


def test_one_seed_gives_one_chain(steps, start, following):
    step, point = following
    there = tuned(steps[1], start)
    np.testing.assert_array_equal(advance(step, point, 20)[1], advance(steps[1], there, 20)[1])
    elsewhere = tuned(steps[1], start, seed=2)
    assert not np.array_equal(advance(steps[1], elsewhere, 1)[1], advance(step, point, 1)[1])


def absurd(slope: float):
    """What leads far away, where the posterior is not."""

    def make(density, positions, rng) -> tuple[MarginalChart, Emulator] | None:
        d = positions.shape[1]
        made = Emulator(np.zeros((d, 0)), np.zeros(0), 1.0, 0.0, np.full(d, slope), np.zeros((d, d)))
        return None if len(positions) < FEWEST_DRAWS else (density.chart, made)

    return make


def test_an_emulator_of_no_use_is_given_up_and_the_chain_goes_on_along_the_density(steps, start, exact, monkeypatch):
    monkeypatch.setattr(graph_chart, "emulate", absurd(6.0))
    step, point, seen, sizes = steps[0], start, [], []
    step.setup_chain(np.random.default_rng(1), TUNE, 100)
    for i in range(TUNE + 100):
        if i == TUNE:
            step.stop_tuning()
        point, (s,) = step.step(point)
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
        seen.append((step.chains[0].tuned.emulator is not None, *(float(v) for v in point.values())))
        sizes.append(s["tree_size"])
    state = step.chains[0]
    # Judged after as many moves as a trial has, the last of which is no longer followed.
    assert [i for i, (has, *_) in enumerate(seen) if has] == list(range(REFITS[-1], REFITS[-1] + TURNS.trial - 1))
    assert state.tuned.marginals is None
    assert state.tuned.trial[1] < TURNS.least_accepted - TURNS.chance / np.sqrt(TURNS.trial)
    assert s["step_size"] == state.step_size.average
    positions = np.array(seen)[TUNE:, 1:]
    assert np.unique(positions, axis=0).shape[0] > 60
    assert np.ptp(positions, axis=0).min() > 0.1
    assert min(sizes[TUNE:]) >= 2  # steps of gradients


def test_an_absurd_emulator_that_stays_does_not_stop_the_chain(steps, start, monkeypatch):
    """One draw in four begins with a trajectory along the density."""
    monkeypatch.setattr(graph_chart, "emulate", absurd(6.0))
    monkeypatch.setattr(graph_chart, "TURNS", replace(TURNS, least_accepted=0.0))
    step, point = steps[0], tuned(steps[0], start)
    assert step.chains[0].tuned.emulator is not None
    asked = watch_lengths(monkeypatch)
    _, points, stats = advance(step, point, 200)
    assert np.isfinite(stats).all()
    assert np.ptp(points, axis=0).min() > 0.1
    assert 20 < np.unique(points, axis=0).shape[0] < 90
    assert set(asked) == {np.inf}  # of the emulator's paths; others are walked in compiled code


def test_divergences_of_the_emulator_are_counted_and_are_no_failures(steps, start, monkeypatch):
    monkeypatch.setattr(graph_chart, "emulate", absurd(40.0))
    monkeypatch.setattr(graph_chart, "TURNS", replace(TURNS, least_accepted=0.0))
    step, point = steps[0], tuned(steps[0], start)
    divergences = []
    for _ in range(40):
        before = {name: value.copy() for name, value in point.items()}
        point, (s,) = step.step(point)
        assert s["failure"] == Failure.NONE
        assert not s["diverging"]
        divergences.append(s["n_emulator_divergences"])
        if s["tree_size"] == 1:  # no trajectory along the density before
            assert all(point[name] == value for name, value in before.items())
    assert sum(divergences) > 20
    assert max(divergences) == 1


NONE_MADE = {
    "not wanted": {"metric": FlatMetric(emulate=False)},
    "step size given": {"step_size": 0.3},
    "steps given": {"n_steps": 4},
    "turning back": {"trajectory": "nuts"},
    "nothing refitted": {"metric": FlatMetric(refit=False)},
}


@pytest.mark.parametrize("options", NONE_MADE.values(), ids=NONE_MADE)
def test_none_is_made_where_it_is_not_wanted(model, options, caplog):
    with caplog.at_level("INFO", "pymc.rmhmc"):
        (sampler,) = RMHMC(model=model, **options)._samplers
    is_tuned = options != NONE_MADE["nothing refitted"]
    assert isinstance(sampler.density.adapter, EmulatingAdapter) != is_tuned
    assert sampler.density.emulates != is_tuned
    assert bool(sampler.new_state(TUNE).refits) == is_tuned
    assert ("emulator" in caplog.text) != is_tuned


def test_a_short_tuning_makes_none(steps, start):
    point = tuned(steps[0], start, until=60, tune=60)
    assert steps[0].chains[0].tuned.emulator is None
    assert np.ptp(advance(steps[0], point, 20)[1], axis=0).min() > 0.0


def of_size(size: int) -> pm.Model:
    with pm.Model() as made:
        pm.Normal("y", pm.Laplace("b", 0.0, 1.0, shape=size).sum(), 1.0, observed=[0.3, 0.4])
    return made


@pytest.mark.parametrize(("size", "emulates"), [(11, True), (12, False)])
def test_of_many_values_none_is_made(size, emulates, caplog):
    made = of_size(size)
    with made, caplog.at_level("INFO", "pymc.rmhmc"):
        step = RMHMC()
    (chain,) = step._samplers
    assert chain.density.emulates == emulates
    assert isinstance(chain.density.adapter, EmulatingAdapter) == emulates
    assert ("follow an emulator" in caplog.text) == emulates
    assert ("follow an emulator" in str(describe(made))) == emulates


def test_what_follows_an_emulator_is_said(model, caplog):
    says = "log density is dear: its gradient takes about 0.01 ms, so trajectories follow an emulator of it"
    with caplog.at_level("INFO", "pymc.rmhmc"):
        RMHMC(model=model)
    assert f"The {says}" in " ".join(caplog.text.split())
    described = describe(model)
    for printed in (str(described), described._repr_html_()):
        assert f"Their {says}, made in tuning." in " ".join(printed.split())


def test_of_a_cheap_model_nothing_is_said(caplog, monkeypatch):
    monkeypatch.setattr("pymc_rmhmc.model.general.cost.DEAR", DEAR)
    made = of_size(3)
    with caplog.at_level("INFO", "pymc.rmhmc"):
        (sampler,) = RMHMC(model=made)._samplers
    assert not sampler.density.emulates
    assert "emulator" not in caplog.text + str(describe(made))


MOMENTS = {
    "in tuning, before it is made": (80, TUNE), "in tuning, with it": (100, TUNE),
    "in tuning, before it is made anew": (170, 300), "in the draws": (TUNE + 7, TUNE),
}  # fmt: skip


@pytest.mark.parametrize(("begin", "tune"), MOMENTS.values(), ids=MOMENTS)
def test_a_restored_state_replays_exactly(steps, start, begin, tune):
    point = tuned(steps[0], start, until=begin, tune=tune)
    steps[1].setup_chain(np.random.default_rng(9), tune, 100)
    assert (steps[0].chains[0].tuned.emulator is not None) == (begin > 80)
    goes_on_alike(steps, point, 30)  # across a refit, in tuning
    assert steps[0].chains[0].tuned.emulator is not None


def goes_on_alike_if_always_saved(steps, point: dict) -> None:
    """Draws of a step, and of another that is given its own state anew before each of them."""
    other = steps[1]
    other.setup_chain(np.random.default_rng(9), 0, 100)
    other.sampling_state = cloudpickle.loads(cloudpickle.dumps(steps[0].sampling_state))
    _, straight, _ = advance(steps[0], point, 40)
    for row in straight:
        other.sampling_state = cloudpickle.loads(cloudpickle.dumps(other.sampling_state))
        point, points, _ = advance(other, point, 1)
        np.testing.assert_array_equal(points[0], row)


def test_a_state_that_is_saved_at_every_draw_changes_nothing(steps, following):
    goes_on_alike_if_always_saved(steps, following[1])


def test_nor_does_it_where_many_draws_follow_the_density_too(steps, following, monkeypatch):
    """A move elsewhere and back is remembered in the coordinates to which it led."""
    monkeypatch.setattr(graph, "TURNS", replace(TURNS, joint_by_rejected=1.0))
    (state,) = steps[0].chains
    state.tuned.trial = state.tuned.trial[0], 0.3
    goes_on_alike_if_always_saved(steps, following[1])


@pytest.mark.parametrize("begin", [110, TUNE])
def test_a_pickled_step_goes_on_where_it_was(steps, start, begin):
    step, point = steps[0], tuned(steps[0], start, until=begin)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    np.testing.assert_array_equal(advance(step, point, 20)[1], advance(copy, point, 20)[1])
    assert copy.chains[0].tuned.emulator is not None


def test_the_draws_teach_nothing(following):
    step, point = following
    (state,) = step.chains
    state.tuned.trial = state.tuned.trial[0], 0.0
    state.step_size.current = 1e-6  # the last iterate is what chance has made of it
    kept = {name: getattr(state.tuned, name) for name in ("chart", "flat", "emulator", "marginals", "trial")}
    sizes = vars(state.step_size).copy()
    _, points, _ = advance(step, point, 60)
    assert all(getattr(step.chains[0].tuned, name) is value for name, value in kept.items())
    assert vars(step.chains[0].step_size) == sizes
    assert np.unique(points, axis=0).shape[0] > 40


def test_giving_it_up_leaves_the_chain_where_it_is(following):
    step, point = following
    point, _, _ = advance(step, point, 1)
    (state,), (sampler,) = step.chains, step._samplers
    state.tuned.trial = 400, 0.1
    sampler._learn(merge([Transition(None, acceptance=0.1, kind=ALONG_SURROGATE)]), stood=True)
    assert state.tuned.emulator is None
    state.step_size.average = 1e-9
    moved, _ = step.step(point)
    for name, values in point.items():
        np.testing.assert_allclose(moved[name], values, atol=1e-5)


class Nowhere:
    """Moves that end where they begin."""

    def step(self, state, rng):
        return Transition(state, acceptance=1.0, kind=ALONG_SURROGATE)


def test_making_it_leaves_the_chain_where_it_is(steps, start, exact, monkeypatch):
    """Its coordinates stand for other values then."""
    monkeypatch.setattr(graph.EmulatedCoordinates, "_along", lambda setting, path: Nowhere())
    step, point = steps[0], tuned(steps[0], start, until=REFITS[-1])
    assert step.chains[0].tuned.emulator is None
    step.chains[0].step_size.average = 1e-9
    monkeypatch.setattr(graph, "TURNS", replace(TURNS, joint_by_rejected=0.0))
    moved, (s,) = step.step(point)
    assert step.chains[0].tuned.emulator is not None
    for name, values in point.items():
        np.testing.assert_allclose(moved[name], values, rtol=1e-12)
    assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)


def test_a_move_along_the_density_is_made_from_where_the_chain_stands_and_leads_back(following, exact, monkeypatch):
    """Of steps too short to leave."""
    monkeypatch.setattr(graph, "TURNS", replace(TURNS, joint_by_rejected=10.0))
    monkeypatch.setattr(graph.EmulatedCoordinates, "_along", lambda setting, path: Nowhere())
    step, point = following
    (state,) = step.chains
    state.tuned.trial, state.step_size.average, state.judged = (64, 0.3), 1e-9, True
    for _ in range(5):
        moved, (s,) = step.step(point)
        assert s["accepted"]
        for name, values in point.items():
            np.testing.assert_allclose(moved[name], values, atol=1e-5)
        assert s["model_logp"] == pytest.approx(float(exact(moved)), abs=1e-6)
        point = moved


def test_a_new_chain_begins_without_the_emulator_of_the_last(following, start):
    step, _ = following
    step.setup_chain(np.random.default_rng(2), TUNE, 10)
    assert step.chains[0].tuned.emulator is None
    assert np.isfinite(advance(step, start, 5)[1]).all()


def test_values_that_another_step_moves_are_entered(following, exact):
    step, point = following
    for _ in range(10):
        point = {name: value + 0.01 for name, value in point.items()}
        point, (s,) = step.step(point)
        assert s["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
        assert s["failure"] == Failure.NONE


def test_a_result_holds_what_the_log_density_is_of_and_can_be_summarised(model, steps, exact):
    idata = draw(model, steps[0], tune=TUNE)
    assert steps[0].chains[0].tuned.emulator is not None
    logp = [float(exact(point)) for point in value_points(model, idata)]
    np.testing.assert_allclose(idata.sample_stats["lp"].values[0], logp, atol=1e-6)
    assert (idata.sample_stats["n_emulator_divergences"] == 0).all()
    assert str(summarize_failures(idata)) == "No trajectory failed after tuning."
    idata.sample_stats["n_emulator_divergences"][0, 3] = 1
    assert "1 moves along the emulator ended" in " ".join(str(summarize_failures(idata)).split())


SEEN, TOLD = np.array([1.6, 0.4, 1.9]), 1.3


def switched() -> pm.Model:
    """A switch that moves and widens what the rest is told: its density is another one for each."""
    with pm.Model() as made:
        on = pm.Bernoulli("on", 0.4)
        a, b = pm.Normal("a", 0.0, 1.0), pm.Normal("b", 0.0, 1.0)
        pm.Normal("y", a + on, 0.8, observed=SEEN)
        pm.Normal("z", b * (1.0 + on), 0.7, observed=TOLD)
    return made


def exact_of_switch() -> dict[str, float]:
    """The probability of the switch, and the means of the rest."""
    weights, a, b = [], [], []
    for on, prior in ((0.0, 0.6), (1.0, 0.4)):
        wide = 1.0 + on
        weights.append(
            prior * multivariate_normal.pdf(SEEN, np.full(3, on), 0.64 * np.eye(3) + 1.0)
            * norm.pdf(TOLD, 0.0, np.hypot(0.7, wide))
        )  # fmt: skip
        a.append(((SEEN - on) / 0.64).sum() / (1.0 + 3.0 / 0.64))
        b.append(wide * TOLD / 0.49 / (1.0 + wide**2 / 0.49))
    shares = np.array(weights) / np.sum(weights)
    return {"on": shares[1], "a": shares @ a, "b": shares @ b}


def test_of_a_density_that_another_step_changes_none_is_made():
    """It would be of one setting of the switch; the chain is right for both."""
    made = switched()
    step = RMHMC(model=made, metric=FlatMetric(chart="graph"))
    assert not step._samplers[0].density.emulates
    assert "emulator" not in str(describe(made))
    idata = draw(made, step, tune=TUNE, draws=2500)
    for name, exact in exact_of_switch().items():
        values = idata.posterior[name].values.astype(float)
        error = float(az.mcse(values))
        assert error < 0.15 * values.std()
        assert abs(values.mean() - exact) < 4.0 * error
    assert 0.2 < exact_of_switch()["on"] < 0.8
    assert str(summarize_failures(idata))
    logp, point = exact_log_density(made), made.initial_point()
    step.setup_chain(np.random.default_rng(1), 0, 10)
    for i in range(20):
        point, (s,) = step.step(point | {"on": np.array(i // 2 % 2)})
        assert s["model_logp"] == pytest.approx(float(logp(point)), abs=1e-6)
        assert s["failure"] == Failure.NONE


@pytest.mark.slow
def test_one_and_two_cores_give_the_same_draws(model):
    options = {"tune": TUNE, "draws": 25, "chains": 2}
    here = draw(model, RMHMC(model=model), **options)
    there = draw(model, RMHMC(model=model), cores=2, **options)
    for name in ("ls", "eta", "noise"):
        np.testing.assert_array_equal(here.posterior[name].values, there.posterior[name].values)


@pytest.mark.usefixtures("compiled_ahead")
def test_what_a_chain_with_an_emulator_calls_is_compiled_before_it(model, start, caplog):
    with caplog.at_level("INFO", "pymc.rmhmc"):
        step = RMHMC(model=model)
        tuned(step, start)
    assert step.chains[0].tuned.emulator is not None
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("RMHMC: compil")]
    assert len(said) <= 2
    assert all("that this chain needs now" not in each for each in said)
    assert step._samplers[0].density.n_functions == 2
