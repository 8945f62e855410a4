"""What one RMHMC samples of a model in the chart that is read from its graph, and the sampler for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.chains.chain import Chain
from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.errors import ConfigurationError, listed
from pymc_rmhmc.model import names_by_value, said_once
from pymc_rmhmc.model.compile import CompiledModel
from pymc_rmhmc.model.general.cost import dear_in_words
from pymc_rmhmc.model.general.density import GeneralModel
from pymc_rmhmc.model.observed_shapes import check_shapes_at
from pymc_rmhmc.model.refusals import discrete_in_words, step_in_words
from pymc_rmhmc.model.scalars import advice_on_scalars
from pymc_rmhmc.model.structure import has_own_initval
from pymc_rmhmc.model.together import no_data_in_words
from pymc_rmhmc.steps.graph_recipe import GraphRecipe
from pymc_rmhmc.steps.trajectory_choice import check_reach

__all__ = ["FoundGeneral", "check_whole_model", "find_general", "left_in_words", "no_part"]

type Point = dict[str, np.ndarray]

# Draws in which chart, mass matrix and step size are learned.
TUNE = 300


@dataclass(frozen=True)
class FoundGeneral:
    """What is sampled.

    Attributes
    ----------
    model : pymc.Model
        The model.
    general : GeneralModel
        The density of the variables.
    why : str
        Why the chart is read from the graph.
    """

    model: pm.Model
    general: GeneralModel
    why: str

    @property
    def compiled(self) -> CompiledModel:
        """No block, and nothing left of the log density."""
        return CompiledModel((), (), (), no_part)

    @property
    def value_vars(self) -> list[Any]:
        """The value variables that are sampled."""
        return [self.model.rvs_to_values[v] for v in self.general.variables.variables]

    @property
    def names(self) -> list[str]:
        """The variables that are sampled."""
        return [str(v.name).removesuffix("_rotated_") for v in self.general.variables.variables]

    @property
    def data_names(self) -> frozenset[str]:
        """The shared data that are read."""
        return frozenset(str(data.name) for data in self.general.density.shared)

    @property
    def tune_steps(self) -> int:
        """How many draws tuning takes by default."""
        return TUNE

    def samplers(self, point: Point, plan: Plan, initial: Point) -> list[Chain]:
        """Return one chain of all of them."""
        own = has_own_initval(self.model, self.general.variables.variables)
        plan = self._plan(plan)
        recipe = GraphRecipe(self.general, listed(self.names), plan, names_by_value(self.model))
        return [Chain(recipe, plan, recipe.variables.read(initial), own)]

    def _plan(self, plan: Plan) -> Plan:
        """The plan with the trajectory for a hierarchy, if this is one."""
        if not self.general.charts:
            return plan
        if plan.step_size is not None:
            check_reach(plan.step_size, plan.general_trajectory)
        return replace(plan, trajectory=plan.general_trajectory)

    def announcement(self, plan: Plan) -> str:
        """One line that says what is sampled how and what is left, and what to write for many scalars."""
        relative = [
            f"{each.variable.name} relative to {listed(list(each.parents))}" for each in self.general.charted
        ]
        chart = f" ({listed(relative, 'variables', '; ')})" if relative else ""
        rest = left_in_words(self.model, self.names)
        advice = "".join(f"\n{names}: {text}" for names, text in said_once(advice_on_scalars(self.model)))
        emulates = self.general.is_dear and plan.may_emulate
        dear = f". The log density is dear: {dear_in_words(self.general.gradient_seconds)}" if emulates else ""
        return f"RMHMC: flat metric for {listed(self.names)}{chart}, because {self.why}{rest}{dear}{advice}"

    def warning(self) -> str:
        """What a user should know before waiting for draws; empty if there is nothing."""
        return no_data_in_words(self.model)


def find_general(
    model: pm.Model, variables: Sequence[TensorVariable], point: Point, why: str, compile_kwargs: dict[str, Any] | None
) -> FoundGeneral:
    """Read and build what RMHMC samples of a model in its flat chart.

    Raises
    ------
    UnsupportedModelError
        If PyTensor cannot differentiate the density.
    DataError
        If data and a parameter of their distribution have shapes that do not fit.
    ConfigurationError
        If a family is registered with a location or scale of another shape, or compile_kwargs are given.
    """
    check_whole_model(model, point, compile_kwargs)
    general = GeneralModel(model, variables, point)
    general.bind(point)
    return FoundGeneral(model, general, why)


def check_whole_model(model: pm.Model, point: Point, compile_kwargs: dict[str, Any] | None) -> None:
    """Raise for data of other shapes than their distribution's parameters, and for options of a compiler.

    Raises
    ------
    DataError
        If the shapes do not fit.
    ConfigurationError
        If compile_kwargs are given.
    """
    if compile_kwargs:
        raise ConfigurationError(
            f"compile_kwargs={compile_kwargs!r} has no effect here: RMHMC compiles the whole density with Numba. "
            "Remove it."
        )
    if model.data_vars:
        for observed in model.observed_RVs:
            check_shapes_at(model, observed, point)


def left_in_words(model: pm.Model, sampled: Sequence[str]) -> str:
    """The end of an announcement: the variables that are left to other steps, and why; empty if there are none."""
    names = [str(v.name).removesuffix("_rotated_") for v in model.free_RVs]
    groups = said_once({name: _why_left(model, name) for name in names if name not in sampled})
    return f"; left to other steps: {', '.join(f'{held} ({why})' for held, why in groups)}" if groups else ""


def _why_left(model: pm.Model, name: str) -> str:
    """Why a variable is not sampled: every continuous one is, unless vars names others."""
    held = model.named_vars
    variable = held[name] if held[name] in model.free_RVs else held[f"{name}_rotated_"]
    return discrete_in_words(variable) + step_in_words(variable) or "not named in vars"


def no_part(point: Point) -> float:
    """No part of the log density."""
    return 0.0
