"""An emulator through the values of a function at some points: the most likely parabola and Gaussian process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special, stats

from pymc_rmhmc.latent.emulator import Emulator

__all__ = ["interpolate", "n_coefficients", "on_a_floor"]

type Array = NDArray[np.float64]

# Along its flow an emulator that curves upwards faster than a standard normal downwards would run away.
MOST_CURVATURE = 0.9
# In standard deviations of ϑ: the marginal likelihood chooses.
LENGTHSCALES = (1.5, 2.0, 3.0, 4.5, 7.0, 10.0)
NUGGETS = (1e-6, 1e-4, 1e-2)
# Of what an emulator makes likely, a Student t of this width, in standard deviations of ϑ, has this share everywhere. A
# normal will not do: on an unconstrained scale a scale's density falls off no faster than an exponential.
SHARE_OF_FLOOR, WIDTH_OF_FLOOR, FREEDOM_OF_FLOOR = 0.02, 1.5, 3.0
N_INTEGRAL = 1000


def interpolate(points: Array, values: Array) -> Emulator:
    """Fit a parabola and a Gaussian process to some values, with the most likely lengthscale and nugget.

    The parabola's coefficients and the variance are profiled out: Rasmussen and Williams (2006), section 2.7 and
    equation 5.8, at their maximum. The parabola curves upwards by less than 1.

    Parameters
    ----------
    points : (m, d) array
        Where.
    values : (m,) array
        What.
    """
    d = points.shape[1]
    _, lengthscale, trend, weights = max(_candidates(points, values), key=lambda candidate: candidate[0])
    return Emulator(
        np.ascontiguousarray(points.T), weights, lengthscale, float(trend[0]), trend[1 : d + 1], _quadratic(trend, d)
    )


def on_a_floor(emulator: Emulator, rng: np.random.Generator) -> Emulator:
    """Keep an emulator above a share of a wide Student t: what it leaves out in the tails is bounded.

    A chain stays for about w proposals where a density is w times what an emulator makes of it, and the emulator is at
    least the floor.

    Parameters
    ----------
    emulator : Emulator
        Without a floor.
    rng : numpy.random.Generator
        For its integral over a standard normal.

    References
    ----------
    Hesterberg (1995), Weighted average importance sampling and defensive mixture distributions.
    """
    d = emulator.linear.size
    values = np.array([emulator.evaluate(x)[0] for x in rng.standard_normal((N_INTEGRAL, d))])
    log_integral = float(special.logsumexp(values)) - math.log(N_INTEGRAL)
    # At 0, and against a standard normal there.
    student = stats.multivariate_t(np.zeros(d), WIDTH_OF_FLOOR**2 * np.eye(d), FREEDOM_OF_FLOOR)
    log_density = float(student.logpdf(np.zeros(d))) + 0.5 * d * math.log(2.0 * math.pi)
    floor = math.log(SHARE_OF_FLOOR) + log_integral + log_density - emulator.level
    power, reach = 0.5 * (FREEDOM_OF_FLOOR + d), FREEDOM_OF_FLOOR * WIDTH_OF_FLOOR**2
    return replace(emulator, floor=floor, power=power, reach=reach)


def n_coefficients(d: int) -> int:
    """Count the coefficients of a parabola in d variables."""
    return 1 + d + d * (d + 1) // 2


def _quadratic(trend: Array, d: int) -> Array:
    """Return Q (d, d) of a parabola's coefficients."""
    half = np.zeros((d, d))
    half[np.tril_indices(d)] = trend[d + 1 :]
    return half + half.T


def _bounded(trend: Array, d: int) -> Array:
    """Bound the eigenvalues of Q in a parabola's coefficients."""
    values, vectors = np.linalg.eigh(_quadratic(trend, d))
    if values[-1] <= MOST_CURVATURE:
        return trend
    bounded = (vectors * np.minimum(values, MOST_CURVATURE)) @ vectors.T
    np.fill_diagonal(bounded, 0.5 * bounded.diagonal())
    return np.concatenate((trend[: d + 1], bounded[np.tril_indices(d)]))


def _basis(points: Array) -> Array:
    """Return 1, x, and the products of two coordinates, by columns."""
    first, second = np.tril_indices(points.shape[1])
    return np.column_stack((np.ones(len(points)), points, points[:, first] * points[:, second]))


def _candidates(points: Array, values: Array) -> Iterator[tuple[float, float, Array, Array]]:
    """Yield the log likelihood, lengthscale, parabola's coefficients and weights of every kernel that has a factor."""
    basis = _basis(points)
    squares = ((points[:, None] - points) ** 2).sum(axis=-1)
    for lengthscale in LENGTHSCALES:
        kernel = Emulator.kernel(squares, lengthscale)
        for nugget in NUGGETS:
            try:
                factor = linalg.cho_factor(kernel + nugget * np.eye(values.size), lower=True)
            except linalg.LinAlgError:
                continue
            solved = linalg.cho_solve(factor, basis)
            trend = _bounded(np.linalg.lstsq(basis.T @ solved, solved.T @ values)[0], points.shape[1])
            rest = values - basis @ trend
            weights = linalg.cho_solve(factor, rest)
            variance = float(rest @ weights) / values.size
            half_log_determinant = float(np.log(factor[0].diagonal()).sum())
            log_likelihood = -0.5 * values.size * np.log(max(variance, np.finfo(float).tiny)) - half_log_determinant
            if np.isfinite(log_likelihood):
                yield log_likelihood, lengthscale, trend, weights
