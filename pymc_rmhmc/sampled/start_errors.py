"""Why a chain cannot begin: which part of the model has no number at its starting point.

A prior without a factor, a likelihood that overflows and a Potential that is nan look alike from a chain. Here each
part is asked by itself, so that the error names the one to change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.messages import in_words
from pymc_rmhmc.chains.variables import Point
from pymc_rmhmc.errors import ConfigurationError, CovarianceError, DataError, Failure, RMHMCError
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.latent_blocks import conditional_of, prior_of
from pymc_rmhmc.latent.prior import PriorFailure

__all__ = ["density_error", "joint_start_error", "likelihood_error"]

type Array = NDArray[np.float64]

UNKNOWN_CAUSE = (
    "It may overflow, or a parameter is out of range. A rate needs pm.math.exp(f), and a probability needs logit_p=f "
    "or pm.math.invlogit(f)."
)


def joint_start_error(model: Any, theta: Array, where: str, names: str, cause: Callable[[], str]) -> RMHMCError | None:
    """Return the error that says what is wrong with a joint model at θ; None where each part has a number.

    Parameters
    ----------
    model : JointModel
        The blocks and the rest of the log density.
    theta : (d,) array
        The chain's starting point.
    where : str
        The same in words.
    names : str
        The variables and potentials whose log densities are the rest.
    cause : callable
        Which terms of the model have no number where the chain begins, in words.
    """
    try:
        total, gradient = model.rest(theta)
    except np.linalg.LinAlgError:
        total, gradient = math.nan, theta
    if not (math.isfinite(total) and np.isfinite(gradient).all()):
        found = f"is {total:.3g}" if not math.isfinite(total) else "has a gradient that is not finite"
        return ConfigurationError(
            f"The log density of {names} {found} at the chain's starting point, where {where}. The cause is one of "
            "these priors or Potentials, and not the latent values. Correct it, or start elsewhere with `initvals`."
        )
    for block in model.blocks:
        error = _block_error(block, theta, where, cause)
        if error is not None:
            return error
    return None


def _block_error(block: Any, theta: Array, where: str, cause: Callable[[], str]) -> RMHMCError | None:
    """Return the error that says what is wrong with a block's prior or its likelihood at θ; None if nothing is."""
    try:
        stated = prior_of(block, theta, derivative=False)
    except PriorFailure:
        return _no_factor(block, where)
    if not all(np.isfinite(array).all() for array in _arrays(asdict(stated))):
        return DataError(
            f"{block.name}: the prior's mean or covariance is not finite at the chain's starting point, where {where}. "
            "Inputs or hyperparameters of this size overflow. Rescale the inputs to about 1, or start elsewhere with "
            "`initvals`."
        )
    nothing = np.zeros(block.n_sites)
    try:
        centre, _ = conditional_of(block, theta, GaussianSites(nothing, nothing), derivative=False).marginals()
    except PriorFailure as failure:
        return _no_factor(block, where) if failure.failure is Failure.NOT_POSITIVE_DEFINITE else None
    total, slope, _ = block.likelihood(theta, centre)
    return likelihood_error(block.name, total, slope, where, cause)


def _no_factor(block: Any, where: str) -> CovarianceError:
    return CovarianceError(
        f"{block.name}: the prior covariance is not positive definite at the chain's starting point, where {where}. "
        "Add jitter with gp.prior(..., jitter=1e-6), remove duplicated inputs, or start elsewhere with `initvals`."
    )


def likelihood_error(
    name: str, total: float, slope: Array, where: str, cause: Callable[[], str]
) -> ConfigurationError | None:
    """Return the error for a likelihood without a number where the latent values are at their prior mean.

    Parameters
    ----------
    name : str
        The latent functions.
    total, slope : float, (n,) array
        Its log density and its slope.
    where : str
        The hyperparameters in words, empty if there are none.
    cause : callable
        Which terms of the model have no number where the chain begins, in words; empty if each has.
    """
    if math.isfinite(total) and np.isfinite(slope).all():
        return None
    found = f"is {total:.3g}" if not math.isfinite(total) else "has a gradient that is not finite"
    given = f", where {where}" if where else ""
    said = cause()
    why = f"At the chain's starting point {said}" if said else UNKNOWN_CAUSE
    return ConfigurationError(
        f"{name}: the log likelihood {found} when the latent values are at their prior mean{given}. {why} Check its "
        "offset, link and units, or centre the prior near the data."
    )


def density_error(terms: Any, sampled: Sequence[str], point: Point) -> ConfigurationError | None:
    """Return the error for a whole model without a density where a chain begins; None if each term has a number.

    Parameters
    ----------
    terms : DensityTerms
        The model's.
    sampled : sequence of str
        The names of the variables that move.
    point : dict
        Where the chain begins.
    """
    said = terms.in_words(point)
    if not said:
        return None
    values = terms.free_values(point)
    where = in_words({n.removesuffix("_rotated_"): value for n, value in values.items() if n in sampled})
    return ConfigurationError(
        f"At the chain's starting point, where {where}, {said} Correct this, or start elsewhere with `initvals`."
    )


def _arrays(stated: Any) -> Iterator[Array]:
    """Yield all arrays of numbers in what states a prior."""
    if isinstance(stated, dict | tuple | list):
        for each in stated.values() if isinstance(stated, dict) else stated:
            yield from _arrays(each)
    elif isinstance(stated, np.ndarray) and stated.dtype.kind == "f":
        yield stated
