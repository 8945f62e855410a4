"""A Gaussian prior of covariance Q times Gaussian sites, compiled: a factor of ``B = I + sQs``, and what it solves.

With ``s = √w̄`` every quantity is a product with Q of a vector in the *dual*, ``(I + W̄Q)⁻¹ v``, which is

    s B⁻¹ s⁻¹ v  for strong sites,  v - s B⁻¹ s Q v  for weak ones.

Each form loses what the other keeps: the first is nothing for a site without precision, and the second is the
difference of two numbers as large as w̄Q times what it comes to.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.geometry.blas import factorise_in_place, solve_in_place, symmetric_product
from pymc_rmhmc.geometry.compilation import compiled
from pymc_rmhmc.geometry.loops import identity_plus_scaled

__all__ = ["centre_of_sites", "dual", "factor_of_sites", "gram", "place", "roots_of_sites", "weigh"]

type Array = NDArray[np.float64]


@compiled
def roots_of_sites(precision: Array, variance: Array) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled
    """``s = √w̄``; 1 for a weak site, with ``w̄ Q_ii ≤ 1``, and 0 for a strong one; 1/s of the strong, 0 elsewhere."""
    n = precision.size
    root, weak, inverse = np.empty(n), np.ones(n), np.zeros(n)
    for i in range(n):
        root[i] = np.sqrt(precision[i])
        if precision[i] * variance[i] > 1.0:
            weak[i], inverse[i] = 0.0, 1.0 / root[i]
    return root, weak, inverse


@compiled
def factor_of_sites(covariance: Array, root: Array) -> tuple[bool, Array]:  # pragma: no cover - compiled
    """Whether ``I + sQs`` has a lower factor, and the factor, in Fortran order."""
    matrix = identity_plus_scaled(covariance, root)
    return factorise_in_place(matrix), matrix


@compiled
def dual(
    covariance: Array, inner: Array, root: Array, weak: Array, inverse_root: Array, vector: Array
) -> Array:  # pragma: no cover - compiled
    """``(I + W̄Q)⁻¹ v``, (n,)."""
    kept = weak * vector
    solved = symmetric_product(covariance, kept)
    for i in range(kept.size):
        solved[i] = inverse_root[i] * vector[i] - root[i] * solved[i]
    solve_in_place(inner, solved, False)
    solve_in_place(inner, solved, True)
    for i in range(kept.size):
        solved[i] = kept[i] + root[i] * solved[i]
    return solved


@compiled
def gram(
    covariance: Array, inner: Array, root: Array, weak: Array, inverse_root: Array, vector: Array
) -> Array:  # pragma: no cover - compiled
    """``(Q⁻¹ + W̄)⁻¹ v = Q (I + W̄Q)⁻¹ v``, (n,)."""
    return symmetric_product(covariance, dual(covariance, inner, root, weak, inverse_root, vector))


@compiled
def centre_of_sites(
    covariance: Array, inner: Array, root: Array, weak: Array, inverse_root: Array, mean: Array, linear: Array,
    precision: Array,
) -> tuple[Array, Array, Array, float]:  # pragma: no cover - compiled  # fmt: skip
    """The sites' slope at the mean; in the dual how far the centre is from there; the centre; the log evidence."""
    slope = linear - precision * mean
    centre_dual = dual(covariance, inner, root, weak, inverse_root, slope)
    centre = symmetric_product(covariance, centre_dual)
    log_evidence = 0.0
    for i in range(mean.size):
        log_evidence += 0.5 * (linear[i] + slope[i]) * mean[i] + 0.5 * slope[i] * centre[i] - np.log(inner[i, i])
        centre[i] += mean[i]
    return slope, centre_dual, centre, log_evidence


@compiled
def weigh(
    covariance: Array, mean: Array, linear: Array, precision: Array
) -> tuple[bool, tuple[Array, Array, Array, Array], tuple[Array, Array, Array, float]]:  # pragma: no cover - compiled
    """Whether B has a factor; the factor and the roots; what `centre_of_sites` returns."""
    n = mean.size
    variance = np.empty(n)
    for i in range(n):
        variance[i] = covariance[i, i]
    root, weak, inverse_root = roots_of_sites(precision, variance)
    has_factor, inner = factor_of_sites(covariance, root)
    # Without a factor what is solved is of no use, and is not used.
    centre = centre_of_sites(covariance, inner, root, weak, inverse_root, mean, linear, precision)
    return has_factor, (inner, root, weak, inverse_root), centre


@compiled
def place(
    covariance: Array, inner: Array, root: Array, weak: Array, inverse_root: Array, mean: Array, slope: Array,
    precision: Array, drawn: Array, site_noise: Array,
) -> tuple[Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """In the dual, and itself, what a draw of the prior about its mean and of the sites' noise is mapped to."""
    pulled = dual(covariance, inner, root, weak, inverse_root, slope - precision * drawn + root * site_noise)
    return pulled, mean + drawn + symmetric_product(covariance, pulled)
