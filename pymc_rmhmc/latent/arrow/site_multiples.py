"""What a block's sites are multiplied by at a θ, for compiled code: a power, and a trend.

See `pymc_rmhmc.latent.charts.moving_sites`. Where sites have no power, or no trend, None stands for it, and what is
compiled has nothing of it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.compiled.native import NativeFunction, call_for_vector

__all__ = ["Multiples", "Powers", "Trend", "multiples_at", "multiples_pullback"]

type Array = NDArray[np.float64]


class Powers(NamedTuple):
    """What sites are raised by: see `pymc_rmhmc.latent.charts.moving_sites.MovingSites`."""

    information: NativeFunction
    information_gradient: NativeFunction
    eta: Array
    fitted: Array


class Trend(NamedTuple):
    """What they grow along: see `pymc_rmhmc.latent.charts.moving_sites.SiteTrend`."""

    centre: Array
    exponents: Array
    most: Array


class Multiples(NamedTuple):
    """Both; of sites that stand still both are None."""

    powers: Powers | None
    trend: Trend | None


def _power(powers: Powers | None, theta: Array) -> float:
    """The power; for compiled code alone."""
    raise NotImplementedError


def _information_share(powers: Powers, theta: Array) -> Any:  # pragma: no cover - compiled
    information = powers.information
    (found,) = call_for_vector(information.address, (theta, powers.eta), information.rest)
    fitted = powers.fitted[0]
    return found[0] / fitted if fitted > 0.0 else 1.0


@overload(_power, strict=False)
def _any_power(powers: Any, theta: Any) -> Any:
    return (lambda powers, theta: 1.0) if isinstance(powers, types.NoneType) else _information_share


def _power_pullback(powers: Powers | None, theta: Array, power: float, power_bar: float) -> Array:
    """The derivative by θ of a function of the power, from that by its logarithm; for compiled code alone."""
    raise NotImplementedError


def _information_pullback(
    powers: Powers, theta: Array, power: float, power_bar: float
) -> Any:  # pragma: no cover - compiled
    gradient, information = powers.information_gradient, power * powers.fitted[0]
    bar = np.array([power_bar / information if information > 0.0 else 0.0])
    (by_theta,) = call_for_vector(gradient.address, (theta, powers.eta, bar), gradient.rest)
    return by_theta.copy()


@overload(_power_pullback, strict=False)
def _any_power_pullback(powers: Any, theta: Any, power: Any, power_bar: Any) -> Any:
    if isinstance(powers, types.NoneType):
        return lambda powers, theta, power, power_bar: np.zeros(theta.size)
    return _information_pullback


@compiled
def _damping(trend: Trend, theta: Array, which: int) -> float:  # pragma: no cover - compiled
    """``M exp(-t)`` of b or of w̄."""
    centre, exponents = trend.centre, trend.exponents
    along: float = 0.0
    for j in range(theta.size):
        along += exponents[which, j] * (theta[j] - centre[j])
    most: float = trend.most[which]
    return most * math.exp(-along)


def _growth(trend: Trend | None, theta: Array) -> tuple[float, float]:
    """What b and w̄ are multiplied by along the trend; for compiled code alone."""
    raise NotImplementedError


def _growth_along(trend: Trend, theta: Array) -> Any:  # pragma: no cover - compiled
    linear_multiple = (1.0 + trend.most[0]) / (1.0 + _damping(trend, theta, 0))
    return linear_multiple, (1.0 + trend.most[1]) / (1.0 + _damping(trend, theta, 1))


@overload(_growth, strict=False)
def _any_growth(trend: Any, theta: Any) -> Any:
    return (lambda trend, theta: (1.0, 1.0)) if isinstance(trend, types.NoneType) else _growth_along


def _trend_pullback(trend: Trend | None, theta: Array, by_linear: float, by_precision: float) -> Array:
    """The derivative by θ of a function of the two multiples, from those by logarithms; for compiled code alone."""
    raise NotImplementedError


def _growth_pullback(
    trend: Trend, theta: Array, by_linear: float, by_precision: float
) -> Any:  # pragma: no cover - compiled
    along_linear = by_linear * (1.0 - 1.0 / (1.0 + _damping(trend, theta, 0)))
    along_precision = by_precision * (1.0 - 1.0 / (1.0 + _damping(trend, theta, 1)))
    return along_linear * trend.exponents[0] + along_precision * trend.exponents[1]


@overload(_trend_pullback, strict=False)
def _any_trend_pullback(trend: Any, theta: Any, by_linear: Any, by_precision: Any) -> Any:
    if isinstance(trend, types.NoneType):
        return lambda trend, theta, by_linear, by_precision: np.zeros(theta.size)
    return _growth_pullback


@compiled
def multiples_at(multiples: Multiples, theta: Array) -> tuple[float, float, float]:  # pragma: no cover - compiled
    """The power, and what b and w̄ are multiplied by in all."""
    power, (linear_multiple, multiple) = _power(multiples.powers, theta), _growth(multiples.trend, theta)
    return power, power * linear_multiple, power * multiple


@compiled
def multiples_pullback(
    multiples: Multiples, theta: Array, power: float, by_linear: float, by_precision: float
) -> Array:  # pragma: no cover - compiled
    """The derivative by θ (d,) of a function of b and w̄, from those by their logarithms."""
    of_power = _power_pullback(multiples.powers, theta, power, by_linear + by_precision)
    return of_power + _trend_pullback(multiples.trend, theta, by_linear, by_precision)
