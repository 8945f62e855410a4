"""Annealed importance sampling: independent states are led from the reference to the posterior and carry weights.

The mean of the weights is an unbiased estimate of the evidence, over the reference's own, whatever ladder and kernels
there are, as long as they were chosen beforehand: a ladder that adapts is found by a run of its own, and frozen.

References
----------
Neal (2001), Annealed importance sampling.
Grosse, Ghahramani and Adams (2015), Sandwiching the marginal likelihood using bidirectional Monte Carlo, for bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.reference import Reference
from pymc_rmhmc.errors import EvidenceError
from pymc_rmhmc.evidence.methods.bridge import BRIDGE, next_beta, systematic, tune_steps
from pymc_rmhmc.evidence.methods.estimate import (
    FARTHER,
    FEWEST_DRAWS,
    Budget,
    Estimate,
    Progress,
    check_acceptance,
    log_mean,
    pareto_k,
    weight_ess,
)
from pymc_rmhmc.evidence.methods.particles import FlatParticles, Particles

__all__ = [
    "Ladder", "adaptive_ladder", "anneal", "annealed_evidence", "first_step", "fixed_ladder", "flat_particles",
    "geometric_betas", "linear_betas",
]  # fmt: skip

type Array = NDArray[np.float64]

# Weights from one β to the next are worth this share of the draws, in a ladder that adapts.
SHARE = 0.97
# However near the reference is: where its tails are too light, states need moves to come to those of the posterior.
LONGEST = 0.05
# Moves that take states from the end of a run to the posterior, before they are led back.
SETTLING = 20
# The first step of a geometric ladder.
SMALLEST_BETA = 1e-4
MOST_RUNGS = 5000
# Weights that are worth fewer states say nothing.
FEWEST_WORTH = 2.0
LONGER = 'Give a longer ladder, such as Annealing(ladder="geometric", n_rungs=2000), or method="bridge".'


@dataclass(frozen=True)
class Ladder:
    """The β of a run, from 0 to 1, and how many steps a trajectory has at each in the flat metric.

    Attributes
    ----------
    betas : (B + 1,) array
        Increasing.
    n_steps : (B + 1,) array
        Of a trajectory.
    """

    betas: Array
    n_steps: NDArray[np.int64]

    def steps_at(self, beta: float) -> int:
        """Return the number of steps of trajectories at a β."""
        return int(self.n_steps[np.searchsorted(self.betas, beta)])


def geometric_betas(n_rungs: int, first: float) -> Array:
    """Return 0 and so many β in geometric progression up to 1, of which the first is no more than another."""
    return np.concatenate(([0.0], np.geomspace(min(SMALLEST_BETA, first), 1.0, n_rungs)))


def linear_betas(n_rungs: int, first: float) -> Array:
    """Return 0 and so many β in equal steps up to 1."""
    del first
    return np.linspace(0.0, 1.0, n_rungs + 1)


def first_step(reference: Reference, count: int, rng: np.random.Generator) -> float:
    """Return the β to which weights from the reference are worth nearly all of its draws."""
    return next_beta(reference.walkers(count, rng).phi, 0.0, SHARE)


def fixed_ladder(betas: Array) -> Ladder:
    """Return the ladder of kernels that have steps of their own."""
    return Ladder(betas, np.ones(betas.size, dtype=np.int64))


def adaptive_ladder(
    reference: Reference, count: int, rng: np.random.Generator, betas: Array | None = None
) -> Ladder:
    """Find a ladder by a run that is not counted: weights from each β to the next are worth nearly all of the states.

    Parameters
    ----------
    reference : Reference
        The model.
    count : int
        States of the run.
    rng : numpy.random.Generator
        For it.
    betas : array, optional
        A ladder, of which the steps of trajectories alone are to be found.
    """
    walkers = reference.walkers(count, rng)
    found, steps = [0.0], [1]
    while found[-1] < 1.0:
        before = found[-1]
        if betas is None:
            beta = min(next_beta(walkers.phi, before, SHARE), before + LONGEST)
            beta = beta if beta < 1.0 - 1e-9 else 1.0
        else:
            beta = float(betas[len(found)])
        with np.errstate(invalid="ignore"):
            logs = (beta - before) * walkers.phi
        walkers.place(walkers.states[systematic(logs, count, rng)])
        # What is accepted varies with the states: a rung has no fewer steps than the one before.
        n_steps = tune_steps(walkers, beta, steps[-1], rng)
        walkers.move(beta, BRIDGE.drawn_path(rng) / n_steps, n_steps, rng)
        found.append(beta)
        steps.append(n_steps)
        if len(found) > MOST_RUNGS:
            raise EvidenceError(
                f"A ladder of {MOST_RUNGS} steps has come to beta = {beta:.2g} alone: the posterior is too far from "
                'where annealing begins. Give sites="auto" in place of the prior, or method="bridge".'
            )
    return Ladder(np.array(found), np.array(steps))


def anneal(
    particles: Particles, betas: Array, rng: np.random.Generator, *, reverse: bool = False
) -> tuple[Array, Array]:
    """Lead states along a ladder; return the logarithms of their weights, and the mean acceptance at each β between.

    Parameters
    ----------
    particles : Particles
        At draws of the reference; in reverse, of the posterior.
    betas : (B + 1,) array
        From 0 to 1.
    rng : numpy.random.Generator
        For moves.
    reverse : bool
        From 1 to 0: the weights are the same function of the path.
    """
    log_weights, acceptances = np.zeros(particles.phi.size), np.full(betas.size, np.nan)
    inner = range(1, betas.size)
    for t in reversed(inner) if reverse else inner:
        if reverse and t < betas.size - 1:
            acceptances[t] = float(particles.move(float(betas[t]), rng).mean())
        # A weight is that of the state before it moves.
        log_weights += (betas[t] - betas[t - 1]) * particles.phi
        if not reverse and t < betas.size - 1:
            acceptances[t] = float(particles.move(float(betas[t]), rng).mean())
    return log_weights, acceptances


def annealed_evidence(
    make: Callable[[int], Particles], ladder: Ladder, replicates: int, rng: np.random.Generator,
    budget: Budget, progress: Progress, *, bounds: bool = True, remedy: str = FARTHER,
    fewest: float = FEWEST_DRAWS, unseen: int = 0,
) -> Estimate:  # fmt: skip
    """Estimate ``log E[exp φ]`` by as many runs as the error needs.

    Parameters
    ----------
    make : callable
        From a number to so many states at draws of the reference.
    ladder : Ladder
        Chosen beforehand.
    replicates : int
        States of each run.
    rng : numpy.random.Generator
        For moves.
    budget, progress
        How exact, how long, and who is told.
    bounds : bool
        Whether states are led back as well, for an upper bound.
    remedy : str
        What to do where too little is accepted.
    fewest, unseen
        So many states at least; and as in `log_mean`.

    Raises
    ------
    EvidenceError
        If less than 0.4 of the moves at a β are accepted, or the weights are worth fewer than 2 states.
    """
    log_weights, acceptances = np.empty(0), list[Array]()
    while True:
        begun = budget.seconds
        particles = make(replicates)
        found, accepted = anneal(particles, ladder.betas, rng)
        log_weights = np.concatenate((log_weights, found))
        acceptances.append(accepted)
        value, error = log_mean(log_weights, unseen)
        progress.note(value, error, f"annealing, {log_weights.size} states")
        _check_weights(log_weights)
        if (budget.is_met(error) and log_weights.size >= fewest) or not budget.may_grow(begun, 1.0, 1.0):
            break
    acceptance = np.mean(acceptances, axis=0)
    check_acceptance(ladder.betas[1:-1], acceptance[1:-1], remedy)
    ess = weight_ess(log_weights)
    if ess < FEWEST_WORTH:
        raise EvidenceError(
            f"One state carries nearly all of the weight, so that the estimate cannot be trusted. {LONGER}"
        )
    diagnostics: dict[str, Any] = {
        "beta": ladder.betas, "acceptance": acceptance, "weight_ess": ess,
        "pareto_k": pareto_k(log_weights), "n_states": float(log_weights.size),
        "lower_bound": float(log_weights.mean()),
    }  # fmt: skip
    if bounds:
        progress.say("annealing in reverse")
        diagnostics["upper_bound"] = _upper_bound(particles, found, ladder.betas, rng)
    return Estimate(value, error, diagnostics, progress.history)


def _check_weights(log_weights: Array) -> None:
    if not np.isfinite(log_weights).any():
        raise EvidenceError(
            f"None of {log_weights.size} states has come to where the posterior has a density. {LONGER}"
        )


def _upper_bound(particles: Particles, log_weights: Array, betas: Array, rng: np.random.Generator) -> float:
    """Average the log weights of reverse annealing, from states that the weights and some moves have led to."""
    particles.take(systematic(log_weights, log_weights.size, rng))
    for _ in range(SETTLING):
        particles.move(1.0, rng)
    return float(anneal(particles, betas, rng, reverse=True)[0].mean())


def flat_particles(reference: Reference, ladder: Ladder, rng: np.random.Generator) -> Callable[[int], FlatParticles]:
    """Return what makes particles that move in the flat metric."""
    return lambda count: FlatParticles(reference.walkers(count, rng), ladder.steps_at)
