"""A model's density in its flat chart, and the scores to which the chart is fitted, as compiled functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import NullTypeGradError
from pytensor.graph.replace import clone_replace
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model.general.chart import charted_variables, place
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters

__all__ = ["GeneralModel"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Symbol = TensorVariable


class GeneralModel:
    """The continuous free variables of a model as one vector, in a flat chart.

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
    charted : list of ChartedVariable
        Those which the chart moves relative to others, parents first.
    places : (m,) int array
        Where their elements are in x.
    density : GraphFunction
        ``(z, par) -> (log density of z, [gradient (d,), x (d,), log-Jacobian])``, with ``par = [w (m,), b (m,)]``.
    scores : GraphFunction
        ``(x,) -> (rest (m,), location (m,), scale (m,))``: the score that everything but its own prior gives each
        charted element, and where its prior lies.
    """

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> None:
        self.variables = Hyperparameters(model, variables, point)
        self.charted = charted_variables(model, variables)
        ranges = dict(zip(self.variables.variables, self.variables.slices, strict=True))
        parts = [ranges[each.variable] for each in self.charted]
        self.places = np.concatenate([np.arange(p.start, p.stop) for p in parts]) if parts else np.empty(0, np.int64)
        self.density = _density(model, self)
        self.scores = _scores(model, self) if parts else None

    @property
    def size(self) -> int:
        """The number of coordinates d."""
        return self.variables.size

    @property
    def n_charted(self) -> int:
        """The number of charted elements m."""
        return int(self.places.size)

    @property
    def n_numbers(self) -> int:
        """How many numbers a gradient reads, as far as that shows: coordinates, data and long constants."""
        return self.size + sum(array.size for array in self.density.bound)

    def bind(self, point: Point) -> None:
        """Take the variables that other steps move, and shared data, from a point."""
        self.density.bind(point)
        if self.scores is not None:
            self.scores.bind(point)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The value variables of other steps on which the density depends."""
        return self.density.value_names

    def __getstate__(self) -> dict[str, Any]:
        # The graphs of the charted variables are needed for reading alone.
        return self.__dict__ | {"charted": []}


def _density(model: pm.Model, general: GeneralModel) -> GraphFunction:
    """The log density of the chart's coordinates with its gradient, the values and the log-Jacobian."""
    variables, m = general.variables, general.n_charted
    chart = pt.dvector("chart")
    coordinates = variables.parts
    weights, pulls = _pieces(general, chart[:m]), _pieces(general, chart[m:])
    placed = place(general.charted, coordinates, weights, pulls)
    own = placed.own
    terms = model.logp(vars=[v for v in _terms(model) if v not in own], sum=False)
    rest = clone_replace([term.sum() for term in terms], placed.values)
    total = pt.add(*[t.astype("float64") for t in (*rest, *own.values())], placed.log_jacobian, pt.zeros(()))
    values = [placed.values[model.rvs_to_values[v]].ravel() for v in variables.variables]
    jacobian = placed.log_jacobian + placed.scales
    gradient = _gradient(model, total, variables.symbol)
    vector = pt.concatenate([gradient, *values, jacobian[None]])
    return GraphFunction(model, [variables.symbol, chart], [total, vector])


def _scores(model: pm.Model, general: GeneralModel) -> GraphFunction:
    """The score of the rest for each charted element, and its location and scale, at values x."""
    variables = general.variables
    # Own priors read a twin of their value, so that one pass back through the graph leaves them out.
    twins = {each.value: each.value.clone() for each in general.charted}
    names = {each.variable for each in general.charted}
    ordered = [*_terms(model)]
    terms = model.logp(vars=ordered, sum=False)
    by_variable = dict(zip(ordered, terms, strict=True))
    total = pt.add(*(
        clone_replace([term], {model.rvs_to_values[v]: twins[model.rvs_to_values[v]]})[0].sum() if v in names
        else term.sum() for v, term in by_variable.items()
    ), pt.zeros(()))  # fmt: skip
    values = [each.value for each in general.charted]
    rest = pt.grad(total, values, disconnected_inputs="ignore")
    outputs = []
    for each in general.charted:
        outputs.append(each.moments(each.parameters, variables.shape_of(each.variable)))
    columns = [
        pt.concatenate([part.ravel().astype("float64") for part in parts])
        for parts in (rest, *zip(*outputs, strict=True))
    ]
    columns = clone_replace(columns, {twin: value for value, twin in twins.items()})
    return GraphFunction(model, [variables.symbol], variables.place(columns))


def _terms(model: pm.Model) -> list[TensorVariable]:
    """All that has a log density."""
    return [*model.basic_RVs, *model.potentials]


def _pieces(general: GeneralModel, vector: Symbol) -> dict[Symbol, Symbol]:
    """A vector (m,) over the charted elements in the shapes of their values."""
    found, start = {}, 0
    for each in general.charted:
        shape = general.variables.shape_of(each.variable)
        size = int(np.prod(shape))
        found[each.value] = pt.specify_shape(vector[start : start + size].reshape(shape), shape)
        start += size
    return found


def _gradient(model: pm.Model, total: Symbol, symbol: Symbol) -> Symbol:
    """The gradient of the log density; an Op without one is named.

    Raises
    ------
    UnsupportedModelError
        If PyTensor cannot differentiate the density.
    """
    try:
        return pt.grad(total, symbol, disconnected_inputs="ignore")
    except (NotImplementedError, NullTypeGradError) as error:
        raise UnsupportedModelError(
            f"The model's log density has no gradient: {error}. RMHMC needs one, as NUTS does. Write the operation with "
            "PyTensor's functions, or sample its variables with pm.Slice or pm.DEMetropolisZ."
        ) from None
