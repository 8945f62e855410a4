"""What is sampled where nobody has named it: latent vectors with a likelihood, or else coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pymc as pm
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError, listed
from pymc_rmhmc.model.forms.linear_normals import linear_normals
from pymc_rmhmc.model.forms.priors import GAUSSIAN_VECTORS, LatentVariable, gaussian_candidates, read_latent
from pymc_rmhmc.model.graph.affine import predictor_node
from pymc_rmhmc.model.graph.graphs import is_of_dims, reaches
from pymc_rmhmc.model.likelihoods import read_likelihood
from pymc_rmhmc.model.observed.observation import direct_readers, names_of, observations_of
from pymc_rmhmc.model.words.advice import unread_forms
from pymc_rmhmc.model.words.refusals import Predictors, why_above, why_not_latent

__all__ = ["BY_ANOTHER", "Choice", "choice_of", "explain", "find_coefficients", "find_latents", "nested"]

# For the words of reasons, of vectors that another RMHMC could sample.
BY_ANOTHER = "another parameter than other latent values"


@dataclass(frozen=True)
class Choice:
    """What a choice of latent variables is made by.

    Attributes
    ----------
    model : pymc.Model
        The model.
    predictors : Predictors
        Whether the predictors of likelihoods that are not registered are read.
    readers : dict
        From `direct_readers`.
    unread : dict of str to str
        From `unread_forms`.
    """

    model: pm.Model
    predictors: Predictors
    readers: Mapping[TensorVariable, Sequence[TensorVariable]]
    unread: Mapping[str, str]

    def why_not(self, variable: TensorVariable) -> str:
        """Return why a variable is not sampled as latent; empty if only variables in its place prevent it."""
        return why_not_latent(self.model, variable, self.readers, self.predictors, self.unread)


def choice_of(model: pm.Model, predictors: Predictors) -> Choice:
    """Gather what is needed to choose the latent variables of a model."""
    return Choice(model, predictors, direct_readers(model), unread_forms(model, model.free_RVs))


def find_latents(choice: Choice, reasons: dict[str, str]) -> list[LatentVariable]:
    """Find the latents sampled by default: Gaussian variables with a likelihood that can be sampled."""
    model, found = choice.model, []
    candidates = gaussian_candidates(model)
    vectors = [v for v in model.free_RVs if v in candidates or type(v.owner.op) in GAUSSIAN_VECTORS]
    for variable in model.free_RVs:
        if is_of_dims(variable) or variable not in vectors:
            continue
        latent = _vector(choice, variable, is_candidate=variable in candidates)
        if isinstance(latent, str):
            reasons[str(variable.name)] = latent
        else:
            found.append(latent)
    for latent, others in nested(model, found):
        reasons[str(latent.variable.name)] = f"the prior of {others} depends on it"
        found.remove(latent)
    for latent, reason in _besides(model, found):
        reasons[str(latent.variable.name)] = reason
        found.remove(latent)
    return found


def _vector(choice: Choice, variable: TensorVariable, *, is_candidate: bool) -> LatentVariable | str:
    """Read a vector with a covariance, or return why it is not sampled."""
    latent = read_latent(choice.model, variable)
    if isinstance(latent, str):
        return latent
    if latent.form == "independent":
        return (
            "read as independent normals, not through one cholesky(K) @ v or a Kronecker product of such factors: "
            "name it in vars to sample it"
        )
    try:
        observed = observations_of(choice.model, [latent], "it")
    except UnsupportedModelError as error:
        return str(error)
    if observed and is_candidate:
        return latent
    return why_above(choice.model, variable, choice.readers) or f"it enters by {BY_ANOTHER}"


def explain(choice: Choice, latents: Sequence[LatentVariable], reasons: dict[str, str]) -> None:
    """Add why each variable that is not among the latents is not, unless it is known."""
    chosen = {latent.variable for latent in latents}
    names = listed([names_of([latent.variable]) for latent in latents])
    if not latents:
        otherwise = "no likelihood reads it linearly"
    elif all(latent.form == "independent" for latent in latents):
        otherwise = f"no predictor is linear in it and {names} together"
    else:
        otherwise = f"next to {names} it is sampled as a latent variable only if vars names them all"
    for variable in choice.model.free_RVs:
        if variable not in chosen and str(variable.name) not in reasons:
            reasons[str(variable.name)] = choice.why_not(variable) or otherwise


def _besides(model: pm.Model, latents: Sequence[LatentVariable]) -> list[tuple[LatentVariable, str]]:
    """Find the latents that enter a registered likelihood by other parameters than the rest, and not in one sum."""
    dropped: dict[LatentVariable, str] = {}
    for variable in model.observed_RVs:
        found = read_likelihood(variable)
        read = [each for each in latents if each not in dropped and reaches(variable, [each.variable])]
        if found is None or len(read) < 2:
            continue
        by_others = [
            each for each in read if any(reaches(o, [each.variable], model.basic_RVs) for o in found[1].others)
        ]
        if by_others and predictor_node(variable, [each.source for each in read], model.basic_RVs) is None:
            # Of those that all enter by several parameters one can be sampled.
            these = by_others if len(by_others) < len(read) else by_others[1:]
            dropped |= dict.fromkeys(these, f"it enters {variable.name} by {BY_ANOTHER}")
    return list(dropped.items())


def find_coefficients(choice: Choice, reasons: dict[str, str]) -> list[LatentVariable]:
    """Find the Normals that predictors are linear in, for a model without a latent vector that has a covariance."""
    model, found = choice.model, []
    for variable in linear_normals(model, predictors=bool(choice.predictors), readers=choice.readers):
        latent = read_latent(model, variable)
        if not isinstance(latent, str):
            found.append(latent)
            reasons.pop(str(variable.name), None)
    return found


def nested(model: pm.Model, latents: Sequence[LatentVariable]) -> list[tuple[LatentVariable, str]]:
    """Find the latents on which the prior of another depends, with the names of those others."""
    found = []
    for latent in latents:
        above = [
            other.variable
            for other in latents
            for part in other.expressions
            if reaches(part, [latent.variable], model.basic_RVs)
        ]
        if above:
            found.append((latent, names_of(dict.fromkeys(above))))
    return found
