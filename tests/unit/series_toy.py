"""Series of the first order with two hyperparameters and a level, and the dense processes that are the same."""

from __future__ import annotations

import numpy as np

from tests.unit.process_toy import N, ToyProcess

PAIRS = np.array([[i, j] for i in range(3) for j in range(i, 3)])
LATER = np.arange(N) > 0
SERIES = ("stationary", "constant", "walk")


def made_of(name: str, theta):
    """a, s and ρ of θ = (log σ, b, c), for complex θ too."""
    a, b, c = theta
    first, width = ~LATER, np.exp(a)
    if name == "stationary":
        return 0.0 * LATER + 0.0 * a, width * (LATER + first / np.sqrt(1.0 - b**2)), b
    if name == "constant":
        return c * LATER + 0.4 * first, width * LATER + 0.7 * first, b
    return c * LATER + 0.4 * first, width * (1.0 + 0.1 * np.arange(N)) * LATER + np.exp(b) * first, 1.0 + 0.0 * b


class ToySeries(ToyProcess):
    """θ = (log σ, b, c), with c in the likelihood too; see `ToyProcess`."""

    is_series, moving, pairs = True, np.arange(3), PAIRS

    def __init__(self, name: str, *, whitened: bool = False) -> None:
        super().__init__(whitened=whitened)
        self.name = name

    def values(self, theta):
        """What the prior is made of."""
        return made_of(self.name, theta)

    def prior(self, theta):
        return (*map(np.asarray, self.values(theta)), *self.slopes(theta))

    def slopes(self, theta):
        """By complex steps, which round nothing off."""
        found = [self.values(theta + 1e-20j * e) for e in np.eye(3)]
        return [np.stack([np.imag(each[i]) / 1e-20 for each in found]) for i in range(len(found[0]))]

    def prior_curvature(self, theta, h=1e-5):
        rows = [(self.slopes(theta + e), self.slopes(theta - e)) for e in h * np.eye(3)]
        found = [np.stack([(up[i] - down[i]) / (2.0 * h) for up, down in rows]) for i in range(len(rows[0][0]))]
        return [each[PAIRS[:, 0], PAIRS[:, 1]] for each in found]


class DenseSeries(ToySeries):
    """The same with m and K, as any process has them."""

    is_series = False

    def values(self, theta):
        level, deviation, rho = made_of(self.name, theta)
        inverse = np.linalg.inv(np.eye(N) - rho * np.eye(N, k=-1))
        root = inverse * deviation
        return inverse @ level, root @ root.T


def place(seed: int = 0) -> np.ndarray:
    """Values and θ."""
    rng = np.random.default_rng(seed)
    return np.concatenate((0.7 * rng.standard_normal(N), [-0.4, 0.6, 0.3] + 0.1 * rng.standard_normal(3)))
