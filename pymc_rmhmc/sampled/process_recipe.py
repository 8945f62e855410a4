"""How kernels of a process with its hyperparameters, or of these alone, are built in a metric's coordinates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.recipe import Place
from pymc_rmhmc.metrics.processes.process_blocks import GivenField
from pymc_rmhmc.sampled.metric_recipe import RiemannianRecipe, RiemannianSetting
from pymc_rmhmc.sampled.starts import scattered
from pymc_rmhmc.tuning.path_length import MetricTuning

__all__ = ["GivenProcessRecipe", "GivenProcessSetting", "ProcessRecipe", "ProcessSetting"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class ProcessSetting(RiemannianSetting):
    """The Hamiltonian of a metric, whose coordinates need not be the model's values; see `Setting`."""

    density: Any

    def stand(self, values: Array, coordinates: Any, rng: np.random.Generator) -> Any:
        """See `Setting`."""
        position = self.density.enter(values) if coordinates is None else coordinates
        return self.hamiltonian.state(np.ascontiguousarray(position))

    def place(self, phase: Any, values: Array | None) -> Place:
        """See `Setting`."""
        point = phase.density_point
        return Place(phase.position, point.model_values if values is None else values, point.model_log_density)

    def seen(self, phase: Any) -> Array:
        """Return the model's values."""
        values: Array = phase.density_point.model_values
        return values


@dataclass(slots=True)
class GivenProcessSetting(ProcessSetting):
    """The Hamiltonian of hyperparameters with the process held; coordinates are those of both; see `Setting`."""

    def stand(self, values: Array, coordinates: Any, rng: np.random.Generator) -> Any:
        """See `Setting`: from here on the process is held where it is now."""
        position = self.density.whole.enter(values) if coordinates is None else coordinates
        return self.hamiltonian.state(self.density.hold(position))

    def place(self, phase: Any, values: Array | None) -> Place:
        """See `Setting`: the model's values of the process follow from θ and from what is held."""
        whole = phase.density_point.whole
        return Place(whole.position, whole.model_values if values is None else values, whole.model_log_density)

    def seen(self, phase: Any) -> Array:
        """Return the model's values."""
        values: Array = phase.density_point.whole.model_values
        return values


class ProcessRecipe(RiemannianRecipe):
    """One process with its hyperparameters, given the model's other variables; see `Recipe`."""

    _setting_class = ProcessSetting

    @property
    def n_functions(self) -> int:
        """See `Recipe`."""
        return len(self.model.functions)

    def setting(self, tuned: MetricTuning) -> ProcessSetting:
        """See `Recipe`."""
        if self._setting is None:
            field = self._field()
            hamiltonian = self.plan.integrator.extend(self.plan.trajectory.hamiltonian(field))
            self._setting = self._setting_class(hamiltonian, self.plan, field.density)
        setting: ProcessSetting = self._setting
        return setting

    def _field(self) -> Any:
        """Return the metric of what moves."""
        return self.plan.metric.bind(self.model)

    def start(self, tuned: MetricTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `Recipe`: near a point that nobody chose, in whitened coordinates.

        Noise in a smooth process itself would be where its prior has next to no density.
        """
        self.drop()
        if not approximated:
            return values
        setting = self.setting(tuned)
        stand, centre = self._searched(setting, values, rng)
        phase = scattered(stand, setting.failure, centre, rng)
        return values if phase is None else setting.seen(phase)

    def _searched(
        self, setting: ProcessSetting, values: Array, rng: np.random.Generator
    ) -> tuple[Callable[[Array], Any], Array]:
        """Return the function that stands at a point, and the point near which a start is looked for."""
        density, is_white = setting.density, self.model.whitened

        def stand(white: Array) -> Any:
            return setting.stand(white if is_white else density.colour(white), None, rng)

        return stand, values if is_white else density.whiten(values)


class GivenProcessRecipe(ProcessRecipe):
    """The hyperparameters of a process alone; the chain reads and writes the process's values too; see `Recipe`."""

    _setting_class = GivenProcessSetting

    @property
    def own(self) -> slice:
        """See `Recipe`: θ, which comes after the process."""
        return slice(self.model.n_process, None)

    def _field(self) -> Any:
        """Return the metric of θ where the process is held."""
        return GivenField(super()._field())

    def _searched(
        self, setting: ProcessSetting, values: Array, rng: np.random.Generator
    ) -> tuple[Callable[[Array], Any], Array]:
        """Return the function and the point for θ alone."""
        return setting.hamiltonian.state, setting.stand(values, None, rng).position
