"""The arguments that a user gave a distribution, and what is wrong with their values, at a point or whatever the point.

PyMC converts arguments: a Gamma of `mu` and `sigma` becomes one of a shape and a scale. The arguments are found by
building the same distribution of symbols and laying its graph over the one in the model.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import PartialObservedRV
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError, counted, shown
from pymc_rmhmc.model.graph.graphs import Evaluator, operation_name
from pymc_rmhmc.model.graph.source_code import SAME_VALUE, distribution_of

__all__ = [
    "ArgumentRanges", "argument_values", "arguments_of", "infinite_in_words", "nan_in_words", "needed_of_arguments",
    "range_in_words", "values_in_words",
]  # fmt: skip

type Point = dict[str, np.ndarray]

# Distributions of more arguments have too many combinations to try.
MOST_ARGUMENTS = 6
# What is said of a parameter whose argument is not known.
UNNAMED = "a parameter"
# What a user may have given in the place of a parameter that PyMC names.
GIVEN_FOR = {"sigma": ("tau", "lam"), "tau": ("sigma",), "lam": ("sigma",), "mu": ("lam", "scale")}
# Arguments that may be infinite.
BOUNDS = ("lower", "upper")
# In the conditions that PyMC checks: comparisons, and their text.
COMPARISONS = {"GT", "GE", "LT", "LE"}
# What adds no more than axes, or takes all values of an array together.
WRAPPERS = {"All", "ScalarFromTensor"}
CHAINED = re.compile(r"^(.+) (<=?) (\w+) (<=?) (.+)$")
IS_POSITIVE = re.compile(r"^(\w+) >=? 0$")
IS_ORDERED = re.compile(r"^lower\w* <=? upper\w*$")


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
    make = getattr(getattr(pm, distribution_of(variable), None), "dist", None)
    if make is None:
        return
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [n for n, p in inspect.signature(make).parameters.items() if p.kind in kinds]
    if len(names) > MOST_ARGUMENTS:
        return
    for chosen in itertools.chain.from_iterable(itertools.combinations(names, n + 1) for n in range(len(names))):
        symbols = {name: pt.dscalar(name) for name in chosen}
        try:
            made = make(**symbols)
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


def _bare(expression: Variable, operations: Container[str] = SAME_VALUE) -> Variable:
    """Return an expression without these operations, by default such as add no more than names or checks, and axes."""
    while expression.owner is not None and (
        isinstance(expression.owner.op, DimShuffle) or operation_name(expression) in operations
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


def _value(model: pm.Model, expression: Variable, point: Point) -> np.ndarray | None:
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
    values = [each for each in argument_values(model, variable, point) if each[0] not in BOUNDS]
    return _first_in_words(variable, ((name, np.isinf(value)) for name, value in values), "infinite")


def _first_in_words(variable: TensorVariable, arguments: Iterable[tuple[str, np.ndarray]], what: str) -> str:
    for name, bad in arguments:
        if bad.any():
            named = name if name == UNNAMED else f"the argument {name}"
            part = f"{int(bad.sum())} of {counted(bad.size, 'value')}"
            where = f" at position {int(np.argmax(bad))} ({part})" if bad.ndim else ""
            return f"{named} of {variable.name} is {what}{where}"
    return ""


def values_in_words(model: pm.Model, variable: TensorVariable, point: Point) -> str:
    """Say what values a variable's named arguments have; empty if none is known."""
    known = [(name, v) for name, v in argument_values(model, variable, point) if name != UNNAMED and v.size]
    return ", ".join(range_in_words(name, values) for name, values in known)


def range_in_words(name: str, values: np.ndarray) -> str:
    """Say from where to where values go."""
    low, high = np.min(values), np.max(values)
    return f"{name} = {shown(low)}" if low == high else f"{name} from {shown(low)} to {shown(high)}"


class _Check(NamedTuple):
    """What a variable needs, in PyMC's words, and whether it has it."""

    variable: TensorVariable
    needed: str
    holds: TensorVariable


class ArgumentRanges:
    """PyMC's own checks of the arguments of free variables, those of them that no variable can change."""

    def __init__(self, model: pm.Model) -> None:
        self._model, self._checks = model, list(_fixed_checks(model))
        self._evaluator = Evaluator(model, [each.holds for each in self._checks])

    def check(self) -> None:
        """Raise a `DataError` if an argument is out of its range, with the shared data as they are now."""
        if not self._checks:
            return
        with np.errstate(all="ignore"):
            for check, holds in zip(self._checks, self._evaluator({}), strict=True):
                if not np.all(holds):
                    name = check.variable.name
                    raise DataError(f"{self._in_words(check)}, so {name} has no density. Correct this argument.")

    def _in_words(self, check: _Check) -> str:
        """Say which argument of a variable is out of its range, and what it is."""
        name, needed = check.variable.name, needed_of_arguments(check.needed, arguments_of(check.variable))
        if operation_name(check.holds) not in COMPARISONS:
            return f"{name} needs this: {needed}"
        left, right = check.holds.owner.inputs
        holds, *values = np.broadcast_arrays(*Evaluator(self._model, [check.holds, left, right])({}))
        got, limit = (shown(value[~holds].flat[0]) for value in values)
        where = f" in {int((~holds).sum())} of {holds.size} values" if holds.size > 1 else ""
        positive = IS_POSITIVE.match(needed)
        if positive:
            return f"{positive[1]} of {name} must be positive, got {got}{where}"
        if IS_ORDERED.match(needed):
            return f"{name} needs lower < upper, got lower={got} and upper={limit}{where}"
        return f"{name} needs {needed}, got {got}{where}"


def _fixed_checks(model: pm.Model) -> Iterator[_Check]:
    """Yield the checks in the log densities of free variables that depend on constants and data alone."""
    symbols = {variable: variable.type() for variable in model.basic_RVs}
    moving = set(symbols.values())
    for variable in model.free_RVs:
        if isinstance(variable.owner.op, PartialObservedRV):
            continue  # missing values of a vector: the density of the whole vector is that of its observed values
        inputs = ancestors(variable.owner.inputs, blockers=list(symbols))
        (given,) = clone_replace([variable], {v: symbols[v] for v in inputs if v in symbols})
        for check in _checks_of(variable, given, symbols[variable]):
            made = set(ancestors([check.holds]))
            # Matrices have checks of their own, and these would be costly.
            if not made & moving and "Cholesky" not in map(operation_name, made):
                yield check


def _checks_of(variable: TensorVariable, given: TensorVariable, value: TensorVariable) -> Iterator[_Check]:
    """Yield all checks in a variable's log density given others, each condition by itself."""
    try:
        # The model's own log density takes seconds to build where it folds a covariance of constants.
        term = pm.logp(given, value, warn_rvs=False)
    except NotImplementedError:
        return
    for node in dict.fromkeys(v.owner for v in ancestors([term]) if v.owner is not None):
        if isinstance(node.op, CheckParameterValue):
            conditions = [part for condition in node.inputs[1:] for part in _parts(condition)]
            for needed, holds in zip(_needed(node.op.msg, len(conditions)), conditions, strict=True):
                # Between equal bounds a continuous variable has no density.
                is_range = IS_ORDERED.match(needed) and variable.dtype.startswith("float")
                is_range = is_range and operation_name(holds) == "LE"
                yield _Check(variable, needed, pt.lt(*holds.owner.inputs) if is_range else holds)


def _parts(condition: Variable) -> Sequence[Variable]:
    """Separate the conditions that PyMC has joined into one, each of every value of an array."""
    inner = _bare(condition, WRAPPERS)
    parts = inner.owner.inputs if operation_name(inner) == "MakeVector" else [inner]
    return [_bare(part, WRAPPERS) for part in parts]


def _needed(message: str, n_conditions: int) -> list[str]:
    """Return what PyMC says of each condition, or of all where that is not known."""
    parts = [part for each in message.rstrip(".").split(", ") for part in _unchained(each)]
    return parts if len(parts) == n_conditions else [message] * n_conditions


def _unchained(needed: str) -> list[str]:
    """Split ``0 < p < 1`` into two comparisons; anything else stays whole."""
    chain = CHAINED.match(needed)
    return [f"{chain[1]} {chain[2]} {chain[3]}", f"{chain[3]} {chain[4]} {chain[5]}"] if chain else [needed]
