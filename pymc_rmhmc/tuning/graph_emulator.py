"""What a chain in the chart of a model's graph learns where each gradient is dear: an emulator of the density."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation.emulation import FEWEST_DRAWS, emulate
from pymc_rmhmc.graph_chart.graph_target import ValueTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.kernels.kernel import Transition
from pymc_rmhmc.kernels.surrogates import ALONG_DENSITY, ALONG_SURROGATE
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.tuning.graph_chart import ChartTuning, GraphChartAdapter
from pymc_rmhmc.tuning.joint_adapter import TURNS
from pymc_rmhmc.tuning.schedule import Moment, Refit, RefitPolicy
from pymc_rmhmc.tuning.step_size import DualAveraging, StepSize

__all__ = ["EmulatingAdapter"]

type Array = NDArray[np.float64]

# The last of the early refits has just enough draws for an emulator: until then each draw costs several gradients.
EARLY_EMULATION = RefitPolicy(fractions=(0.3, 0.6), early=(6, 15, 70))
# Draws that say where the density is evaluated again.
MOST_DRAWS = 100


@dataclass(frozen=True, slots=True)
class EmulatingAdapter(GraphChartAdapter):
    """Refits chart and map, then makes an emulator, and gives it up where it is no use."""

    schedule: RefitPolicy = EARLY_EMULATION

    def learn(self, tuned: ChartTuning, step_size: StepSize, outcome: Transition[Any], *, stood: bool) -> bool:
        """Judge the emulator, if there is one."""
        if tuned.emulator is None:
            return GraphChartAdapter.learn(self, tuned, step_size, outcome, stood=stood)
        if not stood:
            return False
        tuned.trial = TURNS.tried(tuned.trial, outcome.of_kind(ALONG_SURROGATE))
        for move in outcome.of_kind(ALONG_DENSITY):
            _correct(step_size, move.acceptance)
        if not TURNS.is_given_up(*tuned.trial):
            return False
        tuned.emulator = tuned.marginals = None
        step_size.restart(cast("DualAveraging", step_size).average)
        return True

    def refit(
        self, tuned: ChartTuning, step_size: StepSize, moment: Moment, rng: np.random.Generator, *, with_sites: bool
    ) -> Refit[ChartTuning]:
        """Refit the map and make an emulator; where there is one, make it anew from better draws.

        Draws that are too few for an emulator stay, so that the next refit has them too; but not those of the way from
        the start.
        """
        draws, found = np.array(tuned.draws), replace(tuned, draws=[])
        if not with_sites or len(draws) < 2:
            return Refit(found, changed=False)
        distinct = np.unique(draws, axis=0)
        are_enough = len(distinct) >= FEWEST_DRAWS
        if tuned.emulator is None:
            positions = self.fit(found, draws)
            step_size.restart(min(1.0, step_size.maximum))
        elif are_enough:
            distinct = distinct[np.linspace(0, len(distinct) - 1, min(len(distinct), MOST_DRAWS)).astype(int)]
            positions = self.charted(found.chart, distinct, self.scored(distinct)[1])
        made = self._emulated(found, positions, rng) if are_enough else None
        if made is None:
            is_under_way = tuned.emulator is not None or len(draws) >= FEWEST_DRAWS // 2
            found.draws = list(tuned.draws) if is_under_way else []
        else:
            found.marginals, found.emulator = made
            found.trial = (0, 0.0)
        return Refit(found, changed=tuned.emulator is None or made is not None)

    def _emulated(
        self, found: ChartTuning, positions: Array, rng: np.random.Generator
    ) -> tuple[MarginalChart, Emulator] | None:
        """Return a chart of z and an emulator of its density, from draws of z; None where there can be none."""
        flat, chart = FlatMap(*found.flat), found.marginals
        if chart is None and flat.dense.size == flat.centre.size:
            chart = MarginalChart.linear(flat.centre, flat.factor)  # the map, which knows of gradients too
        return None if chart is None else emulate(ValueTarget(self.general.value, found.chart, chart), positions, rng)


def _correct(step_size: Any, acceptance: float) -> None:
    """Correct the step size of trajectories along the density, within its bound."""
    corrected = TURNS.corrected(step_size.average, acceptance, step_size.target)
    step_size.average = min(corrected, step_size.maximum)
