"""The product of a symmetric matrix and a vector, of which a step at fixed hyperparameters is made.

BLAS's dsymv is the fastest while the matrix is in the processor's cache. A larger one takes as long as memory takes to
be read, and several streams come faster than one: with eight columns at once a product of 2000 or 4000 takes 0.7 to 0.8
of dsymv's time, and half of that where the matrix is in single precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import overload
from numpy.typing import NDArray

from pymc_rmhmc.linalg.compiled.blas import symmetric_product
from pymc_rmhmc.linalg.compiled.compilation import compiled, compiled_in_any_order

__all__ = ["LARGE", "multiply_in_streams", "multiply_symmetric"]

type Array = NDArray[np.float64]

# From here on eight columns at once are faster: of 1500 values a triangle takes 9 MB.
LARGE = 1500


@compiled_in_any_order
def _by_eight(columns: Array, end: int, vector: Array, product: Array) -> None:  # pragma: no cover - compiled
    """Multiply by eight columns at once up to the end, a multiple of eight; what the product holds is overwritten."""
    for j in range(0, end, 8):
        a, b, c, d = columns[j, :j], columns[j + 1, :j], columns[j + 2, :j], columns[j + 3, :j]
        e, f, g, h = columns[j + 4, :j], columns[j + 5, :j], columns[j + 6, :j], columns[j + 7, :j]
        by_a, by_b, by_c, by_d = vector[j], vector[j + 1], vector[j + 2], vector[j + 3]
        by_e, by_f, by_g, by_h = vector[j + 4], vector[j + 5], vector[j + 6], vector[j + 7]
        of_a = of_b = of_c = of_d = of_e = of_f = of_g = of_h = 0.0
        before, made = vector[:j], product[:j]
        for i in range(j):
            by = before[i]
            of_a, of_b, of_c, of_d = of_a + a[i] * by, of_b + b[i] * by, of_c + c[i] * by, of_d + d[i] * by
            of_e, of_f, of_g, of_h = of_e + e[i] * by, of_f + f[i] * by, of_g + g[i] * by, of_h + h[i] * by
            more = a[i] * by_a + b[i] * by_b + c[i] * by_c + d[i] * by_d
            made[i] += more + e[i] * by_e + f[i] * by_f + g[i] * by_g + h[i] * by_h
        product[j], product[j + 1], product[j + 2], product[j + 3] = of_a, of_b, of_c, of_d
        product[j + 4], product[j + 5], product[j + 6], product[j + 7] = of_e, of_f, of_g, of_h
        for p in range(j, j + 8):
            for q in range(j, p):
                product[p] += columns[p, q] * vector[q]
                product[q] += columns[p, q] * vector[p]
            product[p] += columns[p, p] * vector[p]


@compiled_in_any_order
def _one_column(column: Array, by: float, vector: Array, product: Array) -> float:  # pragma: no cover - compiled
    """Return the column's product with what the vector begins with; add ``by`` times the column to the product."""
    total = 0.0
    for i in range(column.size):
        total += column[i] * vector[i]
        product[i] += column[i] * by
    return total


def _columns_by_rows(matrix: Array) -> Array:
    """Return the columns of a symmetric matrix as the rows of one in C order; for compiled code alone."""
    raise NotImplementedError


@overload(_columns_by_rows, strict=False)
def _compiled_columns_by_rows(matrix: Any) -> Any:
    if matrix.layout == "C":
        return lambda matrix: matrix
    return lambda matrix: matrix.T


@compiled
def multiply_in_streams(matrix: Any, vector: Array) -> Array:  # pragma: no cover - compiled
    """Multiply as `multiply_symmetric`, for any size and precision, in several streams; sum in double precision."""
    n = vector.size
    columns, product, whole = _columns_by_rows(matrix), np.empty(n), n - n % 8
    _by_eight(columns, whole, vector, product)
    for j in range(whole, n):
        product[j] = _one_column(columns[j, :j], vector[j], vector, product) + columns[j, j] * vector[j]
    return product


@compiled
def multiply_symmetric(matrix: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``S v`` (n,) for a symmetric S and a contiguous v; of a Fortran-ordered S the upper triangle is read."""
    return symmetric_product(matrix, vector) if vector.size < LARGE else multiply_in_streams(matrix, vector)
