"""The flat metric ``G = W̄ + K⁻¹`` with constant Gaussian sites.

In the site chart (`pymc_rmhmc.geometry.charts.site`) this metric is the identity, and the posterior is
nearly standard normal: its Gaussian part is followed exactly, by a rotation, and no equation is left to
be solved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymc_rmhmc.dynamics.hamiltonian import GaussianHamiltonian, SiteHamiltonian, SpannedHamiltonian
from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.geometry.rounded import rounded
from pymc_rmhmc.geometry.target import LatentTarget

__all__ = ["FlatMetric"]

# Sites a latent value, up to which one product with ΦΦᵀ is cheaper than two with Φ.
MOST_SITES = 2


class FlatMetric:
    """``W̄ + K⁻¹``, with sites W̄ that are fitted in tuning and constant for the draws.

    The fastest exact choice for latent Gaussian blocks, and what ``metric="auto"`` takes: O(n²) a step where
    hyperparameters are fixed. Where they are sampled with the latent values and K moves, a step of both together
    costs about 2n³ flops and what the kernel's own derivative takes (`pymc_rmhmc.geometry.joint`), and a step of the
    latent values alone O(n²); the hyperparameters' mass matrix is constant, and refitted with the sites.
    The sites begin as the Laplace approximation's, and where hyperparameters are sampled as those of a variational
    one; in tuning windows they are refitted to the draws. Any sites give an exact sampler; poor ones cost acceptance.

    Parameters
    ----------
    refit : bool
        Refit the sites to warm-up draws. If not, those of the beginning stay, and so do hyperparameters' mass matrix
        and the way they move: in joint trajectories, without an emulator.
    site_fit : callable, optional
        What refits them: a subclass of `pymc_rmhmc.approximation.SiteFit`, or another function of the number of sites
        that makes such an object for each tuning window. The default is `pymc_rmhmc.approximation.SiteRegression`, and
        where hyperparameters are sampled a trend of the sites with them (`pymc_rmhmc.approximation.site_trend`), where
        the draws show that it is worth it. Sites of your own fit follow no trend.
    emulate : bool
        Where hyperparameters are sampled with the latent values: emulate their marginal density in tuning, and let the
        two move in turns, the hyperparameters along the emulator (`pymc_rmhmc.approximation.emulation`). It is fitted
        after six tenths of tuning, and chooses the hyperparameters' mass matrix; the sites are refitted once more after
        eight. Where that is not done or tuning shows that it does not pay, for coefficients, and with `n_steps` or
        `step_size`, they move in joint trajectories.

    Raises
    ------
    ConfigurationError
        If `site_fit` is not callable, or is given although nothing is refitted.

    References
    ----------
    Girolami and Calderhead (2011), section 9: the constant metric of the log-Gaussian Cox process.

    Examples
    --------
    >>> from pymc_rmhmc import FlatMetric
    >>> FlatMetric().refit
    True
    """

    name = "flat"
    uses_sites = True
    needs_solver = False
    takes_hyperparameters = True

    def __init__(
        self, *, refit: bool = True, site_fit: Callable[[int], Any] | None = None, emulate: bool = True
    ) -> None:
        if site_fit is not None and not callable(site_fit):
            raise ConfigurationError(
                "site_fit must make a SiteFit from the number of sites, such as the class SiteRegression, got "
                f"{site_fit!r}."
            )
        if site_fit is not None and not refit:
            raise ConfigurationError("site_fit refits the sites, but refit=False keeps them: leave one of them out.")
        self.refit, self.site_fit, self.emulate = bool(refit), site_fit, bool(emulate)

    def __repr__(self) -> str:
        fit = "" if self.site_fit is None else f"site_fit={getattr(self.site_fit, '__name__', self.site_fit)}, "
        return f"FlatMetric(refit={self.refit}, {fit}emulate={self.emulate})"

    def hamiltonian(self, target: LatentTarget) -> GaussianHamiltonian | SpannedHamiltonian | SiteHamiltonian:
        """The Hamiltonian of a target in this metric, in the form whose steps are cheapest."""
        predictor = target.chart.predictor
        # ΦΦᵀ costs O(n³) once; a step then reads n²/2 numbers, where Φ and Φᵀ are 2nk (n² if triangular).
        if not target.chart.lasting or predictor.n_sites > MOST_SITES * predictor.n_latent:
            return GaussianHamiltonian(target)
        in_single = rounded(target)
        return SpannedHamiltonian(target) if in_single is None else SiteHamiltonian(in_single)
