"""Bridge sampling from the reference to the posterior, over as many densities between them as are needed.

From draws at one β the next is chosen so that importance weights to it are worth a tenth of their number. Draws of that
weight begin there, are moved until they have forgotten it, and are then counted. All draws together give the estimate,
by `pymc_rmhmc.evidence.methods.path_estimates`. Where draws of the posterior are given, they are the last density's.

Walkers are divided in groups, and each group goes on from draws of its own alone: the groups know nothing of one
another, so that the jackknife over them has the right error whatever the draws' autocorrelation. Draws of a chain are
cut into successive pieces, which are nearly independent where each is long beside the autocorrelation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from scipy.special import logsumexp

from pymc_rmhmc.chains.reference import Reference
from pymc_rmhmc.errors import EvidenceError
from pymc_rmhmc.evidence.methods.estimate import (
    LARGEST_K,
    Estimate,
    Progress,
    check_acceptance,
    check_mixing,
    effective_draws,
    log_mean,
    mixes,
    mixing_of,
    pareto_k,
    weight_ess,
)
from pymc_rmhmc.evidence.methods.path_estimates import jackknife
from pymc_rmhmc.kernels.walkers import Walkers

__all__ = [
    "BRIDGE", "HEAVY_BRIDGE", "AdaptiveBridge", "BridgePolicy", "PosteriorDraws", "Rung", "next_beta", "reweighted",
    "systematic", "tune_steps",
]  # fmt: skip

type Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BridgePolicy:
    """How a bridge is built."""

    # Importance weights from one density to the next are worth this share of the draws.
    weight_share: float = 0.1
    # Groups of walkers, for the jackknife.
    n_groups: int = 32
    # Sweeps over all walkers: at the reference, at each β, and how many times as many at the last.
    first: int = 50
    sweeps: int = 15
    last: int = 2
    # Sweeps at a new β that are not counted.
    burn_in: int = 8
    # Lengths of trajectories are uniform in ``path (1 ± jitter)``.
    path: float = 1.7
    jitter: float = 0.1
    # Steps are made shorter until so much is accepted, with so many in a trajectory.
    accepted: float = 0.75
    fewest_steps: int = 1
    most_steps: int = 128
    # Draws are added until the error is small enough, as a share of those that there are.
    least_more: float = 0.25
    most_more: float = 1.0
    # So often the draws at a β are doubled where they do not mix, before the estimate is refused.
    patience: int = 4
    # Beyond this many densities something is wrong.
    most_rungs: int = 200

    def move(self, walkers: Walkers, beta: float, n_steps: int, rng: np.random.Generator) -> Array:
        """Make one trajectory of so many steps of every walker; return the probabilities of acceptance."""
        path = self.path * (1.0 + self.jitter * rng.uniform(-1.0, 1.0))
        return walkers.move(beta, path / n_steps, n_steps, rng)


BRIDGE = BridgePolicy()
# One step is accepted nearly everywhere in coordinates with heavy tails, and seldom far out, where walkers then stay.
HEAVY_BRIDGE = BridgePolicy(fewest_steps=3)
# Draws of a density that weights to the next need, and the logarithm of the smallest step to it.
FEWEST_USABLE, SMALLEST_STEP = 8, -200.0
# Two estimates that differ by so many errors, and by more than rounding does, do so for a reason.
MOST_ERRORS, ROUNDING = 4.0, 1e-6
NOWHERE = (
    "Nearly everywhere in the normal approximation the model's density is 0 or not a number, so that no bridge leads "
    "from there. Give draws= of the posterior, from which a better one is fitted."
)


@dataclass
class Rung:
    """A density of the bridge, and what was drawn of it, sweep by sweep: φ (groups, n), and the mean acceptance.

    Its trajectories have `n_steps`; 0 where draws are independent.
    """

    beta: float
    walkers: Walkers
    n_steps: int = 0
    phis: list[Array] = field(default_factory=list)
    acceptances: list[float] = field(default_factory=list)

    @property
    def phi(self) -> Array:
        """φ of each group, all sweeps together (groups, n)."""
        return np.concatenate(self.phis, axis=1)

    @property
    def acceptance(self) -> float:
        """The mean over all sweeps."""
        return float(np.mean(self.acceptances)) if self.acceptances else 1.0

    @property
    def chains(self) -> Array:
        """φ by walker (walkers, sweeps)."""
        return np.array(self.phis).transpose(1, 2, 0).reshape(-1, len(self.phis))


def next_beta(phi: Array, beta: float, share: float) -> float:
    """Return the largest β up to 1 to which weights from draws at another are worth this share of them.

    Draws without a density do not count: no step leads to them.
    """
    usable = phi[np.isfinite(phi)]
    if usable.size < FEWEST_USABLE:
        raise EvidenceError(NOWHERE)

    def excess(log_step: float) -> float:
        return weight_ess(math.exp(log_step) * usable) - share * usable.size

    largest = math.log(1.0 - beta)
    if excess(largest) >= 0.0:
        return 1.0
    return beta + math.exp(optimize.brentq(excess, largest + SMALLEST_STEP, largest, xtol=1e-6))


def tune_steps(
    walkers: Walkers, beta: float, n_steps: int, rng: np.random.Generator, policy: BridgePolicy = BRIDGE
) -> int:
    """Return how many steps a trajectory needs for its acceptance, from a first guess."""
    for _ in range(40):
        accepted = float(policy.move(walkers, beta, n_steps, rng).mean())
        if accepted >= policy.accepted or n_steps >= policy.most_steps:
            break
        factor = 1.4 if accepted < 0.6 else 1.15
        n_steps = min(policy.most_steps, max(n_steps + 1, int(factor * n_steps)))
    return n_steps


class PosteriorDraws(Protocol):
    """Draws of the posterior that something else makes: φ at each (chains, draws)."""

    residuals: Array

    def extend(self, share: float) -> bool:
        """Draw a share of those that there are again; whether that is possible."""


class AdaptiveBridge:
    """A bridge and its draws, to which more can be added.

    `reference`: the model.
    `replicates`: walkers at each β; a multiple of the number of groups.
    `rng`: for all of it.
    `source`: φ at draws of the posterior, which took no part in fitting the reference.
    `policy`: its numbers.
    """

    def __init__(
        self, reference: Reference, replicates: int, rng: np.random.Generator,
        source: PosteriorDraws | None = None, policy: BridgePolicy = BRIDGE,
    ) -> None:  # fmt: skip
        self.reference, self.rng, self.policy = reference, rng, policy
        self.n_groups = min(policy.n_groups, replicates)
        if source is not None:
            self.n_groups = len(_in_groups(source.residuals, self.n_groups))
        self._per_group = max(1, replicates // self.n_groups)
        self._source = source
        self.rungs: list[Rung] = []

    def run(self, progress: Progress) -> Estimate:
        """Build the bridge, and add draws until the error is small enough or the time is over.

        There is an error if draws do not mix.
        """
        self._build(progress)
        begun, last = 0.0, math.inf
        value, error = self._estimate(progress)
        while not progress.is_met(error):
            share = min(self.policy.most_more, max(self.policy.least_more, progress.excess(error)))
            if not (progress.may_grow(begun, 1.0 / last + 1.0, share) and self._extend(share, progress)):
                break
            begun, last = progress.seconds, share
            value, error = self._estimate(progress)
        if self._settled(progress):
            value, error = self._estimate(progress)
        diagnostics = self._diagnostics()
        if self._source is not None and diagnostics["pareto_k"] < LARGEST_K:
            self._check_weights(value, error)
        return Estimate(value, error, diagnostics, progress.history)

    def _check_weights(self, value: float, error: float) -> None:
        """Raise where importance weights of the reference's draws, which see all parts, say another value."""
        alone, its_error = log_mean(self.rungs[0].phi.ravel())
        if abs(alone - value) > MOST_ERRORS * math.hypot(error, its_error) + ROUNDING:
            raise EvidenceError(
                f"Importance weights give a log evidence that is {alone - value:+.2f} from the bridge's: the draws of "
                "the posterior have missed a part of it, such as a tail or a mode. Leave draws= out, or give "
                'method="tempering".'
            )

    def _settled(self, progress: Progress) -> bool:
        """Add draws at rungs that do not seem to mix, since few draws cannot show it; return whether there were any."""
        added = False
        for rung in self.rungs[1:]:
            for _ in range(self.policy.patience):
                if progress.is_spent or mixes(*mixing_of(rung.chains, self._superchains)):
                    break
                progress.say(f"more draws at beta {rung.beta:.3g}")
                self._sweep(rung, len(rung.phis))
                added = True
        return added

    def _extend(self, share: float, progress: Progress) -> bool:
        """Add a share of the draws that there are at every density; whether there may be any at the last."""
        if self._source is not None and not self._source.extend(share):
            return False
        for rung in self.rungs:
            progress.say(f"bridge at beta {rung.beta:.3g}")
            self._sweep(rung, math.ceil(share * len(rung.phis)))
        return True

    def _build(self, progress: Progress) -> None:
        policy, count = self.policy, self._per_group * self.n_groups
        walkers = self.reference.walkers(count, self.rng)
        rung, states = Rung(0.0, walkers), []
        for _ in range(policy.first):
            walkers.redraw(self.rng)
            rung.phis.append(self._grouped(walkers.phi))
            states.append(walkers.states.copy())
        self.rungs.append(rung)
        n_steps = policy.fewest_steps
        while rung.beta < 1.0:
            phi = rung.phi
            beta = next_beta(phi.ravel(), rung.beta, policy.weight_share)
            progress.say(f"bridge at beta {beta:.3g}")
            if beta == 1.0 and self._source is not None:
                return
            rung, states = self._entered(phi, np.array(states), rung.beta, beta, n_steps)
            n_steps = max(policy.fewest_steps, int(0.8 * rung.n_steps))
            if len(self.rungs) > policy.most_rungs or (progress.is_spent and beta < 1.0):
                raise EvidenceError(
                    f"After {progress.seconds:.0f} seconds the bridge has {len(self.rungs)} densities and has come to "
                    f"beta = {beta:.2g} alone: the posterior is far from its normal approximation. Give draws= of a "
                    'long run, method="tempering", or a larger max_seconds.'
                )

    def _entered(
        self, phi: Array, states: Array, before: float, beta: float, n_steps: int
    ) -> tuple[Rung, list[Array]]:
        """Enter the rung at the next β, from the last one's draws (groups, n) and their states (sweeps, walkers, m)."""
        policy, rng = self.policy, self.rng
        walkers = self.reference.walkers(self._per_group * self.n_groups, rng)
        walkers.place(self._resampled(phi, states, beta - before))
        rung = Rung(beta, walkers, tune_steps(walkers, beta, n_steps, rng, policy))
        for _ in range(policy.burn_in):
            policy.move(walkers, beta, rung.n_steps, rng)
        kept = self._sweep(rung, policy.sweeps * (policy.last if beta == 1.0 else 1), keep=beta < 1.0)
        self.rungs.append(rung)
        check_acceptance(np.array([beta]), np.array([rung.acceptance]))
        return rung, kept

    def _resampled(self, phi: Array, states: Array, step: float) -> Array:
        """Draw states at the next β, each group's from its own draws by their weights."""
        found = []
        sweeps = len(states)
        states = states.reshape(sweeps, self.n_groups, self._per_group, -1)
        for group, own in enumerate(phi):
            drawn = reweighted(own, step, self._per_group, self.rng)
            found.append(states[:, group].reshape(sweeps * self._per_group, -1)[drawn])
        return np.concatenate(found)

    def _sweep(self, rung: Rung, times: int, *, keep: bool = False) -> list[Array]:
        """Draw so many times at a rung; return states if they are to be kept."""
        walkers = rung.walkers
        kept: list[Array] = []
        for _ in range(times):
            if rung.n_steps == 0:
                walkers.redraw(self.rng)
            else:
                accepted = self.policy.move(walkers, rung.beta, rung.n_steps, self.rng)
                rung.acceptances.append(float(accepted.mean()))
            rung.phis.append(self._grouped(walkers.phi))
            if keep:
                kept.append(walkers.states.copy())
        return kept

    def _grouped(self, phi: Array) -> Array:
        return phi.reshape(self.n_groups, self._per_group).copy()

    def _estimate(self, progress: Progress) -> tuple[float, float]:
        betas, groups = [r.beta for r in self.rungs], [list(r.phi) for r in self.rungs]
        counts = [float(sum(g.size for g in each)) for each in groups]
        if self._source is not None:
            betas.append(1.0)
            groups.append(list(_in_groups(self._source.residuals, self.n_groups)))
            counts.append(min(effective_draws(self._source.residuals), float(self._source.residuals.size)))
        value, error = jackknife(betas, groups, counts)
        progress.note(value, error, "bridge")
        return value, error

    def _diagnostics(self) -> dict[str, float | Array]:
        """Check what must hold of the draws, and return what is told of them."""
        betas = [rung.beta for rung in self.rungs]
        acceptances = [rung.acceptance for rung in self.rungs]
        check_acceptance(np.array(betas), np.array(acceptances))
        at_reference = self.rungs[0].phi.ravel()
        mixing = [(1.0, float(at_reference.size))]
        mixing += [check_mixing(f"beta = {r.beta:.3g}", r.chains, self._superchains) for r in self.rungs[1:]]
        spreads = [float(np.std(phi[np.isfinite(phi)])) for phi in (rung.phi for rung in self.rungs)]
        if self._source is not None:
            betas.append(1.0)
            acceptances.append(math.nan)
            mixing.append(check_mixing("The draws of the posterior", self._source.residuals))
            spreads.append(float(np.std(self._source.residuals)))
        return {
            "beta": np.array(betas), "acceptance": np.array(acceptances),
            "phi_rhat": np.array([rhat for rhat, _ in mixing]), "phi_ess": np.array([ess for _, ess in mixing]),
            "phi_sd": np.array(spreads),
            "pareto_k": pareto_k(at_reference), "weight_ess": weight_ess(at_reference),
        }  # fmt: skip

    @property
    def _superchains(self) -> NDArray[np.int64]:
        """Each walker's group."""
        return np.repeat(np.arange(self.n_groups), self._per_group)


def _in_groups(draws: Array, n_groups: int) -> Array:
    """Divide draws (chains, draws) into groups (groups, n) of successive draws of one chain; leave a few at the end."""
    chains, length = draws.shape
    each = max(1, n_groups // chains)
    kept = length // each
    return draws[:, : kept * each].reshape(chains * each, kept)


def systematic(log_weights: Array, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw so many indices by their weights, evenly, or raise if no weight is above 0."""
    total = logsumexp(log_weights)
    if not math.isfinite(total):
        raise EvidenceError(NOWHERE)
    edges = np.cumsum(np.exp(log_weights - total))
    return np.searchsorted(edges / edges[-1], (rng.random() + np.arange(count)) / count)


def reweighted(phi: Array, step: float, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw so many indices of draws at one β by their weights at the next, evenly."""
    with np.errstate(invalid="ignore"):
        log_weights = step * phi
    return systematic(log_weights, count, rng)
