"""The marginal log density of hyperparameters in a joint chart, emulated from its values at some of them.

With z standard normal given ϑ, as it nearly is in the posterior, ``log ∫ N(z; 0, I) exp φ(ϑ, z) dz`` is what the
posterior of ϑ has beyond a standard normal: a smooth function of a few variables. It is estimated from the same noise
at every point, so that it stays smooth, and interpolated by a Gaussian process.

The points are draws of a tuning window, and as many draws further out: a proposal is judged by the density itself,
but where the emulator falls short of it in a tail, the chain stays until it is led out by chance.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from pymc_rmhmc.geometry.emulator import Emulator
from pymc_rmhmc.geometry.held import HeldTheta
from pymc_rmhmc.geometry.joint import JointTarget
from pymc_rmhmc.geometry.latent_blocks import has_dear_hyperparameters
from pymc_rmhmc.geometry.prior import PriorFailure

__all__ = ["emulate_marginal", "interpolate"]

type Array = NDArray[np.float64]

MOST_POINTS = 200
# Fewer distinct draws, or fewer than so many for a hyperparameter, say little of a density.
FEWEST_POINTS, FEWEST_FOR_EACH = 40, 10
INFLATION = 2.0
N_NOISES = 16
# A point that is so much less likely than the best, on the log scale, is out of reach: no emulator need hold there.
OUT_OF_REACH = 40.0
# In standard deviations of ϑ: the marginal likelihood chooses.
LENGTHSCALES = (1.5, 2.0, 3.0, 4.5, 7.0, 10.0)
NUGGETS = (1e-6, 1e-4, 1e-2)


def emulate_marginal(target: JointTarget, thetas: Array, rng: np.random.Generator) -> Emulator | None:
    """Emulate what the marginal posterior of ϑ has beyond a standard normal.

    Parameters
    ----------
    target : JointTarget
        The log density of (ϑ, z).
    thetas : (m, d) array
        Draws of θ.
    rng : numpy.random.Generator
        For the choice among them, and for z.

    Returns
    -------
    Emulator or None
        None if there are too few distinct draws, if too few of their densities are finite, or if no block's
        hyperparameters are dear: joint trajectories are cheaper there.
    """
    if not any(map(has_dear_hyperparameters, target.density.blocks)):
        return None
    points = _design(target, thetas, rng)
    if points is None:
        return None
    noises = rng.standard_normal((N_NOISES, target.size - target.n_theta))
    values = np.array([_log_marginal(target, point, noises) for point in points])
    reach = values - 0.5 * np.einsum("ij,ij->i", points, points)
    kept = np.isfinite(values)
    if kept.any():
        kept &= reach > reach[kept].max() - OUT_OF_REACH
    if kept.sum() < FEWEST_POINTS:
        return None
    return interpolate(points[kept], values[kept])


def _design(target: JointTarget, thetas: Array, rng: np.random.Generator) -> Array | None:
    """The ϑ at which the density is evaluated, (m, d); None if the draws are too few."""
    distinct = np.unique(thetas, axis=0)
    if len(distinct) < max(FEWEST_POINTS, FEWEST_FOR_EACH * target.n_theta):
        return None
    draws = np.array([target.chart.recover(theta) for theta in rng.permutation(distinct)[: MOST_POINTS // 2]])
    further = INFLATION * draws
    return np.concatenate((draws, further))


def _log_marginal(target: JointTarget, point: Array, noises: Array) -> float:
    """``log ∫ N(z; 0, I) exp φ(ϑ, z) dz``, estimated; -inf where a prior cannot be used."""
    try:
        held = HeldTheta(target, point)
    except PriorFailure:
        return -np.inf
    values = np.array([held.at_noise(noise).log_density for noise in noises])
    if not np.isfinite(values).all():
        return -np.inf
    best = float(values.max())
    return held.log_marginal + best + float(np.log(np.exp(values - best).mean()))


def interpolate(points: Array, values: Array) -> Emulator:
    """The Gaussian process through some values, with the lengthscale and nugget that make them most likely.

    Mean and variance are profiled out: Rasmussen and Williams (2006), equation 5.8, at their maximum.

    Parameters
    ----------
    points : (m, d) array
        Where.
    values : (m,) array
        What.
    """
    _, lengthscale, mean, weights = max(_candidates(points, values), key=lambda candidate: candidate[0])
    return Emulator(np.ascontiguousarray(points), weights, lengthscale, mean)


def _candidates(points: Array, values: Array) -> Iterator[tuple[float, float, float, Array]]:
    """Log likelihood, lengthscale, mean and weights of every kernel that has a factor."""
    squares = ((points[:, None] - points) ** 2).sum(axis=-1)
    for lengthscale in LENGTHSCALES:
        kernel = np.exp(-0.5 * squares / lengthscale**2)
        for nugget in NUGGETS:
            try:
                factor = linalg.cho_factor(kernel + nugget * np.eye(values.size), lower=True)
            except linalg.LinAlgError:
                continue
            level = linalg.cho_solve(factor, np.ones_like(values))
            mean = float(level @ values / level.sum())
            weights = linalg.cho_solve(factor, values - mean)
            variance = float((values - mean) @ weights) / values.size
            half_log_determinant = float(np.log(factor[0].diagonal()).sum())
            log_likelihood = -0.5 * values.size * np.log(max(variance, np.finfo(float).tiny)) - half_log_determinant
            yield log_likelihood, lengthscale, mean, weights
