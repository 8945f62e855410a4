"""Modes of a density in a reference's coordinates: the one at its centre, and others that it does not know of.

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

__all__ = ["check_modes", "climb", "negative_log_density"]

type Array = NDArray[np.float64]

# Of each search. Modes that are farther apart than this, in standard deviations of the reference, may be two.
ITERATIONS, APART = 100, 4.0
# On the straight way between two modes the log density is lower than at either by so much, at one of so many points.
BARRIER, POINTS = 2.0, 15
# A mode whose log density is lower by more than this holds little of the posterior.
NEARLY_AS_HIGH = 3.0


def check_modes(name: str, reference: Reference, places: Iterable[Array]) -> None:
    """Raise where the density leads from some places to a mode that the reference does not know of.

    Parameters
    ----------
    name : str
        Of what is estimated, for the message.
    reference : Reference
        The model.
    places : iterable of (d,) arrays
        Such as draws of the prior.

    Raises
    ------
    EvidenceError
        If there is one about as high as that at the reference's centre.
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
