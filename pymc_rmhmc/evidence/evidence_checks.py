"""What keeps a model from having an evidence, and what must be said of the one that it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.distributions.transforms import Ordered
from pytensor.graph.basic import Constant
from scipy.sparse import issparse
from scipy.sparse.csgraph import connected_components

from pymc_rmhmc.errors import ConfigurationError, EvidenceError, UnsupportedModelError, listed
from pymc_rmhmc.evidence.unnormalised_priors import check_own_priors, own_priors_in_words, restricted_priors
from pymc_rmhmc.model.predictions import predicted_variables

__all__ = ["check_continuous", "check_proper", "convention_in_words", "no_effect", "omitted_constants"]

ALL_CONSTANTS = (
    "log p(y), the natural logarithm, with all constants of the model's distributions: the normalising constants of "
    "priors, and terms such as log y! of Poisson counts."
)


def no_effect(option: str, method: str, reason: str) -> ConfigurationError:
    """Return the error for an option of `log_evidence` that a method does not use."""
    return ConfigurationError(f'{option}= has no effect with method="{method}", {reason}. Leave {option} out.')


def check_proper(model: pm.Model) -> None:
    """Raise for priors that are no distributions, and for models without data.

    Raises
    ------
    EvidenceError
        If there is one.
    """
    flat = [str(v.name) for v in model.free_RVs if isinstance(v.owner.op, FlatRV | HalfFlatRV)]
    if flat:
        raise EvidenceError(
            f"The evidence does not exist: the prior of {listed(flat)} is flat, and has no finite integral. Give a "
            f"proper prior, such as pm.Normal({flat[0]!r}, 0, 10)."
        )
    check_own_priors(model)
    if not model.observed_RVs and not model.potentials:
        raise EvidenceError(
            "The model has no observed data, so that there is no evidence: give observed= to a variable of the model."
        )


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
    """Return what PyMC's densities of some variables, and of data, lack: those of CAR and ICAR are not normalised.

    Raises
    ------
    EvidenceError
        If an ICAR has a scale that is sampled: what its density lacks depends on the scale.
    """
    held = set(names)
    total = 0.0
    for variable in [*(v for v in model.free_RVs if str(v.name) in held), *model.observed_RVs]:
        if isinstance(variable.owner.op, CARRV):
            total += _of_car(variable)
        elif isinstance(variable.owner.op, ICARRV):
            total += _of_icar(variable)
    return total


def _of_car(variable: Any) -> float:
    degrees = _adjacency(variable, variable.owner.op.dist_params(variable.owner)[1]).sum(axis=0)
    count = int(np.prod(variable.shape.eval()))
    rows = count // degrees.size
    return -0.5 * count * float(np.log(2.0 * np.pi)) + 0.5 * rows * float(np.log(degrees).sum())


def _of_icar(variable: Any) -> float:
    weights, scale, zero_sum = variable.owner.op.dist_params(variable.owner)
    adjacency, n = _adjacency(variable, weights), int(variable.shape.eval()[-1])
    if connected_components(adjacency, directed=False)[0] > 1:
        raise EvidenceError(
            f"The evidence does not exist: the map of {variable.name} falls in several parts, so that its ICAR prior "
            "has no finite integral. Give each part an ICAR of its own."
        )
    sigma, stdev = float(_constant(variable, scale, "sigma")), float(_constant(variable, zero_sum, "zero_sum_stdev"))
    precision = (np.diag(adjacency.sum(axis=0)) - adjacency) / sigma**2 + np.ones((n, n)) / (stdev * n) ** 2
    half = 0.5 * float(np.linalg.slogdet(precision)[1])
    return half - 0.5 * (n - 1) * float(np.log(2.0 * np.pi)) + float(np.log(stdev * n))


def _adjacency(variable: Any, argument: Any) -> Any:
    """Return W (n, n), which several rows share."""
    found = _constant(variable, argument, "W")
    return found.reshape(found.shape[-2:])


def _constant(variable: Any, argument: Any, name: str) -> Any:
    if not isinstance(argument, Constant):
        from pytensor.graph.traversal import ancestors

        if any(node.owner is not None and hasattr(node.owner.op, "rng_param") for node in ancestors([argument])):
            raise EvidenceError(
                f"{variable.name}: PyMC's density of this {variable.owner.op.name} lacks a factor that depends on "
                f"{name}, which is sampled, so that it is no prior distribution. Scale the variable instead: "
                f"{variable.name} = {name} * pm.ICAR(..., W=W)."
            )
    found = argument.eval()
    return np.asarray(found.toarray() if issparse(found) else found, dtype=float)


def convention_in_words(model: pm.Model) -> str:
    """Say which constants are in the evidence of a model."""
    said = [ALL_CONSTANTS]
    if model.potentials:
        names = listed([str(v.name) for v in model.potentials], "Potentials")
        said.append(
            f"The Potential of {names} is taken as it stands: the evidence is that of a normalised model only if the "
            "Potential is the logarithm of a normalised density."
        )
    ordered = [str(v.name) for v in model.free_RVs if isinstance(model.rvs_to_transforms.get(v), Ordered)]
    if ordered:
        said.append(
            f"The prior of {listed(ordered)} is that of PyMC on the ordered values alone: of k independent values of "
            "one law it integrates to 1/k!, so that log k! is to be added for a prior that is normalised there."
        )
    said += [*restricted_priors(model), *own_priors_in_words(model)]
    areal = [str(v.name) for v in [*model.free_RVs, *model.observed_RVs] if isinstance(v.owner.op, CARRV | ICARRV)]
    if areal:
        said.append(
            f"PyMC's density of {listed(areal)} lacks constants; here it is normalised, that of the multivariate "
            "normal with this precision."
        )
    return " ".join(said)
