"""Replicas of a ladder of temperatures whose states move, and change places with their neighbours.

Temperatures lie so that as many swaps are rejected between any two neighbours.

References
----------
Syed, Bouchard-Côté, Deligiannidis and Doucet (2022), Non-reversible parallel tempering: a scalable highly parallel
MCMC scheme, JRSS B 84: section 2 has deterministic even-odd swaps, and random ones, section 4 the barrier
``Λ(β) = ∫₀^β λ`` and the rate of round trips ``1/(2 + 2 Λ)``, section 5 the estimate ``Λ(β_k) ≈ Σ_{i<k} r_i`` from
rejection rates r and the ladder.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from pymc_rmhmc.chains.reference import Reference
from pymc_rmhmc.errors import ConfigurationError, EvidenceError, shown

__all__ = [
    "NON_REVERSIBLE", "REVERSIBLE", "SCHEMES", "TEMPERING", "Ensemble", "TemperingPolicy", "check_ladder",
    "cumulative_barrier", "equal_rejection", "first_ladder", "local_barrier", "nearest_rungs", "rungs_for", "trip_rate",
]  # fmt: skip

type Array = NDArray[np.float64]

NON_REVERSIBLE, REVERSIBLE = "nonreversible", "reversible"
SCHEMES = (NON_REVERSIBLE, REVERSIBLE)

# The smallest β > 0 before anything is known.
HOTTEST = 1e-3
# A rejection rate that was estimated as less counts as this much, so that the barrier increases everywhere.
LEAST_REJECTION = 1e-4
# Places between two neighbours at which the barrier is inverted.
GRID = 200


@dataclass(frozen=True, slots=True)
class TemperingPolicy:
    """How parallel tempering is run."""

    # Mean length of a trajectory, where `most_steps` steps reach so far.
    path: float = 1.7
    # Step sizes are uniform in ``step (1 ± jitter)``, and tuned to this acceptance.
    jitter: float = 0.2
    accepted: float = 0.8
    # Steps of a trajectory: at first, and at most.
    first_steps: int = 4
    most_steps: int = 8
    # Temperatures where none are given: at first, at least and at most.
    first_rungs: int = 8
    fewest_rungs: int = 6
    most_rungs: int = 60
    # Sweeps of the first round of adaptation; each round is twice as long as the one before.
    first_round: int = 32
    # This share of the adaptation's sweeps comes after the last change of the ladder: half of it tunes step sizes.
    settling: float = 0.15
    # A reference is replaced if the divergence of the posterior from another is at most this share of that from it.
    # Where modes lie apart a narrower reference saves little, and could lose one.
    worth_refitting: float = 0.5
    # Round trips in a round before what it has seen may become the reference. A ladder that states do not climb may
    # lack modes, which a narrower reference would lose for good.
    trips_to_refit: int = 20
    # So many draws of a round are used for a refit.
    refit_draws: int = 400
    # Groups of successive sweeps for the jackknife, over all replicas.
    blocks: int = 20
    # Draws of the reference until one has a density.
    attempts: int = 200


TEMPERING = TemperingPolicy()


class Ensemble:
    """States at every temperature of every replica; walker ``r K + k`` is rung k of replica r.

    `reference`: the model.
    `betas` (K,): from 0 to 1.
    `replicas`: R, independent ladders.
    `rng`: for all of it.
    `policy`: its numbers.
    `states` (R, K, m): where walkers begin; by default at draws of the reference.
    `log_steps`, `n_steps` (K,) array, int, optional: step sizes, and steps of a trajectory, known so far.
    `scheme`: "nonreversible": even and odd pairs in turns; "reversible": which of the two is drawn.

    Attributes
    ----------
    round_trips : (R,) int array
        How often a state has gone from β = 0 to β = 1 and back.
    """

    def __init__(
        self, reference: Reference, betas: Array, replicas: int, rng: np.random.Generator,
        policy: TemperingPolicy = TEMPERING, *, states: Array | None = None, log_steps: Array | None = None,
        n_steps: int | None = None, scheme: str = NON_REVERSIBLE,
    ) -> None:  # fmt: skip
        self.reference, self.betas, self.replicas, self.rng, self.policy = reference, betas, replicas, rng, policy
        self.n_steps = policy.first_steps if n_steps is None else n_steps
        self.log_steps = np.full(betas.size, math.log(0.5)) if log_steps is None else log_steps
        self.scheme, self._n_swaps = scheme, 0
        self._all_betas = np.tile(betas, replicas)
        self._hot = np.arange(replicas) * betas.size
        self.walkers = reference.walkers(replicas * betas.size, rng)
        if states is not None:
            self.walkers.place(states.reshape(-1, states.shape[-1]))
        self._place_where_finite()
        self.forget()

    @property
    def phi(self) -> Array:
        """φ at every state, (R, K)."""
        return self.walkers.phi.reshape(self.replicas, -1)

    @property
    def states(self) -> Array:
        """The states, (R, K, m)."""
        return self.walkers.states.reshape(self.replicas, self.betas.size, -1)

    @property
    def step_sizes(self) -> Array:
        """The step size at each temperature, (K,)."""
        return np.minimum(np.exp(self.log_steps), self.policy.path / self.n_steps)

    @property
    def rejection(self) -> Array:
        """The share of swaps between neighbours that was rejected, (K - 1,)."""
        return self._rejected / np.maximum(self._offered, 1.0)

    def forget(self) -> None:
        """Count rejections and round trips from now on."""
        shape = (self.replicas, self.betas.size)
        self._rejected, self._offered = np.zeros(self.betas.size - 1), np.zeros(self.betas.size - 1)
        self.round_trips = np.zeros(self.replicas, int)
        self._names = np.tile(np.arange(self.betas.size), (self.replicas, 1))  # which state is at each rung
        self._left_reference, self._reached_posterior = np.zeros(shape, bool), np.zeros(shape, bool)

    def sweep(self) -> Array:
        """Move every state at its temperature and swap neighbours; return acceptances of the moves (R, K)."""
        acceptance = self.move()
        self.swap()
        return acceptance

    def move(self) -> Array:
        """Move every state, by an independent draw at β = 0; return acceptances (R, K)."""
        jitter = 1.0 + self.policy.jitter * self.rng.uniform(-1.0, 1.0, self._all_betas.size)
        steps = jitter * np.tile(self.step_sizes, self.replicas)
        acceptance = self.walkers.move(self._all_betas, steps, self.n_steps, self.rng)
        acceptance = acceptance.reshape(self.replicas, -1).copy()
        self.walkers.redraw(self.rng, self._hot)
        acceptance[:, 0] = 1.0
        return acceptance

    def swap(self) -> None:
        """Offer swaps between neighbours, of even or of odd pairs."""
        odd = self._n_swaps % 2 if self.scheme == NON_REVERSIBLE else int(self.rng.integers(2))
        self._n_swaps += 1
        lower = np.arange(odd, self.betas.size - 1, 2)
        if lower.size:
            phi, gaps = self.phi, self.betas[lower + 1] - self.betas[lower]
            with np.errstate(invalid="ignore"):
                log_ratio = gaps * (phi[:, lower] - phi[:, lower + 1])
            accepted_share = np.exp(np.minimum(np.nan_to_num(log_ratio, nan=-np.inf, neginf=-np.inf), 0.0))
            self._rejected[lower] += (1.0 - accepted_share).sum(axis=0)
            self._offered[lower] += self.replicas
            replica, pair = np.nonzero(self.rng.random(accepted_share.shape) < accepted_share)
            first = self.betas.size * replica + lower[pair]
            self.walkers.swap(first, first + 1)
            names = self._names.reshape(-1)
            names[np.concatenate((first, first + 1))] = names[np.concatenate((first + 1, first))]
        self._count_trips()

    def _count_trips(self) -> None:
        each = np.arange(self.replicas)
        hot, cold = self._names[:, 0], self._names[:, -1]
        self.round_trips += self._reached_posterior[each, hot]
        self._reached_posterior[each, hot] = False
        self._left_reference[each, hot] = True
        self._reached_posterior[each, cold] = self._left_reference[each, cold]

    def _place_where_finite(self) -> None:
        """Draw states again that have no density, though their β asks for one."""
        for _ in range(self.policy.attempts):
            lost = np.flatnonzero(~np.isfinite(self.walkers.phi) & (self._all_betas > 0.0))
            if not lost.size:
                return
            self.walkers.redraw(self.rng, lost)
        known = np.flatnonzero(np.isfinite(self.walkers.phi))
        if not known.size:
            raise EvidenceError(
                "The model's density is 0 or not a number at every draw of the reference, so tempering cannot begin. "
                "Check the model at its initial point with model.point_logps()."
            )
        lost = np.flatnonzero(~np.isfinite(self.walkers.phi) & (self._all_betas > 0.0))
        states = self.walkers.states.copy()
        states[lost] = states[self.rng.choice(known, lost.size)]
        self.walkers.place(states)


def first_ladder(count: int) -> Array:
    """Return so many inverse temperatures before anything is known: 0, and a geometric series up to 1."""
    if count == 2:
        return np.array([0.0, 1.0])
    return np.concatenate([[0.0], np.geomspace(HOTTEST, 1.0, count - 1)])


def check_ladder(given: object, name: str = "temperatures") -> Array:
    """Return a ladder that a user gave as an option, as an array, or raise if it does not increase from 0 to 1."""
    try:
        found = np.asarray(given, float)
    except (TypeError, ValueError):
        found = np.empty(0)
    advice = (
        f"It goes from the reference (0) to the posterior (1), such as {name}=[0, 0.1, 0.4, 1]. Leave {name} out "
        "to have it chosen."
    )
    if found.ndim != 1 or found.size < 2:
        raise ConfigurationError(f"{name} needs at least 2 inverse temperatures, got {shown(given)}. {advice}")
    if not (np.isfinite(found).all() and found[0] == 0.0 and found[-1] == 1.0):
        raise ConfigurationError(f"{name} must begin with 0 and end with 1, got {shown(given)}. {advice}")
    if (np.diff(found) <= 0.0).any():
        raise ConfigurationError(f"{name} must increase, got {shown(given)}. {advice}")
    return found


def cumulative_barrier(rejection: Array) -> Array:
    """Return Λ(β) at every β of a ladder (K,), from the rejection rates between neighbours (K - 1,)."""
    return np.concatenate([[0.0], np.cumsum(np.maximum(rejection, LEAST_REJECTION))])


def local_barrier(betas: Array, rejection: Array) -> Array:
    """Return λ(β) = dΛ/dβ at every β of a ladder (K,), by monotone cubic interpolation."""
    return np.asarray(PchipInterpolator(betas, cumulative_barrier(rejection)).derivative()(betas))


def equal_rejection(betas: Array, rejection: Array, count: int) -> Array:
    """Return so many temperatures between which Λ grows equally, from another ladder's rejection rates."""
    barrier = PchipInterpolator(betas, cumulative_barrier(rejection))
    parts = [np.linspace(low, high, GRID, endpoint=False) for low, high in itertools.pairwise(betas)]
    grid = np.concatenate([*parts, [1.0]])
    found = np.interp(np.linspace(0.0, barrier(1.0), count), barrier(grid), grid)
    found[0], found[-1] = 0.0, 1.0
    return found


def rungs_for(barrier: float, least: int, most: int) -> int:
    """Return how many temperatures a barrier needs: about ``2 Λ + 1``, where half of the swaps are rejected."""
    return int(np.clip(math.ceil(2.0 * barrier) + 1, least, most))


def trip_rate(barrier: float) -> float:
    """Return the round trips per sweep to which the non-reversible scheme tends: ``1/(2 + 2 Λ)``."""
    return 1.0 / (2.0 + 2.0 * barrier)


def nearest_rungs(old: Array, new: Array, rejection: Array) -> NDArray[np.intp]:
    """Return for each new temperature the old one that lies nearest by the barrier between them."""
    known = cumulative_barrier(rejection)
    wanted = np.interp(new, old, known)
    return np.abs(wanted[:, None] - known[None, :]).argmin(axis=1)
