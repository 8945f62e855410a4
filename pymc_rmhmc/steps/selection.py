"""How a model is sampled: its latent Gaussian blocks, or all its continuous variables in the chart of its graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm

from pymc_rmhmc.errors import UnsupportedModelError, listed
from pymc_rmhmc.model.general.selection import NO_BLOCK, continuous_variables, why_general
from pymc_rmhmc.model.predictions import Predictions, predicted_variables, without
from pymc_rmhmc.model.structure import read_structure, resolve_variables
from pymc_rmhmc.model.together import with_predictors_or_without
from pymc_rmhmc.steps.blocks import FoundBlocks, find_blocks
from pymc_rmhmc.steps.general import FoundGeneral, find_general
from pymc_rmhmc.steps.options import Plan

__all__ = ["find", "find_with_predictions", "predictions_in_words"]

type Point = dict[str, np.ndarray]


def find_with_predictions(
    model: pm.Model, vars: Any, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None  # noqa: A002
) -> tuple[FoundBlocks | FoundGeneral, Predictions | None]:
    """Read and compile what ``RMHMC(vars)`` samples, and apart from it what the model predicts from that.

    Raises
    ------
    UnsupportedModelError, UnsupportedLikelihoodError, ConfigurationError, CovarianceError, DataError
        As `RMHMC`.
    """
    named = () if vars is None else resolve_variables(model, vars)
    predicted = predicted_variables(model, named)
    found = find(without(model, predicted), vars, point, plan, compile_kwargs)
    return found, Predictions(model, predicted) if predicted else None


def predictions_in_words(predictions: Predictions | None) -> str:
    """The end of the line that says what is sampled: what is drawn from its prior given the rest."""
    if predictions is None:
        return ""
    return f"; drawn from their priors given these, since nothing observed depends on them: {listed(predictions.names)}"


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
    why = "" if chart == "latent" or vars is not None else _why_general(model, point)
    if not why:
        try:
            return find_blocks(model, vars, point, plan, compile_kwargs)
        except UnsupportedModelError:  # of what is seen where a predictor is evaluated
            if chart == "latent":
                raise
            why = _no_block(vars)
    return find_general(model, continuous_variables(model, vars), point, why, compile_kwargs)


def _no_block(vars: Any) -> str:  # noqa: A002
    return NO_BLOCK if vars is None else "vars names no latent Gaussian block"


def _why_general(model: pm.Model, point: Point) -> str:
    """Why the chart of the graph is taken; empty if latent blocks are read. Nothing is compiled."""
    try:
        structure = with_predictors_or_without(lambda found: read_structure(model, predictors=found))
    except UnsupportedModelError:
        return NO_BLOCK
    return why_general(structure, point)
