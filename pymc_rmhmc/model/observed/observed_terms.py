"""An observed variable's likelihood as a graph of the sites that it reads and of hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import disconnected_grad
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import Evaluator, substitute
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.likelihoods import LikelihoodTerms
from pymc_rmhmc.model.observed.anchors import Anchor, Sites, Values, anchor_of
from pymc_rmhmc.model.observed.observation import Observation
from pymc_rmhmc.model.observed.observations import predictor_of_data
from pymc_rmhmc.model.observed.unregistered_readers import log_density_at

__all__ = ["ObservedTerms", "Sources", "Terms", "UnregisteredTerms", "gradient_by", "shift_of", "summed"]

# The nodes that stand for latent values, with their shapes.
type Sources = dict[TensorVariable, tuple[int, ...]]
type Terms = ObservedTerms | UnregisteredTerms
type Point = dict[str, np.ndarray]


class ObservedTerms:
    """What one observed variable with a registered likelihood says of the sites, as graphs.

    `index` (n_obs,) has the site of each observation. They are anchored where the latent values are 0, with an offset
    that θ moves, as the logarithm of a rate that multiplies an exposure.
    """

    def __init__(
        self, model: pm.Model, observation: Observation, sources: Sources, theta: Hyperparameters, index: Sites
    ) -> None:
        likelihood, reading = observation.likelihood, observation.reading
        assert likelihood is not None
        assert reading is not None
        self._likelihood, self._theta, self.index = likelihood, theta, index
        # By value variables first: a constant of the data's shape makes the predictor as long as the data.
        long = pt.zeros_like(observation.value, dtype="float64")
        parameters = [_by_observation(reading.parameters[name], long) for name in likelihood.parameters]
        offset = pt.zeros(()) if reading.offset is None else reading.offset
        others = [offset, pt.as_tensor_variable(observation.value), *parameters]
        added, offset, y, *values = _added_to(model, observation, sources, theta, others)
        self.added = added.ravel()
        self._offset, self._y, self._values = pt.second(added, offset).ravel(), y, values
        # What is a parameter here as well does not count: parameters may move while sites are held.
        follows = theta.read_by([others[0]], model) & ~theta.read_by(parameters, model)
        self.anchor = Anchor(index, self._anchored(follows), follows=follows)

    def _anchored(self, follows: NDArray[np.bool_]) -> TensorVariable:
        """Return the predictor where the latent values are 0, with the offset as some coordinates of θ move it."""
        symbol = self._theta.symbol
        if not follows.any():
            return self.added
        (offset,) = clone_replace([self._offset], {symbol: pt.switch(follows, symbol, 0.0)})
        # An exposure of 0 has no logarithm, and no level.
        return self.added + pt.switch(pt.isinf(offset) | pt.isnan(offset), 0.0, offset)

    def terms(
        self, eta: TensorVariable, shift: TensorVariable
    ) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        """Return ``Σ ℓ``, its slope by site, and its gradient by θ at given sites.

        `shift` is the part of the sites that does not come from the latents.

        The slope by the linear predictor is the registered closed form; what else depends on θ is an offset, along
        which that slope is taken, and the parameters, along which PyTensor differentiates ℓ.
        """
        read = self._predictor(eta, shift)
        held = disconnected_grad(read)
        terms = self._terms(held)
        total, slope = terms.logp.sum(), disconnected_grad(terms.gradient)
        along = (slope * read).sum()
        return total, pytensor.grad(along, eta), gradient_by(total + along, self._theta.symbol)

    @property
    def has_moving_parameters(self) -> bool:
        """Whether θ moves a parameter of the likelihood that sites are to follow."""
        return self._theta.symbol in ancestors(self._values)

    def information(self, eta: TensorVariable, shift: TensorVariable) -> TensorVariable:
        """Return a weight that grows with parameters as the slope does: the Fisher information or its replacement."""
        terms = self._terms(self._predictor(eta, shift))
        weight = terms.slope_weight
        if weight is None:
            weight = terms.curvature["fisher" if "fisher" in terms.curvature else "hessian"].weight
        return pt.inc_subtensor(pt.zeros_like(eta)[self.index], weight)

    def _predictor(self, eta: TensorVariable, shift: TensorVariable) -> TensorVariable:
        return _read_sites(eta - shift, self.index, eta.type.shape[0]) + self.added + self._offset

    def _terms(self, predictor: TensorVariable) -> LikelihoodTerms:
        vectors = {
            name: pt.second(predictor, value)
            for name, value in zip(self._likelihood.parameters, self._values, strict=True)
        }
        return self._likelihood.terms(predictor, vectors, pt.cast(self._y.ravel(), "float64"))


class UnregisteredTerms:
    """One observed variable whose log density PyTensor differentiates.

    Sites are anchored where the likelihood is, as far as θ shifts it: see `observed.anchors`. They do not follow what
    else θ does to it, as by a scale: nobody has said its information.
    """

    has_moving_parameters = False

    def __init__(
        self, model: pm.Model, observation: Observation, values: Values, theta: Hyperparameters, point: Point
    ) -> None:
        self._model, self._observation, self._values, self._theta = model, observation, values, theta
        self.anchor = anchor_of(model, observation, values, theta, point)

    @classmethod
    def of_latents(
        cls, model: pm.Model, observation: Observation, source: TensorVariable, shape: tuple[int, ...],
        theta: Hyperparameters, point: Point,
    ) -> UnregisteredTerms:  # fmt: skip
        """Read every value of a latent vector, each of which is a site."""
        size = math.prod(shape)
        values = Values(source, shape, Anchor(np.arange(size), pt.zeros(size)))
        return cls(model, observation, values, theta, point)

    @classmethod
    def of_predictor(
        cls, model: pm.Model, observation: Observation, sources: Sources, theta: Hyperparameters, index: Sites,
        point: Point,
    ) -> UnregisteredTerms:  # fmt: skip
        """Read every value of a linear predictor, with the site of each; they are anchored in it."""
        assert observation.node is not None
        (value,) = Evaluator(model, [observation.node])(point)
        added = _added_to(model, observation, sources, theta)[0].ravel()
        return cls(model, observation, Values(observation.node, np.shape(value), Anchor(index, added)), theta, point)

    def terms(
        self, eta: TensorVariable, shift: TensorVariable
    ) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        """Return ``Σ ℓ``, its slope by site, and its gradient by θ at given sites."""
        node, shape, base = self._values
        values = (_read_sites(eta - shift, base.sites, eta.type.shape[0]) + base.added).reshape(shape)
        (density,) = self._theta.place([log_density_at(self._model, self._observation, {node: values})])
        total = density.sum()
        return total, pytensor.grad(total, eta), gradient_by(total, self._theta.symbol)

    def information(self, eta: TensorVariable, shift: TensorVariable) -> TensorVariable:
        """Return zeros (n,): no site follows the parameters."""
        return pt.zeros_like(eta)


def _added_to(
    model: pm.Model, observation: Observation, sources: Sources, theta: Hyperparameters,
    others: Sequence[TensorVariable] = (),
) -> list[TensorVariable]:  # fmt: skip
    """Return the predictor where the latent values are 0, and other expressions, as expressions of θ."""
    nothing = {node: pt.specify_shape(pt.zeros(shape), node.type.shape) for node, shape in sources.items()}
    expressions = [predictor_of_data(observation), *others]
    return theta.substitute(substitute(expressions, nothing, model), model)


def _by_observation(parameter: TensorVariable, like: TensorVariable) -> TensorVariable:
    """Return a parameter by observation, raveled as they are; one number for all stays one."""
    parameter = pt.as_tensor_variable(parameter)
    if all(parameter.type.broadcastable):
        return parameter.squeeze()
    return pt.second(like, parameter).ravel()


def _read_sites(sites: TensorVariable, index: Sites, n_sites: int | None) -> TensorVariable:
    """Read the sites of some observations, by a slice where they lie together."""
    start = int(index[0]) if index.size else 0
    if not np.array_equal(index, np.arange(start, start + index.size)):
        return sites[index]
    return sites if index.size == n_sites else sites[start : start + index.size]


def gradient_by(total: TensorVariable, theta: TensorVariable) -> TensorVariable:
    """Return the gradient of a scalar by θ, 0 where it does not depend on θ."""
    return pytensor.grad(total, theta, disconnected_inputs="ignore")


def summed(
    observed: Sequence[Terms], eta: TensorVariable, shift: TensorVariable
) -> list[TensorVariable]:
    """Return ``Σ ℓ``, its slope by site and its gradient by θ, summed over several observed variables."""
    terms = [o.terms(eta, shift) for o in observed]
    return [sum(t[i] for t in terms) for i in range(3)]


def shift_of(observed: Sequence[Terms], theta: Hyperparameters, size: int) -> TensorVariable:
    """Return what θ adds to the latent values in the predictors that read them, (n,).

    Sites are anchored in the predictor: a level that is added there then moves the prior's mean under them, as one
    in the prior's mean function does. Where several observations of a site add different things, one of them counts.
    """
    moving = [each.anchor for each in observed if theta.symbol in ancestors([each.anchor.added])]
    if not moving:
        return pt.zeros(size)
    # Gathered, behind a 0 for sites that nothing is added to: PyTensor cannot compile a site by site assignment where
    # what is observed is 0 throughout.
    where, start = np.zeros(size, dtype=np.int64), 1
    for each in moving:
        which, first = np.unique(each.sites, return_index=True)
        where[which] = start + first
        start += each.sites.size
    added = pt.concatenate([pt.zeros(1), *(each.added for each in moving)])
    return _read_sites(added, where, None)
