"""Draws that are exactly from a small target, kernels to be tested on them, and the test itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from pymc_rmhmc.dynamics.hamiltonian import (
    GaussianHamiltonian,
    RiemannianHamiltonian,
    SiteHamiltonian,
    SpannedHamiltonian,
)
from pymc_rmhmc.evidence.methods.annealing import LatentBridge
from pymc_rmhmc.kernels.trajectories import transition
from pymc_rmhmc.latent.charts import GaussianSites, SiteChart
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.latent.target import LatentTarget, RoundedTarget
from pymc_rmhmc.metrics import LatentField
from tests.statistical.ranks import Looks
from tests.unit.toys import LIKELIHOODS, PRIORS, ToyPrior, coarse_gram, whole_likelihood, wide_narrow_prior, wide_prior

N = 3
# Of twice as many sites: their metrics vary much over the posterior.
WIDE = {"wide": wide_prior, "wide narrow": wide_narrow_prior}


@dataclass(frozen=True)
class Cell:
    """One combination that is tested: the names are those of `tests.unit.toys`."""

    metric: str
    likelihood: str
    prior: str = "centred"
    beta: float = 1.0
    sites: str = "absurd"
    step_size: float = 0.5
    n_steps: int = 3

    def __str__(self) -> str:
        return f"{self.metric}-{self.likelihood}-{self.prior}-beta{self.beta}-{self.sites}"


def make_problem(cell: Cell):
    """A prior and a likelihood with fixed data that pull at each other."""
    stated: ToyPrior = WIDE[cell.prior](2 * N) if cell.prior in WIDE else PRIORS[cell.prior](N)
    data = {"logit": [1.0, -1.0, 1.0], "poisson": [0.0, 5.0, 2.0], "student_t": [-2.0, 4.0, 0.5]}[cell.likelihood]
    if cell.prior in WIDE:
        data = [0.0, 0.0, 1.0] * 2  # few counts: the rate, and with it the metric, ranges over decades
    return stated, LIKELIHOODS[cell.likelihood](np.array(data))


def make_target(cell: Cell) -> LatentTarget:
    """The target in the chart that the cell's metric wants."""
    stated, family = make_problem(cell)
    rng, n = np.random.default_rng(11), family.y.size
    q = GaussianSites(0.5 * rng.standard_normal(n), rng.exponential(0.5, n))
    bridge = LatentBridge(FactorizedPrior(stated), family, q)
    sites = bridge.gaussian_part(cell.beta)
    if cell.metric in ("flat", "spanned", "rounded") and cell.sites == "absurd":
        sites = GaussianSites(rng.standard_normal(n), rng.exponential(1.0, n))
    return bridge.in_chart(cell.beta, SiteChart(bridge.prior, sites))


def exact_draws(target: LatentTarget, count: int, rng: np.random.Generator) -> np.ndarray:
    """Independent draws of a target, in its chart, by rejection from its Gaussian part."""
    gaussian = SiteChart(target.chart.prior, target.gaussian)
    family, beta = whole_likelihood(target)
    peak = {"Logit": 0.0, "StudentT": 0.0}.get(type(family).__name__)
    if peak is None:
        mode = np.log(np.maximum(family.y, 1e-300))
        peak = family.log_density(np.where(family.y > 0, mode, -700.0))
    kept: list[np.ndarray] = []
    while len(kept) < count:
        z = rng.standard_normal(gaussian.prior.n_latent)
        eta = gaussian.predictor.apply(z)
        if np.log(rng.random()) < beta * (family.log_density(eta) - peak):
            kept.append(target.chart.from_model(gaussian.to_model(z)))
    return np.array(kept)


def hamiltonian_of(target: LatentTarget, metric: str):
    """The Hamiltonian of a metric by name.

    "spanned" and "rounded" are the flat one by its other representations, the second with coarse kicks.
    """
    if metric == "flat":
        return GaussianHamiltonian(target)
    if metric == "spanned":
        return SpannedHamiltonian(target)
    if metric == "rounded":
        return SiteHamiltonian(RoundedTarget(target, coarse_gram(target)))
    return RiemannianHamiltonian(LatentField(target, metric))


def features(target: LatentTarget, z: np.ndarray) -> np.ndarray:
    """What is watched of a state: the sites and the log density of the target."""
    point = target.at(z)
    return np.append(point.eta, point.log_density - 0.5 * z @ z)


def squash(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Bounded functions of features, odd and even, on the scale of given draws.

    A mean of bounded functions is normal for a few hundred draws, whatever tails the target has.
    """
    scaled = np.tanh((values - np.median(like, axis=0)) / like.std(axis=0))
    return np.hstack((scaled, scaled**2))


@dataclass(frozen=True)
class Outcome:
    """p-value of stationarity, and how many transitions failed."""

    p_value: float
    failure_rate: float
    acceptance: float
    moved: float


def changed(changes: np.ndarray) -> float:
    """p-value of means of changes that are 0 (z-tests, Bonferroni)."""
    z = changes.mean(axis=0) / (changes.std(axis=0) / np.sqrt(len(changes)))
    return min(1.0, 2.0 * float(norm.sf(np.abs(z)).min()) * z.size)


def stationarity(
    target: LatentTarget, flow, integrator, cell: Cell, count: int, seed: int, transitions: int = 2,
    move: Callable = transition, until: float | None = None,
) -> Outcome:  # fmt: skip
    """Move exact draws and test that no feature's mean has changed."""
    rng = np.random.default_rng(seed)
    starts = exact_draws(target, count, rng)
    before = np.array([features(target, start) for start in starts])
    squashed = squash(before, before)
    looks = Looks(count, until, lambda moved: changed(squash(moved, before) - squashed[: len(moved)]))
    after, failures, accepted = [], 0, 0.0
    while not looks.decided(after):
        state = flow.state(starts[len(after)])
        for _ in range(transitions):
            outcome = move(flow, integrator, state, cell.n_steps, cell.step_size, rng)
            failures += bool(outcome.failure)
            accepted += outcome.acceptance
            state = outcome.state
        after.append(features(target, state.position))
    total, moved = len(after) * transitions, np.abs(np.array(after) - before[: len(after)])[:, 0].mean()
    return Outcome(looks.p_value(after), failures / total, accepted / total, float(moved))
