"""Thin wrappers of BLAS and LAPACK on Fortran-ordered arrays, which report failures as values."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from pymc_rmhmc.geometry.blas import factorise
from pymc_rmhmc.geometry.loops import identity_plus_scaled, invert_triangle, running_sums

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
    "multiply_symmetric",
    "reverse_cholesky",
    "solve_lower",
]

type Array = NDArray[np.float64]

# Columns that are handled at once: fewer are slow to multiply, more waste work on the block's own triangle.
ADJOINT_BLOCK = 96
FEW = 256
# Up to this size L⁻¹ itself, at twice the flops, costs less than an adjoint by blocks.
SMALL = 400
# LAPACK inverts a triangle at a third of the speed of a product: halves of one are inverted, down to this size, and
# these by loops.
TRIANGLE = 128
# Rows that are mirrored at once.
MIRRORED = 64
# Numbers that are moved at once, few enough for the cache.
CHUNK = 32768


def cholesky(matrix: Array, *, overwrite: bool = False) -> Array | None:
    """The lower factor L of ``matrix = L Lᵀ``; None if the matrix is not positive definite.

    Only the lower triangle is read. A matrix with a value that is not finite has no factor either:
    LAPACK would return one full of nan.
    """
    if not overwrite:
        has_factor, factor = factorise(matrix)
        return factor if has_factor else None
    factor, info = lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    if info != 0 or not math.isfinite(factor.diagonal().sum() + factor[-1].sum()):
        return None
    return np.asarray(factor)


def cholesky_adjoint(factor: Array, seed: Array) -> Array:
    """The derivative by S of a function of its lower factor L, given its derivative by L, at 2n³/3 flops.

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
    end = factor.shape[0]
    block = ADJOINT_BLOCK if end > FEW else FEW // 4
    while end > 0:
        start = max(0, end - block)
        rows, before, after = slice(start, end), slice(0, start), slice(end, None)
        diagonal = np.asfortranarray(factor[rows, rows])
        inverse = inverse_lower(diagonal)
        inner = seed[rows, rows]
        if end < factor.shape[0]:
            below = np.dot(seed[after, rows], inverse)
            seed[after, before] -= np.dot(below, factor[rows, before])
            seed[rows, before] -= np.dot(below.T, factor[after, before])
            seed[after, rows] = below
            inner = inner - np.dot(below.T, factor[after, rows])
        halved = np.tril(np.dot(diagonal.T, inner))
        halved.flat[:: end - start + 1] *= 0.5
        inner = np.dot(np.dot(inverse.T, halved), inverse)
        inner += inner.T.copy()
        seed[rows, before] -= np.dot(inner, factor[rows, before])
        inner.flat[:: end - start + 1] *= 0.5
        seed[rows, rows] = np.tril(inner)
        seed[before, rows] = 0.0
        end = start
    return seed


def cholesky_adjoint_of_product(factor: Array, left: Array, right: Array) -> Array:
    """The same for a derivative by L of ``tril(left rightᵀ)``: what ``leftᵀ L right`` gives.

    A small matrix takes the formula with L⁻¹ at twice the flops, in few calls: of ``L⁻ᵀ Φ(Lᵀ tril(left rightᵀ)) L⁻¹``,
    where Φ takes the lower triangle with half of the diagonal, the middle is ``Φ(v rightᵀ)`` with ``v = Lᵀ left``,
    and running sums multiply it by L⁻¹.

    Returns
    -------
    (n, n) array
        A matrix whose product with a symmetric ``dS`` sums to the change.
    """
    if factor.shape[0] > SMALL:
        return cholesky_adjoint(factor, np.outer(right, left).T)
    inverse = inverse_lower(factor)
    sums = running_sums(inverse, right, multiply_lower(factor, left, transpose=True))
    return np.asarray(blas.dtrmm(1.0, inverse, sums, lower=1, trans_a=1, overwrite_b=1))


def gram_lower(factor: Array) -> Array:
    """``L Lᵀ`` for a lower triangular L at a sixth of a general product's cost, in one new array.

    LAPACK multiplies ``U Uᵀ`` for an upper U, which L is when it is read backwards.
    """
    product, _ = lapack.dlauum(_reverse(factor.copy(order="F")), lower=0, overwrite_c=1)
    return _fill_upper(_reverse(product))


def cogram_lower(factor: Array) -> Array:
    """The lower triangle of ``Lᵀ L`` for a lower triangular, Fortran-ordered L, which is overwritten."""
    product, _ = lapack.dlauum(factor, lower=1, overwrite_c=1)
    return np.asarray(product)


def _reverse(matrix: Array) -> Array:
    """A Fortran-ordered matrix with rows and columns read backwards, in place."""
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


def multiply_symmetric(matrix: Array, vector: Array) -> Array:
    """``S v`` for a symmetric, Fortran-ordered S, of which the upper triangle is read."""
    return np.asarray(blas.dsymv(1.0, matrix, vector, lower=0))


def reverse_cholesky(matrix: Array) -> Array | None:
    """The *lower* factor F of ``matrix = Fᵀ F``, in place of the matrix; None if it is not positive definite.

    Only the lower triangle is read. It is the ordinary factor of the matrix read backwards. Its use: for a lower L,
    ``L F⁻¹`` is lower.
    """
    factor, info = lapack.dpotrf(_reverse(matrix), lower=0, clean=1, overwrite_a=1)
    if info != 0 or not np.isfinite(factor[:, -1]).all():
        return None
    return _reverse(factor)


def inverse_lower(factor: Array, *, overwrite: bool = False) -> Array:
    """The inverse of a lower triangular, Fortran-ordered matrix, whose upper triangle is 0."""
    n = factor.shape[0]
    if n <= TRIANGLE:
        small: Array = invert_triangle(np.asfortranarray(factor))
        return small
    if n > SMALL:
        inverse, _ = lapack.dtrtri(factor, lower=1, overwrite_c=int(overwrite))
        return np.asarray(inverse)
    half = n // 2
    whole = np.zeros((n, n), order="F")
    first = whole[:half, :half] = inverse_lower(factor[:half, :half])
    second = whole[half:, half:] = inverse_lower(factor[half:, half:])
    below = blas.dtrmm(-1.0, first, factor[half:, :half], side=1, lower=1)
    whole[half:, :half] = blas.dtrmm(1.0, second, below, lower=1, overwrite_b=1)
    return whole


def inverse_of_product(factor: Array, *, overwrite: bool = False) -> Array:
    """The lower triangle of ``(L Lᵀ)⁻¹``; what is above it is not to be read."""
    if factor.shape[0] <= SMALL:
        product, _ = lapack.dlauum(inverse_lower(factor), lower=1, overwrite_c=1)
    else:
        product, _ = lapack.dpotri(factor, lower=1, overwrite_c=int(overwrite))
    return np.asarray(product)


def multiply_lower(factor: Array, values: Array, *, transpose: bool = False) -> Array:
    """``L v`` or ``Lᵀ v`` for a lower triangular, Fortran-ordered L and a vector or matrix."""
    if values.ndim == 2:
        return np.asarray(blas.dtrmm(1.0, factor, values, lower=1, trans_a=int(transpose)))
    return np.asarray(blas.dtrmv(factor, values, lower=1, trans=int(transpose)))


def solve_lower(factor: Array, vector: Array, *, transpose: bool = False) -> Array:
    """``L⁻¹ v`` or ``L⁻ᵀ v`` for a lower triangular, Fortran-ordered L."""
    return np.asarray(blas.dtrsv(factor, vector, lower=1, trans=int(transpose)))
