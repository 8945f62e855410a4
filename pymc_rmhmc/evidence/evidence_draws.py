"""Draws of a whole model's posterior for estimates of its evidence: a chain's own, or a user's."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pymc_rmhmc.chains.chain import AnyChain
from pymc_rmhmc.chains.recipe import Coordinates
from pymc_rmhmc.chains.reference import Reference, ResidualReference
from pymc_rmhmc.errors import EvidenceError
from pymc_rmhmc.evidence.evidence_models import EvidenceModel, Point
from pymc_rmhmc.evidence.prior_values import prior_draws

__all__ = ["ChainDraws", "GivenDraws", "fitted_chain", "tuned_chain", "values_of_chain", "values_of_prior"]

type Array = NDArray[np.float64]

# Chains that start at independent places, and draws that each makes before they count, and at first.
CHAINS, SETTLING, FIRST = 4, 50, 250
# Draws of the approximation among which those places are chosen.
TRIED = 256
# Draws of a prior that tell how heavy its tails are, and of a chain that tell centre and scales.
OF_PRIOR, OF_CHAIN = 2000, 400


def tuned_chain(read: EvidenceModel, rng: np.random.Generator) -> AnyChain:
    """Return a whole model's chain after its tuning."""
    chain, point = read.whole_chain, _copied(read.point)
    chain.setup(read.n_tune)
    with np.errstate(all="ignore"):
        for tuning in [True] * read.n_tune + [False]:  # the first draw after tuning judges it
            chain.draw(point, rng, tuning=tuning)
            chain.write(point)
    return chain


def fitted_chain(read: EvidenceModel, draws: Array, rng: np.random.Generator) -> AnyChain:
    """Return a whole model's chain whose chart is fitted to given draws (t, k) of its values."""
    chain, point = read.whole_chain, _copied(read.point)
    with np.errstate(all="ignore"):
        chain.learn_from(draws, point, rng)
    return chain


def _copied(point: Point) -> Point:
    return {name: np.array(value, order="C") for name, value in point.items()}


def values_of_prior(read: EvidenceModel, rng: np.random.Generator) -> Array:
    """Return draws (n, k) of a whole model's values from their prior; none if it has no draws."""
    by_value = {str(read.model.rvs_to_values[v].name): v for v in read.model.free_RVs}
    names = dict.fromkeys(name for name, _ in read.variables.slices)
    return prior_draws(read.sampled, [by_value[name] for name in names], rng, OF_PRIOR)


def values_of_chain(chain: AnyChain, read: EvidenceModel, rng: np.random.Generator) -> Array:
    """Return the next draws (n, k) of a tuned chain."""
    point = _copied(read.point)
    chain.write(point)
    found = np.empty((OF_CHAIN, chain.values.size))
    with np.errstate(all="ignore"):
        for i in range(OF_CHAIN):
            chain.draw(point, rng, tuning=False)
            chain.write(point)
            found[i] = chain.values
    return found


class GivenDraws:
    """Draws that a user has; there are no more. See `PosteriorDraws`.

    Parameters
    ----------
    reference : Reference
        What was fitted to other draws.
    values : (chains, draws, k) array
        Of the model's values.
    rng : numpy.random.Generator
        For what of the coordinates values leave open.
    """

    def __init__(self, reference: Reference, values: Array, rng: np.random.Generator) -> None:
        self.residuals = np.array([reference.residuals(chain, rng) for chain in values])
        if not np.isfinite(self.residuals).all():
            raise EvidenceError(
                f"At {int((~np.isfinite(self.residuals)).sum())} of the {self.residuals.size} draws the model's log "
                "density is not finite, or a covariance has no factor. They may be draws of another model, or of other "
                "data; of this model, add jitter to its covariances."
            )

    def extend(self, share: float) -> bool:
        """See `PosteriorDraws`."""
        return False


class ChainDraws:
    """Draws of a tuned chain, from several starting points in turn. See `PosteriorDraws`.

    Parameters
    ----------
    chain : Chain
        After its tuning.
    read : EvidenceModel
        Its model.
    rng : numpy.random.Generator
        For draws.
    """

    def __init__(self, chain: AnyChain, read: EvidenceModel, rng: np.random.Generator) -> None:
        self._chain, self._rng, self._point = chain, rng, _copied(read.point)
        reference = chain.reference()
        self._log_constant = reference.log_constant
        self._places: list[tuple[Array, Coordinates | None]] = self._starts(reference)
        self._run(SETTLING)
        self.residuals = self._run(FIRST)

    def extend(self, share: float) -> bool:
        """See `PosteriorDraws`."""
        more = self._run(math.ceil(share * self.residuals.shape[1]))
        self.residuals = np.concatenate((self.residuals, more), axis=1)
        return True

    def _starts(self, reference: ResidualReference) -> list[tuple[Array, Coordinates | None]]:
        """Return where the chain is, and draws of the approximation by their weights."""
        walkers = reference.walkers(TRIED, self._rng)
        found: list[tuple[Array, Coordinates | None]] = [(np.array(self._chain.values), self._chain.state.coordinates)]
        if not np.isfinite(walkers.phi).any():
            return found
        weights = np.exp(walkers.phi - logsumexp(walkers.phi))
        chosen = self._rng.choice(TRIED, CHAINS - 1, p=weights / weights.sum())
        walkers.place(walkers.states[chosen])
        return [*found, *((values, None) for values in reference.values(walkers, self._rng))]

    def _run(self, count: int) -> Array:
        """Return φ (chains, count) at the next draws."""
        chain, point = self._chain, self._point
        weights = np.empty((len(self._places), count))
        with np.errstate(all="ignore"):
            for j, (values, coordinates) in enumerate(self._places):
                chain.values, chain.state.coordinates = values, coordinates
                chain.state.values = values if coordinates is not None else None
                chain.write(point)
                for i in range(count):
                    chain.draw(point, self._rng, tuning=False)
                    chain.write(point)
                    weights[j, i] = chain.log_weight
                self._places[j] = np.array(chain.values), chain.state.coordinates
        return weights - self._log_constant
