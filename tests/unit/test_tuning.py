"""Adapters by themselves: when they refit, what they keep, and what a refit that is dropped leaves behind."""

from __future__ import annotations

import copy
import math
from dataclasses import FrozenInstanceError
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest

from pymc_rmhmc.kernels.kernel import Transition, merge
from pymc_rmhmc.kernels.turns import HYPERPARAMETERS, JOINT, LATENTS
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.charts.site import SitePolicy
from pymc_rmhmc.tuning.adaptation import (
    REFITS,
    DualAveraging,
    FixedStepSize,
    Moment,
    RefitPolicy,
    StepSizeRule,
    postponed,
)
from pymc_rmhmc.tuning.graph_chart import EARLY_REFITS, GRAPH, GraphChartAdapter
from pymc_rmhmc.tuning.joint_adapter import TURNS, HyperparameterAdapter, JointTuning, SiteAdapter, SiteTuning

RULE = StepSizeRule(fixed=None, initial=1.0, longest=1.7, target=0.8, covering=0.0)


@pytest.mark.parametrize(
    ("policy", "tune", "at"),
    [
        (REFITS, 200, (20, 60, 120)),
        (REFITS, 60, (18, 36)),
        (REFITS, 24, ()),
        (EARLY_REFITS, 300, (6, 15, 30, 90, 180)),
        (EARLY_REFITS, 20, ()),
        (RefitPolicy(fractions=(0.5,), min_window=1), 10, (5,)),
    ],
)
def test_refits_are_at_fractions_of_the_tuning(policy, tune, at):
    assert policy.iterations(tune) == at


def test_a_refit_that_waits_is_made_with_the_next_draw_and_no_other_moves():
    assert postponed((18, 36), 18) == (19, 36)
    assert postponed((18, 36), 17) == (18, 36)


def test_a_step_size_that_is_given_learns_nothing():
    asked = []
    step_size = StepSizeRule(0.3, 1.0, 1.7, 0.8, 0.0).first(asked.append)
    step_size.update(0.0)
    step_size.restart(1.0)
    assert not asked
    assert isinstance(step_size, FixedStepSize)
    assert [step_size.in_use(tuning=tuning) for tuning in (True, False)] == [0.3, 0.3]


def test_a_step_size_that_is_adapted_begins_where_a_step_is_accepted():
    step_size = RULE.first(lambda size: float(size < 0.3))
    assert 0.0 < step_size.in_use(tuning=True) < 0.3
    for acceptance in (0.0, 1.0, 0.5):
        step_size.update(acceptance)
    assert step_size.in_use(tuning=True) == step_size.current != step_size.average == step_size.in_use(tuning=False)
    assert RULE.first(lambda size: 1.0).maximum == 1.7


def window(n: int = 200) -> tuple[SiteAdapter, SiteTuning]:
    adapter, rng = SiteAdapter(SitePolicy()), np.random.default_rng(0)
    tuned = adapter.initial()
    tuned.sites = GaussianSites(np.zeros(3), np.ones(3))
    for _ in range(n):
        eta = rng.standard_normal(3)
        adapter.observe(tuned, (eta, 1.0 - 2.0 * eta))
    return adapter, tuned


def refit(adapter, tuned, step_size, *, with_sites=True, first=False, last=False):
    return adapter.refit(
        tuned, step_size, Moment(30, first, last), np.random.default_rng(1), with_sites=with_sites
    )


def test_a_refit_of_sites_leaves_what_was_known():
    """A chain goes back to it where the refit gives it no density."""
    (adapter, tuned), step_size = window(), DualAveraging(0.5, 0.8)
    before, fit = tuned.sites, tuned.fit
    found = refit(adapter, tuned, step_size)
    assert found.changed
    np.testing.assert_allclose(found.tuned.sites.precision, 2.0, rtol=1e-6)
    assert found.tuned.fit is None
    assert tuned.sites is before
    assert tuned.fit is fit


@pytest.mark.parametrize("draws", [0, 200])
def test_sites_stay_where_there_is_nothing_to_fit_or_they_are_not_to_be(draws):
    adapter, tuned = window(draws)
    step_size = DualAveraging(0.5, 0.8)
    step_size.update(0.1)
    learnt = vars(step_size).copy()
    found = refit(adapter, tuned, step_size, with_sites=not draws)
    assert not found.changed
    assert found.tuned.sites is tuned.sites
    assert vars(step_size) == learnt


@pytest.mark.parametrize(("count", "mean", "given_up"), [(29, 0.0, False), (30, 0.3, True), (30, 0.32, False)])
def test_turns_are_given_up_by_their_policy(count, mean, given_up):
    assert TURNS.is_given_up(count, mean) == given_up
    with pytest.raises(FrozenInstanceError):
        TURNS.trial = 1


def test_remedies_are_taken_by_what_is_rejected():
    assert TURNS.need(0.5) == 0.5
    assert TURNS.need(0.1) == pytest.approx(0.1 * 0.1 / TURNS.much_rejected)
    assert TURNS.share_of_parameters(TURNS.parameters_from) == 0.0
    assert TURNS.share_of_parameters(TURNS.parameters_always) == pytest.approx(1.0)


def turning() -> tuple[HyperparameterAdapter, JointTuning]:
    model = SimpleNamespace(blocks=(), of_likelihoods=np.empty(0, int))
    adapter = HyperparameterAdapter(model, SitePolicy(), RULE, may_emulate=True)
    tuned = adapter.initial()
    tuned.held_step_size, tuned.thetas = RULE.adapting(0.5), tuple(np.random.default_rng(0).standard_normal((99, 2)))
    return adapter, tuned


def turn(*acceptances: float) -> Transition:
    kinds = (JOINT, LATENTS, HYPERPARAMETERS)
    parts = zip(acceptances, kinds, strict=True)
    return merge([Transition(None, acceptance=acceptance, kind=kind) for acceptance, kind in parts])


def test_each_half_teaches_its_own_step_size():
    adapter, tuned = turning()
    tuned.emulator = object()
    step_size, twin = DualAveraging(0.4, 0.8), RULE.adapting(0.5)
    assert not adapter.learn(tuned, step_size, turn(0.6, 0.9, 0.7), stood=True)
    twin.update(0.9)
    assert vars(tuned.held_step_size) == vars(twin)
    assert step_size.average == pytest.approx(0.4 * math.exp(TURNS.correction * (0.6 - RULE.target)))
    assert step_size.current == 0.4
    assert tuned.trial == (1, 0.7)
    assert adapter.step_size(tuned, step_size) is tuned.held_step_size


def test_nothing_is_learnt_where_a_draw_began_without_a_density():
    adapter, tuned = turning()
    step_size = DualAveraging(0.4, 0.8)
    before = vars(step_size).copy(), vars(tuned.held_step_size).copy()
    assert not adapter.learn(tuned, step_size, turn(0.0, 0.0, 0.0), stood=False)
    assert (vars(step_size), vars(tuned.held_step_size)) == before


def test_where_no_site_sees_the_latents_all_is_joint_after_turns_were_given_up():
    adapter, tuned = turning()
    tuned.trial, tuned.emulator, step_size = (400, 0.1), object(), DualAveraging(0.4, 0.8)
    assert adapter.learn(tuned, step_size, turn(0.8, 0.8, 0.0), stood=True)
    assert tuned.emulator is tuned.held_step_size is None
    assert adapter.step_size(tuned, step_size) is step_size


def test_where_turns_are_given_up_both_step_sizes_are_learnt_on():
    adapter, tuned = turning()
    adapter.model.blocks = (SimpleNamespace(n_sites=3),)
    tuned.trial, tuned.emulator, step_size = (400, 0.1), object(), DualAveraging(0.4, 0.8)
    assert adapter.learn(tuned, step_size, turn(0.8, 0.8, 0.0), stood=True)
    assert tuned.emulator is None
    assert tuned.marginals is not None
    # A joint step that covers nothing must not hide behind the latents'.
    assert adapter.step_size(tuned, step_size) is step_size
    twins = copy.copy(step_size), copy.copy(tuned.held_step_size)
    moves = [Transition(None, acceptance=a, kind=kind) for a, kind in ((1.0, LATENTS), (0.6, LATENTS), (0.3, JOINT))]
    assert not adapter.learn(tuned, step_size, merge(moves), stood=True)
    for twin, acceptance in zip(twins, (0.3, 0.8), strict=True):  # of the latents' their mean
        twin.update(acceptance)
    assert (vars(step_size), vars(tuned.held_step_size)) == tuple(map(vars, twins))


def test_a_refit_after_turns_were_given_up_begins_both_step_sizes_anew():
    adapter, tuned = turning()
    tuned.marginals, step_size = object(), DualAveraging(0.4, 0.8)
    for each in (step_size, tuned.held_step_size):
        each.update(0.9)
        each.update(0.2)
    found = refit(adapter, tuned, step_size, first=True)
    assert step_size.current == step_size.average
    assert found.tuned.held_step_size.current == tuned.held_step_size.average
    assert tuned.held_step_size.current != tuned.held_step_size.average


def test_a_refit_among_turns_leaves_what_was_known():
    adapter, tuned = turning()
    tuned.marginals = tuned.emulator = object()
    held, thetas = copy.copy(tuned.held_step_size), tuned.thetas
    found = refit(adapter, tuned, DualAveraging(0.4, 0.8), first=True)
    assert found.changed
    assert found.tuned.thetas == ()
    assert tuned.thetas is thetas
    assert vars(tuned.held_step_size) == vars(held)
    assert found.tuned.held_step_size is not tuned.held_step_size


@pytest.mark.parametrize(
    ("gradient", "n_steps", "is_cheap"), [(2.2e-6, 4.0, True), (2.2e-6, 16.0, False), (0.02, 4.0, False)]
)
def test_a_draw_of_a_cheap_model_has_time_for_several_trajectories(gradient, n_steps, is_cheap):
    assert GRAPH.is_cheap(gradient, n_steps) == is_cheap
    assert GRAPH.rounds % 2 == 1  # an even number of paths leads back


@pytest.mark.parametrize(
    ("gradient", "is_slow", "may_repeat", "rounds"),
    [(2.2e-6, False, True, 3), (0.02, False, True, 1), (0.02, True, True, 3), (2.2e-6, True, False, 1)],
)
def test_trajectories_of_a_draw_are_settled_when_tuning_ends(gradient, is_slow, may_repeat, rounds):
    general = SimpleNamespace(n_constants=0, size=2, gradient_seconds=gradient)
    adapter = GraphChartAdapter(general, (), str, may_repeat, may_lengthen=True, most_dense=50)
    tuned = adapter.initial()
    tuned.path.is_slow = is_slow
    for _ in range(5):
        adapter.learn(tuned, DualAveraging(0.5, 0.8), Transition(None, n_steps=4), stood=True)
    adapter.finish(tuned)
    assert tuned.rounds == rounds
    assert tuned.n_steps == []


def test_what_is_tuned_can_be_pickled():
    for tuned in (window()[1], turning()[1]):
        again = cloudpickle.loads(cloudpickle.dumps(tuned))
        assert type(again) is type(tuned)
