"""Which variables of a model are sampled in the chart that is read from its graph, and why."""

from __future__ import annotations

from typing import Any

import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model.structure import ModelStructure, resolve_variables

__all__ = ["NO_BLOCK", "continuous_variables", "why_general"]

NO_BLOCK = "the model has no latent Gaussian block"
# Of the latent form: up to so many have an emulator.
MOST_HYPERPARAMETERS = 11


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


def why_general(structure: ModelStructure, n_hyperparameters: int) -> str:
    """Why the chart of the graph is faster than the latent blocks that a model has; empty if it is not.

    It is where all latents are Normals with a location and a scale of their own, and more hyperparameters move them
    than the latent form emulates: each of its gradients factorises a matrix, where one here costs no more than the
    model.
    """
    latents = [latent for block in structure.blocks for latent in block.latents]
    if any(latent.form != "independent" for latent in latents) or n_hyperparameters <= MOST_HYPERPARAMETERS:
        return ""
    return f"its effects are Normals beside {n_hyperparameters} other values"
