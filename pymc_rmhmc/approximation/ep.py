"""Expectation propagation: Gaussian sites under which every marginal has the moments of its tilted density.

The posterior ``N(ν; 0, I) Π exp ℓᵢ(ηᵢ)`` is approximated by ``q = N(ν; 0, I) exp(bᵀη - ½ ηᵀW̄η)``. A *cavity* is q's
marginal of one site without that site, and its *tilted* density the cavity times the site's likelihood. At the fixed
point all tilted densities have the means and variances of q.

References
----------
Minka (2001), Expectation propagation for approximate Bayesian inference; Rasmussen and Williams (2006), section 3.6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation.newton import find_mode
from pymc_rmhmc.approximation.site_fit import laplace_sites
from pymc_rmhmc.approximation.tilted import PointwiseLikelihood, TiltedMoments, tilted_moments
from pymc_rmhmc.errors import PriorFailure
from pymc_rmhmc.latent.charts.site import FactorizedPrior, GaussianSites, SiteChart

__all__ = ["EPFit", "fit_ep", "second_order_correction"]

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

TOLERANCE, MAX_ITER = 1e-6, 100
# Updates have stalled when the error has not fallen by a tenth in so many of them: all at once, and one by one.
PATIENCE, PATIENCE_ONE_BY_ONE, PROGRESS = 8, 16, 0.9
# Updates one by one are given up below this damping.
LEAST_DAMPING = 0.1
# Times that a parallel step is halved where it leads to no normal density.
MAX_HALVINGS = 4
# Earlier updates that a parallel update is mixed with. It is not mixed where that makes the error twice as large.
DEPTH, WORSE = 5, 2.0
# Sites that are updated one by one before the whole covariance is: by a matrix product.
BLOCK = 32

NOT_NORMAL = "the prior times the sites is not a normal density"
NO_CAVITY = "a cavity has no positive variance"
UNSETTLED = "the sites do not settle"
NO_MOMENTS = "a tilted density has no finite moments"
# Of cumulants, in the second-order correction.
LEAST_ORDER = 3


@dataclass(frozen=True, slots=True)
class EPFit:
    """Result of `fit_ep`: a chart in which the approximation is standard normal, and moments of each site (n,)."""

    chart: SiteChart
    sites: GaussianSites
    mean: Array  # of η under the approximation
    variance: Array
    cavity_mean: Array  # of each η without its own site
    cavity_variance: Array
    log_evidence: float  # EP's ``log Z``, with all constants
    # The most that a site's mean, in standard deviations, or variance, as a fraction, is from its tilted density's.
    error: float
    n_iter: int  # updates of all sites
    is_sequential: bool  # whether sites had to be updated one by one
    problem: str  # why it did not converge; empty if it did

    @property
    def converged(self) -> bool:
        """Whether it is the fixed point, to the tolerance."""
        return not self.problem


def fit_ep(
    prior: FactorizedPrior,
    likelihood: PointwiseLikelihood,
    *,
    sites: GaussianSites | None = None,
    damping: float = 1.0,
    tolerance: float = TOLERANCE,
    max_iter: int = MAX_ITER,
) -> EPFit:
    """Fit sites by expectation propagation, from given ones or Laplace's.

    All sites are updated at once, by `damping` times the full change of their parameters. Where this does not converge
    they are updated one by one. There are at most `max_iter` updates of all sites; `EPFit.converged` tells whether the
    result is the fixed point, to the tolerance.
    """
    search = _Search(prior, likelihood, damping, tolerance, max_iter)
    start = search.start(laplace_sites(find_mode(prior.predictor, likelihood)) if sites is None else sites)
    if isinstance(start, str):
        chart, lost = SiteChart(prior), np.full(prior.predictor.n_sites, np.nan)
        nothing = GaussianSites(lost, lost)
        return EPFit(chart, nothing, lost, lost, lost, lost, np.nan, np.inf, 0, False, start)
    found, problem = search.parallel(start)
    is_sequential = bool(problem) and search.n_iter < max_iter
    if is_sequential:
        # From the start again: parallel updates may have gone far away.
        found, problem = search.sequential(start)
    return EPFit(
        found.chart, found.sites, found.mean, found.variance, found.cavity_mean, found.cavity_variance,
        found.log_evidence, found.error, search.n_iter, is_sequential, problem,
    )  # fmt: skip


class _Evaluation(NamedTuple):
    """An approximation, its cavities, and the moments of its tilted densities; see `EPFit`."""

    chart: SiteChart
    sites: GaussianSites
    mean: Array
    variance: Array
    cavity_mean: Array
    cavity_variance: Array
    tilted: TiltedMoments
    error: float
    log_evidence: float

    @property
    def change(self) -> Array:
        """What b and w̄ change by for the moments of the tilted densities, one after the other, (2 n,)."""
        with np.errstate(all="ignore"):
            linear = self.tilted.mean / self.tilted.variance - self.mean / self.variance
            precision = 1.0 / self.tilted.variance - 1.0 / self.variance
        moves = self.variance > 0.0
        return np.concatenate((np.where(moves, linear, 0.0), np.where(moves, precision, 0.0)))

    def updated(self, step: float) -> GaussianSites:
        """Move the sites by a fraction of that change."""
        linear, precision = np.split(step * self.change, 2)
        return GaussianSites(self.sites.linear + linear, self.sites.precision + precision)


class _Search:
    """Updates of sites until they no longer change."""

    def __init__(
        self, prior: FactorizedPrior, likelihood: PointwiseLikelihood, damping: float, tolerance: float, max_iter: int
    ) -> None:
        self.prior, self.likelihood = prior, likelihood
        self.damping, self.tolerance, self.max_iter = damping, tolerance, max_iter
        self.n_iter = 0

    def start(self, sites: GaussianSites) -> _Evaluation | str:
        """Return the approximation with the first sites, or with none where these give no approximation."""
        is_finite = np.isfinite(sites.linear).all() and np.isfinite(sites.precision).all()
        found = self.evaluate(sites) if is_finite else NOT_NORMAL
        nothing = np.zeros((2, sites.linear.size))
        return self.evaluate(GaussianSites(*nothing)) if isinstance(found, str) else found

    def evaluate(self, sites: GaussianSites, *, lenient: bool = False) -> _Evaluation | str:
        """Return the approximation with some sites, or why there is none.

        With `lenient`, sites without a cavity count as an infinite error.
        """
        try:
            chart = SiteChart(self.prior, sites)
        except PriorFailure:
            return NOT_NORMAL
        with np.errstate(all="ignore"):
            cavity_mean, cavity_variance, lost = _cavities(chart, sites)
            if lost and not lenient:
                return NO_CAVITY
            tilted = tilted_moments(self.likelihood, cavity_mean, cavity_variance)
            return _evaluated(chart, sites, cavity_mean, cavity_variance, tilted, lost=lost)

    def parallel(self, current: _Evaluation) -> tuple[_Evaluation, str]:
        """Update all sites at once until they converge or stall; why they did not converge, if so."""
        progress, mixing = _Progress(PATIENCE), _Mixing(current, self.damping)
        while current.error >= self.tolerance:
            sites = mixing.next(current)
            for _ in range(MAX_HALVINGS + 1):
                if self.n_iter >= self.max_iter:
                    return current, self._out_of_updates(current)
                self.n_iter += 1
                tried = self.evaluate(sites)
                if not isinstance(tried, str) and (tried.error < WORSE * current.error or not mixing.mixes):
                    break
                sites = mixing.shorter(current)
            if isinstance(tried, str):
                return current, tried
            current = tried
            if progress.has_stalled(current.error):
                return current, UNSETTLED
        return current, ""

    def sequential(self, start: _Evaluation) -> tuple[_Evaluation, str]:
        """Update sites one by one, in sweeps, with more and more damping, until they converge."""
        pieces = [self.likelihood.restricted(np.array([i])) for i in range(start.mean.size)]
        damping, current = 0.5 * self.damping, start
        progress = _Progress(PATIENCE_ONE_BY_ONE)
        while current.error >= self.tolerance:
            if self.n_iter >= self.max_iter:
                return current, self._out_of_updates(current)
            self.n_iter += 1
            tried = self.evaluate(sweep(current.chart, current.sites, pieces, damping, BLOCK), lenient=True)
            is_lost = isinstance(tried, str)
            current = start if isinstance(tried, str) else tried
            if is_lost or progress.has_stalled(current.error):
                damping *= 0.5
                progress = _Progress(PATIENCE_ONE_BY_ONE)
                if damping < LEAST_DAMPING:
                    return current, tried if isinstance(tried, str) else UNSETTLED
        return current, ""

    def _out_of_updates(self, current: _Evaluation) -> str:
        if np.isinf(current.error):
            return f"after max_iter={self.max_iter} updates {NO_CAVITY}"
        return f"the sites still change by {current.error:.2g} after max_iter={self.max_iter} updates"


def _cavities(chart: SiteChart, sites: GaussianSites) -> tuple[Array, Array, bool]:
    """Return the cavities' means and variances, and whether a site has none: q's marginals then take their place.

    A site that no latent value moves has the variance 0, and is its own cavity.
    """
    mean, variance = chart.predictor.offset, chart.predictor.variance
    precision = 1.0 / variance - sites.precision
    has_none = ~(precision > 0.0)
    cavity_variance = np.where(has_none, variance, 1.0 / precision)
    cavity_mean = cavity_variance * (mean / variance - sites.linear)
    is_fixed = variance == 0.0
    return (
        np.where(is_fixed | has_none, mean, cavity_mean),
        np.where(is_fixed, 0.0, cavity_variance),
        bool((has_none & ~is_fixed).any()),
    )


def _evaluated(
    chart: SiteChart, sites: GaussianSites, cavity_mean: Array, cavity_variance: Array, tilted: TiltedMoments, *,
    lost: bool,
) -> _Evaluation | str:  # fmt: skip
    """Compute how far the tilted densities' moments are from q's, and the evidence; say so if there are no moments."""
    mean, variance = chart.predictor.offset, chart.predictor.variance
    moves = variance > 0.0
    of_mean = np.abs(tilted.mean - mean) / np.sqrt(variance)
    errors = np.where(moves, np.maximum(of_mean, np.abs(tilted.variance / variance - 1.0)), 0.0)
    usable = np.isfinite(errors) & np.isfinite(tilted.log_normalizer) & ((tilted.variance > 0.0) | ~moves)
    if not usable.all():
        return NO_MOMENTS
    # log ∫ N(η; cavity) exp(bη - ½w̄η²) dη
    quadratic = mean**2 / variance - cavity_mean**2 / cavity_variance
    of_sites = 0.5 * (np.log(variance / cavity_variance) + quadratic)
    of_sites = np.where(moves, of_sites, (sites.linear - 0.5 * sites.precision * mean) * mean)
    log_evidence = chart.log_evidence + float((tilted.log_normalizer - of_sites).sum())
    error = np.inf if lost else float(errors.max(initial=0.0))
    return _Evaluation(chart, sites, mean, variance, cavity_mean, cavity_variance, tilted, error, log_evidence)


class _Mixing:
    """Anderson acceleration of parallel updates: a step that accounts for what the last updates left over.

    References
    ----------
    Walker and Ni (2011), Anderson acceleration for fixed-point iterations, equation 2.2.
    """

    def __init__(self, start: _Evaluation, damping: float) -> None:
        # So that b and w̄ of all sites are numbers of order one.
        scale = np.where(start.variance > 0.0, start.variance, 1.0)
        self._scale = np.concatenate((np.sqrt(scale), scale))
        self._damping, self._step = damping, damping
        self._held: list[tuple[Array, Array]] = []
        self.mixes = False

    def next(self, current: _Evaluation) -> GaussianSites:
        """Return the sites to try after the current ones."""
        self._step = self._damping
        place = self._scale * np.concatenate((current.sites.linear, current.sites.precision))
        change = self._damping * self._scale * current.change
        self._held = [*self._held[-DEPTH:], (place, change)]
        self.mixes = len(self._held) > 1
        if self.mixes:
            places, changes = (np.diff(np.array(held), axis=0) for held in zip(*self._held, strict=True))
            weights = np.linalg.lstsq(changes.T, change, rcond=None)[0]
            change = change - weights @ (places + changes)
        return GaussianSites(*np.split((place + change) / self._scale, 2))

    def shorter(self, current: _Evaluation) -> GaussianSites:
        """Return what to try where those have no density or are far worse: the plain update, and then half of it."""
        self._step *= 1.0 if self.mixes else 0.5
        self._held, self.mixes = [], False
        return current.updated(self._step)


class _Progress:
    """Whether errors fall."""

    def __init__(self, patience: int) -> None:
        self._patience, self._left, self._least = patience, patience, np.inf

    def has_stalled(self, error: float) -> bool:
        """Take in one more error."""
        self._left = self._patience if error < PROGRESS * self._least else self._left - 1
        self._least = min(self._least, error)
        return self._left == 0


def sweep(
    chart: SiteChart, sites: GaussianSites, pieces: list[PointwiseLikelihood], damping: float, block: int
) -> GaussianSites:
    """Update every site once, each with the others as they are by then, by a fraction of its change.

    The pieces are the likelihood of each site alone. After a block of sites the covariance of all is updated, which
    changes the cost and not the result.
    """
    posterior = _Posterior(chart)
    linear, precision = sites.linear.copy(), sites.precision.copy()
    for start in range(0, len(pieces), block):
        rows = np.arange(start, min(start + block, len(pieces)))
        columns, covariance, mean = posterior.marginal(rows)
        changes = np.zeros((2, rows.size))
        local_mean, local_covariance = mean.copy(), covariance.copy()
        for i, site in enumerate(rows):
            variance = local_covariance[i, i]
            change = _change_of_site(
                pieces[site], local_mean[i], variance, linear[site], precision[site]
            )
            if change is None:
                continue
            by_linear, by_precision = damping * change[0], damping * change[1]
            linear[site] += by_linear
            precision[site] += by_precision
            changes[:, i] = by_linear, by_precision
            column, shrink = local_covariance[:, i].copy(), 1.0 / (1.0 + by_precision * variance)
            local_mean += column * (shrink * (by_linear - by_precision * local_mean[i]))
            local_covariance -= (by_precision * shrink) * np.outer(column, column)
        posterior.absorb(columns, covariance, mean, changes)
    return GaussianSites(linear, precision)


def _change_of_site(
    likelihood: PointwiseLikelihood, mean: float, variance: float, linear: float, precision: float
) -> tuple[float, float] | None:
    """Return by how much b and w̄ of a site change for its tilted density's moments; None without cavity or moments."""
    if variance == 0.0:
        return None
    cavity_precision = 1.0 / variance - precision
    if not cavity_precision > 0.0:
        return None
    cavity_variance = 1.0 / cavity_precision
    cavity_mean = cavity_variance * (mean / variance - linear)
    found = tilted_moments(likelihood, np.array([cavity_mean]), np.array([cavity_variance]))
    wanted_mean, wanted_variance = float(found.mean[0]), float(found.variance[0])
    if not (np.isfinite(wanted_mean) and wanted_variance > 0.0):
        return None
    return wanted_mean / wanted_variance - mean / variance, 1.0 / wanted_variance - 1.0 / variance


class _Posterior:
    """Mean and covariance of the sites as these are updated; of coefficients, with fewer of them than sites.

    With fewer latent values than sites it holds a (k, k) matrix, in the coordinates z of the chart that it begins with.
    """

    def __init__(self, chart: SiteChart) -> None:
        predictor = chart.predictor
        self._design: Array | None = None
        self._offset = predictor.offset
        if predictor.n_latent < predictor.n_sites:
            self._design = predictor.matrix
            self._mean, self._covariance = np.zeros(predictor.n_latent), np.eye(predictor.n_latent)
        else:
            self._mean, self._covariance = predictor.offset.copy(), np.array(predictor.gram)

    def marginal(self, rows: Indices) -> tuple[Array, Array, Array]:
        """Return the covariance of everything with some sites, and the sites' covariance and mean."""
        if self._design is None:
            columns = self._covariance[:, rows]
            return columns, columns[rows], self._mean[rows]
        design = self._design[rows]
        columns = self._covariance @ design.T
        return columns, design @ columns, self._offset[rows] + design @ self._mean

    def absorb(self, columns: Array, covariance: Array, mean: Array, changes: Array) -> None:
        """Change the sites of one block: an update of the block's rank, by Woodbury's identity."""
        linear, precision = changes
        inner = np.eye(precision.size) + precision[:, None] * covariance
        self._mean = self._mean + columns @ np.linalg.solve(inner, linear - precision * mean)
        self._covariance -= columns @ (np.linalg.solve(inner, np.diag(precision)) @ columns.T)


def second_order_correction(fit: EPFit, likelihood: PointwiseLikelihood) -> float:
    """Return what the second order adds to the log evidence of a converged fit.

    With ρᵢⱼ the correlation of two sites under the approximation and κₗᵢ the cumulant of order l of site i's
    standardised tilted density,

        log Z ≈ log Z_EP + ½ Σₗ (1/l!) Σ_{i≠j} κₗᵢ κₗⱼ ρᵢⱼˡ ,   l = 3, 4, ...

    The sum over l is cut after order 8, and costs O(n²).

    References
    ----------
    Opper, Paquet and Winther (2013), Perturbative corrections for approximate inference in Gaussian latent variable
    models, section 4.
    """
    tilted = tilted_moments(likelihood, fit.cavity_mean, fit.cavity_variance, cumulants=True)
    assert tilted.cumulants is not None
    return correction_of(fit.chart.predictor.gram, tilted.cumulants)


def correction_of(covariance: Array, cumulants: Array) -> float:
    """Return the sum over orders 3 to m + 2 of cumulants (m, n), and over pairs of sites with a covariance (n, n)."""
    spread = np.sqrt(covariance.diagonal())
    spread = np.where(spread > 0.0, spread, np.inf)
    correlation = covariance / np.outer(spread, spread)
    # Only pairs of different sites count.
    np.fill_diagonal(correlation, 0.0)
    total, power = 0.0, correlation**LEAST_ORDER
    for order, kappa in enumerate(cumulants, LEAST_ORDER):
        total += 0.5 * float(kappa @ (power @ kappa)) / math.factorial(order)
        power *= correlation
    return total
