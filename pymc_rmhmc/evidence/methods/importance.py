"""The reference alone: importance sampling from it, its Laplace approximation, and modes that it does not know of.

Importance weights, bridges and chains that begin at one mode say nothing of another, however heavy it is. What they
find is then too small, with a small error. A search from elsewhere costs some hundred gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from pymc_rmhmc.chains.reference import Reference
from pymc_rmhmc.errors import EvidenceError
from pymc_rmhmc.evidence.methods.estimate import LARGEST_K, Estimate, Progress, log_mean, pareto_k, weight_ess

__all__ = ["check_modes", "importance_evidence", "laplace_evidence"]

type Array = NDArray[np.float64]

# Draws at first.
FIRST = 2000
# A Hessian by differences of the gradient takes two of them for every coordinate.
MOST_COORDINATES, DIFFERENCE = 2000, 1e-4
# Of each search. Modes that are farther apart than this, in standard deviations of the reference, may be two.
ITERATIONS, APART = 100, 4.0
# On the straight way between two modes the log density is lower than at either by so much, at one of so many points.
BARRIER, POINTS = 2.0, 15
# A mode whose log density is lower by more than this holds little of the posterior.
NEARLY_AS_HIGH = 3.0


def importance_evidence(
    reference: Reference, replicates: int, rng: np.random.Generator, progress: Progress
) -> Estimate:
    """Estimate ``log E[exp φ]`` by the mean over draws of the reference; whether it can be trusted k̂ tells.

    It ends early where k̂ is too large after the first draws.
    """
    walkers = reference.walkers(replicates, rng)
    drawn = [walkers.phi.copy()]
    wanted = FIRST
    while True:
        begun = progress.seconds
        while len(drawn) * replicates < wanted:
            walkers.redraw(rng)
            drawn.append(walkers.phi.copy())
        log_weights = np.concatenate(drawn)
        value, error = log_mean(log_weights)
        progress.note(value, error, f"importance sampling, {log_weights.size} draws")
        k = pareto_k(log_weights)
        if k >= LARGEST_K or progress.is_met(error) or not progress.may_grow(begun, 2.0, 1.0):
            break
        wanted *= 2
    diagnostics = {"pareto_k": k, "weight_ess": weight_ess(log_weights), "n_states": float(log_weights.size)}
    return Estimate(value, error, diagnostics, progress.history)


def laplace_evidence(reference: Reference) -> Estimate:
    """Return the Laplace approximation of ``log E[exp φ]`` in the reference's coordinates.

    There is an error if the density has no mode that can be found, or there are too many coordinates.
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


def check_modes(name: str, reference: Reference, places: Iterable[Array]) -> None:
    """Raise where the density leads from some places (d,) to a mode about as high as that at the reference's centre.

    Such places are draws of the prior. The name is that of what is estimated, for the message.
    """
    centre, best = climb(reference, np.zeros(reference.size), ITERATIONS)
    for at in places:
        place, height = climb(reference, at, ITERATIONS)
        if height > best - NEARLY_AS_HIGH and _is_apart(reference, centre, place, min(best, height)):
            raise EvidenceError(
                f"{name}: the posterior has several modes, and the estimate would be that of one alone. Give "
                'method="tempering".'
            )


def _is_apart(reference: Reference, first: Array, second: Array, height: float) -> bool:
    """Return whether two modes are far apart with lower densities between them; the lower mode has this height."""
    if np.linalg.norm(first - second) <= APART:
        return False
    shares = np.linspace(0.0, 1.0, POINTS + 2)[1:-1]
    between = min(-negative_log_density(reference, first + share * (second - first))[0] for share in shares)
    return between < height - BARRIER


def climb(reference: Reference, start: Array, iterations: int) -> tuple[Array, float]:
    """Return the mode to which the density of z leads from a start, and ``φ - ½ |z|²`` there."""
    found = optimize.minimize(
        lambda z: negative_log_density(reference, z), start, jac=True, method="L-BFGS-B",
        options={"maxiter": iterations, "ftol": 1e-14, "gtol": 1e-7},
    )  # fmt: skip
    return found.x, -float(found.fun)


def negative_log_density(reference: Reference, z: Array) -> tuple[float, Array]:
    """Return ``½ |z|² - φ(z)`` and its gradient, for a minimiser that steps back from large values."""
    value, gradient = reference.at(z)
    if not (math.isfinite(value) and np.isfinite(gradient).all()):
        return 1e100, z
    return 0.5 * float(z @ z) - value, z - gradient
