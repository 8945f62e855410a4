"""Through which expressions a variable reads some values, and what other variables add to the values there."""

from __future__ import annotations

from typing import NamedTuple

import pymc as pm
import pytensor.tensor as pt
from pymc.logprob.transforms import LogOddsTransform, LogTransform
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.affine import ONE_BY_ONE, is_affine_node
from pymc_rmhmc.model.graph.graphs import operation_name, reaches, reaches_by_value

__all__ = ["LinearRead", "linear_reads"]

# What is above 0 where all of its inputs are, and what always is.
KEEPS_SIGN, POSITIVE = {"Mul", "TrueDiv", "Add", "Sqrt", "Sqr", "Reciprocal", "Identity", "Cast"}, {"Exp", "Sigmoid"}


class LinearRead(NamedTuple):
    """An expression that is affine in some values, and what else moves them on the way to a variable.

    Attributes
    ----------
    node : TensorVariable
        The expression.
    logarithms : tuple of TensorVariable
        What comes to the same as adding these to it: in ``rate * exp(f)`` f is read with the logarithm of the rate.
    """

    node: TensorVariable
    logarithms: tuple[TensorVariable, ...] = ()

    @property
    def expressions(self) -> tuple[TensorVariable, ...]:
        """All that it is made of."""
        return self.node, *self.logarithms


def linear_reads(model: pm.Model, variable: TensorVariable, source: TensorVariable) -> list[LinearRead]:
    """Find the last affine expressions on the ways from a source to a random variable, whatever its distribution."""
    reader = _Reader(model, variable, source)
    linear: set[Variable] = {source}
    last: dict[Variable, None] = {}
    for node, moves in reader.between:
        read = [i for i, moving in zip(node.inputs, moves, strict=True) if moving]
        if variable not in node.outputs and linear.issuperset(read) and is_affine_node(node, moves):
            linear.update(node.outputs)
        else:
            last |= dict.fromkeys(i for i in read if i in linear)
    found: dict[Variable, LinearRead] = {}
    for expression in last:
        logarithms = reader.logarithms(expression)
        node = expression if logarithms else reader.last_added(expression)
        found.setdefault(node, LinearRead(node, logarithms))
    return list(found.values())


class _Reader:
    """The graph between a source and a variable.

    Attributes
    ----------
    between : list of (Apply, list of bool)
        The operations, in order, and which inputs of each depend on the source.
    """

    def __init__(self, model: pm.Model, variable: TensorVariable, source: TensorVariable) -> None:
        self._model, self._source = model, source
        self._others = [v for v in model.basic_RVs if v is not variable and v is not source]
        self._known: dict[Variable, bool] = dict.fromkeys(self._others, False)
        nodes = toposort([variable], blockers=[source, *self._others])
        moving = [(node, self._moves(node)) for node in nodes]
        self.between = [(node, moves) for node, moves in moving if any(moves)]
        self._readers: dict[Variable, list[Apply]] = {}
        for node, moves in self.between:
            for read in {i for i, moving in zip(node.inputs, moves, strict=True) if moving}:
                self._readers.setdefault(read, []).append(node)

    def _moves(self, node: Apply) -> list[bool]:
        return [reaches_by_value(i, [self._source], self._known) for i in node.inputs]

    def last_added(self, expression: Variable) -> Variable:
        """Follow an expression back through what only moves or multiplies its values, or adds constants, one by one."""
        while expression is not self._source:
            node = expression.owner
            moves = self._moves(node)
            besides = [i for i, moving in zip(node.inputs, moves, strict=True) if not moving]
            one_by_one = isinstance(node.op, Elemwise) or (moves[0] and isinstance(node.op, ONE_BY_ONE))
            multiplies = operation_name(expression) in ("Mul", "TrueDiv")
            adds = not multiplies and any(reaches(i, self._others) for i in besides)
            if sum(moves) != 1 or not one_by_one or adds:
                break
            expression = node.inputs[moves.index(True)]
        return expression

    def logarithms(self, expression: TensorVariable) -> tuple[TensorVariable, ...]:
        """Find what shifts an expression of which only the exponential is read, times positive factors that move."""
        node = self._only_reader(expression)
        if node is None or operation_name(node.outputs[0]) != "Exp":
            return ()
        sign, found = 1, []
        while node is not None and isinstance(node.op, Elemwise):
            at = node.outputs[0]
            node = self._only_reader(at)
            name = "" if node is None else operation_name(node.outputs[0])
            if node is None or name not in ("Mul", "TrueDiv"):
                break
            above = [i for i in node.inputs if i is not at] if name == "Mul" else node.inputs[:1]
            if name == "TrueDiv" and node.inputs[0] is at:
                found += [-sign * pt.log(f) for f in self._factors(node.inputs[1], expression)]
                continue
            sign = sign if name == "Mul" else -sign
            found += [sign * pt.log(f) for each in above for f in self._factors(each, expression)]
        return tuple(found)

    def _only_reader(self, expression: Variable) -> Apply | None:
        readers = self._readers.get(expression, [])
        return readers[0] if len(readers) == 1 and readers[0].inputs.count(expression) == 1 else None

    def _factors(self, product: TensorVariable, like: TensorVariable) -> list[TensorVariable]:
        """Return the factors of a product that move, are positive, and have one value or as many as an expression."""
        if operation_name(product) == "Mul":
            return [f for each in product.owner.inputs for f in self._factors(each, like)]
        fits = all(product.type.broadcastable) or product.type.broadcastable == like.type.broadcastable
        moves = reaches(product, self._others) and not reaches(product, [self._source])
        return [product] if fits and moves and self._is_positive(product) else []

    def _is_positive(self, variable: Variable) -> bool:
        """Return whether an expression is above 0 wherever the model has a density."""
        if variable in self._model.free_RVs:
            return isinstance(self._model.rvs_to_transforms.get(variable), LogTransform | LogOddsTransform)
        if isinstance(variable, Constant):
            return bool((variable.data > 0).all())
        name = operation_name(variable)
        if name in POSITIVE:
            return True
        if name in KEEPS_SIGN:
            return all(self._is_positive(i) for i in variable.owner.inputs)
        return variable.owner is not None and isinstance(variable.owner.op, ONE_BY_ONE) and self._is_positive(
            variable.owner.inputs[0]
        )

