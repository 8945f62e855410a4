"""Where hyperparameters and latent values are likely: a Laplace approximation of θ and of the latents given θ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from pymc_rmhmc.approximation.newton import find_mode
from pymc_rmhmc.approximation.sites import laplace_sites
from pymc_rmhmc.geometry.charts.site import GaussianSites
from pymc_rmhmc.geometry.joint import JointDensity, JointTarget, Scale
from pymc_rmhmc.geometry.prior import Predictor, PriorFailure
from pymc_rmhmc.geometry.target import Likelihood

__all__ = ["find_joint_mode", "fit_scale", "laplace_sites_at"]

type Array = NDArray[np.float64]
type Likelihoods = Callable[[Array], Sequence[Likelihood]]

MAX_ROUNDS = 10
ITERATIONS = 20
# In a round the sites are those of its beginning: θ goes no further than they are likely to hold.
REACH = 2.0
# On the unconstrained scale, on which a hyperparameter's posterior is rarely narrower than a few hundredths.
SETTLED = 0.02
DIFFERENCE = 1e-3
# Bounds on the precision of θ. A direction that seems to be held by nothing is curved elsewhere: one unit of the
# unconstrained scale, a factor of e, is as far as the chain is sent at first.
LEAST_PRECISION, MOST_PRECISION = 1.0, 1e6


def find_joint_mode(density: JointDensity, likelihoods: Likelihoods, theta: Array) -> Array:
    """Maximise the approximate marginal density of θ, from a given θ.

    In turns: Laplace sites at θ, then θ with the sites held.

    Parameters
    ----------
    density : JointDensity
        The model.
    likelihoods : callable
        From θ to the likelihood of each block, bound to the parameters that θ gives it.
    theta : (d,) array
        Where to begin.

    Returns
    -------
    (d,) array
        The best θ found.

    Raises
    ------
    PriorFailure
        If a prior cannot be factorised at the θ given.
    """
    unscaled = Scale(np.zeros(theta.size), np.eye(theta.size))
    for _ in range(MAX_ROUNDS):
        target = JointTarget(density, laplace_sites_at(density, likelihoods, theta), unscaled)
        found = optimize.minimize(
            lambda at, target=target: _negative_marginal(target, at),
            theta, jac=True, method="L-BFGS-B", bounds=[(t - REACH, t + REACH) for t in theta],
            options={"maxiter": ITERATIONS},
        ).x  # fmt: skip
        moved = float(np.abs(found - theta).max(initial=0.0))
        theta = found
        if moved < SETTLED:
            break
    return np.asarray(theta)


def _negative_marginal(target: JointTarget, theta: Array) -> tuple[float, Array]:
    """For the minimiser, which steps back from a value that is very large."""
    try:
        value, gradient = target.marginal(theta)
    except PriorFailure:
        return 1e100, np.zeros_like(theta)
    if not (np.isfinite(value) and np.isfinite(gradient).all()):
        return 1e100, np.zeros_like(theta)
    return -value, -gradient


def laplace_sites_at(density: JointDensity, likelihoods: Likelihoods, theta: Array) -> list[GaussianSites]:
    """The Laplace sites of every block at θ, whose likelihood is one of the latents without their shift.

    Raises
    ------
    PriorFailure
        If a prior cannot be factorised.
    """
    found = []
    for block, likelihood in zip(density.blocks, likelihoods(theta), strict=True):
        mean, covariance, shift = block.prior(theta)
        # Newton's method works on K alone: its predictor's matrix is never used.
        predictor = Predictor(mean - shift, covariance, triangular=True, gram=covariance)
        mode = find_mode(predictor, likelihood)
        found.append(laplace_sites(replace(mode, eta=mode.eta + shift)))
    return found


def fit_scale(target: JointTarget, theta: Array) -> Scale:
    """θ's scale from the curvature of the marginal density at its mode, by differences of its gradient.

    Raises
    ------
    PriorFailure
        If a prior cannot be factorised near the mode.
    """
    columns = []
    for direction in np.eye(theta.size):
        ahead = target.marginal(theta + DIFFERENCE * direction)[1]
        behind = target.marginal(theta - DIFFERENCE * direction)[1]
        columns.append((behind - ahead) / (2.0 * DIFFERENCE))
    hessian = np.array(columns)
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
    precision = np.clip(np.where(np.isfinite(values), values, 1.0), LEAST_PRECISION, MOST_PRECISION)
    covariance = (vectors / precision) @ vectors.T
    return Scale(theta, np.linalg.cholesky(0.5 * (covariance + covariance.T)))
