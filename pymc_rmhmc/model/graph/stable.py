"""Log densities in forms that keep their digits where those that PyMC writes round to nothing."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import graph_inputs, toposort
from pytensor.scalar import Log, Sub
from pytensor.scalar.math import GammaIncC, Sigmoid
from pytensor.tensor.basic import Join, get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.subtensor import Subtensor, get_idx_list
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import by_python, replaced

__all__ = ["stable"]


def stable(expression: TensorVariable) -> TensorVariable:
    """Return an expression with whatever rounds to nothing far out, or has no derivative there, in another form."""
    places = dict[Variable, Variable]()
    for node in toposort([expression]):
        for rule in (_log_of_no_event, _ordinal_probabilities):
            made = rule(node)
            if made is not None:
                old = node.outputs[0]
                places[old] = pt.specify_shape(made.astype(old.dtype), old.type.shape)
    return replaced([expression], places)[0]


def _log_of_no_event(node: Apply) -> TensorVariable | None:
    """Return -x for the logarithm of ``Γ(1, x)``, an incomplete gamma function.

    PyMC counts a Poisson's probability of 0 by it, in hurdle and truncated counts, and its derivative is not a number
    where ``e⁻ˣ`` underflows: from a rate of 745 on.
    """
    whole = node.inputs[0].owner if _is_elementwise(node, Log) else None
    if whole is None or not _is_elementwise(whole, GammaIncC):
        return None
    order, at = whole.inputs
    if any(not isinstance(v, Constant) for v in graph_inputs([order])) or np.any(by_python([], order)() != 1.0):
        return None
    return pt.second(whole.outputs[0], -at)


def _ordinal_probabilities(node: Apply) -> TensorVariable | None:
    """Return the differences of ``0, σ(a₁), …, σ(aₖ), 1`` as products.

    Far below all cutpoints σ is 1 in all digits, and their differences are 0: an ordered logistic's category beyond the
    first would have no probability there. ``σ(a) - σ(b) = σ(a) σ(-b) (1 - e^(b-a))``.
    """
    if not _is_elementwise(node, Sub):
        return None
    later, earlier = (_part_of_last_axis(each.owner) for each in node.inputs)
    if later is None or earlier is None or later[0] is not earlier[0]:
        return None
    if later[1:] != (1, None) or earlier[1:] != (None, -1):
        return None
    at = _within_zero_and_one(later[0].owner)
    if at is None:
        return None
    # Cutpoints in the wrong order, which the model refuses by a negative probability, shall not overflow.
    falls = pt.minimum(at[..., :-1] - at[..., 1:], 1.0)
    between = pt.sigmoid(at[..., 1:]) * pt.sigmoid(-at[..., :-1]) * -pt.expm1(falls)
    return pt.concatenate([pt.sigmoid(at[..., :1]), between, pt.sigmoid(-at[..., -1:])], axis=-1)


def _part_of_last_axis(node: Apply | None) -> tuple[Variable, int | None, int | None] | None:
    """Return of what a node is a part along the last axis alone, and its limits."""
    if node is None or not isinstance(node.op, Subtensor):
        return None
    *others, last = get_idx_list(node.inputs, node.op.idx_list)
    source = node.inputs[0]
    if len(others) + 1 != source.ndim or any(each != slice(None) for each in others) or not isinstance(last, slice):
        return None
    if last.step is not None:
        return None
    limits = [None if each is None else _constant(each) for each in (last.start, last.stop)]
    return source, *(None if each is None else int(each) for each in limits)


def _within_zero_and_one(node: Apply | None) -> TensorVariable | None:
    """Return a where a node joins 0, σ(a) and 1 along the last axis."""
    if node is None or not isinstance(node.op, Join) or len(node.inputs) != 3:
        return None
    zero, inner, one = node.inputs
    is_last = node.op.axis in (-1, node.outputs[0].ndim - 1)
    if not is_last or _constant(zero) != 0.0 or _constant(one) != 1.0 or not _is_elementwise(inner.owner, Sigmoid):
        return None
    if zero.type.shape[-1] != 1 or one.type.shape[-1] != 1:
        return None
    return inner.owner.inputs[0]


def _constant(variable: Variable) -> float | None:
    """Return the number that all entries of a variable are; None if they are not constants."""
    try:
        return float(get_underlying_scalar_constant_value(variable))
    except NotScalarConstantError:
        return None


def _is_elementwise(node: Apply | None, scalar_op: type) -> bool:
    """Check whether a node is a function of each number."""
    return node is not None and isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, scalar_op)
