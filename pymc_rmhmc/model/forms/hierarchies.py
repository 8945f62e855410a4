"""Effects among hyperparameters, whose prior others spread: where all are close the density has no bound."""

from __future__ import annotations

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observed.observation import distribution_of

__all__ = ["coordinates_of_hierarchies"]

# On the unconstrained scale, on which PyMC samples them, parameters shift these and do not narrow them.
SHIFTED = {"HalfNormal", "HalfCauchy", "HalfStudentT", "HalfFlat", "Exponential", "Uniform"}
# Which parameter of others does no more than that, in the order of `dist_params`.
LOCATION = {
    **dict.fromkeys(("Normal", "Laplace", "Cauchy", "Logistic", "Gumbel", "SkewNormal", "MvNormal", "LogNormal"), 0),
    **dict.fromkeys(("StudentT", "MvStudentT", "Gamma", "InverseGamma", "Weibull"), 1),
}


def coordinates_of_hierarchies(model: pm.Model, theta: Hyperparameters) -> NDArray[np.int64]:
    """The coordinates of θ that are effects with a prior that other coordinates spread, and these others.

    Where a scale goes to 0 and its effects with it the density grows without a bound, on next to no volume: its mode
    is no place to begin at.
    """
    found = np.zeros(theta.size, dtype=bool)
    for variable, part in zip(theta.variables, theta.slices, strict=True):
        name, parameters = distribution_of(variable), _parameters(variable)
        if name in SHIFTED:
            continue
        location = LOCATION.get(name)
        spread = theta.read_by([p for i, p in enumerate(parameters) if i != location], model)
        if spread.any():
            found |= theta.read_by(parameters, model)
            found[part] = True
    return np.flatnonzero(found)


def _parameters(variable: TensorVariable) -> list[TensorVariable]:
    """Those of a distribution in their order; of one that is made of others all that goes into it."""
    op = variable.owner.op
    given = op.dist_params(variable.owner) if hasattr(op, "dist_params") else variable.owner.inputs
    return [i for i in given if isinstance(i, TensorVariable)]
