"""Normal approximations of latent Gaussian blocks, from which estimates of their evidence start."""

from __future__ import annotations

from typing import Any

import numpy as np

from pymc_rmhmc.approximation import find_mode, laplace_sites
from pymc_rmhmc.approximation.ep import fit_ep
from pymc_rmhmc.approximation.newton import Mode
from pymc_rmhmc.approximation.second_order import second_order_correction
from pymc_rmhmc.chains.reference import LatentReference
from pymc_rmhmc.errors import ApproximationError, ConfigurationError, counted
from pymc_rmhmc.evidence.evidence_models import LatentPart
from pymc_rmhmc.latent.charts.site import GaussianSites, SiteChart
from pymc_rmhmc.latent.prior import PriorFailure

__all__ = ["MOST_NEWTON_STEPS", "check_converged", "laplace_reference", "latent_reference"]


# Newton's method takes a dozen as a rule.
MOST_NEWTON_STEPS = 500


def check_converged(name: str, mode: Mode) -> None:
    """Raise where Newton's method has not come to a mode.

    Raises
    ------
    ApproximationError
        If it has not.
    """
    if not mode.converged:
        raise ApproximationError(
            f"{name}: Newton's method did not find the posterior's mode in {MOST_NEWTON_STEPS} steps. The likelihood "
            "may have no maximum, or its units may be far from the prior's: rescale the data, or narrow the prior."
        )


def laplace_reference(part: LatentPart, *, at_mode: bool = False) -> LatentReference:
    """Return the reference of the Laplace approximation, or of where Newton's method has come.

    Raises
    ------
    ApproximationError
        If the mode itself is wanted and was not found.
    """
    mode = find_mode(part.prior.predictor, part.likelihood, max_iter=MOST_NEWTON_STEPS)
    if at_mode:
        check_converged(part.name, mode)
    return LatentReference(_chart(part, laplace_sites(mode)), part.likelihood)


def latent_reference(part: LatentPart, sites: Any, method: str) -> tuple[LatentReference, dict[str, float]]:
    """Return the prior times the sites that were asked for; and approximations that were found on the way.

    Parameters
    ----------
    part : LatentPart
        The block.
    sites : {"auto", "laplace", "ep", "prior"} or GaussianSites
        As `log_evidence` has them.
    method : str
        Of the estimate: "laplace" and "ep" need their own sites.

    Raises
    ------
    ApproximationError
        If EP was asked for and does not converge.
    """
    likelihood = part.likelihood
    if method == "tempering" and sites == "auto" and "hessian" not in likelihood.kinds:
        sites = "prior"  # an approximation would know one mode alone
    if isinstance(sites, GaussianSites):
        return LatentReference(_chart(part, sites), likelihood), {}
    if sites == "prior":
        return LatentReference(_chart(part, None), likelihood), {}
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
    reference = laplace_reference(part, at_mode=method == "laplace")
    at_mode = reference.at(np.zeros(reference.size))[0]
    return reference, {"laplace": reference.log_constant + at_mode}


def _chart(part: LatentPart, sites: GaussianSites | None) -> SiteChart:
    """Return the chart of the prior times sites.

    Raises
    ------
    ConfigurationError
        If that is no normal density, or there is another number of sites.
    """
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
