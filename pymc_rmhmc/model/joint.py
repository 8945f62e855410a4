"""Latent Gaussian blocks together with their hyperparameters, as functions of (θ, η) with their derivatives.

What is compiled of a model is what depends on θ: mean and covariance, the likelihood, and the rest of the log
density. Factorisations stay outside: `pymc_rmhmc.geometry.joint` has their derivatives by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import disconnected_grad
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graphs import substitute
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters, hyperparameters_of
from pymc_rmhmc.model.priors import LatentVariable, gaussian_candidates
from pymc_rmhmc.model.structure import (
    LatentBlock,
    ModelStructure,
    Observation,
    read_structure,
    resolve_variables,
)

__all__ = ["JointBlock", "JointModel", "read_joint", "read_together"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]


class JointBlock:
    """One latent Gaussian vector: its prior and likelihood as functions of θ.

    Attributes
    ----------
    name, value_name : str
        Of the latent function, and of the value variable.
    centred : bool
        Whether the value variable is the latent vector itself, and not ``L⁻¹`` of it.
    size : int
        The number of latent values, which are the sites.
    """

    def __init__(self, model: pm.Model, block: LatentBlock, theta: Hyperparameters, size: int) -> None:
        (latent,) = block.latents
        self.name, self.value_name = latent.name, str(model.rvs_to_values[latent.variable].name)
        self.centred, self.size = latent.form == "centred", size
        mean = pt.zeros(size) if latent.mean is None else pt.second(pt.zeros(size), latent.mean.ravel())
        mean, covariance = theta.substitute([mean, _covariance(latent)], model)
        self._prior = GraphFunction(model, [theta.symbol], [mean, covariance])
        mean_bar, covariance_bar = pt.dvector("mean_bar"), pt.dmatrix("covariance_bar")
        along = (mean * mean_bar).sum() + (covariance * covariance_bar).sum()
        gradient = _gradient(along, theta.symbol)
        self._pullback = GraphFunction(model, [theta.symbol, mean_bar, covariance_bar], [gradient])
        eta = pt.dvector("eta")
        terms = [_likelihood(model, o, latent.source, eta, theta, size) for o in block.observations]
        totals, slopes, gradients = ([t[i] for t in terms] for i in range(3))
        self._likelihood = GraphFunction(model, [theta.symbol, eta], [sum(totals), sum(slopes), sum(gradients)])

    @property
    def functions(self) -> tuple[GraphFunction, ...]:
        """Everything that is bound to a point."""
        return self._prior, self._pullback, self._likelihood

    def prior(self, theta: Array) -> tuple[Array, Array]:
        """Mean (k,) and covariance (k, k), in Fortran order."""
        mean, covariance = self._prior(theta)
        # A covariance is symmetric: its transpose is itself in Fortran order, at no cost.
        return mean, covariance.T if covariance.flags.c_contiguous else np.asfortranarray(covariance)

    def prior_pullback(self, theta: Array, mean_bar: Array, covariance_bar: Array) -> Array:
        """``Σ ∂m/∂θ m̄ + Σ ∂K/∂θ K̄``, (d,)."""
        # K̄ is multiplied by a symmetric derivative: it may as well be transposed.
        matrix = covariance_bar.T if covariance_bar.flags.f_contiguous else np.ascontiguousarray(covariance_bar)
        return self._pullback(theta, mean_bar, matrix)[0]

    def likelihood(self, theta: Array, eta: Array) -> tuple[float, Array, Array]:
        """``Σ ℓ``, its slope by site (k,), and its gradient by θ (d,)."""
        total, slope, gradient = self._likelihood(theta, eta)
        return float(total), slope, gradient


class JointModel:
    """A model's blocks with their hyperparameters.

    Attributes
    ----------
    theta : Hyperparameters
        What is sampled together with the blocks.
    blocks : tuple of JointBlock
        The blocks.
    """

    def __init__(self, theta: Hyperparameters, blocks: Sequence[JointBlock], rest: GraphFunction) -> None:
        self.theta, self.blocks, self._rest = theta, tuple(blocks), rest
        self._functions = [rest, *(f for block in blocks for f in block.functions)]
        self.inputs = tuple(dict.fromkeys(name for f in self._functions for name in f.value_names))

    def bind(self, point: Point) -> None:
        """Condition on everything that is not sampled, and take shared data as they are now."""
        for function in self._functions:
            function.bind(point)

    def rest(self, theta: Array) -> tuple[float, Array]:
        """The log density of everything but the blocks' priors and likelihoods, and its gradient (d,)."""
        total, gradient = self._rest(theta)
        return float(total), gradient


def read_together(model: pm.Model, vars: Any, point: Point) -> tuple[ModelStructure, JointModel | str]:  # noqa: A002
    """A model's structure, and its blocks with their hyperparameters.

    Parameters
    ----------
    model : pymc.Model
        The model.
    vars : list of variables or names, or None
        Latent variables, and the hyperparameters that are to be sampled with them; by default all.
    point : dict
        Where shapes are taken.

    Returns
    -------
    ModelStructure, JointModel or str
        In place of the second, the reason why hyperparameters are not sampled together with the latents.

    Raises
    ------
    UnsupportedModelError, UnsupportedLikelihoodError, ConfigurationError
        As `read_structure`.
    """
    if vars is None:
        structure = read_structure(model)
        return structure, read_joint(structure, point)
    named, latents = resolve_variables(model, vars), gaussian_candidates(model)
    chosen = [v for v in named if v in latents]
    others = [v for v in named if v not in latents]
    if chosen and others:
        structure = read_structure(model, chosen)
        joint = read_joint(structure, point, others)
        if not isinstance(joint, str):
            return structure, joint
    return read_structure(model, vars), "vars names latent variables alone"


def read_joint(
    structure: ModelStructure, point: Point, named: Sequence[TensorVariable] | None = None
) -> JointModel | str:
    """A structure's blocks and hyperparameters together, or the reason why they cannot be sampled together.

    `named` are the hyperparameters wanted, by default all that there are.
    """
    model = structure.model
    expressions: list[TensorVariable] = []
    for block in structure.blocks:
        if len(block.latents) > 1:
            return f"{block.name} is read as a sum of several latent vectors"
        (latent,) = block.latents
        if latent.form == "independent" or latent.variable.ndim != 1 or latent.matrix.ndim != 2:
            return f"{block.name} is not one vector with a covariance matrix"
        if any(o.reading is None for o in block.observations):
            return f"the likelihood of {block.name} is not registered"
        expressions += [latent.matrix] if latent.mean is None else [latent.matrix, latent.mean]
        expressions += [e for o in block.observations for e in _expressions(o)]
    latents = set(structure.variables)
    variables = [v for v in hyperparameters_of(model, expressions) if v not in latents]
    if named is not None:
        strange = [str(v.name) for v in named if v not in variables]
        if strange:
            return f"no block depends on {', '.join(strange)}"
        variables = [v for v in variables if v in named]
    if not variables:
        return "no block depends on continuous hyperparameters"
    theta = Hyperparameters(model, variables, point)
    sizes = [int(np.size(point[name])) for name in (str(v.name) for v in structure.value_vars)]
    blocks = [JointBlock(model, b, theta, size) for b, size in zip(structure.blocks, sizes, strict=True)]
    return JointModel(theta, blocks, _rest(structure, theta))


def _rest(structure: ModelStructure, theta: Hyperparameters) -> GraphFunction:
    """Everything in the log density but the blocks, as a function of θ."""
    model = structure.model
    counted = set(structure.variables) | {o.variable for block in structure.blocks for o in block.observations}
    others = [v for v in (*model.basic_RVs, *model.potentials) if v not in counted]
    (total,) = theta.substitute([model.logp(vars=others, sum=True)], model)
    return GraphFunction(model, [theta.symbol], [total, _gradient(total, theta.symbol)])


def _expressions(observation: Observation) -> list[TensorVariable]:
    """What an observation's likelihood is made of."""
    reading = observation.reading
    assert reading is not None
    return [reading.eta, *reading.parameters.values(), *([] if reading.offset is None else [reading.offset])]


def _covariance(latent: LatentVariable) -> TensorVariable:
    """K as an expression, from whichever matrix the model gives."""
    matrix, root = latent.matrix, latent.root
    if root == "covariance":
        return matrix
    return matrix @ matrix.T if root == "cholesky" else pt.linalg.inv(matrix)


def _likelihood(
    model: pm.Model,
    observation: Observation,
    source: TensorVariable,
    eta: TensorVariable,
    theta: Hyperparameters,
    size: int,
) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
    """``Σ ℓ``, its slope by site, and its gradient by θ, of one observed variable.

    The slope by the linear predictor is the registered closed form; what else depends on θ is an offset, along
    which that slope is taken, and the parameters, along which PyTensor differentiates ℓ.
    """
    likelihood, reading = observation.likelihood, observation.reading
    assert likelihood is not None
    assert reading is not None
    place = pt.dvector("source")
    parameters = [reading.parameters[name] for name in likelihood.parameters]
    offset = pt.zeros(()) if reading.offset is None else reading.offset
    whole = pt.second(pt.zeros_like(observation.value, dtype="float64"), reading.eta + offset)
    (predictor, *rest) = substitute(
        [whole, pt.as_tensor_variable(observation.value), *parameters],
        {source: pt.specify_shape(place.reshape((size, 1)[: source.ndim]), source.type.shape)}, model,
    )  # fmt: skip
    (predictor, y, *values) = theta.substitute([predictor, *rest], model)
    read = predictor.ravel()
    held = disconnected_grad(read)
    vectors = {
        name: pt.second(held, value.ravel() if value.ndim == observation.value.ndim else value)
        for name, value in zip(likelihood.parameters, values, strict=True)
    }
    terms = likelihood.terms(held, vectors, pt.cast(y.ravel(), "float64"))
    total, slope = terms.logp.sum(), disconnected_grad(terms.gradient)
    along = total + (slope * read).sum()
    gradient = _gradient(along, theta.symbol)
    by_site = pytensor.grad((slope * read).sum(), place)
    replaced = {place: eta}
    return tuple(pytensor.graph.replace.clone_replace([total, by_site, gradient], replaced))


def _gradient(total: TensorVariable, theta: TensorVariable) -> TensorVariable:
    return pytensor.grad(total, theta, disconnected_inputs="ignore")
