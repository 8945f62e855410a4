"""An observed variable's likelihood as a graph of the sites that it reads and of hyperparameters.

Sites of a likelihood that is not registered are anchored so that they follow what shifts it.

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

import math
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
from pytensor.gradient import disconnected_grad
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError
from pymc_rmhmc.model.graph.affine import ONE_BY_ONE, goes_one_by_one, is_affine_node
from pymc_rmhmc.model.graph.graphs import (
    NO_DERIVATIVE,
    Evaluator,
    NoValueThere,
    evaluated_there,
    operation_name,
    reaches,
    reaches_by_value,
    substitute,
    value_inputs,
)
from pymc_rmhmc.model.graph.linear_form import NotLinear, read_linear_form
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.likelihoods import LikelihoodTerms
from pymc_rmhmc.model.observed.observation import Observation
from pymc_rmhmc.model.observed.observations import predictor_of_data
from pymc_rmhmc.model.observed.unregistered_readers import log_density_at

__all__ = ["ObservedTerms", "Terms", "UnregisteredTerms", "gradient_by", "linear_reads", "shift_of", "summed"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Sites = NDArray[np.int64]
# The nodes that stand for latent values, with their shapes.
type Sources = dict[TensorVariable, tuple[int, ...]]
type Terms = ObservedTerms | UnregisteredTerms

# Where the curvature of each element is taken: about 0, as far as a value of a whitened process goes.
LOOKED_AT, STEP = (-2.0, -1.0, 0.0, 1.0, 2.0), 1e-3
# What is above 0 where all of its inputs are, and what always is.
KEEPS_SIGN, POSITIVE = {"Mul", "TrueDiv", "Add", "Sqrt", "Sqr", "Reciprocal", "Identity", "Cast"}, {"Exp", "Sigmoid"}


@dataclass(frozen=True, eq=False)
class Anchor:
    """What θ adds to latent values where their sites are anchored, an expression of θ (k,)."""

    sites: Sites  # (k,): one that comes more than once takes what comes first
    added: TensorVariable
    # The expressions of the model of which it is made, linear predictors aside.
    read: tuple[TensorVariable, ...] = ()
    # The coordinates of θ (d,) that it follows besides those which these expressions read.
    follows: NDArray[np.bool_] | None = None


class _Values(NamedTuple):
    """What a likelihood reads: the values of a latent vector, or of a linear predictor, in their shape.

    `base` has the site of each, raveled, and what θ has added to the value there.
    """

    node: TensorVariable
    shape: tuple[int, ...]
    base: Anchor


class ObservedTerms:
    """What one observed variable with a registered likelihood says of the sites, as graphs.

    `index` (n_obs,) has the site of each observation. They are anchored where the latent values are 0, with an offset
    that θ moves, as the logarithm of a rate that multiplies an exposure.
    """

    def __init__(
        self, model: pm.Model, observation: Observation, sources: Sources, theta: Hyperparameters, index: Sites
    ) -> None:
        likelihood, reading = observation.likelihood, observation.reading
        assert likelihood is not None
        assert reading is not None
        self._likelihood, self._theta, self.index = likelihood, theta, index
        # By value variables first: a constant of the data's shape makes the predictor as long as the data.
        long = pt.zeros_like(observation.value, dtype="float64")
        parameters = [_by_observation(reading.parameters[name], long) for name in likelihood.parameters]
        offset = pt.zeros(()) if reading.offset is None else reading.offset
        others = [offset, pt.as_tensor_variable(observation.value), *parameters]
        added, offset, y, *values = _added_to(model, observation, sources, theta, others)
        self.added = added.ravel()
        self._offset, self._y, self._values = pt.second(added, offset).ravel(), y, values
        # What is a parameter here as well does not count: parameters may move while sites are held.
        follows = theta.read_by([others[0]], model) & ~theta.read_by(parameters, model)
        self.anchor = Anchor(index, self._anchored(follows), follows=follows)

    def _anchored(self, follows: NDArray[np.bool_]) -> TensorVariable:
        """Return the predictor where the latent values are 0, with the offset as some coordinates of θ move it."""
        symbol = self._theta.symbol
        if not follows.any():
            return self.added
        (offset,) = clone_replace([self._offset], {symbol: pt.switch(follows, symbol, 0.0)})
        # An exposure of 0 has no logarithm, and no level.
        return self.added + pt.switch(pt.isinf(offset) | pt.isnan(offset), 0.0, offset)

    def terms(
        self, eta: TensorVariable, shift: TensorVariable
    ) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        """Return ``Σ ℓ``, its slope by site, and its gradient by θ at given sites.

        `shift` is the part of the sites that does not come from the latents.

        The slope by the linear predictor is the registered closed form; what else depends on θ is an offset, along
        which that slope is taken, and the parameters, along which PyTensor differentiates ℓ.
        """
        read = self._predictor(eta, shift)
        held = disconnected_grad(read)
        terms = self._terms(held)
        total, slope = terms.logp.sum(), disconnected_grad(terms.gradient)
        along = (slope * read).sum()
        return total, pytensor.grad(along, eta), gradient_by(total + along, self._theta.symbol)

    @property
    def has_moving_parameters(self) -> bool:
        """Whether θ moves a parameter of the likelihood that sites are to follow."""
        return self._theta.symbol in ancestors(self._values)

    def information(self, eta: TensorVariable, shift: TensorVariable) -> TensorVariable:
        """Return a weight that grows with parameters as the slope does: the Fisher information or its replacement."""
        terms = self._terms(self._predictor(eta, shift))
        weight = terms.slope_weight
        if weight is None:
            weight = terms.curvature["fisher" if "fisher" in terms.curvature else "hessian"].weight
        return pt.inc_subtensor(pt.zeros_like(eta)[self.index], weight)

    def _predictor(self, eta: TensorVariable, shift: TensorVariable) -> TensorVariable:
        return _read_sites(eta - shift, self.index, eta.type.shape[0]) + self.added + self._offset

    def _terms(self, predictor: TensorVariable) -> LikelihoodTerms:
        vectors = {
            name: pt.second(predictor, value)
            for name, value in zip(self._likelihood.parameters, self._values, strict=True)
        }
        return self._likelihood.terms(predictor, vectors, pt.cast(self._y.ravel(), "float64"))


class UnregisteredTerms:
    """One observed variable whose log density PyTensor differentiates.

    Sites are anchored where the likelihood is, as far as θ shifts it. They do not follow what
    else θ does to it, as by a scale: nobody has said its information.
    """

    has_moving_parameters = False

    def __init__(
        self, model: pm.Model, observation: Observation, values: _Values, theta: Hyperparameters, point: Point
    ) -> None:
        self._model, self._observation, self._values, self._theta = model, observation, values, theta
        self.anchor = _anchor_of(model, observation, values, theta, point)

    @classmethod
    def of_latents(
        cls, model: pm.Model, observation: Observation, source: TensorVariable, shape: tuple[int, ...],
        theta: Hyperparameters, point: Point,
    ) -> UnregisteredTerms:  # fmt: skip
        """Read every value of a latent vector, each of which is a site."""
        size = math.prod(shape)
        values = _Values(source, shape, Anchor(np.arange(size), pt.zeros(size)))
        return cls(model, observation, values, theta, point)

    @classmethod
    def of_predictor(
        cls, model: pm.Model, observation: Observation, sources: Sources, theta: Hyperparameters, index: Sites,
        point: Point,
    ) -> UnregisteredTerms:  # fmt: skip
        """Read every value of a linear predictor, with the site of each; they are anchored in it."""
        assert observation.node is not None
        (value,) = Evaluator(model, [observation.node])(point)
        added = _added_to(model, observation, sources, theta)[0].ravel()
        return cls(model, observation, _Values(observation.node, np.shape(value), Anchor(index, added)), theta, point)

    def terms(
        self, eta: TensorVariable, shift: TensorVariable
    ) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        """Return ``Σ ℓ``, its slope by site, and its gradient by θ at given sites."""
        node, shape, base = self._values
        values = (_read_sites(eta - shift, base.sites, eta.type.shape[0]) + base.added).reshape(shape)
        (density,) = self._theta.place([log_density_at(self._model, self._observation, {node: values})])
        total = density.sum()
        return total, pytensor.grad(total, eta), gradient_by(total, self._theta.symbol)

    def information(self, eta: TensorVariable, shift: TensorVariable) -> TensorVariable:
        """Return zeros (n,): no site follows the parameters."""
        return pt.zeros_like(eta)


def _added_to(
    model: pm.Model, observation: Observation, sources: Sources, theta: Hyperparameters,
    others: Sequence[TensorVariable] = (),
) -> list[TensorVariable]:  # fmt: skip
    """Return the predictor where the latent values are 0, and other expressions, as expressions of θ."""
    nothing = {node: pt.specify_shape(pt.zeros(shape), node.type.shape) for node, shape in sources.items()}
    expressions = [predictor_of_data(observation), *others]
    return theta.substitute(substitute(expressions, nothing, model), model)


def _by_observation(parameter: TensorVariable, like: TensorVariable) -> TensorVariable:
    """Return a parameter by observation, raveled as they are; one number for all stays one."""
    parameter = pt.as_tensor_variable(parameter)
    if all(parameter.type.broadcastable):
        return parameter.squeeze()
    return pt.second(like, parameter).ravel()


def _read_sites(sites: TensorVariable, index: Sites, n_sites: int | None) -> TensorVariable:
    """Read the sites of some observations, by a slice where they lie together."""
    start = int(index[0]) if index.size else 0
    if not np.array_equal(index, np.arange(start, start + index.size)):
        return sites[index]
    return sites if index.size == n_sites else sites[start : start + index.size]


def gradient_by(total: TensorVariable, theta: TensorVariable) -> TensorVariable:
    """Return the gradient of a scalar by θ, 0 where it does not depend on θ."""
    return pytensor.grad(total, theta, disconnected_inputs="ignore")


def summed(observed: Sequence[Terms], eta: TensorVariable, shift: TensorVariable) -> list[TensorVariable]:
    """Return ``Σ ℓ``, its slope by site and its gradient by θ, summed over several observed variables."""
    terms = [o.terms(eta, shift) for o in observed]
    return [sum(t[i] for t in terms) for i in range(3)]


def shift_of(observed: Sequence[Terms], theta: Hyperparameters, size: int) -> TensorVariable:
    """Return what θ adds to the latent values in the predictors that read them, (n,).

    Sites are anchored in the predictor: a level that is added there then moves the prior's mean under them, as one
    in the prior's mean function does. Where several observations of a site add different things, one of them counts.
    """
    moving = [each.anchor for each in observed if theta.symbol in ancestors([each.anchor.added])]
    if not moving:
        return pt.zeros(size)
    # Gathered, behind a 0 for sites that nothing is added to: PyTensor cannot compile a site by site assignment where
    # what is observed is 0 throughout.
    where, start = np.zeros(size, dtype=np.int64), 1
    for each in moving:
        which, first = np.unique(each.sites, return_index=True)
        where[which] = start + first
        start += each.sites.size
    added = pt.concatenate([pt.zeros(1), *(each.added for each in moving)])
    return _read_sites(added, where, None)


class _Reads(NamedTuple):
    """Expressions of which each element reads one value at most: which one (-1 for none), and α; of all, raveled."""

    which: Sites
    scale: Array


def _anchor_of(
    model: pm.Model, observation: Observation, values: _Values, theta: Hyperparameters, point: Point
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
    model: pm.Model, found: Sequence[LinearRead], values: _Values, theta: Hyperparameters
) -> list[TensorVariable]:
    """Return what each expression comes to where the values are 0, raveled, as expressions of θ."""
    nothing = pt.specify_shape(pt.zeros(values.shape), values.node.type.shape)
    parts = [expression for each in found for expression in each.expressions]
    given = iter(theta.substitute(substitute(parts, {values.node: nothing}, model), model))
    return [sum((next(given) for _ in each.logarithms), start=next(given)).ravel() for each in found]


def _reads(found: Sequence[TensorVariable], values: _Values, evaluate: Evaluator, point: Point) -> _Reads | None:
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


def _slope(model: pm.Model, observation: Observation, found: Sequence[TensorVariable]) -> Callable[..., Array] | None:
    """Compile the log density's derivative by each element, as a function of a point and of all expressions."""
    holders = {each: each.type() for each in found}
    inputs = list(holders.values())
    density = log_density_at(model, observation, dict(holders))
    try:
        slopes = pytensor.grad(density.sum(), inputs, disconnected_inputs="ignore")
    except NO_DERIVATIVE:
        return None
    slope = pt.concatenate([each.ravel() for each in slopes])
    others = value_inputs(model, [slope])
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
