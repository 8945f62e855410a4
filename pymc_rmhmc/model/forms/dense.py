"""A latent vector whose covariance, factor or precision the model gives as a matrix; see `Form` for the functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import lapack

from pymc_rmhmc.interfaces.stated import StatedDense
from pymc_rmhmc.model.forms.priors import LatentVariable

__all__ = ["covariance_of", "factor_of_inverse", "in_a_sum", "matrices", "scaled", "state", "state_at_a_point"]

type Array = NDArray[np.float64]


def matrices(latent: LatentVariable, shape: tuple[int, ...]) -> list[TensorVariable]:
    """Return K as an expression, or that of every row where they may differ, (r, n, n)."""
    covariance = covariance_of(latent)
    return [covariance if covariance.ndim == 2 else _of_rows(latent, shape)]


def in_a_sum(
    latent: LatentVariable, shape: tuple[int, ...], scale: TensorVariable | None
) -> tuple[list[TensorVariable], TensorVariable, TensorVariable, TensorVariable]:
    """Return the K of all values, whose rows are independent, times a number; and what else `scaled` does."""
    if len(shape) == 1:
        return scaled([covariance_of(latent)], latent, shape, scale)
    rows, (n_rows, n) = _of_rows(latent, shape), (math.prod(shape[:-1]), shape[-1])
    whole = (pt.eye(n_rows)[:, None, :, None] * rows[:, :, None, :]).reshape((n_rows * n, n_rows * n))
    return scaled([whole], latent, shape, scale)


def state(
    given: Sequence[Array], location: Array | float, scale: Array | float, *, is_centred: bool, moves: bool = True
) -> StatedDense:
    """State a vector with a covariance of what is read."""
    return StatedDense(_in_fortran_order(given[0]), location, is_centred, scale, moves)


def state_at_a_point(
    given: Sequence[Array], root: str, mean: Array, rows: Sequence[int], *, is_centred: bool
) -> list[StatedDense]:
    """State some rows of a variable as the model gives them: a factor or a precision loses digits as a covariance."""
    (matrix,) = given
    core = matrix.shape[-2:]
    if matrix.size == core[0] * core[1]:
        each = matrix.reshape(1, *core)
    else:
        each = np.broadcast_to(matrix, (*mean.shape[:-1], *core)).reshape(-1, *core)
    # Rows that share a matrix share what is made of it.
    made = {i: _covariance_or_factor(each[i], root) for i in {row % len(each) for row in rows}}
    means = mean.reshape(-1, core[0])
    stated = ((made[row % len(each)], means[row]) for row in rows)
    return [StatedDense(covariance, at, is_centred, factor=factor) for (covariance, factor), at in stated]


def scaled(
    given: list[TensorVariable], latent: LatentVariable, shape: tuple[int, ...], scale: TensorVariable | None
) -> tuple[list[TensorVariable], TensorVariable, TensorVariable, TensorVariable]:
    """Return K, or all K_i, times a number; what sites read where y is 0; and the variable's mean and the number."""
    mean = pt.zeros(math.prod(shape)) if latent.mean is None else pt.broadcast_to(latent.mean, shape).ravel()
    if scale is None:
        return given, mean, mean, pt.ones(1)
    # Of a Kronecker product one factor takes the number.
    return [scale[:, None] * given[0] * scale[None, :], *given[1:]], scale * mean, mean, scale


def covariance_of(latent: LatentVariable) -> TensorVariable:
    """Return K as an expression, or that of every row, from whichever matrix the model gives."""
    matrix, root = latent.matrix.astype("float64"), latent.root
    if root == "covariance":
        return matrix
    return matrix @ matrix.mT if root == "cholesky" else pt.linalg.inv(matrix)


def _of_rows(latent: LatentVariable, shape: tuple[int, ...]) -> TensorVariable:
    """Return K of every row, (r, n, n), of a variable of this shape."""
    n = shape[-1]
    return pt.broadcast_to(covariance_of(latent), (*shape, n)).reshape((math.prod(shape[:-1]), n, n))


def _covariance_or_factor(matrix: Array, root: str) -> tuple[Array | None, Array | None]:
    """Return the covariance, or its lower factor, from whatever the model gives."""
    if not np.isfinite(matrix).all():
        return np.full((matrix.shape[0],) * 2, np.nan), None
    if root == "precision":
        factor = factor_of_inverse(matrix)
        # A factor of zeros is no factor: the draw is rejected and counted, or it is the user's error.
        return None, np.zeros_like(matrix) if factor is None else factor
    if root == "covariance":
        return _in_fortran_order(matrix), None
    rows, columns = matrix.shape
    if rows != columns or np.triu(matrix, 1).any():
        return _in_fortran_order(matrix @ matrix.T), None  # ``A @ A.T`` is a covariance whatever A is
    negative = root == "cholesky" and bool((matrix.diagonal() < 0.0).any())
    return None, matrix * np.where(matrix.diagonal() < 0.0, -1.0, 1.0) if negative else matrix


def _in_fortran_order(matrix: Array) -> Array:
    """Return a covariance in Fortran order: it is symmetric, so that its transpose is itself, at no cost."""
    return matrix.T if matrix.flags.c_contiguous else np.asfortranarray(matrix)


def factor_of_inverse(precision: Array) -> Array | None:
    """Return the lower factor of ``τ⁻¹``; None if τ is not positive definite.

    From ``τ = U Uᵀ`` with an upper U, which is the ordinary factor of τ read backwards, ``L = U⁻ᵀ``. The
    inverse is never formed, nor factorised again: of an ill-conditioned τ it would have lost a digit or
    two more of the determinant, or have come out indefinite.
    """
    backwards = np.asfortranarray(precision[::-1, ::-1])
    factor, info = lapack.dpotrf(backwards, lower=1, clean=1)
    # A pivot is the part of a diagonal element that the others do not explain. Below this it is rounding,
    # and the matrix singular (an intrinsic prior, such as D - W), whatever its sign has come out as.
    noise = precision.shape[0] * np.finfo(np.float64).eps * backwards.diagonal()
    if info != 0 or not (factor.diagonal() ** 2 > noise).all():
        return None
    inverse, _ = lapack.dtrtri(factor, lower=1, overwrite_c=1)
    return np.asfortranarray(inverse[::-1, ::-1].T)
