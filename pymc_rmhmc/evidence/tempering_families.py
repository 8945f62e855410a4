"""References of a model for parallel tempering, and how they are refitted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_rmhmc.approximation.marginals import fit_marginals
from pymc_rmhmc.chains.chain import Chain
from pymc_rmhmc.chains.reference import Reference, ResidualReference
from pymc_rmhmc.evidence.evidence_draws import prior_draws, prior_moments, tuned_chain
from pymc_rmhmc.evidence.evidence_models import EvidenceModel
from pymc_rmhmc.evidence.methods.estimate import Progress
from pymc_rmhmc.evidence.methods.tempering import Refit
from pymc_rmhmc.graph_chart.affine_map import diagonal_map
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart
from pymc_rmhmc.metrics import FlatMetric
from pymc_rmhmc.sampled.graph_recipe import GraphRecipe
from pymc_rmhmc.sampled.joint_recipe import JointRecipe, JointSetting
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.steps.selection import find
from pymc_rmhmc.tuning.graph_chart import ChartTuning
from pymc_rmhmc.tuning.joint_adapter import JointTuning

__all__ = ["Start", "graph_recipe", "moment_map", "start_in_graph", "start_of_whole", "widening"]

type Array = NDArray[np.float64]
# The first reference, and what makes better ones of draws of the posterior.
type Start = tuple[Reference, Refit | None]

# See `widening`.
WIDER = 1.5
# Of a coordinate that does not move.
TINY = 1e-9


class GraphReferences:
    """Normal references in the coordinates of the chart that is read from a model's graph."""

    def __init__(self, recipe: GraphRecipe) -> None:
        self._recipe = recipe
        self._tuned: ChartTuning = recipe.adapter.initial()

    def first(self, drawn: Array, initial: Array) -> ResidualReference:
        """Return draws' (n, k) mean and variances, or without any unit scales around an initial point (k,)."""
        adapter, spread = self._recipe.adapter, np.ones(initial.size)
        z = np.empty((0, initial.size))
        if len(drawn):
            z = adapter.charted(self._tuned.chart, drawn, adapter.scored(drawn)[1])
            z = z[np.isfinite(z).all(axis=1)]
        if len(z) > 1:
            centre, spread = prior_moments(z)
        else:
            centre = adapter.charted_point(self._tuned, initial)
        return self._reference(replace(self._tuned, flat=tuple(diagonal_map(centre, spread))))

    def refitted(self, values: Array) -> ResidualReference:
        """Return a normal a little wider than some values, in a chart that was fitted to them."""
        adapter, tuned = self._recipe.adapter, replace(self._tuned)
        z = adapter.fit(tuned, values)
        good = np.isfinite(z).all(axis=1)
        tuned.flat = tuple(moment_map(z[good], self._dense(), widening(z.shape[1])))
        return self._reference(tuned)

    def _reference(self, tuned: ChartTuning) -> ResidualReference:
        return self._recipe.exact_setting(tuned).reference()

    def _dense(self) -> NDArray[np.int64]:
        """Choose the coordinates that share a dense block: all, or those that no chart moves, if they are few."""
        most, general = self._recipe.adapter.most_dense, self._recipe.model
        found: NDArray[np.int64] = np.arange(general.size)
        if found.size > most:
            found = np.setdiff1d(found, general.places)
        return found if found.size <= most else np.empty(0, np.int64)


class JointReferences:
    """References of a latent Gaussian model with hyperparameters, in the coordinates of a chain after its tuning.

    Of hyperparameters the first reference has the prior's mean and variances, so that no mode of theirs is left out.
    Given these, latent values are as the chain approximates them where every likelihood is log-concave, so that there
    is one mode alone; elsewhere as their prior has them.
    """

    def __init__(self, chain: Chain) -> None:
        recipe = chain.recipe
        assert isinstance(recipe, JointRecipe)
        self._model, self._plan = recipe.model, recipe.plan
        sites = chain.state.tuned.sites
        if "hessian" not in recipe.curvatures(chain.values):
            nothing = (np.zeros(block.n_sites) for block in recipe.model.blocks)
            sites = tuple(GaussianSites(zero, zero) for zero in nothing)
        self._tuned: JointTuning = replace(chain.state.tuned, sites=sites, emulator=None)

    def first(self, drawn: Array) -> ResidualReference:
        """Return the moments of draws (n, d) of the hyperparameters' prior; without any, the chain's own."""
        if len(drawn) < 2:
            return self._reference(self._tuned.marginals)
        centre, spread = prior_moments(drawn)
        return self._reference(MarginalChart.linear(centre, np.diag(spread)))

    def refitted(self, values: Array) -> ResidualReference | None:
        """Return a reference whose hyperparameters are a little wider than some values."""
        size = self._model.theta.size
        chart = fit_marginals(values[:, :size])
        return None if chart is None else self._reference(replace(chart, factor=widening(size) * chart.factor))

    def _reference(self, chart: MarginalChart | None) -> ResidualReference:
        return JointSetting.of(self._model, replace(self._tuned, marginals=chart), self._plan).reference()


def widening(size: int) -> float:
    """Return by how much a refitted reference is wider than its draws, so that it covers their tails.

    The variance ``1 + WIDER/√d`` costs a divergence of about ``WIDER²/4``, however many values d there are.
    """
    return math.sqrt(1.0 + WIDER / math.sqrt(size))


def moment_map(z: Array, dense: NDArray[np.int64], wider: float = 1.0) -> FlatMap:
    """Return the map to standard normals of the normal with the mean and the covariance of draws (n, d).

    The correlations of `dense` coordinates (k,) alone count, and are shrunk towards 0, by k draws' worth. All standard
    deviations are multiplied by `wider`.
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


def graph_recipe(model: pm.Model) -> GraphRecipe:
    """Return the recipe of a whole model, without what it predicts, in the chart of its graph."""
    point = model.initial_point()
    plan = settle(Options(metric=FlatMetric(chart="graph")), auto_metric="flat")
    (chain,) = find(model, None, point, plan, None).samplers(point, plan, point)
    assert isinstance(chain.recipe, GraphRecipe)
    return chain.recipe


def start_in_graph(model: pm.Model, recipe: GraphRecipe, rng: np.random.Generator) -> Start:
    """Return where tempering starts with a whole model, without what it predicts, in the chart of its graph."""
    point, references = model.initial_point(), GraphReferences(recipe)
    recipe.bind(point)
    drawn = prior_draws(model, recipe.model.variables.variables, rng)
    return references.first(drawn, recipe.variables.read(point)), references.refitted


def start_of_whole(read: EvidenceModel, rng: np.random.Generator, progress: Progress | None = None) -> Start:
    """Return where tempering starts with a whole model: with latent Gaussian values by a chain, which is tuned for it.

    In the chart of the graph hyperparameters and a hundred latent values depend on each other too much.
    """
    recipe = read.whole_chain.recipe
    if isinstance(recipe, GraphRecipe):
        return start_in_graph(read.sampled, recipe, rng)
    if progress is not None:
        progress.say("tuning a chain")
    references = JointReferences(tuned_chain(read, rng))
    assert isinstance(recipe, JointRecipe)
    return references.first(prior_draws(read.sampled, recipe.model.theta.variables, rng)), references.refitted
