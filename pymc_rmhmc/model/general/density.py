"""A model's density in its flat chart, and the scores to which the chart is fitted, as compiled functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.replace import clone_replace
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model.general.chart import charted_variables, place
from pymc_rmhmc.model.graphs import NO_DERIVATIVE, Evaluator, no_derivative_in_words
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters
from pymc_rmhmc.model.user_arguments import nan_in_words, values_in_words

__all__ = ["GeneralModel", "check_differentiable"]

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
    charts : tuple of (int array, int)
        Of each: where its elements are in x, and the columns that share a covariance, 1 where elements are independent.
    n_constants : int
        Of all charts together.
    density : GraphFunction
        ``(z, constants) -> (log density of z, [gradient (d,), x (d,), log-Jacobian])``.
    scores : GraphFunction or None
        ``(x,) -> (scores, moments)``: the score that everything but its own prior gives each charted element, and
        where its prior lies, variable by variable. None if no variable is charted.
    """

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> None:
        self.variables = Hyperparameters(model, variables, point)
        shapes = dict(zip(self.variables.variables, self.variables.shapes, strict=True))
        self.charted = charted_variables(model, variables, shapes)
        ranges = dict(zip(self.variables.variables, self.variables.slices, strict=True))
        parts = [ranges[each.variable] for each in self.charted]
        self.charts = tuple(
            (np.arange(p.start, p.stop), each.n_columns) for p, each in zip(parts, self.charted, strict=True)
        )
        self.n_constants = sum(each.n_constants for each in self.charted)
        self.density = _density(model, self)
        self.scores = _scores(model, self) if parts else None
        self._model = model  # for errors, which name the arguments of distributions
        terms = model.logp(vars=_terms(model), sum=False)
        self._terms = {str(v.name): Evaluator(model, [t.sum()]) for v, t in zip(_terms(model), terms, strict=True)}

    @property
    def size(self) -> int:
        """The number of coordinates d."""
        return self.variables.size

    @property
    def places(self) -> NDArray[np.int64]:
        """Where the charted elements are in x, variable by variable."""
        found = [places for places, _ in self.charts]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    @property
    def n_numbers(self) -> int:
        """How many numbers a gradient reads, as far as that shows: coordinates, data and long constants."""
        return self.size + sum(array.size for array in self.density.bound)

    def not_finite(self, point: Point) -> dict[str, str]:
        """The variables and potentials whose log densities are no numbers at a point, and what they are instead."""
        found = {}
        for name, term in self._terms.items():
            try:
                with np.errstate(all="ignore"):
                    value = float(term(point)[0])
            except ParameterValueError as error:
                found[name] = self._refused(name, str(error), point)
                continue
            if not math.isfinite(value):
                lost = self._lost(name, point)
                found[name] = f"{value:g}" + (f", since {lost}" if lost else "")
        return found

    def _lost(self, name: str, point: Point) -> str:
        """Which argument of a distribution is NaN; empty if none is."""
        variable = self._model.named_vars[name]
        return "" if variable in self._model.potentials else nan_in_words(self._model, variable, point)

    def _refused(self, name: str, needed: str, point: Point) -> str:
        """Why PyMC has no density for a distribution's parameters."""
        lost = self._lost(name, point)
        if lost:
            return f"nan, since {lost}"
        variable = self._model.named_vars[name]
        given = "" if variable in self._model.potentials else values_in_words(self._model, variable, point)
        return f"-inf, since it needs {needed}" + (f" but has {given}" if given else "")

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
    variables, constants = general.variables, pt.dvector("constants")
    placed = place(general.charted, variables.parts, constants)
    terms = model.logp(vars=[v for v in _terms(model) if v not in placed.own], sum=False)
    rest = clone_replace([term.sum() for term in terms], placed.values)
    total = pt.add(*(t.astype("float64") for t in (*rest, *placed.own.values())), placed.log_jacobian, pt.zeros(()))
    values = [placed.values[model.rvs_to_values[v]].ravel() for v in variables.variables]
    jacobian = placed.log_jacobian + placed.scales
    vector = pt.concatenate([_gradient(total, variables.symbol), *values, jacobian[None]])
    return GraphFunction(model, [variables.symbol, constants], [total, vector])


def _scores(model: pm.Model, general: GeneralModel) -> GraphFunction:
    """The score of the rest for each charted element, and its moments, at values x."""
    # Own priors read a twin of their value, so that one pass back through the graph leaves them out.
    twins = {each.value: each.value.clone() for each in general.charted}
    charted = {each.variable for each in general.charted}
    ordered, terms = _terms(model), []
    for variable, term in zip(ordered, model.logp(vars=ordered, sum=False), strict=True):
        value = model.rvs_to_values.get(variable)
        terms.append(clone_replace([term], {value: twins[value]})[0] if variable in charted else term)
    rest = pt.grad(pt.add(*(t.sum() for t in terms), pt.zeros(())), list(twins), disconnected_inputs="ignore")
    moments = [each.moment_vector() for each in general.charted]
    found = [pt.concatenate([part.ravel().astype("float64") for part in parts]) for parts in (rest, moments)]
    found = clone_replace(found, {twin: value for value, twin in twins.items()})
    return GraphFunction(model, [general.variables.symbol], general.variables.place(found))


def _terms(model: pm.Model) -> list[TensorVariable]:
    """All that has a log density."""
    return [*model.basic_RVs, *model.potentials]


def check_differentiable(model: pm.Model, variables: Sequence[TensorVariable]) -> None:
    """Raise if PyTensor has no gradient of the log density; nothing is compiled.

    Raises
    ------
    UnsupportedModelError
        With the operation that has none.
    """
    _gradient(model.logp(), [model.rvs_to_values[v] for v in variables])


def _gradient[Wrt](total: Symbol, symbols: Wrt) -> Wrt:
    """The gradient of the log density; an operation without one is named.

    Raises
    ------
    UnsupportedModelError
        If PyTensor cannot differentiate the density.
    """
    try:
        found: Wrt = pt.grad(total, symbols, disconnected_inputs="ignore")
    except NO_DERIVATIVE as error:
        why = no_derivative_in_words("the model's log density", error)
        raise UnsupportedModelError(
            f"{why}. RMHMC needs its gradient, as NUTS does. Write the operation with PyTensor's functions or give it "
            "a `pullback`, or sample its variables with pm.Slice or pm.DEMetropolisZ."
        ) from None
    return found
