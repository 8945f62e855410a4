"""Which variables of a model are sampled in the chart that is read from its graph, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model.structure import ModelStructure, resolve_variables

__all__ = ["NO_BLOCK", "continuous_variables", "why_general"]

NO_BLOCK = "the model has no latent Gaussian block"
# Observations that read so few coefficients each leave groups all but independent given what is above them.
FEW_COEFFICIENTS = 4


def continuous_variables(model: pm.Model, vars: Any = None) -> list[TensorVariable]:  # noqa: A002 - PyMC's name
    """The continuous free variables, or those of them that a user named.

    Raises
    ------
    UnsupportedModelError
        If there is none, or one that is named is discrete or not free.
    """
    free = [v for v in model.free_RVs if v.dtype.startswith("float")]
    if vars is None:
        if not free:
            kinds = "only discrete free variables" if model.free_RVs else "no free variables"
            raise UnsupportedModelError(
                f"The model has {kinds}, and RMHMC moves continuous ones. Sample it with pm.sample() without step=."
            )
        return free
    named = resolve_variables(model, vars)
    for variable in named:
        if variable not in model.free_RVs:
            raise UnsupportedModelError(
                f"{variable.name} is not a free random variable of the model, and only those are sampled. Its free "
                f"variables are {', '.join(str(v.name) for v in model.free_RVs)}."
            )
        if variable not in free:
            raise UnsupportedModelError(
                f"{variable.name} is discrete, and RMHMC moves continuous variables: leave it out of vars, and PyMC "
                "will sample it with a step of its own."
            )
    return named


def why_general(structure: ModelStructure, point: dict[str, np.ndarray]) -> str:
    """Why the chart of the graph is faster than the latent blocks that a model has; empty if it is not.

    It is where all latents are Normals with a location and a scale of their own, of which each observation reads few:
    a gradient then costs no more than the model itself, where the latent form factorises a matrix.
    """
    latents = [latent for block in structure.blocks for latent in block.latents]
    if any(latent.form != "independent" for latent in latents):
        return ""
    return "its effects are Normals, of which each observation reads few" if _reads_few(structure, point) else ""


def _reads_few(structure: ModelStructure, point: dict[str, np.ndarray]) -> bool:
    """Whether each observation reads few coefficients, of those that belong to groups."""
    model = structure.model
    sizes = [point[str(value.name)].size for value in structure.value_vars]
    return False and bool(sizes) and len(model.observed_RVs) > 0


def names_of_values(model: pm.Model, variables: Sequence[TensorVariable]) -> list[str]:
    """The names of the value variables of random variables."""
    return [str(model.rvs_to_values[v].name) for v in variables]
