"""What a chain in the chart of a model's graph learns where each gradient is dear: an emulator of the density."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation.emulation import emulate
from pymc_rmhmc.approximation.marginals import fit_marginals
from pymc_rmhmc.geometry.charts import MarginalChart
from pymc_rmhmc.geometry.general.loops import FlatMap
from pymc_rmhmc.geometry.general.value import ValueTarget
from pymc_rmhmc.kernels.kernel import Transition
from pymc_rmhmc.kernels.surrogates import ALONG_DENSITY, ALONG_SURROGATE
from pymc_rmhmc.tuning.graph_chart import ChartTuning, GraphChartAdapter
from pymc_rmhmc.tuning.hyperparameters import TURNS
from pymc_rmhmc.tuning.schedule import Moment, Refit, RefitPolicy
from pymc_rmhmc.tuning.step_size import StepSize

__all__ = ["EmulatingAdapter"]

type Array = NDArray[np.float64]

# The last of the early refits has just enough draws for an emulator: until then each costs several gradients.
EARLY_EMULATION = RefitPolicy(fractions=(0.3, 0.6), early=(6, 15, 65))
# Draws that say where the density is evaluated.
MOST_DRAWS = 100


@dataclass(frozen=True, slots=True)
class EmulatingAdapter(GraphChartAdapter):
    """Refits chart and map, then makes an emulator, and gives it up where it is no use."""

    schedule: RefitPolicy = EARLY_EMULATION

    def learn(self, tuned: ChartTuning, step_size: StepSize, outcome: Transition[Any], *, stood: bool) -> bool:
        """Judge the emulator, if there is one."""
        if tuned.emulator is None:
            return GraphChartAdapter.learn(self, tuned, step_size, outcome, stood=stood)
        for move in outcome.of_kind(ALONG_SURROGATE):
            count, mean = tuned.trial
            tuned.trial = count + 1, mean + (move.acceptance - mean) / (count + 1)
        for move in outcome.of_kind(ALONG_DENSITY):
            _correct(step_size, move.acceptance)
        if not TURNS.is_given_up(*tuned.trial):
            return False
        tuned.emulator = tuned.marginals = None
        return True

    def refit(
        self, tuned: ChartTuning, step_size: StepSize, moment: Moment, rng: np.random.Generator, *, with_sites: bool
    ) -> Refit[ChartTuning]:
        """Refit the map and make an emulator; where there is one, make it anew from better draws."""
        draws = np.array(tuned.draws)
        if tuned.emulator is None:
            made = GraphChartAdapter.refit(self, tuned, step_size, moment, rng, with_sites=with_sites)
        else:
            made = Refit(replace(tuned, draws=[]), changed=False)
        if not with_sites or len(draws) < 2:
            return made
        return Refit(made.tuned, made.changed | self._emulates(made.tuned, draws, rng))

    def _emulates(self, found: ChartTuning, draws: Array, rng: np.random.Generator) -> bool:
        """Make an emulator from draws of the values, if they are enough."""
        draws = draws[:: math.ceil(len(draws) / MOST_DRAWS)]
        positions = self.charted(found.chart, draws, self.scored(draws)[1])
        chart = found.marginals or self._chart(found, positions)
        made = None if chart is None else emulate(ValueTarget(self.general.value, found.chart, chart), positions, rng)
        if made is None:
            return False
        found.marginals, found.emulator = made
        found.trial = (0, 0.0)
        return True

    def _chart(self, found: ChartTuning, positions: Array) -> MarginalChart | None:
        """Return a first chart of z: the map, which knows of gradients too."""
        flat = FlatMap(*found.flat)
        if flat.dense.size == flat.centre.size:
            return MarginalChart.linear(flat.centre, flat.factor)
        return fit_marginals(positions)


def _correct(step_size: Any, acceptance: float) -> None:
    """Correct the step size of trajectories along the density, which are too few for dual averaging."""
    step_size.average *= math.exp(TURNS.correction * (acceptance - step_size.target))
    step_size.average = min(step_size.average, step_size.maximum)
