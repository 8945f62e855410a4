"""The log densities of a model's variables and potentials one by one: which has no number, why, and what to do."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pymc as pm
from pymc.logprob.utils import ParameterValueError
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import shown
from pymc_rmhmc.model.graph.graphs import Evaluator, formula_of, operation_name
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.observed.unregistered_readers import WITH_LOGIT_P
from pymc_rmhmc.model.words.user_arguments import (
    UNNAMED,
    argument_values,
    arguments_of,
    infinite_in_words,
    nan_in_words,
    needed_of_arguments,
    range_in_words,
    values_in_words,
)

__all__ = ["DensityTerms", "LostTerm"]

type Point = dict[str, np.ndarray]

POSITIVE = "An argument that must be positive needs pm.math.exp(...), or a positive prior such as pm.HalfNormal."
PROBABILITY = "A probability needs pm.math.invlogit(...)."
LOGIT = "A probability needs pm.math.invlogit(...), or logit_p=... in the place of p=."
NEGATIVE = "log, sqrt and powers of a negative number are NaN: keep what is inside positive, as pm.math.exp(...) does."
UNDEFINED = "0 / 0 and inf - inf are NaN: look for divisions, and for exponentials that overflow."
OVERFLOW = "pm.math.exp overflows above 709: scale its inputs to about 1, or narrow the priors."
OF_ZERO = "A division by 0 and the log of 0 are infinite: keep them away from 0, as pm.math.exp(...) does."
IMPOSSIBLE = "Check that these data can occur with these arguments."
CORRECT = "Correct these data or the arguments, or leave the observations out."
AT_ITS_EDGE = " A rate of 0 needs pm.math.exp(...), and a probability of 0 needs pm.math.invlogit(...)."
# Operations that are NaN of negative numbers.
OF_POSITIVE = {"Log", "Log1p", "Log2", "Log10", "Sqrt", "Pow"}


class LostTerm(NamedTuple):
    """A log density without a number: what it is and why, and what to do; empty if that is not known."""

    found: str
    remedy: str


class DensityTerms:
    """The terms of a model's log density, evaluated one by one where an error must name what is wrong."""

    def __init__(self, model: pm.Model) -> None:
        self._model = model

    def not_finite(self, point: Point) -> dict[str, LostTerm]:
        """Return the variables and potentials whose log densities are no numbers at a point, and why."""
        variables = [*self._model.basic_RVs, *self._model.potentials]
        terms = self._model.logp(vars=variables, sum=False)
        found = {str(v.name): self._lost(v, t, point) for v, t in zip(variables, terms, strict=True)}
        return {name: lost for name, lost in found.items() if lost is not None}

    def in_words(self, point: Point) -> str:
        """Say which terms have no number at a point, and what to do; empty if each has."""
        lost = self.not_finite(point)
        if not lost:
            return ""
        found = ", ".join(f"{name} is {term.found}" for name, term in lost.items())
        remedies = dict.fromkeys(term.remedy for term in lost.values() if term.remedy)
        return " ".join([f"the log density of {found}.", *remedies])

    def free_values(self, point: Point) -> Point:
        """Return the free variables at a point, each on the scale on which a user has it."""
        model = self._model
        free = [v for v in model.free_RVs if v in model.rvs_to_values]
        values = Evaluator(model, model.replace_rvs_by_values(free))(point)
        return {str(v.name): np.asarray(value) for v, value in zip(free, values, strict=True)}

    def _lost(self, variable: TensorVariable, term: TensorVariable, point: Point) -> LostTerm | None:
        """Return what is wrong with a term; None if it has a number."""
        try:
            with np.errstate(all="ignore"):
                value = float(Evaluator(self._model, [term.sum()])(point)[0])
        except ParameterValueError as error:
            return self._explained(variable, "-inf", str(error), point)
        return None if math.isfinite(value) else self._explained(variable, f"{value:g}", "", point)

    def _explained(self, variable: TensorVariable, value: str, needed: str, point: Point) -> LostTerm:
        """Explain why a term is not a number: an argument that is NaN, out of its range or infinite, or the data."""
        if variable in self._model.potentials:
            return LostTerm(value + (f", since it needs {needed}" if needed else ""), "")
        given = values_in_words(self._model, variable, point)
        lost = nan_in_words(self._model, variable, point)
        if lost:
            has = f", with {given}" if given and lost.startswith(UNNAMED) else ""
            return LostTerm(f"nan, since {lost}{has}", self._remedy_of_nan(variable))
        if needed:
            needed = needed_of_arguments(needed, arguments_of(variable))
            has = f" but has {given}" if given else ""
            return LostTerm(f"{value}, since it needs {needed}{has}", _remedy_of_range(variable, needed))
        lost = infinite_in_words(self._model, variable, point)
        if lost:
            return LostTerm(f"{value}, since {lost}", self._remedy_of_infinity(variable))
        held = ", ".join(filter(None, (given, self._data_in_words(variable, point))))
        remedy = self._remedy_of_data(variable, point)
        impossible = self._impossible_data(variable, point) if remedy == IMPOSSIBLE else ""
        if impossible:
            return LostTerm(f"{value} with {held}, since {impossible}", CORRECT)
        return LostTerm(value + (f" with {held}" if held else ""), remedy)

    def _impossible_data(self, variable: TensorVariable, point: Point) -> str:
        """Say which of the data have no density where the others have one; empty if none or all have none."""
        if variable not in self._model.observed_RVs:
            return ""
        terms = [*self._model.logp(vars=[variable], sum=False), self._model.rvs_to_values[variable]]
        term, data = map(np.ravel, Evaluator(self._model, terms)(point))
        lost = np.flatnonzero(np.isneginf(term))
        if term.size != data.size or not 0 < lost.size < data.size:
            return ""
        first = int(lost[0])
        held = shown(data[first])
        return f"{lost.size} of {data.size} observations cannot occur, the first at position {first} ({held})"

    def _remedy_of_nan(self, variable: TensorVariable) -> str:
        made = self._operations(variable)
        if made & OF_POSITIVE:
            return NEGATIVE
        return UNDEFINED if made & {"TrueDiv", "Exp"} else POSITIVE

    def _remedy_of_infinity(self, variable: TensorVariable) -> str:
        made = self._operations(variable)
        if "Exp" in made:
            return OVERFLOW
        return OF_ZERO if made & {"TrueDiv", "Reciprocal", *OF_POSITIVE} else ""

    def _remedy_of_data(self, variable: TensorVariable, point: Point) -> str:
        if variable not in self._model.observed_RVs:
            return ""
        values = argument_values(self._model, variable, point)
        # The mean of a continuous variable is no rate.
        can_be_0 = {UNNAMED} if variable.dtype.startswith("int") else {UNNAMED, "mu"}
        is_edge = any((value == 0.0).any() for name, value in values if name not in can_be_0)
        return IMPOSSIBLE + (AT_ITS_EDGE if is_edge else "")

    def _operations(self, variable: TensorVariable) -> set[str]:
        """Return the names of the operations in the formulas of a variable's arguments."""
        made = formula_of(self._model, list(arguments_of(variable).values()))
        return {operation_name(v) for v in made - set(self._model.basic_RVs)}

    def _data_in_words(self, variable: TensorVariable, point: Point) -> str:
        """Say what range the data have; empty for a free variable."""
        if variable not in self._model.observed_RVs:
            return ""
        return range_in_words("data", Evaluator(self._model, [self._model.rvs_to_values[variable]])(point)[0])


def _remedy_of_range(variable: TensorVariable, needed: str) -> str:
    """Say what brings an argument into its range, by what PyMC says that it needs."""
    if "<= 1" in needed:
        return LOGIT if distribution_of(variable) in WITH_LOGIT_P else PROBABILITY
    return POSITIVE if "> 0" in needed or ">= 0" in needed else ""
