"""Whether an observed variable's data and the parameters of its distribution have shapes that fit one another."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pymc as pm
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError
from pymc_rmhmc.model.graph.graphs import Evaluator, shared_inputs

__all__ = ["check_observed_shapes", "check_shapes_at", "misfit"]

type Shape = tuple[int | None, ...]

# Where parameters of an operation are not those that its users give.
GIVEN_AS = {"NegativeBinomial": ["alpha", "mu"]}


def check_observed_shapes(variable: TensorVariable, value: Any) -> None:
    """Compare what is known of shapes before anything is evaluated.

    Parameters
    ----------
    variable : TensorVariable
        The random variable.
    value : Variable
        Its data.

    Raises
    ------
    DataError
        If a parameter of the distribution does not fit the data, with both shapes.
    """
    data = _known_shape(value)
    for name, parameter in _parameters(variable):
        shape = _known_shape(parameter)
        if not _fit(data, shape):
            raise misfit(str(variable.name), data, name, shape, shared_inputs([value, variable]))


def check_shapes_at(model: pm.Model, variable: TensorVariable, point: dict[str, np.ndarray]) -> None:
    """Compare the shapes that data and parameters have at a point.

    Raises
    ------
    DataError
        If a parameter of the distribution does not fit the data, with both shapes.
    """
    parameters = dict(list(_parameters(variable))[:-1])
    if not parameters:
        return
    value = model.rvs_to_values[variable]
    try:
        data, *found = (np.shape(v) for v in Evaluator(model, [value, *parameters.values()])(point))
    except ValueError:  # data that do not fit within a parameter, as PyTensor says where it evaluates them
        return
    for name, shape in zip(parameters, found, strict=True):
        if not _fit(data, shape):
            raise misfit(str(variable.name), data, name, shape, shared_inputs([value, variable]))


def misfit(observed: str, data: Shape, name: str, shape: Shape, shared: Iterable[Any] = ()) -> DataError:
    """Return the error of data and a parameter, or a predictor, whose shapes do not fit; `shared` are pm.Data."""
    held = ", ".join(dict.fromkeys(f"{s.name} {np.shape(s.get_value(borrow=True))}" for s in shared))
    after = f" If pm.set_data changed one of these, change the others too: {held}." if "," in held else ""
    return DataError(
        f"{observed}: the data have the shape {data}, and {name} has {shape}. Each observation needs one value of "
        f"{name}: give both the same shape, or pick the latent values that are observed with an index, f[index]."
        + after
    )


def _fit(data: Shape, shape: Shape) -> bool:
    """Return whether one of two shapes can be broadcast to the other, as far as they are known.

    A column (n, 1) and a vector (n,) would make n² observations of n.
    """
    pairs = list(itertools.zip_longest(reversed(data), reversed(shape), fillvalue=1))
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    can_be = all(a == b or 1 in (a, b) for a, b in known)
    return can_be and not (any(a < b for a, b in known) and any(a > b for a, b in known))


def _known_shape(variable: Any) -> Shape:
    if isinstance(variable, SharedVariable):
        return tuple(variable.get_value(borrow=True).shape)
    if isinstance(variable, Constant):
        return tuple(variable.data.shape)
    return tuple(variable.type.shape)


def _parameters(variable: TensorVariable) -> Iterator[tuple[str, Any]]:
    """Yield the parameters that give one value for an observation, by name, and then the variable itself."""
    op = variable.owner.op
    of_vectors = getattr(op, "ndim_supp", 0) or any(getattr(op, "ndims_params", None) or ())
    if hasattr(op, "dist_params") and not of_vectors:
        parameters = op.dist_params(variable.owner)
        yield from zip(_names(op, len(parameters)), parameters, strict=True)
    yield "its distribution", variable


def _arguments(log_density: Any) -> list[str]:
    """Return the names of what a log density takes after the value."""
    known = {} if log_density is None else inspect.signature(log_density).parameters
    return [name for name in known if name != "value"]


def _names(op: Any, n_parameters: int) -> list[str]:
    """Return a distribution's names of its parameters, or their numbers where they are not known."""
    for distribution in vars(pm.distributions).values():
        if getattr(distribution, "rv_op", None) is op or type(op) is getattr(distribution, "rv_type", None):
            names = GIVEN_AS.get(distribution.__name__) or _arguments(getattr(distribution, "logp", None))
            if len(names) == n_parameters:
                return names
    return [f"its parameter {i + 1}" for i in range(n_parameters)]
