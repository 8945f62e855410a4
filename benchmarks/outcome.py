"""What a sampler hands back to the harness."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Outcome:
    """Draws of f (chain, draw, n), seconds of tuning and of sampling, and anything worth a column.

    Seconds are of the sampler's own work, chain after chain on one core; compilation is left out for all.
    """

    draws: np.ndarray
    tuning: float
    sampling: float
    extra: dict[str, float] = field(default_factory=dict)
