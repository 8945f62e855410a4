"""Vectors whose means are latent: they are sampled as deviations, and users see the vectors."""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import RMHMC, FlatMetric, describe, log_evidence
from pymc_rmhmc.model.deviations import about_means
from tests.model.conftest import COUNTS, INDEX, INDEX_COUNTS, N, X, covariance, exact_log_density, gp_prior
from tests.model.joint_checks import assert_gradient_is_a_difference_and_values_are_found_again, made, random_point

pytestmark = pytest.mark.usefixtures("without_a_compiler")

NEAR = np.exp(-np.abs(X - X.T) / 0.2)
ABOUT = ["about_a_process", "a_chain_of_processes"]


def written(mean="identity", *, is_sum: bool = False, **given) -> pm.Model:
    """Counts of a process about another, of which the mean is a function; or of their sum."""
    means = {"identity": lambda f: f, "looked up": lambda f: f[INDEX], "bent": lambda f: pt.exp(f)}
    with pm.Model() as model:
        f = gp_prior("f", ls=pm.Gamma("ls", 2.0, 4.0), reparameterize=False)
        x = X[INDEX] if mean == "looked up" else X
        near = pm.HalfNormal("spread") ** 2 * (np.exp(-np.abs(x - x.T) / 0.2) + 0.1 * np.eye(len(x)))
        if is_sum:
            h = means[mean](f) + pm.MvNormal("r", np.zeros(len(x)), cov=near)
        else:
            h = pm.MvNormal("h", means[mean](f), cov=near, **given)
        pm.Deterministic("rate", pt.exp(h))
        pm.Poisson("y", mu=model["rate"], observed=INDEX_COUNTS if mean == "looked up" else COUNTS)
    return model


@pytest.mark.parametrize("name", ABOUT)
def test_values_are_those_of_the_model_and_have_its_density(name):
    model, joint = made(name)
    assert_gradient_is_a_difference_and_values_are_found_again(model, joint)


@pytest.mark.parametrize("mean", ["identity", "looked up"])
def test_a_chain_is_the_chain_of_the_sum(mean):
    found = []
    for is_sum in (False, True):
        model = written(mean, is_sum=is_sum)
        with model:
            step, point = RMHMC(), model.initial_point()
        step.setup_chain(np.random.default_rng(3), tune=2, draws=2)
        for _ in range(4):
            point, (statistics,) = step.step(point)
        h = (point["f"][INDEX] if mean == "looked up" else point["f"]) + point["r"] if is_sum else point["h"]
        found.append(np.array([*point["f"], *h, point["ls_log__"], point["spread_log__"], statistics["model_logp"]]))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mean", ["identity", "looked up"])
def test_a_view_has_the_models_density_at_the_deviations(mean):
    model = written(mean)
    found = about_means(model)
    assert [v.name for v in found.variables] == ["h"]
    assert [v.name for v in found.view.free_RVs] == [v.name for v in model.free_RVs]
    assert found.view.rvs_to_values[found.view["h"]] is model.rvs_to_values[model["h"]]
    point = random_point(model, 1)
    moved = {name: value.copy() for name, value in point.items()}
    found.means().subtract(moved)
    np.testing.assert_allclose(point["h"] - moved["h"], point["f"][INDEX] if mean == "looked up" else point["f"])
    assert exact_log_density(found.view)(moved) == pytest.approx(float(exact_log_density(model)(point)), rel=1e-12)
    found.means().add(moved)
    np.testing.assert_allclose(moved["h"], point["h"], rtol=1e-14)


def test_vectors_about_what_is_no_vector_are_as_they_were():
    with pm.Model() as model:
        beta, design = pm.Normal("beta", shape=2), np.column_stack((np.ones(N), X))
        pm.Poisson("y", pt.exp(pm.MvNormal("h", design @ beta, cov=covariance())), observed=COUNTS)
    assert about_means(model) is None


def test_of_named_vectors_only_those_about_named_ones_are_deviations():
    model = written()
    assert about_means(model, [model["h"], model["spread"]]) is None
    assert [v.name for v in about_means(model, [model["f"], model["h"]]).variables] == ["h"]


def test_describe_says_which_vectors_are_deviations_and_what_bends_is_left_to_the_graph():
    (block,) = describe(written()).blocks
    assert block.name == "f + h"
    assert "h as its mean and a deviation" in block.prior
    bent = describe(written("bent"))
    assert bent.blocks == ()
    assert bent.why == "f is in the prior mean of h"


def test_what_is_left_over_is_left_as_without_deviations():
    model = written()
    with model:
        k = pm.Bernoulli("k", 0.5)
        pm.Normal("z", model["h"][0] + k, 1.0, observed=0.3)
    description = describe(model)
    assert description.blocks[0].name == "f + h"
    assert set(description.left_over) == {"k"}


@pytest.mark.parametrize(
    ("given", "left"),
    [(None, set()), (["f", "h"], {"ls_log__", "spread_log__"}), (["h", "f", "ls"], {"spread_log__"}),
     (["h", "spread"], {"ls_log__", "f"})],
)  # fmt: skip
def test_what_is_named_is_sampled_and_draws_are_of_the_vectors(given, left):
    """The log density is PyMC's at every draw, also after another step has moved the mean."""
    model, rng = written(), np.random.default_rng(1)
    exact = exact_log_density(model)
    with model:
        step = RMHMC(given, init="keep")
    assert {v.name for v in step.vars} == set(model.initial_point()) - left
    step.setup_chain(rng, tune=0, draws=8)
    point = random_point(model, 2)
    before = {name: value.copy() for name, value in point.items()}
    for _ in range(3):
        point, (statistics,) = step.step(point)
        assert statistics["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)
        assert all(np.array_equal(point[name], before[name]) for name in left)
        before = point
        for name in left:
            before[name] = point[name] + 0.1 * rng.standard_normal(np.shape(point[name]))
    assert not np.array_equal(point["h"], random_point(model, 2)["h"])


def test_a_mean_follows_what_other_steps_move():
    with pm.Model() as model:
        f = gp_prior("f", reparameterize=False)
        h = pm.MvNormal("h", f + pm.Normal("level"), cov=0.3 * NEAR)
        pm.Poisson("y", pt.exp(h), observed=COUNTS)
        step = RMHMC(["f", "h"], init="keep", step_size=1e-9, n_steps=1)
    step.setup_chain(np.random.default_rng(1), tune=0, draws=4)
    before, exact = random_point(model, 1), exact_log_density(model)
    for level in (0.0, 2.0):
        before["level"] = np.array(level)
        point, (statistics,) = step.step(before)
        np.testing.assert_allclose(point["h"], before["h"], atol=1e-6)
        assert statistics["model_logp"] == pytest.approx(float(exact(point)), abs=1e-6)


def test_a_start_that_was_given_is_where_the_vector_is():
    model = written(initval=np.linspace(-1.0, 2.0, N))
    with model:
        step = RMHMC(step_size=1e-9, n_steps=1)
    step.setup_chain(np.random.default_rng(1), tune=0, draws=2)
    point, _ = step.step(model.initial_point())
    np.testing.assert_allclose(point["h"], np.linspace(-1.0, 2.0, N), atol=1e-6)


@pytest.mark.slow
def test_without_hyperparameters_the_evidence_is_that_of_the_sum():
    found = []
    for is_sum in (False, True):
        with pm.Model() as model:
            f = pm.MvNormal("f", np.zeros(N), cov=covariance())
            h = f + pm.MvNormal("r", np.zeros(N), cov=0.3 * NEAR) if is_sum else pm.MvNormal("h", f, cov=0.3 * NEAR)
            pm.Poisson("y", pt.exp(h), observed=COUNTS)
        if not is_sum:
            assert "sampled alone" in str(describe(model))
            assert describe(model, metric=FlatMetric(chart="latent")).blocks[0].name == "f + h"
        found.append(log_evidence(model, random_seed=1))
    apart = float(found[0].log_evidence - found[1].log_evidence)
    assert abs(apart) < 4.0 * np.hypot(*(float(each.standard_error) for each in found))
