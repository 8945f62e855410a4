"""How a model is sampled: its latent blocks, one process with its hyperparameters, or all in the graph's chart.

`describe` tells a user the same before a step is built.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor

from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError, listed
from pymc_rmhmc.model.field.field_or_other import InField
from pymc_rmhmc.model.general.blocks_or_graph import InGraphChart, blocks_or_graph, continuous_variables
from pymc_rmhmc.model.graph.graphs import WITHOUT_TRACES
from pymc_rmhmc.model.predictions import Predictions, predicted_variables, without
from pymc_rmhmc.model.structure import model_in_context, resolve_variables
from pymc_rmhmc.model.words.bad_inputs import InputChecks
from pymc_rmhmc.model.words.describe import MetricDescription, ModelDescription, describe_in_metric, describe_latents
from pymc_rmhmc.sampled.blocks import FoundBlocks, alone_in_words, build_blocks, find_blocks
from pymc_rmhmc.sampled.checks import check_curvature
from pymc_rmhmc.sampled.choices import integrator_in_words, trajectory_in_words
from pymc_rmhmc.sampled.field_chain import FoundField
from pymc_rmhmc.sampled.graph import FoundGeneral, find_general
from pymc_rmhmc.sampled.process import FoundProcess, find_process
from pymc_rmhmc.sampled.whole_model_metric import FoundRiemannian, find_riemannian, matrix_in_words
from pymc_rmhmc.steps.options import Options, Plan, settle
from pymc_rmhmc.usage import called_as

__all__ = ["describe", "find", "find_with_predictions", "predictions_in_words"]

type Point = dict[str, np.ndarray]

@pytensor.config.change_flags(**WITHOUT_TRACES)
def find_with_predictions(
    model: pm.Model, vars: Any, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None  # noqa: A002
) -> tuple[FoundBlocks | FoundField | FoundGeneral | FoundRiemannian | FoundProcess, Predictions | None]:
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


@pytensor.config.change_flags(**WITHOUT_TRACES)
def find(
    model: pm.Model, vars: Any, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None  # noqa: A002
) -> FoundBlocks | FoundField | FoundGeneral | FoundRiemannian | FoundProcess:
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
    if vars is None or chart in ("graph", "field"):
        found = blocks_or_graph(model, point, lambda read: build_blocks(read, point, plan, compile_kwargs), chart)
    else:
        try:
            found = find_blocks(model, vars, point, plan, compile_kwargs)
        except UnsupportedModelError:
            found = InGraphChart("vars names no latent Gaussian block")
    if isinstance(found, FoundBlocks):
        return found
    if isinstance(found, InField):
        return FoundField.of(model, found, compile_kwargs)
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


USAGE = 'describe(model), or describe(model, metric="softabs") with the options of RMHMC'


@called_as(f"{USAGE}; it shows what RMHMC does")
def describe(model: pm.Model | None = None, **options: Any) -> ModelDescription:
    """Return what `RMHMC` would do with a model, as an object that shows itself.

    A notebook or an interactive interpreter shows it; a script prints it: ``print(describe(model))``.

    Nothing is compiled, unless a metric is made of the whole model, such as ``metric="softabs"``. Then the model's
    derivatives are compiled as `RMHMC` does it, which can take a minute.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model in context.
    **options
        Options of `RMHMC`, such as `metric`, `integrator` and `trajectory`. Without any, it is what `RMHMC()` does.
        Not those that say what is sampled, where, and by which random numbers: `vars`, `rng`, `initial_point`,
        `compile_kwargs` and `blocked`.

    Returns
    -------
    ModelDescription
        Blocks and sizes, priors, likelihoods, links and curvatures, the metric, the hyperparameters that are sampled
        with the blocks or the reason why none are, and what is left over and which step of PyMC's would sample it.
        Of a metric of the whole model: what its matrix is made of, the structure that SoftAbs finds in the Hessian,
        and the trajectory.

    Raises
    ------
    DataError
        If data, parameters or inputs cannot be used, as `RMHMC` would raise it.
    ConfigurationError, UnsupportedModelError
        If the options do not fit together or do not fit the model, as `RMHMC` would raise it.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_rmhmc import describe
    >>> with pm.Model() as model:
    ...     f = pm.MvNormal("f", np.zeros(3), cov=np.eye(3))
    ...     y = pm.Poisson("y", mu=pm.math.exp(f), observed=[1, 0, 2])
    >>> description = describe(model)
    >>> print(description)  # doctest: +ELLIPSIS
    Sampled by RMHMC:
    - f: 3 values, centred Gaussian process or MvNormal, read by y: poisson (log link)...
    >>> description.blocks[0].n_latent
    3
    >>> print(describe(model, metric="hessian").metric)
    hessian
    """
    model = model_in_context(model, "describe")
    plan = settle(_options(options), auto_metric="flat")
    # PyTensor folds constants by C code where it has a compiler, one small program after another.
    with pytensor.config.change_flags(cxx="", **WITHOUT_TRACES):
        predicted = predicted_variables(model)
        sampled = without(model, predicted)
        description = _of_latents(sampled, plan)
    if description is None:
        description = _of_whole_model(sampled, plan)
    return replace(description, predicted=tuple(str(v.name) for v in predicted))


def _options(given: dict[str, Any]) -> Options:
    """Return the options; an error names those that there are not."""
    known = {option.name for option in fields(Options)}
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ConfigurationError(
            f"describe() does not take {', '.join(unknown)}. Write {USAGE}: {', '.join(sorted(known))}."
        )
    return Options(**given)


def _of_latents(model: pm.Model, plan: Plan) -> ModelDescription | None:
    """Describe what is sampled in the flat metric, or of latent blocks in another; None in a metric of whole models."""
    metric, chart = plan.metric, getattr(plan.metric, "chart", "latent")
    if plan.takes_hyperparameters:
        return describe_latents(model, metric.name, chart=chart, emulates=plan.may_emulate)
    if chart in ("graph", "process"):
        return None
    try:
        found = describe_latents(model, metric.name, chart="latent", alone=alone_in_words(plan))
    except UnsupportedModelError:  # the model has no block
        if chart == "latent":
            raise
        return None
    for block in found.blocks:
        check_curvature(block.name, block.kinds, plan.curvature)
    return found


def _of_whole_model(model: pm.Model, plan: Plan) -> ModelDescription:
    """Build a position-dependent metric of all values, and describe what is sampled in it."""
    point = model.initial_point()
    InputChecks(model).check(point)
    found: FoundProcess | FoundRiemannian
    if plan.metric.chart == "process":
        found = find_process(model, None, point, plan.metric, None)
    else:
        found = find_riemannian(model, continuous_variables(model), point, plan.metric, None)
    said = MetricDescription(
        tuple(found.names),
        found.density_model.size,
        f'The metric is "{plan.metric.name}": {matrix_in_words(plan.metric)}.',
        found.structure_in_words(point, plan),
        f"Each trajectory is {trajectory_in_words(found.planned(plan).trajectory)}, by "
        f"{integrator_in_words(plan.integrator)}; "
        f"{_step_size_in_words(plan)}.",
    )
    return describe_in_metric(model, plan.metric.name, found.density_model.variables.variables, said)


def _step_size_in_words(plan: Plan) -> str:
    """Say how long steps are."""
    if plan.step_size is not None:
        return f"its steps have the size {plan.step_size:g}"
    return f"its step size is tuned to an acceptance of {plan.target_accept:g}"
