"""What annealing moves along a ladder of β: many states, and a kernel for each β.

Of a latent Gaussian block the density at β is ``[p(y given f) p(f)]^β q(f)^(1-β)`` with q the reference. All kernels
leave the same densities as they are: in the flat metric all states at once, in a metric that depends on the position,
by elliptical slices, or by Hamiltonian Monte Carlo in f itself with a unit mass.

References
----------
Paquet and Fraccaro (2016), eq. 4 and section 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from pymc_rmhmc.chains.reference import LatentReference
from pymc_rmhmc.evidence.methods.bridge import BRIDGE, BridgePolicy
from pymc_rmhmc.evidence.methods.bridged_target import LatentBridge
from pymc_rmhmc.kernels.walkers import Walkers
from pymc_rmhmc.latent.target import LatentTarget

__all__ = ["EuclideanParticles", "FlatParticles", "KernelParticles", "Particles"]

type Array = NDArray[np.float64]
# From the density at a β, in a chart: a Hamiltonian whose states stand in that chart's coordinates, and a kernel.
type KernelOf = Callable[[LatentTarget], tuple[Any, Any]]


class Particles(Protocol):
    """States at independent draws of the reference, which then move.

    Attributes
    ----------
    phi : (count,) array
        φ at each.
    """

    @property
    def phi(self) -> Array:
        """See the class."""

    def move(self, beta: float, rng: np.random.Generator) -> Array:
        """Move each once at a β; return the probabilities of acceptance."""

    def take(self, chosen: NDArray[np.intp]) -> None:
        """Go on from copies of the chosen ones."""


class FlatParticles:
    """Particles that move in the flat metric.

    Parameters
    ----------
    walkers : Walkers
        The states.
    n_steps : callable
        From β to the number of steps of a trajectory.
    policy : BridgePolicy
        Path and jitter.
    """

    def __init__(self, walkers: Walkers, n_steps: Callable[[float], int], policy: BridgePolicy = BRIDGE) -> None:
        self.walkers, self._n_steps, self._policy = walkers, n_steps, policy

    @property
    def phi(self) -> Array:
        """See `Particles`."""
        return self.walkers.phi

    def move(self, beta: float, rng: np.random.Generator) -> Array:
        """See `Particles`."""
        n_steps = self._n_steps(beta)
        return self.walkers.move(beta, self._policy.drawn_path(rng) / n_steps, n_steps, rng)

    def take(self, chosen: NDArray[np.intp]) -> None:
        """See `Particles`."""
        self.walkers.place(self.walkers.states[chosen])


class KernelParticles:
    """Particles of a latent block that a kernel of this package moves, one after another.

    Parameters
    ----------
    reference : LatentReference
        Q.
    kernel_of : callable
        From the density at a β to a Hamiltonian and a kernel.
    count : int
        How many.
    rng : numpy.random.Generator
        For where they stand at first.
    """

    def __init__(
        self, reference: LatentReference, kernel_of: KernelOf, count: int, rng: np.random.Generator
    ) -> None:
        chart = reference.chart
        self._reference, self._kernel_of = reference, kernel_of
        self._bridge = LatentBridge(chart.prior, reference.likelihood, chart.sites)
        self._made: tuple[float, Any] = (math.nan, None)
        noise = rng.standard_normal((count, reference.size))
        self.values = np.array([chart.to_model(z) for z in noise])
        self.phi: Array = np.array([reference.target.at(z).log_density for z in noise])

    def move(self, beta: float, rng: np.random.Generator) -> Array:
        """See `Particles`."""
        if self._made[0] != beta:
            target = self._bridge.at(beta)
            self._made = beta, (target.chart, *self._kernel_of(target))
        chart, hamiltonian, kernel = self._made[1]
        acceptance = np.zeros(len(self.phi))
        for i, values in enumerate(self.values):
            outcome = kernel.step(hamiltonian.state(chart.from_model(values)), rng)
            acceptance[i] = outcome.acceptance
            if outcome.accepted:
                point = outcome.state.density_point
                self.values[i] = chart.to_model(outcome.state.position, point.eta)
                self.phi[i] = self._reference.target.evaluate(point.eta)[1]
        return acceptance

    def take(self, chosen: NDArray[np.intp]) -> None:
        """See `Particles`."""
        self.values, self.phi = self.values[chosen], self.phi[chosen]


class EuclideanParticles:
    """Particles of a latent block that move by HMC in f itself, with unit masses: what the others are held against.

    Parameters
    ----------
    reference : LatentReference
        Q; of a block whose sites are its latent values.
    step_size, n_steps : float, int
        Of the leapfrog.
    count : int
        How many.
    rng : numpy.random.Generator
        For where they stand at first.
    """

    def __init__(
        self, reference: LatentReference, step_size: float, n_steps: int, count: int, rng: np.random.Generator
    ) -> None:
        self._reference, self._step_size, self._n_steps = reference, step_size, n_steps
        self._factor, self._mean = reference.chart.prior.predictor.matrix, reference.chart.prior.predictor.offset
        predictor = reference.chart.predictor
        self._sites = np.array([predictor.apply(z) for z in rng.standard_normal((count, reference.size))])
        self.phi, self._prior, self._slopes = self._evaluate(self._sites)

    def move(self, beta: float, rng: np.random.Generator) -> Array:
        """See `Particles`."""
        size, momenta = self._step_size, rng.standard_normal(self._sites.shape)
        sites, phi, prior, slopes = self._sites, self.phi, self._prior, self._slopes
        before = beta * phi + prior - 0.5 * np.einsum("ij,ij->i", momenta, momenta)
        with np.errstate(all="ignore"):
            momenta = momenta + 0.5 * size * (beta * slopes[0] + slopes[1])
            for step in range(self._n_steps):
                sites = sites + size * momenta
                phi, prior, slopes = self._evaluate(sites)
                share = 0.5 if step == self._n_steps - 1 else 1.0
                momenta = momenta + share * size * (beta * slopes[0] + slopes[1])
            gain = beta * phi + prior - 0.5 * np.einsum("ij,ij->i", momenta, momenta) - before
            acceptance = np.exp(np.minimum(np.where(np.isfinite(gain), gain, -np.inf), 0.0))
        accepted = rng.random(len(phi)) < acceptance
        self._sites = np.where(accepted[:, None], sites, self._sites)
        self.phi, self._prior = np.where(accepted, phi, self.phi), np.where(accepted, prior, self._prior)
        self._slopes = np.where(accepted[None, :, None], slopes, self._slopes)
        return acceptance

    def take(self, chosen: NDArray[np.intp]) -> None:
        """See `Particles`."""
        self._sites, self.phi, self._prior = self._sites[chosen], self.phi[chosen], self._prior[chosen]
        self._slopes = self._slopes[:, chosen]

    def _evaluate(self, sites: Array) -> tuple[Array, Array, Array]:
        """Return φ (count,), ``log q`` up to a constant (count,), and both gradients (2, count, n)."""
        gaussian = self._reference.chart.sites
        whitened = solve_triangular(self._factor, (sites - self._mean).T, lower=True)
        prior = -0.5 * np.einsum("ij,ij->j", whitened, whitened)
        slope = -solve_triangular(self._factor, whitened, lower=True, trans=1).T
        if gaussian is not None:
            of_sites = gaussian.gradient(sites)
            prior = prior + 0.5 * np.einsum("ij,ij->i", gaussian.linear + of_sites, sites)
            slope = slope + of_sites
        phi, residual = self._reference.target.residual_rows(sites)
        return phi, prior, np.array([residual, slope])
