"""A latent vector whose covariance, factor or precision the model gives as a matrix; see `Form` for the functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.interfaces.stated import StatedDense
from pymc_rmhmc.model.forms.priors import LatentVariable, factor_of_inverse

__all__ = ["in_a_sum", "matrices", "state", "state_at_a_point"]

type Array = NDArray[np.float64]


def matrices(latent: LatentVariable, shape: tuple[int, ...]) -> list[TensorVariable]:
    """Return K as an expression, or that of every row where they may differ, (r, n, n)."""
    covariance = _covariance_of(latent)
    return [covariance if covariance.ndim == 2 else _of_rows(latent, shape)]


def in_a_sum(
    latent: LatentVariable, shape: tuple[int, ...], scale: TensorVariable | None
) -> tuple[list[TensorVariable], TensorVariable, TensorVariable, TensorVariable]:
    """Return the K of all values, whose rows are independent, and what else `LatentVariable.scaled` does."""
    if len(shape) == 1:
        return latent.scaled([_covariance_of(latent)], shape, scale)
    rows, (n_rows, n) = _of_rows(latent, shape), (math.prod(shape[:-1]), shape[-1])
    whole = (pt.eye(n_rows)[:, None, :, None] * rows[:, :, None, :]).reshape((n_rows * n, n_rows * n))
    return latent.scaled([whole], shape, scale)


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


def _covariance_of(latent: LatentVariable) -> TensorVariable:
    """Return K as an expression, or that of every row, from whichever matrix the model gives."""
    matrix, root = latent.matrix.astype("float64"), latent.root
    if root == "covariance":
        return matrix
    return matrix @ matrix.mT if root == "cholesky" else pt.linalg.inv(matrix)


def _of_rows(latent: LatentVariable, shape: tuple[int, ...]) -> TensorVariable:
    """Return K of every row, (r, n, n), of a variable of this shape."""
    n = shape[-1]
    return pt.broadcast_to(_covariance_of(latent), (*shape, n)).reshape((math.prod(shape[:-1]), n, n))


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
