"""The evidence from draws of several densities ``exp(β φ) N(z; 0, I)``, of a bridge or of all temperatures.

By Bennett's acceptance ratio for any number of them, by stepping stones, and by integration. Errors come from a
jackknife over groups of draws, such as blocks of successive sweeps.

References
----------
Shirts and Chodera (2008), Statistically optimal analysis of samples from multiple equilibrium states, eq. 11.
Meng and Wong (1996), Simulating ratios of normalizing constants via a simple identity.
Friel, Hurn and Wyse (2014), Improving power posterior estimation of statistical evidence: the trapezoidal rule with
the derivatives ``d E_β[φ]/dβ = Var_β[φ]`` at its ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pymc_rmhmc.evidence.methods.estimate import effective_draws

__all__ = ["by_acceptance_ratio", "by_integration", "by_stepping_stones", "integrate", "jackknife", "log_ratios"]

type Array = NDArray[np.float64]

# The acceptance ratio of all draws at once takes so many numbers at most; beyond, every second sweep is left out.
MOST_POWERS = 2_000_000
# Steps of its solution, which has settled where log Z moves by less.
MOST_ITERATIONS, SETTLED = 200, 1e-9


def _in_blocks(phi: Array, blocks: int) -> Array:
    """Divide φ (draws, R, K) into groups of successive sweeps of one replica, (groups, n, K)."""
    n, replicas, k = phi.shape
    each = max(1, min(blocks // replicas, n // 2))
    length = n // each
    kept = phi[n - each * length :].reshape(each, length, replicas, k)
    return kept.transpose(2, 0, 1, 3).reshape(each * replicas, length, k)


def by_acceptance_ratio(betas: Array, phi: Array, blocks: int) -> tuple[float, float]:
    """Estimate ``log E[exp φ]`` and its standard error, by a jackknife over blocks of sweeps."""
    stride = max(1, math.ceil(phi.size * betas.size / MOST_POWERS))
    groups = _in_blocks(phi[::stride], blocks)
    worth = [_effective(phi[::stride, :, k].T) for k in range(betas.size)]
    return jackknife(list(betas), [list(groups[:, :, k]) for k in range(betas.size)], worth)


def _effective(draws: Array) -> float:
    """Estimate how many independent draws some draws (R, n) of φ count for in `jackknife`: at least 1, at most all."""
    if not np.isfinite(draws).all() or np.ptp(draws) < 1e-9:
        return float(draws.size)
    return float(np.clip(effective_draws(draws), 1.0, draws.size))


def integrate(betas: Array, means: Array, variances: Array) -> float:
    """Integrate ``∫₀¹ E_β[φ] dβ`` by the trapezoidal rule with derivatives at the ends, which are variances of φ."""
    gaps = np.diff(betas)
    trapezoid = 0.5 * (gaps * (means[1:] + means[:-1])).sum()
    return float(trapezoid - (gaps**2 * np.diff(variances)).sum() / 12.0)


def by_stepping_stones(betas: Array, phi: Array, blocks: int) -> tuple[float, float]:
    """Estimate ``log E[exp φ]`` by importance sampling from each temperature to the next, its error by the jackknife.

    References
    ----------
    Xie, Lewis, Fan, Kuo and Chen (2011), Improving marginal likelihood estimation for Bayesian phylogenetic model
    selection, eq. 12.
    """
    groups = _in_blocks(phi, blocks)
    n_groups, length, _ = groups.shape
    means = logsumexp(np.diff(betas) * groups[:, :, :-1], axis=1) - math.log(length)
    value = float((logsumexp(means, axis=0) - math.log(n_groups)).sum())
    others = [logsumexp(np.delete(means, left, axis=0), axis=0).sum() for left in range(n_groups)]
    return value, _jackknife_error(np.array(others) - means.shape[1] * math.log(n_groups - 1))


def by_integration(betas: Array, phi: Array, blocks: int) -> tuple[float, float]:
    """Estimate ``log E[exp φ]`` and its error by thermodynamic integration; nan where φ has no mean at β = 0.

    The error is that of the draws, by the jackknife, and that of the rule: a third of what half of the temperatures
    would change.
    """
    groups = _in_blocks(phi, blocks)
    if not np.isfinite(groups).all():
        return math.nan, math.nan

    def integral(which: NDArray[np.intp], rungs: NDArray[np.intp]) -> float:
        draws = groups[which][:, :, rungs].reshape(-1, rungs.size)
        return integrate(betas[rungs], draws.mean(axis=0), draws.var(axis=0))

    every, rungs = np.arange(len(groups)), np.arange(betas.size)
    value = integral(every, rungs)
    drawn = _jackknife_error(np.array([integral(np.delete(every, left), rungs) for left in every]))
    half = np.union1d(rungs[::2], rungs[-1:])
    rule = abs(integral(every, half) - value) / 3.0
    return value, math.hypot(drawn, rule)


def _jackknife_error(without: Array) -> float:
    """Return the standard error of an estimate, from those without one group each."""
    return math.sqrt((without.size - 1) / without.size * float(((without - without.mean()) ** 2).sum()))


def log_ratios(betas: Sequence[float] | Array, phis: Sequence[Array], counts: Sequence[float] | None = None) -> Array:
    """Estimate ``log Z_k - log Z_0`` of every density (K,), by the multistate acceptance ratio.

    Of each of the densities, whose β increase, there is φ at n_k draws. It may be -inf at β = 0 alone. The counts say
    how many independent draws these are worth, by default as many as there are. They decide how well draws are used,
    and not what is estimated.

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
    shares, total = _shares(free, powers, log_worth)
    weighted = weights[:, None] * shares
    value = float(weights @ total - worth @ free)
    gradient = weighted.sum(axis=0) - worth
    hessian = np.diag(weighted.sum(axis=0)) - shares.T @ weighted
    return value, gradient, hessian


def jackknife(
    betas: Sequence[float] | Array, phis: Sequence[Sequence[Array]], counts: Sequence[float]
) -> tuple[float, float]:
    """Estimate ``log Z_K - log Z_0`` and its standard error, from groups of draws that know nothing of one another.

    Of every density there is φ at the draws of each group, the same number of groups for all; counts as in
    `log_ratios`. The error is that of the infinitesimal jackknife: how far the solution moves, to first order, where a
    group counts for more. Whatever the draws' correlation within a group, it is right.

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
            shares, _ = _shares(-ratios, _powers(betas, phi), np.log(worth))
            pulls[group] += weight * shares.sum(axis=0)
            hessian -= weight * shares.T @ shares
    hessian += np.diag(pulls.sum(axis=0))
    moves = np.linalg.lstsq(hessian[1:, 1:], (pulls - worth / n_groups)[:, 1:].T, rcond=None)[0][-1]
    return float(ratios[-1]), math.sqrt(n_groups / (n_groups - 1) * float(moves @ moves))


def _shares(free: Array, powers: Array, log_worth: Array) -> tuple[Array, Array]:
    """Return the probability of each density, given a draw (n, K); and the logarithms of their normalizers (n,)."""
    logs = powers + (log_worth + free)
    total: Array = logsumexp(logs, axis=1)
    return np.exp(logs - total[:, None]), total
