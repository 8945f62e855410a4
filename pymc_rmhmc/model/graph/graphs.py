"""Small things that are asked of PyTensor graphs: evaluation without a compiler, replacement, reach."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV
from pytensor.compile import Function
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import NullTypeGradError
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.traversal import ancestors, toposort
from pytensor.graph.utils import MethodNotDefined
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.rewriting.basic import constant_folding
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import TensorType
from pytensor.tensor.variable import TensorVariable
from pytensor.xtensor.type import XTensorType

__all__ = [
    "LINEAR_OPERATIONS", "NO_DERIVATIVE", "WITHOUT_TRACES", "Evaluator", "NoValueThere", "as_value", "bad_constants",
    "by_python", "constant_arrays", "core_op", "evaluated_there", "first_line", "formula_of", "inlined", "is_flat",
    "is_of_dims", "is_standard_normal", "no_derivative_in_words", "operation_name", "points_elsewhere", "reaches",
    "reaches_by_value", "readers_of", "replaced", "shared_inputs", "substitute", "value_inputs",
]  # fmt: skip

type Point = dict[str, np.ndarray]


@node_rewriter(None)
def fold_single_constants(fgraph: FunctionGraph, node: Apply) -> list[Variable] | bool:
    """Evaluate operations of constants that give one number."""
    are_single = all(isinstance(out.type, TensorType) and all(out.type.broadcastable) for out in node.outputs)
    return constant_folding.transform(fgraph, node) if are_single else False


# Graphs of priors and predictors are evaluated once a run, or once for every θ: building a function for
# the Python linker takes milliseconds, where a compiler takes seconds.
# Constants are not folded: a fixed covariance would be stored many times over in what travels to workers.
# Single numbers are, and first: PyTensor has 1 / 3.0 in single precision, and its rewrites make that double in some
# places of a graph and not in others, so that a covariance would not be one.
PYTHON_MODE = (
    Mode(linker="py", optimizer="fast_compile")
    .excluding("constant_folding", "topo_constant_folding")
    .register((dfs_rewriter(fold_single_constants), 0.5))
)


# Elementwise operations that are affine in all of their inputs together.
LINEAR_OPERATIONS = {"Add", "Sub", "Neg", "Identity", "Cast", "Second"}

# PyTensor keeps with each operation the lines of code that made it, and rewriting copies them: of third derivatives
# gigabytes, and most of the time.
WITHOUT_TRACES = {"traceback__limit": 0}

# What PyTensor raises where an operation has no derivative.
NO_DERIVATIVE = (NotImplementedError, MethodNotDefined, NullTypeGradError)
# As many letters of PyTensor's own message are repeated.
LONGEST_REASON = 200

# What operations raise when they cannot take a value: an index out of range, a failed check of PyMC or PyTensor, a
# matrix that has no factor or is not finite (LinAlgError is a ValueError), an integer that overflows.
REFUSALS = (IndexError, ValueError, AssertionError, ArithmeticError)

# How far values are moved, up and down, in unconstrained units.
SIZES = (1.0, 5.0)


def first_line(error: Exception) -> str:
    """Return what an error says, without PyTensor's account of the graph."""
    return str(error).strip().split("\n")[0].rstrip(".")


def no_derivative_in_words(what: str, error: Exception) -> str:
    """Say that PyTensor cannot differentiate something, and name the operation at fault by one of `NO_DERIVATIVE`."""
    return f"PyTensor cannot differentiate {what} ({first_line(error)[:LONGEST_REASON]})"


def core_op(variable: Variable) -> Op | None:
    """Return the operation that makes a variable, without its batch dimensions; None for an input."""
    if variable.owner is None:
        return None
    return getattr(variable.owner.op, "core_op", variable.owner.op)


def is_flat(variable: Variable) -> bool:
    """Return whether a variable's own distribution is Flat; one that begins with a Flat one is made of such."""
    return isinstance(core_op(variable), FlatRV)


def operation_name(variable: Variable) -> str:
    """Name the operation that makes a variable, by its scalar operation if it is elementwise; "" for an input."""
    op = core_op(variable)
    return "" if op is None else type(op.scalar_op if isinstance(op, Elemwise) else op).__name__


def reaches(variable: Variable, targets: Iterable[Variable], blockers: Iterable[Variable] = ()) -> bool:
    """Return whether an expression depends on the values of any target without passing through a blocker.

    What depends on a shape alone (`pm.HalfNormal("s", shape=f.shape)`) does not.
    """
    return reaches_by_value(variable, targets, {}, [b for b in blockers if b is not variable])


def reaches_by_value(
    variable: Variable, targets: Iterable[Variable], known: dict[Variable, bool], blockers: Iterable[Variable] = ()
) -> bool:
    """Answer `reaches` for one of many expressions.

    `known` is what has been found for other expressions with the same targets and blockers; it is added to.
    """
    if variable in known:
        return known[variable]
    wanted, ends, waiting = set(targets), set(blockers), [variable]
    while waiting:
        at = waiting[-1]
        is_end = at.owner is None or at in wanted or at in ends or isinstance(core_op(at), (Shape, Shape_i))
        inputs = [] if is_end else at.owner.inputs
        missing = [i for i in inputs if i not in known]
        if missing:
            waiting += missing
        else:
            known[waiting.pop()] = at in wanted or any(known[i] for i in inputs)
    return known[variable]


def readers_of(expressions: Sequence[Variable]) -> dict[Variable, list[Apply]]:
    """Return the operations that read each variable in graphs; one that reads no more than its shape is no reader."""
    readers: dict[Variable, list[Apply]] = {}
    shapes = {v for v in ancestors(expressions) if isinstance(core_op(v), (Shape, Shape_i))}
    reached = ancestors(expressions, blockers=shapes)
    for node in {v.owner for v in reached if v.owner is not None and v not in shapes}:
        for read in dict.fromkeys(node.inputs):
            readers.setdefault(read, []).append(node)
    return readers


def inlined(expressions: Sequence[TensorVariable], until: Iterable[Variable]) -> list[TensorVariable]:
    """Replace compound operations (`einsum`, `pad`, ...) in expressions by their graphs.

    What expressions are inlined until stays as it is, with all that it depends on.
    """
    kept = set(until)
    rewritten: dict[Variable, Variable] = {}
    for node in toposort(list(expressions), blockers=kept):
        if any(output in kept for output in node.outputs):
            continue
        inputs = [rewritten.get(i, i) for i in node.inputs]
        is_compound = isinstance(node.op, OpFromGraph)
        if not is_compound and all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
            continue
        made = node.clone_with_new_inputs(inputs, strict=False)
        outputs = inlined(inline_ofg_node(made), inputs) if is_compound else made.outputs
        rewritten |= dict(zip(node.outputs, outputs, strict=True))
    return [rewritten.get(e, e) for e in expressions]


def replaced(expressions: Sequence[TensorVariable], places: Mapping[Variable, Variable]) -> list[TensorVariable]:
    """Return expressions with some variables replaced, and with all else as it is.

    `clone_replace` copies what it puts in as well. A gradient cannot merge the paths through such copies: if each of n
    variables were placed by a copy of the one before it, it would have n² nodes. What takes a variable's place may hold
    variables that are replaced elsewhere.
    """
    made: dict[Variable, Variable] = dict(places)
    for node in toposort(list(expressions), blockers=list(made)):
        inputs = [made.get(i, i) for i in node.inputs]
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            for old, new in zip(node.outputs, node.clone_with_new_inputs(inputs).outputs, strict=True):
                made.setdefault(old, new)  # one of several outputs may be replaced itself
    return [made.get(e, e) for e in expressions]


def substitute(
    expressions: Sequence[TensorVariable], replacements: dict[TensorVariable, TensorVariable], model: pm.Model
) -> list[TensorVariable]:
    """Replace some variables in expressions, and the model's other random variables by their values.

    The values come first: a clone of a random variable would no longer be known to the model, and would be
    drawn afresh at every evaluation.
    """
    valued = model.replace_rvs_by_values([*expressions, *replacements])
    graphs, replaced = valued[: len(expressions)], valued[len(expressions) :]
    return clone_replace(graphs, dict(zip(replaced, replacements.values(), strict=True))) if replaced else graphs


def shared_inputs(expressions: Iterable[Variable]) -> list[SharedVariable]:
    """Return the shared variables (`pm.Data`) that expressions depend on, random states aside."""
    made = dict.fromkeys(ancestors(list(expressions)))
    return [v for v in made if isinstance(v, SharedVariable) and isinstance(v, TensorVariable)]


def value_inputs(model: pm.Model, expressions: Sequence[Variable]) -> list[TensorVariable]:
    """Return a model's value variables that expressions depend on."""
    held = set(ancestors(expressions))
    return [value for value in model.value_vars if value in held]


def formula_of(model: pm.Model, expressions: Sequence[Variable]) -> set[Variable]:
    """Return what expressions are computed from, up to random variables and the factors of covariances."""
    factors = [v for v in ancestors(expressions) if operation_name(v) == "Cholesky"]
    return set(ancestors(expressions, blockers=[*model.basic_RVs, *factors]))


def constant_arrays(expressions: Iterable[Variable]) -> list[Constant]:
    """Return the constants in expressions that are arrays of floating numbers."""
    made = ancestors(list(expressions))
    constants = [v for v in made if isinstance(v, Constant) and isinstance(v.data, np.ndarray)]
    return [v for v in constants if v.ndim and v.dtype.startswith("float")]


def bad_constants(expressions: Iterable[Variable]) -> list[np.ndarray]:
    """Return the constant arrays of floating numbers in expressions that hold a value that is not finite."""
    return [v.data for v in constant_arrays(expressions) if not np.isfinite(v.data).all()]


class Evaluator:
    """Expressions of a model as a function of a point, evaluated without compiling; made at the first call.

    Placeholders take the place of some variables of the expressions; their values come first in a call. The expressions
    depend on the value variables of these `inputs` and on `shared` data; their `graph` has placeholders and value
    variables, and what is made of them.
    """

    def __init__(
        self,
        model: pm.Model,
        expressions: Sequence[TensorVariable],
        placeholders: dict[TensorVariable, TensorVariable] | None = None,
    ) -> None:
        placeholders = placeholders or {}
        # Compound operations would be compiled for themselves, whatever the linker.
        graphs = inlined(substitute(expressions, placeholders, model), ())
        values = value_inputs(model, graphs)
        self.inputs = tuple(value.name for value in values)
        self.shared = shared_inputs(graphs)
        self.graph = ([*placeholders.values(), *values], graphs)
        self._n_placeholders = len(placeholders)
        self._function: Function | None = None
        self._batched: Function | None = None

    def __call__(self, point: Point, *placeholders: np.ndarray) -> list[np.ndarray]:
        """Evaluate at a point with the current shared data."""
        if self._function is None:
            self._function = by_python(*self.graph)
        return self._function(*placeholders, *(point[name] for name in self.inputs))

    def many(
        self, point: Point, shapes: Sequence[tuple[int, ...]], placeholders: Sequence[np.ndarray]
    ) -> np.ndarray:
        """Return a single expression (c, n), raveled, for placeholders (c, size) each, of these shapes."""
        inputs, (output,) = self.graph
        if self._batched is None:
            heads, rest = inputs[: self._n_placeholders], inputs[self._n_placeholders :]
            many = [pt.tensor(dtype=head.type.dtype, shape=(None, *head.type.shape)) for head in heads]
            self._batched = by_python([*many, *rest], vectorize_graph(output, dict(zip(heads, many, strict=True))))
        values = [value.reshape(-1, *shape) for value, shape in zip(placeholders, shapes, strict=True)]
        found = np.asarray(self._batched(*values, *(point[name] for name in self.inputs)))
        # What depends on no placeholder is not batched.
        if found.ndim == output.ndim:
            found = np.broadcast_to(found, (len(values[0]), *found.shape))
        return found.reshape(len(values[0]), -1)


def by_python(
    inputs: Sequence[Variable], outputs: Variable | Sequence[Variable], *, with_checks: bool = True
) -> Function:
    """Return a function that is not compiled, with or without PyMC's checks of arguments, which raise."""
    mode = PYTHON_MODE if with_checks else PYTHON_MODE.including("local_remove_check_parameter")
    return pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore", allow_input_downcast=True)


def is_of_dims(variable: Variable) -> bool:
    """Return whether a variable is one of pymc.dims, whose operations are different."""
    return isinstance(variable.type, XTensorType)


def is_standard_normal(model: pm.Model, variable: TensorVariable) -> bool:
    """Return whether a Normal has mean 0 and standard deviation 1, whatever else happens in the model or its data."""
    parameters = variable.owner.op.dist_params(variable.owner)
    law = Evaluator(model, parameters)
    known: dict[Variable, bool] = {}
    moving = [*model.basic_RVs, *law.shared]
    if any(reaches_by_value(parameter, moving, known) for parameter in parameters):
        return False
    found = law(model.initial_point() if law.inputs else {})
    return all(bool((value == at).all()) for value, at in zip(found, (0.0, 1.0), strict=True))


def as_value(model: pm.Model, variable: TensorVariable, drawn: TensorVariable) -> TensorVariable:
    """Return a variable's graph, or that of a draw in its place, on the scale on which PyMC keeps the variable."""
    transform = model.rvs_to_transforms.get(variable)
    if transform is None:
        return drawn
    return pt.as_tensor(transform.forward(drawn, *drawn.owner.inputs))


def points_elsewhere(point: Point, names: Sequence[str]) -> Iterator[Point]:
    """Yield copies of a point with some of its floating values moved, all up or all down; none if nothing moves."""
    moving = [name for name in names if np.asarray(point[name]).dtype.kind == "f"]
    if not moving:
        return
    for size, sign in itertools.product(SIZES, (1.0, -1.0)):
        rng, moved = np.random.default_rng(0), dict(point)
        for name in moving:
            value = np.asarray(point[name])
            moved[name] = value + sign * size * rng.uniform(0.5, 1.5, value.shape)
        yield moved


class NoValueThere(Exception):  # noqa: N818 - it is caught: it says nothing of other points
    """An expression has no value at a point that was made up."""


def evaluated_there[T](function: Callable[..., T], *arguments: object) -> T:
    """Return the value of a function at a point that was made up.

    Raises a `NoValueThere` if an operation cannot take what it is given there. Any other error is one of the program,
    and comes through.
    """
    try:
        return function(*arguments)
    except REFUSALS as error:
        raise NoValueThere from error
