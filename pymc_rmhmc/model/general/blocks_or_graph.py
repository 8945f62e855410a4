"""Which variables of a model are sampled in the chart that is read from its graph, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
from pymc.distributions.mixture import _BaseMixtureRV
from pymc.distributions.multivariate import CARRV
from pytensor.compile.ops import ViewOp
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.basic import Join, MakeVector
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError, listed
from pymc_rmhmc.model.field.field_or_other import InField, as_field, effects_as_field, field_asked_for
from pymc_rmhmc.model.forms.components import LatentReader
from pymc_rmhmc.model.forms.priors import LatentVariable, gaussian_candidates
from pymc_rmhmc.model.general.chart import MOST_COLUMNS, Charted, ChartedVariable
from pymc_rmhmc.model.general.cost import MOST_EMULATED
from pymc_rmhmc.model.general.density import GraphReading
from pymc_rmhmc.model.graph.graphs import Evaluator, reaches_by_value
from pymc_rmhmc.model.hyperparameters import hyperparameters_of
from pymc_rmhmc.model.observed.observation import Observation, names_of
from pymc_rmhmc.model.structure import ModelStructure, check_is_continuous, resolve_variables
from pymc_rmhmc.model.together import about_means_or_not, check_together, written_as_sums

__all__ = ["InGraphChart", "blocks_or_graph", "continuous_variables"]

NO_BLOCK = "the model has no latent Gaussian block"
# As many coefficients share a dense mass matrix in the graph's chart, however their columns are correlated.
MOST_COEFFICIENTS = 50
# From so many seconds on the graph's chart, which takes a dozen gradients where latent blocks take two or three, is
# slower for coefficients.
LONG_GRADIENT = 2e-4
# Of the columns of a matrix so many are looked at, at values moved by this.
MOST_LOOKED_AT, MOVED = 16, 0.3
# As many entries a row half of a matrix's columns have together if they have hardly a row in common.
APART = 1.1
# Values that lie further from 0, in standard deviations of their prior, leave the squares in sites no digits.
FAR_FROM_ZERO = 1e5
# Operations of which each result comes of single values, or of a sum of them: none is a product with a matrix.
BY_VALUE = (
    ViewOp, Elemwise, DimShuffle, CAReduce, Reshape, SpecifyShape, Shape, Shape_i, Join, MakeVector, Subtensor,
    AdvancedSubtensor, IncSubtensor, AdvancedIncSubtensor,
)  # fmt: skip

type Point = dict[str, np.ndarray]


def continuous_variables(model: pm.Model, vars: object = None) -> list[TensorVariable]:  # noqa: A002 - PyMC's name
    """Return the continuous free variables, or those of them that a user named.

    Raises an `UnsupportedModelError` if there is none, or one that is named is discrete, and a `ConfigurationError` if
    one that is named is not free.
    """
    if vars is not None:
        named = resolve_variables(model, vars)
        for variable in named:
            check_is_continuous(variable)
        return named
    free = [v for v in model.free_RVs if v.dtype.startswith("float")]
    if not free:
        if not model.free_RVs:
            raise UnsupportedModelError(
                "The model has no free variables, so there is nothing to sample. Give its parameters priors, such as "
                'pm.Normal("mu", 0, 1).'
            )
        raise UnsupportedModelError(
            "The model has only discrete free variables, and RMHMC moves continuous ones. Sample it with pm.sample() "
            "without step=."
        )
    return free


@dataclass(frozen=True)
class InGraphChart:
    """That all variables are sampled in the chart of the graph."""

    why: str  # the reason
    error: UnsupportedModelError | None = None  # what says that the model has no latent Gaussian block
    reading: GraphReading | None = None  # what has been read of the graph already
    # What to write for processes that are the mean of another, whose sum would be sampled in their covariances.
    advice: Mapping[str, str] = field(default_factory=dict)


def blocks_or_graph[T](
    model: pm.Model, point: Point, build: Callable[[ModelStructure], T], chart: str = "auto"
) -> T | InGraphChart | InField:
    """Return what is built of a model's latent Gaussian blocks, unless a field or the chart of its graph is faster.

    The metric asks for a `chart`: "latent", "graph", "field", or "auto" for the fastest one. `build` is called only if
    the blocks are, or are asked for; it may raise an `UnsupportedModelError`.
    """
    if chart == "graph":
        return InGraphChart("the metric asks for it")
    if chart == "field":
        return field_asked_for(model, point)
    if chart == "latent":
        return about_means_or_not(model, build)
    found = as_field(model, point)
    if isinstance(found, InField):
        return found

    def chosen(structure: ModelStructure) -> T | InGraphChart | InField:
        reading = GraphReading(structure.model, continuous_variables(structure.model), point)
        why = _why_general(structure, reading)
        check_together(structure, why or None)
        if why:
            return InGraphChart(why, reading=reading, advice=written_as_sums(structure))
        effects = effects_as_field(model, point, structure.variables) if _are_of_groups(structure, point) else None
        return build(structure) if effects is None else effects

    try:
        return about_means_or_not(model, chosen)
    except UnsupportedModelError as error:
        return InGraphChart(f"{NO_BLOCK}, and {found}" if found else NO_BLOCK, error)


def _why_general(structure: ModelStructure, reading: GraphReading) -> str:
    """Return why the chart of the graph is faster than the latent blocks that a model has; empty if it is not.

    It is where latents are independent Normals, or a few correlated ones for each group, next to hyperparameters, but
    for coefficients of a basis: nothing is gained then by the matrix that the latent form factorises at each gradient.
    And it is where there are more hyperparameters than that form emulates, or one is an angle, which that form moves on
    a line.
    """
    why = _what_is_read(structure, reading)
    try:
        if why:
            reading.check_differentiable()
    except UnsupportedModelError:  # the blocks may leave out what has no derivative
        return ""
    return why


def _what_is_read(structure: ModelStructure, reading: GraphReading) -> str:
    """Return the reason that `_why_general` gives if the whole density has a derivative."""
    shapes, latents = reading.shapes, structure.latents
    far = [each.variable for each in latents if _is_far_from_zero(reading.model, each, reading.point)]
    if far:
        return f"{names_of(far)} lies over {FAR_FROM_ZERO:.0e} prior standard deviations from 0"
    others = [v for v in reading.variables if v not in structure.variables]
    n_others = sum(math.prod(shapes[v]) for v in others)
    if n_others == 0:
        return ""
    charted = {each.variable: each for each in reading.charted}
    above = _vectors_above(structure, {v for v in charted if math.prod(shapes[v]) > 1})
    if above:
        return f"{names_of(above)} is in the prior mean of {listed([names_of([v]) for v in structure.variables])}"
    angles = [v for v in others if v in reading.periods]
    if angles:
        return f"{names_of(angles)} {'is an angle' if len(angles) == 1 else 'are angles'}"
    # Walks, autoregressions and maps stay in blocks. Where data say much of each value the graph's chart is faster
    # (709 effective draws a second against 190), but where they say little it does not converge: a walk of 200 with
    # steps a tenth of the noise had an R-hat of 1.13 against 1.01 (python -m benchmarks.engines).
    if not all(latent.form == "independent" or _are_rows(latent.variable, charted) for latent in latents):
        return ""
    if n_others > MOST_EMULATED:
        return f"its effects are Normals beside {n_others} other values"
    mixed = [o.variable for o in structure.observations if _is_mixed(o)]
    if mixed:
        return f"{names_of(mixed)} mixes distributions, to which one Gaussian curve does not fit"
    if any(_are_of_a_basis(reading, latent.variable, charted.get(latent.variable)) for latent in latents):
        return ""
    names = listed([names_of([v]) for v in structure.variables])
    return f"the values of {names} are independent given the other variables"


def _is_far_from_zero(model: pm.Model, latent: LatentVariable, point: Point) -> bool:
    """Check whether a value's prior mean at a point is over `FAR_FROM_ZERO` standard deviations from 0."""
    if latent.mean is None or not Evaluator(model, [latent.mean])(point)[0].any():
        return False
    reader = LatentReader(model, latent)
    return any(
        (np.abs(vector.location) > FAR_FROM_ZERO * np.sqrt(vector.variances())).any()
        for vector in reader.vectors(point, reader.rows(0, point))
    )


def _vectors_above(structure: ModelStructure, effects: set[TensorVariable]) -> list[TensorVariable]:
    """Find the latent vectors that give the prior mean of a block's; if none do, the effects that give a map's.

    Blocks would take the last of such a chain alone. A map of 56 areas about seven regions made 3 effective draws a
    second so, and 120 in the chart of the graph.
    """
    latents = [each for each in structure.latents if each.mean is not None]
    maps = [each.mean for each in latents if isinstance(each.variable.owner.op, CARRV)]
    vectors = set(gaussian_candidates(structure.model)) - set(structure.variables)
    found = [v for v in hyperparameters_of(structure.model, [each.mean for each in latents]) if v in vectors]
    return found or [v for v in hyperparameters_of(structure.model, maps) if v in effects]


def _is_mixed(observation: Observation) -> bool:
    """Check whether an unregistered likelihood is a sum of several: a mixture, a hurdle, an excess of zeros."""
    return observation.likelihood is None and isinstance(observation.variable.owner.op, _BaseMixtureRV)


def _are_of_a_basis(reading: GraphReading, variable: TensorVariable, charted: Charted | None) -> bool:
    """Check whether coefficients of a matrix's columns are many, have a moving scale each, or read many rows.

    The data then tie each coefficient to all others. Effective draws a second in the graph's chart and in latent
    blocks: 12 and 240 of an HSGP with 100 basis functions, 13 and 50 of 20 slopes on 30,000 rows. With a few slopes on
    fewer rows they were 866 and 756.
    """
    scale = charted.effect_scale if isinstance(charted, ChartedVariable) else None
    if _is_read_by_value(reading.model, variable, reading.point):
        return False
    size = math.prod(reading.shapes[variable])
    if size > MOST_COEFFICIENTS or not (scale is None or all(scale.type.broadcastable)):
        return True
    return reading.gradient_seconds > LONG_GRADIENT


def _are_of_groups(structure: ModelStructure, point: Point) -> bool:
    """Check whether coefficients beside other variables belong to groups, of which a matrix holds the indicators.

    It does if half of its columns have no more entries together than it has rows. As a field, 100 groups of ten counts
    made 1740 effective draws a second, and by dense matrices of all coefficients 95.
    """
    latents, etas = structure.latents, [o.reading.eta for o in structure.observations if o.reading is not None]
    rng, names = np.random.default_rng(0), [str(value.name) for value in structure.value_vars]
    ends = np.cumsum([point[name].size for name in names])
    if not (etas and structure.left_over and ends[-1]) or any(latent.form != "independent" for latent in latents):
        return False
    predict = Evaluator(structure.model, etas)
    at = {n: v + MOVED * rng.standard_normal(v.shape) if v.dtype.kind == "f" else v for n, v in point.items()}
    here, shares = predict(at), []
    for column in np.unique(np.linspace(0, ends[-1] - 1, MOST_LOOKED_AT).astype(int)):
        which = int(np.searchsorted(ends, column, side="right"))
        moved = at[names[which]].copy()
        moved.flat[column - ends[which]] += 1.0  # from the end
        there = predict({**at, names[which]: moved})
        shares.append(np.mean(np.concatenate([np.ravel(a != b) for a, b in zip(here, there, strict=True)])))
    return bool(np.mean(np.sort(shares)[: (len(shares) + 1) // 2]) * ends[-1] / 2 <= APART)


def _are_rows(variable: TensorVariable, charted: Container[TensorVariable]) -> bool:
    """Check whether a variable is a vector for each of several groups, which a chart places."""
    return variable.ndim == 2 and variable in charted


def _is_read_by_value(model: pm.Model, variable: TensorVariable, point: Point) -> bool:
    """Check whether all that depends on a variable reads few of its values at a time."""
    known: dict[Variable, bool] = {}
    ends = [v for v in model.basic_RVs if v is not variable]
    for reader in (*ends, *model.potentials):
        blockers = [v for v in ends if v is not reader]
        inputs = reader.owner.inputs if reader in model.basic_RVs else [reader]
        for node in toposort([i for i in inputs if i.owner is not None], blockers=[variable, *blockers]):
            is_on_the_way = any(reaches_by_value(i, [variable], known, blockers) for i in node.inputs)
            if is_on_the_way and not _goes_by_value(model, node, point):
                return False
    return True


def _goes_by_value(model: pm.Model, node: Apply, point: Point) -> bool:
    """Check whether an operation makes each result of few input values; for a product these are a row and a column."""
    # A distribution within another is a part of a mixture: it goes by value unless it is of vectors.
    if isinstance(node.op, BY_VALUE) or getattr(node.op, "ndim_supp", None) == 0:
        return True
    if not isinstance(getattr(node.op, "core_op", node.op), Dot):
        return False
    # No more than of effects that are correlated within a group.
    (length,) = Evaluator(model, [node.inputs[0].shape[-1]])(point)
    return int(length) <= MOST_COLUMNS
