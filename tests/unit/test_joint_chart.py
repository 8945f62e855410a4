"""The joint chart: a Cholesky's adjoint, latent values placed at one θ, and the log density of θ and z."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import StatedDense, StatedPrior
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart, MovingSites, SiteTilt, SiteTrend
from pymc_rmhmc.latent.joint_target import JointTarget
from pymc_rmhmc.latent.latent_blocks import conditional_from, sites_at
from pymc_rmhmc.latent.solvers import site_space
from tests.unit.placing import Placing, dense_block
from tests.unit.toys import kernel

N = 6
# With no precision a site is a tilt; with neither it is a latent value that nothing observes.
PRECISIONS = {
    "all": np.array([0.4, 2.0, 0.1, 5.0, 1.0, 0.7]),
    "some": np.array([0.4, 0.0, 0.1, 0.0, 0.0, 0.7]),
    "none": np.zeros(N),
}


def symmetric(rng: np.random.Generator, n: int) -> np.ndarray:
    matrix = rng.standard_normal((n, n))
    return matrix + matrix.T


def covariance() -> np.ndarray:
    return np.asfortranarray(kernel(N, jitter=1e-2))


def make(precision: str = "some", seed: int = 0) -> tuple[np.ndarray, np.ndarray, GaussianSites]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal(N), covariance(), GaussianSites(rng.standard_normal(N), PRECISIONS[precision])


def dense(mean: np.ndarray, prior: np.ndarray, sites: GaussianSites) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the prior times the sites."""
    spread = np.linalg.inv(np.linalg.inv(prior) + np.diag(sites.precision))
    return spread @ (np.linalg.solve(prior, mean) + sites.linear), spread


def linear_part(conditional: Placing) -> np.ndarray:
    origin = conditional.place(np.zeros(conditional.n_noise))
    return np.column_stack([conditional.place(e) - origin for e in np.eye(conditional.n_noise)])


def differences(function, at: np.ndarray, h: float = 1e-5) -> np.ndarray:
    return np.array([(function(at + h * e) - function(at - h * e)) / (2 * h) for e in np.eye(at.size)])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_noise_is_placed_as_the_prior_times_the_sites(precision):
    stated = make(precision)
    conditional = dense_block(*stated)
    mean, spread = dense(*stated)
    part = linear_part(conditional)
    np.testing.assert_allclose(conditional.place(np.zeros(conditional.n_noise)), mean, atol=1e-10)
    np.testing.assert_allclose(part @ part.T, spread, atol=1e-10)
    z = np.random.default_rng(1).standard_normal(conditional.n_noise)
    np.testing.assert_allclose(conditional.place(z), mean + part @ z, atol=1e-10)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_evidence_is_what_normalises_prior_times_sites(precision):
    stated = make(precision)
    mean, prior, sites = stated
    eta = np.random.default_rng(2).standard_normal(N)
    exact = multivariate_normal.logpdf(eta, mean, prior) + sites.log_density(eta)
    exact -= multivariate_normal.logpdf(eta, *dense(*stated))
    assert dense_block(*stated).log_evidence == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("weakest", [1.0, 0.0], ids=["all strong", "one without precision"])
def test_sites_that_say_far_more_than_the_prior_lose_no_digits(weakest):
    """As large counts make them: w̄K is 1e9 and the evidence is made of terms of that size."""
    mean, prior, _ = make()
    precision = 1e8 * np.array([1.0, 3.0, 0.5, weakest, 2.0, 1.0])
    target, seen = np.random.default_rng(13).standard_normal(N), precision > 0.0
    sites = GaussianSites(precision * target, precision)
    conditional = dense_block(mean, prior, sites)
    spread = prior[np.ix_(seen, seen)] + np.diag(1.0 / precision[seen])
    exact = multivariate_normal.logpdf(target[seen], mean[seen], spread)
    exact += 0.5 * (precision[seen] * target[seen] ** 2 + np.log(2 * np.pi / precision[seen])).sum()
    # To a hundred roundings: with the dual of weak sites it would be wrong by as much as w̄K times more.
    assert conditional.log_evidence == pytest.approx(exact, rel=100.0 * np.finfo(float).eps)
    centre, spread = dense(mean, prior, sites)
    np.testing.assert_allclose(conditional.place(np.zeros(2 * N))[seen], centre[seen], atol=1e-9)
    # A prior that is narrower by one part in ten thousand: differences of such evidences are what θ sees.
    moved = dense_block(mean, np.asfortranarray(1.0001 * prior), sites)
    change = 1e-4 * (prior * conditional.pullback(np.zeros(N))[2]).sum()
    assert moved.log_evidence - conditional.log_evidence == pytest.approx(change, rel=1e-3)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_pullbacks_match_differences(precision):
    rng = np.random.default_rng(3)
    mean, prior, sites = make(precision)
    z, weights = rng.standard_normal(2 * N), rng.standard_normal(N)

    def value(z, mean, prior):
        conditional = dense_block(mean, np.asfortranarray(prior), sites)
        return weights @ np.sin(conditional.place(z)) + conditional.log_evidence

    conditional = dense_block(mean, prior, sites)
    by_z, by_mean, by_prior = conditional.pullback(weights * np.cos(conditional.place(z)))
    np.testing.assert_allclose(by_z, differences(lambda at: value(at, mean, prior), z), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(by_mean, differences(lambda at: value(z, at, prior), mean), rtol=1e-6, atol=1e-7)
    for _ in range(4):
        along, h = symmetric(rng, N), 1e-6
        slope = (value(z, mean, prior + h * along) - value(z, mean, prior - h * along)) / (2 * h)
        assert (by_prior * along).sum() == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_recovered_noise_is_placed_at_the_values_and_has_their_conditional_law(precision):
    rng = np.random.default_rng(4)
    conditional = dense_block(*make(precision))
    values, noise = 2.0 * rng.standard_normal(N), rng.standard_normal(2 * N)
    np.testing.assert_allclose(conditional.place(conditional.enter(values, noise)), values, atol=1e-9)
    origin = conditional.enter(values, np.zeros(2 * N))
    spread = np.column_stack([conditional.enter(values, e) - origin for e in np.eye(2 * N)])
    part = linear_part(conditional)
    inverse = np.linalg.pinv(part)
    np.testing.assert_allclose(spread, np.eye(2 * N) - inverse @ part, atol=1e-8)
    np.testing.assert_allclose(origin, inverse @ (values - conditional.place(np.zeros(2 * N))), atol=1e-8)


def test_whitening_is_undone_and_its_density_is_scipys():
    mean, prior, sites = make()
    conditional = dense_block(mean, prior, sites)
    values = np.random.default_rng(5).standard_normal(N)
    operator = conditional.inner.operator
    whitened = operator.undraw(values - mean)
    np.testing.assert_allclose(mean + operator.draw(whitened), values, atol=1e-12)
    np.testing.assert_allclose(np.linalg.cholesky(prior) @ whitened, values - mean, atol=1e-12)
    noise = np.random.default_rng(6).standard_normal(2 * N)
    for centred in (True, False):
        conditional = dense_block(mean, prior, sites, shift=0.3, centred=centred)
        placed = conditional.place(noise)
        nu = np.linalg.solve(np.linalg.cholesky(prior), placed - mean)
        np.testing.assert_allclose(conditional.latents, placed - 0.3 if centred else nu, atol=1e-10)
        exact = multivariate_normal.logpdf(placed, mean, prior) if centred else norm.logpdf(nu).sum()
        assert conditional.log_prior() == pytest.approx(exact, abs=1e-9)
        entered = conditional.enter(conditional.latents, noise)
        np.testing.assert_allclose(conditional.place(entered), placed, atol=1e-9)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_marginals_are_those_of_the_prior_times_the_sites(precision):
    stated = make(precision)
    mean, spread = dense(*stated)
    found = dense_block(*stated).marginals()
    np.testing.assert_allclose(found[0], mean, atol=1e-10)
    np.testing.assert_allclose(found[1], spread.diagonal(), atol=1e-10)


def test_an_ill_conditioned_covariance_still_has_a_gradient():
    rng = np.random.default_rng(6)
    mean, _, sites = make("all")
    basis = np.linalg.qr(rng.standard_normal((N, N)))[0]
    prior = np.asfortranarray((basis * np.geomspace(1.0, 1e-10, N)) @ basis.T)
    z = rng.standard_normal(2 * N)
    conditional = dense_block(mean, prior, sites)
    pulled = conditional.pullback(np.cos(conditional.place(z)))
    assert all(np.isfinite(part).all() for part in pulled)

    def value(at):
        held = dense_block(mean, np.asfortranarray(at), sites)
        return np.sin(held.place(z)).sum() + held.log_evidence

    root = np.linalg.cholesky(prior)
    for _ in range(3):
        along, h = root @ symmetric(rng, N) @ root.T, 1e-4
        slope = (value(prior + h * along) - value(prior - h * along)) / (2 * h)
        # A covariance of condition 1e10 has six digits in its small directions.
        assert (pulled[2] * along).sum() == pytest.approx(slope, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(
    ("where", "cause"), [("indefinite", "NOT_POSITIVE_DEFINITE"), ("nan", "NON_FINITE"), ("mean", "NON_FINITE")]
)
def test_a_prior_that_cannot_be_factorised_says_why(where, cause):
    mean, prior, sites = make()
    if where == "mean":
        mean[2] = np.inf
    else:
        prior[3, 3] = {"indefinite": -1.0, "nan": np.nan}[where]
    with pytest.raises(PriorFailure) as caught:
        dense_block(mean, prior, sites)
    assert caught.value.failure is Failure[cause]


@dataclass
class ToyBlock:
    """K = exp(2θ₀) exp(-½ (d / exp θ₁)²) + jitter, shift θ₂ x; Gaussian data of fixed or of sampled scale."""

    y: np.ndarray
    centred: bool
    sigma: float | None = None
    inputs: np.ndarray = field(default_factory=lambda: np.linspace(0.0, 1.0, N))
    jitter: float = 1e-3
    fixed_covariance: bool = False
    design_shape = maps = None
    rows = None
    is_sum = False
    has_moving_design = False
    has_moving_sites = True

    def information(self, theta, eta):
        return np.exp(-2.0 * theta[3] + 0.0 * eta.mean(axis=0)) * (1.0 + 0.1 * theta[0])

    def information_pullback(self, theta, eta, bar):
        level = np.exp(-2.0 * theta[3]) * bar.sum()
        return np.array([0.1 * level, 0.0, 0.0, -2.0 * level * (1.0 + 0.1 * theta[0])])

    @property
    def n_sites(self) -> int:
        return self.y.size

    size = n_sites

    def prior(self, theta):
        square = (self.inputs[:, None] - self.inputs) ** 2 * np.exp(-2.0 * theta[1])
        smooth = np.exp(2.0 * theta[0] - 0.5 * square)
        return self.stated(theta, np.asfortranarray(smooth + self.jitter * np.eye(self.n_sites)))

    def stated(self, theta, covariance):
        shift = theta[2] * self.inputs
        vector = StatedDense(covariance, np.zeros_like(shift), self.centred, moves=not self.fixed_covariance)
        return StatedPrior(shift, shift, (vector,))

    def forget(self):
        pass

    def prior_pullback(self, theta, mean_bar, vector_bars, design_bar):
        (covariance_bar,) = vector_bars
        square = (self.inputs[:, None] - self.inputs) ** 2 * np.exp(-2.0 * theta[1])
        smooth = np.exp(2.0 * theta[0] - 0.5 * square) * covariance_bar
        return np.array([2.0 * smooth.sum(), (square * smooth).sum(), self.inputs @ mean_bar, 0.0])

    def compiled_likelihood(self):
        return self.likelihood, ()

    def likelihood(self, theta, eta):
        sigma = np.exp(theta[3]) if self.sigma is None else self.sigma
        scaled = (self.y - eta) / sigma
        by_scale = 0.0 if self.sigma is not None else (scaled**2 - 1.0).sum()
        return norm.logpdf(scaled).sum() - self.n_sites * np.log(sigma), scaled / sigma, np.array([0, 0, 0, by_scale])


@dataclass
class ToyDensity:
    blocks: tuple[ToyBlock, ...]

    def to_model(self, theta, latents):
        return latents

    def from_model(self, theta, values):
        return values

    def rest(self, theta):
        return float(norm.logpdf(theta, 0.2, 1.5).sum()), (0.2 - theta) / 1.5**2


THETA = np.array([0.1, -0.9, 0.4, -0.3])


def bent(centre: np.ndarray, factor: np.ndarray) -> MarginalChart:
    """A chart in which every parameter has skewness and tails of its own."""
    d, ramp = centre.size, np.arange(1.0, centre.size + 1.0) / centre.size
    return MarginalChart(np.full(d, -0.1), factor, centre, 0.5 + ramp, 0.4 - ramp, 0.6 + 0.7 * ramp)


def joint(sigma: float | None = None, *, moving: bool = False, trend: bool = False) -> JointTarget:
    rng = np.random.default_rng(7)
    blocks = (ToyBlock(rng.standard_normal(N), True, sigma), ToyBlock(rng.standard_normal(N), False, sigma))
    precision = [rng.exponential(1.0, N), PRECISIONS["some"]] if sigma is None else [np.full(N, sigma**-2)] * 2
    linear = [rng.standard_normal(N) if sigma is None else block.y / sigma**2 for block in blocks]
    factor = np.linalg.cholesky(0.1 * np.eye(4) + 0.05)
    sites = [GaussianSites(*pair) for pair in zip(linear, precision, strict=True)]
    if moving:
        sites = [MovingSites(s, np.zeros((2, N)), rng.exponential(1.0, N) * (np.arange(N) != 2)) for s in sites]
    if trend:  # of one block a power, a trend and a tilt, of the other no power
        exponents = np.array([[[0.3, -0.5, 0.0, 0.2], [-1.7, 0.4, 0.6, 0.0]], [[-0.9, 0, 0.2, 0], [1.8, -0.4, 0, 0]]])
        trends = [SiteTrend(THETA - 0.1, each, np.array([-0.5, 1.5])) for each in exponents]
        blocks[1].has_moving_sites = False
        held = [GaussianSites(*pair) for pair in zip(linear, precision, strict=True)]
        tilts = [SiteTilt(THETA - 0.4, np.array([0, 3]), rng.standard_normal((2, N))) for _ in blocks]
        sites = [MovingSites(held[0], np.zeros((2, N)), rng.exponential(1.0, N), trends[0], tilts[0]),
                 MovingSites(held[1], np.zeros((2, 0)), np.ones(1), trends[1], tilts[1])]  # fmt: skip
    return JointTarget(ToyDensity(blocks), sites, bent(THETA, factor))


def test_the_chart_of_the_hyperparameters_is_undone():
    chart, theta = joint().chart, np.array([0.5, -1.0, 0.2, 0.1])
    np.testing.assert_allclose(chart.place(chart.recover(theta)).theta, theta, atol=1e-12)


def test_its_volume_is_the_determinant_of_its_derivative_and_its_pullback_the_transpose():
    chart, standard = joint().chart, np.array([0.5, -1.0, 0.2, 0.1])
    jacobian = differences(lambda at: chart.place(at).theta, standard).T
    placed = chart.place(standard)
    exact = np.linalg.slogdet(jacobian)[1] - np.linalg.slogdet(chart.factor)[1] - np.log(chart.spread).sum()
    assert placed.log_volume == pytest.approx(exact, abs=1e-8)
    weights = np.array([0.3, -0.4, 1.0, 0.7])
    slopes = differences(lambda at: weights @ (held := chart.place(at)).theta + held.log_volume, standard)
    np.testing.assert_allclose(chart.pullback(placed, weights), slopes, rtol=1e-7, atol=1e-7)


def test_a_chart_with_no_bend_is_linear():
    rng = np.random.default_rng(1)
    factor, centre = np.linalg.cholesky(np.eye(3) + 0.3), rng.standard_normal(3)
    standard = 30.0 * rng.standard_normal(3)
    placed = MarginalChart.linear(centre, factor).place(standard)
    np.testing.assert_allclose(placed.theta, centre + factor @ standard, rtol=1e-13)
    assert placed.log_volume == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("follows", [{}, {"moving": True}, {"trend": True}], ids=["nothing", "information", "a trend"])
def test_the_joint_gradient_matches_differences(follows):
    target = joint(**follows)
    position = np.random.default_rng(8).standard_normal(target.size)
    slopes = differences(lambda at: target.at(at).log_density, position)
    np.testing.assert_allclose(target.at(position).gradient, slopes, rtol=1e-6, atol=1e-6)
    noises = np.random.default_rng(9).standard_normal((2, target.size - 4))
    value, gradient = target.expectation(THETA, noises)
    standard = target.chart.recover(THETA)
    held = [target.at(np.concatenate((standard, noise))).log_density for noise in noises]
    volume = target.chart.place(standard).log_volume + 0.5 * standard @ standard
    assert value == pytest.approx(np.mean(held) - volume, abs=1e-10)
    slopes = differences(lambda at: target.expectation(at, noises)[0], THETA)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("trend", [False, True])
def test_the_joint_density_is_the_models_but_for_the_law_of_the_placed_values(trend):
    target = joint(trend=trend)
    rng = np.random.default_rng(9)
    for _ in range(3):
        point = target.at(rng.standard_normal(target.size))
        standard = point.position[: target.n_theta]
        volume = target.chart.place(standard).log_volume
        in_chart = point.log_density - 0.5 * standard @ standard - volume
        exact = target.density.rest(point.theta)[0]
        stated = exact
        for block, held, eta in zip(target.density.blocks, target.sites, point.eta, strict=True):
            stated_prior = block.prior(point.theta)
            mean, prior = stated_prior.mean, stated_prior.vectors[0].covariance
            sites = sites_at(block, point.theta, held)
            exact += multivariate_normal.logpdf(eta, mean, prior) + block.likelihood(point.theta, eta)[0]
            stated += block.likelihood(point.theta, eta)[0]
            nu = np.linalg.solve(np.linalg.cholesky(prior), eta - mean)
            stated += multivariate_normal.logpdf(eta, mean, prior) if block.centred else norm.logpdf(nu).sum()
            in_chart += multivariate_normal.logpdf(eta, *dense(mean, prior, sites))
        assert in_chart == pytest.approx(exact, abs=1e-7)
        assert target.model_log_density(point) == pytest.approx(stated, abs=1e-7)


def test_with_the_likelihood_for_sites_what_is_left_is_the_marginal_likelihood():
    """Then z is standard normal whatever θ is."""
    sigma = 0.6
    target = joint(sigma)
    rng = np.random.default_rng(10)
    for _ in range(3):
        position = rng.standard_normal(target.size)
        point = target.at(position)
        exact = target.density.rest(point.theta)[0]
        for block in target.density.blocks:
            stated_prior = block.prior(point.theta)
            mean, prior = stated_prior.mean, stated_prior.vectors[0].covariance
            exact += multivariate_normal.logpdf(block.y, mean, prior + sigma**2 * np.eye(N))
        in_chart = point.log_density - 0.5 * position[:4] @ position[:4] - target.chart.place(position[:4]).log_volume
        assert in_chart == pytest.approx(exact, abs=1e-8)
        np.testing.assert_allclose(point.gradient[4:], 0.0, atol=1e-8)


def test_sites_that_follow_a_noise_leave_nothing_at_any_noise():
    """z is then standard normal whatever θ is, the noise among it; sites that stand still fit at one noise alone."""
    rng = np.random.default_rng(10)
    blocks = (PlainInformation(rng.standard_normal(N), True), PlainInformation(rng.standard_normal(N), False))
    at = np.exp(-2.0 * THETA[3])
    standing = [GaussianSites(block.y * at, np.full(N, at)) for block in blocks]
    moving = [MovingSites(sites, np.zeros((2, N)), np.full(N, at)) for sites in standing]
    chart = bent(THETA, 0.3 * np.eye(4))
    position = np.concatenate(([0.2, -0.4, 0.3, 1.5], rng.standard_normal(4 * N)))
    residual = {}
    for name, sites in (("standing", standing), ("moving", moving)):
        point = JointTarget(ToyDensity(blocks), sites, chart).at(position)
        residual[name] = np.abs(point.gradient[4:]).max()
        sigma, volume = np.exp(point.theta[3]), chart.place(position[:4]).log_volume
        exact = norm.logpdf(point.theta, 0.2, 1.5).sum()
        for block in blocks:
            stated_prior = block.prior(point.theta)
            mean, prior = stated_prior.mean, stated_prior.vectors[0].covariance
            exact += multivariate_normal.logpdf(block.y, mean, prior + sigma**2 * np.eye(N))
    assert point.log_density - 0.5 * position[:4] @ position[:4] - volume == pytest.approx(exact, abs=1e-8)
    assert residual["moving"] < 1e-8
    assert residual["standing"] > 0.1


@pytest.mark.parametrize("trend", [False, True])
def test_entering_reproduces_the_values_of_both_forms(trend):
    target = joint(trend=trend)
    rng = np.random.default_rng(11)
    theta, values = THETA + 0.3, [rng.standard_normal(N), rng.standard_normal(N)]
    first, second = (target.enter(theta, values, rng) for _ in range(2))
    assert not np.allclose(first, second)
    for position in (first, second):
        point = target.at(position)
        np.testing.assert_allclose(point.theta, theta, atol=1e-12)
        np.testing.assert_allclose(point.eta[0], values[0] + theta[2] * target.density.blocks[0].inputs, atol=1e-9)
        for latents, value in zip(target.latents(point), values, strict=True):
            np.testing.assert_allclose(latents, value, atol=1e-8)


def test_a_trend_multiplies_b_and_the_precision_each_by_its_own_function_of_the_hyperparameters():
    most, exponents = np.array([0.5, 7.0]), np.array([[0.5, 0.0, 0.0, 0.0], [0.0, -2.0, 0.0, 0.0]])
    trend = SiteTrend(THETA, exponents, np.log(most))
    np.testing.assert_allclose(trend.at(THETA), 1.0, rtol=1e-14)
    small, large = (trend.at(THETA + np.array([sign * 20.0, -sign * 8.0, 0.0, 0.0])) for sign in (-1.0, 1.0))
    # Downwards a power of e without end, upwards no more than the bound.
    np.testing.assert_allclose(small, np.exp([-10.0, -16.0]) * (1.0 + 1.0 / most), rtol=1e-3)
    np.testing.assert_allclose(large, 1.0 + most, rtol=1e-3)
    theta, weights = THETA + 0.7, np.array([0.3, -1.1])
    slopes = differences(lambda at: weights @ np.log(trend.at(at)), theta)
    np.testing.assert_allclose(trend.pullback(theta, weights), slopes, rtol=1e-8, atol=1e-9)


class PlainInformation(ToyBlock):
    """The information of normal data."""

    def information(self, theta, eta):
        return np.full(N, np.exp(-2.0 * theta[3]))

    def information_pullback(self, theta, eta, bar):
        return np.array([0.0, 0.0, 0.0, -2.0 * np.exp(-2.0 * theta[3]) * bar.sum()])


class FixedBlock(ToyBlock):
    """The covariance of one θ at every θ."""

    def prior(self, theta):
        return self.stated(theta, super().prior(THETA).vectors[0].covariance)

    def forget(self):
        pass

    def prior_pullback(self, theta, mean_bar, vector_bars, design_bar):
        return np.array([0.0, 0.0, self.inputs @ mean_bar, 0.0])


@pytest.mark.parametrize("with_sites", [False, True])
def test_the_factors_of_a_covariance_that_does_not_move_are_made_once(with_sites):
    rng, moving = np.random.default_rng(12), joint()
    fixed = [FixedBlock(block.y, block.centred, fixed_covariance=True) for block in moving.density.blocks]
    target = JointTarget(ToyDensity(tuple(fixed)), joint(moving=with_sites).sites, moving.chart)
    positions = rng.standard_normal((2, target.size))
    first, second = (target.at(position) for position in positions)
    made = [target.conditional(0, point.theta, sites_at(fixed[0], point.theta, target.sites[0])) for point in
            (first, second)]  # fmt: skip
    assert made[1].operator.factor is made[0].operator.factor
    slopes = differences(lambda at: target.at(at).log_density, positions[1])
    np.testing.assert_allclose(second.gradient, slopes, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("index", "value", "cause"),
    [(0, 1e4, "NON_FINITE"), (1, 30.0, "NOT_POSITIVE_DEFINITE"), (3, -400.0, "NON_FINITE"), (2, np.nan, "NON_FINITE")],
)
def test_a_failure_in_a_trajectory_is_a_value(index, value, cause):
    target = joint()
    for block in target.density.blocks:
        block.jitter = 0.0
    centre = THETA.copy()
    centre[index] = value
    target = JointTarget(target.density, target.sites, MarginalChart.linear(centre, np.eye(4)))
    with np.errstate(all="ignore"):
        assert target.at(np.zeros(target.size)).failure is Failure[cause]


def test_a_placement_keeps_no_covariance():
    """A chain keeps several: the factor is all that it needs, to say where the model's variable is."""
    mean, prior, sites = make()
    placed = dense_block(mean, prior, sites).inner.place(np.zeros(2 * N))
    (term,) = placed.terms
    kept = [each for each in (*vars(term.operator).values(), term.design) if np.ndim(each) == 2]
    assert len(kept) == 1
    assert kept[0] is term.operator.factor


def test_rows_of_a_covariance_and_sites_that_stay_are_weighed_once(monkeypatch):
    mean, prior, sites = make()
    where, calls = np.arange(2 * N).reshape(2, N), []
    block = ToyBlock(mean, True, fixed_covariance=True)
    block.rows = where
    stated = StatedPrior(np.zeros(2 * N), np.zeros(2 * N), (StatedDense(prior, np.zeros(N), True, moves=False),))
    both = GaussianSites(np.tile(sites.linear, 2), np.tile(sites.precision, 2))
    first = conditional_from(block, stated, both)
    usual = site_space.weigh
    monkeypatch.setattr(site_space, "weigh", lambda *given: calls.append(1) or usual(*given))
    again = conditional_from(block, stated, both, first)
    assert not calls
    noise = np.random.default_rng(3).standard_normal(4 * N)
    np.testing.assert_array_equal(again.place(noise).eta, first.place(noise).eta)
