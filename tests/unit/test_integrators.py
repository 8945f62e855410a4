"""Integrators: reversible, symplectic, second order, with a metric that varies; failures are values."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from pymc_rmhmc.dynamics import integrators as integrators_module
from pymc_rmhmc.dynamics.hamiltonian import (
    GaussianHamiltonian,
    GaussianState,
    RiemannianHamiltonian,
    RiemannianState,
    SiteHamiltonian,
    SpannedHamiltonian,
)
from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint, RotationSplitting
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.latent.charts import GaussianSites, SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentTarget, RoundedTarget
from pymc_rmhmc.metrics import LatentField
from tests.unit.toys import Logit, ToyPrior, coarse_gram, narrow_prior, problem

N = 4


class Drawn:
    """In place of random numbers: the momentum that a state shall have."""

    def __init__(self, momentum):
        self.momentum = momentum

    def standard_normal(self, size):
        assert size == self.momentum.size
        return self.momentum


def in_single_precision(target: LatentTarget) -> SiteHamiltonian:
    return SiteHamiltonian(RoundedTarget(target, target.chart.predictor.gram.astype(np.float32)))


# Representations of the flat metric: all follow the same trajectories.
FLAT = {"flat": GaussianHamiltonian, "spanned": SpannedHamiltonian, "rounded": in_single_precision}


class System:
    """A Hamiltonian with an integrator, and states made of a position and a momentum."""

    def __init__(self, integrator, metric: str, prior: str, likelihood: str):
        stated, family = problem(prior, likelihood, N, seed=1)
        base = FactorizedPrior(stated)
        self.integrator = integrator
        if metric in FLAT:
            rng = np.random.default_rng(0)
            sites = GaussianSites(rng.standard_normal(N), rng.exponential(0.5, N))
            self.flow = FLAT[metric](LatentTarget(SiteChart(base, sites), family))
        else:
            self.flow = RiemannianHamiltonian(LatentField(LatentTarget(SiteChart(base), family), metric))
        self.size = base.n_latent

    def state(self, q, p):
        if isinstance(self.flow, GaussianHamiltonian):
            return GaussianState(self.flow.residual.at(q), p)
        if isinstance(self.flow, SpannedHamiltonian | SiteHamiltonian):
            return self.flow.refresh(self.flow.state(q), Drawn(p))
        return RiemannianState(self.flow.field.evaluate(q), p)

    def advance(self, q, p, step_size, n_steps):
        state = self.state(q, p)
        for _ in range(n_steps):
            step = self.integrator.step(self.flow, state, step_size)
            assert step.failure is Failure.NONE
            state = step.state
        return state

    def start(self, seed=0):
        rng = np.random.default_rng(seed)
        state = self.flow.refresh(self.flow.state(0.5 * rng.standard_normal(self.size)), rng)
        return state.position, state.momentum


def integrators():
    solver = AndersonSolver(1e-12, 200)
    return {
        "leapfrog": GeneralizedLeapfrog(solver),
        "midpoint": ImplicitMidpoint(solver),
        "splitting": RotationSplitting(),
    }


PRODUCT = [
    (integrator, metric, prior, likelihood)
    for integrator, metric, prior, likelihood in itertools.product(
        ("leapfrog", "midpoint", "splitting"),
        ("hessian", "fisher", *FLAT),
        ("centred", "rotated", "additive", "narrow"),
        ("logit", "poisson", "student_t"),
    )
    if (integrator == "splitting") == (metric in FLAT)
    and (metric != "rounded" or prior == "centred")  # of a triangle alone
    and not (metric == "hessian" and likelihood == "student_t")
]


@pytest.fixture(params=PRODUCT, ids="-".join)
def system(request):
    integrator, *rest = request.param
    return System(integrators()[integrator], *rest)


def test_steps_taken_back_lead_to_the_beginning(system):
    q, p = system.start()
    end = system.advance(q, p, 0.15, 5)
    assert np.abs(end.position - q).max() > 0.1  # it moved
    back = system.advance(end.position, -end.momentum, 0.15, 5)
    np.testing.assert_allclose(back.position, q, atol=1e-8)
    np.testing.assert_allclose(back.momentum, -p, atol=1e-8)


@pytest.mark.parametrize("metric", ["hessian", *FLAT])
def test_every_coordinate_of_the_momentum_is_drawn_anew(metric):
    """One that were kept, or were 0, would leave a chain on a part of its space."""
    made = System(RotationSplitting() if metric in FLAT else GeneralizedLeapfrog(), metric, "centred", "poisson")
    rng = np.random.default_rng(0)
    state = made.flow.state(0.5 * rng.standard_normal(made.size))
    drawn = []
    for _ in range(20):
        state = made.flow.refresh(state, rng)
        drawn.append(state.momentum)
    drawn = np.array(drawn)
    assert drawn.shape == (20, made.size)
    for before, after in itertools.pairwise(drawn):
        assert (np.abs(after - before) > 1e-6).all()
    # Neither do the coordinates repeat one another.
    assert np.linalg.matrix_rank(drawn - drawn.mean(axis=0), tol=0.1) == made.size


def test_a_step_is_symplectic(system):
    q, p = system.start()
    n, h = q.size, 1e-5

    def flat_step(x):
        end = system.advance(x[:n], x[n:], 0.2, 1)
        return np.concatenate((end.position, end.momentum))

    x = np.concatenate((q, p))
    jacobian = np.array([(flat_step(x + e) - flat_step(x - e)) / (2 * h) for e in h * np.eye(2 * n)]).T
    omega = np.block([[np.zeros((n, n)), np.eye(n)], [-np.eye(n), np.zeros((n, n))]])
    np.testing.assert_allclose(jacobian.T @ omega @ jacobian, omega, atol=2e-6)


def test_energy_error_and_global_error_are_of_second_order(system):
    q, p = system.start(seed=2)
    reference = system.advance(q, p, 0.4 / 256, 256)
    energy = system.flow.energy(system.state(q, p))
    errors = []
    for n_steps in (8, 16):
        end = system.advance(q, p, 0.4 / n_steps, n_steps)
        distance = np.abs(end.position - reference.position).max()
        errors.append((distance, abs(system.flow.energy(end) - energy)))
    (coarse, coarse_energy), (fine, fine_energy) = errors
    assert 3.4 < coarse / fine < 4.7
    # The energy error's leading term can vanish along a trajectory: it must shrink at least so fast.
    assert fine_energy < coarse_energy / 3.0 + 1e-11


def test_the_input_is_not_changed(system):
    q, p = system.start()
    state = system.state(q, p)
    q_before, p_before = q.copy(), p.copy()
    system.integrator.step(system.flow, state, 0.2)
    np.testing.assert_array_equal(state.position, q_before)
    np.testing.assert_array_equal(state.momentum, p_before)


@pytest.mark.parametrize("metric", FLAT)
@pytest.mark.parametrize("step_size", [0.1, 0.7, 2.0])
def test_splitting_is_exact_where_the_density_is_normal(step_size, metric):
    """Sites equal to the likelihood's: φ is constant, and the step is the orbit itself."""
    stated, _ = problem("centred", "logit", N)

    class Gaussian:
        kinds = ("hessian",)
        compiled_gradient = None

        def gradient(self, eta):
            return float(eta @ (0.4 - eta)), 0.4 - 2.0 * eta

    sites = GaussianSites(np.full(N, 0.4), np.full(N, 2.0))
    system = System(RotationSplitting(), metric, "centred", "logit")
    system.flow = FLAT[metric](LatentTarget(SiteChart(FactorizedPrior(stated), sites), Gaussian()))
    rng = np.random.default_rng(0)
    z, p = rng.standard_normal(N), rng.standard_normal(N)
    end = system.advance(z, p, step_size, 1)
    np.testing.assert_allclose(end.position, z * np.cos(step_size) + p * np.sin(step_size), atol=1e-12)
    np.testing.assert_allclose(end.momentum, p * np.cos(step_size) - z * np.sin(step_size), atol=1e-12)


def test_kicks_of_any_matrix_can_be_undone_and_preserve_volume():
    """With a third of its values changed a step is no longer symplectic, but as exact."""
    system = System(RotationSplitting(), "rounded", "centred", "poisson")
    target = system.flow.residual._target
    system.flow = SiteHamiltonian(RoundedTarget(target, coarse_gram(target)))
    q, p = system.start()
    end = system.advance(q, p, 0.2, 5)
    back = system.advance(end.position, -end.momentum, 0.2, 5)
    np.testing.assert_allclose(back.position, q, atol=1e-9)
    np.testing.assert_allclose(back.momentum, -p, atol=1e-9)

    def flat_step(x):
        end = system.advance(x[:N], x[N:], 0.2, 1)
        return np.concatenate((end.position, end.momentum))

    x, h = np.concatenate((q, p)), 1e-5
    jacobian = np.array([(flat_step(x + e) - flat_step(x - e)) / (2 * h) for e in h * np.eye(2 * N)]).T
    assert np.linalg.det(jacobian) == pytest.approx(1.0, abs=1e-7)
    omega = np.block([[np.zeros((N, N)), np.eye(N)], [-np.eye(N), np.zeros((N, N))]])
    assert np.abs(jacobian.T @ omega @ jacobian - omega).max() > 1e-3


def walked(prior: str, kinds, count: int) -> list[np.ndarray]:
    """The same chain by each representation: positions, energies and decisions, (count, k + 3)."""
    stated, family = problem(prior, "poisson", N, seed=1)
    rng = np.random.default_rng(0)
    sites = GaussianSites(rng.standard_normal(N), rng.exponential(0.5, N))
    target = LatentTarget(SiteChart(FactorizedPrior(stated), sites), family)
    start, chains = 0.3 * rng.standard_normal(target.chart.prior.n_latent), []
    for kind in kinds:
        flow = kind(target)
        state, draws, chain = flow.state(start), np.random.default_rng(1), []
        for _ in range(count):
            outcome = transition(flow, RotationSplitting(), state, 4, 0.4, draws)
            state = outcome.state
            chain.append([*state.position, outcome.energy, outcome.energy_error, outcome.accepted])
            np.testing.assert_allclose(target.apply(state.position) + target.chart.predictor.offset, state.point.eta)
        chains.append(np.array(chain))
    assert 0.2 < chains[0][:, -1].mean() < 1.0  # both decisions were met
    return chains


@pytest.mark.parametrize("prior", ["centred", "rotated", "additive", "narrow"])
def test_both_representations_of_the_flat_metric_walk_the_same_chain(prior):
    plain, spanned = walked(prior, (GaussianHamiltonian, SpannedHamiltonian), 200)
    np.testing.assert_allclose(spanned, plain, rtol=1e-8, atol=1e-8)


def test_rounded_kicks_walk_the_same_chain_but_for_rounding():
    exact, rounded = walked("centred", (SpannedHamiltonian, in_single_precision), 60)
    np.testing.assert_allclose(rounded, exact, rtol=1e-4, atol=1e-4)
    assert np.abs(rounded - exact).max() > 1e-9


@pytest.mark.parametrize(("metric", "prior"), [("spanned", "rotated"), ("rounded", "centred")])
def test_a_state_is_resumed_from_its_coordinates_to_the_last_bit(metric, prior):
    system = System(RotationSplitting(), metric, prior, "logit")
    end = system.advance(*system.start(), 0.3, 4)
    again = system.flow.state(*end.coordinates)
    runs = [transition(system.flow, system.integrator, s, 3, 0.3, np.random.default_rng(2)) for s in (end, again)]
    np.testing.assert_array_equal(runs[0].state.position, runs[1].state.position)
    assert runs[0].energy == runs[1].energy


@pytest.mark.parametrize("name", ["leapfrog", "midpoint"])
def test_with_a_constant_metric_the_implicit_steps_are_the_explicit_ones(name):
    """StudentT's Fisher weight is constant: no iteration is needed, and the leapfrog is PyMC's."""
    system = System(integrators()[name], "fisher", "centred", "student_t")
    q, p = system.start()
    point = system.state(q, p).point
    if name == "leapfrog":
        half = p + 0.1 * point.gradient
        position = q + 0.2 * point.solve(half)
        momentum = half + 0.1 * system.state(position, p).point.gradient
        end = system.advance(q, p, 0.2, 1)
        np.testing.assert_allclose(end.position, position, atol=1e-12)
        np.testing.assert_allclose(end.momentum, momentum, atol=1e-12)
    else:
        end = system.advance(q, p, 0.2, 1)
        middle = system.state(0.5 * (q + end.position), p).point
        np.testing.assert_allclose(end.momentum, p + 0.2 * middle.gradient, atol=1e-10)


@pytest.mark.parametrize(
    ("integrator", "most"),
    # Of the midpoint's, one is the end's; without the trace term's share of the work there were twice as many.
    [(GeneralizedLeapfrog(), 1), (ImplicitMidpoint(check_reversibility=False), 5), (ImplicitMidpoint(), 9)],
)
def test_metrics_factorised_in_a_step(integrator, most):
    system = System(integrator, "hessian", "centred", "poisson")
    evaluations = 0
    evaluate = system.flow.field.evaluate

    def counting(position):
        nonlocal evaluations
        evaluations += 1
        return evaluate(position)

    q, p = system.start()
    state = system.state(q, p)
    system.flow.field.evaluate = counting
    step = system.integrator.step(system.flow, state, 0.2)
    assert step.failure is Failure.NONE
    assert evaluations == step.n_metric_evals <= most
    assert np.isfinite(step.reversal_error) == integrator.check_reversibility


@pytest.mark.parametrize("name", ["leapfrog", "midpoint"])
def test_reversal_error_follows_the_tolerance(name):
    kind = {"leapfrog": GeneralizedLeapfrog, "midpoint": ImplicitMidpoint}[name]
    errors = []
    for tolerance in (1e-5, 1e-8, 1e-11):
        system = System(kind(AndersonSolver(tolerance, 200)), "hessian", "centred", "poisson")
        q, p = system.start()
        step = system.integrator.step(system.flow, system.state(q, p), 0.3)
        assert step.failure is Failure.NONE
        errors.append(step.reversal_error)
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9


@pytest.mark.parametrize("kind", [GeneralizedLeapfrog, ImplicitMidpoint])
def test_a_solver_that_does_not_converge_is_a_failure_without_a_state(kind):
    system = System(kind(AndersonSolver(1e-12, 2)), "hessian", "centred", "poisson")
    q, p = system.start()
    step = system.integrator.step(system.flow, system.state(q, p), 0.5)
    assert step.failure is Failure.SOLVER
    assert step.state is None
    assert step.n_solver_iter > 0


@pytest.mark.parametrize("prior", ["centred", "rotated", "additive", "narrow"])
def test_a_midpoint_found_by_half_kicks_is_the_same(prior, monkeypatch):
    """Where the factor at one position does not serve for the next; with more latent values than sites, or as many."""
    system = System(integrators()["midpoint"], "hessian", prior, "logit")
    q, p = system.start()
    exact = system.advance(q, p, 0.3, 1)
    solve = integrators_module._Midpoint._solve_from

    def unsolved(self, midpoint, velocity):
        return replace(solve(self, midpoint, velocity), value=np.full_like(velocity, np.nan), converged=False)

    monkeypatch.setattr(integrators_module._Midpoint, "_solve_from", unsolved)
    found = system.advance(q, p, 0.3, 1)
    np.testing.assert_allclose(found.position, exact.position, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.momentum, exact.momentum, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["leapfrog", "midpoint"])
@pytest.mark.parametrize("n", [2, 6], ids=["sites", "coefficients"])
def test_a_site_that_reads_no_latent_value_changes_nothing(n, name):
    """It has no variance to measure its velocity in; whether the metric has the sites' size or the coefficients'."""
    integrator, family, ends = integrators()[name], Logit(np.resize([1.0, -1.0], n)), []
    prior = FactorizedPrior(narrow_prior(n, n_blind=1))
    whole = LatentField(LatentTarget(SiteChart(prior), family), "hessian")
    (component,) = narrow_prior(n).components
    component.predictor = component.predictor[1:]
    rest = FactorizedPrior(ToyPrior((component,), narrow_prior(n).offset[1:]))
    part = LatentField(LatentTarget(SiteChart(rest), Logit(family.y[1:])), "hessian")
    q, p = np.random.default_rng(3).standard_normal((2, prior.n_latent))
    for metric in (whole, part):
        step = integrator.step(RiemannianHamiltonian(metric), RiemannianState(metric.evaluate(q), p), 0.4)
        assert step.failure is Failure.NONE
        ends.append(step.state)
    np.testing.assert_allclose(ends[0].position, ends[1].position, atol=1e-9)
    np.testing.assert_allclose(ends[0].momentum, ends[1].momentum, atol=1e-9)


@pytest.mark.parametrize("kind", [GeneralizedLeapfrog, ImplicitMidpoint])
def test_a_step_that_does_not_lead_back_is_not_returned(kind, monkeypatch):
    """A solver whose answer depends on the direction of time, as a second root would make it."""
    system = System(kind(AndersonSolver(1e-12, 200)), "hessian", "centred", "poisson")
    solve, nesting, outermost = AndersonSolver.solve, [], []
    # The leapfrog's drift; the midpoint's equation, which follows that of its guess. Another root of the
    # leapfrog's kick would be no fault: read backwards it is explicit.
    corrupted = 2

    def two_faced(self, function, start):
        nesting.append(1)
        solution = solve(self, function, start)
        nesting.pop()
        if not nesting:
            outermost.append(1)
            if len(outermost) == corrupted:
                object.__setattr__(solution, "value", solution.value + 1e-3)
                object.__setattr__(solution, "argument", solution.argument + 1e-3)
        return solution

    monkeypatch.setattr(AndersonSolver, "solve", two_faced)
    q, p = system.start()
    step = system.integrator.step(system.flow, system.state(q, p), 0.2)
    assert step.failure is Failure.NON_REVERSIBLE
    assert step.state is None
    assert step.reversal_error > 1e-6


@pytest.mark.parametrize("kind", [GeneralizedLeapfrog, ImplicitMidpoint, RotationSplitting])
def test_an_overflow_on_the_way_is_a_failure(kind):
    metric = "flat" if kind is RotationSplitting else "hessian"
    system = System(kind(), metric, "centred", "poisson")
    q, p = system.start()
    with np.errstate(all="ignore"):
        step = system.integrator.step(system.flow, system.state(q, 1e6 * np.ones_like(p)), 0.5)
    assert step.failure in {Failure.NON_FINITE, Failure.SOLVER}
    assert step.state is None


def test_with_a_constant_metric_the_leapfrog_is_pymcs():
    """Against PyMC's own integrator and mass matrix, on the whitened model with the same likelihood."""
    import pymc as pm
    from pymc.blocking import DictToArrayBijection
    from pymc.step_methods.hmc.integration import CpuLeapfrogIntegrator
    from pymc.step_methods.hmc.quadpotential import QuadPotentialFullInv

    system = System(integrators()["leapfrog"], "fisher", "centred", "student_t")
    target = system.flow.field.target
    q, p = system.start()
    mass = np.linalg.inv(np.column_stack([system.state(q, p).point.solve(e) for e in np.eye(N)]))
    with pm.Model() as model:
        z = pm.Normal("z", shape=N)
        eta = target.chart.predictor.apply(np.zeros(N)) + pm.math.dot(target.chart.predictor.matrix, z)
        pm.StudentT("y", nu=4.0, mu=eta, sigma=1.0, observed=target.likelihood.y)
    density = model.logp_dlogp_function(ravel_inputs=True)
    density.set_extra_values({})
    theirs = CpuLeapfrogIntegrator(QuadPotentialFullInv(mass), density)
    start = state = theirs.compute_state(DictToArrayBijection.map({"z": q}), p)
    for _ in range(5):
        state = theirs.step(0.3, state)
    ours = system.advance(q, p, 0.3, 5)
    np.testing.assert_allclose(ours.position, state.q.data, atol=1e-9)
    np.testing.assert_allclose(ours.momentum, state.p, atol=1e-9)
    gained = system.flow.energy(ours) - system.flow.energy(system.state(q, p))
    assert gained == pytest.approx(state.energy - start.energy, abs=1e-9)
