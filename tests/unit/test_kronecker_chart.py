"""A vector on a grid placed by noise: against the dense covariance, dense algebra and differences."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import norm

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import StatedCoefficients, StatedKronecker
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.forms import operator_of
from pymc_rmhmc.latent.forms.kronecker import KroneckerProduct
from pymc_rmhmc.latent.solvers.site_space import SiteSpace, Term
from tests.unit.placing import Placing, dense_block, grid_block
from tests.unit.test_joint_chart import differences, symmetric
from tests.unit.toys import kernel

GRIDS = {"one axis": (5,), "two": (4, 3), "two of one size": (3, 3), "three": (2, 4, 3), "an axis of one": (3, 1, 4)}


def covariances(sizes: tuple[int, ...]) -> list[np.ndarray]:
    return [(1.0 + 0.3 * i) * kernel(size, jitter=1e-2) for i, size in enumerate(sizes)]


def stated(grid: str) -> tuple[np.ndarray, list[np.ndarray], GaussianSites]:
    rng, factors = np.random.default_rng(1), covariances(GRIDS[grid])
    n = int(np.prod(GRIDS[grid]))
    precision = rng.exponential(1.0, n) * (np.arange(n) % 3 != 1)
    precision[0] = 50.0
    return rng.standard_normal(n), factors, GaussianSites(rng.standard_normal(n), precision)


def dense(factors: list[np.ndarray]) -> np.ndarray:
    return np.asfortranarray(reduce(np.kron, factors))


@pytest.mark.parametrize("grid", GRIDS)
def test_products_are_those_of_the_dense_factor(grid):
    factors = covariances(GRIDS[grid])
    product, root = KroneckerProduct(factors), reduce(np.kron, [np.linalg.cholesky(k) for k in factors])
    rng = np.random.default_rng(0)
    v, w = rng.standard_normal((2, root.shape[0]))
    np.testing.assert_allclose(product.dense(), dense(factors), atol=1e-14)
    assert product.dense().flags.f_contiguous
    np.testing.assert_allclose(product.multiply(v), root @ v, atol=1e-13)
    np.testing.assert_allclose(product.multiply(v, transpose=True), root.T @ v, atol=1e-13)
    bar = rng.standard_normal(root.shape)
    adjoint, pulled = product.adjoint_of_product(v, w), product.pullback(bar)
    for order in ("C", "F"):
        along, h = [symmetric(rng, k.shape[0]) for k in factors], 1e-6
        ahead, behind = ([k + s * a for k, a in zip(factors, along, strict=True)] for s in (h, -h))
        roots = [reduce(np.kron, [np.linalg.cholesky(k) for k in moved]) for moved in (ahead, behind)]
        slope = v @ (roots[0] - roots[1]) @ w / (2 * h)
        assert sum((a * b).sum() for a, b in zip(adjoint, along, strict=True)) == pytest.approx(slope, rel=1e-5)
        slope = (bar * (dense(ahead) - dense(behind))).sum() / (2 * h)
        pulled = product.pullback(np.asarray(bar, order=order))
        assert sum((a * b).sum() for a, b in zip(pulled, along, strict=True)) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("grid", GRIDS)
def test_all_but_the_derivative_is_that_of_the_dense_covariance(grid):
    mean, factors, sites = stated(grid)
    ours = grid_block(mean, factors, sites)
    theirs = dense_block(mean, dense(factors), sites, centred=False)
    rng, near = np.random.default_rng(2), {"rtol": 1e-8, "atol": 1e-8}
    z, (values, residual) = rng.standard_normal(ours.n_noise), rng.standard_normal((2, mean.size))
    assert ours.n_noise == theirs.n_noise
    assert ours.log_evidence == pytest.approx(theirs.log_evidence, abs=1e-9)
    np.testing.assert_allclose(ours.place(z), theirs.place(z), **near)
    np.testing.assert_allclose(ours.latents, theirs.latents, **near)
    assert ours.log_prior() == pytest.approx(theirs.log_prior(), abs=1e-8)
    assert ours.log_prior() == pytest.approx(norm.logpdf(ours.latents).sum(), abs=1e-9)
    for mine, exact in zip(ours.marginals(), theirs.marginals(), strict=True):
        np.testing.assert_allclose(mine, exact, **near)
    for mine, exact in zip(ours.pullback(residual)[:2], theirs.pullback(residual)[:2], strict=True):
        np.testing.assert_allclose(mine, exact, **near)
    for mine, exact in zip(ours.sites_pullback(ours.placed.eta), theirs.sites_pullback(theirs.placed.eta), strict=True):
        np.testing.assert_allclose(mine, exact, **near)
    np.testing.assert_allclose(ours.enter(values, z), theirs.enter(values, z), rtol=1e-6, atol=1e-6)
    ours.place(ours.enter(values, z))
    np.testing.assert_allclose(ours.latents, values, **near)


@pytest.mark.parametrize("grid", GRIDS)
def test_the_derivatives_by_the_factors_match_differences(grid):
    mean, factors, sites = stated(grid)
    rng = np.random.default_rng(3)
    z, weights = rng.standard_normal(2 * mean.size), rng.standard_normal(mean.size)

    def value(mean, factors):
        conditional = grid_block(mean, factors, sites)
        return weights @ np.sin(conditional.place(z)) + conditional.log_evidence

    conditional = grid_block(mean, factors, sites)
    _, by_mean, bars = conditional.pullback(weights * np.cos(conditional.place(z)))
    np.testing.assert_allclose(by_mean, differences(lambda at: value(at, factors), mean), rtol=1e-6, atol=1e-7)
    for i, bar in enumerate(bars):
        for _ in range(3):
            along, h = symmetric(rng, factors[i].shape[0]), 1e-6
            ahead, behind = ([k + s * along if i == j else k for j, k in enumerate(factors)] for s in (h, -h))
            slope = (value(mean, ahead) - value(mean, behind)) / (2 * h)
            assert (bar * along).sum() == pytest.approx(slope, rel=1e-5, abs=1e-5)


def test_a_covariance_that_does_not_move_serves_again():
    mean, factors, sites = stated("two")
    first = grid_block(mean, factors, sites, by_covariance=False)
    z = np.random.default_rng(4).standard_normal(first.n_noise)
    first.place(z)
    first.pullback(mean)
    other = GaussianSites(sites.linear, sites.precision + 0.5)
    for held in (sites, other):
        again = grid_block(mean + 1.0, factors, held, first, by_covariance=False)
        fresh = grid_block(mean + 1.0, factors, held)
        np.testing.assert_allclose(again.place(z), fresh.place(z), atol=1e-12)
        assert again.log_evidence == pytest.approx(fresh.log_evidence, abs=1e-12)
        assert [bar.shape for bar in again.pullback(mean)[2]] == [(1, 1), (1, 1)]


def test_factors_that_are_nearly_singular_are_no_hindrance():
    """Of two with a jitter of 1e-9 the product is singular in double precision."""
    x = np.linspace(0.0, 1.0, 8)
    factors = [np.exp(-0.5 * (x[:, None] - x) ** 2 / ls**2) + 1e-9 * np.eye(8) for ls in (0.8, 0.9)]
    sites = GaussianSites(np.ones(64), np.ones(64))
    with pytest.raises(PriorFailure):
        dense_block(np.zeros(64), dense(factors), sites)
    conditional = grid_block(np.zeros(64), factors, sites)
    conditional.place(np.random.default_rng(0).standard_normal(128))
    assert all(np.isfinite(bar).all() for bar in conditional.pullback(np.ones(64))[2])


@pytest.mark.parametrize(("value", "cause"), [(-1.0, "NOT_POSITIVE_DEFINITE"), (np.nan, "NON_FINITE")])
def test_a_factor_that_cannot_be_used_says_why(value, cause):
    mean, factors, sites = stated("two")
    factors[1][2, 2] = value
    with pytest.raises(PriorFailure) as caught:
        grid_block(mean, factors, sites)
    assert caught.value.failure is Failure[cause]


@pytest.mark.parametrize("gathered", [False, True])
def test_as_one_of_a_sum_its_derivatives_match_differences(gathered):
    mean, factors, _ = stated("two")
    rng, n = np.random.default_rng(5), 7 if gathered else mean.size
    gather = sparse.csr_array((np.ones(n), (np.arange(n), 5 * np.arange(n) % mean.size)), shape=(n, mean.size))
    sites, design = GaussianSites(rng.standard_normal(n), rng.exponential(1.0, n)), rng.standard_normal((n, 2))

    def summed(factors):
        second = operator_of(StatedCoefficients(np.array([0.5, 1.5]), np.zeros(2), np.ones(2)))
        terms = [Term(operator_of(StatedKronecker(tuple(factors))), gather if gathered else None), Term(second, design)]
        return Placing(SiteSpace(np.zeros(n), terms, sites))

    conditional = summed(factors)
    z, weights = rng.standard_normal(conditional.n_noise), rng.standard_normal(n)

    def value(factors):
        held = summed(factors)
        return weights @ np.sin(held.place(z)) + held.log_evidence

    _, _, (bars, _) = conditional.pullback(weights * np.cos(conditional.place(z)))
    for i, bar in enumerate(bars):
        along, h = symmetric(rng, factors[i].shape[0]), 1e-6
        ahead, behind = ([k + s * along if i == j else k for j, k in enumerate(factors)] for s in (h, -h))
        assert (bar * along).sum() == pytest.approx((value(ahead) - value(behind)) / (2 * h), rel=1e-5, abs=1e-5)
    conditional, values = summed(factors), rng.standard_normal(mean.size + 2)
    conditional.place(conditional.enter(values, z))
    np.testing.assert_allclose(conditional.latents, values, atol=1e-8)
