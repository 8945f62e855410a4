"""The compiled integrators in the SoftAbs metric make the interpreted ones' steps, and these are symplectic."""

from __future__ import annotations

import itertools

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_rmhmc.dynamics.hamiltonian import RiemannianHamiltonian, RiemannianState
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.metrics import FisherMetric, SoftAbsMetric
from pymc_rmhmc.metrics.graph_metric import MatrixDensity
from pymc_rmhmc.metrics.sparsity import Partition
from pymc_rmhmc.model.general.derivatives import HessianModel, MatrixModel
from pymc_rmhmc.model.general.information import fisher_information

# The order of v, x.
PARTITIONS = {"dense": None, "blocks": Partition.of([0], [[1], [2, 3]])}


def funnel() -> pm.Model:
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 1.0)
        x = pm.Normal("x", 0.0, pt.exp(0.5 * v), shape=3)
        pm.Normal("y", pt.stack([x[0], x[1] + 0.3 * x[2], x[2]]), 1.0, observed=[-1.0, 0.5, 2.0])
    return model


@pytest.fixture(scope="module")
def hessian():
    model = funnel()
    made = HessianModel(model, model.free_RVs, model.initial_point())
    made.bind(model.initial_point())
    return made


@pytest.fixture(scope="module")
def information():
    model = funnel()
    made = MatrixModel(
        model, model.free_RVs, model.initial_point(), fisher_information
    )
    made.bind(model.initial_point())
    return made


def bound(hessian, partition: str, alpha: float = 1.0):
    return SoftAbsMetric(alpha=alpha).bind(density_of(hessian, PARTITIONS[partition]))


def density_of(made, partition=None):
    return MatrixDensity(made.evaluate, made.pull, made.size, partition=partition, along=made.along)


def place(field, seed: int):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(4)
    return x, field.evaluate(x).sample_momentum(rng)


def interpreted(field, integrator, x, p, n_steps: int, step_size: float):
    """The end or None, the failure, and what was counted, of steps without compiled code."""
    return followed(RiemannianHamiltonian(field), field, integrator, x, p, n_steps, step_size)


def compiled(field, integrator, x, p, n_steps: int, step_size: float):
    """The same in compiled code."""
    flow = field.hamiltonian()
    assert flow.advance is not None
    return followed(flow, field, integrator, x, p, n_steps, step_size)


def followed(flow, field, integrator, x, p, n_steps: int, step_size: float):
    step = integrator.path(flow, RiemannianState(field.evaluate(x), p), n_steps, step_size)
    return step.state, step.failure, (step.n_solver_iter, step.n_metric_evals, step.n_steps)


def counts_of_equal_steps(field, integrator, step_size: float, tolerance: float):
    """What both counted, with the number of steps, once their ends agree."""
    moved, counted = 0.0, []
    for seed, n_steps in itertools.product(range(4), (1, 5)):
        x, p = place(field, seed)
        (end, failure, counts), (other, same, others) = (
            advance(field, integrator, x, p, n_steps, step_size) for advance in (compiled, interpreted)
        )
        assert (failure, counts[2]) == (same, others[2])
        if failure:
            continue
        moved += np.abs(end.position - x).max()
        np.testing.assert_allclose(end.position, other.position, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(end.momentum, other.momentum, rtol=tolerance, atol=tolerance)
        counted.append((n_steps, counts, others))
    assert moved > 1.0
    return counted


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("step_size", [0.15, -0.15])
@pytest.mark.parametrize("partition", PARTITIONS)
def test_compiled_steps_are_the_interpreted_ones(hessian, partition, step_size, check):
    # So close a tolerance leaves nothing of how an equation was solved.
    integrator = GeneralizedLeapfrog(AndersonSolver(1e-12, 100), check_reversibility=check)
    for n_steps, counts, others in counts_of_equal_steps(bound(hessian, partition), integrator, step_size, 1e-10):
        assert counts[1] == others[1]
        assert abs(counts[0] - others[0]) <= n_steps  # rounding decides about the last iteration at this tolerance


@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
@pytest.mark.parametrize("step_size", [0.15, -0.15])
@pytest.mark.parametrize("partition", PARTITIONS)
def test_compiled_midpoints_are_the_interpreted_ones(hessian, partition, step_size, check):
    """They solve the same equation in another way, so that they agree to the tolerance."""
    integrator = ImplicitMidpoint(AndersonSolver(1e-12, 100), check_reversibility=check)
    counts_of_equal_steps(bound(hessian, partition), integrator, step_size, 1e-8)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_midpoints_that_are_too_long_are_rejections(hessian, partition):
    field, integrator, seen = bound(hessian, partition), ImplicitMidpoint(AndersonSolver(1e-9, 40)), set()
    for seed in range(40):
        x, p = place(field, seed)
        end, failure, _ = compiled(field, integrator, x, p, 1, 4.0)
        assert (end is None) == bool(failure)
        seen.add(failure)
    assert {Failure.SOLVER, Failure.NON_REVERSIBLE} & seen


@pytest.mark.parametrize("partition", PARTITIONS)
def test_equations_take_as_many_iterations(hessian, partition):
    field, integrator = bound(hessian, partition), GeneralizedLeapfrog(AndersonSolver(1e-6, 100))
    for seed in range(6):
        x, p = place(field, seed)
        found, expected = (advance(field, integrator, x, p, 3, 0.15) for advance in (compiled, interpreted))
        assert found[1:] == expected[1:]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_step_that_is_too_long_fails_alike(hessian, partition):
    field, integrator, seen = bound(hessian, partition), GeneralizedLeapfrog(AndersonSolver(1e-9, 40)), []
    for seed, step_size in itertools.product(range(40), (0.6, 1.5)):
        x, p = place(field, seed)
        (_, found, _), (_, expected, _) = (
            advance(field, integrator, x, p, 1, step_size) for advance in (compiled, interpreted)
        )
        seen.append((found, expected))
    # Where the iteration neither converges nor diverges, rounding decides.
    assert sum(found != expected for found, expected in seen) <= 2
    for failure in (Failure.NONE, Failure.SOLVER, Failure.NON_REVERSIBLE):
        assert seen.count((failure, failure)) >= 2


def test_where_there_is_no_density_a_step_fails_alike(hessian):
    field, integrator = bound(hessian, "dense"), GeneralizedLeapfrog()
    x, p = np.array([-800.0, 1.0, 1.0, 1.0]), np.ones(4)
    assert field.evaluate(x).failure is Failure.NON_FINITE
    _, found, _ = compiled(field, integrator, x, p, 1, 0.1)
    assert found in (Failure.SOLVER, Failure.NON_FINITE)
    far = np.array([1e200, 0.0, 0.0, 0.0])
    start = np.array([0.3, 0.1, 0.2, -0.3])
    (end, found, _), (other, expected, _) = (
        advance(field, GeneralizedLeapfrog(check_reversibility=False), start, far, 1, 1.0)
        for advance in (compiled, interpreted)
    )
    assert found == expected != Failure.NONE
    assert end is None
    assert other is None


def field_of(name, hessian, information):
    if name == "fisher":
        return FisherMetric(chart="graph").bind(density_of(information))
    return bound(hessian, name)


FIELDS = ("dense", "blocks", "fisher")


@pytest.mark.parametrize("name", FIELDS)
def test_a_step_of_a_models_funnel_is_symplectic(name, hessian, information):
    field = field_of(name, hessian, information)
    integrator, h = GeneralizedLeapfrog(AndersonSolver(1e-13, 200), check_reversibility=False), 1e-5

    def step(both):
        state = RiemannianState(field.evaluate(np.ascontiguousarray(both[:4])), both[4:])
        made = integrator.step(field.hamiltonian(), state, 0.1)
        assert made.failure is Failure.NONE
        return np.concatenate((made.state.position, made.state.momentum))

    both = np.concatenate(place(field, 1))
    jacobian = np.array([(step(both + e) - step(both - e)) / (2.0 * h) for e in h * np.eye(8)]).T
    omega = np.block([[np.zeros((4, 4)), np.eye(4)], [-np.eye(4), np.zeros((4, 4))]])
    assert np.abs(jacobian - np.eye(8)).max() > 0.05
    np.testing.assert_allclose(jacobian.T @ omega @ jacobian, omega, atol=5e-6)


@pytest.mark.parametrize("name", FIELDS)
def test_steps_of_a_models_funnel_taken_back_lead_to_the_beginning(name, hessian, information):
    field = field_of(name, hessian, information)
    integrator, flow = GeneralizedLeapfrog(AndersonSolver(1e-12, 200)), field.hamiltonian()
    x, p = place(field, 2)

    def advance(x, p):
        state = RiemannianState(field.evaluate(x), p)
        for _ in range(4):
            made = integrator.step(flow, state, 0.1)
            assert made.failure is Failure.NONE
            state = made.state
        return state

    end = advance(x, p)
    assert np.abs(end.position - x).max() > 0.1
    back = advance(end.position, -end.momentum)
    np.testing.assert_allclose(back.position, x, atol=1e-8)
    np.testing.assert_allclose(back.momentum, -p, atol=1e-8)


@pytest.mark.parametrize("name", FIELDS)
def test_the_energy_of_a_models_funnel_falls_in_error_with_the_square_of_the_step(name, hessian, information):
    """A force that is not the Hamiltonian's derivative leaves an error that does not."""
    field = field_of(name, hessian, information)
    integrator, flow = GeneralizedLeapfrog(AndersonSolver(1e-12, 200), check_reversibility=False), field.hamiltonian()
    x, p = place(field, 3)
    energy, errors = flow.energy(RiemannianState(field.evaluate(x), p)), []
    for n_steps in (16, 32):
        last = integrator.path(flow, RiemannianState(field.evaluate(x), p), n_steps, 0.32 / n_steps)
        assert last.failure is Failure.NONE
        errors.append(abs(flow.energy(last.state) - energy))
    assert errors[0] < 0.05
    assert 3.0 < errors[0] / errors[1] < 5.0


class Unit:
    """A generator whose normal numbers are a unit vector."""

    def __init__(self, place: int) -> None:
        self._place = place

    def standard_normal(self, size: int) -> np.ndarray:
        return np.eye(size)[self._place]


@pytest.mark.parametrize("name", FIELDS)
def test_momenta_have_the_metric_as_their_covariance(name, hessian, information):
    point = field_of(name, hessian, information).evaluate(np.array([0.8, 0.4, -1.1, 0.3]))
    root = np.column_stack([point.sample_momentum(Unit(i)) for i in range(4)])
    metric = np.column_stack([point.times(e) for e in np.eye(4)])
    np.testing.assert_allclose(root @ root.T, metric, rtol=1e-10, atol=1e-10)
    assert point.half_log_det == pytest.approx(0.5 * np.linalg.slogdet(metric)[1])
