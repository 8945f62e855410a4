"""What keeps a model from having an evidence, and what must be said of the one that it has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.distributions.transforms import Ordered
from pymc.logprob.transforms import Transform
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor import TensorVariable
from scipy.sparse import issparse
from scipy.sparse.csgraph import connected_components

from pymc_rmhmc.errors import ConfigurationError, EvidenceError, UnsupportedModelError, listed
from pymc_rmhmc.model.predictions import is_default_transform, predicted_variables

__all__ = ["check_continuous", "check_proper", "convention_in_words", "no_effect", "omitted_constants"]

type Array = NDArray[np.float64]

ALL_CONSTANTS = (
    "log p(y), the natural logarithm, with all constants of the model's distributions: the normalising constants of "
    "priors, and terms such as log y! of Poisson counts."
)

# Draws of a prior that tell how much of it its transform leaves.
DRAWS = 4000
# How far from 0 the density of a prior is asked whether it falls faster than 1/r, and what rounding may add.
NEAR, FAR, ROUNDING = 1e6, 1e8, 0.02


def no_effect(option: str, method: str, reason: str) -> ConfigurationError:
    """Return the error for an option of `log_evidence` that a method does not use."""
    return ConfigurationError(f'{option}= has no effect with method="{method}", {reason}. Leave {option} out.')


def check_proper(model: pm.Model) -> None:
    """Raise for priors that are no distributions, and for models without data."""
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
    """Raise for discrete variables, over which trajectories cannot integrate, but for those that are predicted."""
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

    Of an ICAR whose scale is sampled that depends on the scale, and there is an error.
    """
    held = set(names)
    total = 0.0
    for variable in [*(v for v in model.free_RVs if str(v.name) in held), *model.observed_RVs]:
        if isinstance(variable.owner.op, CARRV):
            total += _of_car(variable)
        elif isinstance(variable.owner.op, ICARRV):
            total += _of_icar(variable)
    return total


def _of_car(variable: TensorVariable) -> float:
    degrees = _adjacency(variable, variable.owner.op.dist_params(variable.owner)[1]).sum(axis=0)
    count = int(np.prod(variable.shape.eval()))
    rows = count // degrees.size
    return -0.5 * count * float(np.log(2.0 * np.pi)) + 0.5 * rows * float(np.log(degrees).sum())


def _of_icar(variable: TensorVariable) -> float:
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


def _adjacency(variable: TensorVariable, argument: Variable) -> Array:
    """Return W (n, n), which several rows share."""
    found = _constant(variable, argument, "W")
    return found.reshape(found.shape[-2:])


def _constant(variable: TensorVariable, argument: Variable, name: str) -> Array:
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
    said += restricted_priors(model)
    if written := _own_priors(model):
        said.append(
            f"The density of {listed(written)} is taken as it stands: the evidence is that of a normalised model only "
            "if this density integrates to 1."
        )
    areal = [str(v.name) for v in [*model.free_RVs, *model.observed_RVs] if isinstance(v.owner.op, CARRV | ICARRV)]
    if areal:
        said.append(
            f"PyMC's density of {listed(areal)} lacks constants; here it is normalised, that of the multivariate "
            "normal with this precision."
        )
    return " ".join(said)


def _own_priors(model: pm.Model) -> list[str]:
    """Return the names of the free variables whose density a user has written."""
    return [str(v.name) for v in model.free_RVs if isinstance(v.owner.op, CustomDistRV)]


def check_own_priors(model: pm.Model) -> None:
    """Raise where a density that a user has written has no finite integral: it falls no faster than 1/r on a side."""
    names = _own_priors(model)
    point = model.initial_point() if names else {}
    for name in names:
        value = str(model.rvs_to_values[model[name]].name)
        log_density = model.compile_logp(vars=[model[name]])
        for sign in (-1.0, 1.0):
            ends = [
                float(log_density(point | {value: np.full_like(point[value], sign * far)})) for far in (NEAR, FAR)
            ]
            falls = (ends[0] - ends[1]) / (math.log(FAR / NEAR) * max(1, point[value].size))
            if falls < 1.0 + ROUNDING:
                raise EvidenceError(
                    f"The evidence does not exist: the density of {name} falls no faster than 1/|x|, so that this "
                    f"prior has no finite integral. Give a proper prior, such as pm.Normal({name!r}, 0, 10)."
                )


def restricted_priors(model: pm.Model) -> Iterator[str]:
    """Say of which priors a transform leaves a part, and how large it is."""
    for variable in model.free_RVs:
        transform = model.rvs_to_transforms.get(variable)
        if transform is None or isinstance(transform, Ordered) or is_default_transform(variable, transform):
            continue
        share = _share_left(variable, transform)
        if share == 1.0:
            continue
        if share is None:
            yield (
                f"Whether the transform of {variable.name} leaves out a part of its prior is not known, since it "
                "has no random draws; if it does, the prior is not normalised on the rest."
            )
            continue
        part = f"about {share:.3g}" if share else f"less than {1.0 / DRAWS:.2g}"
        lacking = f"about {-math.log(share):.3g}" if share else f"more than {math.log(DRAWS):.2g}"
        yield (
            f"The transform of {variable.name} leaves {part} of its prior, which is not normalised there: {lacking} is "
            "to be added to log p(y) for a prior that is."
        )


def _share_left(variable: TensorVariable, transform: Transform) -> float | None:
    """Return the share of a prior's draws that the transform brings back unchanged; None where there are no draws."""
    inputs = variable.owner.inputs
    back = transform.backward(transform.forward(variable, *inputs), *inputs)
    try:
        with np.errstate(all="ignore"):
            # Without rewrites, which take the way there and back for the number itself, wherever it is.
            drawn, returned = pm.draw([variable, back], DRAWS, random_seed=0, mode=Mode("py", None))
    except (NotImplementedError, ValueError, TypeError):
        return None
    same = np.isclose(drawn, returned, rtol=1e-6, atol=1e-9).reshape(DRAWS, -1).all(axis=1)
    return float(same.mean())
