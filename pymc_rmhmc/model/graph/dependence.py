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
from pytensor.graph.basic import Variable
from pytensor.scalar.basic import Second
from pytensor.tensor.basic import Alloc, get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import ShapeError
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import AdvancedIncSubtensor, IncSubtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, core_op, shared_inputs

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
    """Return what the derivative of a predictor by its sources depends on.

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
    except NO_DERIVATIVE:
        # An operation that says nothing of its derivative: whatever the predictor depends on may be in it.
        slopes = [predictor]
    held, beside = (_read_by_value(slopes, through_indices=t) for t in (True, False))
    values, others = ([str(v.name) for v in model.value_vars if v in found] for found in (held, beside))
    return LinearInputs(tuple(values), tuple(others), [s for s in shared_inputs(slopes) if s in held])


def _read_by_value(outputs: Iterable[Variable], *, through_indices: bool) -> set[Variable]:
    """Return the variables whose values some graphs depend on, even if these set no more than a length."""
    found: set[tuple[Variable, bool]] = set()
    waiting = [(variable, False) for variable in outputs]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        variable, of_shape = node
        if variable.owner is not None:
            inputs = _inputs_of_shape(variable) if of_shape else _inputs(variable, through_indices=through_indices)
            waiting += inputs
    return {variable for variable, of_shape in found if not of_shape}


def _inputs(variable: Variable, *, through_indices: bool) -> list[tuple[Variable, bool]]:
    """Return what the value of an operation's output depends on, and for each whether only its shape matters."""
    op, inputs = core_op(variable), variable.owner.inputs
    if isinstance(op, (Shape, Shape_i)):
        return [(inputs[0], True)]
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, Second):
        return [(inputs[0], True), (inputs[1], False)]
    if not through_indices and isinstance(op, (IncSubtensor, AdvancedIncSubtensor)) and _is_zeros(inputs[0]):
        # A slope put where a source was looked up. An index of anything else decides by what the source is multiplied.
        inputs = inputs[:2]
    return [(i, False) for i in inputs]


def _inputs_of_shape(variable: Variable) -> list[tuple[Variable, bool]]:
    """Return what the shape of an operation's output depends on: as the operation infers it, or else all its inputs."""
    node = variable.owner
    shapes = [
        tuple(Shape_i(axis)(i) for axis in range(i.type.ndim)) if isinstance(i.type, TensorType) else None
        for i in node.inputs
    ]
    try:
        inferred = node.op.infer_shape(node, shapes)[node.outputs.index(variable)]
    except (AttributeError, TypeError, NotImplementedError, ShapeError):
        inferred = None
    if inferred is None:
        return [(i, False) for i in node.inputs]
    return [(length, False) for length in inferred if isinstance(length, Variable)]


def _is_zeros(variable: Variable) -> bool:
    """Return whether an array was made of zeros."""
    op = core_op(variable)
    if isinstance(op, Elemwise) and isinstance(op.scalar_op, Second):
        filled = variable.owner.inputs[1]
    elif isinstance(op, Alloc):
        filled = variable.owner.inputs[0]
    else:
        filled = variable
    return get_underlying_scalar_constant_value(filled, raise_not_constant=False) == 0
