"""Distributions of PyMC that are Gaussian vectors without saying so: random walks, autoregressions, areal models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytensor
import pytensor.sparse
import pytensor.tensor as pt
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.distributions.timeseries import AutoRegressiveRV, RandomWalkRV
from pymc.logprob.abstract import MeasurableOp
from pytensor.graph.basic import Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.sparse.type import SparseTensorType
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable
from scipy.sparse import csgraph

from pymc_rmhmc.model.graph.graphs import PYTHON_MODE

__all__ = ["GAUSSIAN_VECTORS", "FirstOrder", "first_order", "gaussian_vector"]

# Mean, matrix, and what the matrix is.
type Stated = tuple[TensorVariable, TensorVariable, str]
# Mean and deviation of Normals.
type Law = Sequence[TensorVariable]

# With what each is called.
GAUSSIAN_VECTORS: dict[type[Op], str] = {
    AutoRegressiveRV: "autoregression", CARRV: "areal model (CAR)", ICARRV: "areal model (ICAR)",
    RandomWalkRV: "random walk",
}  # fmt: skip


def gaussian_vector(variable: TensorVariable) -> Stated | str:
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
    """A series ``xₜ = aₜ + ρ xₜ₋₁ + sₜ νₜ`` of n values from ``x₀ = 0``.

    Attributes
    ----------
    level, deviation : (n,) vector
        A and s; s is nan where PyMC has no density.
    rho : scalar
        ρ.
    """

    level: TensorVariable
    deviation: TensorVariable
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


def _intrinsic(
    weights: TensorVariable, sigma: TensorVariable, zero_sum_stdev: TensorVariable
) -> Stated | str:
    """Read ``N(0, [(D - W)/σ² + 11ᵀ/(n s)²]⁻¹)``: neighbours differ by σ, and the sum is 0 but for a small n s.

    PyMC's density has no determinant in it, which a σ that moves would need.
    """
    if any(v.owner is not None and isinstance(v.owner.op, MeasurableOp) for v in ancestors([sigma, zero_sum_stdev])):
        return "its sigma has a prior, for which PyMC's density has no constant: multiply it instead (sigma * phi)"
    (neighbours,) = pytensor.function([], [weights], mode=PYTHON_MODE)()
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
