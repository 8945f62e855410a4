"""The evidence from draws of several densities ``exp(β φ) N(z; 0, I)``, by Bennett's acceptance ratio for any number.

References
----------
Shirts and Chodera (2008), Statistically optimal analysis of samples from multiple equilibrium states, eq. 11.
Meng and Wong (1996), Simulating ratios of normalizing constants via a simple identity.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

__all__ = ["jackknife", "log_ratios"]

type Array = NDArray[np.float64]

MOST_ITERATIONS = 200
SETTLED = 1e-9


def log_ratios(betas: Sequence[float] | Array, phis: Sequence[Array], counts: Sequence[float] | None = None) -> Array:
    """Estimate ``log Z_k - log Z_0`` of every density, by the multistate acceptance ratio.

    Parameters
    ----------
    betas : sequence of float
        Of the densities, increasing.
    phis : sequence of (n_k,) arrays
        φ at draws of each. It may be -inf at β = 0 alone.
    counts : sequence of float, optional
        How many independent draws each is worth; by default as many as there are. They decide how well draws are used,
        and not what is estimated.

    Returns
    -------
    (K,) array
        The first is 0.

    Notes
    -----
    Newton's method on the convex function whose minimum solves the equations, with halved steps.
    """
    worth = np.array([each.size for each in phis] if counts is None else counts, float)
    weights = np.concatenate([np.full(each.size, w / each.size) for each, w in zip(phis, worth, strict=True)])
    powers = _powers(np.asarray(betas, float), np.concatenate(list(phis)))
    log_worth = np.log(worth)
    free = _pairwise(powers, worth, phis)
    value, gradient, hessian = _objective(free, powers, log_worth, worth, weights)
    for _ in range(MOST_ITERATIONS):
        step = -np.linalg.lstsq(hessian[1:, 1:], gradient[1:], rcond=None)[0]
        scale = 1.0
        while True:
            trial = free.copy()
            trial[1:] += scale * step
            tried = _objective(trial, powers, log_worth, worth, weights)
            if tried[0] <= value + 1e-12 * abs(value) or scale < 1e-8:
                break
            scale *= 0.5
        free, (value, gradient, hessian) = trial, tried
        if np.abs(scale * step).max(initial=0.0) < SETTLED:
            break
    return -free


def _powers(betas: Array, phi: Array) -> Array:
    """Return ``β_k φ_n`` (n, K), with ``0 · -inf = 0``."""
    with np.errstate(invalid="ignore"):
        made = phi[:, None] * betas[None, :]
    made[:, betas == 0.0] = 0.0
    return made


def _pairwise(powers: Array, worth: Array, phis: Sequence[Array]) -> Array:
    """Guess ``-log Z`` by importance sampling from each density to the next."""
    free, start = np.zeros(worth.size), 0
    for k, each in enumerate(phis[:-1]):
        own = slice(start, start + each.size)
        with np.errstate(invalid="ignore"):
            found = logsumexp(powers[own, k + 1] - powers[own, k]) - math.log(each.size)
        free[k + 1] = free[k] - (found if math.isfinite(found) else 0.0)
        start += each.size
    return free


def _objective(
    free: Array, powers: Array, log_worth: Array, worth: Array, weights: Array
) -> tuple[float, Array, Array]:
    """Return the convex function of ``-log Z``, its gradient and Hessian."""
    logs = powers + (log_worth + free)
    total = logsumexp(logs, axis=1)
    shares = np.exp(logs - total[:, None])
    weighted = weights[:, None] * shares
    value = float(weights @ total - worth @ free)
    gradient = weighted.sum(axis=0) - worth
    hessian = np.diag(weighted.sum(axis=0)) - shares.T @ weighted
    return value, gradient, hessian


def jackknife(
    betas: Sequence[float] | Array, phis: Sequence[Sequence[Array]], counts: Sequence[float]
) -> tuple[float, float]:
    """Estimate ``log Z_K - log Z_0`` and its standard error, from groups of draws that know nothing of one another.

    The error is that of the infinitesimal jackknife: how far the solution moves, to first order, where a group counts
    for more. Whatever the draws' correlation within a group, it is right.

    Parameters
    ----------
    betas : sequence of float
        Of the densities.
    phis : sequence of sequences of arrays
        Of every density φ at the draws of each group, the same number of groups for all.
    counts : sequence of float
        As `log_ratios` has them.

    References
    ----------
    Efron (1982), The jackknife, the bootstrap and other resampling plans, chapter 6.
    """
    n_groups, betas = len(phis[0]), np.asarray(betas, float)
    ratios = log_ratios(betas, [np.concatenate(list(groups)) for groups in phis], counts)
    worth = np.asarray(counts, float)
    pulls, hessian = np.zeros((n_groups, worth.size)), np.zeros((worth.size, worth.size))
    for k, groups in enumerate(phis):
        weight = worth[k] / sum(each.size for each in groups)
        for group, phi in enumerate(groups):
            shares = _shares(-ratios, _powers(betas, phi), np.log(worth))
            pulls[group] += weight * shares.sum(axis=0)
            hessian -= weight * shares.T @ shares
    hessian += np.diag(pulls.sum(axis=0))
    moves = np.linalg.lstsq(hessian[1:, 1:], (pulls - worth / n_groups)[:, 1:].T, rcond=None)[0][-1]
    return float(ratios[-1]), math.sqrt(n_groups / (n_groups - 1) * float(moves @ moves))


def _shares(free: Array, powers: Array, log_worth: Array) -> Array:
    """Return the probability of each density, given a draw (n, K)."""
    logs = powers + (log_worth + free)
    return np.exp(logs - logsumexp(logs, axis=1)[:, None])
