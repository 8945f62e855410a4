"""The marginal log density of hyperparameters in a joint chart, emulated from its values at some of them.

With z standard normal given ϑ, as it nearly is in the posterior, ``log ∫ N(z; 0, I) exp φ(ϑ, z) dz`` is what the
posterior of ϑ has beyond a standard normal: a smooth function of a few variables. It is estimated from the same noise
at every point, so that it stays smooth, and interpolated by a Gaussian process.

The points are draws of a tuning window, pushed outwards by up to a factor of four. A proposal is judged by the
density itself, so that any emulator will do; but where it falls short of the density by a factor w, the chain stays for
about w proposals. That is in tails which a short window has not seen. On logit regressions of a hundred points the
worst of the hundred furthest of 10⁴ draws was off by e¹⁰ to e⁴⁰ with points and a level alone, and by e to e³ with
such points and a parabola. To these come points that are far out in one coordinate alone, where a scale is next to
nothing: of two processes with an amplitude each, one chain in ten stayed for up to 110 draws there, and its smallest
effective sample size fell from 2600 of 4000 draws to 80; with them none stayed for more than 8. What is still missing a
floor bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special, stats

from pymc_rmhmc.geometry.emulator import Emulator
from pymc_rmhmc.geometry.held import HeldTheta
from pymc_rmhmc.geometry.joint import JointTarget
from pymc_rmhmc.geometry.latent_blocks import has_dear_hyperparameters
from pymc_rmhmc.geometry.prior import PriorFailure

__all__ = ["emulate_marginal", "interpolate", "on_a_floor"]

type Array = NDArray[np.float64]

MOST_POINTS = 300
# Fewer distinct draws say little of a density.
FEWEST_DRAWS = 40
# By which the draws are pushed outwards, in turn.
SCALES = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0)
# A scale that may be next to nothing has a tail that on its unconstrained scale falls off no faster than an
# exponential. No window of tuning has draws of it, and what is pushed outwards is seldom far out in one coordinate.
# In ϑ, whose map to θ was fitted to the draws, such a tail is long: a chain may go there as far as the last of these.
REACHES = (4.0, 6.0, 9.0, 13.5, 20.0)
# Of the values, that the coefficients of a parabola may be at most: it is one of up to eleven hyperparameters.
SHARE_OF_TREND = 0.3
# Along its flow an emulator that curves upwards faster than a standard normal downwards would run away.
MOST_CURVATURE = 0.9
N_NOISES = 16
# A point that is so much less likely than the best, on the log scale, is out of reach: no emulator need hold there.
OUT_OF_REACH = 40.0
# In standard deviations of ϑ: the marginal likelihood chooses.
LENGTHSCALES = (1.5, 2.0, 3.0, 4.5, 7.0, 10.0)
NUGGETS = (1e-6, 1e-4, 1e-2)
# Of what an emulator makes likely, a Student t of this width, in standard deviations of ϑ, has this share everywhere. A
# normal will not do: on an unconstrained scale a scale's density falls off no faster than an exponential.
SHARE_OF_FLOOR, WIDTH_OF_FLOOR, FREEDOM_OF_FLOOR = 0.02, 1.5, 3.0
N_INTEGRAL = 1000


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
        None if there are too few distinct draws or finite densities for a parabola in so many hyperparameters, or
        if no block's hyperparameters are dear: joint trajectories are cheaper there.
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
    if _n_coefficients(target.n_theta) > SHARE_OF_TREND * kept.sum():
        return None
    return on_a_floor(interpolate(points[kept], values[kept]), rng)


def _design(target: JointTarget, thetas: Array, rng: np.random.Generator) -> Array | None:
    """The ϑ at which the density is evaluated, (m, d); None if the draws are too few."""
    distinct = np.unique(thetas, axis=0)
    n_points = min(MOST_POINTS, len(SCALES) * len(distinct))
    if len(distinct) < FEWEST_DRAWS or _n_coefficients(target.n_theta) > SHARE_OF_TREND * n_points:
        return None
    draws = np.array([target.chart.recover(theta) for theta in rng.permutation(distinct)])
    # Draws that serve twice are pushed by different factors.
    scales = np.repeat(SCALES, n_points // len(SCALES))
    points = np.resize(draws, (n_points, target.n_theta)) * scales[:, None]
    return np.concatenate((points, _along_axes(draws)))


def _along_axes(draws: Array) -> Array:
    """Draws of which one coordinate is far out."""
    places = [(j, sign * reach) for reach in REACHES for j in range(draws.shape[1]) for sign in (-1.0, 1.0)]
    points = np.resize(draws, (len(places), draws.shape[1])).copy()
    for point, (j, place) in zip(points, places, strict=True):
        point[j] = place
    return points


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
    """A parabola and a Gaussian process through some values, with the most likely lengthscale and nugget.

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
    """An emulator that nowhere falls below a share of a wide Student t: what it leaves out in the tails is bounded.

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


def _n_coefficients(d: int) -> int:
    """Of a parabola."""
    return 1 + d + d * (d + 1) // 2


def _quadratic(trend: Array, d: int) -> Array:
    """Q (d, d) of a parabola's coefficients."""
    half = np.zeros((d, d))
    half[np.tril_indices(d)] = trend[d + 1 :]
    return half + half.T


def _bounded(trend: Array, d: int) -> Array:
    """A parabola's coefficients with bounded eigenvalues of Q."""
    values, vectors = np.linalg.eigh(_quadratic(trend, d))
    if values[-1] <= MOST_CURVATURE:
        return trend
    bounded = (vectors * np.minimum(values, MOST_CURVATURE)) @ vectors.T
    np.fill_diagonal(bounded, 0.5 * bounded.diagonal())
    return np.concatenate((trend[: d + 1], bounded[np.tril_indices(d)]))


def _basis(points: Array) -> Array:
    """1, x, and the products of two coordinates, by columns."""
    first, second = np.tril_indices(points.shape[1])
    return np.column_stack((np.ones(len(points)), points, points[:, first] * points[:, second]))


def _candidates(points: Array, values: Array) -> Iterator[tuple[float, float, Array, Array]]:
    """Log likelihood, lengthscale, coefficients of the parabola and weights of every kernel that has a factor."""
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
