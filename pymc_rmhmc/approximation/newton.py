"""The mode of a latent Gaussian posterior, by Newton's method with a line search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.charts.site import GaussianSites, Predictor
from pymc_rmhmc.latent.conditional import Conditional
from pymc_rmhmc.latent.target import Likelihood
from pymc_rmhmc.linalg.cholesky import cholesky, identity_plus_scaled, solve_lower

__all__ = ["NEAREST_FIRST", "Latents", "Mode", "Placed", "find_mode"]

type Array = NDArray[np.float64]

# The objective is a log density: a gain below this is far under anything that sampling could notice.
GAIN_TOLERANCE = 1e-8
MAX_HALVINGS = 30
NEAREST_FIRST = ("hessian", "fisher", "softabs_curvature")


@dataclass(frozen=True, slots=True)
class Mode:
    """Where Newton's method ended."""

    eta: Array  # the sites there, (n,)
    gradient: Array  # ``∂ℓ/∂η``, (n,)
    weight: Array  # the curvature w, (n,)
    log_density: float  # ``Σ ℓ - ½ |ν|²``
    converged: bool  # whether the last step gained less than `GAIN_TOLERANCE`
    n_iter: int  # Newton steps, one Cholesky each


@dataclass(frozen=True, slots=True)
class Latents:
    """``η = η₀ + A L y`` with y standard normal a priori, whatever form the prior has, and with any sites."""

    offset: Array
    prior: Conditional


type Placed = Predictor | Latents


def find_mode(
    predictor: Placed, likelihood: Likelihood, kind: str | None = None, max_iter: int = 100
) -> Mode:
    """Maximise ``Σ ℓ(η) - ½ |ν|²`` with ``η = η₀ + Φν`` and ν standard normal a priori.

    The iterate is ``a`` with ``ν = Φᵀa``, ``η = η₀ + Q a`` and ``Q = ΦΦᵀ``, so that no inverse of Q is
    needed. A step solves ``(I + W Q) a' = W (η - η₀) + g`` through ``B = I + s Q s``, and is halved until
    the objective does not fall. Where there are fewer latents than sites the iterate is ν itself, and a
    step solves ``(I + ΦᵀWΦ) ν' = Φᵀ(W (η - η₀) + g)``.

    The best point found is the mode if `Mode.converged`. The kind is which curvature takes the place of the negative
    second derivative, by default the nearest to it; any with w ≥ 0 leads to the same mode.

    References
    ----------
    Rasmussen and Williams (2006), algorithm 3.1.
    """
    if kind is None:
        kind = next(known for known in NEAREST_FIRST if known in likelihood.kinds)
    coordinates = _coordinates(predictor)
    offset = predictor.offset
    at = np.zeros(coordinates.size)
    eta = offset.copy()
    log_likelihood, gradient, weight, _ = likelihood.curvature(eta, kind)
    objective = log_likelihood
    if not math.isfinite(objective):
        return Mode(eta, gradient, weight, objective, converged=False, n_iter=0)
    for n_iter in range(1, max_iter + 1):
        newton = coordinates.newton(eta - offset, gradient, weight)
        if newton is None:
            break
        at, eta, gained = _line_search(coordinates, offset, likelihood, at, newton - at, objective)
        objective += gained
        log_likelihood, gradient, weight, _ = likelihood.curvature(eta, kind)
        if gained <= GAIN_TOLERANCE:
            return Mode(eta, gradient, weight, objective, converged=True, n_iter=n_iter)
    return Mode(eta, gradient, weight, objective, converged=False, n_iter=n_iter)


def _coordinates(predictor: Placed) -> _Coordinates:
    """Choose the coordinates in which a step costs least."""
    if isinstance(predictor, Latents):
        return _Whitened(predictor)
    return _Primal(predictor) if predictor.n_latent < predictor.n_sites else _Dual(predictor)


class _Coordinates(Protocol):
    """What Newton's method moves."""

    size: int

    def height(self, at: Array) -> Array:
        """Return ``η - η₀``."""

    def norm(self, at: Array, height: Array) -> float:
        """Return ``|ν|²``."""

    def newton(self, height: Array, gradient: Array, weight: Array) -> Array | None:
        """Return the end of a full Newton step; None if it cannot be computed."""


class _Dual:
    """The coordinates a, ``ν = Φᵀa``: (n, n) matrices."""

    def __init__(self, predictor: Predictor) -> None:
        self._gram, self.size = predictor.gram, predictor.n_sites

    def height(self, at: Array) -> Array:
        return np.asarray(self._gram @ at)

    def norm(self, at: Array, height: Array) -> float:
        return float(at @ height)

    def newton(self, height: Array, gradient: Array, weight: Array) -> Array | None:
        root = np.sqrt(weight)
        factor = cholesky(identity_plus_scaled(self._gram, root), overwrite=True)
        if factor is None:
            return None
        linear = weight * height + gradient
        inner = solve_lower(factor, solve_lower(factor, root * (self._gram @ linear)), transpose=True)
        dual = linear - root * inner
        return dual if np.isfinite(dual).all() else None


class _Primal:
    """The coordinates ν themselves: (k, k) matrices."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor, self.size = predictor, predictor.n_latent

    def height(self, at: Array) -> Array:
        return self._predictor.linear(at)

    def norm(self, at: Array, height: Array) -> float:
        return float(at @ at)

    def newton(self, height: Array, gradient: Array, weight: Array) -> Array | None:
        matrix = self._predictor.matrix
        inner = np.asfortranarray(matrix.T @ (weight[:, None] * matrix))
        inner.flat[:: self.size + 1] += 1.0
        factor = cholesky(inner, overwrite=True)
        if factor is None:
            return None
        linear = self._predictor.adjoint(weight * height + gradient)
        end = solve_lower(factor, solve_lower(factor, linear), transpose=True)
        return end if np.isfinite(end).all() else None


class _Whitened:
    """The coordinates y, in the form of the prior's own solver."""

    def __init__(self, latents: Latents) -> None:
        self._prior, self.size = latents.prior, latents.prior.centre_whitened.size

    def height(self, at: Array) -> Array:
        return self._prior.predict(at)

    def norm(self, at: Array, height: Array) -> float:
        return float(at @ at)

    def newton(self, height: Array, gradient: Array, weight: Array) -> Array | None:
        sites = GaussianSites(weight * (height + self._prior.mean) + gradient, weight)
        end = self._prior.mode(sites)
        return end if end is not None and np.isfinite(end).all() else None


def _line_search(
    coordinates: _Coordinates, offset: Array, likelihood: Likelihood, at: Array, change: Array, objective: float
) -> tuple[Array, Array, float]:
    """Halve a step until the objective does not fall: the new coordinates and η, and what was gained."""
    height, height_change = coordinates.height(at), coordinates.height(change)
    scale = 1.0
    for _ in range(MAX_HALVINGS):
        trial = at + scale * change
        trial_height = height + scale * height_change
        value, _ = likelihood.gradient(offset + trial_height)
        gained = value - 0.5 * coordinates.norm(trial, trial_height) - objective
        if gained >= 0.0:
            return trial, offset + trial_height, gained
        scale *= 0.5
    return at, offset + height, 0.0
