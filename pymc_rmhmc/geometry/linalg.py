"""Thin wrappers of BLAS and LAPACK on Fortran-ordered arrays, which report failures as values."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

__all__ = [
    "cholesky",
    "cogram_lower",
    "gram_lower",
    "identity_plus_scaled",
    "inverse_lower",
    "multiply_lower",
    "multiply_symmetric",
    "reverse_cholesky",
    "solve_lower",
]

type Array = NDArray[np.float64]


def cholesky(matrix: Array, *, overwrite: bool = False) -> Array | None:
    """The lower factor L of ``matrix = L Lᵀ``; None if the matrix is not positive definite.

    Only the lower triangle is read. A matrix with a value that is not finite has no factor either:
    LAPACK would return one full of nan.
    """
    factor, info = lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=int(overwrite))
    if info != 0 or not np.isfinite(factor[-1, :]).all():
        return None
    return np.asarray(factor)


def identity_plus_scaled(gram: Array, root: Array) -> Array:
    """``B = I + s Q s`` for a symmetric Q and a vector s, in Fortran order, ready to be overwritten by its factor.

    Scaled in place: done carelessly this costs more than the Cholesky at n = 500.
    """
    matrix = np.multiply(gram, root[:, None], order="F")
    matrix *= root
    matrix[np.diag_indices_from(matrix)] += 1.0
    return matrix


def gram_lower(factor: Array) -> Array:
    """``L Lᵀ`` for a lower triangular L at a sixth of a general product's cost; both triangles are filled.

    LAPACK multiplies ``U Uᵀ`` for an upper U, which L is when it is read backwards.
    """
    product, _ = lapack.dlauum(np.asfortranarray(factor[::-1, ::-1]), lower=0, overwrite_c=1)
    return _both_triangles(product[::-1, ::-1])


def cogram_lower(factor: Array) -> Array:
    """``Lᵀ L`` for a lower triangular L at a sixth of a general product's cost; both triangles are filled."""
    product, _ = lapack.dlauum(np.asfortranarray(factor), lower=1)
    return _both_triangles(product)


def _both_triangles(matrix: Array) -> Array:
    """A symmetric matrix of which the lower triangle is given, in Fortran order."""
    lower = np.tril(matrix)
    lower += np.tril(lower, -1).T
    return np.asfortranarray(lower)


def multiply_symmetric(matrix: Array, vector: Array) -> Array:
    """``S v`` for a symmetric, Fortran-ordered S, of which the upper triangle is read."""
    return np.asarray(blas.dsymv(1.0, matrix, vector, lower=0))


def reverse_cholesky(matrix: Array) -> Array | None:
    """The *upper* factor R of ``matrix = R Rᵀ``; None if the matrix is not positive definite.

    It is the ordinary factor of the matrix read backwards. Its use: for a lower L, ``L R⁻ᵀ`` is lower.
    """
    flipped = cholesky(np.asfortranarray(matrix[::-1, ::-1]))
    return None if flipped is None else np.asfortranarray(flipped[::-1, ::-1])


def inverse_lower(factor: Array, *, overwrite: bool = False) -> Array:
    """The inverse of a lower triangular matrix."""
    inverse, _ = lapack.dtrtri(factor, lower=1, overwrite_c=int(overwrite))
    return np.asarray(inverse)


def multiply_lower(factor: Array, vector: Array, *, transpose: bool = False) -> Array:
    """``L v`` or ``Lᵀ v`` for a lower triangular, Fortran-ordered L."""
    return np.asarray(blas.dtrmv(factor, vector, lower=1, trans=int(transpose)))


def solve_lower(factor: Array, vector: Array, *, transpose: bool = False) -> Array:
    """``L⁻¹ v`` or ``L⁻ᵀ v`` for a lower triangular, Fortran-ordered L."""
    return np.asarray(blas.dtrsv(factor, vector, lower=1, trans=int(transpose)))
