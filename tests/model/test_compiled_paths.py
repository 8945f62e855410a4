"""A trajectory in one compiled call is the same, step by step, for every likelihood and every model that has one."""

from __future__ import annotations

import math
from dataclasses import replace

import cloudpickle
import numba
import numpy as np
import pymc as pm
import pytest

from pymc_rmhmc.dynamics.hamiltonian import SiteHamiltonian, SpannedHamiltonian
from pymc_rmhmc.dynamics.integrators import IntegratorBase, RotationSplitting
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.evidence.methods.annealing import LatentBridge
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart, SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta
from pymc_rmhmc.latent.target import LatentTarget, RoundedTarget, rounded
from pymc_rmhmc.linalg.products import LARGE
from pymc_rmhmc.model.field.field_model import FieldPlan, plan_field
from pymc_rmhmc.model.forms.joint_model import read_joint
from pymc_rmhmc.model.likelihoods import FallbackKernel, LikelihoodKernel
from pymc_rmhmc.model.observed.site_likelihood import BoundTerm, SiteLikelihood
from pymc_rmhmc.model.structure import read_structure
from tests.model.test_likelihoods import ROWS
from tests.statistical.joint_cases import Grid, Mixed, Problem, Process, Rows, Sum, absurd_sites
from tests.statistical.test_joint import following
from tests.unit.toys import centred_prior

N, N_STEPS, STEP_SIZE = 12, 4, 0.4
NEAR = {"rtol": 1e-9, "atol": 1e-10}
SPLITTING = RotationSplitting()


def likelihood_of(name: str, *, shift: bool = False, n: int = N) -> SiteLikelihood:
    row = ROWS[name]
    y = np.resize(row.ys, n).astype(float)
    parameters = (np.full(n, value) for value in row.parameters)
    offset = np.linspace(-0.2, 0.3, n) if shift else None
    return SiteLikelihood(n, [BoundTerm(LikelihoodKernel(name), (y, *parameters), None, offset)])


def target_of(likelihood, beta: float = 1.0) -> LatentTarget:
    rng, n = np.random.default_rng(0), likelihood.n_sites
    sites = GaussianSites(0.3 * rng.standard_normal(n), rng.uniform(0.2, 1.5, n))
    prior = FactorizedPrior(centred_prior(n))
    return LatentBridge(prior, likelihood).in_chart(beta, SiteChart(prior, sites, lasting=True))


def begin(density, k: int, seed: int = 1):
    rng = np.random.default_rng(seed)
    hamiltonian = SpannedHamiltonian(density)
    return hamiltonian, hamiltonian.refresh(hamiltonian.state(rng.standard_normal(k)), rng)


def compare_paths(density, k: int) -> None:
    """At once, and one by one."""
    hamiltonian, state = begin(density, k)
    whole = SPLITTING.path(hamiltonian, state, N_STEPS, STEP_SIZE)
    steps = IntegratorBase.path(SPLITTING, hamiltonian, state, N_STEPS, STEP_SIZE)
    assert (steps.n_steps, whole.n_steps, whole.n_metric_evals) == (N_STEPS, N_STEPS, N_STEPS)
    one, other = whole.state, steps.state
    assert one.angle == pytest.approx(other.angle)
    for name in ("moved", "driven", "position", "momentum"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), **NEAR)
    for name in ("log_density", "log_likelihood", "eta", "force"):
        np.testing.assert_allclose(getattr(one.point, name), getattr(other.point, name), **NEAR)
    assert hamiltonian.energy(one) == pytest.approx(hamiltonian.energy(other), rel=1e-11)
    # What a chain that is restored evaluates anew is what the trajectory had, to the last bit.
    again = density.at_sites(one.moved[one.n_sites :])
    assert again.log_density == one.point.log_density
    np.testing.assert_array_equal(again.force, one.point.force)


@pytest.mark.parametrize("shift", [False, True], ids=["plain", "offset"])
@pytest.mark.parametrize("name", ROWS)
def test_a_registered_likelihoods_trajectory_is_compiled_and_the_same(name, shift):
    target = target_of(likelihood_of(name, shift=shift))
    assert target.advances
    compare_paths(target, N)


def test_so_is_one_whose_matrix_is_read_from_memory():
    """Its product is compiled into the trajectory, and called from Python where a chain is restored."""
    n = LARGE + 4
    target = target_of(likelihood_of("poisson_log", n=n))
    assert target.advances
    compare_paths(target, n)


@pytest.mark.parametrize("n", [N, LARGE + 4])
def test_so_is_one_with_rounded_kicks(n):
    target = target_of(likelihood_of("poisson_log", n=n, shift=True))
    density = rounded(target) or RoundedTarget(target, target.chart.predictor.gram.astype(np.float32))
    hamiltonian, rng = SiteHamiltonian(density), np.random.default_rng(1)
    state = hamiltonian.refresh(hamiltonian.state(rng.standard_normal(n)), rng)
    whole = SPLITTING.path(hamiltonian, state, N_STEPS, STEP_SIZE)
    last = IntegratorBase.path(SPLITTING, hamiltonian, state, N_STEPS, STEP_SIZE)
    one, other = whole.state, last.state
    for name in ("displacement", "drive", "position", "momentum"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), **NEAR)
    for name in ("log_density", "log_likelihood", "eta", "force"):
        np.testing.assert_allclose(getattr(one.point, name), getattr(other.point, name), **NEAR)
    assert hamiltonian.energy(one) == pytest.approx(hamiltonian.energy(other), rel=1e-11)
    np.testing.assert_array_equal(density.at_sites(one.displacement).force, one.point.force)
    resumed = hamiltonian.state(*cloudpickle.loads(cloudpickle.dumps(one)).coordinates)
    np.testing.assert_array_equal(resumed.position, one.position)


def test_rounded_kicks_that_leave_the_numbers_are_a_failure():
    target = target_of(likelihood_of("poisson_log"))
    hamiltonian = SiteHamiltonian(RoundedTarget(target, target.chart.predictor.gram.astype(np.float32)))
    rng = np.random.default_rng(1)
    state = hamiltonian.refresh(hamiltonian.state(np.zeros(N)), rng)
    outcome = hamiltonian.advance(replace(state, drive=np.full(N, 1e4)), 3, 1.0)
    assert outcome == (1, None, Failure.NON_FINITE)


def test_so_is_that_of_a_likelihood_of_the_users_own():
    eta, y = pm.math.pt.dvector("eta"), pm.math.pt.dvector("y")
    kernel = FallbackKernel(eta, [y], -pm.math.log(pm.math.cosh(y - eta)))
    target = target_of(SiteLikelihood(N, [BoundTerm(kernel, (np.linspace(-1.0, 1.0, N),))]))
    assert target.advances
    compare_paths(target, N)


@pytest.mark.parametrize("case", ["gather", "two variables", "tempered", "without sites"])
def test_others_go_step_by_step(case):
    likelihood, beta = likelihood_of("poisson_log"), 1.0
    (term,) = likelihood.terms
    if case == "gather":
        likelihood = SiteLikelihood(N, [BoundTerm(term.kernel, term.arguments, np.arange(N)[::-1])])
    if case == "two variables":
        likelihood = SiteLikelihood(N, [term, term])
    if case == "tempered":
        beta = 0.5
    target = target_of(likelihood, beta)
    if case == "without sites":
        target = LatentTarget(SiteChart(FactorizedPrior(centred_prior(N)), lasting=True), likelihood)
    assert not target.advances
    hamiltonian, state = begin(target, N)
    assert hamiltonian.advance(state, N_STEPS, STEP_SIZE) is None
    assert SPLITTING.path(hamiltonian, state, N_STEPS, STEP_SIZE).n_steps == N_STEPS


JOINT = {
    "centred process, poisson_log": Problem(Process("centred"), "poisson_log"),
    "whitened process, studentt_identity": Problem(Process("whitened"), "studentt_identity"),
    "fixed process, negativebinomial_log": Problem(Process("fixed"), "negativebinomial_log"),
    "grid, bernoulli_logit": Problem(Grid(), "bernoulli_logit"),
    "sum of two vectors, gamma_log": Problem(Sum(), "gamma_log"),
}


def held_of(problem: Problem, seed: int = 2) -> tuple[JointTarget, LatentsGivenTheta]:
    rng, joint = np.random.default_rng(seed), problem.joint
    theta, _, y = problem.simulate(rng)
    problem.observe(y)
    d = joint.theta.size
    sites = following(joint.blocks[0], d, absurd_sites(problem.latents.n))
    target = JointTarget(joint, [sites], MarginalChart.linear(theta, 0.3 * np.eye(d)))
    return target, LatentsGivenTheta(target, 0.5 * rng.standard_normal(d))


# Of each a model is compiled.
FOR_LONG = {"fixed process, negativebinomial_log", "grid, bernoulli_logit", "sum of two vectors, gamma_log"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in FOR_LONG else ()) for name in JOINT]
)
def test_with_hyperparameters_held_it_is_the_same(name):
    target, held = held_of(JOINT[name])
    assert held.advances
    compare_paths(held, target.size - target.n_theta)


APART = np.abs(np.subtract.outer(np.arange(11.0), np.arange(11.0)))


def process(name: str, length: float, **shape) -> pm.math.pt.TensorVariable:
    return pm.MvNormal(name, np.zeros(11), cov=pm.math.exp(-APART / length), **shape)


def classes():
    pm.Categorical("y", logit_p=process("f", 2.0, shape=(3, 11)).T, observed=np.arange(11) % 3)


def classes_of_three_lengths():
    f = pm.math.stack([process(name, length) for name, length in (("f", 2.0), ("g", 1.0), ("h", 3.0))])
    pm.Categorical("y", logit_p=f.T, observed=np.arange(11) % 3)


def mean_and_noise():
    pm.Normal("y", process("f", 2.0), pm.math.exp(process("g", 3.0)), observed=np.linspace(-1.0, 1.0, 11))


def with_a_number_of_another_step():
    degrees = 2.0 + pm.Geometric("degrees", 0.3)
    f, g = process("f", 2.0), process("g", 3.0)
    pm.StudentT("y", degrees, f, sigma=pm.math.exp(g), observed=np.linspace(-1.0, 1.0, 11))


@pytest.mark.parametrize(("build", "lasts", "advances"), [
    (classes, True, True), (mean_and_noise, True, True), (classes_of_three_lengths, True, True),
    (with_a_number_of_another_step, False, False),
])  # fmt: skip
def test_a_map_of_parts_is_compiled_where_it_lasts(build, lasts, advances):
    with pm.Model() as model:
        build()
    plan = plan_field(model, model.initial_point())
    assert isinstance(plan, FieldPlan), plan
    joint = plan.read().build()
    joint.bind(model.initial_point())
    target = JointTarget(joint, [absurd_sites(joint.blocks[0].n_sites)], MarginalChart.linear(np.zeros(0), np.eye(0)))
    held = LatentsGivenTheta(target, np.zeros(0))
    assert (target.lasts, held.advances) == (lasts, advances)
    compare_paths(held, target.size)


@pytest.mark.parametrize("holds_long", [False, True])
def test_alike_classes_share_a_matrix_where_hyperparameters_are_held_for_long(holds_long):
    with pm.Model() as model:
        f = process("f", pm.Gamma("length", 3.0, 1.0), shape=(3, 11))
        pm.Categorical("y", logit_p=f.T, observed=np.arange(11) % 3)
    joint = plan_field(model, model.initial_point()).read().build()
    joint.bind(model.initial_point())
    sites = GaussianSites(np.linspace(-0.3, 0.3, 22), np.ones(22))
    target = JointTarget(joint, [sites], MarginalChart.linear(np.ones(1), np.eye(1)), holds_long=holds_long)
    held = LatentsGivenTheta(target, np.zeros(1))
    assert held.advances == holds_long
    compare_paths(held, target.size - 1)
    again = LatentsGivenTheta(JointTarget(joint, [sites], target.chart), np.zeros(1))
    residual = held.at_noise(np.ones(target.size - 1)).residual
    np.testing.assert_allclose(held.gram(residual), again.gram(residual), **NEAR)


@pytest.mark.parametrize("latents", [Rows(), Mixed("centred")], ids=["rows", "mixed"])
def test_rows_and_coefficients_go_step_by_step(latents, without_a_compiler):
    assert not held_of(Problem(latents, "poisson_log"))[1].advances


def test_two_blocks_go_step_by_step():
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        scale = pm.HalfNormal("scale", 1.0)
        for name in "ab":
            x = np.linspace(0.0, 1.0, 5)[:, None]
            f = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.Matern32(1, 0.4)).prior(f"f_{name}", X=x)
            pm.Poisson(f"y_{name}", mu=pm.math.exp(f), observed=rng.poisson(1.0, 5))
    joint = read_joint(read_structure(model), model.initial_point())
    joint.bind(model.initial_point())
    sites = [GaussianSites(np.zeros(5), np.ones(5))] * 2
    target = JointTarget(joint, sites, MarginalChart.linear(np.zeros(1), np.eye(1)))
    assert not LatentsGivenTheta(target, np.zeros(1)).advances


def test_new_data_are_seen():
    problem = JOINT["centred process, poisson_log"]
    target, held = held_of(problem)
    noise = np.zeros(target.size - target.n_theta)
    before = held.at_noise(noise)
    _, _, y = problem.simulate(np.random.default_rng(7))
    problem.observe(y + 3)
    after = LatentsGivenTheta(target, held.standard).at_noise(noise)
    exact = problem.joint.blocks[0].likelihood(held.theta, after.eta[0])[0]
    assert after.log_likelihood == pytest.approx(exact, rel=1e-12)
    assert abs(after.log_likelihood - before.log_likelihood) > 1.0


def test_a_path_ends_where_the_density_is_not_a_number_and_counts_its_steps():
    """e^η of a displacement of thousands."""
    target = target_of(likelihood_of("poisson_log"))
    hamiltonian, state = begin(target, N)
    state.origin.drive[:] = 1e4
    whole = SPLITTING.path(hamiltonian, state, N_STEPS, STEP_SIZE)
    steps = IntegratorBase.path(SPLITTING, hamiltonian, state, N_STEPS, STEP_SIZE)
    assert whole.state is None
    assert whole.failure is steps.failure is Failure.NON_FINITE
    assert whole.n_steps == steps.n_steps < N_STEPS


def test_a_transition_reports_the_steps_that_were_made_at_once():
    target = target_of(likelihood_of("bernoulli_logit"))
    hamiltonian, state = begin(target, N)
    outcome = transition(hamiltonian, SPLITTING, state, 5, 0.3, np.random.default_rng(3))
    assert (outcome.n_steps, outcome.n_metric_evals) == (5, 5)
    assert outcome.accepted
    assert math.isfinite(outcome.energy_error)
    np.testing.assert_array_equal(outcome.state.origin.position, state.position)


@pytest.mark.parametrize("n", [1, 2])
def test_one_latent_value_has_a_path_as_well(n):
    term = BoundTerm(LikelihoodKernel("poisson_log"), (np.full(n, 2.0),))
    sites = GaussianSites(np.full(n, 0.2), np.full(n, 0.7))
    chart = SiteChart(FactorizedPrior(centred_prior(n)), sites, lasting=True)
    compare_paths(LatentTarget(chart, SiteLikelihood(n, [term])), n)


def test_a_shortened_path_is_never_a_proposal():
    """Where ψ and its slope are numbers, but not the sum of their squares."""
    target = target_of(likelihood_of("poisson_log"))
    hamiltonian, state = begin(target, N)
    follow = target.advance
    target.advance = lambda *arguments: replace(follow(*arguments), n_steps=1, finite=False)
    step = SPLITTING.path(hamiltonian, state, N_STEPS, STEP_SIZE)
    assert (step.state, step.failure, step.n_steps) == (None, Failure.NON_FINITE, 1)


def test_targets_travel_without_their_addresses():
    """A compiled path in one process is one in another, or goes step by step there: never through a stale address."""
    target = target_of(likelihood_of("poisson_log"))
    assert target.advances
    copied = cloudpickle.loads(cloudpickle.dumps(target))
    assert "_compiled" not in vars(copied)
    compare_paths(copied, N)
    joint, held = held_of(JOINT["centred process, poisson_log"])
    assert held.advances
    assert joint.__getstate__()["_native"] == (None, None)
    assert held.__getstate__()["_compiled"] is None


def test_an_exception_in_the_likelihood_leaves_a_path():
    @numba.njit
    def raising(eta, y):
        if eta[0] > 1e3:
            raise ValueError("too far")
        return np.array(0.0), y - eta

    likelihood = likelihood_of("poisson_log")

    class Raising(SiteLikelihood):
        compiled_gradient = (raising, None, (np.ones(N),))

    target = target_of(Raising(N, likelihood.terms))
    hamiltonian, state = begin(target, N)
    state.origin.drive[:] = 1e6
    with pytest.raises(ValueError, match="too far"):
        SPLITTING.path(hamiltonian, state, N_STEPS, STEP_SIZE)
