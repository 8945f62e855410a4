"""Thin wrappers of BLAS and LAPACK on Fortran-ordered arrays, which report failures as values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from pymc_rmhmc.linalg.passes import identity_plus_scaled, outer_lower
from pymc_rmhmc.linalg.triangles import factorise, factorise_in_place, invert_in_place, pull_back_in_place

__all__ = [
    "cholesky",
    "cholesky_adjoint",
    "cholesky_adjoint_of_product",
    "cogram_lower",
    "gram_lower",
    "identity_plus_scaled",
    "inverse_lower",
    "inverse_of_product",
    "multiply_lower",
    "reverse_cholesky",
    "solve_columns",
    "solve_lower",
]

type Array = NDArray[np.float64]

# Rows that are mirrored at once.
MIRRORED = 64
# Numbers that are moved at once, few enough for the cache.
CHUNK = 32768


def cholesky(matrix: Array, *, overwrite: bool = False) -> Array | None:
    """Return the lower factor L of ``matrix = L Lᵀ``; None if the matrix is not positive definite.

    Only the lower triangle is read. A matrix with a value that is not finite has no factor either:
    LAPACK would return one full of nan.
    """
    if overwrite:
        factor = np.asfortranarray(matrix)
        has_factor = factorise_in_place(factor)
    else:
        has_factor, factor = factorise(matrix)
    return factor if has_factor else None


def cholesky_adjoint(factor: Array, seed: Array) -> Array:
    """Return the derivative by S of a function of its lower factor L, given its derivative by L, at 2n³/3 flops.

    Parameters
    ----------
    factor : (n, n) array
        L, in Fortran order.
    seed : (n, n) array
        The derivative by L, of which the lower triangle is read; it is overwritten.

    Returns
    -------
    (n, n) array
        A lower triangle that stands for both: its product with a symmetric ``dS`` sums to the change.

    References
    ----------
    Murray (2016), Differentiation of the Cholesky decomposition, section 3.3, by blocks from the last to the first.
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


def solve_columns(factor: Array, columns: Array) -> Array:
    """Return ``L⁻¹ M`` for a well-conditioned, lower triangular, Fortran-ordered L and a matrix, which is overwritten.

    Through the inverse: substitution is two and a half times as long on its way.
    """
    return np.asarray(blas.dtrmm(1.0, inverse_lower(factor), columns, lower=1, overwrite_b=1))
