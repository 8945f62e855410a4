"""A bent density in three dimensions, none of them Gaussian together, and dense metrics that vary over it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pymc_rmhmc.errors import Failure, failure_of
from pymc_rmhmc.metrics import DenseField

SPREAD = 0.5


@dataclass(frozen=True)
class BananaPoint:
    position: np.ndarray
    log_density: float
    gradient: np.ndarray

    @property
    def failure(self) -> Failure:
        return failure_of(self.log_density, self.gradient)


class Banana:
    """``x₁ ~ N(0, 1)``, ``x₂ ~ N(x₁², SPREAD²)``, ``x₃ ~ N(0, e^(x₁/2))``, seen in other units: ``q = units ∘ x``."""

    def __init__(self, units=(1.0, 1.0, 1.0)):
        self.units = np.array(units)

    def at(self, position):
        x, y, z = position / self.units
        bent, shrunk = (y - x**2) / SPREAD**2, z * np.exp(-0.5 * x)
        value = -0.5 * (x**2 + SPREAD**2 * bent**2 + z * shrunk) - 0.25 * x
        gradient = np.array([-x + 2.0 * x * bent + 0.25 * z * shrunk - 0.25, -bent, -shrunk])
        return BananaPoint(position, value, gradient / self.units)

    def draw(self, rng):
        """An exact draw."""
        x, y, z = rng.standard_normal(3)
        return self.units * np.array([x, x**2 + SPREAD * y, np.exp(0.25 * x) * z])


class UnitField(DenseField):
    """In x, what a subclass says of x."""

    def matrix(self, point):
        units = self.density.units
        return self.inner(point.position / units) / np.outer(units, units)

    def pullback(self, point, bar):
        units = self.density.units
        return self.inner_pullback(point.position / units, bar / np.outer(units, units)) / units


class InformationField(UnitField):
    """The expected curvature of the density: it depends on x₁ alone."""

    def inner(self, x):
        slope = -2.0 * x[0] / SPREAD**2
        first = 1.125 + 4.0 * x[0] ** 2 / SPREAD**2
        return np.array([[first, slope, 0.0], [slope, SPREAD**-2, 0.0], [0.0, 0.0, np.exp(-0.5 * x[0])]])

    def inner_pullback(self, x, bar):
        along = bar[0, 0] * 8.0 * x[0] - 2.0 * (bar[0, 1] + bar[1, 0])
        return np.array([along / SPREAD**2 - 0.5 * np.exp(-0.5 * x[0]) * bar[2, 2], 0.0, 0.0])


class TwistedField(UnitField):
    """``diag(1 + x²) + v vᵀ`` with ``v = (tanh x₂, sin x₃, x₁)``: every number depends on another coordinate."""

    @staticmethod
    def vector(x):
        return np.array([np.tanh(x[1]), np.sin(x[2]), x[0]])

    def inner(self, x):
        return np.diag(1.0 + x**2) + np.outer(self.vector(x), self.vector(x))

    def inner_pullback(self, x, bar):
        first, second, third = (bar + bar.T) @ self.vector(x)
        of_vector = np.array([third, first / np.cosh(x[1]) ** 2, second * np.cos(x[2])])
        return 2.0 * x * bar.diagonal() + of_vector
