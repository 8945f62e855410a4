"""What a sampler hands back to the harness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr


@dataclass
class Outcome:
    """Draws of all that is compared (chain, draw, n), seconds of tuning and sampling, and what is worth a column.

    Seconds are of the sampler's own work, chain after chain on one core; compilation is left out for all.
    """

    draws: np.ndarray
    tuning: float
    sampling: float
    extra: dict[str, float] = field(default_factory=dict)


def stacked(posterior: xr.Dataset, names: Sequence[str]) -> np.ndarray:
    """Some variables' draws side by side, (chain, draw, n)."""
    columns = [posterior[name].values for name in names]
    return np.concatenate([c.reshape(*c.shape[:2], -1) for c in columns], axis=-1)
