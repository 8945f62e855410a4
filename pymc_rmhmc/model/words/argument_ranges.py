"""Arguments of free variables that are out of their range whatever the point, such as a sigma of -1."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import PartialObservedRV
from pymc.logprob.utils import CheckParameterValue
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError, shown
from pymc_rmhmc.model.graph.graphs import Evaluator, operation_name
from pymc_rmhmc.model.words.user_arguments import arguments_of, needed_of_arguments

__all__ = ["ArgumentRanges"]

COMPARISONS = {"GT", "GE", "LT", "LE"}
# What adds no more than axes, or takes all values of an array together.
WRAPPERS = {"All", "ScalarFromTensor"}
CHAINED = re.compile(r"^(.+) (<=?) (\w+) (<=?) (.+)$")
IS_POSITIVE = re.compile(r"^(\w+) >=? 0$")
IS_ORDERED = re.compile(r"^lower\w* <=? upper\w*$")


class _Check(NamedTuple):
    """What a variable needs, in PyMC's words, and whether it has it."""

    variable: TensorVariable
    needed: str
    holds: TensorVariable


class ArgumentRanges:
    """PyMC's own checks of the arguments of free variables, those of them that no variable can change.

    Parameters
    ----------
    model : pymc.Model
        The model.
    """

    def __init__(self, model: pm.Model) -> None:
        self._model, self._checks = model, list(_fixed_checks(model))
        self._evaluator = Evaluator(model, [each.holds for each in self._checks])

    def check(self) -> None:
        """Check all arguments, with the shared data as they are now.

        Raises
        ------
        DataError
            If one is out of its range.
        """
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
            conditions = [_bare(part) for condition in node.inputs[1:] for part in _parts(condition)]
            for needed, holds in zip(_needed(node.op.msg, len(conditions)), conditions, strict=True):
                # Between equal bounds a continuous variable has no density.
                is_range = IS_ORDERED.match(needed) and variable.dtype.startswith("float")
                is_range = is_range and operation_name(holds) == "LE"
                yield _Check(variable, needed, pt.lt(*holds.owner.inputs) if is_range else holds)


def _parts(condition: Any) -> Sequence[Any]:
    """Separate the conditions that PyMC has joined into one."""
    inner = _bare(condition)
    return inner.owner.inputs if operation_name(inner) == "MakeVector" else [inner]


def _bare(condition: Any) -> Any:
    """Return a condition of every value of an array, before these are taken together."""
    while operation_name(condition) in WRAPPERS or isinstance(getattr(condition.owner, "op", None), DimShuffle):
        condition = condition.owner.inputs[0]
    return condition


def _needed(message: str, n_conditions: int) -> list[str]:
    """Return what PyMC says of each condition, or of all where that is not known."""
    parts = [part for each in message.rstrip(".").split(", ") for part in _unchained(each)]
    return parts if len(parts) == n_conditions else [message] * n_conditions


def _unchained(needed: str) -> list[str]:
    """Split ``0 < p < 1`` into two comparisons; anything else stays whole."""
    chain = CHAINED.match(needed)
    return [f"{chain[1]} {chain[2]} {chain[3]}", f"{chain[3]} {chain[4]} {chain[5]}"] if chain else [needed]
