"""Vectors of Normals that a predictor is linear in: coefficients of a regression, or of a basis."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graphs import LINEAR_OPERATIONS, core_op, inlined, operation_name, reaches, reaches_by_value
from pymc_rmhmc.model.likelihoods import read_likelihood

__all__ = ["PRODUCTS", "SHAPING", "ScaledSource", "linear_normals", "passed_on", "scaled_source"]

# Operations through which a sum of inputs goes as the sum of what they make of each, beside `LINEAR_OPERATIONS`.
SHAPING = {
    "DimShuffle", "Reshape", "Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1", "Join", "Sum", "SpecifyShape",
    "MakeVector", "Alloc", "ViewOp", "Split", "ExtractDiag", "TensorFromScalar", "ScalarFromTensor",
}  # fmt: skip
PRODUCTS = {"Mul", "Dot", "Matmul", "BatchedDot", "Dot22"}


def linear_normals(model: pm.Model, beside: Sequence[TensorVariable] = ()) -> list[TensorVariable]:
    """Free Normals, in any shape, that every likelihood that depends on them reads linearly and together.

    None of them is in another's prior, and where two are multiplied the one of more values counts; one that is
    multiplied by a variable `beside` them is none.
    """
    free = [v for v in model.free_RVs if isinstance(v.owner.op, NormalRV) and model.rvs_to_transforms.get(v) is None]
    readings = {v: read_likelihood(v) for v in model.observed_RVs}
    etas = [found[1].eta for found in readings.values() if found is not None]
    candidates = [v for v in free if _is_read(model, v, readings)]
    if all(_is_linear(eta, [*beside, *candidates]) for eta in etas):
        return candidates
    chosen: list[TensorVariable] = []
    shapes = model.eval_rv_shapes()
    for variable in sorted(candidates, key=lambda v: math.prod(shapes[v.name]), reverse=True):
        if all(_is_linear(eta, [*beside, *chosen, variable]) for eta in etas):
            chosen.append(variable)
    return [v for v in candidates if v in chosen]


def _is_read(model: pm.Model, variable: TensorVariable, readings: dict) -> bool:
    """Whether some registered likelihood reads a variable in its predictor, and nothing else in the model does."""
    others = [*model.potentials, *(v for v in model.free_RVs if v is not variable)]
    if any(reaches(other, [variable], model.basic_RVs) for other in others):
        return False
    read = False
    for observed, found in readings.items():
        if not reaches(observed, [variable], model.basic_RVs):
            continue
        if found is None:
            return False
        _, reading = found
        besides = any(reaches(other, [variable], model.basic_RVs) for other in reading.others)
        if besides or not _is_linear(reading.eta, [variable]):
            return False
        read = True
    return read


def _is_linear(expression: TensorVariable, variables: Sequence[TensorVariable]) -> bool:
    """Whether no operation between some variables and an expression is anything but affine in all of them."""
    (expression,), held = inlined([expression], variables), set(variables)
    moving: dict[Variable, bool] = {}
    between = {
        v.owner
        for v in ancestors([expression], blockers=variables)
        if v.owner is not None and v not in held and reaches_by_value(v, held, moving)
    }
    return all(_is_affine(node, [reaches_by_value(i, held, moving) for i in node.inputs]) for node in between)


def _is_affine(node: Apply, moves: Sequence[bool]) -> bool:
    return not any(moves) or passed_on(node, moves) is not None


def passed_on(node: Apply, moves: Sequence[bool]) -> list[int] | None:
    """The inputs that are multiplied by a number if the output is; None if the output is not affine in what moves.

    Parameters
    ----------
    node : Apply
        An operation.
    moves : sequence of bool
        Which of its inputs move.
    """
    op = core_op(node.outputs[0])
    name, kind = operation_name(node.outputs[0]), type(op).__name__
    everything = list(range(len(moves)))
    if kind in ("Join", "MakeVector"):  # an axis, where it is an input, has no dimensions
        return [i for i in everything if kind == "MakeVector" or node.inputs[i].ndim]
    if kind in ("IncSubtensor", "AdvancedIncSubtensor", "AdvancedIncSubtensor1"):  # of a part, another value
        return None if any(moves[2:]) else [0, 1]
    if kind in SHAPING or (isinstance(op, CumOp) and op.mode == "add"):  # a random walk is the sum of its steps
        # An index or a shape that moves is no number that is passed on.
        return None if any(moves[1:]) else [0]
    if name in LINEAR_OPERATIONS:
        return [1] if name == "Second" else everything
    if name in PRODUCTS:
        return [moves.index(True)] if sum(moves) == 1 else None
    return [0] if name == "TrueDiv" and not moves[1] else None


@dataclass(frozen=True, eq=False)
class ScaledSource:
    """Where predictors read a variable: the node, which is the variable times a scale, or the variable itself.

    Attributes
    ----------
    node : TensorVariable
        What is read.
    scales : tuple of TensorVariable
        Factors.
    divisors : tuple of TensorVariable
        And what is divided by.
    """

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
        scale = pt.ones(())
        for factor in self.scales:
            scale = scale * factor
        for divisor in self.divisors:
            scale = scale / divisor
        return scale


def scaled_source(
    variable: TensorVariable, etas: Sequence[TensorVariable], latents: Sequence[TensorVariable],
    may_scale: Callable[[TensorVariable], bool] = lambda factor: True,
) -> ScaledSource:  # fmt: skip
    """The last node on the way from a variable to the predictors that all of them read it through, scaled at most.

    In ``Φ @ (beta * sqrt_psd)`` or ``(sigma * u)[group]`` it is the product: what comes after is a constant matrix.

    Parameters
    ----------
    variable : TensorVariable
        A latent variable, or what predictors read of it.
    etas : sequence of TensorVariable
        The predictors.
    latents : sequence of TensorVariable
        What no scale depends on.
    may_scale : callable
        Whether a factor or divisor may be among the scales; at one that may not be the way ends.
    """
    readers: dict[Variable, list[Apply]] = {}
    # What reads no more than a shape is no reader.
    shapes = {v for v in ancestors(list(etas)) if isinstance(core_op(v), (Shape, Shape_i))}
    reached = ancestors(list(etas), blockers=shapes)
    for node in {v.owner for v in reached if v.owner is not None and v not in shapes}:
        for variable_read in dict.fromkeys(node.inputs):
            readers.setdefault(variable_read, []).append(node)
    found = ScaledSource(variable)
    while found.node not in etas and len(readers.get(found.node, [])) == 1:
        (node,) = readers[found.node]
        further = _scaled(found, node, latents)
        if further is None or not all(may_scale(f) for f in (*further.scales, *further.divisors)):
            break
        found = further
    return found


def _scaled(found: ScaledSource, node: Apply, latents: Sequence[TensorVariable]) -> ScaledSource | None:
    """The output of a node that scales what was found, value by value; None for any other node."""
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
