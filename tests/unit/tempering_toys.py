"""Targets of which everything is known, with walkers that move all at once in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pymc_rmhmc.chains.reference import Reference
from pymc_rmhmc.evidence.methods.estimate import Progress
from pymc_rmhmc.evidence.methods.tempering import Tempering
from pymc_rmhmc.kernels.walkers import Walkers

# φ(z) = LINEAR z - ½ CURVED z² in each coordinate.
LINEAR, CURVED = 1.5, 3.0


class ArrayWalkers(Walkers):
    """Walkers of a function that takes all states at once."""

    def __init__(self, function: Callable, size: int, count: int, rng: np.random.Generator) -> None:
        self._function, self._size = function, size
        super().__init__(rng.standard_normal((count, size)))

    def _noise(self, count, rng):
        return rng.standard_normal((count, self._size))

    def _evaluate(self, states):
        self.n_gradients += len(states)
        return self._function(states)

    def _push(self, slopes):
        return slopes


class ArrayReference(Reference):
    """A reference of such walkers, which it keeps."""

    log_constant = 0.0

    def __init__(self, function: Callable, size: int, walkers: type = ArrayWalkers) -> None:
        self.function, self.size, self._walkers, self.made = function, size, walkers, []

    def walkers(self, count, rng):
        self.made.append(self._walkers(self.function, self.size, count, rng))
        return self.made[-1]

    def at(self, position):
        phi, slopes = self.function(position[None])
        return float(phi[0]), slopes[0]

    def values(self, states, rng):
        return states

    def residuals(self, values, rng):
        return self.function(np.array(list(values)))[0]


def normal_phi(states):
    """φ of a normal target, and its gradient."""
    return (LINEAR * states - 0.5 * CURVED * states**2).sum(axis=1), LINEAR - CURVED * states


def normal_moments(betas):
    """Mean and standard deviation of each coordinate at each temperature."""
    precision = 1.0 + CURVED * np.asarray(betas)
    return LINEAR * np.asarray(betas) / precision, 1.0 / np.sqrt(precision)


def normal_evidence(size: int) -> float:
    """``log E[exp φ]``."""
    return size * (0.5 * LINEAR**2 / (1.0 + CURVED) - 0.5 * math.log(1.0 + CURVED))


def two_modes(states, distance: float = 3.0, width: float = 0.05):
    """Φ of two narrow modes, far apart, with weights .8 and .2."""
    x = states[:, 0]
    scale = -math.log(width)
    modes = ((0.8, -distance), (0.2, distance))
    parts = np.array([math.log(weight) + scale - 0.5 * ((x - mode) / width) ** 2 for weight, mode in modes])
    total = np.logaddexp(*parts)
    pulls = -(x - np.array([[-distance], [distance]])) / width**2
    slope = (np.exp(parts - total) * pulls).sum(axis=0)
    return total + 0.5 * x**2, (slope + x)[:, None]


def run(function, size, *, seed=0, draws=400, tune=200, replicas=2, reference=None, keep_all=False, **options):
    """Temper a toy."""
    reference = reference or ArrayReference(function, size)
    tempering = Tempering(reference, replicas, np.random.default_rng(seed), **options)
    return tempering.run(tune, draws, Progress(math.inf), keep_all=keep_all)
