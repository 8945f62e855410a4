"""Moments of tilted densities: a normal density of each site's value times that site's likelihood.

The density of a site's value x is ``N(x; m, v) exp ℓ(x) / Z``. It is integrated by Gauss-Legendre rules on panels that
begin at its mode and grow geometrically, for all sites at once. A Gauss-Hermite rule on ``N(m, v)`` would miss a
likelihood that is narrow, or far from m.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import roots_legendre

from pymc_rmhmc.latent.target import Likelihood

__all__ = ["PointwiseLikelihood", "TiltedMoments", "tilted_moments"]

type Array = NDArray[np.float64]
type Flags = NDArray[np.bool_]

# With 8 nodes a panel as wide as two standard deviations of a normal density is exact to 1e-12.
NODES, WEIGHTS = roots_legendre(8)
# Where a panel is evaluated, from 0 to 1: at the nodes, and at its end.
PLACES = np.append(0.5 * (NODES + 1.0), 1.0)[:, None, None]
LOG_WEIGHTS = np.log(0.5 * WEIGHTS)[:, None, None]
GROWTH = 1.4
# The logarithm of the density falls by no more than this in the first panel.
FIRST_DROP = 1.0
# What a cubic through a panel's ends may miss there of the log density; more, where the density itself is small.
MISMATCH, LENIENCE = 0.1, 0.2
# A density e⁻⁴⁰ times that at the mode adds nothing.
DROP = 40.0
MAX_PANELS = 600
# Of the search for a mode, in units of the cavity's standard deviation.
LEAST_STEP, MAX_DOUBLINGS, MAX_HALVINGS = 1e-3, 60, 80
# A mode is known well enough when the log density cannot be higher than this elsewhere in its bracket.
MODE_TOLERANCE = 0.05
# Where the likelihood's own modes are looked for: further away they would have to be e⁷² times as likely.
REACH, N_PLACES = 12.0, 129
HIGHEST_ORDER = 8


class PointwiseLikelihood(Likelihood, Protocol):
    """A likelihood that gives its log density and slope by site."""

    def pointwise(self, eta: Array) -> tuple[Array, Array]:
        """Return ℓ and ``∂ℓ/∂η`` by site, for η of shape (n,) or (m, n)."""

    def restricted(self, sites: NDArray[np.int64]) -> PointwiseLikelihood:
        """Return the likelihood of some of the sites."""


@dataclass(frozen=True, slots=True)
class TiltedMoments:
    """Moments of tilted densities."""

    log_normalizer: Array  # ``log Z = log ∫ N(x; m, v) exp ℓ(x) dx``, (n,)
    mean: Array  # of x under the tilted density, (n,)
    variance: Array
    # Of orders 3 to 8 of ``(x - mean) / sqrt(variance)``, (6, n), where they were asked for.
    cumulants: Array | None = None


def tilted_moments(
    likelihood: PointwiseLikelihood, mean: Array, variance: Array, *, cumulants: bool = False
) -> TiltedMoments:
    """Return the moments of ``N(x; m, v) exp ℓ(x)`` with v > 0 for every site; of cumulants those of orders 3 to 8.

    They are not finite for a site whose log density is not finite where it is integrated.
    """
    density = _StandardDensity(likelihood, mean, np.sqrt(variance))
    with np.errstate(all="ignore"):
        anchors, highest = _anchors(density, concave="hessian" in likelihood.kinds)
        nodes, log_weights = _integrate(density, anchors, highest)
        found = _moments(nodes, np.exp(log_weights - highest), cumulants=cumulants)
    log_normalizer = highest + found.log_normalizer - 0.5 * math.log(2.0 * math.pi)
    # A site that no observation reads keeps its normal density, to the last digit.
    read = density.is_read
    return TiltedMoments(
        np.where(read, log_normalizer, 0.0),
        np.where(read, mean + density.scale * found.mean, mean),
        np.where(read, variance * found.variance, variance),
        None if found.cumulants is None else np.where(read, found.cumulants, 0.0),
    )


class _StandardDensity:
    """``ℓ(m + s u) - ½u²`` as a function of u, and its slope; `is_read` tells which sites' ℓ was ever anything but 0.

    Where ℓ is no number the density is 0, and its slope leads back to u = 0.
    """

    def __init__(self, likelihood: PointwiseLikelihood, mean: Array, scale: Array) -> None:
        self._likelihood, self._mean, self.scale = likelihood, mean, scale
        self.is_read: Flags = np.zeros(mean.size, dtype=bool)

    def parts(self, u: Array) -> tuple[Array, Array]:
        """Return ℓ and its slope by u, in the shape of `u`, (..., n)."""
        eta = (self._mean + self.scale * u).reshape(-1, self._mean.size)
        log_density, slope = self._likelihood.pointwise(eta)
        self.is_read |= ((log_density != 0.0) | (slope != 0.0)).any(axis=0)
        return log_density.reshape(u.shape), self.scale * slope.reshape(u.shape)

    def __call__(self, u: Array) -> tuple[Array, Array]:
        """Return the log density without its constants, and its slope, in the shape of `u`, (..., n)."""
        log_density, slope = self.parts(u)
        value = log_density - 0.5 * u * u
        slope = np.where(np.isnan(slope), -np.sign(u) * np.inf, slope - u)
        return np.where(value < np.inf, value, -np.inf), slope

    def slope(self, u: Array) -> Array:
        """Return the slope alone."""
        return self(u)[1]

    def likelihood_slope(self, u: Array) -> Array:
        """Return the slope of ℓ alone."""
        return self.parts(u)[1]


@dataclass(frozen=True, slots=True)
class _Arms:
    """The half-lines over which each site's density is integrated, each (a, n): from where, which way and how far."""

    origin: Array
    direction: Array
    length: Array


def _anchors(density: _StandardDensity, *, concave: bool) -> tuple[_Arms, Array]:
    """Return half-lines from the modes of the tilted densities, and the highest log density at these, (n,).

    A density that is not log-concave can have further modes, where the likelihood has its own. Half-lines from
    neighbouring anchors meet in the middle.
    """
    first = _mode(density)
    anchors = first[None] if concave else np.concatenate((first[None], _likelihood_modes(density)))
    heights = density(anchors)[0]
    # What adds nothing is put where the first is: then nothing is between the two.
    anchors = np.sort(np.where(heights > heights[0] - DROP, anchors, first), axis=0)
    gaps = np.pad(0.5 * np.diff(anchors, axis=0), ((1, 1), (0, 0)), constant_values=np.inf)
    towards = np.ones_like(anchors)
    arms = _Arms(
        np.concatenate((anchors, anchors)),
        np.concatenate((-towards, towards)),
        np.concatenate((gaps[:-1], gaps[1:])),
    )
    return arms, heights.max(axis=0)


def _mode(density: _StandardDensity) -> Array:
    """Find a mode on the side to which the slope points at u = 0, (n,), by doubling and bisection."""
    near = np.zeros_like(density.scale)
    at_near = density.slope(near)
    direction = np.sign(at_near)
    far = direction * np.clip(np.abs(at_near), LEAST_STEP, 1.0)
    for _ in range(MAX_DOUBLINGS):
        rises = direction * density.slope(far) > 0.0
        if not rises.any():
            break
        near, far = np.where(rises, far, near), np.where(rises, 2.0 * far, far)
    return _bisected(density.slope, near, far)


def _likelihood_modes(density: _StandardDensity) -> Array:
    """Find the likelihood's modes within `REACH`, (m, n): its slope changes from above 0 to below. 0 fills the rest."""
    places = np.linspace(-REACH, REACH, N_PLACES)
    signs = np.sign(density.likelihood_slope(np.repeat(places[:, None], density.scale.size, axis=1)))
    is_mode = (signs[:-1] > 0.0) & (signs[1:] <= 0.0)
    n_modes = int(is_mode.sum(axis=0).max(initial=0))
    cells = np.argsort(~is_mode, axis=0, kind="stable")[:n_modes]
    found = np.take_along_axis(is_mode, cells, axis=0)
    modes = _bisected(density.likelihood_slope, places[cells], places[cells + 1])
    return np.where(found, modes, 0.0)


def _bisected(slope: Callable[[Array], Array], near: Array, far: Array) -> Array:
    """Find a maximum between two places by bisection; the function rises from the first, towards the second."""
    direction, at_near, at_far = np.sign(far - near), slope(near), slope(far)
    for _ in range(MAX_HALVINGS):
        steepest = np.maximum(np.abs(at_near), np.abs(at_far))
        if not (steepest * np.abs(far - near) > MODE_TOLERANCE).any():
            break
        middle = 0.5 * (near + far)
        at_middle = slope(middle)
        rises = direction * at_middle > 0.0
        near, at_near = np.where(rises, middle, near), np.where(rises, at_middle, at_near)
        far, at_far = np.where(rises, far, middle), np.where(rises, at_far, at_middle)
    return np.asarray(0.5 * (near + far))


def _integrate(density: _StandardDensity, arms: _Arms, highest: Array) -> tuple[Array, Array]:
    """Return nodes and the logarithms of their weights times the density, each (N, n); -inf where a node is not used.

    A panel is halved until a cubic through its ends describes the log density, and the next is `GROWTH` times as wide.
    """
    left, (value, slope) = np.zeros_like(arms.origin), density(arms.origin)
    width = _first_widths(density, arms, value)
    active = arms.length > 0.0
    nodes, log_weights = [], []
    for n_panels in range(MAX_PANELS):
        if not active.any():
            break
        width = np.minimum(width, arms.length - left)
        u = arms.origin + arms.direction * (left + width * np.where(active, PLACES, 0.0))
        values, slopes = density(u)
        rise = 0.5 * width * arms.direction * (slope + slopes[-1])
        allowed = MISMATCH * np.exp(LENIENCE * (highest - value))
        fits = np.abs(values[-1] - value - rise) <= allowed
        kept = active & (fits | (width <= np.spacing(np.abs(u[-1]))))
        nodes.append(u[:-1].reshape(-1, highest.size))
        weights = np.where(kept, values[:-1] + LOG_WEIGHTS + np.log(width), -np.inf)
        log_weights.append(weights.reshape(-1, highest.size))
        left, value = np.where(kept, left + width, left), np.where(kept, values[-1], value)
        slope = np.where(kept, slopes[-1], slope)
        # The second panel is as wide as the first.
        width *= np.where(kept, GROWTH if n_panels else 1.0, 0.5)
        active &= ~kept | ((value > highest - DROP) & (left < arms.length))
    return np.concatenate(nodes), np.concatenate(log_weights)


def _first_widths(density: _StandardDensity, arms: _Arms, origin: Array) -> Array:
    """Find widths (a, n) that change the log density by less than `FIRST_DROP`, equal on both sides of an anchor.

    On the side where it is flat at first it can fall off at a distance that the other side tells.
    """
    width = np.ones_like(arms.origin)
    for _ in range(MAX_HALVINGS):
        change = np.abs(density(arms.origin + arms.direction * width)[0] - origin)
        wide = ~(change <= FIRST_DROP) & (width > np.spacing(np.abs(arms.origin)))
        if not wide.any():
            break
        width = np.where(wide, 0.5 * width, width)
    shared = (arms.origin[:, None] == arms.origin) & (arms.length > 0.0)
    narrowest = np.where(shared, width, np.inf).min(axis=1)
    return np.asarray(np.minimum(narrowest, width))


def _moments(u: Array, weights: Array, *, cumulants: bool) -> TiltedMoments:
    """Return the moments of weighted nodes, (N, n) each; of the normalizer the logarithm of the sum of weights."""
    total = weights.sum(axis=0)
    weights = weights / total
    # About one of the nodes, and then about the mean, so that digits are kept.
    mean = np.einsum("ij,ij->j", weights, u)
    mean += np.einsum("ij,ij->j", weights, u - mean)
    centred = u - mean
    variance = np.einsum("ij,ij,ij->j", weights, centred, centred)
    standard = centred / np.sqrt(variance)
    found = _cumulants(standard, weights) if cumulants else None
    return TiltedMoments(np.log(total), mean, variance, found)


def _cumulants(standard: Array, weights: Array) -> Array:
    """Compute cumulants of orders 3 to 8 of standardised nodes, (6, n), from the means of their Hermite polynomials."""
    before, polynomial, means = np.ones_like(standard), standard, []
    for order in range(1, HIGHEST_ORDER):
        before, polynomial = polynomial, standard * polynomial - order * before
        means.append(np.einsum("ij,ij->j", weights, polynomial))
    _, a3, a4, a5, a6, a7, a8 = means
    return np.stack((a3, a4, a5, a6 - 10.0 * a3**2, a7 - 35.0 * a3 * a4, a8 - 56.0 * a3 * a5 - 35.0 * a4**2))
