"""How kernels of any continuous variables are built, in a position-dependent metric of the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.chains.recipe import HMCSetting
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.general.matrix_density import MatrixDensity
from pymc_rmhmc.kernels.kernel import HMC
from pymc_rmhmc.steps.starts import scattered
from pymc_rmhmc.steps.whole_model_recipe import WholeModelRecipe
from pymc_rmhmc.tuning.sites import SiteAdapter, SiteTuning
from pymc_rmhmc.tuning.step_size import StepSize

__all__ = ["RiemannianRecipe", "RiemannianSetting"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class RiemannianSetting(HMCSetting):
    """The Hamiltonian of a metric, in the model's own values; see `Setting`."""

    def stand(self, values: Array, coordinates: Any, rng: np.random.Generator) -> Any:
        """See `Setting`: coordinates are the values."""
        return self.hamiltonian.state(np.ascontiguousarray(values))

    def failure(self, phase: Any) -> Failure:
        """See `Setting`."""
        failure: Failure = self.hamiltonian.failure(phase)
        return failure

    def place(self, phase: Any, values: Array | None) -> tuple[Any, Array, float]:
        """See `Setting`."""
        return phase.position, phase.position if values is None else values, phase.density_point.log_density

    def seen(self, phase: Any) -> Array:
        """Return the values."""
        return np.array(phase.position)

    def kernel(self, tuned: SiteTuning, step_size: StepSize, *, tuning: bool) -> HMC[Any]:
        """See `Setting`."""
        return self.hmc(step_size.in_use(tuning=tuning))

    def rehearse(self, phase: Any, step_size: float, rng: np.random.Generator) -> Any:
        """See `Setting`."""
        return self.single_step(phase, step_size, rng)


class RiemannianRecipe(WholeModelRecipe):
    """Continuous variables of a model given the others; see `Recipe`.

    Parameters
    ----------
    values : ValueModel
        Their density, with the matrix that the metric is made of.
    name : str
        For messages.
    plan : Plan
        Metric, integrator, lengths.
    labels : mapping of str to str
        What users call the value variables.
    """

    # Evaluation and pullback.
    n_functions = 2

    def __init__(self, values: Any, name: str, plan: Plan, labels: Mapping[str, str]) -> None:
        super().__init__(values, name, plan, labels)
        self.adapter = SiteAdapter(None)

    def setting(self, tuned: SiteTuning) -> RiemannianSetting:
        """See `Recipe`."""
        if self._setting is None:
            density = MatrixDensity(self.model.evaluate, self.model.pull, self.model.size)
            hamiltonian = self.plan.metric.bind(density).hamiltonian()
            self._setting = RiemannianSetting(self.plan.integrator.extend(hamiltonian), self.plan)
        setting: RiemannianSetting = self._setting
        return setting

    def start(self, tuned: SiteTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `Recipe`: near a point that nobody chose."""
        if not approximated:
            return values
        setting = self.setting(tuned)
        phase = scattered(
            lambda position: setting.stand(position, None, rng), setting.failure, values, rng
        )
        return values if phase is None else np.array(phase.position)

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[SiteTuning]:
        """See `Recipe`."""
        yield self.adapter.initial()
