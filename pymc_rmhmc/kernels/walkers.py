"""Many states that move at once under ``exp(β φ) N(z; 0, I)``, each with a β of its own if need be.

A step is half a kick by ``β ∇φ``, the exact rotation of (z, p), and half a kick. Of latent Gaussian values a kick of
all walkers is one product of two matrices, and a trajectory's energy error follows from its kicks: the rotation
conserves ``½ |z|² + ½ |p|²``, which is never computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.dynamics.hamiltonian import Density, DensityPoint
from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.target import LatentTarget
from pymc_rmhmc.linalg.cholesky import multiply_lower

__all__ = ["ResidualWalkers", "SiteWalkers", "Walkers"]

type Array = NDArray[np.float64]


class Walkers(ABC):
    """States, and φ at each.

    Attributes
    ----------
    states : (walkers, m) array
        Where they stand, in coordinates of the subclass's own.
    phi : (walkers,) array
        φ there; -inf where the density is 0 or cannot be computed.
    n_gradients : int
        How many gradients of φ have been computed, over all walkers.
    """

    def __init__(self, states: Array) -> None:
        self.n_gradients = 0
        self.place(states)

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.states)

    def place(self, states: Array) -> None:
        """Put all of them, or others in their place, at given states (walkers, m)."""
        self.states = np.ascontiguousarray(states)
        self.phi, self._slopes = self._evaluate(self.states)
        self._forces: Array | None = None

    def redraw(self, rng: np.random.Generator, which: NDArray[np.intp] | slice = slice(None)) -> None:
        """Draw some of them from the reference anew."""
        drawn = self._noise(len(self.phi[which]), rng)
        self.states[which] = drawn
        self.phi[which], self._slopes[which] = self._evaluate(drawn)
        self._forces = None

    def swap(self, first: NDArray[np.intp], second: NDArray[np.intp]) -> None:
        """Let pairs of walkers change places."""
        there, back = np.concatenate((first, second)), np.concatenate((second, first))
        for held in (self.states, self.phi, self._slopes, self._forces):
            if held is not None:
                held[there] = held[back]

    def move(self, beta: float | Array, step_size: float | Array, n_steps: int, rng: np.random.Generator) -> Array:
        """Make one trajectory of every walker, and accept its end or not.

        Return their probabilities of acceptance, (walkers,): 0 where a trajectory failed. β and the step size are those
        of all, or of each.
        """
        count = self.count
        betas = np.broadcast_to(np.asarray(beta, float), (count,))
        steps = np.broadcast_to(np.asarray(step_size, float), (count,))
        cosine, sine = np.cos(steps)[:, None], np.sin(steps)[:, None]
        states, phi, slopes = self.states, self.phi, self._slopes
        before = self._push(slopes) if self._forces is None else self._forces
        momenta, forces, gained = self._noise(count, rng), before, np.zeros(count)
        with np.errstate(all="ignore"):  # what leaves the numbers is not accepted
            for step in range(n_steps + 1):
                times = (0.5 if step in (0, n_steps) else 1.0) * steps * betas
                gained += times * _products(slopes, momenta) + 0.5 * times**2 * _products(slopes, forces)
                momenta = momenta + times[:, None] * forces
                if step < n_steps:
                    states, momenta = cosine * states + sine * momenta, cosine * momenta - sine * states
                    phi, slopes = self._evaluate(states)
                    forces = self._push(slopes)
            error = gained - betas * (phi - self.phi)
            acceptance = np.exp(-np.maximum(np.where(np.isfinite(error), error, np.inf), 0.0))
        accepted = rng.random(count) < acceptance
        self.states, self._slopes, self._forces = (
            np.where(accepted[:, None], new, old)
            for new, old in ((states, self.states), (slopes, self._slopes), (forces, before))
        )
        self.phi = np.where(accepted, phi, self.phi)
        return acceptance

    @abstractmethod
    def _noise(self, count: int, rng: np.random.Generator) -> Array:
        """Return so many draws of the reference, (count, m): states, or momenta."""

    @abstractmethod
    def _evaluate(self, states: Array) -> tuple[Array, Array]:
        """Return φ (count,) and its slopes (count, m), finite even where φ is not."""

    @abstractmethod
    def _push(self, slopes: Array) -> Array:
        """Return what a kick of time 1 adds to momenta (count, m)."""


def _products(first: Array, second: Array) -> Array:
    """Return the inner product of each row with its fellow."""
    products: Array = np.einsum("ij,ij->i", first, second)
    return products


class ResidualWalkers(Walkers):
    """Walkers of any density φ, in z itself; it is evaluated at one after another."""

    def __init__(self, residual: Density[DensityPoint], size: int, count: int, rng: np.random.Generator) -> None:
        self._residual, self._size = residual, size
        super().__init__(rng.standard_normal((count, size)))

    def _noise(self, count: int, rng: np.random.Generator) -> Array:
        return rng.standard_normal((count, self._size))

    def _evaluate(self, states: Array) -> tuple[Array, Array]:
        phi, slopes = np.full(len(states), -math.inf), np.zeros_like(states)
        self.n_gradients += len(states)
        for i, position in enumerate(states):
            if not np.isfinite(position).all():
                continue
            point = self._residual.at(position)
            if point.failure == Failure.NONE:
                phi[i], slopes[i] = point.log_density, point.gradient
        return phi, slopes

    def _push(self, slopes: Array) -> Array:
        return slopes


class SiteWalkers(Walkers):
    """Walkers of a latent Gaussian block, by their sites' displacement ``Φ z`` (n,).

    In these coordinates momenta have the covariance ``S = ΦΦᵀ``, a kick is ``β S ∂φ/∂η``, and no product with Φ is
    needed but to draw momenta.
    """

    def __init__(self, target: LatentTarget, count: int, rng: np.random.Generator) -> None:
        self._target, predictor = target, target.chart.predictor
        self._offset, self._gram = predictor.offset, predictor.gram
        self._matrix, self._triangular = predictor.matrix, predictor.triangular
        super().__init__(self._noise(count, rng))

    @property
    def sites(self) -> Array:
        """The sites η (walkers, n)."""
        return self._offset + self.states

    def _noise(self, count: int, rng: np.random.Generator) -> Array:
        noise = rng.standard_normal((count, self._matrix.shape[1])).T
        return (multiply_lower(self._matrix, noise) if self._triangular else self._matrix @ noise).T

    def _evaluate(self, states: Array) -> tuple[Array, Array]:
        self.n_gradients += len(states)
        phi, slopes = self._target.residual_rows(self._offset + states)
        lost = ~(np.isfinite(phi) & np.isfinite(slopes).all(axis=1))
        if lost.any():
            phi[lost], slopes[lost] = -math.inf, 0.0
        return phi, slopes

    def _push(self, slopes: Array) -> Array:
        return slopes @ self._gram
