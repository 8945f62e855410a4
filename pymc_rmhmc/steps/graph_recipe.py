"""How kernels of any continuous variables are built, in the flat chart that is read from a model's graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.messages import in_words
from pymc_rmhmc.chains.plan import NEARNESS, Plan
from pymc_rmhmc.chains.recipe import RecipeBase
from pymc_rmhmc.chains.variables import Point, Variables
from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.errors import ConfigurationError, RMHMCError
from pymc_rmhmc.geometry.charts import MarginalChart
from pymc_rmhmc.geometry.emulator import Emulator
from pymc_rmhmc.geometry.general.charts import ElementwiseChart, RowsChart, VariableChart
from pymc_rmhmc.geometry.general.loops import FlatMap
from pymc_rmhmc.geometry.general.mass import map_of_gradient
from pymc_rmhmc.geometry.general.target import GeneralTarget
from pymc_rmhmc.model.general.selection import MOST_DENSE
from pymc_rmhmc.steps.graph_settings import EmulatedSetting, GraphSetting
from pymc_rmhmc.tuning.graph_chart import ChartTuning, GraphChartAdapter
from pymc_rmhmc.tuning.graph_emulator import EmulatingAdapter

__all__ = ["GraphRecipe"]

type Array = NDArray[np.float64]

# Half the width of where chains start around a point that nobody chose, as PyMC has it.
SCATTER = 1.0


class GraphRecipe(RecipeBase):
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

    prior_moves = True

    def __init__(self, general: Any, name: str, plan: Plan, labels: Mapping[str, str]) -> None:
        self.general, self.name, self.plan = general, name, plan
        names, slices = general.variables.names, general.variables.slices
        parts = tuple((n, slice(0, p.stop - p.start)) for n, p in zip(names, slices, strict=True))
        self.variables = Variables(parts, labels)
        charts = tuple(_chart(places, n_columns) for places, n_columns in general.charts)
        self.emulates = plan.may_emulate and general.is_dear
        adapter = EmulatingAdapter if self.emulates else GraphChartAdapter
        self.adapter = adapter(general, charts, self.variables.label, plan.may_repeat, MOST_DENSE)
        self.steps = plan.steps()
        self.forget()

    def forget(self) -> None:
        """See `Recipe`."""
        self._given: Point | None = None
        self._setting: Any = None

    @property
    def n_functions(self) -> int:
        """See `Recipe`."""
        return 1 + (self.general.scores is not None) + self.emulates

    @property
    def start_is_final(self) -> bool:
        """See `Recipe`."""
        return not self.general.inputs

    def bind(self, point: Point) -> tuple[bool, Point]:
        """See `Recipe`."""
        known = self._given
        if known is not None and all(np.array_equal(known[name], point[name]) for name in self.general.inputs):
            return False, known
        self._given = {name: np.array(point[name]) for name in self.general.inputs}
        self.general.bind(point)
        self.drop()
        return True, self._given

    def drop(self) -> None:
        """See `Recipe`."""
        self._setting = None

    def setting(self, tuned: ChartTuning) -> GraphSetting | EmulatedSetting:
        """See `Recipe`."""
        if self._setting is None:
            density = self.general.density
            target = GeneralTarget(density.function, density.bound, tuned.chart, FlatMap(*tuned.flat))
            hamiltonian = GaussianHamiltonian(target, follow=target.follow, makes=target)
            exact = GraphSetting(hamiltonian, self.plan, self.adapter, tuned)
            self._setting = exact if tuned.emulator is None else EmulatedSetting.of(self.general.value, exact)
        setting: GraphSetting | EmulatedSetting = self._setting
        return setting

    def start(self, tuned: ChartTuning, values: Array, rng: np.random.Generator, *, approximated: bool) -> Array:
        """See `Recipe`: near a point that nobody chose, with the scales that the gradient there suggests."""
        first = self._scattered(tuned, values, rng) if approximated else values
        setting = self.setting(tuned)
        phase = setting.stand(first, None, rng)
        if not setting.failure(phase):
            tuned.flat = tuple(map_of_gradient(phase.position, phase.point.slope))  # the map is still the identity
            self.drop()
        return first

    def _scattered(self, tuned: ChartTuning, values: Array, rng: np.random.Generator) -> Array:
        """Return a point nearby, nearer where there is no density; at last the point itself."""
        width, setting = SCATTER * rng.uniform(-1.0, 1.0, values.size), self.setting(tuned)
        for nearness in NEARNESS:
            phase = setting.hamiltonian.state(nearness * width + self.adapter.coordinates(tuned, values))
            if not setting.failure(phase):
                return setting.seen(phase)
        return values

    def start_error(self, point: Point) -> RMHMCError | None:
        """See `Recipe`."""
        said = self.general.terms.in_words(point)
        if not said:
            return None
        sampled = self.general.names
        values = self.general.terms.free_values(point)
        where = in_words({n.removesuffix("_rotated_"): value for n, value in values.items() if n in sampled})
        return ConfigurationError(
            f"At the chain's starting point, where {where}, {said} Correct this, or start elsewhere with `initvals`."
        )

    def where_refused(self) -> str:
        """See `Recipe`."""
        return ""

    def curvatures(self, values: Array) -> set[str]:
        """See `Recipe`."""
        return set()

    def rehearsed(self, values: Array, rng: np.random.Generator) -> Iterator[ChartTuning]:
        """See `Recipe`."""
        if self.general.scores is not None:
            self.general.scores(values)
        tuned = self.adapter.initial()
        # A refit calls the density from Python, which is compiled for itself.
        self.general.density(np.ascontiguousarray(values), tuned.chart)
        yield tuned
        if self.emulates:
            d = self.general.size
            standard = MarginalChart.linear(np.zeros(d), np.eye(d))
            yield replace(tuned, emulator=Emulator.flat(d), marginals=standard)


def _chart(places: NDArray[np.int64], n_columns: int) -> VariableChart:
    """The chart of one variable, of independent elements or of rows."""
    return ElementwiseChart(places) if n_columns == 1 else RowsChart(places, n_columns)
