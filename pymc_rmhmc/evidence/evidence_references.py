"""Where estimates start: normal approximations of latent blocks, and references of whole models.

The latter are in a tuned chain's coordinates, or have heavier tails where the prior has some.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_rmhmc.approximation import find_mode, laplace_sites
from pymc_rmhmc.approximation.ep import fit_ep, second_order_correction
from pymc_rmhmc.approximation.newton import Mode
from pymc_rmhmc.approximation.tilted import PointwiseLikelihood
from pymc_rmhmc.chains.chain import AnyChain
from pymc_rmhmc.chains.reference import LatentReference, Reference, ResidualReference
from pymc_rmhmc.errors import ApproximationError, ConfigurationError, PriorFailure, counted
from pymc_rmhmc.evidence.evidence_draws import prior_draws, prior_moments, tuned_chain
from pymc_rmhmc.evidence.evidence_models import EvidenceModel, LatentPart
from pymc_rmhmc.evidence.methods.estimate import Progress
from pymc_rmhmc.evidence.methods.importance import (
    TailedReference,
    Tails,
    measured_tails,
    power_tails,
    with_fitting_tails,
)
from pymc_rmhmc.evidence.methods.tempering import Refit
from pymc_rmhmc.graph_chart.affine_map import diagonal_map
from pymc_rmhmc.graph_chart.path_loops import FlatMap
from pymc_rmhmc.latent.charts import GaussianSites, MarginalChart, SiteChart
from pymc_rmhmc.latent.charts.marginal import fit_marginals
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.metrics import FlatMetric
from pymc_rmhmc.sampled.graph import GraphDensity
from pymc_rmhmc.sampled.joint import JointBlocksDensity
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.steps.selection import find
from pymc_rmhmc.tuning.graph_chart import ChartTuning
from pymc_rmhmc.tuning.joint_adapter import JointTuning

__all__ = [
    "Start", "graph_density", "latent_reference", "mode_of", "moment_map", "no_mode", "positions_of", "start_in_graph",
    "start_of_whole", "whole_reference", "widening",
]  # fmt: skip

type Array = NDArray[np.float64]

# Tails heavier than this may be a power's: in draws those of t with 4 degrees of freedom measure 0.16, a normal's 0.
# The density itself shows a power's alone; t with 10 degrees of freedom has 0.1.
HEAVY, POWERFUL = 0.13, 0.1
# Fewer draws tell no tails.
FEWEST = 200
# The normal that a tailed reference replaces is so wide that adding and removing its log density costs no digits.
WIDE = 1e8
# Dense covariances of so many coordinates at most.
MOST_DENSE = 100
# Newton's method takes a dozen as a rule.
MOST_NEWTON_STEPS = 500

# The first reference, and what makes better ones of draws of the posterior.
type Start = tuple[Reference, Refit | None]

# See `widening`.
WIDER = 1.5
# Of a coordinate that does not move.
TINY = 1e-9


def whole_reference(
    chain: AnyChain, prior: Array, posterior: Array, rng: np.random.Generator
) -> tuple[ResidualReference, bool]:
    """Return the reference of a chain, or one with heavy tails where the prior has some; and whether it has.

    In heavy tails the chain itself is too rarely.

    `chain`: after its tuning.
    `prior` (n, k): draws of the model's values from their prior; empty where it has no draws, and then the tails are
      read from the density itself.
    `posterior` (m, k): draws of the posterior, for centre and scales. They need not reach its tails.
    `rng`: for draws of the reference.
    """
    normal = chain.reference()
    own = normal.own_tails
    if not own.size:
        return normal, False
    references = _references(chain)
    plain = references.normal(np.zeros(own.size), np.ones(own.size))
    of_prior = positions_of(plain, prior, rng)[:, own]
    # The density shows a power's tail that draws of the prior leave in doubt.
    tails = power_tails(plain, positions_of(plain, posterior, rng)[:, own])
    is_heavy = tails.heaviest > POWERFUL
    if len(of_prior) >= FEWEST:
        tails = measured_tails(of_prior)
        is_heavy |= tails.heaviest > HEAVY
    if not is_heavy:
        return normal, False
    return _fitted(_with_tails(references, tails), posterior, rng), True


def positions_of(reference: ResidualReference, values: Array, rng: np.random.Generator) -> Array:
    """Return the coordinates (n, d) of some of the model's values (n, k), without those that have no density."""
    found = reference.positions(values, rng)
    return found[np.isfinite(found).all(axis=1)]


def _references(chain: AnyChain) -> GraphReferences | JointReferences:
    """Return the references in the coordinates of a tuned chain."""
    density, tuned = chain.density, replace(chain.state.tuned, emulator=None)
    if isinstance(density, GraphDensity):
        return GraphReferences(density, tuned)
    assert isinstance(density, JointBlocksDensity)
    return JointReferences(density, tuned)


def _with_tails(references: GraphReferences | JointReferences, tails: Tails) -> TailedReference:
    """Return the reference whose coordinates have the centre, scale and tails that were measured."""
    inner = references.normal(tails.centre, WIDE * tails.spread)
    lower, upper, shrink = np.zeros(inner.size), np.zeros(inner.size), np.ones(inner.size)
    lower[inner.own_tails], upper[inner.own_tails], shrink[inner.own_tails] = tails.lower, tails.upper, 1.0 / WIDE
    return TailedReference(inner, lower, upper, factor=np.diag(shrink))


def _fitted(reference: TailedReference, posterior: Array, rng: np.random.Generator) -> ResidualReference:
    """Fit a reference's mean and covariance to draws (m, k) of the posterior, in its coordinates."""
    own = reference.own_tails
    dense = own if own.size <= MOST_DENSE else own[:0]
    fitted = moment_map(positions_of(reference, posterior, rng)[:, own], dense)
    centre, factor, nothing = np.zeros(reference.size), np.eye(reference.size), np.zeros(reference.size)
    centre[own] = fitted.centre
    factor[np.ix_(own, own)] = fitted.factor if dense.size else np.diag(fitted.spread)
    return with_fitting_tails(TailedReference(reference, nothing, nothing, centre, factor), rng)


def mode_of(name: str, prior: FactorizedPrior, likelihood: PointwiseLikelihood, *, itself: bool = True) -> Mode:
    """Return the mode of a block's posterior, or raise; or else where Newton's method has come to."""
    mode = find_mode(prior.predictor, likelihood, max_iter=MOST_NEWTON_STEPS)
    if itself and not mode.converged:
        raise no_mode(name)
    return mode


def no_mode(name: str) -> ApproximationError:
    """Return the error for a block of which Newton's method finds no mode."""
    return ApproximationError(
        f"{name}: Newton's method did not find the posterior's mode in {MOST_NEWTON_STEPS} steps. The likelihood may "
        "have no maximum, or its units may be far from the prior's: rescale the data, or narrow the prior."
    )


def latent_reference(
    part: LatentPart, sites: str | GaussianSites, method: str
) -> tuple[LatentReference, dict[str, float]]:
    """Return the prior times the sites that were asked for; and approximations that were found on the way.

    Of the methods "laplace" and "ep" need their own sites. There is an error if EP was asked for and does not converge,
    or Laplace's method and there is no mode.
    """
    likelihood = part.likelihood
    if method == "tempering" and sites == "auto" and "hessian" not in likelihood.kinds:
        sites = "prior"  # an approximation would know one mode alone
    if not isinstance(sites, str) or sites == "prior":
        return LatentReference(_chart(part, sites if isinstance(sites, GaussianSites) else None), likelihood), {}
    if method == "ep" or (method != "laplace" and sites in {"auto", "ep"}):
        wanted = "ep" in {method, sites}
        if wanted or "hessian" in likelihood.kinds:
            fit = fit_ep(part.prior, likelihood)
            if fit.converged:
                corrected = fit.log_evidence + second_order_correction(fit, likelihood)
                return LatentReference(fit.chart, likelihood), {"ep": fit.log_evidence, "ep_second_order": corrected}
            if wanted:
                raise ApproximationError(
                    f"{part.name}: expectation propagation does not converge ({fit.problem}). Give "
                    'sites="laplace", with method="bridge" for an exact estimate.'
                )
    # Where Newton's method has come will do, but for the approximation itself.
    mode = mode_of(part.name, part.prior, likelihood, itself=method == "laplace")
    reference = LatentReference(_chart(part, laplace_sites(mode)), likelihood)
    at_mode = reference.at(np.zeros(reference.size))[0]
    return reference, {"laplace": reference.log_constant + at_mode}


def _chart(part: LatentPart, sites: GaussianSites | None) -> SiteChart:
    """Return the chart of the prior times sites, or raise if that is no normal density or the sites do not fit."""
    n_sites = part.prior.predictor.n_sites
    if sites is not None and sites.linear.size != n_sites:
        raise ConfigurationError(f"sites= has {sites.linear.size} sites, and {part.name} has {n_sites}.")
    for name in ("linear", "precision"):
        lost = np.flatnonzero(~np.isfinite(getattr(sites, name, 0.0)))
        if lost.size:
            raise ConfigurationError(
                f"{part.name}: sites= has {counted(lost.size, 'non-finite value')} of {name}, the first at position "
                f"{lost[0]}. Look for data without a number, or for a likelihood "
                'that overflows, where these sites were made; or give sites="auto".'
            )
    try:
        return SiteChart(part.prior, sites, lasting=True)
    except PriorFailure:
        raise ConfigurationError(
            f"{part.name}: the prior times these sites is no normal density, because negative precisions outweigh the "
            'prior. Give sites="auto", or sites with precisions of at least 0.'
        ) from None


class GraphReferences:
    """Normal references in the coordinates of the chart that is read from a model's graph."""

    def __init__(self, density: GraphDensity, tuned: ChartTuning) -> None:
        self._density, self._tuned = density, tuned

    def normal(self, centre: Array, spread: Array) -> ResidualReference:
        """Return the reference of a centre and scales, in the chart's coordinates."""
        return self._reference(replace(self._tuned, flat=tuple(diagonal_map(centre, spread))))

    def first(self, drawn: Array, initial: Array) -> ResidualReference:
        """Return draws' (n, k) mean and variances, or without any unit scales around an initial point (k,)."""
        adapter, spread = self._density.adapter, np.ones(initial.size)
        z = np.empty((0, initial.size))
        if len(drawn):
            z = adapter.charted(self._tuned.chart, drawn, adapter.scored(drawn)[1])
            z = z[np.isfinite(z).all(axis=1)]
        if len(z) > 1:
            centre, spread = prior_moments(z)
        else:
            centre = adapter.charted_point(self._tuned, initial)
        return self.normal(centre, spread)

    def refitted(self, values: Array) -> ResidualReference:
        """Return a normal a little wider than some values, in a chart that was fitted to them."""
        adapter, tuned = self._density.adapter, replace(self._tuned)
        z = adapter.fit(tuned, values)
        good = np.isfinite(z).all(axis=1)
        tuned.flat = tuple(moment_map(z[good], adapter.dense_places(), widening(z.shape[1])))
        return self._reference(tuned)

    def _reference(self, tuned: ChartTuning) -> ResidualReference:
        return self._density.exact_coordinates(tuned).reference()


class JointReferences:
    """References of a latent Gaussian model with hyperparameters; latent values given these have the tuned sites."""

    def __init__(self, density: JointBlocksDensity, tuned: JointTuning) -> None:
        self._density, self._tuned = density, tuned

    def normal(self, centre: Array, spread: Array) -> ResidualReference:
        """Return the reference of a centre and scales of hyperparameters."""
        return self._reference(MarginalChart.linear(centre, np.diag(spread)))

    def first(self, drawn: Array) -> ResidualReference:
        """Return the moments of draws (n, d) of the hyperparameters' prior; without any, the chain's own."""
        if len(drawn) < 2:
            return self._reference(self._tuned.marginals)
        return self.normal(*prior_moments(drawn))

    def refitted(self, values: Array) -> ResidualReference | None:
        """Return a reference whose hyperparameters are a little wider than some values."""
        size = self._density.model.theta.size
        chart = fit_marginals(values[:, :size])
        return None if chart is None else self._reference(chart._replace(factor=widening(size) * chart.factor))

    def _reference(self, chart: MarginalChart | None) -> ResidualReference:
        tuned = replace(self._tuned, marginals=chart)
        return self._density.joint_coordinates(tuned).reference()


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


def graph_density(model: pm.Model) -> GraphDensity:
    """Return the density of a whole model, without what it predicts, in the chart of its graph."""
    point = model.initial_point()
    plan = settle(Options(metric=FlatMetric(chart="graph")), auto_metric="flat")
    (chain,) = find(model, None, point, plan, None).samplers(point, plan, point)
    assert isinstance(chain.density, GraphDensity)
    return chain.density


def start_in_graph(model: pm.Model, density: GraphDensity, rng: np.random.Generator) -> Start:
    """Return where tempering starts with a whole model, without what it predicts, in the chart of its graph."""
    point, references = model.initial_point(), GraphReferences(density, density.adapter.initial())
    density.bind(point)
    drawn = prior_draws(model, density.model.variables.variables, rng)
    return references.first(drawn, density.variables.read(point)), references.refitted


def start_of_whole(read: EvidenceModel, rng: np.random.Generator, progress: Progress | None = None) -> Start:
    """Return where tempering starts with a whole model: with latent Gaussian values by a chain, which is tuned for it.

    In the chart of the graph hyperparameters and a hundred latent values depend on each other too much.

    Of hyperparameters the first reference has the prior's mean and variances, so that no mode of theirs is left out.
    Given these, latent values are as the chain approximates them where every likelihood is log-concave, so that there
    is one mode alone; elsewhere as their prior has them.
    """
    density = read.whole_chain.density
    if isinstance(density, GraphDensity):
        return start_in_graph(read.sampled, density, rng)
    assert isinstance(density, JointBlocksDensity)
    if progress is not None:
        progress.say("tuning a chain")
    chain = tuned_chain(read, rng)
    tuned = replace(chain.state.tuned, emulator=None)
    if "hessian" not in density.curvatures(chain.values):
        nothing = (np.zeros(block.n_sites) for block in density.model.blocks)
        tuned = replace(tuned, sites=tuple(GaussianSites(zero, zero) for zero in nothing))
    references = JointReferences(density, tuned)
    return references.first(prior_draws(read.sampled, density.model.theta.variables, rng)), references.refitted
