"""Metrics whose matrix is a function of a whole model's values, and the densities that they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import AdvancedSteps, MakeSteps, MetricMatrix
from pymc_rmhmc.errors import ConfigurationError, Failure, failure_of, shown
from pymc_rmhmc.linalg.compiled.native import (
    NativeFunction,
    call_for_two_vectors,
    call_for_value_slope_matrix,
    call_for_vector,
    native_function,
)
from pymc_rmhmc.metrics.field import DenseField
from pymc_rmhmc.metrics.implicit_loops import (
    INDEFINITE,
    NON_FINITE,
    NON_REVERSIBLE,
    SOLVER,
    Curved,
    Rules,
    follow,
    follow_midpoints,
    with_addresses,
)
from pymc_rmhmc.metrics.sparsity import Partition, Probes
from pymc_rmhmc.usage import called_as

__all__ = ["GraphMetric", "MatrixDensity", "MatrixField", "MatrixPoint", "compiled_steps", "matrix_density"]

type Array = NDArray[np.float64]
# A compiled function of contiguous arrays.
type Function = Callable[..., Sequence[Array]]


# Not frozen, though nobody writes to them: one is made for every iteration of an implicit step.
@dataclass(slots=True)
class MatrixPoint:
    """The density at one x, as the model has it, with rows of its Hessian there or the metric itself, (r, d)."""

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

    `evaluate`: ``(x, *given) -> (log density, gradient (d,), matrix (r, d))``. If it has a compiled `function` and what
      that takes besides, `bound`, steps are made in compiled code.
    `pull`: ``(x, *given, bar (r, d)) -> (Σᵢⱼ barᵢⱼ ∂matrixᵢⱼ/∂x,)``, (d,).
    `size`: D.
    `given`: what both take after x, such as the vectors that the Hessian is multiplied with.
    `partition`: where the Hessian has entries, if it has a structure that is worth its use.
    `along`: ``(x, u) -> (matrix u (d,), -½ uᵀ(∂matrix/∂xᵢ)u (d,))`` where the matrix is the metric.
    """

    is_whole_model: Literal[True] = True

    def __init__(
        self, evaluate: Function, pull: Function, size: int,
        given: Sequence[Array] = (), partition: Partition | None = None, along: Function | None = None,
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


def _native(function: Any, given: tuple[Array, ...], call: Callable[..., object]) -> NativeFunction | None:
    """Return a model's function for compiled code; None if Numba has not compiled it."""
    bound = getattr(function, "bound", None)
    return None if bound is None else native_function(function.function, given, bound, call)


# What the compiled steps report.
FAILURES = {
    0: Failure.NONE, NON_FINITE: Failure.NON_FINITE, SOLVER: Failure.SOLVER, NON_REVERSIBLE: Failure.NON_REVERSIBLE,
    INDEFINITE: Failure.NOT_POSITIVE_DEFINITE,
}  # fmt: skip


def compiled_steps(density: MatrixDensity, probes: Probes, alpha: float, *, is_metric: bool) -> MakeSteps | None:
    """Return what makes the steps of a trajectory; None if the density's functions are not Numba's.

    The density is given the vectors of the probes. Its matrix is the metric itself, or is softened with α.
    """
    native = density.native()
    if native is None:
        return None
    evaluate, pull, along = native
    if is_metric and along is None:
        return None
    along = along or pull
    curved = with_addresses(Curved(
        evaluate.address, pull.address, along.address, evaluate.rest, pull.rest, along.rest, probes.vectors,
        probes.partition.layout, probes.found_at, alpha, is_metric, 0, 0,
    ))  # fmt: skip

    def advance(
        position: Array, momentum: Array, n_steps: int, step_size: float, rules: tuple[float, int, int, float],
        *, midpoint: bool,
    ) -> AdvancedSteps:  # fmt: skip
        steps = follow_midpoints if midpoint else follow
        failure, x, p, error, n_iter, n_metrics, made = steps(
            curved, position, momentum, n_steps, step_size, Rules(*rules)
        )
        return AdvancedSteps(x, p, FAILURES[failure], error, n_iter, n_metrics, made)

    return advance


# Values up to which compiled steps are faster.
MOST_DECOMPOSED = 100
# With this α SoftAbs leaves a positive definite matrix as it is.
UNSOFTENED = 1e200


class MatrixField(DenseField[MatrixPoint]):
    """The metric is the matrix that the density gives, symmetric (d, d)."""

    density: MatrixDensity

    def __init__(self, density: MatrixDensity) -> None:
        self._probes = Probes(Partition.of(range(density.size), []))
        super().__init__(density.with_vectors(self._probes.vectors))

    def compiled_steps(self) -> MakeSteps | None:
        """See `MetricFieldBase`; None where its eigenvalues would take much longer than Cholesky's factor."""
        if self.density.size > MOST_DECOMPOSED:
            return None
        return compiled_steps(self.density, self._probes, UNSOFTENED, is_metric=True)

    def matrix(self, point: MatrixPoint) -> Array:
        """Return G."""
        return point.matrix

    def pullback(self, point: MatrixPoint, bar: Array) -> Array:
        """Pull a bar back by one call of the compiled derivative."""
        return self.density.pullback(point, bar)

    def quadratic_term(self, point: MatrixPoint, matrix: MetricMatrix[Array], velocity: Array) -> Array:
        """See `MetricFieldBase`: by a derivative along the velocity, if there is one."""
        found = self.density.along(point.position, velocity)
        return super().quadratic_term(point, matrix, velocity) if found is None else found[1]


@called_as("GraphMetric(matrix), with a function of the variables")
class GraphMetric:
    """A metric of your own for any model: a function that writes its matrix with PyTensor.

    RMHMC samples all continuous variables in it, and takes the derivatives of the matrix from PyTensor.

    Parameters
    ----------
    matrix : callable
        It takes the model and returns a symbolic matrix (d, d), which depends on the model's value variables. d is
        the number of all sampled values, raveled one variable after another in the order of ``model.value_vars``.
        The matrix must be symmetric and positive definite everywhere.
    name : str
        What messages call it.

    Raises
    ------
    ConfigurationError
        If `matrix` cannot be called. When RMHMC is built: if the matrix has another shape, is not symmetric or not
        positive definite at the first point, or has no finite derivative there.

    Notes
    -----
    Any positive definite matrix gives exact draws. `RMHMC` needs a Cholesky factor of it in each step.

    References
    ----------
    Girolami and Calderhead (2011), section 4. Hartmann, Girolami and Klami (2022), Lagrangian manifold Monte Carlo on
    Monge patches, for the second example.

    Examples
    --------
    A diagonal metric for a funnel, which gives each value the scale that its neck has:

    >>> import pymc as pm, pytensor.tensor as pt
    >>> from pymc_rmhmc import RMHMC, GraphMetric
    >>> with pm.Model() as funnel:
    ...     v = pm.Normal("v", 0.0, 3.0)
    ...     x = pm.Normal("x", 0.0, pm.math.exp(-v / 2), shape=2)
    >>> def diagonal(model):
    ...     v = model.rvs_to_values[model["v"]]
    ...     return pt.diag(pt.stack([1.0 + 1.0 / 9.0, pt.exp(v), pt.exp(v)]))
    >>> with funnel:
    ...     step = RMHMC(metric=GraphMetric(diagonal))

    The Monge metric ``I + α² ∇L ∇Lᵀ``, of the gradient of the model's log density:

    >>> def monge(model):
    ...     gradient = pt.grad(model.logp(), model.value_vars)
    ...     g = pt.concatenate([part.ravel() for part in gradient])
    ...     return pt.eye(g.size) + 0.25 * pt.outer(g, g)
    >>> with funnel:
    ...     step = RMHMC(metric=GraphMetric(monge))
    """

    chart = "graph"

    def __init__(self, matrix: Callable[..., object], name: str = "graph") -> None:
        if not callable(matrix):
            raise ConfigurationError(
                f"GraphMetric needs a function that takes the model and returns a symbolic matrix, got {shown(matrix)}."
                " Give GraphMetric(lambda model: ...)."
            )
        if not isinstance(name, str) or not name:
            raise ConfigurationError(
                f'name must be a string that messages call the metric, got {shown(name)}. Leave it out, or give '
                'name="mine".'
            )
        self.source, self.name = matrix, name

    def __repr__(self) -> str:
        return f"GraphMetric({getattr(self.source, '__name__', self.source)})"

    def bind(self, density: MatrixDensity) -> MatrixField:
        """Return the metric of a density; raise a `ConfigurationError` if it has no matrix."""
        return MatrixField(matrix_density(density, self.name))


def matrix_density(density: object, metric: str) -> MatrixDensity:
    """Return a density if it is that of a whole model; raise a `ConfigurationError` if it is another."""
    if not isinstance(density, MatrixDensity):
        raise ConfigurationError(
            f"The {metric} metric needs the density of a whole model, and got a {type(density).__name__}. Give the "
            "metric to RMHMC(metric=), which binds it."
        )
    return density
