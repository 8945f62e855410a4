"""A model's density in its flat chart, and the scores to which the chart is fitted, as compiled functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.simulator import SimulatorRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError, listed
from pymc_rmhmc.model.general.angles import period_of
from pymc_rmhmc.model.general.chart import Charted, charted_variables, place
from pymc_rmhmc.model.general.cost import gradient_seconds, is_expensive
from pymc_rmhmc.model.general.packed import PackedModel
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, no_derivative_in_words, replaced
from pymc_rmhmc.model.hyperparameters import GraphFunction, joined

__all__ = ["GeneralModel", "check_differentiable", "check_no_simulator", "gradient_of"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Symbol = TensorVariable
# The log density of every variable and potential.
type Terms = dict[TensorVariable, TensorVariable]


class GeneralModel(PackedModel):
    """The continuous free variables of a model as one vector, in a flat chart.

    Parameters
    ----------
    model : pymc.Model
        The model.
    variables : sequence of TensorVariable
        The free variables that are sampled.
    point : dict
        Where shapes are taken.

    Attributes
    ----------
    variables : Hyperparameters
        How they are packed: all value variables as one vector x (d,).
    names : tuple of str
        The names of these variables in the model.
    charted : list of ChartedVariable
        Those which the chart moves relative to others, parents first.
    charts : tuple of (int array, int, bool)
        Of each: where its elements are in x; the columns that share a covariance, 1 where elements are independent; and
        whether it is the noise of effects in non-centred form.
    angles : (int array, array)
        Which values stand for points on a circle, and after how much each comes back to the same point.
    n_constants : int
        Of all charts together.
    density : GraphFunction
        ``(z, constants) -> (log density of z, [gradient (d,), x (d,), log-Jacobian])``.
    value : GraphFunction
        ``(z, constants) -> (log density of z, [x (d,), log-Jacobian])``: without the gradient.
    scores : GraphFunction or None
        ``(x,) -> (scores, moments, own scores)``: the score that everything but its own prior gives each charted
        element, where its prior lies, variable by variable, and the score that its prior gives. None if no variable is
        charted.
    terms : DensityTerms
        The log density term by term, for errors.
    gradient_seconds : float
        About how long a gradient takes, by what the graph shows.
    """

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> None:
        super().__init__(model, variables, point)
        shapes = dict(zip(self.variables.variables, self.variables.shapes, strict=True))
        self.charted = charted_variables(model, variables, shapes)
        ranges = dict(zip(self.variables.variables, self.variables.slices, strict=True))
        self.angles = self._angles(model, ranges, point)
        parts = [ranges[each.variable] for each in self.charted]
        self.charts = tuple(
            (_places(p, each), each.n_columns, each.is_noise) for p, each in zip(parts, self.charted, strict=True)
        )
        self.n_constants = sum(each.n_constants for each in self.charted)
        # PyMC writes a density out at each call, which takes a third of a second for a mixture.
        terms = dict(zip(_terms(model), model.logp(vars=_terms(model), sum=False), strict=True))
        self.density, self.value = _density(model, self, terms, point)
        self.scores = _scores(model, self, terms) if parts else None
        whole = pt.add(*(term.sum() for term in terms.values()), pt.zeros(()))
        self.gradient_seconds = gradient_seconds(model, variables, point, whole)

    @property
    def shared(self) -> list[Any]:
        """The shared data that are read."""
        return self.density.shared

    @property
    def places(self) -> NDArray[np.int64]:
        """Where the charted elements are in x, variable by variable."""
        found = [places for places, _, _ in self.charts]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    @property
    def is_expensive(self) -> bool:
        """Whether trajectories are to follow an emulator: it is of one density, which no other step may change."""
        # An emulator is of a density on the line, which ends where the draws do.
        return not self.inputs and not self.angles[0].size and is_expensive(self.size, self.gradient_seconds)

    def bind(self, point: Point) -> None:
        """Take the variables that other steps move, and shared data, from a point."""
        self.density.bind(point)
        self.value.bind(point)
        if self.scores is not None:
            self.scores.bind(point)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The value variables of other steps on which the density depends."""
        return self.density.value_names

    def _angles(
        self, model: pm.Model, ranges: dict[TensorVariable, slice], point: Point
    ) -> tuple[NDArray[np.int64], Array]:
        """Find which values are angles, and their periods; raise a `ConfigurationError` for one that is charted."""
        charted = {each.variable for each in self.charted}
        places: list[int] = []
        periods: list[float] = []
        for variable, part in ranges.items():
            period = period_of(model, variable, point)
            if period is None:
                continue
            if variable in charted:
                raise ConfigurationError(
                    f"{variable.name}: a location and a scale are registered for it, but its transform makes it an "
                    "angle, and an angle moves on its circle, relative to nothing. Take its distribution out of "
                    "register_family, or give the variable another transform."
                )
            places += range(part.start, part.stop)
            periods += [period] * (part.stop - part.start)
        return np.array(places, np.int64), np.array(periods, np.float64)

    def __getstate__(self) -> dict[str, Any]:
        # The graphs of the charted variables are needed for reading alone.
        return self.__dict__ | {"charted": []}


def _places(part: slice, charted: Charted) -> NDArray[np.int64]:
    """Return where a charted variable's elements are in x, in the order of its chart."""
    return np.ravel(charted.by_rows(np.arange(part.start, part.stop).reshape(charted.shape)))


def _density(
    model: pm.Model, general: GeneralModel, terms: Terms, point: Point
) -> tuple[GraphFunction, GraphFunction]:
    """Build the log density of the chart's coordinates, values and log-Jacobian: with the gradient, and without."""
    variables, constants = general.variables, pt.dvector("constants")
    placed = place(general.charted, variables.parts, constants)
    rest = replaced([term.sum() for v, term in terms.items() if v not in placed.own], placed.values)
    total = pt.add(*(t.astype("float64") for t in (*rest, *placed.own.values())), placed.log_jacobian, pt.zeros(()))
    placed_at = [placed.values[model.rvs_to_values[v]] for v in variables.variables]
    placed_at.append(placed.log_jacobian + placed.scales)
    slopes = gradient_of(total, list(variables.parts.values()))
    vectors = (joined([*slopes, *placed_at]), joined(placed_at))
    with_gradient, alone = (GraphFunction(model, [variables.symbol, constants], [total, v], point) for v in vectors)
    return with_gradient, alone


def _scores(model: pm.Model, general: GeneralModel, given: Terms) -> GraphFunction:
    """Build, at values x, each charted element's score of the rest, its moments, and the score of its prior."""
    # Own priors read a twin of their value, so that one pass back through the graph keeps the two apart.
    twins = {each.value: each.value.clone() for each in general.charted}
    charted = {each.variable for each in general.charted}
    terms = []
    for variable, term in given.items():
        value = model.rvs_to_values.get(variable)
        terms.append(replaced([term], {value: twins[value]})[0] if variable in charted else term)
    total = pt.add(*(t.sum() for t in terms), pt.zeros(()))
    scores = pt.grad(total, [*twins, *twins.values()], disconnected_inputs="ignore")
    scores = [each.by_rows(s) for each, s in zip((*general.charted, *general.charted), scores, strict=True)]
    rest, own, moments = scores[: len(twins)], scores[len(twins) :], [each.moment_vector() for each in general.charted]
    found = [joined(parts) for parts in (rest, moments, own)]
    found = replaced(found, {twin: value for value, twin in twins.items()})
    return GraphFunction(model, [general.variables.symbol], general.variables.place(found))


def _terms(model: pm.Model) -> list[TensorVariable]:
    """Return all that has a log density."""
    return [*model.basic_RVs, *model.potentials]


def check_differentiable(model: pm.Model, variables: Sequence[TensorVariable]) -> None:
    """Raise if PyTensor has no gradient of the log density; nothing is compiled.

    Raises
    ------
    UnsupportedModelError
        With the operation that has none.
    """
    check_no_simulator(model)
    gradient_of(model.logp(), [model.rvs_to_values[v] for v in variables])


def check_no_simulator(model: pm.Model) -> None:
    """Raise for a likelihood that simulates: its density is random, and has no gradient.

    Raises
    ------
    UnsupportedModelError
        If there is one.
    """
    simulated = [str(v.name) for v in model.basic_RVs if isinstance(v.owner.op, SimulatorRV)]
    if simulated:
        raise UnsupportedModelError(
            f"{listed(simulated)} is a pm.Simulator, whose density is estimated by simulation and has no gradient. "
            "RMHMC needs one, as NUTS does. Sample the model with pm.sample_smc(), which PyMC has for simulators."
        )


def gradient_of[Wrt](total: Symbol, symbols: Wrt) -> Wrt:
    """Return the gradient of the log density; raise an error that names an operation without one.

    Raises
    ------
    UnsupportedModelError
        If PyTensor cannot differentiate the density.
    """
    try:
        found: Wrt = pt.grad(total, symbols, disconnected_inputs="ignore")
    except NO_DERIVATIVE as error:
        why = no_derivative_in_words("the model's log density", error)
        raise UnsupportedModelError(
            f"{why}. RMHMC needs its gradient, as NUTS does. Write the operation with PyTensor's functions or give it "
            "a `pullback`, or sample its variables with pm.Slice or pm.DEMetropolisZ."
        ) from None
    return found
