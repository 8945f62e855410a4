"""How a model is sampled: its latent Gaussian blocks, or all its continuous variables in the chart of its graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model.general.selection import NO_BLOCK, continuous_variables, why_general
from pymc_rmhmc.steps.blocks import FoundBlocks, find_blocks
from pymc_rmhmc.steps.general import FoundGeneral, find_general
from pymc_rmhmc.steps.options import Plan

__all__ = ["find"]

type Point = dict[str, np.ndarray]


def find(
    model: pm.Model, vars: Any, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None  # noqa: A002
) -> FoundBlocks | FoundGeneral:
    """Read and compile what ``RMHMC(vars)`` samples, in the form that is fastest for the model.

    Raises
    ------
    UnsupportedModelError, UnsupportedLikelihoodError, ConfigurationError, CovarianceError, DataError
        As `RMHMC`.
    """
    chart = getattr(plan.metric, "chart", "latent")
    if chart == "graph":
        variables = continuous_variables(model, vars)
        return find_general(model, variables, point, "the metric asks for it", compile_kwargs)
    try:
        blocks = find_blocks(model, vars, point, plan, compile_kwargs)
    except UnsupportedModelError:
        if chart == "latent":
            raise
        variables = continuous_variables(model, vars)
        why = NO_BLOCK if vars is None else "vars names no latent Gaussian block"
        return find_general(model, variables, point, why, compile_kwargs)
    if chart == "latent" or vars is not None:
        return blocks
    why = why_general(blocks.structure, 0 if isinstance(blocks.joint, str) else blocks.joint.theta.size)
    if why:
        return find_general(model, continuous_variables(model), point, why, compile_kwargs)
    return blocks
