"""Why a variable is not sampled as a latent one, and what is said of a model that has no latent variable."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
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
    Observation,
    depends_on_potential,
    names_of,
    observation_of,
)
from pymc_rmhmc.model.words.advice import NUTS

__all__ = [
    "ALL_PREDICTORS",
    "GAUSSIAN",
    "Predictors",
    "discrete_in_words",
    "nothing_found",
    "said_once",
    "step_in_words",
    "why_above",
    "why_not_latent",
]

# For the words of errors.
GAUSSIAN = "gp.Latent, gp.LatentKron, MvNormal, GaussianRandomWalk, AR"
# The beginnings of reasons that are said together, whatever the distributions are.
NOT_GAUSSIAN = "not Gaussian"
NOT_READ = "Gaussian, but not in a form that is read"


@dataclass(frozen=True)
class Predictors:
    """Whether the predictors of likelihoods that are not registered are read.

    Attributes
    ----------
    refusal : str
        Why they are not; empty if they are.
    """

    refusal: str = ""

    def __bool__(self) -> bool:
        return not self.refusal


ALL_PREDICTORS = Predictors()


def why_not_latent(
    model: pm.Model, variable: TensorVariable, readers: Mapping[TensorVariable, Sequence[TensorVariable]],
    predictors: Predictors, unread: Container[str],
) -> str:  # fmt: skip
    """Say why a variable that is no latent vector by itself is not sampled as one; empty if nothing is in the way.

    Parameters
    ----------
    model : pymc.Model
        The model.
    variable : TensorVariable
        A free variable.
    readers : dict
        From `direct_readers`.
    predictors : Predictors
        As the model was read with.
    unread : container of str
        The names of Gaussian variables that are read in another form.
    """
    if is_of_dims(variable):
        return "it is of pymc.dims, whose distributions are not read"
    if str(variable.name) in unread:
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
    above = why_above(model, variable, readers)
    if above:
        return above
    for reader in readers[variable]:
        why = _why_not_read_by(model, reader, variable, predictors)
        if why:
            return why
    return ""


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


def why_above(
    model: pm.Model, variable: TensorVariable, readers: Mapping[TensorVariable, Sequence[TensorVariable]]
) -> str:
    """Say that a variable is in the prior of others, or in nothing at all; empty if a likelihood alone reads it."""
    if not readers[variable]:
        return "no likelihood depends on it"
    priors = [v for v in readers[variable] if v in model.free_RVs and not str(v.name).endswith(UNOBSERVED)]
    return f"the prior of {listed(_names(priors))} depends on it" if priors else ""


def _names(variables: Sequence[TensorVariable]) -> list[str]:
    return [names_of([v]) for v in variables]


def _why_not_read_by(
    model: pm.Model, reader: TensorVariable, variable: TensorVariable, predictors: Predictors
) -> str:
    """Say why a likelihood, or a Potential, does not read a Normal as a latent one; empty if it does."""
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
    return _why_not_predicted(model, observation, variable, predictors)


def _why_not_predicted(
    model: pm.Model, observation: Observation, variable: TensorVariable, predictors: Predictors
) -> str:
    """Say why a likelihood that is not registered does not read a Normal as a latent one; empty if it does."""
    reader = observation.variable
    if predictor_node(reader, [variable], model.basic_RVs) is None:
        parameters = [i for i in reader.owner.inputs if isinstance(i, TensorVariable) and reaches(i, [variable])]
        through = _through(parameters[0], variable) if parameters else ""
        kind = distribution_of(reader)
        return f"the likelihood {kind} of {reader.name} has no predictor that is linear in it{through}"
    return predictors.refusal


def _through(expression: TensorVariable, variable: TensorVariable) -> str:
    bend = first_bend(expression, [variable])
    return f" (`{bend}`)" if bend else ""


def said_once(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Group texts by name into pairs of the names in short and the text that they share."""
    by_text: dict[str, list[str]] = {}
    for name, text in texts.items():
        by_text.setdefault(text, []).append(name.removesuffix("_rotated_"))
    return [(listed(names), text) for text, names in by_text.items()]


def nothing_found(
    model: pm.Model, reasons: Mapping[str, str], advice: Mapping[str, str], predictors: Predictors
) -> UnsupportedModelError:
    """Return the error of a model in which there is nothing to sample.

    Causes come first, each once, and what to write instead; then the variables that are not Gaussian, in one line.
    """
    reasons = {**_why_of_likelihoods(model, reasons, predictors), **reasons}
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


def _why_of_likelihoods(model: pm.Model, reasons: Mapping[str, str], predictors: Predictors) -> dict[str, str]:
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
