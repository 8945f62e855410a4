"""Whether a model is sampled as a Gaussian field: decided by its structure, before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.distributions.timeseries import AutoRegressiveRV, EulerMaruyamaRV, RandomWalkRV
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model.field.affinity import TOO_MANY
from pymc_rmhmc.model.field.field_model import FieldPlan, ReadField, plan_field
from pymc_rmhmc.model.field.running_sum import running_sum
from pymc_rmhmc.model.graph.graphs import NO_DERIVATIVE, core_op
from pymc_rmhmc.model.observed.observation import names_of
from pymc_rmhmc.model.words.bad_inputs import OF_CLASSES

__all__ = ["FIELD", "FieldPolicy", "InField", "as_field", "effects_as_field", "field_asked_for", "read_of_several"]

type Point = dict[str, np.ndarray]

# What makes neighbours in time or in space depend on one another.
SERIES_AND_MAPS = (AutoRegressiveRV, EulerMaruyamaRV, RandomWalkRV, ICARRV, CARRV)


@dataclass(frozen=True, slots=True)
class FieldPolicy:
    """Which models the field takes."""

    # Of a series, a map or a running sum: with fewer values its dense matrix costs next to nothing. Not where its prior
    # mean has another latent vector, or the other way round: no other chart places both. A map of 28 areas about 7
    # regions with counts made 1 to 12 effective draws a second in the graph's chart, and 3000 to 4400 as a field.
    fewest_neighbours: int = 40
    # Of a model in which there are some: neighbours that are fewer leave dense blocks of all its values together. A map
    # of 36 areas with a walk of 10 and 360 effects made 42 effective draws a second in them, and 297 as a field.
    fewest_in_all: int = 150
    # Of effects without neighbours: below this the chart of the graph is as fast.
    fewest_effects: int = 1000
    # Series and maps beside a Gaussian process: of fewer values for each of its own, dense blocks are as fast. With 300
    # and 52 values they made 105 effective draws a second and the field 319, with 300 and 150 they made 57 and 48.
    fewest_beside: int = 3
    # Of what an observation reads through several predictors, as a mean and a spread, or a logit for each class: the
    # chart of the graph needs long trajectories. Effects of 200 groups on both made 102 in it and 156 as a field, of 60
    # groups on three classes 50 and 412; of 20 groups 254 and 218. With a Gaussian process among them no other chart
    # takes them together, but its matrices are dense.
    fewest_of_several: int = 150
    # Of a Gaussian process among these. Three classes of 30 points with a given covariance made 2 effective draws of
    # 1000 in the graph's chart.
    fewest_of_process: int = 10
    most_dense: int = 1500
    # Its chart for θ is dense, and learned from draws.
    most_hyperparameters: int = 60


FIELD = FieldPolicy()


@dataclass(frozen=True)
class InField:
    """That a model is sampled as a Gaussian field."""

    why: str  # the reason
    read: ReadField  # how it was read


def field_asked_for(model: pm.Model, point: Point) -> InField:
    """Return the field of a model whose metric asks for one.

    Raises an `UnsupportedModelError` if there is none.
    """
    plan = plan_field(model, point)
    found = plan if isinstance(plan, str) else _unless_refused(plan)
    if isinstance(found, str):
        raise UnsupportedModelError(
            f'chart="field" needs a Gaussian field, but {found}. Leave the chart out, and RMHMC takes another one.'
        )
    return InField("the metric asks for it", found)


def as_field(model: pm.Model, point: Point, policy: FieldPolicy = FIELD) -> InField | str:
    """Return the field of a model that is sampled best as one; of another what prevents it, empty if nothing did."""
    if not _may_be(model, point, policy):
        return ""
    plan = plan_field(model, point)
    why = "" if isinstance(plan, str) else _why(plan, policy)
    if isinstance(plan, str) or not why:
        return _why_not(plan, policy)
    found = _unless_refused(plan)
    return "" if isinstance(found, str) else InField(why, found)


def _why_not(plan: FieldPlan | str, policy: FieldPolicy) -> str:
    """Say that observations have too many predictors, or too many values of processes behind several; else empty."""
    reasons = [plan.partition(": ")[2]] if isinstance(plan, str) else list(plan.choice.refused.values())
    crowded = [reason for reason in reasons if reason.endswith(TOO_MANY)]
    if crowded or isinstance(plan, str):
        return crowded[0] if crowded else ""
    kernels, latents, n_dense = plan.choice.kernels, plan.choice.latents, _n_together(plan)
    if n_dense <= policy.most_dense or not any(_reads_several(o.variable, latents) for o in plan.choice.observations):
        return ""
    return f"{_named(kernels)} have {n_dense} values (a Gaussian field takes up to {policy.most_dense} of processes)"


def _n_together(plan: FieldPlan) -> int:
    """Return how many values have a dense covariance: of alike vectors each contrast is a part by itself."""
    return sum(each.size for each in plan.kernels if each.same_as is None)


def read_of_several(model: pm.Model, point: Point) -> ReadField | None:
    """Return the field of a model in which an observation reads several predictors, of any size; else None."""
    vectors = [v for v in model.free_RVs if v.dtype.startswith("float")]
    if not any(_reads_several(y, vectors) for y in model.observed_RVs):
        return None
    plan = plan_field(model, point)
    if isinstance(plan, str):
        return None
    observed = [o.variable for o in plan.choice.observations]
    found = _unless_refused(plan) if any(_reads_several(y, plan.choice.latents) for y in observed) else ""
    return None if isinstance(found, str) else found


def effects_as_field(
    model: pm.Model, point: Point, effects: Sequence[TensorVariable], policy: FieldPolicy = FIELD
) -> InField | None:
    """Return the field of effects that a sparse matrix reads; None if they are no field, or too much is outside it."""
    plan = plan_field(model, point)
    if isinstance(plan, str) or plan.theta.size > policy.most_hyperparameters:
        return None
    found = _unless_refused(plan) if set(effects) <= set(plan.choice.latents) else ""
    return None if isinstance(found, str) else InField(f"a sparse matrix reads {_named(effects)}", found)


def _unless_refused(plan: FieldPlan) -> ReadField | str:
    """Read a field, or say why it cannot be."""
    try:
        for each in (o for o in plan.choice.observations if o.likelihood is None):
            pytensor.grad(each.log_density, list(each.predictors), disconnected_inputs="ignore")
        return plan.read()
    except NO_DERIVATIVE:
        return "PyTensor has no derivative of it"


def _may_be(model: pm.Model, point: Point, policy: FieldPolicy) -> bool:
    """Look at the names of distributions and operations alone."""
    if any(isinstance(core_op(v), SERIES_AND_MAPS) for v in model.free_RVs):
        return True
    sizes = {v: math.prod(_shape(model, point, v)) for v in model.free_RVs if v.dtype.startswith("float")}
    if sum(size == 1 for size in sizes.values()) >= policy.fewest_neighbours:
        return True
    series = {v for v, size in sizes.items() if size >= policy.fewest_neighbours}
    sums = [v for v in ancestors([*model.basic_RVs, *model.potentials]) if running_sum(v.owner)] if series else []
    if series.intersection(ancestors([*sums, *model.potentials])):
        return True
    vectors = [v for v, size in sizes.items() if size > 1]
    n_values = sum(sizes[v] for v in vectors)
    if n_values >= policy.fewest_of_process and any(_reads_several(y, vectors) for y in model.observed_RVs):
        return True
    return n_values >= policy.fewest_effects


def _reads_several(observed: TensorVariable, vectors: Sequence[TensorVariable]) -> bool:
    """Return whether vectors are in more than one parameter of a distribution, or in those of classes."""
    inputs = [] if observed.owner is None else observed.owner.inputs
    reading = [each for each in inputs if not set(vectors).isdisjoint(ancestors([each]))]
    return len(reading) > 1 or (len(reading) == 1 and isinstance(core_op(observed), OF_CLASSES))


def _shape(model: pm.Model, point: Point, variable: TensorVariable) -> tuple[int, ...]:
    return np.shape(point[str(model.rvs_to_values[variable].name)])


def _why(plan: FieldPlan, policy: FieldPolicy) -> str:
    """Return why the field is the best form of a model; empty if it is not."""
    latents, kernels = plan.choice.latents, plan.choice.kernels
    if plan.theta.size > policy.most_hyperparameters:
        return ""
    sizes = {v: math.prod(_shape(plan.model, plan.graphs.point, v)) for v in latents}
    sparse, reason = [v for v in latents if v not in kernels], ""
    n_sparse, n_dense = (sum(sizes[v] for v in part) for part in (sparse, kernels))
    if n_sparse >= policy.fewest_beside * n_dense:
        reason = _why_sparse(plan, policy, {v: sizes[v] for v in sparse})
    if reason and kernels:
        return f"{reason}, next to which {_named(kernels)} {'has' if len(kernels) == 1 else 'have'} few values"
    is_large = n_sparse + n_dense >= policy.fewest_of_several
    is_large = is_large or any(each.size >= policy.fewest_of_process for each in plan.kernels)
    if reason or not is_large or _n_together(plan) > policy.most_dense or _outside(plan):
        return reason
    several = [o.variable for o in plan.choice.observations if _reads_several(o.variable, latents)]
    verb = "reads" if len(several) == 1 else "read"
    return f"{_named(several)} {verb} {_named(latents)} through several predictors" if several else ""


def _why_sparse(plan: FieldPlan, policy: FieldPolicy, sizes: dict[TensorVariable, int]) -> str:
    """Return why a field is the best form of the variables with these sizes; empty if it is not."""
    neighbours = [v for v in sizes if isinstance(core_op(v), SERIES_AND_MAPS)]
    is_large = sum(sizes.values()) >= policy.fewest_in_all
    is_long = any(sizes[v] >= policy.fewest_neighbours for v in neighbours)
    if neighbours and (is_large or is_long or _are_about_a_vector(plan, neighbours)):
        return f"neighbours in {_named(neighbours)} make a sparse precision"
    potentials, tied = _tied(plan, policy)
    if tied:
        return f"the squares in {_named(potentials)} tie values of {_named(tied)} in a sparse precision"
    summed = [v for v, n in plan.n_summed.items() if n >= policy.fewest_neighbours]
    if summed:
        sums, walks = ("sum", "is a walk") if len(summed) == 1 else ("sums", "are walks")
        return f"the running {sums} of {_named(summed)} {walks} with a sparse precision"
    chained = _chained(plan)
    if len(chained) >= policy.fewest_neighbours:
        return f"{chained[0].name}, {chained[1].name} and {len(chained) - 2} more are each the mean of another"
    if _outside(plan):
        return ""
    if sum(sizes.values()) >= policy.fewest_effects:
        return f"{_named(list(sizes))} have a sparse precision together"
    return ""


def _are_about_a_vector(plan: FieldPlan, neighbours: Sequence[TensorVariable]) -> bool:
    """Return whether another latent vector is in the prior mean of neighbours, or they in its prior mean."""
    graphs = plan.graphs
    vectors = [v for v in plan.choice.latents if _shape(plan.model, graphs.point, v)]
    for v in vectors:
        others = [each for each in (vectors if v in neighbours else neighbours) if each is not v]
        if graphs.bits[graphs.residuals[v].values] & graphs.bits_of(others):
            return True
    return False


def _chained(plan: FieldPlan) -> list[TensorVariable]:
    """List single latent values, each of which another one's prior reads: a series that is written as a loop."""
    graphs, latents = plan.graphs, plan.choice.latents
    single = [v for v in latents if not _shape(plan.model, graphs.point, v)]
    bit = {v: graphs.bits_of([v]) for v in single}
    read = [graphs.bits[graphs.residuals[v].values] & ~bit[v] for v in single]
    return [v for v in single if any(each & bit[v] for each in read)]


def _tied(plan: FieldPlan, policy: FieldPolicy) -> tuple[list[TensorVariable], list[TensorVariable]]:
    """List potentials of many squares, and the vectors that they read: a series or a map, written as its steps."""
    rows, values, fewest = plan.choice.rows, plan.graphs.values, policy.fewest_neighbours
    # Second differences of n values are n - 2.
    many = [v for v in plan.model.potentials if v in rows and (rows[v].values.type.shape[0] or 0) >= fewest - 2]
    read = set(ancestors([rows[v].values for v in many]))
    sizes = {v: math.prod(_shape(plan.model, plan.graphs.point, v)) for v in plan.choice.latents if values[v] in read}
    return many, [v for v, size in sizes.items() if size >= fewest]


def _outside(plan: FieldPlan) -> list[TensorVariable]:
    """List vectors of θ: where there are some the field is but a part of the model."""
    return [v for v, shape in zip(plan.theta.variables, plan.theta.shapes, strict=True) if math.prod(shape) > 20]


def _named(variables: Sequence[TensorVariable]) -> str:
    return names_of(list(variables))
