"""The density of a field in compiled code against the one that is added up in Python, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.approximation.joint_mode import moving_sites
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.field.field_target import FieldTarget
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.model.forms.joint_model import JointModel
from tests.model.test_field_models import (
    beside_a_process,
    bym2,
    joint_of,
    mean_and_scale,
    model_of,
    process_in_residuals,
    schools,
)
from tests.statistical.test_joint import along_a_trend

pytestmark = pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")


def counts_with_a_parameter() -> None:
    """Registered, so that its sites follow the parameter."""
    s, alpha = pm.HalfNormal("s"), pm.Exponential("alpha", 0.5)
    walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 2), shape=12)
    pm.NegativeBinomial("y", mu=pt.exp(walk), alpha=alpha, observed=np.arange(12) % 5)


def heavy_tails() -> None:
    """Not registered, with degrees of freedom that sites follow by b alone."""
    s, nu = pm.HalfNormal("s"), pm.Gamma("nu", 2, 0.1)
    walk = pm.GaussianRandomWalk("walk", sigma=s, init_dist=pm.Normal.dist(0, 2), shape=12)
    pm.StudentT("y", nu=nu, sigma=pt.exp(walk), observed=np.linspace(-3.0, 4.0, 12))


MODELS: dict[str, Callable[[], None]] = {
    "a dense row": bym2,
    "no site": schools,
    "a process": beside_a_process("centred"),
    "a process in residuals": process_in_residuals,
    "not registered, two predictors": mean_and_scale,
    "sites that follow a parameter": counts_with_a_parameter,
    "sites that are tilted": heavy_tails,
}


@cache
def joint(name: str) -> JointModel:
    return joint_of(model_of(MODELS[name]))[1]


def bent_chart(d: int) -> MarginalChart:
    bend = np.linspace(-0.4, 0.4, d)
    return MarginalChart(np.full(d, 0.2), 0.4 * np.eye(d), np.zeros(d), np.ones(d), bend, 1.0 + bend[::-1])


def targets(name: str, *, trend: bool) -> tuple[FieldTarget, JointTarget]:
    read = joint(name)
    (block,), d = read.blocks, read.theta.size
    rng, n = np.random.default_rng(0), block.n_sites
    sites = GaussianSites(0.3 * rng.standard_normal(n), rng.uniform(0.5, 1.5, n))
    held = moving_sites(block, np.zeros(d), sites, np.zeros(n), np.full(n, 0.3))
    held = along_a_trend(held, d, 0.2) if trend else held
    return FieldTarget(read, [held], bent_chart(d)), JointTarget(read, [held], bent_chart(d))


@pytest.mark.parametrize("trend", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_value_and_gradient_are_those_that_are_added_up_in_python(name, trend):
    fast, slow = targets(name, trend=trend)
    assert fast.advances
    rng = np.random.default_rng(1)
    for _ in range(3):
        position = 0.7 * rng.standard_normal(slow.size)
        one, other = fast.at(position), slow.at(position)
        assert one.failure == other.failure
        assert one.log_density == pytest.approx(other.log_density, rel=1e-10, abs=1e-10)
        np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(fast.latents(one)[0], slow.latents(other)[0], rtol=1e-10, atol=1e-10)
        assert fast.model_log_density(one) == pytest.approx(slow.model_log_density(other), rel=1e-10, abs=1e-10)


def test_sites_follow_the_slope_of_what_the_likelihood_reads():
    """To the first order in each of its parameters, at a mean of two η; a parameter of the prior alone is none."""
    read = joint("sites that are tilted")
    (block,), rng = read.blocks, np.random.default_rng(3)
    theta, centre = np.array([0.2, 1.5]), rng.standard_normal(block.n_sites)
    sites = GaussianSites(rng.standard_normal(block.n_sites), rng.uniform(0.5, 1.5, block.n_sites))
    held = moving_sites(block, theta, sites, centre, np.full(block.n_sites, 0.25))
    assert [read.theta.names[j] for j in held.tilt.which] == ["nu_log__"]
    np.testing.assert_array_equal(held.tilt.at(theta), 0.0)

    def slope(at):
        return np.mean([block.likelihood(at, centre + side)[1] for side in (-0.5, 0.5)], axis=0)

    for change in (1e-4, -1e-4):
        moved = theta + np.array([0.3, change])
        np.testing.assert_allclose(held.tilt.at(moved), slope(moved) - slope(theta), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_steps_made_at_once_are_steps_made_one_by_one(name):
    fast, slow = targets(name, trend=False)
    rng = np.random.default_rng(2)
    position, momentum = 0.5 * rng.standard_normal(slow.size), rng.standard_normal(slow.size)
    made, end, _ = fast.advance(fast.at(position), momentum.copy(), 5, 0.1)
    assert made == 5
    flow, integrator = GaussianHamiltonian(slow), RotationSplitting()
    state = replace(flow.state(position), momentum=momentum)
    for _ in range(5):
        state = integrator.step(flow, state, 0.1).state
    np.testing.assert_allclose(end[0].position, state.point.position, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(end[1], state.momentum, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("far", [-1e30, -200.0, 200.0, 1e30])
def test_where_one_has_no_density_neither_has_the_other(far):
    fast, slow = targets("no site", trend=False)
    position = np.zeros(slow.size)
    position[0] = far
    one, other = fast.at(position), slow.at(position)
    assert bool(one.failure) == bool(other.failure)
    assert one.failure or one.log_density == pytest.approx(other.log_density, rel=1e-9)
    assert abs(far) < 1e30 or one.failure
