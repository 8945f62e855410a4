"""From a PyMC model to the references of parallel tempering."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_rmhmc.chains.variables import Variables
from pymc_rmhmc.evidence.family import FixedFamily, ReferenceFamily
from pymc_rmhmc.evidence.reference import Reference
from pymc_rmhmc.geometry.general.loops import FlatMap
from pymc_rmhmc.geometry.metrics import FlatMetric
from pymc_rmhmc.model.bad_inputs import InputChecks
from pymc_rmhmc.model.graphs import as_value
from pymc_rmhmc.model.predictions import Predictions, predicted_variables, without
from pymc_rmhmc.steps.evidence_checks import check_continuous, omitted_constants
from pymc_rmhmc.steps.evidence_models import LatentPart, read_model
from pymc_rmhmc.steps.graph_recipe import GraphRecipe
from pymc_rmhmc.steps.latent_references import laplace_reference
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.steps.selection import find
from pymc_rmhmc.tuning.graph_chart import ChartTuning

__all__ = [
    "GraphFamily", "TemperedModel", "graph_family", "latent_family", "moment_map", "prior_draws", "read_tempered_model",
    "widening",
]  # fmt: skip

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

# Draws of the prior whose moments the first reference has. Of these the outermost hundredths are left out: a prior
# such as Cauchy has no moments.
PRIOR_DRAWS, TRIMMED = 400, 0.01
# The scales of the first reference are kept within these.
NARROWEST, WIDEST = 1e-3, 1e3
# See `widening`.
WIDER = 1.5


@dataclass(frozen=True)
class TemperedModel:
    """A model as tempering reads it.

    Attributes
    ----------
    family : ReferenceFamily
        Its references.
    variables : Variables
        What a vector of its values holds.
    constant : float
        What the log evidence has beyond the reference's constant.
    complete : callable or None
        From random numbers to what draws predictions into a point; None where the model predicts nothing.
    """

    family: ReferenceFamily
    variables: Variables
    constant: float
    complete: Callable[[np.random.Generator], Callable[[Point], None]] | None


class GraphFamily(ReferenceFamily):
    """Normal references in the coordinates of the chart that is read from a model's graph.

    Parameters
    ----------
    recipe : GraphRecipe
        The model's density and its chart.
    prior : callable
        From random numbers to values (n, k) drawn from the prior; empty where the prior has no draws.
    initial : (k,) array
        Around which the first reference lies where it has none.
    """

    def __init__(self, recipe: GraphRecipe, prior: Callable[[np.random.Generator], Array], initial: Array) -> None:
        self._recipe, self._prior, self._initial = recipe, prior, initial
        self._tuned: ChartTuning = recipe.adapter.initial()
        self._made_of: WeakKeyDictionary[Reference, ChartTuning] = WeakKeyDictionary()

    def first(self, rng: np.random.Generator) -> Reference:
        """Return the prior's mean and variances, or unit scales around the initial point."""
        drawn = self._prior(rng)
        centre, spread = np.zeros(self._initial.size), np.ones(self._initial.size)
        z = self._charted(self._tuned, drawn) if len(drawn) else np.empty((0, centre.size))
        if len(z) > 1:
            low, high = np.quantile(z, [TRIMMED, 1.0 - TRIMMED], axis=0)
            kept = np.clip(z, low, high)
            centre, spread = kept.mean(axis=0), np.clip(kept.std(axis=0), NARROWEST, WIDEST)
        else:
            centre = self._recipe.adapter.charted_point(self._tuned, self._initial)
        flat = (centre, spread, np.empty(0, np.int64), np.empty((0, 0)), np.empty((0, centre.size)), np.empty(0))
        return self._reference(replace(self._tuned, flat=flat))

    def refitted(self, values: Array) -> Reference:
        """Return a normal a little wider than some values, in a chart that was fitted to them."""
        adapter, tuned = self._recipe.adapter, replace(self._tuned)
        z = adapter.fit(tuned, values)
        good = np.isfinite(z).all(axis=1)
        tuned.flat = tuple(moment_map(z[good], self._dense(), widening(z.shape[1])))
        return self._reference(tuned)

    def states(self, reference: Reference, values: Array) -> Array:
        """See `ReferenceFamily`."""
        tuned = self._made_of[reference]
        return np.array([self._recipe.adapter.coordinates(tuned, each) for each in values])

    def values(self, reference: Reference, states: Array, rng: np.random.Generator) -> Array:
        """See `ReferenceFamily`."""
        residual: Any = reference
        return np.array([residual.residual.at(state).values for state in states])

    def _reference(self, tuned: ChartTuning) -> Reference:
        self._recipe.drop()
        setting: Any = self._recipe.setting(tuned)
        found: Reference = setting.reference()
        self._made_of[found] = tuned
        return found

    def _charted(self, tuned: ChartTuning, values: Array) -> Array:
        _, moments = self._recipe.adapter.scored(values)
        z = self._recipe.adapter.charted(tuned.chart, values, moments)
        found: Array = z[np.isfinite(z).all(axis=1)]
        return found

    def _dense(self) -> NDArray[np.int64]:
        """The coordinates that share a dense block: all, or those that no chart moves, if they are few."""
        most, general = self._recipe.adapter.most_dense, self._recipe.model
        found: NDArray[np.int64] = np.arange(general.size)
        if found.size > most:
            found = np.setdiff1d(found, general.places)
        return found if found.size <= most else np.empty(0, np.int64)


def widening(size: int) -> float:
    """Return by how much a refitted reference is wider than its draws, so that it covers their tails.

    The variance ``1 + WIDER/√d`` costs a divergence of about ``WIDER²/4``, however many values d there are.
    """
    return math.sqrt(1.0 + WIDER / math.sqrt(size))


def moment_map(z: Array, dense: NDArray[np.int64], wider: float = 1.0) -> FlatMap:
    """Return the map to standard normals of the normal with the mean and the covariance of draws (n, d).

    Parameters
    ----------
    z : (n, d) array
        Draws.
    dense : (k,) int array
        The coordinates whose correlations count. These are shrunk towards 0, by k draws' worth.
    wider : float
        All standard deviations are multiplied by this.
    """
    n, d = z.shape
    centre, spread = z.mean(axis=0), wider * np.maximum(z.std(axis=0), NARROWEST * 1e-6)
    factor = np.empty((0, 0))
    if dense.size:
        correlation = np.corrcoef(z[:, dense].T).reshape(dense.size, dense.size)
        shrunk = (n * np.nan_to_num(correlation) + dense.size * np.eye(dense.size)) / (n + dense.size)
        np.fill_diagonal(shrunk, 1.0)
        factor = np.ascontiguousarray(spread[dense, None] * np.linalg.cholesky(shrunk))
    return FlatMap(centre, spread, dense, factor, np.empty((0, d)), np.empty(0))


def latent_family(part: LatentPart) -> FixedFamily:
    """Return the family of a latent Gaussian block with nothing left to sample: its Laplace approximation."""
    return FixedFamily(laplace_reference(part))


def graph_family(model: pm.Model, recipe: GraphRecipe | None = None) -> tuple[GraphFamily, Variables]:
    """Return the family of a whole model in the chart of its graph, and what its values are.

    Parameters
    ----------
    model : pymc.Model
        The model, without what it predicts.
    recipe : GraphRecipe, optional
        One that was built already.
    """
    point = model.initial_point()
    if recipe is None:
        plan = settle(Options(metric=FlatMetric(chart="graph")), auto_metric="flat")
        (chain,) = find(model, None, point, plan, None).samplers(point, plan, point)
        built: Any = chain.recipe
        recipe = built
    recipe.bind(point)

    def prior(rng: np.random.Generator) -> Array:
        return prior_draws(model, recipe.model.variables.variables, rng)

    return GraphFamily(recipe, prior, recipe.variables.read(point)), recipe.variables


def read_tempered_model(model: pm.Model) -> TemperedModel:
    """Read a model: one latent block with all else fixed as `FixedFamily` has it, anything else in its graph's chart.

    Raises
    ------
    UnsupportedModelError
        If a variable cannot be moved by trajectories, such as a discrete one.
    Other errors
        As `RMHMC`.
    """
    predicted = predicted_variables(model)
    sampled = without(model, predicted)
    check_continuous(sampled)
    InputChecks(sampled).check(sampled.initial_point())
    complete = _completing(Predictions(model, predicted)) if predicted else None
    read = read_model(sampled)
    if len(read.parts) == 1 and not _has_rest(read):
        (part,) = read.parts
        return TemperedModel(latent_family(part), part.variables, read.constant, complete)
    recipe = read.chain.recipe if read.chain is not None else None
    family, variables = graph_family(sampled, recipe if isinstance(recipe, GraphRecipe) else None)
    constant = omitted_constants(sampled, [str(v.name) for v in sampled.free_RVs])
    return TemperedModel(family, variables, constant, complete)


def _has_rest(read: Any) -> bool:
    """Whether the block is not all that is free."""
    (part,) = read.parts
    held = {name for name, _ in part.variables.slices}
    return any(str(value.name) not in held for value in read.model.value_vars)


def _completing(predictions: Predictions) -> Callable[[np.random.Generator], Callable[[Point], None]]:
    def with_numbers(rng: np.random.Generator) -> Callable[[Point], None]:
        def complete(point: Point) -> None:
            drawn, _ = predictions.draw(point, rng)
            point.update(drawn)

        return complete

    return with_numbers


def prior_draws(model: pm.Model, variables: Any, rng: np.random.Generator) -> Array:
    """Draws (n, k) of the variables from their priors, on the scale of their value variables; none if it has none."""
    drawn = [as_value(model, variable, variable) for variable in variables]
    try:
        found = pm.draw(drawn, PRIOR_DRAWS, random_seed=int(rng.integers(2**31)))
    except (NotImplementedError, ValueError, TypeError):  # Flat, and DensityDist without random=
        return np.empty((0, 0))
    rows = np.concatenate([np.reshape(each, (PRIOR_DRAWS, -1)) for each in found], axis=1).astype(np.float64)
    finite: Array = rows[np.isfinite(rows).all(axis=1)]
    return finite if len(finite) > math.ceil(0.5 * PRIOR_DRAWS) else np.empty((0, 0))
