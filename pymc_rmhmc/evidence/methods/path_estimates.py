"""The evidence from draws of all temperatures: by the acceptance ratio, stepping stones, and integration.

Errors come from a jackknife over blocks of successive sweeps.

References
----------
Friel, Hurn and Wyse (2014), Improving power posterior estimation of statistical evidence: the trapezoidal rule with
the derivatives ``d E_β[φ]/dβ = Var_β[φ]`` at its ends.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pymc_rmhmc.evidence.methods.estimate import effective_draws
from pymc_rmhmc.evidence.methods.mbar import jackknife

__all__ = ["by_acceptance_ratio", "by_integration", "by_stepping_stones", "integrate"]

type Array = NDArray[np.float64]

# The acceptance ratio of all draws at once takes so many numbers at most; beyond, every second sweep is left out.
MOST_POWERS = 2_000_000


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
    """Integrate ``∫₀¹ E_β[φ] dβ`` by the trapezoidal rule with derivatives at the ends, which are variances of φ.

    Parameters
    ----------
    betas, means, variances : (K,) array
        Of φ at each temperature.
    """
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
