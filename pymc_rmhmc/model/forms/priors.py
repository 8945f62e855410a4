"""Recognising Gaussian priors in a model: what a latent variable is, and where it enters the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.sparse
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pymc.logprob.abstract import MeasurableOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.linalg.inverse import MatrixInverse
from pytensor.tensor.math import Dot
from pytensor.tensor.random.basic import MvNormalRV, NormalRV
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.variable import TensorVariable
from scipy.linalg import lapack
from scipy.sparse import csgraph

from pymc_rmhmc.model.graph.graphs import Evaluator, by_python, core_op, is_standard_normal, reaches, readers_of
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.likelihoods import read_likelihood
from pymc_rmhmc.model.likelihoods.links import strip

__all__ = [
    "GAUSSIAN_VECTORS",
    "LATENT",
    "FirstOrder",
    "LatentVariable",
    "factor_of_inverse",
    "first_order",
    "gaussian_candidates",
    "read_latent",
    "root_of",
]


# Mean, matrix, and what the matrix is.
type Stated = tuple[TensorVariable, TensorVariable, str]
# Mean and deviation of Normals.
type Law = Sequence[TensorVariable]

# With what each is called.
GAUSSIAN_VECTORS: dict[type[Op], str] = {
    AutoRegressiveRV: "autoregression", CARRV: "areal model (CAR)", ICARRV: "areal model (ICAR)",
    RandomWalkRV: "random walk",
}  # fmt: skip
LATENT = (MvNormalRV, NormalRV, *GAUSSIAN_VECTORS)
# Of two sums of a few hundred numbers near 1 that differ in order alone.
ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class LatentVariable:
    """A random variable with a Gaussian prior, and the node of the model at which it is read.

    Its form is "centred" (an MvNormal or another vector with a covariance), "whitened" (``gp.prior(reparameterize=
    True)``) or "independent" (a vector of normals). What gives its covariance is of the kind of its root: a
    "covariance", "cholesky", "precision" or "scale" (standard deviations); or "kronecker", covariances of which the
    Kronecker product is the vector's.
    """

    variable: TensorVariable
    form: str
    # What the predictors read: the variable itself, ``cholesky(K) @ v``, or a Kronecker product of factors for one.
    source: TensorVariable
    mean: TensorVariable | None  # of the variable (centred and independent)
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

    def scaled(
        self, matrices: list[TensorVariable], shape: tuple[int, ...], scale: TensorVariable | None
    ) -> tuple[list[TensorVariable], TensorVariable, TensorVariable, TensorVariable]:
        """Return K, or all K_i, times a number; what sites read where y is 0; and the variable's mean and the number.

        Of a Kronecker product one factor takes the number.
        """
        size = math.prod(shape)
        mean = pt.zeros(size) if self.mean is None else pt.broadcast_to(self.mean, shape).ravel()
        if scale is None:
            return matrices, mean, mean, pt.ones(1)
        scale = scale.ravel()
        return [scale[:, None] * matrices[0] * scale[None, :], *matrices[1:]], scale * mean, mean, scale


def read_latent(model: pm.Model, variable: TensorVariable) -> LatentVariable | str:
    """Recognise the prior of a free random variable, or give the reason why it is not."""
    op = variable.owner.op
    if not issubclass(type(op), LATENT):
        return f"its prior is {distribution_of(variable)}, not Gaussian in a form that is read"
    transform = model.rvs_to_transforms.get(variable)
    if transform is not None:
        name = type(transform).__name__
        return f"its values are transformed ({name}), and what is sampled then is not Gaussian"
    if type(op) in GAUSSIAN_VECTORS:
        stated = _gaussian_vector(variable)
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
    """Find the factor or precision that a covariance was made of, or the covariance itself.

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
    """Return a matrix without leading dimensions of length 1, which stand for independent rows."""
    while matrix.ndim > 2 and matrix.owner is not None and isinstance(matrix.owner.op, DimShuffle):
        inner = matrix.owner.inputs[0]
        added = matrix.ndim - inner.ndim
        if tuple(matrix.owner.op.new_order) != ("x",) * added + tuple(range(inner.ndim)):
            break
        matrix = inner
    return matrix


def _is_latent(model: pm.Model, variable: TensorVariable) -> bool:
    """Return whether a vector can be read, and the predictor of some likelihood depends on it.

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
    """Find the node ``cholesky(K) @ v`` and K, if v is standard normal and read through one alone."""
    densities = _densities(model)
    for node in {v.owner for v in ancestors([*densities, *model.deterministics]) if v.owner is not None}:
        if not isinstance(getattr(node.op, "core_op", node.op), Dot):
            continue
        left, right = node.inputs
        if not _is_lower_factor(left) or _moved(right) is not variable:
            continue
        source = node.outputs[0]
        # What reads v besides would take it for a constant.
        if any(reaches(d, [variable], [source]) for d in densities):
            continue
        if is_standard_normal(model, variable) and _multiplies_last_axis(model, variable, right):
            return source, left.owner.inputs[0]
    return None


def _multiplies_last_axis(model: pm.Model, variable: TensorVariable, right: TensorVariable) -> bool:
    """Return whether the right side of a product is a vector itself, or the transpose of its rows."""
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
    """Find the node ``(L₁ ⊗ L₂ ⊗ ...) @ v`` of `pm.gp.LatentKron` and the K_i, if densities read only it."""
    densities = _densities(model)
    read = any(reaches(density, [variable]) for density in densities)
    return _kronecker_product(model, variable, densities if read else model.deterministics)


def _densities(model: pm.Model) -> list[TensorVariable]:
    """List what the model's densities are made of."""
    parameters = [i for v in model.basic_RVs for i in v.owner.inputs if isinstance(i, TensorVariable)]
    return [*parameters, *model.potentials]


def _moved(variable: TensorVariable) -> TensorVariable:
    """Return the variable behind transposes and added dimensions."""
    while True:
        inner = strip(variable)
        if inner.owner is not None and isinstance(inner.owner.op, DimShuffle):
            inner = inner.owner.inputs[0]
        if inner is variable:
            return variable
        variable = inner


def _kronecker_product(
    model: pm.Model, variable: TensorVariable, expressions: Sequence[TensorVariable]
) -> tuple[TensorVariable, tuple[TensorVariable, ...]] | None:
    """Find the vector ``(L₁ ⊗ L₂ ⊗ ...) v`` and the K_i of which the L_i are factors, if expressions read v so.

    `pymc.math.kron_dot`, as `pm.gp.LatentKron` has it, is a chain of reshapes, transposes and products. It is followed
    from v on, and what it comes to is looked at in numbers: the order of axes is nothing that a graph shows.
    """
    if variable.ndim != 1:
        return None
    chain = _chain(variable, expressions)
    products = [i for i, node in enumerate(chain) if isinstance(core_op(node), Dot)]
    if not products:
        return None
    # The first vector after the last product: whoever goes on to reshape it is a reader.
    source = next((node for node in chain[products[-1] :] if node.ndim == 1), None)
    factors = [chain[i].owner.inputs[0] for i in products]
    if source is None or not _is_product(model, variable, source, factors):
        return None
    return source, tuple(factor.owner.inputs[0] for factor in factors)


def _chain(variable: TensorVariable, expressions: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Follow what is made of a variable step by step, as long as each step has one reader that continues the chain."""
    readers = readers_of(list(expressions))
    found: list[TensorVariable] = [variable]
    while len(readers.get(found[-1], [])) == 1:
        (node,) = readers[found[-1]]
        if not _goes_on(node, found[-1]):
            break
        found.append(node.outputs[0])
    return found[1:]


def _goes_on(node: Apply, read: TensorVariable) -> bool:
    """Return whether a node moves the values that it reads, or multiplies them by a lower Cholesky factor."""
    if isinstance(node.op, Reshape | DimShuffle | SpecifyShape):
        return node.inputs[0] is read
    if not isinstance(core_op(node.outputs[0]), Dot) or node.inputs[1] is not read:
        return False
    return _is_lower_factor(node.inputs[0])


def _is_lower_factor(matrix: TensorVariable) -> bool:
    """Return whether a matrix is a lower Cholesky factor."""
    factor = core_op(matrix)
    return isinstance(factor, Cholesky) and factor.lower and matrix.ndim == 2


def _is_product(
    model: pm.Model, variable: TensorVariable, source: TensorVariable, factors: Sequence[TensorVariable]
) -> bool:
    """Return whether v is standard normal, and the source is ``(L₁ ⊗ L₂ ⊗ ...) v`` for random lower L_i and v."""
    if not is_standard_normal(model, variable):
        return False
    point, rng = model.initial_point(), np.random.default_rng(0)
    covariances = Evaluator(model, [factor.owner.inputs[0] for factor in factors])(point)
    lower = {f: np.tril(rng.standard_normal(k.shape)) for f, k in zip(factors, covariances, strict=True)}
    v = rng.standard_normal(np.shape(point[str(model.rvs_to_values[variable].name)]))
    matrices = [lower[factor] for factor in factors]
    if math.prod(matrix.shape[0] for matrix in matrices) != v.size:
        return False
    placeholders = {node: node.type() for node in (variable, *lower)}
    (value,) = Evaluator(model, [source], placeholders)(point, v, *lower.values())
    exact = v
    for matrix in matrices:  # axis by axis, each of which goes to the end: the product itself has n² numbers
        exact = (matrix @ exact.reshape(matrix.shape[0], -1)).T.ravel()
    return value.shape == exact.shape and np.allclose(value, exact, rtol=0.0, atol=ROUNDING * np.abs(exact).max())


def gaussian_candidates(model: pm.Model) -> list[TensorVariable]:
    """Find free variables that are latent Gaussian without being named: vectors with a covariance, and rotated GPs.

    A walk, an autoregression or a map counts where it can be read, and a registered likelihood's predictor reads it.
    """
    return [
        v
        for v in model.free_RVs
        if isinstance(v.owner.op, MvNormalRV)
        or (type(v.owner.op) in GAUSSIAN_VECTORS and _is_latent(model, v))
        or (isinstance(v.owner.op, NormalRV) and str(v.name).endswith("_rotated_"))
    ]


# Distributions of PyMC that are Gaussian vectors without saying so.


def _gaussian_vector(variable: TensorVariable) -> Stated | str:
    """Return mean (n,) and matrix (n, n) of a variable of one of `GAUSSIAN_VECTORS`, or the reason why it has none.

    The matrix is a "covariance", a lower "cholesky" factor or a "precision".
    """
    node = variable.owner
    if variable.ndim != 1:
        return "only a single series or map is read, and it has several rows"
    if isinstance(node.op, CARRV):
        return _areal(*node.op.dist_params(node))
    if isinstance(node.op, ICARRV):
        return _intrinsic(*node.op.dist_params(node))
    begin = _normal(node.inputs[0] if isinstance(node.op, RandomWalkRV) else node.inputs[2])
    if isinstance(node.op, RandomWalkRV):
        steps = _normal(node.inputs[1])
        if begin is None or steps is None:
            return "its start or its steps are not independent Normals"
        return _random_walk(begin, steps, node.inputs[2])
    if begin is None:
        return "its start is not made of independent Normals"
    rhos, sigma, _, steps, *_ = node.inputs
    return _autoregression(node.op.constant_term, node.op.ar_order, rhos, sigma, begin, steps)


@dataclass(frozen=True)
class FirstOrder:
    """A series ``xₜ = aₜ + ρ xₜ₋₁ + sₜ νₜ`` of n values from ``x₀ = 0``."""

    level: TensorVariable
    deviation: TensorVariable  # nan where PyMC has no density
    rho: TensorVariable


def first_order(variable: TensorVariable) -> FirstOrder | str:
    """Return what a random walk or an autoregression of order 1 is made of, or words that say what a variable is."""
    node = variable.owner
    if isinstance(node.op, RandomWalkRV):
        begin, steps, n_steps = _normal(node.inputs[0]), _normal(node.inputs[1]), node.inputs[2]
        assert begin is not None
        assert steps is not None
        return FirstOrder(*_innovations(begin, 1, steps, n_steps), pt.ones(()))
    if not isinstance(node.op, AutoRegressiveRV):
        return f"is an {GAUSSIAN_VECTORS[type(node.op)]}"
    order = node.op.ar_order
    if order != 1:
        return f"is an autoregression of order {order}"
    begin, (rhos, sigma, _, n_steps, *_) = _normal(node.inputs[2]), node.inputs
    assert begin is not None
    constant = node.op.constant_term
    level = rhos[0] if constant else pt.zeros(())
    return FirstOrder(*_innovations(begin, 1, (level, sigma), n_steps), rhos[int(constant)])


def _normal(variable: TensorVariable) -> list[TensorVariable] | None:
    """Return mean and standard deviation of an unnamed distribution, None if it is not Normal."""
    node = variable.owner
    return list(node.op.dist_params(node)) if node is not None and isinstance(node.op, NormalRV) else None


def _random_walk(begin: Law, steps: Law, n_steps: TensorVariable) -> Stated:
    """Read ``x_t = x_0 + Σ e``: its covariance at two times is its variance at the earlier."""
    n = n_steps + 1
    mean, deviation = _innovations(begin, 1, steps, n_steps)
    variance = pt.cumsum(deviation**2)
    later = pt.tri(n)
    return pt.cumsum(mean), later * variance[None, :] + (1.0 - later) * variance[:, None], "covariance"


def _autoregression(
    constant: bool, order: int, rhos: TensorVariable, sigma: TensorVariable, begin: Law, steps: TensorVariable
) -> Stated:
    """Read ``x_t = ρ_0 + Σ ρ_k x_{t-k} + e_t``: ``M x`` is independent, with M unit lower triangular."""
    n = steps + order
    level = rhos[0] if constant else pt.zeros(())
    mean, deviation = _innovations(begin, order, (level, sigma), steps)
    follows = (pt.arange(n) >= order)[:, None]
    matrix = pt.eye(n)
    for lag in range(1, order + 1):
        matrix = matrix - rhos[lag - 1 + constant] * follows * pt.eye(n, k=-lag)
    solved = pt.linalg.solve_triangular(matrix, pt.concatenate([pt.diag(deviation), mean[:, None]], axis=1), lower=True)
    return solved[:, -1], solved[:, :-1], "cholesky"


def _areal(
    mu: TensorVariable, weights: Variable, alpha: TensorVariable, tau: TensorVariable, weights_are_valid: TensorVariable
) -> Stated:
    """Read ``N(μ, [τ(D - αW)]⁻¹)`` with the neighbours' numbers on D's diagonal."""
    if isinstance(weights.type, SparseTensorType):
        weights = pytensor.sparse.dense_from_sparse(weights)
    weights, alpha, tau = weights.reshape(weights.shape[-2:]), alpha.ravel()[0], tau.ravel()[0]
    valid = pt.all(weights_are_valid) & (alpha > -1.0) & (alpha < 1.0) & (tau > 0.0)
    return mu, _where(valid, tau * (pt.diag(weights.sum(axis=0)) - alpha * weights)), "precision"


def _intrinsic(weights: TensorVariable, sigma: TensorVariable, zero_sum_stdev: TensorVariable) -> Stated | str:
    """Read ``N(0, [(D - W)/σ² + 11ᵀ/(n s)²]⁻¹)``: neighbours differ by σ, and the sum is 0 but for a small n s.

    PyMC's density has no determinant in it, which a σ that moves would need.
    """
    if any(v.owner is not None and isinstance(v.owner.op, MeasurableOp) for v in ancestors([sigma, zero_sum_stdev])):
        return "its sigma has a prior, for which PyMC's density has no constant: multiply it instead (sigma * phi)"
    (neighbours,) = by_python([], [weights])()
    if csgraph.connected_components(neighbours, directed=False)[0] > 1:
        return "its map has several parts that are not connected, whose levels have no prior"
    n, sigma, zero_sum_stdev = len(neighbours), sigma.astype("float64"), zero_sum_stdev.astype("float64")
    differences = pt.constant(np.diag(neighbours.sum(axis=0)) - neighbours, dtype="float64")
    valid = (sigma > 0.0) & (zero_sum_stdev > 0.0)
    precision = differences / sigma**2 + 1.0 / (n * zero_sum_stdev) ** 2
    return pt.zeros(n), _where(valid, precision), "precision"


def _innovations(
    begin: Law, n_begin: int, steps: Law, n_steps: TensorVariable
) -> tuple[TensorVariable, TensorVariable]:
    """Return means and deviations of what the first values and later ones add; a deviation is nan if not positive."""
    mean, deviation = (_joined(first, n_begin, rest, n_steps) for first, rest in zip(begin, steps, strict=True))
    return mean, _where(deviation > 0.0, deviation)


def _where(valid: TensorVariable, values: TensorVariable) -> TensorVariable:
    """Return values where PyMC has a density, and nan elsewhere, with which a prior is refused."""
    return pt.switch(valid, values, np.nan)


def _joined(first: TensorVariable, n_first: int, rest: TensorVariable, n_rest: TensorVariable) -> TensorVariable:
    """Join two parts of a vector, each of which may be one number for all its values."""
    return pt.concatenate([pt.broadcast_to(first, (n_first,)), pt.broadcast_to(rest, (n_rest,))])


def factor_of_inverse(precision: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the lower factor of ``τ⁻¹``; None if τ is not positive definite.

    From ``τ = U Uᵀ`` with an upper U, which is the ordinary factor of τ read backwards, ``L = U⁻ᵀ``. The
    inverse is never formed, nor factorised again: of an ill-conditioned τ it would have lost a digit or
    two more of the determinant, or have come out indefinite.
    """
    backwards = np.asfortranarray(precision[::-1, ::-1])
    factor, info = lapack.dpotrf(backwards, lower=1, clean=1)
    # A pivot is the part of a diagonal element that the others do not explain. Below this it is rounding,
    # and the matrix singular (an intrinsic prior, such as D - W), whatever its sign has come out as.
    noise = precision.shape[0] * np.finfo(np.float64).eps * backwards.diagonal()
    if info != 0 or not (factor.diagonal() ** 2 > noise).all():
        return None
    inverse, _ = lapack.dtrtri(factor, lower=1, overwrite_c=1)
    return np.asfortranarray(inverse[::-1, ::-1].T)
