"""A Gaussian prior of covariance Q times Gaussian sites, compiled: a factor of ``B = I + sQs``, and what it solves.

With ``s = √w̄`` every quantity is a product with Q of a vector in the *dual*, ``(I + W̄Q)⁻¹ v``, which is

    s B⁻¹ s⁻¹ v  for strong sites,  v - s B⁻¹ s Q v  for weak ones.

Each form loses what the other keeps: the first is nothing for a site without precision, and the second is the
difference of two numbers as large as w̄Q times what it comes to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve

from pymc_rmhmc.linalg.cholesky import factorise_in_place, identity_plus_scaled, inverse_lower, multiply_lower
from pymc_rmhmc.linalg.compiled.blas import solve_in_place
from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.products import multiply_symmetric

__all__ = [
    "MOST_LOST", "centre_of_sites", "dual", "factor_of_sites", "gram", "gram_matrix", "lost_in_rounding", "place",
    "roots_of_sites", "variances_of_sites", "weigh",
]  # fmt: skip

type Array = NDArray[np.float64]

EPSILON = float(np.finfo(np.float64).eps)
# Nats of the log evidence. What is off by more, as with an autoregression that explodes, could be taken for the mode.
MOST_LOST = 0.1


@compiled
def roots_of_sites(precision: Array, variance: Array) -> Array:  # pragma: no cover - compiled
    """By rows, (3, n): ``s = √w̄``; 1 for a weak site, with ``w̄ Q_ii ≤ 1``, 0 for a strong one; 1/s of the strong.

    In one array, since each that compiled code hands back takes a third of a microsecond.
    """
    n = precision.size
    roots = np.zeros((3, n))
    for i in range(n):
        roots[0, i] = np.sqrt(precision[i])
        if precision[i] * variance[i] > 1.0:
            roots[2, i] = 1.0 / roots[0, i]
        else:
            roots[1, i] = 1.0
    return roots


@compiled
def factor_of_sites(covariance: Array, root: Array) -> tuple[bool, Array]:  # pragma: no cover - compiled
    """Whether ``I + sQs`` has a lower factor, and the factor, in Fortran order."""
    matrix = identity_plus_scaled(covariance, root)
    return factorise_in_place(matrix), matrix


@compiled
def dual(covariance: Array, inner: Array, roots: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """``(I + W̄Q)⁻¹ v``, (n,)."""
    root, inverse_root = roots[0], roots[2]
    kept = roots[1] * vector
    # Where the data say much, no site is weak.
    solved = multiply_symmetric(covariance, kept) if roots[1].any() else np.zeros(kept.size)
    for i in range(kept.size):
        solved[i] = inverse_root[i] * vector[i] - root[i] * solved[i]
    solve_in_place(inner, solved, False)
    solve_in_place(inner, solved, True)
    for i in range(kept.size):
        solved[i] = kept[i] + root[i] * solved[i]
    return solved


@compiled
def gram(covariance: Array, inner: Array, roots: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """``(Q⁻¹ + W̄)⁻¹ v = Q (I + W̄Q)⁻¹ v``, (n,)."""
    return multiply_symmetric(covariance, dual(covariance, inner, roots, vector))


def gram_matrix(covariance: Array, inner: Array, roots: Array) -> Array:
    """``(Q⁻¹ + W̄)⁻¹``, (n, n): `gram` of every unit vector, at the price of some factors."""
    root, is_weak, inverse_root = roots
    solved = cho_solve((inner, True), np.diag(inverse_root) - root[:, None] * covariance * is_weak)
    found = covariance @ (root[:, None] * solved + np.diag(is_weak))
    return np.asarray(0.5 * (found + found.T))


def variances_of_sites(covariance: Array, inner: Array, roots: Array) -> Array:
    """The diagonal of ``(Q⁻¹ + W̄)⁻¹``, (n,).

    It is ``(1 - (B⁻¹)ᵢᵢ) / w̄ᵢ`` of strong sites, and ``Qᵢᵢ - qᵢᵀ s B⁻¹ s qᵢ`` of weak ones.
    """
    inverse, weak = inverse_lower(inner), roots[1] > 0.0
    found = roots[2] ** 2 * (1.0 - np.einsum("ij,ij->j", inverse, inverse))
    if weak.any():
        half = multiply_lower(inverse, roots[0][:, None] * covariance[:, weak])
        found[weak] = covariance.diagonal()[weak] - np.einsum("ij,ij->j", half, half)
    return np.asarray(np.maximum(found, 0.0))


@compiled
def centre_of_sites(
    covariance: Array, inner: Array, roots: Array, mean: Array, linear: Array, precision: Array
) -> tuple[Array, float]:  # pragma: no cover - compiled
    """By rows, (3, n), the sites' slope at the mean, in the dual how far the centre is from there, and the centre.

    And the log evidence ``½ Σ (b + g) m + ½ gᵀQd - ½ log|B|`` with the slope ``g = b - W̄m`` and the dual d. Where a
    site is strong the two sums are large and nearly cancel; with ``d + W̄Qd = g`` they come to ``½ b²/w̄ - ½ g d/w̄``.
    """
    slope = linear - precision * mean
    centre_dual = dual(covariance, inner, roots, slope)
    moved = multiply_symmetric(covariance, centre_dual)
    log_evidence, found = 0.0, np.empty((3, mean.size))
    for i in range(mean.size):
        if roots[1, i] == 0.0:
            variance = roots[2, i] ** 2
            found[2, i] = variance * (linear[i] - centre_dual[i])
            log_evidence += 0.5 * variance * (linear[i] ** 2 - slope[i] * centre_dual[i])
        else:
            found[2, i] = mean[i] + moved[i]
            log_evidence += 0.5 * (linear[i] + slope[i]) * mean[i] + 0.5 * slope[i] * moved[i]
        log_evidence -= np.log(inner[i, i])
        found[0, i], found[1, i] = slope[i], centre_dual[i]
    return found, log_evidence


@compiled
def lost_in_rounding(
    inner: Array, roots: Array, variance: Array, centre_dual: Array
) -> float:  # pragma: no cover - compiled
    """About what the log evidence may be off by, in nats, of the rounding of ``B = I + sQs``.

    A change of B by ΔB moves it by ``½ uᵀΔB u - ½ tr(B⁻¹ΔB)`` with ``u = d/s``, and ΔB_ij is a rounding of
    ``√(B_ii B_jj)`` with a sign at random. The order of magnitude is what counts: the halves are left out, and the
    pivots stand for the inverse's diagonal.
    """
    lost = 0.0
    for i in range(variance.size):
        size = 1.0 + roots[0, i] ** 2 * variance[i]
        lost += size * ((roots[2, i] * centre_dual[i]) ** 2 + 1.0 / inner[i, i] ** 2)
    return EPSILON * lost


@compiled
def weigh(
    covariance: Array, mean: Array, linear: Array, precision: Array
) -> tuple[bool, Array, Array, Array, float]:  # pragma: no cover - compiled
    """Whether B has a factor that rounding leaves of use; it and the roots; what `centre_of_sites` returns."""
    n = mean.size
    variance = np.empty(n)
    for i in range(n):
        variance[i] = covariance[i, i]
    roots = roots_of_sites(precision, variance)
    has_factor, inner = factor_of_sites(covariance, roots[0])
    # Without a factor what is solved is of no use, and is not used.
    found, log_evidence = centre_of_sites(covariance, inner, roots, mean, linear, precision)
    is_lost = has_factor and lost_in_rounding(inner, roots, variance, found[1]) > MOST_LOST
    return has_factor and not is_lost, inner, roots, found, log_evidence


@compiled
def place(
    covariance: Array, inner: Array, roots: Array, mean: Array, slope: Array, precision: Array, drawn: Array,
    site_noise: Array,
) -> Array:  # pragma: no cover - compiled  # fmt: skip
    """By rows, in the dual and itself, what a draw of the prior about its mean and of the sites' noise is mapped to."""
    placed = np.empty((2, mean.size))
    placed[0] = dual(covariance, inner, roots, slope - precision * drawn + roots[0] * site_noise)
    placed[1] = mean + drawn + multiply_symmetric(covariance, placed[0])
    return placed
