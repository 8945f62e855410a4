"""BLAS in compiled code, and what sites do to a prior, against dense algebra."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy.linalg import cholesky, solve_triangular
from scipy.stats import multivariate_normal

from pymc_rmhmc.latent.solvers.dual import (
    centre_of_sites,
    dual,
    factor_of_sites,
    gram,
    place,
    roots_of_sites,
)
from pymc_rmhmc.linalg.compiled.blas import (
    multiply_by_triangle,
    solve_in_place,
    subtract_product,
    subtract_symmetric_product,
    symmetric_product,
)

SIZES = [1, 2, 17, 130]


def positive(n: int, seed: int = 0) -> np.ndarray:
    root = np.random.default_rng(seed).standard_normal((n, n))
    return np.asfortranarray(root @ root.T / n + 0.5 * np.eye(n))


def triangle(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A lower factor, above which is nothing to be read, and a vector."""
    factor = np.asfortranarray(cholesky(positive(n), lower=True))
    factor[np.triu_indices(n, 1)] = np.nan
    return factor, np.random.default_rng(1).standard_normal(n)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_triangles_are_solved_in_place_of_the_vector(n, transpose):
    factor, vector = triangle(n)
    solved = vector.copy()
    solve_in_place(factor, solved, transpose)
    exact = solve_triangular(np.tril(factor), vector, lower=True, trans=int(transpose))
    np.testing.assert_allclose(solved, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", SIZES)
def test_a_symmetric_matrix_is_multiplied_in_either_order(n, order):
    matrix, vector = np.array(positive(n), order=order), np.random.default_rng(2).standard_normal(n)
    np.testing.assert_allclose(symmetric_product(matrix, vector), matrix @ vector, rtol=1e-12, atol=1e-12)


def parts(*shapes: tuple[int, int]) -> list[np.ndarray]:
    """Parts of Fortran-ordered matrices that have a row before them, and two after."""
    rng = np.random.default_rng(7)
    return [np.asfortranarray(rng.standard_normal((m + 3, n + 1)))[1 : m + 1, 1:] for m, n in shapes]


@pytest.mark.parametrize("by_right", [False, True])
@pytest.mark.parametrize("by_left", [False, True])
def test_a_product_of_parts_is_taken_from_a_part(by_left, by_right):
    total, left, right = parts((5, 4), (3, 5) if by_left else (5, 3), (4, 3) if by_right else (3, 4))
    exact = total - (left.T if by_left else left) @ (right.T if by_right else right)
    around = total.base.copy()
    subtract_product(total, left, right, by_left, by_right)
    np.testing.assert_allclose(total, exact, rtol=1e-13, atol=1e-13)
    around[1:6, 1:] = total
    np.testing.assert_array_equal(total.base, around)


def test_a_symmetric_product_reads_the_lower_triangle():
    total, symmetric, right = parts((5, 4), (5, 5), (5, 4))
    lower = np.tril(symmetric)
    exact = total - (lower + np.tril(lower, -1).T) @ right
    symmetric[np.triu_indices(5, 1)] = np.nan
    subtract_symmetric_product(total, symmetric, right)
    np.testing.assert_allclose(total, exact, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("from_right", [False, True])
def test_a_part_is_multiplied_by_a_triangle_in_its_place(from_right):
    values, triangular = parts((5, 4), (4, 4) if from_right else (5, 5))
    lower = np.tril(triangular)
    exact = -2.0 * (values @ lower if from_right else lower @ values)
    triangular[np.triu_indices(lower.shape[0], 1)] = np.nan
    multiply_by_triangle(values, triangular, from_right, -2.0)
    np.testing.assert_allclose(values, exact, rtol=1e-13, atol=1e-13)


@pytest.mark.slow
def test_kept_code_finds_the_routines_in_another_process():
    script = (
        "import numpy as np; from pymc_rmhmc.linalg.compiled.blas import symmetric_product;"
        "print(symmetric_product(np.asfortranarray(2.0 * np.eye(3)), np.ones(3)).sum())"
    )
    for _ in range(2):  # the second finds what the first has kept, if not this process already has
        printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        assert float(printed) == 6.0


def weighted(n: int, precision: list[float]):
    """A prior, and sites with these precisions: of nothing, of little, of much more than it says."""
    covariance = positive(n, 3)
    precision = np.resize(precision, n)
    roots = roots_of_sites(precision, covariance.diagonal())
    has_factor, inner = factor_of_sites(covariance, roots[0])
    assert has_factor
    return precision, (covariance, inner, roots)


def test_sites_are_weak_or_strong_by_what_they_say_beside_the_prior():
    root, weak, inverse = roots_of_sites(np.array([0.0, 0.5, 4.0]), np.array([3.0, 2.0, 0.5]))
    np.testing.assert_array_equal(root, [0.0, np.sqrt(0.5), 2.0])
    np.testing.assert_array_equal(weak, [1.0, 1.0, 0.0])
    np.testing.assert_array_equal(inverse, [0.0, 0.0, 0.5])


@pytest.mark.parametrize("precision", [[0.0, 0.3, 40.0, 1e6], [0.0, 0.1], [40.0, 1e6]], ids=["any", "weak", "strong"])
@pytest.mark.parametrize("n", [1, 4, 60])
def test_the_dual_and_the_gram_are_those_of_the_dense_matrices(n, precision):
    precision, given = weighted(n, precision)
    covariance, vector = given[0], np.random.default_rng(4).standard_normal(n)
    exact = np.linalg.solve(np.eye(n) + precision[:, None] * covariance, vector)
    np.testing.assert_allclose(dual(*given, vector), exact, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(gram(*given, vector), covariance @ exact, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n", [1, 4])
def test_the_centre_and_the_evidence_are_those_of_a_gaussian(n):
    covariance, rng = positive(n, 3), np.random.default_rng(5)
    mean, precision = rng.standard_normal(n), np.resize([0.3, 2.0, 40.0], n)
    linear = rng.standard_normal(n)
    roots = roots_of_sites(precision, covariance.diagonal())
    given = (covariance, factor_of_sites(covariance, roots[0])[1], roots)
    (slope, centre_dual, centre), log_evidence = centre_of_sites(*given, mean, linear, precision)
    np.testing.assert_allclose(slope, linear - precision * mean)
    posterior = np.linalg.inv(np.linalg.inv(covariance) + np.diag(precision))
    np.testing.assert_allclose(centre, posterior @ (np.linalg.solve(covariance, mean) + linear), rtol=1e-9)
    np.testing.assert_allclose(covariance @ centre_dual, centre - mean, rtol=1e-9, atol=1e-12)
    # exp(bη - ½w̄η²) is a normal of b/w̄ with variance 1/w̄, but for its constants.
    data = multivariate_normal.logpdf(linear / precision, mean, covariance + np.diag(1.0 / precision))
    constants = 0.5 * (linear**2 / precision - np.log(precision) + np.log(2.0 * np.pi)).sum()
    assert log_evidence == pytest.approx(data + constants, rel=1e-9)


def test_a_draw_of_the_prior_and_of_the_sites_noise_is_one_of_their_product():
    n, rng = 4, np.random.default_rng(6)
    covariance, precision = positive(n, 3), np.array([0.0, 0.3, 2.0, 40.0])
    roots = roots_of_sites(precision, covariance.diagonal())
    given = (covariance, factor_of_sites(covariance, roots[0])[1], roots)
    mean, linear = rng.standard_normal(n), rng.standard_normal(n)
    slope, _, centre = centre_of_sites(*given, mean, linear, precision)[0]
    factor = np.asfortranarray(np.linalg.cholesky(covariance))
    columns = []
    for unit in np.eye(2 * n):
        pulled, placed = place(*given, mean, slope, precision, factor @ unit[:n], unit[n:])
        np.testing.assert_allclose(placed, mean + factor @ unit[:n] + covariance @ pulled, atol=1e-12)
        columns.append(placed - centre)
    whole = np.column_stack(columns)
    posterior = np.linalg.inv(np.linalg.inv(covariance) + np.diag(precision))
    np.testing.assert_allclose(whole @ whole.T, posterior, rtol=1e-8, atol=1e-10)
