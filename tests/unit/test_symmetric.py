"""The product of a symmetric matrix and a vector, small (by BLAS) and large."""

from __future__ import annotations

import numpy as np
import pytest

from pymc_rmhmc.linalg.products import LARGE, multiply_symmetric


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
