"""How kernels of any continuous variables are built, in the flat chart that is read from a model's graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.graph_chart.affine_map import map_of_gradient
from pymc_rmhmc.graph_chart.circles import Angles
from pymc_rmhmc.graph_chart.constants import chart_of
from pymc_rmhmc.graph_chart.graph_target import GeneralTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.sampled.graph_settings import EmulatedSetting, GraphSetting
from pymc_rmhmc.sampled.starts import scattered
from pymc_rmhmc.sampled.whole_model_recipe import WholeModelRecipe
from pymc_rmhmc.tuning.graph_chart import ChartTuning, GraphChartAdapter
from pymc_rmhmc.tuning.graph_emulator import EmulatingAdapter

__all__ = ["GraphRecipe"]

type Array = NDArray[np.float64]

# At most as many values share a dense mass matrix.
MOST_DENSE = 50
# A chain does not begin where the log density is lower by this than at the point nearby that nobody chose: in units of
# 1e-9 a distance of 1 is hopelessly far.
HOPELESS = 1e8


class GraphRecipe(WholeModelRecipe):
    """Continuous variables of a model given the others; see `Recipe`.

    Parameters
    ----------
    general : GeneralModel
        Their density.
    name : str
        For messages.
    plan : Plan
        Integrator, lengths.
    labels : mapping of str to str
        What users call the value variables.
    """

    def __init__(self, general: Any, name: str, plan: Plan, labels: Mapping[str, str]) -> None:
        super().__init__(general, name, plan, labels)
        charts = tuple(chart_of(*each) for each in general.charts)
        self.emulates = plan.may_emulate and general.is_expensive
        adapter = EmulatingAdapter if self.emulates else GraphChartAdapter
        may_lengthen, angles = plan.may_lengthen and not self.emulates, Angles(*general.angles)
        self.adapter = adapter(
            general, charts, self.variables.label, plan.may_repeat, MOST_DENSE, angles, may_lengthen
        )

    @property
    def n_functions(self) -> int:
        """See `Recipe`."""
        return 1 + (self.model.scores is not None) + self.emulates

    def setting(self, tuned: ChartTuning) -> GraphSetting | EmulatedSetting:
        """See `Recipe`."""
        if self._setting is None:
            exact = self.exact_setting(tuned)
            self._setting = exact if tuned.emulator is None else EmulatedSetting.of(self.model.value, exact)
        setting: GraphSetting | EmulatedSetting = self._setting
        return setting

    def exact_setting(self, tuned: ChartTuning) -> GraphSetting:
        """Return the setting of the density with its gradient, which is not kept."""
        density = self.model.density
        target = GeneralTarget(density.function, density.bound, tuned.chart, FlatMap(*tuned.flat))
        hamiltonian = GaussianHamiltonian(target, advance=target.advance, makes=target)
        return GraphSetting(hamiltonian, self.plan, self.adapter, tuned)

    def start(self, tuned: ChartTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `Recipe`: near a point that nobody chose, with the scales that the gradient there suggests."""
        first = self._scattered(tuned, values, rng) if approximated else values
        setting = self.setting(tuned)
        phase = setting.stand(first, None, rng)
        if not setting.failure(phase):
            self.adapter.check_read(tuned, phase.position, phase.point.slope)
            along = self.adapter.along(tuned, phase.position)  # the map is still the identity
            free = self.adapter.angles.places
            tuned.flat = tuple(map_of_gradient(phase.position, phase.point.slope, along, free))
            self.drop()
        return first

    def _scattered(self, tuned: ChartTuning, values: Array, rng: np.random.Generator) -> Array:
        """Return a point nearby, nearer where there is no density; at last the point itself."""
        setting = self.setting(tuned)
        centre = self.adapter.coordinates(tuned, values)
        least = setting.hamiltonian.state(centre).point.model_log_density - HOPELESS

        def failure(phase: Any) -> Any:
            return setting.failure(phase) or phase.point.model_log_density < least

        phase = scattered(setting.hamiltonian.state, failure, centre, rng)
        return values if phase is None else setting.seen(phase)

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[ChartTuning]:
        """See `Recipe`."""
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
