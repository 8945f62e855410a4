"""What is sampled where nobody has named it: latent vectors with a likelihood, or else coefficients."""

from __future__ import annotations

from collections.abc import Sequence

import pymc as pm

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model.affine import predictor_node
from pymc_rmhmc.model.gaussian_vectors import GAUSSIAN_VECTORS
from pymc_rmhmc.model.graphs import is_of_dims, reaches
from pymc_rmhmc.model.likelihoods import read_likelihood
from pymc_rmhmc.model.linear_normals import linear_normals
from pymc_rmhmc.model.observation import LEAVE_OUT, distribution_of, names_of, observations_of
from pymc_rmhmc.model.priors import LatentVariable, gaussian_candidates, read_latent

__all__ = ["find_coefficients", "find_latents", "nested"]


def find_latents(model: pm.Model, reasons: dict[str, str]) -> list[LatentVariable]:
    """The default choice: latent Gaussian variables with a likelihood that can be sampled."""
    found = []
    candidates = gaussian_candidates(model)
    for variable in model.free_RVs:
        if is_of_dims(variable):
            reasons[str(variable.name)] = "it is of pymc.dims, whose distributions are not read"
            continue
        if variable not in candidates and type(variable.owner.op) not in GAUSSIAN_VECTORS:
            kind = distribution_of(variable)
            named = " unless it is named in vars" if kind == "Normal" else ""
            article = "an" if kind.startswith(tuple("AEIOU")) else "a"
            reasons[str(variable.name)] = f"{article} {kind} is not a latent Gaussian variable{named}"
            continue
        latent = read_latent(model, variable)
        if isinstance(latent, str) or latent.form == "independent":
            independent = (
                "read as independent normals, not through one cholesky(K) @ v or a Kronecker product of such factors: "
                "name it in vars to sample it"
            )
            reasons[str(variable.name)] = latent if isinstance(latent, str) else independent
            continue
        try:
            observed = observations_of(model, [latent])
        except UnsupportedModelError as error:
            reasons[str(variable.name)] = str(error)
            continue
        if observed and variable in candidates:
            found.append(latent)
        else:
            reasons[str(variable.name)] = "no likelihood depends on it"
    for latent, others in nested(model, found):
        reasons[str(latent.variable.name)] = f"the prior of {others} depends on it"
        found.remove(latent)
    for latent, reason in _besides(model, found):
        reasons[str(latent.variable.name)] = reason
        found.remove(latent)
    return found


def _besides(model: pm.Model, latents: Sequence[LatentVariable]) -> list[tuple[LatentVariable, str]]:
    """The latents that a registered likelihood reads by other parameters than others, and not in one sum with them."""
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
            dropped |= dict.fromkeys(
                these, f"it enters {variable.name} by another parameter than other latent values: sample it with an "
                "RMHMC(vars=...) of its own beside this one",
            )  # fmt: skip
    return list(dropped.items())


def find_coefficients(model: pm.Model, reasons: dict[str, str], predictors: bool) -> list[LatentVariable]:
    """Where there is no latent vector with a covariance: the Normals that predictors are linear in."""
    found = []
    for variable in linear_normals(model, predictors=predictors):
        latent = read_latent(model, variable)
        if not isinstance(latent, str):
            found.append(latent)
            reasons.pop(str(variable.name), None)
    if not found:
        _note_missing(model, reasons)
    return found


def _note_missing(model: pm.Model, reasons: dict[str, str]) -> None:
    """Where nothing is found, which variables have a likelihood with missing values that are in the way."""
    for variable in model.free_RVs:
        latent = read_latent(model, variable)
        if isinstance(latent, str):
            continue
        try:
            observations_of(model, [latent])
        except UnsupportedModelError as error:
            if LEAVE_OUT in str(error):
                reasons[str(variable.name)] = str(error)


def nested(model: pm.Model, latents: Sequence[LatentVariable]) -> list[tuple[LatentVariable, str]]:
    """The latents on which the prior of another depends, with the names of those others."""
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
