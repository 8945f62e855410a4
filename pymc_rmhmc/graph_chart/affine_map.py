"""The affine map ``z = c + S u`` that makes a density nearly standard normal, from draws and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from pymc_rmhmc.graph_chart.constants import NO_ANGLES, Angles
from pymc_rmhmc.graph_chart.path_loops import FlatMap

__all__ = [
    "diagonal_map", "distance_from_normal", "fit_flat_map", "from_flat", "identity_map", "log_volume",
    "map_of_gradient", "to_flat",
]  # fmt: skip

type Array = NDArray[np.float64]

# Variances are kept within these factors of 1, in the chart's coordinates; those of draws and gradients may be as far
# from 1 as the last, in units such as 1e9 or 1e-9.
SMALLEST, WIDEST = 1e-10, 1e36
# Where a log density is flatter than this along a coordinate at the start, so many widths are tried.
FLAT, WIDTHS = 1e-3, 10.0 ** np.arange(0, 16)
# A gradient at the start suggests no smaller scale than this: the start may be far out. If it is steeper than the
# second, the curvature over the first decides.
NARROW, STEEP = 1e-3, 1e6
# Draws and gradients beyond this are left out: their products overflow.
ENORMOUS = 1e50
# Of the unit matrix, so many draws are mixed into a window's covariances: half of what one draw says.
PRIOR_DRAWS = 0.5
# Directions apart from B: of how many draws they are looked for, at most how many, one for how many draws, and how
# many times as large a variance must be, or as small, to be one.
FEWEST_DRAWS, MOST_DIRECTIONS, DRAWS_OF_A_DIRECTION, NOTICED = 20, 8, 5, 2.0


def identity_map(centre: Array, free: NDArray[np.int64] = NO_ANGLES.places) -> FlatMap:
    """Return the map ``z = c + u``."""
    return diagonal_map(centre, np.ones(centre.size), free)


def map_of_gradient(
    centre: Array, slope: Array, along: Callable[[int, float], float], free: NDArray[np.int64] = NO_ANGLES.places
) -> FlatMap:
    """Guess a first map from the scale that one gradient suggests, or from how far a flat density reaches.

    Where a density is steep, at a point that nobody chose, its scale is about ``1/|g|``. Where it is flat, as in units
    of 1e9, the gradient says less, and where it is enormous, as in units of 1e-9, its curvature says more.

    `centre`, `slope` (d,): the point, and the gradient of the log density there.
    `along`: the log density where one coordinate has moved so far from the point.
    `free` (a,) int: angles, which are no wider than their circle.
    """
    spread = np.clip(1.0 / np.maximum(np.abs(slope), FLAT), NARROW, 1.0)
    for i in np.setdiff1d(np.flatnonzero(np.abs(slope) < FLAT), free):
        spread[i] = max(spread[i], _width(along, int(i)))
    for i in np.setdiff1d(np.flatnonzero(np.abs(slope) > STEEP), free):
        spread[i] = min(spread[i], _scale_of_curvature(along, int(i)))
    return diagonal_map(centre, spread, free)


def _width(along: Callable[[int, float], float], which: int) -> float:
    """Find the longest of some steps from a point by which a log density changes by less than 1, to either side."""
    here = along(which, 0.0)
    for width in WIDTHS:
        moved = np.array([along(which, sign * 10.0 * width) for sign in (1.0, -1.0)])
        if not (np.abs(moved - here) < 1.0).all():
            return float(width)
    return 1.0  # nothing says how wide it is


def _scale_of_curvature(along: Callable[[int, float], float], which: int) -> float:
    """Return the scale of a normal density that bends as a log density does within `NARROW` of a point."""
    bend = (2.0 * along(which, 0.0) - along(which, NARROW) - along(which, -NARROW)) / NARROW**2
    return 1.0 / math.sqrt(bend) if 0.0 < bend < math.inf else NARROW


def from_flat(flat: FlatMap, u: Array) -> Array:
    """Return ``z = c + S u``."""
    w = u + flat.directions.T @ (flat.stretches * (flat.directions @ u))
    z: Array = flat.centre + flat.spread * w
    if flat.dense.size:
        z[flat.dense] = flat.centre[flat.dense] + flat.factor @ w[flat.dense]
    return z


def to_flat(flat: FlatMap, z: Array) -> Array:
    """Return u (..., d) with ``z = c + S u``, of one or more points."""
    apart = z - flat.centre
    w = apart / flat.spread
    if flat.dense.size:
        w[..., flat.dense] = linalg.solve_triangular(flat.factor, apart[..., flat.dense].T, lower=True).T
    shorter = 1.0 / (1.0 + flat.stretches) - 1.0
    found: Array = w + ((w @ flat.directions.T) * shorter) @ flat.directions
    return found


def log_volume(flat: FlatMap) -> float:
    """Return ``log |det S|``."""
    elsewhere = np.delete(flat.spread, flat.dense)
    return float(np.log(elsewhere).sum() + np.log(flat.factor.diagonal()).sum() + np.log1p(flat.stretches).sum())


def distance_from_normal(flat: FlatMap, positions: Array, slopes: Array) -> float:
    """Return how far draws of z (t, d) are from standard normal in a map: the Fisher divergence of their gradients.

    It is the mean square of what their gradients (t, d) have beyond those of a standard normal, which is what a
    trajectory's error comes from. Free coordinates have no Gaussian part.
    """
    pulled = flat.spread * slopes
    pulled[:, flat.dense] = slopes[:, flat.dense] @ flat.factor
    pulled += ((pulled @ flat.directions.T) * flat.stretches) @ flat.directions
    beyond = pulled + to_flat(flat, positions)
    beyond[:, flat.free] = 0.0
    return float((beyond**2).sum(axis=1).mean())


def diagonal_map(centre: Array, spread: Array, free: NDArray[np.int64] = NO_ANGLES.places) -> FlatMap:
    """Return the map of a diagonal S."""
    none = np.empty((0, 0))
    return FlatMap(centre.copy(), spread, np.empty(0, np.int64), none, np.empty((0, centre.size)), np.empty(0), free)


def fit_flat_map(
    positions: Array, slopes: Array, dense: NDArray[np.int64], angles: Angles = NO_ANGLES
) -> FlatMap | None:
    """Fit the map under which draws have unit covariance and so have their gradients; None where they give no map.

    For a normal density N(c, Σ) the gradient is ``-Σ⁻¹(z - c)``, and the covariances A of draws and B of gradients
    obey ``Σ B Σ = A`` whatever the draws are: few of them tell Σ exactly. The centre is where the mean gradient would
    be 0.

    `positions`, `slopes` (t, d): draws of z and the gradients of their log density. Those that are not finite, or
      enormous, are left out.
    `dense` (k,) int: the coordinates that share a dense block of S.
    `angles`: the coordinates that are free in the map, each within one period. Their centre is their mean.

    References
    ----------
    Seyboldt, Carlson and Carpenter (2025), Preconditioning Hamiltonian Monte Carlo by minimizing Fisher divergence.
    """
    is_usable = (np.abs(np.hstack([positions, slopes])) < ENORMOUS).all(axis=1)
    if is_usable.sum() < 2:
        return None
    try:
        with np.errstate(all="ignore"):
            fitted = _fitted(positions[is_usable], slopes[is_usable], dense, angles)
    except (linalg.LinAlgError, ValueError):  # products of rounded numbers have no factor, or have overflowed
        return None
    return fitted if all(np.isfinite(part).all() for part in fitted) else None


def _fitted(positions: Array, slopes: Array, dense: NDArray[np.int64], angles: Angles) -> FlatMap:
    """See `fit_flat_map`."""
    # A factor is lower triangular: of its coordinates only those after an angle depend on it.
    is_free = np.isin(dense, angles.places)
    dense = np.concatenate([dense[~is_free], dense[is_free]])
    mean, mean_slope = positions.mean(axis=0), slopes.mean(axis=0)
    variance, of_slopes = positions.var(axis=0), slopes.var(axis=0)
    scale = _scale(variance, of_slopes)
    scale[angles.places] = np.minimum(scale[angles.places], angles.widest)
    # What is left of draws and gradients where B is taken out.
    draws, gradients, pulled = (positions - mean) / scale, (slopes - mean_slope) * scale, mean_slope * scale
    factor = np.empty((0, 0))
    if dense.size:
        covariance = _balanced(_shrunk(draws[:, dense]), _shrunk(gradients[:, dense]))
        root = np.linalg.cholesky(covariance)
        factor = np.ascontiguousarray(scale[dense, None] * root)
        draws[:, dense] = linalg.solve_triangular(root, draws[:, dense].T, lower=True).T
        gradients[:, dense], pulled[dense] = gradients[:, dense] @ root, root.T @ pulled[dense]
    draws[:, angles.places] = gradients[:, angles.places] = 0.0
    directions, stretches = _directions(draws, gradients) if dense.size < mean.size else _no_directions(mean.size)
    directions[:, angles.places] = 0.0
    shift = pulled + directions.T @ (((1.0 + stretches) ** 2 - 1.0) * (directions @ pulled))
    centre = mean + scale * shift
    if dense.size:
        centre[dense] = mean[dense] + factor @ shift[dense]
    centre[angles.places] = mean[angles.places]
    _narrow(factor, dense, angles)
    return FlatMap(centre, scale, dense, factor, directions, stretches, angles.places)


def _narrow(factor: Array, dense: NDArray[np.int64], angles: Angles) -> None:
    """Make no angle wider than its circle: where little is known of it, gradients suggest any scale."""
    for place, widest in zip(angles.places, angles.widest, strict=True):
        for row in np.flatnonzero(dense == place):
            factor[row] *= min(1.0, widest / float(np.linalg.norm(factor[row])))


def _scale(variance: Array, of_slopes: Array) -> Array:
    """Return scales (d,) from variances of draws and gradients: the larger the first, the smaller the second may be."""
    variance = np.clip(variance, 1.0 / WIDEST, WIDEST)
    least = SMALLEST / np.maximum(variance, 1.0)
    scale: Array = np.sqrt(np.sqrt(variance / np.clip(of_slopes, least, np.maximum(least, WIDEST))))
    return scale


def _no_directions(size: int) -> tuple[Array, Array]:
    return np.empty((0, size)), np.empty(0)


def _directions(draws: Array, gradients: Array) -> tuple[Array, Array]:
    """Find a few directions (r, d) that are wider or narrower than others, and by how much, less 1 (r,).

    They are looked for among those in which the draws, or the gradients, lie farthest out.
    """
    t, d = draws.shape
    if t < FEWEST_DRAWS:
        return _no_directions(d)
    few = min(MOST_DIRECTIONS, d, t // DRAWS_OF_A_DIRECTION)
    farthest = [linalg.svd(each, full_matrices=False)[2][:few] for each in (draws, gradients)]
    basis = linalg.orth(np.concatenate(farthest).T)  # (d, at most 2 few)
    widths, turned = linalg.eigh(_balanced(_shrunk(draws @ basis), _shrunk(gradients @ basis)))
    kept = np.flatnonzero(np.abs(np.log(widths)) > math.log(NOTICED))
    made = np.ascontiguousarray((basis @ turned[:, kept]).T)
    return made, np.sqrt(widths[kept]) - 1.0


def _shrunk(centred: Array) -> Array:
    """Return the covariance of draws (t, k) with something of the unit matrix."""
    t, k = centred.shape
    made: Array = (centred.T @ centred + PRIOR_DRAWS * np.eye(k)) / (t + PRIOR_DRAWS)
    return made


def _balanced(draws: Array, gradients: Array) -> Array:
    """Return the Σ with ``Σ B Σ = A``: the geometric mean of A and B⁻¹."""
    root = _symmetric_root(gradients)
    middle = _symmetric_root(root @ draws @ root)
    half = linalg.solve(root, middle, assume_a="pos")
    found = linalg.solve(root, half.T, assume_a="pos")
    made: Array = 0.5 * (found + found.T)
    return made


def _symmetric_root(matrix: Array) -> Array:
    """Return the symmetric square root of a positive definite matrix."""
    values, vectors = linalg.eigh(matrix)
    made: Array = (vectors * np.sqrt(np.maximum(values, SMALLEST))) @ vectors.T
    return made
