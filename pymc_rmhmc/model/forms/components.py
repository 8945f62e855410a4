"""The Gaussian prior of a latent variable as a function of a point: its rows, and μ and Σ of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_rmhmc.errors import CovarianceError, DataError
from pymc_rmhmc.interfaces.stated import StatedVector
from pymc_rmhmc.model.forms import FORMS, form_of
from pymc_rmhmc.model.forms.priors import LatentVariable
from pymc_rmhmc.model.graph.graphs import Evaluator, bad_constants
from pymc_rmhmc.model.words.bad_inputs import not_finite_in_words

__all__ = ["LatentReader", "LatentRow"]

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
        self.name, self.form, self.root, self._form = latent.name, latent.form, latent.root, form_of(latent)
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

    def vectors(self, point: Point, rows: Sequence[LatentRow]) -> Sequence[StatedVector]:
        """Return what the model states of some rows."""
        evaluated = [np.asarray(value, dtype=np.float64) for value in self._evaluate(point)]
        given, means = evaluated[: self._n_matrices], evaluated[self._n_matrices :]
        mean = np.broadcast_to(means[0] if means else 0.0, np.shape(point[self.value_name]))
        which, is_centred = [row.row for row in rows], self.form != "whitened"
        return FORMS[self._form].state_at_a_point(given, self.root, mean, which, is_centred=is_centred)

    def given(self, point: Point, row: LatentRow) -> Sequence[Array]:
        """Return the matrix of a row as the model gives it, or those of a Kronecker product."""
        given = [np.asarray(value, dtype=np.float64) for value in self._evaluate(point)[: self._n_matrices]]
        if given[0].ndim == 2:
            return given
        each = given[0].reshape(-1, *given[0].shape[-2:])
        return [each[row.row % len(each)]]

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
