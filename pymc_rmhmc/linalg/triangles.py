"""A Cholesky factor, its adjoint, the inverse of a triangle and solutions with it, by blocks in compiled code.

Up to some hundreds of rows LAPACK's own take from one and a half to three times as long: they solve small triangles at
a tenth of the speed of a product. Here narrow columns go by loops over their length, and all else is products. What is
solved by substitution there is so here too: these are as exact as LAPACK's.

References
----------
Golub and Van Loan (2013), Matrix computations, section 4.2.6, for the factor by blocks of columns; Murray (2016),
Differentiation of the Cholesky decomposition, section 3.3, for the adjoint.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.linalg.compiled.blas import multiply_by_triangle, subtract_product, subtract_symmetric_product
from pymc_rmhmc.linalg.compiled.compilation import compiled, compiled_in_any_order

__all__ = ["factorise", "factorise_in_place", "invert_in_place", "pull_back_in_place", "solve_pair_in_place"]

type Array = NDArray[np.float64]

# Columns that are brought up to date by one large product, and how many of these by loops.
PANEL = 64
NARROW = 16


@compiled
def factorise(matrix: Array) -> tuple[bool, Array]:  # pragma: no cover - compiled
    """Factorise a matrix by its lower triangle: return whether it has a Cholesky factor, and L in Fortran order."""
    n = matrix.shape[0]
    rows, held = np.empty((n, n)), matrix.T
    for j in range(n):
        row, copied = rows[j, j:], held[j, j:]
        for i in range(n - j):
            row[i] = copied[i]
    factor = rows.T
    return factorise_in_place(factor), factor


@compiled
def factorise_in_place(matrix: Array) -> bool:  # pragma: no cover - compiled
    """Overwrite a Fortran-ordered matrix with its lower Cholesky factor and 0 above it; return False if there is none.

    The lower triangle is read. A matrix with a value that is not finite has no factor.
    """
    n, columns = matrix.shape[0], matrix.T
    for start in range(0, n, PANEL):
        end = min(start + PANEL, n)
        if start > 0:
            subtract_product(matrix[start:, start:end], matrix[start:, :start], matrix[start:end, :start], False, True)
        for first in range(start, end, NARROW):
            last = min(first + NARROW, end)
            if first > start:
                done = matrix[first:, start:first]
                subtract_product(matrix[first:, first:last], done, matrix[first:last, start:first], False, True)
            if not _factorise_columns(columns, first, last):
                return False
    checked = 0.0
    for j in range(n):
        checked += columns[j, j] + columns[j, -1]
        columns[j, :j] = 0.0
    return bool(np.isfinite(checked))


@compiled
def _factorise_columns(columns: Array, first: int, last: int) -> bool:  # pragma: no cover - compiled
    """Find the factor's columns from `first` to `last`, with those before already subtracted; False if none."""
    n = columns.shape[0]
    for j in range(first, last):
        made, k = columns[j, j:], first
        while k + 4 <= j:
            a, b, c, d = columns[k, j:], columns[k + 1, j:], columns[k + 2, j:], columns[k + 3, j:]
            by_a, by_b, by_c, by_d = a[0], b[0], c[0], d[0]
            for i in range(n - j):
                made[i] -= by_a * a[i] + by_b * b[i] + by_c * c[i] + by_d * d[i]
            k += 4
        while k < j:
            a = columns[k, j:]
            by_a = a[0]
            for i in range(n - j):
                made[i] -= by_a * a[i]
            k += 1
        # What is not a number is not above 0 either.
        if not made[0] > 0.0:
            return False
        scale = 1.0 / np.sqrt(made[0])
        for i in range(n - j):
            made[i] *= scale
    return True


@compiled
def invert_in_place(factor: Array) -> None:  # pragma: no cover - compiled
    """Overwrite a lower triangular, Fortran-ordered L with ``L⁻¹``; its upper triangle is not touched.

    A block of columns k and the rows A below it have ``X_Ak = -X_AA L_Ak L_kk⁻¹``, from the last block to the first.
    The division is by substitution: with X_kk in its place ``X L`` is further from 1, the more so the worse L is
    conditioned (Higham (2002), Accuracy and stability of numerical algorithms, section 14.2).
    """
    n, columns = factor.shape[0], factor.T
    end = n
    while end > 0:
        start = max(0, end - PANEL)
        if end < n:
            multiply_by_triangle(factor[end:, start:end], factor[end:, end:], False, -1.0)
        last = end
        while last > start:
            first = max(start, last - NARROW)
            if last < end:
                within = factor[last:end, first:last]
                if end < n:
                    subtract_product(factor[end:, first:last], factor[end:, last:end], within, False, False)
                multiply_by_triangle(within, factor[last:end, last:end], False, -1.0)
            _divide_columns(columns, columns, first, last)
            _invert_triangle(columns, first, last)
            last = first
        end = start


@compiled
def _invert_triangle(columns: Array, first: int, last: int) -> None:  # pragma: no cover - compiled
    """Invert the triangle of rows and columns from `first` to `last` in place, a column at a time."""
    for j in range(last - 1, first - 1, -1):
        column = columns[j]
        column[j] = 1.0 / column[j]
        for k in range(last - 1, j, -1):
            by, done, made = column[k], columns[k, k + 1 : last], column[k + 1 : last]
            for i in range(last - k - 1):
                made[i] += by * done[i]
            column[k] = by * columns[k, k]
        for i in range(j + 1, last):
            column[i] *= -column[j]


@compiled
def pull_back_in_place(factor: Array, seed: Array) -> None:  # pragma: no cover - compiled
    """Overwrite the derivative by L, whose lower triangle is read, with that by ``S = L Lᵀ``; 0 above.

    In Fortran order. What is below the diagonal stands for what is above it too.

    With M the symmetric matrix of which this is the lower triangle with half the diagonal, a block of columns k and
    the rows A below it have ``M_Ak = (seed_Ak - M_AA L_Ak) L_kk⁻¹``, from the last block to the first.
    """
    n, columns, factors = factor.shape[0], seed.T, factor.T
    end = n
    while end > 0:
        start = max(0, end - PANEL)
        for later in range(end, n, PANEL):
            _subtract_columns(factor, seed, start, end, later, min(later + PANEL, n))
        last = end
        while last > start:
            first = max(start, last - NARROW)
            if last < end:
                _subtract_columns(factor, seed, first, last, last, end)
            _divide_columns(columns, factors, first, last)
            if last < n:
                made, below = seed[last:, first:last], factor[last:, first:last]
                subtract_product(seed[first:last, first:last], made, below, True, False)
            _pull_back_triangle(columns, factors, first, last)
            last = first
        end = start
    for j in range(n):
        columns[j, :j] = 0.0
        columns[j, j] *= 0.5


@compiled
def _subtract_columns(
    factor: Array, seed: Array, first: int, last: int, start: int, end: int
) -> None:  # pragma: no cover - compiled
    """Take from the columns from `first` to `last` what the later ones from `start` to `end` have in ``M L``."""
    made, within = seed[start:end, first:last], factor[start:end, first:last]
    if end < factor.shape[0]:
        below = seed[end:, start:end]
        subtract_product(seed[end:, first:last], below, within, False, False)
        subtract_product(made, below, factor[end:, first:last], True, False)
    subtract_symmetric_product(made, seed[start:end, start:end], within)


@compiled
def _divide_columns(columns: Array, factors: Array, first: int, last: int) -> None:  # pragma: no cover - compiled
    """Divide columns X from `first` to `last`, below these rows, by L_kk: write ``X L_kk⁻¹`` in their place."""
    n = columns.shape[0] - last
    for j in range(last - 1, first - 1, -1):
        made, k = columns[j, last:], j + 1
        while k + 4 <= last:
            a, b, c, d = columns[k, last:], columns[k + 1, last:], columns[k + 2, last:], columns[k + 3, last:]
            by_a, by_b, by_c, by_d = factors[j, k], factors[j, k + 1], factors[j, k + 2], factors[j, k + 3]
            for i in range(n):
                made[i] -= by_a * a[i] + by_b * b[i] + by_c * c[i] + by_d * d[i]
            k += 4
        while k < last:
            a, by_a = columns[k, last:], factors[j, k]
            for i in range(n):
                made[i] -= by_a * a[i]
            k += 1
        scale = 1.0 / factors[j, j]
        for i in range(n):
            made[i] *= scale


@compiled
def _pull_back_triangle(columns: Array, factors: Array, first: int, last: int) -> None:  # pragma: no cover - compiled
    """Compute M of the rows and columns from `first` to `last`, a column at a time: the lower triangle and diagonal."""
    for j in range(last - 1, first - 1, -1):
        made, factor = columns[j], factors[j]
        for k in range(j + 1, last):
            by, done, total = factor[k], columns[k], 0.0
            for i in range(k + 1, last):
                made[i] -= by * done[i]
                total += done[i] * factor[i]
            made[k] -= by * done[k] + total
        total = 0.0
        for i in range(j + 1, last):
            made[i] /= factor[j]
            total += made[i] * factor[i]
        made[j] = (made[j] - total) / factor[j]


@compiled_in_any_order
def solve_pair_in_place(factor: Array, first: Array, second: Array) -> None:  # pragma: no cover - compiled
    """Overwrite two vectors with ``L⁻¹`` times each, for a lower triangular, Fortran-ordered L: eight columns at once.

    BLAS's own for several vectors takes as long as for one after the other.
    """
    columns, n = factor.T, first.size
    for j in range(0, n - n % 8, 8):
        _solve_square(columns, j, j + 8, first)
        _solve_square(columns, j, j + 8, second)
        _subtract_below(columns, j, first, second)
    _solve_square(columns, n - n % 8, n, first)
    _solve_square(columns, n - n % 8, n, second)


@compiled_in_any_order
def _subtract_below(columns: Array, j: int, first: Array, second: Array) -> None:  # pragma: no cover - compiled
    """Take eight columns from the j-th, times those values of either vector, from what follows these."""
    k = j + 8
    a, b, c, d = columns[j, k:], columns[j + 1, k:], columns[j + 2, k:], columns[j + 3, k:]
    e, f, g, h = columns[j + 4, k:], columns[j + 5, k:], columns[j + 6, k:], columns[j + 7, k:]
    by_a, by_b, by_c, by_d, by_e, by_f, by_g, by_h = first[j:k]
    of_a, of_b, of_c, of_d, of_e, of_f, of_g, of_h = second[j:k]
    below, under = first[k:], second[k:]
    for i in range(below.size):
        made = a[i] * by_a + b[i] * by_b + c[i] * by_c + d[i] * by_d
        below[i] -= made + e[i] * by_e + f[i] * by_f + g[i] * by_g + h[i] * by_h
        made = a[i] * of_a + b[i] * of_b + c[i] * of_c + d[i] * of_d
        under[i] -= made + e[i] * of_e + f[i] * of_f + g[i] * of_g + h[i] * of_h


@compiled_in_any_order
def _solve_square(columns: Array, start: int, end: int, vector: Array) -> None:  # pragma: no cover - compiled
    """Solve for the rows from start to end, with the columns from start to end alone."""
    for j in range(start, end):
        vector[j] /= columns[j, j]
        for i in range(j + 1, end):
            vector[i] -= columns[j, i] * vector[j]
