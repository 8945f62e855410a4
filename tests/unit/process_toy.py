"""A Gaussian process with two hyperparameters and a level, as functions whose derivatives are written by hand."""

from __future__ import annotations

import numpy as np

N = 5
AT = np.linspace(0.0, 1.0, N)
SQUARES = (AT[:, None] - AT) ** 2
SEEN = np.array([0.0, 2.0, 1.0, 4.0, 1.0])
JITTER = 0.05
# Of a prior on θ that is N(0, 0.25 I).
PRECISION = 4.0


class ToyProcess:
    """θ = (log amplitude a, log lengthscale b, level c); s ~ N(a b t, K), y ~ Poisson(exp(s + c))."""

    n_process, n_theta, is_series = N, 3, False
    moving = np.array([0, 1])
    pairs = np.array([[0, 0], [0, 1], [1, 1]])

    def __init__(self, *, whitened: bool = True) -> None:
        self.whitened = whitened

    def prior(self, theta):
        a, b = theta[:2]
        scaled = SQUARES * np.exp(-2.0 * b)
        k = np.exp(2.0 * a - 0.5 * scaled)
        slopes = np.stack([2.0 * k, k * scaled])
        return a * b * AT, k + JITTER * np.eye(N), np.stack([b * AT, a * AT]), slopes

    def prior_curvature(self, theta):
        a, b = theta[:2]
        scaled = SQUARES * np.exp(-2.0 * b)
        k = np.exp(2.0 * a - 0.5 * scaled)
        zero = np.zeros(N)
        curvatures = np.stack([4.0 * k, 2.0 * k * scaled, k * scaled**2 - 2.0 * k * scaled])
        return np.stack([zero, AT, zero]), curvatures

    def rest(self, x):
        s, theta = x[:N], x[N:]
        rate = np.exp(s + theta[2])
        total = SEEN @ (s + theta[2]) - rate.sum() - 0.5 * PRECISION * theta @ theta
        gradient = np.concatenate((SEEN - rate, -PRECISION * theta))
        gradient[-1] += (SEEN - rate).sum()
        return np.array(total), gradient

    def information(self, x):
        rate = np.exp(x[:N] + x[-1])
        cross, own = np.zeros((N, 3)), PRECISION * np.eye(3)
        cross[:, 2] = rate
        own[2, 2] += rate.sum()
        return rate, cross, own

    def information_pull(self, x, weight, cross, own):
        rate = np.exp(x[:N] + x[-1])
        along = rate * (weight + cross[:, 2] + own[2, 2])
        return (np.concatenate((along, [0.0, 0.0, along.sum()])),)


def point(seed: int = 0) -> np.ndarray:
    """Whitened values and θ."""
    rng = np.random.default_rng(seed)
    return np.concatenate((0.7 * rng.standard_normal(N), [0.2, -0.8, 0.3] + 0.1 * rng.standard_normal(3)))
