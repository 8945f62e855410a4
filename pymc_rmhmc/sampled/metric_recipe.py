"""How kernels of any continuous variables are built, in a position-dependent metric of the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.chains.recipe import HMCSetting, Place
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.kernels.kernel import HMC
from pymc_rmhmc.metrics.graph_metric import MatrixDensity
from pymc_rmhmc.sampled.starts import scattered
from pymc_rmhmc.sampled.whole_model_recipe import WholeModelRecipe
from pymc_rmhmc.tuning.path_length import MetricTuning, StructureAdapter
from pymc_rmhmc.tuning.step_size import StepSize

__all__ = ["RiemannianRecipe", "RiemannianSetting"]

type Array = NDArray[np.float64]

# Positions near the start at which the Hessian's pattern is read too: at one alone a model may take one branch.
N_NEARBY = 2


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

    def place(self, phase: Any, values: Array | None) -> Place:
        """See `Setting`."""
        position = phase.position
        return Place(position, position if values is None else values, phase.density_point.log_density)

    def seen(self, phase: Any) -> Array:
        """Return the values."""
        return np.array(phase.position)

    def kernel(self, tuned: MetricTuning, step_size: StepSize, *, tuning: bool) -> HMC[Any]:
        """See `Setting`."""
        kernel = self.hmc(step_size.in_use(tuning=tuning))
        return replace(kernel, trajectory=tuned.path.lengthened(self.plan.trajectory, tuning=tuning))

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

    def __init__(self, values: Any, name: str, plan: Plan, labels: Mapping[str, str]) -> None:
        super().__init__(values, name, plan, labels)
        self.adapter = StructureAdapter(self._holds, plan.may_lengthen)
        # The last structure that was read, and all numbers that it was read at: it travels to workers.
        self.known_structure: tuple[Any, tuple[Array, ...]] = (None, ())

    @property
    def n_functions(self) -> int:
        """See `Recipe`: evaluation, pullback, and quadratic forms where the matrix is the metric."""
        return 2 if self.model.along is None else 3

    @property
    def refits(self) -> bool:
        """See `Recipe`: there is a structure to compare, or a length to find."""
        return self._has_structure or self.plan.may_lengthen

    @property
    def _has_structure(self) -> bool:
        return hasattr(self.plan.metric, "find_structure")

    def _density(self, partition: Any = None) -> MatrixDensity:
        """Return the density as it is bound now."""
        model = self.model
        return MatrixDensity(model.evaluate, model.pull, model.size, partition=partition, along=model.along)

    def _holds(self, partition: Any, position: Array, rng: np.random.Generator) -> bool:
        holds: bool = self.plan.metric.holds(self._density(), partition, position, rng)
        return holds

    def setting(self, tuned: MetricTuning) -> RiemannianSetting:
        """See `Recipe`."""
        if self._setting is None:
            hamiltonian = self.plan.trajectory.hamiltonian(self.plan.metric.bind(self._density(tuned.partition)))
            self._setting = RiemannianSetting(self.plan.integrator.extend(hamiltonian), self.plan)
        setting: RiemannianSetting = self._setting
        return setting

    def structure(self, values: Array) -> Any:
        """Return the structure of the Hessian at values (d,) and near them, where the model is bound; None without one.

        Raises
        ------
        ConfigurationError
            If the metric's matrices would be too large.
        """
        if not self._has_structure:
            return None
        known, before = self.known_structure
        numbers = (values, *self.model.evaluate.bound)
        if len(before) == len(numbers) and all(map(np.array_equal, before, numbers)):
            return known
        nearby = np.random.default_rng(0).uniform(-1.0, 1.0, (N_NEARBY, values.size))
        found = self.plan.metric.find_structure(self._density(), [values, *(values + nearby)])
        self.known_structure = (found, numbers)
        return found

    def start(self, tuned: MetricTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `Recipe`: near a point that nobody chose."""
        tuned.partition = self.structure(values)
        self.drop()
        if not approximated:
            return values
        setting = self.setting(tuned)
        phase = scattered(lambda position: setting.stand(position, None, rng), setting.failure, values, rng)
        return values if phase is None else np.array(phase.position)

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[MetricTuning]:
        """See `Recipe`."""
        tuned = MetricTuning(self.structure(values))
        if tuned.partition is not None:
            self._holds(tuned.partition, values, rng)
        yield tuned
