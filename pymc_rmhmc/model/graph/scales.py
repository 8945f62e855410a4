"""Scales moved to where latent vectors are: ``sigma * z[group]`` read as ``(sigma * z)[group]``.

A chart knows a predictor as a constant matrix times scaled vectors. A number that multiplies what such a matrix makes
of a vector may as well multiply the vector: the two are the same predictor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable, equal_computations
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.affine import passed_on
from pymc_rmhmc.model.graph.graphs import Evaluator, operation_name, reaches, reaches_by_value

__all__ = ["is_never_zero", "scales_first"]

# What each of these makes is 0 where one of its inputs is, or nowhere. Roots and absolute values are not analytic, and
# a sum of them may vanish in a region (``w + |w|``): so they count where nothing is added to them afterwards.
POSITIVE = {"Exp", "Exp2", "Sigmoid", "Softplus", "Cosh", "Gamma"}
PASSING = {
    "Mul", "TrueDiv", "Neg", "Reciprocal", "Identity", "Second", "DimShuffle", "Reshape", "SpecifyShape", "MakeVector",
    "ViewOp", "TensorFromScalar", "ScalarFromTensor",
}  # fmt: skip
LOOKING_UP = {"Subtensor", "AdvancedSubtensor", "AdvancedSubtensor1", "Alloc"}
ROOTS = {"Abs", "Sqrt", "Pow"}
ANALYTIC = {
    "Add", "Sub", "Sqr", "Expm1", "Log", "Log1p", "Log2", "Log10", "Tanh", "Sinh", "Sin", "Cos", "Erf", "Erfc",
    "GammaLn", "Sum", "Dot", "BatchedDot", "Matmul",
}  # fmt: skip


def scales_first(
    model: pm.Model, etas: Sequence[TensorVariable], sources: Iterable[TensorVariable]
) -> list[TensorVariable]:
    """Return predictors in which no number that moves multiplies anything between some sources and the predictor.

    They are the same where nothing was found, or where it could not be moved.
    """
    mover = _Mover(model, sources)
    found = [mover.rebuilt(eta) for eta in etas]
    return found if _are_equal(model, etas, found) else list(etas)


def _are_equal(model: pm.Model, etas: Sequence[TensorVariable], others: Sequence[TensorVariable]) -> bool:
    """Return whether predictors are the same at a point where no value is a special one."""
    if all(a is b for a, b in zip(etas, others, strict=True)):
        return True
    rng, point = np.random.default_rng(0), model.initial_point()
    point = {name: v + rng.uniform(0.1, 0.5, v.shape) if v.dtype.kind == "f" else v for name, v in point.items()}
    evaluated = Evaluator(model, [*etas, *others])(point)
    return all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-8, atol=1e-8, equal_nan=True)
        for a, b in zip(evaluated[: len(etas)], evaluated[len(etas) :], strict=True)
    )


class _Mover:
    """Rebuilds graphs; a source times a number is one node however often it is met."""

    def __init__(self, model: pm.Model, sources: Iterable[TensorVariable]) -> None:
        self._sources, self._variables = set(sources), model.basic_RVs
        # A constant number is part of the matrix.
        self._moving = set(model.free_RVs) - self._sources
        self._moved: dict[tuple[TensorVariable, TensorVariable], TensorVariable | None] = {}
        self._products: list[tuple[TensorVariable, TensorVariable, TensorVariable]] = []
        self._depends: dict[Variable, bool] = {}
        self._rebuilt: dict[Variable, TensorVariable] = {}

    def rebuilt(self, variable: TensorVariable) -> TensorVariable:
        """Return a variable with every scale in it moved."""
        if variable in self._sources or not self._reads(variable):
            return variable
        if variable not in self._rebuilt:
            self._rebuilt[variable] = self._rebuild(variable)
        return self._rebuilt[variable]

    def _rebuild(self, variable: TensorVariable) -> TensorVariable:
        node = variable.owner
        inputs = [self.rebuilt(i) for i in node.inputs]
        if any(new is not old for new, old in zip(inputs, node.inputs, strict=True)):
            variable = _with_inputs(variable, inputs)
        found = self._scalar_product(variable.owner)
        moved = None if found is None else self._times(*found)
        return variable if moved is None else moved

    def _scalar_product(self, node: Apply) -> tuple[TensorVariable, TensorVariable] | None:
        """Split a product or quotient with sources in it: a number that moves, and what it multiplies; else None."""
        name = operation_name(node.outputs[0])
        read = [i for i in node.inputs if self._reads(i)]
        if name not in ("Mul", "TrueDiv") or len(read) != 1 or (name == "TrueDiv" and node.inputs[0] is not read[0]):
            return None
        numbers, others = [], []
        for factor in node.inputs:
            if factor is not read[0]:
                moving, other = self._split(factor)
                numbers += moving
                others += [other] if other is not None else []
        if not numbers:
            return None
        scale = numbers[0] if len(numbers) == 1 else pt.mul(*numbers)
        if name == "TrueDiv":
            return 1.0 / scale, read[0] / others[0] if others else read[0]
        return scale, pt.mul(read[0], *others) if others else read[0]

    def _split(self, factor: TensorVariable) -> tuple[list[TensorVariable], TensorVariable | None]:
        """Split a factor into the numbers in it that move and all else, None if that is nothing."""
        number = _number(factor)
        if number is not None:
            return ([number], None) if reaches(number, self._moving) else ([], factor)
        name = operation_name(factor)
        if name not in ("Mul", "TrueDiv"):
            return [], factor
        first, *rest = factor.owner.inputs
        above = [self._split(i) for i in ((first, *rest) if name == "Mul" else (first,))]
        below = [self._split(i) for i in (rest if name == "TrueDiv" else ())]
        numbers = [n for moving, _ in above for n in moving] + [1.0 / n for moving, _ in below for n in moving]
        if not numbers:
            return [], factor
        others = [other for _, other in above if other is not None]
        other = pt.mul(*others) if len(others) > 1 else others[0] if others else None
        for _, divisor in below:
            if divisor is not None:
                other = 1.0 / divisor if other is None else other / divisor
        return numbers, other

    def _times(self, scale: TensorVariable, variable: TensorVariable) -> TensorVariable | None:
        """Multiply a variable by a number that is put at the sources; None if it cannot be moved there."""
        if (scale, variable) not in self._moved:
            self._moved[scale, variable] = self._move(scale, variable)
        return self._moved[scale, variable]

    def _move(self, scale: TensorVariable, variable: TensorVariable) -> TensorVariable | None:
        if variable in self._sources:
            return self._product(scale, variable)
        if not self._reads(variable):
            return scale * variable
        which = passed_on(variable.owner, [self._reads(i) for i in variable.owner.inputs])
        if which is None:
            return None
        inputs = list(variable.owner.inputs)
        for i in which:
            moved = self._times(scale, inputs[i])
            if moved is None:
                return None
            inputs[i] = moved
        return _with_inputs(variable, inputs)

    def _product(self, scale: TensorVariable, source: TensorVariable) -> TensorVariable:
        """Multiply a source by a number; the same number gives the same node."""
        for known, of, product in self._products:
            if of is source and equal_computations([known], [scale]):
                return product
        product = scale * source
        self._products.append((scale, source, product))
        return product

    def _reads(self, variable: Variable) -> bool:
        return reaches_by_value(variable, self._sources, self._depends, self._variables)


def _number(variable: TensorVariable) -> TensorVariable | None:
    """Return a variable of one value without its dimensions; None if it may have more values."""
    while variable.owner is not None and isinstance(variable.owner.op, DimShuffle) and variable.ndim:
        variable = variable.owner.inputs[0]
    if not variable.ndim:
        return variable
    return variable.squeeze() if all(variable.type.broadcastable) else None


def _with_inputs(variable: TensorVariable, inputs: Sequence[TensorVariable]) -> TensorVariable:
    """Apply the same operation to other inputs."""
    node = variable.owner
    return node.clone_with_new_inputs(list(inputs), strict=False).outputs[node.outputs.index(variable)]


def is_never_zero(model: pm.Model, multiplier: TensorVariable) -> bool:
    """Return whether what multiplies a latent vector depends on continuous variables, and is 0 by chance at most.

    Where it is 0, nothing of the vector can be read back from what it makes.
    """
    free = [v for v in model.free_RVs if reaches(multiplier, [v], model.basic_RVs)]
    if not free or any(not v.dtype.startswith("float") for v in free):
        return False
    return _is_smooth(multiplier, set(free), may_have_roots=True)


def _is_smooth(variable: Variable, free: set[Variable], *, may_have_roots: bool) -> bool:
    """Return whether an expression vanishes in no region, by its operations from the last to the first."""
    if variable in free or not reaches(variable, free):
        return True
    name, inputs = operation_name(variable), variable.owner.inputs
    if name in POSITIVE and may_have_roots:
        return True
    is_power = name == "Pow" and isinstance(inputs[1], Constant) and bool((inputs[1].data % 1 == 0).all())
    if name in LOOKING_UP:
        passes = not any(reaches(i, free) for i in inputs[1:])
    elif name == "Cast":
        passes = variable.type.dtype.startswith("float")
    else:
        passes = name in PASSING or is_power or (name in ROOTS and may_have_roots)
    if not passes and name not in ANALYTIC | POSITIVE:
        return False
    return all(_is_smooth(i, free, may_have_roots=may_have_roots and passes) for i in inputs)
