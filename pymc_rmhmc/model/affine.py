"""Which expressions are affine in some variables, and the one by which a likelihood reads them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graphs import LINEAR_OPERATIONS, core_op, inlined, operation_name, reaches, reaches_by_value

__all__ = ["PRODUCTS", "SHAPING", "is_linear", "passed_on", "predictor_node"]

# Operations through which a sum of inputs goes as the sum of what they make of each, beside `LINEAR_OPERATIONS`.
SHAPING = {
    "DimShuffle", "Reshape", "Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1", "Join", "Sum", "SpecifyShape",
    "MakeVector", "Alloc", "ViewOp", "Split", "ExtractDiag", "TensorFromScalar", "ScalarFromTensor",
}  # fmt: skip
PRODUCTS = {"Mul", "Dot", "Matmul", "BatchedDot", "Dot22"}


def is_linear(
    expression: TensorVariable, variables: Sequence[TensorVariable], ends: Iterable[TensorVariable] = ()
) -> bool:
    """Whether no operation between some variables and an expression is anything but affine in all of them.

    What is reached through one of the ends, other random variables, does not count.
    """
    stops = [end for end in ends if end not in variables]
    (expression,), held = inlined([expression], [*variables, *stops]), set(variables)
    moving: dict[Variable, bool] = dict.fromkeys(stops, False)
    between = {
        v.owner
        for v in ancestors([expression], blockers=[*variables, *stops])
        if v.owner is not None and v not in held and reaches_by_value(v, held, moving)
    }
    return all(_is_affine(node, [reaches_by_value(i, held, moving) for i in node.inputs]) for node in between)


def _is_affine(node: Apply, moves: Sequence[bool]) -> bool:
    return not any(moves) or passed_on(node, moves) is not None


def passed_on(node: Apply, moves: Sequence[bool]) -> list[int] | None:
    """The inputs that are multiplied by a number if the output is; None if the output is not affine in what moves.

    Parameters
    ----------
    node : Apply
        An operation.
    moves : sequence of bool
        Which of its inputs move.
    """
    op = core_op(node.outputs[0])
    name, kind = operation_name(node.outputs[0]), type(op).__name__
    everything = list(range(len(moves)))
    if kind in ("Join", "MakeVector"):  # an axis, where it is an input, has no dimensions
        return [i for i in everything if kind == "MakeVector" or node.inputs[i].ndim]
    if kind in ("IncSubtensor", "AdvancedIncSubtensor", "AdvancedIncSubtensor1"):  # of a part, another value
        return None if any(moves[2:]) else [0, 1]
    if kind in SHAPING or (isinstance(op, CumOp) and op.mode == "add"):  # a random walk is the sum of its steps
        # An index or a shape that moves is no number that is passed on.
        return None if any(moves[1:]) else [0]
    if name in LINEAR_OPERATIONS:
        return [1] if name == "Second" else everything
    if name in PRODUCTS:
        return [moves.index(True)] if sum(moves) == 1 else None
    return [0] if name == "TrueDiv" and not moves[1] else None


def predictor_node(
    variable: TensorVariable, sources: Sequence[TensorVariable], ends: Iterable[TensorVariable] = ()
) -> TensorVariable | None:
    """The expression that is affine in sources and alone leads from them to a variable; None if there is none.

    Of several the one with the fewest axes: a likelihood may lay a predictor out along another, as with cutpoints, and
    depends on its values one by one before that. Then the nearest to the variable.

    Parameters
    ----------
    variable : TensorVariable
        A random variable, whatever its distribution.
    sources : sequence of TensorVariable
        Every one of them reaches the variable.
    ends : iterable of TensorVariable
        Other random variables: what is reached through one does not count.
    """
    stops = [end for end in ends if end is not variable and end not in sources]
    between = list(toposort([variable], blockers=[*sources, *stops]))
    # Alone, a source may be read as it is.
    found = sources[0] if len(sources) == 1 and _value_by_value(between, variable, sources) else None
    for node in between:
        for output in node.outputs:
            if output is variable or not isinstance(output, TensorVariable) or not output.dtype.startswith("float"):
                continue
            if found is not None and _axes(output) > _axes(found):
                continue
            leads = all(reaches(output, [source], stops) for source in sources)
            if leads and not reaches(variable, sources, [*stops, output]) and is_linear(output, sources, stops):
                found = output
    return found


def _value_by_value(nodes: Sequence[Apply], variable: TensorVariable, sources: Sequence[TensorVariable]) -> bool:
    """Whether sources go elementwise through nodes into a variable."""
    known: dict[Variable, bool] = {}
    on_the_way = [n for n in nodes if n is not variable.owner and reaches_by_value(n.outputs[0], sources, known)]
    return all(isinstance(n.op, Elemwise | DimShuffle) for n in on_the_way)


def _axes(expression: TensorVariable) -> int:
    """The number of axes along which an expression may have more than one value."""
    return expression.ndim - sum(expression.type.broadcastable)
