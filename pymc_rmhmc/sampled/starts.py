"""Where a chain begins that nobody has told where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.plan import NEARNESS

__all__ = ["SCATTER", "scattered"]

type Array = NDArray[np.float64]

# Half the width of where chains start around a point that nobody chose, as PyMC has it.
SCATTER = 1.0


def scattered(
    stand: Callable[[Array], Any], failure: Callable[[Any], Any], centre: Array, rng: np.random.Generator
) -> Any:
    """Return a phase near a point, nearer where there is no density; None if there is none at the point itself.

    Parameters
    ----------
    stand, failure : callable
        The phase at coordinates (d,), and why it cannot be used.
    centre : (d,) array
        The point's coordinates.
    rng : numpy.random.Generator
        For the direction and the distance.
    """
    width = SCATTER * rng.uniform(-1.0, 1.0, centre.size)
    for nearness in NEARNESS:
        phase = stand(nearness * width + centre)
        if not failure(phase):
            return phase
    return None
