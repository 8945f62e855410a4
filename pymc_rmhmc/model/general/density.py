"""A model's density in its flat chart, and the scores to which the chart is fitted, as compiled functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.simulator import SimulatorRV
from pymc.distributions.transforms import ChainedTransform, CircularTransform
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError, listed
from pymc_rmhmc.model.general.chart import Charted, charted_variables, place
from pymc_rmhmc.model.general.cost import gradient_seconds, is_expensive
from pymc_rmhmc.model.general.roots import MOST_SHAPED, N_SHAPE, place_roots, root_places
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, no_derivative_in_words, replaced
from pymc_rmhmc.model.graph.stable import stable
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters, joined
from pymc_rmhmc.model.words.density_terms import DensityTerms

__all__ = ["GeneralModel", "GraphReading", "PackedModel", "check_no_simulator", "gradient_of", "period_of", "twice"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Symbol = TensorVariable

# What to do where a density lacks its first derivative, and where it lacks others.
WITHOUT_GRADIENT = (
    "RMHMC needs its gradient, as NUTS does. Write the operation with PyTensor's functions or give it a `pullback`, or "
    "sample its variables with pm.Slice or pm.DEMetropolisZ."
)
WITHOUT_CURVATURE = (
    "This metric needs derivatives up to the third. Write the operation with PyTensor's functions, or give "
    'RMHMC(metric="flat"), which needs the gradient alone.'
)
# Where a transform of a user's is tried, from the start; the step of its differences; and, of a period, how far off a
# point may be that counts as the same.
DISTANCES, NEARBY = np.geomspace(0.01, 1e4, 240), np.linspace(0.0, 1.0, 9)
STEP, SAME = 1e-4, 1e-6


class GraphReading:
    """What the graph of a model says of some continuous free variables; each answer is found once, when it is asked."""

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> None:
        self.model, self.variables, self.point = model, tuple(variables), point
        self.shapes = {v: np.shape(point[str(model.rvs_to_values[v].name)]) for v in variables}

    @cached_property
    def charted(self) -> list[Charted]:
        """The variables that the chart moves relative to others, parents first."""
        return charted_variables(self.model, self.variables, self.shapes)

    @cached_property
    def periods(self) -> dict[TensorVariable, float]:
        """After how much each variable that is an angle comes back to the same point."""
        found = {v: period_of(self.model, v, self.point) for v in self.variables}
        return {variable: period for variable, period in found.items() if period is not None}

    @cached_property
    def terms(self) -> dict[TensorVariable, TensorVariable]:
        """The log density of every variable and potential."""
        # PyMC writes a density out at each call, which takes a third of a second for a mixture.
        variables = [*self.model.basic_RVs, *self.model.potentials]
        terms = map(stable, self.model.logp(vars=variables, sum=False))
        return dict(zip(variables, terms, strict=True))

    @cached_property
    def log_density(self) -> TensorVariable:
        """The sum of all terms."""
        return pt.add(*(term.sum() for term in self.terms.values()), pt.zeros(()))

    @cached_property
    def gradient_seconds(self) -> float:
        """About how long a gradient takes."""
        return gradient_seconds(self.model, self.variables, self.point, self.log_density)

    def check_differentiable(self) -> None:
        """Raise an `UnsupportedModelError` that names an operation without a derivative; nothing is compiled."""
        check_no_simulator(self.model)
        gradient_of(self.log_density, [self.model.rvs_to_values[v] for v in self.variables])


class PackedModel:
    """Some continuous free variables of a model as one vector of their values x, and compiled functions of it.

    Attributes
    ----------
    variables : Hyperparameters
        How they are packed: all value variables as one vector x (d,).
    names : tuple of str
        The names of these variables in the model.
    terms : DensityTerms
        The log density term by term, for errors.
    """

    # All that are bound to the variables that other steps move, and to shared data.
    functions: tuple[GraphFunction, ...]

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> None:
        self.variables = Hyperparameters(model, variables, point)
        self.names = tuple(str(v.name) for v in variables)
        self.terms = DensityTerms(model)

    @property
    def size(self) -> int:
        """The number of coordinates d."""
        return self.variables.size

    @property
    def shared(self) -> list[SharedVariable]:
        """The shared data that are read."""
        return list(dict.fromkeys(shared for function in self.functions for shared in function.shared))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The value variables of other steps on which the density depends."""
        return tuple(dict.fromkeys(name for function in self.functions for name in function.value_names))

    def bind(self, point: Point) -> None:
        """Take the variables that other steps move, and shared data, from a point."""
        for function in self.functions:
            function.bind(point)


class GeneralModel(PackedModel):
    """The continuous free variables of a model as one vector, in a flat chart.

    Attributes
    ----------
    charted : list of Charted
        Those that the chart moves relative to others, parents first.
    charts : tuple of (int array, int, bool)
        Of each: where its elements are in x; the columns that share a covariance, 1 where elements are independent; and
        whether it is the noise of effects in non-centred form.
    angles : (int array, array)
        Which values stand for points on a circle, and after how much each comes back to the same point.
    roots, ratios : int array
        Where values are that move others and that none moves, and whose marginals the chart makes normal; and pairs of
        these (r, 2), of which the first moves relative to the second.
    n_constants : int
        Of all charts together: of each charted variable, and then of the roots.
    density, value : GraphFunction
        ``(z, constants) -> (log density of z, [gradient (d,), x (d,), log-Jacobian])``, and the same without gradient.
    scores : GraphFunction or None
        ``(x,) -> (scores, moments, own scores)``: the score that everything but its own prior gives each charted
        element, where its prior lies, variable by variable, and the score that its prior gives. None if no variable is
        charted.
    gradient_seconds : float
        About how long a gradient takes, by what the graph shows.
    """

    def __init__(
        self, model: pm.Model, variables: Sequence[TensorVariable], point: Point, reading: GraphReading | None = None
    ) -> None:
        super().__init__(model, variables, point)
        reading = GraphReading(model, variables, point) if reading is None else reading
        self.charted = reading.charted
        ranges = dict(zip(self.variables.variables, self.variables.slices, strict=True))
        self.angles = self._angles(ranges, reading.periods)
        parts = [ranges[each.variable] for each in self.charted]
        self.charts = tuple(
            (_places(p, each), each.n_columns, each.is_noise) for p, each in zip(parts, self.charted, strict=True)
        )
        held = [(ranges[v], model.rvs_to_transforms[v]) for v in _roots(self, reading)]
        self.roots, self.ratios = root_places(held)
        self.n_constants = sum(each.n_constants for each in self.charted) + N_SHAPE * self.roots.size
        self.density, self.value = _density(self, reading)
        self.scores = _scores(self, reading) if parts else None
        self.functions = (self.density, self.value, *([] if self.scores is None else [self.scores]))
        self.gradient_seconds = reading.gradient_seconds

    @property
    def places(self) -> NDArray[np.int64]:
        """Where the charted elements are in x, variable by variable."""
        return np.concatenate([np.empty(0, np.int64), *(places for places, _, _ in self.charts)])

    @property
    def is_expensive(self) -> bool:
        """Whether trajectories are to follow an emulator: it is of one density, which no other step may change."""
        # An emulator is of a density on the line, which ends where the draws do.
        return not self.inputs and not self.angles[0].size and is_expensive(self.size, self.gradient_seconds)

    def _angles(
        self, ranges: dict[TensorVariable, slice], periods: dict[TensorVariable, float]
    ) -> tuple[NDArray[np.int64], Array]:
        """Find which values are angles, and their periods; raise a `ConfigurationError` for one that is charted."""
        wrong = [each.variable for each in self.charted if each.variable in periods]
        if wrong:
            raise ConfigurationError(
                f"{wrong[0].name}: a location and a scale are registered for it, but its transform makes it an angle, "
                "and an angle moves on its circle, relative to nothing. Take its distribution out of register_family, "
                "or give the variable another transform."
            )
        held = [(place, period) for v, period in periods.items() for place in range(ranges[v].start, ranges[v].stop)]
        places, lengths = zip(*held, strict=True) if held else ((), ())
        return np.array(places, np.int64), np.array(lengths, np.float64)

    def __getstate__(self) -> dict[str, object]:
        # The graphs of the charted variables are needed for reading alone.
        return self.__dict__ | {"charted": []}


def _roots(general: GeneralModel, reading: GraphReading) -> list[TensorVariable]:
    """List the variables that move others, that none moves, and whose marginals the chart makes normal.

    They are few values on the line. An improper prior may leave no distribution at all. A chain that runs away is then
    told by its steps, which a shape would stretch.
    """
    movers = {name for each in general.charted for name in each.parents}
    others = {each.variable for each in general.charted} | set(reading.periods)
    found = []
    for variable in general.variables.variables:
        is_mover = str(variable.name).removesuffix("_rotated_") in movers and variable not in others
        is_improper = isinstance(variable.owner.op, FlatRV | HalfFlatRV)
        if is_mover and not is_improper and 0 < math.prod(reading.shapes[variable]) <= MOST_SHAPED:
            found.append(variable)
    return found


def _places(part: slice, charted: Charted) -> NDArray[np.int64]:
    """Return where a charted variable's elements are in x, in the order of its chart."""
    return np.ravel(charted.by_rows(np.arange(part.start, part.stop).reshape(charted.shape)))


def _density(general: GeneralModel, reading: GraphReading) -> tuple[GraphFunction, GraphFunction]:
    """Build the log density of the chart's coordinates, values and log-Jacobian: with the gradient, and without."""
    model, variables, constants = reading.model, general.variables, pt.dvector("constants")
    n, roots = N_SHAPE * general.roots.size, [model.rvs_to_values[v] for v in _roots(general, reading)]
    own = constants[general.n_constants - n :]
    moved, log_slope = place_roots({value: variables.parts[value] for value in roots}, general.ratios, own)
    placed = place(general.charted, {**variables.parts, **moved}, constants)
    log_jacobian = placed.log_jacobian + log_slope
    terms = [term.sum() for v, term in reading.terms.items() if v not in placed.own]
    rest = replaced(terms, placed.values)
    total = pt.add(*(t.astype("float64") for t in (*rest, *placed.own.values())), log_jacobian, pt.zeros(()))
    placed_at = [placed.values[model.rvs_to_values[v]] for v in variables.variables]
    placed_at.append(log_jacobian + placed.scales)
    slopes = gradient_of(total, list(variables.parts.values()))
    vectors = (joined([*slopes, *placed_at]), joined(placed_at))
    with_gradient, alone = (
        GraphFunction(model, [variables.symbol, constants], [total, v], reading.point) for v in vectors
    )
    return with_gradient, alone


def _scores(general: GeneralModel, reading: GraphReading) -> GraphFunction:
    """Build, at values x, each charted element's score of the rest, its moments, and the score of its prior."""
    model = reading.model
    # Own priors read a twin of their value, so that one pass back through the graph keeps the two apart.
    twins = {each.value: each.value.clone() for each in general.charted}
    charted = {each.variable for each in general.charted}
    terms = []
    for variable, term in reading.terms.items():
        value = model.rvs_to_values.get(variable)
        terms.append(replaced([term], {value: twins[value]})[0] if variable in charted else term)
    total = pt.add(*(t.sum() for t in terms), pt.zeros(()))
    scores = pt.grad(total, [*twins, *twins.values()], disconnected_inputs="ignore")
    scores = [each.by_rows(s) for each, s in zip((*general.charted, *general.charted), scores, strict=True)]
    rest, own, moments = scores[: len(twins)], scores[len(twins) :], [each.moment_vector() for each in general.charted]
    found = [joined(parts) for parts in (rest, moments, own)]
    found = replaced(found, {twin: value for value, twin in twins.items()})
    return GraphFunction(model, [general.variables.symbol], general.variables.place(found))


def check_no_simulator(model: pm.Model) -> None:
    """Raise an `UnsupportedModelError` for a likelihood that simulates: its density is random, without a gradient."""
    simulated = [str(v.name) for v in model.basic_RVs if isinstance(v.owner.op, SimulatorRV)]
    if simulated:
        raise UnsupportedModelError(
            f"{listed(simulated)} is a pm.Simulator, whose density is estimated by simulation and has no gradient. "
            "RMHMC needs one, as NUTS does. Sample the model with pm.sample_smc(), which PyMC has for simulators."
        )


def gradient_of[Wrt](
    total: Symbol, symbols: Wrt, of: str = "the model's log density", remedy: str = WITHOUT_GRADIENT
) -> Wrt:
    """Return the gradient of an expression.

    Raises an `UnsupportedModelError` if an operation has none: it is named, with the remedy.
    """
    try:
        found: Wrt = pt.grad(total, symbols, disconnected_inputs="ignore")
    except NO_DERIVATIVE as error:
        raise UnsupportedModelError(f"{no_derivative_in_words(of, error)}. {remedy}") from None
    return found


def twice[Wrt](total: Symbol, symbols: Wrt) -> Wrt:
    """Return the gradient of an expression that holds derivatives; raise as `gradient_of` does."""
    return gradient_of(total, symbols, "the gradient of the model's log density", WITHOUT_CURVATURE)


def period_of(model: pm.Model, variable: TensorVariable, point: Point) -> float | None:
    """Return after how much of a variable's value its transform comes back to the same point; None if it never does.

    PyMC's transform of angles is known. A user's is tried.
    """
    transform = model.rvs_to_transforms[variable]
    while isinstance(transform, ChainedTransform):
        transform = transform.transform_list[-1]  # the one that the value comes to first
    if isinstance(transform, CircularTransform) and type(transform).backward is CircularTransform.backward:
        return 2.0 * np.pi
    if transform is None or type(transform).__module__.startswith("pymc."):
        return None
    value = model.rvs_to_values[variable]
    placed = [f(value, *variable.owner.inputs) for f in (transform.backward, transform.log_jac_det)]
    if set(ancestors(placed)) & set(model.basic_RVs):
        return None
    function = pytensor.function([value], placed, mode=Mode("py", None), on_unused_input="ignore")
    start = np.asarray(point[str(value.name)], dtype=value.dtype)

    def moved(by: Array) -> tuple[Array, Array]:
        place, jacobian = (np.asarray(each, dtype=float).ravel() for each in function(start + by.reshape(start.shape)))
        return place, jacobian

    with np.errstate(all="ignore"):
        return _period(moved, start.size) if start.size else None


def _period(moved: Callable[[Array], tuple[Array, Array]], size: int) -> float | None:
    """Return the period of a transform's point and log-Jacobian, which are known at any way (size,) from the start.

    On a circle a point goes round at one rate: what it lacks of a longer way is a multiple of the period.
    """
    all_of_it, first = np.ones(size), np.eye(1, size)[0]
    (origin, jacobian), (beside, _) = moved(0.0 * first), moved(0.5 * first)
    if origin.size != size or not np.array_equal(origin[1:], beside[1:]):
        return None
    places, jacobians = zip(*(moved(distance * all_of_it) for distance in DISTANCES), strict=True)
    differences = [moved((near + STEP) * first)[0][0] - moved(near * first)[0][0] for near in NEARBY]
    rate = float(np.median(differences)) / STEP
    is_uniform = all(np.allclose(each, jacobian, rtol=0.0, atol=SAME) for each in jacobians)
    if not (is_uniform and np.isfinite(places).all() and np.isfinite(rate) and rate != 0.0):
        return None
    lacking = np.abs(DISTANCES - (np.array(places)[:, 0] - origin[0]) / rate)
    lacking = lacking[lacking > SAME * DISTANCES[-1]]
    if lacking.size == 0:
        return None
    times = np.round(lacking / lacking.min())
    period = float(lacking.max() / times.max())
    return period if np.allclose(lacking / period, times, rtol=0.0, atol=1e3 * SAME) else None
