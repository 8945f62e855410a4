"""From a model that has been read, and a method, to an estimate of its evidence."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.reference import LatentReference, Reference, ResidualReference
from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.evidence.annealing_options import Annealing
from pymc_rmhmc.evidence.evidence_checks import no_effect
from pymc_rmhmc.evidence.evidence_draws import (
    ChainDraws,
    GivenDraws,
    fitted_chain,
    tuned_chain,
    values_of_chain,
    values_of_prior,
)
from pymc_rmhmc.evidence.evidence_models import EvidenceModel, LatentPart
from pymc_rmhmc.evidence.evidence_references import positions_of, whole_reference
from pymc_rmhmc.evidence.latent_references import latent_reference
from pymc_rmhmc.evidence.methods.annealing import annealed_evidence
from pymc_rmhmc.evidence.methods.bridge import BRIDGE, HEAVY_BRIDGE, AdaptiveBridge, PosteriorDraws
from pymc_rmhmc.evidence.methods.estimate import LARGEST_K, Budget, Estimate, Progress, Report
from pymc_rmhmc.evidence.methods.family import FixedFamily, ReferenceFamily
from pymc_rmhmc.evidence.methods.importance import importance_evidence, laplace_evidence
from pymc_rmhmc.evidence.methods.modes import check_modes
from pymc_rmhmc.evidence.methods.tails import with_fitting_tails
from pymc_rmhmc.evidence.methods.tempering import temper
from pymc_rmhmc.evidence.tempering_families import whole_family

__all__ = ["Settings", "estimates_of"]

type Array = NDArray[np.float64]

# Sweeps of tempering, and those that adapt it.
TEMPERED = 1000
# Annealing from heavy tails: one state in some hundreds lies where the posterior has no density. With 1000 states, and
# one such state more in the error, the root mean square of z is .95 to 1.0; without it 1.1 for a t with 2 degrees.
HEAVY_STATES: dict[str, Any] = {"fewest": 1000.0, "unseen": 1}
# Draws of the prior from which other modes are searched.
SEARCHES = 8
# How many times as wide as the reference are places to search from, where the prior has no draws.
WIDTHS = 3.0, 100.0
# Given draws to which a reference is fitted.
MOST_FITTED = 1000


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
    # The errors of independent blocks add up in squares, and their seconds as they are.
    n, limit = len(read.parts), settings.max_seconds
    each = replace(
        settings, target_error=settings.target_error / math.sqrt(n), max_seconds=None if limit is None else limit / n
    )
    for i, part in enumerate(read.parts):
        constant = read.constant if i == 0 else 0.0
        values = None if draws is None else draws[..., read.columns(part)]
        found.append((part.name, *_of_part(part, each, constant, values, rng, report)))
    return found


def _of_part(
    part: LatentPart, settings: Settings, constant: float, draws: Array | None, rng: np.random.Generator,
    report: Report | None,
) -> tuple[str, Estimate]:  # fmt: skip
    """Estimate a latent block's log evidence, with a constant that the model's log density has beyond the blocks."""
    method = settings.name
    if draws is not None and method not in {"auto", "bridge"}:
        raise no_effect("draws", method, f"which needs none for {part.name}")
    budget = Budget(settings.target_error, settings.max_seconds)
    reference, known = latent_reference(part, settings.sites, method)
    reference.log_constant += constant
    known = {name: value + constant for name, value in known.items()}
    progress = Progress(budget, report, reference.log_constant)
    if method in {"laplace", "ep"}:
        return method, Estimate(known[method], math.nan, {k: v for k, v in known.items() if k != method})
    if method in {"auto", "bridge", "annealing"} and "hessian" not in part.likelihood.kinds:
        check_modes(part.name, reference, _prior_places(part, reference, rng))
    if method == "auto" and draws is None:
        progress.say("importance sampling")
        estimate = importance_evidence(reference, settings.replicates, rng, budget, progress)
        if estimate.diagnostics["pareto_k"] < LARGEST_K:
            return "importance sampling", _with(estimate.shifted(reference.log_constant), known)
        progress.history.clear()
    if method == "tempering":
        progress = Progress(budget, report)
        return method, _with(_tempered(FixedFamily(reference), rng, budget, progress), known)
    if method in {"auto", "bridge"}:
        source = None if draws is None else GivenDraws(reference, draws, rng)
        estimate = AdaptiveBridge(reference, settings.replicates, rng, source).run(budget, progress)
        return "bridge", _with(estimate.shifted(reference.log_constant), known)
    estimate = _annealed(reference, settings, rng, budget, progress)
    return "annealing", _with(estimate.shifted(reference.log_constant), known)


def _prior_places(part: LatentPart, reference: LatentReference, rng: np.random.Generator) -> list[Array]:
    """Return draws of a block's prior, in the reference's coordinates."""
    drawn = rng.standard_normal((SEARCHES, part.prior.n_latent))
    return [reference.chart.from_model(part.prior.to_model(each)) for each in drawn]


def _of_whole(
    read: EvidenceModel, settings: Settings, draws: Array | None, rng: np.random.Generator, report: Report | None
) -> tuple[str, Estimate]:
    """Estimate the evidence of a model with hyperparameters, or without latent blocks."""
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
    if settings.name == "tempering":
        found = _tempered(whole_family(read, rng, progress), rng, budget, progress)
        return "tempering", found.shifted(read.constant)
    progress.say("tuning a chain")
    if draws is None:
        chain, fitted = tuned_chain(read, rng), None
    else:
        fitted, kept = halves(draws)
        fitted = fitted.reshape(-1, fitted.shape[-1])
        chain = fitted_chain(read, fitted, rng)
    if settings.name == "laplace":
        reference = chain.reference()
        return "laplace", laplace_evidence(reference, rng).shifted(reference.log_constant + read.constant)
    progress.say("looking for heavy tails and other modes")
    prior = values_of_prior(read, rng)
    fitted = values_of_chain(chain, read, rng) if fitted is None else fitted[:: 1 + len(fitted) // MOST_FITTED]
    whole = whole_reference(chain, prior, fitted, rng)
    reference = whole.reference
    constant = reference.log_constant + read.constant
    progress = Progress(budget, report, constant)
    check_modes(chain.recipe.name, reference, _places(reference, prior, rng))
    if settings.name == "annealing":
        tailed = reference if whole.is_heavy else with_fitting_tails(reference, rng)
        # The tails have changed the constant by nothing.
        states = HEAVY_STATES if whole.is_heavy else {}
        return "annealing", _annealed(tailed, settings, rng, budget, progress, **states).shifted(constant)
    progress.say("drawing from the posterior")
    source: PosteriorDraws | None = None
    if draws is not None:
        source = GivenDraws(reference, kept, rng)
    elif not whole.is_heavy:
        source = ChainDraws(chain, read, rng)
    policy = HEAVY_BRIDGE if whole.is_heavy else BRIDGE
    estimate = AdaptiveBridge(reference, settings.replicates, rng, source, policy).run(budget, progress)
    return "bridge", estimate.shifted(constant)


def _places(reference: ResidualReference, prior: Array, rng: np.random.Generator) -> Array:
    """Return where to search other modes from: draws (n, k) of the prior, or ever wider ones if it has no draws."""
    found = positions_of(reference, prior[:SEARCHES], rng)
    if len(found):
        return found
    return np.geomspace(*WIDTHS, SEARCHES)[:, None] * rng.standard_normal((SEARCHES, reference.size))


def _tempered(family: ReferenceFamily, rng: np.random.Generator, budget: Budget, progress: Progress) -> Estimate:
    found = temper(family, draws=TEMPERED, tune=TEMPERED, rng=rng, budget=budget, progress=progress)
    return found.estimate.shifted(found.reference.log_constant)


def halves(draws: Array) -> tuple[Array, Array]:
    """Split every chain in two: the first half, to which charts are fitted, and the second, which the bridge uses.

    A bridge to the draws that its own end was fitted to would be wrong.
    """
    middle = draws.shape[1] // 2
    return draws[:, :middle], draws[:, middle:]


def _annealed(
    reference: Reference, settings: Settings, rng: np.random.Generator, budget: Budget, progress: Progress,
    **states: Any,
) -> Estimate:  # fmt: skip
    options = settings.method if isinstance(settings.method, Annealing) else Annealing()
    progress.say("finding a ladder")
    make, ladder = options.prepared(reference, settings.replicates, rng)
    return annealed_evidence(
        make, ladder, settings.replicates, rng, budget, progress, bounds=options.bounds, remedy=options.remedy,
        **states,
    )  # fmt: skip


def _with(estimate: Estimate, known: dict[str, float]) -> Estimate:
    return replace(estimate, diagnostics={**estimate.diagnostics, **known})
