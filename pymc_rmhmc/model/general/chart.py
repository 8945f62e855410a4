"""The flat chart of any model: each variable relative to the location and scale that other variables give it.

For a free variable ``x ~ D(μ, σ)``, μ and σ functions of other variables, and constants w ≥ 0 and b an element,

    r = σ(b - wμ)/(1 + wσ²) + z/√(1 + wσ²),    x = μ + σr,    log |∂x/∂z| = log σ - ½ log(1 + wσ²).

This is ``x = (μ + σ²b)/(1 + wσ²) + σz/√(1 + wσ²)``, with nothing that overflows where σ is small. At ``w = b = 0`` it is
the non-centred form, at a large w the centred one. With w and b the line that the score of everything but x's own prior
follows, z has location 0 and scale 1 wherever the parents are. Values are placed parents first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.replace import clone_replace
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.model.general.families import Family, family_of
from pymc_rmhmc.model.graphs import reaches
from pymc_rmhmc.model.source_code import distribution_of

__all__ = ["ChartedVariable", "Placement", "charted_variables", "place"]

type Symbol = TensorVariable


@dataclass(frozen=True, eq=False, slots=True)
class ChartedVariable:
    """A free variable whose location or scale other free variables move.

    Attributes
    ----------
    variable, value : TensorVariable
        The random variable and its value variable.
    family : Family
        The row of its distribution.
    parameters : tuple of TensorVariable
        Of the distribution, as graphs of value variables.
    parents : tuple of str
        The names of the variables that move it.
    """

    variable: Symbol
    value: Symbol
    family: Family
    parameters: tuple[Symbol, ...]
    parents: tuple[str, ...]

    def moments(self, parameters: Sequence[Symbol], shape: tuple[int, ...]) -> tuple[Symbol, Symbol]:
        """Location and scale for parameters, each of the value's shape.

        Raises
        ------
        ConfigurationError
            If the family's function returns something else than a pair, or of another shape.
        """
        found = self.family.moments(*parameters)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise ConfigurationError(
                f"{self.variable.name}: the function registered for {self.family.name} must return a pair (location, "
                f"scale), and returned {type(found).__name__}. Mend it in register_family."
            )
        return self._broadcast(found[0], "location", shape), self._broadcast(found[1], "scale", shape)

    def _broadcast(self, found: Symbol, what: str, shape: tuple[int, ...]) -> Symbol:
        """One of the moments, of the value's shape."""
        symbol = pt.as_tensor_variable(found).astype("float64")
        pairs = zip(reversed(symbol.type.shape), reversed(shape), strict=False)
        if symbol.ndim > len(shape) or any(have not in (None, 1, want) for have, want in pairs):
            raise ConfigurationError(
                f"{self.variable.name}: the {what} that is registered for {self.family.name} has the shape "
                f"{symbol.type.shape}, and the variable has {shape}. Mend the function in register_family."
            )
        return symbol if symbol.type.shape == shape else pt.broadcast_to(symbol, shape)


def charted_variables(model: pm.Model, variables: Sequence[TensorVariable]) -> list[ChartedVariable]:
    """The variables that a chart moves relative to others, parents before children."""
    found = []
    for variable in variables:
        family = family_of(model, variable)
        if family is None:
            continue
        parameters = variable.owner.op.dist_params(variable.owner)
        parents = [other for other in variables if other is not variable
                   and any(reaches(p, [other], model.basic_RVs) for p in parameters)]  # fmt: skip
        if parents:
            valued = tuple(model.replace_rvs_by_values(list(parameters)))
            names = tuple(str(parent.name) for parent in parents)
            found.append(ChartedVariable(variable, model.rvs_to_values[variable], family, valued, names))
    return _parents_first(found)


def _parents_first(charted: Sequence[ChartedVariable]) -> list[ChartedVariable]:
    """In an order in which everything that moves a variable stands before it."""
    waiting, ordered = list(charted), []
    while waiting:
        names = {str(each.variable.name) for each in waiting}
        ready = [each for each in waiting if not names & set(each.parents)]
        assert ready, "a model's graph has no cycles"
        ordered += ready
        waiting = [each for each in waiting if each not in ready]
    return ordered


class Placement(NamedTuple):
    """Charted variables as functions of the chart's coordinates.

    Attributes
    ----------
    values : dict
        From each value variable to its expression.
    own : dict
        From each random variable of exactly a location and a scale to the log density of its own prior, its Jacobian
        ``log σ`` included, as a scalar.
    scales : Symbol
        ``Σ log σ`` of those.
    log_jacobian : Symbol
        What else of ``Σ log |∂x/∂z|`` is to be added.
    """

    values: dict[Symbol, Symbol]
    own: dict[Symbol, Symbol]
    scales: Symbol
    log_jacobian: Symbol


def place(
    charted: Sequence[ChartedVariable], coordinates: dict[Symbol, Symbol], weights: dict[Symbol, Symbol],
    pulls: dict[Symbol, Symbol],
) -> Placement:  # fmt: skip
    """Place charted variables, given coordinates z, w and b for each value variable.

    Parameters
    ----------
    charted : sequence of ChartedVariable
        Parents first.
    coordinates, weights, pulls : dict
        From value variables to z, w and b, each of the value's shape. Coordinates hold the other variables too.
    """
    values, own = dict(coordinates), {}
    scales, jacobian = pt.zeros(()), pt.zeros(())
    for each in charted:
        z = coordinates[each.value]
        shape = tuple(int(size) for size in z.type.shape)
        parameters = clone_replace(list(each.parameters), values)
        location, scale = each.moments(parameters, shape)
        stiffness = weights[each.value] * scale
        spread = 1.0 + stiffness * scale
        relative = scale * (pulls[each.value] - weights[each.value] * location) / spread + z / pt.sqrt(spread)
        values[each.value] = location + scale * relative
        half = 0.5 * pt.log(spread).sum()
        if each.family.standard is None:
            jacobian += pt.log(scale).sum() - half
            continue
        standard = pm.logp(each.family.standard(*parameters), relative)
        # As PyMC has it, a scale that is not positive is a log density of -inf.
        own[each.variable] = pt.switch(scale > 0.0, standard, -np.inf).sum()
        scales += pt.log(scale).sum()
        jacobian -= half
    return Placement(values, own, scales, jacobian)


def in_words(charted: ChartedVariable) -> str:
    """A variable, its distribution and what moves it, in a line."""
    return f"{charted.variable.name} ({distribution_of(charted.variable)}, relative to {', '.join(charted.parents)})"
