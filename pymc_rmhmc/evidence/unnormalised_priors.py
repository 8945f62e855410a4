"""Priors that do not integrate to 1: a transform leaves out a part of their support, or a user has written them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.transforms import Ordered
from pytensor.compile.mode import Mode

from pymc_rmhmc.errors import EvidenceError, listed
from pymc_rmhmc.model.predictions import is_default_transform

__all__ = ["check_own_priors", "own_priors_in_words", "restricted_priors"]

# Draws of a prior that tell how much of it its transform leaves.
DRAWS = 4000
# How far from 0 the density of a prior is asked whether it falls faster than 1/r, and what rounding may add.
NEAR, FAR, ROUNDING = 1e6, 1e8, 0.02


def _own_priors(model: pm.Model) -> list[str]:
    """Return the names of the free variables whose density a user has written."""
    return [str(v.name) for v in model.free_RVs if isinstance(v.owner.op, CustomDistRV)]


def check_own_priors(model: pm.Model) -> None:
    """Raise where a density that a user has written has no finite integral.

    Raises
    ------
    EvidenceError
        If it falls no faster than 1/r on one side.
    """
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


def _share_left(variable: Any, transform: Any) -> float | None:
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


def own_priors_in_words(model: pm.Model) -> Iterator[str]:
    """Say of which variables a user has written the density."""
    names = _own_priors(model)
    if names:
        yield (
            f"The density of {listed(names)} is taken as it stands: the evidence is that of a normalised model only if "
            "this density integrates to 1."
        )
