"""Where the sites of a likelihood that is not registered are anchored, so that they follow what shifts it.

A site is a Gaussian in ``x + s(θ)``, for a value x that the likelihood reads. Any s is exact. A good one leaves nothing
of the likelihood's slope for θ to move: where a level is added to x, s is the level, and sites move with it.

The likelihood reads x through expressions ``D = α x + δ(θ)``, the last on the way that are linear: ``f + level``, or
``cutpoints - f``, which has an element for each cutpoint; or those with a logarithm, as ``rate * exp(f)`` has. With
constant weights ω that sum to 1 at each site,

    s(θ) = Σ ω δ(θ) / α

follows exactly whatever shifts all elements of a site alike. Of what shifts them by different amounts it follows the
part that moves the slope, to first order, if the weights are each element's share of the curvature: hold the slope
``g(x, δ)`` and ``x + s``, then ``ds = Σ (∂g/∂D) dδ / (∂g/∂x)``, and ``∂g/∂x = Σ α ∂g/∂D``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError
from pymc_rmhmc.model.graph.affine import goes_one_by_one
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, Evaluator, NoValueThere, evaluated_there, substitute
from pymc_rmhmc.model.graph.linear_form import NotLinear, read_linear_form
from pymc_rmhmc.model.graph.linear_reads import LinearRead, linear_reads
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observed.observation import Observation
from pymc_rmhmc.model.observed.observed_terms import Anchor, Sites
from pymc_rmhmc.model.observed.unregistered_readers import log_density_at

__all__ = ["Values", "anchor_of"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

# Where the curvature of each element is taken: about 0, as far as a value of a whitened process goes.
LOOKED_AT, STEP = (-2.0, -1.0, 0.0, 1.0, 2.0), 1e-3


class Values(NamedTuple):
    """What a likelihood reads.

    Attributes
    ----------
    node : TensorVariable
        A latent vector, or a linear predictor.
    shape : tuple of int
        Its shape.
    base : Anchor
        The site of each of its values, raveled, and what θ has added to the value there.
    """

    node: TensorVariable
    shape: tuple[int, ...]
    base: Anchor


class _Reads(NamedTuple):
    """Expressions of which each element reads one value at most: which one (-1 for none), and α; of all, raveled."""

    which: Sites
    scale: Array


def anchor_of(
    model: pm.Model, observation: Observation, values: Values, theta: Hyperparameters, point: Point
) -> Anchor:
    """Find the anchor of one observed variable's sites, moved by what its likelihood adds to the values that it reads.

    Parameters
    ----------
    model : pymc.Model
        The model.
    observation : Observation
        As it was read; its likelihood is not registered.
    values : Values
        What it reads.
    theta : Hyperparameters
        What is sampled together with the latents.
    point : dict
        Where α and the weights are taken.

    Returns
    -------
    Anchor
        The one that the values have, where θ adds nothing further, or nothing that can be told.
    """
    found = linear_reads(model, observation.variable, values.node)
    added = _added(model, found, values, theta)
    if not any(theta.symbol in ancestors([each]) for each in added):
        return values.base
    nodes = [each.node for each in found]
    evaluate = Evaluator(model, nodes, {values.node: values.node.type()})
    reads = _reads(nodes, values, evaluate, point)
    if reads is None:
        return values.base
    elements = np.flatnonzero(reads.which >= 0)
    read = reads.which[elements]
    sites, where = np.unique(values.base.sites[read], return_inverse=True)
    weights = np.ones(where.size)
    if where.size > sites.size:
        curvatures = _curvatures(model, observation, nodes, reads.scale, values.shape, evaluate, point)
        weights = _shares(curvatures[elements], where)
    moved = pt.concatenate(added)[elements] / reads.scale[elements] + values.base.added[read]
    made = tuple(expression for each in found for expression in each.expressions)
    return Anchor(sites, pt.inc_subtensor(pt.zeros(sites.size)[where], weights * moved), made)


def _added(
    model: pm.Model, found: Sequence[LinearRead], values: Values, theta: Hyperparameters
) -> list[TensorVariable]:
    """Return what each expression comes to where the values are 0, raveled, as expressions of θ."""
    nothing = pt.specify_shape(pt.zeros(values.shape), values.node.type.shape)
    parts = [expression for each in found for expression in each.expressions]
    given = iter(theta.substitute(substitute(parts, {values.node: nothing}, model), model))
    return [sum((next(given) for _ in each.logarithms), start=next(given)).ravel() for each in found]


def _reads(found: Sequence[TensorVariable], values: Values, evaluate: Evaluator, point: Point) -> _Reads | None:
    """Return how expressions read values; None if an element reads several, or if it cannot be told."""
    if not all(goes_one_by_one(each, values.node) for each in found):
        return None
    index, scale = [], []
    for i in range(len(found)):

        def expression(given: Sequence[Array], i: int = i) -> Array:
            return evaluate(point, *given)[i]

        try:
            (read,) = read_linear_form(expression, [values.shape], matrices=False).maps
        except (NotLinear, DataError, IndexError):
            return None
        if read.index is None or read.scale is None:
            return None
        index.append(read.index)
        scale.append(read.scale)
    return _Reads(np.concatenate(index), np.concatenate(scale))


def _curvatures(
    model: pm.Model, observation: Observation, found: Sequence[TensorVariable], scale: Array,
    shape: tuple[int, ...], evaluate: Evaluator, point: Point,
) -> Array:  # fmt: skip
    """Return ``-α ∂g/∂D`` by element where it is above 0, summed over several values; 0 where it cannot be told.

    It is what α times the slope by D gains along x, taken as a difference: second derivatives make long graphs.
    """
    slope = _slope(model, observation, found)
    total = np.zeros(scale.size)
    if slope is None:
        return total
    for x in LOOKED_AT:
        try:
            below, above = (
                evaluated_there(lambda at: slope(point, *evaluate(point, np.full(shape, at))), x + step)
                for step in (-STEP, STEP)
            )
        except NoValueThere:  # there is no density here
            continue
        with np.errstate(invalid="ignore"):
            bend = scale * (below - above)
        total += np.where(np.isfinite(bend), np.maximum(bend, 0.0), 0.0)
    return total


def _slope(
    model: pm.Model, observation: Observation, found: Sequence[TensorVariable]
) -> Callable[..., Array] | None:
    """Compile the log density's derivative by each element, as a function of a point and of all expressions."""
    holders = {each: each.type() for each in found}
    inputs = list(holders.values())
    density = log_density_at(model, observation, dict(holders))
    try:
        slopes = pytensor.grad(density.sum(), inputs, disconnected_inputs="ignore")
    except NO_DERIVATIVE:
        return None
    slope = pt.concatenate([each.ravel() for each in slopes])
    held = set(ancestors([slope]))
    others = [value for value in model.value_vars if value in held]
    # It is evaluated a few times: rewriting would take longer.
    function = pytensor.function(
        [*inputs, *others], slope, mode=Mode(linker="py", optimizer=None), on_unused_input="ignore",
        allow_input_downcast=True,
    )  # fmt: skip

    def evaluated(point: Point, *values: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(*values, *(point[str(value.name)] for value in others)))

    return evaluated


def _shares(curvatures: Array, where: Sites) -> Array:
    """Return weights that sum to 1 at each site, in proportion to the curvatures; equal ones at a site without any."""
    known = np.bincount(where, curvatures) > 0.0
    parts = np.where(known[where], curvatures, 1.0)
    return np.asarray(parts / np.bincount(where, parts)[where])
