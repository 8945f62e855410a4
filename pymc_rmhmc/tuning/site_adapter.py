"""The sites of one block, refitted to the draws of a window: by the policy's fit or the default, and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation import SiteFit, SiteRegression
from pymc_rmhmc.approximation.newton import NEAREST_FIRST
from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.site_policy import SitePolicy
from pymc_rmhmc.tuning.schedule import REFITS, Moment, Refit, RefitPolicy, StepSizeAdapter
from pymc_rmhmc.tuning.step_size import StepSize

__all__ = ["SiteAdapter", "SiteTuning", "fitted_sites", "new_fit", "rough_sites"]

type Array = NDArray[np.float64]


@dataclass
class SiteTuning:
    """What is known of a block: its sites, and the fit that has taken the draws since the last refit."""

    sites: GaussianSites | None = None
    fit: SiteFit | None = None


@dataclass(frozen=True, slots=True)
class SiteAdapter(StepSizeAdapter):
    """Refits one block's sites.

    Parameters
    ----------
    policy : SitePolicy or None
        What the metric says of its sites; None if it has none.
    """

    policy: SitePolicy | None
    schedule: RefitPolicy = REFITS

    def initial(self) -> SiteTuning:
        """Return no sites: they come with the first prior."""
        return SiteTuning()

    def observe(self, tuned: SiteTuning, seen: tuple[Array, Array]) -> None:
        """Take η and the slope there."""
        eta, slope = seen
        if tuned.fit is None:
            assert self.policy is not None  # without sites there is no refit, and nothing to observe
            tuned.fit = new_fit(self.policy, eta.size)
        tuned.fit.add(eta, slope)

    def forget(self, tuned: SiteTuning) -> None:
        """Drop the window."""
        tuned.fit = None

    def refit(
        self, tuned: SiteTuning, step_size: StepSize, moment: Moment, rng: np.random.Generator, *, with_sites: bool
    ) -> Refit[SiteTuning]:
        """Fit the sites to the window, or keep those that there are."""
        kept = replace(tuned, fit=None)
        if tuned.fit is None or tuned.sites is None or not with_sites:
            return Refit(kept, changed=False)
        sites = fitted_sites(tuned.fit, tuned.sites)
        if sites is None:
            return Refit(kept, changed=False)
        step_size.restart(step_size.average)
        return Refit(replace(kept, sites=sites))


def new_fit(policy: SitePolicy, n_sites: int) -> SiteFit:
    """Make the fit that takes the draws of a window.

    Raises
    ------
    ConfigurationError
        If what the policy names makes something else.
    """
    made = SiteRegression(n_sites) if policy.site_fit is None else policy.site_fit(n_sites)
    if not isinstance(made, SiteFit):
        raise ConfigurationError(
            f"site_fit({n_sites}) returned a {type(made).__name__}, not a SiteFit. Give a subclass of "
            "pymc_rmhmc.SiteFit."
        )
    return made


def fitted_sites(fit: SiteFit, held: GaussianSites) -> GaussianSites | None:
    """Return the sites that a fit gives in place of those held; None where it keeps them.

    Raises
    ------
    ConfigurationError
        If they are not finite, not as many as those held, or have a negative precision.
    """
    found = fit.fit(held)
    if found is None:
        return None
    if not isinstance(found, GaussianSites):
        raise ConfigurationError(
            f"{type(fit).__name__}.fit returned a {type(found).__name__}. It must return GaussianSites, or None to "
            "keep the sites."
        )
    shape = held.linear.shape
    for name, values in (("linear", found.linear), ("precision", found.precision)):
        wrong = ""
        if np.shape(values) != shape:
            wrong = f"has the shape {np.shape(values)}"
        elif not np.isfinite(values).all():
            wrong = f"is not finite for {np.count_nonzero(~np.isfinite(values))} of them"
        if wrong:
            raise ConfigurationError(
                f"{type(fit).__name__}.fit returned sites whose {name} {wrong}. It must be an array {shape} of finite "
                "numbers. Return None to keep the sites."
            )
    if (found.precision < 0.0).any():
        raise ConfigurationError(
            f"{type(fit).__name__}.fit returned sites with negative precisions, with which the approximation need not "
            "be a Gaussian. Clip them at 0."
        )
    return found


def rough_sites(likelihood: Any, eta: NDArray[np.float64]) -> GaussianSites:
    """Return sites like a likelihood at η (n,), or standard ones where it has no numbers; call all its functions."""
    likelihood.log_density(eta)
    _, slope = likelihood.gradient(eta)
    kind = next(known for known in NEAREST_FIRST if known in likelihood.kinds)
    weight = likelihood.curvature(eta, kind)[2]
    if not (np.isfinite(slope).all() and np.isfinite(weight).all()):
        return GaussianSites(np.zeros_like(eta), np.ones_like(eta))
    return GaussianSites(slope + weight * eta, np.maximum(weight, 0.0))
