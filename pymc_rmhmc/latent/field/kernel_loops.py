"""Compiled loops over vectors of a Gaussian field with a dense covariance K, the last ones to be eliminated.

Such a vector f is ``L y`` for the factor L of K, and y is N(0, I). Rows of J and A read f; the field's values have y in
its place, so that K is never inverted. With S what the sparse rows leave of P at f when all else is eliminated,
P there is ``E = I + LᵀSL``, and the covariance of f ``L E⁻¹ Lᵀ``. By L the derivative is

    Σ_rows rᵀ[ along ωᵀ + by_value ξᵀ + by_mean μᵀ ] - S L E⁻¹,

with ω, ξ and μ the y of v, x and m, and the rows' derivatives as `pull_field` has them.

What is kept of a field at one θ are the transposes of L, of the inverse of E's lower factor, and of S L, (3, k, k).
Their transposes in turn are in Fortran order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.linalg.cholesky import factorise_in_place, invert_in_place, log_diagonal, pull_back_in_place
from pymc_rmhmc.linalg.compiled.blas import multiply_by_triangle, subtract_product
from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.multifrontal import STRIPE
from pymc_rmhmc.linalg.sparse_cholesky import last_panel, select, solve, substitute

__all__ = [
    "add_kernel_slopes", "collapse", "expand", "factorise_kernels", "select_with_kernel", "solve_with_kernel",
    "weigh_kernel",
]  # fmt: skip

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]


@compiled
def factorise_kernels(kernels: Indices, numbers: Array) -> Array:  # pragma: no cover - compiled
    """Return the three matrices, of which the first is known: L of all vectors together, nan where a K has no factor.

    They are of the numbers that u(θ) ends with, of which the lower triangle of each matrix is read. `kernels` has a row
    for each: its size, and 1 where its numbers are those of L.
    """
    k, at, start = 0, numbers.size, 0
    for which in range(kernels.shape[0]):
        k += kernels[which, 0]
        at -= kernels[which, 0] ** 2
    made = np.zeros((3, k, k))
    factor = made[0].T
    for which in range(kernels.shape[0]):
        size = kernels[which, 0]
        end = start + size
        own = numbers[at : at + size * size].reshape(size, size).T.copy().T
        if kernels[which, 1]:
            factor[start:end, start:end] = np.tril(own)
        elif factorise_in_place(own):
            factor[start:end, start:end] = own
        else:
            factor[start:end, start:end] = np.nan
        at, start = at + size * size, end
    return made


@compiled
def expand(kernel: Array, vectors: Array) -> None:  # pragma: no cover - compiled
    """Overwrite y with f, the last of values (r, n)."""
    first = vectors.shape[1] - kernel.shape[1]
    vectors[:, first:] = np.dot(vectors[:, first:].copy(), kernel[0])


@compiled
def collapse(kernel: Array, total: Array) -> None:  # pragma: no cover - compiled
    """Overwrite a derivative by f with that by y, in a vector (n,)."""
    first = total.size - kernel.shape[1]
    total[first:] = np.dot(kernel[0], total[first:])


@compiled
def weigh_kernel(index: tuple[Indices, ...], stored: Array, kernel: Array) -> float:  # pragma: no cover - compiled
    """Return ``log |E|``, nan if there is none; write the second and the third of the matrices."""
    factor, inner, weighted = kernel[0].T, kernel[1].T, kernel[2].T
    left_over = last_panel(index, stored)  # S, as an upper triangle
    for i in range(inner.shape[0]):
        for j in range(i + 1):
            weighted[i, j], weighted[j, i] = left_over[j, i], left_over[j, i]
    multiply_by_triangle(weighted, factor, True, 1.0)
    inner[:] = weighted.T
    multiply_by_triangle(inner, factor, True, 1.0)
    for i in range(inner.shape[0]):
        inner[i, i] += 1.0
    if not factorise_in_place(inner):
        return np.nan
    log_determinant = 2.0 * log_diagonal(inner)
    invert_in_place(inner)
    return log_determinant


@compiled
def _subtract_lower(total: Array, left: Array, right: Array) -> None:  # pragma: no cover - compiled
    """Take the lower triangle of ``left right`` from a total, and of what is above it no more than stripes."""
    k = total.shape[0]
    for first in range(0, k, STRIPE):
        last = min(first + STRIPE, k)
        subtract_product(total[first:, first:last], left[first:], right[:, first:last], False, False)


@compiled
def solve_with_kernel(
    kind: int, index: tuple[Indices, ...], stored: Array, kernel: Array, vectors: Array
) -> None:  # pragma: no cover - compiled
    """Replace vectors (r, n) by ``P⁻¹`` times each, without dense rows of J."""
    k = kernel.shape[1]
    if k == 0:
        solve(kind, index, stored, vectors)
        return
    first = vectors.shape[1] - k
    given = vectors[:, first:].copy()
    vectors[:, first:] = 0.0
    substitute(index, stored, vectors, False)
    given += np.dot(vectors[:, first:].copy(), kernel[0].T)
    given = np.dot(np.dot(given, kernel[1]), kernel[1].T)
    vectors[:, first:] = np.dot(given, kernel[0])
    substitute(index, stored, vectors, True)
    vectors[:, first:] = given


@compiled
def select_with_kernel(
    kind: int, index: tuple[Indices, ...], stored: Array, kernel: Array, inverse: Array
) -> None:  # pragma: no cover - compiled
    """Write the covariances of all that rows read at the places of the stored precision, where it has 0."""
    if kernel.shape[1]:
        root = kernel[1].T.copy().T
        multiply_by_triangle(root, kernel[0].T, False, 1.0)
        _subtract_lower(last_panel(index, inverse).T, -root, np.ascontiguousarray(root).T)
    select(kind, index, stored, inverse)


@compiled
def add_kernel_slopes(
    kernels: Indices, kernel: Array, by_rows: Array, whitened: Array, total: Array
) -> None:  # pragma: no cover - compiled
    """Add the derivative by each K, or by its L, to what a total ends with.

    Parameters
    ----------
    kernels, kernel : arrays
        As `factorise_kernels` takes and returns them, after `weigh_kernel`.
    by_rows : (r, k) array
        The rows transposed times their derivatives: by_value, by_mean and along, and then what dense rows add.
    whitened : (r, k) array
        ξ, μ and ω, and then what goes with the rest.
    total : array
        By the numbers u(θ).
    """
    factor, half, weighted = kernel[0].T, kernel[1].T, kernel[2].T
    by_factor, inverse = np.dot(whitened.T, by_rows).T, np.ascontiguousarray(half).T
    multiply_by_triangle(inverse, half, True, 1.0)
    _subtract_lower(by_factor, weighted, inverse)
    at, start = total.size, 0
    for which in range(kernels.shape[0]):
        at -= kernels[which, 0] ** 2
    for which in range(kernels.shape[0]):
        size = kernels[which, 0]
        end = start + size
        own, seed = factor[start:end, start:end].T.copy(), by_factor[start:end, start:end].T.copy()
        if not kernels[which, 1]:
            pull_back_in_place(own.T, seed.T)
        for i in range(size):
            for j in range(i + 1):
                total[at + i * size + j] += seed[j, i]
        at, start = at + size * size, end
