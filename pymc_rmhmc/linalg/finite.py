"""Whether a density and its slope are numbers."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure

__all__ = ["failure_of"]


def failure_of(log_density: float, slope: NDArray[np.float64]) -> Failure:
    """Return NON_FINITE where the log density or any number of its slope is infinite or nan."""
    # One number tells whether all are finite: a sum of squares cannot cancel.
    finite = math.isfinite(log_density) and math.isfinite(float(slope @ slope))
    return Failure.NONE if finite else Failure.NON_FINITE
