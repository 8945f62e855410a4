"""Parts of a model as the code that a user would write for them, for messages that advise another form."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
from numpy.typing import ArrayLike
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import operation_name

__all__ = ["UNKNOWN", "code_of", "distribution_of", "lkj_factor", "n_series", "shape_of"]

# Where an expression is too long to be repeated; the advice says that it stays as it is.
UNKNOWN = "..."
PREFIXES, SUFFIXES = {"Neg": "-"}, {"Sqr": "**2"}
OPERATORS = {"Add": " + ", "Sub": " - ", "Mul": " * ", "TrueDiv": " / ", "Pow": "**"}
FUNCTIONS = {"Exp": "pm.math.exp", "Log": "pm.math.log", "Sqrt": "pm.math.sqrt", "Abs": "abs"}
# What adds no more than axes, names or checks.
SAME_VALUE = {"ViewOp", "SpecifyShape", "Identity", "Cast", "Assert", "CheckAndRaise", "TensorFromScalar", "Alloc"}
LONGEST = 40
# What PyMC calls a distribution, where the operation that makes it has another name.
PYMC_NAMES = {
    "AutoRegressive": "AR", "_LKJCholeskyCov": "LKJCholeskyCov", "_LKJCorr": "LKJCorr",
    "InvGamma": "InverseGamma", "NegBinomial": "NegativeBinomial", "WeibullBeta": "Weibull", "_Hurdle": "Hurdle",
    "Minibatch": "distribution with a total_size", "PartialObserved": "distribution with missing values",
}  # fmt: skip


def distribution_of(variable: TensorVariable) -> str:
    """Return the name of a random variable's distribution, as PyMC's users write it."""
    name = type(variable.owner.op).__name__.removesuffix("RV").removesuffix("RandomVariable")
    if name == "RandomWalk":
        return _kind_of_walk(variable)
    # PyMC makes a class for each variable of its own distribution.
    return "CustomDist" if name.startswith("CustomDist_") else PYMC_NAMES.get(name, name)


def _kind_of_walk(variable: TensorVariable) -> str:
    """Name a random walk by the distribution of its steps."""
    kind = distribution_of(variable.owner.inputs[1])
    return {"Normal": "GaussianRandomWalk", "MvNormal": "MvGaussianRandomWalk"}.get(kind, f"RandomWalk of {kind} steps")


def code_of(model: pm.Model, expression: Variable) -> str:
    """Return code for an expression of named variables and numbers; `UNKNOWN` if it holds more, or is too long."""
    names = {variable: str(name) for name, variable in model.named_vars.items()}
    code = _code(expression, names)
    return UNKNOWN if code is None or len(code) > LONGEST else code


def _code(expression: Variable, names: dict[Variable, str]) -> str | None:
    if expression in names:
        return names[expression]
    if isinstance(expression, Constant):
        return _code_of_number(expression.data)
    if expression.owner is None:
        return None
    operation, inputs = operation_name(expression), expression.owner.inputs
    if operation in SAME_VALUE or isinstance(expression.owner.op, DimShuffle):
        return _code(inputs[0], names)
    if operation == "Second":  # the values of one in the shape of another
        return _code(inputs[1], names)
    beside_operators = operation in {*OPERATORS, *PREFIXES, *SUFFIXES}
    parts = [(_operand if beside_operators else _code)(i, names) for i in inputs]
    known = [part for part in parts if part is not None]
    return _made_of(operation, known) if len(known) == len(parts) else None


def _made_of(operation: str, parts: list[str]) -> str | None:
    """Return code for an operation on parts whose code is known."""
    if operation in OPERATORS:
        return OPERATORS[operation].join(parts)
    if operation == "MakeVector":
        return f"[{', '.join(parts)}]"
    if operation in FUNCTIONS:
        return f"{FUNCTIONS[operation]}({parts[0]})"
    if operation in PREFIXES or operation in SUFFIXES:
        return PREFIXES.get(operation, "") + parts[0] + SUFFIXES.get(operation, "")
    return None


def _operand(expression: Variable, names: dict[Variable, str]) -> str | None:
    """Return code that can be put next to an operator, in brackets where it needs them."""
    code = _code(expression, names)
    if code is None or code.isidentifier() or code.replace(".", "", 1).isdigit() or code.endswith(")"):
        return code
    return f"({code})"


def _code_of_number(data: ArrayLike) -> str | None:
    """Write a number, or an array of which all values are the same number; None for other values."""
    values = np.asarray(data)
    if values.dtype.kind not in "biuf" or values.size == 0 or not (values == values.flat[0]).all():
        return None
    return f"{float(values.flat[0]):.6g}"


def lkj_factor(model: pm.Model, matrix: Variable) -> str:
    """Return the name of the `pm.LKJCholeskyCov` that a matrix is unpacked from, or `UNKNOWN`."""
    found = [v for v in ancestors([matrix], blockers=list(model.free_RVs)) if v in model.free_RVs]
    if len(found) == 1 and distribution_of(found[0]) == "LKJCholeskyCov":
        return str(found[0].name)
    return UNKNOWN


def shape_of(model: pm.Model, variable: TensorVariable) -> tuple[int, ...]:
    """Return the shape of a free variable, by its type where that tells it."""
    static = variable.type.shape
    if None not in static:
        return tuple(int(n) for n in static if n is not None)
    return tuple(int(n) for n in model.eval_rv_shapes()[str(variable.name)])


def n_series(shape: tuple[int, ...]) -> int:
    """Count the series of a variable whose last axis is time."""
    return math.prod(shape[:-1])
