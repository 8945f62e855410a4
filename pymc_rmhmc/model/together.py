"""Which of a model's variables are latent, and which are hyperparameters that are sampled with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_rmhmc.errors import UnsupportedLikelihoodError, UnsupportedModelError
from pymc_rmhmc.model.graphs import Evaluator
from pymc_rmhmc.model.joint import NO_HYPERPARAMETERS, JointModel, read_joint
from pymc_rmhmc.model.linear_normals import linear_normals
from pymc_rmhmc.model.priors import gaussian_candidates
from pymc_rmhmc.model.structure import ModelStructure, read_structure, resolve_variables

__all__ = ["read_together", "with_predictors_or_without"]

type Point = dict[str, np.ndarray]

# Of coefficients beside a process: the matrices in which both are are dense.
MOST_COEFFICIENTS = 1000
# Of the matrix by which observations read them, while it is read off the predictor.
MOST_ENTRIES = 10**8


def read_together(
    model: pm.Model, vars: Any, point: Point, *, predictors: bool = True  # noqa: A002
) -> tuple[ModelStructure, JointModel | str]:
    """A model's structure, and its blocks with their hyperparameters.

    Parameters
    ----------
    model : pymc.Model
        The model.
    vars : list of variables or names, or None
        Latent variables, and the hyperparameters that are to be sampled with them; by default all.
    point : dict
        Where shapes are taken.
    predictors : bool
        As in `read_structure`.

    Returns
    -------
    ModelStructure, JointModel or str
        In place of the second, the reason why hyperparameters are not sampled together with the latents.

    Raises
    ------
    UnsupportedModelError, UnsupportedLikelihoodError, ConfigurationError
        As `read_structure`.
    """
    if vars is None:
        return _read_all(model, point, predictors)
    named, vectors = resolve_variables(model, vars), gaussian_candidates(model)
    latents = {*vectors, *linear_normals(model, [v for v in named if v in vectors])}
    chosen = [v for v in named if v in latents]
    others = [v for v in named if v not in latents]
    if not (chosen and others):
        return read_structure(model, vars), "vars names latent variables alone"
    structure = read_structure(model, chosen)
    joint = read_joint(structure, point, others)
    if not isinstance(joint, str):
        return structure, joint
    try:  # vectors of Normals may be latents themselves
        return read_structure(model, vars), joint
    except UnsupportedModelError as error:
        names = ", ".join(str(v.name) for v in others)
        raise UnsupportedModelError(f"{names} cannot be sampled together with the latents: {joint} ({error})") from None


def with_predictors_or_without[T](read: Callable[[bool], T]) -> T:
    """What is read of a model with the predictors of likelihoods that are not registered, or if one fails, without.

    That a likelihood does not factorise over its predictor is seen where it is evaluated: the rest of a model can then
    be sampled as it could if nobody had looked for that predictor.
    """
    try:
        return read(True)
    except UnsupportedLikelihoodError:
        return read(False)


def _read_all(model: pm.Model, point: Point, predictors: bool) -> tuple[ModelStructure, JointModel | str]:
    """Everything that can be sampled, with vectors of coefficients among the latents wherever they can be.

    As hyperparameters they would have a dimension of θ each; and a scale, if they have one, would be a funnel.
    """
    structure = read_structure(model, predictors=predictors)
    wider = _with_coefficients(structure, point, predictors)
    if wider is not None:
        joint = read_joint(wider, point)
        if isinstance(joint, JointModel) or joint == NO_HYPERPARAMETERS:
            return wider, joint
    return structure, read_joint(structure, point)


def _with_coefficients(structure: ModelStructure, point: Point, predictors: bool) -> ModelStructure | None:
    """A structure with the Normals that predictors read linearly beside its latents; None without a vector of them."""
    model, variables = structure.model, structure.variables
    candidates = gaussian_candidates(model)
    processes = [v for v in variables if v in candidates]
    # Without any, coefficients are latent already. Rows are factorised one by one, but with something beside them as
    # one vector.
    if not processes or any(v.ndim > 1 for v in processes):
        return None
    found = [v for v in linear_normals(model, variables, predictors=predictors) if v not in variables]
    sizes = [point[str(model.rvs_to_values[v].name)].size for v in found]
    # A number alone, an intercept, is one hyperparameter more: that is cheaper than a sum of vectors.
    if all(size == 1 for size in sizes) or sum(sizes) > MOST_COEFFICIENTS:
        return None
    n_values = sum(sizes) + sum(point[str(value.name)].size for value in structure.value_vars)
    if not 0 < _n_observed(structure, point) * n_values <= MOST_ENTRIES:
        return None
    try:
        wider = read_structure(model, [*variables, *found])
    except UnsupportedModelError:
        return None
    reasons = {name: why for name, why in structure.reasons.items() if name in wider.left_over}
    return replace(wider, reasons=reasons)


def _n_observed(structure: ModelStructure, point: Point) -> int:
    """The number of observations."""
    observations = [o for block in structure.blocks for o in block.observations]
    read = [pt.as_tensor(o.value) if o.reading is None else o.reading.eta for o in observations]
    return sum(np.size(each) for each in Evaluator(structure.model, read)(point))
