"""A likelihood that is not registered as a graph of the sites that it reads and of hyperparameters."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observations import log_density_given
from pymc_rmhmc.model.observed_terms import gradient_by
from pymc_rmhmc.model.structure import Observation

__all__ = ["UnregisteredTerms"]


class UnregisteredTerms:
    """One observed variable whose log density PyTensor differentiates: every latent value is a site.

    What θ does to its predictor is part of the density, and not of the sites: they are not anchored there, and do not
    follow its parameters.

    Parameters
    ----------
    model : pymc.Model
        The model.
    observation : Observation
        As it was read.
    source : TensorVariable
        The node that stands for the latent values.
    shape : tuple of int
        Its shape.
    theta : Hyperparameters
        What is sampled together with the latents.

    Attributes
    ----------
    index : (n,) int array
        Every site.
    added : TensorVariable
        Nothing, (n,).
    """

    has_moving_parameters = False

    def __init__(
        self, model: pm.Model, observation: Observation, source: TensorVariable, shape: tuple[int, ...],
        theta: Hyperparameters,
    ) -> None:  # fmt: skip
        self._model, self._observation, self._theta = model, observation, theta
        self._source, self._shape = source, shape
        size = math.prod(shape)
        self.index, self.added = np.arange(size), pt.zeros(size)

    def terms(
        self, eta: TensorVariable, shift: TensorVariable
    ) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        """``Σ ℓ``, its slope by site, and its gradient by θ at given sites, of which `shift` is not the latents'."""
        values = (eta - shift).reshape(self._shape)
        (density,) = self._theta.place([log_density_given(self._model, self._observation, self._source, values)])
        total = density.sum()
        return total, pytensor.grad(total, eta), gradient_by(total, self._theta.symbol)

    def information(self, eta: TensorVariable, shift: TensorVariable) -> TensorVariable:
        """Nothing that parameters move, (n,)."""
        return pt.zeros_like(eta)
