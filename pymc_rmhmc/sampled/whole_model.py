"""What is common to samplers of a model's whole density: what they move, and what is said and checked of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.model import said_once
from pymc_rmhmc.model.compile import CompiledModel
from pymc_rmhmc.model.general.density import check_no_simulator
from pymc_rmhmc.model.observed.observation import check_shapes_at
from pymc_rmhmc.model.together import no_data_in_words
from pymc_rmhmc.model.words.refusals import discrete_in_words, step_in_words

__all__ = ["FoundWholeModel", "check_whole_model", "left_in_words"]

type Point = dict[str, np.ndarray]

# Draws in which step size, chart and mass matrix are learned.
TUNE = 300


@dataclass(frozen=True)
class FoundWholeModel:
    """What is sampled.

    Attributes
    ----------
    model : pymc.Model
        The model.
    density_model : GeneralModel or ValueModel
        The density of the variables.
    """

    model: pm.Model
    density_model: Any

    @property
    def compiled(self) -> CompiledModel:
        """No block, and nothing left of the log density."""
        return CompiledModel((), (), (), _no_part)

    @property
    def value_vars(self) -> list[Any]:
        """The value variables that are sampled."""
        return [self.model.rvs_to_values[v] for v in self.density_model.variables.variables]

    @property
    def names(self) -> list[str]:
        """The variables that are sampled."""
        return [name.removesuffix("_rotated_") for name in self.density_model.names]

    def followers(self, plan: Plan) -> tuple[str, ...]:
        """Return the value variables that the step changes, although another one samples them."""
        return ()

    @property
    def size(self) -> int:
        """How many values are sampled."""
        size: int = self.density_model.size
        return size

    @property
    def data_names(self) -> frozenset[str]:
        """The shared data that are read."""
        return frozenset(str(data.name) for data in self.density_model.shared)

    @property
    def tune_steps(self) -> int:
        """How many draws tuning takes by default."""
        return TUNE

    def check_move(self, plan: Plan) -> None:
        """Raise for more values than the plan's move can take.

        Raises
        ------
        ConfigurationError
            If there are.
        """
        size = self.size
        if size > plan.trajectory.most_values:
            raise ConfigurationError(
                f"{plan.sampler} would need {size * (size + 1) // 2} derivatives of the metric in each draw for {size} "
                f"values, and takes at most {plan.trajectory.most_values}. Give {plan.sampler}(simplified=True), whose "
                "draws are exact too."
            )

    def planned(self, plan: Plan) -> Plan:
        """Return the plan as this model wants it."""
        return plan

    def warning(self) -> str:
        """Say what a user should know before waiting for draws; empty if there is nothing."""
        return no_data_in_words(self.model)


def check_whole_model(model: pm.Model, point: Point, compile_kwargs: dict[str, Any] | None) -> None:
    """Raise for data of other shapes than their distribution's parameters, and for options of a compiler.

    Raises
    ------
    DataError
        If the shapes do not fit.
    ConfigurationError
        If compile_kwargs are given.
    UnsupportedModelError
        If a likelihood is a simulator.
    """
    if compile_kwargs:
        raise ConfigurationError(
            f"compile_kwargs={compile_kwargs!r} has no effect here: RMHMC compiles the whole density with Numba. "
            "Remove it."
        )
    check_no_simulator(model)
    if model.data_vars:
        for observed in model.observed_RVs:
            check_shapes_at(model, observed, point)


def left_in_words(model: pm.Model, sampled: Sequence[str]) -> str:
    """Say at the end of an announcement which variables are left to other steps, and why; empty if there are none."""
    names = [str(v.name).removesuffix("_rotated_") for v in model.free_RVs]
    groups = said_once({name: _why_left(model, name) for name in names if name not in sampled})
    return f"; left to other steps: {', '.join(f'{held} ({why})' for held, why in groups)}" if groups else ""


def _why_left(model: pm.Model, name: str) -> str:
    """Say why a variable is not sampled: every continuous one is, unless vars names others."""
    held = model.named_vars
    variable = held[name] if held[name] in model.free_RVs else held[f"{name}_rotated_"]
    return discrete_in_words(variable) + step_in_words(variable) or "not named in vars"


def _no_part(point: Point) -> float:
    """Return 0: no part of the log density."""
    return 0.0
