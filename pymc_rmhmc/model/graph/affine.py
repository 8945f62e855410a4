"""Which expressions are affine in some variables, what their linear part depends on, and by which a likelihood reads.

All of it is read off graphs: no number of points could show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pymc as pm
import pytensor
from pytensor.compile.ops import ViewOp
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort, walk
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.exceptions import ShapeError
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor, IncSubtensor, Subtensor
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import (
    LINEAR_OPERATIONS,
    NO_DERIVATIVE,
    core_op,
    inlined,
    operation_name,
    reaches,
    reaches_by_value,
    shared_inputs,
)

__all__ = [
    "ONE_BY_ONE", "PRODUCTS", "SHAPING", "LinearInputs", "bends", "first_bend", "goes_one_by_one", "is_affine_node",
    "is_linear", "linear_inputs", "multipliers", "passed_on", "predictor_node",
]  # fmt: skip

# Operations through which a sum of inputs goes as the sum of what they make of each, beside `LINEAR_OPERATIONS`.
SHAPING = {
    "DimShuffle", "Reshape", "Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1", "Join", "Sum", "SpecifyShape",
    "MakeVector", "Alloc", "ViewOp", "Split", "ExtractDiag", "TensorFromScalar", "ScalarFromTensor", "Repeat", "Assert",
    "CheckAndRaise", "Print", "JoinDims", "SplitDims",
}  # fmt: skip
SOLUTIONS = {"Solve", "SolveTriangular", "CholeskySolve"}
# What only moves values of its first input.
ONE_BY_ONE = (DimShuffle, Reshape, SpecifyShape, ViewOp, Subtensor, AdvancedSubtensor)
PRODUCTS = {"Mul", "Dot", "Matmul", "BatchedDot", "Dot22", "StructuredDot", "Convolve1d", "Convolve2d"}
# Operations that are not elementwise and curve, whatever their inputs are; and elementwise ones that are 0 of all that
# is finite.
CURVES = {
    "Max", "Min", "Prod", "MaxAndArgmax", "Argmax", "SortOp", "ArgSortOp", "Softmax", "LogSoftmax", "Cholesky",
    "MatrixInverse", "Det", "SLogDet",
}  # fmt: skip
GUARDS = {"IsNan", "IsInf"}


def is_linear(
    expression: TensorVariable, variables: Sequence[TensorVariable], ends: Iterable[TensorVariable] = ()
) -> bool:
    """Return whether every operation between some variables and an expression is affine in all of them.

    What is reached through one of the ends, other random variables, does not count.
    """
    return all(is_affine_node(node, moves) for node, moves in _between(expression, variables, ends))


def bends(expression: TensorVariable, variables: Sequence[TensorVariable], ends: Iterable[TensorVariable] = ()) -> bool:
    """Return whether an operation between some variables and an expression is known not to be affine in all of them.

    Of many operations, such as a Scan, nothing is known.
    """
    return any(_is_curve(node, moves) for node, moves in _between(expression, variables, ends))


def _is_curve(node: Apply, moves: Sequence[bool]) -> bool:
    """Return whether an operation is known to curve; one that is neither affine nor this is judged by its values."""
    if is_affine_node(node, moves):
        return False
    op = core_op(node.outputs[0])
    if isinstance(op, Elemwise):
        chooses = operation_name(node.outputs[0]) == "Switch"
        return operation_name(node.inputs[0] if chooses else node.outputs[0]) not in GUARDS
    return type(op).__name__ in CURVES or (type(op).__name__ in PRODUCTS and sum(moves) > 1)


def _between(
    expression: TensorVariable, variables: Sequence[TensorVariable], ends: Iterable[TensorVariable]
) -> list[tuple[Apply, list[bool]]]:
    """List the operations between some variables and an expression, in order, and which inputs of each move with these.

    What is between them and a shape alone is not between them and a value.
    """
    stops = [end for end in ends if end not in variables]
    (expression,), held = inlined([expression], [*variables, *stops]), set(variables)
    known: dict[Variable, bool] = dict.fromkeys(stops, False)
    moving: dict[Apply, list[bool]] = {}
    waiting: list[Variable] = [expression]
    while waiting:
        at = waiting.pop()
        if at.owner is None or at in held or at.owner in moving or not reaches_by_value(at, held, known):
            continue
        # What a check looks at is not between, either.
        read = at.owner.inputs[:1] if isinstance(at.owner.op, CheckAndRaise) else at.owner.inputs
        moving[at.owner] = [i in read and reaches_by_value(i, held, known) for i in at.owner.inputs]
        waiting += read
    in_order = toposort([expression], blockers=[*variables, *stops])
    return [(node, moving[node]) for node in in_order if node in moving]


def first_bend(expression: TensorVariable, variables: Sequence[TensorVariable]) -> str:
    """Name the first operation between some variables and an expression that is not affine in them; "" if all are."""
    for node, moves in _between(expression, variables, ()):
        if not is_affine_node(node, moves):
            scalar = getattr(core_op(node.outputs[0]), "scalar_op", None)
            return str(getattr(scalar, "name", None) or operation_name(node.outputs[0])).lower()
    return ""


def is_affine_node(node: Apply, moves: Sequence[bool]) -> bool:
    """Return whether an operation is affine in those of its inputs that move."""
    return not any(moves) or passed_on(node, moves) is not None


def passed_on(node: Apply, moves: Sequence[bool]) -> list[int] | None:
    """Find the inputs that are multiplied by a number if the output is; None if the output is not affine in what moves.

    `moves` says of each input whether it moves.
    """
    op = core_op(node.outputs[0])
    name, kind = operation_name(node.outputs[0]), type(op).__name__
    everything = list(range(len(moves)))
    if kind in ("Join", "MakeVector", "BlockDiagonal"):  # an axis, where it is an input, has no dimensions
        return [i for i in everything if kind != "Join" or node.inputs[i].ndim]
    if kind in ("IncSubtensor", "AdvancedIncSubtensor", "AdvancedIncSubtensor1"):  # of a part, another value
        return None if any(moves[2:]) else [0, 1]
    if kind in SHAPING or (isinstance(op, CumOp) and op.mode == "add"):  # a random walk is the sum of its steps
        # An index or a shape that moves is no number that is passed on.
        return None if any(moves[1:]) else [0]
    if name in LINEAR_OPERATIONS:
        return ([1] if name == "Second" else everything) if node.outputs[0].dtype.startswith("float") else None
    if name in SOLUTIONS:  # of equations, by their right-hand side
        return [1] if len(moves) == 2 and not moves[0] else None
    if name == "Switch":
        return None if moves[0] else [1, 2]
    if name in PRODUCTS:
        return [moves.index(True)] if sum(moves) == 1 else None
    return [0] if name == "TrueDiv" and not moves[1] else None


def predictor_node(
    variable: TensorVariable, sources: Sequence[TensorVariable], ends: Iterable[TensorVariable] = ()
) -> TensorVariable | None:
    """Find the expression that is affine in sources and alone leads from them to a variable; None if there is none.

    Of several it is the one with the fewest axes: a likelihood may lay a predictor out along another, as with
    cutpoints, and depends on its values one by one before that. Of those it is the nearest to the variable. What is
    reached through one of the ends, other random variables, does not count.
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
    """Return whether sources go elementwise through nodes into a variable."""
    known: dict[Variable, bool] = {}
    on_the_way = [n for n in nodes if n is not variable.owner and reaches_by_value(n.outputs[0], sources, known)]
    return all(isinstance(n.op, Elemwise | DimShuffle) for n in on_the_way)


def goes_one_by_one(expression: TensorVariable, source: TensorVariable) -> bool:
    """Return whether each value of an expression reads at most one of the source's, as far as its operations show."""
    return all(
        (sum(moves) == 1 and isinstance(node.op, Elemwise)) or (moves[0] and isinstance(node.op, ONE_BY_ONE))
        for node, moves in _steps(expression, source)
    )


def multipliers(expression: TensorVariable, source: TensorVariable) -> list[TensorVariable]:
    """Return what multiplies the values of a source on their way to an expression; [] if they are not read one by one.

    A look-up must be by constants.
    """
    found: list[TensorVariable] = []
    for node, moves in _steps(expression, source):
        name, besides = operation_name(node.outputs[0]), [i for i, m in zip(node.inputs, moves, strict=True) if not m]
        if sum(moves) == 1 and (name == "Mul" or (name == "TrueDiv" and moves[0])):
            found += besides
        elif isinstance(node.op, ONE_BY_ONE):
            if any(v.owner is None and not isinstance(v, Constant) for v in ancestors(besides)):
                return []
        elif sum(moves) != 1 or name not in LINEAR_OPERATIONS or name == "Neg" or (name == "Sub" and moves[1]):
            return []
    return found


def _steps(expression: TensorVariable, source: TensorVariable) -> Iterator[tuple[Apply, list[bool]]]:
    """Yield the operations that read a source, its shape included, in order, and which inputs of each move with it."""
    known: dict[Variable, bool] = {}
    for node in toposort(inlined([expression], [source]), blockers=[source]):
        moves = [reaches_by_value(i, [source], known) for i in node.inputs]
        if any(moves):
            yield node, moves


def _axes(expression: TensorVariable) -> int:
    """Count the axes along which an expression may have more than one value."""
    return expression.ndim - sum(expression.type.broadcastable)


@dataclass(frozen=True)
class LinearInputs:
    """What a linear part depends on: value variables, and `pm.Data`.

    `beside_indices` are the value variables that are more than an index by which latent values are looked up.
    """

    values: tuple[str, ...]
    beside_indices: tuple[str, ...]
    shared: list[SharedVariable]


def linear_inputs(model: pm.Model, predictor: TensorVariable, sources: Sequence[TensorVariable]) -> LinearInputs:
    """Return what the derivative of a predictor by its sources depends on.

    A predictor ``η = c + A x`` is a graph of value variables and sources x, in which it is affine. Where A depends on a
    discrete variable, or on a continuous one through a comparison or an index, it is the same at most points that one
    might try. The graph of the derivative of η by x says what A may depend on.
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

    def expand(node: tuple[Variable, bool]) -> list[tuple[Variable, bool]]:
        variable, of_shape = node
        if variable.owner is None:
            return []
        return _inputs_of_shape(variable) if of_shape else _inputs(variable, through_indices=through_indices)

    found = walk([(variable, False) for variable in outputs], expand)
    return {variable for variable, of_shape in found if not of_shape}


def _inputs(variable: Variable, *, through_indices: bool) -> list[tuple[Variable, bool]]:
    """Return what the value of an operation's output depends on, and for each whether only its shape matters."""
    op, inputs = core_op(variable), variable.owner.inputs
    if isinstance(op, (Shape, Shape_i)):
        return [(inputs[0], True)]
    if operation_name(variable) == "Second":
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
    which = {"Second": 1, "Alloc": 0}.get(operation_name(variable))
    filled = variable if which is None else variable.owner.inputs[which]
    return get_underlying_scalar_constant_value(filled, raise_not_constant=False) == 0
