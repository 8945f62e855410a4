"""Why a variable is not sampled as a latent one, and what is said of a model that has no latent variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pymc as pm
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError, listed
from pymc_rmhmc.model.graph.affine import first_bend, predictor_node
from pymc_rmhmc.model.graph.graphs import is_of_dims, reaches
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.likelihoods import read_likelihood
from pymc_rmhmc.model.observed.observation import (
    UNOBSERVED,
    depends_on_potential,
    names_of,
    observation_of,
)
from pymc_rmhmc.model.words.advice import NUTS

__all__ = [
    "GAUSSIAN", "Choice", "discrete_in_words", "nothing_found", "said_once", "step_in_words", "why_above",
    "why_not_latent",
]  # fmt: skip

# For the words of errors.
GAUSSIAN = "gp.Latent, gp.LatentKron, MvNormal, GaussianRandomWalk, AR"
# The beginnings of reasons that are said together, whatever the distributions are.
NOT_GAUSSIAN = "not Gaussian"
NOT_READ = "Gaussian, but not in a form that is read"


@dataclass(frozen=True)
class Choice:
    """What a choice of latent variables is made by: `direct_readers`, `unread_forms`, and whether predictors are read.

    `no_predictors` says why those of likelihoods that are not registered are not read; empty if they are.
    """

    model: pm.Model
    no_predictors: str
    readers: Mapping[TensorVariable, Sequence[TensorVariable]]
    unread: Mapping[str, str]


def why_not_latent(choice: Choice, variable: TensorVariable) -> str:
    """Say why a free variable is not sampled as latent; empty if only variables in its place prevent it."""
    model = choice.model
    if is_of_dims(variable):
        return "it is of pymc.dims, whose distributions are not read"
    if str(variable.name) in choice.unread:
        return f"its prior, {distribution_of(variable)}, is {NOT_READ}"
    if distribution_of(variable) == "CustomDist":
        return "a CustomDist is not read, whatever it is made of"
    discrete = discrete_in_words(variable)
    if discrete:
        return discrete
    if not isinstance(variable.owner.op, NormalRV):
        return f"{NOT_GAUSSIAN} ({distribution_of(variable)})"
    transform = model.rvs_to_transforms.get(variable)
    if transform is not None:
        return f"its values are transformed ({type(transform).__name__}), and what is sampled then is not Gaussian"
    whys = (_why_not_read_by(choice, reader, variable) for reader in choice.readers[variable])
    return why_above(choice, variable) or next(filter(None, whys), "")


def discrete_in_words(variable: TensorVariable) -> str:
    """Say that a variable is discrete, and whether it stands for missing data; empty for a continuous one."""
    if variable.dtype.startswith("float"):
        return ""
    name = str(variable.name)
    what = f"missing observations of {name.removesuffix(UNOBSERVED)}, " if name.endswith(UNOBSERVED) else ""
    return f"{what}discrete ({distribution_of(variable)})"


def step_in_words(variable: TensorVariable) -> str:
    """Say which step of PyMC's samples a discrete variable; empty for a continuous one."""
    if variable.dtype.startswith("float"):
        return ""
    step = max(pm.STEP_METHODS, key=lambda method: method._competence(variable, False))
    return f", sampled by {step.__name__}"


def why_above(choice: Choice, variable: TensorVariable) -> str:
    """Say that a variable is in the prior of others, or in nothing at all; empty if a likelihood alone reads it."""
    readers, free = choice.readers[variable], choice.model.free_RVs
    priors = [names_of([v]) for v in readers if v in free and not str(v.name).endswith(UNOBSERVED)]
    if not readers:
        return "no likelihood depends on it"
    return f"the prior of {listed(priors)} depends on it" if priors else ""


def _why_not_read_by(choice: Choice, reader: TensorVariable, variable: TensorVariable) -> str:
    """Say why a likelihood, or a Potential, does not read a Normal as a latent one; empty if it does."""
    model = choice.model
    if reader in model.potentials:
        return depends_on_potential(reader, "it")
    try:
        observation = observation_of(model, reader, [variable], [variable], "it")
    except UnsupportedModelError as error:
        return str(error)
    found = read_likelihood(reader)
    if observation.likelihood is not None:
        return ""
    if found is not None:
        if any(reaches(other, [variable], model.basic_RVs) for other in found[1].others):
            return f"it enters {reader.name} by another parameter than the predictor"
        return f"the predictor of {reader.name} is not linear in it{_through(found[1].eta, variable)}"
    if predictor_node(reader, [variable], model.basic_RVs) is not None:
        return choice.no_predictors
    parameters = [i for i in reader.owner.inputs if isinstance(i, TensorVariable) and reaches(i, [variable])]
    through = _through(parameters[0], variable) if parameters else ""
    kind = distribution_of(reader)
    return f"the likelihood {kind} of {reader.name} has no predictor that is linear in it{through}"


def _through(expression: TensorVariable, variable: TensorVariable) -> str:
    bend = first_bend(expression, [variable])
    return f" (`{bend}`)" if bend else ""


def said_once(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Group texts by name into pairs of the names in short and the text that they share."""
    by_text: dict[str, list[str]] = {}
    for name, text in texts.items():
        by_text.setdefault(text, []).append(name.removesuffix("_rotated_"))
    return [(listed(names), text) for text, names in by_text.items()]


def nothing_found(model: pm.Model, reasons: Mapping[str, str], advice: Mapping[str, str]) -> UnsupportedModelError:
    """Return the error of a model in which there is nothing to sample.

    Causes come first, each once, and what to write instead; then the variables that are not Gaussian, in one line.
    """
    reasons = {**_why_of_likelihoods(model, reasons), **reasons}
    others = [name for name, why in reasons.items() if why.startswith(NOT_GAUSSIAN)]
    lines = [f"{names}: {why}" for names, why in said_once({n: w for n, w in reasons.items() if n not in others})]
    if others:
        kinds = said_once({n: reasons[n].removeprefix(NOT_GAUSSIAN).strip(" ()") for n in others})
        lines.append(f"{NOT_GAUSSIAN}: " + "; ".join(f"{names} ({kind})" for names, kind in kinds))
    said = "\n".join(f"- {_without_nuts(line)}." for line in lines)
    forms = "".join(f"\n{names}: {text}" for names, text in said_once(advice))
    return UnsupportedModelError(
        f"The model has no latent Gaussian block that RMHMC could sample:\n{said}{forms}\n"
        "As it is, sample the model with RMHMC(), which needs no such block, or with NUTS: pm.sample() without step=. "
        f"A block is a Gaussian vector with a likelihood ({GAUSSIAN}, CAR, ICAR), or Normals that a likelihood's "
        "predictor is linear in.",
        dict(reasons), dict(advice),
    )  # fmt: skip


def _without_nuts(line: str) -> str:
    """Cut from a reason what the end of the message says for all of them."""
    for ending in (". Sample this model with NUTS.", f": {NUTS}", f", or {NUTS}", f", and {NUTS}"):
        line = line.removesuffix(ending)
    return line


def _why_of_likelihoods(model: pm.Model, reasons: Mapping[str, str]) -> dict[str, str]:
    """Return what is in the way of each likelihood that no variable's reason names yet."""
    found = {}
    for variable in model.observed_RVs:
        named = any(f" {variable.name} " in f"{why} " for why in reasons.values())
        if not named and getattr(variable.owner.op, "ndim_supp", 0) > 0:
            try:
                observation_of(model, variable, [], [], "it")
            except UnsupportedModelError as error:
                found[str(variable.name)] = str(error)
    return found
