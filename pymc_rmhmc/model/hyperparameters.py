"""Hyperparameters as one vector θ, and what depends on them as compiled functions of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import replaced, shared_inputs, substitute, value_inputs
from pymc_rmhmc.model.likelihoods.likelihood_kernel import compile_outputs

__all__ = ["GraphFunction", "Hyperparameters", "hyperparameters_of", "is_long", "joined", "taken"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

# Constant arrays of this many values or more become arguments: two models that differ in their data alone
# then share what Numba has compiled.
LIFTED_SIZE = 8


class Hyperparameters:
    """Some of a model's continuous value variables as one vector θ (size,), on PyMC's unconstrained scale.

    Shapes are taken at the point. `names` are those of the value variables, and `symbol` is θ in graphs.
    """

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> None:
        self.variables = tuple(variables)
        values = [model.rvs_to_values[v] for v in variables]
        self.names = tuple(str(value.name) for value in values)
        self.shapes = tuple(np.shape(point[name]) for name in self.names)
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self.shapes)])
        self.slices = tuple(slice(int(a), int(b)) for a, b in itertools.pairwise(ends))
        self.size = int(ends[-1])
        self.symbol = pt.dvector("theta")
        # Each value variable as a part of θ, in its shape.
        self.parts = {
            value: pt.specify_shape(taken(self.symbol, part, shape), value.type.shape)
            for value, part, shape in zip(values, self.slices, self.shapes, strict=True)
        }

    def __getstate__(self) -> dict[str, object]:
        # A worker packs and unpacks; what needs the model's graph was done before.
        return {name: self.__dict__[name] for name in ("names", "shapes", "slices", "size")}

    def pack(self, point: Point) -> Array:
        """Return θ (d,) of a point."""
        return np.concatenate([np.empty(0), *(np.ravel(point[name]) for name in self.names)]).astype(np.float64)

    def unpack(self, theta: Array) -> Point:
        """Return the value variables of a θ."""
        return {
            name: theta[part].reshape(shape)
            for name, part, shape in zip(self.names, self.slices, self.shapes, strict=True)
        }

    def substitute(self, expressions: Sequence[TensorVariable], model: pm.Model) -> list[TensorVariable]:
        """Turn expressions of the model's random variables into expressions of θ and of the other value variables.

        In double precision: a constant may be of a type that holds it in fewer bytes, in which squares overflow, and
        compiled code takes what it is given for doubles.
        """
        placed = self.place(model.replace_rvs_by_values(list(expressions)))
        return [expression.astype("float64") for expression in placed]

    def place(self, expressions: Sequence[TensorVariable]) -> list[TensorVariable]:
        """Turn expressions of value variables into expressions of θ and of the other value variables."""
        return replaced(expressions, self.parts)

    def read_by(
        self, expressions: Sequence[TensorVariable], model: pm.Model, held: Sequence[TensorVariable] = ()
    ) -> NDArray[np.bool_]:
        """Find which of θ's coordinates (d,) expressions of the model's random variables read.

        θ is on the unconstrained scale: a variable between bounds that other variables give is read with these. What
        is read through one that is held does not count.
        """
        graphs = substitute(expressions, {variable: variable.type() for variable in held}, model)
        found = set(ancestors(graphs))
        reads = np.zeros(self.size, dtype=bool)
        for value, part in zip(self.parts, self.slices, strict=True):
            reads[part] = value in found
        return reads


def hyperparameters_of(model: pm.Model, expressions: Iterable[TensorVariable]) -> list[TensorVariable]:
    """Find the continuous free variables that expressions depend on, hyperparameters of hyperparameters included.

    Discrete ones are left out, and so are free variables that are reached through an observed one.
    """
    held = set(ancestors(list(expressions), blockers=list(model.observed_RVs)))
    return [v for v in model.free_RVs if v in held and v.dtype.startswith("float")]


class GraphFunction:
    """A graph as a function of arrays: some inputs at each call, the rest bound to a point beforehand.

    The rest are the value variables that the graph depends on besides, shared data, and constant arrays. If a point is
    given, where their shapes are taken, the rest is two vectors, of all floating-point and of all other numbers,
    whatever the model: compiled code that calls the function is then the same for all models. Only the graph travels to
    another process, which compiles it at its first use there.
    """

    def __init__(
        self, model: pm.Model, inputs: Sequence[TensorVariable], outputs: Sequence[TensorVariable],
        point: Point | None = None,
    ) -> None:  # fmt: skip
        held, values = set(ancestors(list(outputs))), value_inputs(model, outputs)
        self.value_names = tuple(str(v.name) for v in values)
        self.shared = shared_inputs(outputs)
        constants = [v for v in held if isinstance(v, Constant) and is_long(v)]
        # A set has no order; compiled functions are found again by what they look like.
        constants.sort(key=lambda c: (c.type.ndim, c.data.shape, c.data.tobytes()[:64]))
        self._constants = tuple(np.asarray(c.data) for c in constants)
        lifted = {v: v.type(name=f"argument_{i}") for i, v in enumerate((*self.shared, *constants))}
        outputs = replaced(outputs, lifted)
        rest = (*values, *lifted.values())
        self._is_packed = point is not None
        if point is not None:
            rest, outputs = _packed(rest, self._arrays(point), outputs)
        self._graph = (tuple(inputs), rest, tuple(outputs))
        self.bound: tuple[np.ndarray, ...] = ()  # what the function takes after what is given at each call

    def bind(self, point: Point) -> None:
        """Take what is not given at a call from a point, and shared data as they are now."""
        arrays = self._arrays(point)
        self.bound = _joined(arrays) if self._is_packed else arrays

    def _arrays(self, point: Point) -> tuple[np.ndarray, ...]:
        """Return what is bound at a point, array by array."""
        values = [np.asarray(point[name]) for name in self.value_names]
        data = [np.asarray(s.get_value(borrow=True)) for s in self.shared]
        # `ascontiguousarray` would make a vector of a scalar.
        return tuple(np.require(a, requirements="C") for a in (*values, *data, *self._constants))

    @cached_property
    def function(self) -> Callable[..., Sequence[Array]]:
        """The compiled function, of what is given at each call and then of what is bound."""
        heads, rest, outputs = self._graph
        return compile_outputs((*heads, *rest), outputs, exact=True)

    def __call__(self, *inputs: Array) -> Sequence[Array]:
        """Evaluate; inputs must be contiguous."""
        return self.function(*inputs, *self.bound)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "function"}


def _packed(
    rest: Sequence[TensorVariable], arrays: Sequence[np.ndarray], outputs: Sequence[TensorVariable]
) -> tuple[tuple[TensorVariable, TensorVariable], list[TensorVariable]]:
    """Replace what expressions take besides their inputs by parts of two vectors."""
    vectors, used = (pt.dvector("numbers"), pt.lvector("whole_numbers")), [0, 0]
    places: dict[TensorVariable, TensorVariable] = {}
    for variable, array in zip(rest, arrays, strict=True):
        which = int(array.dtype.kind != "f")
        start, used[which] = used[which], used[which] + array.size
        part = taken(vectors[which], slice(start, used[which]), array.shape).astype(variable.dtype)
        places[variable] = variable.type.filter_variable(part, allow_convert=True)
    return vectors, replaced(outputs, places)


def _joined(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Join all floating-point numbers in one vector, and all others in another."""
    floats = [a.ravel() for a in arrays if a.dtype.kind == "f"]
    others = [a.ravel() for a in arrays if a.dtype.kind != "f"]
    return (
        np.concatenate([np.empty(0), *floats]).astype(np.float64),
        np.concatenate([np.empty(0, np.int64), *others]).astype(np.int64),
    )


def taken(vector: TensorVariable, part: slice, shape: tuple[int, ...]) -> TensorVariable:
    """Return part of a vector in a shape; a scalar by its index, since PyTensor lifts reshapes through whole graphs."""
    return vector[part.start] if shape == () else vector[part].reshape(shape)


def joined(parts: Sequence[TensorVariable]) -> TensorVariable:
    """Return expressions as one vector, element by element; scalars without a reshape, as in `taken`."""
    if not parts:
        return pt.zeros(0)
    runs = itertools.groupby((part.astype("float64") for part in parts), key=lambda part: part.ndim == 0)
    return pt.concatenate(
        [whole for scalar, run in runs for whole in ([pt.stack(list(run))] if scalar else [r.ravel() for r in run])]
    )


def is_long(constant: Constant) -> bool:
    """Check whether a constant is given to compiled code as an argument."""
    data = constant.data
    return isinstance(data, np.ndarray) and data.ndim > 0 and data.size >= LIFTED_SIZE and data.dtype.kind == "f"
