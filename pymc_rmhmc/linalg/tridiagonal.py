"""Loops along a series of the first order: recursions, and the factor of a tridiagonal matrix.

The matrix is ``T = W + Mᵀ diag(τ) M`` with ``(M x)ₜ = xₜ - ρ xₜ₋₁``. It is ``L diag(δ) Lᵀ``, and L has two bands.
With g, the precision of xₜ given all data up to t, every pivot is a sum of positive numbers:

    δₜ = gₜ + ρ² τₜ₊₁,   gₜ₊₁ = wₜ₊₁ + τₜ₊₁ gₜ / δₜ,   Lₜ₊₁,ₜ = -ρ τₜ₊₁ / δₜ
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = ["factorize_series", "follow", "inverse_bands", "solve_series"]

type Array = NDArray[np.float64]


@compiled
def follow(rho: float, rows: Array) -> Array:  # pragma: no cover - compiled
    """Return x with ``xₜ = uₜ + ρ xₜ₋₁`` for each row u of (r, n)."""
    found = np.empty_like(rows)
    for row in range(rows.shape[0]):
        last = 0.0
        for t in range(rows.shape[1]):
            last = rows[row, t] + rho * last
            found[row, t] = last
    return found


@compiled
def factorize_series(weight: Array, tau: Array, rho: float) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """Factorise T: return δ (n,), and L below its diagonal (n,), of which the last is 0."""
    n = weight.size
    pivots, below = np.empty(n), np.zeros(n)
    known = weight[0] + tau[0]
    for t in range(n - 1):
        pivots[t] = known + rho * rho * tau[t + 1]
        below[t] = -rho * tau[t + 1] / pivots[t]
        known = weight[t + 1] + tau[t + 1] * (known / pivots[t])
    pivots[n - 1] = known
    return pivots, below


@compiled
def solve_series(pivots: Array, below: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``T⁻¹ vector``, (n,)."""
    n = vector.size
    found = vector.copy()
    for t in range(n - 1):
        found[t + 1] -= below[t] * found[t]
    found[n - 1] /= pivots[n - 1]
    for t in range(n - 2, -1, -1):
        found[t] = found[t] / pivots[t] - below[t] * found[t + 1]
    return found


@compiled
def inverse_bands(pivots: Array, below: Array) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """Return the diagonal of T⁻¹ (n,), and its entries below (n,), of which the last is 0."""
    n = pivots.size
    diagonal, off = np.empty(n), np.zeros(n)
    diagonal[n - 1] = 1.0 / pivots[n - 1]
    for t in range(n - 2, -1, -1):
        off[t] = -below[t] * diagonal[t + 1]
        diagonal[t] = 1.0 / pivots[t] - below[t] * off[t]
    return diagonal, off
