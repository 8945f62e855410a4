"""Gaussian-process regression in NumPy: kernels, the marginal likelihood, its maximum, and predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky
from scipy.optimize import minimize

__all__ = ["Fit", "Kernel", "fit", "log_marginal", "periodic", "predict", "squared_exponential"]

type Array = NDArray[np.float64]
# A covariance of two sets of inputs (n, d) and (m, d), given the logarithms of its hyperparameters.
type Kernel = Callable[[Array, Array, Array], Array]

JITTER = 1e-8


def squared_exponential(a: Array, b: Array, lengthscale: float, amplitude: float = 1.0) -> Array:
    """``σ² exp(-|a - b|² / 2ℓ²)`` for rows (n, d) and (m, d)."""
    square = ((a[:, None, :] - b[None, :, :]) ** 2).sum(axis=-1)
    return amplitude**2 * np.exp(-0.5 * square / lengthscale**2)


def periodic(a: Array, b: Array, lengthscale: float, period: float) -> Array:
    """``exp(-2 sin²(π(a - b)/period) / ℓ²)`` for rows of one input."""
    return np.exp(-2.0 * (np.sin(np.pi * (a - b.T) / period) / lengthscale) ** 2)


@dataclass(frozen=True)
class Fit:
    """Hyperparameters that maximise the marginal likelihood: logarithms, that of the noise last."""

    log_theta: Array
    log_marginal: float


def log_marginal(kernel: Kernel, x: Array, y: Array, log_theta: Array) -> float:
    """``log N(y; 0, K + σₙ² I)``; -inf if the covariance cannot be factorised."""
    covariance = kernel(x, x, log_theta[:-1]) + (np.exp(2.0 * log_theta[-1]) + JITTER) * np.eye(len(y))
    try:
        factor = cholesky(covariance, lower=True)
    except (np.linalg.LinAlgError, ValueError):
        return -np.inf
    half = 0.5 * y @ cho_solve((factor, True), y)
    return float(-half - np.log(np.diag(factor)).sum() - 0.5 * len(y) * np.log(2.0 * np.pi))


def fit(kernel: Kernel, x: Array, y: Array, starts: Sequence[Array]) -> Fit:
    """Return the best maximum of the marginal likelihood (ML-II) from several starts."""

    def loss(log_theta: Array) -> float:
        return min(1e10, -log_marginal(kernel, x, y, log_theta))

    box = [(-7.0, 7.0)] * len(starts[0])
    found = [minimize(loss, start, method="L-BFGS-B", bounds=box) for start in starts]
    best = min(found, key=lambda each: each.fun)
    return Fit(best.x, -float(best.fun))


def predict(kernel: Kernel, x: Array, y: Array, new: Array, log_theta: Array) -> tuple[Array, Array]:
    """Return means and variances of new observations, noise included."""
    noise = np.exp(2.0 * log_theta[-1])
    factor = cholesky(kernel(x, x, log_theta[:-1]) + (noise + JITTER) * np.eye(len(y)), lower=True)
    across = kernel(new, x, log_theta[:-1])
    explained = (across * cho_solve((factor, True), across.T).T).sum(axis=1)
    own = np.array([kernel(row[None], row[None], log_theta[:-1])[0, 0] for row in new])
    return across @ cho_solve((factor, True), y), np.maximum(own - explained, 0.0) + noise
