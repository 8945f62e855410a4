"""Running sums as latent values: of ``w = cumsum(b z + d)`` a field takes ``x = w / b`` in the place of z.

By z a running sum's matrix is a triangle, and by x it is diagonal. The model's own values are

    z_t = x_t - (b_{t-1} x_{t-1} + d_t) / b_t,

which moves as x_t does and does not see a later one: a unit triangle. So the density of x is that of z whatever θ is,
and no volume is added. b and d may move with θ, and d with other latent values, other running sums among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.field.probing import NotSparse, find_pattern
from pymc_rmhmc.model.graph.graphs import replaced

__all__ = ["Walks", "is_running_sum", "with_walks"]

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]
type Map = Callable[[Array], Array]
# From a graph to its value as a function of latent values, at each of a few θ.
type Compile = Callable[[TensorVariable], list[Map]]


@dataclass(frozen=True, eq=False)
class Walks:
    """Expressions with running sums as latent values.

    Attributes
    ----------
    expressions : list of TensorVariable
        Of x, in the place of the model's values.
    values : TensorVariable
        The model's values (n,) as an expression of x.
    places : list of int array
        Of each sum, which of the values it took the place of.
    """

    expressions: list[TensorVariable]
    values: TensorVariable
    places: list[Indices]


def is_running_sum(node: Apply | None) -> bool:
    """Check whether an operation adds up."""
    return node is not None and isinstance(node.op, CumOp) and node.op.mode == "add"


def with_walks(
    expressions: Sequence[TensorVariable], latents: TensorVariable, blocks: list[slice], compiled: Compile
) -> Walks:
    """Put the walks that running sums make in the place of the values that they add up, as far as that can be done.

    Parameters
    ----------
    expressions : sequence of TensorVariable
        Affine in the latent values.
    latents : TensorVariable
        The vector of these.
    blocks : list of slice
        The part of each variable.
    compiled : callable
        Makes functions of latent values of an expression, one for each of a few θ.
    """
    sums = [n.outputs[0] for n in toposort(list(expressions)) if is_running_sum(n) and latents in ancestors(n.inputs)]
    # The sums, with what they add up, are rewritten as the sums before them are.
    graphs = [*expressions, latents, *sums, *(w.owner.inputs[0] for w in sums)]
    first, places = len(expressions) + 1, list[Indices]()
    for i, total in enumerate(sums):
        walk = _walk(graphs[first + len(sums) + i], total.owner.op.axis, latents, blocks, compiled)
        if walk is not None:
            expression, values, place = walk
            old = graphs[first + i]
            new = old.type.filter_variable(pt.specify_shape(expression.astype(old.dtype), old.type.shape))
            graphs = replaced(graphs, {old: new, latents: values})
            places.append(place)
    return Walks(graphs[: len(expressions)], graphs[len(expressions)], places)


def _walk(
    terms: TensorVariable, axis: int, latents: TensorVariable, blocks: list[slice], compiled: Compile
) -> tuple[TensorVariable, TensorVariable, Indices] | None:
    """Return a running sum by x, the values before by x, and which of them it took the place of; None if it cannot."""
    size = blocks[-1].stop
    own = _own_values(terms, axis, blocks, compiled)
    if own is None:
        return None
    is_own = (own >= 0).reshape(len(own), -1)
    # Before the first own value there may be a beginning, which is a constant or θ's.
    start = int(np.argmax(is_own.all(axis=1)))
    if is_own[:start].any() or not is_own[start:].all() or 2 * start > len(own):
        return None
    own = own[start:]
    chosen = np.zeros(size)
    chosen[own] = 1.0

    def at(values: TensorVariable) -> TensorVariable:
        return pt.moveaxis(replaced([terms], {latents: values})[0].astype("float64"), axis, 0)

    scale = (at(pt.constant(chosen)) - at(pt.zeros(size)))[start:]
    scales = np.array([function(np.zeros(size)) for function in compiled(scale)])
    if not (np.isfinite(scales).all() and (scales != 0.0).all()):
        return None
    rest = at(latents * (1.0 - chosen))
    values = latents[own.ravel()].reshape(own.shape)
    beginning, walk = pt.cumsum(rest[:start], axis=0), scale * values
    before = pt.concatenate([beginning[-1:] if start else pt.zeros_like(walk[:1]), walk[:-1]])
    steps = values - (before + rest[start:]) / scale
    order = np.arange(size)
    order[own.ravel()] = size + np.arange(own.size)
    total = pt.moveaxis(pt.concatenate([beginning, walk]) if start else walk, 0, axis)
    return total, pt.concatenate([latents, steps.ravel()])[order], own.ravel()


def _own_values(terms: TensorVariable, axis: int, blocks: list[slice], compiled: Compile) -> Indices | None:
    """Return for each term, with time first, a latent value that no other term reads; -1 where there is none.

    None if the terms read too many.
    """
    size, functions = blocks[-1].stop, compiled(terms)

    def flat(function: Map) -> Map:
        return lambda values: function(values).ravel()

    shape = functions[0](np.zeros(size)).shape
    try:
        row, column, dense = find_pattern([flat(function) for function in functions], blocks)
    except NotSparse:
        return None
    if dense.size:
        return None
    alone = (np.bincount(column, minlength=size) == 1)[column]
    own = np.full(math.prod(shape), size)
    np.minimum.at(own, row[alone], column[alone])
    return np.moveaxis(np.where(own < size, own, -1).reshape(shape), axis, 0)
