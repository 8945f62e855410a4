"""References of a model for parallel tempering, and how they are refitted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_rmhmc.approximation.marginals import fit_marginals
from pymc_rmhmc.chains.chain import AnyChain
from pymc_rmhmc.chains.reference import Reference, ResidualReference
from pymc_rmhmc.chains.variables import Variables
from pymc_rmhmc.evidence.evidence_draws import tuned_chain
from pymc_rmhmc.evidence.evidence_models import EvidenceModel
from pymc_rmhmc.evidence.methods.estimate import Progress
from pymc_rmhmc.evidence.methods.family import ReferenceFamily
from pymc_rmhmc.evidence.prior_values import prior_draws, prior_moments
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.metrics import FlatMetric
from pymc_rmhmc.sampled.graph import GraphRecipe
from pymc_rmhmc.sampled.joint_recipe import TrajectorySetting
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.steps.selection import find
from pymc_rmhmc.tuning.graph_chart import ChartTuning
from pymc_rmhmc.tuning.joint_adapter import JointTuning

__all__ = ["GraphFamily", "JointFamily", "graph_family", "moment_map", "whole_family", "widening"]

type Array = NDArray[np.float64]

# See `widening`.
WIDER = 1.5
# Of a coordinate that does not move.
TINY = 1e-9


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
            centre, spread = prior_moments(z)
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

    def states(self, reference: Reference, values: Array, rng: np.random.Generator) -> Array:
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
        """Choose the coordinates that share a dense block: all, or those that no chart moves, if they are few."""
        most, general = self._recipe.adapter.most_dense, self._recipe.model
        found: NDArray[np.int64] = np.arange(general.size)
        if found.size > most:
            found = np.setdiff1d(found, general.places)
        return found if found.size <= most else np.empty(0, np.int64)


class JointFamily(ReferenceFamily):
    """References of a latent Gaussian model with hyperparameters, in the coordinates of a tuned chain.

    Of hyperparameters the first reference has the prior's mean and variances, so that no mode of theirs is left out.
    Given these, latent values are as the chain approximates them where every likelihood is log-concave, so that there
    is one mode alone; elsewhere as their prior has them.

    Parameters
    ----------
    chain : Chain
        After its tuning.
    prior : (n, d) array
        Draws of the hyperparameters' prior; without any, the chain's chart is the only one.
    """

    def __init__(self, chain: AnyChain, prior: Array) -> None:
        recipe: Any = chain.recipe
        self._model, self._plan = recipe.model, recipe.plan
        sites = chain.state.tuned.sites
        if "hessian" not in recipe.curvatures(chain.values):
            nothing = (np.zeros(block.n_sites) for block in recipe.model.blocks)
            sites = tuple(GaussianSites(zero, zero) for zero in nothing)
        self._tuned: JointTuning = replace(chain.state.tuned, sites=sites, emulator=None)
        self._prior = prior

    def first(self, rng: np.random.Generator) -> ResidualReference:
        """See `ReferenceFamily`."""
        if len(self._prior) < 2:
            return self._reference(self._tuned.marginals)
        centre, spread = prior_moments(self._prior)
        return self._reference(MarginalChart.linear(centre, np.diag(spread)))

    def refitted(self, values: Array) -> ResidualReference | None:
        """Return a reference whose hyperparameters are a little wider than some values."""
        size = self._model.theta.size
        chart = fit_marginals(values[:, :size])
        return None if chart is None else self._reference(replace(chart, factor=widening(size) * chart.factor))

    def states(self, reference: Any, values: Array, rng: np.random.Generator) -> Array:
        """See `ReferenceFamily`: where there is no density, not a number."""
        nowhere = np.full(reference.size, math.nan)
        points = (reference.point_of(each, rng) for each in values)
        return np.array([nowhere if point is None else point.position for point in points])

    def values(self, reference: Any, states: Array, rng: np.random.Generator) -> Array:
        """See `ReferenceFamily`."""
        return np.array([reference.values_at(reference.residual.at(state)) for state in states])

    def _reference(self, chart: MarginalChart | None) -> ResidualReference:
        return TrajectorySetting.of(self._model, replace(self._tuned, marginals=chart), self._plan).reference()


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
    centre, spread = z.mean(axis=0), wider * np.maximum(z.std(axis=0), TINY)
    factor = np.empty((0, 0))
    if dense.size:
        correlation = np.corrcoef(z[:, dense].T).reshape(dense.size, dense.size)
        shrunk = (n * np.nan_to_num(correlation) + dense.size * np.eye(dense.size)) / (n + dense.size)
        np.fill_diagonal(shrunk, 1.0)
        factor = np.ascontiguousarray(spread[dense, None] * np.linalg.cholesky(shrunk))
    return FlatMap(centre, spread, dense, factor, np.empty((0, d)), np.empty(0))


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


def whole_family(read: EvidenceModel, rng: np.random.Generator, progress: Progress | None = None) -> ReferenceFamily:
    """Return the references of a whole model: of latent Gaussian values those of a chain, which is tuned for it.

    In the chart of the graph hyperparameters and a hundred latent values depend on each other too much.
    """
    recipe: Any = read.whole_chain.recipe
    if isinstance(recipe, GraphRecipe):
        return graph_family(read.sampled, recipe)[0]
    if progress is not None:
        progress.say("tuning a chain")
    chain = tuned_chain(read, rng)
    return JointFamily(chain, prior_draws(read.sampled, recipe.model.theta.variables, rng))
