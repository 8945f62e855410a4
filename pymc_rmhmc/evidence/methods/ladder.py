"""Where the temperatures of parallel tempering lie: as many swaps are rejected between any two neighbours.

References
----------
Syed, Bouchard-Côté, Deligiannidis and Doucet (2022), Non-reversible parallel tempering: a scalable highly parallel
MCMC scheme, JRSS B 84: section 4 has the barrier ``Λ(β) = ∫₀^β λ`` and the rate of round trips ``1/(2 + 2 Λ)``,
section 5 the estimate ``Λ(β_k) ≈ Σ_{i<k} r_i`` from rejection rates r and the ladder.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from pymc_rmhmc.errors import ConfigurationError, shown

__all__ = [
    "check_ladder", "cumulative_barrier", "equal_rejection", "first_ladder", "local_barrier", "nearest_rungs",
    "rungs_for", "trip_rate",
]  # fmt: skip

type Array = NDArray[np.float64]

# The smallest β > 0 before anything is known.
HOTTEST = 1e-3
# A rejection rate that was estimated as less counts as this much, so that the barrier increases everywhere.
LEAST_REJECTION = 1e-4
# Places between two neighbours at which the barrier is inverted.
GRID = 200


def first_ladder(count: int) -> Array:
    """Return so many inverse temperatures before anything is known: 0, and a geometric series up to 1."""
    if count == 2:
        return np.array([0.0, 1.0])
    return np.concatenate([[0.0], np.geomspace(HOTTEST, 1.0, count - 1)])


def check_ladder(given: Any, name: str = "temperatures") -> Array:
    """Return a ladder that a user gave, as an array.

    Parameters
    ----------
    given : sequence of float
        What should be one.
    name : str
        Of the option.

    Raises
    ------
    ConfigurationError
        If it does not increase from 0 to 1.
    """
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
