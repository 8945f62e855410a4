"""What one RMHMC samples of a model in a position-dependent metric of all its values, and the sampler for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.chains.chain import Chain
from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.errors import counted, listed
from pymc_rmhmc.model import names_by_value
from pymc_rmhmc.model.compile import CompiledModel
from pymc_rmhmc.model.general.derivatives import GradientModel, HessianModel, ValueModel
from pymc_rmhmc.model.general.information import fisher_information
from pymc_rmhmc.model.general.matrix import MatrixModel, of_value_variables
from pymc_rmhmc.model.structure import has_own_initval
from pymc_rmhmc.model.together import no_data_in_words
from pymc_rmhmc.steps.general import check_whole_model, left_in_words, no_part
from pymc_rmhmc.steps.riemannian_recipe import RiemannianRecipe

__all__ = ["FoundRiemannian", "find_riemannian"]

type Point = dict[str, np.ndarray]

# Draws in which the step size is learned.
TUNE = 300


@dataclass(frozen=True)
class FoundRiemannian:
    """What is sampled.

    Attributes
    ----------
    model : pymc.Model
        The model.
    values : ValueModel
        The density of the variables, with the matrix that the metric is made of.
    """

    model: pm.Model
    values: ValueModel

    @property
    def compiled(self) -> CompiledModel:
        """No block, and nothing left of the log density."""
        return CompiledModel((), (), (), no_part)

    @property
    def value_vars(self) -> list[Any]:
        """The value variables that are sampled."""
        return [self.model.rvs_to_values[v] for v in self.values.variables.variables]

    @property
    def names(self) -> list[str]:
        """The variables that are sampled."""
        return [name.removesuffix("_rotated_") for name in self.values.names]

    @property
    def data_names(self) -> frozenset[str]:
        """The shared data that are read."""
        return frozenset(str(data.name) for data in self.values.evaluate.shared)

    @property
    def tune_steps(self) -> int:
        """How many draws tuning takes by default."""
        return TUNE

    def samplers(self, point: Point, plan: Plan, initial: Point) -> list[Chain]:
        """Return one chain of all of them."""
        own = has_own_initval(self.model, self.values.variables.variables)
        recipe = RiemannianRecipe(self.values, listed(self.names), plan, names_by_value(self.model))
        recipe.check_size(recipe.variables.read(point))
        return [Chain(recipe, plan, recipe.variables.read(initial), own)]

    def announcement(self, plan: Plan) -> str:
        """One line that says what is sampled in which metric, and what is left."""
        said = f"{listed(self.names)} ({counted(self.values.size, 'value')})"
        return f"RMHMC: {plan.metric.name} metric for {said}{left_in_words(self.model, self.names)}"

    def warning(self) -> str:
        """What a user should know before waiting for draws; empty if there is nothing."""
        return no_data_in_words(self.model)


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
    values = _values(model, variables, point, metric)
    values.bind(point)
    return FoundRiemannian(model, values)


def _values(model: pm.Model, variables: Sequence[TensorVariable], point: Point, metric: Any) -> ValueModel:
    """The density with what the metric says that it is made of: its `source`."""
    source = getattr(metric, "source", None)
    if source is None:
        return GradientModel(model, variables, point)
    if source == "hessian":
        return HessianModel(model, variables, point)
    if source == "information":
        return MatrixModel(
            model, variables, point, lambda m, packed: fisher_information(m, packed.variables, packed),
            name=f"the {metric.name} metric",
        )  # fmt: skip
    return MatrixModel(model, variables, point, of_value_variables(source), name=repr(metric))
