"""The Gaussian prior of a latent variable as a function of a point: its rows, and μ and Σ of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from scipy.linalg import lapack

from pymc_rmhmc.errors import CovarianceError, DataError
from pymc_rmhmc.interfaces.stated import StatedDense, StatedKronecker, StatedVector
from pymc_rmhmc.model.forms.priors import LatentVariable
from pymc_rmhmc.model.graph.graphs import Evaluator, bad_constants
from pymc_rmhmc.model.words.bad_inputs import not_finite_in_words

__all__ = ["LatentReader", "LatentRow", "factor_of_inverse", "in_fortran_order"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]


# Rows of a matrix that are looked at together.
ROWS = 64


@dataclass(frozen=True)
class LatentRow:
    """One row of a latent variable: an independent Gaussian vector."""

    latent: int  # which variable of the block
    row: int  # 0 for a vector
    size: int
    positions: NDArray[np.int64]  # where the row's values are in the raveled source


class LatentReader:
    """The prior of one latent variable as a function of a point."""

    def __init__(self, model: pm.Model, latent: LatentVariable) -> None:
        self.name, self.form, self.root = latent.name, latent.form, latent.root
        self.value_name = str(model.rvs_to_values[latent.variable].name)
        self.source_ndim = latent.source.ndim
        expressions, self._n_matrices = latent.expressions, len(latent.matrices)
        self._evaluate = Evaluator(model, expressions)
        self.inputs, self.shared = self._evaluate.inputs, self._evaluate.shared
        self._constants = bad_constants(expressions)
        # PyMC marks what it is given for a lower factor, and reads the lower triangle alone.
        self._is_factor = latent.root == "cholesky" and getattr(latent.matrices[0].tag, "lower_triangular", False)

    def source_shape(self, point: Point) -> tuple[int, ...]:
        """Return the shape of what predictors read."""
        shape = np.shape(point[self.value_name])
        if self.form != "whitened":
            return shape
        size, rows = shape[-1], int(np.prod(shape[:-1]))
        return (size,) if self.source_ndim == 1 else (size, rows)

    def rows(self, latent: int, point: Point) -> list[LatentRow]:
        """List the independent rows of the variable."""
        shape = np.shape(point[self.value_name])
        if self.form == "independent":
            size = int(np.prod(shape))
            return [LatentRow(latent, 0, size, np.arange(size))]
        size, n_rows = shape[-1], int(np.prod(shape[:-1]))
        positions = np.arange(size * n_rows)
        table = positions.reshape(size, n_rows).T if self.form == "whitened" else positions.reshape(n_rows, size)
        return [LatentRow(latent, row, size, table[row]) for row in range(n_rows)]

    def vectors(self, point: Point, rows: Sequence[LatentRow]) -> list[StatedVector]:
        """Return what the model states of some rows."""
        shape = np.shape(point[self.value_name])
        evaluated = [np.asarray(value, dtype=np.float64) for value in self._evaluate(point)]
        given, means = evaluated[: self._n_matrices], evaluated[self._n_matrices :]
        if self.root == "kronecker":
            return [StatedKronecker(tuple(given))]
        matrices = self._matrices(given[0], shape)
        # Rows that share a matrix share what is made of it.
        stated = {i: _state(matrices[i], self.root) for i in {row.row % len(matrices) for row in rows}}
        mean = np.broadcast_to(means[0] if means else 0.0, shape)
        made: list[StatedVector] = []
        for row in rows:
            covariance, factor = stated[row.row % len(matrices)]
            location = mean.reshape(-1, row.size)[row.row]
            made.append(StatedDense(covariance, location, self.form != "whitened", factor=factor))
        return made

    def given(self, point: Point, row: LatentRow) -> Sequence[Array]:
        """Return the matrix of a row as the model gives it, or those of a Kronecker product."""
        given = [np.asarray(value, dtype=np.float64) for value in self._evaluate(point)[: self._n_matrices]]
        if self.root == "kronecker":
            return given
        matrices = self._matrices(given[0], np.shape(point[self.value_name]))
        return [matrices[row.row % len(matrices)]]

    def _matrices(self, matrix: Array, shape: tuple[int, ...]) -> Array:
        """Return what is given of every row, or what all rows share."""
        if self.form == "independent":
            return np.diag(np.ravel(np.broadcast_to(matrix, shape)))[None]
        core = matrix.shape[-2:]
        if matrix.size == core[0] * core[1]:
            return matrix.reshape(1, *core)
        return np.broadcast_to(matrix, (*shape[:-1], *core)).reshape(-1, *core)

    def check_inputs(self, point: Point) -> None:
        """Look for what makes every covariance useless: inputs that are not finite, or no symmetry.

        Raises DataError if inputs are not finite, and so is the prior at the point; and CovarianceError if a fixed
        covariance or precision is not symmetric, or a lower factor has values above its diagonal: every reader of it,
        PyMC among them, takes one of its triangles.
        """
        arrays = [*self._constants, *(s.get_value(borrow=True) for s in self.shared)]
        bad = [a for a in arrays if a.dtype.kind == "f" and a.ndim and not np.isfinite(a).all()]
        if bad and not all(np.isfinite(value).all() for value in self._evaluate(point)):
            lost = not_finite_in_words(bad[0])
            raise DataError(f"The inputs of the prior of {self.name} {lost}. Remove or impute them.")
        if self._is_factor and _is_upper(self._evaluate(point)[0]):
            raise CovarianceError(
                f"The factor chol of {self.name} has values above its diagonal, of which PyMC's density knows nothing: "
                "give the lower factor (scipy.linalg.cholesky gives the upper one unless it is asked with lower=True), "
                "or the covariance itself with cov=A @ A.T."
            )
        if self.inputs or self.root not in ("covariance", "precision", "kronecker"):
            return
        kind = "precision" if self.root == "precision" else "covariance"
        for matrix in self._evaluate(point)[: self._n_matrices]:
            largest = _largest_asymmetry(matrix)
            if largest:
                raise CovarianceError(
                    f"The prior {kind} of {self.name} is not symmetric: it differs from its transpose by up to "
                    f"{largest:.3g}. Take (S + S.T) / 2 if that is rounding."
                )


def _is_upper(factor: Array) -> bool:
    """Return whether a lower factor has values above its diagonal that are no rounding."""
    above, largest = np.abs(np.triu(factor, 1)).max(initial=0.0), np.abs(factor).max(initial=0.0)
    return bool(np.isfinite(largest) and above > 1e-8 * largest)


def _largest_asymmetry(matrix: Array) -> float:
    """Return the largest difference from the transpose; 0 if it may be rounding, or if a value is not finite."""
    largest, alike = 0.0, True
    scale = max(abs(float(matrix.max(initial=0.0))), abs(float(matrix.min(initial=0.0))))
    if not np.isfinite(scale):  # values that are not finite are another error
        return 0.0
    # By rows: a covariance of thousands of values is not to be copied four times for this.
    for start in range(0, matrix.shape[-1], ROWS):
        rows = matrix[..., start : start + ROWS, :]
        columns = np.swapaxes(matrix[..., start : start + ROWS], -1, -2)
        alike &= np.allclose(rows, columns, rtol=1e-6, atol=1e-8 * scale, equal_nan=True)
        largest = max(largest, float(np.abs(rows - columns).max()))
    return 0.0 if alike else largest


def _state(matrix: Array, root: str) -> tuple[Array | None, Array | None]:
    """Return the covariance in Fortran order, or its lower factor, from whatever the model gives."""
    if not np.isfinite(matrix).all():
        return np.full((matrix.shape[0],) * 2, np.nan), None
    if root == "precision":
        factor = factor_of_inverse(matrix)
        # A factor of zeros is no factor: the draw is rejected and counted, or it is the user's error.
        return None, np.zeros_like(matrix) if factor is None else factor
    if root == "covariance":
        return in_fortran_order(matrix), None
    rows, columns = matrix.shape
    if rows != columns or np.triu(matrix, 1).any():
        return in_fortran_order(matrix @ matrix.T), None  # ``A @ A.T`` is a covariance whatever A is
    negative = root == "cholesky" and bool((matrix.diagonal() < 0.0).any())
    return None, matrix * np.where(matrix.diagonal() < 0.0, -1.0, 1.0) if negative else matrix


def in_fortran_order(matrix: Array) -> Array:
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
