"""Where the likelihoods' own parameters are given the latent values, and how widely: from draws in tuning."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.charts.marginal import MarginalChart

__all__ = ["fit_parameters"]

type Array = NDArray[np.float64]

# Fewer draws say little of a precision.
FEWEST_DRAWS = 40
# What a parameter that the data say nothing of has at least, on its unconstrained scale.
LEAST_PRECISION = 0.1


def fit_parameters(values: Array, scores: Array) -> MarginalChart | None:
    """Fit a linear chart in which the parameters given the latent values have about unit variance.

    Over the posterior the mean of ``s sᵀ`` is that of minus the second derivative of the log density that s is the
    gradient of: the mean precision of the parameters given the latent values, where their draws have the precision that
    is left when nothing is given.

    Parameters
    ----------
    values : (N, k) array
        Draws of the parameters.
    scores : (N, k) array
        The gradient, at each draw, of their log density given the latent values.

    Returns
    -------
    MarginalChart or None
        None where the draws are too few, or the scores not finite or too large for a factor.
    """
    if len(scores) < FEWEST_DRAWS or not np.isfinite(scores).all():
        return None
    precision = scores.T @ scores / len(scores) + LEAST_PRECISION * np.eye(scores.shape[1])
    try:
        factor = np.linalg.cholesky(np.linalg.inv(precision))
    except np.linalg.LinAlgError:
        return None
    return MarginalChart.linear(values.mean(axis=0), factor) if np.isfinite(factor).all() else None
