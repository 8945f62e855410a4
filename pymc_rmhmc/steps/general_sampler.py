"""Any continuous variables of a model in one chain, in the flat chart that is read from the graph."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymc.step_methods.state import dataclass_state

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian
from pymc_rmhmc.errors import ConfigurationError, RMHMCError
from pymc_rmhmc.geometry.general.charts import ElementwiseChart, RowsChart, VariableChart
from pymc_rmhmc.geometry.general.loops import FlatMap
from pymc_rmhmc.geometry.general.mass import fit_flat_map, identity_map, map_of_gradient, to_flat
from pymc_rmhmc.geometry.general.target import GeneralTarget
from pymc_rmhmc.kernels.kernel import HMC, Kernel, Transition
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.steps.chain_sampler import NEARNESS, REHEARSED_STEP, ChainSampler, ChainState
from pymc_rmhmc.steps.options import Plan
from pymc_rmhmc.steps.words import in_words

__all__ = ["GeneralSampler", "GeneralState"]

type Array = NDArray[np.float64]
type Point = dict[str, Array]

# Coordinates that share a dense block of the mass matrix, at most.
MOST_DENSE = 50
# Tuning draws at which chart and mass are refitted first; afterwards at the fractions that all samplers have. Gradients
# tell a scale from a few draws, and a chain that starts far out needs to know it at once.
EARLY_REFITS = (6, 15, 30, 60)
# What PyMC spends on a draw, and this package beside the trajectory: as long again is worth spending on gradients, of
# which each takes so long, and so much more for every number that it reads. Measured on one core of 2024; in seconds.
OVERHEAD, GRADIENT, NUMBER = 1e-4, 2e-6, 2e-8
# A path of about 2 turns most values to the other side of their centre: an odd number of them keeps a draw from coming
# back to where it was. Three make draws next to independent, and of two a funnel of 1000 groups made a third of the
# effective draws a second of one or three.
ROUNDS = 3
# A lag-one autocorrelation above this is slow: several trajectories a draw cost no more then, for each effective draw.
SLOW = 0.5
# Half the width of where chains start around a point that nobody chose, as PyMC has it.
SCATTER = 1.0


@dataclass_state
class GeneralState(ChainState):
    """The state of the chain: the chart's constants, the map to flat coordinates, and draws to refit them to.

    `n_steps` are those of the tuning draws since the last refit. From them, and from whether some coordinate moved
    slowly before it, follow a draw's trajectories, `rounds`.
    """

    chart: Any = field(default=None)
    flat: Any = field(default=None)
    draws: list[Any] = field(default_factory=list)
    n_steps: list[int] = field(default_factory=list)
    is_slow: bool = False
    rounds: int = 1


class GeneralSampler(ChainSampler):
    """The chain of some continuous variables of a model.

    Parameters
    ----------
    general : GeneralModel
        Their density.
    plan, initial_values, own_initval
        As in `ChainSampler`.
    """

    kept = ("general", "charts", *ChainSampler.kept)
    state: GeneralState

    def __init__(self, general: Any, name: str, plan: Plan, initial_values: Array, own_initval: bool) -> None:
        self.general = general
        variables = general.variables
        slices = [(n, slice(0, p.stop - p.start)) for n, p in zip(variables.names, variables.slices, strict=True)]
        self.charts = tuple(_chart(places, n_columns) for places, n_columns in general.charts)
        super().__init__(name, plan, slices, initial_values, own_initval)

    def _new_state(self, refits: tuple[int, ...]) -> GeneralState:
        early = tuple(at for at in EARLY_REFITS if refits and at < refits[0])
        return GeneralState(refits=(*early, *refits))

    def _forget(self) -> None:
        self._given: Any = None
        self._target: Any = None

    @property
    def n_functions(self) -> int:
        """See `ChainSampler`."""
        return 1 + (self.general.scores is not None)

    def rehearse(self, point: Point, rng: np.random.Generator) -> None:
        """See `ChainSampler`."""
        self._condition(point)
        values = self.read(point)
        if self.general.scores is not None:
            self.general.scores(values)
        self._enter(values, rng)
        # A refit calls the density from Python, which is compiled for itself.
        self.general.density(np.ascontiguousarray(self._phase.position), self.state.chart)
        if not self._has_failed:
            hamiltonian, integrator = self._hamiltonian, self.plan.integrator
            # The search for a step size makes single steps, whatever the trajectory.
            transition(hamiltonian, integrator, self._phase, 1, REHEARSED_STEP, rng)
            self._keep(self.plan.trajectory.move(hamiltonian, integrator, self._phase, REHEARSED_STEP, rng).state)

    def _kernel(self, *, tuning: bool) -> Kernel[Any]:
        """In draws, as many trajectories as take about as long as everything else that a draw costs."""
        trajectory: Any = self.plan.trajectory
        if not tuning and self.state.rounds > 1:
            trajectory = replace(trajectory, rounds=self.state.rounds)
        return HMC(self._hamiltonian, self.plan.integrator, trajectory, self.current_step_size(tuning=tuning))

    def _move(self, rng: np.random.Generator, *, tuning: bool) -> Transition[Any]:
        outcome = super()._move(rng, tuning=tuning)
        if tuning:
            self.state.n_steps.append(outcome.n_steps)
        return outcome

    def _judge(self) -> None:
        super()._judge()
        state = self.state
        if state.n_steps and self.plan.may_repeat:
            gradients = OVERHEAD / (GRADIENT + NUMBER * self.general.n_numbers)
            is_cheap = gradients >= ROUNDS * float(np.mean(state.n_steps))
            state.rounds = ROUNDS if is_cheap or state.is_slow else 1
        state.n_steps = []

    def _condition(self, point: Point) -> None:
        given = {name: np.array(point[name]) for name in self.general.inputs}
        known = self._given
        if known is not None and all(np.array_equal(known[name], value) for name, value in given.items()):
            return
        self.general.bind(point)
        self._given = given
        self._take_given(given)
        if self.state.flat is None:
            general, state = self.general, self.state
            state.chart, state.flat = np.zeros(general.n_constants), identity_map(np.zeros(general.size))
        self._build()

    def _build(self) -> None:
        density, state = self.general.density, self.state
        self._target = GeneralTarget(density.function, density.bound, state.chart, FlatMap(*state.flat))
        target = self._target
        self._hamiltonian = GaussianHamiltonian(target, follow=target.follow, makes=target)
        self._phase = None

    @property
    def _start_is_final(self) -> bool:
        return not self.general.inputs

    def _start(self, values: Array, point: Point, rng: np.random.Generator) -> None:
        scattered = self._starts_from_laplace(values)
        first = self._scatter(values, rng) if scattered else values
        self._take_first_map(first)
        self._begin(first, point, rng, approximated=scattered)

    def _scatter(self, values: Array, rng: np.random.Generator) -> Array:
        """A point near one that nobody chose, nearer where there is no density; at last the point itself."""
        width = SCATTER * rng.uniform(-1.0, 1.0, values.size)
        for nearness in NEARNESS:
            self._phase = self._hamiltonian.state(nearness * width + self._coordinates(values))
            if not self._has_failed:
                return np.array(self._phase.point.values)
        return values

    def _take_first_map(self, values: Array) -> None:
        """Begin with the scales that the gradient at the first point suggests."""
        self._phase = self._hamiltonian.state(self._coordinates(values))
        if not self._has_failed:
            z = self._phase.position  # the map is still the identity
            self.state.flat = tuple(map_of_gradient(z, self._phase.point.slope))
            self._build()

    def _enter(self, values: Array, rng: np.random.Generator) -> None:
        """Stand at given values: from memory where they are the ones that were kept."""
        state = self.state
        known = state.coordinates is not None and np.array_equal(values, state.values)
        coordinates = state.coordinates if known else self._coordinates(values)
        self._phase = self._hamiltonian.state(coordinates)
        self._remember(values)

    def _coordinates(self, values: Array) -> Array:
        """U of values x."""
        # Where a scale is 0 a value has no coordinate: it begins at its location.
        _, moments = self._scored(values[None])
        charted = np.nan_to_num(self._charted(values[None], moments)[0], posinf=0.0, neginf=0.0)
        return to_flat(FlatMap(*self.state.flat), charted)

    def _scored(self, values: Array) -> tuple[Array, Array]:
        """Scores and moments of the charted elements at each of some values (t, d)."""
        if not self.charts:
            return np.empty((len(values), 0)), np.empty((len(values), 0))
        scores, moments = zip(*(self.general.scores(np.ascontiguousarray(row)) for row in values), strict=True)
        return np.array(scores), np.array(moments)

    def _charted(self, values: Array, moments: Array) -> Array:
        """Z (t, d) of values (t, d), whose moments are known."""
        found = values.copy()
        at = constant = 0
        for chart in self.charts:
            held = self.state.chart[constant : constant + chart.n_constants]
            own = moments[:, at : at + chart.n_moments]
            found[:, chart.places] = chart.standardised(values[:, chart.places], own, held)
            at, constant = at + chart.n_moments, constant + chart.n_constants
        return found

    def _keep(self, phase: Any) -> None:
        self._phase = phase
        self._remember(np.array(phase.point.values))

    def _remember(self, values: Array) -> None:
        """Note where the chain is, in both coordinates, and the model's log density there."""
        phase, state = self._phase, self.state
        state.coordinates, state.values, self.values = phase.position, values, values
        self.log_density = phase.point.model_log_density

    def _observe(self) -> None:
        self.state.draws.append(self.values)

    def _forget_window(self) -> None:
        self.state.draws = []

    def _refit(self, rng: np.random.Generator, *, with_sites: bool) -> None:
        state = self.state
        draws, state.draws = np.array(state.draws), []
        if not with_sites or len(draws) < 2:
            return
        state.coordinates, state.n_steps = None, []
        scores, moments = self._scored(draws)
        if self.charts:
            state.chart = self._fitted_chart(draws, scores)
        positions = self._charted(draws, moments)
        self._fit_map(positions)
        state.is_slow = _is_slow(positions)
        self._build()
        if state.step_size is not None:
            state.step_size.restart(min(1.0, state.step_size.maximum))

    def _fitted_chart(self, draws: Array, scores: Array) -> Array:
        """The constants of every chart: the lines that the scores of the rest follow."""
        found, start = [], 0
        for chart in self.charts:
            m = chart.places.size
            found.append(chart.fit(draws[:, chart.places], scores[:, start : start + m]))
            start += m
        return np.concatenate(found)

    def _fit_map(self, positions: Array) -> None:
        """The map to flat coordinates, from draws of z and their gradients in the chart as it is now."""
        function, state = self.general.density, self.state
        d = self.general.size
        slopes = np.array([function(np.ascontiguousarray(z), state.chart)[1][:d] for z in positions])
        good = np.isfinite(slopes).all(axis=1) & np.isfinite(positions).all(axis=1)
        if good.sum() >= 2:
            self._check_read(slopes[good])
            state.flat = tuple(fit_flat_map(positions[good], slopes[good], self._dense()))

    def _check_read(self, slopes: Array) -> None:
        """Raise for a value that the density does not depend on: it has no distribution."""
        unread = np.flatnonzero((slopes == 0.0).all(axis=0))
        if unread.size:
            raise ConfigurationError(
                f"{self._label(int(unread[0]))}: the model's log density does not depend on it, so it has no posterior "
                "distribution. Give it a proper prior in place of a Flat one, or data that depend on it."
            )

    def _dense(self) -> NDArray[np.int64]:
        """The coordinates that share a dense block: all, or those which no chart moves, if they are few."""
        general = self.general
        if general.size <= MOST_DENSE or not self.charts:
            return np.arange(general.size) if general.size <= MOST_DENSE else np.empty(0, np.int64)
        rest = np.setdiff1d(np.arange(general.size), general.places)
        return rest if rest.size <= MOST_DENSE else np.empty(0, np.int64)

    def _curvatures(self) -> set[str]:
        return set()

    @property
    def _prior_moves(self) -> bool:
        return True

    def _start_error(self, point: Point) -> RMHMCError | None:
        bad = self.general.not_finite(point)
        if not bad:
            return None
        said = ", ".join(f"{name} is {value}" for name, value in bad.items())
        where = in_words({self.labels.get(name, name): point[name] for name in self.general.variables.names})
        return ConfigurationError(
            f"At the chain's starting point, where {where}, the log density of {said}. "
            "The cause is one of these distributions or Potentials, or its data. Correct it, or start elsewhere with "
            "`initvals`."
        )


def _is_slow(draws: Array) -> bool:
    """Whether successive draws (t, d) of some coordinate are much alike."""
    centred = draws - draws.mean(axis=0)
    products = (centred[1:] * centred[:-1]).sum(axis=0)
    return bool((products > SLOW * (centred**2).sum(axis=0)).any())


def _chart(places: NDArray[np.int64], n_columns: int) -> VariableChart:
    """The chart of one variable, of independent elements or of rows."""
    return ElementwiseChart(places) if n_columns == 1 else RowsChart(places, n_columns)
