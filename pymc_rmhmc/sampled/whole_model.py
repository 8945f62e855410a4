"""What is common to samplers of a model's whole density: what they move, and what is said and checked of the model."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.chains.conditional_density import NEARNESS, ConditionalDensityBase, Plan, Point, Variables
from pymc_rmhmc.errors import ConfigurationError, Failure, RMHMCError
from pymc_rmhmc.model import said_once
from pymc_rmhmc.model.compile import CompiledModel
from pymc_rmhmc.model.general.density import check_no_simulator
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observed.observation import check_shapes_at
from pymc_rmhmc.model.together import data_in_words
from pymc_rmhmc.model.words.density_terms import DensityTerms
from pymc_rmhmc.model.words.refusals import discrete_in_words, step_in_words
from pymc_rmhmc.sampled.checks import density_error

__all__ = [
    "SCATTER", "DensityModel", "FoundWholeModel", "WholeModelDensity", "check_whole_model", "left_in_words",
    "scattered",
]  # fmt: skip

type Array = NDArray[np.float64]

# Draws in which step size, chart and mass matrix are learned.
TUNE = 300
# What the sums of shared data are called next to the names of variables.
DATA = "shared data"
# Half the width of where chains start around a point that nobody chose, as PyMC has it.
SCATTER = 1.0


class DensityModel(Protocol):
    """The density of continuous variables of a model, given the others."""

    variables: Hyperparameters
    names: tuple[str, ...]
    terms: DensityTerms

    @property
    def size(self) -> int:
        """How many values they have."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The value variables of others that the density reads."""

    @property
    def shared(self) -> Sequence[SharedVariable]:
        """The shared data that it reads."""

    def bind(self, point: Point) -> None:
        """Take the values of the others from a point, and shared data as they are now."""


class WholeModelDensity[Model: DensityModel, Tuned, Made](ConditionalDensityBase[Tuned, Made]):
    """Continuous variables of a model given the others; see `ConditionalDensity`.

    `model`: their density.
    `name`: for messages.
    `plan`: metric, integrator, lengths.
    `labels`: what users call the value variables.
    """

    prior_moves = True

    def __init__(self, model: Model, name: str, plan: Plan, labels: Mapping[str, str]) -> None:
        self.model, self.name, self.plan = model, name, plan
        packed = model.variables
        parts = tuple((n, slice(0, p.stop - p.start)) for n, p in zip(packed.names, packed.slices, strict=True))
        self.variables, self.steps = Variables(parts, labels), plan.steps()
        self.forget()

    def forget(self) -> None:
        """See `ConditionalDensity`."""
        self._given: Point | None = None
        self.drop()

    @property
    def start_is_final(self) -> bool:
        """See `ConditionalDensity`."""
        return not self.model.inputs

    def bind(self, point: Point) -> tuple[bool, Point]:
        """See `ConditionalDensity`."""
        known = self._given
        if known is not None and all(np.array_equal(known[name], point[name]) for name in self.model.inputs):
            return False, known
        data = self._data() if known is None else known[DATA]
        self._given = {name: np.array(point[name]) for name in self.model.inputs} | {DATA: data}
        self.model.bind(point)
        self.drop()
        return True, self._given

    def _data(self) -> Array:
        """Return checksums of the shared data, once per run: coordinates that were kept are useless with other data."""
        arrays = (np.ascontiguousarray(shared.get_value(borrow=True)) for shared in self.model.shared)
        return np.array([zlib.crc32(array) for array in arrays], np.float64)

    def start_error(self, point: Point) -> RMHMCError | None:
        """See `ConditionalDensity`."""
        return density_error(self.model.terms, self.model.names, point)

    def where_refused(self) -> str:
        """See `ConditionalDensity`."""
        return ""

    def curvatures(self, values: Array) -> set[str]:
        """See `ConditionalDensity`."""
        return set()


def scattered[Phase](
    stand: Callable[[Array], Phase], failure: Callable[[Phase], Failure], centre: Array, rng: np.random.Generator
) -> Phase | None:
    """Return a phase near a point, nearer where there is no density; None if there is none at the point itself.

    `stand`, `failure`: the phase at coordinates (d,), and why it cannot be used.
    `centre` (d,): the point's coordinates.
    `rng`: for the direction and the distance.
    """
    width = SCATTER * rng.uniform(-1.0, 1.0, centre.size)
    for nearness in NEARNESS:
        phase = stand(nearness * width + centre)
        if not failure(phase):
            return phase
    return None


@dataclass(frozen=True)
class FoundWholeModel[Model: DensityModel]:
    """What is sampled."""

    model: pm.Model  # the model
    density_model: Model  # the density of the variables

    @property
    def compiled(self) -> CompiledModel:
        """No block, and nothing left of the log density."""
        return CompiledModel((), (), (), _no_part)

    @property
    def value_vars(self) -> list[TensorVariable]:
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
        return self.density_model.size

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

        Raises a `ConfigurationError` if there are.
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
        return data_in_words(self.model)


def check_whole_model(model: pm.Model, point: Point, compile_kwargs: dict[str, Any] | None) -> None:
    """Raise for data of other shapes than their distribution's parameters, and for options of a compiler.

    Raises a `DataError` if the shapes do not fit, and a `ConfigurationError` if compile_kwargs are given, and a
    `UnsupportedModelError` if a likelihood is a simulator.
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
