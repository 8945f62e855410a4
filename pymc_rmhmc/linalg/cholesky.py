"""Cholesky factors, their adjoints and inverses, and other work on triangles; failures are values.

Up to some hundreds of rows LAPACK's own take from one and a half to three times as long as the compiled code here: they
solve small triangles at a tenth of the speed of a product. Here narrow columns go by loops over their length, and all
else is products. What is solved by substitution there is so here too: these are as exact as LAPACK's.

References
----------
Golub and Van Loan (2013), Matrix computations, section 4.2.6, for the factor by blocks of columns; Murray (2016),
Differentiation of the Cholesky decomposition, section 3.3, for the adjoint.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from pymc_rmhmc.linalg.compiled.blas import multiply_by_triangle, subtract_product, subtract_symmetric_product
from pymc_rmhmc.linalg.compiled.compilation import compiled, compiled_in_any_order

__all__ = [
    "add_covariance_terms", "cholesky", "cholesky_adjoint", "cholesky_adjoint_of_product", "cogram_lower",
    "factorise_in_place", "gram_lower", "identity_plus_scaled", "inverse_lower", "inverse_of_product",
    "invert_in_place", "log_diagonal", "multiply_lower", "reverse_cholesky", "solve_lower", "solve_pair_in_place",
]  # fmt: skip

type Array = NDArray[np.float64]

# Rows that are mirrored at once.
MIRRORED = 64
# Numbers that are moved at once, few enough for the cache.
CHUNK = 32768
# Columns that are brought up to date by one large product, and how many of these by loops.
PANEL = 64
NARROW = 16


def cholesky(matrix: Array, *, overwrite: bool = False) -> Array | None:
    """Return the lower factor L of ``matrix = L Lᵀ``; None if the matrix is not positive definite.

    Only the lower triangle is read. A matrix with a value that is not finite has no factor either:
    LAPACK would return one full of nan.
    """
    factor = np.asfortranarray(matrix) if overwrite else np.array(matrix, order="F")
    return factor if factorise_in_place(factor) else None


def cholesky_adjoint(factor: Array, seed: Array) -> Array:
    """Return the derivative by S of a function of its lower factor L (n, n), given its derivative by L, at 2n³/3 flops.

    Of the seed, the derivative by L, the lower triangle is read; it is overwritten. A lower triangle is returned that
    stands for both: its product with a symmetric ``dS`` sums to the change.
    """
    seed = np.asfortranarray(seed)
    pull_back_in_place(factor, seed)
    return seed


def cholesky_adjoint_of_product(factor: Array, left: Array, right: Array) -> Array:
    """Return `cholesky_adjoint` of a derivative by L of ``tril(left rightᵀ)``: what ``leftᵀ L right`` gives."""
    return cholesky_adjoint(factor, outer_lower(left, right))


def gram_lower(factor: Array) -> Array:
    """Return ``L Lᵀ`` for a lower triangular L at a sixth of a general product's cost, in one new array.

    LAPACK multiplies ``U Uᵀ`` for an upper U, which L is when it is read backwards.
    """
    product, _ = lapack.dlauum(_reverse(factor.copy(order="F")), lower=0, overwrite_c=1)
    return _fill_upper(_reverse(product))


def cogram_lower(factor: Array) -> Array:
    """Return the lower triangle of ``Lᵀ L`` for a lower triangular, Fortran-ordered L, which is overwritten."""
    product, _ = lapack.dlauum(factor, lower=1, overwrite_c=1)
    return np.asarray(product)


def _reverse(matrix: Array) -> Array:
    """Reverse the rows and the columns of a Fortran-ordered matrix, in place."""
    flat = matrix.reshape(-1, order="F")
    for start in range(0, flat.size // 2, CHUNK):
        length = min(CHUNK, flat.size // 2 - start)
        ahead = flat[start : start + length]
        behind = flat[flat.size - start - length : flat.size - start]
        ahead[:], behind[:] = behind[::-1].copy(), ahead[::-1].copy()
    return matrix


def _fill_upper(matrix: Array) -> Array:
    """Copy the lower triangle of a matrix into its upper one, in place."""
    for start in range(0, matrix.shape[0], MIRRORED):
        rows = slice(start, start + MIRRORED)
        corner = np.tril(matrix[rows, rows])
        matrix[rows, rows] = corner + np.tril(corner, -1).T
        matrix[:start, rows] = matrix[rows, :start].T
    return matrix


def reverse_cholesky(matrix: Array) -> Array | None:
    """Return the *lower* factor F of ``matrix = Fᵀ F``, in place of the matrix; None if it is not positive definite.

    Only the lower triangle is read. It is the ordinary factor of the matrix read backwards. Its use: for a lower L,
    ``L F⁻¹`` is lower.
    """
    factor, info = lapack.dpotrf(_reverse(matrix), lower=0, clean=1, overwrite_a=1)
    if info != 0 or not np.isfinite(factor[:, -1]).all():
        return None
    return _reverse(factor)


def inverse_lower(factor: Array, *, overwrite: bool = False) -> Array:
    """Return the inverse of a lower triangular, Fortran-ordered matrix, whose upper triangle is 0."""
    inverse = np.asfortranarray(factor) if overwrite else factor.copy(order="F")
    invert_in_place(inverse)
    return inverse


def inverse_of_product(factor: Array) -> Array:
    """Return the lower triangle of ``(L Lᵀ)⁻¹``; what is above it is not to be read."""
    return cogram_lower(inverse_lower(factor))


def multiply_lower(factor: Array, values: Array, *, transpose: bool = False) -> Array:
    """Return ``L v`` or ``Lᵀ v`` for a lower triangular, Fortran-ordered L and a vector or matrix."""
    if values.ndim == 2:
        return np.asarray(blas.dtrmm(1.0, factor, values, lower=1, trans_a=int(transpose)))
    return np.asarray(blas.dtrmv(factor, values, lower=1, trans=int(transpose)))


def solve_lower(factor: Array, vector: Array, *, transpose: bool = False) -> Array:
    """Return ``L⁻¹ v`` or ``L⁻ᵀ v`` for a lower triangular, Fortran-ordered L."""
    return np.asarray(blas.dtrsv(factor, vector, lower=1, trans=int(transpose)))


@compiled
def factorise_in_place(matrix: Array) -> bool:  # pragma: no cover - compiled
    """Overwrite a Fortran-ordered matrix with its lower Cholesky factor and 0 above it; return False if there is none.

    The lower triangle is read. A matrix with a value that is not finite has no factor. Of a matrix with fewer columns
    than rows, the first columns of a larger one, these columns of the factor are found.
    """
    k, columns = matrix.shape[1], matrix.T
    for start in range(0, k, PANEL):
        end = min(start + PANEL, k)
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
    for j in range(k):
        checked += columns[j, j] + columns[j, -1]
        columns[j, :j] = 0.0
    return bool(np.isfinite(checked))


@compiled
def _factorise_columns(columns: Array, first: int, last: int) -> bool:  # pragma: no cover - compiled
    """Find the factor's columns from `first` to `last`, with those before already subtracted; False if none."""
    n = columns.shape[1]
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


# Passes over elements: at n = 100 each would take NumPy as long as the factorisations between them.


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
