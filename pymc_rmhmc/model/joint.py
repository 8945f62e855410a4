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
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model.components import LatentReader
from pymc_rmhmc.model.graphs import substitute
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters, hyperparameters_of
from pymc_rmhmc.model.observations import RegisteredReader
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
type Sites = NDArray[np.int64]

# θ has a dense mass matrix, and its curvature at the mode costs two gradients a dimension.
MOST_HYPERPARAMETERS = 100


class JointBlock:
    """One latent Gaussian vector: its prior and likelihood as functions of θ.

    Attributes
    ----------
    name, value_name : str
        Of the latent function, and of the value variable.
    centred : bool
        Whether the value variable is the latent vector itself, and not ``L⁻¹`` of it.
    size : int
        The number of latent values. A site is a latent value and whatever part of its predictor θ adds to it.
    fixed_covariance : bool
        Whether K is the same at every θ.
    """

    def __init__(
        self, model: pm.Model, block: LatentBlock, theta: Hyperparameters, size: int, sites: Sequence[Sites]
    ) -> None:
        (latent,) = block.latents
        self.name, self.value_name = latent.name, str(model.rvs_to_values[latent.variable].name)
        self.centred, self.size = latent.form == "centred", size
        eta = pt.dvector("eta")
        read = [_Observed(model, o, latent.source, theta, size) for o in block.observations]
        shift = _shift(read, sites, theta, size)
        mean = pt.zeros(size) if latent.mean is None else pt.second(pt.zeros(size), latent.mean.ravel())
        mean, covariance = theta.substitute([mean, _covariance(latent)], model)
        mean = mean + shift
        self.fixed_covariance = theta.symbol not in ancestors([covariance])
        self._prior = GraphFunction(model, [theta.symbol], [mean, covariance, shift])
        mean_bar, covariance_bar = pt.dvector("mean_bar"), pt.dmatrix("covariance_bar")
        along = (mean * mean_bar).sum() + (covariance * covariance_bar).sum()
        gradient = _gradient(along, theta.symbol)
        self._pullback = GraphFunction(model, [theta.symbol, mean_bar, covariance_bar], [gradient])
        terms = [observed.terms(eta, shift, theta) for observed in read]
        totals, slopes, gradients = ([t[i] for t in terms] for i in range(3))
        self._likelihood = GraphFunction(model, [theta.symbol, eta], [sum(totals), sum(slopes), sum(gradients)])

    @property
    def functions(self) -> tuple[GraphFunction, ...]:
        """Everything that is bound to a point."""
        return self._prior, self._pullback, self._likelihood

    def prior(self, theta: Array) -> tuple[Array, Array, Array]:
        """Mean (k,) and covariance (k, k) of the sites, in Fortran order, and the sites less the latents (k,)."""
        mean, covariance, shift = self._prior(theta)
        # A covariance is symmetric: its transpose is itself in Fortran order, at no cost.
        return mean, covariance.T if covariance.flags.c_contiguous else np.asfortranarray(covariance), shift

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
    if not (chosen and others):
        return read_structure(model, vars), "vars names latent variables alone"
    structure = read_structure(model, chosen)
    joint = read_joint(structure, point, others)
    if not isinstance(joint, str):
        return structure, joint
    try:  # vectors of Normals may be latents themselves
        return read_structure(model, vars), joint
    except UnsupportedModelError as error:
        names = ", ".join(str(v.name) for v in others)
        raise UnsupportedModelError(f"{names} cannot be sampled together with the latents: {joint} ({error})") from None


def read_joint(
    structure: ModelStructure, point: Point, named: Sequence[TensorVariable] | None = None
) -> JointModel | str:
    """A structure's blocks and hyperparameters together, or the reason why they cannot be sampled together.

    `named` are the hyperparameters wanted, by default all that there are.
    """
    model = structure.model
    expressions: list[TensorVariable] = []
    for block in structure.blocks:
        reason = _why_not(block)
        if reason:
            return reason
        (latent,) = block.latents
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
    vectors = [str(v.name) for v in variables if v in gaussian_candidates(model) and (named is None or v not in named)]
    if vectors:
        return f"the latent vector {', '.join(vectors)} would be one of the hyperparameters"
    theta = Hyperparameters(model, variables, point)
    if theta.size > MOST_HYPERPARAMETERS:
        return f"there are {theta.size} hyperparameters, more than {MOST_HYPERPARAMETERS}"
    try:
        return _build(structure, theta, point)
    except NotImplementedError as error:  # an operation without a derivative
        return f"PyTensor cannot differentiate the model by its hyperparameters ({str(error).splitlines()[0]})"


def _why_not(block: LatentBlock) -> str:
    """Why a block is none that is sampled with its hyperparameters; empty if it is one."""
    if len(block.latents) > 1:
        return f"{block.name} is read as a sum of several latent vectors"
    (latent,) = block.latents
    if latent.form == "independent" or latent.variable.ndim != 1 or latent.matrix.ndim != 2:
        return f"{block.name} is not one vector with a covariance matrix"
    if not block.observations:
        return f"nothing is observed of {block.name}"
    if any(o.reading is None for o in block.observations):
        return f"the likelihood of {block.name} is not registered"
    return ""


def _build(structure: ModelStructure, theta: Hyperparameters, point: Point) -> JointModel | str:
    """The functions of a model, or the reason why the sites are not latent values."""
    model, blocks = structure.model, []
    for block, value in zip(structure.blocks, structure.value_vars, strict=True):
        sites = _sites(model, block, point)
        if sites is None:
            return f"an observation reads more or less than one value of {block.name}"
        blocks.append(JointBlock(model, block, theta, int(np.size(point[str(value.name)])), sites))
    return JointModel(theta, blocks, _rest(structure, theta))


def _rest(structure: ModelStructure, theta: Hyperparameters) -> GraphFunction:
    """Everything in the log density but the blocks, as a function of θ."""
    model = structure.model
    (total,) = theta.substitute([model.logp(vars=structure.rest, sum=True)], model)
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


def _sites(model: pm.Model, block: LatentBlock, point: Point) -> list[Sites] | None:
    """The site that each value of each observed variable reads; None where one reads more or less than one."""
    (latent,) = block.latents
    shape = LatentReader(model, latent).source_shape(point)
    found = []
    for observation in block.observations:
        reader = RegisteredReader(model, observation, [latent.source])
        if not reader.always_reads_values(point, [shape]):
            return None
        index = reader.form(point, [shape]).maps[0].index
        assert index is not None
        found.append(index)
    return found


def _shift(read: Sequence[_Observed], sites: Sequence[Sites], theta: Hyperparameters, size: int) -> TensorVariable:
    """What θ adds to the latent values in the predictors that read them, (k,).

    Sites are anchored in the predictor: a level that is added there then moves the prior's mean under them, as one
    in the prior's mean function does. Where several observations of a site add different things, the first counts.
    """
    shift = pt.zeros(size)
    for observed, index in zip(read, sites, strict=True):
        added = observed.added
        if theta.symbol in ancestors([added]):
            which, first = np.unique(index, return_index=True)
            shift = pt.set_subtensor(shift[which], added[first])
    return shift


class _Observed:
    """An observed variable's likelihood as a graph of θ and of what its predictor reads."""

    def __init__(
        self, model: pm.Model, observation: Observation, source: TensorVariable, theta: Hyperparameters, size: int
    ) -> None:
        likelihood, reading = observation.likelihood, observation.reading
        assert likelihood is not None
        assert reading is not None
        self._likelihood = likelihood
        self._place, self._size = pt.dvector("source"), size
        parameters = [reading.parameters[name] for name in likelihood.parameters]
        # By value variables first: a constant of the data's shape makes the predictor as long as the data.
        long = pt.zeros_like(observation.value, dtype="float64")
        offset = pt.zeros(()) if reading.offset is None else reading.offset
        expressions = [pt.second(long, reading.eta), offset, pt.as_tensor_variable(observation.value), *parameters]
        held = pt.specify_shape(self._place.reshape((size, 1)[: source.ndim]), source.type.shape)
        replaced = theta.substitute(substitute(expressions, {source: held}, model), model)
        self._predictor, offset, y, *values = replaced
        self._data_ndim = observation.value.ndim
        self._offset, self._y, self._values = offset, y, values

    @property
    def added(self) -> TensorVariable:
        """The predictor where the latent values are 0."""
        return clone_replace(self._predictor.ravel(), {self._place: pt.zeros(self._size)})

    def terms(
        self, eta: TensorVariable, shift: TensorVariable, theta: Hyperparameters
    ) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        """``Σ ℓ``, its slope by site, and its gradient by θ at given sites.

        The slope by the linear predictor is the registered closed form; what else depends on θ is an offset, along
        which that slope is taken, and the parameters, along which PyTensor differentiates ℓ.
        """
        predictor = clone_replace(self._predictor, {self._place: eta - shift})
        read = (predictor + self._offset).ravel()
        held = disconnected_grad(read)
        vectors = {
            name: pt.second(held, value.ravel() if value.ndim == self._data_ndim else value)
            for name, value in zip(self._likelihood.parameters, self._values, strict=True)
        }
        terms = self._likelihood.terms(held, vectors, pt.cast(self._y.ravel(), "float64"))
        total, slope = terms.logp.sum(), disconnected_grad(terms.gradient)
        along = (slope * read).sum()
        return total, pytensor.grad(along, eta), _gradient(total + along, theta.symbol)


def _gradient(total: TensorVariable, theta: TensorVariable) -> TensorVariable:
    return pytensor.grad(total, theta, disconnected_inputs="ignore")
