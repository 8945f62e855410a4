"""What a chain in the graph's chart learns of an emulator: when one is made, in which coordinates, and given up."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytensor
import pytest

from pymc_rmhmc.approximation import emulation
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import SurrogateFlow
from pymc_rmhmc.graph_chart.affine_map import from_flat, to_flat
from pymc_rmhmc.graph_chart.constants import charts_of
from pymc_rmhmc.graph_chart.graph_target import ValueTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.kernels.kernel import Cycle, Sometimes, Transition, merge
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.kernels.turns import ALONG_DENSITY, ALONG_SURROGATE
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.model.general.density import GeneralModel
from pymc_rmhmc.sampled.graph import EmulatedCoordinates
from pymc_rmhmc.tuning import graph_chart
from pymc_rmhmc.tuning.adaptation import DualAveraging, Moment
from pymc_rmhmc.tuning.graph_chart import EARLY_EMULATION, MOST_DRAWS, ChartTuning, EmulatingAdapter
from pymc_rmhmc.tuning.joint_adapter import TURNS
from tests.unit.general_toys import directions
from tests.unit.test_general_chart import by_python

SEEN, NOISE = np.array([0.6, -0.5, 1.1]), 0.8
D = 5


@pytest.fixture(scope="module")
def general():
    """A hierarchy, whose children have a chart."""
    with pytest.MonkeyPatch.context() as patch, pytensor.config.change_flags(mode="FAST_COMPILE"):
        patch.setattr("pymc_rmhmc.model.hyperparameters.compile_outputs", by_python)
        with pm.Model() as model:
            top, log_spread = pm.Normal("top", 0.0, 1.0), pm.Normal("log_spread", -0.3, 0.4)
            child = pm.Normal("child", top, pm.math.exp(log_spread), shape=3)
            pm.Normal("y", child, NOISE, observed=SEEN)
        made = GeneralModel(model, model.free_RVs, model.initial_point())
        made.bind(model.initial_point())
        yield made


def posterior(count: int, seed: int = 0) -> np.ndarray:
    """Draws of (top, log_spread, child), by weights of draws of the prior."""
    rng, m = np.random.default_rng(seed), 200 * count
    top, log_spread = rng.standard_normal(m), -0.3 + 0.4 * rng.standard_normal(m)
    child = top[:, None] + np.exp(log_spread)[:, None] * rng.standard_normal((m, 3))
    weights = np.exp(-0.5 * (((SEEN - child) / NOISE) ** 2).sum(axis=1))
    chosen = rng.choice(m, count, replace=False, p=weights / weights.sum())
    return np.column_stack((top, log_spread, child))[chosen]


def adapter_of(general) -> EmulatingAdapter:
    charts = charts_of(general)
    return EmulatingAdapter(general, charts, str, may_repeat=True, may_lengthen=False, most_dense=50)


def refitted(adapter, tuned, draws, *, seed: int = 1, with_sites: bool = True):
    tuned.draws = list(draws)
    return adapter.refit(
        tuned, DualAveraging(0.5, 0.8), Moment(65, False, False), np.random.default_rng(seed), with_sites=with_sites
    )


@pytest.fixture(scope="module")
def kept(general) -> ChartTuning:
    adapter = adapter_of(general)
    return refitted(adapter, adapter.initial(), posterior(80)).tuned


@pytest.fixture
def tuned(kept) -> ChartTuning:
    """What is known after a refit to eighty draws."""
    return copy.copy(kept)


def check_emulates(general, tuned: ChartTuning) -> None:
    """The emulator is that of the density in the chart and the standard normals as they are now."""
    target = ValueTarget(general.value, tuned.chart, tuned.marginals)
    points = 0.8 * np.random.default_rng(7).standard_normal((60, D))
    exact = np.array([target.at(point).log_density for point in points])
    gaps = exact - [tuned.emulator.evaluate(point)[0] for point in points]
    assert np.std(gaps) < 0.15
    # It would have seen another chart of the hierarchy.
    other = ValueTarget(general.value, np.zeros_like(tuned.chart), tuned.marginals)
    apart = [other.at(point).log_density - tuned.emulator.evaluate(point)[0] for point in points]
    assert np.std(apart) > 3.0 * np.std(gaps)


def test_an_emulator_is_made_in_the_chart_that_was_fitted_at_once(general, tuned):
    assert isinstance(tuned.emulator, Emulator)
    assert tuned.emulator.points.shape[0] == D
    assert tuned.trial == (0, 0.0)
    assert np.abs(tuned.chart).max() > 0.1
    check_emulates(general, tuned)
    adapter = adapter_of(general)
    draws = posterior(200, seed=3)
    charted = adapter.charted(tuned.chart, draws, adapter.scored(draws)[1])
    standard = np.array([tuned.marginals.recover(z) for z in charted])
    assert np.abs(standard.mean(axis=0)).max() < 0.5
    assert ((standard.std(axis=0) > 0.6) & (standard.std(axis=0) < 1.6)).all()


def test_where_there_is_an_emulator_chart_and_map_stay(general, tuned):
    """Coordinates of the old chart would be no good for an emulator of the new one."""
    adapter, draws = adapter_of(general), list(posterior(90, seed=4))
    before = copy.copy(tuned)
    found = refitted(adapter, tuned, draws)
    again = found.tuned
    assert found.changed
    assert again.chart is tuned.chart
    assert again.flat is tuned.flat
    assert again.emulator is not tuned.emulator
    assert again.draws == []
    check_emulates(general, again)
    # A chain goes back to what it knew where it has no density in a new chart.
    assert tuned.emulator is before.emulator
    assert tuned.marginals is before.marginals
    assert len(tuned.draws) == 90


def test_an_emulator_stays_where_no_better_can_be_made(general, tuned):
    few = posterior(emulation.FEWEST_DRAWS - 1, seed=5)
    tuned.trial = 12, 0.7
    found = refitted(adapter_of(general), tuned, few)
    assert not found.changed
    assert found.tuned.emulator is tuned.emulator
    assert found.tuned.marginals is tuned.marginals
    assert found.tuned.trial == (12, 0.7)


def test_after_one_was_given_up_all_is_refitted(general, tuned):
    """Chart, map and what is made in them."""
    adapter = adapter_of(general)
    tuned.trial = 400, 0.1
    assert adapter.learn(tuned, DualAveraging(0.5, 0.8), draw(0.1), stood=True)
    assert tuned.emulator is None
    assert tuned.marginals is None
    found = refitted(adapter, tuned, posterior(90, seed=6)).tuned
    assert not np.array_equal(found.chart, tuned.chart)
    assert found.flat is not tuned.flat
    assert found.trial == (0, 0.0)
    check_emulates(general, found)


@pytest.mark.parametrize("count", [1, 2, emulation.FEWEST_DRAWS - 1])
def test_few_draws_make_none(general, count):
    adapter = adapter_of(general)
    found = refitted(adapter, adapter.initial(), posterior(80)[:count])
    assert found.tuned.emulator is None
    assert found.tuned.marginals is None
    assert found.changed == (count > 1)


def test_draws_that_are_few_places_make_none(general):
    """A chain that hardly moved."""
    adapter = adapter_of(general)
    found = refitted(adapter, adapter.initial(), np.repeat(posterior(20), 5, axis=0))
    assert found.tuned.emulator is None


def test_a_refit_of_all_else_makes_none(general, tuned):
    found = refitted(adapter_of(general), tuned, posterior(90), with_sites=False)
    assert not found.changed
    assert found.tuned.emulator is tuned.emulator


def test_of_many_draws_some_are_asked_where_the_density_is(general, tuned, monkeypatch):
    asked = []
    usual = emulation._design

    def watched(chart, thetas, rng):
        asked.append(len(np.unique(thetas, axis=0)))
        return usual(chart, thetas, rng)

    monkeypatch.setattr(emulation, "_design", watched)
    adapter = adapter_of(general)
    found = refitted(adapter, tuned, posterior(60, seed=8)).tuned
    refitted(adapter, found, posterior(3 * MOST_DRAWS, seed=8))
    # A rejection repeats a draw, and says nothing.
    refitted(adapter, found, np.repeat(posterior(MOST_DRAWS + 1, seed=8), 2, axis=0))
    assert asked == [60, MOST_DRAWS, MOST_DRAWS]


def test_draws_that_are_too_few_stay_for_the_next_refit(general):
    adapter = adapter_of(general)
    few = posterior(emulation.FEWEST_DRAWS - 5, seed=8)
    found = refitted(adapter, adapter.initial(), few).tuned
    assert found.emulator is None
    assert len(found.draws) == len(few)
    found = refitted(adapter, found, np.concatenate((few, posterior(10, seed=9)))).tuned
    assert found.emulator is not None
    assert found.draws == []
    assert len(refitted(adapter, found, few).tuned.draws) == len(few)
    # The way from the start is forgotten.
    assert refitted(adapter, adapter.initial(), few[:15]).tuned.draws == []


def test_one_of_the_first_refits_has_draws_enough():
    at = EARLY_EMULATION.iterations(300)
    assert at == (6, 15, 70, 90, 180)
    assert np.diff(at).tolist().index(70 - 15) == 1
    assert emulation.FEWEST_DRAWS < 70 - 15 < 2 * emulation.FEWEST_DRAWS
    assert EARLY_EMULATION.iterations(20) == ()


def draw(*acceptances: float) -> Transition:
    """A trajectory along the density, and some along the emulator."""
    exact = Transition(None, acceptance=0.5, n_steps=7)
    return merge([exact, *(Transition(None, acceptance=a, kind=ALONG_SURROGATE, n_steps=1) for a in acceptances)])


def test_a_trial_is_of_moves_along_the_emulator(general, tuned):
    adapter, step_size = adapter_of(general), DualAveraging(0.5, 0.8)
    before = vars(step_size).copy()
    for acceptances in ((0.9,), (0.3,), (0.6,)):
        assert not adapter.learn(tuned, step_size, draw(*acceptances), stood=True)
    assert tuned.trial == (3, pytest.approx(0.6))
    assert vars(step_size) == before  # of trajectories along the density, which few draws have
    assert tuned.n_steps == []


def test_trajectories_along_the_density_correct_their_step_size_up_to_its_bound(general, tuned):
    adapter, step_size = adapter_of(general), DualAveraging(0.5, 0.8, maximum=0.6)
    before = step_size.average
    for acceptance, expected in ((0.1, TURNS.corrected(before, 0.1, 0.8)), (1.0, None)):
        made = merge([Transition(None, acceptance=acceptance, kind=ALONG_DENSITY), draw(0.9)])
        for _ in range(1 if expected else 500):
            adapter.learn(tuned, step_size, made, stood=True)
        assert step_size.average == pytest.approx(0.6 if expected is None else expected)
    assert TURNS.corrected(before, 0.1, 0.8) < before


@pytest.mark.parametrize(("count", "mean", "stays"), [
    (30, 0.32, True), (30, 0.3, False), (29, 0.0, True), (400, 0.38, True), (400, 0.37, False),
])  # fmt: skip
def test_it_is_given_up_where_hardly_any_is_accepted(general, tuned, count, mean, stays):
    tuned.trial = count - 1, mean
    given_up = adapter_of(general).learn(tuned, DualAveraging(0.5, 0.8), draw(mean), stood=True)
    assert given_up != stays
    assert (tuned.emulator is not None) == stays


def test_when_it_is_given_up_steps_are_learnt_anew_from_where_corrections_left_them(general, tuned):
    """Corrections change the average alone: adaptation that is not begun again would go on from older steps."""
    step_size = DualAveraging(0.5, 0.8)
    for _ in range(60):
        step_size.update(1.0)
    step_size.average = 0.1
    tuned.trial = (200, 0.0)
    assert adapter_of(general).learn(tuned, step_size, draw(0.0), stood=True)
    assert step_size.current == step_size.average == 0.1
    step_size.update(0.8)
    assert step_size.current < 2.0


def test_without_one_steps_are_learnt_as_ever(general):
    adapter, step_size = adapter_of(general), DualAveraging(0.5, 0.8)
    tuned, before = adapter.initial(), vars(step_size).copy()
    assert not adapter.learn(tuned, step_size, Transition(None, acceptance=0.1, n_steps=5), stood=True)
    assert vars(step_size) != before
    assert tuned.n_steps == [5]
    assert tuned.trial == (0, 0.0)


FLAT = FlatMap(
    np.linspace(-1.0, 2.0, D), np.linspace(0.5, 1.5, D), np.array([0, 3]), np.array([[0.8, 0.0], [0.4, 1.2]]),
    *directions(D),
)  # fmt: skip


def setting_of(general, tuned: ChartTuning) -> EmulatedCoordinates:
    """Whose trajectories along the density end where they begin."""
    tuned.flat = tuple(FLAT)
    still = SimpleNamespace(state=lambda u: SimpleNamespace(position=u))
    exact = SimpleNamespace(
        tuned=tuned, hamiltonian=still, hmc=lambda size: f"steps of {size}", adapter=adapter_of(general),
        log_constant=0.25,
    )  # fmt: skip
    hamiltonian = GaussianHamiltonian(ValueTarget(general.value, tuned.chart, tuned.marginals))
    plan = SimpleNamespace(trajectory=JitteredPath(2.0, 0.3, 100))
    return EmulatedCoordinates(hamiltonian, plan, exact, SurrogateFlow(tuned.emulator))


def test_the_way_to_the_densitys_trajectories_and_back_leads_to_the_same_place(general, tuned):
    setting = setting_of(general, tuned)
    for position in np.random.default_rng(9).standard_normal((4, D)):
        phase = setting.hamiltonian.state(position)
        there = setting._to_exact(phase)
        np.testing.assert_allclose(from_flat(FLAT, there.position), phase.point.coordinates, rtol=1e-9, atol=1e-9)
        back = setting._from_exact(there)
        np.testing.assert_allclose(back.position, position, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(back.point.values, phase.point.values, rtol=1e-8, atol=1e-8)


def test_values_are_stood_at_and_coordinates_are_taken_as_they_are(general, tuned):
    setting, values = setting_of(general, tuned), posterior(3, seed=10)[1]
    phase = setting.stand(values, None, None)
    np.testing.assert_allclose(setting.seen(phase), values, rtol=1e-9, atol=1e-9)
    coordinates, placed, log_density, log_weight = setting.locate(phase, values)
    assert placed is values
    assert log_density == phase.point.model_log_density
    z = phase.point.coordinates
    along = to_flat(FLAT, z)
    assert log_weight == pytest.approx(general.value(z, tuned.chart)[0] + 0.5 * along @ along + 0.25)
    again = setting.stand(values + 1.0, coordinates, None)
    np.testing.assert_array_equal(again.point.values, phase.point.values)
    assert again.point.log_density == phase.point.log_density


@pytest.mark.parametrize("acceptance", [1.0, 0.9, 0.5, 0.0])
def test_the_more_is_rejected_the_more_trajectories_follow_the_density(general, tuned, acceptance):
    tuned.trial = 50, acceptance
    kernel = setting_of(general, tuned).kernel(tuned, DualAveraging(0.5, 0.8), tuning=False)
    assert isinstance(kernel, Cycle)
    sometimes, along = kernel.kernels
    assert isinstance(sometimes, Sometimes)
    assert sometimes.probability == pytest.approx(TURNS.joint_by_rejected * TURNS.need(1.0 - acceptance))
    assert sometimes.kernel.kernel == "steps of 0.5"
    assert along.length == JitteredPath(2.0, 0.3, 100)


def test_a_first_chart_is_the_map(general, monkeypatch):
    """It knows of gradients too; where there is no dense map there is no emulator."""
    charts, adapter = [], adapter_of(general)
    monkeypatch.setattr(graph_chart, "emulate", lambda density, positions, rng: charts.append(density.chart))
    factor = np.tril(np.ones((D, D)))
    nothing = np.empty((0, D)), np.empty(0)
    found = adapter.initial()
    found.flat = (np.arange(5.0), np.ones(D), np.arange(D), factor, *nothing)
    adapter._emulated(found, posterior(60), np.random.default_rng(0))
    for standard in (np.zeros(D), np.ones(D)):
        np.testing.assert_allclose(charts[0].place(standard).theta, np.arange(5.0) + factor @ standard, atol=1e-12)
    found.flat = tuple(FLAT)
    assert adapter._emulated(found, posterior(60), np.random.default_rng(0)) is None
    assert len(charts) == 1
