"""What can be known of a block before a chain runs: errors here, not failures there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pymc_rmhmc.errors import ConfigurationError, CovarianceError, DataError, Failure
from pymc_rmhmc.geometry.prior import FactorizedPrior, PriorFailure

__all__ = ["check_block", "check_point", "check_shapes", "check_start"]

type Point = dict[str, np.ndarray]


def check_block(block: Any, point: Point, plan: Any) -> None:
    """What can be known before a chain runs: the covariance, and the likelihood's curvatures."""
    likelihood = block.likelihood(point)
    if block.n_latent == 0:
        raise DataError(f"{block.name} has no latent values: its inputs are empty.")
    if block.n_sites == 0:
        raise DataError(
            f"{block.name} has no observations: the data are empty. Give data, or draw from the prior with "
            "pm.sample_prior_predictive()."
        )
    wanted = plan.metric.name
    if plan.metric.needs_solver and wanted not in likelihood.kinds:
        raise ConfigurationError(
            f'{block.name}: its likelihood gives no "{wanted}" curvature, only {", ".join(likelihood.kinds)}. '
            f'Choose metric="{likelihood.kinds[0]}" or metric="flat".'
        )
    block.check_inputs(point)
    if block.prior_inputs:
        return
    try:
        FactorizedPrior(block.prior(point))
    except PriorFailure as failure:
        raise _covariance_error(block, point, failure) from None


def _covariance_error(block: Any, point: Point, failure: PriorFailure) -> Exception:
    """A fixed prior that cannot be used, in words, with the eigenvalue that shows it."""
    if failure.failure is Failure.NON_FINITE:
        return DataError(
            f"{block.name}: the prior's mean or covariance has values that are not finite. Inputs of this size may "
            "overflow. Rescale them to about 1, and look for NaN."
        )
    component = block.prior(point).components[failure.component]
    if component.precision is not None:
        eigenvalues = np.linalg.eigvalsh(component.precision)
        ridge = max(-2.0 * eigenvalues[0], 1e-8 * eigenvalues[-1])
        return CovarianceError(
            f"{block.name}: the prior precision (tau) is not positive definite: its smallest eigenvalue is "
            f"{eigenvalues[0]:.3g}, its largest {eigenvalues[-1]:.3g}. Add {ridge:.1g} or more to its diagonal; an "
            "intrinsic prior, whose precision is singular, has no density."
        )
    if component.covariance is None:
        return CovarianceError(f"{block.name}: the Cholesky factor's diagonal is not positive.")
    eigenvalues = np.linalg.eigvalsh(component.covariance)
    jitter = max(-2.0 * eigenvalues[0], 1e-12 * eigenvalues[-1])
    return CovarianceError(
        f"{block.name}: the prior covariance is not positive definite: its smallest eigenvalue is "
        f"{eigenvalues[0]:.3g}, its largest {eigenvalues[-1]:.3g}. Add jitter to its diagonal, "
        f"{jitter:.1g} or more (gp.prior(..., jitter={jitter:.1g})), or remove duplicated inputs."
    )


def check_point(given: Point, initial: Point) -> Point:
    """Values by value variable, of the shapes that the model has."""
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"initial_point must be a dict of value variables, such as model.initial_point(), got {given!r}."
        )
    unknown = [name for name in given if name not in initial]
    if unknown:
        raise ConfigurationError(
            f"initial_point: {', '.join(unknown)} is no value variable of the model. These are {', '.join(initial)}."
        )
    point = {name: np.asarray(value, dtype=initial[name].dtype) for name, value in given.items()}
    for name, value in point.items():
        if value.shape != initial[name].shape:
            raise ConfigurationError(
                f"initial_point: {name} has the shape {value.shape}, and in the model {initial[name].shape}."
            )
    return point


def check_shapes(block: Any, known: dict[str, tuple[int, ...]]) -> None:
    """Data may change between runs, but not their shapes."""
    for name, shape in block.shapes().items():
        if known.get(name) != shape:
            raise DataError(
                f"{block.name}: {name} had the shape {known.get(name)} when RMHMC was built and has {shape} now. "
                "Build a new RMHMC after pm.set_data changes a shape."
            )


def check_start(name: str, point: Point) -> None:
    """A chain's first point must be of numbers: nothing that is computed there would say whose fault it is."""
    values = {variable: np.asarray(value) for variable, value in point.items()}
    wrong = [v for v, value in values.items() if value.dtype.kind == "f" and not np.isfinite(value).all()]
    if wrong:
        raise ConfigurationError(
            f"{name}: the chain's starting point has values of {', '.join(wrong)} that are not finite. Give other "
            "`initvals`, within the bounds of these variables."
        )
