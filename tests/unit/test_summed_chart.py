"""Several vectors that are read as a sum, placed by noise: against dense Gaussian algebra and differences.

In both forms: one in the size of the sites, the other in that of the latent values, with A dense or sparse.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import multivariate_normal, norm

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import StatedCoefficients, StatedDense
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.forms import operator_of
from pymc_rmhmc.latent.solvers.latent_space import LatentSpace, MovingWeights, StandingWeights
from pymc_rmhmc.latent.solvers.site_space import SiteSpace, Term
from tests.unit.placing import Placing
from tests.unit.test_diagonal_chart import differences
from tests.unit.toys import kernel

N = 7
FORMS = ("summed", "joined", "joined by entries", "joined, standing")


@pytest.fixture(params=FORMS)
def stated(request) -> Stated:
    return Stated(request.param)


class Stated:
    """A vector in the model's own values, a whitened one behind a gather, and coefficients."""

    def __init__(self, form: str = "summed") -> None:
        self.form = form
        rng = np.random.default_rng(0)
        gather = np.zeros((N, 4))
        gather[np.arange(N), np.arange(N) % 4] = 1.0
        self.designs = [None, sparse.csr_array(gather), rng.standard_normal((N, 3))]
        self.seconds = [kernel(N, jitter=1e-2), 0.5 * kernel(4, jitter=1e-1), np.array([0.7, 0.0, -1.2])]
        self.locations = [rng.standard_normal(N), np.zeros(4), rng.standard_normal(3)]
        self.deviation = np.array([0.7, 2.0, 0.4])
        self.mean = rng.standard_normal(N)
        precision = rng.exponential(1.0, N)
        precision[3] = 0.0
        self.sites = GaussianSites(rng.standard_normal(N), precision)

    def conditional(self, mean=None, seconds=None, designs=None) -> Placing:
        seconds = self.seconds if seconds is None else seconds
        by_design, designs = designs is not None, self.designs if designs is None else designs
        first, second = (np.asfortranarray(s) for s in seconds[:2])
        operators = [
            operator_of(StatedDense(first, self.locations[0], True)),
            operator_of(StatedDense(second, self.locations[1], False)),
            operator_of(StatedCoefficients(seconds[2], self.locations[2], self.deviation)),
        ]
        mean = self.mean if mean is None else mean
        if self.form == "summed":
            terms = [Term(operator, design) for operator, design in zip(operators, designs, strict=True)]
            return Placing(SiteSpace(mean, terms, self.sites, by_design=by_design))
        whole = np.hstack([np.eye(N) if d is None else dense(d) for d in designs])
        kept = sparse.csr_array(whole) if self.form == "joined by entries" else whole
        weights = (StandingWeights if "standing" in self.form else MovingWeights)(kept, self.sites)
        return Placing(LatentSpace(weights, mean, operators, self.sites, by_design=by_design))

    def design_bars(self, bar, designs) -> list[np.ndarray]:
        """Those of the parts."""
        if self.form == "summed":
            return [np.asarray(b) for b in bar]
        whole = np.hstack([dense(d) for d in designs])
        if self.form == "joined by entries":
            kept = np.full(whole.shape, np.nan)
            kept[whole != 0.0] = bar
            bar = kept
        return np.split(bar, np.cumsum([dense(d).shape[1] for d in designs])[:-1], axis=1)

    @property
    def roots(self) -> list[np.ndarray]:
        return [np.linalg.cholesky(self.seconds[0]), np.linalg.cholesky(self.seconds[1]), np.diag(self.seconds[2])]

    def dense(self):
        """The map from all y to the sites, and mean and covariance of y under the prior times the sites."""
        scaled = np.hstack([r if d is None else d @ r for d, r in zip(self.designs, self.roots, strict=True)])
        spread = np.linalg.inv(np.eye(N + 7) + scaled.T @ (self.sites.precision[:, None] * scaled))
        return scaled, spread @ (scaled.T @ self.sites.gradient(self.mean)), spread

    def y_of(self, latents: np.ndarray) -> np.ndarray:
        first = np.linalg.solve(self.roots[0], latents[:N] - self.locations[0])
        return np.concatenate((first, latents[N : N + 4], (latents[N + 4 :] - self.locations[2]) / self.deviation))


def dense(design) -> np.ndarray:
    return design.toarray() if sparse.issparse(design) else np.asarray(design)


def test_noise_is_placed_as_the_prior_times_the_sites(stated):
    conditional = stated.conditional()
    scaled, centre, spread = stated.dense()

    def place(noise):
        eta = conditional.place(noise)
        y = stated.y_of(conditional.latents)
        np.testing.assert_allclose(eta, stated.mean + scaled @ y, atol=1e-9)
        return y

    np.testing.assert_allclose(place(np.zeros(conditional.n_noise)), centre, atol=1e-9)
    part = np.column_stack([place(e) - centre for e in np.eye(conditional.n_noise)])
    np.testing.assert_allclose(part @ part.T, spread, atol=1e-9)
    mean, variance = conditional.marginals()
    np.testing.assert_allclose(mean, stated.mean + scaled @ centre, atol=1e-9)
    np.testing.assert_allclose(variance, np.diag(scaled @ spread @ scaled.T), atol=1e-9)


def test_the_evidence_is_what_normalises_prior_times_sites(stated):
    scaled, centre, spread = stated.dense()
    y = np.random.default_rng(1).standard_normal(N + 7)
    exact = norm.logpdf(y).sum() + stated.sites.log_density(stated.mean + scaled @ y)
    exact -= multivariate_normal.logpdf(y, centre, spread)
    assert stated.conditional().log_evidence == pytest.approx(exact, abs=1e-9)


def test_pullbacks_match_differences(stated):
    rng = np.random.default_rng(2)
    conditional = stated.conditional()
    z, weights = rng.standard_normal(conditional.n_noise), rng.standard_normal(N)

    def value(z, mean, seconds):
        held = stated.conditional(mean, seconds)
        return weights @ np.sin(held.place(z)) + held.log_evidence

    by_z, by_mean, bars = conditional.pullback(weights * np.cos(conditional.place(z)))
    mean, seconds, near = stated.mean, stated.seconds, {"rtol": 1e-6, "atol": 1e-6}
    np.testing.assert_allclose(by_z, differences(lambda at: value(at, mean, seconds), z), **near)
    np.testing.assert_allclose(by_mean, differences(lambda at: value(z, at, seconds), mean), **near)
    spread = differences(lambda at: value(z, mean, [*seconds[:2], at]), seconds[2])
    np.testing.assert_allclose(bars[2], spread, **near)
    for which in (0, 1):
        along = rng.standard_normal(seconds[which].shape)
        along = 1e-6 * (along + along.T)

        def moved(sign, which=which, along=along):
            changed = list(seconds)
            changed[which] = changed[which] + sign * along
            return value(z, mean, changed)

        assert (bars[which] * along).sum() == pytest.approx((moved(1.0) - moved(-1.0)) / 2.0, rel=1e-4)


def test_the_pullback_by_moving_designs_matches_differences(stated):
    if "standing" in stated.form:
        pytest.skip("its matrix stands still")
    rng = np.random.default_rng(6)
    designs = [rng.standard_normal((N, N)), stated.designs[1], stated.designs[2]]
    conditional = stated.conditional(designs=designs)
    z, weights = rng.standard_normal(conditional.n_noise), rng.standard_normal(N)
    _, _, (bars, design_bar) = conditional.pullback(weights * np.cos(conditional.place(z)))
    assert len(bars) == 3

    for which, found in enumerate(stated.design_bars(design_bar, designs)):

        def value(entries, which=which, shape=found.shape):
            moved = [*designs[:which], entries.reshape(shape), *designs[which + 1 :]]
            held = stated.conditional(designs=moved)
            return weights @ np.sin(held.place(z)) + held.log_evidence

        exact, by_entry = differences(value, dense(designs[which]).ravel()), found.ravel()
        known = np.isfinite(by_entry)
        # Of a sparse A nothing is said of what is always 0.
        assert known.sum() == (np.count_nonzero(dense(designs[which])) if "entries" in stated.form else known.size)
        np.testing.assert_allclose(by_entry[known], exact[known], rtol=1e-5, atol=1e-5)


def test_the_pullback_by_the_sites_matches_differences(stated):
    if "standing" in stated.form:
        pytest.skip("all precisions have one multiple: see the tests of coefficients")
    rng = np.random.default_rng(5)
    first = stated.conditional()
    z, weights = rng.standard_normal(first.n_noise), rng.standard_normal(N)
    held = stated.sites

    def value(moves):
        stated.sites = GaussianSites(held.linear + moves[:N], np.exp(moves[N:]) * held.precision)
        conditional = stated.conditional()
        eta = conditional.place(z)
        return weights @ np.sin(eta) - stated.sites.log_density(eta) + conditional.log_evidence

    eta = first.place(z)
    first.pullback(weights * np.cos(eta) - held.gradient(eta))
    exact = differences(value, np.zeros(2 * N)).reshape(2, N)
    np.testing.assert_allclose(first.sites_pullback(eta), exact, rtol=1e-5, atol=1e-5)


def test_entered_values_are_placed_and_the_noise_has_its_conditional_law(stated):
    rng = np.random.default_rng(3)
    conditional = stated.conditional()
    values, noise = rng.standard_normal(N + 7), rng.standard_normal(conditional.n_noise)
    conditional.place(conditional.enter(values, noise))
    np.testing.assert_allclose(conditional.latents, values, atol=1e-8)
    y = stated.y_of(values)
    exact = norm.logpdf(y).sum() - np.linalg.slogdet(stated.roots[0])[1] - np.log(stated.deviation).sum()
    assert conditional.log_prior() == pytest.approx(exact, abs=1e-8)
    origin = conditional.enter(values, np.zeros(conditional.n_noise))
    spread = np.column_stack([conditional.enter(values, e) - origin for e in np.eye(conditional.n_noise)])

    def place(z):
        conditional.place(z)
        return stated.y_of(conditional.latents)

    centre = place(np.zeros(conditional.n_noise))
    part = np.column_stack([place(e) - centre for e in np.eye(conditional.n_noise)])
    inverse = np.linalg.pinv(part)
    np.testing.assert_allclose(spread, np.eye(conditional.n_noise) - inverse @ part, atol=1e-8)
    np.testing.assert_allclose(origin, inverse @ (y - centre), atol=1e-7)


def test_a_sum_of_one_vector_is_that_vector():
    stated, rng = Stated(), np.random.default_rng(4)
    matrix = np.asfortranarray(stated.seconds[0])
    dense = operator_of(StatedDense(matrix, stated.mean, True))
    alone = Placing(SiteSpace(stated.mean, [Term(dense)], stated.sites, shift=0.0))
    summed = Placing(SiteSpace(stated.mean, [Term(dense)], stated.sites))
    noise, residual = rng.standard_normal(2 * N), rng.standard_normal(N)
    assert summed.log_evidence == pytest.approx(alone.log_evidence, abs=1e-12)
    np.testing.assert_allclose(summed.place(noise), alone.place(noise), atol=1e-10)
    np.testing.assert_allclose(summed.latents, alone.latents, atol=1e-10)
    for one, other in zip(summed.pullback(residual)[:2], alone.pullback(residual)[:2], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-10)


def test_parts_that_cannot_be_used_are_failures(stated):
    bad = [np.full((N, N), np.nan), np.zeros((4, 4)), np.array([np.inf, 0.0, 0.0])]
    causes = [Failure.NON_FINITE, Failure.NOT_POSITIVE_DEFINITE, Failure.NON_FINITE]
    for which, cause in enumerate(causes):
        seconds = list(stated.seconds)
        seconds[which] = bad[which]
        with np.errstate(all="ignore"), pytest.raises(PriorFailure) as caught:
            stated.conditional(seconds=seconds)
        assert caught.value.failure is cause


def test_other_sites_and_what_serves_again_give_what_is_made_anew(stated):
    rng = np.random.default_rng(7)
    first, sites = stated.conditional(), stated.sites
    stated.sites = GaussianSites(rng.standard_normal(N), rng.exponential(1.0, N))
    noise, other, anew = rng.standard_normal(first.n_noise), first.with_sites(stated.sites), stated.conditional()
    np.testing.assert_allclose(other.marginals(), anew.marginals(), atol=1e-9)
    np.testing.assert_allclose(other.place(noise), anew.place(noise), atol=1e-9)
    assert other.log_evidence == pytest.approx(anew.log_evidence, abs=1e-9)
    np.testing.assert_allclose(other.with_sites(sites).place(noise), first.place(noise), atol=1e-9)
    if stated.form != "summed":  # M serves again where the precisions are the same array
        same = GaussianSites(rng.standard_normal(N), sites.precision)
        assert first.with_sites(same).weights.gram is first.weights.gram


def test_the_map_is_affine_and_its_adjoint_and_gram_are_its_own(stated):
    rng = np.random.default_rng(8)
    conditional = stated.conditional()
    columns = np.column_stack([conditional.apply(e) for e in np.eye(conditional.n_noise)])
    sites, noise = rng.standard_normal(N), rng.standard_normal(conditional.n_noise)
    np.testing.assert_allclose(conditional.centre + columns @ noise, conditional.place(noise), atol=1e-9)
    np.testing.assert_allclose(conditional.adjoint(sites), columns.T @ sites, atol=1e-9)
    np.testing.assert_allclose(conditional.gram(sites), columns @ columns.T @ sites, atol=1e-9)


def test_both_forms_agree_where_the_data_say_very_much():
    exact, other, rng = Stated("summed"), Stated("joined"), np.random.default_rng(9)
    exact.sites = other.sites = GaussianSites(1e6 * rng.standard_normal(N), np.full(N, 1e6))
    first, second = exact.conditional(), other.conditional()
    noise, residual = rng.standard_normal(first.n_noise), rng.standard_normal(N)
    np.testing.assert_allclose(second.place(noise), first.place(noise), rtol=1e-7)
    for one, by_values in zip(first.pullback(residual)[2], second.pullback(residual)[2], strict=True):
        symmetric, other_way = (b + b.T if b.ndim == 2 else b for b in (one, by_values))
        np.testing.assert_allclose(other_way, symmetric, rtol=1e-6, atol=1e-6 * np.abs(symmetric).max())
