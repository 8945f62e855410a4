"""The arguments that a user gave a distribution, and what is wrong with their values.

PyMC converts arguments: a Gamma of `mu` and `sigma` becomes one of a shape and a scale. The arguments are found by
building the same distribution of symbols and laying its graph over the one in the model.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import counted, shown
from pymc_rmhmc.model.graph.graphs import Evaluator, operation_name
from pymc_rmhmc.model.graph.source_code import SAME_VALUE, distribution_of

__all__ = [
    "argument_values",
    "arguments_of",
    "infinite_in_words",
    "nan_in_words",
    "needed_of_arguments",
    "values_in_words",
]

type Point = dict[str, np.ndarray]

# Distributions of more arguments have too many combinations to try.
MOST_ARGUMENTS = 6
# What is said of a parameter whose argument is not known.
UNNAMED = "a parameter"
# What a user may have given in the place of a parameter that PyMC names.
GIVEN_FOR = {"sigma": ("tau", "lam"), "tau": ("sigma",), "lam": ("sigma",), "mu": ("lam", "scale")}
# Arguments that may be infinite.
BOUNDS = ("lower", "upper")


def arguments_of(variable: TensorVariable) -> dict[str, TensorVariable]:
    """Return the arguments of a random variable by the names that its user gave, as far as these are known."""
    names: dict[TensorVariable, list[str]] = {}
    most = -1
    for symbols, template in _templates(variable):
        found: dict[str, Variable] = {}
        pairs = zip(_parameters(template), _parameters(variable), strict=False)
        matched = [_lay_over(t, p, symbols, found) for t, p in pairs]
        score = sum(filter(None, matched))
        if None in matched or score < most or _is_half_a_number(template, variable, symbols, found):
            continue
        if score > most:
            names, most = {}, score
        for name, held in found.items():
            if isinstance(held, TensorVariable) and name not in names.setdefault(held, []):
                names[held].append(name)
    # Some have two names, such as the `alpha` and `n` of a NegativeBinomial.
    return {" or ".join(held): argument for argument, held in names.items()}


def _is_half_a_number(
    template: TensorVariable, variable: TensorVariable, symbols: Mapping[Variable, str], found: Mapping[str, Variable]
) -> bool:
    """Return whether a parameter is a number, and a template makes it of an argument that is none."""
    numbers = [t for t, p in zip(_parameters(template), _parameters(variable), strict=False) if _is_number(p)]
    made_of = [symbols[v] for v in ancestors(numbers) if v in symbols]
    return any(name in found and not _is_number(found[name]) for name in made_of)


def _is_number(expression: Variable) -> bool:
    return all(isinstance(v, Constant) for v in ancestors([expression]) if v.owner is None)


def _parameters(variable: TensorVariable) -> list[Variable]:
    op = variable.owner.op
    return list(op.dist_params(variable.owner)) if hasattr(op, "dist_params") else []


def _templates(variable: TensorVariable) -> Iterator[tuple[Mapping[Variable, str], TensorVariable]]:
    """Yield the variable's distribution of symbols, once for each combination of arguments that it takes."""
    distribution: Any = getattr(pm, distribution_of(variable), None)
    if not hasattr(distribution, "dist"):
        return
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [n for n, p in inspect.signature(distribution.dist).parameters.items() if p.kind in kinds]
    if len(names) > MOST_ARGUMENTS:
        return
    for chosen in itertools.chain.from_iterable(itertools.combinations(names, n + 1) for n in range(len(names))):
        symbols = {name: pt.dscalar(name) for name in chosen}
        try:
            made = distribution.dist(**symbols)
        except Exception:  # noqa: BLE001, S112 - a distribution refuses combinations in any way that it likes
            continue
        if type(made.owner.op) is type(variable.owner.op):
            yield {symbol: name for name, symbol in symbols.items()}, made


def _lay_over(
    template: Variable, actual: Variable, symbols: Mapping[Variable, str], found: dict[str, Variable]
) -> int | None:
    """Count the operations that a template shares with an expression, and add its arguments; None if they differ."""
    template, actual = _bare(template), _bare(actual)
    if template in symbols:
        held = found.setdefault(symbols[template], actual)
        return 0 if held is actual or equal_computations([held], [actual]) else None
    if isinstance(actual, Constant):  # what is made of numbers alone is a number
        same = not isinstance(template, Constant) or bool(np.array_equal(template.data, actual.data))
        return 0 if same else None
    if template.owner is None or actual.owner is None or template.owner.op != actual.owner.op:
        return None
    inner = [_lay_over(t, a, symbols, found) for t, a in zip(template.owner.inputs, actual.owner.inputs, strict=True)]
    return None if None in inner else 1 + sum(filter(None, inner))


def _bare(expression: Variable) -> Variable:
    """Return an expression without what adds no more than axes, names or checks."""
    while expression.owner is not None and (
        isinstance(expression.owner.op, DimShuffle) or operation_name(expression) in SAME_VALUE
    ):
        expression = expression.owner.inputs[0]
    return expression


def needed_of_arguments(needed: str, arguments: Iterable[str]) -> str:
    """Return what PyMC says that parameters need, such as ``lam > 0``, by the names of a user's arguments."""
    held = list(arguments)

    def given(match: re.Match[str]) -> str:
        instead = [name for name in GIVEN_FOR.get(match[0], ()) if name in held and match[0] not in held]
        return instead[0] if instead else match[0]

    return re.sub(r"[a-z_]+", given, needed)


def argument_values(model: pm.Model, variable: TensorVariable, point: Point) -> list[tuple[str, np.ndarray]]:
    """Return the values of a variable's arguments at a point, those of its components included; not all are named."""
    if variable.owner is None:
        return []
    known, values = arguments_of(variable), []
    given: list[tuple[str, Variable]] = [*known.items(), *((UNNAMED, p) for p in _parameters(variable))]
    for name, expression in given:
        is_random = expression.owner is not None and hasattr(expression.owner.op, "dist_params")
        if is_random and name == UNNAMED and expression not in model.basic_RVs:
            values += argument_values(model, expression, point)  # the component of a mixture
            continue
        value = _value(model, expression, point)
        if value is not None:
            values.append((name, value))
    return values


def _value(model: pm.Model, expression: Any, point: Point) -> np.ndarray | None:
    """Return a value in floating numbers; None where an expression has none."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(Evaluator(model, [expression])(point)[0], dtype=float)
    except Exception:  # noqa: BLE001 - a message must not fail of what it is about
        return None


def nan_in_words(model: pm.Model, variable: TensorVariable, point: Point) -> str:
    """Say which argument of a variable is NaN, and where; empty if none is."""
    values = argument_values(model, variable, point)
    return _first_in_words(variable, ((name, np.isnan(value)) for name, value in values), "NaN")


def infinite_in_words(model: pm.Model, variable: TensorVariable, point: Point) -> str:
    """Say which argument of a variable is infinite, and where; bounds may be, and empty if none else is."""
    values = argument_values(model, variable, point)
    return _first_in_words(
        variable, ((name, np.isinf(value)) for name, value in values if name not in BOUNDS), "infinite"
    )


def _first_in_words(variable: TensorVariable, arguments: Iterable[tuple[str, np.ndarray]], what: str) -> str:
    for name, bad in arguments:
        if bad.any():
            named = name if name == UNNAMED else f"the argument {name}"
            where = f" at position {int(np.argmax(bad))} ({_part(bad)})" if bad.ndim else ""
            return f"{named} of {variable.name} is {what}{where}"
    return ""


def _part(bad: np.ndarray) -> str:
    return f"{int(bad.sum())} of {counted(bad.size, 'value')}"


def values_in_words(model: pm.Model, variable: TensorVariable, point: Point) -> str:
    """Say what values a variable's named arguments have; empty if none is known."""
    said = []
    for name, value in argument_values(model, variable, point):
        if name != UNNAMED and value.size:
            low, high = value.min(), value.max()
            said.append(f"{name} = {shown(low)}" if low == high else f"{name} from {shown(low)} to {shown(high)}")
    return ", ".join(said)
