"""A model's density with its second and third derivatives, as compiled functions of its value variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model.general.density import gradient_of
from pymc_rmhmc.model.general.packed import PackedModel
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, no_derivative_in_words
from pymc_rmhmc.model.hyperparameters import GraphFunction

__all__ = ["GradientModel", "HessianModel", "ValueModel", "twice"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Symbol = TensorVariable

# Half the distance of the points whose difference is taken, and how far it may be from the derivative.
DIFFERENCE, MOST_DIFFERENCE = 1e-5, 1e-4
# How far from the start derivatives are compared.
CHECKED_AWAY = 0.3


class ValueModel(PackedModel):
    """Some continuous free variables of a model as one vector of their values x, with a matrix at every x.

    Parameters
    ----------
    model : pymc.Model
        The model.
    variables : sequence of TensorVariable
        The free variables that are sampled.
    point : dict
        Where shapes are taken.

    Attributes
    ----------
    variables : Hyperparameters
        How they are packed: all value variables as one vector x (d,).
    names : tuple of str
        The names of these variables in the model.
    evaluate : GraphFunction
        ``(x, ...) -> (log density, gradient (d,), matrix)``.
    pull : GraphFunction
        ``(x, ..., bar) -> (Σ bar ∘ ∂matrix/∂x,)``, (d,), with a bar of the matrix's shape.
    along : GraphFunction or None
        Where the matrix is a metric G, ``(x, u) -> (G u, -½ uᵀ(∂G/∂xᵢ)u)``.
    terms : DensityTerms
        The log density term by term, for errors.
    """

    evaluate: GraphFunction
    pull: GraphFunction
    along: GraphFunction | None = None

    @property
    def shared(self) -> list[Any]:
        """The shared data that are read."""
        return self.evaluate.shared

    @property
    def inputs(self) -> tuple[str, ...]:
        """The value variables of other steps on which the density depends."""
        return self.evaluate.value_names

    def bind(self, point: Point) -> None:
        """Take the variables that other steps move, and shared data, from a point."""
        self.evaluate.bind(point)
        self.pull.bind(point)

    def check_derivative(self, point: Point, *given: Array) -> None:
        """Compare the derivative of the matrix with differences, along a random direction.

        Parameters
        ----------
        point : dict
            Near it, since what is 0 at a start hides what is wrong; at it, if nothing is finite there.
        given : arrays
            What the functions take after x.

        Raises
        ------
        UnsupportedModelError
            If they differ: PyTensor has compiled something else than what was written. A force that is not that of the
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
        self.bind(point)
        self.check_derivative(point, np.random.default_rng(1).standard_normal((2, self.size)))


class GradientModel(ValueModel):
    """A model's log density alone, for metrics that need no more of the model: its matrix has no rows."""

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> None:
        super().__init__(model, variables, point)
        x, bar = self.variables.symbol, pt.dmatrix("bar")
        self.evaluate = GraphFunction(model, [x], [*self._log_density(model), pt.zeros((0, x.size))], point)
        self.pull = GraphFunction(model, [x, bar], [pt.zeros_like(x)], point)


def _products(gradient: Symbol, x: Symbol, vectors: Symbol) -> Symbol:
    """Return ``V H``: the derivative of the gradient along each row of V, without a loop."""
    along = pt.dvector("along")
    product = twice((gradient * along).sum(), x)
    found: Symbol = vectorize_graph(product, {along: vectors})
    # Where the gradient is constant, so is the product: it does not know of the rows.
    return found if found.ndim == vectors.ndim else pt.broadcast_to(found, vectors.shape)


def twice[Wrt](total: Symbol, symbols: Wrt) -> Wrt:
    """Return the gradient of an expression that holds derivatives; raise an error that names an operation without one.

    Raises
    ------
    UnsupportedModelError
        If PyTensor cannot differentiate it.
    """
    try:
        found: Wrt = pt.grad(total, symbols, disconnected_inputs="ignore")
    except NO_DERIVATIVE as error:
        why = no_derivative_in_words("the gradient of the model's log density", error)
        raise UnsupportedModelError(
            f"{why}. This metric needs derivatives up to the third. Write the operation with PyTensor's functions, or "
            'give RMHMC(metric="flat"), which needs the gradient alone.'
        ) from None
    return found

