"""What one RMHMC samples of a model in a position-dependent metric of all its values, and the sampler for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.chains.chain import Chain
from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.errors import counted, listed
from pymc_rmhmc.model import names_by_value
from pymc_rmhmc.model.general.derivatives import (
    GradientModel,
    HessianModel,
    MatrixModel,
    ValueModel,
    of_value_variables,
)
from pymc_rmhmc.model.general.information import fisher_information
from pymc_rmhmc.model.graph.graphs import WITHOUT_TRACES
from pymc_rmhmc.model.structure import has_own_initval
from pymc_rmhmc.sampled.metric_recipe import RiemannianRecipe
from pymc_rmhmc.sampled.whole_model import FoundWholeModel, check_whole_model, left_in_words

__all__ = ["FoundRiemannian", "bytes_in_words", "find_riemannian", "matrix_in_words"]

type Point = dict[str, np.ndarray]


@dataclass(frozen=True)
class FoundRiemannian(FoundWholeModel):
    """What is sampled.

    Attributes
    ----------
    model : pymc.Model
        The model.
    density_model : ValueModel
        The density of the variables, with the matrix that the metric is made of.
    """

    density_model: ValueModel

    def samplers(self, point: Point, plan: Plan, initial: Point) -> list[Chain]:
        """Return one chain of all of them."""
        self.check_move(plan)
        own, recipe = has_own_initval(self.model, self.density_model.variables.variables), self._recipe(plan)
        recipe.structure(recipe.variables.read(point))  # an error if its matrices would be too large
        return [Chain(recipe, plan, recipe.variables.read(initial), own)]

    def _recipe(self, plan: Plan) -> RiemannianRecipe:
        return RiemannianRecipe(self.density_model, listed(self.names), plan, names_by_value(self.model))

    def structure_in_words(self, point: Point, plan: Plan) -> str:
        """Say which structure of a Hessian the chain begins with; empty if the metric is not made of one."""
        if getattr(plan.metric, "source", None) != "hessian":
            return ""
        recipe = self._recipe(plan)
        partition = recipe.structure(recipe.variables.read(point))
        dense = bytes_in_words(8 * self.density_model.size**2)
        if partition is None or partition.is_dense:
            return f"The Hessian is factorised as a dense matrix of {dense}."
        border = counted(partition.border.size, "border value") if partition.border.size else "no border"
        largest = counted(partition.n_places, "value")
        blocks = f"{counted(partition.n_blocks, 'block')} of {'' if partition.n_places == 1 else 'at most '}{largest}"
        return f"The Hessian has {border} and {blocks}. A dense matrix would take {dense}."

    def announcement(self, plan: Plan) -> str:
        """Say in one line what is sampled in which metric, and what is left."""
        said = f"{listed(self.names)} ({counted(self.density_model.size, 'value')})"
        return f"{plan.sampler}: {plan.metric.name} metric for {said}{left_in_words(self.model, self.names)}"


def find_riemannian(
    model: pm.Model, variables: Sequence[TensorVariable], point: Point, metric: Any,
    compile_kwargs: dict[str, Any] | None,
) -> FoundRiemannian:  # fmt: skip
    """Read and build what RMHMC samples of a model in a metric of all its values.

    Raises
    ------
    UnsupportedModelError
        If PyTensor cannot differentiate the density as often as the metric needs.
    DataError
        If data and a parameter of their distribution have shapes that do not fit.
    ConfigurationError
        If the metric cannot be made for the model, or compile_kwargs are given.
    """
    check_whole_model(model, point, compile_kwargs)
    with pytensor.config.change_flags(**WITHOUT_TRACES):
        values = _values(model, variables, point, metric)
    values.bind(point)
    return FoundRiemannian(model, values)


def matrix_in_words(metric: Any) -> str:
    """Say what the matrix of a metric is made of: its `source`."""
    source = getattr(metric, "source", None)
    if source is None:
        return f"your {type(metric).__name__} computes its matrix"
    if source == "hessian":
        return f"{metric!r}, made of the Hessian of the negative log density"
    if source == "information":
        return "the Fisher information of all values, with the curvature of the priors"
    if source == "blocks":
        return "the Fisher information of the process and that of its hyperparameters, in two blocks"
    if source == "whitened":
        return "the Fisher information of the whitened process and its hyperparameters together"
    return f"the matrix that your function {getattr(source, '__name__', source)} writes"


def bytes_in_words(n: int) -> str:
    """Write a size in memory in the largest unit of which it is at least one."""
    unit = max((power for power in range(4) if n >= 1024**power), default=0)
    return f"{n / 1024**unit:.3g} {('bytes', 'KiB', 'MiB', 'GiB')[unit]}"


def _values(model: pm.Model, variables: Sequence[TensorVariable], point: Point, metric: Any) -> ValueModel:
    """Return the density with what the metric says that it is made of: its `source`."""
    source = getattr(metric, "source", None)
    if source is None:
        return GradientModel(model, variables, point)
    if source == "hessian":
        return HessianModel(model, variables, point)
    if source == "information":
        return MatrixModel(model, variables, point, fisher_information, name=f"the {metric.name} metric")
    return MatrixModel(model, variables, point, of_value_variables(source), name=repr(metric))
