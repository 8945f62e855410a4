"""Likelihoods' own parameters with the sites held: their density, how latents follow, and the chart that is fitted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy import stats
from scipy.special import digamma, gammaln

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, GaussianState
from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.charts.marginal import FEWEST_DRAWS, LEAST_PRECISION, fit_parameters
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latents_given_theta import LatentsGivenTheta
from pymc_rmhmc.latent.theta_densities import ParametersGivenLatents
from tests.unit import test_diagonal_chart
from tests.unit.test_held import TARGETS, of_coefficients
from tests.unit.test_joint_chart import bent, differences, joint

# Of five coordinates, log σ and log ν; what is between them must neither move nor be differentiated by.
WHICH = np.array([1, 3])
MIDDLE = np.array([0.3, -0.2, 0.5, 1.1, -0.4])
ROOT = np.tril(np.random.default_rng(0).standard_normal((5, 5)), -1) * 0.3 + np.diag([0.7, 0.5, 1.0, 0.6, 0.8])


@dataclass
class StudentBlock:
    """Observations about the sites with a scale exp θ₁ and exp θ₃ degrees of freedom; a weight of its own each."""

    y: np.ndarray
    scale: float = 1.0
    maps = None

    def standard(self, theta: np.ndarray, eta: np.ndarray) -> np.ndarray:
        return (self.y - eta) / (self.scale * np.exp(theta[1]))

    def compiled_likelihood(self):
        return self.likelihood, ()

    def likelihood(self, theta, eta):
        nu, d = np.exp(theta[3]), self.standard(theta, eta)
        square = d**2 / nu
        value = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi) - theta[1] - np.log(self.scale)
        value = value - 0.5 * (nu + 1.0) * np.log1p(square)
        share = (nu + 1.0) * square / (1.0 + square)
        by_nu = digamma(0.5 * (nu + 1.0)) - digamma(0.5 * nu) - 1.0 / nu - np.log1p(square) + share / nu
        by_theta = np.array([0.0, (share - 1.0).sum(), 0.0, 0.5 * nu * by_nu.sum(), 0.0])
        return value.sum(), np.zeros_like(eta), by_theta  # the slope by sites is not asked for


@dataclass
class StudentDensity:
    """θ has a correlated normal prior: what is held says something of what moves."""

    blocks: tuple[StudentBlock, ...]
    of_likelihoods: np.ndarray = field(default_factory=lambda: WHICH)

    def rest(self, theta):
        precision = np.linalg.inv(ROOT @ ROOT.T)
        gap = theta - MIDDLE
        return -0.5 * float(gap @ precision @ gap), -precision @ gap


def student(n_blocks: int = 2) -> tuple[ParametersGivenLatents, np.ndarray, list[StudentBlock], list[np.ndarray]]:
    """A density of two parameters, the θ whose rest is held, the blocks and their sites."""
    rng, sizes = np.random.default_rng(1), (7, 4, 5)[:n_blocks]
    blocks = [StudentBlock(2.0 * rng.standard_normal(n), 0.5 + i) for i, n in enumerate(sizes)]
    eta, theta = [rng.standard_normal(n) for n in sizes], MIDDLE + 0.4 * rng.standard_normal(5)
    return ParametersGivenLatents(StudentDensity(tuple(blocks)), theta, eta), theta, blocks, eta


def exact(theta: np.ndarray, blocks: list[StudentBlock], eta: list[np.ndarray]) -> float:
    """The log density of all that there is, by SciPy."""
    total = stats.multivariate_normal.logpdf(theta, MIDDLE, ROOT @ ROOT.T)
    for block, at in zip(blocks, eta, strict=True):
        total += stats.t.logpdf(block.y, np.exp(theta[3]), at, block.scale * np.exp(theta[1])).sum()
    return float(total)


def moved(theta: np.ndarray, values: np.ndarray) -> np.ndarray:
    other = theta.copy()
    other[WHICH] = values
    return other


LINEAR = MarginalChart.linear(np.array([-0.3, 0.8]), np.linalg.cholesky(np.array([[0.3, 0.1], [0.1, 0.5]])))
CHARTS = {"linear": LINEAR, "bent": bent(np.array([-0.3, 0.8]), LINEAR.factor)}


@pytest.mark.parametrize("n_blocks", [1, 2, 3])
def test_the_score_is_the_slope_of_the_density_by_the_parameters_alone(n_blocks):
    held, theta, blocks, eta = student(n_blocks)
    value, score = held.score(theta)
    assert score.shape == (2,)
    slopes = differences(lambda at: held.score(at)[0], theta)
    np.testing.assert_allclose(score, slopes[WHICH], rtol=1e-7, atol=1e-7)
    # The rest of θ has slopes as well, and they are not among these.
    assert np.abs(slopes[[0, 2, 4]]).max() > 0.5
    elsewhere = moved(theta, np.array([0.4, 1.5]))
    change = exact(elsewhere, blocks, eta) - exact(theta, blocks, eta)
    assert held.score(elsewhere)[0] - value == pytest.approx(change, rel=1e-10)


def test_where_the_rest_of_the_model_has_no_value_a_trajectory_ends(monkeypatch):
    held, theta, _, _ = student()

    def singular(self, theta):
        raise np.linalg.LinAlgError("singular")

    chart = held.within(LINEAR)
    monkeypatch.setattr(StudentDensity, "rest", singular)
    assert np.isnan(held.score(theta)[0])
    assert chart.at(chart.start).failure is Failure.NON_FINITE


def test_the_score_of_several_blocks_is_the_sum_of_what_each_adds():
    together, theta, blocks, eta = student(3)
    value, score = together.score(theta)
    rest, by_theta = StudentDensity(()).rest(theta)
    pairs = zip(blocks, eta, strict=True)
    apart = [ParametersGivenLatents(StudentDensity((b,)), theta, [e]).score(theta) for b, e in pairs]
    assert value - rest == pytest.approx(sum(v - rest for v, _ in apart), rel=1e-12)
    added = [s - by_theta[WHICH] for _, s in apart]
    np.testing.assert_allclose(score - by_theta[WHICH], np.sum(added, axis=0), rtol=1e-12)
    assert min(np.abs(a).max() for a in added) > 0.1


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_the_density_in_a_chart_has_its_volume_and_what_a_standard_normal_takes(chart):
    held, theta, blocks, eta = student()
    density, rng = held.within(chart), np.random.default_rng(2)
    positions = [np.zeros(2), *rng.standard_normal((4, 2))]

    def stated(x: np.ndarray) -> float:
        # By the chart's derivative itself, of which a linear map's determinant is a constant.
        jacobian = differences(lambda at: chart.place(at).theta, x)
        log_density = exact(moved(theta, chart.place(x).theta), blocks, eta)
        return log_density + np.linalg.slogdet(jacobian)[1] - stats.norm.logpdf(x).sum()

    found, expected = [density.at(x).log_density for x in positions], [stated(x) for x in positions]
    np.testing.assert_allclose(np.diff(found), np.diff(expected), rtol=1e-7, atol=1e-7)
    for x in positions:
        point = density.at(x)
        np.testing.assert_array_equal(point.position, x)
        np.testing.assert_allclose(point.gradient, differences(lambda at: density.at(at).log_density, x), atol=1e-6)
        assert point.failure is Failure.NONE
        # What is held stays to the last bit, and the θ that was given is not written on.
        np.testing.assert_array_equal(point.theta[[0, 2, 4]], theta[[0, 2, 4]])
        np.testing.assert_array_equal(point.theta[WHICH], chart.place(x).theta)
    assert np.ptp(found) > 0.1


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_it_starts_at_the_parameters_that_were_given(chart):
    held, theta, *_ = student()
    density = held.within(chart)
    np.testing.assert_allclose(density.at(density.start).theta, theta, rtol=1e-12)
    assert np.abs(density.start).max() > 0.1


@pytest.mark.parametrize("where", ["value", "slope"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_a_failure_that_a_trajectory_counts(where, bad):
    class Broken(StudentBlock):
        def compiled_likelihood(self):
            return self.likelihood, ()

        def likelihood(self, theta, eta):
            value, slope, by_theta = super().likelihood(theta, eta)
            if theta[1] > 1.0:
                value, by_theta = (bad, by_theta) if where == "value" else (value, by_theta * bad)
            return value, slope, by_theta

    _, theta, blocks, eta = student()
    density = ParametersGivenLatents(StudentDensity((Broken(blocks[0].y), blocks[1])), theta, eta).within(LINEAR)
    beyond = LINEAR.recover(np.array([1.2, 1.0]))
    assert density.at(np.zeros(2)).failure is Failure.NONE
    with np.errstate(all="ignore"):
        point = density.at(beyond)
    assert point.failure is Failure.NON_FINITE
    assert GaussianHamiltonian(density).failure(GaussianState(point, np.zeros(2))) is Failure.NON_FINITE


def noise_moved(target: JointTarget, held: LatentsGivenTheta, by: float = 0.8) -> np.ndarray:
    """ϑ of the held θ with another noise, which is its last coordinate."""
    theta = held.theta.copy()
    theta[3] += by
    return target.chart.recover(theta)


@pytest.fixture(params=TARGETS.values(), ids=TARGETS)
def target(request) -> JointTarget:
    return request.param()


def halves(target: JointTarget, seed: int) -> list[np.ndarray]:
    return np.split(np.random.default_rng(seed).standard_normal(target.size), [target.n_theta])


def test_factors_that_are_borrowed_serve_as_those_of_ones_own(target):
    standard, noise = halves(target, 3)
    there = LatentsGivenTheta(target, standard)
    before = there.at_noise(noise)
    elsewhere = noise_moved(target, there)
    borrowed, fresh = LatentsGivenTheta(target, elsewhere, there), LatentsGivenTheta(target, elsewhere)
    assert borrowed.borrows
    assert not fresh.borrows
    assert not there.borrows
    near, residual = {"rtol": 1e-8, "atol": 1e-8}, np.random.default_rng(4).standard_normal(fresh.centre.size)
    np.testing.assert_array_equal(borrowed.theta, fresh.theta)
    np.testing.assert_array_equal(borrowed.standard, elsewhere)
    assert borrowed.log_marginal == pytest.approx(fresh.log_marginal, rel=1e-10, abs=1e-9)
    np.testing.assert_allclose(borrowed.centre, fresh.centre, **near)
    np.testing.assert_allclose(borrowed.gram(residual), fresh.gram(residual), **near)
    np.testing.assert_allclose(borrowed.adjoint(residual), fresh.adjoint(residual), **near)
    mine, other = borrowed.at_noise(noise), fresh.at_noise(noise)
    assert mine.log_density == pytest.approx(other.log_density, rel=1e-10, abs=1e-9)
    assert mine.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-10)
    np.testing.assert_allclose(mine.residual, other.residual, **near)
    for one, two in zip(mine.placed, other.placed, strict=True):
        np.testing.assert_allclose(one.latents, two.latents, **near)
        assert one.log_prior == pytest.approx(two.log_prior, rel=1e-8)
    # And what they were borrowed of is what it was, wherever the other has been.
    again = there.at_noise(noise)
    assert again.log_density == before.log_density
    np.testing.assert_array_equal(again.residual, before.residual)


def test_a_block_whose_sites_stand_still_shares_all_and_one_whose_sites_move_its_factor():
    target = TARGETS["both"]()
    there = LatentsGivenTheta(target, np.zeros(4))
    other = LatentsGivenTheta(target, noise_moved(target, there), there)
    assert other.conditionals[1] is there.conditionals[1]
    assert other.conditionals[0] is not there.conditionals[0]
    assert other.conditionals[0].operator is there.conditionals[0].operator
    # The prior is asked of neither: that is what makes the move cheap.
    for block in target.density.blocks:
        block.prior = None
    assert LatentsGivenTheta(target, noise_moved(target, there, -0.3), there).borrows
    with pytest.raises(TypeError):
        LatentsGivenTheta(target, noise_moved(target, there, -0.3))


def test_borrowed_factors_do_not_hide_a_failure():
    target = joint(moving=True)
    there = LatentsGivenTheta(target, np.zeros(4))
    with np.errstate(all="ignore"):
        for by in (np.nan, -400.0):  # no θ, and sites of no finite precision
            theta = there.theta + np.array([0.0, 0.0, 0.0, by])
            linear = JointTarget(target.density, target.sites, MarginalChart.linear(theta, np.eye(4)))
            with pytest.raises(PriorFailure) as caught:
                LatentsGivenTheta(linear, np.zeros(4), there)
            with pytest.raises(PriorFailure) as of_its_own:
                LatentsGivenTheta(linear, np.zeros(4))
            assert caught.value.failure is of_its_own.value.failure


@pytest.mark.parametrize("case", test_diagonal_chart.CASES, ids=", ".join)
@pytest.mark.parametrize("power", [0.0, -1.0, np.inf, np.nan])
def test_a_power_that_no_sites_have_is_a_failure(case, power):
    build, sites, _ = of_coefficients(*case)
    first = build(sites)
    if power == 0.0 and type(first.inner).__name__ == "SiteSpace":
        pytest.skip("sites that say nothing are sites")
    with pytest.raises(PriorFailure) as caught, np.errstate(all="ignore"):
        first.with_sites(test_diagonal_chart.Stated(*case).raised(power))
    assert caught.value.failure is Failure.NON_FINITE


def test_entering_places_every_latent_value_where_it_was_and_the_sites_where_they_were(target):
    standard, noise = halves(target, 5)
    there = LatentsGivenTheta(target, standard)
    point = there.at_noise(noise)
    latents, rng = [each.latents for each in point.placed], np.random.default_rng(6)
    held = LatentsGivenTheta(target, noise_moved(target, there), there)
    drawn = [held.enter(latents, rng) for _ in range(2)]
    assert np.abs(drawn[0] - drawn[1]).max() > 0.1
    assert np.abs(drawn[0] - noise).max() > 0.1
    for z in drawn:
        again = held.at_noise(z)
        np.testing.assert_allclose(np.concatenate(again.eta), np.concatenate(point.eta), atol=1e-8)
        for each, exact in zip(again.placed, latents, strict=True):
            np.testing.assert_allclose(each.latents, exact, atol=1e-7)
        # What was evaluated at the sites themselves is what the noise leads to.
        assert again.log_density == pytest.approx(held.at(point.eta).log_density, rel=1e-9, abs=1e-8)


def test_what_is_entered_has_the_law_of_standard_normal_noise_given_the_latents(target):
    """Nothing is left to chance of what the latents determine, and all that they do not is as it was a priori."""
    standard, noise = halves(target, 7)
    there = LatentsGivenTheta(target, standard)
    latents, rng, n_draws = [each.latents for each in there.place(noise)], np.random.default_rng(8), 4000
    held = LatentsGivenTheta(target, noise_moved(target, there), there)
    drawn = np.array([held.enter(latents, rng) for _ in range(n_draws)])

    def where(z: np.ndarray) -> np.ndarray:
        return np.concatenate([each.latents for each in held.place(z)])

    origin = where(np.zeros(noise.size))
    part = np.column_stack([where(e) - origin for e in np.eye(noise.size)])
    left, sizes, rows = np.linalg.svd(part)
    rank = sizes.size
    assert rank == noise.size // 2
    seen, free = drawn @ rows[:rank].T, drawn @ rows[rank:].T
    determined = left.T @ (np.concatenate(latents) - origin) / sizes
    np.testing.assert_allclose(seen, np.tile(determined, (n_draws, 1)), atol=1e-6)
    # 4.5 standard errors: of a mean, a variance and a covariance.
    error = 4.5 / np.sqrt(n_draws)
    assert np.abs(free.mean(axis=0)).max() < error
    covariance = free.T @ free / n_draws
    assert np.abs(covariance.diagonal() - 1.0).max() < np.sqrt(2.0) * error
    assert np.abs(covariance - np.diag(covariance.diagonal())).max() < error
    assert stats.kstest(free.ravel(), "norm").pvalue > 1e-3


def gaussian_scores(precision: np.ndarray, n_draws: int, seed: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Draws about a centre, each with the score that a Gaussian of this precision has there."""
    rng, centre = np.random.default_rng(seed), np.array([0.4, -1.0, 2.0])[: len(precision)]
    # The whitened draws have exactly unit second moments, so that nothing is left to chance.
    white = np.linalg.qr(rng.standard_normal((n_draws, len(precision))))[0] * np.sqrt(n_draws)
    gaps = white @ np.linalg.inv(np.linalg.cholesky(precision))
    return centre + gaps, -gaps @ precision


PRECISION = np.array([[40.0, -12.0, 3.0], [-12.0, 15.0, 1.0], [3.0, 1.0, 9.0]])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_charts_square_is_the_inverse_of_the_precision_that_scores_show(size):
    precision = PRECISION[:size, :size]
    values, scores = gaussian_scores(precision, 200)
    chart = fit_parameters(values, scores)
    expected = np.linalg.inv(precision + LEAST_PRECISION * np.eye(size))
    np.testing.assert_allclose(chart.factor @ chart.factor.T, expected, rtol=1e-9)
    np.testing.assert_allclose(expected, np.linalg.inv(precision), rtol=0.1)
    np.testing.assert_array_equal(chart.factor, np.tril(chart.factor))
    np.testing.assert_allclose(chart.place(np.zeros(size)).theta, values.mean(axis=0))
    x = np.array([0.3, -2.0, 1.0])[:size]
    np.testing.assert_allclose(chart.recover(chart.place(x).theta), x, atol=1e-12)


def test_the_width_is_that_given_the_latents_and_not_that_of_the_draws():
    """Parameters and latents correlate: draws of the one are wider than a move with the other held may be."""
    rng = np.random.default_rng(10)
    joint_precision = np.array([[4.0, 3.5], [3.5, 4.0]])
    draws = rng.multivariate_normal(np.zeros(2), np.linalg.inv(joint_precision), 4000)
    chart = fit_parameters(draws[:, :1], -draws @ joint_precision[:, :1])
    assert chart.factor[0, 0] == pytest.approx(0.5, rel=0.05)
    assert draws[:, 0].std() > 1.0


def test_too_few_draws_and_scores_that_are_not_finite_make_no_chart():
    values, scores = gaussian_scores(PRECISION, FEWEST_DRAWS)
    assert fit_parameters(values, scores) is not None
    assert fit_parameters(values[1:], scores[1:]) is None
    for bad in (np.nan, np.inf, -np.inf):
        broken = scores.copy()
        broken[17, 1] = bad
        assert fit_parameters(values, broken) is None


def test_a_direction_that_the_scores_say_nothing_of_stays_bounded():
    along = np.array([[1.0, 2.0], [2.0, 4.0]])  # flat in the direction (2, -1)
    values, scores = gaussian_scores(along + 1e-9 * np.eye(2), 100)
    chart = fit_parameters(values, scores)
    widths = np.sqrt(np.linalg.eigvalsh(chart.factor @ chart.factor.T))
    np.testing.assert_allclose(widths, [np.sqrt(1.0 / (5.0 + LEAST_PRECISION)), LEAST_PRECISION**-0.5], rtol=1e-6)
    still = fit_parameters(values, np.zeros_like(scores))
    np.testing.assert_allclose(still.factor, LEAST_PRECISION**-0.5 * np.eye(2), rtol=1e-12)


@pytest.mark.parametrize("size", [1e9, 1e160])
def test_scores_beyond_double_precision_make_a_chart_or_none_and_no_error(size):
    """Two noises that are read as one have one score, whose square a small precision is lost beside."""
    score = size * np.random.default_rng(11).standard_normal(60)
    with np.errstate(all="ignore"):
        chart = fit_parameters(np.zeros((60, 2)), np.column_stack((score, score)))
    assert chart is None or np.isfinite(chart.factor).all()
