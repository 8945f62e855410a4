"""What a chain in the chart of a model's graph learns: the chart's constants, and the map to flat coordinates.

Where each gradient is dear it learns an emulator of the density too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation.emulation import FEWEST_DRAWS, emulate
from pymc_rmhmc.errors import ConfigurationError, unread_in_words
from pymc_rmhmc.graph_chart.affine_map import distance_from_normal, fit_flat_map, identity_map, to_flat
from pymc_rmhmc.graph_chart.constants import NO_ANGLES, Angles, VariableChart
from pymc_rmhmc.graph_chart.graph_target import ValueTarget
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.kernels.kernel import Outcome
from pymc_rmhmc.kernels.turns import ALONG_DENSITY, ALONG_SURROGATE
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.emulator import Emulator
from pymc_rmhmc.tuning.adaptation import DualAveraging, Moment, Refit, RefitPolicy, StepSize, StepSizeAdapter
from pymc_rmhmc.tuning.joint_adapter import TURNS
from pymc_rmhmc.tuning.path_length import PathTrial

__all__ = ["GRAPH", "ChartTuning", "EmulatingAdapter", "GraphChartAdapter", "GraphPolicy"]

type Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class GraphPolicy:
    """How many trajectories a draw has."""

    # Seconds that PyMC spends on a draw, and this package besides trajectories: as long again is worth spending on
    # gradients. Measured on one core of 2024.
    overhead: float = 1e-4
    # Trajectories of a draw, where several pay. A path of about 2 turns most values to the other side of their centre,
    # so that an odd number of them does not lead back to where a draw began: with two a funnel of 1000 groups made a
    # third of the effective draws a second that one or three make.
    rounds: int = 3

    def is_cheap(self, gradient_seconds: float, n_steps: float) -> bool:
        """Return whether several trajectories of so many steps take no longer than the rest of a draw."""
        return self.overhead >= self.rounds * n_steps * gradient_seconds

    def free_steps(self, gradient_seconds: float) -> float:
        """Return how many gradients take as long as a trajectory's share of the rest of a draw."""
        return self.overhead / (self.rounds * gradient_seconds)


GRAPH = GraphPolicy()
# Gradients tell a scale from a few draws, and a chain that starts far out needs to know it at once.
EARLY_REFITS = RefitPolicy(early=(6, 15, 30, 60))
# How far a value is moved to see whether the density depends on it: where it is far out, rounding hides a small move.
FAR = (1.0, -1.0, 1e3, -1e3, 1e6, -1e6)


@dataclass
class ChartTuning:
    """What is known of a chain in the graph's chart."""

    chart: Array  # (n_constants,), the chart's constants
    flat: Any  # the map to flat coordinates, as `FlatMap` has it
    # Values since the last refit, and the steps of tuning draws since then.
    draws: list[Array] = field(default_factory=list)
    n_steps: list[int] = field(default_factory=list)
    rounds: int = 1  # trajectories of a draw after tuning
    path: PathTrial = field(default_factory=PathTrial)
    # Where trajectories follow an emulator: that of the density in standard normals ϑ, and the chart from these to z.
    emulator: Emulator | None = None
    marginals: MarginalChart | None = None
    trial: tuple[int, float] = (0, 0.0)  # how many moves tuning has made along the emulator, and their mean acceptance


@dataclass(frozen=True, slots=True)
class GraphChartAdapter(StepSizeAdapter[ChartTuning]):
    """Refits the chart to scores, and then the map to gradients.

    At most `most_dense` coordinates share a dense block of the mass matrix. No value on a circle is charted. Messages
    name each value by its label.
    """

    general: Any
    charts: tuple[VariableChart, ...]
    label: Callable[[int], str]
    may_repeat: bool
    most_dense: int
    angles: Angles = NO_ANGLES
    may_lengthen: bool = False
    schedule: RefitPolicy = EARLY_REFITS

    def initial(self) -> ChartTuning:
        """Return the chart without constants, and the identity."""
        flat = identity_map(np.zeros(self.general.size), self.angles.places)
        return ChartTuning(np.zeros(self.general.n_constants), flat)

    def learn(self, tuned: ChartTuning, step_size: StepSize, outcome: Outcome, *, stood: bool) -> bool:
        """Adapt the step size, and count steps."""
        if stood:
            step_size.update(outcome.acceptance)
        tuned.n_steps.append(outcome.n_steps)
        tuned.path.note_steps(outcome.n_steps)
        return False

    def finish(self, tuned: ChartTuning) -> None:
        """Give a draw several trajectories where they are cheap, or one moves slowly."""
        if tuned.n_steps and self.may_repeat:
            is_cheap = GRAPH.is_cheap(self.general.gradient_seconds, float(np.mean(tuned.n_steps)))
            tuned.rounds = GRAPH.rounds if is_cheap or tuned.path.is_slow else 1
        tuned.n_steps = []

    def observe(self, tuned: ChartTuning, seen: Array) -> None:
        """Take the model's values."""
        tuned.draws.append(seen)
        tuned.path.note_draw()

    def forget(self, tuned: ChartTuning) -> None:
        """Drop the window."""
        tuned.draws, tuned.path = [], PathTrial(tuned.path.multiple)

    def refit(
        self, tuned: ChartTuning, step_size: StepSize, moment: Moment, rng: np.random.Generator, *, with_sites: bool
    ) -> Refit[ChartTuning]:
        """Refit all of it; the chart is what sites are elsewhere."""
        draws, found = np.array(tuned.draws), replace(tuned, draws=[])
        if not with_sites or len(draws) < 2:
            return Refit(found, changed=False)
        positions = self.fit(found, draws)
        found.path = tuned.path.next(
            to_flat(FlatMap(*found.flat), positions), GRAPH.free_steps(self.general.gradient_seconds),
            may_explore=self.may_lengthen, is_last=moment.is_last,
        )  # fmt: skip
        step_size.restart(min(1.0, step_size.maximum))
        return Refit(found)

    def fit(self, found: ChartTuning, draws: Array) -> Array:
        """Fit the chart and then the map to draws of the values (t, d); return z (t, d)."""
        found.n_steps, found.path = [], PathTrial(found.path.multiple)
        if self.angles.places.size:
            draws = self.angles.wrapped(draws, self.angles.centre(draws))
        scores, moments, own = self._all_scores(draws)
        fitted = self._fitted_chart(draws, scores, own, moments) if self.charts else found.chart
        plain, best = self._without_shapes(fitted), np.inf
        # Shapes of values one by one may bend a ridge that is straight without them.
        for chart in [plain] if np.array_equal(plain, fitted) else [plain, fitted]:
            z = self.charted(chart, draws, moments)
            flat, distance = self._fitted_map(chart, z)
            if chart is plain or distance < best:
                found.chart, found.flat, positions, best = chart, tuple(flat or found.flat), z, distance
        return positions

    def _without_shapes(self, constants: Array) -> Array:
        """Return constants of the chart in which roots have no shape."""
        stay = [np.full(chart.n_constants, chart.n_scores > 0) for chart in self.charts]
        return np.where(np.concatenate([np.empty(0, bool), *stay]), constants, 0.0)

    def scored(self, values: Array) -> tuple[Array, Array]:
        """Return scores and moments of the charted elements at each of some values (t, d)."""
        scores, moments, _ = self._all_scores(values)
        return scores, moments

    def _all_scores(self, values: Array) -> tuple[Array, Array, Array]:
        """Return the same, and the scores of their own priors."""
        if self.general.scores is None:
            return np.empty((len(values), 0)), np.empty((len(values), 0)), np.empty((len(values), 0))
        found = zip(*(self.general.scores(np.ascontiguousarray(row)) for row in values), strict=True)
        scores, moments, own = (np.array(each) for each in found)
        return scores, moments, own

    def charted(self, constants: Array, values: Array, moments: Array) -> Array:
        """Return z (t, d) of values (t, d), whose moments are known."""
        found = values.copy()
        at = constant = 0
        for chart in self.charts:
            held = constants[constant : constant + chart.n_constants]
            own = moments[:, at : at + chart.n_moments]
            found[:, chart.places] = chart.standardised(values[:, chart.places], own, held)
            at, constant = at + chart.n_moments, constant + chart.n_constants
        return found

    def coordinates(self, tuned: ChartTuning, values: Array) -> Array:
        """Return u of values x, with angles in the period around their centre."""
        return to_flat(FlatMap(*tuned.flat), self.charted_point(tuned, self.wrapped(tuned, values)))

    def wrapped(self, tuned: ChartTuning, values: Array) -> Array:
        """Return values x with angles in the period around their centre."""
        places = self.angles.places
        return self.angles.wrapped(values, FlatMap(*tuned.flat).centre[places]) if places.size else values

    def charted_point(self, tuned: ChartTuning, values: Array) -> Array:
        """Return z of values x."""
        # Where a scale is 0 a value has no coordinate: it begins at its location.
        _, moments = self.scored(values[None])
        found: Array = np.nan_to_num(self.charted(tuned.chart, values[None], moments)[0], posinf=0.0, neginf=0.0)
        return found

    def _fitted_chart(self, draws: Array, scores: Array, own: Array, moments: Array) -> Array:
        """Return the constants of every chart: the lines that the scores of the rest follow."""
        found, start, moment = [], 0, 0
        for chart in self.charts:
            part, at = slice(start, start + chart.n_scores), slice(moment, moment + chart.n_moments)
            found.append(chart.fit(draws[:, chart.places], scores[:, part], own[:, part], moments[:, at]))
            start, moment = start + chart.n_scores, moment + chart.n_moments
        return np.concatenate(found)

    def _fitted_map(self, chart: Array, positions: Array) -> tuple[FlatMap | None, float]:
        """Fit the map to flat coordinates to draws of z and their gradients in a chart.

        Return it with the draws' distance from normal in it, or None and infinity where the draws give none.
        """
        function, d = self.general.density, self.general.size
        slopes = np.array([function(np.ascontiguousarray(z), chart)[1][:d] for z in positions])
        good = np.isfinite(slopes).all(axis=1) & np.isfinite(positions).all(axis=1)
        if good.sum() < 2:
            return None, np.inf
        self._check_read(slopes[good])
        fitted = fit_flat_map(positions[good], slopes[good], self.dense_places(), self.angles)
        distance = np.inf if fitted is None else distance_from_normal(fitted, positions[good], slopes[good])
        return fitted, distance

    def _check_read(self, slopes: Array) -> None:
        """Raise for a value that the density does not depend on: it has no distribution, unless on a circle."""
        unread = np.setdiff1d(np.flatnonzero((slopes == 0.0).all(axis=0)), self.angles.places)
        if unread.size:
            raise ConfigurationError(unread_in_words(self.label(int(unread[0]))))

    def check_read(self, tuned: ChartTuning, position: Array, slope: Array) -> None:
        """Raise a `ConfigurationError` for a value that the density does not depend on, however far it moves.

        It moves from z (d,), where the slope is the gradient of the log density.
        """
        along = self.along(tuned, position)
        for i in map(int, np.setdiff1d(np.flatnonzero(slope == 0.0), self.angles.places)):
            if all(along(i, far) == along(i, 0.0) for far in FAR):
                raise ConfigurationError(unread_in_words(self.label(int(i))))

    def along(self, tuned: ChartTuning, position: Array) -> Callable[[int, float], float]:
        """Return the log density where one coordinate has moved so far from a point z."""

        def moved(which: int, distance: float) -> float:
            z = position.copy()
            z[which] += distance
            return float(self.general.density(z, tuned.chart)[0])

        return moved

    def dense_places(self) -> NDArray[np.int64]:
        """Return the coordinates that share a dense block: all, or those which no chart moves, if they are few."""
        found: NDArray[np.int64] = np.arange(self.general.size)
        if found.size > self.most_dense:
            found = np.setdiff1d(found, self.general.places)
        return found if found.size <= self.most_dense else np.empty(0, np.int64)


# The last of the early refits has just enough draws for an emulator: until then each draw costs several gradients.
EARLY_EMULATION = RefitPolicy(fractions=(0.3, 0.6), early=(6, 15, 70))
# Draws that say where the density is evaluated again.
MOST_DRAWS = 100


@dataclass(frozen=True, slots=True)
class EmulatingAdapter(GraphChartAdapter):
    """Refits chart and map, then makes an emulator, and gives it up where it is no use."""

    schedule: RefitPolicy = EARLY_EMULATION

    def _fitted_chart(self, draws: Array, scores: Array, own: Array, moments: Array) -> Array:
        """Return constants without shapes: an emulator has marginals of its own, and shapes cost gradients."""
        return self._without_shapes(GraphChartAdapter._fitted_chart(self, draws, scores, own, moments))

    def learn(self, tuned: ChartTuning, step_size: StepSize, outcome: Outcome, *, stood: bool) -> bool:
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
