"""Metrics whose matrix is a function of a whole model's values: a user's own, and what is read from the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import MetricMatrix
from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.metrics.compiled_steps import Steps, compiled_steps
from pymc_rmhmc.metrics.dense_metric import DenseField
from pymc_rmhmc.metrics.matrix_density import MatrixDensity, MatrixPoint
from pymc_rmhmc.metrics.sparsity import Partition, Probes
from pymc_rmhmc.usage import called_as

__all__ = ["GraphMetric", "MatrixField", "matrix_density"]

type Array = NDArray[np.float64]

# Values up to which compiled steps are faster.
MOST_DECOMPOSED = 100
# With this α SoftAbs leaves a positive definite matrix as it is.
UNSOFTENED = 1e200


class MatrixField(DenseField[MatrixPoint]):
    """The metric is the matrix that the density gives.

    Parameters
    ----------
    density : MatrixDensity
        Its matrix is symmetric, (d, d).
    """

    density: MatrixDensity

    def __init__(self, density: MatrixDensity) -> None:
        self._probes = Probes(Partition.of(range(density.size), []))
        super().__init__(density.with_vectors(self._probes.vectors))

    def compiled_steps(self) -> Steps | None:
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

    def __init__(self, matrix: Callable[[Any], Any], name: str = "graph") -> None:
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
        """Return the metric of a density.

        Raises
        ------
        ConfigurationError
            If the density has no matrix.
        """
        return MatrixField(matrix_density(density, self.name))


def matrix_density(density: Any, metric: str) -> MatrixDensity:
    """Return a density if it is that of a whole model, which its metric needs.

    Raises
    ------
    ConfigurationError
        If it is another.
    """
    if not isinstance(density, MatrixDensity):
        raise ConfigurationError(
            f"The {metric} metric needs the density of a whole model, and got a {type(density).__name__}. Give the "
            "metric to RMHMC(metric=), which binds it."
        )
    return density
