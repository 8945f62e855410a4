"""What follows from a metric's matrix and its pullback, for any density; and that latent metrics follow too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pymc_rmhmc.dynamics.hamiltonian import RiemannianHamiltonian, RiemannianState
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.latent.charts import SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget
from pymc_rmhmc.metrics import (
    DenseField,
    DenseMatrix,
    FisherMetric,
    FlatMetric,
    HessianMetric,
    LatentField,
    MetricFieldBase,
    SoftAbsCurvatureMetric,
)
from tests.unit.banana import Banana, InformationField, TwistedField
from tests.unit.toys import problem

UNITS = {"plain": (1.0, 1.0, 1.0), "other units": (1e-4, 1.0, 1e5)}
FIELDS = {"information": InformationField, "twisted": TwistedField}
SOLVER = AndersonSolver(1e-12, 200)
INTEGRATORS = {"leapfrog": GeneralizedLeapfrog(SOLVER), "midpoint": ImplicitMidpoint(SOLVER)}


@pytest.fixture(params=itertools.product(FIELDS, UNITS), ids="-".join)
def field(request):
    name, units = request.param
    return FIELDS[name](Banana(UNITS[units]))


@pytest.fixture(params=INTEGRATORS)
def integrator(request):
    return INTEGRATORS[request.param]


def place(field, seed: int = 0):
    """A position that is likely, and a momentum of the metric."""
    rng = np.random.default_rng(seed)
    q = 0.5 * field.density.draw(rng)
    return q, field.evaluate(q).sample_momentum(rng)


def matrix_at(field, q):
    return field.matrix(field.density.at(q))


def differences(field, function, q, h=1e-5):
    """Of a function of q, (n, ...), in x."""
    return np.array([(function(q + e) - function(q - e)) / (2 * h) for e in h * np.diag(field.density.units)])


def test_the_densitys_gradient_is_a_difference(field):
    q, _ = place(field)
    slopes = differences(field, lambda at: field.density.at(at).log_density, q)
    np.testing.assert_allclose(field.density.at(q).gradient * field.density.units, slopes, atol=1e-7)


def test_the_factorised_matrix_is_the_array(field):
    q, _ = place(field)
    g, matrix = matrix_at(field, q), field.at(field.density.at(q))
    v = np.random.default_rng(1).standard_normal(3) / field.density.units
    root = np.column_stack([matrix.sqrt_times(e) for e in np.eye(matrix.root_size)])
    assert matrix.half_log_det == pytest.approx(0.5 * np.linalg.slogdet(g)[1])
    np.testing.assert_allclose(matrix.solve(v), np.linalg.solve(g, v), rtol=1e-8)
    np.testing.assert_allclose(matrix.times(v), g @ v, rtol=1e-12)
    np.testing.assert_allclose(field.product(field.density.at(q), v), g @ v, rtol=1e-12)
    np.testing.assert_allclose(MetricFieldBase.product(field, field.density.at(q), v), g @ v, rtol=1e-12)
    np.testing.assert_allclose(root @ root.T, g, rtol=1e-9, atol=1e-12 * np.abs(g).min())
    np.testing.assert_allclose(matrix.scale, np.sqrt(np.linalg.inv(g).diagonal()), rtol=1e-8)


def test_contractions_match_differences_of_the_matrix(field):
    q, _ = place(field)
    point, units = field.evaluate(q), field.density.units
    u = units * np.random.default_rng(2).standard_normal(3)
    slopes = differences(field, lambda at: matrix_at(field, at), q)
    inverse = np.linalg.inv(matrix_at(field, q))
    trace = [0.5 * np.trace(inverse @ slope) for slope in slopes]
    np.testing.assert_allclose(point.trace_term * units, trace, rtol=1e-6, atol=1e-8)
    quadratic = [-0.5 * u @ slope @ u for slope in slopes]
    np.testing.assert_allclose(point.quadratic_term(u) * units, quadratic, rtol=1e-6, atol=1e-8)


def test_derivatives_of_the_hamiltonian(field):
    q, p = place(field)
    flow, point, units = field.hamiltonian(), field.evaluate(q), field.density.units
    u = point.solve(p)
    in_q = differences(field, lambda at: flow.energy(RiemannianState(field.evaluate(at), p)), q)
    force = -point.gradient + point.trace_term + point.quadratic_term(u)
    np.testing.assert_allclose(force * units, in_q, rtol=1e-6, atol=1e-7)
    h = 1e-5
    steps = h * np.diag(1.0 / units)
    in_p = [(flow.energy(RiemannianState(point, p + e)) - flow.energy(RiemannianState(point, p - e))) for e in steps]
    np.testing.assert_allclose(u / units, np.array(in_p) / (2 * h), rtol=1e-6, atol=1e-8)


def test_the_implicit_equations_are_solved(field):
    q, p = place(field)
    time, point, units = 0.05, field.evaluate(q), field.density.units
    u = point.solve(p)
    kick, drift = point.kick_equation(p, time), point.drift_equation(u, time)
    momentum, velocity = kick.conclude(SOLVER.solve(kick.function, kick.start).argument)
    np.testing.assert_allclose(units * (matrix_at(field, q) @ velocity), units * momentum, atol=1e-9)
    np.testing.assert_allclose(units * momentum, units * (p - time * point.quadratic_term(velocity)), atol=1e-9)
    position, velocity = drift.conclude(SOLVER.solve(drift.function, drift.start).argument)
    assert np.abs((position - q) / units).max() > 0.01
    np.testing.assert_allclose(position / units, (q + time * (u + velocity)) / units, atol=1e-12)
    np.testing.assert_allclose(units * (matrix_at(field, position) @ velocity), units * p, atol=1e-9)


def test_a_position_nearby_is_seen_as_from_itself(field):
    (q, _), (other, _) = place(field), place(field, seed=1)
    point, near, units = field.evaluate(other), field.evaluate(q).nearby(other), field.density.units
    u = units * np.random.default_rng(3).standard_normal(3)
    np.testing.assert_array_equal(near.gradient, point.gradient)
    np.testing.assert_allclose(near.quadratic_term(u), point.quadratic_term(u), rtol=1e-12)
    change = (matrix_at(field, other) - matrix_at(field, q)) @ u
    np.testing.assert_allclose(units * near.apply_change(u), units * change, atol=1e-9)


def advance(field, integrator, q, p, step_size, n_steps):
    state = RiemannianState(field.evaluate(q), p)
    for _ in range(n_steps):
        step = integrator.step(field.hamiltonian(), state, step_size)
        assert step.failure is Failure.NONE
        state = step.state
    return state


def test_steps_taken_back_lead_to_the_beginning(field, integrator):
    q, p = place(field)
    end, units = advance(field, integrator, q, p, 0.1, 5), field.density.units
    assert np.abs((end.position - q) / units).max() > 0.1
    back = advance(field, integrator, end.position, -end.momentum, 0.1, 5)
    np.testing.assert_allclose(back.position / units, q / units, atol=1e-8)
    np.testing.assert_allclose(back.momentum * units, -p * units, atol=1e-8)


def test_a_step_is_symplectic(field, integrator):
    q, p = place(field)
    units, h = field.density.units, 1e-5

    def step(x):
        end = advance(field, integrator, units * x[:3], x[3:] / units, 0.1, 1)
        return np.concatenate((end.position / units, end.momentum * units))

    x = np.concatenate((q / units, p * units))
    jacobian = np.array([(step(x + e) - step(x - e)) / (2 * h) for e in h * np.eye(6)]).T
    omega = np.block([[np.zeros((3, 3)), np.eye(3)], [-np.eye(3), np.zeros((3, 3))]])
    np.testing.assert_allclose(jacobian.T @ omega @ jacobian, omega, atol=5e-6)


def test_energy_error_and_global_error_are_of_second_order(field, integrator):
    q, p = place(field)
    units, flow, time = field.density.units, field.hamiltonian(), 0.4
    reference = advance(field, integrator, q, p, time / 256, 256)
    energy, errors = flow.energy(RiemannianState(field.evaluate(q), p)), []
    for n_steps in (16, 32):
        end = advance(field, integrator, q, p, time / n_steps, n_steps)
        distance = np.abs((end.position - reference.position) / units).max()
        errors.append((distance, abs(flow.energy(end) - energy)))
    (coarse, coarse_energy), (fine, fine_energy) = errors
    assert 3.4 < coarse / fine < 4.7
    assert 3.0 < coarse_energy / fine_energy < 5.0


def test_a_leapfrog_step_has_one_factor(monkeypatch):
    """The equations ask for products at other positions, and the check for nothing new."""
    field, made = InformationField(Banana()), []
    factorize = DenseMatrix.factorize
    q, p = place(field)
    state = RiemannianState(field.evaluate(q), p)
    monkeypatch.setattr(DenseMatrix, "factorize", lambda matrix: made.append(1) or factorize(matrix))
    step = GeneralizedLeapfrog().step(field.hamiltonian(), state, 0.1)
    assert step.failure is Failure.NONE
    assert len(made) == step.n_metric_evals == 1


class Bounded(InformationField):
    """No metric where x₁ is above 0.5: nan, or a matrix that is not positive definite."""

    wrong = np.nan

    def matrix(self, point):
        given = super().matrix(point)
        return self.wrong * given if point.position[0] > 0.5 else given


@pytest.mark.parametrize(
    ("wrong", "failure"), [(np.nan, Failure.NON_FINITE), (-1.0, Failure.NOT_POSITIVE_DEFINITE)]
)
def test_a_matrix_without_a_factor_is_a_failure(wrong, failure):
    field = Bounded(Banana())
    field.wrong = wrong
    outside = np.array([1.0, 1.0, 0.0])
    assert field.evaluate(outside).failure is failure
    assert np.isnan(MetricFieldBase.product(field, field.density.at(outside), outside)).all()
    for integrator in INTEGRATORS.values():
        step = integrator.step(field.hamiltonian(), RiemannianState(field.evaluate(0.4 * outside), 5.0 * outside), 0.5)
        assert step.state is None
        assert step.failure in {failure, Failure.SOLVER}


def test_a_density_that_fails_is_a_failure():
    field = InformationField(Banana())
    with np.errstate(all="ignore"):
        assert field.evaluate(np.array([0.0, 1e200, 0.0])).failure is Failure.NON_FINITE


def test_a_derivative_that_is_no_number_is_a_failure():
    class Broken(InformationField):
        def pullback(self, point, bar):
            return np.full(3, np.nan)

    assert Broken(Banana()).evaluate(np.zeros(3)).failure is Failure.NON_FINITE


# Latent metrics, by the same defaults.


class Generic(LatentField):
    """A latent metric of which only the matrix and the pullback are used."""

    evaluate = MetricFieldBase.evaluate


LATENT = [
    (prior, likelihood, kind)
    for prior in ("centred", "rotated", "additive", "narrow")
    for likelihood, kind in (("logit", "hessian"), ("poisson", "fisher"), ("student_t", "fisher"))
]


@pytest.fixture(params=LATENT, ids="-".join)
def latent(request):
    prior, likelihood, kind = request.param
    stated, family = problem(prior, likelihood, 6, seed=1)
    target = LatentTarget(SiteChart(FactorizedPrior(stated)), family)
    rng = np.random.default_rng(4)
    z = 0.5 * rng.standard_normal(target.chart.prior.n_latent)
    return LatentField(target, kind), Generic(target, kind), z


def test_a_latent_metric_by_its_matrix_alone_is_the_same(latent):
    own, generic, z = latent
    one, other = own.evaluate(z), generic.evaluate(z)
    rng = np.random.default_rng(5)
    v, near = rng.standard_normal(z.size), z + 0.2 * rng.standard_normal(z.size)
    for name in ("log_density", "gradient", "half_log_det", "trace_term", "scale"):
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), atol=1e-11)
    np.testing.assert_allclose(other.quadratic_term(v), one.quadratic_term(v), atol=1e-12)
    np.testing.assert_allclose(other.solve(other.times(v)), v, atol=1e-11)
    np.testing.assert_array_equal(*(p.sample_momentum(np.random.default_rng(6)) for p in (one, other)))
    seen = [p.nearby(near) for p in (one, other)]
    for name in ("quadratic_term", "apply_change"):
        np.testing.assert_allclose(*(getattr(each, name)(v) for each in seen), atol=1e-11)


def test_a_latent_metrics_steps_are_the_same(latent, integrator):
    *fields, z = latent
    p = fields[0].evaluate(z).sample_momentum(np.random.default_rng(7))
    ends = [advance(field, integrator, z, p, 0.2, 3) for field in fields]
    np.testing.assert_allclose(ends[1].position, ends[0].position, atol=1e-9)
    np.testing.assert_allclose(ends[1].momentum, ends[0].momentum, atol=1e-9)
    energies = [field.hamiltonian().energy(end) for field, end in zip(fields, ends, strict=True)]
    assert energies[1] == pytest.approx(energies[0], abs=1e-9)


def test_the_latent_matrix_is_the_dense_one(latent):
    """Its product, and a root with more columns than rows."""
    own, _, z = latent
    matrix = own.at(own.density.at(z))
    g = np.column_stack([matrix.times(e) for e in np.eye(z.size)])
    root = np.column_stack([matrix.sqrt_times(e) for e in np.eye(matrix.root_size)])
    np.testing.assert_allclose(root @ root.T, g, atol=1e-11)
    np.testing.assert_allclose(own.product(own.density.at(z), z), g @ z, atol=1e-11)


def test_the_flat_metric_is_the_identity(integrator):
    """By the implicit integrators its steps are the leapfrog's and the midpoint's of a unit mass."""
    stated, family = problem("centred", "logit", 6)
    density = LatentDensity(LatentTarget(SiteChart(FactorizedPrior(stated)), family))
    field, rng = FlatMetric().bind(density), np.random.default_rng(8)
    q, p = rng.standard_normal((2, 6))
    step = integrator.step(RiemannianHamiltonian(field), RiemannianState(field.evaluate(q), p), 0.2)
    assert step.failure is Failure.NONE
    end = step.state
    if isinstance(integrator, GeneralizedLeapfrog):
        half = p + 0.1 * density.at(q).gradient
        np.testing.assert_allclose(end.position, q + 0.2 * half, atol=1e-12)
        np.testing.assert_allclose(end.momentum, half + 0.1 * density.at(end.position).gradient, atol=1e-12)
    else:
        middle = 0.5 * (q + end.position)
        np.testing.assert_allclose(end.momentum, p + 0.2 * density.at(middle).gradient, atol=1e-9)


@pytest.mark.parametrize("metric", [FlatMetric, HessianMetric, FisherMetric, SoftAbsCurvatureMetric])
def test_a_density_that_lacks_what_a_metric_needs_is_an_error(metric):
    with pytest.raises(ConfigurationError, match=f"The {metric.name} metric needs a Gaussian prior.*got a Banana"):
        metric().bind(Banana())


def test_a_field_without_a_pullback_cannot_be_made():
    class Half(DenseField):
        def matrix(self, point):
            return np.eye(3)

    with pytest.raises(TypeError, match="pullback"):
        Half(Banana())


def test_the_divergence_of_the_inverse_is_that_of_differences(field):
    q, _ = place(field)
    changes = differences(field, lambda x: np.linalg.inv(matrix_at(field, x)), q)
    units = field.density.units
    expected = np.einsum("jij,j->i", changes, 1.0 / units)
    found = field.evaluate(q).inverse_divergence()
    np.testing.assert_allclose(found / units, expected / units, rtol=1e-5, atol=1e-8)
