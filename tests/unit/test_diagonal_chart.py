"""Coefficients placed by noise: both forms against dense Gaussian algebra and differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal, norm

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.latent.charts import GaussianSites, MovingSites
from pymc_rmhmc.latent.charts.moving_sites import RaisedSites
from pymc_rmhmc.latent.solvers.dual import gram, weigh
from tests.unit.placing import Placing, coefficients, form_of

SHAPES = {
    "many observations": (9, 4), "as many": (5, 5), "many coefficients": (4, 9), "groups": (12, 7),
    "groups alone": (6, 4), "crossed groups": (33, 17), "groups of one": (6, 9), "groups of one and crossed": (9, 15),
}  # fmt: skip
CASES = [(shape, kind) for shape in SHAPES for kind in ("dense", "sparse")]
FORMS = {
    "many observations": "LatentSpace", "many coefficients": "SiteSpace",
    "groups": "LatentSpace", "groups alone": "LatentSpace", "crossed groups": "LatentSpace",
    "groups of one": "SiteSpace", "groups of one and crossed": "SiteSpace",
}  # fmt: skip
MOVING_FORMS = {
    ("many observations", "sparse"): "LatentSpace", ("many coefficients", "sparse"): "SiteSpace",
    ("groups", "sparse"): "LatentSpace", ("groups of one", "sparse"): "SiteSpace",
}  # fmt: skip


class Stated:
    """A design, prior and sites, with some precisions and one spread at 0; sites stand, or are raised to a power."""

    def __init__(
        self, shape: str, kind: str, power: float | None = None, *, moving: bool = False
    ) -> None:
        rng, self.moving = np.random.default_rng(0), moving
        n, k = self.n, self.k = SHAPES[shape]
        self.matrix = rng.standard_normal((n, k)) * (rng.random((n, k)) < (0.4 if kind == "sparse" else 1.0))
        if "groups" in shape:  # one of them without an observation, and an observation without one
            sizes = {"groups": 5, "groups alone": k, "crossed groups": 11}
            indicators = [indicator(n, sizes.get(shape, n), rng)]
            if "crossed" in shape:  # and a column that all observations have
                indicators.append(indicator(n, 6, rng)[rng.permutation(n), :5])
            groups = np.hstack(indicators)
            self.matrix[:, : groups.shape[1]] = groups
            self.matrix = self.matrix[:, rng.permutation(k)]
        self.design = sparse.csr_array(self.matrix) if kind == "sparse" else self.matrix
        self.mean, self.spread = rng.standard_normal(n), rng.standard_normal(k)
        self.spread[1] = 0.0
        self.location, self.scale = rng.standard_normal(k), rng.uniform(0.5, 2.0, k)
        precision = rng.exponential(1.0, n)
        precision[2] = 0.0
        self.standing = GaussianSites(rng.standard_normal(n), precision)
        self.sites = self.standing if power is None else self.raised(power)

    def raised(self, power: float, growth: tuple[float, float] = (1.0, 1.0)) -> RaisedSites:
        held, (by_linear, by_precision) = self.standing, power * np.array(growth)
        moving = MovingSites(held, np.zeros((2, self.n)), np.array([2.0]))
        given = by_linear * held.linear, by_precision * held.precision
        return RaisedSites(*given, moving, np.array([power]), np.array(growth), given[0])

    def conditional(self, mean=None, spread=None, like=None, sites=None, design=None) -> Placing:
        mean = self.mean if mean is None else mean
        spread = self.spread if spread is None else spread
        sites = self.sites if sites is None else sites
        design = self.design if design is None else design
        return coefficients(design, mean, spread, self.location, self.scale, sites, like, moving=self.moving)

    def dense(self):
        """Mean and covariance of y under the prior times the sites."""
        scaled = self.matrix * self.spread
        spread = np.linalg.inv(np.eye(self.k) + scaled.T @ (self.sites.precision[:, None] * scaled))
        return spread @ (scaled.T @ self.sites.gradient(self.mean)), spread, scaled


def indicator(n: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Columns without a row in common: the last one and the last row are empty."""
    columns = np.zeros((n, size))
    columns[np.arange(n - 1), np.arange(n - 1) % (size - 1)] = rng.uniform(0.5, 2.0, n - 1)
    return columns


def differences(function, at: np.ndarray, h: float = 1e-5) -> np.ndarray:
    return np.array([(function(at + h * e) - function(at - h * e)) / (2 * h) for e in np.eye(at.size)])


@pytest.fixture(
    params=[
        # Every pair of a kind, a power and a design that moves, for every shape.
        (shape, *case)
        for shape in SHAPES
        for case in (("dense", None, False), ("dense", 0.3, True), ("sparse", None, True), ("sparse", 0.3, False))
    ],
    ids=lambda case: ", ".join((*case[:2], "raised" if case[2] else "standing", "moving" if case[3] else "constant")),
)
def stated(request) -> Stated:
    *given, moving = request.param
    return Stated(*given, moving=moving)


@pytest.mark.slow
@pytest.mark.parametrize("power", [None, 0.3])
@pytest.mark.parametrize(("shape", "kind"), CASES)
def test_the_pullback_by_a_moving_design_matches_differences(shape, kind, power):
    stated, rng = Stated(shape, kind, power, moving=True), np.random.default_rng(7)
    conditional = stated.conditional()
    z, weights = rng.standard_normal(conditional.n_noise), rng.standard_normal(stated.n)

    def value(entries):
        design = stated.design.copy()
        if kind == "sparse":
            design.data[:] = entries
        else:
            design[:] = entries.reshape(design.shape)
        moved = stated.conditional(design=design)
        return weights @ np.sin(moved.place(z)) + moved.log_evidence

    *_, (_, bar) = conditional.pullback(weights * np.cos(conditional.place(z)))
    entries = stated.design.data if kind == "sparse" else stated.design.ravel()
    np.testing.assert_allclose(bar.ravel(), differences(value, entries), rtol=1e-6, atol=1e-6)


def test_a_design_that_is_not_finite_is_a_failure():
    for shape, kind in CASES:
        stated = Stated(shape, kind, moving=True)
        (stated.design.data if kind == "sparse" else stated.design).flat[0] = np.inf
        with pytest.raises(PriorFailure) as caught:
            stated.conditional()
        assert caught.value.failure is Failure.NON_FINITE


@pytest.mark.parametrize(("shape", "form"), FORMS.items())
def test_the_form_is_the_cheapest(shape, form):
    assert form_of(Stated(shape, "dense").conditional()) == form


@pytest.mark.parametrize(("case", "form"), MOVING_FORMS.items())
def test_the_form_of_a_moving_design_is_the_cheapest_that_holds_at_every_theta(case, form):
    stated = Stated(*case, moving=True)
    first = stated.conditional()
    again = stated.conditional(like=first, design=2.0 * stated.design)
    assert form_of(first) == form_of(again) == form


def y_of(stated: Stated, conditional: Placing) -> np.ndarray:
    return (conditional.latents - stated.location) / stated.scale


def test_noise_is_placed_as_the_prior_times_the_sites(stated):
    conditional = stated.conditional()
    centre, spread, scaled = stated.dense()

    def place(noise):
        eta = conditional.place(noise)
        np.testing.assert_allclose(eta, stated.mean + scaled @ y_of(stated, conditional), atol=1e-10)
        return y_of(stated, conditional)

    np.testing.assert_allclose(place(np.zeros(conditional.n_noise)), centre, atol=1e-10)
    part = np.column_stack([place(e) - centre for e in np.eye(conditional.n_noise)])
    np.testing.assert_allclose(part @ part.T, spread, atol=1e-10)
    mean, variance = conditional.marginals()
    np.testing.assert_allclose(mean, stated.mean + scaled @ centre, atol=1e-10)
    np.testing.assert_allclose(variance, np.diag(scaled @ spread @ scaled.T), atol=1e-10)


def test_the_evidence_is_what_normalises_prior_times_sites(stated):
    centre, spread, scaled = stated.dense()
    y = np.random.default_rng(1).standard_normal(stated.k)
    exact = norm.logpdf(y).sum() + stated.sites.log_density(stated.mean + scaled @ y)
    exact -= multivariate_normal.logpdf(y, centre, spread)
    assert stated.conditional().log_evidence == pytest.approx(exact, abs=1e-9)


def test_pullbacks_match_differences(stated):
    rng = np.random.default_rng(2)
    first = stated.conditional(spread=stated.spread + 1.0)
    z, weights = rng.standard_normal(first.n_noise), rng.standard_normal(stated.n)

    def value(z, mean, spread):
        conditional = stated.conditional(mean, spread)
        return weights @ np.sin(conditional.place(z)) + conditional.log_evidence

    conditional = stated.conditional(like=first)
    by_z, by_mean, by_spread = conditional.pullback(weights * np.cos(conditional.place(z)))
    by_spread = by_spread[0] if stated.moving else by_spread
    mean, spread, near = stated.mean, stated.spread, {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(by_z, differences(lambda at: value(at, mean, spread), z), **near)
    np.testing.assert_allclose(by_mean, differences(lambda at: value(z, at, spread), mean), **near)
    np.testing.assert_allclose(by_spread, differences(lambda at: value(z, mean, at), spread), **near)


@pytest.mark.parametrize("growth", [(1.0, 1.0), (0.6, 0.2), (3.0, 5.0)])
@pytest.mark.parametrize("power", [0.3, 1.0, 20.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_pullback_by_the_multiples_of_the_sites_matches_differences(shape, power, growth):
    stated, rng = Stated(shape, "dense"), np.random.default_rng(4)
    at = stated.raised(power, growth)
    conditional = stated.conditional(sites=at, like=stated.conditional(sites=stated.raised(2.5)))
    z, weights = rng.standard_normal(conditional.n_noise), rng.standard_normal(stated.n)

    def value(log_growth):
        sites = stated.raised(power, tuple(np.exp(log_growth)))
        moved = stated.conditional(sites=sites, like=conditional)
        eta = moved.place(z)
        return weights @ np.sin(eta) - sites.log_density(eta) + moved.log_evidence

    eta = conditional.place(z)
    conditional.pullback(weights * np.cos(eta) - at.gradient(eta))
    found = at.by_logarithms(conditional.sites_pullback(eta)).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.ravel(), differences(value, np.log(growth)), rtol=1e-6, atol=1e-6)
    (by_information,) = at.pullback(found)
    assert by_information == pytest.approx(found.sum() / (2.0 * power))


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("shape", SHAPES)
def test_multiplied_sites_are_sites(shape, kind):
    """Of b and w̄ by numbers of their own, as if they had been given so."""
    stated, rng = Stated(shape, kind), np.random.default_rng(6)
    at = stated.raised(0.7, (3.0, 0.4))
    ours, plain = stated.conditional(sites=at), stated.conditional(sites=GaussianSites(at.linear, at.precision))
    assert ours.log_evidence == pytest.approx(plain.log_evidence, rel=1e-9)
    np.testing.assert_allclose(ours.centre, plain.centre, rtol=1e-8, atol=1e-9)
    sites = rng.standard_normal(stated.n)
    np.testing.assert_allclose(ours.gram(sites), plain.gram(sites), rtol=1e-8, atol=1e-9)


def test_a_power_that_cannot_be_used_is_a_failure():
    stated = Stated("groups", "dense")
    for power in (0.0, np.inf, np.nan, -1.0):
        with np.errstate(all="ignore"), pytest.raises(PriorFailure) as caught:
            stated.conditional(sites=stated.raised(power))
        assert caught.value.failure is Failure.NON_FINITE


def test_entered_values_are_placed_and_the_noise_has_its_conditional_law(stated):
    rng, conditional = np.random.default_rng(3), stated.conditional()
    values, noise = rng.standard_normal(stated.k), rng.standard_normal(conditional.n_noise)
    conditional.place(conditional.enter(values, noise))
    np.testing.assert_allclose(conditional.latents, values, atol=1e-9)
    exact = norm.logpdf(values, stated.location, stated.scale).sum()
    assert conditional.log_prior() == pytest.approx(exact, abs=1e-9)
    origin = conditional.enter(values, np.zeros(conditional.n_noise))
    spread = np.column_stack([conditional.enter(values, e) - origin for e in np.eye(conditional.n_noise)])

    def place(noise):
        conditional.place(noise)
        return y_of(stated, conditional)

    centre = place(np.zeros(conditional.n_noise))
    part = np.column_stack([place(e) - centre for e in np.eye(conditional.n_noise)])
    inverse = np.linalg.pinv(part)
    np.testing.assert_allclose(spread, np.eye(conditional.n_noise) - inverse @ part, atol=1e-8)
    np.testing.assert_allclose(origin, inverse @ ((values - stated.location) / stated.scale - centre), atol=1e-8)


def determinant_slope(design, spread, precision) -> np.ndarray:
    """The derivative by D of ``-½ log|E|``: of the evidence where the sites say nothing of where the predictor is."""
    n, k = design.shape
    sites = GaussianSites(np.zeros(n), precision)
    return coefficients(design, np.zeros(n), spread, np.zeros(k), np.ones(k), sites).pullback(np.zeros(n))[2]


@pytest.mark.parametrize("size", [1e-12, 1e-5, 1e3])
def test_the_slope_of_the_determinant_holds_for_spreads_of_any_size(size):
    for shape in SHAPES:
        stated = Stated(shape, "dense")
        spread = size * np.abs(stated.spread + 0.1)
        scaled = stated.matrix.T @ (stated.sites.precision[:, None] * stated.matrix)
        inner = np.eye(stated.k) + spread[:, None] * scaled * spread
        exact = np.diag(scaled @ (spread[:, None] * np.linalg.inv(inner)))
        found = -determinant_slope(stated.matrix, spread, stated.sites.precision)
        np.testing.assert_allclose(found, exact, rtol=1e-5)


def test_the_slope_of_the_determinant_of_a_column_that_another_explains():
    """To the first order of a small spread alone it would be eleven times as large."""
    design, spread = np.ones((10, 2)), np.array([1.0, 9e-6])
    exact = 9e-6 * (10.0 - 10.0 * 10.0 / 11.0)
    np.testing.assert_allclose(-determinant_slope(design, spread, np.ones(10))[1], exact, rtol=1e-6)


def many_counts(n: int, count: float):
    """A Poisson regression with an effect for every observation: its design, sites, and D."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(n)
    design = np.column_stack((np.eye(n), np.ones(n), x))
    eta = np.log(count) + 0.3 * x + 0.2 * rng.standard_normal(n)
    rate = np.exp(eta)
    sites = GaussianSites(rng.poisson(rate) - rate + rate * eta, rate)
    return sites, design, np.concatenate((np.full(n, 0.2), [10.0, 3.0]))


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("count", [1.0, 1e4, 1e8])
def test_precise_sites_lose_nothing_with_more_coefficients_than_observations(count, form, moving):
    """Against the covariance's algebra, which is as exact: the sites' precisions are 1e10 times the prior's at most."""
    n = 30
    sites, design, spread = many_counts(n, count)
    conditional = coefficients(form(design), np.zeros(n), spread, np.zeros(n + 2), spread, sites, moving=moving)
    scaled = design * spread
    covariance = np.asfortranarray(scaled @ scaled.T)
    _, inner, roots, found, log_evidence = weigh(covariance, np.zeros(n), sites.linear, sites.precision)
    scale = abs(log_evidence) + n
    assert conditional.log_evidence == pytest.approx(log_evidence, abs=1e-12 * scale + 1e-9 * n * count**0.5)
    np.testing.assert_allclose(conditional.centre, found[2], rtol=1e-12, atol=1e-12)
    residual = np.random.default_rng(1).standard_normal(n)
    np.testing.assert_allclose(
        conditional.gram(residual), gram(covariance, inner, roots, residual), rtol=1e-8, atol=1e-14
    )
    # The derivative of the evidence by log D, of numbers that are as large as the answer.
    conditional.place(np.zeros(conditional.n_noise))
    bar = conditional.pullback(np.zeros(n))[2]
    bar = bar[0] if moving else bar
    weights = np.sqrt(sites.precision)[:, None] * scaled
    determinant = np.einsum("ij,ij->j", weights, np.linalg.solve(inner @ inner.T, weights))
    exact = (spread * (design.T @ found[1])) ** 2 - determinant
    np.testing.assert_allclose(bar * spread, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("part", "value"), [("mean", np.nan), ("spread", np.inf), ("spread", 1e200)])
def test_a_prior_that_cannot_be_used_is_a_failure(part, value):
    for shape in SHAPES:
        stated = Stated(shape, "dense")
        changed = getattr(stated, part).copy()
        changed[0] = value
        with np.errstate(all="ignore"), pytest.raises(PriorFailure) as caught:
            stated.conditional(**{part: changed})
        assert caught.value.failure is Failure.NON_FINITE
