"""A model's density with a matrix of its derivatives at every position: what metrics of whole models are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, failure_of
from pymc_rmhmc.linalg.compiled.native import (
    NativeFunction,
    call_for_two_vectors,
    call_for_value_slope_matrix,
    call_for_vector,
    native_function,
)
from pymc_rmhmc.metrics.sparsity import Partition

__all__ = ["MatrixDensity", "MatrixPoint"]

type Array = NDArray[np.float64]


# Not frozen, though nobody writes to them: one is made for every iteration of an implicit step.
@dataclass(slots=True)
class MatrixPoint:
    """The density at one x, with the matrix there.

    Attributes
    ----------
    position, gradient : (d,) array
        X, and the gradient of the log density.
    log_density : float
        Its value, as the model has it.
    matrix : (r, d) array
        What the density was built to give: rows of the Hessian, or the metric itself.
    """

    position: Array
    log_density: float
    gradient: Array
    matrix: Array

    @property
    def failure(self) -> Failure:
        """NON_FINITE where the log density or its gradient is."""
        return failure_of(self.log_density, self.gradient)


class MatrixDensity:
    """A log density with a matrix, and the derivative of a number by that matrix as one by the position.

    Parameters
    ----------
    evaluate : callable
        ``(x, *given) -> (log density, gradient (d,), matrix (r, d))``. If it has a compiled `function` and what that
        takes besides, `bound`, steps are made in compiled code.
    pull : callable
        ``(x, *given, bar (r, d)) -> (Σᵢⱼ barᵢⱼ ∂matrixᵢⱼ/∂x,)``, (d,).
    size : int
        D.
    given : sequence of arrays
        What both take after x, such as the vectors that the Hessian is multiplied with.
    partition : Partition, optional
        Where the Hessian has entries, if it has a structure that is worth its use.
    along : callable, optional
        ``(x, u) -> (matrix u (d,), -½ uᵀ(∂matrix/∂xᵢ)u (d,))`` where the matrix is the metric.
    """

    is_whole_model: Literal[True] = True

    def __init__(
        self, evaluate: Any, pull: Any, size: int,
        given: Sequence[Array] = (), partition: Partition | None = None, along: Any = None,
    ) -> None:  # fmt: skip
        self._evaluate, self._pull, self.size, self.given = evaluate, pull, size, tuple(given)
        self.partition, self._along = partition, along

    def at(self, position: Array) -> MatrixPoint:
        """Evaluate at x (d,): one call for everything."""
        value, gradient, matrix = self._evaluate(position, *self.given)
        return MatrixPoint(position, float(value), gradient, matrix)

    def pullback(self, point: MatrixPoint, bar: Array) -> Array:
        """Return ``Σᵢⱼ barᵢⱼ ∂matrixᵢⱼ/∂x``, (d,): one call, whatever the size of the bar."""
        return np.asarray(self._pull(point.position, *self.given, np.ascontiguousarray(bar))[0])

    def along(self, position: Array, vector: Array) -> tuple[Array, Array] | None:
        """Return ``matrix u`` and ``-½ uᵀ(∂matrix/∂xᵢ)u`` without the matrix; None if no function gives them."""
        if self._along is None:
            return None
        product, quadratic = self._along(position, np.ascontiguousarray(vector))
        return product, quadratic

    def with_vectors(self, *given: Array) -> MatrixDensity:
        """Return the same density with other vectors."""
        return MatrixDensity(self._evaluate, self._pull, self.size, given, self.partition, self._along)

    def native(self) -> tuple[NativeFunction, NativeFunction, NativeFunction | None] | None:
        """Return its functions for compiled code, the last if it has one; None if Numba has not compiled them."""
        x, bar = np.zeros(self.size), np.zeros((len(self.given[0]), self.size))
        found = (
            _native(self._evaluate, (x, *self.given), call_for_value_slope_matrix),
            _native(self._pull, (x, *self.given, bar), call_for_vector),
            _native(self._along, (x, x), call_for_two_vectors),
        )
        if found[0] is None or found[1] is None or (self._along is not None and found[2] is None):
            return None
        return found[0], found[1], found[2]

    def products(self, position: Array, vectors: Array) -> Array:
        """Return the matrix at x for other vectors (r, d) than the density's own."""
        return np.asarray(self._evaluate(position, vectors)[2])


def _native(function: Any, given: tuple[Array, ...], call: Any) -> NativeFunction | None:
    """Return a model's function for compiled code; None if Numba has not compiled it."""
    bound = getattr(function, "bound", None)
    return None if bound is None else native_function(function.function, given, bound, call)
