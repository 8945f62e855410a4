"""How far draws of the funnel's v are from its known normal distribution, and how they depend on one another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

__all__ = ["autocorrelation", "binned_divergence", "normal_divergence", "running_divergence"]

type Array = NDArray[np.float64]


def normal_divergence(draws: Array, sd: float = 3.0) -> float:
    """Return the paper's measure: KL from ``N(0, sd²)`` to the normal with the draws' mean and standard deviation.

    Infinite if all draws are equal.
    """
    mean, variance = float(np.mean(draws)), float(np.var(draws))
    if variance == 0.0:
        return float("inf")
    return float(0.5 * np.log(variance / sd**2) + 0.5 * (sd**2 + mean**2) / variance - 0.5)


def binned_divergence(draws: Array, sd: float = 3.0, bins: int = 20) -> float:
    """Return the KL from the draws to ``N(0, sd²)``, by shares in bins that the truth fills equally.

    It sees a shape that two moments miss. With n independent draws of the truth it is about ``(bins - 1) / 2n``.
    """
    uniform = norm.cdf(np.ravel(draws), scale=sd)
    shares = np.histogram(uniform, bins=bins, range=(0.0, 1.0))[0] / np.size(draws)
    held = shares[shares > 0.0]
    return float(held @ np.log(held * bins))


def running_divergence(draws: Array, counts: Sequence[int], sd: float = 3.0) -> list[float]:
    """Return `normal_divergence` of the first draws of all chains, for each number of draws per chain."""
    return [normal_divergence(draws[:, :count], sd) for count in counts]


def autocorrelation(draws: Array, lags: int) -> list[float]:
    """Return the autocorrelation (lags + 1,) of chains (chain, draw) around their common mean."""
    centred = draws - draws.mean()
    variance = float(np.mean(centred**2))
    if variance == 0.0:
        return [1.0] * (lags + 1)
    n = draws.shape[1]
    return [float(np.mean(centred[:, : n - lag] * centred[:, lag:])) / variance for lag in range(min(lags + 1, n))]
