"""Kernels in the flat chart that is read from a model's graph: along the density, and along an emulator of it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.recipe import REHEARSED_STEP, HMCSetting, Place
from pymc_rmhmc.chains.reference import LOG_2PI, ResidualReference
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.dynamics.integrators import SurrogateFlow
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.graph_chart.affine_map import from_flat, log_volume, to_flat
from pymc_rmhmc.graph_chart.graph_target import PeriodTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.graph_chart.value_target import ValueTarget
from pymc_rmhmc.kernels.kernel import HMC, Cycle, Kernel, Sometimes
from pymc_rmhmc.kernels.trajectories import JitteredPath
from pymc_rmhmc.kernels.turns import DensityMove, SurrogateHMC
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.tuning.graph_chart import ChartTuning, GraphChartAdapter
from pymc_rmhmc.tuning.joint_adapter import TURNS
from pymc_rmhmc.tuning.step_size import StepSize

__all__ = ["EmulatedSetting", "GraphSetting"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class _ChartSetting(HMCSetting):
    """What the settings share, whose phases stand at points that hold the model's values."""

    def failure(self, phase: Any) -> Failure:
        """See `Setting`."""
        failure: Failure = phase.point.failure
        return failure

    def place(self, phase: Any, values: Array | None) -> Place:
        """See `Setting`."""
        values = self.seen(phase) if values is None else values
        return Place(phase.position, values, phase.point.model_log_density, self._log_weight(phase.point))

    @abstractmethod
    def _log_weight(self, point: Any) -> float:
        """Return the log weight, as `Place` has it."""

    def seen(self, phase: Any) -> Array:
        """Return the model's values."""
        return np.array(phase.point.values)


@dataclass(slots=True)
class GraphSetting(_ChartSetting):
    """The density in a chart, and a map to flat coordinates; see `Setting`.

    Attributes
    ----------
    log_constant : float
        What the log weight has beyond the density's part that is not standard normal.
    """

    adapter: GraphChartAdapter
    tuned: ChartTuning
    log_constant: float = field(init=False)

    def __post_init__(self) -> None:
        flat = FlatMap(*self.tuned.flat)
        self.log_constant = log_volume(flat) + 0.5 * flat.centre.size * LOG_2PI

    def stand(self, values: Array, coordinates: Any, rng: np.random.Generator) -> Any:
        """See `Setting`."""
        return self.hamiltonian.state(
            self.adapter.coordinates(self.tuned, values) if coordinates is None else coordinates
        )

    def seen(self, phase: Any) -> Array:
        """See `Setting`: with angles in the period around their centre."""
        return self.adapter.wrapped(self.tuned, np.array(phase.point.values))

    def _log_weight(self, point: Any) -> float:
        if self.adapter.angles.places.size:
            within = self.adapter.coordinates(self.tuned, point.values)
            return point.log_density_at(within) + self.log_constant
        return float(point.log_density) + self.log_constant

    def reference(self) -> ResidualReference:
        """See `NormalSetting`: of a density on circles that on a period of each."""
        flat, angles = FlatMap(*self.tuned.flat), self.adapter.angles
        residual = self.hamiltonian.residual
        if angles.places.size:
            residual = PeriodTarget(residual, angles, flat.centre[angles.places])

        def stand_at(values: Array, rng: np.random.Generator) -> Any:
            return self.stand(values, None, rng).point

        return ResidualReference(
            residual, flat.centre.size, self.log_constant, stand_at, lambda point: np.array(point.values)
        )

    def kernel(self, tuned: ChartTuning, step_size: StepSize, *, tuning: bool) -> HMC[Any]:
        """See `Setting`: in draws there may be several trajectories, and longer ones than the plan has."""
        kernel = self.hmc(step_size.in_use(tuning=tuning))
        trajectory = tuned.path.lengthened(self.plan.trajectory, tuning=tuning)
        if not tuning and tuned.rounds > 1:
            trajectory = replace(trajectory, rounds=tuned.rounds)
        return replace(kernel, trajectory=trajectory)

    def rehearse(self, phase: Any, step_size: float, rng: np.random.Generator) -> Any:
        """See `Setting`."""
        # The search for a step size makes single steps, whatever the trajectory.
        self.single_step(phase, step_size, rng)
        return self.hmc(step_size).step(phase, rng).state


@dataclass(slots=True)
class EmulatedSetting(_ChartSetting):
    """The density without its gradient, in standard normals ϑ, with an emulator; see `Setting`.

    A phase is a state at a `ValuePoint`.
    """

    exact: GraphSetting
    flow: SurrogateFlow

    @classmethod
    def of(cls, value: Any, exact: GraphSetting) -> EmulatedSetting:
        """Return the setting for what is known."""
        tuned = exact.tuned
        assert tuned.emulator is not None
        assert tuned.marginals is not None
        hamiltonian = GaussianHamiltonian(ValueTarget(value, tuned.chart, tuned.marginals))
        return cls(hamiltonian, exact.plan, exact, SurrogateFlow(tuned.emulator))

    def stand(self, values: Array, coordinates: Any, rng: np.random.Generator) -> Any:
        """See `Setting`."""
        if coordinates is None:
            coordinates = self._chart.recover(self.exact.adapter.charted_point(self.exact.tuned, values))
        return self.hamiltonian.state(coordinates)

    @property
    def _chart(self) -> MarginalChart:
        chart: MarginalChart = self.hamiltonian.residual.chart
        return chart

    def _log_weight(self, point: Any) -> float:
        """Return the log weight in the coordinates of `reference`."""
        flat = to_flat(FlatMap(*self.exact.tuned.flat), point.coordinates)
        return float(point.charted_log_density + 0.5 * flat @ flat) + self.exact.log_constant

    def reference(self) -> ResidualReference:
        """See `NormalSetting`: that of the density with its gradient."""
        return self.exact.reference()

    def kernel(self, tuned: ChartTuning, step_size: StepSize, *, tuning: bool) -> Kernel[Any]:
        """See `Setting`: a trajectory along the emulator.

        With a probability that grows with the share that is rejected, one along the density comes before.
        """
        share = TURNS.joint_by_rejected * TURNS.need(1.0 - tuned.trial[1])
        exact = DensityMove(self.exact.hmc(step_size.average), self._to_exact, self._from_exact)
        return Cycle((Sometimes(share, exact), self._along(self.plan.trajectory.path)))

    def _along(self, path: JitteredPath) -> SurrogateHMC:
        return SurrogateHMC(self.hamiltonian, self.flow, path)

    def _to_exact(self, phase: Any) -> Any:
        """Return the same place in the coordinates of trajectories along the density."""
        flat = FlatMap(*self.exact.tuned.flat)
        return self.exact.hamiltonian.state(to_flat(flat, phase.point.coordinates))

    def _from_exact(self, phase: Any) -> Any:
        z = from_flat(FlatMap(*self.exact.tuned.flat), phase.position)
        return self.hamiltonian.state(self._chart.recover(z))

    def rehearse(self, phase: Any, step_size: float, rng: np.random.Generator) -> Any:
        """See `Setting`."""
        again = self._from_exact(self._to_exact(phase))
        return self._along(JitteredPath(REHEARSED_STEP, 0.0, 1)).step(again, rng).state
