"""What one RMHMC samples of a model in the chart that is read from its graph, and the sampler for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.chains.chain import AnyChain, Chain
from pymc_rmhmc.chains.conditional_density import REHEARSED_STEP, HMCCoordinates, Location, Plan, Position
from pymc_rmhmc.chains.reference import LOG_2PI, ResidualReference
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, GaussianState
from pymc_rmhmc.dynamics.integrators import SurrogateFlow
from pymc_rmhmc.errors import Failure, listed
from pymc_rmhmc.graph_chart.affine_map import from_flat, log_volume, map_of_gradient, to_flat
from pymc_rmhmc.graph_chart.constants import Angles, charts_of
from pymc_rmhmc.graph_chart.graph_target import GeneralPoint, GeneralTarget, PeriodTarget, ValuePoint, ValueTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.kernels.kernel import HMC, Cycle, Kernel, Sometimes
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.kernels.turns import DensityMove, SurrogateHMC
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.model import names_by_value, said_once
from pymc_rmhmc.model.general.blocks_or_graph import InGraphChart
from pymc_rmhmc.model.general.cost import cost_in_words
from pymc_rmhmc.model.general.density import GeneralModel
from pymc_rmhmc.model.hyperparameters import GraphFunction
from pymc_rmhmc.model.structure import has_own_initval
from pymc_rmhmc.model.words.advice import unread_rows
from pymc_rmhmc.model.words.refusals import written_as_scalars
from pymc_rmhmc.sampled.choices import check_reach
from pymc_rmhmc.sampled.whole_model import (
    FoundWholeModel,
    WholeModelDensity,
    check_whole_model,
    left_in_words,
    scattered,
)
from pymc_rmhmc.tuning.adaptation import StepSize
from pymc_rmhmc.tuning.graph_chart import ChartTuning, EmulatingAdapter, GraphChartAdapter
from pymc_rmhmc.tuning.joint_adapter import TURNS

__all__ = ["EmulatedCoordinates", "FoundGeneral", "GraphCoordinates", "GraphDensity", "find_general"]

type Point = dict[str, np.ndarray]
type Array = NDArray[np.float64]
type GraphPhase = GaussianState[GeneralPoint]
type ValuePhase = GaussianState[ValuePoint]

# At most as many values share a dense mass matrix.
MOST_DENSE = 50
# A chain does not begin where the log density is lower by this than at the point nearby that nobody chose: in units of
# 1e-9 a distance of 1 is hopelessly far.
HOPELESS = 1e8


@dataclass(slots=True)
class _ChartCoordinates[At: (GeneralPoint, ValuePoint)](HMCCoordinates[GaussianState[At]]):
    """What the coordinates share, whose phases stand at points that hold the model's values."""

    def locate(self, phase: GaussianState[At], values: Array | None) -> Location:
        """See `Coordinates`."""
        values = self.seen(phase) if values is None else values
        return Location((phase.position,), values, phase.point.model_log_density, self._log_weight(phase.point))

    @abstractmethod
    def _log_weight(self, point: At) -> float:
        """Return the log weight, as `Location` has it."""

    def seen(self, phase: GaussianState[At]) -> Array:
        """Return the model's values."""
        return np.array(phase.point.values)


@dataclass(slots=True)
class GraphCoordinates(_ChartCoordinates[GeneralPoint]):
    """The density in a chart, and a map to flat coordinates; see `Coordinates`."""

    adapter: GraphChartAdapter
    tuned: ChartTuning
    # What the log weight has beyond the density's part that is not standard normal.
    log_constant: float = field(init=False)

    def __post_init__(self) -> None:
        flat = FlatMap(*self.tuned.flat)
        self.log_constant = log_volume(flat) + 0.5 * flat.centre.size * LOG_2PI

    def stand(self, values: Array, known: Position | None, rng: np.random.Generator) -> GraphPhase:
        """See `Coordinates`."""
        found = (self.adapter.coordinates(self.tuned, values),) if known is None else known
        return self.hamiltonian.state(*found)

    def seen(self, phase: GraphPhase) -> Array:
        """See `Coordinates`: with angles in the period around their centre."""
        return self.adapter.wrapped(self.tuned, np.array(phase.point.values))

    def _log_weight(self, point: GeneralPoint) -> float:
        if self.adapter.angles.places.size:
            within = self.adapter.coordinates(self.tuned, point.values)
            return point.log_density_at(within) + self.log_constant
        return float(point.log_density) + self.log_constant

    def reference(self) -> ResidualReference:
        """See `NormalCoordinates`: of a density on circles that on a period of each."""
        flat, angles = FlatMap(*self.tuned.flat), self.adapter.angles
        residual = self.hamiltonian.residual
        if angles.places.size:
            residual = PeriodTarget(residual, angles, flat.centre[angles.places])

        def stand_at(values: Array, rng: np.random.Generator) -> GeneralPoint:
            return self.stand(values, None, rng).point

        return ResidualReference(
            residual, flat.centre.size, self.log_constant, stand_at, lambda point: np.array(point.values)
        )

    def kernel(self, tuned: ChartTuning, step_size: StepSize, *, tuning: bool) -> HMC[GraphPhase]:
        """See `Coordinates`: in draws there may be several trajectories, and longer ones than the plan has."""
        kernel = self.hmc(step_size.in_use(tuning=tuning))
        trajectory = tuned.path.lengthened(self.plan.trajectory, tuning=tuning)
        if not tuning and tuned.rounds > 1:
            trajectory = replace(trajectory, rounds=tuned.rounds)
        return replace(kernel, trajectory=trajectory)

    def rehearse(self, phase: GraphPhase, step_size: float, rng: np.random.Generator) -> GraphPhase:
        """See `Coordinates`."""
        # The search for a step size makes single steps, whatever the trajectory.
        self.single_step(phase, step_size, rng)
        return self.hmc(step_size).step(phase, rng).state


@dataclass(slots=True)
class EmulatedCoordinates(_ChartCoordinates[ValuePoint]):
    """The density without its gradient, in standard normals ϑ, with an emulator; see `Coordinates`.

    A phase is a state at a `ValuePoint`.
    """

    exact: GraphCoordinates
    flow: SurrogateFlow

    @classmethod
    def of(cls, value: GraphFunction, exact: GraphCoordinates) -> EmulatedCoordinates:
        """Return the coordinates for what is known."""
        tuned = exact.tuned
        assert tuned.emulator is not None
        assert tuned.marginals is not None
        hamiltonian = GaussianHamiltonian(ValueTarget(value, tuned.chart, tuned.marginals))
        return cls(hamiltonian, exact.plan, exact, SurrogateFlow(tuned.emulator))

    def stand(self, values: Array, known: Position | None, rng: np.random.Generator) -> ValuePhase:
        """See `Coordinates`."""
        if known is None:
            known = (self._chart.recover(self.exact.adapter.charted_point(self.exact.tuned, values)),)
        return self.hamiltonian.state(*known)

    @property
    def _chart(self) -> MarginalChart:
        chart: MarginalChart = self.hamiltonian.residual.chart
        return chart

    def _log_weight(self, point: ValuePoint) -> float:
        """Return the log weight in the coordinates of `reference`."""
        flat = to_flat(FlatMap(*self.exact.tuned.flat), point.coordinates)
        return float(point.charted_log_density + 0.5 * flat @ flat) + self.exact.log_constant

    def reference(self) -> ResidualReference:
        """See `NormalCoordinates`: that of the density with its gradient."""
        return self.exact.reference()

    def kernel(self, tuned: ChartTuning, step_size: StepSize, *, tuning: bool) -> Kernel[ValuePhase]:
        """See `Coordinates`: a trajectory along the emulator.

        With a probability that grows with the share that is rejected, one along the density comes before.
        """
        share = TURNS.joint_by_rejected * TURNS.need(1.0 - tuned.trial[1])
        exact = DensityMove(self.exact.hmc(step_size.average), self._to_exact, self._from_exact)
        return Cycle((Sometimes(share, exact), self._along(self.plan.trajectory.path)))

    def _along(self, path: JitteredPath) -> SurrogateHMC[ValuePoint]:
        return SurrogateHMC(self.hamiltonian, self.flow, path)

    def _to_exact(self, phase: ValuePhase) -> GraphPhase:
        """Return the same place in the coordinates of trajectories along the density."""
        flat = FlatMap(*self.exact.tuned.flat)
        return self.exact.hamiltonian.state(to_flat(flat, phase.point.coordinates))

    def _from_exact(self, phase: GraphPhase) -> ValuePhase:
        z = from_flat(FlatMap(*self.exact.tuned.flat), phase.position)
        return self.hamiltonian.state(self._chart.recover(z))

    def rehearse(self, phase: ValuePhase, step_size: float, rng: np.random.Generator) -> ValuePhase:
        """See `Coordinates`."""
        again = self._from_exact(self._to_exact(phase))
        return self._along(JitteredPath(REHEARSED_STEP, 0.0, 1)).step(again, rng).state


class GraphDensity(WholeModelDensity[GeneralModel, ChartTuning, GraphCoordinates | EmulatedCoordinates]):
    """Continuous variables of a model given the others; see `WholeModelDensity`."""

    def __init__(self, general: GeneralModel, name: str, plan: Plan, labels: Mapping[str, str]) -> None:
        super().__init__(general, name, plan, labels)
        self.emulates = plan.may_emulate and general.is_expensive
        adapter = EmulatingAdapter if self.emulates else GraphChartAdapter
        may_lengthen, angles = plan.may_lengthen and not self.emulates, Angles(*general.angles)
        self.adapter = adapter(
            general, charts_of(general), self.variables.label, plan.may_repeat, MOST_DENSE, angles, may_lengthen
        )

    @property
    def n_functions(self) -> int:
        """See `ConditionalDensity`."""
        return 1 + (self.model.scores is not None) + self.emulates

    def make(self, tuned: ChartTuning) -> GraphCoordinates | EmulatedCoordinates:
        """See `ConditionalDensityBase`."""
        exact = self.exact_coordinates(tuned)
        return exact if tuned.emulator is None else EmulatedCoordinates.of(self.model.value, exact)

    def exact_coordinates(self, tuned: ChartTuning) -> GraphCoordinates:
        """Return the coordinates of the density with its gradient, which is not kept."""
        density = self.model.density
        target = GeneralTarget(density.function, density.bound, tuned.chart, FlatMap(*tuned.flat))
        hamiltonian = GaussianHamiltonian(target, advance=target.advance, makes=target)
        return GraphCoordinates(hamiltonian, self.plan, self.adapter, tuned)

    def start(self, tuned: ChartTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `ConditionalDensity`: near a point that nobody chose, with the scales that its gradient suggests."""
        coordinates = self.exact_coordinates(tuned)  # nothing is known yet that an emulator could be made of
        first = self._scattered(coordinates, values, rng) if approximated else values
        phase = coordinates.stand(first, None, rng)
        if not coordinates.failure(phase):
            self.adapter.check_read(tuned, phase.position, phase.point.slope)
            along = self.adapter.along(tuned, phase.position)  # the map is still the identity
            free = self.adapter.angles.places
            tuned.flat = tuple(map_of_gradient(phase.position, phase.point.slope, along, free))
            self.drop()
        return first

    def _scattered(self, coordinates: GraphCoordinates, values: Array, rng: np.random.Generator) -> Array:
        """Return a point nearby, nearer where there is no density; at last the point itself."""
        centre = self.adapter.coordinates(coordinates.tuned, values)
        least = coordinates.hamiltonian.state(centre).point.model_log_density - HOPELESS

        def failure(phase: GraphPhase) -> Failure:
            found = coordinates.failure(phase)
            return found or (Failure.ENERGY if phase.point.model_log_density < least else Failure.NONE)

        phase = scattered(coordinates.hamiltonian.state, failure, centre, rng)
        return values if phase is None else coordinates.seen(phase)

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[ChartTuning]:
        """See `ConditionalDensity`."""
        if self.model.scores is not None:
            self.model.scores(values)
        tuned = self.adapter.initial()
        # A refit calls the density from Python, which is compiled for itself.
        self.model.density(np.ascontiguousarray(values), tuned.chart)
        yield tuned
        if self.emulates:
            d = self.model.size
            standard = MarginalChart.linear(np.zeros(d), np.eye(d))
            yield replace(tuned, emulator=Emulator.flat(d), marginals=standard)


@dataclass(frozen=True)
class FoundGeneral(FoundWholeModel[GeneralModel]):
    """What is sampled, and why the chart is read from the graph."""

    why: str
    advice: Mapping[str, str]

    def samplers(self, point: Point, plan: Plan, initial: Point) -> list[AnyChain]:
        """Return one chain of all of them."""
        own = has_own_initval(self.model, self.density_model.variables.variables)
        plan = self.planned(plan)
        density = GraphDensity(self.density_model, listed(self.names), plan, names_by_value(self.model))
        return [Chain(density, plan, density.variables.read(initial), own)]

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
        advised = unread_rows(self.model, self.density_model.variables.variables) | dict(self.advice)
        advised |= written_as_scalars(self.model)
        advice = "".join(f"\n{names}: {text}" for names, text in said_once(advised))
        emulates = self.density_model.is_expensive and plan.may_emulate
        dear = f". The log density is dear: {cost_in_words(self.density_model.gradient_seconds)}" if emulates else ""
        return f"RMHMC: flat metric for {listed(self.names)}{chart}, because {self.why}{rest}{dear}{advice}"


def find_general(
    model: pm.Model, variables: Sequence[TensorVariable], point: Point, found: InGraphChart,
    compile_kwargs: dict[str, Any] | None,
) -> FoundGeneral:  # fmt: skip
    """Read and build what RMHMC samples of a model in its flat chart.

    Raises an `UnsupportedModelError` if PyTensor cannot differentiate the density, and a `DataError` if data and a
    parameter of their distribution have shapes that do not fit, and a `ConfigurationError` if a family is registered
    with a location or scale of another shape, or compile_kwargs are given.
    """
    check_whole_model(model, point, compile_kwargs)
    general = GeneralModel(model, variables, point, found.reading)
    general.bind(point)
    return FoundGeneral(model, general, found.why, found.advice)
