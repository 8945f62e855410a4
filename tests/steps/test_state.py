"""Saving, restoring, pickling and starting a chain."""

from __future__ import annotations

import cloudpickle
import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.dynamics.hamiltonian import SpannedHamiltonian
from pymc_rmhmc.errors import ConfigurationError, Failure, PriorFailure
from pymc_rmhmc.tuning.adaptation import REFITS
from tests.steps.conftest import COUNTS, N, poisson_model
from tests.steps.test_joint_sampling import two_scales
from tests.steps.test_turns import watch_lengths

OPTIONS = {"flat": {}, "hessian": {"metric": "hessian"}}


def run(step, point, count):
    points, stats = [], []
    for _ in range(count):
        point, (s,) = step.step(point)
        points.append(point["f"])
        stats.append((s["energy"], s["step_size"], s["model_logp"]))
    return point, np.array(points), np.array(stats)


@pytest.mark.parametrize("during_tuning", [True, False])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_restored_state_replays_exactly(options, during_tuning):
    model = poisson_model()
    with model:
        step = RMHMC(**options)
    step.setup_chain(np.random.default_rng(1), 80, 100)
    point, _, _ = run(step, model.initial_point(), 30)
    if not during_tuning:
        step.stop_tuning()
    state = step.sampling_state
    _, first, first_stats = run(step, point, 40)
    step.sampling_state = state
    _, second, second_stats = run(step, point, 40)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first_stats, second_stats)


def test_a_state_moves_to_another_step():
    model = poisson_model()
    with model:
        step, other = RMHMC(), RMHMC()
    step.setup_chain(np.random.default_rng(1), 40, 100)
    point, _, _ = run(step, model.initial_point(), 60)
    other.sampling_state = cloudpickle.loads(cloudpickle.dumps(step.sampling_state))
    _, ours, _ = run(step, point, 20)
    _, theirs, _ = run(other, point, 20)
    np.testing.assert_array_equal(ours, theirs)


def test_a_pickled_step_goes_on_where_it_was():
    model = poisson_model()
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), 40, 100)
    point, _, _ = run(step, model.initial_point(), 50)
    copy = cloudpickle.loads(cloudpickle.dumps(step))
    _, ours, _ = run(step, point, 10)
    _, theirs, _ = run(copy, point, 10)
    np.testing.assert_array_equal(ours, theirs)


def test_a_restored_chain_is_never_initialised_again():
    model = poisson_model()
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), 40, 100)
    run(step, model.initial_point(), 60)
    state = step.sampling_state
    with model:
        fresh = RMHMC()
    fresh.sampling_state = state
    fresh.setup_chain(np.random.default_rng(2), 0, 10)
    sites = fresh.chains[0].tuned.sites
    point = model.initial_point()
    new, (stats,) = fresh.step(point)
    if not stats["accepted"]:
        np.testing.assert_array_equal(new["f"], point["f"])  # kept, not replaced by a Laplace draw
    np.testing.assert_array_equal(fresh.chains[0].tuned.sites.precision, sites.precision)


def first_position(step, point):
    """Where a chain stands before its first transition: an immovable step shows it."""
    step.setup_chain(np.random.default_rng(3), 0, 5)
    sampler = step._samplers[0]
    sampler._condition(point)
    sampler._start(sampler.density.variables.read(point), point, np.random.default_rng(3))
    return sampler.values


@pytest.mark.parametrize(("init", "moves"), [("auto", True), ("laplace", True), ("keep", False)])
def test_init_from_the_models_initial_point(init, moves):
    model = poisson_model()
    with model:
        step = RMHMC(init=init)
    point = model.initial_point()
    assert np.array_equal(first_position(step, point), point["f"]) != moves


def test_init_keeps_a_point_that_somebody_chose():
    model = poisson_model()
    point = {"f": np.full(N, 0.3)}
    with model:
        step = RMHMC()
    np.testing.assert_array_equal(first_position(step, point), point["f"])
    with pm.Model() as own:
        f = pm.MvNormal("f", np.zeros(N), cov=np.eye(N), initval=np.full(N, 0.1))
        pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)
        step = RMHMC()
    np.testing.assert_array_equal(first_position(step, own.initial_point()), np.full(N, 0.1))


def test_sites_are_refitted_in_tuning_and_frozen_for_the_draws():
    model = poisson_model()
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), 200, 50)
    point, seen = model.initial_point(), []
    for i in range(250):
        if i == 200:
            step.stop_tuning()
        point, _ = step.step(point)
        seen.append(step.chains[0].tuned.sites)
    changes = [i for i in range(1, 250) if seen[i] is not seen[i - 1]]
    assert tuple(changes) == REFITS.iterations(200)
    assert max(changes) < 200
    assert all(s.precision.min() >= 0.0 for s in seen)


def test_a_refit_waits_for_a_draw_whose_prior_has_a_factor(monkeypatch):
    model = poisson_model()
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), 200, 50)
    (sampler,), (first, *_) = step._samplers, REFITS.iterations(200)
    point, real, refitted = model.initial_point(), sampler._condition, []

    def condition(point):
        if first <= len(refitted) < first + 3:
            raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE)
        real(point)

    monkeypatch.setattr(sampler, "_condition", condition)
    for _ in range(first + 4):
        before = step.chains[0].tuned.sites
        point, _ = step.step(point)
        refitted.append(step.chains[0].tuned.sites is not before)
    assert np.flatnonzero(refitted[1:]).tolist() == [first + 2]


KINDS = pytest.mark.parametrize("make", [poisson_model, two_scales], ids=["latents alone", "with hyperparameters"])


@KINDS
def test_a_refit_leaves_the_chain_where_it_is(make):
    """The chart is another one then: the same coordinates stand for other values. Steps are made too short to move."""
    model = make()
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), 60, 10)
    point, (state,) = model.initial_point(), step.chains
    assert state.refits == REFITS.iterations(60) == (18, 36)
    for i in range(40):
        (state,) = step.chains  # a refit is tried on a copy
        if i in state.refits:
            state.step_size.current = state.step_size.average = 1e-9
        moved, _ = step.step(point)
        if i in state.refits:
            assert step.chains[0].tuned.sites is not state.tuned.sites
            for name, values in point.items():
                np.testing.assert_allclose(moved[name], values, atol=1e-5)
            step.chains[0].step_size.restart(0.5)
        point = moved


@KINDS
def test_a_refit_that_tuning_has_put_off_to_its_end_is_not_made_in_the_draws(make, monkeypatch):
    """Sites that change while draws are kept make a chain of no one law."""
    model = make()
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), 60, 20)
    (sampler,), last = step._samplers, REFITS.iterations(60)[-1]
    point, real = model.initial_point(), sampler._condition
    for _ in range(last):
        point, _ = step.step(point)

    def refuse(point):
        raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE)

    monkeypatch.setattr(sampler, "_condition", refuse)
    for _ in range(2):
        point, (statistics,) = step.step(point)
        assert statistics["failure"] == Failure.NOT_POSITIVE_DEFINITE
    step.stop_tuning()
    monkeypatch.setattr(sampler, "_condition", real)
    (state,) = step.chains
    assert state.iteration == last
    tuned = state.tuned.sites, vars(state.step_size).copy()
    for _ in range(10):
        point, (statistics,) = step.step(point)
        assert statistics["failure"] == Failure.NONE
    assert step.chains[0] is state
    assert state.tuned.sites is tuned[0]
    assert vars(state.step_size) == tuned[1]


@KINDS
def test_draws_are_made_with_the_average_of_tuning(make, monkeypatch):
    """The last iterate of dual averaging is what chance has made of it."""
    model = make()
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), 20, 10)
    point, (state,) = model.initial_point(), step.chains
    for _ in range(20):
        point, _ = step.step(point)
    step.stop_tuning()
    state.step_size.current, tuned = 1e-6, state.step_size.average
    asked = watch_lengths(monkeypatch)
    for _ in range(5):
        point, (statistics,) = step.step(point)
        assert statistics["step_size"] == statistics["step_size_bar"] == tuned
    assert asked == [tuned] * 5
    assert state.step_size.current == 1e-6


@pytest.mark.parametrize(
    ("init", "says"), [("laplace", "Nor was a draw of the approximation"), ("keep", 'start .* with init="laplace"')]
)
def test_a_start_without_a_density_is_not_advised_what_has_been_tried(init, says, monkeypatch):
    with poisson_model():
        step = RMHMC(init=init)
    step.setup_chain(np.random.default_rng(1), 10, 10)
    monkeypatch.setattr(SpannedHamiltonian, "failure", lambda self, state: Failure.NON_FINITE)
    with pytest.raises(ConfigurationError, match=says):
        step.step(step._initial_point)


@pytest.mark.parametrize("impossible", [1, 3])
def test_a_start_without_a_density_is_tried_nearer_the_mode(impossible, monkeypatch):
    with poisson_model():
        step = RMHMC(init="laplace")
    step.setup_chain(np.random.default_rng(1), 10, 10)
    (sampler,), seen = step._samplers, []
    draw = type(sampler.density).start

    def start(self, tuned, values, rng, *, approximated):
        hamiltonian = self.coordinates(tuned).hamiltonian
        real = hamiltonian.failure

        def failure(phase):
            seen.append(phase)
            return Failure.NON_FINITE if len(seen) <= impossible else real(phase)

        monkeypatch.setattr(hamiltonian, "failure", failure)
        return draw(self, tuned, values, rng, approximated=approximated)

    monkeypatch.setattr(type(sampler.density), "start", start)
    step.step(step._initial_point)
    noise = [np.linalg.norm(phase.position) for phase in seen[: impossible + 1]]
    np.testing.assert_allclose(noise, noise[0] * np.array([1.0, 0.5, 0.25, 0.0])[: impossible + 1], atol=1e-6)


def test_refitting_can_be_switched_off():
    model = poisson_model()
    with model:
        step = RMHMC(metric=FlatMetric(refit=False))
    step.setup_chain(np.random.default_rng(1), 100, 10)
    point = model.initial_point()
    point, _ = step.step(point)
    sites = step.chains[0].tuned.sites
    for _ in range(100):
        point, _ = step.step(point)
    assert step.chains[0].tuned.sites is sites


def test_a_short_tuning_refits_nothing():
    assert REFITS.iterations(0) == ()
    assert REFITS.iterations(20) == ()
    assert all(0 < i < 300 for i in REFITS.iterations(300))


def test_the_point_given_is_not_changed():
    model = poisson_model()
    with model:
        step = RMHMC()
    step.setup_chain(np.random.default_rng(1), 10, 10)
    point = {"f": np.full(N, 0.2)}
    step.step(point)
    np.testing.assert_array_equal(point["f"], np.full(N, 0.2))


@pytest.mark.parametrize("options", [{"vars": ["f"]}, {"vars": ["f"], "metric": "hessian"}, {"vars": ["f", "level"]}])
@pytest.mark.parametrize("reparameterize", [False, True])
def test_latent_values_stay_where_another_step_moves_their_prior(options, reparameterize):
    """Under another covariance the same coordinates stand for other values: a chain must not take them along."""
    with pm.Model() as model:
        lengthscale, level = pm.LogNormal("ls", -1.0, 0.3), pm.Normal("level", 0.0, 1.0)
        gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=lengthscale))
        f = gp.prior("f", X=np.linspace(0.0, 1.0, N)[:, None], reparameterize=reparameterize)
        pm.Poisson("y", mu=pm.math.exp(level + f), observed=COUNTS)
        step = RMHMC(step_size=1e-9, n_steps=1, init="keep", **options)
    step.setup_chain(np.random.default_rng(1), 0, 10)
    name = "f_rotated_" if reparameterize else "f"
    point = model.initial_point() | {name: np.random.default_rng(0).standard_normal(N)}
    for _ in range(5):
        point = point | {"ls_log__": point["ls_log__"] + 0.3}
        moved, _ = step.step(point)
        np.testing.assert_allclose(moved[name], point[name], atol=1e-7)
        point = moved
