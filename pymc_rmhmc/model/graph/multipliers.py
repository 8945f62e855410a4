"""Whether what multiplies a latent vector can be 0: there nothing of the vector can be read back from what it makes."""

from __future__ import annotations

import pymc as pm
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.graph.graphs import operation_name, reaches

__all__ = ["is_never_zero"]

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


def is_never_zero(model: pm.Model, multiplier: TensorVariable) -> bool:
    """Return whether a multiplier depends on continuous variables, and is 0 only by chance, if not everywhere.

    Parameters
    ----------
    model : pymc.Model
        The model.
    multiplier : TensorVariable
        What multiplies a latent vector in a predictor.
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
