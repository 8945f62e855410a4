"""The joint target of coefficients in compiled calls: the same as in Python, at a point and along a trajectory."""

from __future__ import annotations

from dataclasses import replace

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc import RMHMC, FlatMetric
from pymc_rmhmc.approximation.joint_mode import moving_sites
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.arrow.compiled_coefficients import CoefficientsTarget, compiled_coefficients
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart, MovingSites, SiteTrend
from pymc_rmhmc.latent.joint_target import JointTarget
from tests.model.conftest import exact_log_density
from tests.model.joint_checks import joint_of

N = 40
RNG = np.random.default_rng(0)
GROUP, OTHER, INPUT = np.arange(N) % 12, np.arange(N) // 8, RNG.standard_normal(N)
SEEN, COUNTS = RNG.integers(0, 2, N), RNG.poisson(2.0, N)
N_STEPS, STEP_SIZE = 3, 0.1
NEAR = {"rtol": 1e-9, "atol": 1e-10}


def scale(name: str) -> pt.TensorVariable:
    return pm.HalfNormal(f"scale_of_{name}", 1.0)


def groups() -> None:
    pm.Bernoulli("y", logit_p=pm.Normal("u", 0.0, scale("u"), shape=12)[GROUP], observed=SEEN)


def groups_and_slopes() -> None:
    slopes = pm.Normal("slopes", 0.0, 2.0, shape=2)
    eta = slopes[0] + slopes[1] * INPUT + pm.Normal("u", 0.0, scale("u"), shape=12)[GROUP]
    pm.Poisson("y", mu=pm.math.exp(eta), observed=COUNTS)


def crossed_groups_about_levels() -> None:
    """The model's variables have means that hyperparameters move, and the predictor has one besides."""
    level, offset = pm.Normal("level"), pm.StudentT("offset", nu=4.0)
    u = pm.Normal("u", level, scale("u"), shape=12)
    v = pm.Normal("v", -0.5, scale("v"), shape=5)
    pm.Poisson("y", mu=pm.math.exp(offset * INPUT + u[GROUP] + v[OTHER]), observed=COUNTS)


def an_effect_for_every_observation() -> None:
    """More coefficients than observations."""
    slopes = pm.Normal("slopes", 0.0, 2.0, shape=2)
    eta = slopes[0] + slopes[1] * INPUT + pm.Normal("u", 0.0, scale("u"), shape=N)
    pm.Poisson("y", mu=pm.math.exp(eta), observed=COUNTS)


def whitened_groups() -> None:
    eta = 0.3 + scale("u") * pm.Normal("u", shape=12)[GROUP]
    pm.Binomial("y", n=4, logit_p=eta, observed=np.minimum(COUNTS, 4))


def data_that_may_be_replaced() -> None:
    eta = pm.Normal("u", 0.0, scale("u"), shape=12)[GROUP]
    pm.Poisson("y", mu=pm.Data("exposure", 1.0 + INPUT**2) * pm.math.exp(eta), observed=COUNTS)


def item_response() -> None:
    """Discriminations move the matrix, by which coefficients about means of their own are read."""
    person, item = np.divmod(np.arange(80), 4)
    slope = pm.LogNormal("slope", 0.0, 0.5, shape=4)
    ability = pm.Normal("ability", pm.Normal("level"), 1.0, shape=20)
    eta = slope[item] * (ability[person] + pm.Normal("easiness", 0.2, scale("easiness"), shape=4)[item])
    pm.Bernoulli("y", logit_p=eta, observed=np.random.default_rng(0).integers(0, 2, 80))


def with_a_noise() -> None:
    """Its sites follow the noise."""
    level = pm.Normal("level")
    pm.Normal("y", pm.Normal("u", level, scale("u"), shape=12)[GROUP], scale("y"), observed=INPUT)


def graded_groups() -> None:
    """A matrix that moves, of groups alone, sites that do, and a mean."""
    level, slope = pm.StudentT("level", nu=4.0), pt.exp(pm.Normal("power") * INPUT)
    eta = level + slope * pm.Normal("u", 0.0, scale("u"), shape=12)[GROUP]
    pm.StudentT("y", nu=4.0, mu=eta, sigma=scale("y"), observed=INPUT)


def along_a_trend(build):
    """The same with sites that follow a trend."""

    def built() -> None:
        build()

    built.__name__ = f"{build.__name__} along a trend"
    return built


TRENDS = [along_a_trend(groups), along_a_trend(with_a_noise), along_a_trend(graded_groups)]
FORMS = [
    groups, groups_and_slopes, crossed_groups_about_levels, an_effect_for_every_observation, whitened_groups,
    data_that_may_be_replaced, item_response, with_a_noise, graded_groups, *TRENDS,
]  # fmt: skip


def target_of(build) -> JointTarget:
    with pm.Model() as model:
        build()
    joint, rng = joint_of(model), np.random.default_rng(1)
    joint.bind(model.initial_point())
    d, n = joint.theta.size, joint.blocks[0].n_sites
    sites = GaussianSites(rng.standard_normal(n), rng.exponential(1.0, n))
    shape = rng.normal(0.0, 0.2, (2, d)), rng.uniform(0.7, 1.3, (2, d))
    centre, location, spread, skewness, tail = shape[0][0], shape[0][1], shape[1][0], shape[0][0], shape[1][1]
    chart = MarginalChart(centre, 0.3 * np.eye(d) + 0.1 * np.tri(d, k=-1), location, spread, skewness, tail)
    # Where they were fitted is not where they will be asked: a power of 1 would hide what it does.
    at = moving_sites(joint.blocks[0], rng.normal(0.0, 0.5, d), sites, *rng.exponential(0.3, (2, n)))
    if build in TRENDS:
        at = at if isinstance(at, MovingSites) else MovingSites(at, np.zeros((2, 0)), np.ones(1))
        at = replace(at, trend=SiteTrend(rng.normal(0.0, 0.5, d), rng.normal(0.0, 1.0, (2, d)), np.array([-0.5, 2.0])))
    return JointTarget(joint, [at], chart)


# Each form takes seconds to compile: in the quick suite are those whose functions have a kind of argument of their own.
FOR_LONG = {
    crossed_groups_about_levels, an_effect_for_every_observation, whitened_groups, item_response, graded_groups,
    *TRENDS[1:],
}  # fmt: skip


@pytest.fixture(
    scope="module", ids=lambda form: form.__name__,
    params=[pytest.param(form, marks=pytest.mark.slow if form in FOR_LONG else ()) for form in FORMS],
)
def target(request) -> JointTarget:
    return target_of(request.param)


def compiled(target: JointTarget) -> CoefficientsTarget:
    found = compiled_coefficients(target)
    assert found is not None
    return found


def assert_alike(target: JointTarget, one, other) -> None:
    for name in ("position", "theta", "log_density", "log_given", "gradient"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), err_msg=name, **NEAR)
    for name in ("eta", "slope"):
        np.testing.assert_allclose(*(getattr(point, name)[0] for point in (one, other)), **NEAR)
    np.testing.assert_allclose(target.latents(one)[0], target.latents(other)[0], **NEAR)
    assert target.model_log_density(one) == pytest.approx(target.model_log_density(other), rel=1e-11)
    assert one.failure is other.failure is Failure.NONE


@pytest.mark.slow
def test_value_and_gradient_are_those_of_python(target):
    fast, rng = compiled(target), np.random.default_rng(2)
    for _ in range(4):
        position = rng.standard_normal(target.size)
        assert_alike(target, fast.at(position), target.at(position))


def begin(density, position: np.ndarray):
    hamiltonian = GaussianHamiltonian(density, advance=getattr(density, "advance", None))
    return hamiltonian, hamiltonian.refresh(hamiltonian.state(position), np.random.default_rng(3))


def test_a_trajectory_is_that_of_single_steps_and_its_end_is_evaluated_alike(target):
    position = np.random.default_rng(4).standard_normal(target.size)
    ends = []
    for density in (compiled(target), target):
        hamiltonian, state = begin(density, position)
        steps = list(RotationSplitting().path(hamiltonian, state, N_STEPS, STEP_SIZE))
        assert sum(step.n_steps for step in steps) == sum(step.n_metric_evals for step in steps) == N_STEPS
        ends.append((steps[-1].state, hamiltonian.energy(steps[-1].state)))
        assert len(steps) == (1 if density is not target else N_STEPS)
    (one, energy), (other, expected) = ends
    assert_alike(target, one.point, other.point)
    np.testing.assert_allclose(one.momentum, other.momentum, **NEAR)
    assert energy == pytest.approx(expected, rel=1e-10)
    # A chain that is restored stands where the trajectory ended, to the last bit.
    again = compiled(target).at(one.position)
    assert again.log_density == one.point.log_density
    np.testing.assert_array_equal(again.gradient, one.point.gradient)


def test_a_trajectory_goes_back_where_it_came_from(target):
    hamiltonian, start = begin(compiled(target), np.random.default_rng(5).standard_normal(target.size))
    (there,) = RotationSplitting().path(hamiltonian, start, N_STEPS, STEP_SIZE)
    state = there.state
    state.momentum = -state.momentum
    (back,) = RotationSplitting().path(hamiltonian, state, N_STEPS, STEP_SIZE)
    np.testing.assert_allclose(back.state.position, start.position, atol=1e-9)
    np.testing.assert_allclose(back.state.momentum, -start.momentum, atol=1e-9)


@pytest.mark.parametrize("far", [1e3, np.nan])
def test_where_it_cannot_be_evaluated_the_cause_is_that_of_python(target, far):
    position = np.zeros(target.size)
    position[0] = far
    fast = compiled(target)
    assert fast.at(position).failure is target.at(position).failure is not Failure.NONE
    # One step of a quarter turn, to where the momentum is.
    hamiltonian, state = begin(fast, np.zeros(target.size))
    state.point.gradient[:], state.momentum[:] = 0.0, position
    (step,) = RotationSplitting().path(hamiltonian, state, 2, 0.5 * np.pi)
    assert (step.state, step.n_steps) == (None, 1)
    assert step.failure is not Failure.NONE


def test_where_a_covariance_of_the_hyperparameters_has_no_factor_is_found_again(monkeypatch):
    """As where a prior of them has a determinant: compiled code raises, and does not say at which step."""
    target, lost = target_of(groups), []
    fast, rest = compiled(target), target.density.rest

    def no_follower(*arguments):
        raise np.linalg.LinAlgError

    def rest_that_is_lost(theta):
        lost.append(theta)
        if len(lost) == 2:
            raise np.linalg.LinAlgError
        return rest(theta)

    hamiltonian, state = begin(fast, np.zeros(target.size))
    (whole,) = RotationSplitting().path(hamiltonian, state, 2, STEP_SIZE)
    monkeypatch.setattr("pymc_rmhmc.latent.arrow.coefficient_density._follow", no_follower)
    monkeypatch.setattr(target.density, "rest", rest_that_is_lost)
    (step,) = RotationSplitting().path(hamiltonian, state, 3, STEP_SIZE)
    assert (step.state, step.n_steps, step.failure) == (None, 2, Failure.NOT_POSITIVE_DEFINITE)
    np.testing.assert_allclose(target.refused, whole.state.point.theta, rtol=1e-9)
    assert fast.at(state.position).failure is Failure.NONE


def few_coefficients() -> None:
    coefficients = pm.Normal("b", 0.0, scale("b"), shape=3)
    pm.Poisson("y", mu=pm.math.exp(INPUT[:, None] ** np.arange(3) @ coefficients), observed=COUNTS)


def a_process() -> None:
    x = np.linspace(0.0, 1.0, N)[:, None]
    f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=scale("ls"))).prior("f", X=x)
    pm.Poisson("y", mu=pm.math.exp(f), observed=COUNTS)


@pytest.mark.parametrize("build", [few_coefficients, a_process, groups, with_a_noise])
def test_other_forms_are_evaluated_by_python(build, without_a_compiler):
    with pm.Model() as model:
        build()
    joint = joint_of(model)
    joint.bind(model.initial_point())
    (block,), d, rng = joint.blocks, joint.theta.size, np.random.default_rng(0)
    n = block.n_sites
    sites = moving_sites(block, np.zeros(d), GaussianSites(np.zeros(n), np.ones(n)), *rng.exponential(0.3, (2, n)))
    target = JointTarget(joint, [sites], MarginalChart.linear(np.zeros(d), np.eye(d)))
    # Groups have no compiled functions here, with a noise or without.
    assert compiled_coefficients(target) is None


@pytest.mark.parametrize("build", [with_a_noise, pytest.param(item_response, marks=pytest.mark.slow)])
def test_a_chain_is_compiled_writes_what_its_density_is_of_and_replays(build):
    with pm.Model() as model:
        build()
        step = RMHMC(metric=FlatMetric(chart="latent"))
    exact, point = exact_log_density(model), model.initial_point()
    step.setup_chain(np.random.default_rng(1), 100, 50)
    for i in range(130):
        if i == 100:
            step.stop_tuning()
        point, (stats,) = step.step(point)
        assert stats["model_logp"] == pytest.approx(float(exact(point)), abs=1e-8)
    assert isinstance(step._samplers[0]._coordinates.hamiltonian.residual, CoefficientsTarget)
    copy, ends = cloudpickle.loads(cloudpickle.dumps(step)), []
    for each in (step, copy):
        at, kept = point, []
        for _ in range(10):
            at, _ = each.step(at)
            kept.append(np.concatenate([np.ravel(value) for value in at.values()]))
        ends.append(kept)
    np.testing.assert_array_equal(*ends)
    assert np.ptp(ends[0], axis=0).min() > 0.0


def test_data_that_are_replaced_are_seen():
    with pm.Model() as model:
        data_that_may_be_replaced()
    joint = joint_of(model)
    joint.bind(model.initial_point())
    n = joint.blocks[0].n_sites
    sites, chart = GaussianSites(np.zeros(n), np.ones(n)), MarginalChart.linear(np.zeros(1), np.eye(1))
    position = np.random.default_rng(0).standard_normal(JointTarget(joint, [sites], chart).size)
    before = compiled(JointTarget(joint, [sites], chart)).at(position)
    with model:
        pm.set_data({"exposure": 2.0 + INPUT**2})
    joint.bind(model.initial_point())
    target = JointTarget(joint, [sites], chart)
    after = compiled(target).at(position)
    assert_alike(target, after, target.at(position))
    assert abs(after.log_density - before.log_density) > 1.0
