"""References with heavier tails than the normal's, where a posterior's are.

Importance weights from a normal to a scale's posterior, whose logarithm has an exponential tail, have no variance. In
coordinates ``z = sinh(t asinh u) / t`` a standard normal u has the tails ``exp(-½ (2 t |z|)^(2/t) / 4)``, and near 0
nothing is changed. φ is then that of u.

References
----------
Jones and Pewsey (2009), Sinh-arcsinh distributions, section 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.evidence.estimate import pareto_k
from pymc_rmhmc.evidence.reference import Reference, ResidualReference
from pymc_rmhmc.evidence.walkers import ResidualWalkers, Walkers

__all__ = ["TailedReference", "with_fitting_tails"]

type Array = NDArray[np.float64]

# Tails that are tried, and draws for each.
TAILS, TRIED = (1.0, 1.2, 1.4, 1.7, 2.0), 1000
# Where there are more coordinates with tails of their own, changing all of them costs more than it gains.
MOST = 30


@dataclass(slots=True)
class TailedPoint:
    """φ and its gradient at u, and the point that stands for z."""

    log_density: float
    gradient: Array
    failure: Failure
    inner: Any


class TailedDensity:
    """The residual of u.

    Parameters
    ----------
    residual : Density
        That of z.
    tail : (d,) array
        T of each coordinate; 1 changes nothing.
    """

    def __init__(self, residual: Any, tail: Array) -> None:
        self._residual, self._tail = residual, tail

    def to_z(self, u: Array) -> Array:
        """Return z of u."""
        return np.asarray(np.sinh(self._tail * np.arcsinh(u)) / self._tail)

    def to_u(self, z: Array) -> Array:
        """Return u of z."""
        return np.asarray(np.sinh(np.arcsinh(self._tail * z) / self._tail))

    def shift(self, u: Array, z: Array) -> float:
        """Return by how much φ of u is more than φ of z."""
        volume = np.log(np.cosh(self._tail * np.arcsinh(u))) - 0.5 * np.log1p(u * u)
        return float(volume.sum() + 0.5 * (u @ u - z @ z))

    def at(self, position: Array) -> TailedPoint:
        """Evaluate at u (d,)."""
        u, z = position, self.to_z(position)
        point = self._residual.at(z)
        if point.failure != Failure.NONE:
            return TailedPoint(np.nan, np.zeros_like(u), point.failure, point)
        angle, root = self._tail * np.arcsinh(u), np.sqrt(1.0 + u * u)
        slope = np.cosh(angle) / root
        gradient = (point.gradient - z) * slope + self._tail * np.tanh(angle) / root - u / root**2 + u
        return TailedPoint(point.log_density + self.shift(u, z), gradient, Failure.NONE, point)


class TailedReference(Reference):
    """A whole model's reference with other tails.

    Parameters
    ----------
    inner : ResidualReference
        The normal one.
    tail : (d,) array
        As `TailedDensity` has it.
    """

    def __init__(self, inner: ResidualReference, tail: Array) -> None:
        self.size, self.log_constant = inner.size, inner.log_constant
        self._inner, self.density = inner, TailedDensity(inner.residual, tail)

    def walkers(self, count: int, rng: np.random.Generator) -> ResidualWalkers:
        """See `Reference`."""
        return ResidualWalkers(self.density, self.size, count, rng, lambda point: self._inner.let_go(point.inner))

    def at(self, position: Array) -> tuple[float, Array]:
        """See `Reference`."""
        point = self.density.at(position)
        return point.log_density, point.gradient

    def values(self, walkers: Walkers, rng: np.random.Generator) -> Array:
        """See `Reference`."""
        return np.array([self._inner.values_at(self.density.at(u).inner) for u in walkers.states])

    def residuals(self, values: Iterable[Array], rng: np.random.Generator) -> Array:
        """See `Reference`."""
        return np.array([self._shifted(self._inner.point_of(each, rng)) for each in values])

    def _shifted(self, point: Any) -> float:
        if point is None:
            return -np.inf
        u = self.density.to_u(point.position)
        return float(point.log_density) + self.density.shift(u, point.position)


def with_fitting_tails(reference: ResidualReference, rng: np.random.Generator) -> ResidualReference | TailedReference:
    """Return a reference whose importance weights have the lightest tail among a few."""
    which = reference.own_tails
    if which.size > MOST or not which.size:
        return reference
    found: list[tuple[float, float, ResidualReference | TailedReference]] = []
    for t in TAILS:
        tail = np.ones(reference.size)
        tail[which] = t
        made = reference if t == 1.0 else TailedReference(reference, tail)
        found.append((pareto_k(made.walkers(TRIED, rng).phi), t, made))
    return min(found)[2]
