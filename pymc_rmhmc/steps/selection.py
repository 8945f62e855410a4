"""How a model is sampled: its latent blocks, one process with its hyperparameters, or all in the graph's chart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm

from pymc_rmhmc.errors import UnsupportedModelError, listed
from pymc_rmhmc.model.general.blocks_or_graph import InGraphChart, blocks_or_graph, continuous_variables
from pymc_rmhmc.model.predictions import Predictions, predicted_variables, without
from pymc_rmhmc.model.structure import resolve_variables
from pymc_rmhmc.sampled.blocks import FoundBlocks, build_blocks, find_blocks
from pymc_rmhmc.sampled.graph import FoundGeneral, find_general
from pymc_rmhmc.sampled.process import FoundProcess, find_process
from pymc_rmhmc.sampled.whole_model_metric import FoundRiemannian, find_riemannian
from pymc_rmhmc.steps.options import Plan

__all__ = ["find", "find_with_predictions", "predictions_in_words"]

type Point = dict[str, np.ndarray]


def find_with_predictions(
    model: pm.Model, vars: Any, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None  # noqa: A002
) -> tuple[FoundBlocks | FoundGeneral | FoundRiemannian | FoundProcess, Predictions | None]:
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
    """Say what is drawn from its prior given the rest, to end the line on what is sampled; empty if nothing is."""
    if predictions is None or not predictions.names:
        return ""
    return f"; drawn from their priors given these, since nothing observed depends on them: {listed(predictions.names)}"


def find(
    model: pm.Model, vars: Any, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None  # noqa: A002
) -> FoundBlocks | FoundGeneral | FoundRiemannian | FoundProcess:
    """Read and compile what ``RMHMC(vars)`` samples, in the form that is fastest for the model.

    Raises
    ------
    UnsupportedModelError, UnsupportedLikelihoodError, ConfigurationError, CovarianceError, DataError
        As `RMHMC`.
    """
    chart = getattr(plan.metric, "chart", "latent")
    if chart == "latent":
        return find_blocks(model, vars, point, plan, compile_kwargs)
    if plan.policy is None:
        return _find_in_metric(model, vars, point, plan, compile_kwargs)
    if vars is None or chart == "graph":
        found = blocks_or_graph(model, point, lambda read: build_blocks(read, point, plan, compile_kwargs), chart)
    else:
        try:
            found = find_blocks(model, vars, point, plan, compile_kwargs)
        except UnsupportedModelError:
            found = InGraphChart("vars names no latent Gaussian block")
    if isinstance(found, FoundBlocks):
        return found
    return find_general(model, continuous_variables(model, vars), point, found, compile_kwargs)


def _find_in_metric(
    model: pm.Model, vars: Any, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None  # noqa: A002
) -> FoundBlocks | FoundRiemannian | FoundProcess:
    """Find what is sampled in a position-dependent metric of whole models: latent blocks alone if it prefers them."""
    if plan.metric.chart == "process":
        return find_process(model, vars, point, plan.metric, compile_kwargs)
    if plan.metric.chart == "auto":
        try:
            return find_blocks(model, vars, point, plan, compile_kwargs)
        except UnsupportedModelError:  # the model has none
            pass
    variables = continuous_variables(model, vars)
    return find_riemannian(model, variables, point, plan.metric, compile_kwargs)
