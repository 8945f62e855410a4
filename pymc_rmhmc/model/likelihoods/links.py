"""Undoing links: what a linear predictor went through on its way to a distribution's parameter.

The patterns are those of the graphs as PyMC builds them, before any rewriting.
"""

from __future__ import annotations

import math
import operator
from functools import reduce

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Constant
from pytensor.scalar import basic as ps
from pytensor.scalar import math as psm
from pytensor.tensor.basic import Alloc, get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.model.likelihoods.registry import Reading
from pymc_rmhmc.usage import called_as

# Operations that only move elements of their first input.
GATHERS = (Subtensor, AdvancedSubtensor, DimShuffle, Reshape, Alloc)

__all__ = [
    "GATHERS",
    "argument",
    "equals",
    "log_reading",
    "operands",
    "strip",
    "undo_cloglog",
    "undo_log",
    "undo_logit",
    "undo_probit",
]


@called_as("undo_logit(p)")
def undo_logit(p: TensorVariable) -> TensorVariable | None:
    """Return η of ``sigmoid(η)`` or ``1 / (1 + exp(-η))``; None if it is neither."""
    _check_expression("undo_logit", p)
    inner = argument(p, psm.Sigmoid)
    if inner is not None:
        return inner
    denominator = _reciprocal(p)
    terms = None if denominator is None else _beside(denominator, ps.Add, 1.0)
    exponent = None if terms is None else argument(terms, ps.Exp)
    return None if exponent is None else -exponent


@called_as("undo_probit(p)")
def undo_probit(p: TensorVariable) -> TensorVariable | None:
    """Return η of Φ(η), as ``½ erfc(-η/√2)`` or ``½ (1 + erf(η/√2))``; None if it is neither."""
    _check_expression("undo_probit", p)
    inner = _without_factor(p, 0.5)
    if inner is None:
        return None
    negated = argument(inner, psm.Erfc)
    if negated is not None:
        scaled = _over_root_two(negated)
        return None if scaled is None else _negate(scaled)
    rest = _beside(inner, ps.Add, 1.0)
    erf_argument = None if rest is None else argument(rest, psm.Erf)
    return None if erf_argument is None else _over_root_two(erf_argument)


@called_as("undo_cloglog(p)")
def undo_cloglog(p: TensorVariable) -> TensorVariable | None:
    """Return η of ``1 - exp(-exp(η))`` or ``-expm1(-exp(η))``; None if it is neither."""
    _check_expression("undo_cloglog", p)
    inner = argument(p, ps.Neg)
    negative_rate = None if inner is None else argument(inner, ps.Expm1)
    if negative_rate is None:
        difference = operands(p, ps.Sub)
        if difference is None or not equals(difference[0], 1.0):
            return None
        negative_rate = argument(difference[1], ps.Exp)
    rate = None if negative_rate is None else argument(negative_rate, ps.Neg)
    return None if rate is None else argument(rate, ps.Exp)


@called_as("undo_log(mean)")
def undo_log(mean: TensorVariable) -> tuple[TensorVariable, TensorVariable | None] | None:
    """Return η and the offset of ``mean = exp(η) exposure``, a product of exponentials and other factors.

    Returns
    -------
    (eta, offset) or None
        The sum of the exponents, and the logarithm of the other factors (None if there are none). None
        if nothing in the product is an exponential.
    """
    _check_expression("undo_log", mean)
    exponents, factors = _log_factors(mean, 1)
    if not exponents:
        return None
    return reduce(operator.add, exponents), reduce(operator.add, factors) if factors else None


def log_reading(mean: TensorVariable, **parameters: TensorVariable) -> Reading | None:
    """Read a logarithmic link: `undo_log` of a mean, with the other parameters."""
    found = undo_log(mean)
    return None if found is None else Reading(found[0], parameters, found[1])


def _check_expression(name: str, value: object) -> None:
    """Raise for an argument that is no symbolic expression."""
    if not hasattr(value, "owner"):
        raise ConfigurationError(
            f"{name} takes a symbolic expression, in which it looks for the link, got {shown(value)}. Call it in the "
            f"`read` of register_likelihood with a parameter of the distribution: {name}(mu)."
        )


def _log_factors(value: TensorVariable, sign: int) -> tuple[list[TensorVariable], list[TensorVariable]]:
    """Split a product raised to ±1 into exponents, and logarithms of what is no exponential."""
    value = strip(value)
    exponent = argument(value, ps.Exp)
    if exponent is not None:
        return [exponent if sign > 0 else -exponent], []
    for scalar_op, signs in ((ps.Mul, (1, 1)), (ps.TrueDiv, (1, -1))):
        found = operands(value, scalar_op)
        if found is not None:
            exponents, factors = [], []
            for i, operand in enumerate(found):
                more, others = _log_factors(operand, sign * signs[min(i, 1)])
                exponents += more
                factors += others
            return exponents, factors
    inverse = argument(value, ps.Reciprocal)
    if inverse is not None:
        return _log_factors(inverse, -sign)
    if equals(value, 1.0):
        return [], []
    # A literal is single precision in PyTensor's graphs; its logarithm should not be.
    logarithm = pt.log(value.astype("float64"))
    return [], [logarithm if sign > 0 else -logarithm]


def strip(value: TensorVariable) -> TensorVariable:
    """Return the variable behind what changes no value: names (`pm.Deterministic`), casts to float, checks.

    A gather of an elementwise result becomes the elementwise result of gathers, so that links are found
    behind the indexing that PyMC adds for missing observations.
    """
    while value.owner is not None:
        op = value.owner.op
        identity = isinstance(op, ViewOp | SpecifyShape) or (
            isinstance(op, Elemwise)
            and isinstance(op.scalar_op, ps.Identity | ps.Cast)
            and value.dtype.startswith("float")
        )
        if identity:
            value = value.owner.inputs[0]
        elif isinstance(op, GATHERS):
            inner = strip(value.owner.inputs[0])  # several gathers may follow one another
            if inner.owner is None or not isinstance(inner.owner.op, Elemwise):
                break
            value = _sink(value, inner)
        else:
            break
    return value


def _sink(value: TensorVariable, inner: TensorVariable) -> TensorVariable:
    """Turn ``gather(f(a, b))`` into ``f(gather(a), gather(b))``, where `inner` is ``f(a, b)``."""
    gather, (_, *where) = value.owner.op, value.owner.inputs
    moved = []
    for operand in inner.owner.inputs:
        alike = operand.type.broadcastable == inner.type.broadcastable
        if all(operand.type.broadcastable) and not alike:
            moved.append(operand.squeeze())  # one number for all stays one
            continue
        whole = operand if alike else pt.broadcast_to(operand, inner.shape)
        moved.append(gather.make_node(whole, *where).outputs[0])
    return inner.owner.op(*moved)


def argument(value: TensorVariable, scalar_op: type) -> TensorVariable | None:
    """Return the argument of an elementwise function of one argument, through a change of its dimensions."""
    found = operands(value, scalar_op)
    return found[0] if found is not None and len(found) == 1 else None


def operands(value: TensorVariable, scalar_op: type) -> list[TensorVariable] | None:
    """Return the operands of an elementwise operation; None if it is another."""
    value = strip(value)
    node = value.owner
    if node is None or not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, scalar_op):
        return None
    return list(node.inputs)


def equals(value: TensorVariable, number: float) -> bool:
    """Check whether a value is a constant, all of whose elements are (nearly) a number."""
    value = strip(value)
    if isinstance(value, Constant):
        return bool(np.allclose(value.data, number, rtol=1e-7, atol=0.0))
    if value.owner is not None and isinstance(value.owner.op, DimShuffle):
        return equals(value.owner.inputs[0], number)
    try:
        return math.isclose(float(get_underlying_scalar_constant_value(value)), number, rel_tol=1e-7)
    except NotScalarConstantError:
        pass
    root = argument(value, ps.Sqrt)
    return root is not None and equals(root, number**2)


def _reciprocal(value: TensorVariable) -> TensorVariable | None:
    """Return x of ``1/x``."""
    inverse = argument(value, ps.Reciprocal)
    if inverse is not None:
        return inverse
    found = operands(value, ps.TrueDiv)
    return found[1] if found is not None and equals(found[0], 1.0) else None


def _beside(value: TensorVariable, scalar_op: type, number: float) -> TensorVariable | None:
    """Return x of the sum or product of x and a number."""
    found = operands(value, scalar_op)
    if found is None or len(found) != 2:
        return None
    return next((other for one, other in (found, found[::-1]) if equals(one, number)), None)


def _without_factor(value: TensorVariable, factor: float) -> TensorVariable | None:
    """Return x of ``x · factor``, or of x divided by the factor's inverse."""
    other = _beside(value, ps.Mul, factor)
    if other is not None:
        return other
    found = operands(value, ps.TrueDiv)
    return found[0] if found is not None and equals(found[1], 1.0 / factor) else None


def _over_root_two(value: TensorVariable) -> TensorVariable | None:
    """Return x of ``x / √2`` or ``x √½``, or of either behind a minus."""
    found = _without_factor(value, math.sqrt(0.5))
    if found is not None:
        return found
    inner = argument(value, ps.Neg)
    found = None if inner is None else _over_root_two(inner)
    return None if found is None else -found


def _negate(value: TensorVariable) -> TensorVariable:
    """Return ``-x``, without piling up a second minus."""
    inner = argument(value, ps.Neg)
    return -value if inner is None else inner
