"""The affine map ``z = c + S u`` that makes a density nearly standard normal, from draws and their gradients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from pymc_rmhmc.geometry.general.loops import FlatMap

__all__ = ["fit_flat_map", "identity_map", "map_of_gradient"]

type Array = NDArray[np.float64]

# Variances and scales are kept within these factors of 1, in the chart's coordinates.
SMALLEST, LARGEST = 1e-10, 1e10
# Of the unit matrix, so many draws are mixed into a window's covariances: half of what one draw says.
PRIOR_DRAWS = 0.5


def identity_map(centre: Array) -> FlatMap:
    """``z = c + u``."""
    return FlatMap(centre.copy(), np.ones(centre.size), np.empty(0, np.int64), np.empty((0, 0)))


def map_of_gradient(centre: Array, slope: Array) -> FlatMap:
    """A first guess: of the scale that one gradient suggests.

    Where a density is steep, at a point that nobody chose, its scale is about ``1/|g|``.
    """
    spread = np.clip(1.0 / np.maximum(np.abs(slope), 1e-3), 1e-3, 1.0)
    return FlatMap(centre.copy(), spread, np.empty(0, np.int64), np.empty((0, 0)))


def fit_flat_map(positions: Array, slopes: Array, dense: NDArray[np.int64]) -> FlatMap:
    """The map under which draws have unit covariance and so have their gradients.

    For a normal density N(c, Σ) the gradient is ``-Σ⁻¹(z - c)``, and the covariances A of draws and B of gradients
    obey ``Σ B Σ = A`` whatever the draws are: few of them tell Σ exactly. The centre is where the mean gradient would
    be 0.

    Parameters
    ----------
    positions, slopes : (t, d) array
        Draws of z and the gradients of their log density.
    dense : (k,) int array
        The coordinates that share a dense block of S.

    References
    ----------
    Seyboldt, Carlson and Carpenter (2025), Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence.
    """
    mean, mean_slope = positions.mean(axis=0), slopes.mean(axis=0)
    variance, of_slopes = positions.var(axis=0), slopes.var(axis=0)
    scale = np.sqrt(np.sqrt(np.clip(variance, SMALLEST, LARGEST) / np.clip(of_slopes, SMALLEST, LARGEST)))
    centre = mean + scale**2 * mean_slope
    factor = np.empty((0, 0))
    if dense.size:
        unit = scale[dense]
        draws, gradients = (positions[:, dense] - mean[dense]) / unit, (slopes[:, dense] - mean_slope[dense]) * unit
        covariance = _balanced(_shrunk(draws), _shrunk(gradients))
        factor = np.ascontiguousarray(unit[:, None] * np.linalg.cholesky(covariance))
        centre[dense] = mean[dense] + factor @ (factor.T @ mean_slope[dense])
    return FlatMap(centre, scale, dense, factor)


def _shrunk(centred: Array) -> Array:
    """The covariance of draws (t, k) with something of the unit matrix."""
    t, k = centred.shape
    made: Array = (centred.T @ centred + PRIOR_DRAWS * np.eye(k)) / (t + PRIOR_DRAWS)
    return made


def _balanced(draws: Array, gradients: Array) -> Array:
    """The Σ with ``Σ B Σ = A``: the geometric mean of A and B⁻¹."""
    root = _symmetric_root(gradients)
    middle = _symmetric_root(root @ draws @ root)
    half = linalg.solve(root, middle, assume_a="pos")
    found = linalg.solve(root, half.T, assume_a="pos")
    made: Array = 0.5 * (found + found.T)
    return made


def _symmetric_root(matrix: Array) -> Array:
    """The symmetric square root of a positive definite matrix."""
    values, vectors = linalg.eigh(matrix)
    made: Array = (vectors * np.sqrt(np.maximum(values, SMALLEST))) @ vectors.T
    return made
