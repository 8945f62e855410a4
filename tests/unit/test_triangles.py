"""Triangles by blocks: the factor, its inverse and its adjoint, against LAPACK, dense algebra and differences."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc.linalg.cholesky import (
    NARROW,
    PANEL,
    cholesky,
    cholesky_adjoint,
    cholesky_adjoint_of_product,
    factorise_in_place,
    inverse_lower,
    inverse_of_product,
)

# On either side of where blocks begin, and with several of them.
SIZES = sorted({1, 2, 5, NARROW - 1, NARROW + 1, 33, PANEL - 1, PANEL, PANEL + 1, 2 * PANEL + 3, 300})


def positive(n: int) -> np.ndarray:
    root = np.random.default_rng(0).standard_normal((n, 2 * n)) / np.sqrt(n)
    return np.asfortranarray(root @ root.T + np.eye(n))


def triangle(n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    return np.asfortranarray(np.tril(rng.standard_normal((n, n)) / n, -1) + np.diag(rng.uniform(0.5, 2.0, n)))


def near_singular(n: int) -> np.ndarray:
    """A smooth kernel on neighbouring points: its condition is about 1e12."""
    x = np.linspace(0.0, 3.0, n)
    return np.asfortranarray(np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-10 * np.eye(n))


@pytest.mark.parametrize("n", SIZES)
def test_a_factor_takes_its_matrixs_place_with_nothing_above(n):
    exact, matrix = positive(n), positive(n)
    matrix[np.triu_indices(n, 1)] = np.nan
    assert factorise_in_place(matrix)
    np.testing.assert_allclose(matrix, np.linalg.cholesky(exact), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", SIZES)
def test_a_factor_leaves_its_matrix_if_that_is_wanted(n):
    matrix = positive(n)
    given = matrix.copy()
    factor = cholesky(matrix)
    np.testing.assert_array_equal(matrix, given)
    np.testing.assert_array_equal(factor, cholesky(given, overwrite=True))


@pytest.mark.parametrize("n", [60, 150, 300])
def test_a_factor_of_a_matrix_near_singular_is_as_exact_as_lapacks(n):
    # A product with a small triangle's inverse, in place of substitution, would lose six digits here.
    matrix = near_singular(n)
    factor = cholesky(matrix)
    assert np.abs(factor @ factor.T - matrix).max() < n * np.finfo(float).eps


@pytest.mark.parametrize("bad", [-1.0, 0.0, np.nan, np.inf])
@pytest.mark.parametrize("at", [0, NARROW, PANEL - 1, PANEL, 2 * PANEL + 2])
def test_no_factor_is_said_and_not_raised(bad, at):
    matrix = positive(2 * PANEL + 3)
    matrix[at, at] = bad
    assert cholesky(matrix) is None
    assert not factorise_in_place(matrix)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [(1, 0), (PANEL, 3), (2 * PANEL + 2, PANEL), (2 * PANEL + 2, 2 * PANEL + 1)])
def test_what_is_not_finite_below_the_diagonal_leaves_no_factor(bad, at):
    matrix = positive(2 * PANEL + 3)
    matrix[at] = bad
    assert cholesky(matrix) is None


@pytest.mark.parametrize("n", SIZES)
def test_triangles_are_inverted(n):
    factor = triangle(n)
    given = factor.copy()
    inverse = inverse_lower(factor)
    np.testing.assert_array_equal(factor, given)
    np.testing.assert_array_equal(np.triu(inverse, 1), 0.0)
    np.testing.assert_allclose(inverse @ factor, np.eye(n), atol=1e-12)
    product = inverse_of_product(factor)
    np.testing.assert_allclose(np.tril(product), np.tril(inverse.T @ inverse), rtol=1e-10, atol=1e-12)
    inverse_lower(factor, overwrite=True)
    np.testing.assert_array_equal(factor, inverse)


@pytest.mark.parametrize("n", [60, 300])
def test_the_inverse_of_a_triangle_near_singular_is_as_exact_as_lapacks(n):
    # By products with inverses alone it would miss 1 by 1e-6 here.
    factor = cholesky(near_singular(n))
    assert np.abs(inverse_lower(factor) @ factor - np.eye(n)).max() < 1e-9


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", SIZES)
def test_the_adjoint_of_a_cholesky_matches_differences_and_is_lower(n, order):
    rng, matrix, h = np.random.default_rng(n), positive(n), 1e-5
    seed, factor = rng.standard_normal((n, n)), np.asfortranarray(np.linalg.cholesky(matrix))
    unread = seed.copy(order=order)
    unread[np.triu_indices(n, 1)] = np.nan
    adjoint = cholesky_adjoint(factor, unread)
    np.testing.assert_array_equal(np.triu(adjoint, 1), 0.0)
    for _ in range(3):
        along = rng.standard_normal((n, n)) / np.sqrt(n)
        along = along + along.T
        ahead, behind = (np.linalg.cholesky(matrix + s * along) for s in (h, -h))
        change = (np.tril(seed) * (ahead - behind)).sum() / (2 * h)
        assert (adjoint * along).sum() == pytest.approx(change, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("n", [1, 7, PANEL + 5])
def test_the_adjoint_of_a_product_is_that_of_its_triangle(n):
    left, right = np.random.default_rng(n).standard_normal((2, n))
    factor = cholesky(positive(n))
    seed = np.asfortranarray(np.outer(left, right))
    np.testing.assert_array_equal(cholesky_adjoint_of_product(factor, left, right), cholesky_adjoint(factor, seed))
