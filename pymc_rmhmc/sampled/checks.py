"""What can be known of a block before a chain runs: errors here, not failures there."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray

from pymc_rmhmc.chains.conditional_density import Point
from pymc_rmhmc.chains.judgement import in_words
from pymc_rmhmc.errors import ConfigurationError, CovarianceError, DataError, Failure, PriorFailure, RMHMCError
from pymc_rmhmc.interfaces.stated import StatedVector
from pymc_rmhmc.latent.charts import GaussianSites
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.forms import operator_of
from pymc_rmhmc.latent.latent_blocks import conditional_of, prior_of
from pymc_rmhmc.linalg.cholesky import cholesky
from pymc_rmhmc.model.forms.priors import factor_of_inverse
from pymc_rmhmc.model.graph.graphs import shared_inputs

__all__ = [
    "check_block", "check_curvature", "check_shapes", "density_error", "joint_start_error", "likelihood_error",
    "shapes_of_data",
]  # fmt: skip

type Array = NDArray[np.float64]

def check_block(block: Any, point: Point, plan: Any) -> None:
    """Check what can be known before a chain runs: the covariance, and the likelihood's curvatures."""
    likelihood = block.likelihood(point)
    if block.n_latent == 0:
        raise DataError(f"{block.name} has no latent values: its inputs are empty.")
    if block.n_sites == 0:
        raise DataError(
            f"{block.name} has no observations: the data are empty. Give data, or draw from the prior with "
            "pm.sample_prior_predictive()."
        )
    check_curvature(block.name, likelihood.kinds, plan.curvature)
    block.check_inputs(point)
    if block.prior_inputs:
        return
    try:
        FactorizedPrior(block.prior(point))
    except PriorFailure as failure:
        raise _covariance_error(block, point, failure) from None


def check_curvature(block: str, kinds: Sequence[str], wanted: str | None) -> None:
    """Raise a `ConfigurationError` if a metric wants a curvature that a block's likelihood does not give."""
    if wanted is not None and wanted not in kinds:
        raise ConfigurationError(
            f'{block}: its likelihood gives no "{wanted}" curvature, only {", ".join(kinds)}. '
            f'Choose metric="{kinds[0]}" or metric="flat".'
        )


def _covariance_error(block: Any, point: Point, failure: PriorFailure) -> Exception:
    """Explain why a fixed prior cannot be used, with the eigenvalue that shows it."""
    if failure.failure is Failure.NON_FINITE:
        return DataError(
            f"{block.name}: the prior's mean or covariance has values that are not finite. Look for a lengthscale of 0 "
            "and for NaN among what they are made of. Very large inputs overflow: rescale them to about 1."
        )
    vectors = block.prior(point).vectors
    worst = next(i for i, vector in enumerate(vectors) if not _has_operator(vector))
    kind, matrices = block.given(point, worst)
    if kind == "precision":
        return _indefinite(
            f"{block.name}: the prior precision (tau)", matrices[0], "tau", 1e-8,
            lambda matrix: factor_of_inverse(matrix) is not None,
            "An intrinsic prior, whose precision is singular, has no density.",
        )  # fmt: skip
    factor = getattr(vectors[worst], "factor", None)
    if factor is not None:
        zeros = np.flatnonzero(~(factor.diagonal() > 0.0))
        return CovarianceError(
            f"{block.name}: the diagonal of the Cholesky factor (chol) is not positive for {zeros.size} of "
            f"{len(factor)} values, the first at position {zeros[0]}. Such a prior has no density. Give "
            "chol=np.linalg.cholesky(cov) of a covariance that is positive definite."
        )
    covariances = matrices if kind == "kronecker" else [vectors[worst].covariance]
    return _indefinite(
        f"{block.name}: the prior covariance", next(each for each in covariances if cholesky(each) is None), "cov",
        1e-12, lambda matrix: cholesky(matrix) is not None,
        "For a GP raise the jitter of gp.prior, which is 1e-06 by default, by as much, or remove duplicated inputs.",
    )  # fmt: skip


def _has_operator(vector: StatedVector) -> bool:
    """Return whether a vector's prior can be used."""
    try:
        operator_of(vector)
    except PriorFailure:
        return False
    return True


def _indefinite(
    name: str, matrix: np.ndarray, argument: str, part: float, has_factor: Callable[[np.ndarray], bool], more: str
) -> CovarianceError:
    """Say how far a matrix is from positive definite, and what to add to its diagonal so that it is."""
    eigenvalues = np.linalg.eigvalsh(matrix)
    lowest, highest = eigenvalues[0], eigenvalues[-1]
    ridge = _working_ridge(matrix, max(-2.0 * lowest, part * abs(highest)) or 1.0, has_factor)
    return CovarianceError(
        f"{name} is not positive definite: its smallest eigenvalue is {lowest:.3g}, its largest {highest:.3g}. "
        f"Add {ridge:.3g} or more to its diagonal, {argument}={argument} + {ridge:.3g} * np.eye({len(matrix)}). {more}"
    )


def _working_ridge(matrix: np.ndarray, least: float, has_factor: Callable[[np.ndarray], bool]) -> float:
    """Return a number of one digit that has been tried: with it on the diagonal the matrix has a factor."""
    ridge = _one_digit(least)
    while not has_factor(matrix + ridge * np.eye(len(matrix))):
        ridge = _one_digit(10.0 * ridge)
    return ridge


def _one_digit(value: float) -> float:
    """Return a number rounded up to one digit, as it is printed."""
    unit = 10.0 ** math.floor(math.log10(value))
    return float(f"{math.ceil(value / unit) * unit:.0e}")


def shapes_of_data(model: pm.Model) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all shared data of a model, which `pm.set_data` can change."""
    data = shared_inputs([*model.basic_RVs, *model.potentials, *model.rvs_to_values.values()])
    return {str(s.name): np.shape(s.get_value(borrow=True)) for s in data}


def check_shapes(known: dict[str, tuple[int, ...]], now: dict[str, tuple[int, ...]], read: Container[str]) -> None:
    """Check that data have kept their shapes: they may change between runs, but not in shape.

    Raises a `DataError` if they have changed; it names other data of the same old length.

    `known`, `now`: from `shapes_of_data`, when the step was built and now.
    `read`: the data that the step reads.
    """
    changed = [name for name, shape in known.items() if name in read and now.get(name, shape) != shape]
    if not changed:
        return
    said = " and ".join(f"{name} from {known[name]} to {now[name]}" for name in changed)
    lengths = {known[name][:1] for name in changed} - {()}
    left = [f"{name} {shape}" for name, shape in now.items() if name not in changed and shape[:1] in lengths]
    more = f"Change other data of the old length too, if their rows belong to it: {', '.join(left)}. " if left else ""
    raise DataError(
        f"pm.set_data has changed the shape of {said} since RMHMC was built. {more}Build RMHMC again: "
        "step=RMHMC()."
    )


UNKNOWN_CAUSE = (
    "It may overflow, or a parameter is out of range. A rate needs pm.math.exp(f), and a probability needs logit_p=f "
    "or pm.math.invlogit(f)."
)


def joint_start_error(model: Any, theta: Array, where: str, names: str, cause: Callable[[], str]) -> RMHMCError | None:
    """Return the error that says what is wrong with a joint model at θ; None where each part has a number.

    `model`: the blocks and the rest of the log density.
    `theta` (d,): the chain's starting point.
    `where`: the same in words.
    `names`: the variables and potentials whose log densities are the rest.
    `cause`: which terms of the model have no number where the chain begins, in words.
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
    numbers = _arrays(asdict(stated)) if stated.field is None else (stated.field.numbers,)
    if not all(np.isfinite(array).all() for array in numbers):
        return DataError(
            f"{block.name}: the prior's mean or covariance is not finite at the chain's starting point, where {where}. "
            "Inputs or hyperparameters of this size overflow. Rescale the inputs to about 1, or start elsewhere with "
            "`initvals`."
        )
    nothing = np.zeros(block.n_sites)
    try:
        centre, _ = conditional_of(block, theta, GaussianSites(nothing, nothing)).marginals()
    except PriorFailure as failure:
        return _no_factor(block, where) if failure.failure is Failure.NOT_POSITIVE_DEFINITE else None
    total, slope, _ = block.likelihood(theta, centre)
    return likelihood_error(block.name, total, slope, where, cause)


def _no_factor(block: Any, where: str) -> CovarianceError:
    if block.maps is not None and not block.maps.kernels:
        return CovarianceError(
            f"{block.name}: the prior precision and the data leave a direction without a bound at the chain's starting "
            f"point, where {where}. Give each of these variables a proper prior, or start elsewhere with `initvals`."
        )
    return CovarianceError(
        f"{block.name}: the prior covariance is not positive definite at the chain's starting point, where {where}. "
        "Add jitter with gp.prior(..., jitter=1e-6), remove duplicated inputs, or start elsewhere with `initvals`."
    )


def likelihood_error(
    name: str, total: float, slope: Array, where: str, cause: Callable[[], str]
) -> ConfigurationError | None:
    """Return the error for a likelihood without a number where the latent values are at their prior mean.

    `name`: the latent functions.
    `total`, `slope` (n,): its log density and its slope.
    `where`: the hyperparameters in words, empty if there are none.
    `cause`: which terms of the model have no number where the chain begins, in words; empty if each has.
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

    `terms`: the model's.
    `sampled`: the names of the variables that move.
    `point`: where the chain begins.
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
