"""Parallel tempering from a reference to the posterior: draws of both modes and tails, and the evidence.

Adaptation comes in rounds, each twice as long as the one before. After a round the temperatures are placed so that
neighbours reject as many swaps, and the reference takes the moments of the posterior where that brings it much nearer.
Then everything is frozen, and the counted sweeps give the draws and the evidence.

References
----------
Syed, Bouchard-Côté, Deligiannidis and Doucet (2022), Non-reversible parallel tempering: a scalable highly parallel
MCMC scheme, JRSS B 84, section 5.
Surjanovic, Syed, Bouchard-Côté and Campbell (2022), Parallel tempering with a variational reference: the reference
with the moments of the posterior has the smallest forward divergence to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pymc_rmhmc.chains.reference import Reference, ResidualReference
from pymc_rmhmc.errors import EvidenceError
from pymc_rmhmc.evidence.methods.ensemble import (
    NON_REVERSIBLE,
    TEMPERING,
    Ensemble,
    TemperingPolicy,
    check_ladder,
    equal_rejection,
    first_ladder,
    local_barrier,
    nearest_rungs,
    rungs_for,
    trip_rate,
)
from pymc_rmhmc.evidence.methods.estimate import FEWEST_DRAWS, Estimate, Progress, check_acceptance, check_mixing
from pymc_rmhmc.evidence.methods.path_estimates import (
    by_acceptance_ratio,
    by_integration,
    by_stepping_stones,
    log_ratios,
)

__all__ = ["Refit", "Tempered", "Tempering", "posterior_states"]

type Array = NDArray[np.float64]
# From draws (n, k) of the posterior to a reference with their moments, if there is one.
type Refit = Callable[[Array], ResidualReference | None]

# How fast log step sizes follow acceptances, by the number of sweeps since the first.
GAIN, GAIN_POWER, LEAST_GAIN = 1.0, 0.6, 0.02
# Of a round at most about so many sweeps are kept, to refit the reference.
MOST_SEEN = 200
# A mode counts as lost if so many known states, and this share of them, have φ larger by so much than any draw.
FEWEST_LOST, LOST_SHARE, APART = 3, 0.005, 5.0
# How many sweeps go by until progress is shown.
SHOWN = 50


@dataclass(frozen=True)
class Tempered:
    """What parallel tempering has found: the estimate is of ``log E[exp φ]``, with all that is by rung."""

    estimate: Estimate
    reference: Reference  # the last
    states: Array  # of walkers at β = 1, or at all temperatures, (draws, R, 1 or K, m)
    phi: Array  # (draws, R, K)
    acceptance: Array  # of each move, (draws, R, K)


class Tempering:
    """One run of parallel tempering: it adapts, freezes, draws, and estimates.

    `reference`: the first.
    `replicas`: independent ladders.
    `rng`: for all of it.
    `refit`: from draws (n, k) of the posterior to a reference with their moments; None to keep what there is.
    `temperatures`: how many there are, or the ladder itself, which is not adapted then.
    `scheme`: as `Ensemble` has it.
    `policy`: its numbers.

    Attributes
    ----------
    ensemble : Ensemble
        The states as they are now.
    """

    def __init__(
        self, reference: Reference, replicas: int, rng: np.random.Generator, *, refit: Refit | None = None,
        temperatures: int | Sequence[float] | Array | None = None, scheme: str = NON_REVERSIBLE,
        policy: TemperingPolicy = TEMPERING,
    ) -> None:  # fmt: skip
        self.rng, self.policy, self._refit = rng, policy, refit
        self._count = temperatures if isinstance(temperatures, int) else None
        self._adapts = temperatures is None or self._count is not None
        if temperatures is not None and not self._adapts:
            betas = check_ladder(temperatures)
        else:
            betas = first_ladder(self._count or policy.first_rungs)
        self.ensemble = Ensemble(reference, betas, replicas, rng, policy, scheme=scheme)
        self._n_learned = 0
        # The last reference that was fitted, and the model's values that it was fitted to.
        self._fitted: ResidualReference | None = None
        self._known: list[Array] = []

    def run(self, tune: int, draws: int, progress: Progress, *, keep_all: bool = False) -> Tempered:
        """Adapt, and make counted sweeps: with states of all temperatures, or of β = 1 alone.

        Draws are doubled until the error is met or the time is over; with an infinite error there are so many. There is
        an error if they cannot be trusted: trajectories or round trips fail, or replicas differ.
        """
        self.tune(tune, progress)
        return self.draw(draws, progress, keep_all=keep_all)

    def tune(self, sweeps: int, progress: Progress) -> None:
        """Adapt step sizes, temperatures and reference in doubling rounds."""
        settling = math.ceil(self.policy.settling * sweeps)
        lengths = _rounds(sweeps - settling, self.policy.first_round)
        for i, length in enumerate(lengths):
            is_last = i == len(lengths) - 1
            seen = self._round(length, progress, f"round {i + 1} of {len(lengths)}")
            spent = progress.is_spent
            self._adapt(None if is_last or spent else seen, keep_steps=is_last or spent)
            if spent:
                break
        self._settle(settling, progress)

    def _settle(self, sweeps: int, progress: Progress) -> None:
        """Tune step sizes to the last ladder, and let states forget what was changed."""
        most, log_steps = (min(sweeps, self.policy.first_round) if progress.is_spent else sweeps), []
        learning = most // 2
        for sweep in range(most):
            acceptance = self.ensemble.sweep()
            if sweep >= learning:
                continue
            self._learn(acceptance)
            if 2 * sweep >= learning - 1:
                log_steps.append(self.ensemble.log_steps)
            if sweep == learning - 1:
                self.ensemble.log_steps = np.mean(log_steps, axis=0)

    def _round(self, length: int, progress: Progress, name: str) -> tuple[Array, Array]:
        """Make a round's sweeps; return some states (n, R, K, m) of its second half, and their φ (n, R, K)."""
        ensemble, log_steps = self.ensemble, []
        states: list[Array] = []
        phis: list[Array] = []
        stride = max(1, length // (2 * MOST_SEEN))
        ensemble.forget()
        for sweep in range(length):
            self._learn(ensemble.sweep())
            if 2 * sweep >= length - 1:
                log_steps.append(ensemble.log_steps.copy())
                if sweep % stride == 0 or not states:
                    states.append(ensemble.states.copy())
                    phis.append(ensemble.phi.copy())
            if sweep % SHOWN == 0:
                progress.say(f"{name}, {ensemble.betas.size} temperatures")
                if progress.is_spent and states:
                    break
        ensemble.log_steps = np.mean(log_steps, axis=0)
        return np.array(states), np.array(phis)

    def _learn(self, acceptance: Array) -> None:
        """Follow acceptances with the step sizes, which get at most twice as long as what is in use."""
        ensemble, policy = self.ensemble, self.policy
        self._n_learned += 1
        gain = max(LEAST_GAIN, GAIN * self._n_learned**-GAIN_POWER)
        longest = math.log(min(2.0 * policy.path / ensemble.n_steps, policy.path))
        moved = ensemble.log_steps + gain * (acceptance.mean(axis=0) - policy.accepted)
        ensemble.log_steps = np.minimum(moved, longest)

    def _adapt(self, seen: tuple[Array, Array] | None, *, keep_steps: bool) -> None:
        """Place the temperatures again, and fit the reference to what was seen of the posterior."""
        old, policy = self.ensemble, self.policy
        rejection, betas = old.rejection, old.betas
        if self._adapts:
            count = self._count or rungs_for(rejection.sum(), policy.fewest_rungs, policy.most_rungs)
            betas = equal_rejection(old.betas, rejection, count)
        nearest = nearest_rungs(old.betas, betas, rejection)
        reference, states = self._refitted(seen, old.states[:, nearest])
        log_steps = np.interp(_log(betas), _log(old.betas), old.log_steps)
        n_steps = old.n_steps if keep_steps else self._steps_for(log_steps)
        self.ensemble = Ensemble(
            reference, betas, old.replicas, self.rng, policy,
            states=states, log_steps=log_steps, n_steps=n_steps, scheme=old.scheme,
        )  # fmt: skip

    def _refitted(self, seen: tuple[Array, Array] | None, states: Array) -> tuple[Reference, Array]:
        """Return the next reference, and states (R, K, m) in its coordinates."""
        old, policy = self.ensemble, self.policy
        if seen is None or self._refit is None or old.round_trips.sum() < policy.trips_to_refit:
            return old.reference, states
        drawn, divergence, log_z = posterior_states(old.betas, *seen, policy.refit_draws, self.rng)
        values = old.reference.values(drawn, self.rng)
        # What a wider reference has shown is not forgotten at once.
        known = [values, *(each[::2] for each in self._known)]
        found = self._refit(np.concatenate(known))
        if found is None:
            return old.reference, states
        phi = self._placed(found, values)[1]
        lower = float(phi[np.isfinite(phi)].mean()) + found.log_constant - (log_z + old.reference.log_constant)
        if lower > policy.worth_refitting * divergence:
            return old.reference, states
        self._fitted, self._known = found, known
        flat = states.reshape(-1, states.shape[-1])
        placed = found.positions(old.reference.values(flat, self.rng), self.rng)
        return found, placed.reshape(*states.shape[:2], -1)

    def _placed(self, reference: ResidualReference, values: Array) -> tuple[Array, Array]:
        """Place the model's values (n, k) in a reference: return their states (n, d) and φ (n,)."""
        states = reference.positions(values, self.rng)
        walkers = reference.walkers(len(states), self.rng)
        walkers.place(states)
        return states, walkers.phi

    def _steps_for(self, log_steps: Array) -> int:
        """Return how many steps a trajectory needs, at the temperature with the shortest."""
        shortest = float(np.exp(log_steps[1:]).min())
        return int(np.clip(math.ceil(self.policy.path / shortest - 0.05), 1, self.policy.most_steps))

    def draw(self, draws: int, progress: Progress, *, keep_all: bool = False) -> Tempered:
        """Make the counted sweeps, in which nothing is adapted, and estimate; see `run`."""
        record = _Record(self.ensemble, keep_all)
        self.ensemble.forget()
        progress.move(self.ensemble.reference.log_constant)
        wanted, begun = draws, 0.0
        while True:
            record.extend(wanted, progress)
            value, error = by_acceptance_ratio(self.ensemble.betas, record.phi, self.policy.blocks)
            progress.note(value, error, "parallel tempering")
            done = progress.is_met(error) or not math.isfinite(error) or progress.is_spent
            if done or not progress.may_grow(begun, 2.0, 1.0):
                break
            begun, wanted = progress.seconds, len(record.phis)
        diagnostics = _diagnose(self.ensemble, record, self.policy.blocks)
        if self._fitted is not None:
            known = self._placed(self._fitted, np.concatenate(self._known))
            _check_modes(*known, record.states[:, :, -1].reshape(-1, record.states.shape[-1]), record.phi[:, :, -1])
        estimate = Estimate(value, error, diagnostics, progress.history)
        return Tempered(estimate, self.ensemble.reference, record.states, record.phi, record.acceptance)


def posterior_states(
    betas: Array, states: Array, phi: Array, count: int, rng: np.random.Generator
) -> tuple[Array, float, float]:
    """Return so many states (count, m) of the posterior, drawn by their weights from those of all temperatures.

    With them come the divergence of the posterior from the reference, ``E₁[φ] - log Z``, and log Z. A mode that few
    states at β = 1 have reached, or none, has its share by the states of other temperatures.

    References
    ----------
    Shirts and Chodera (2008), Statistically optimal analysis of samples from multiple equilibrium states, eq. 9.
    """
    log_z = log_ratios(list(betas), [phi[:, :, k].ravel() for k in range(betas.size)])
    finite = np.isfinite(phi)
    held = phi[finite]
    log_weights = held - logsumexp(held[:, None] * betas - log_z, axis=1)
    weights = np.exp(log_weights - log_weights.max())
    drawn = rng.choice(held.size, count, p=weights / weights.sum())
    return states[finite][drawn], float(held[drawn].mean() - log_z[-1]), float(log_z[-1])


def _log(betas: Array) -> Array:
    """Return log β, in which log step sizes are nearly linear; 0 counts as well below the hottest of the others."""
    return np.log(np.maximum(betas, 0.1 * betas[1]))


class _Record:
    """What is kept of counted sweeps."""

    def __init__(self, ensemble: Ensemble, keep_all: bool) -> None:
        self._ensemble, self._kept = ensemble, slice(None) if keep_all else slice(-1, None)
        self.phis: list[Array] = []
        self._states: list[Array] = []
        self._acceptances: list[Array] = []

    def extend(self, sweeps: int, progress: Progress) -> None:
        """Make so many sweeps, fewer where the time is over."""
        ensemble = self._ensemble
        for sweep in range(sweeps):
            self._acceptances.append(ensemble.sweep())
            self.phis.append(ensemble.phi.copy())
            self._states.append(ensemble.states[:, self._kept].copy())
            if sweep % SHOWN == 0:
                progress.say(f"sweep {len(self.phis)}, {int(ensemble.round_trips.sum())} round trips")
                if progress.is_spent and sweep >= FEWEST_DRAWS:
                    return

    @property
    def phi(self) -> Array:
        return np.array(self.phis)

    @property
    def states(self) -> Array:
        return np.array(self._states)

    @property
    def acceptance(self) -> Array:
        return np.array(self._acceptances)


def _rounds(sweeps: int, first: int) -> list[int]:
    """Return the lengths of doubling rounds that make so many sweeps; the last takes what is left."""
    lengths: list[int] = []
    left = sweeps
    while left > 0:
        length = first * 2 ** len(lengths)
        if left < 2 * length:
            length = left
        lengths.append(length)
        left -= length
    return lengths


def _diagnose(ensemble: Ensemble, record: _Record, blocks: int) -> dict[str, float | Array]:
    """Check what must hold of the counted sweeps, and return what is told of them."""
    phi, betas, rejection = record.phi, ensemble.betas, ensemble.rejection
    acceptance = record.acceptance.mean(axis=(0, 1))
    barrier = float(rejection.sum())
    trips = ensemble.round_trips
    check_acceptance(betas, acceptance, "Give a larger tune, such as tune=4000.")
    _check_trips(int(trips.sum()), len(phi), barrier)
    more = 4 * len(phi)
    remedy = f"Give larger tune and draws, such as tune={more}, draws={more}."
    rhat, ess = check_mixing("beta = 1", phi[:, :, -1].T, remedy=remedy)
    integral, integral_error = by_integration(betas, phi, blocks)
    stones, stones_error = by_stepping_stones(betas, phi, blocks)
    return {
        "beta": betas, "acceptance": acceptance, "rejection": rejection, "step_size": ensemble.step_sizes,
        "n_steps": ensemble.n_steps, "barrier": barrier, "local_barrier": local_barrier(betas, rejection),
        "round_trips": trips.copy(), "trip_rate": float(trips.sum()) / (len(phi) * ensemble.replicas),
        "expected_trip_rate": trip_rate(barrier), "phi_rhat": rhat, "phi_ess": ess,
        "thermodynamic_integration": integral, "thermodynamic_integration_error": integral_error,
        "stepping_stones": stones, "stepping_stones_error": stones_error,
        "n_gradients": ensemble.walkers.n_gradients,
    }  # fmt: skip


def _check_trips(trips: int, sweeps: int, barrier: float) -> None:
    if trips == 0:
        raise EvidenceError(
            f"In {sweeps} sweeps no state has gone from the reference to the posterior and back (barrier "
            f"{barrier:.1f}), so modes may be missing or have wrong weights. Give larger tune and draws, such as "
            f"tune=4000, or more temperatures, such as temperatures={2 * math.ceil(2.0 * barrier) + 2}."
        )


def _check_modes(known: Array, known_phi: Array, cold: Array, phi: Array) -> None:
    """Raise where known states (n, m), of the posterior as tuning saw it, lie where no draw (t, m) does.

    Of a mode that a reference has lost both the density and φ are large: the one by what the mode is, the other because
    the reference has left it.
    """
    densities = phi.ravel() - 0.5 * (cold**2).sum(axis=1)
    known_densities = known_phi - 0.5 * (known**2).sum(axis=1)
    apart = (known_phi > phi.max() + APART) & (known_densities > np.quantile(densities, 0.01))
    if apart.sum() >= max(FEWEST_LOST, LOST_SHARE * apart.size):
        raise EvidenceError(
            f"Of the posterior as tuning saw it {apart.mean():.0%} lies where no draw does: the reference has become "
            "too narrow and has lost a mode. Give a larger tune, such as tune=4000."
        )
