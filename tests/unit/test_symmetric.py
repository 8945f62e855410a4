"""Products of a symmetric matrix: with a vector, small (by BLAS) and large, and with the rows that read it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from pymc_rmhmc.linalg.products import LARGE, congruence, contraction, multiply_symmetric


def pair(n: int) -> tuple[np.ndarray, np.ndarray]:
    """A symmetric matrix, and a vector."""
    rng = np.random.default_rng(n)
    matrix = rng.standard_normal((n, n))
    return np.asfortranarray(matrix + matrix.T), rng.standard_normal(n)


@pytest.mark.parametrize("n", [1, 2, 17, 130, LARGE - 1, LARGE, LARGE + 1, LARGE + 4, LARGE + 7])
def test_the_upper_triangle_is_enough(n):
    matrix, vector = pair(n)
    exact = matrix @ vector
    matrix[np.tril_indices(n, -1)] = np.nan
    np.testing.assert_allclose(multiply_symmetric(matrix, vector), exact, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n", [30, LARGE + 4])
def test_a_whole_matrix_is_read_in_either_order(n):
    matrix, vector = pair(n)
    np.testing.assert_allclose(
        multiply_symmetric(np.ascontiguousarray(matrix), vector), matrix @ vector, rtol=1e-11, atol=1e-11
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("n", [30, LARGE + 4])
def test_what_is_not_finite_stays_so(n, value):
    """A trajectory that leaves the numbers has to be seen to, however sums are ordered."""
    matrix, vector = pair(n)
    for at in (0, n // 2, n - 1):
        spoilt = vector.copy()
        spoilt[at] = value
        assert not np.isfinite(multiply_symmetric(matrix, spoilt)).any()


def design_of(kind: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    design = np.zeros((7, 4))
    design[np.arange(7), rng.integers(4, size=7)] = rng.standard_normal(7)
    if kind == "two and none":  # as many entries as rows
        design[0], design[1] = 0.0, [1.5, 0.0, -0.5, 0.0]
    return design


@pytest.mark.parametrize("kind", ["one a row", "two and none"])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_rows_make_of_a_matrix(kind, make, order):
    """``A K Aᵀ`` of a symmetric K, and ``AᵀMA`` of any M."""
    design, matrix = design_of(kind), np.asarray(pair(4)[0], order=order)
    np.testing.assert_allclose(congruence(make(design), matrix), design @ matrix @ design.T, atol=1e-13)
    other = np.asarray(np.random.default_rng(4).standard_normal((7, 7)), order=order)
    np.testing.assert_allclose(contraction(make(design), other), design.T @ other @ design, atol=1e-13)
