"""Hyperparameters whose prior other hyperparameters spread: where all are close their density has no bound."""

from __future__ import annotations

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observation import distribution_of

__all__ = ["coordinates_of_hierarchies"]

# On the logarithmic scale, on which PyMC samples them, a parameter shifts these and does not narrow them.
SHIFTED = {"HalfNormal", "HalfCauchy", "HalfStudentT", "HalfFlat", "Exponential"}


def coordinates_of_hierarchies(model: pm.Model, theta: Hyperparameters) -> NDArray[np.int64]:
    """The coordinates of θ that are effects with a prior that other coordinates spread, and these others.

    Where a scale goes to 0 and its effects with it the density grows without a bound, on next to no volume: its mode
    is no place to begin at.
    """
    found = np.zeros(theta.size, dtype=bool)
    for variable, part in zip(theta.variables, theta.slices, strict=True):
        if distribution_of(variable) in SHIFTED:
            continue
        above = theta.read_by(_parameters(variable), model)
        if above.any():
            found |= above
            found[part] = True
    return np.flatnonzero(found)


def _parameters(variable: TensorVariable) -> list[TensorVariable]:
    return [i for i in variable.owner.inputs if isinstance(i, TensorVariable)]
