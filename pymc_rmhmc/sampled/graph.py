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
from pymc_rmhmc.errors import listed
from pymc_rmhmc.model import names_by_value, said_once
from pymc_rmhmc.model.forms.scalars import advice_on_scalars
from pymc_rmhmc.model.general.blocks_or_graph import InGraphChart
from pymc_rmhmc.model.general.cost import cost_in_words
from pymc_rmhmc.model.general.density import GeneralModel
from pymc_rmhmc.model.structure import has_own_initval
from pymc_rmhmc.model.words.advice import unread_rows
from pymc_rmhmc.sampled.graph_recipe import GraphRecipe
from pymc_rmhmc.sampled.trajectory_choice import check_reach
from pymc_rmhmc.sampled.whole_model import FoundWholeModel, check_whole_model, left_in_words

__all__ = ["FoundGeneral", "find_general"]

type Point = dict[str, np.ndarray]


@dataclass(frozen=True)
class FoundGeneral(FoundWholeModel):
    """What is sampled.

    Attributes
    ----------
    model : pymc.Model
        The model.
    density_model : GeneralModel
        The density of the variables.
    why : str
        Why the chart is read from the graph.
    """

    density_model: GeneralModel
    why: str

    def samplers(self, point: Point, plan: Plan, initial: Point) -> list[Chain]:
        """Return one chain of all of them."""
        own = has_own_initval(self.model, self.density_model.variables.variables)
        plan = self.planned(plan)
        recipe = GraphRecipe(self.density_model, listed(self.names), plan, names_by_value(self.model))
        return [Chain(recipe, plan, recipe.variables.read(initial), own)]

    def planned(self, plan: Plan) -> Plan:
        """Return the plan with the trajectory for a hierarchy, if this is one."""
        if not self.density_model.charts:
            return plan
        if plan.step_size is not None:
            check_reach(plan.step_size, plan.general_trajectory)
        return replace(plan, trajectory=plan.general_trajectory)

    def announcement(self, plan: Plan) -> str:
        """Say in one line what is sampled how and what is left, and what to write for many scalars."""
        relative = [
            f"{each.variable.name} relative to {listed(list(each.parents))}" for each in self.density_model.charted
        ]
        chart = f" ({listed(relative, 'variables', '; ')})" if relative else ""
        rest = left_in_words(self.model, self.names)
        advised = unread_rows(self.model, self.density_model.variables.variables) | advice_on_scalars(self.model)
        advice = "".join(f"\n{names}: {text}" for names, text in said_once(advised))
        emulates = self.density_model.is_expensive and plan.may_emulate
        dear = f". The log density is dear: {cost_in_words(self.density_model.gradient_seconds)}" if emulates else ""
        return f"RMHMC: flat metric for {listed(self.names)}{chart}, because {self.why}{rest}{dear}{advice}"


def find_general(
    model: pm.Model, variables: Sequence[TensorVariable], point: Point, found: InGraphChart,
    compile_kwargs: dict[str, Any] | None,
) -> FoundGeneral:  # fmt: skip
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
    general = GeneralModel(model, variables, point, found.reading)
    general.bind(point)
    return FoundGeneral(model, general, found.why)
