"""Latent Gaussian blocks together with their hyperparameters, as functions of (θ, η) with their derivatives.

What is compiled of a model is what depends on θ: mean and covariance, the likelihood, and the rest of the log
density. Factorisations stay outside: `pymc_rmhmc.latent.joint_target` has their derivatives by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.forms.components import LatentReader, LatentRow
from pymc_rmhmc.model.forms.hierarchies import coordinates_of_hierarchies
from pymc_rmhmc.model.forms.joint_blocks import CovarianceBlock
from pymc_rmhmc.model.forms.kronecker import KroneckerBlock
from pymc_rmhmc.model.forms.linear_blocks import DesignBlock, DesignSource, Reader, SumBlock
from pymc_rmhmc.model.forms.linear_normals import ScaledSource
from pymc_rmhmc.model.forms.moving_design import MovingDesign, why_not_moving
from pymc_rmhmc.model.forms.priors import gaussian_candidates
from pymc_rmhmc.model.forms.scaled_vectors import vector_sources, with_coefficients, with_scales_first
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, no_derivative_in_words
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters, hyperparameters_of
from pymc_rmhmc.model.observed.observation import Observation, names_by_value, names_of
from pymc_rmhmc.model.observed.observations import AffineReader
from pymc_rmhmc.model.observed.observed_terms import ObservedTerms, Terms, gradient_by
from pymc_rmhmc.model.observed.reads import DesignReader, PlainReading, SameValues
from pymc_rmhmc.model.observed.unregistered_terms import PredictedTerms, UnregisteredTerms
from pymc_rmhmc.model.structure import LatentBlock, ModelStructure

__all__ = ["NO_HYPERPARAMETERS", "JointBlock", "JointModel", "JointPlan", "plan_joint", "read_joint"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Sites = NDArray[np.int64]

NO_HYPERPARAMETERS = "no block depends on continuous hyperparameters"
# θ has a dense mass matrix, learned from as many draws, and its curvature at the mode costs two gradients a dimension.
MOST_HYPERPARAMETERS = 1000
# Rows that are one vector cost the square of their number times what rows by themselves would.
MOST_ROWS_IN_ONE = 8


type JointBlock = CovarianceBlock | DesignBlock | KroneckerBlock | SumBlock
type Recipe = Callable[[], JointBlock]


class JointModel:
    """A model's blocks with their hyperparameters.

    Attributes
    ----------
    theta : Hyperparameters
        What is sampled together with the blocks.
    blocks : tuple of JointBlock
        The blocks.
    rest_names : tuple of str
        The variables and potentials whose log densities `rest` adds up.
    of_likelihoods : (k,) int array
        The coordinates of θ that are parameters of likelihoods, and that latents and predictors know nothing of.
    of_hierarchies : (k,) int array
        Those by whose spread the density has no bound: effects, their mean and their scale.
    """

    def __init__(
        self, theta: Hyperparameters, blocks: Sequence[JointBlock], rest: GraphFunction, rest_names: Sequence[str],
        of_likelihoods: NDArray[np.int64], of_hierarchies: NDArray[np.int64],
    ) -> None:  # fmt: skip
        self.theta, self.blocks, self._rest, self.rest_names = theta, tuple(blocks), rest, tuple(rest_names)
        self.of_likelihoods, self.of_hierarchies = of_likelihoods, of_hierarchies
        self._functions = [rest, *(f for block in blocks for f in block.functions)]
        # Of the latents' own values no more than shapes can be left in the functions.
        own = {name for block in self.blocks for name in block.value_names}
        self.inputs = tuple(dict.fromkeys(n for f in self._functions for n in f.value_names if n not in own))

    @property
    def n_functions(self) -> int:
        """How many functions of θ and η there are."""
        return len(self._functions)

    def bind(self, point: Point) -> None:
        """Condition on everything that is not sampled, and take shared data as they are now.

        Raises
        ------
        DataError
            If observations read other latent values than they did when the model was read.
        """
        for function in self._functions:
            function.bind(point)
        for block in self.blocks:
            block.bind(point)

    def rest(self, theta: Array) -> tuple[float, Array]:
        """The log density of everything but the blocks' priors and likelihoods, and its gradient (d,)."""
        total, gradient = self._rest(theta)
        return float(total), gradient

    def compiled_rest(self) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
        """The function that `rest` calls, and what it takes after θ."""
        return self._rest.function, self._rest.bound


@dataclass(frozen=True, eq=False)
class JointPlan:
    """Blocks and hyperparameters that can be sampled together, of which no function has been built.

    Attributes
    ----------
    structure : ModelStructure
        The blocks.
    theta : Hyperparameters
        What is sampled together with them.
    recipes : tuple of callable
        Each builds a block.
    """

    structure: ModelStructure
    theta: Hyperparameters
    recipes: tuple[Recipe, ...]

    def build(self) -> JointModel | str:
        """The functions of the model, or the reason why there are none."""
        structure, theta = self.structure, self.theta
        try:
            blocks, rest = [recipe() for recipe in self.recipes], _rest(structure, theta)
        except NO_DERIVATIVE as error:
            return no_derivative_in_words("the model by its hyperparameters", error)
        hierarchies = coordinates_of_hierarchies(structure.model, theta)
        of_likelihoods = _of_likelihoods(structure, theta)
        for block in blocks:  # what moves sites cannot move where they are held
            of_likelihoods &= ~block.shifts_likelihoods
        names = [str(variable.name) for variable in structure.rest]
        return JointModel(theta, blocks, rest, names, np.flatnonzero(of_likelihoods), hierarchies)


def read_joint(
    structure: ModelStructure, point: Point, named: Sequence[TensorVariable] | None = None
) -> JointModel | str:
    """A structure's blocks and hyperparameters together, or the reason why they cannot be sampled together.

    `named` are the hyperparameters wanted, by default all that there are.
    """
    plan = plan_joint(structure, point, named)
    return plan if isinstance(plan, str) else plan.build()


def plan_joint(
    structure: ModelStructure, point: Point, named: Sequence[TensorVariable] | None = None
) -> JointPlan | str:
    """What `read_joint` would build, or its reason not to; but for a missing derivative, which is found in building."""
    model = structure.model
    expressions: list[TensorVariable] = []
    for block in structure.blocks:
        if not block.observations:
            return f"nothing is observed of {block.name}"
        for latent in block.latents:
            expressions += latent.expressions
        expressions += [e for o in block.observations for e in _expressions(o)]
    latents = set(structure.variables)
    variables = [v for v in hyperparameters_of(model, expressions) if v not in latents]
    if named is not None:
        strange = [v for v in named if v not in variables]
        if strange:
            return f"no block depends on {names_of(strange)}"
        variables = [v for v in variables if v in named]
    if not variables:
        return NO_HYPERPARAMETERS
    candidates = gaussian_candidates(model)
    vectors = [v for v in variables if v in candidates and (named is None or v not in named)]
    if vectors:
        return f"{names_of(vectors)} is no hyperparameter but a latent vector, which needs a step of its own"
    theta = Hyperparameters(model, variables, point)
    if theta.size > MOST_HYPERPARAMETERS:
        return f"there are {theta.size} hyperparameters, more than {MOST_HYPERPARAMETERS}"
    recipes = _recipes(structure, theta, point)
    return recipes if isinstance(recipes, str) else JointPlan(structure, theta, recipes)


def _recipes(structure: ModelStructure, theta: Hyperparameters, point: Point) -> tuple[Recipe, ...] | str:
    """How to build every block, or the reason why one cannot be."""
    recipes: list[Recipe] = []
    for block in structure.blocks:
        recipe = _block(structure.model, block, theta, point)
        if isinstance(recipe, str):
            return recipe
        recipes.append(recipe)
    return tuple(recipes)


def _of_likelihoods(structure: ModelStructure, theta: Hyperparameters) -> NDArray[np.bool_]:
    """The coordinates of θ that parameters of likelihoods read, and neither a latent's prior nor a predictor."""
    sources = [latent.source for block in structure.blocks for latent in block.latents]
    priors = [e for block in structure.blocks for latent in block.latents for e in latent.expressions]
    observations = [o for block in structure.blocks for o in block.observations]
    readings = [o.reading for o in observations if o.reading is not None]
    parameters = [value for reading in readings for value in reading.parameters.values()]
    # With the latents held all of a likelihood that is not registered is such.
    parameters += [e for o in observations if o.likelihood is None for e in _expressions(o)]
    model = structure.model
    elsewhere = theta.read_by([*priors, *(reading.eta for reading in readings)], model, sources)
    return theta.read_by(parameters, model, sources) & ~elsewhere


def _block(model: pm.Model, block: LatentBlock, theta: Hyperparameters, point: Point) -> Recipe | str:
    """How to build a block in the form that fits it, or the reason why none does.

    The sites are the observations, or the latents where each observation reads one value of each vector.
    """
    if any(o.reading is None for o in block.observations):
        return _with_unregistered(model, block, theta, point)
    block = with_scales_first(model, block)
    readers = [LatentReader(model, latent) for latent in block.latents]
    shapes = [each.source_shape(point) for each in readers]
    rows = [each.rows(i, point) for i, each in enumerate(readers)]
    found = vector_sources(model, block, shapes, point)
    plain = _plain_reading(model, block, [f.node for f in found], shapes, point)
    others = block.latents[1:]
    by_themselves = plain is not None and not others
    if not by_themselves and max(len(r) for r in rows) > MOST_ROWS_IN_ONE:
        return f"{block.name} has more than {MOST_ROWS_IN_ONE} rows, which would be one vector"
    if plain is None or (others and any(len(r) > 1 for r in rows)):
        return _by_a_matrix(model, block, found, shapes, rows, theta, point)
    return partial(_build_plain, model, block, found, shapes, rows[0], plain, theta, point)


def _build_plain(
    model: pm.Model, block: LatentBlock, found: Sequence[ScaledSource], shapes: Sequence[tuple[int, ...]],
    rows: Sequence[LatentRow], plain: PlainReading, theta: Hyperparameters, point: Point,
) -> JointBlock:  # fmt: skip
    """A block whose sites are the values of its vector, or sums of the values of several."""
    read = {f.node: shape for f, shape in zip(found, shapes, strict=True)}
    observed = _terms(model, block, read, theta, plain.sites, point)
    if len(found) > 1 or block.latents[0].form == "independent" or found[0].is_scaled:
        same = SameValues(math.prod(shapes[0]), len(shapes))
        made = _linear_block(model, block, found, same, theta, observed, point)
    else:
        made = _vector_block(model, block, theta, observed, rows, shapes[0])
    made.plain = plain
    return made


def _with_unregistered(
    model: pm.Model, block: LatentBlock, theta: Hyperparameters, point: Point
) -> Recipe | str:
    """A block with likelihoods that are not registered, whose sites are the values of its vector; or why it is none."""
    (latent, *others), reason = block.latents, f"the likelihood of {block.name} has no closed form here"
    if others or latent.form == "independent":
        return f"{reason}, and reads something else than one vector with a covariance"
    reader = LatentReader(model, latent)
    rows = reader.rows(0, point)
    if len(rows) > 1:
        return f"{reason}, and {block.name} has rows"
    sources, shapes = [latent.source], [reader.source_shape(point)]
    registered = tuple(o for o in block.observations if o.reading is not None)
    plain = _plain_reading(model, replace(block, observations=registered), sources, shapes, point)
    if plain is None:
        return f"{reason}, and another reads more than single values"

    def build() -> JointBlock:
        observed: list[Terms] = [
            UnregisteredTerms(model, o, latent.source, shapes[0], theta, point)
            for o in block.observations if o.reading is None
        ]  # fmt: skip
        read = {latent.source: shapes[0]}
        observed += _terms(model, replace(block, observations=registered), read, theta, plain.sites, point)
        made = _vector_block(model, block, theta, observed, rows, shapes[0])
        made.plain = plain
        return made

    return build


def _vector_block(
    model: pm.Model, block: LatentBlock, theta: Hyperparameters, observed: Sequence[Terms],
    rows: Sequence[LatentRow], shape: tuple[int, ...],
) -> JointBlock:  # fmt: skip
    """A vector with a covariance, or its rows, whose values are the sites."""
    (latent,) = block.latents
    if latent.root == "kronecker":
        return KroneckerBlock(model, block.name, latent, theta, math.prod(shape), observed)
    return CovarianceBlock(model, block.name, latent, theta, rows, shape, observed)


def _positions(rows: Sequence[LatentRow]) -> NDArray[np.int64]:
    """Where a variable's values, row by row, are in what is read of it."""
    return np.concatenate([row.positions for row in rows])


def _by_a_matrix(
    model: pm.Model, block: LatentBlock, vectors: Sequence[ScaledSource], shapes: Sequence[tuple[int, ...]],
    rows: Sequence[Sequence[LatentRow]], theta: Hyperparameters, point: Point,
) -> Recipe | str:  # fmt: skip
    """A block whose sites are the observations, or the reason why it is none."""
    found = with_coefficients(model, block, vectors, shapes, point)
    nodes, positions = [f.node for f in found], [_positions(r) for r in rows]
    reader = DesignReader(model, block.observations, nodes, shapes, positions)
    reason = _why_not_by_a_matrix(model, block, nodes, reader.inputs, theta)
    if reason:
        return reason

    def build() -> JointBlock:
        moving = None
        if reader.inputs:
            moving = MovingDesign(model, block.observations, nodes, shapes, positions, theta, point)
        sizes = reader.sizes(point)
        sites = [np.arange(end - size, end) for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
        read = {f.node: shape for f, shape in zip(found, shapes, strict=True)}
        observed = _terms(model, block, read, theta, sites, point)
        return _linear_block(model, block, found, moving or reader, theta, observed, point)

    return build


def _why_not_by_a_matrix(
    model: pm.Model, block: LatentBlock, nodes: Sequence[TensorVariable], inputs: Sequence[str], theta: Hyperparameters
) -> str:
    """Why a matrix that some value variables move is no function of θ; empty if it is one."""
    if not inputs:
        return ""
    reason = f"how the predictor reads {block.name} depends on {_names(model, inputs)}"
    if not set(inputs) <= set(theta.names):
        return reason
    why = why_not_moving(model, block.observations, nodes, theta)
    return why and f"{reason} through {why}"


def _linear_block(
    model: pm.Model, block: LatentBlock, found: Sequence[ScaledSource], reader: Reader, theta: Hyperparameters,
    observed: Sequence[Terms], point: Point,
) -> JointBlock:  # fmt: skip
    """Coefficients alone, or a sum of vectors."""
    own = [np.shape(point[str(model.rvs_to_values[latent.variable].name)]) for latent in block.latents]
    sources = [
        DesignSource(latent, f, shape) for latent, f, shape in zip(block.latents, found, own, strict=True)
    ]
    made = DesignBlock if all(latent.form == "independent" for latent in block.latents) else SumBlock
    return made(model, block.name, sources, reader, theta, observed, point)


def _terms(
    model: pm.Model,
    block: LatentBlock,
    sources: dict[TensorVariable, tuple[int, ...]],
    theta: Hyperparameters,
    sites: Sequence[Sites],
    point: Point,
) -> list[Terms]:
    held = zip(block.observations, sites, strict=True)
    return [
        ObservedTerms(model, observation, sources, theta, index) if observation.likelihood is not None
        else PredictedTerms(model, observation, sources, theta, index, point)
        for observation, index in held
    ]  # fmt: skip


def _plain_reading(
    model: pm.Model, block: LatentBlock, sources: Sequence[TensorVariable], shapes: Sequence[tuple[int, ...]],
    point: Point,
) -> PlainReading | None:  # fmt: skip
    """The value that each observation reads of every vector's source; None where one reads more, less or scaled.

    Which one it is must be the same everywhere, for it is compiled.
    """
    if len({int(np.prod(shape)) for shape in shapes}) != 1:
        return None
    readers = [AffineReader(model, observation, sources) for observation in block.observations]
    if all(not reader.linear_inputs.values and reader.reads_values(point, shapes) for reader in readers):
        return PlainReading(readers, shapes, point)
    return None


def _names(model: pm.Model, value_names: Sequence[str]) -> str:
    """The random variables of some value variables, for a sentence."""
    names = names_by_value(model)
    return ", ".join(names[name] for name in value_names)


def _rest(structure: ModelStructure, theta: Hyperparameters) -> GraphFunction:
    """Everything in the log density but the blocks, as a function of θ."""
    model = structure.model
    (total,) = theta.substitute([model.logp(vars=structure.rest, sum=True)], model)
    return GraphFunction(model, [theta.symbol], [total, gradient_by(total, theta.symbol)])


def _expressions(observation: Observation) -> list[TensorVariable]:
    """What an observation's likelihood is made of."""
    reading = observation.reading
    if reading is None or observation.likelihood is None:
        return [e for e in observation.variable.owner.inputs if isinstance(e, TensorVariable)]
    return [reading.eta, *reading.others]
