"""Latent Gaussian blocks together with their hyperparameters, as functions of (θ, η) with their derivatives.

What is compiled of a model is what depends on θ: mean and covariance, the likelihood, and the rest of the log
density. Factorisations stay outside: `pymc_rmhmc.latent.joint_target` has their derivatives by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.interfaces.joint_density import Bound
from pymc_rmhmc.model.deviations import LatentMeans
from pymc_rmhmc.model.forms.components import LatentRow
from pymc_rmhmc.model.forms.joint_blocks import Block, VectorBlock
from pymc_rmhmc.model.forms.linear_blocks import DesignBlock, DesignSource, Reader, SumBlock
from pymc_rmhmc.model.forms.linear_normals import ScaledSource, scaled_source
from pymc_rmhmc.model.forms.priors import LatentVariable, gaussian_candidates
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, Evaluator, inlined, no_derivative_in_words
from pymc_rmhmc.model.graph.scales import is_never_zero, scales_first
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters, hyperparameters_of
from pymc_rmhmc.model.observed.designs import (
    DesignReader,
    MovingDesign,
    PlainReading,
    Predictors,
    SameValues,
    why_not_moving,
)
from pymc_rmhmc.model.observed.observation import Observation, distribution_of, names_by_value, names_of
from pymc_rmhmc.model.observed.observations import AffineReader
from pymc_rmhmc.model.observed.observed_terms import ObservedTerms, Terms, UnregisteredTerms, gradient_by
from pymc_rmhmc.model.structure import LatentBlock, ModelStructure

__all__ = ["NO_HYPERPARAMETERS", "JointBlock", "JointModel", "JointPlan", "plan_joint", "read_joint"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Sites = NDArray[np.int64]
type JointBlock = DesignBlock | SumBlock | VectorBlock

NO_HYPERPARAMETERS = "no block depends on continuous hyperparameters"
# θ has a dense mass matrix, learned from as many draws, and its curvature at the mode costs two gradients a dimension.
MOST_HYPERPARAMETERS = 1000
# Rows that are one vector cost the square of their number times what rows by themselves would.
MOST_ROWS_IN_ONE = 8
# On the unconstrained scale, on which PyMC samples them, parameters shift these and do not narrow them.
SHIFTED = {"HalfNormal", "HalfCauchy", "HalfStudentT", "HalfFlat", "Exponential", "Uniform"}
# Which parameter of others does no more than that, in the order of `dist_params`.
LOCATION = {
    **dict.fromkeys(("Normal", "Laplace", "Cauchy", "Logistic", "Gumbel", "SkewNormal", "MvNormal", "LogNormal"), 0),
    **dict.fromkeys(("StudentT", "MvStudentT", "Gamma", "InverseGamma", "Weibull"), 1),
}


class JointModel:
    """A model's blocks with their hyperparameters θ.

    Attributes
    ----------
    rest_names : tuple of str
        The variables and potentials whose log densities `rest` adds up.
    of_likelihoods : (k,) int array
        The coordinates of θ that are parameters of likelihoods, and that latents and predictors know nothing of.
    of_hierarchies : (k,) int array
        Those by whose spread the density has no bound: effects, their mean and their scale.
    means : LatentMeans or None
        Of vectors of which the blocks have the deviations.
    """

    def __init__(
        self, theta: Hyperparameters, blocks: Sequence[Block], rest: GraphFunction, rest_names: Sequence[str],
        of_likelihoods: NDArray[np.int64], of_hierarchies: NDArray[np.int64], means: LatentMeans | None = None,
    ) -> None:  # fmt: skip
        self.theta, self.blocks, self._rest, self.rest_names = theta, tuple(blocks), rest, tuple(rest_names)
        self.of_likelihoods, self.of_hierarchies = of_likelihoods, of_hierarchies
        self._functions = [rest, *(f for block in blocks for f in block.functions)]
        # Of the latents' own values no more than shapes can be left in the functions.
        own = {name for block in self.blocks for name in block.value_names}
        names = [*(n for f in self._functions for n in f.value_names), *(means.inputs if means else ())]
        self.inputs = tuple(dict.fromkeys(n for n in names if n not in {*own, *theta.names}))
        self._means, self._others = means, dict[str, np.ndarray]()

    @property
    def functions(self) -> tuple[GraphFunction, ...]:
        """The functions of θ and η."""
        return tuple(self._functions)

    @property
    def n_functions(self) -> int:
        """How many functions of θ and η there are."""
        return len(self._functions)

    def bind(self, point: Point) -> None:
        """Condition on everything that is not sampled, and take shared data as they are now.

        Raises a DataError if observations read other latent values than they did when the model was read.
        """
        for function in self._functions:
            function.bind(point)
        for block in self.blocks:
            block.bind(point)
        self._others = {name: point[name] for name in self.inputs}

    def to_model(self, theta: Array, latents: list[Array]) -> list[Array]:
        """Return the values of the model's variables, of those that each block has."""
        return latents if self._means is None else self._moved(theta, latents, self._means.add)

    def from_model(self, theta: Array, values: Sequence[Array]) -> Sequence[Array]:
        """Return the values that each block has, of those of the model's variables."""
        return values if self._means is None else self._moved(theta, values, self._means.subtract)

    def _moved(self, theta: Array, values: Sequence[Array], move: Callable[[Point], None]) -> list[Array]:
        """Return values of the blocks that were changed in place as a point."""
        made, point = [each.copy() for each in values], self._others | self.theta.unpack(theta)
        for block, own in zip(self.blocks, made, strict=True):
            point |= zip(block.value_names, np.split(own, np.cumsum(block.sizes)[:-1]), strict=True)
        move(point)
        return made

    def compiled_rest(self) -> Bound:
        """Return the function that `rest` calls, and what it takes after θ."""
        return self._rest.function, self._rest.bound

    def rest(self, theta: Array) -> tuple[float, Array]:
        """Return the log density of everything but the blocks' priors and likelihoods, and its gradient (d,)."""
        total, gradient = self._rest(theta)
        return float(total), gradient


@dataclass(frozen=True, eq=False)
class JointPlan:
    """Blocks and hyperparameters that can be sampled together, of which no function has been built.

    `describe` asks for no more: building reads the matrices of predictors, which of large models takes long.
    """

    structure: ModelStructure
    theta: Hyperparameters
    blocks: tuple[_BlockPlan, ...]

    def build(self) -> JointModel | str:
        """Build the functions of the model, or give the reason why there are none."""
        structure, theta = self.structure, self.theta
        try:
            blocks, rest = [plan.build() for plan in self.blocks], _rest(structure, theta)
        except NO_DERIVATIVE as error:
            return no_derivative_in_words("the model by its hyperparameters", error)
        hierarchies = _of_hierarchies(structure.model, theta)
        of_likelihoods = _of_likelihoods(structure, theta)
        for block in blocks:  # what moves sites cannot move where they are held
            of_likelihoods &= ~block.shifts_likelihoods
        names = [str(variable.name) for variable in structure.rest]
        means = None if structure.deviations is None else structure.deviations.means()
        return JointModel(theta, blocks, rest, names, np.flatnonzero(of_likelihoods), hierarchies, means)


def read_joint(
    structure: ModelStructure, point: Point, named: Sequence[TensorVariable] | None = None
) -> JointModel | str:
    """Read a structure's blocks and hyperparameters together, or give the reason why they cannot be.

    `named` are the hyperparameters wanted, by default all that there are.
    """
    plan = plan_joint(structure, point, named)
    return plan if isinstance(plan, str) else plan.build()


def plan_joint(
    structure: ModelStructure, point: Point, named: Sequence[TensorVariable] | None = None
) -> JointPlan | str:
    """Plan what `read_joint` builds, or give its reason not to, but for a missing derivative, found in building."""
    model = structure.model
    silent = [block.name for block in structure.blocks if not block.observations]
    if silent:
        return f"nothing is observed of {silent[0]}"
    expressions = [e for latent in structure.latents for e in latent.expressions]
    expressions += [e for o in structure.observations for e in _expressions(o)]
    latents = set(structure.variables)
    variables = [v for v in hyperparameters_of(model, expressions) if v not in latents]
    if named is not None:
        strange = [v for v in named if v not in variables]
        if strange:
            return f"no block depends on {names_of(strange)}"
        variables = [v for v in variables if v in named]
    if not variables and structure.deviations is None:
        return NO_HYPERPARAMETERS
    candidates = gaussian_candidates(model)
    vectors = [v for v in variables if v in candidates and (named is None or v not in named)]
    if vectors:
        return f"{names_of(vectors)} is no hyperparameter but a latent vector, which needs a step of its own"
    theta = Hyperparameters(model, variables, point)
    if theta.size > MOST_HYPERPARAMETERS:
        return f"there are {theta.size} hyperparameters, more than {MOST_HYPERPARAMETERS}"
    plans: list[_BlockPlan] = []
    for block in structure.blocks:
        plan = _plan_block(model, block, theta, point)
        if isinstance(plan, str):
            return plan
        plans.append(plan)
    return JointPlan(structure, theta, tuple(plans))


def _of_likelihoods(structure: ModelStructure, theta: Hyperparameters) -> NDArray[np.bool_]:
    """Find the coordinates of θ that parameters of likelihoods read, and neither a latent's prior nor a predictor."""
    sources, observations = [latent.source for latent in structure.latents], structure.observations
    priors = [e for latent in structure.latents for e in latent.expressions]
    readings = [o.reading for o in observations if o.reading is not None]
    parameters = [value for reading in readings for value in reading.parameters.values()]
    # With the latents held all of a likelihood that is not registered is such.
    parameters += [e for o in observations if o.likelihood is None for e in _expressions(o)]
    model = structure.model
    elsewhere = theta.read_by([*priors, *(reading.eta for reading in readings)], model, sources)
    return theta.read_by(parameters, model, sources) & ~elsewhere


@dataclass(frozen=True, eq=False)
class _BlockPlan:
    """How a block is built: which vectors it has, where predictors read them, and which are the sites."""

    model: pm.Model
    block: LatentBlock
    theta: Hyperparameters
    point: Point
    sources: Sequence[ScaledSource]  # where predictors read each vector
    shapes: Sequence[tuple[int, ...]]
    rows: Sequence[LatentRow]  # of the first vector
    # Which values observations read, where the sites are the values of the vector, or sums of those of several.
    plain: PlainReading | None = None
    # By which matrix predictors read the vectors, where the sites are the observations; and of what it is read.
    design: tuple[DesignReader, Predictors] | None = None

    def build(self) -> JointBlock:
        """Build the block in the form that fits it."""
        if self.plain is None:
            assert self.design is not None
            reader, predictors = self.design
            sizes = reader.sizes(self.point)
            sites = [np.arange(end - size, end) for size, end in zip(sizes, np.cumsum(sizes), strict=True)]
            read = MovingDesign(predictors, self.theta, self.point) if reader.inputs else reader
            return self._of_matrices(read, self._terms(sites))
        observed = self._terms(self.plain.sites)
        (latent, *others), (source, *_) = self.block.latents, self.sources
        if others or latent.form == "independent" or source.is_scaled:
            same = SameValues(math.prod(self.shapes[0]), len(self.shapes))
            made: JointBlock = self._of_matrices(same, observed)
        else:
            made = VectorBlock(self.model, self.block.name, latent, self.theta, self.rows, self.shapes[0], observed)
        made.plain = self.plain
        return made

    def _of_matrices(self, reader: Reader, observed: Sequence[Terms]) -> DesignBlock | SumBlock:
        """Build coefficients alone, or a sum of vectors."""
        model, latents = self.model, self.block.latents
        own = [np.shape(self.point[str(model.rvs_to_values[latent.variable].name)]) for latent in latents]
        sources = [DesignSource(*each) for each in zip(latents, self.sources, own, strict=True)]
        form = DesignBlock if all(latent.form == "independent" for latent in latents) else SumBlock
        return form(model, self.block.name, sources, reader, self.theta, observed, self.point)

    def _terms(self, sites: Sequence[Sites]) -> list[Terms]:
        """Say what observations say of the sites that they read; without a linear predictor they read all of them."""
        model, theta, point = self.model, self.theta, self.point
        read = {source.node: shape for source, shape in zip(self.sources, self.shapes, strict=True)}
        whole = [o for o in self.block.observations if o.reading is None]
        others = [o for o in self.block.observations if o.reading is not None]
        made: list[Terms] = [
            UnregisteredTerms.of_latents(model, o, *each, theta, point) for o in whole for each in read.items()
        ]
        for observation, index in zip(others, sites, strict=True):
            if observation.likelihood is not None:
                made.append(ObservedTerms(model, observation, read, theta, index))
            else:
                made.append(UnregisteredTerms.of_predictor(model, observation, read, theta, index, point))
        return made


def _plan_block(model: pm.Model, block: LatentBlock, theta: Hyperparameters, point: Point) -> _BlockPlan | str:
    """Plan a block in the form that fits it, or give the reason why none does.

    The sites are the observations, or the latents where each observation reads one value of each vector.
    """
    if any(o.reading is None for o in block.observations):
        return _plan_unregistered(model, block, theta, point)
    block = _with_scales_first(model, block)
    readers = block.latent_readers(model)
    shapes = [each.source_shape(point) for each in readers]
    rows = [each.rows(i, point) for i, each in enumerate(readers)]
    held = zip(block.latents, shapes, strict=True)
    sources = [_vector_source(model, block, latent, shape, point) for latent, shape in held]
    plain = _plain_reading(model, block, [source.node for source in sources], shapes, point)
    is_alone = len(rows) == 1
    if not (plain is not None and is_alone) and max(len(r) for r in rows) > MOST_ROWS_IN_ONE:
        return f"{block.name} has more than {MOST_ROWS_IN_ONE} rows, which would be one vector"
    plan = _BlockPlan(model, block, theta, point, sources, shapes, rows[0], plain)
    if plain is None or not (is_alone or all(len(r) == 1 for r in rows)):
        return _by_a_matrix(plan, rows)
    return plan


def _plan_unregistered(model: pm.Model, block: LatentBlock, theta: Hyperparameters, point: Point) -> _BlockPlan | str:
    """Plan a block with likelihoods that are not registered, whose sites are the values of its vector."""
    (latent, *others), reason = block.latents, f"the likelihood of {block.name} has no closed form here"
    if others or latent.form == "independent":
        return f"{reason}, and reads something else than one vector with a covariance"
    (reader,) = block.latent_readers(model)
    rows, shapes = reader.rows(0, point), [reader.source_shape(point)]
    if len(rows) > 1:
        return f"{reason}, and {block.name} has rows"
    registered = replace(block, observations=tuple(o for o in block.observations if o.reading is not None))
    plain = _plain_reading(model, registered, [latent.source], shapes, point)
    if plain is None:
        return f"{reason}, and another reads more than single values"
    return _BlockPlan(model, block, theta, point, [ScaledSource(latent.source)], shapes, rows, plain)


def _by_a_matrix(plan: _BlockPlan, rows: Sequence[Sequence[LatentRow]]) -> _BlockPlan | str:
    """Plan a block whose sites are the observations, or give the reason why it is none."""
    model, block, theta = plan.model, plan.block, plan.theta
    sources = [_coefficient_source(plan, i) for i in range(len(block.latents))]
    positions = [np.concatenate([row.positions for row in each]) for each in rows]
    predictors = Predictors(model, block.observations, [s.node for s in sources], plan.shapes, positions)
    reader = DesignReader(predictors)
    if reader.inputs:
        names = names_by_value(model)
        reason = f"how the predictor reads {block.name} depends on {', '.join(names[name] for name in reader.inputs)}"
        if not set(reader.inputs) <= set(theta.names):
            return reason
        why = why_not_moving(predictors, theta)
        if why:
            return f"{reason} through {why}"
    return replace(plan, sources=sources, plain=None, design=(reader, predictors))


def _plain_reading(
    model: pm.Model, block: LatentBlock, sources: Sequence[TensorVariable], shapes: Sequence[tuple[int, ...]],
    point: Point,
) -> PlainReading | None:  # fmt: skip
    """Find the value that each observation reads of every vector's source; None where one reads more, less or scaled.

    Which one it is must be the same everywhere, for it is compiled.
    """
    if len({int(np.prod(shape)) for shape in shapes}) != 1:
        return None
    readers: list[AffineReader] = [
        AffineReader(model, each, sources) if each.likelihood is None else block.registered_reader(model, each, sources)
        for each in block.observations
    ]
    if all(not reader.linear_inputs.values and reader.reads_values(point, shapes) for reader in readers):
        return PlainReading(readers, shapes, point)
    return None


def _with_scales_first(model: pm.Model, block: LatentBlock) -> LatentBlock:
    """Return a block whose latent vectors are multiplied by their scales before any matrix is."""
    readings = [o.reading for o in block.observations if o.reading is not None]
    sources = [latent.source for latent in block.latents]
    etas = scales_first(model, inlined(_etas(block), [*sources, *model.basic_RVs]), sources)
    observations = [
        o if eta is reading.eta else replace(o, reading=reading._replace(eta=eta))
        for o, reading, eta in zip(block.observations, readings, etas, strict=True)
    ]
    return replace(block, observations=tuple(observations))


def _vector_source(
    model: pm.Model, block: LatentBlock, latent: LatentVariable, shape: tuple[int, ...], point: Point
) -> ScaledSource:
    """Find where a vector is read: with a covariance behind a number that multiplies all of it, if there is one."""
    plain = ScaledSource(latent.source)
    # Coefficients are their own sources; and rows have one covariance, which no number of each may multiply.
    if latent.form == "independent" or latent.variable.ndim != 1:
        return plain
    variables = [each.variable for each in block.latents]
    scaled = scaled_source(latent.source, _etas(block), variables, lambda factor: is_never_zero(model, factor))
    return scaled if scaled.is_scaled and _fits(model, latent, scaled, shape, point) else plain


def _fits(model: pm.Model, latent: LatentVariable, scaled: ScaledSource, shape: tuple[int, ...], point: Point) -> bool:
    """Return whether a multiplier has a number for each value of a vector, or one for all, and is not 0 at a point."""
    (scale,) = Evaluator(model, [scaled.scale])(point)
    if np.broadcast_shapes(scale.shape, shape) != shape or (latent.root == "kronecker" and scale.size != 1):
        return False
    return bool(np.isfinite(scale).all() and scale.all())


def _coefficient_source(plan: _BlockPlan, which: int) -> ScaledSource:
    """Find where a vector is read; coefficients too behind the scale that multiplies them."""
    latent, model, block = plan.block.latents[which], plan.model, plan.block
    if latent.form != "independent":
        return plan.sources[which]
    scaled = scaled_source(latent.variable, _etas(block), [each.variable for each in block.latents])
    # A product with more values than the variable is no scale of it.
    same = np.shape(Evaluator(model, [scaled.node])(plan.point)[0]) == plan.shapes[which]
    return scaled if same else plan.sources[which]


def _etas(block: LatentBlock) -> list[TensorVariable]:
    """List the predictors."""
    return [o.reading.eta for o in block.observations if o.reading is not None]


def _of_hierarchies(model: pm.Model, theta: Hyperparameters) -> NDArray[np.int64]:
    """Find the coordinates of θ that are effects with a prior that other coordinates spread, and these others.

    Where a scale goes to 0 and its effects with it the density grows without a bound, on next to no volume: its mode
    is no place to begin at.
    """
    found = np.zeros(theta.size, dtype=bool)
    for variable, part in zip(theta.variables, theta.slices, strict=True):
        name, parameters = distribution_of(variable), _parameters(variable)
        if name in SHIFTED:
            continue
        location = LOCATION.get(name)
        spread = theta.read_by([p for i, p in enumerate(parameters) if i != location], model)
        if spread.any():
            found |= theta.read_by(parameters, model)
            found[part] = True
    return np.flatnonzero(found)


def _parameters(variable: TensorVariable) -> list[TensorVariable]:
    """List those of a distribution in their order; of one that is made of others all that goes into it."""
    op = variable.owner.op
    given = op.dist_params(variable.owner) if hasattr(op, "dist_params") else variable.owner.inputs
    return [i for i in given if isinstance(i, TensorVariable)]


def _rest(structure: ModelStructure, theta: Hyperparameters) -> GraphFunction:
    """Return everything in the log density but the blocks, as a function of θ."""
    model = structure.model
    (total,) = theta.substitute([model.logp(vars=structure.rest, sum=True)], model)
    return GraphFunction(model, [theta.symbol], [total, gradient_by(total, theta.symbol)])


def _expressions(observation: Observation) -> list[TensorVariable]:
    """List what an observation's likelihood is made of."""
    reading = observation.reading
    if reading is None or observation.likelihood is None:
        return [e for e in observation.variable.owner.inputs if isinstance(e, TensorVariable)]
    return [reading.eta, *reading.others]
