"""From a model that has been read, and a method, to an estimate of its evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.approximation import find_mode, laplace_sites
from pymc_rmhmc.approximation.ep import fit_ep
from pymc_rmhmc.approximation.second_order import second_order_correction
from pymc_rmhmc.errors import ConfigurationError, EvidenceError
from pymc_rmhmc.evidence.annealing import annealed_evidence
from pymc_rmhmc.evidence.bridge import AdaptiveBridge, PosteriorDraws
from pymc_rmhmc.evidence.estimate import Budget, Estimate, Progress, Report
from pymc_rmhmc.evidence.importance import LARGEST_K, importance_evidence, laplace_evidence
from pymc_rmhmc.evidence.reference import LatentReference, Reference
from pymc_rmhmc.geometry.charts.site import GaussianSites, SiteChart
from pymc_rmhmc.geometry.prior import PriorFailure
from pymc_rmhmc.steps.annealing_options import Annealing
from pymc_rmhmc.steps.evidence_draws import ChainDraws, GivenDraws, fitted_chain, tuned_chain
from pymc_rmhmc.steps.evidence_models import EvidenceModel, LatentPart

__all__ = ["Settings", "estimates_of"]

type Array = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """What a user asked for.

    Attributes
    ----------
    method : str or Annealing
        How.
    sites : str or GaussianSites
        Of the reference of latent blocks.
    target_error : float
        Of the estimate.
    max_seconds : float or None
        For all of it.
    replicates : int
        States that move at once.
    """

    method: Any
    sites: Any
    target_error: float
    max_seconds: float | None
    replicates: int

    @property
    def name(self) -> str:
        """What the method is called."""
        return self.method if isinstance(self.method, str) else "annealing"


def estimates_of(
    read: EvidenceModel, settings: Settings, draws: Array | None, rng: np.random.Generator, report: Report | None
) -> list[tuple[str, str, Estimate]]:
    """Return for each block, or the whole model, its name, the method that was taken, and the estimate."""
    if not read.parts:
        return [("", *_of_whole(read, settings, draws, rng, report))]
    found = []
    # The errors of independent blocks add up in squares.
    each = replace(settings, target_error=settings.target_error / math.sqrt(len(read.parts)))
    for i, part in enumerate(read.parts):
        constant = read.constant if i == 0 else 0.0
        values = None if draws is None else draws[..., read.columns(part)]
        method, estimate = _of_part(part, each, values, rng, report)
        found.append((part.name, method, estimate.shifted(constant)))
    return found


def _of_part(
    part: LatentPart, settings: Settings, draws: Array | None, rng: np.random.Generator, report: Report | None
) -> tuple[str, Estimate]:
    """Of a latent block."""
    budget = Budget(settings.target_error, settings.max_seconds)
    reference, known = latent_reference(part, settings)
    progress = Progress(budget, report, reference.log_constant)
    method = settings.name
    if method in {"laplace", "ep"}:
        return method, Estimate(known[method], math.nan, {k: v for k, v in known.items() if k != method})
    if method == "auto" and draws is None:
        progress.say("importance sampling")
        estimate = importance_evidence(reference, settings.replicates, rng, budget, progress)
        if estimate.diagnostics["pareto_k"] < LARGEST_K:
            return "importance sampling", _with(estimate.shifted(reference.log_constant), known)
        progress.history.clear()
    if method in {"auto", "bridge"}:
        source = None if draws is None else GivenDraws(reference, draws, rng)
        estimate = AdaptiveBridge(reference, settings.replicates, rng, source).run(budget, progress)
        return "bridge", _with(estimate.shifted(reference.log_constant), known)
    estimate = _annealed(reference, settings, rng, budget, progress)
    return "annealing", _with(estimate.shifted(reference.log_constant), known)


def _of_whole(
    read: EvidenceModel, settings: Settings, draws: Array | None, rng: np.random.Generator, report: Report | None
) -> tuple[str, Estimate]:
    """Of a model with hyperparameters, or without latent blocks."""
    if settings.name == "ep":
        raise ConfigurationError(
            'method="ep" is for latent Gaussian values alone, and this model has other variables as well. Give '
            'method="bridge", or pymc_rmhmc.ep(model, point) for the evidence given the others.'
        )
    if not (isinstance(settings.sites, str) and settings.sites == "auto"):
        raise ConfigurationError(
            "sites= are of latent Gaussian values with everything else fixed; in this model they are fitted to draws "
            "of the posterior. Leave sites out."
        )
    budget = Budget(settings.target_error, settings.max_seconds)
    progress = Progress(budget, report)
    progress.say("tuning a chain")
    if draws is None:
        chain = tuned_chain(read, rng)
        reference = chain.reference()
    else:
        fitted, kept = halves(draws)
        chain = fitted_chain(read, fitted.reshape(-1, fitted.shape[-1]), rng)
        reference = chain.reference()
    constant = reference.log_constant + read.constant
    progress = Progress(budget, report, constant)
    if settings.name == "laplace":
        return "laplace", laplace_evidence(reference, rng).shifted(constant)
    if settings.name == "annealing":
        return "annealing", _annealed(reference, settings, rng, budget, progress).shifted(constant)
    progress.say("drawing from the posterior")
    source: PosteriorDraws = (
        ChainDraws(chain, read, rng) if draws is None else GivenDraws(reference, kept, rng)
    )
    estimate = AdaptiveBridge(reference, settings.replicates, rng, source).run(budget, progress)
    return "bridge", estimate.shifted(constant)


def halves(draws: Array) -> tuple[Array, Array]:
    """The first half of every chain, to which charts are fitted, and the second, which the bridge uses.

    A bridge to the draws that its own end was fitted to would be wrong.
    """
    middle = draws.shape[1] // 2
    return draws[:, :middle], draws[:, middle:]


def _annealed(
    reference: Reference, settings: Settings, rng: np.random.Generator, budget: Budget, progress: Progress
) -> Estimate:
    options = settings.method if isinstance(settings.method, Annealing) else Annealing()
    progress.say("finding a ladder")
    make, ladder = options.prepared(reference, settings.replicates, rng)
    return annealed_evidence(make, ladder, settings.replicates, rng, budget, progress, bounds=options.bounds)


def latent_reference(part: LatentPart, settings: Settings) -> tuple[LatentReference, dict[str, float]]:
    """Return the prior times the sites that were asked for; and approximations that were found on the way.

    Raises
    ------
    EvidenceError
        If EP was asked for and does not converge.
    """
    sites, likelihood = settings.sites, part.likelihood
    if isinstance(sites, GaussianSites):
        return LatentReference(_chart(part, sites), likelihood), {}
    if sites == "prior":
        return LatentReference(_chart(part, None), likelihood), {}
    if settings.name == "ep" or (settings.name != "laplace" and sites in {"auto", "ep"}):
        wanted = "ep" in {settings.name, sites}
        if wanted or "hessian" in likelihood.kinds:
            fit = fit_ep(part.prior, likelihood)
            if fit.converged:
                corrected = fit.log_evidence + second_order_correction(fit, likelihood)
                return LatentReference(fit.chart, likelihood), {"ep": fit.log_evidence, "ep_second_order": corrected}
            if wanted:
                raise EvidenceError(
                    f"{part.name}: expectation propagation does not converge ({fit.problem}). Give "
                    'sites="laplace", with method="bridge" for an exact estimate.'
                )
    reference = LatentReference(_chart(part, laplace_sites(find_mode(part.prior.predictor, likelihood))), likelihood)
    at_mode = reference.at(np.zeros(reference.size))[0]
    return reference, {"laplace": reference.log_constant + at_mode}


def _chart(part: LatentPart, sites: GaussianSites | None) -> SiteChart:
    """The chart of the prior times sites.

    Raises
    ------
    ConfigurationError
        If that is no normal density, or there is another number of sites.
    """
    n_sites = part.prior.predictor.n_sites
    if sites is not None and sites.linear.size != n_sites:
        raise ConfigurationError(f"sites= has {sites.linear.size} sites, and {part.name} has {n_sites}.")
    try:
        return SiteChart(part.prior, sites, lasting=True)
    except PriorFailure:
        raise ConfigurationError(
            f"{part.name}: the prior times these sites is no normal density, because negative precisions outweigh the "
            'prior. Give sites="auto", or sites with precisions of at least 0.'
        ) from None


def _with(estimate: Estimate, known: dict[str, float]) -> Estimate:
    return replace(estimate, diagnostics={**estimate.diagnostics, **known})
