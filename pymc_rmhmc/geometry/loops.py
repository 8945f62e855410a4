"""Passes over a matrix's elements, compiled: each would be four or five passes of NumPy.

At n = 100 these passes take as long as the factorisations between them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.geometry.compilation import compiled

__all__ = ["add_covariance_terms", "identity_plus_scaled", "invert_triangle", "log_diagonal", "running_sums"]

type Array = NDArray[np.float64]


@compiled
def running_sums(matrix: Array, right: Array, left: Array) -> Array:  # pragma: no cover - compiled
    """``left_i (Σ_{k<i} right_k M_kj + ½ right_i M_ij)`` of a lower triangular M, in Fortran order like M.

    With Φ that takes the lower triangle and half of the diagonal, this is ``Φ(left rightᵀ) M``.
    """
    n = matrix.shape[0]
    sums = np.zeros((n, n)).T
    whole = n - n % 4
    # A sum waits for its last term: four columns at once do not wait for one another.
    for j in range(0, whole, 4):
        a = b = c = d = 0.0
        for i in range(j, n):
            by, times = right[i], left[i]
            term = by * matrix[i, j]
            sums[i, j] = times * (a + 0.5 * term)
            a += term
            term = by * matrix[i, j + 1]
            sums[i, j + 1] = times * (b + 0.5 * term)
            b += term
            term = by * matrix[i, j + 2]
            sums[i, j + 2] = times * (c + 0.5 * term)
            c += term
            term = by * matrix[i, j + 3]
            sums[i, j + 3] = times * (d + 0.5 * term)
            d += term
    for j in range(whole, n):
        a = 0.0
        for i in range(j, n):
            term = right[i] * matrix[i, j]
            sums[i, j] = left[i] * (a + 0.5 * term)
            a += term
    return sums


@compiled
def identity_plus_scaled(gram: Array, root: Array) -> Array:  # pragma: no cover - compiled
    """The lower triangle of ``I + s Q s`` for a symmetric Q and a vector s, in Fortran order; 0 above it."""
    n = root.size
    matrix = np.zeros((n, n))
    columns = gram.T
    for j in range(n):
        # Of parts that begin at 0 the compiler takes several numbers at a time, of a loop that begins at j it does not.
        made, held, after, first = matrix[j, j:], columns[j, j:], root[j:], root[j]
        for i in range(n - j):
            made[i] = first * after[i] * held[i]
        made[0] += 1.0
    return matrix.T


@compiled
def log_diagonal(factor: Array) -> float:  # pragma: no cover - compiled
    """``Σ log L_ii``."""
    total = 0.0
    for i in range(factor.shape[0]):
        total += np.log(factor[i, i])
    return total


@compiled
def invert_triangle(factor: Array) -> Array:  # pragma: no cover - compiled
    """``L⁻¹`` of a lower triangular, Fortran-ordered L, in Fortran order; 0 above.

    A column at a time by substitution, four of its numbers at once: what is below them is then read and written once.
    """
    n = factor.shape[0]
    columns, inverse = factor.T, np.zeros((n, n))
    for j in range(n):
        x = inverse[j]
        x[j], k = 1.0, j
        while k + 4 <= n:
            first, second, third, fourth = columns[k], columns[k + 1], columns[k + 2], columns[k + 3]
            a = x[k] / first[k]
            b = (x[k + 1] - a * first[k + 1]) / second[k + 1]
            c = (x[k + 2] - a * first[k + 2] - b * second[k + 2]) / third[k + 2]
            d = (x[k + 3] - a * first[k + 3] - b * second[k + 3] - c * third[k + 3]) / fourth[k + 3]
            x[k], x[k + 1], x[k + 2], x[k + 3] = a, b, c, d
            k += 4
            # Of parts that begin at 0 the compiler takes several numbers at a time.
            below, first, second, third, fourth = x[k:], first[k:], second[k:], third[k:], fourth[k:]
            for i in range(n - k):
                below[i] = below[i] - a * first[i] - b * second[i] - c * third[i] - d * fourth[i]
        while k < n:
            x[k] /= columns[k, k]
            for i in range(k + 1, n):
                x[i] -= x[k] * columns[k, i]
            k += 1
    return inverse.T


@compiled
def add_covariance_terms(
    total: Array, spread: Array, dual: Array, centre: Array, inverse: Array, root: Array
) -> None:  # pragma: no cover - compiled
    """Add ``spread dualᵀ + ½ centre centreᵀ - ½ s B⁻¹ s``, given the lower triangle of B⁻¹, to a matrix.

    What is below the diagonal stands for what is above it too.
    """
    n = total.shape[0]
    columns, inverses = total.T, inverse.T
    for j in range(n):
        first, half, scale = dual[j], 0.5 * centre[j], root[j]
        column = columns[j]
        for i in range(n):
            column[i] += spread[i] * first + centre[i] * half
        column, held, after = columns[j, j:], inverses[j, j:], root[j:]
        column[0] += 0.5 * scale * scale * held[0]
        for i in range(n - j):
            column[i] -= scale * after[i] * held[i]
