"""Laplace's method at one θ, where an observation may read several predictors.

Given sites, latent values and predictors are linear in a standard normal z, ``x = x₀ + M z`` and ``η = η₀ + T z``, and
z has the log density ``ψ(η) - ½ |z|²``. The sites have a diagonal W̄, and the likelihood's W has blocks. Which sites
these are makes no difference to the mode ẑ and to the curvature there:

    N = I + Tᵀ (W - W̄) T,      log p(y) ≈ log E + ψ(η̂) - ½ |ẑ|² - ½ log |N|.

The iterate is u with ``z = Tᵀ u``, so that a step is of the predictors' size.

References
----------
Rasmussen and Williams (2006), sections 3.4 and 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.sparse.csgraph import connected_components

from pymc_rmhmc.approximation.joint_mode import sites_from_nothing
from pymc_rmhmc.approximation.newton import GAIN_TOLERANCE, MAX_HALVINGS
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.joint_target import JointPoint, JointTarget
from pymc_rmhmc.linalg.cholesky import cholesky, log_diagonal

__all__ = ["CoupledLaplace", "coupled_laplace"]

type Array = NDArray[np.float64]
# From η to the log likelihood and its slope.
type LogLikelihood = Callable[[Array], tuple[float, Array]]
# From η and a direction to the derivative of the slope along it.
type SecondDerivative = Callable[[Array, Array], Array]

MAX_STEPS = 200


@dataclass(frozen=True, slots=True)
class CoupledLaplace:
    """A Gaussian approximation of the latent values of one block."""

    latents: Array  # the mode x̂, (k,)
    model_factor: Array  # lower triangular, of the covariance of x, (k, k)
    eta: Array  # the predictors there, (n,)
    variance: Array  # of these, (n,)
    log_evidence: float
    n_iter: int


@dataclass(frozen=True, slots=True)
class _Place:
    """A u, and what is known there."""

    dual: Array  # u
    eta: Array
    objective: float  # ``ψ(η) - ½ uᵀ S u``
    residual: Array  # ``∂ψ/∂η``


def coupled_laplace(target: JointTarget, theta: Array, second: SecondDerivative) -> CoupledLaplace | None:
    """Approximate the only block of a target at θ; None where no mode is found.

    The target's own sites are of no account. Raises a `PriorFailure` if the prior cannot be used at θ.
    """
    (block,) = target.density.blocks
    sites = sites_from_nothing(block, theta)
    conditional = target.conditional(0, theta, sites, derivative=False)

    def latents_at(noise: Array) -> tuple[Array, Array]:
        placed = conditional.place(noise)
        (values,) = target.latents(JointPoint(noise, theta, placed=[placed]))
        return placed.eta, values

    def log_likelihood(eta: Array) -> tuple[float, Array]:
        return block.likelihood(theta, eta)[:2]

    n_noise = conditional.n_noise
    eta, latents = latents_at(np.zeros(n_noise))
    moved = [latents_at(unit) for unit in np.eye(n_noise)]
    spread = np.array([each - eta for each, _ in moved]).T  # T
    mode = _find_mode(spread, eta, sites, log_likelihood, second)
    if mode is None:
        return None
    place, n_iter = mode
    beyond = _curvature(place.eta, second) - np.diag(sites.precision)
    root = cholesky(np.eye(n_noise) + spread.T @ (beyond @ spread))
    if root is None:
        return None
    by_latents = np.array([each - latents for _, each in moved])  # Mᵀ
    evidence = conditional.log_evidence + place.objective - float(log_diagonal(root))
    by_latents, by_sites = (linalg.solve_triangular(root, each, lower=True) for each in (by_latents, spread.T))
    found = latents + by_latents.T @ (root.T @ (spread.T @ place.dual))
    return CoupledLaplace(found, _lower_of(by_latents), place.eta, (by_sites**2).sum(axis=0), evidence, n_iter)


def _find_mode(
    spread: Array, centre: Array, sites: GaussianSites, log_likelihood: LogLikelihood, second: SecondDerivative
) -> tuple[_Place, int] | None:
    """Maximise by Newton's method; None if it does not converge."""
    gram = spread @ spread.T

    def at(dual: Array) -> _Place:
        pushed = gram @ dual
        eta = centre + pushed
        value, slope = log_likelihood(eta)
        at_sites, residual = sites.residual(eta, slope)
        return _Place(dual, eta, value - at_sites - 0.5 * float(dual @ pushed), residual)

    here = at(np.zeros(centre.size))
    for n_iter in range(1, MAX_STEPS + 1):
        if not math.isfinite(here.objective):
            return None
        found = _step(here, gram, sites, at, second)
        if found is None or found.objective - here.objective < GAIN_TOLERANCE:
            return found or here, n_iter
        here = found
    return None


def _step(
    here: _Place, gram: Array, sites: GaussianSites, at: Callable[[Array], _Place], second: SecondDerivative
) -> _Place | None:
    """Make a step with the curvature as it is, or where that gains nothing with its positive part; None if none does.

    The posterior may curve downwards at the mode where a likelihood alone does not.
    """
    curvature = _curvature(here.eta, second)
    if not np.isfinite(curvature).all():
        return None
    return _along(here, gram, curvature - np.diag(sites.precision), at) or _along(
        here, gram, _positive_part(curvature) - np.diag(sites.precision), at
    )


def _along(here: _Place, gram: Array, beyond: Array, at: Callable[[Array], _Place]) -> _Place | None:
    """Step as far as the objective does not fall; None where the direction leads down."""
    force = here.residual - here.dual
    try:
        direction = np.linalg.solve(np.eye(force.size) + beyond @ gram, force)
    except np.linalg.LinAlgError:
        return None
    if not direction @ (gram @ force) >= 0.0:
        return None
    tried = (at(here.dual + 0.5**k * direction) for k in range(MAX_HALVINGS))
    return next((found for found in tried if found.objective >= here.objective), None)


def _curvature(eta: Array, second: SecondDerivative) -> Array:
    """Return W (n, n), of which each observation has a block."""
    found: Array = -np.array([second(eta, unit) for unit in np.eye(eta.size)])
    return np.asarray(0.5 * (found + found.T))


def _positive_part(matrix: Array) -> Array:
    """Return a symmetric matrix of blocks without what it has along eigenvectors of negative eigenvalues."""
    n_blocks, label = connected_components(matrix != 0.0, directed=False)
    found = np.zeros_like(matrix)
    order = np.argsort(label, kind="stable")
    for own in np.split(order, np.searchsorted(label[order], np.arange(1, n_blocks))):
        values, vectors = np.linalg.eigh(matrix[np.ix_(own, own)])
        found[np.ix_(own, own)] = (vectors * np.maximum(values, 0.0)) @ vectors.T
    return found


def _lower_of(root: Array) -> Array:
    """Return the lower triangular L with ``L Lᵀ = AᵀA`` for an A (m, k)."""
    (upper,) = linalg.qr(root, mode="r")
    upper = upper[: root.shape[1]]
    return np.asarray((upper * np.where(upper.diagonal() < 0.0, -1.0, 1.0)[:, None]).T)
