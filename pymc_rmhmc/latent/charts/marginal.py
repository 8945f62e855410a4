"""Hyperparameters as functions of standard normals: a normalising map of each, then a linear one of all.

    θ_j = location_j + spread_j sinh((asinh y_j + skewness_j) / tail_j),      y = centre + factor ϑ.

The first is Jones and Pewsey's: one to one from the real line onto itself, with one parameter for skewness and one
for the weight of the tails. A lengthscale's logarithm has a wall on one side, where data or prior forbid small
ones, and a slope on the other: against such a density steps that are right in one place are too long in another. In
ϑ it is nearly a normal.

References
----------
Jones and Pewsey (2009), Sinh-arcsinh distributions, section 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from pymc_rmhmc.linalg.cholesky import solve_lower
from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = [
    "MarginalChart", "PlacedHyperparameters", "Shapes", "fit_marginals", "fit_parameters", "fit_shapes",
    "place_hyperparameters", "sinh_arcsinh_inverse",
]  # fmt: skip

type Array = NDArray[np.float64]


@compiled
def place_hyperparameters(
    standard: Array, centre: Array, factor: Array, location: Array, spread: Array, skewness: Array, tail: Array
) -> tuple[Array, float]:  # pragma: no cover - compiled
    """By rows θ, ``∂θ_j/∂y_j`` and the derivative by y of ``Σ log ∂θ_j/∂y_j``, and that: a dozen calls of NumPy."""
    d = standard.size
    placed, log_volume = np.empty((3, d)), 0.0
    theta, slope, log_slope = placed[0], placed[1], placed[2]
    for j in range(d):
        y = centre[j]
        for k in range(j + 1):
            y += factor[j, k] * standard[k]
        square = 1.0 + y * y
        angle, stretch = (np.arcsinh(y) + skewness[j]) / tail[j], tail[j] * np.sqrt(square)
        theta[j] = location[j] + spread[j] * np.sinh(angle)
        slope[j] = spread[j] * np.cosh(angle) / stretch
        log_volume += np.log(np.cosh(angle) / stretch)
        log_slope[j] = np.tanh(angle) / stretch - y / square
    return placed, log_volume


def sinh_arcsinh_inverse(x: Array, skewness: Array, tail: Array) -> Array:
    """The y of an x."""
    return np.asarray(np.sinh(tail * np.arcsinh(x) - skewness))


# Not frozen, though nobody writes to it: one is made for every θ, and freezing doubles what that takes.
@dataclass(slots=True)
class PlacedHyperparameters:
    """θ of a ϑ, with what a gradient needs."""

    theta: Array  # (d,): θ
    slope: Array  # (d,): ``∂θ_j/∂y_j``
    log_volume: float  # ``Σ log ∂θ_j/∂y_j``; the linear map's constant is left out
    log_volume_slope: Array  # (d,): its derivative by y


class Shapes(NamedTuple):
    """The normalising map of each of d values: ``location + spread sinh((asinh y + skewness) / tail)``."""

    # (d,) each; spread and tail are positive.
    location: Array
    spread: Array
    skewness: Array
    tail: Array

    def flattened(self, values: Array) -> Array:
        """Return the y (..., d) of values."""
        return sinh_arcsinh_inverse((values - self.location) / self.spread, self.skewness, self.tail)

    def gain(self, draws: Array) -> Array:
        """Return how much likelier the maps make each value's draws (N, d) than a normal does, in log density (d,)."""
        x = (draws - self.location) / self.spread
        w = self.tail * np.arcsinh(x) - self.skewness
        slope = np.logaddexp(w, -w) - math.log(2.0) + np.log(self.tail / self.spread) - 0.5 * np.log1p(x * x)
        found: Array = np.sum(slope - 0.5 * np.sinh(w) ** 2 + 0.5 + np.log(draws.std(axis=0)), axis=0)
        return found


class MarginalChart(NamedTuple):
    """Where hyperparameters are expected, how widely and of what shape: a tuple, as compiled code takes one."""

    centre: Array  # (d,): of y
    factor: Array  # (d, d): lower triangular; its square is the covariance of y
    # `location`, `spread`, `skewness`, `tail`: (d,), of each θ_j; spread and tail are positive.
    location: Array
    spread: Array
    skewness: Array
    tail: Array

    @classmethod
    def linear(cls, centre: Array, factor: Array) -> MarginalChart:
        """``θ = centre + factor ϑ``."""
        nothing, one = np.zeros(centre.size), np.ones(centre.size)
        return cls(centre, factor, nothing, one, nothing, one)

    def place(self, standard: Array) -> PlacedHyperparameters:
        """θ of ϑ."""
        shape = self.location, self.spread, self.skewness, self.tail
        (theta, slope, log_slope), log_volume = place_hyperparameters(standard, self.centre, self.factor, *shape)
        return PlacedHyperparameters(theta, slope, log_volume, log_slope)

    def pullback(self, placed: PlacedHyperparameters, theta_bar: Array) -> Array:
        """The gradient by ϑ of a function of θ plus the log volume, given the function's gradient by θ."""
        return np.asarray((placed.slope * theta_bar + placed.log_volume_slope) @ self.factor)

    def recover(self, theta: Array) -> Array:
        """ϑ of θ."""
        y = sinh_arcsinh_inverse((theta - self.location) / self.spread, self.skewness, self.tail)
        return solve_lower(self.factor, y - self.centre) if y.size else y


# ---------------------------------------------------- the chart that fits draws

# Charts of hyperparameters and of the likelihoods' own parameters, fitted to draws in tuning.


# A correlation of 0 counts as so many draws for a parameter, and some besides.
PRIOR_DRAWS = 5.0
# Skewness and the logarithm of the tail weight are N(0, 1/PENALTY) and not beyond the bound: draws are few, and
# they come one from another.
PENALTY = 10.0
BOUND = 1.0
# A shape is as good as fitted where a step gains less than this part of the log likelihood.
PRECISION = 1e-6
# Fewer draws say little of a precision.
FEWEST_DRAWS = 40
# What a parameter that the data say nothing of has at least, on its unconstrained scale.
LEAST_PRECISION = 0.1


def fit_marginals(draws: Array) -> MarginalChart | None:
    """Fit the chart in which draws of θ (N, d) look most like standard normals.

    Each parameter's map by maximum likelihood, and then the covariance of what they make of the draws. None with fewer
    than two draws, or where a parameter did not move.
    """
    count, size = draws.shape
    if count < 2 or not size or not (np.ptp(draws, axis=0) > 0.0).all():
        return None
    shape = fit_shapes(draws)
    y = shape.flattened(draws)
    weight = count / (count + PRIOR_DRAWS + size)
    covariance = np.atleast_2d(np.cov(y.T))
    variances = np.diag(covariance)
    covariance = weight * covariance + (1.0 - weight) * np.diag(variances)
    factor = np.linalg.cholesky(covariance)
    return MarginalChart(y.mean(axis=0), factor, *shape)


def fit_shapes(draws: Array) -> Shapes:
    """Fit the map of each of some values to draws of it (N, d) by maximum likelihood; every value has moved."""
    middle, width = draws.mean(axis=0), draws.std(axis=0)
    scaled = (draws - middle) / width
    start = np.zeros(4 * middle.size)
    bounds = [(-BOUND, BOUND)] * start.size
    options = {"ftol": PRECISION}
    fitted = optimize.minimize(_deviance, start, (scaled,), "L-BFGS-B", jac=True, bounds=bounds, options=options).x
    location, log_spread, skewness, log_tail = fitted.reshape(4, -1)
    return Shapes(middle + width * location, width * np.exp(log_spread), skewness, np.exp(log_tail))


def _deviance(flat: Array, scaled: Array) -> tuple[float, Array]:
    """Return minus the penalised log likelihood of every parameter's map, and its gradient.

    With ``x = (t - location)/spread``, ``a = asinh x``, ``w = tail a - skewness``, the density of t is that of a
    standard normal at ``sinh w`` times ``cosh(w) tail / (spread sqrt(1 + x²))``.
    """
    location, log_spread, skewness, log_tail = flat.reshape(4, -1)
    spread, tail = np.exp(log_spread), np.exp(log_tail)
    x = (scaled - location) / spread
    angle, root = np.arcsinh(x), np.sqrt(1.0 + x * x)
    # One exponential serves for sinh, cosh and tanh of w, which is too small to overflow.
    up = np.exp(tail * angle - skewness)
    down = 1.0 / up
    y, cosh = 0.5 * (up - down), 0.5 * (up + down)
    value = np.log(2.0 * cosh / root) + log_tail - log_spread - 0.5 * y * y
    by_w = y / cosh - y * cosh
    by_x = by_w * tail / root - x / root**2
    gradient = np.stack([
        (-by_x / spread).sum(axis=0),
        (-by_x * x - 1.0).sum(axis=0),
        -by_w.sum(axis=0) - PENALTY * skewness,
        (by_w * tail * angle + 1.0).sum(axis=0) - PENALTY * log_tail,
    ])
    penalty = 0.5 * PENALTY * (skewness @ skewness + log_tail @ log_tail)
    return float(penalty - value.sum()), -gradient.ravel()


def fit_parameters(values: Array, scores: Array) -> MarginalChart | None:
    """Fit a linear chart in which the parameters given the latent values have about unit variance.

    Over the posterior the mean of ``s sᵀ`` is that of minus the second derivative of the log density that s is the
    gradient of: the mean precision of the parameters given the latent values, where their draws have the precision that
    is left when nothing is given. Scores (N, k) are such gradients at draws of the parameters (N, k). There is no chart
    where the draws are too few, or the scores not finite or too large for a factor.
    """
    if len(scores) < FEWEST_DRAWS or not np.isfinite(scores).all():
        return None
    precision = scores.T @ scores / len(scores) + LEAST_PRECISION * np.eye(scores.shape[1])
    try:
        factor = np.linalg.cholesky(np.linalg.inv(precision))
    except np.linalg.LinAlgError:
        return None
    return MarginalChart.linear(values.mean(axis=0), factor) if np.isfinite(factor).all() else None
