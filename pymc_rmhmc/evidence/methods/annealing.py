"""Annealed importance sampling: independent states are led from the reference to the posterior and carry weights.

The mean of the weights is an unbiased estimate of the evidence, over the reference's own, whatever ladder and kernels
there are, as long as they were chosen beforehand: a ladder that adapts is found by a run of its own, and frozen.

Of a latent Gaussian block the density at an inverse temperature β is ``[p(y given f) p(f)]^β q(f)^(1-β)`` with q the
reference, ``q ∝ p(f) exp(bᵀη - ½ ηᵀτ̃η)``. All kernels leave it as it is: in the flat metric, of all states at once; in
a metric that depends on the position; by elliptical slices; or by Hamiltonian Monte Carlo in f with a unit mass.

References
----------
Neal (2001), Annealed importance sampling.
Grosse, Ghahramani and Adams (2015), Sandwiching the marginal likelihood using bidirectional Monte Carlo, for bounds.
Paquet and Fraccaro (2016), eq. 4 and section 5, for kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from pymc_rmhmc.chains.reference import LatentReference, Reference
from pymc_rmhmc.errors import EvidenceError
from pymc_rmhmc.evidence.methods.bridge import BRIDGE, next_beta, reweighted, systematic, tune_steps
from pymc_rmhmc.evidence.methods.estimate import (
    FARTHER,
    FEWEST_DRAWS,
    Estimate,
    Progress,
    check_acceptance,
    log_mean,
    pareto_k,
    weight_ess,
)
from pymc_rmhmc.kernels.kernel import HMC
from pymc_rmhmc.kernels.walkers import Walkers
from pymc_rmhmc.latent.charts.site import FactorizedPrior, GaussianSites, SiteChart
from pymc_rmhmc.latent.target import LatentTarget, Likelihood

__all__ = [
    "EuclideanParticles", "FlatParticles", "KernelParticles", "Ladder", "LatentBridge", "Particles",
    "TemperedLikelihood", "adaptive_ladder", "anneal", "annealed_evidence", "first_step", "flat_particles",
    "geometric_betas",
]  # fmt: skip

type Array = NDArray[np.float64]

# Weights from one β to the next are worth this share of the draws, in a ladder that adapts.
SHARE = 0.97
# However near the reference is: where its tails are too light, states need moves to come to those of the posterior.
LONGEST = 0.05
# Moves that take states from the end of a run to the posterior, before they are led back.
SETTLING = 20
# The first step of a geometric ladder.
SMALLEST_BETA = 1e-4
MOST_RUNGS = 5000
# Weights that are worth fewer states say nothing.
FEWEST_WORTH = 2.0
LONGER = 'Give a longer ladder, such as Annealing(ladder="geometric", n_rungs=2000), or method="bridge".'

# From the density at a β, in a chart, to a kernel whose states stand in that chart's coordinates.
type KernelOf = Callable[[LatentTarget], HMC]


@dataclass(frozen=True)
class Ladder:
    """The β of a run (B + 1,), from 0 to 1, and how many steps a trajectory has at each in the flat metric (B + 1,)."""

    betas: Array
    n_steps: NDArray[np.int64]

    def steps_at(self, beta: float) -> int:
        """Return the number of steps of trajectories at a β."""
        return int(self.n_steps[np.searchsorted(self.betas, beta)])


def geometric_betas(n_rungs: int, first: float) -> Array:
    """Return 0 and so many β in geometric progression up to 1, of which the first is no more than another."""
    return np.concatenate(([0.0], np.geomspace(min(SMALLEST_BETA, first), 1.0, n_rungs)))


def first_step(reference: Reference, count: int, rng: np.random.Generator) -> float:
    """Return the β to which weights from the reference are worth nearly all of its draws."""
    return next_beta(reference.walkers(count, rng).phi, 0.0, SHARE)


def adaptive_ladder(
    reference: Reference, count: int, rng: np.random.Generator, betas: Array | None = None
) -> Ladder:
    """Find a ladder by a run that is not counted: weights from each β to the next are worth nearly all of the states.

    Of a ladder that is given the steps of trajectories alone are found.
    """
    walkers = reference.walkers(count, rng)
    found, steps = [0.0], [1]
    while found[-1] < 1.0:
        before = found[-1]
        if betas is None:
            beta = min(next_beta(walkers.phi, before, SHARE), before + LONGEST)
            beta = beta if beta < 1.0 - 1e-9 else 1.0
        else:
            beta = float(betas[len(found)])
        walkers.place(walkers.states[reweighted(walkers.phi, beta - before, count, rng)])
        # What is accepted varies with the states: a rung has no fewer steps than the one before.
        n_steps = tune_steps(walkers, beta, steps[-1], rng)
        BRIDGE.move(walkers, beta, n_steps, rng)
        found.append(beta)
        steps.append(n_steps)
        if len(found) > MOST_RUNGS:
            raise EvidenceError(
                f"A ladder of {MOST_RUNGS} steps has come to beta = {beta:.2g} alone: the posterior is too far from "
                'where annealing begins. Give sites="auto" in place of the prior, or method="bridge".'
            )
    return Ladder(np.array(found), np.array(steps))


def anneal(
    particles: Particles, betas: Array, rng: np.random.Generator, *, reverse: bool = False
) -> tuple[Array, Array]:
    """Lead states along a ladder (B + 1,); return the logarithms of their weights, and the mean acceptance at each β.

    They are at draws of the reference; in reverse, from β = 1 to 0, of the posterior. The weights are the same function
    of the path.
    """
    log_weights, acceptances = np.zeros(particles.phi.size), np.full(betas.size, np.nan)
    inner = range(1, betas.size)
    for t in reversed(inner) if reverse else inner:
        if reverse and t < betas.size - 1:
            acceptances[t] = float(particles.move(float(betas[t]), rng).mean())
        # A weight is that of the state before it moves.
        log_weights += (betas[t] - betas[t - 1]) * particles.phi
        if not reverse and t < betas.size - 1:
            acceptances[t] = float(particles.move(float(betas[t]), rng).mean())
    return log_weights, acceptances


def annealed_evidence(
    make: Callable[[int], Particles], betas: Array, replicates: int, rng: np.random.Generator, progress: Progress, *,
    bounds: bool = True, remedy: str = FARTHER, fewest: float = FEWEST_DRAWS, unseen: int = 0,
) -> Estimate:  # fmt: skip
    """Estimate ``log E[exp φ]`` by as many runs of replicates as the error needs, on a ladder chosen beforehand.

    Runs are of states that `make` puts at draws of the reference, with at least the fewest states in all. States are
    led back as well for an upper bound, if bounds are wanted. The remedy is what to do where too little is accepted;
    unseen is as in `log_mean`.

    Raises an `EvidenceError` if less than 0.4 of the moves at a β are accepted, or the weights are worth fewer than 2
    states.
    """
    log_weights, acceptances = np.empty(0), list[Array]()
    while True:
        begun = progress.seconds
        particles = make(replicates)
        found, accepted = anneal(particles, betas, rng)
        log_weights = np.concatenate((log_weights, found))
        acceptances.append(accepted)
        value, error = log_mean(log_weights, unseen)
        progress.note(value, error, f"annealing, {log_weights.size} states")
        if not np.isfinite(log_weights).any():
            raise EvidenceError(
                f"None of {log_weights.size} states has come to where the posterior has a density. {LONGER}"
            )
        if (progress.is_met(error) and log_weights.size >= fewest) or not progress.may_grow(begun, 1.0, 1.0):
            break
    acceptance = np.mean(acceptances, axis=0)
    check_acceptance(betas[1:-1], acceptance[1:-1], remedy)
    ess = weight_ess(log_weights)
    if ess < FEWEST_WORTH:
        raise EvidenceError(
            f"One state carries nearly all of the weight, so that the estimate cannot be trusted. {LONGER}"
        )
    diagnostics: dict[str, float | Array] = {
        "beta": betas, "acceptance": acceptance, "weight_ess": ess,
        "pareto_k": pareto_k(log_weights), "n_states": float(log_weights.size),
        "lower_bound": float(log_weights.mean()),
    }  # fmt: skip
    if bounds:
        progress.say("annealing in reverse")
        diagnostics["upper_bound"] = _upper_bound(particles, found, betas, rng)
    return Estimate(value, error, diagnostics, progress.history)


def _upper_bound(particles: Particles, log_weights: Array, betas: Array, rng: np.random.Generator) -> float:
    """Average the log weights of reverse annealing, from states that the weights and some moves have led to."""
    particles.take(systematic(log_weights, log_weights.size, rng))
    for _ in range(SETTLING):
        particles.move(1.0, rng)
    return float(anneal(particles, betas, rng, reverse=True)[0].mean())


def flat_particles(reference: Reference, ladder: Ladder, rng: np.random.Generator) -> Callable[[int], FlatParticles]:
    """Return what makes particles that move in the flat metric."""
    return lambda count: FlatParticles(reference.walkers(count, rng), ladder.steps_at)


class Particles(Protocol):
    """States at independent draws of the reference, which then move."""

    @property
    def phi(self) -> Array:
        """φ at each (count,)."""

    def move(self, beta: float, rng: np.random.Generator) -> Array:
        """Move each once at a β; return the probabilities of acceptance."""

    def take(self, chosen: NDArray[np.intp]) -> None:
        """Go on from copies of the chosen ones."""


class FlatParticles:
    """Particles that move in the flat metric, with a number of steps for each β."""

    def __init__(self, walkers: Walkers, n_steps: Callable[[float], int]) -> None:
        self.walkers, self._n_steps = walkers, n_steps

    @property
    def phi(self) -> Array:
        """See `Particles`."""
        return self.walkers.phi

    def move(self, beta: float, rng: np.random.Generator) -> Array:
        """See `Particles`."""
        return BRIDGE.move(self.walkers, beta, self._n_steps(beta), rng)

    def take(self, chosen: NDArray[np.intp]) -> None:
        """See `Particles`."""
        self.walkers.place(self.walkers.states[chosen])


class KernelParticles:
    """Particles of a latent block that a kernel of this package moves, one after another."""

    def __init__(
        self, reference: LatentReference, kernel_of: KernelOf, count: int, rng: np.random.Generator
    ) -> None:
        chart = reference.chart
        self._reference, self._kernel_of = reference, kernel_of
        self._bridge = LatentBridge(chart.prior, reference.likelihood, chart.sites)
        self._made: tuple[float, SiteChart, HMC] | None = None
        noise = rng.standard_normal((count, reference.size))
        self.values = np.array([chart.to_model(z) for z in noise])
        self.phi: Array = np.array([reference.target.at(z).log_density for z in noise])

    def move(self, beta: float, rng: np.random.Generator) -> Array:
        """See `Particles`."""
        if self._made is None or self._made[0] != beta:
            target = self._bridge.at(beta)
            self._made = beta, target.chart, self._kernel_of(target)
        _, chart, kernel = self._made
        acceptance = np.zeros(len(self.phi))
        for i, values in enumerate(self.values):
            outcome = kernel.step(kernel.hamiltonian.state(chart.from_model(values)), rng)
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

    The block's sites are its latent values.
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


class TemperedLikelihood:
    """A likelihood raised to a power β from 0 to 1, with everything that a `Likelihood` gives."""

    # Compiled trajectories are those of whole likelihoods.
    compiled_gradient: None = None

    def __init__(self, likelihood: Likelihood, beta: float) -> None:
        self.likelihood, self.beta = likelihood, beta

    @property
    def kinds(self) -> tuple[str, ...]:
        """The curvatures that it can give: a power changes none."""
        return self.likelihood.kinds

    def gradient(self, eta: Array) -> tuple[float, Array]:
        """Return ``β Σ ℓ`` and ``β ∂ℓ/∂η`` (n,)."""
        value, slope = self.likelihood.gradient(eta)
        return self.beta * value, self.beta * slope

    def gradient_rows(self, eta: Array) -> tuple[Array, Array]:
        """Return ``β Σ ℓ`` (m,) and ``β ∂ℓ/∂η`` (m, n) at many η (m, n)."""
        values, slopes = self.likelihood.gradient_rows(eta)
        return self.beta * values, self.beta * slopes

    def curvature(self, eta: Array, kind: str) -> tuple[float, Array, Array, Array]:
        """Return ``β Σ ℓ``, and ``β g``, ``β w`` and ``r = ∂ log w/∂η``, each (n,)."""
        value, slope, weight, log_slope = self.likelihood.curvature(eta, kind)
        return self.beta * value, self.beta * slope, self.beta * weight, log_slope

    def weight(self, eta: Array, kind: str) -> Array:
        """Return ``β w`` alone, (n,)."""
        return self.beta * self.likelihood.weight(eta, kind)


@dataclass(frozen=True, slots=True)
class LatentBridge:
    """The path from a Gaussian approximation q of a latent block, its prior times sites or alone, to its posterior.

    The prior stays whole, so that each density is a latent target again: its likelihood is raised to the power β, and
    its Gaussian factor is q's sites to the power ``1 - β``.
    """

    prior: FactorizedPrior
    likelihood: Likelihood
    sites: GaussianSites | None = None

    def at(self, beta: float) -> LatentTarget:
        """Return the density at β, in the chart that holds its Gaussian part."""
        return self.in_chart(beta, SiteChart(self.prior, self.gaussian_part(beta)))

    def in_chart(self, beta: float, chart: SiteChart) -> LatentTarget:
        """Return the density at β, in a chart with other sites."""
        likelihood = self.likelihood if beta == 1.0 else TemperedLikelihood(self.likelihood, beta)
        return LatentTarget(chart, likelihood, self.gaussian_part(beta))

    def gaussian_part(self, beta: float) -> GaussianSites | None:
        """Return Q's sites to the power ``1 - β``; None if there is nothing left of them."""
        return None if self.sites is None or beta == 1.0 else self.sites.scaled(1.0 - beta)
