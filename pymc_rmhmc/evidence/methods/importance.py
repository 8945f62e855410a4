"""Importance sampling from the reference, where its weights can be trusted; and its Laplace approximation."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.reference import Reference
from pymc_rmhmc.errors import EvidenceError
from pymc_rmhmc.evidence.methods.estimate import LARGEST_K, Budget, Estimate, Progress, log_mean, pareto_k, weight_ess
from pymc_rmhmc.evidence.methods.modes import climb, negative_log_density

__all__ = ["importance_evidence", "laplace_evidence"]

type Array = NDArray[np.float64]

FIRST = 2000
# A Hessian by differences of the gradient takes two of them for every coordinate.
MOST_COORDINATES, DIFFERENCE = 2000, 1e-4


def importance_evidence(
    reference: Reference, replicates: int, rng: np.random.Generator, budget: Budget, progress: Progress
) -> Estimate:
    """Estimate ``log E[exp φ]`` by the mean over draws of the reference; whether it can be trusted k̂ tells.

    It ends early where k̂ is too large after the first draws.
    """
    walkers = reference.walkers(replicates, rng)
    drawn = [walkers.phi.copy()]
    wanted = FIRST
    while True:
        begun = budget.seconds
        while len(drawn) * replicates < wanted:
            walkers.redraw(rng)
            drawn.append(walkers.phi.copy())
        log_weights = np.concatenate(drawn)
        value, error = log_mean(log_weights)
        progress.note(value, error, f"importance sampling, {log_weights.size} draws")
        k = pareto_k(log_weights)
        if k >= LARGEST_K or budget.is_met(error) or not budget.may_grow(begun, 2.0, 1.0):
            break
        wanted *= 2
    diagnostics = {"pareto_k": k, "weight_ess": weight_ess(log_weights), "n_states": float(log_weights.size)}
    return Estimate(value, error, diagnostics, progress.history)


def laplace_evidence(reference: Reference, rng: np.random.Generator) -> Estimate:
    """Return the Laplace approximation of ``log E[exp φ]`` in the reference's coordinates.

    Raises
    ------
    EvidenceError
        If the density has no mode that can be found, or there are too many coordinates.
    """
    if reference.size > MOST_COORDINATES:
        raise EvidenceError(
            f"The Laplace approximation of a whole model needs a Hessian of its {reference.size} coordinates, and at "
            f'most {MOST_COORDINATES} are taken. Give method="bridge".'
        )
    mode, height = climb(reference, np.zeros(reference.size), 1000)
    sides = [
        [negative_log_density(reference, mode + side * step)[1] for side in (1.0, -1.0)]
        for step in DIFFERENCE * np.eye(reference.size)
    ]
    rows = [(ahead - behind) / (2.0 * DIFFERENCE) for ahead, behind in sides]
    sign, log_determinant = np.linalg.slogdet(0.5 * (np.array(rows) + np.array(rows).T))
    if sign <= 0 or not math.isfinite(log_determinant):
        raise EvidenceError(
            "The posterior has no mode at which it curves down in every direction, so that there is no Laplace "
            'approximation. Give method="bridge".'
        )
    return Estimate(float(height - 0.5 * log_determinant), math.nan)
