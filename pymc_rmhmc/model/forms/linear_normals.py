"""Vectors of Normals that a predictor is linear in, and the scales behind which predictors read vectors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.distribution import PartialObservedRV
from pytensor.graph.basic import Apply
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.affine import is_linear, predictor_node
from pymc_rmhmc.model.graph.graphs import operation_name, reaches, readers_of
from pymc_rmhmc.model.likelihoods import Reading, read_likelihood
from pymc_rmhmc.model.observed.observation import UNOBSERVED, direct_readers

__all__ = ["ScaledSource", "linear_normals", "scaled_source"]


def linear_normals(
    model: pm.Model, beside: Sequence[TensorVariable] = (), *, predictors: bool = True,
    readers: Mapping[TensorVariable, Sequence[TensorVariable]] | None = None,
) -> list[TensorVariable]:  # fmt: skip
    """Find free Normals, in any shape, that every likelihood that depends on them reads linearly and together.

    None of them is in another's prior, and where two are multiplied the one of more values counts; one that is
    multiplied by a variable `beside` them is none. Without `predictors` those of registered likelihoods alone.
    `readers` is what `direct_readers` gives, if that is known.
    """
    readers = direct_readers(model) if readers is None else readers
    seen = [*model.observed_RVs, *_imputed(model)]
    free = [
        v for v in model.free_RVs
        if isinstance(v.owner.op, NormalRV) and model.rvs_to_transforms.get(v) is None and v not in seen
    ]  # fmt: skip
    registered = {v: read_likelihood(v) for v in seen}
    readings = {v: found[1] for v, found in registered.items() if found is not None}
    readings = {v: r for v, r in readings.items() if not _by_other_parameters(model, r, free, beside)}
    others = [v for v in registered if v not in readings and predictors and free]
    largest = _largest_first(model, free) if others else []
    readings |= {v: reading for v in others if (reading := _unregistered_reading(model, v, largest, beside))}
    etas = [reading.eta for reading in readings.values()]
    candidates = [v for v in free if _is_read(model, v, readers[v], seen, readings)]
    if all(is_linear(eta, [*beside, *candidates], model.basic_RVs) for eta in etas):
        return candidates
    chosen: list[TensorVariable] = []
    for variable in _largest_first(model, candidates):
        if all(is_linear(eta, [*beside, *chosen, variable], model.basic_RVs) for eta in etas):
            chosen.append(variable)
    return [v for v in candidates if v in chosen]


def _by_other_parameters(
    model: pm.Model, reading: Reading, free: Sequence[TensorVariable], beside: Sequence[TensorVariable]
) -> bool:
    """Return whether another parameter than the predictor reads what would be latent: closed forms do not serve then.

    That is so of anything that the Normals are beside, of a Normal that the predictor reads too, and of any Normal if
    the predictor reads none. One that enters by another parameter alone is left to be a hyperparameter.
    """
    entering = [v for v in (*free, *beside) if any(reaches(o, [v], model.basic_RVs) for o in reading.others)]
    of_predictor = [v for v in free if reaches(reading.eta, [v], model.basic_RVs)]
    if any(v in beside for v in entering):
        return True
    return bool(entering) and (not of_predictor or any(v in of_predictor for v in entering))


def _imputed(model: pm.Model) -> list[TensorVariable]:
    """Find what stands for missing observations, whose likelihood it has, and is read by nothing else."""
    observed = {str(v.name) for v in model.observed_RVs}
    found = [
        v for v in model.free_RVs
        if str(v.name).endswith(UNOBSERVED) and model.rvs_to_transforms.get(v) is None
        and f"{str(v.name).removesuffix('_unobserved')}_observed" in observed
    ]  # fmt: skip
    others = [*model.basic_RVs, *model.potentials]
    return [v for v in found if not any(reaches(o, [v], model.basic_RVs) for o in others if o is not v)]


def _largest_first(model: pm.Model, variables: Sequence[TensorVariable]) -> list[TensorVariable]:
    shapes = model.eval_rv_shapes()
    return sorted(variables, key=lambda v: math.prod(shapes[v.name]), reverse=True)


def _unregistered_reading(
    model: pm.Model, observed: TensorVariable, largest: Sequence[TensorVariable], beside: Sequence[TensorVariable]
) -> Reading | None:
    """Read a likelihood that is not registered: the predictor of as many Normals as have one together."""
    if isinstance(observed.owner.op, PartialObservedRV) or getattr(observed.owner.op, "ndim_supp", 0) > 0:
        return None
    others = model.basic_RVs
    together = [v for v in beside if reaches(observed, [v], others)]
    entering = [v for v in largest if v not in together and reaches(observed, [v], others)]
    eta = None
    for variable in entering:
        node = predictor_node(observed, [*together, variable], others)
        if node is not None:
            eta, together = node, [*together, variable]
    if eta is None:
        return None
    return Reading(eta, {str(v.name): v for v in entering if v not in together})


def _is_read(
    model: pm.Model, variable: TensorVariable, readers: Sequence[TensorVariable], seen: Sequence[TensorVariable],
    readings: dict[TensorVariable, Reading],
) -> bool:  # fmt: skip
    """Return whether likelihoods of what is seen read a variable in their predictors, and nothing else in the model."""
    if any(reader not in seen for reader in readers):
        return False
    read = False
    for observed in readers:
        reading = readings.get(observed)
        if reading is None:
            return False
        besides = any(reaches(other, [variable], model.basic_RVs) for other in reading.others)
        if besides or not is_linear(reading.eta, [variable], model.basic_RVs):
            return False
        read = True
    return read


@dataclass(frozen=True, eq=False)
class ScaledSource:
    """Where predictors read a variable: the node, which is the variable times a scale, or the variable itself."""

    node: TensorVariable
    scales: tuple[TensorVariable, ...] = ()
    divisors: tuple[TensorVariable, ...] = ()

    @property
    def is_scaled(self) -> bool:
        """Whether anything multiplies the variable."""
        return bool(self.scales or self.divisors)

    @property
    def scale(self) -> TensorVariable:
        """The product of all factors."""
        return reduce(operator.truediv, self.divisors, reduce(operator.mul, self.scales, pt.ones(())))


def scaled_source(
    variable: TensorVariable, etas: Sequence[TensorVariable], latents: Sequence[TensorVariable],
    may_scale: Callable[[TensorVariable], bool] = lambda factor: True,
) -> ScaledSource:  # fmt: skip
    """Find the last node on the way from a variable to the predictors that all read it through, scaled at most.

    In ``Φ @ (beta * sqrt_psd)`` or ``(sigma * u)[group]`` it is the product: what comes after is a constant matrix. No
    scale depends on the latents, and at a factor or divisor that may not scale the way ends.
    """
    readers, found = readers_of(list(etas)), ScaledSource(variable)
    while found.node not in etas and len(readers.get(found.node, [])) == 1:
        (node,) = readers[found.node]
        further = _scaled(found, node, latents)
        if further is None or not all(may_scale(f) for f in (*further.scales, *further.divisors)):
            break
        found = further
    return found


def _scaled(found: ScaledSource, node: Apply, latents: Sequence[TensorVariable]) -> ScaledSource | None:
    """Return the output of a node that scales what was found, value by value; None for any other node."""
    name = operation_name(node.outputs[0])
    others = [i for i in node.inputs if i is not found.node]
    if len(others) != len(node.inputs) - 1 or any(reaches(i, latents) for i in others):
        return None
    output = node.outputs[0]
    if name == "Mul":
        return ScaledSource(output, (*found.scales, *others), found.divisors)
    if name == "TrueDiv" and node.inputs[0] is found.node:
        return ScaledSource(output, found.scales, (*found.divisors, *others))
    return None
