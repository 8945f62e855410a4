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
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.transforms import LogOddsTransform, LogTransform
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError
from pymc_rmhmc.model.elsewhere import NoValueThere, evaluated_there
from pymc_rmhmc.model.graph.affine import ONE_BY_ONE, goes_one_by_one, is_affine_node
from pymc_rmhmc.model.graph.graphs import (
    NO_DERIVATIVE,
    Evaluator,
    operation_name,
    reaches,
    reaches_by_value,
    substitute,
)
from pymc_rmhmc.model.graph.linear_form import NotLinear, read_linear_form
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observed.observation import Observation
from pymc_rmhmc.model.observed.unregistered_readers import log_density_at

__all__ = ["Anchor", "Sites", "Values", "anchor_of", "linear_reads"]

type Array = NDArray[np.float64]
type Sites = NDArray[np.int64]
type Point = dict[str, np.ndarray]

# Where the curvature of each element is taken: about 0, as far as a value of a whitened process goes.
LOOKED_AT, STEP = (-2.0, -1.0, 0.0, 1.0, 2.0), 1e-3
# What is above 0 where all of its inputs are, and what always is.
KEEPS_SIGN, POSITIVE = {"Mul", "TrueDiv", "Add", "Sqrt", "Sqr", "Reciprocal", "Identity", "Cast"}, {"Exp", "Sigmoid"}


@dataclass(frozen=True, eq=False)
class Anchor:
    """What θ adds to latent values where their sites are anchored.

    Attributes
    ----------
    sites : (k,) int array
        To which sites; one that comes more than once takes what comes first.
    added : TensorVariable
        An expression of θ, (k,).
    read : tuple of TensorVariable
        The expressions of the model of which it is made, linear predictors aside.
    follows : (d,) bool array, optional
        The coordinates of θ that it follows besides those which these expressions read.
    """

    sites: Sites
    added: TensorVariable
    read: tuple[TensorVariable, ...] = ()
    follows: NDArray[np.bool_] | None = None


class Values(NamedTuple):
    """What a likelihood reads: the values of a latent vector, or of a linear predictor, in their shape.

    `base` has the site of each, raveled, and what θ has added to the value there.
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

    It is the one that the values have, where θ adds nothing further, or nothing that can be told. The point is where α
    and the weights are taken.
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


class LinearRead(NamedTuple):
    """An expression that is affine in some values, and what comes to the same as adding logarithms to it.

    In ``rate * exp(f)`` f is read with the logarithm of the rate.
    """

    node: TensorVariable
    logarithms: tuple[TensorVariable, ...] = ()

    @property
    def expressions(self) -> tuple[TensorVariable, ...]:
        """All that it is made of."""
        return self.node, *self.logarithms


def linear_reads(model: pm.Model, variable: TensorVariable, source: TensorVariable) -> list[LinearRead]:
    """Find the last affine expressions on the ways from a source to a random variable, whatever its distribution."""
    reader = _Reader(model, variable, source)
    linear: set[Variable] = {source}
    last: dict[Variable, None] = {}
    for node, moves in reader.between:
        read = [i for i, moving in zip(node.inputs, moves, strict=True) if moving]
        if variable not in node.outputs and linear.issuperset(read) and is_affine_node(node, moves):
            linear.update(node.outputs)
        else:
            last |= dict.fromkeys(i for i in read if i in linear)
    found: dict[Variable, LinearRead] = {}
    for expression in last:
        logarithms = reader.logarithms(expression)
        node = expression if logarithms else reader.last_added(expression)
        found.setdefault(node, LinearRead(node, logarithms))
    return list(found.values())


class _Reader:
    """The operations between a source and a variable, in order, and which inputs of each depend on the source."""

    def __init__(self, model: pm.Model, variable: TensorVariable, source: TensorVariable) -> None:
        self._model, self._source = model, source
        self._others = [v for v in model.basic_RVs if v is not variable and v is not source]
        self._known: dict[Variable, bool] = dict.fromkeys(self._others, False)
        nodes = toposort([variable], blockers=[source, *self._others])
        moving = [(node, self._moves(node)) for node in nodes]
        self.between = [(node, moves) for node, moves in moving if any(moves)]
        self._readers: dict[Variable, list[Apply]] = {}
        for node, moves in self.between:
            for read in {i for i, moving in zip(node.inputs, moves, strict=True) if moving}:
                self._readers.setdefault(read, []).append(node)

    def _moves(self, node: Apply) -> list[bool]:
        return [reaches_by_value(i, [self._source], self._known) for i in node.inputs]

    def last_added(self, expression: Variable) -> Variable:
        """Follow an expression back through what only moves or multiplies its values, or adds constants, one by one."""
        while expression is not self._source:
            node = expression.owner
            moves = self._moves(node)
            besides = [i for i, moving in zip(node.inputs, moves, strict=True) if not moving]
            one_by_one = isinstance(node.op, Elemwise) or (moves[0] and isinstance(node.op, ONE_BY_ONE))
            multiplies = operation_name(expression) in ("Mul", "TrueDiv")
            adds = not multiplies and any(reaches(i, self._others) for i in besides)
            if sum(moves) != 1 or not one_by_one or adds:
                break
            expression = node.inputs[moves.index(True)]
        return expression

    def logarithms(self, expression: TensorVariable) -> tuple[TensorVariable, ...]:
        """Find what shifts an expression of which only the exponential is read, times positive factors that move."""
        node = self._only_reader(expression)
        if node is None or operation_name(node.outputs[0]) != "Exp":
            return ()
        sign, found = 1, []
        while node is not None and isinstance(node.op, Elemwise):
            at = node.outputs[0]
            node = self._only_reader(at)
            name = "" if node is None else operation_name(node.outputs[0])
            if node is None or name not in ("Mul", "TrueDiv"):
                break
            above = [i for i in node.inputs if i is not at] if name == "Mul" else node.inputs[:1]
            if name == "TrueDiv" and node.inputs[0] is at:
                found += [-sign * pt.log(f) for f in self._factors(node.inputs[1], expression)]
                continue
            sign = sign if name == "Mul" else -sign
            found += [sign * pt.log(f) for each in above for f in self._factors(each, expression)]
        return tuple(found)

    def _only_reader(self, expression: Variable) -> Apply | None:
        readers = self._readers.get(expression, [])
        return readers[0] if len(readers) == 1 and readers[0].inputs.count(expression) == 1 else None

    def _factors(self, product: TensorVariable, like: TensorVariable) -> list[TensorVariable]:
        """Return the factors of a product that move, are positive, and have one value or as many as an expression."""
        if operation_name(product) == "Mul":
            return [f for each in product.owner.inputs for f in self._factors(each, like)]
        fits = all(product.type.broadcastable) or product.type.broadcastable == like.type.broadcastable
        moves = reaches(product, self._others) and not reaches(product, [self._source])
        return [product] if fits and moves and self._is_positive(product) else []

    def _is_positive(self, variable: Variable) -> bool:
        """Return whether an expression is above 0 wherever the model has a density."""
        if variable in self._model.free_RVs:
            return isinstance(self._model.rvs_to_transforms.get(variable), LogTransform | LogOddsTransform)
        if isinstance(variable, Constant):
            return bool((variable.data > 0).all())
        name = operation_name(variable)
        if name in POSITIVE:
            return True
        if name in KEEPS_SIGN:
            return all(self._is_positive(i) for i in variable.owner.inputs)
        moved = variable.owner is not None and isinstance(variable.owner.op, ONE_BY_ONE)
        return moved and self._is_positive(variable.owner.inputs[0])
