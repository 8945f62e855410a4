"""What the linear part of a predictor depends on: read off its graph, for no number of points could show it.

A predictor ``η = c + A x`` is linear in latent values x. Where A depends on a discrete variable, or on a continuous one
through a comparison or an index, it is the same at most points that one might try. Its graph says what it may depend
on: A is the derivative of η by x.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pymc as pm
import pytensor
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Second
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graphs import core_op, shared_inputs

__all__ = ["LinearInputs", "linear_inputs"]


@dataclass(frozen=True)
class LinearInputs:
    """What a linear part depends on.

    Attributes
    ----------
    values : tuple of str
        Value variables.
    beside_indices : tuple of str
        Those of them that are more than an index by which latent values are looked up.
    shared : list of shared variables
        `pm.Data`.
    """

    values: tuple[str, ...]
    beside_indices: tuple[str, ...]
    shared: list


def linear_inputs(model: pm.Model, predictor: TensorVariable, sources: Sequence[TensorVariable]) -> LinearInputs:
    """What the derivative of a predictor by its sources depends on.

    Parameters
    ----------
    model : pymc.Model
        For its value variables.
    predictor : TensorVariable
        A graph of value variables and sources, affine in the sources.
    sources : sequence of TensorVariable
        Inputs of it.
    """
    bar = predictor.type(name="bar")
    try:
        slopes = pytensor.grad((predictor * bar).sum(), list(sources), disconnected_inputs="ignore")
    except (NotImplementedError, NullTypeGradError):
        # An operation that says nothing of its derivative: whatever the predictor depends on may be in it.
        slopes = [predictor]
    held, beside = (_read_by_value(slopes, through_indices=t) for t in (True, False))
    values, others = ([str(v.name) for v in model.value_vars if v in found] for found in (held, beside))
    return LinearInputs(tuple(values), tuple(others), [s for s in shared_inputs(slopes) if s in held])


def _read_by_value(outputs: Iterable[Variable], *, through_indices: bool) -> set[Variable]:
    """The variables whose values some graphs depend on: those of which they need the shape alone are none."""
    found: set[Variable] = set()
    waiting = list(outputs)
    while waiting:
        variable = waiting.pop()
        if variable in found:
            continue
        found.add(variable)
        if variable.owner is not None:
            waiting += _inputs_by_value(variable, through_indices=through_indices)
    return found


def _inputs_by_value(variable: Variable, *, through_indices: bool) -> Sequence[Variable]:
    """The inputs of a variable's operation that matter for more than their shape."""
    op, inputs = core_op(variable), variable.owner.inputs
    if isinstance(op, (Shape, Shape_i)):
        return []
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, Second):
        return inputs[1:]
    if through_indices:
        return inputs
    if isinstance(op, (Subtensor, AdvancedSubtensor)):
        return inputs[:1]
    if isinstance(op, (IncSubtensor, AdvancedIncSubtensor)):
        return inputs[:2]
    return inputs
