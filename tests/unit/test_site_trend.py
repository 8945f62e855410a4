"""A trend of the sites, fitted to draws: what it finds, and when it leaves the sites as they are."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from pymc_rmhmc.approximation import site_fit
from pymc_rmhmc.approximation.site_fit import (
    MOST_COORDINATES,
    SMALL,
    ThinnedDraws,
    _fit,
    _growth,
    _least_squares,
    _window,
    follow_trend,
)
from pymc_rmhmc.interfaces.stated import StatedCoefficients, StatedDense, StatedKronecker, StatedPrior
from pymc_rmhmc.latent.charts import GaussianSites, MovingSites, SiteTrend
from tests.unit.test_diagonal_chart import differences

N, D, COUNT = 7, 3, 120
CENTRE = np.array([0.4, -0.2, 1.0])
TRUTH = SiteTrend(CENTRE, np.array([[-1.1, 0.0, 0.0], [-2.0, 0.3, 0.0]]), np.array([0.5, 1.5]))
FREE = np.array([True, True, False])


STILL_MEAN = np.zeros(N)


def stated(covariance, mean=STILL_MEAN) -> StatedPrior:
    """A vector with a dense covariance."""
    return StatedPrior(mean, np.zeros(N), (StatedDense(covariance, mean, True),))


@dataclass
class Block:
    """One whose likelihood has the slope of sites along a trend, and a part that no sites have."""

    trend: SiteTrend = TRUTH
    bend: float = 0.0
    fixed_covariance: bool = False
    has_moving_sites: bool = False

    design_shape, rows, is_sum, n_sites, maps = None, None, False, N, None
    linear = np.linspace(-2.0, 3.0, N)
    precision = np.linspace(0.2, 4.0, N)

    def prior(self, theta):
        covariance = np.exp(1.9 * theta[0] - 0.4 * theta[1]) * (np.eye(N) + 0.5)
        return stated(np.asfortranarray(covariance))

    def forget(self):
        pass

    def information(self, theta, eta):
        return np.exp(theta[2]) * (1.0 + np.arange(N))

    def likelihood(self, theta, eta):
        by_linear, by_precision = self.trend.at(theta) * (np.exp(theta[2]) if self.has_moving_sites else 1.0)
        return 0.0, by_linear * self.linear - by_precision * self.precision * eta + self.bend * np.sin(3.0 * eta), None


def window_of(count: int = COUNT) -> ThinnedDraws:
    rng, draws = np.random.default_rng(0), ThinnedDraws(N)
    for _ in range(count):
        theta = CENTRE + rng.standard_normal(D)
        draws.add(theta, np.linspace(-1.0, 1.0, N) + rng.standard_normal(N))
    return draws


STANDING = GaussianSites(np.zeros(N), np.ones(N))


def test_the_trend_that_made_the_draws_is_found():
    found = follow_trend(Block(), STANDING, CENTRE, window_of(), FREE)
    assert isinstance(found, MovingSites)
    # Single precision of the draws, and the prior of exponents.
    np.testing.assert_allclose(found.sites.linear, Block.linear, rtol=0.02, atol=0.02)
    np.testing.assert_allclose(found.sites.precision, Block.precision, rtol=0.02)
    for theta in (CENTRE, CENTRE + [2.0, 1.0, 0.0], CENTRE - [2.0, 1.0, 0.0]):
        np.testing.assert_allclose(found.trend.at(theta), TRUTH.at(theta), rtol=0.05)
    # They stand where they are but for the trend.
    np.testing.assert_allclose(found.at(CENTRE, found.information).linear, found.sites.linear, rtol=1e-12)


def test_latent_values_lie_as_far_out_as_the_precision_of_the_sites_falls_with_the_square_of():
    assert TRUTH.widening(CENTRE) == pytest.approx(1.0)
    assert TRUTH.widening(CENTRE + np.array([np.log(3.0), 0.0, 5.0])) == pytest.approx(3.0)
    assert TRUTH.widening(CENTRE + np.array([0.0, 1.0, 0.0])) == pytest.approx(np.exp(-0.15))
    for far in (-1e5, 1e5):  # still a number to divide by
        assert 0.0 <= TRUTH.widening(CENTRE + np.array([far, 0.0, 0.0])) < np.inf


def test_coordinates_that_are_not_free_are_not_followed():
    found = follow_trend(Block(), STANDING, CENTRE, window_of(), np.array([False, True, True]))
    exponents = found.trend.exponents if isinstance(found, MovingSites) else np.zeros((2, D))
    assert (exponents[:, 0] == 0.0).all()


def test_what_moves_sites_and_not_their_scale_is_not_followed():
    """The draws have a trend in the first, of which the prior's scale knows nothing."""

    class Shifted(Block):
        def prior(self, theta):
            return stated(np.asfortranarray(np.exp(0.4 * theta[1]) * np.eye(N)), theta[0] * np.ones(N))

    found = follow_trend(Shifted(), STANDING, CENTRE, window_of(), FREE)
    exponents = found.trend.exponents if isinstance(found, MovingSites) else np.zeros((2, D))
    assert (exponents[:, 0] == 0.0).all()

    class Still(Shifted):
        def prior(self, theta):
            return stated(np.eye(N, order="F"), theta[0] * np.ones(N))

    assert follow_trend(Still(), STANDING, CENTRE, window_of(), FREE) is STANDING


def test_a_power_that_the_sites_have_is_taken_into_account():
    block = Block(has_moving_sites=True)
    held = MovingSites(STANDING, np.zeros((2, N)), block.information(CENTRE, None))
    found = follow_trend(block, held, CENTRE, window_of(), FREE)
    assert (found.eta is held.eta, found.information is held.information) == (True, True)
    # At the centre a power of 1, and the likelihood's own factor there.
    np.testing.assert_allclose(found.sites.precision, np.exp(CENTRE[2]) * Block.precision, rtol=0.02)
    theta = CENTRE + [1.5, 0.5, 1.0]
    np.testing.assert_allclose(found.trend.at(theta), TRUTH.at(theta), rtol=0.05)


STILL = SiteTrend(CENTRE, np.zeros((2, D)), np.zeros(2))


@dataclass
class OfTwins(Block):
    """Two vectors of one covariance, and a site that reads another one."""

    trend: SiteTrend = STILL
    unlike: float = 0.1

    maps = object()

    @property
    def precision(self):
        return np.array([0.5, 1.0, 2.0, 0.5, 1.0, 2.0, 4.0]) + self.unlike * np.repeat([1.0, -1.0, 0.0], [3, 3, 1])


TWINS = np.arange(6).reshape(2, 3)


@pytest.fixture
def are_twins(monkeypatch):
    monkeypatch.setattr(site_fit, "sites_of_twins", lambda maps: [TWINS])
    monkeypatch.setattr(site_fit, "_growth", lambda block, centre, free: np.zeros(D))


@pytest.mark.usefixtures("are_twins")
@pytest.mark.parametrize("moves", [False, True])
def test_vectors_of_one_covariance_have_one_precision_where_hardly_more_is_left_by_it(moves):
    block = OfTwins(bend=0.3)
    held = MovingSites(STANDING, np.zeros((2, 0)), np.ones(1)) if moves else STANDING
    found = follow_trend(block, held, CENTRE, window_of(), FREE)
    sites = found.sites if moves else found
    np.testing.assert_array_equal(*sites.precision[TWINS])
    np.testing.assert_allclose(sites.precision[TWINS[0]], [0.5, 1.0, 2.0], atol=0.3)
    assert sites.precision[6] == pytest.approx(4.0, abs=0.3)


@pytest.mark.usefixtures("are_twins")
def test_vectors_that_are_seen_otherwise_keep_their_own_precision():
    assert follow_trend(OfTwins(unlike=0.4), STANDING, CENTRE, window_of(), FREE) is STANDING


def test_one_precision_is_the_least_squares_of_all():
    """In z, as the forces count."""
    window = replace(_window(OfTwins(bend=1.0, unlike=0.4), STANDING, *window_of().values(), CENTRE), twins=(TWINS,))
    found = _least_squares(window, STILL)

    def left(by: float) -> float:
        precision = found.sites.precision + by * np.isin(np.arange(N), TWINS[:, 1])
        linear = (window.slope + precision * window.eta).mean(axis=0)
        return float((window.variance * (window.slope - linear + precision * window.eta) ** 2).sum(axis=1).mean())

    assert left(0.0) == pytest.approx(found.left, rel=1e-9)
    assert min(left(0.01), left(-0.01)) > found.left



@pytest.mark.parametrize(
    ("block", "count", "free"),
    [
        (Block(STILL), COUNT, FREE),
        (Block(STILL, bend=2.0), COUNT, FREE),
        (Block(fixed_covariance=True), COUNT, FREE),
        (Block(), 19, FREE),
        (Block(), COUNT, np.zeros(D, dtype=bool)),
    ],
    ids=["nothing is left", "no trend takes what is", "the covariance stands still", "few draws", "none is free"],
)
def test_sites_stay_as_they_are_where_a_trend_has_nothing_to_give(block, count, free):
    assert follow_trend(block, STANDING, CENTRE, window_of(count), free) is STANDING


@pytest.mark.parametrize(("trend", "follows"), [(TRUTH, True), (STILL, False)])
def test_where_much_is_left_by_any_sites_a_smaller_share_is_enough(trend, follows):
    """Of what is left the first takes 5 %, and the other nothing that could be told."""
    found = follow_trend(Block(trend, bend=30.0), STANDING, CENTRE, window_of(), FREE)
    assert (found is not STANDING) == follows


def test_what_no_trend_takes_is_not_small():
    """So that the case above tests the share."""
    window = _window(Block(STILL, bend=2.0), STANDING, *window_of().values(), CENTRE)
    assert _least_squares(window, STILL).left > SMALL


def test_the_growth_of_the_prior_is_that_of_its_variance_and_nothing_where_it_has_none():
    class Bounded(Block):
        def prior(self, theta):
            (vector,) = super().prior(theta).vectors
            return stated(vector.covariance if theta[1] <= CENTRE[1] else -vector.covariance)

    np.testing.assert_allclose(_growth(Block(), CENTRE, FREE), [1.9, -0.4, 0.0], atol=1e-9)
    np.testing.assert_allclose(_growth(Bounded(), CENTRE, FREE), [1.9, 0.0, 0.0], atol=1e-9)


class OnAGrid(Block):
    def prior(self, theta):
        one, other = np.exp(1.5 * theta[0]) * np.eye(N), np.exp(0.4 * theta[0] - 0.4 * theta[1]) * np.eye(1)
        return StatedPrior(np.zeros(N), np.zeros(N), (StatedKronecker((one, other)),))


class OfRows(Block):
    def prior(self, theta):
        (vector,) = super().prior(theta).vectors
        return replace(super().prior(theta), vectors=(vector, replace(vector, covariance=3.0 * vector.covariance)))


class OfCoefficients(Block):
    design_shape, has_moving_design = (N, 2), False
    design = np.column_stack((np.ones(N), np.zeros(N)))

    def prior(self, theta):
        spread = np.exp([0.95 * theta[0] - 0.2 * theta[1], theta[1]])
        vector = StatedCoefficients(spread, np.zeros(2), spread)
        return StatedPrior(np.zeros(N), np.zeros(N), (vector,), self.design)


@pytest.mark.parametrize("form", [OnAGrid, OfRows, OfCoefficients])
def test_the_growth_is_that_of_what_sites_read_in_every_form(form):
    np.testing.assert_allclose(_growth(form(), CENTRE, FREE), [1.9, -0.4, 0.0], atol=1e-9)


def test_of_very_many_hyperparameters_none_is_looked_at():
    many, draws = MOST_COORDINATES + 1, ThinnedDraws(N)
    thetas, etas = window_of().values()
    for theta, eta in zip(thetas, etas, strict=True):
        draws.add(np.append(theta, np.zeros(many - D)), eta)
    centre, truth = np.append(CENTRE, np.zeros(many - D)), np.hstack((TRUTH.exponents, np.zeros((2, many - D))))
    block = Block(SiteTrend(centre, truth, TRUTH.log_most))
    assert follow_trend(block, STANDING, centre, draws, np.ones(many, dtype=bool)) is STANDING
    assert follow_trend(block, STANDING, centre, draws, np.arange(many) < 2) is not STANDING


def test_draws_without_a_slope_are_left_out():
    class Broken(Block):
        def likelihood(self, theta, eta):
            value, slope, none = super().likelihood(theta, eta)
            return value, np.where(theta[0] > CENTRE[0] + 1.5, np.nan, slope), none

    found = follow_trend(Broken(), STANDING, CENTRE, window_of(), FREE)
    np.testing.assert_allclose(found.sites.precision, Block.precision, rtol=0.05)


@pytest.mark.parametrize("usable", [0, 19])
def test_too_few_draws_with_a_slope_are_none(usable):
    class Broken(Block):
        seen = 0

        def likelihood(self, theta, eta):
            value, slope, none = super().likelihood(theta, eta)
            self.seen += 1
            return value, slope if self.seen <= usable else np.full(N, np.nan), none

    assert follow_trend(Broken(), STANDING, CENTRE, window_of(), FREE) is STANDING


def test_draws_without_a_power_are_left_out():
    class Broken(Block):
        def information(self, theta, eta):
            return super().information(theta, eta) * (np.nan if theta[0] > CENTRE[0] + 1.5 else 1.0)

    held = MovingSites(STANDING, np.zeros((2, N)), Block().information(CENTRE, None))
    found = follow_trend(Broken(has_moving_sites=True), held, CENTRE, window_of(), FREE)
    np.testing.assert_allclose(found.sites.precision, np.exp(CENTRE[2]) * Block.precision, rtol=0.05)


def test_what_is_left_is_that_of_a_regression_weighted_by_variances():
    window = _window(Block(TRUTH, bend=1.0), STANDING, *window_of().values(), CENTRE)
    found, left = _least_squares(window, TRUTH), 0.0
    by_linear, by_precision = np.array([TRUTH.at(CENTRE + moved) for moved in window.moved]).T
    for i in range(N):
        columns = np.column_stack((by_linear, -by_precision * window.eta[:, i]))
        exact, (square,), *_ = np.linalg.lstsq(columns, window.slope[:, i])
        left += window.eta[:, i].var() * square / len(window.eta)
        np.testing.assert_allclose((found.sites.linear[i], found.sites.precision[i]), exact, rtol=1e-8)
    assert found.left == pytest.approx(left, rel=1e-10)


def test_a_precision_is_not_negative():
    class Convex(Block):
        precision = np.linspace(-2.0, 4.0, N)

    window = _window(Convex(STILL), STANDING, *window_of().values(), CENTRE)
    found = _least_squares(window, STILL)
    assert (found.sites.precision[:2] == 0.0).all()
    np.testing.assert_allclose(found.sites.linear[:2], window.slope[:, :2].mean(axis=0))
    np.testing.assert_allclose(found.sites.precision[3:], Convex.precision[3:], atol=1e-6)


def test_a_site_that_stands_still_keeps_its_precision():
    draws, rng = ThinnedDraws(N), np.random.default_rng(1)
    for _ in range(COUNT):
        draws.add(CENTRE + rng.standard_normal(D), np.append(1.3, rng.standard_normal(N - 1)))
    held = GaussianSites(np.zeros(N), np.full(N, 0.8))
    found = _least_squares(_window(Block(STILL), held, *draws.values(), CENTRE), STILL)
    assert found.sites.precision[0] == 0.8
    slope = Block.linear[0] - Block.precision[0] * np.float32(1.3)
    assert found.sites.gradient(np.full(N, np.float32(1.3)))[0] == pytest.approx(slope)


def test_the_trend_is_the_most_likely_one():
    """Of half as many draws in normal residuals, and normal exponents and log M: along no line is another better."""
    window = _window(Block(TRUTH, bend=1.0), STANDING, *window_of().values(), CENTRE)
    growth = np.array([1.0, 0.2, 0.0])
    found = _fit(window, CENTRE, FREE, growth)

    def deviance(trend: SiteTrend) -> float:
        far = (trend.exponents[:, FREE] + np.array([[0.5], [1.0]]) * growth[FREE]) / 0.25
        value = 0.5 * COUNT * np.log(_least_squares(window, trend).left)
        return value + (far**2).sum() + ((trend.log_most / 2.0) ** 2).sum()

    rng = np.random.default_rng(3)
    for size in (1e-2, 0.1):
        for _ in range(20):
            exponents = found.exponents + size * rng.standard_normal((2, D)) * FREE
            other = SiteTrend(CENTRE, exponents, found.log_most + size * rng.standard_normal(2))
            assert deviance(other) > deviance(found)


@pytest.mark.parametrize("has_moving_sites", [False, True])
def test_derivatives_of_what_is_left_match_differences(has_moving_sites):
    block = Block(bend=0.5, has_moving_sites=has_moving_sites)
    sites = MovingSites(STANDING, np.zeros((2, N)), 0.7 * block.information(CENTRE, None))
    window = _window(block, sites, *window_of().values(), CENTRE)

    def trend(flat):
        return SiteTrend(CENTRE, flat[: 2 * D].reshape(2, D), flat[2 * D :])

    at = np.array([-0.6, 0.1, 0.2, -1.1, 0.0, -0.3, 0.3, 1.2])
    found = _least_squares(window, trend(at))
    exact = differences(lambda flat: _least_squares(window, trend(flat)).left, at)
    np.testing.assert_allclose([*found.by_exponents.ravel(), *found.by_log_most], exact, rtol=1e-5, atol=1e-6)


def test_sites_that_hardly_move_lose_no_digits():
    """Of a large count: ten thousand times as far from 0 as it is wide."""
    rng, draws = np.random.default_rng(1), ThinnedDraws(N)
    for _ in range(COUNT):
        draws.add(CENTRE + rng.standard_normal(D), 10.0 + 1e-3 * rng.standard_normal(N))
    window = _window(Block(STILL), STANDING, *draws.values(), CENTRE)
    found = _least_squares(window, STILL)
    np.testing.assert_allclose(found.sites.precision, Block.precision, rtol=1e-6)
    np.testing.assert_allclose(found.sites.linear, Block.linear, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n_sites", "most"), [(2, 200), (20_000, 100), (10**9, 40)])
def test_of_very_many_sites_fewer_draws_are_kept(n_sites, most):
    draws = ThinnedDraws(n_sites)
    for _ in range(most + 1):
        draws.add(np.zeros(1), np.zeros(2))
    assert len(draws.values()[0]) == most // 2 + 1


@pytest.mark.parametrize("count", [3, 200, 201, 457, 2000])
def test_thinned_draws_are_evenly_spaced_and_not_more_than_allowed(count):
    draws = ThinnedDraws(2)
    for i in range(count):
        draws.add(np.array([float(i)]), np.full(2, 0.5 * i))
    thetas, etas = draws.values()
    assert min(count, 100) <= len(thetas) <= 200
    steps = np.diff(thetas[:, 0])
    assert (steps == steps[0]).all()
    assert count - thetas[-1, 0] <= steps[0]
    np.testing.assert_array_equal(etas, 0.5 * thetas * np.ones(2))
