"""A model's Gaussian field with its hyperparameters, read by derivatives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.compile import Function
from pytensor.graph.basic import equal_computations
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, listed
from pymc_rmhmc.interfaces.stated import FieldKernel
from pymc_rmhmc.model.field.affinity import FieldChoice, FieldGraphs, choose_field
from pymc_rmhmc.model.field.field_block import FieldBlock, PredictorTerms
from pymc_rmhmc.model.field.maps import (
    N_PATTERNS,
    AffineExpressions,
    Map,
    MovingMaps,
    NotSparse,
    points_about,
    read_maps,
)
from pymc_rmhmc.model.field.residuals import HALF_LOG_2PI, direction_in_words, open_direction
from pymc_rmhmc.model.field.running_sum import with_walks
from pymc_rmhmc.model.forms.joint_model import JointModel
from pymc_rmhmc.model.graph.graphs import NoValueThere, by_python, evaluated_there, is_flat, replaced, value_inputs
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters, joined, taken
from pymc_rmhmc.model.observed.observation import names_of
from pymc_rmhmc.model.observed.observed_terms import gradient_by

__all__ = ["FieldPlan", "plan_field"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

# Where a field that was read is compared with the model: how far each of θ and of x is moved, up or down by chance, and
# then all of them the other way. So an entry that is 0 on one side of a value is seen.
CHECKED, N_CHECKED = ((0.3, 1.0), (1.0, 3.0), (2.0, 10.0), (4.0, 30.0)), 2
AGREEMENT = 1e-7
DENSE = "it enters through a matrix with too many entries"


@dataclass(frozen=True, eq=False)
class FieldPlan:
    """A field and its hyperparameters, of which nothing has been built."""

    graphs: FieldGraphs  # the model as expressions of its value variables
    choice: FieldChoice  # the latent values, residuals and observations
    theta: Hyperparameters  # all other continuous variables

    @property
    def model(self) -> pm.Model:
        """The model."""
        return self.graphs.model

    def read(self) -> ReadField | str:
        """Read the maps, or say why there are none: they have too many entries, or move in a way that is not read.

        Raises a `ConfigurationError` if nothing holds a direction of latent values, as that of a Flat vector of which
        only steps are read.
        """
        affine = self.expressions
        foreign = [str(v.name) for v in (*affine.others, *value_inputs(self.model, self.covariances))]
        if foreign:
            return f"how it enters depends on {listed(foreign)}, which another step samples"
        theta = self.theta.pack(self.graphs.point)
        try:
            moving = read_maps(affine, theta, self.kernels)
        except NotSparse:
            return DENSE
        found = ReadField(self, affine, moving)
        apart = [o.apart_from_predictors() for o in self.choice.observations if o.likelihood is None]
        foreign = [str(v.name) for v in value_inputs(self.model, [*found.rest, *apart]) if v in self.latent_values]
        if foreign:
            return f"a density that it has no part in reads {listed(foreign)}"
        if not found.agrees(theta):
            return "its residuals are not what they seem at other values"
        if not found.has_the_models_density(theta):
            return "its log density is not the one that PyMC makes of it"
        found.check_is_held(theta)
        return found

    @property
    def latent_values(self) -> list[TensorVariable]:
        """The value variables of x."""
        return [self.graphs.values[v] for v in self.choice.latents]

    @cached_property
    def covariances(self) -> list[TensorVariable]:
        """Of each kernel its covariance, or the factor of that, as a function of θ."""
        return self.theta.place([self.graphs.kernels[v].matrix.astype("float64") for v in self.choice.kernels])

    @cached_property
    def kernels(self) -> tuple[FieldKernel, ...]:
        """What is known of the kernels before θ is: of each variable, of all its rows."""
        first, made = list[int](), list[FieldKernel]()
        for k, variable in enumerate(self.choice.kernels):
            value, kernel = self.graphs.values[variable], self.graphs.kernels[variable]
            *rows, size = np.shape(self.graphs.point[str(value.name)])
            moves = self.theta.symbol in ancestors([self.covariances[k]])
            own = FieldKernel(size, kernel.source is value, kernel.is_factor, moves)
            alike = [
                at for i, at in enumerate(first)
                if made[at] == own and equal_computations([self.covariances[i]], [self.covariances[k]])
            ]  # fmt: skip
            first.append(alike[0] if alike else len(made))
            made += [replace(own, same_as=first[k]) if i or alike else own for i in range(math.prod(rows))]
        return tuple(made)

    @cached_property
    def expressions(self) -> AffineExpressions:
        """Residuals and predictors as functions of x and θ."""
        graphs, choice = self.graphs, self.choice
        nodes = [p for o in choice.observations for p in o.predictors]
        residuals = [each.values for each in choice.rows.values()]
        latents, blocks, places = self.places()
        made = replaced([joined(residuals), joined(nodes)], places)
        if any(graphs.kernels[v].mean is not None for v in choice.kernels):
            made.append(joined([places[node] for node in self._read]))
        others = [v for v in value_inputs(graphs.model, made) if v not in places]
        given = [np.asarray(graphs.point[str(v.name)]) for v in others]
        inputs = [latents, self.theta.symbol, *others]
        points = points_about(self.theta.pack(graphs.point))[:N_PATTERNS]

        def compiled(expression: TensorVariable) -> list[Map]:
            function = by_python(inputs, expression)

            def at(theta: Array) -> Map:
                return lambda values: np.asarray(function(values, theta, *given))

            return [at(theta) for theta in points]

        walks = with_walks(made, latents, blocks, len(choice.kernels), compiled)
        residual, predictor, *own = (each.astype("float64") for each in walks.expressions)
        values = own[0] if own else walks.values if walks.places else pt.zeros(0)
        as_written = replaced(made[:2], {latents: walks.values})
        return AffineExpressions(
            latents, self.theta.symbol, residual, predictor, values, as_written, blocks, others, given, walks.places
        )  # fmt: skip

    @property
    def n_summed(self) -> dict[TensorVariable, int]:
        """How many values of each variable a walk takes the place of."""
        affine = self.expressions
        places = np.unique(np.concatenate([np.empty(0, np.int64), *affine.walks]))
        counts = [int(np.sum((places >= b.start) & (places < b.stop))) for b in affine.blocks]
        return dict(zip(self.choice.latents, counts, strict=True))

    def places(self) -> tuple[TensorVariable, list[slice], dict[TensorVariable, TensorVariable]]:
        """Return x, the part of each variable, and what takes the place of value variables, or of a kernel's vector.

        A kernel's vector is its part of x and its mean.
        """
        graphs, kernels, places = self.graphs, self.choice.kernels, dict[TensorVariable, TensorVariable]()
        shapes = [np.shape(graphs.point[str(v.name)]) for v in self.latent_values]
        ends = [0, *itertools.accumulate(math.prod(shape) for shape in shapes)]
        blocks = [slice(a, b) for a, b in itertools.pairwise(ends)]
        latents = pt.dvector("latents", shape=(ends[-1],))
        read = zip(self._read, self.latent_values, blocks, shapes, strict=True)
        for node, value, part, shape in read:
            own = taken(latents, part, (*shape, *[1] * (node.ndim - len(shape))))
            # What a factor multiplies are columns.
            own = own.T if node is not value and len(shape) > 1 else own
            places[node] = pt.specify_shape(own.astype(node.dtype), node.type.shape)
        places = {**self.theta.parts, **places}
        for variable in (v for v in graphs.free if v in kernels):  # a mean depends on earlier variables alone
            mean, node = graphs.kernels[variable].mean, graphs.kernels[variable].source
            if mean is not None:
                places[node] = node.type.filter_variable(places[node] + replaced([mean], places)[0])
        return latents, blocks, places

    @property
    def _read(self) -> list[TensorVariable]:
        """The nodes at which predictors read the latent variables: their values, or a kernel's vector."""
        kernels = {v: self.graphs.kernels[v].source for v in self.choice.kernels}
        return [kernels.get(v, self.graphs.values[v]) for v in self.choice.latents]


@dataclass(frozen=True, eq=False)
class ReadField:
    """A field whose maps are known."""

    plan: FieldPlan
    affine: AffineExpressions
    moving: MovingMaps

    def agrees(self, theta: Array) -> bool:
        """Compare residuals and predictors with their maps at other values of θ and x."""
        affine, maps, rng = self.affine, self.moving.maps, np.random.default_rng(1)
        graph = [self.moving.numbers, *affine.as_written, affine.values]
        function = by_python([affine.latents, affine.theta], graph)
        for far, apart in [each for each in CHECKED for _ in range(N_CHECKED)]:
            by = far * rng.choice([-1.0, 1.0], theta.size)
            values = apart * rng.choice([-1.0, 1.0], maps.size) * rng.uniform(0.7, 1.0, maps.size)
            if not (self._agrees_at(function, theta + by, values) and self._agrees_at(function, theta - by, -values)):
                return False
        return True

    def _agrees_at(self, function: Function, theta: Array, x: Array) -> bool:
        """Compare residuals and predictors with their maps at a θ and an x."""
        maps = self.moving.maps
        try:
            with np.errstate(all="ignore"):
                numbers, residuals, predictors, values = evaluated_there(function, x, theta)
        except NoValueThere:
            return True
        found = np.empty(residuals.size)
        is_dense = np.isin(np.arange(found.size), self.moving.dense)
        found[is_dense] = maps.dense @ x - maps.dense_offset
        found[~is_dense] = maps.residuals.at(numbers, x, -1.0)
        own = values if maps.values is None else maps.values.at(numbers, x)
        for read, true in ((found, residuals), (maps.predictors.at(numbers, x), predictors), (own, values)):
            size = AGREEMENT * (1.0 + np.abs(true).max(initial=0.0))
            if np.isfinite(true).all() and not np.allclose(read, true, rtol=0.0, atol=size):
                return False
        return True

    def has_the_models_density(self, theta: Array) -> bool:
        """Compare the log density of residuals and observations with PyMC's, at other values of θ and x."""
        plan, choice = self.plan, self.plan.choice
        latents, _, places = plan.places()
        for variable, matrix in zip(choice.kernels, plan.covariances, strict=True):
            kernel, value = plan.graphs.kernels[variable], plan.graphs.values[variable]
            if kernel.source is not value:  # PyMC's density reads it through the whitened vector
                whitened, lower = places[kernel.source], matrix if kernel.is_factor else pt.linalg.cholesky(matrix)
                vector = (lower @ whitened).astype(whitened.dtype)
                shape = np.shape(plan.graphs.point[str(value.name)])
                own = (whitened.T if len(shape) > 1 else whitened).reshape(shape)
                places |= {value: own, kernel.source: pt.specify_shape(vector, kernel.source.type.shape)}
        read = [*choice.rows, *(o.variable for o in choice.observations)]
        residuals = joined([each.values for each in choice.rows.values()])
        observed = joined([o.log_density for o in choice.observations])
        its = joined(plan.model.logp(vars=read, sum=False))
        graph = [self._log_normalisers(), *replaced([-0.5 * residuals**2, observed, its], places)]
        given = value_inputs(plan.model, graph)
        function, rng = by_python([latents, plan.theta.symbol, *given], graph), np.random.default_rng(2)
        others = [plan.graphs.point[str(each.name)] for each in given]
        for far, apart in CHECKED[:N_CHECKED]:
            at = theta + far * rng.standard_normal(theta.size)
            try:
                found = evaluated_there(function, apart * rng.standard_normal(self.moving.maps.size), at, *others)
            except NoValueThere:
                continue
            *mine, true = (float(each.sum()) for each in found)
            if math.isfinite(true) and not abs(sum(mine) - true) <= AGREEMENT * (1.0 + abs(true)):
                return False
        return True

    def check_is_held(self, theta: Array) -> None:
        """Raise a `ConfigurationError` where a Flat prior leaves a direction of latent values to nothing."""
        latents = self.plan.choice.latents
        flat = [v for v in latents if _has_flat_prior(self.plan.model, v)]
        if not flat:
            return
        direction = open_direction(self.moving.maps, by_python([self.affine.theta], self.moving.numbers)(theta))
        if direction is not None:
            parts = {str(v.name): part for v, part in zip(latents, self.affine.blocks, strict=True)}
            raise ConfigurationError(
                f"Nothing holds {direction_in_words(direction, parts)} where the prior of "
                f"{listed([str(v.name) for v in flat])} is Flat: neither data nor a potential change when it moves, so "
                "there is no posterior distribution. Give a proper prior, or hold the level by "
                f'pm.Potential("level", pm.logp(pm.Normal.dist(0, 0.001), {flat[0].name}.mean())).'
            )

    def build(self) -> JointModel:
        """Build the functions of the model."""
        plan, theta = self.plan, self.plan.theta
        model, choice = plan.model, plan.choice
        sizes = [part.stop - part.start for part in self.affine.blocks]
        values = {str(plan.graphs.values[v].name): n for v, n in zip(choice.latents, sizes, strict=True)}
        observed = self._predictor_terms()
        maps, read_from, point = self.moving.maps, self.affine.rows, plan.graphs.point
        normaliser = self._log_normalisers().sum() - HALF_LOG_2PI * maps.n_dense
        name = " + ".join(names_of([v]) for v in choice.latents)
        of_kernels = [
            matrix.ravel() for variable, matrix in zip(choice.kernels, plan.covariances, strict=True)
            for _ in range(math.prod(np.shape(point[str(plan.graphs.values[variable].name)])[:-1]))
        ]  # fmt: skip
        numbers = pt.concatenate([self.moving.numbers, *of_kernels])
        block = FieldBlock(
            model, name, values, theta, maps, numbers, normaliser, observed, read_from, point
        )  # fmt: skip
        summed = sum((each.sum() for each in theta.place(self.rest)), start=pt.zeros(()))
        function = GraphFunction(model, [theta.symbol], [summed, gradient_by(summed, theta.symbol)], point)
        names = [str(v.name) for v in self.outside()]
        return JointModel(theta, [block], function, names, self._of_likelihoods(normaliser), np.empty(0, np.int64))

    def second_derivative(self) -> GraphFunction:
        """Build the function of θ, η and a direction (n,) that returns how the likelihoods' slopes change along it.

        PyTensor has no second derivative of some densities.
        """
        theta, observed = self.plan.theta.symbol, self._predictor_terms()
        eta, direction = (pt.dvector(name, shape=(self.moving.maps.predictors.n_rows,)) for name in ("eta", "along"))
        total = sum((each.second_derivative(eta, direction) for each in observed), start=pt.zeros_like(eta))
        return GraphFunction(self.plan.model, [theta, eta, direction], [total], self.plan.graphs.point)

    def _predictor_terms(self) -> list[PredictorTerms]:
        """Return what every observed variable says of its predictors, in the order of sites."""
        found, first = list[PredictorTerms](), 0
        for each in self.plan.choice.observations:
            found.append(PredictorTerms(each, first, self.plan.theta))
            first += found[-1].size
        return found

    @cached_property
    def rest(self) -> list[TensorVariable]:
        """The log densities that are not of the field."""
        outside = self.outside()
        return list(self.plan.model.logp(vars=outside, sum=False)) if outside else []

    def outside(self) -> list[TensorVariable]:
        """List the variables and potentials whose densities are not of the field."""
        choice, model = self.plan.choice, self.plan.model
        inside = {*choice.rows, *choice.kernels, *(o.variable for o in choice.observations)}
        return [v for v in (*model.basic_RVs, *model.potentials) if v not in inside]

    def _log_normalisers(self) -> TensorVariable:
        """Return the log densities of rows where their residuals are 0, as a graph of θ."""
        graphs, choice = self.plan.graphs, self.plan.choice
        total: list[TensorVariable] = []
        for variable, (values, normaliser) in choice.rows.items():
            if normaliser is not None:
                total.append(normaliser)
                continue
            (density,) = graphs.model.logp(vars=[variable], sum=False)
            total.append(density.sum() + 0.5 * (values**2).sum())
        places = dict[TensorVariable, TensorVariable](self.plan.theta.parts)
        for value in (graphs.values[v] for v in choice.latents):
            zero = pt.zeros(np.shape(graphs.point[str(value.name)]), dtype=value.dtype)
            places[value] = value.type.filter_variable(zero)
        return replaced([joined(total)], places)[0]

    def _of_likelihoods(self, normaliser: TensorVariable) -> NDArray[np.int64]:
        """Find the coordinates of θ that only parameters of likelihoods read."""
        theta = self.plan.theta
        inside = set(ancestors([*self.affine.rows, normaliser, *self.plan.covariances]))
        parameters = set(ancestors([
            e for o in self.plan.choice.observations for e in (*o.parameters.values(), o.log_density)
        ]))  # fmt: skip
        found = np.zeros(theta.size, bool)
        for (value, symbol), part in zip(theta.parts.items(), theta.slices, strict=True):
            found[part] = value in parameters and symbol not in inside
        return np.flatnonzero(found)


def _has_flat_prior(model: pm.Model, variable: TensorVariable) -> bool:
    """Check whether a variable's distribution is Flat, or begins with a Flat one."""
    others = set(model.basic_RVs) - {variable}
    made_of = set(ancestors([variable], blockers=others)) - others
    return any(map(is_flat, made_of))


def plan_field(model: pm.Model, point: Point, wanted: Sequence[TensorVariable] | None = None) -> FieldPlan | str:
    """Find what of a model is a Gaussian field, or say why nothing is."""
    graphs = FieldGraphs(model, point)
    choice = choose_field(graphs, wanted)
    if isinstance(choice, str):
        return choice
    rest = [v for v in graphs.free if v not in choice.latents]
    theta = Hyperparameters(model, rest, point)
    return FieldPlan(graphs, choice, theta)
