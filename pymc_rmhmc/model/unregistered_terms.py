"""A likelihood that is not registered as a graph of the sites that it reads and of hyperparameters."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graphs import Evaluator
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observation import Observation
from pymc_rmhmc.model.observed_terms import Sites, added_to, gradient_by, read_sites
from pymc_rmhmc.model.unregistered_readers import log_density_given

__all__ = ["PredictedTerms", "UnregisteredTerms"]


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
        self._node, self._shape = source, shape
        size = math.prod(shape)
        self.index, self.added = np.arange(size), pt.zeros(size)

    def terms(
        self, eta: TensorVariable, shift: TensorVariable
    ) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        """``Σ ℓ``, its slope by site, and its gradient by θ at given sites, of which `shift` is not the latents'."""
        values = (read_sites(eta - shift, self.index, eta.type.shape[0]) + self.added).reshape(self._shape)
        (density,) = self._theta.place([log_density_given(self._model, self._observation, self._node, values)])
        total = density.sum()
        return total, pytensor.grad(total, eta), gradient_by(total, self._theta.symbol)

    def information(self, eta: TensorVariable, shift: TensorVariable) -> TensorVariable:
        """Nothing that parameters move, (n,)."""
        return pt.zeros_like(eta)


class PredictedTerms(UnregisteredTerms):
    """One observed variable with a linear predictor, and a log density of it that PyTensor differentiates.

    Sites are anchored in the predictor, as under a registered likelihood. They do not follow the likelihood's
    parameters, whose information nobody has said.

    Parameters
    ----------
    model : pymc.Model
        The model.
    observation : Observation
        As it was read.
    sources : dict of TensorVariable to tuple of int
        The nodes that stand for the latent values, with their shapes.
    theta : Hyperparameters
        What is sampled together with the latents.
    index : (n,) int array
        The site of each value of the predictor.
    point : dict
        Where shapes are taken.

    Attributes
    ----------
    added : TensorVariable
        The predictor where the latent values are 0, (n,).
    """

    def __init__(
        self, model: pm.Model, observation: Observation, sources: dict[TensorVariable, tuple[int, ...]],
        theta: Hyperparameters, index: Sites, point: dict[str, np.ndarray],
    ) -> None:  # fmt: skip
        self._model, self._observation, self._theta, self.index = model, observation, theta, index
        assert observation.node is not None
        self._node = observation.node
        (value,) = Evaluator(model, [self._node])(point)
        self._shape = np.shape(value)
        self.added = added_to(model, observation, sources, theta)[0].ravel()
