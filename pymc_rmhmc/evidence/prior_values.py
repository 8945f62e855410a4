"""Draws of priors, as values of the model's unconstrained variables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_rmhmc.model.graph.graphs import as_value

__all__ = ["prior_draws", "prior_moments"]

type Array = NDArray[np.float64]

PRIOR_DRAWS = 400
# The outermost hundredths are left out of moments: a prior such as Cauchy has none.
TRIMMED = 0.01
# Scales are kept within these.
NARROWEST, WIDEST = 1e-3, 1e3


def prior_draws(model: pm.Model, variables: Any, rng: np.random.Generator, count: int = PRIOR_DRAWS) -> Array:
    """Draw variables (n, k) from their priors, on the scale of value variables; none if a prior has no draws."""
    drawn = [as_value(model, variable, variable) for variable in variables]
    try:
        found = pm.draw(drawn, count, random_seed=int(rng.integers(2**31)))
    except (NotImplementedError, ValueError, TypeError):  # Flat, and DensityDist without random=
        return np.empty((0, 0))
    rows = np.concatenate([np.reshape(each, (count, -1)) for each in found], axis=1).astype(np.float64)
    finite: Array = rows[np.isfinite(rows).all(axis=1)]
    return finite if len(finite) > math.ceil(0.5 * count) else np.empty((0, 0))


def prior_moments(drawn: Array) -> tuple[Array, Array]:
    """Return means and standard deviations (d,) of some draws (n, d), without their extremes."""
    low, high = np.quantile(drawn, [TRIMMED, 1.0 - TRIMMED], axis=0)
    kept = np.clip(drawn, low, high)
    return kept.mean(axis=0), np.clip(kept.std(axis=0), NARROWEST, WIDEST)
