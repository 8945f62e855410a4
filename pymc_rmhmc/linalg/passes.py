"""Passes over a matrix's elements, compiled: each would be four or five passes of NumPy.

At n = 100 these passes take as long as the factorisations between them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = ["add_covariance_terms", "identity_plus_scaled", "log_diagonal", "outer_lower"]

type Array = NDArray[np.float64]


@compiled
def identity_plus_scaled(gram: Array, root: Array) -> Array:  # pragma: no cover - compiled
    """Return the lower triangle of ``I + s Q s`` for a symmetric Q and a vector s, in Fortran order; 0 above it."""
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
def outer_lower(left: Array, right: Array) -> Array:  # pragma: no cover - compiled
    """Return the lower triangle of ``left rightᵀ``, in Fortran order; what is above it is not to be read."""
    n = left.size
    columns = np.empty((n, n))
    for j in range(n):
        made, given, by = columns[j, j:], left[j:], right[j]
        for i in range(n - j):
            made[i] = by * given[i]
    return columns.T


@compiled
def log_diagonal(factor: Array) -> float:  # pragma: no cover - compiled
    """Return ``Σ log L_ii``."""
    total = 0.0
    for i in range(factor.shape[0]):
        total += np.log(factor[i, i])
    return total


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
