"""The explicit integrator on two copies of phase space: symplectic and reversible there, and failures are values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.stats import multivariate_normal

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, RiemannianState
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, RotationSplitting
from pymc_rmhmc.dynamics.tao import ExplicitTao, TaoState
from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.kernels.trajectories import FixedSteps, UTurn, transition
from tests.unit.banana import Banana, InformationField, TwistedField
from tests.unit.funnel import BentField, Normal
from tests.unit.general_toys import NORMAL

MASS = np.array([3.0, 0.5, 1.5])
FIELDS = {"information": InformationField, "twisted": TwistedField}
MASSES = {"unit": 1.0, "diagonal": MASS}
APPROXIMATE = "one_copy_approximate"


@pytest.fixture(params=itertools.product(FIELDS, MASSES), ids="-".join)
def system(request):
    """A Hamiltonian on two copies of phase space, and its integrator."""
    field, mass = request.param
    integrator = ExplicitTao(4.0, 0.2, mass=MASSES[mass])
    return integrator, integrator.extend(FIELDS[field](Banana()).hamiltonian())


def place(flow, seed: int = 0) -> TaoState:
    rng = np.random.default_rng(seed)
    return flow.refresh(flow.state(flow.field.density.draw(rng)), rng)


def vector(state: TaoState) -> np.ndarray:
    """Both positions, and then both momenta."""
    return np.concatenate((state.position, state.copy_position, state.momentum, state.copy_momentum))


def state_of(flow, x: np.ndarray) -> TaoState:
    q, copy_q, p, copy_p = np.split(x, 4)
    return TaoState(flow.field.evaluate(q), p, copy_q, copy_p)


def advance(integrator, flow, state, step_size: float, n_steps: int) -> TaoState:
    for _ in range(n_steps):
        step = integrator.step(flow, state, step_size)
        assert step.failure is Failure.NONE
        state = step.state
    return state


# The maps.


@pytest.mark.parametrize("mass", MASSES.values(), ids=MASSES)
@pytest.mark.parametrize("time", [0.05, 0.3, 1.1])
def test_the_binding_is_the_flow_of_its_hamiltonian(mass, time):
    integrator, (q, p, copy_q, copy_p) = ExplicitTao(4.0, mass=mass), np.random.default_rng(0).normal(size=(4, 3))

    def slope(_, x):
        q, p, copy_q, copy_p = np.split(x, 4)
        pull, push = 4.0 * mass * (q - copy_q), 4.0 * (p - copy_p) / mass
        return np.concatenate((push, -pull, -push, pull))

    solved = solve_ivp(slope, (0.0, time), np.concatenate((q, p, copy_q, copy_p)), rtol=1e-11, atol=1e-12)
    exact = np.split(solved.y[:, -1], 4)
    np.testing.assert_allclose(integrator.bind(q, p, copy_q, copy_p, time), exact, atol=1e-8)
    # The rotation in the other direction is symplectic too, but belongs to -ω.
    assert np.abs(np.array(integrator.bind(q, p, copy_q, copy_p, -time)) - exact).max() > 0.1


def test_a_step_is_symplectic_and_preserves_volume_on_the_extended_space(system):
    integrator, flow = system
    x, h = vector(place(flow)), 1e-5

    def step(x):
        return vector(advance(integrator, flow, state_of(flow, x), 0.15, 1))

    jacobian = np.array([(step(x + e) - step(x - e)) / (2 * h) for e in h * np.eye(x.size)]).T
    half = x.size // 2
    omega = np.block([[np.zeros((half, half)), np.eye(half)], [-np.eye(half), np.zeros((half, half))]])
    np.testing.assert_allclose(jacobian.T @ omega @ jacobian, omega, atol=1e-5)
    assert np.linalg.det(jacobian) == pytest.approx(1.0, abs=1e-5)
    # The copies are coupled: on the first alone it is not.
    one = np.ix_(np.r_[0:3, 6:9], np.r_[0:3, 6:9])
    assert np.abs(jacobian[one].T @ omega[one] @ jacobian[one] - omega[one]).max() > 0.01


def test_steps_taken_back_lead_to_the_beginning(system):
    integrator, flow = system
    start = place(flow)
    end = advance(integrator, flow, start, 0.1, 5)
    assert np.abs(vector(end) - vector(start)).max() > 0.1
    turned = TaoState(end.point, -end.momentum, end.copy_position, -end.copy_momentum)
    back = advance(integrator, flow, turned, 0.1, 5)
    signs = np.repeat([1.0, 1.0, -1.0, -1.0], 3)
    np.testing.assert_allclose(signs * vector(back), vector(start), atol=1e-9)
    # A trajectory that doubles goes back in time by itself.
    np.testing.assert_allclose(vector(advance(integrator, flow, end, -0.1, 5)), vector(start), atol=1e-9)


def test_the_global_error_is_of_second_order(system):
    integrator, flow = system
    start, time = place(flow, seed=2), 0.4
    reference = vector(advance(integrator, flow, start, time / 512, 512))
    coarse, fine = (
        np.abs(vector(advance(integrator, flow, start, time / n, n)) - reference).max() for n in (32, 64)
    )
    assert coarse > 1e-5
    assert 3.4 < coarse / fine < 4.7


def test_equal_copies_follow_the_hamiltonian_itself(system):
    integrator, flow = system
    start = place(flow, seed=3)
    equal = TaoState(start.point, start.momentum, start.position, start.momentum)
    end = advance(integrator, flow, equal, 0.3 / 300, 300)
    leapfrog, exact = GeneralizedLeapfrog(), RiemannianState(start.point, start.momentum)
    for _ in range(300):
        exact = leapfrog.step(flow.base, exact, 0.3 / 300).state
    assert np.abs(exact.position - start.position).max() > 0.05
    for position, momentum in ((end.position, end.momentum), (end.copy_position, end.copy_momentum)):
        np.testing.assert_allclose(position, exact.position, atol=1e-4)
        np.testing.assert_allclose(momentum, exact.momentum, atol=1e-4)


def test_the_input_is_not_changed(system):
    integrator, flow = system
    state = place(flow)
    before = vector(state)
    advance(integrator, flow, state, 0.1, 3)
    np.testing.assert_array_equal(vector(state), before)


# The extended density.


@pytest.mark.parametrize("mass", MASSES.values(), ids=MASSES)
def test_the_energy_is_that_of_both_copies(mass):
    """Up to a constant; the copies are normal around the first, with σ²M⁻¹ and σ²M. Of any state, not of drawn ones."""
    sigma = 0.2
    flow = ExplicitTao(4.0, sigma, mass=mass).extend(InformationField(Banana()).hamiltonian())
    diagonal, differences = np.broadcast_to(mass, 3), []
    for x in np.random.default_rng(0).normal(scale=0.5, size=(4, 12)):
        state = state_of(flow, x)
        metric = flow.field.matrix(state.density_point)
        log_density = (
            state.point.log_density
            + multivariate_normal.logpdf(state.momentum, np.zeros(3), metric)
            + multivariate_normal.logpdf(state.copy_position, state.position, np.diag(sigma**2 / diagonal))
            + multivariate_normal.logpdf(state.copy_momentum, state.momentum, np.diag(sigma**2 * diagonal))
        )
        differences.append(flow.energy(state) + log_density)
    np.testing.assert_allclose(differences, differences[0], atol=1e-9)


def test_the_momentum_and_both_copies_are_drawn_anew():
    sigma = 0.2
    flow = ExplicitTao(4.0, sigma, mass=MASS).extend(InformationField(Banana()).hamiltonian())
    rng, state, apart, momenta = np.random.default_rng(0), place(flow), [], []
    for _ in range(4000):
        state = flow.refresh(state, rng)
        momenta.append(state.momentum)
        apart.append(np.append(state.copy_position - state.position, state.copy_momentum - state.momentum))
    root = np.linalg.cholesky(flow.field.matrix(state.density_point))
    units = sigma * np.append(MASS**-0.5, MASS**0.5)
    drawn = np.hstack((np.linalg.solve(root, np.array(momenta).T).T, np.array(apart) / units))
    np.testing.assert_allclose(drawn.mean(axis=0), 0.0, atol=0.08)
    np.testing.assert_allclose(np.cov(drawn.T), np.eye(9), atol=0.12)
    # Neither does one draw tell of the next.
    np.testing.assert_allclose(drawn[1:].T @ drawn[:-1] / 4000, 0.0, atol=0.08)


def test_the_approximate_form_begins_with_equal_copies_and_accepts_by_the_first():
    field = InformationField(Banana())
    integrator = ExplicitTao(4.0, acceptance=APPROXIMATE)
    flow = integrator.extend(field.hamiltonian())
    state = place(flow)
    np.testing.assert_array_equal(state.copy_position, state.position)
    np.testing.assert_array_equal(state.copy_momentum, state.momentum)
    end = advance(integrator, flow, state, 0.2, 3)
    assert np.abs(end.copy_position - end.position).max() > 1e-4
    assert flow.energy(end) == field.hamiltonian().energy(RiemannianState(end.point, end.momentum))


# What a chain asks of it.


@pytest.mark.parametrize("move", [FixedSteps(3), UTurn(4)], ids=["fixed", "u-turn"])
def test_a_chain_moves_and_is_resumed_from_its_coordinates(move):
    field = InformationField(Banana())
    integrator = ExplicitTao(10.0, 0.05, mass=MASS)
    flow, rng = integrator.extend(field.hamiltonian()), np.random.default_rng(1)
    state, accepted = flow.state(np.zeros(3)), 0
    for _ in range(20):
        outcome = move.move(flow, integrator, state, 0.05, rng)
        state = outcome.state
        accepted += outcome.accepted
        assert outcome.energy == pytest.approx(flow.energy(state), abs=1e-9)
        assert outcome.n_metric_evals == 3 * outcome.n_steps
    assert accepted > 5
    assert state.density_point is state.point.density_point
    (position,) = state.coordinates
    np.testing.assert_array_equal(position, state.position)
    again = flow.state(position)
    runs = [move.move(flow, integrator, each, 0.05, np.random.default_rng(2)) for each in (state, again)]
    np.testing.assert_array_equal(runs[0].state.position, runs[1].state.position)
    assert runs[0].energy == runs[1].energy


def test_a_step_factorises_three_metrics_and_none_twice(monkeypatch):
    field = InformationField(Banana())
    integrator = ExplicitTao(4.0)
    flow, seen = integrator.extend(field.hamiltonian()), []
    state, evaluate = place(flow), field.evaluate
    monkeypatch.setattr(field, "evaluate", lambda position: seen.append(position) or evaluate(position))
    for number in range(1, 4):
        step = integrator.step(flow, state, 0.1)
        state = step.state
        assert len(seen) == 3 * number
        assert step.n_metric_evals == 3
        assert step.n_solver_iter == 0
        np.testing.assert_array_equal(state.position, seen[-1])
        flow.energy(state)
        flow.velocity(state)
    assert len(seen) == 9
    assert not integrator.implicit


def test_other_integrators_take_a_hamiltonian_as_it_is():
    flow = InformationField(Banana()).hamiltonian()
    for integrator in (GeneralizedLeapfrog(), RotationSplitting()):
        assert integrator.extend(flow) is flow
        integrator.check_step_size(None)
        integrator.check_u_turn()


# Failures.


class FailsLater(InformationField):
    """No factor from the n-th metric on."""

    left, wrong = math.inf, np.nan

    def matrix(self, point):
        self.left -= 1
        return self.wrong * super().matrix(point) if self.left < 0 else super().matrix(point)


@pytest.mark.parametrize("n_good", [0, 1, 2])
@pytest.mark.parametrize(("wrong", "failure"), [(np.nan, Failure.NON_FINITE), (-1.0, Failure.NOT_POSITIVE_DEFINITE)])
def test_a_metric_without_a_factor_is_a_failure(n_good, wrong, failure):
    field, integrator = FailsLater(Banana()), ExplicitTao(4.0)
    flow = integrator.extend(field.hamiltonian())
    state = place(flow)
    field.left, field.wrong = n_good, wrong
    step = integrator.step(flow, state, 0.1)
    assert (step.state, step.failure, step.n_metric_evals) == (None, failure, n_good + 1)


def test_numbers_that_overflow_are_a_failure_and_no_field_sees_them():
    field, integrator, seen = InformationField(Banana()), ExplicitTao(4.0), []
    flow = integrator.extend(field.hamiltonian())
    state, evaluate = place(flow), field.evaluate
    field.evaluate = lambda position: seen.append(position) or evaluate(position)
    for momentum in (np.full(3, 1e200), np.full(3, np.nan)):
        with np.errstate(all="ignore"):
            step = integrator.step(flow, TaoState(state.point, momentum, state.position, momentum), 0.1)
        assert step.state is None
        assert step.failure is Failure.NON_FINITE
        assert step.n_metric_evals == len(seen)
        assert all(np.isfinite(each).all() for each in seen)
        seen.clear()


def test_a_momentum_that_overflows_at_the_end_is_a_failure():
    """Where the last metric itself is still made of numbers."""

    class Steep(BentField):
        left = 3

        def matrix(self, point):
            self.left -= 1
            return super().matrix(point)

        def pullback(self, point, bar):
            return super().pullback(point, bar) if self.left else np.array([1e308])

    integrator = ExplicitTao(4.0)
    field = Steep(Normal())
    flow = integrator.extend(field.hamiltonian())
    start = flow.state(np.ones(1))
    field.left = 3
    with np.errstate(all="ignore"):
        step = integrator.step(flow, start, 0.1)
    assert (step.state, step.failure, step.n_metric_evals) == (None, Failure.NON_FINITE, 3)


def test_a_failed_trajectory_keeps_the_state():
    field, integrator = FailsLater(Banana()), ExplicitTao(4.0)
    flow = integrator.extend(field.hamiltonian())
    start = flow.state(np.zeros(3))
    field.left = 4
    outcome = transition(flow, integrator, start, 3, 0.1, np.random.default_rng(0))
    assert outcome.failure is Failure.NON_FINITE
    assert not outcome.accepted
    assert outcome.n_metric_evals == 5
    np.testing.assert_array_equal(outcome.state.position, start.position)


# Bad input.


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"omega": 0.0}, r"omega must be a number from 0.001 .*got 0\. It binds"),
        ({"omega": -1.0}, "omega must be a number from"),
        ({"omega": math.nan}, "omega must be a number from"),
        ({"omega": "strong"}, "omega must be a number, got 'strong'"),
        ({"omega": 10.0, "sigma": 0.0}, "sigma must be a number from .*sigma=0.1"),
        ({"omega": 10.0, "sigma": None}, "sigma must be a number, got None"),
        ({"omega": 10.0, "mass": 0.0}, "mass must be a number from"),
        ({"omega": 10.0, "mass": "unit"}, "mass must be a number, got 'unit'"),
        ({"omega": 10.0, "mass": [1.0, -1.0]}, r"each from 1e-12 to 1e\+12, got \[1.0, -1.0\]"),
        ({"omega": 10.0, "mass": [1.0, math.inf]}, "mass must be a number or a vector"),
        ({"omega": 10.0, "mass": ["a", "b"]}, "mass must be a number or a vector"),
        ({"omega": 10.0, "mass": []}, "mass must be a number or a vector"),
        ({"omega": 10.0, "mass": np.eye(2)}, "mass must be a number or a vector"),
        ({"omega": 10.0, "acceptance": "exact"}, 'Unknown acceptance \'exact\': it must be "extended" or "one_copy'),
        ({"omega": 10.0, "acceptance": None}, "Unknown acceptance None"),
        ({"omega": 10.0, "acceptance": ["extended"]}, "Unknown acceptance"),
    ],
)
def test_bad_input_is_an_error_where_it_is_built(given, says):
    with pytest.raises(ConfigurationError, match=says):
        ExplicitTao(**given)


def test_a_mass_is_copied_and_must_fit_the_position():
    mass = np.ones(2)
    integrator = ExplicitTao(10.0, mass=mass)
    mass[:] = -1.0
    np.testing.assert_array_equal(integrator.mass, 1.0)
    flow = integrator.extend(InformationField(Banana()).hamiltonian())
    with pytest.raises(ConfigurationError, match=r"mass has 2 values, and a position has 3 coordinates.*mass=1.0"):
        flow.state(np.zeros(3))


def test_a_flat_metric_is_an_error():
    with pytest.raises(ConfigurationError, match="needs a position-dependent metric, got a GaussianHamiltonian"):
        ExplicitTao(10.0).extend(GaussianHamiltonian(NORMAL.target))


def test_the_step_size_is_given_and_at_most_the_bindings():
    integrator = ExplicitTao(10.0)
    integrator.check_step_size(0.1)
    with pytest.raises(ConfigurationError, match="needs a step size: .*step_size=0.1"):
        integrator.check_step_size(None)
    with pytest.raises(ConfigurationError, match=r"step_size=0.2 is longer than 1/omega.*ExplicitTao\(omega=5\)"):
        integrator.check_step_size(0.2)
    # Published results have longer ones, with the acceptance that was published.
    ExplicitTao(100.0, acceptance=APPROXIMATE).check_step_size(0.1)


def test_the_approximate_acceptance_has_no_trajectory_that_turns_back():
    integrator = ExplicitTao(10.0, acceptance=APPROXIMATE)
    with pytest.raises(ConfigurationError, match='trajectory="nuts" draws one of all its states.*"static"'):
        UTurn().check_integrator(integrator)
    FixedSteps(3).check_integrator(integrator)
    UTurn().check_integrator(ExplicitTao(10.0))
