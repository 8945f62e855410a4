"""The emulator of a marginal density: its flow, what it interpolates, and the flow as a proposal."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.linalg import expm
from scipy.stats import gamma, multivariate_normal, multivariate_t, norm

from pymc_rmhmc.approximation import emulation
from pymc_rmhmc.approximation.emulation import emulate_marginal, interpolate, on_a_floor
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import SurrogateFlow
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.interfaces.stated import StatedDense, StatedPrior
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.latent.charts.marginal import fit_marginals
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta
from pymc_rmhmc.latent.theta_densities import ThetaGivenNoise
from tests.unit.test_joint_chart import THETA, FixedBlock, ToyDensity, bent, differences, joint

DIMENSIONS = [1, 2, 4]
# How many of a draft's draws are evaluated.
LATER = emulation.N_CHECKED + emulation.N_PUSHED * len(emulation.OUTWARDS)


def emulator(d: int, *, strength: float = 1.0, seed: int = 0) -> Emulator:
    """Of weights of either sign and a parabola that need not have a maximum, on a floor that is not far below."""
    rng = np.random.default_rng(seed)
    square = 0.2 * strength * rng.standard_normal((d, d))
    return Emulator(
        rng.standard_normal((d, 7)), strength * rng.standard_normal(7), 1.3, 0.7, strength * rng.standard_normal(d),
        square + square.T, -1.0, 2.0, 5.0,
    )  # fmt: skip


def ground(made: Emulator, x: np.ndarray) -> float:
    """The floor's logarithm."""
    return made.floor + 0.5 * x @ x - made.power * math.log1p(x @ x / made.reach)


def energy(surrogate: Emulator, position, momentum) -> float:
    return 0.5 * position @ position + 0.5 * momentum @ momentum - surrogate.evaluate(position)[0]


@pytest.mark.parametrize("d", DIMENSIONS)
def test_its_value_is_what_it_says_and_its_gradient_matches_differences(d):
    made, x = emulator(d), np.random.default_rng(1).standard_normal(d)
    value, slope = made.evaluate(x)
    squares = ((x[:, None] - made.points) ** 2).sum(axis=0)
    bumps = (1.0 + squares / (64.0 * made.lengthscale**2)) ** -32
    bare = made.linear @ x + 0.5 * x @ made.quadratic @ x + made.weights @ bumps
    exact = made.level + np.logaddexp(bare, ground(made, x))
    assert value == pytest.approx(exact, rel=1e-12)
    assert replace(made, floor=-np.inf).evaluate(x)[0] == pytest.approx(made.level + bare, rel=1e-12)
    assert slope.shape == (d,)
    np.testing.assert_allclose(slope, differences(lambda at: made.evaluate(at)[0], x), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("time", [0.1, 0.25, 1.7, 6.0])
@pytest.mark.parametrize("strength", [1.0, 8.0], ids=["mild", "absurd"])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_its_flow_taken_back_leads_to_the_beginning(d, strength, time):
    made, rng = emulator(d, strength=strength), np.random.default_rng(2)
    position, momentum = rng.standard_normal((2, d))
    kept = position.copy(), momentum.copy()
    there, with_momentum = made.advance(position, momentum, time)
    back, against = made.advance(there, -with_momentum, time)
    assert np.abs(there - position).max() > 1e-3
    # A flow that is driven outwards is followed to far away: rounding grows as it does.
    scale = 1e-9 * max(1.0, np.abs(there).max(), np.abs(with_momentum).max()) ** 2
    np.testing.assert_allclose(back, position, atol=scale)
    np.testing.assert_allclose(-against, momentum, atol=scale)
    np.testing.assert_array_equal(position, kept[0])
    np.testing.assert_array_equal(momentum, kept[1])


@pytest.mark.parametrize("time", [0.25, 1.7])
@pytest.mark.parametrize("strength", [1.0, 3.0])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_its_flow_preserves_volume(d, strength, time):
    made = emulator(d, strength=strength)
    at = np.random.default_rng(3).standard_normal(2 * d)
    follow = lambda x: np.concatenate(made.advance(x[:d], x[d:], time))  # noqa: E731
    jacobian = differences(follow, at).T
    assert abs(np.linalg.det(jacobian)) == pytest.approx(1.0, rel=1e-5)
    # Symplectic, and not only that.
    form = np.block([[np.zeros((d, d)), np.eye(d)], [-np.eye(d), np.zeros((d, d))]])
    np.testing.assert_allclose(jacobian.T @ form @ jacobian, form, atol=1e-6 * np.linalg.norm(jacobian) ** 2)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_it_follows_the_exact_flow_of_a_parabola(d):
    square = 0.1 * np.random.default_rng(4).standard_normal((d, d))
    quadratic, linear = square + square.T - 0.3 * np.eye(d), np.linspace(-0.5, 0.5, d) + 0.2
    made = Emulator(np.zeros((d, 0)), np.zeros(0), 1.0, 0.0, linear, quadratic)
    # ẋ = p, ṗ = -x + b + Qx
    force = quadratic - np.eye(d)
    centre = np.linalg.solve(force, -linear)
    rate = np.block([[np.zeros((d, d)), np.eye(d)], [force, np.zeros((d, d))]])
    position, momentum = np.random.default_rng(5).standard_normal((2, d))
    errors = []
    for time in (0.25, 1.7):
        exact = expm(time * rate) @ np.concatenate((position - centre, momentum))
        found = np.concatenate(made.advance(position, momentum, time))
        errors.append(np.abs(found - exact - np.concatenate((centre, np.zeros(d)))).max())
    assert max(errors) < 0.02
    # A rotation is followed exactly where there is nothing to emulate.
    nothing = Emulator(np.zeros((d, 0)), np.zeros(0), 1.0, 3.0, np.zeros(d), np.zeros((d, d)))
    turned = nothing.advance(position, momentum, 1.7)
    np.testing.assert_allclose(turned[0], math.cos(1.7) * position + math.sin(1.7) * momentum, atol=1e-12)
    np.testing.assert_allclose(turned[1], math.cos(1.7) * momentum - math.sin(1.7) * position, atol=1e-12)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_its_flow_nearly_keeps_its_own_energy(d):
    made, rng = emulator(d), np.random.default_rng(6)
    for position, momentum in rng.standard_normal((10, 2, d)):
        drift = energy(made, *made.advance(position, momentum, 1.7)) - energy(made, position, momentum)
        assert abs(drift) < 0.15


@pytest.mark.parametrize("floor", [-np.inf, 0.0, 800.0, -800.0])
def test_a_floor_far_above_or_below_is_finite_and_without_noise(floor):
    made = replace(emulator(2), floor=floor)
    for x in np.random.default_rng(8).standard_normal((5, 2)):
        value, slope = made.evaluate(x)
        assert np.isfinite(value)
        np.testing.assert_allclose(slope, differences(lambda at: made.evaluate(at)[0], x), rtol=1e-6, atol=1e-6)
    least = made.level + ground(made, x)
    assert value == pytest.approx(least) if floor == 800.0 else value > least


@pytest.mark.parametrize("d", DIMENSIONS)
def test_a_floor_is_the_given_share_of_a_wide_student_t(d):
    # Of exp(bᵀx - ½p|x|²), whose integral over a standard normal is known.
    precision, linear = 4.0, np.full(d, 1.5)
    bare = Emulator(np.zeros((d, 0)), np.zeros(0), 1.0, 0.3, linear, -precision * np.eye(d))
    found = on_a_floor(bare, np.random.default_rng(9))
    log_integral = 0.5 * linear @ linear / (1.0 + precision) - 0.5 * d * math.log(1.0 + precision)
    share, width = emulation.SHARE_OF_FLOOR, emulation.WIDTH_OF_FLOOR
    freedom = emulation.FREEDOM_OF_FLOOR
    for x in (np.zeros(d), np.full(d, 2.0), np.full(d, 9.0)):
        # exp(g) times a standard normal, over its integral, has the share of the wide density.
        density = ground(found, x) + norm.logpdf(x).sum() - log_integral
        wide = multivariate_t.logpdf(x, np.zeros(d), width**2 * np.eye(d), freedom)
        assert density == pytest.approx(math.log(share) + wide, abs=0.35)
    far, centre = np.full(d, 6.0), linear / (1.0 + precision)
    assert found.evaluate(far)[0] > bare.evaluate(far)[0] + 10.0
    assert found.evaluate(centre)[0] == pytest.approx(bare.evaluate(centre)[0], abs=0.1)


def parabola(d: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    square = rng.standard_normal((d, d))
    linear, quadratic = rng.standard_normal(d), 0.5 * (square + square.T)
    return linear, quadratic, lambda x: 2.0 + x @ linear + 0.5 * np.einsum("...i,ij,...j->...", x, quadratic, x)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_parabola_is_reproduced_everywhere(d):
    linear, quadratic, function = parabola(d)
    rng = np.random.default_rng(7)
    points = 2.0 * rng.standard_normal((80, d))
    found = interpolate(points, function(points))
    assert np.abs(found.weights).max() < 1e-5
    np.testing.assert_allclose(found.linear, linear, atol=1e-5)
    np.testing.assert_allclose(found.quadratic, quadratic, atol=1e-5)
    np.testing.assert_array_equal(found.quadratic, found.quadratic.T)
    for x in 10.0 * rng.standard_normal((20, d)):
        value, slope = found.evaluate(x)
        assert value == pytest.approx(function(x), rel=1e-5, abs=1e-4)
        np.testing.assert_allclose(slope, linear + quadratic @ x, rtol=1e-5, atol=1e-4)


def wavy(x):
    return np.sin(1.3 * x[..., 0]) + 0.3 * np.cos(x).sum(axis=-1) - 0.2 * (x**2).sum(axis=-1)


@pytest.mark.parametrize(("d", "m", "within"), [(1, 40, 0.01), (2, 150, 0.03), (3, 300, 0.15)])
def test_a_smooth_function_is_found_between_its_points(d, m, within):
    rng = np.random.default_rng(8)
    points = rng.uniform(-2.5, 2.5, (m, d))
    found = interpolate(points, wavy(points))
    between = rng.uniform(-2.0, 2.0, (100, d))
    values = np.array([found.evaluate(x)[0] for x in between])
    assert np.abs(values - wavy(between)).max() < within
    assert np.std(wavy(between)) > 0.5


def test_noise_on_the_values_is_smoothed():
    rng = np.random.default_rng(9)
    points = rng.uniform(-2.5, 2.5, (200, 1))
    found = interpolate(points, wavy(points) + 0.05 * rng.standard_normal(200))
    between = np.linspace(-2.0, 2.0, 50)[:, None]
    errors = [found.evaluate(x)[0] - wavy(x) for x in between]
    assert np.std(errors) < 0.03


@pytest.mark.parametrize("d", [1, 3])
def test_a_parabola_that_would_run_away_is_bounded(d):
    """Upwards faster than a standard normal downwards: the rest of it is the Gaussian process's."""
    rng = np.random.default_rng(10)
    points = rng.standard_normal((80, d))
    steep = 3.0 * points[:, 0] ** 2 - 2.0 * points[:, -1] ** 2 if d > 1 else 3.0 * points[:, 0] ** 2
    found = interpolate(points, steep)
    assert np.linalg.eigvalsh(found.quadratic).max() == pytest.approx(0.9)
    # It goes through its points nevertheless.
    values = [found.evaluate(x)[0] for x in points]
    np.testing.assert_allclose(values, steep, atol=0.05 * np.ptp(steep))


def test_a_constant_function_has_no_slope():
    points = np.random.default_rng(11).standard_normal((50, 2))
    found = interpolate(points, np.full(50, 3.0))
    value, slope = found.evaluate(np.array([5.0, -5.0]))
    assert value == pytest.approx(3.0, abs=1e-6)
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)


def test_points_that_coincide_do_no_harm():
    rng = np.random.default_rng(12)
    points = np.repeat(rng.standard_normal((30, 2)), 2, axis=0)
    found = interpolate(points, wavy(points))
    values = [found.evaluate(x)[0] for x in points]
    np.testing.assert_allclose(values, wavy(points), atol=0.05)


NEAR = bent(THETA, np.linalg.cholesky(0.1 * np.eye(4) + 0.05))


def gaussian_target() -> tuple[JointTarget, float]:
    """Normal data of known scale, with sites that have half of what they say: z is not standard normal given θ."""
    sigma = 0.6
    target = joint(sigma)
    sites = [held.scaled(0.5) for held in target.sites]
    return JointTarget(target.density, sites, NEAR), sigma


def exact_marginal(target: JointTarget, standard: np.ndarray, sigma: float) -> float:
    """What the marginal posterior of ϑ has beyond a standard normal."""
    placed = target.chart.place(standard)
    value = target.density.rest(placed.theta)[0] + placed.log_volume + 0.5 * standard @ standard
    for block in target.density.blocks:
        stated = block.prior(placed.theta)
        noisy = stated.vectors[0].covariance + sigma**2 * np.eye(block.n_sites)
        value += multivariate_normal.logpdf(block.y, stated.mean, noisy)
    return float(value)


def thetas_of(target: JointTarget, m: int, seed: int = 0, width: float = 0.8) -> np.ndarray:
    standard = width * np.random.default_rng(seed).standard_normal((m, target.n_theta))
    return np.array([target.chart.place(x).theta for x in standard])


def test_among_the_points_are_some_that_are_far_out_in_one_coordinate_alone():
    target, _ = gaussian_target()
    points = emulation._design(target.chart, thetas_of(target, 200), np.random.default_rng(1))
    # Twice the spread of the draws is far out already, for all coordinates but one.
    for reach in emulation.REACHES:
        for j in range(target.n_theta):
            others = np.delete(np.abs(points), j, axis=1).max(axis=1)
            for sign in (-1.0, 1.0):
                assert others[points[:, j] == sign * reach].max() < 3.5


def test_the_marginal_density_is_emulated_but_for_a_constant():
    target, sigma = gaussian_target()
    thetas, held = thetas_of(target, 200), thetas_of(target, 60, seed=2, width=1.0)
    first = len(emulation.SCALES) * math.ceil(emulation.POINTS_EACH * 4 / len(emulation.SCALES))
    along = 2 * len(emulation.REACHES) * target.n_theta
    spread, left = [], []
    for seed in (1, 2, 3):
        chart, found = emulate_marginal(target, thetas, np.random.default_rng(seed))
        assert first // 2 + LATER < found.weights.size <= first + along + LATER
        within, points = target.in_chart(chart), np.array([chart.recover(theta) for theta in held])
        exact = np.array([exact_marginal(within, x, sigma) for x in points])
        errors = np.array([found.evaluate(x)[0] for x in points]) - exact
        spread.append(np.std(exact))
        left.append(np.std(errors))
        # Twice as far out, where no draw has been, it is not worse than its parabola; but for the floor, which is
        # higher.
        far, bare = 2.0 * points, replace(found, floor=-np.inf)
        exact = np.array([exact_marginal(within, x, sigma) for x in far])
        errors = np.array([bare.evaluate(x)[0] for x in far]) - exact
        reach = exact - 0.5 * (far**2).sum(axis=1)
        likely = reach > reach.max() - 15.0
        assert likely.sum() > 20
        assert np.abs(errors - np.median(errors))[likely].max() < 4.0
    # Sixteen draws of z leave a level that is off, which is no matter, and little beside it.
    assert np.mean(left) < 0.35
    assert np.mean(spread) > 3.0 * np.mean(left)


def test_it_is_the_same_for_the_same_random_numbers_and_draws():
    target, _ = gaussian_target()
    first, second = (emulate_marginal(target, thetas_of(target, 60), np.random.default_rng(1)) for _ in range(2))
    for name in ("centre", "factor", "location", "spread", "skewness", "tail"):
        np.testing.assert_array_equal(getattr(first[0], name), getattr(second[0], name))
    np.testing.assert_array_equal(first[1].weights, second[1].weights)
    np.testing.assert_array_equal(first[1].points, second[1].points)


def test_too_few_distinct_draws_are_not_emulated():
    target, _ = gaussian_target()
    enough = emulation.FEWEST_DRAWS
    for m, made in ((enough - 1, False), (enough, True)):
        # A chain that stood still tells nothing by repeating itself.
        thetas = np.repeat(thetas_of(target, m), 3, axis=0)
        assert (emulate_marginal(target, thetas, np.random.default_rng(1)) is not None) == made


class Synthetic:
    """What `emulate_marginal` asks of a target whose marginal log density is given."""

    def __init__(self, d: int, chart: MarginalChart) -> None:
        self.n_theta, self.size, self.n_sites = d, d + 1, 1
        self.chart, self.density = chart, SimpleNamespace(blocks=(None,))

    def in_chart(self, chart: MarginalChart) -> Synthetic:
        return Synthetic(self.n_theta, chart)


@pytest.fixture
def log_gammas(monkeypatch):
    """A marginal density of logarithms of gamma variates, with long tails to one side: its values, and draws of it."""

    def beyond_normal(density, point) -> float:
        placed, shape = density.chart.place(point), np.linspace(0.7, 4.0, point.size)
        log_density = float((shape * placed.theta - np.exp(placed.theta)).sum())
        return log_density + placed.log_volume + 0.5 * float(point @ point)

    monkeypatch.setattr(emulation._Marginal, "beyond_normal", beyond_normal)
    monkeypatch.setattr(emulation, "theta_requires_refactorization", lambda block: True)
    draw = lambda d, m, rng: np.log(rng.gamma(np.linspace(0.7, 4.0, d), size=(m, d)))  # noqa: E731
    return beyond_normal, draw


@pytest.mark.parametrize(("d", "made"), [(2, True), (6, True), (9, True), (10, True), (12, False)])
def test_a_parabola_needs_several_points_for_a_coefficient(log_gammas, d, made):
    """Ten hyperparameters make sixty-six coefficients and a dozen ninety-one; far-out points are of no use to them."""
    _, draw = log_gammas
    for seed in range(3):
        rng = np.random.default_rng(seed)
        thetas = draw(d, 150, rng)
        with np.errstate(over="ignore", invalid="ignore"):
            found = emulate_marginal(Synthetic(d, fit_marginals(thetas)), thetas, rng)
        assert (found is not None) == made


def with_blocks(target: JointTarget, blocks) -> JointTarget:
    return JointTarget(ToyDensity(tuple(blocks)), target.sites, target.chart)


@pytest.mark.parametrize("kind", ["coefficients", "fixed covariance"])
def test_cheap_hyperparameters_are_not_emulated(kind):
    target, _ = gaussian_target()
    blocks = [FixedBlock(b.y, b.centred, b.sigma, fixed_covariance=True) for b in target.density.blocks]
    for block in blocks:
        block.has_moving_sites = block.has_moving_design = False
        if kind == "coefficients":
            block.fixed_covariance, block.design_shape = False, (len(block.y), len(block.y))
    assert emulate_marginal(with_blocks(target, blocks), thetas_of(target, 100), np.random.default_rng(1)) is None
    # One dear block is enough.
    if kind == "fixed covariance":
        blocks[0] = target.density.blocks[0]
        thetas = thetas_of(target, 100)
        assert emulate_marginal(with_blocks(target, blocks), thetas, np.random.default_rng(1)) is not None


def test_a_density_that_is_hardly_ever_finite_is_not_emulated(monkeypatch):
    target, _ = gaussian_target()
    usual = emulation._Marginal.beyond_normal
    seen = []

    def broken(density, point):
        seen.append(point)
        return usual(density, point) if len(seen) % 10 == 0 else -np.inf

    monkeypatch.setattr(emulation._Marginal, "beyond_normal", broken)
    assert emulate_marginal(target, thetas_of(target, 100), np.random.default_rng(1)) is None


def test_points_without_a_prior_or_out_of_reach_are_left_out():
    """Of a wide chart some points are where no covariance has a factor, or where the density is nothing."""
    target, _ = gaussian_target()
    for block in target.density.blocks:
        block.jitter = 0.0
    wide = JointTarget(target.density, target.sites, MarginalChart.linear(THETA, np.diag([0.3, 1.5, 0.3, 0.3])))
    with np.errstate(all="ignore"):
        _, found = emulate_marginal(wide, thetas_of(wide, 100), np.random.default_rng(1))
    first = emulation.POINTS_EACH * wide.n_theta
    evaluated = first + 2 * len(emulation.REACHES) * wide.n_theta + LATER
    assert first // 5 + LATER <= found.weights.size < evaluated - 16
    assert np.isfinite(found.weights).all()
    assert np.isfinite(found.evaluate(np.zeros(4))[0])


def test_values_of_one_chart_are_values_of_another():
    """A marginal density of θ is that of any ϑ, but for the chart's volume."""
    target, _ = gaussian_target()
    rng = np.random.default_rng(3)
    marginal = emulation._Marginal(target, rng.standard_normal((4, target.size - target.n_theta)))
    known = emulation._Known(marginal)
    known.evaluate(target.chart, rng.standard_normal((5, 4)))
    other = MarginalChart.linear(THETA - 0.2, np.diag([0.3, 0.2, 0.4, 0.1]))
    known.evaluate(other, rng.standard_normal((5, 4)))
    for chart in (target.chart, other):
        points, values = known.within(chart)
        assert points.shape == (10, 4)
        exact = [marginal.in_chart(chart).beyond_normal(x) for x in points]
        np.testing.assert_allclose(values, exact, rtol=1e-9)


@pytest.mark.parametrize("d", [1, 3])
def test_draws_along_an_emulator_are_of_its_density(d):
    rng = np.random.default_rng(4)
    linear, quadratic, _ = parabola(d)
    quadratic = 0.5 * np.eye(d) - 0.5 * quadratic @ quadratic.T
    made = Emulator(np.zeros((d, 0)), np.zeros(0), 1.0, 5.0, linear, quadratic)
    # Times a standard normal this is a normal.
    covariance = np.linalg.inv(np.eye(d) - quadratic)
    starts = covariance @ linear + 2.0 * rng.standard_normal((20, d)) @ np.linalg.cholesky(covariance).T
    draws = np.concatenate([emulation._draws_along(made, starts, rng) for _ in range(4)])
    assert draws.shape == (4 * emulation.N_CHAINS, d)
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), (draws - covariance @ linear).T)
    assert np.abs(whitened.mean(axis=1)).max() < 4.0 / np.sqrt(len(draws))
    np.testing.assert_allclose(np.cov(whitened), np.eye(d), atol=0.12)


def test_the_chart_is_the_density_s_and_not_that_of_a_few_draws_that_missed_its_tail(log_gammas):
    beyond_normal, draw = log_gammas
    rng, shapes = np.random.default_rng(5), np.linspace(0.7, 4.0, 4)
    thetas = draw(4, 600, rng)
    thetas = thetas[(thetas > np.log(gamma.ppf(0.1, shapes))).all(axis=1)][:120]
    of_draws = fit_marginals(thetas)
    chart, _ = emulate_marginal(Synthetic(4, of_draws), thetas, rng)
    tail = np.log(gamma.ppf(0.001, shapes))
    standard = np.random.default_rng(6).standard_normal((1000, 4))
    far, shares = [], []
    for of in (of_draws, chart):
        far.append(np.abs(of.recover(tail)).max())
        # Standard normal draws in a chart, as draws of the density.
        log_weights = np.array([beyond_normal(Synthetic(4, of), x) for x in standard])
        shares.append(emulation._share_of_independent(log_weights))
    assert far[0] > 8.0
    assert far[1] < 6.0
    assert shares[1] > 0.7
    assert shares[1] > 1.5 * shares[0]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_chart_of_a_draft_is_taken_where_the_density_agrees(monkeypatch, share):
    target, _ = gaussian_target()
    monkeypatch.setattr(emulation, "_share_of_independent", lambda log_weights: share)
    chart, found = emulate_marginal(target, thetas_of(target, 100), np.random.default_rng(1))
    assert (chart is target.chart) == (share == 0.0)
    # What was evaluated for it serves either way.
    assert found.weights.size > LATER + emulation.POINTS_EACH * 4 // 2


def test_the_share_of_independent_draws_is_that_of_the_weights():
    share = emulation._share_of_independent
    assert share(np.full(8, -700.0)) == pytest.approx(1.0)
    assert share(np.array([0.0, 0.0, -np.inf, -np.inf])) == pytest.approx(0.5)
    assert share(np.array([900.0, 0.0, 0.0, 0.0])) == pytest.approx(0.25)
    assert share(np.full(3, -np.inf)) == 0.0


class Counted:
    """A density that counts how often it is asked."""

    def __init__(self, density) -> None:
        self.density, self.count = density, 0

    def at(self, position):
        self.count += 1
        return self.density.at(position)


def test_its_flow_is_judged_by_one_value_of_the_true_density():
    target = joint(moving=True)
    noise = np.random.default_rng(13).standard_normal(target.size - 4)
    density, flow = Counted(ThetaGivenNoise(target, noise)), SurrogateFlow(emulator(4, strength=0.3))
    hamiltonian = GaussianHamiltonian(density)
    start = hamiltonian.state(np.zeros(4))
    density.count = 0
    rng = np.random.default_rng(14)
    for _ in range(10):
        outcome = transition(hamiltonian, flow, start, 1, 1.7, rng)
        end = outcome.state
        assert outcome.failure in (Failure.NONE, Failure.ENERGY)
        assert outcome.n_metric_evals == 1
        # The error is that of the true energy, of the position to which the emulator leads.
        assert outcome.acceptance == pytest.approx(math.exp(min(0.0, -outcome.energy_error)))
        if outcome.accepted:
            whole = target.at(np.concatenate((end.position, noise)))
            exact = 0.5 * end.position @ end.position + 0.5 * end.momentum @ end.momentum - whole.log_density
            assert outcome.energy == pytest.approx(exact, rel=1e-10)
    assert density.count == 10


def test_a_step_along_it_has_the_true_energy_error():
    target, made = joint(moving=True), emulator(4, strength=0.3)
    noise = np.random.default_rng(15).standard_normal(target.size - 4)
    hamiltonian = GaussianHamiltonian(ThetaGivenNoise(target, noise))
    start = hamiltonian.refresh(hamiltonian.state(np.full(4, 0.2)), np.random.default_rng(16))
    step = SurrogateFlow(made).step(hamiltonian, start, 1.1)
    position, momentum = made.advance(start.position, start.momentum, 1.1)
    np.testing.assert_array_equal(step.state.position, position)
    np.testing.assert_array_equal(step.state.momentum, momentum)
    assert step.failure is Failure.NONE
    densities = [target.at(np.concatenate((at, noise))).log_density for at in (start.position, position)]
    kinetic = [0.5 * q @ q + 0.5 * p @ p for q, p in ((start.position, start.momentum), (position, momentum))]
    exact = (kinetic[1] - densities[1]) - (kinetic[0] - densities[0])
    assert hamiltonian.energy(step.state) - hamiltonian.energy(start) == pytest.approx(exact, abs=1e-8)
    # It is not the emulator's, which is nearly nothing.
    assert abs(exact) > 10.0 * abs(energy(made, position, momentum) - energy(made, start.position, start.momentum))


def test_a_step_to_where_there_is_no_density_has_no_state():
    target = joint()
    for block in target.density.blocks:
        block.jitter = 0.0
    target = JointTarget(target.density, target.sites, MarginalChart.linear(THETA, np.diag([0.3, 30.0, 0.3, 0.3])))
    hamiltonian = GaussianHamiltonian(ThetaGivenNoise(target, np.zeros(target.size - 4)))
    away = Emulator(np.zeros((4, 0)), np.zeros(0), 1.0, 0.0, np.array([0.0, 5.0, 0.0, 0.0]), np.zeros((4, 4)))
    start = hamiltonian.state(np.zeros(4))
    with np.errstate(all="ignore"):
        step = SurrogateFlow(away).step(hamiltonian, start, 1.5)
        outcome = transition(hamiltonian, SurrogateFlow(away), start, 1, 1.5, np.random.default_rng(0))
    assert step.state is None
    assert step.failure is Failure.NOT_POSITIVE_DEFINITE
    assert step.n_metric_evals == 1
    assert not outcome.accepted
    assert outcome.acceptance == 0.0
    assert outcome.failure is Failure.NOT_POSITIVE_DEFINITE
    np.testing.assert_array_equal(outcome.state.position, np.zeros(4))


@pytest.mark.slow
def test_one_hyperparameter_is_emulated_as_quadrature_has_it():
    """One latent value of free scale, of which the site says something wrong."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    y, mean, amplitude = 1.4, -0.9, 0.8

    class One:
        """Under a logit."""

        n_sites, size, design_shape, rows, is_sum, maps = 1, 1, None, None, False, None
        has_moving_design, fixed_covariance, has_moving_sites = False, False, False

        def forget(self):
            pass

        def prior(self, theta):
            covariance = np.full((1, 1), amplitude**2 * np.exp(2.0 * theta[0]), order="F")
            return StatedPrior(np.full(1, mean), np.zeros(1), (StatedDense(covariance, np.full(1, mean), True),))

        def compiled_likelihood(self):
            return self.likelihood, ()

        def likelihood(self, theta, eta):
            return float(-np.logaddexp(0.0, -y * eta).sum()), y / (1.0 + np.exp(y * eta)), np.zeros(1)

    class Density:
        blocks = (One(),)

        def rest(self, theta):
            return float(norm.logpdf(theta, 0.3, 0.5).sum()), (0.3 - theta) / 0.25

    sites = GaussianSites(np.array([0.4]), np.array([0.3]))
    target = JointTarget(Density(), [sites], MarginalChart.linear(np.array([0.2]), np.array([[0.5]])))

    def exact(standard: float, chart: MarginalChart = target.chart) -> float:
        placed = chart.place(np.array([standard]))
        f = mean + amplitude * math.exp(placed.theta[0]) * nodes
        marginal = math.log(weights @ (1.0 / (1.0 + np.exp(-y * f))))
        prior = float(norm.logpdf(placed.theta, 0.3, 0.5).sum())
        return marginal + prior + placed.log_volume + 0.5 * standard**2

    thetas = 0.2 + 0.5 * np.random.default_rng(0).standard_normal((100, 1))
    chart, found = emulate_marginal(target, thetas, np.random.default_rng(1))
    held = np.linspace(-2.0, 2.0, 21)
    gaps = np.array([found.evaluate(np.array([x]))[0] - exact(x, chart) for x in held])
    assert np.ptp(gaps) < 0.3
    assert np.ptp([exact(x) for x in held]) > 3.0 * np.ptp(gaps)
    # In its own chart there is little left to emulate.
    assert np.ptp([exact(x, chart) for x in held]) < 0.5 * np.ptp([exact(x) for x in held])
    # With all of z in place of sixteen draws of it the value at a ϑ is exact.
    noises = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    both = np.outer(weights, weights).ravel()
    for x in (-1.0, 0.5):
        at = LatentsGivenTheta(target, np.array([x]))
        values = np.array([at.at_noise(z).log_density for z in noises])
        assert at.log_marginal + math.log(both @ np.exp(values)) == pytest.approx(exact(x), abs=1e-6)
