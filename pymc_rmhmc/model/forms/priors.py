"""Recognising Gaussian priors in a model: what a latent variable is, and where it enters the model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.inverse import MatrixInverse
from pytensor.tensor.math import Dot
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.forms.gaussian_vectors import GAUSSIAN_VECTORS, gaussian_vector
from pymc_rmhmc.model.graph.graphs import Evaluator, core_op, is_standard_normal, reaches
from pymc_rmhmc.model.graph.kronecker_products import kronecker_product
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.likelihoods import read_likelihood
from pymc_rmhmc.model.likelihoods.links import strip

__all__ = ["LATENT", "LatentVariable", "gaussian_candidates", "read_latent", "root_of"]


LATENT = (MvNormalRV, NormalRV, *GAUSSIAN_VECTORS)


@dataclass(frozen=True, eq=False)
class LatentVariable:
    """A random variable with a Gaussian prior, and the node of the model at which it is read.

    Attributes
    ----------
    variable : TensorVariable
        The random variable of the model.
    form : str
        "centred" (an MvNormal or another vector with a covariance), "whitened" (``gp.prior(reparameterize=True)``)
        or "independent" (a vector of normals).
    source : TensorVariable
        What the predictors read: the variable itself, ``cholesky(K) @ v``, or a Kronecker product of factors for one.
    mean : TensorVariable or None
        Of the variable (centred and independent).
    matrices : tuple of TensorVariable
        What gives the covariance, of `root`'s kind: one matrix, or those of a Kronecker product.
    root : str
        "covariance", "cholesky", "precision", "scale" (standard deviations) or "kronecker" (covariances of which
        the Kronecker product is the vector's).
    """

    variable: TensorVariable
    form: str
    source: TensorVariable
    mean: TensorVariable | None
    matrices: tuple[TensorVariable, ...]
    root: str

    @property
    def matrix(self) -> TensorVariable:
        """The one matrix, where there is one."""
        (matrix,) = self.matrices
        return matrix

    @property
    def expressions(self) -> tuple[TensorVariable, ...]:
        """All that the prior is made of."""
        return self.matrices if self.mean is None else (*self.matrices, self.mean)

    @property
    def name(self) -> str:
        """The name of the latent function, as the user wrote it."""
        name = str(self.variable.name)
        return name.removesuffix("_rotated_") if self.form == "whitened" else name


def read_latent(model: pm.Model, variable: TensorVariable) -> LatentVariable | str:
    """Recognise the prior of a random variable.

    Parameters
    ----------
    model : pymc.Model
        The model.
    variable : TensorVariable
        One of its free random variables.

    Returns
    -------
    LatentVariable or str
        What was recognised, or the reason why nothing was.
    """
    op: Any = variable.owner.op
    if not issubclass(type(op), LATENT):
        return f"its prior is {distribution_of(variable)}, not Gaussian in a form that is read"
    transform = model.rvs_to_transforms.get(variable)
    if transform is not None:
        name = type(transform).__name__
        return f"its values are transformed ({name}), and what is sampled then is not Gaussian"
    if type(op) in GAUSSIAN_VECTORS:
        stated = gaussian_vector(variable)
        if isinstance(stated, str):
            return stated
        mean, matrix, root = stated
        return LatentVariable(variable, "centred", variable, mean, (matrix,), root)
    if isinstance(op, MvNormalRV):
        mean, covariance = op.dist_params(variable.owner)
        matrix, root = root_of(covariance)
        return LatentVariable(variable, "centred", variable, mean, (matrix,), root)
    product = _whitened_product(model, variable)
    if product is not None:
        source, covariance = product
        return LatentVariable(variable, "whitened", source, None, (covariance,), "covariance")
    grid = _whitened_grid(model, variable)
    if grid is not None:
        return LatentVariable(variable, "whitened", grid[0], None, grid[1], "kronecker")
    if 0 in variable.type.shape:
        return "it has no latent values"
    mean, scale = op.dist_params(variable.owner)
    return LatentVariable(variable, "independent", variable, mean, (scale,), "scale")


def root_of(covariance: TensorVariable) -> tuple[TensorVariable, str]:
    """The factor or precision that a covariance was made of, or the covariance itself.

    ``pm.MvNormal(chol=L)`` stores ``L @ L.T`` and ``tau=`` stores an inverse: both are matched, so that
    nothing is multiplied out only to be factorised again.
    """
    covariance = _without_batch(covariance)
    op = core_op(covariance)
    if isinstance(op, MatrixInverse):
        return covariance.owner.inputs[0], "precision"
    if isinstance(op, Dot):
        left, right = covariance.owner.inputs
        if right.owner is not None and _is_transpose(right) and right.owner.inputs[0] is left:
            return left, "cholesky"
    return covariance, "covariance"


def _is_transpose(variable: TensorVariable) -> bool:
    op = variable.owner.op
    return isinstance(op, DimShuffle) and tuple(op.new_order)[-2:] == (1, 0)


def _without_batch(matrix: TensorVariable) -> TensorVariable:
    """A matrix without leading dimensions of length 1, which stand for independent rows."""
    while matrix.ndim > 2 and matrix.owner is not None and isinstance(matrix.owner.op, DimShuffle):
        inner = matrix.owner.inputs[0]
        added = matrix.ndim - inner.ndim
        if tuple(matrix.owner.op.new_order) != ("x",) * added + tuple(range(inner.ndim)):
            break
        matrix = inner
    return matrix


def _is_latent(model: pm.Model, variable: TensorVariable) -> bool:
    """Whether a vector can be read, and the predictor of some likelihood depends on it.

    Of a likelihood that is not registered anything is its predictor, and so it is where none has longer vectors in it.
    """
    if isinstance(read_latent(model, variable), str):
        return False
    for observed in model.observed_RVs:
        if reaches(observed, [variable], model.basic_RVs):
            found = read_likelihood(observed)
            if found is None or reaches(found[1].eta, [variable], model.basic_RVs):
                return True
            # In another parameter, such as a log scale, it may be where the predictor is of nothing latent that is as
            # long.
            shapes = model.eval_rv_shapes()
            size = math.prod(shapes[str(variable.name)])
            larger = [
                v for v in model.free_RVs
                if v is not variable and isinstance(v.owner.op, LATENT)
                and (not isinstance(v.owner.op, NormalRV) or math.prod(shapes[str(v.name)]) >= size)
            ]  # fmt: skip
            if not reaches(found[1].eta, larger, model.basic_RVs):
                return True
    return False


def _whitened_product(model: pm.Model, variable: TensorVariable) -> tuple[TensorVariable, TensorVariable] | None:
    """The node ``cholesky(K) @ v`` and K, if v is standard normal and read through one alone."""
    densities = _densities(model)
    for node in {v.owner for v in ancestors([*densities, *model.deterministics]) if v.owner is not None}:
        if not isinstance(getattr(node.op, "core_op", node.op), Dot):
            continue
        left, right = node.inputs
        factor = core_op(left)
        if not isinstance(factor, Cholesky) or not factor.lower or _moved(right) is not variable:
            continue
        source = node.outputs[0]
        # What reads v besides would take it for a constant.
        if left.ndim != 2 or any(reaches(d, [variable], [source]) for d in densities):
            continue
        if is_standard_normal(model, variable) and _multiplies_last_axis(model, variable, right):
            return source, left.owner.inputs[0]
    return None


def _multiplies_last_axis(model: pm.Model, variable: TensorVariable, right: TensorVariable) -> bool:
    """Whether the right side of a product is a vector itself, or the transpose of its rows."""
    if right.ndim > 2:
        return False
    shape = variable.type.shape
    if None in shape:
        shape = np.shape(model.initial_point()[str(model.rvs_to_values[variable].name)])
    values = np.arange(1.0, 1.0 + math.prod(shape)).reshape(shape)
    (moved,) = Evaluator(model, [right], {variable: variable.type()})({}, values)
    exact = values if right.ndim == 1 else values.reshape(math.prod(shape[:-1]), shape[-1]).T
    return moved.shape == exact.shape and bool((moved == exact).all())


def _whitened_grid(
    model: pm.Model, variable: TensorVariable
) -> tuple[TensorVariable, tuple[TensorVariable, ...]] | None:
    """The node ``(L₁ ⊗ L₂ ⊗ ...) @ v`` of `pm.gp.LatentKron` and the K_i, if densities read the variable so alone."""
    densities = _densities(model)
    read = any(reaches(density, [variable]) for density in densities)
    return kronecker_product(model, variable, densities if read else model.deterministics)


def _densities(model: pm.Model) -> list[TensorVariable]:
    """What the model's densities are made of."""
    parameters = [i for v in model.basic_RVs for i in v.owner.inputs if isinstance(i, TensorVariable)]
    return [*parameters, *model.potentials]


def _moved(variable: TensorVariable) -> TensorVariable:
    """The variable behind transposes and added dimensions."""
    while True:
        inner = strip(variable)
        if inner.owner is not None and isinstance(inner.owner.op, DimShuffle):
            inner = inner.owner.inputs[0]
        if inner is variable:
            return variable
        variable = inner


def gaussian_candidates(model: pm.Model) -> list[TensorVariable]:
    """Free variables that are latent Gaussian without being named: vectors with a covariance, and rotated GPs.

    A walk, an autoregression or a map counts where it can be read, and a registered likelihood's predictor reads it.
    """
    return [
        v
        for v in model.free_RVs
        if isinstance(v.owner.op, MvNormalRV)
        or (type(v.owner.op) in GAUSSIAN_VECTORS and _is_latent(model, v))
        or (isinstance(v.owner.op, NormalRV) and str(v.name).endswith("_rotated_"))
    ]
