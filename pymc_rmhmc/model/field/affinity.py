"""Which of a model's values are Gaussian and enter only through affine expressions, found by evaluating it.

Residuals and the inputs of likelihoods are evaluated at a few points. An expression is affine in some values if its
second differences along two random directions of them are 0. No pattern of a graph is matched.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.basic import Constant, Variable, equal_computations
from pytensor.graph.traversal import ancestors, graph_inputs, toposort
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.basic import MvNormalRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.field.contrasts import contrasts_of
from pymc_rmhmc.model.field.residuals import Residuals, has_residuals, residuals_of, residuals_of_squares
from pymc_rmhmc.model.field.running_sum import running_sum
from pymc_rmhmc.model.forms.priors import LatentVariable, read_latent
from pymc_rmhmc.model.graph.graphs import (
    Evaluator,
    NoValueThere,
    by_python,
    core_op,
    evaluated_there,
    inlined,
    is_flat,
    reaches,
    replaced,
    value_inputs,
)
from pymc_rmhmc.model.graph.stable import stable
from pymc_rmhmc.model.likelihoods import Likelihood, read_likelihood

__all__ = ["TOO_MANY", "FieldChoice", "FieldGraphs", "FieldObservation", "choose_field"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

# Of a second difference, over the size of what it is the difference of: what rounding leaves.
ROUNDING = 1e-9
# How far values are moved, in unconstrained units.
MOVED, SPREAD, FAR = 0.5, 0.3, 3.0
# Of a vector with a dense covariance: a shorter one is read as any other.
FEWEST_DENSE = 11
# As many predictors of one observed variable are looked at; what is said of more.
MOST_PREDICTORS = 8
TOO_MANY = f"predictors (a Gaussian field takes up to {MOST_PREDICTORS})"


@dataclass(frozen=True, eq=False)
class FieldObservation:
    """What is observed of a field's predictors."""

    variable: TensorVariable
    log_density: TensorVariable  # the sum of its log density, an expression of value variables
    # The nodes of that expression, or of the registered likelihood's, that are affine in the latent values.
    predictors: tuple[TensorVariable, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()  # of these
    likelihood: Likelihood | None = None  # the registered one, of which there is one predictor
    # `parameters`, `data`: what the registered one takes besides.
    parameters: Mapping[str, TensorVariable] = field(default_factory=dict)
    offset: TensorVariable | None = None
    data: TensorVariable | None = None

    def apart_from_predictors(self) -> TensorVariable:
        """Return the log density as a function of predictors, which reads no latent value."""
        return replaced([self.log_density], {each: each.type() for each in self.predictors})[0]


class Kernel(NamedTuple):
    """A vector with a dense covariance, as expressions of value variables."""

    source: TensorVariable  # the vector, which predictors read
    matrix: TensorVariable  # its covariance, or the lower factor of that
    is_factor: bool  # which of them
    mean: TensorVariable | None  # None where that is 0; the field has the vector's deviations from it


def _kernels(model: pm.Model, free: Sequence[TensorVariable], point: Point) -> dict[TensorVariable, LatentVariable]:
    """Find the vectors with a dense covariance, as Gaussian processes have them, but for those about a whitened one.

    Rows of one variable are such vectors too.

    Of few values residuals have few enough entries.
    """
    whitened = [v for v in free if str(v.name).endswith("_rotated_")]
    found = dict[TensorVariable, LatentVariable]()
    for variable in free:
        is_written_so = isinstance(core_op(variable), MvNormalRV) or str(variable.name).endswith("_rotated_")
        shape = np.shape(point[str(model.rvs_to_values[variable].name)])
        if not is_written_so or len(shape) not in (1, 2) or shape[-1] < FEWEST_DENSE:
            continue
        latent = read_latent(model, variable)
        if isinstance(latent, str) or latent.root not in ("covariance", "cholesky") or latent.matrix.ndim > 2:
            continue
        if latent.mean is None or not reaches(latent.mean, whitened, model.basic_RVs):
            found[variable] = latent
    return found


def _moves_from_zero(model: pm.Model, mean: TensorVariable, point: Point) -> bool:
    """Check whether a mean is other than 0 at a point, or at one near it."""
    evaluate, rng = Evaluator(model, [mean]), np.random.default_rng(0)
    moved = {name: value + SPREAD * rng.standard_normal(np.shape(value)) for name, value in point.items()}
    return bool(np.any(evaluate(point)[0]) or np.any(evaluate(moved)[0]))


class FieldGraphs:
    """A model as expressions of its value variables: residuals, densities, and where predictors are looked for.

    `model`: the model.
    `point`: where the shapes of values are taken, and values that a field has no part in.
    """

    def __init__(self, model: pm.Model, point: Point) -> None:
        self.model, self.point = model, point
        self.free = [v for v in model.free_RVs if v.dtype.startswith("float")]
        self.observed = [*model.observed_RVs, *model.potentials]
        self.values = {v: model.rvs_to_values[v] for v in self.free}
        gaussian = [v for v in (*self.free, *model.observed_RVs) if has_residuals(v)]
        stated = [residuals_of(v, v) for v in gaussian]
        registered = {v: read_likelihood(v) for v in model.observed_RVs}
        expressions: dict[object, TensorVariable | None] = {}
        for variable, each in zip(gaussian, stated, strict=True):
            expressions["e", variable], expressions["n", variable] = each
        for each in self.observed:
            expressions["l", each] = stable(_log_density(model, each))
            for i, parameter in enumerate(_parameters(model, each)):
                expressions["p", each, i] = parameter
        for variable, found in registered.items():
            if found is not None:
                reading = found[1]
                eta, offset = reading.eta, reading.offset
                if offset is not None and set(ancestors([offset])).intersection(self.free):
                    # Sites follow what θ adds to a predictor.
                    eta, offset = eta + offset, None
                expressions["eta", variable], expressions["o", variable] = eta, offset
                for name, value in reading.parameters.items():
                    expressions["r", variable, name] = value
        kernels = _kernels(model, self.free, point)
        for variable, latent in kernels.items():
            expressions["f", variable], expressions["K", variable] = latent.source, latent.matrix
            if latent.mean is not None and _moves_from_zero(model, latent.mean, point):
                expressions["m", variable] = latent.mean
        known = {key: e for key, e in expressions.items() if e is not None}
        # All at once, so that what is shared stays shared.
        graphs = inlined(model.replace_rvs_by_values(list(known.values())), ())
        self._found = dict(zip(known, graphs, strict=True))
        self.residuals = {v: Residuals(self._found["e", v], self._found.get(("n", v))) for v in gaussian}
        self.kernels = {
            v: Kernel(self._found["f", v], self._found["K", v], latent.root == "cholesky", self._found.get(("m", v)))
            for v, latent in kernels.items()
        }
        self._registered = {v: found[0] for v, found in registered.items() if found is not None}
        self.densities = dict(zip(self.free, model.logp(vars=self.free, sum=False), strict=True))

    def observation(self, variable: TensorVariable) -> FieldObservation:
        """Return an observed variable or potential without its predictors."""
        density = self._found["l", variable].sum()
        likelihood = self._registered.get(variable)
        if likelihood is None:
            return FieldObservation(variable, density)
        parameters = {name: self._found["r", variable, name] for name in likelihood.parameters}
        data = self.model.rvs_to_values[variable]
        return FieldObservation(
            variable, density, (self._found["eta", variable],), (), likelihood, parameters,
            self._found.get(("o", variable)), data,
        )  # fmt: skip

    def inputs_of(self, variable: TensorVariable) -> list[TensorVariable]:
        """Return where the search for predictors begins: the distribution's parameters, or its log density."""
        parameters = [e for key, e in self._found.items() if isinstance(key, tuple) and key[:2] == ("p", variable)]
        return parameters or [self._found["l", variable]]

    @cached_property
    def bits(self) -> dict[Variable, int]:
        """Which free variables each node depends on, as a bit for each."""
        known: dict[Variable, int] = {value: 1 << i for i, value in enumerate(self.values.values())}
        for node in toposort([*self._found.values(), *self.densities.values()]):
            found = 0
            for each in node.inputs:
                found |= known.get(each, 0)
            for each in node.outputs:
                known[each] = found
        return known

    def reads(self, expression: TensorVariable) -> int:
        """Return the bits of an expression that was made of the nodes."""
        known = self.bits.get(expression)
        return self.bits.get(expression.owner.inputs[0], 0) if known is None and expression.owner else known or 0

    def bits_of(self, variables: Iterable[TensorVariable]) -> int:
        """Return the bits of free variables."""
        return sum(self.bits[self.values[v]] for v in variables)

    @cached_property
    def probe(self) -> Probe:
        """What evaluates every node that depends on a Gaussian variable."""
        gaussian = self.bits_of([v for v in self.free if v in self.residuals])
        searched = [key for key in self._found if isinstance(key, tuple) and key[0] not in ("n", "K")]
        nodes = dict.fromkeys(n for key in searched for n in ancestors([self._found[key]]))
        moving = [n for n in nodes if self.bits.get(n, 0) & gaussian and getattr(n, "dtype", "")[:5] == "float"]
        return Probe(self, moving)


def _log_density(model: pm.Model, variable: TensorVariable) -> TensorVariable:
    """Return the log density of an observed variable as an expression of random variables, or a potential itself."""
    if variable in model.potentials:
        return variable
    if isinstance(core_op(variable), RandomVariable):
        # A bound that is a constant infinity leaves its term out, whose derivative would be nan.
        node, known = variable.owner, _constants(variable)
        made = node.clone_with_new_inputs([known.get(each, each) for each in node.inputs]) if known else node
        return pm.logp(made.outputs[node.outputs.index(variable)], model.rvs_to_values[variable])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            return pm.logp(variable, model.rvs_to_values[variable])
    except (UserWarning, NotImplementedError):
        # PyMC warns of copies of variables, as in a censored distribution: they are draws, and no values.
        (density,) = model.logp(vars=[variable], sum=False)
        return density


def _constants(variable: TensorVariable) -> dict[Variable, Constant]:
    """Return parameters of a distribution that are made of constants alone, as constants."""
    node = variable.owner
    made = [p for p in node.op.dist_params(node) if p.owner and all(isinstance(i, Constant) for i in graph_inputs([p]))]
    return {p: p.type.make_constant(v) for p, v in zip(made, by_python([], made)(), strict=True)} if made else {}


def _parameters(model: pm.Model, variable: TensorVariable) -> list[TensorVariable]:
    """List a distribution's parameters, where they are numbers or variables; none of one that is made of others."""
    node, named = variable.owner, set(model.basic_RVs)
    if node is None or not isinstance(node.op, RandomVariable):
        return []
    params = node.op.dist_params(node)
    return [p for p in params if p in named or p.owner is None or not isinstance(p.owner.op, RandomVariable)]


class Probe:
    """Nodes of a model at points near one."""

    def __init__(self, graphs: FieldGraphs, nodes: Sequence[TensorVariable]) -> None:
        self._graphs, self.nodes = graphs, nodes
        values = list(graphs.values.values())
        self._others = [v for v in value_inputs(graphs.model, nodes) if v not in values]
        # Where a value is moved a scale may be negative, which says nothing of what is affine.
        self._function = by_python([*values, *self._others], list(nodes), with_checks=False)
        rng = np.random.default_rng(0)
        shapes = [np.shape(graphs.point[str(v.name)]) for v in values]
        self.base = [
            np.asarray(graphs.point[str(v.name)], float) + SPREAD * rng.standard_normal(shape)
            for v, shape in zip(values, shapes, strict=True)
        ]
        self._rng = rng

    @cached_property
    def shapes(self) -> dict[Variable, tuple[int, ...]]:
        """The shape of every node."""
        return dict(zip(self.nodes, map(np.shape, self.at(self.base)), strict=True))

    def at(self, values: Sequence[Array]) -> list[Array]:
        """Evaluate all nodes where the free variables have these values."""
        point = self._graphs.point
        with np.errstate(all="ignore"):
            found = self._function(*values, *(point[str(v.name)] for v in self._others))
        return [np.asarray(each) for each in found]

    @property
    def points(self) -> list[dict[Variable, Array]]:
        """Value variables near the point, and far away on both sides."""
        others = {v: self._graphs.point[str(v.name)] for v in self._others}
        rng = np.random.default_rng(1)
        near = [MOVED * rng.standard_normal(b.shape) for b in self.base]
        far = [FAR * rng.choice([-1.0, 1.0], b.shape) for b in self.base]
        made = []
        for sign, moves in ((0.0, near), (1.0, near), (1.0, far), (-1.0, far)):
            moved = [b + sign * by for b, by in zip(self.base, moves, strict=True)]
            made.append(dict(zip(self._graphs.values.values(), moved, strict=True)) | others)
        return made

    def affine_in(self, variables: Sequence[TensorVariable]) -> Affine:
        """Say which nodes are affine in some free variables together, and which do not move with them."""
        chosen = set(variables)
        directions = [
            [
                MOVED * self._rng.standard_normal(b.shape) * (v in chosen)
                for v, b in zip(self._graphs.free, self.base, strict=True)
            ]
            for _ in range(2)
        ]

        def moved(first: float, second: float) -> list[Array]:
            return self.at([b + first * d + second * e for b, d, e in zip(self.base, *directions, strict=True)])

        here, one, other, both, twice = moved(0, 0), moved(1, 0), moved(0, 1), moved(1, 1), moved(2, 0)
        still, affine = set[Variable](), set[Variable]()
        for node, a, b, c, d, e in zip(self.nodes, here, one, other, both, twice, strict=True):
            if np.array_equal(a, d) and np.array_equal(a, b):
                still.add(node)
            size = ROUNDING * (1.0 + np.abs(a) + np.abs(d) + np.abs(e))
            with np.errstate(all="ignore"):
                bend = np.maximum(np.abs(d - b - c + a), np.abs(e - 2.0 * b + a))
            if np.all(bend <= size):
                affine.add(node)
        return Affine(still, affine)


@dataclass(frozen=True)
class Affine:
    """Nodes that do not move with some variables, and those that are affine in them."""

    still: set[Variable]
    affine: set[Variable]


@dataclass(frozen=True, eq=False)
class FieldChoice:
    """What a field is made of."""

    latents: list[TensorVariable]  # the free variables whose values are x
    rows: dict[TensorVariable, Residuals]  # the variables, free or observed, and the potentials whose residuals e are
    observations: list[FieldObservation]  # what reads predictors η
    refused: dict[TensorVariable, str]  # Gaussian variables that are left out, and why
    kernels: list[TensorVariable]  # the last of the latents, which have a dense covariance


def choose_field(graphs: FieldGraphs, wanted: Sequence[TensorVariable] | None = None) -> FieldChoice | str:
    """Find the Gaussian variables that enter affinely together, all if they do and else one by one, the longest first.

    If there is none, say why. Those that are wanted are looked at alone.
    """
    allowed = graphs.free if wanted is None else wanted
    candidates = [v for v in graphs.free if v in graphs.residuals and v in allowed and _is_linear(graphs, v)]
    sizes = {v: np.size(graphs.point[str(graphs.values[v].name)]) for v in candidates}
    candidates.sort(key=lambda v: -sizes[v])
    if not candidates:
        return "no free variable is Gaussian"
    chosen, refused = _Search(graphs), dict[TensorVariable, str]()
    found = chosen.fit(candidates)
    if isinstance(found, FieldChoice):
        return found
    latents: list[TensorVariable] = []
    best: FieldChoice | None = None
    for variable in candidates:
        found = chosen.fit([*latents, variable])
        if isinstance(found, FieldChoice):
            latents, best = [*latents, variable], found
        else:
            refused[variable] = found
    if best is None:
        return f"{candidates[0].name} is no part of one: {refused[candidates[0]]}"
    return replace(best, refused=refused)


def _is_linear(graphs: FieldGraphs, variable: TensorVariable) -> bool:
    """Check whether a variable is an affine function of its values: untransformed, or constrained to a sum of 0."""
    transform = graphs.model.rvs_to_transforms.get(variable)
    return transform is None or type(transform).__name__ == "ZeroSumTransform"


class _Search:
    """Looks at one choice of latent variables after another."""

    def __init__(self, graphs: FieldGraphs) -> None:
        self._graphs = graphs

    def fit(self, latents: Sequence[TensorVariable]) -> FieldChoice | str:
        """Return the field that some variables make, or why they make none."""
        graphs, mask = self._graphs, self._graphs.bits_of(latents)
        seen, kernels = graphs.probe.affine_in(latents), [v for v in latents if v in graphs.kernels]
        priors = self._priors(latents, mask, seen)
        if isinstance(priors, str):
            return priors
        rows = {v: graphs.residuals[v] for v in priors if v not in kernels}
        observations = list[FieldObservation]()
        for variable in graphs.observed:
            observation = graphs.observation(variable)
            if not graphs.reads(observation.log_density) & mask:
                continue
            found = self._squares(observation, mask, seen) or self._predicted(observation, mask, seen)
            if isinstance(found, str):
                return found
            if isinstance(found, Residuals):
                rows[variable] = found
            else:
                observations.append(found)
        ordered = [*(v for v in latents if v not in kernels), *kernels]
        return FieldChoice(ordered, rows, observations, {}, kernels)

    def _priors(self, latents: Sequence[TensorVariable], mask: int, seen: Affine) -> list[TensorVariable] | str:
        """Return the free variables whose residuals depend on the latents, or why one is no part of a field."""
        graphs, found = self._graphs, list[TensorVariable]()
        for variable in graphs.free:
            if variable in graphs.residuals:
                residual = graphs.residuals[variable].values
                if variable in latents or graphs.bits[residual] & mask:
                    if residual not in seen.affine:
                        return f"it does not enter the prior of {variable.name} affinely"
                    found.append(variable)
            elif graphs.bits[graphs.densities[variable]] & mask:
                return f"the prior of {variable.name} depends on it and is not Gaussian"
        return found

    def _predicted(self, observation: FieldObservation, mask: int, seen: Affine) -> FieldObservation | str:
        """Return an observation with its predictors, or why it has none."""
        graphs, variable = self._graphs, observation.variable
        if observation.likelihood is not None:
            (eta,) = observation.predictors
            others = [*observation.parameters.values(), *([] if observation.offset is None else [observation.offset])]
            if eta in seen.affine and not any(graphs.bits.get(each, 0) & mask for each in others):
                return replace(observation, shapes=(graphs.probe.shapes[eta],))
        flat = graphs.bits_of([v for v in graphs.free if is_flat(v)])
        if variable in graphs.model.potentials and graphs.reads(observation.log_density) & mask & flat:
            # Sites would be all that it has for a prior, and they know nothing of products.
            return f"the potential {variable.name} is no sum of squares"
        found = self._ends(observation, mask, seen)
        ends, places = _written_once(found)
        if not ends:
            return f"{variable.name} reads it through no expression that is affine"
        if len(ends) > MOST_PREDICTORS:
            return f"{variable.name} has {len(ends)} {TOO_MANY}"
        sizes = [math.prod(graphs.probe.shapes[each]) for each in ends]
        if min(sizes) == 1 < max(sizes):
            return f"{variable.name} reads it and one value for all of it"
        beyond = toposort([observation.log_density], blockers=found)
        if any(running_sum(node) and graphs.bits.get(node.outputs[0], 0) & mask for node in beyond):
            return f"{variable.name} reads it through a running sum of products"
        # A predictor may be made of one that is left out.
        log_density, *predictors = replaced([observation.log_density, *ends], places)
        return self._of_contrasts(variable, log_density, predictors, [graphs.probe.shapes[each] for each in ends])

    def _of_contrasts(
        self, variable: TensorVariable, log_density: TensorVariable, predictors: list[TensorVariable],
        shapes: list[tuple[int, ...]],
    ) -> FieldObservation:  # fmt: skip
        """Return an observation of these predictors, each without what the log density does not see of it."""
        graphs = self._graphs
        for i, predictor in enumerate(predictors):
            try:
                found = evaluated_there(contrasts_of, graphs.model, log_density, predictor, shapes[i], graphs.point)
            except NoValueThere:  # a check of PyMC's: a negative scale, which is no softmax
                continue
            if found is not None:
                predictors[i], log_density = found
                shapes[i] = (*shapes[i][:-1], int(predictors[i].type.shape[-1]))
        return FieldObservation(variable, log_density, tuple(predictors), tuple(shapes))

    def _squares(self, observation: FieldObservation, mask: int, seen: Affine) -> Residuals | str | None:
        """Return the residuals of what is observed or of a potential; None if it has none, or what is wrong with it."""
        graphs, variable = self._graphs, observation.variable
        if variable not in graphs.model.potentials:
            stated = graphs.residuals.get(variable)
            return stated if stated is not None and stated.values in seen.affine else None
        ends = dict.fromkeys(_as_it_was(each) for each in self._ends(observation, mask, seen))
        shapes = {each: graphs.probe.shapes[each] for each in ends}
        found = residuals_of_squares(observation.log_density, shapes, graphs.probe.points) if ends else None
        return f"the potential {variable.name} {found}" if isinstance(found, str) else found

    def _ends(self, observation: FieldObservation, mask: int, seen: Affine) -> list[TensorVariable]:
        """List the last expressions that are affine in the latents on every way to what is observed."""
        ends: dict[TensorVariable, None] = {}
        known, straight = set(seen.still), self._straight(mask, seen)
        for each in self._graphs.inputs_of(observation.variable):
            self._frontier(each, mask, straight, known, ends)
        return list(ends)

    def _straight(self, mask: int, seen: Affine) -> set[Variable]:
        """Return the nodes that are affine as all are that they are made of: not the logarithm of an exponential."""
        bits, straight = self._graphs.bits, set[Variable]()
        for node, reads in bits.items():  # inputs come first
            made_of = node.owner.inputs if reads & mask and node.owner else []
            moving = [each for each in made_of if bits.get(each, 0) & mask and each not in seen.still]
            if node in seen.affine and straight.issuperset(moving):
                straight.add(node)
        return straight

    def _frontier(
        self, node: Variable, mask: int, straight: set[Variable], known: set[Variable], ends: dict[TensorVariable, None]
    ) -> None:
        """Note the last nodes on every way from the latents to one that are affine in them."""
        if node in known or not self._graphs.bits.get(node, 0) & mask:
            return
        known.add(node)
        if node in straight:
            ends[node] = None
            return
        if node.owner is not None:
            for each in node.owner.inputs:
                self._frontier(each, mask, straight, known, ends)


def _written_once(
    predictors: Sequence[TensorVariable],
) -> tuple[list[TensorVariable], dict[Variable, Variable]]:
    """Return the first of those that are the same expression, and what takes the place of the others."""
    kept, places = list[TensorVariable](), dict[Variable, Variable]()
    for each in predictors:
        same = next((k for k in kept if k.type == each.type and equal_computations([k], [each])), None)
        if same is None:
            kept.append(each)
        else:
            places[each] = same
    return kept, places


def _as_it_was(node: TensorVariable) -> TensorVariable:
    """Return an expression before its axes were put in another order, as ``d @ d`` does with one of two."""
    while node.owner is not None and isinstance(node.owner.op, DimShuffle):
        (node,) = node.owner.inputs
    return node
