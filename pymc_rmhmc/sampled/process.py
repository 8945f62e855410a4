"""What one RMHMC samples in a metric of one Gaussian process: it with its hyperparameters, or these alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.chains.chain import AnyChain, Chain
from pymc_rmhmc.chains.conditional_density import Location, Plan, Position
from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError, counted, listed
from pymc_rmhmc.metrics.processes.process_blocks import GivenField, GivenPoint
from pymc_rmhmc.metrics.processes.process_density import ProcessPoint
from pymc_rmhmc.model import names_by_value, read_structure
from pymc_rmhmc.model.forms.priors import GAUSSIAN_VECTORS, LatentVariable, first_order, gaussian_candidates
from pymc_rmhmc.model.general.blocks_or_graph import continuous_variables
from pymc_rmhmc.model.general.latent_model import LatentModel, ProcessModel, SeriesModel
from pymc_rmhmc.model.hyperparameters import hyperparameters_of
from pymc_rmhmc.model.structure import LatentBlock, has_own_initval, resolve_variables
from pymc_rmhmc.sampled.choices import check_reach
from pymc_rmhmc.sampled.whole_model import FoundWholeModel, check_whole_model, left_in_words, scattered
from pymc_rmhmc.sampled.whole_model_metric import MetricDensity, MetricState, RiemannianCoordinates, bytes_in_words
from pymc_rmhmc.tuning.path_length import MetricTuning

__all__ = [
    "MOST_VALUES", "FoundGivenProcess", "FoundProcess", "GivenProcessCoordinates", "GivenProcessDensity",
    "ProcessCoordinates", "ProcessDensity", "find_process",
]  # fmt: skip

type Point = dict[str, np.ndarray]
type Array = NDArray[np.float64]

# Of a process with dense matrices: a step takes several factors of as many rows.
MOST_VALUES = 500
# Of hyperparameters: K has as many derivatives, and half their square of second ones.
MOST_MOVING = 30
FLAT = 'RMHMC(metric="flat")'


@dataclass(slots=True)
class ProcessCoordinates(RiemannianCoordinates):
    """The Hamiltonian of a metric, whose coordinates need not be the model's values; see `Coordinates`."""

    density: Any

    def stand(self, values: Array, known: Position | None, rng: np.random.Generator) -> MetricState:
        """See `Coordinates`."""
        (position,) = (self.density.enter(values),) if known is None else known
        phase: MetricState = self.hamiltonian.state(np.ascontiguousarray(position))
        return phase

    def whole_point(self, phase: MetricState) -> ProcessPoint[Any]:
        """Return the point of the process with its hyperparameters."""
        return cast("ProcessPoint[Any]", phase.density_point)

    def locate(self, phase: MetricState, values: Array | None) -> Location:
        """See `Coordinates`."""
        point = self.whole_point(phase)
        return Location((point.position,), point.model_values if values is None else values, point.model_log_density)

    def seen(self, phase: MetricState) -> Array:
        """Return the model's values."""
        return self.whole_point(phase).model_values


@dataclass(slots=True)
class GivenProcessCoordinates(ProcessCoordinates):
    """The Hamiltonian of hyperparameters with the process held; coordinates are those of both; see `Coordinates`."""

    def stand(self, values: Array, known: Position | None, rng: np.random.Generator) -> MetricState:
        """See `Coordinates`: from here on the process is held where it is now."""
        (position,) = (self.density.whole.enter(values),) if known is None else known
        phase: MetricState = self.hamiltonian.state(self.density.hold(position))
        return phase

    def whole_point(self, phase: MetricState) -> ProcessPoint[Any]:
        """Return the point of both: the model's values of the process follow from θ and from what is held."""
        return cast("GivenPoint", phase.density_point).whole


class ProcessDensity(MetricDensity[LatentModel, ProcessCoordinates]):
    """One process with its hyperparameters, given the model's other variables; see `ConditionalDensity`."""

    _coordinates_class = ProcessCoordinates

    @property
    def n_functions(self) -> int:
        """See `ConditionalDensity`."""
        return len(self.model.functions)

    def make(self, tuned: MetricTuning) -> ProcessCoordinates:
        """See `ConditionalDensityBase`."""
        field = self._field()
        hamiltonian = self.plan.integrator.extend(self.plan.trajectory.hamiltonian(field))
        return self._coordinates_class(hamiltonian, self.plan, field.density)

    def _field(self) -> Any:
        """Return the metric of what moves."""
        return self.plan.metric.bind(self.model)

    def start(self, tuned: MetricTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `ConditionalDensity`: near a point that nobody chose, in whitened coordinates.

        Noise in a smooth process itself would be where its prior has next to no density.
        """
        self.drop()
        if not approximated:
            return values
        coordinates = self._coordinates = self.make(tuned)
        stand, centre = self._searched(coordinates, values, rng)
        phase = scattered(stand, coordinates.failure, centre, rng)
        return values if phase is None else coordinates.seen(phase)

    def _searched(
        self, coordinates: ProcessCoordinates, values: Array, rng: np.random.Generator
    ) -> tuple[Callable[[Array], MetricState], Array]:
        """Return the function that stands at a point, and the point near which a start is looked for."""
        density, is_white = coordinates.density, self.model.whitened

        def stand(white: Array) -> MetricState:
            return coordinates.stand(white if is_white else density.colour(white), None, rng)

        return stand, values if is_white else density.whiten(values)


class GivenProcessDensity(ProcessDensity):
    """The hyperparameters of a process alone; the chain reads and writes the process too; see `ConditionalDensity`."""

    _coordinates_class = GivenProcessCoordinates

    @property
    def own(self) -> slice:
        """See `ConditionalDensity`: θ, which comes after the process."""
        return slice(self.model.n_process, None)

    def _field(self) -> Any:
        """Return the metric of θ where the process is held."""
        return GivenField(super()._field())

    def _searched(
        self, coordinates: ProcessCoordinates, values: Array, rng: np.random.Generator
    ) -> tuple[Callable[[Array], MetricState], Array]:
        """Return the function and the point for θ alone."""
        return coordinates.hamiltonian.state, coordinates.stand(values, None, rng).position


@dataclass(frozen=True)
class FoundProcess(FoundWholeModel[LatentModel]):
    """What is sampled: the process or series, and its hyperparameters."""

    def density(self, plan: Plan) -> ProcessDensity:
        """Return how kernels are built."""
        return ProcessDensity(self.density_model, listed(self.names), plan, names_by_value(self.model))

    @property
    def variables(self) -> tuple[TensorVariable, ...]:
        """The variables that are sampled."""
        return self.density_model.variables.variables

    def samplers(self, point: Point, plan: Plan, initial: Point) -> list[AnyChain]:
        """Return one chain of all of them."""
        self.check_move(plan)
        plan, own = self.planned(plan), has_own_initval(self.model, self.variables)
        density = self.density(plan)
        return [Chain(density, plan, density.variables.read(initial), own)]

    def planned(self, plan: Plan) -> Plan:
        """Return the plan with long paths, where the blocks drop what the process and θ share."""
        plan = replace(plan, may_lengthen=False)
        if plan.metric.whitens:
            return plan
        if plan.step_size is not None:
            check_reach(plan.step_size, plan.block_trajectory)
        return replace(plan, trajectory=plan.block_trajectory)

    def announcement(self, plan: Plan) -> str:
        """Say in one line what is sampled in which metric, what that leaves out, and what is left."""
        said = f"{listed(self.names)} ({counted(self.size, 'value')})"
        left = left_in_words(self.model, self.names)
        return f"{plan.sampler}: {plan.metric.name} metric for {said}{left}. {self.structure_in_words({}, plan)}"

    def structure_in_words(self, point: Point, plan: Plan) -> str:
        """Say in which coordinates the process moves, what the metric leaves out, and how large it is."""
        process, name = self.density_model, self.names[0]
        if process.is_series:
            said = f"The precision of {name} has three bands: a step takes time in proportion to its length."
        else:
            size = bytes_in_words(8 * process.moving.size * process.n_process**2)
            form = f"L⁻¹({name} - mean)" if plan.metric.whitens else name
            said = f"The process moves as {form}. The derivatives of its covariance take {size}."
        dropped = "" if plan.metric.whitens else self._dropped_in_words()
        return said + dropped + self._softened_in_words()

    def _dropped_in_words(self) -> str:
        """Say what the blocks leave out, after a space."""
        process, name = self.density_model, self.names[0]
        dropped = [
            f"of {listed(names)} through {how}"
            for names, how in ((process.moves_mean, "the mean"), (process.shares, "the likelihood")) if names
        ]  # fmt: skip
        if not dropped:
            return f" {name} shares no expected information with the hyperparameters."
        said = f" The blocks drop the information that {name} shares with those {' and '.join(dropped)}."
        return said.replace("with those of ", "with ")

    def _softened_in_words(self) -> str:
        """Say which priors have a curvature that need not be positive, after a space."""
        names = self.density_model.softened
        if not names:
            return ""
        of = f"prior of {names[0]} counts" if len(names) == 1 else f"priors of {listed(names)} count"
        return f" The {of} with the SoftAbs of the curvature, which need not be positive."


@dataclass(frozen=True)
class FoundGivenProcess(FoundProcess):
    """Hyperparameters alone: the process is held, in the coordinates of the metric; see `FoundProcess`."""

    def density(self, plan: Plan) -> GivenProcessDensity:
        """Return how kernels are built."""
        return GivenProcessDensity(self.density_model, listed(self.names), plan, names_by_value(self.model))

    @property
    def variables(self) -> tuple[TensorVariable, ...]:
        """The variables that are sampled."""
        return super().variables[1:]

    @property
    def value_vars(self) -> list[TensorVariable]:
        """The value variables that are sampled: PyMC finds a step for those of the process."""
        return super().value_vars[1:]

    @property
    def names(self) -> list[str]:
        """The variables that are sampled."""
        return super().names[1:]

    def followers(self, plan: Plan) -> tuple[str, ...]:
        """Return the process's value variable, unless the metric holds what the model has."""
        process = self.density_model
        return () if plan.metric.whitens == process.whitened else (process.variables.names[0],)

    @property
    def size(self) -> int:
        """How many values are sampled."""
        return self.density_model.n_theta

    def planned(self, plan: Plan) -> Plan:
        """Return the plan as it is: in the block of hyperparameters nothing is dropped."""
        return plan

    def structure_in_words(self, point: Point, plan: Plan) -> str:
        """Say what is held."""
        name = super().names[0]
        return f"L⁻¹({name} - mean) is held, and {name} follows." if plan.metric.whitens else f"{name} is held."


def find_process(
    model: pm.Model, vars: Any, point: Point, metric: Any, compile_kwargs: dict[str, Any] | None  # noqa: A002
) -> FoundProcess:
    """Read and build what RMHMC samples of a model in a metric of a process and its hyperparameters.

    Raises an `UnsupportedModelError` if the model has no such process, or the metric does not fit its likelihood, and a
    `ConfigurationError` if there are no hyperparameters or too many values, if `vars` names the process alone, or if
    the information of a variable is not known, and a `DataError` if data and a parameter of their distribution have
    shapes that do not fit.
    """
    named = None if vars is None else resolve_variables(model, vars)
    latents = None if named is None else [v for v in named if v in gaussian_candidates(model)]
    alone = named is not None and not latents
    if alone:
        continuous_variables(model, named)  # an error names those that are not
    check_whole_model(model, point, compile_kwargs)
    block = _the_process(model, None if alone else latents, point, metric)
    hyperparameters = _hyperparameters(model, block, named, metric)
    build = SeriesModel if _is_series(block.latents[0]) else ProcessModel
    process = build(model, block, hyperparameters, point, metric.name)
    if process.moving.size > MOST_MOVING:
        raise ConfigurationError(
            f"{process.moving.size} hyperparameters move {block.latents[0].name}, and the {metric.name} metric takes "
            f"at most {MOST_MOVING}: it computes second derivatives by each pair of them. Use {FLAT}."
        )
    return FoundGivenProcess(model, process) if alone else FoundProcess(model, process)


def _the_process(
    model: pm.Model, named: Sequence[TensorVariable] | None, point: Point, metric: Any
) -> LatentBlock:
    """Find the one latent vector with a dense covariance matrix, or the one series, and its observations.

    Raises an `UnsupportedModelError` if there is none or more than one, and a `ConfigurationError` if it has too many
    values.
    """
    series = " or one series of the first order" if metric.takes_series else ""
    needed = f"The {metric.name} metric needs one latent Gaussian vector with a dense covariance matrix{series}"
    try:
        structure = read_structure(model, None if named is None else list(named))
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{needed}, with hyperparameters. {error}", advice=error.advice) from None
    latents = [latent for block in structure.blocks for latent in block.latents]
    if len(latents) != 1:
        names = listed([latent.name for latent in latents])
        raise UnsupportedModelError(f"{needed}, and the model has {len(latents)}: {names}. Use {FLAT}.")
    why = _why_not(model, latents[0], point, metric)
    if why:
        raise UnsupportedModelError(f"{needed}, and {latents[0].name} {why}.")
    if not _is_series(latents[0]):
        size = int(np.size(point[str(model.rvs_to_values[latents[0].variable].name)]))
        if size > MOST_VALUES:
            raise ConfigurationError(
                f"There are {size} values of {latents[0].name}, and the {metric.name} metric takes at most "
                f"{MOST_VALUES}: its matrices are dense, and a step factorises several. Use {FLAT}."
            )
    return structure.blocks[0]


def _is_series(latent: LatentVariable) -> bool:
    """Return whether a latent vector that was read is a random walk, an autoregression or a map."""
    return type(latent.variable.owner.op) in GAUSSIAN_VECTORS


def _why_not(model: pm.Model, latent: LatentVariable, point: Point, metric: Any) -> str:
    """Say why the metric does not take a latent vector, and what to do; empty if it takes it."""
    found = ""
    if latent.form == "independent":
        found = "is a vector of independent Normals"
    elif _is_series(latent):
        series = first_order(latent.variable)
        if not isinstance(series, str):
            return "" if metric.takes_series else 'is a series. Use RMHMC(metric="block"), which takes series'
        found = series
    elif latent.root == "kronecker":
        found = "has a covariance that is a Kronecker product"
    elif latent.variable.ndim != 1 or latent.matrix.ndim != 2:
        shape = np.shape(point[str(model.rvs_to_values[latent.variable].name)])
        found = f"has shape {shape}, which are several vectors"
    return f"{found}. Use {FLAT}" if found else ""


def _hyperparameters(
    model: pm.Model, block: LatentBlock, named: Sequence[TensorVariable] | None, metric: Any
) -> list[TensorVariable]:
    """Find the continuous variables that the process's prior and likelihood depend on, or the named ones among them.

    Raises a `ConfigurationError` if there is none.
    """
    (latent,) = block.latents
    read = [e for o in block.observations for e in o.variable.owner.inputs if isinstance(e, TensorVariable)]
    found = [v for v in hyperparameters_of(model, [*latent.expressions, *read]) if v is not latent.variable]
    if not found:
        raise ConfigurationError(
            f"{latent.name} has no hyperparameters that are sampled, and the {metric.name} metric is for both together."
            ' Use RMHMC(metric="fisher") for latent values alone, or give the hyperparameters priors.'
        )
    if named is None:
        return found
    wanted = [v for v in found if v in named]
    strange = [str(v.name) for v in named if v not in found and v is not latent.variable]
    if strange:
        raise ConfigurationError(
            f"vars names {listed(strange)}, on which neither {latent.name} nor its likelihood depends. Name "
            f"{listed([latent.name, *(str(v.name) for v in found)])}, or leave vars out."
        )
    if not wanted:
        raise ConfigurationError(
            f"vars names {latent.name} alone, and the {metric.name} metric moves it together with its hyperparameters "
            f'{listed([str(v.name) for v in found])}. Name them too, or use RMHMC(vars=["{latent.name}"], '
            'metric="fisher").'
        )
    return wanted
