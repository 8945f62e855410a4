"""Which of a model's variables are latent, and which are hyperparameters that are sampled with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.random.basic import MvNormalRV

from pymc_rmhmc.errors import UnsupportedLikelihoodError, UnsupportedModelError, listed
from pymc_rmhmc.model.deviations import Deviations, about_means
from pymc_rmhmc.model.forms.joint_model import NO_HYPERPARAMETERS, JointModel, JointPlan, plan_joint, read_joint
from pymc_rmhmc.model.forms.linear_normals import linear_normals
from pymc_rmhmc.model.forms.priors import GAUSSIAN_VECTORS, LATENT, gaussian_candidates, read_latent
from pymc_rmhmc.model.graph.graphs import Evaluator, reaches
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.hyperparameters import hyperparameters_of
from pymc_rmhmc.model.observed.observation import names_of
from pymc_rmhmc.model.structure import BY_ANOTHER, ModelStructure, read_structure, resolve_variables
from pymc_rmhmc.model.words.advice import UNREAD_GAUSSIANS, as_a_sum, one_step_each, rows_as_a_product
from pymc_rmhmc.model.words.bad_inputs import classes_in_words
from pymc_rmhmc.model.words.refusals import said_once

__all__ = [
    "about_means_or_not", "check_together", "data_in_words", "flat_priors", "plan_together", "read_together",
    "warnings_of", "with_predictors_or_without", "written_as_sums",
]  # fmt: skip

type Point = dict[str, np.ndarray]

NOTHING_OBSERVED = (
    "Nothing in this model is observed, so the draws are of the prior. If you have data, give them to the likelihood "
    "with observed=."
)
LATENTS_ALONE = "vars names latent variables alone"
# Of hyperparameters that are Gaussian: of more than these a user is warned.
MOST_GAUSSIAN = 50

# Of coefficients beside a process: the matrices in which both are are dense.
MOST_COEFFICIENTS = 1000
# Of the matrix by which observations read them, while it is read off the predictor.
MOST_ENTRIES = 10**8


def read_together(
    model: pm.Model, vars: object, point: Point, *, structure: ModelStructure | None = None  # noqa: A002
) -> tuple[ModelStructure, JointModel | str]:
    """Read a model's structure, and its blocks with their hyperparameters; or, in place of these, why they are apart.

    `vars` names latent variables, and the hyperparameters that are to be sampled with them; by default all. The
    structure of the whole model may have been read. It raises as `read_structure` does.
    """
    if structure is not None:
        return _with_advice(*_read_all(structure, point, read_joint))
    if vars is None:
        return about_means_or_not(model, lambda read: read_together(model, None, point, structure=read))
    named = resolve_variables(model, vars)
    deviations = about_means(model, named)
    if deviations is not None:
        with contextlib.suppress(UnsupportedModelError):
            return _read_named_about_means(deviations, [str(v.name) for v in named], point)
    return _with_advice(*_read_named(model, vars, point))


def _read_named_about_means(
    deviations: Deviations, names: Sequence[str], point: Point
) -> tuple[ModelStructure, JointModel | str]:
    """Read what a user named in the view of a model that has deviations; raise where it is not sampled together."""
    named, candidates = resolve_variables(deviations.view, names), gaussian_candidates(deviations.view)
    latents = [v for v in named if v in candidates]
    structure = _about_means(deviations, read_structure(deviations.view, latents))
    joint = read_joint(structure, point, [v for v in named if v not in latents])
    check_together(structure, joint)
    return structure, joint


def _about_means(deviations: Deviations, structure: ModelStructure) -> ModelStructure:
    """Return a structure of the view that has deviations; raise unless all of them are latent."""
    missing = [v for v in deviations.variables if v not in structure.variables]
    if missing:
        raise UnsupportedModelError(f"{names_of(missing)} is not latent next to its mean")
    return replace(structure, deviations=deviations)


def check_together(structure: ModelStructure, joint: object) -> None:
    """Raise an `UnsupportedModelError` if there is a reason why deviations are not sampled with all else."""
    if structure.deviations is not None and isinstance(joint, str):
        raise UnsupportedModelError(joint)


def about_means_or_not[T](model: pm.Model, build: Callable[[ModelStructure], T]) -> T:
    """Build from a model's structure: where latent vectors are means of others, in deviations from these if it can be.

    What is built in deviations must be sampled together. It raises as `read_structure` does.
    """
    deviations = about_means(model)
    if deviations is not None:
        with contextlib.suppress(UnsupportedModelError):
            return with_predictors_or_without(deviations.view, lambda read: build(_about_means(deviations, read)))
    return with_predictors_or_without(model, build)


def _read_named(model: pm.Model, vars: object, point: Point) -> tuple[ModelStructure, JointModel | str]:  # noqa: A002
    """Read what a user named: latents, and hyperparameters that are to be sampled with them."""
    named, vectors = resolve_variables(model, vars), gaussian_candidates(model)
    latents = {*vectors, *linear_normals(model, [v for v in named if v in vectors])}
    # A vector that is no latent one beside others is one if it is named alone.
    chosen = [v for v in named if v in latents] or [v for v in named if type(v.owner.op) in GAUSSIAN_VECTORS]
    others = [v for v in named if v not in chosen]
    if not (chosen and others):
        return read_structure(model, vars), LATENTS_ALONE
    structure = read_structure(model, chosen)
    joint = read_joint(structure, point, others)
    if not isinstance(joint, str):
        return structure, joint
    try:  # vectors of Normals may be latents themselves
        return read_structure(model, vars), joint
    except UnsupportedModelError as error:
        names = ", ".join(str(v.name) for v in others)
        raise UnsupportedModelError(f"{names} cannot be sampled together with the latents: {joint} ({error})") from None


def with_predictors_or_without[T](model: pm.Model, build: Callable[[ModelStructure], T]) -> T:
    """Build from a model's structure, without the predictors of unregistered likelihoods where one of these fails.

    That a likelihood does not factorise over its predictor is seen where it is evaluated: the rest of a model can then
    be sampled as it could if nobody had looked for that predictor.
    """
    try:
        return build(read_structure(model))
    except UnsupportedLikelihoodError as error:
        return build(read_structure(model, no_predictors=str(error)))


def plan_together(structure: ModelStructure, point: Point) -> tuple[ModelStructure, JointPlan | str]:
    """Plan what `read_together` builds for a whole model, but build nothing; on derivatives see `plan_joint`."""
    return _with_advice(*_read_all(structure, point, plan_joint))


def _read_all[T](
    structure: ModelStructure, point: Point, read: Callable[[ModelStructure, Point], T | str]
) -> tuple[ModelStructure, T | str]:
    """Read everything that can be sampled, with vectors of coefficients among the latents wherever they can be.

    As hyperparameters they would have a dimension of θ each; and a scale, if they have one, would be a funnel.
    """
    wider = _with_coefficients(structure, point)
    if wider is not None:
        joint = read(wider, point)
        if not isinstance(joint, str) or joint == NO_HYPERPARAMETERS:
            return wider, joint
    joint = read(structure, point)
    check_together(structure, joint)
    return structure, joint


def _with_coefficients(structure: ModelStructure, point: Point) -> ModelStructure | None:
    """Add the Normals that predictors read linearly to the latents of a structure; None without a vector of them."""
    model, variables = structure.model, structure.variables
    candidates = gaussian_candidates(model)
    processes = [v for v in variables if v in candidates]
    # Without any, coefficients are latent already. Rows are factorised one by one, but with something beside them as
    # one vector.
    if not processes or any(v.ndim > 1 for v in processes):
        return None
    found = structure.coefficients
    sizes = [point[str(model.rvs_to_values[v].name)].size for v in found]
    # A number alone, an intercept, is one hyperparameter more: that is cheaper than a sum of vectors.
    if all(size == 1 for size in sizes) or sum(sizes) > MOST_COEFFICIENTS:
        return None
    n_values = sum(sizes) + sum(point[str(value.name)].size for value in structure.value_vars)
    if not 0 < _n_observed(structure, point) * n_values <= MOST_ENTRIES:
        return None
    try:
        wider = read_structure(model, [*variables, *found], no_predictors=structure.no_predictors)
    except UnsupportedModelError:
        return None
    reasons = {name: why for name, why in structure.reasons.items() if name in wider.left_over}
    return replace(wider, reasons=reasons, advice=structure.advice, deviations=structure.deviations)


def _with_advice[T](structure: ModelStructure, joint: T | str) -> tuple[ModelStructure, T | str]:
    """Add advice to what was read: what could be written in another form to be sampled together."""
    advice = written_as_sums(structure) | _by_turns(structure)
    if isinstance(joint, str) and joint not in (NO_HYPERPARAMETERS, LATENTS_ALONE):
        advice |= rows_as_a_product(structure.model, structure.latents)
    return replace(structure, advice=structure.advice | advice), joint


def written_as_sums(structure: ModelStructure) -> dict[str, str]:
    """Return what to write for processes that are the mean of a latent vector: a sum of both is sampled together."""
    free, sampled, kinds = structure.model.free_RVs, structure.variables, (MvNormalRV, *GAUSSIAN_VECTORS)
    processes = [v for v in free if v not in sampled and isinstance(v.owner.op, kinds)]
    return as_a_sum(structure.model, structure.latents, processes)


def _by_turns(structure: ModelStructure) -> dict[str, str]:
    """Return advice on how to sample vectors that enter a likelihood by different parameters."""
    model = structure.model
    apart = [v for v in model.free_RVs if BY_ANOTHER in structure.reasons.get(str(v.name), "")]
    others = [latent for v in apart if not isinstance(latent := read_latent(model, v), str)]
    if not others:
        return {}
    owned = {
        latent.name: [str(v.name) for v in hyperparameters_of(model, latent.expressions)]
        for latent in (*structure.latents, *others)
    }
    return dict.fromkeys((str(latent.variable.name) for latent in others), one_step_each(owned))


def _crowd_of_hyperparameters(structure: ModelStructure, joint: JointModel | JointPlan | str) -> str:
    """Return a warning if more than `MOST_GAUSSIAN` values are Gaussian hyperparameters, and what to do; else empty."""
    if isinstance(joint, str):
        return ""
    sizes = {
        str(variable.name): part.stop - part.start
        for variable, part in zip(joint.theta.variables, joint.theta.slices, strict=True)
        if isinstance(variable.owner.op, (*LATENT, *UNREAD_GAUSSIANS))
    }
    n_values = sum(sizes.values())
    if n_values <= MOST_GAUSSIAN:
        return ""
    forms = "".join(f" {text}" for _, text in said_once({n: t for n, t in structure.advice.items() if n in sizes}))
    return (
        f"RMHMC samples {n_values} Gaussian values as hyperparameters ({listed(sizes)}), not as latent values. "
        f"Each adds a row to a dense mass matrix, so that tuning is long and draws are slow.{forms}"
        + ("" if forms else " NUTS may be faster for this model: pm.sample() without step=.")
    )


def flat_priors(model: pm.Model) -> tuple[str, ...]:
    """Return the names of the free variables with a Flat or HalfFlat prior."""
    return tuple(names_of([v]) for v in model.free_RVs if distribution_of(v) in ("Flat", "HalfFlat"))


def no_data_in_words(model: pm.Model) -> str:
    """Say that nothing is observed, and which variables then have no posterior; empty if something is."""
    if model.observed_RVs or model.potentials:
        return ""
    flat = flat_priors(model)
    if not flat:
        return NOTHING_OBSERVED
    return (
        f"Nothing in this model is observed, so {listed(flat)} (Flat or HalfFlat) has no posterior distribution, and "
        "RMHMC cannot sample it. Give it a proper prior such as pm.Normal, or data that depend on it with observed=."
    )


def data_in_words(model: pm.Model) -> str:
    """Say that nothing is observed, or a single class, or that nobody observed a class; empty if none of it is so."""
    return no_data_in_words(model) or classes_in_words(model)


def _without_data(structure: ModelStructure) -> str:
    """Return a warning that draws are of the prior, as without `observed=`; empty if data inform all blocks."""
    model = structure.model
    data = [*model.observed_RVs, *model.potentials]
    if not data:
        return no_data_in_words(model)
    apart = [
        block for block in structure.blocks
        if not any(reaches(each, [latent.variable for latent in block.latents]) for each in data)
    ]  # fmt: skip
    if not apart:
        return ""
    readers = [names_of([o.variable]) for block in apart for o in block.observations]
    give = f" If you have data for {listed(readers)}, give them with observed=." if readers else ""
    names = listed([block.name for block in apart], "blocks")
    return f"No observed variable depends on {names}, so data say nothing about these values.{give}"


def warnings_of(structure: ModelStructure, joint: JointModel | JointPlan | str) -> str:
    """Return what a user should know before waiting for draws; empty if there is nothing."""
    said = _without_data(structure), classes_in_words(structure.model), _crowd_of_hyperparameters(structure, joint)
    return " ".join(filter(None, said))


def _n_observed(structure: ModelStructure, point: Point) -> int:
    """Count the observations."""
    read = [pt.as_tensor(o.value) if o.reading is None else o.reading.eta for o in structure.observations]
    return sum(np.size(each) for each in Evaluator(structure.model, read)(point))
