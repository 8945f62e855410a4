"""Neal's funnel with its expected curvature as the metric, and a normal density in one dimension with a bent one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_rmhmc.metrics import DenseField
from tests.unit.banana import BananaPoint


@dataclass(frozen=True)
class Funnel:
    """``v ~ N(0, spread²)``, and so many others ``N(0, eᵛ)``; a position is (v, others)."""

    size: int = 10
    spread: float = 1.0

    def at(self, position):
        v, others = position[0], position[1:]
        shrunk = others * np.exp(-v)
        square = others @ shrunk
        value = -0.5 * (v**2 / self.spread**2 + square + self.size * v)
        gradient = np.append(-v / self.spread**2 + 0.5 * (square - self.size), -shrunk)
        return BananaPoint(position, value, gradient)

    def draw(self, rng):
        """An exact draw."""
        v = self.spread * rng.standard_normal()
        return np.append(v, np.exp(0.5 * v) * rng.standard_normal(self.size))


class FunnelField(DenseField):
    """``diag(1/spread² + size/2, e⁻ᵛ, ...)``."""

    def matrix(self, point):
        funnel = self.density
        others = np.full(funnel.size, np.exp(-point.position[0]))
        return np.diag(np.append(1.0 / funnel.spread**2 + 0.5 * funnel.size, others))

    def pullback(self, point, bar):
        made = np.zeros_like(point.position)
        made[0] = -np.exp(-point.position[0]) * bar.diagonal()[1:].sum()
        return made


class Normal:
    """A standard normal density in one dimension."""

    size = 0

    def at(self, position):
        return BananaPoint(position, -0.5 * float(position @ position), -position)

    def draw(self, rng):
        """An exact draw."""
        return rng.standard_normal(1)


class BentField(DenseField):
    """``1 + q²``: ill suited to a normal density, so that it matters much."""

    def matrix(self, point):
        return np.diag(1.0 + point.position**2)

    def pullback(self, point, bar):
        return 2.0 * point.position * bar.diagonal()
