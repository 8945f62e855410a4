"""What an estimate of the evidence says, when it may stop, how it is shown, and when it must not be given."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from arviz_stats.base import array_stats
from numpy.typing import NDArray
from rich.progress import Progress as Display
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from scipy.special import logsumexp

from pymc_rmhmc.diagnostics.result_statistics import LARGEST_RHAT
from pymc_rmhmc.errors import EvidenceError

__all__ = [
    "LARGEST_K", "Estimate", "Progress", "Report", "check_acceptance", "check_mixing", "displayed",
    "effective_draws", "log_mean", "mixes", "mixing_of", "pareto_k", "weight_ess",
]  # fmt: skip

type Array = NDArray[np.float64]
# What to do where steps are as short as they may be.
FARTHER = (
    "The density is too far from its normal approximation: give draws= of a long run of pm.sample, or "
    'method="tempering".'
)
MORE = 'Give more draws, or method="tempering".'
# Shows an estimate, its error, and what is done.
type Report = Callable[[float, float, str], None]

# Diagnostics that are estimates of the evidence themselves.
BOUNDS = frozenset({"lower_bound", "upper_bound", "thermodynamic_integration", "stepping_stones"})
# Below this shape of their tail, importance weights have a variance with room to spare.
LARGEST_K = 0.5
LEAST_ACCEPTED, FEWEST_DRAWS = 0.4, 100.0


@dataclass(frozen=True)
class Estimate:
    """An estimate of ``log E[exp φ]``, or of log p(y) once the reference's constant is added.

    The error is nan where a method has none, as a Laplace approximation. Diagnostics are numbers, and arrays by rung.
    The history has seconds, estimate and standard error on the way.
    """

    log_evidence: float
    standard_error: float
    diagnostics: Mapping[str, float | Array] = field(default_factory=dict)
    history: list[tuple[float, float, float]] = field(default_factory=list)

    def shifted(self, constant: float, **known: float) -> Estimate:
        """Return it with a constant added, and with more diagnostics, to which it belongs already."""
        moved = [(seconds, value + constant, error) for seconds, value, error in self.history]
        diagnostics = {name: v + constant if name in BOUNDS else v for name, v in self.diagnostics.items()}
        return Estimate(self.log_evidence + constant, self.standard_error, diagnostics | known, moved)


class Progress:
    """How exact an estimate shall be, how long it may take, and what it is on the way, kept and shown.

    It is exact enough with the target error, and ends if it can after so many seconds from now on.
    """

    def __init__(
        self, target_error: float, max_seconds: float | None = None, report: Report | None = None
    ) -> None:
        self.target_error, self.max_seconds = target_error, max_seconds
        self.history: list[tuple[float, float, float]] = []
        self._began, self._report, self._constant = time.perf_counter(), report, 0.0

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return time.perf_counter() - self._began

    @property
    def is_spent(self) -> bool:
        """Whether the time is over."""
        return self.max_seconds is not None and self.seconds >= self.max_seconds

    def excess(self, error: float) -> float:
        """Return what share of the draws is lacking for an error."""
        return (error / self.target_error) ** 2 - 1.0

    def may_grow(self, begun: float, whole: float, share: float) -> bool:
        """Return whether a share of all draws may be added, where since some second one of `whole` parts was made."""
        cost = share * whole * (self.seconds - begun)
        return self.max_seconds is None or self.seconds + cost <= self.max_seconds

    def is_met(self, error: float) -> bool:
        """Return whether an error is small enough."""
        return error <= self.target_error

    def move(self, constant: float) -> None:
        """Add another constant to what is shown."""
        self._constant += constant

    def say(self, doing: str) -> None:
        """Show what is done."""
        if self._report is not None:
            _, value, error = self.history[-1] if self.history else (0.0, math.nan, math.nan)
            self._report(value + self._constant, error, doing)

    def note(self, value: float, error: float, doing: str) -> None:
        """Keep an estimate."""
        self.history.append((self.seconds, value, error))
        self.say(doing)


@contextlib.contextmanager
def displayed(progressbar: bool) -> Iterator[Report]:
    """Give a report that shows a line, with the time since; without a progress bar it shows nothing."""
    if not progressbar:
        yield lambda value, error, doing: None
        return
    with Display(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as display:
        task = display.add_task("log p(y)")

        def report(value: float, error: float, doing: str) -> None:
            known = f" {value:.3f} ± {error:.3f}" if math.isfinite(value) else ""
            display.update(task, description=f"log p(y){known}: {doing}")

        yield report


def weight_ess(log_weights: Array) -> float:
    """Return how many draws of equal weight the weighted ones are worth: ``(Σ w)² / Σ w²``."""
    largest = log_weights.max()
    if not math.isfinite(largest):
        return 0.0
    weights = np.exp(log_weights - largest)
    return float(weights.sum() ** 2 / (weights**2).sum())


def pareto_k(log_weights: Array) -> float:
    """Estimate the shape k̂ of the tail of some importance weights: their mean is of no use above 0.7.

    References
    ----------
    Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling.
    """
    finite = log_weights[np.isfinite(log_weights)]
    if finite.size < FEWEST_DRAWS:
        return math.inf
    if np.ptp(finite) < 1e-12:
        return -math.inf
    # ArviZ takes the logarithm of the likelihood that is left out, whose inverse is the weight.
    shape = float(array_stats.psislw(-finite)[1])
    return math.inf if math.isnan(shape) else shape


def log_mean(log_weights: Array, unseen: int = 0) -> tuple[float, float]:
    """Return the logarithm of the mean of some weights, and its standard error.

    The error counts so many unseen weights of 0 besides. If one state in some hundreds has no weight, a run may have
    none of them, and its own weights say nothing of what they take from the mean.
    """
    count = log_weights.size
    value = float(logsumexp(log_weights)) - math.log(count)
    relative = np.append(np.exp(log_weights - value), np.zeros(unseen))
    return value, float(relative.std(ddof=1)) / math.sqrt(count)


def check_acceptance(betas: Array, acceptances: Array, remedy: str = FARTHER) -> None:
    """Raise where trajectories at a rung's β are accepted less than 0.4 of the time, too seldom to be trusted."""
    low = np.flatnonzero(acceptances < LEAST_ACCEPTED)
    if low.size:
        raise EvidenceError(
            f"At beta = {betas[low[0]]:.3g} only {acceptances[low[0]]:.0%} of the trajectories are accepted, and draws "
            f"that hardly move would give a wrong evidence. {remedy}"
        )


def effective_draws(draws: Array) -> float:
    """Estimate how many independent draws some draws (chains, draws) are worth for their mean."""
    return float(array_stats.ess(draws, method="mean"))


def mixing_of(draws: Array, superchains: NDArray[np.int64] | None = None) -> tuple[float, float]:
    """Return R-hat and effective number of draws (chains, draws); of many short chains the nested R-hat of groups."""
    if np.ptp(draws) < 1e-9:  # the approximation is exact: φ is constant
        return 1.0, max(float(draws.size), FEWEST_DRAWS)
    if len(draws) == 1:  # its halves take the place of chains
        draws = draws[:, : draws.shape[1] // 2 * 2].reshape(2, -1)
    found = array_stats.rhat(draws) if superchains is None else array_stats.rhat_nested(draws, superchains)
    return float(found), effective_draws(draws)


def mixes(rhat: float, ess: float) -> bool:
    """Return whether draws can be trusted."""
    return rhat <= LARGEST_RHAT and ess >= FEWEST_DRAWS


def check_mixing(
    name: str, draws: Array, superchains: NDArray[np.int64] | None = None, *, remedy: str = MORE
) -> tuple[float, float]:
    """Return R-hat and effective number of φ at some draws, as `mixing_of`; or raise, and say what to do."""
    rhat, ess = mixing_of(draws, superchains)
    if not rhat <= LARGEST_RHAT:
        raise EvidenceError(
            f"{name}: the log density differs between chains (R-hat {rhat:.2f}, at most {LARGEST_RHAT} is trusted), so "
            f"that some have not reached the posterior or there are several modes. {remedy}"
        )
    if ess < FEWEST_DRAWS:
        raise EvidenceError(
            f"{name}: the log density has only {ess:.0f} effective draws, and at least {FEWEST_DRAWS:.0f} are needed. "
            f"{remedy}"
        )
    return rhat, ess
