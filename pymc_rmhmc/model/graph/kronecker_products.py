"""Recognising a Kronecker product in a model: rotated values that are read through one Cholesky factor an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pymc as pm
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.linalg.decomposition.cholesky import Cholesky
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, SpecifyShape
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import Evaluator, core_op, is_standard_normal

__all__ = ["kronecker_product"]

# Of two sums of a few hundred numbers near 1 that differ in order alone.
ROUNDING = 1e-9


def kronecker_product(
    model: pm.Model, variable: TensorVariable, expressions: Sequence[TensorVariable]
) -> tuple[TensorVariable, tuple[TensorVariable, ...]] | None:
    """Find the vector ``(L₁ ⊗ L₂ ⊗ ...) v`` and the K_i of which the L_i are factors, if that is how v is read.

    `pymc.math.kron_dot`, as `pm.gp.LatentKron` has it, is a chain of reshapes, transposes and products. It is followed
    from v on, and what it comes to is looked at in numbers: the order of axes is nothing that a graph shows.

    Parameters
    ----------
    model : pymc.Model
        The model.
    variable : TensorVariable
        v, a vector of Normals.
    expressions : sequence of TensorVariable
        Where to look for it.

    Returns
    -------
    TensorVariable, tuple of TensorVariable
        The vector (n,), and every K_i (n_i, n_i); or None.
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
    readers: dict[Variable, list[Apply]] = {}
    for node in {v.owner for v in ancestors(list(expressions)) if v.owner is not None}:
        if not isinstance(node.op, Shape):  # a shape is asked for by each reshape
            for read in dict.fromkeys(node.inputs):
                readers.setdefault(read, []).append(node)
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
    operation = core_op(node.outputs[0])
    if not isinstance(operation, Dot) or node.inputs[1] is not read:
        return False
    left = node.inputs[0]
    factor = core_op(left)
    return isinstance(factor, Cholesky) and factor.lower and left.ndim == 2


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
