"""A likelihood that is not registered as a graph of the sites that it reads and of hyperparameters."""

from __future__ import annotations

import math

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import Evaluator
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observed.anchors import Values, anchor_of
from pymc_rmhmc.model.observed.observation import Observation
from pymc_rmhmc.model.observed.observed_terms import Anchor, Sites, added_to, gradient_by, read_sites
from pymc_rmhmc.model.observed.unregistered_readers import log_density_given

__all__ = ["PredictedTerms", "UnregisteredTerms"]


class UnregisteredTerms:
    """One observed variable whose log density PyTensor differentiates: every latent value is a site.

    Sites are anchored where the likelihood is, as far as θ shifts it (`observed.anchors`). They do not follow
    what else θ does to it, as by a scale: nobody has said its information.

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
    point : dict
        Where it is looked at how θ shifts the likelihood.

    Attributes
    ----------
    index : (n,) int array
        Every site.
    added : TensorVariable
        Nothing, (n,).
    anchor : Anchor
        Where sites are anchored.
    """

    has_moving_parameters = False

    def __init__(
        self, model: pm.Model, observation: Observation, source: TensorVariable, shape: tuple[int, ...],
        theta: Hyperparameters, point: dict[str, np.ndarray],
    ) -> None:  # fmt: skip
        self._model, self._observation, self._theta = model, observation, theta
        self._node, self._shape = source, shape
        size = math.prod(shape)
        self.index, self.added = np.arange(size), pt.zeros(size)
        self._find_anchor(point)

    def _find_anchor(self, point: dict[str, np.ndarray]) -> None:
        values = Values(self._node, self._shape, Anchor(self.index, self.added))
        self.anchor = anchor_of(self._model, self._observation, values, self._theta, point)

    def terms(
        self, eta: TensorVariable, shift: TensorVariable
    ) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        """Return ``Σ ℓ``, its slope by site, and its gradient by θ at given sites.

        `shift` is the part of the sites that does not come from the latents.
        """
        values = (read_sites(eta - shift, self.index, eta.type.shape[0]) + self.added).reshape(self._shape)
        (density,) = self._theta.place([log_density_given(self._model, self._observation, self._node, values)])
        total = density.sum()
        return total, pytensor.grad(total, eta), gradient_by(total, self._theta.symbol)

    def information(self, eta: TensorVariable, shift: TensorVariable) -> TensorVariable:
        """Return zeros (n,): no site follows the parameters."""
        return pt.zeros_like(eta)


class PredictedTerms(UnregisteredTerms):
    """One observed variable with a linear predictor, and a log density of it that PyTensor differentiates.

    Sites are anchored in the predictor, as under a registered likelihood, and where θ shifts what the likelihood makes
    of it, as cutpoints do. They do not follow other parameters of the likelihood, whose information nobody has said.

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
        Where shapes are taken, and how θ shifts the likelihood.

    Attributes
    ----------
    added : TensorVariable
        The predictor where the latent values are 0, (n,).
    anchor : Anchor
        Where sites are anchored.
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
        self._find_anchor(point)
