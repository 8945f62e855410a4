"""A model's density with a matrix at every position, and its derivatives, as compiled functions of its value variables.

The matrix is made of products of the Hessian, or it is one that is given as a graph: a user's, or an information.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import explicit_graph_inputs
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError, listed, shown
from pymc_rmhmc.model.general.density import PackedModel, gradient_of, twice
from pymc_rmhmc.model.general.information import InformationGraph
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, PYTHON_MODE, inlined, no_derivative_in_words
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters

__all__ = ["GradientModel", "HessianModel", "MatrixModel", "ValueModel", "of_value_variables"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Symbol = TensorVariable
# A symbolic (d, d) matrix of `Hyperparameters.symbol`, or an information, whose quadratic forms cost less than its
# matrix. What a user's function returns is checked.
type Builder = Callable[[pm.Model, Hyperparameters], object]

# Half the distance of the points whose difference is taken, and how far it may be from the derivative.
DIFFERENCE, MOST_DIFFERENCE = 1e-5, 1e-4
# How far from the start derivatives are compared.
CHECKED_AWAY = 0.3
# The largest difference between the two halves, in units of the largest entry.
MOST_ASYMMETRY = 1e-8
# The largest difference between the same numbers computed in two ways, in units of the largest.
MOST_FORM_DIFFERENCE = 1e-6
NO_VECTORS = np.empty((0, 0))


class ValueModel(PackedModel):
    """Some continuous free variables of a model as one vector of their values x, with a matrix at every x."""

    evaluate: GraphFunction  # ``(x, ...) -> (log density, gradient (d,), matrix)``
    pull: GraphFunction  # ``(x, ..., bar) -> (Σ bar ∘ ∂matrix/∂x,)``, (d,), with a bar of the matrix's shape
    along: GraphFunction | None = None  # where the matrix is a metric G, ``(x, u) -> (G u, -½ uᵀ(∂G/∂xᵢ)u)``

    def check_derivative(self, point: Point, *given: Array) -> None:
        """Compare the derivative of the matrix with differences, along a random direction; raise if they differ.

        This is done near the point, since what is 0 at a start hides what is wrong; at it, if nothing is finite there.
        Where they differ PyTensor has compiled something else than what was written. A force that is not that of the
        energy would not leave the posterior unchanged.
        """
        x, rng = self._near(point, *given), np.random.default_rng(1)
        matrix = self.evaluate(x, *given)[2]
        bar, way = rng.standard_normal(matrix.shape), rng.standard_normal(x.size)
        ends = [self.evaluate(x + sign * DIFFERENCE * way, *given)[2] for sign in (1.0, -1.0)]
        found = float(self.pull(x, *given, bar)[0] @ way)
        expected = float(np.sum(bar * (ends[0] - ends[1]))) / (2.0 * DIFFERENCE)
        size = float(np.sum(np.abs(bar) * (np.abs(ends[0]) + np.abs(ends[1])))) + abs(expected)
        # Where nothing is finite, the chain says so where it begins.
        if abs(found - expected) > MOST_DIFFERENCE * size:
            raise UnsupportedModelError(
                f"PyTensor's compiled derivative of the metric is {found:.6g} in a direction in which differences give "
                f"{expected:.6g}. It has compiled the third derivatives wrongly, and draws would be wrong. Give "
                'RMHMC(metric="flat"), which needs the gradient alone.'
            )

    def _near(self, point: Point, *given: Array) -> Array:
        """Return a position near a point, or the point's own if the matrix is not finite there."""
        x = self.variables.pack(point)
        near = x + CHECKED_AWAY * np.random.default_rng(0).standard_normal(x.size)
        return near if np.isfinite(self.evaluate(near, *given)[2]).all() else x

    def _log_density(self, model: pm.Model) -> tuple[Symbol, Symbol]:
        """Return the log density of x and its gradient."""
        (total,) = self.variables.place([model.logp().astype("float64")])
        return total, gradient_of(total, self.variables.symbol)


class HessianModel(ValueModel):
    """A model's log density with products of its Hessian H; see `ValueModel`.

    `evaluate` takes vectors V (r, d) after x, and its matrix is ``V H``, (r, d). `pull` takes x, V, and a bar (r, d).
    All products are one pass through the graph, and so is the derivative of their weighted sum.
    """

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> None:
        super().__init__(model, variables, point)
        x, vectors, bar = self.variables.symbol, pt.dmatrix("vectors"), pt.dmatrix("bar")
        total, gradient = self._log_density(model)
        products = _products(gradient, x, vectors)
        pulled = twice((products * bar).sum(), x)
        self.evaluate = GraphFunction(model, [x, vectors], [total, gradient, products], point)
        self.pull = GraphFunction(model, [x, vectors, bar], [pulled], point)
        self.functions = (self.evaluate, self.pull)
        self.bind(point)
        self.check_derivative(point, np.random.default_rng(1).standard_normal((2, self.size)))


class GradientModel(ValueModel):
    """A model's log density alone, for metrics that need no more of the model: its matrix has no rows."""

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> None:
        super().__init__(model, variables, point)
        x, bar = self.variables.symbol, pt.dmatrix("bar")
        self.evaluate = GraphFunction(model, [x], [*self._log_density(model), pt.zeros((0, x.size))], point)
        self.pull = GraphFunction(model, [x, bar], [pt.zeros_like(x)], point)
        self.functions = (self.evaluate, self.pull)


def _products(gradient: Symbol, x: Symbol, vectors: Symbol) -> Symbol:
    """Return ``V H``: the derivative of the gradient along each row of V, without a loop."""
    along = pt.dvector("along")
    product = twice((gradient * along).sum(), x)
    found: Symbol = vectorize_graph(product, {along: vectors})
    # Where the gradient is constant, so is the product: it does not know of the rows.
    return found if found.ndim == vectors.ndim else pt.broadcast_to(found, vectors.shape)


class MatrixModel(ValueModel):
    """A model's log density with a matrix G(θ), θ being its sampled value variables; see `ValueModel`.

    `evaluate` takes θ, and its matrix is G, (d, d), symmetric. `pull` takes θ and a bar (d, d). Both take vectors after
    θ as those of `HessianModel` do, and make no use of them. `along` takes θ and a vector u (d,), and gives ``G u`` and
    ``-½ uᵀ(∂G/∂θᵢ)u`` for every i.

    The point is the start, where G is looked at; messages call the metric by `name`.

    Raises a `ConfigurationError` if there is no such matrix, if at the start it has another shape, is not finite,
    symmetric and positive definite or its derivative is not finite, or if PyTensor cannot differentiate it.
    """

    along: GraphFunction

    def __init__(
        self, model: pm.Model, variables: Sequence[TensorVariable], point: Point, build: Builder,
        *, name: str = "GraphMetric",
    ) -> None:  # fmt: skip
        super().__init__(model, variables, point)
        self._name = name
        built = build(model, self.variables)
        raw = self._as_matrix(built.matrix if isinstance(built, InformationGraph) else built, model)
        self._check_at_start(raw, model, point)
        matrix, vectors, bar = 0.5 * (raw + raw.T), pt.dmatrix("vectors"), pt.dmatrix("bar")
        theta, u = self.variables.symbol, pt.dvector("u")
        form = built.form(u) if isinstance(built, InformationGraph) else u @ matrix @ u
        try:
            slope = pt.grad((bar * matrix).sum(), theta, disconnected_inputs="ignore")
            doubled, change = pt.grad(form, [u, theta], disconnected_inputs="ignore")
        except NO_DERIVATIVE as error:
            raise ConfigurationError(
                f"{no_derivative_in_words(f'the matrix of {name}', error)}. RMHMC needs its derivative. Write the "
                'operation with PyTensor\'s functions, or use RMHMC(metric="flat").'
            ) from None
        self.evaluate = GraphFunction(model, [theta, vectors], [*self._log_density(model), matrix], point)
        self.pull = GraphFunction(model, [theta, vectors, bar], [slope], point)
        self.along = GraphFunction(model, [theta, u], [0.5 * doubled, -0.5 * change], point)
        self.functions = (self.evaluate, self.pull, self.along)
        self.bind(point)
        self._check_finite_derivative(point)
        self.check_derivative(point, NO_VECTORS)
        self._check_along(point)

    def matrix(self, theta: Array) -> Array:
        """Return G (d, d), symmetric, at θ (d,), which must be contiguous."""
        return self.evaluate(theta, NO_VECTORS)[2]

    def pullback(self, theta: Array, bar: Array) -> Array:
        """Return ``Σⱼₖ barⱼₖ ∂Gⱼₖ/∂θᵢ`` for every i, (d,), by one pass back through the graph."""
        return self.pull(theta, NO_VECTORS, bar)[0]

    def _as_matrix(self, found: object, model: pm.Model) -> Symbol:
        """Check what a function returned, and return it as a matrix of θ and of what may be bound."""
        try:
            matrix = pt.as_tensor_variable(found)
        except (TypeError, ValueError, NotImplementedError):
            matrix = None
        if matrix is None or matrix.ndim != 2:
            kind = f"a value with {matrix.ndim} axes" if matrix is not None else shown(found)
            raise ConfigurationError(
                f"{self._name}: the function must return a symbolic matrix of the value variables, and returned {kind}."
                ' Return one such as lambda m: pt.diag(pt.exp(m.rvs_to_values[m["x"]])).'
            )
        known = {self.variables.symbol, *model.value_vars}
        inputs = [v for v in explicit_graph_inputs([matrix]) if not isinstance(v, Constant | SharedVariable)]
        strange = [str(v) for v in inputs if v not in known]
        if strange:
            raise ConfigurationError(
                f"{self._name}: the matrix depends on {listed(strange)}, which the model does not have. Use the value "
                'variables of the model that the function is given, such as m.rvs_to_values[m["x"]].'
            )
        return matrix.astype("float64")

    def _check_at_start(self, matrix: Symbol, model: pm.Model, point: Point) -> None:
        """Look at the matrix at the start; nothing is compiled."""
        values = [v for v in model.value_vars if str(v.name) not in self.variables.names]
        (graph,) = inlined([matrix], ())
        function = pytensor.function([self.variables.symbol, *values], graph, mode=PYTHON_MODE,
                                     on_unused_input="ignore", allow_input_downcast=True)  # fmt: skip
        found = np.asarray(function(self.variables.pack(point), *(point[str(v.name)] for v in values)))
        d = self.size
        if found.shape != (d, d):
            raise ConfigurationError(
                f"{self._name}: the matrix has shape {found.shape}, and must have {(d, d)}: a row for each value of "
                f"{listed(self.variables.names)}, one variable after another."
            )
        if not np.isfinite(found).all():
            raise ConfigurationError(
                f"{self._name}: the matrix is not finite at the start: {self._entry(~np.isfinite(found), found)}. "
                "Give variables other initial values with pm.sample(initvals=), or mend the matrix."
            )
        difference = np.abs(found - found.T)
        if difference.max(initial=0.0) > MOST_ASYMMETRY * np.abs(found).max(initial=0.0):
            raise ConfigurationError(
                f"{self._name}: the matrix is not symmetric: {self._entry(difference == difference.max(), found)}, and "
                "the other half differs. Return (G + G.T) / 2."
            )
        least = float(np.linalg.eigvalsh(found).min(initial=np.inf))
        if least <= 0.0:
            raise ConfigurationError(
                f"{self._name}: the matrix is not positive definite at the start; its least eigenvalue is "
                f"{shown(least)}. Momenta need a positive definite one: add the curvature of the prior, or a multiple "
                "of pt.eye(d)."
            )

    def _check_finite_derivative(self, point: Point) -> None:
        """Check the derivative of one sum over all entries at the start."""
        d = self.size
        found = self.pullback(self.variables.pack(point), np.ones((d, d)) + np.eye(d))
        if not np.isfinite(found).all():
            raise ConfigurationError(
                f"{self._name}: the matrix's derivative by {self._place(int(np.argmin(np.isfinite(found))))} is not "
                "finite at the start. Look for square roots or absolute values at 0, and for divisions by 0 in a "
                "branch of pt.switch that is not taken."
            )

    def _check_along(self, point: Point) -> None:
        """Compare the form that needs no matrix with the matrix, near the start."""
        theta = self._near(point, NO_VECTORS)
        u = np.random.default_rng(2).standard_normal(self.size)
        expected = (self.matrix(theta) @ u, self.pullback(theta, -0.5 * np.outer(u, u)))
        for found, other in zip(self.along(theta, u), expected, strict=True):
            if np.abs(found - other).max(initial=0.0) > MOST_FORM_DIFFERENCE * np.abs(other).max(initial=1.0):
                raise UnsupportedModelError(
                    f"PyTensor has compiled two forms of the matrix of {self._name} differently, and draws would be "
                    'wrong. Give RMHMC(metric="flat"), which needs the gradient alone.'
                )

    def _entry(self, mask: NDArray[np.bool_], found: Array) -> str:
        """Describe the first entry of a mask in words."""
        i, j = np.argwhere(mask)[0]
        return f"the entry of {self._place(int(i))} and {self._place(int(j))} is {shown(float(found[i, j]))}"

    def _place(self, index: int) -> str:
        """Return the name of a coordinate of θ."""
        for name, shape, part in zip(self.variables.names, self.variables.shapes, self.variables.slices, strict=True):
            if part.start <= index < part.stop:
                at = np.unravel_index(index - part.start, shape)
                return name + (f"[{', '.join(str(int(k)) for k in at)}]" if shape else "")
        raise IndexError(index)


def of_value_variables(function: Callable[[pm.Model], object]) -> Builder:
    """Return the builder of a user's matrix, a function of the model.

    The function writes the matrix in the model's value variables, with rows in the order of ``model.value_vars``.
    """

    def build(model: pm.Model, packed: Hyperparameters) -> object:
        found = function(model)
        if not isinstance(found, TensorVariable) or found.ndim != 2:
            return found
        (matrix,) = packed.substitute([found], model)
        given = [str(v.name) for v in model.value_vars if str(v.name) in packed.names]
        if given == list(packed.names):
            return matrix
        # Rows as the function has them, for each coordinate of θ.
        lengths = {name: part.stop - part.start for name, part in zip(packed.names, packed.slices, strict=True)}
        ends = np.cumsum([0, *(lengths[name] for name in given)])
        starts = dict(zip(given, ends, strict=False))
        order = np.concatenate([starts[name] + np.arange(lengths[name]) for name in packed.names])
        return matrix[order[:, None], order[None, :]]

    return build
