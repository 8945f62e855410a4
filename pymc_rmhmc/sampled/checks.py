"""What can be known of a block before a chain runs: errors here, not failures there."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from typing import Any

import numpy as np
import pymc as pm

from pymc_rmhmc.errors import ConfigurationError, CovarianceError, DataError, Failure
from pymc_rmhmc.latent.prior import FactorizedPrior, PriorFailure
from pymc_rmhmc.model.forms.components import factor_of_inverse
from pymc_rmhmc.model.graph.graphs import shared_inputs

__all__ = ["check_block", "check_curvature", "check_shapes", "shapes_of_data"]

type Point = dict[str, np.ndarray]


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
    prior = block.prior(point)
    component = prior.components[failure.component]
    if failure.failure is Failure.NON_FINITE:
        return DataError(
            f"{block.name}: the prior's mean or covariance has values that are not finite. Look for a lengthscale of 0 "
            "and for NaN among what they are made of. Very large inputs overflow: rescale them to about 1."
        )
    if component.precision is not None:
        return _indefinite(
            f"{block.name}: the prior precision (tau)", component.precision, "tau", 1e-8,
            lambda matrix: factor_of_inverse(matrix) is not None,
            "An intrinsic prior, whose precision is singular, has no density.",
        )  # fmt: skip
    if component.covariance is None:
        zeros = np.flatnonzero(~(component.cholesky.diagonal() > 0.0))
        return CovarianceError(
            f"{block.name}: the diagonal of the Cholesky factor (chol) is not positive for {zeros.size} of "
            f"{len(component.cholesky)} values, the first at position {zeros[0]}. Such a prior has no density. Give "
            "chol=np.linalg.cholesky(cov) of a covariance that is positive definite."
        )

    def has_factor(matrix: np.ndarray) -> bool:
        try:
            FactorizedPrior(prior._replace(components=(component._replace(covariance=matrix),)))
        except PriorFailure:
            return False
        return True

    return _indefinite(
        f"{block.name}: the prior covariance", component.covariance, "cov", 1e-12, has_factor,
        "For a GP raise the jitter of gp.prior, which is 1e-06 by default, by as much, or remove duplicated inputs.",
    )  # fmt: skip


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

    Parameters
    ----------
    known, now : dict of str to tuple of int
        From `shapes_of_data`, when the step was built and now.
    read : container of str
        The data that the step reads.

    Raises
    ------
    DataError
        If they have changed; it names other data of the same old length.
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
