"""What keeps a model from having an evidence, and what must be said of the one that it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.multivariate import CARRV, ICARRV
from pytensor.graph.basic import Constant

from pymc_rmhmc.errors import ConfigurationError, EvidenceError, UnsupportedModelError, listed, shown
from pymc_rmhmc.model.predictions import predicted_variables

__all__ = ["check_continuous", "check_proper", "checked_model", "convention_in_words", "omitted_constants"]

ALL_CONSTANTS = (
    "log p(y), the natural logarithm, with all constants of the model's distributions: the normalising constants of "
    "priors, and terms such as log y! of Poisson counts."
)


def checked_model(model: Any) -> pm.Model:
    """Return the model, or the one in context.

    Raises
    ------
    ConfigurationError
        If it is no model, or there is none.
    """
    if model is None:
        try:
            return pm.modelcontext(None)
        except TypeError:
            raise ConfigurationError(
                "There is no model: give log_evidence(model), or call it in the model's context."
            ) from None
    if not isinstance(model, pm.Model):
        raise ConfigurationError(f"model must be a pymc.Model, got {shown(model)}.")
    return model


def check_proper(model: pm.Model) -> None:
    """Raise for priors that are no distributions, and for models without data.

    Raises
    ------
    EvidenceError
        If there is one.
    UnsupportedModelError
        If a variable is discrete.
    """
    flat = [str(v.name) for v in model.free_RVs if isinstance(v.owner.op, FlatRV | HalfFlatRV)]
    if flat:
        raise EvidenceError(
            f"The evidence does not exist: the prior of {listed(flat)} is flat, and has no finite integral. Give a "
            f"proper prior, such as pm.Normal({flat[0]!r}, 0, 10)."
        )
    if not model.observed_RVs and not model.potentials:
        raise EvidenceError(
            "The model has no observed data, so that there is no evidence: give observed= to a variable of the model."
        )
    check_continuous(model)


def check_continuous(model: pm.Model) -> None:
    """Raise for discrete variables, over which trajectories cannot integrate.

    Raises
    ------
    UnsupportedModelError
        If there is one that is not merely predicted.
    """
    predicted = predicted_variables(model)
    kinds = ("int", "uint", "bool")
    discrete = [str(v.name) for v in model.free_RVs if v.dtype.startswith(kinds) and v not in predicted]
    if discrete:
        raise UnsupportedModelError(
            f"{listed(discrete)}: a discrete variable has no trajectories by which it could be moved and integrated "
            "over. Sum over its values instead, with pm.Mixture or pymc_extras.marginalize."
        )


def omitted_constants(model: pm.Model, names: Iterable[str]) -> float:
    """Return what PyMC's densities of some variables lack: those of CAR and ICAR are not normalised.

    Raises
    ------
    EvidenceError
        If an ICAR has a scale that is sampled: what its density lacks depends on the scale.
    """
    held = set(names)
    total = 0.0
    for variable in model.free_RVs:
        if str(variable.name) not in held:
            continue
        if isinstance(variable.owner.op, CARRV):
            total += _of_car(variable)
        elif isinstance(variable.owner.op, ICARRV):
            total += _of_icar(variable)
    return total


def _of_car(variable: Any) -> float:
    adjacency = _constant(variable, variable.owner.op.dist_params(variable.owner)[1], "W")
    degrees, count = adjacency.sum(axis=0), int(np.prod(variable.shape.eval()))
    rows = count // degrees.size
    return -0.5 * count * float(np.log(2.0 * np.pi)) + 0.5 * rows * float(np.log(degrees).sum())


def _of_icar(variable: Any) -> float:
    weights, scale, zero_sum = variable.owner.op.dist_params(variable.owner)
    adjacency, n = _constant(variable, weights, "W"), int(variable.shape.eval()[-1])
    sigma, stdev = float(_constant(variable, scale, "sigma")), float(_constant(variable, zero_sum, "zero_sum_stdev"))
    precision = (np.diag(adjacency.sum(axis=0)) - adjacency) / sigma**2 + np.ones((n, n)) / (stdev * n) ** 2
    half = 0.5 * float(np.linalg.slogdet(precision)[1])
    return half - 0.5 * (n - 1) * float(np.log(2.0 * np.pi)) + float(np.log(stdev * n))


def _constant(variable: Any, argument: Any, name: str) -> Any:
    if not isinstance(argument, Constant):
        from pytensor.graph.traversal import ancestors

        if any(node.owner is not None and hasattr(node.owner.op, "rng_param") for node in ancestors([argument])):
            raise EvidenceError(
                f"{variable.name}: PyMC's density of this {variable.owner.op.name} lacks a factor that depends on "
                f"{name}, which is sampled, so that it is no prior distribution. Scale the variable instead: "
                f"{variable.name} = {name} * pm.ICAR(..., W=W)."
            )
    return np.asarray(argument.eval(), dtype=float)


def convention_in_words(model: pm.Model) -> str:
    """Say which constants are in the evidence of a model."""
    said = [ALL_CONSTANTS]
    if model.potentials:
        names = listed([str(v.name) for v in model.potentials], "Potentials")
        said.append(
            f"The Potential of {names} is taken as it stands: the evidence is that of a normalised model only if the "
            "Potential is the logarithm of a normalised density."
        )
    areal = [str(v.name) for v in model.free_RVs if isinstance(v.owner.op, CARRV | ICARRV)]
    if areal:
        said.append(
            f"PyMC's density of {listed(areal)} lacks constants; here it is normalised, that of the multivariate "
            "normal with this precision."
        )
    return " ".join(said)
