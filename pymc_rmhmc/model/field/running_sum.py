"""Running sums as latent values: of ``w_t = a w_{t-1} + b_t z_t + d_t`` a field takes ``x = w / b`` in place of z.

By z a running sum's matrix is a triangle, and by x it is diagonal. The model's own values are

    z_t = x_t - (a b_{t-1} x_{t-1} + d_t) / b_t,

which moves as x_t does and does not see a later one: a unit triangle. So the density of x is that of z whatever θ is,
and no volume is added. a, b and d may move with θ, and d with other latent values, other running sums among them. In
`cumsum` a is 1. A `scan` of one state may have any, and may read several values before. Where every time mixes several
values alike, as in ``cumsum(L z)``, x are the sums of each, and z_t their differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Apply
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors, toposort
from pytensor.scan.op import Scan
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.field.maps import Map, NotSparse, find_pattern
from pymc_rmhmc.model.graph.graphs import replaced

__all__ = ["Walks", "running_sum", "with_walks"]

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]
# From a graph to its value as a function of latent values, at each of a few θ.
type Compile = Callable[[TensorVariable], list[Map]]


@dataclass(frozen=True, eq=False)
class Walks:
    """Expressions with running sums as latent values."""

    expressions: list[TensorVariable]  # of x, in the place of the model's values
    values: TensorVariable  # the model's values (n,) as an expression of x
    places: list[Indices]  # of each sum, which of the values it took the place of


class Recursion(NamedTuple):
    """A running sum."""

    total: TensorVariable  # all its values, with time along an axis
    axis: int  # that axis
    lags: int  # how many values before one are read
    inputs: list[TensorVariable]  # what it is made of
    # Gives its values, with time first, each from those before it and from the inputs.
    advance: Callable[[TensorVariable, list[TensorVariable]], TensorVariable]


def running_sum(node: Apply | None) -> Recursion | None:
    """Return a cumulative sum, or a scan of one state, as a recursion."""
    if node is None:
        return None
    op, inputs = node.op, list(node.inputs)
    if isinstance(op, CumOp) and op.mode == "add":
        return Recursion(node.outputs[0], op.axis, 1, inputs, lambda walk, given: _added(walk, given[0], op.axis))
    states = (*op.info.mit_sot_in_slices, *op.info.sit_sot_in_slices) if isinstance(op, Scan) else ()
    if len(states) != 1 or len(op.inner_outputs) != 1:
        return None
    inner, which, (taps,) = op.fgraph.unfreeze(), op.info.n_seqs, states
    lags = -min(taps)

    def advance(walk: TensorVariable, given: list[TensorVariable]) -> TensorVariable:
        _, *made_of = given
        first = made_of[which][:lags]
        made_of[which : which + 1] = [walk[lags + tap : tap] for tap in taps]
        (later,) = vectorize_graph(inner.outputs, dict(zip(inner.inputs, made_of, strict=True)))
        return pt.concatenate([first, later])

    return Recursion(node.outputs[0], 0, lags, inputs, advance)


def _added(walk: TensorVariable, terms: TensorVariable, axis: int) -> TensorVariable:
    """Return each value of a walk, with time first, from the one before and a term."""
    return pt.concatenate([pt.zeros_like(walk[:1]), walk[:-1]]) + pt.moveaxis(terms, axis, 0)


def with_walks(
    expressions: Sequence[TensorVariable], latents: TensorVariable, blocks: list[slice], n_kernels: int,
    compiled: Compile,
) -> Walks:  # fmt: skip
    """Put the walks that running sums make in the place of the values that they add up, as far as that can be done.

    `expressions`: affine in the latent values.
    `latents`: the vector of these.
    `blocks`: the part of each variable.
    `n_kernels`: how many of the last ones have a dense covariance: a sum that reads one of these is left as it is.
    `compiled`: makes functions of latent values of an expression, one for each of a few θ.
    """
    found = [running_sum(n) for n in toposort(list(expressions)) if latents in ancestors(n.inputs)]
    sums = [each for each in found if each is not None]
    # The sums, with what they are made of, are rewritten as the sums before them are.
    graphs, places = [*expressions, latents, *(e for each in sums for e in (each.total, *each.inputs))], list[Indices]()
    first = len(expressions) + 1
    for each in sums:
        old, *inputs = graphs[first : first + 1 + len(each.inputs)]
        first += 1 + len(inputs)
        walk = _walk(each._replace(total=old, inputs=inputs), latents, blocks, n_kernels, compiled)
        if walk is not None:
            expression, values, place = walk
            new = old.type.filter_variable(pt.specify_shape(expression.astype(old.dtype), old.type.shape))
            graphs = replaced(graphs, {old: new, latents: values})
            places.append(place)
    return Walks(graphs[: len(expressions)], graphs[len(expressions)], places)


def _walk(
    sums: Recursion, latents: TensorVariable, blocks: list[slice], n_kernels: int, compiled: Compile
) -> tuple[TensorVariable, TensorVariable, Indices] | None:
    """Return a running sum by x, the values before by x, and which of them it took the place of; None if it cannot."""
    nowhere = np.zeros(blocks[-1].stop)
    shape = compiled(pt.moveaxis(sums.total, sums.axis, 0))[0](nowhere).shape
    zero = pt.zeros(shape)

    def advance(walk: TensorVariable, values: TensorVariable) -> TensorVariable:
        return sums.advance(walk, replaced(sums.inputs, {latents: values})).astype("float64")

    try:
        row, column, dense = find_pattern([_flat(each) for each in compiled(advance(zero, latents))], blocks)
    except NotSparse:
        return None
    if dense.size or (n_kernels and column.max(initial=-1) >= blocks[-n_kernels].start):
        return None
    of_one = _own_values(row, column, shape, nowhere.size)
    own = of_one if of_one is not None else _own_of_a_time(row, column, shape, blocks)
    if own is None or len(own) + sums.lags < shape[0]:
        return None
    chosen, start = nowhere.copy(), shape[0] - len(own)
    chosen[own] = 1.0
    rest, values = latents * (1.0 - chosen), latents[own.ravel()].reshape(own.shape)
    if of_one is not None:
        scale = (advance(zero, pt.constant(chosen)) - advance(zero, pt.zeros_like(latents)))[start:]
        scales = np.array([function(nowhere) for function in compiled(scale)])
        if not (np.isfinite(scales).all() and (scales != 0.0).all()):
            return None
        walk = scale * values
        if start:
            walk = pt.concatenate([advance(zero, rest)[:start], walk])
        steps = values - advance(walk, rest)[start:] / scale
    else:  # if all times mix their values alike, sums of mixed steps are mixed sums
        steps = pt.concatenate([values[:1], values[1:] - values[:-1]])
        walk = advance(zero, latents * chosen) - advance(zero, pt.zeros_like(latents))
        walk += pt.moveaxis(replaced([sums.total], {latents: rest})[0], sums.axis, 0)
    order = np.arange(nowhere.size)
    order[own.ravel()] = nowhere.size + np.arange(own.size)
    before, total = pt.concatenate([latents, steps.ravel()])[order], pt.moveaxis(walk, 0, sums.axis)
    if of_one is None and not _agree(compiled, total, replaced([sums.total], {latents: before})[0], nowhere.size):
        return None
    return total, before, own.ravel()


def _flat(function: Map) -> Map:
    """Return a function's values as a vector."""
    return lambda values: function(values).ravel()


def _own_values(row: Indices, column: Indices, shape: tuple[int, ...], size: int) -> Indices | None:
    """Return for each term, but for a beginning, a latent value that no other term reads; None if one lacks it."""
    alone = (np.bincount(column, minlength=size) == 1)[column]
    own = np.full(math.prod(shape), size)
    np.minimum.at(own, row[alone], column[alone])
    own = own.reshape(shape)
    missing = (own == size).reshape(len(own), -1)
    start = int(missing.all(axis=1).argmin())
    return None if missing[start:].any() else own[start:]


def _own_of_a_time(row: Indices, column: Indices, shape: tuple[int, ...], blocks: Sequence[slice]) -> Indices | None:
    """Return as many values of one variable for each time, but for a beginning, that no other time reads."""
    size, time = blocks[-1].stop, row // math.prod(shape[1:])
    first, last = np.full(size, shape[0]), np.full(size, -1)
    np.minimum.at(first, column, time)
    np.maximum.at(last, column, time)
    for block in sorted(blocks, key=lambda each: each.start - each.stop):
        own = np.arange(block.start, block.stop)[(first == last)[block]]
        counts = np.trim_zeros(np.bincount(first[own], minlength=shape[0]), "f")
        if counts.size > 1 and (counts == counts[0]).all():
            return own[np.argsort(first[own], kind="stable")].reshape(counts.size, -1)
    return None


def _agree(compiled: Compile, one: TensorVariable, other: TensorVariable, size: int) -> bool:
    """Check whether two expressions have the same value at a place."""
    values = np.random.default_rng(0).standard_normal(size)
    pairs = zip(compiled(one), compiled(other), strict=True)
    return all(np.allclose(a(values), b(values), rtol=1e-8, atol=1e-8) for a, b in pairs)
