"""Some continuous free variables of a model as one vector of their values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.words.density_terms import DensityTerms

__all__ = ["PackedModel"]

type Point = dict[str, np.ndarray]


class PackedModel:
    """Some continuous free variables of a model as one vector of their values x.

    Parameters
    ----------
    model : pymc.Model
        The model.
    variables : sequence of TensorVariable
        The free variables that are sampled.
    point : dict
        Where shapes are taken.

    Attributes
    ----------
    variables : Hyperparameters
        How they are packed: all value variables as one vector x (d,).
    names : tuple of str
        The names of these variables in the model.
    terms : DensityTerms
        The log density term by term, for errors.
    """

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable], point: Point) -> None:
        self.variables = Hyperparameters(model, variables, point)
        self.names = tuple(str(v.name) for v in variables)
        self.terms = DensityTerms(model)

    @property
    def size(self) -> int:
        """The number of coordinates d."""
        return self.variables.size
