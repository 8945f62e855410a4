"""What one RMHMC samples of a model in a position-dependent metric of all its values, and the sampler for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.chains.chain import AnyChain, Chain
from pymc_rmhmc.chains.conditional_density import HMCCoordinates, Location, Plan, Position
from pymc_rmhmc.dynamics.hamiltonian import MetricPoint
from pymc_rmhmc.dynamics.hamiltonian.protocols import PhaseState
from pymc_rmhmc.errors import counted, listed
from pymc_rmhmc.kernels.kernel import HMC
from pymc_rmhmc.metrics.graph_metric import MatrixDensity
from pymc_rmhmc.metrics.sparsity import Partition
from pymc_rmhmc.model import names_by_value
from pymc_rmhmc.model.general.derivatives import (
    GradientModel,
    HessianModel,
    MatrixModel,
    ValueModel,
    of_value_variables,
)
from pymc_rmhmc.model.general.information import fisher_information
from pymc_rmhmc.model.structure import has_own_initval
from pymc_rmhmc.sampled.whole_model import (
    DensityModel,
    FoundWholeModel,
    WholeModelDensity,
    check_whole_model,
    left_in_words,
    scattered,
)
from pymc_rmhmc.tuning.adaptation import StepSize
from pymc_rmhmc.tuning.path_length import MetricTuning, StructureAdapter

__all__ = [
    "FoundRiemannian", "RiemannianCoordinates", "RiemannianDensity", "bytes_in_words", "find_riemannian",
    "matrix_in_words",
]  # fmt: skip

type Point = dict[str, np.ndarray]
type Array = NDArray[np.float64]
type MetricState = PhaseState[MetricPoint]

# Positions near the start at which the Hessian's pattern is read too: at one alone a model may take one branch.
N_NEARBY = 2

@dataclass(slots=True)
class RiemannianCoordinates(HMCCoordinates[MetricState]):
    """The Hamiltonian of a metric, in the model's own values; see `Coordinates`."""

    def stand(self, values: Array, known: Position | None, rng: np.random.Generator) -> MetricState:
        """See `Coordinates`: coordinates are the values."""
        phase: MetricState = self.hamiltonian.state(np.ascontiguousarray(values))
        return phase

    def locate(self, phase: MetricState, values: Array | None) -> Location:
        """See `Coordinates`."""
        position = phase.position
        return Location((position,), position if values is None else values, phase.density_point.log_density)

    def seen(self, phase: MetricState) -> Array:
        """Return the values."""
        return np.array(phase.position)

    def kernel(self, tuned: MetricTuning, step_size: StepSize, *, tuning: bool) -> HMC[MetricState]:
        """See `Coordinates`."""
        kernel = self.hmc(step_size.in_use(tuning=tuning))
        return replace(kernel, trajectory=tuned.path.lengthened(self.plan.trajectory, tuning=tuning))

    def rehearse(self, phase: MetricState, step_size: float, rng: np.random.Generator) -> MetricState:
        """See `Coordinates`."""
        return self.single_step(phase, step_size, rng)


class MetricDensity[Model: DensityModel, Made: RiemannianCoordinates](WholeModelDensity[Model, MetricTuning, Made]):
    """Continuous variables in a position-dependent metric; see `WholeModelDensity`."""

    def __init__(self, model: Model, name: str, plan: Plan, labels: Mapping[str, str]) -> None:
        super().__init__(model, name, plan, labels)
        self.adapter = StructureAdapter(self._holds, plan.may_lengthen)

    @property
    def refits(self) -> bool:
        """See `ConditionalDensity`: there is a length to find."""
        return self.plan.may_lengthen

    def _holds(self, partition: Partition, position: Array, rng: np.random.Generator) -> bool:
        """Return whether a structure of the metric's matrix holds at a position (d,)."""
        return True

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[MetricTuning]:
        """See `ConditionalDensity`."""
        yield MetricTuning()


class RiemannianDensity(MetricDensity[ValueModel, RiemannianCoordinates]):
    """Continuous variables by a density with the matrix that the metric is made of; see `WholeModelDensity`."""

    def __init__(self, model: ValueModel, name: str, plan: Plan, labels: Mapping[str, str]) -> None:
        super().__init__(model, name, plan, labels)
        # The last structure that was read, and all numbers that it was read at: it travels to workers.
        self.known_structure: tuple[Partition | None, tuple[Array, ...]] = (None, ())

    @property
    def n_functions(self) -> int:
        """See `ConditionalDensity`: evaluation, pullback, and quadratic forms where the matrix is the metric."""
        return 2 if self.model.along is None else 3

    @property
    def refits(self) -> bool:
        """See `ConditionalDensity`: there is a structure to compare, or a length to find."""
        return self._has_structure or self.plan.may_lengthen

    @property
    def _has_structure(self) -> bool:
        return hasattr(self.plan.metric, "find_structure")

    def _density(self, partition: Partition | None = None) -> MatrixDensity:
        """Return the density as it is bound now."""
        model = self.model
        return MatrixDensity(model.evaluate, model.pull, model.size, partition=partition, along=model.along)

    def _holds(self, partition: Partition, position: Array, rng: np.random.Generator) -> bool:
        """See `MetricDensity`."""
        holds: bool = self.plan.metric.holds(self._density(), partition, position, rng)
        return holds

    def make(self, tuned: MetricTuning) -> RiemannianCoordinates:
        """See `ConditionalDensityBase`."""
        hamiltonian = self.plan.trajectory.hamiltonian(self.plan.metric.bind(self._density(tuned.partition)))
        return RiemannianCoordinates(self.plan.integrator.extend(hamiltonian), self.plan)

    def structure(self, values: Array) -> Partition | None:
        """Return the structure of the Hessian at values (d,) and near them, where the model is bound; None without one.

        Raises a `ConfigurationError` if the metric's matrices would be too large.
        """
        if not self._has_structure:
            return None
        known, before = self.known_structure
        numbers = (values, *self.model.evaluate.bound)
        if len(before) == len(numbers) and all(map(np.array_equal, before, numbers)):
            return known
        nearby = np.random.default_rng(0).uniform(-1.0, 1.0, (N_NEARBY, values.size))
        found: Partition | None = self.plan.metric.find_structure(self._density(), [values, *(values + nearby)])
        self.known_structure = (found, numbers)
        return found

    def start(self, tuned: MetricTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `ConditionalDensity`: near a point that nobody chose."""
        tuned.partition = self.structure(values)
        self.drop()
        if not approximated:
            return values
        coordinates = self.made(tuned)
        phase = scattered(lambda position: coordinates.stand(position, None, rng), coordinates.failure, values, rng)
        return values if phase is None else np.array(phase.position)

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[MetricTuning]:
        """See `ConditionalDensity`."""
        tuned = MetricTuning(self.structure(values))
        if tuned.partition is not None:
            self._holds(tuned.partition, values, rng)
        yield tuned


@dataclass(frozen=True)
class FoundRiemannian(FoundWholeModel[ValueModel]):
    """What is sampled, by a density with the matrix that the metric is made of."""

    def samplers(self, point: Point, plan: Plan, initial: Point) -> list[AnyChain]:
        """Return one chain of all of them."""
        self.check_move(plan)
        own, density = has_own_initval(self.model, self.density_model.variables.variables), self._density_of(plan)
        density.structure(density.variables.read(point))  # an error if its matrices would be too large
        return [Chain(density, plan, density.variables.read(initial), own)]

    def _density_of(self, plan: Plan) -> RiemannianDensity:
        return RiemannianDensity(self.density_model, listed(self.names), plan, names_by_value(self.model))

    def structure_in_words(self, point: Point, plan: Plan) -> str:
        """Say which structure of a Hessian the chain begins with; empty if the metric is not made of one."""
        if getattr(plan.metric, "source", None) != "hessian":
            return ""
        density = self._density_of(plan)
        partition = density.structure(density.variables.read(point))
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

    Raises an `UnsupportedModelError` if PyTensor cannot differentiate the density as often as the metric needs, and a
    `DataError` if data and a parameter of their distribution have shapes that do not fit, and a `ConfigurationError` if
    the metric cannot be made for the model, or compile_kwargs are given.
    """
    check_whole_model(model, point, compile_kwargs)
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
