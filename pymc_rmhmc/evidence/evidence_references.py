"""Where estimates start: normal approximations of latent blocks, and references of whole models.

The latter are in a tuned chain's coordinates, or have heavier tails where the prior has some.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation import find_mode, laplace_sites
from pymc_rmhmc.approximation.ep import fit_ep, second_order_correction
from pymc_rmhmc.approximation.newton import Mode
from pymc_rmhmc.chains.chain import Chain
from pymc_rmhmc.chains.reference import LatentReference, ResidualReference
from pymc_rmhmc.errors import ApproximationError, ConfigurationError, counted
from pymc_rmhmc.evidence.evidence_models import LatentPart
from pymc_rmhmc.evidence.methods.tails import TailedReference, Tails, measured_tails, power_tails, with_fitting_tails
from pymc_rmhmc.evidence.tempering_families import moment_map
from pymc_rmhmc.graph_chart.affine_map import diagonal_map
from pymc_rmhmc.latent.charts import MarginalChart
from pymc_rmhmc.latent.charts.site import GaussianSites, SiteChart
from pymc_rmhmc.latent.prior import PriorFailure
from pymc_rmhmc.sampled.graph_recipe import GraphRecipe
from pymc_rmhmc.sampled.joint_recipe import JointRecipe, JointSetting

__all__ = ["MOST_NEWTON_STEPS", "check_converged", "latent_reference", "positions_of", "whole_reference"]

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


def whole_reference(
    chain: Chain, prior: Array, posterior: Array, rng: np.random.Generator
) -> tuple[ResidualReference, bool]:
    """Return the reference of a chain, or one with heavy tails where the prior has some; and whether it has.

    In heavy tails the chain itself is too rarely.

    Parameters
    ----------
    chain : Chain
        After its tuning.
    prior : (n, k) array
        Draws of the model's values from their prior; empty where it has no draws, and then the tails are read from
        the density itself.
    posterior : (m, k) array
        Draws of the posterior, for centre and scales. They need not reach its tails.
    rng : numpy.random.Generator
        For draws of the reference.
    """
    normal = chain.reference()
    own = normal.own_tails
    if not own.size:
        return normal, False
    plain = _scaled(chain, np.zeros(own.size), np.ones(own.size))
    of_prior = positions_of(plain, prior, rng)[:, own]
    # The density shows a power's tail that draws of the prior leave in doubt.
    tails = power_tails(plain, positions_of(plain, posterior, rng)[:, own])
    is_heavy = tails.heaviest > POWERFUL
    if len(of_prior) >= FEWEST:
        tails = measured_tails(of_prior)
        is_heavy |= tails.heaviest > HEAVY
    if not is_heavy:
        return normal, False
    return _fitted(_with_tails(chain, tails), posterior, rng), True


def positions_of(reference: ResidualReference, values: Array, rng: np.random.Generator) -> Array:
    """Return the coordinates (n, d) of some of the model's values (n, k), without those that have no density."""
    found = reference.positions(values, rng)
    return found[np.isfinite(found).all(axis=1)]


def _scaled(chain: Chain, centre: Array, spread: Array) -> ResidualReference:
    """Return the reference of a centre and scales, in those of the chart's coordinates that have their own tails."""
    recipe = chain.recipe
    tuned = replace(chain.state.tuned, emulator=None)
    if isinstance(recipe, GraphRecipe):
        return recipe.exact_setting(replace(tuned, flat=tuple(diagonal_map(centre, spread)))).reference()
    assert isinstance(recipe, JointRecipe)
    marginals = MarginalChart.linear(centre, np.diag(spread))
    return JointSetting.of(recipe.model, replace(tuned, marginals=marginals), recipe.plan).reference()


def _with_tails(chain: Chain, tails: Tails) -> TailedReference:
    """Return the reference whose coordinates have the centre, scale and tails that were measured."""
    inner = _scaled(chain, tails.centre, WIDE * tails.spread)
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


def check_converged(name: str, mode: Mode) -> None:
    """Raise where Newton's method has not come to a mode."""
    if not mode.converged:
        raise ApproximationError(
            f"{name}: Newton's method did not find the posterior's mode in {MOST_NEWTON_STEPS} steps. The likelihood "
            "may have no maximum, or its units may be far from the prior's: rescale the data, or narrow the prior."
        )


def latent_reference(
    part: LatentPart, sites: str | GaussianSites, method: str
) -> tuple[LatentReference, dict[str, float]]:
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
        If EP was asked for and does not converge, or Laplace's method and there is no mode.
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
    mode = find_mode(part.prior.predictor, likelihood, max_iter=MOST_NEWTON_STEPS)
    if method == "laplace":
        check_converged(part.name, mode)
    reference = LatentReference(_chart(part, laplace_sites(mode)), likelihood)
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
