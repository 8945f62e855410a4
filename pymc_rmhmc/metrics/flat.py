"""Constant metrics: the flat one, ``G = W̄ + K⁻¹`` with constant Gaussian sites, and two without tuning.

In the site chart (`pymc_rmhmc.latent.charts.site`) the flat metric is the identity, and the posterior is nearly
standard normal: its Gaussian part is followed exactly, by a rotation, and no equation is left to be solved. The others
are the identity in the model's own values, and the prior of a latent Gaussian block.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import DensityPoint, GaussianHamiltonian, SiteHamiltonian, SpannedHamiltonian
from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.latent.charts.site import SitePolicy
from pymc_rmhmc.latent.target import LatentDensity, LatentTarget, TargetPoint, latent_target, rounded
from pymc_rmhmc.metrics.field import MetricFieldBase
from pymc_rmhmc.metrics.graph_metric import MatrixPoint, matrix_density
from pymc_rmhmc.usage import one_of

__all__ = ["EuclideanMetric", "FlatField", "FlatMetric", "IdentityField", "PriorMetric"]

type Array = NDArray[np.float64]

# Sites a latent value, up to which one product with ΦΦᵀ is cheaper than two with Φ.
MOST_SITES = 2
CHARTS = ("auto", "latent", "graph", "field")
ADVICE = 'Leave it out, or give FlatMetric(chart="graph").'


class FlatMetric:
    """Constant metric ``W̄ + K⁻¹``: the default, and the fastest on every problem measured.

    Each likelihood term is approximated by a Gaussian curve in the value that it reads, a *site*. W̄ holds the
    sites' curvatures, and K is the covariance of the prior. The sites are fitted in tuning and constant for the draws.
    The draws are exact with any sites. Sites that fit badly cost acceptance, not correctness.

    Parameters
    ----------
    refit : bool
        If true, refit the sites in tuning to the draws made so far. If false, keep those from the start of the chain,
        and the hyperparameters' mass matrix with them. False also turns the emulator off.
    site_fit : callable, optional
        A class or function that takes the number of sites and returns a `SiteFit`. It refits the sites in tuning. By
        default `SiteRegression`; with free hyperparameters, sites that also follow an amplitude if that helps.
    emulate : bool
        With free hyperparameters: if true, fit an emulator of their marginal density in tuning. Hyperparameters and
        latent values then move in turns, which is faster when a covariance has to be factorised again for each new
        value. If false, both move in one trajectory. They also do so with coefficients, with more than eleven
        hyperparameters, or with `step_size` or `n_steps`. If tuning shows that turns are not accepted, draws are joint
        trajectories again, with some of the latent values alone between them. In the chart "graph", the emulator is of
        the whole density, if that is dear and has at most eleven values.
    sites : {"fitted", "prior_expected"}
        "fitted" sites are those of the Laplace approximation, refitted in tuning. "prior_expected" sites have the
        curvature that the prior expects, and keep it: the constant metric of Girolami and Calderhead for log-Gaussian
        Cox processes and stochastic volatility. RMHMC then samples latent values alone, given everything else.
    chart : {"auto", "latent", "graph", "field"}
        The coordinates in which the metric is constant. "latent" are those of a latent Gaussian block and its sites.
        "field" are the same of everything Gaussian in a model at once, by a sparse precision: of series, maps and
        crossed effects. "graph" takes every continuous variable of any model relative to the location and scale that
        other variables give it. "auto" is the fastest of them for the model; `describe` says which, and why.

    Raises
    ------
    ConfigurationError
        If `site_fit` cannot be called, or is given with sites that are not refitted; or if there are prior_expected
        sites in the chart "graph", which has none.

    Notes
    -----
    With fixed hyperparameters a step costs O(n²) operations. With free ones, a joint step costs about 2n³ and the
    derivative of the covariance, and a step of the latent values alone O(n²).

    References
    ----------
    Girolami and Calderhead (2011), section 9, for the constant metric of the log-Gaussian Cox process.

    Examples
    --------
    >>> from pymc_rmhmc import FlatMetric
    >>> FlatMetric(emulate=False)
    FlatMetric(refit=True, emulate=False)
    """

    name = "flat"

    def __init__(
        self, *, refit: bool = True, site_fit: Callable[[int], object] | None = None, emulate: bool = True,
        chart: str = "auto", sites: str = "fitted",
    ) -> None:  # fmt: skip
        self.policy, self.chart = SitePolicy(refit, site_fit, emulate, sites), one_of("chart", chart, CHARTS, ADVICE)
        if sites == "prior_expected":
            if chart == "graph":
                raise ConfigurationError(
                    'sites="prior_expected" are of latent Gaussian values, and chart="graph" has no sites: leave one '
                    "of them out."
                )
            self.chart = "latent"

    def __repr__(self) -> str:
        policy = self.policy
        fit = "" if policy.site_fit is None else f"site_fit={getattr(policy.site_fit, '__name__', policy.site_fit)}, "
        chart = "" if self.chart == "auto" or policy.sites != "fitted" else f", chart={self.chart!r}"
        sites = "" if policy.sites == "fitted" else f", sites={policy.sites!r}"
        return f"FlatMetric(refit={policy.refit}, {fit}emulate={policy.emulate}{chart}{sites})"

    def bind(self, density: LatentDensity) -> FlatField:
        """Return the metric of a density; raise a `ConfigurationError` if it has no sites."""
        return FlatField(latent_target(density, self.name))


class IdentityField[Point: DensityPoint](MetricFieldBase[Point, None]):
    """The identity, at every point of a density."""

    def at(self, point: Point) -> Identity:
        """Return the identity."""
        return Identity(point.position.size)

    def pullback(self, point: Point, bar: None) -> Array:
        """Return zeros, (n,)."""
        return np.zeros_like(point.position)


class FlatField(IdentityField[TargetPoint]):
    """The identity in coordinates of unit scale: those of a target in the chart of its sites."""

    def __init__(self, target: LatentTarget) -> None:
        super().__init__(LatentDensity(target))
        self.target = target

    def hamiltonian(self) -> GaussianHamiltonian[TargetPoint] | SpannedHamiltonian | SiteHamiltonian:
        """Return the Hamiltonian of the target in the form with the cheapest steps."""
        target, predictor = self.target, self.target.chart.predictor
        # ΦΦᵀ costs O(n³) once; a step then reads n²/2 numbers, where Φ and Φᵀ are 2nk (n² if triangular).
        if not target.chart.lasting or predictor.n_sites > MOST_SITES * predictor.n_latent:
            return GaussianHamiltonian(target)
        in_single = rounded(target)
        return SpannedHamiltonian(target) if in_single is None else SiteHamiltonian(in_single)


class Identity:
    """``G = I`` of a size, with no bars: nothing has to be taken back."""

    half_log_det = 0.0
    scale: float | Array = 1.0

    def __init__(self, root_size: int) -> None:
        self.root_size = root_size

    def solve(self, vector: Array) -> Array:
        """Return the vector itself."""
        return vector

    times = sqrt_times = solve

    def log_det_bar(self) -> None:
        """Return None: the determinant is constant."""

    def quadratic_bar(self, velocity: Array) -> None:
        """Return None: the matrix is constant."""


class EuclideanMetric:
    """``G = I`` in the model's unconstrained values: that of `MALA`."""

    name, chart = "euclidean", "graph"

    def __repr__(self) -> str:
        return "EuclideanMetric()"

    def bind(self, density: object) -> IdentityField[MatrixPoint]:
        """Return the metric of a density."""
        return IdentityField(matrix_density(density, self.name))


class PriorMetric:
    """The inverse covariance of a latent Gaussian block's prior, without sites: that of `EllipticalSlice`."""

    name, chart = "prior", "latent"

    def __repr__(self) -> str:
        return "PriorMetric()"

    def bind(self, density: LatentDensity) -> PriorField:
        """Return the metric of a density."""
        return PriorField(latent_target(density, self.name))


class PriorField:
    """The identity, in coordinates in which the prior is standard normal: those of a chart without sites."""

    def __init__(self, target: LatentTarget) -> None:
        self._target = target

    def hamiltonian(self) -> GaussianHamiltonian[TargetPoint]:
        """Return the Hamiltonian of the target: the likelihood and a standard normal, without a gradient."""
        return GaussianHamiltonian(PriorTarget(self._target))


class PriorTarget:
    """The φ of a target alone: half the products of one that gives its gradient too."""

    def __init__(self, target: LatentTarget) -> None:
        self._target = target

    def at(self, position: Array) -> TargetPoint:
        """Evaluate φ: one product with Φ and one likelihood. The gradient is empty."""
        eta = self._target.chart.predictor.apply(position)
        log_likelihood, value, _ = self._target.evaluate(eta)
        return TargetPoint(position, eta, log_likelihood, value, np.empty(0))
