"""Whether a chain moves, in its last tuning draws and afterwards, and what is said of one that hardly does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import arviz as az
import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.conditional_density import DEFAULT_MAX_STEPS, DEFAULT_PATH_LENGTH
from pymc_rmhmc.diagnostics.failures import ADVICE, SMALLER_STEPS
from pymc_rmhmc.errors import Failure, SamplingError, listed
from pymc_rmhmc.kernels.trajectories import JitteredPath

__all__ = [
    "IF_SLOW", "JUDGEMENT", "JudgementPolicy", "Movement", "advice_for", "barely_moves", "cut_path", "cut_short",
    "hardly_moved", "in_words", "is_cut_by_options", "judge", "more_steps", "moved_slowly", "never_moved",
    "part_of_path", "path_in_words", "sites_kept", "slowness", "stood_still",
]  # fmt: skip

# ---------------------------------------------------- messages

# Messages of a chain: steps too short for the path, refits that were dropped, and the remedies.

type Point = dict[str, np.ndarray]

MOST_SAID = 10
HOPELESS = "The metric does not fit this posterior. Reparametrize the model, or use NUTS."
HOPELESS_SITES = (
    "The flat metric's Gaussian approximation does not fit this likelihood, which has several modes in a latent value "
    "or is far from log-concave. "
)
HOPELESS_PRIOR = (
    "The likelihood is log-concave, so the prior is the probable cause. It may allow hyperparameters at which the "
    "covariance is almost singular or an autoregression explodes. Narrow the priors of the hyperparameters, or use "
    "NUTS."
)
IMPROPER = (
    "The probable cause is the Flat or HalfFlat prior of {}: if the data do not bound it, it has no posterior "
    "distribution. Give it a proper prior, such as pm.Normal or pm.HalfNormal."
)
LEAVE_STEP_SIZE_OUT = "Leave step_size out of RMHMC, so that it is adapted."
IF_SLOW = " If slow sampling is acceptable, raise max_steps or give n_steps."
# Of the curvatures that a likelihood may give, those that are positive where it has several modes.
ALWAYS_POSITIVE = ("fisher", "softabs_curvature")


def in_words(values: Point) -> str:
    """Return values by name; of long arrays only their length."""
    said = [np.round(v, 3).tolist() if np.size(v) <= MOST_SAID else f"({np.size(v)} values)" for v in values.values()]
    return ", ".join(f"{name} = {value}" for name, value in zip(values, said, strict=True))


def part_of_path(length: JitteredPath | None, step_size: float) -> float:
    """Return the part of the path that `max_steps` steps cover; 1 where there is no path that is to be covered."""
    return 1.0 if length is None else step_size / length.covering


def path_in_words(length: JitteredPath, step_size: float) -> str:
    """Say how far trajectories get before `max_steps` ends them."""
    return (
        f"the step size is {step_size:.2g}, so max_steps={length.max_steps} covers only "
        f"{length.max_steps * step_size:.2g} of path_length={length.path_length:.3g}"
    )


def barely_moves(name: str, n_draws: int, path: str, advice: str) -> str:
    """Say that a chain would barely move, and give the remedy."""
    return (
        f"{name}: after {n_draws} tuning draws {path}, and the chain would barely move. {advice}"
    )


def is_cut_by_options(length: JitteredPath, covered: float, needed: float) -> bool:
    """Return whether steps that cover so much of the path would cover what is needed of the default path."""
    return covered * length.covering >= needed * DEFAULT_PATH_LENGTH / DEFAULT_MAX_STEPS


def more_steps(length: JitteredPath, step_size: float) -> str:
    """Say which `max_steps` would be enough for the path, or which `path_length` for the steps."""
    longest = length.max_steps * step_size / (1.0 + length.jitter)
    return (
        f"max_steps is too small for this path_length. Give RMHMC(max_steps={_enough_steps(length, step_size)}), or "
        f"RMHMC(path_length={longest:.2g}) and the same max_steps."
    )


def _enough_steps(length: JitteredPath, step_size: float) -> int:
    """Count the steps that the longest path takes."""
    return math.ceil(length.path_length * (1.0 + length.jitter) / step_size)


def cut_short(name: str, length: JitteredPath, step_size: float, *, by_options: bool, is_trusted: bool = True) -> str:
    """Say that `max_steps` ends trajectories early, and which number would not; call trusted draws correct."""
    if by_options:
        remedy = more_steps(length, step_size)
    else:
        enough = _enough_steps(length, step_size)
        remedy = f"Raise the limit with RMHMC(max_steps={enough}), reparametrize the model, or try another metric."
    correct = "The draws are correct, but the chain is slow. " if is_trusted else ""
    return f"{name}: {path_in_words(length, step_size)}. {correct}{remedy}"


def sites_kept(name: str, n_dropped: int, n_refits: int, *, is_trusted: bool = True) -> str:
    """Say that refits in tuning could not be used; empty if all could."""
    if not n_dropped:
        return ""
    correct = "The draws are correct, but the chain may be slow. " if is_trusted else ""
    return (
        f"{name}: {n_dropped} of {n_refits} refits of the Gaussian approximation in tuning gave no finite log density "
        f"and were dropped. {correct}Give pm.sample a larger tune=, and check site_fit if it is your own."
    )


def stood_still(name: str, failures: Sequence[Failure], step_size: float | None = None) -> str:
    """Say that tuning ended with draws that are all the same, and why.

    `name`: the variables of the chain.
    `failures`: of these draws. A cause of fewer than half of them is not named.
    `step_size`: the step size that the user gave; None if it is adapted.
    """
    causes = Counter(failure for failure in failures if failure)
    cause, count = causes.most_common(1)[0] if causes else (Failure.NONE, 0)
    if 2 * count >= len(failures):
        meaning, remedy = ADVICE[cause]
        found = f"{count} of their trajectories failed because {meaning} ({cause.name})."
        if step_size is not None:
            large = _is_too_large(step_size)
            is_replaced = SMALLER_STEPS in remedy
            remedy = remedy.replace(SMALLER_STEPS, large) if is_replaced else f"{large} If that does not help: {remedy}"
    else:
        found = "Every proposal was rejected."
        elsewhere = "tart elsewhere with `initvals`, reparametrize the model, or use NUTS."
        given = "" if step_size is None else f"{_is_too_large(step_size)} If that does not help, s"
        remedy = (given or "S") + elsewhere
    still = f"no value changed in the last {len(failures)} tuning draws, so the chain stands still"
    return f"{name}: {still}. {found} {remedy}"


def _is_too_large(step_size: float) -> str:
    return f"step_size={step_size:.3g} is probably too large. {LEAVE_STEP_SIZE_OUT}"


def never_moved(name: str, n_draws: int, step_size: float | None = None) -> str:
    """Say that all draws after tuning are the same; `step_size` is the user's, None if it is adapted."""
    if step_size is None:
        remedy = "Reparametrize the model, or use NUTS."
    else:
        remedy = f"{_is_too_large(step_size)} If that does not help, reparametrize the model, or use NUTS."
    return (
        f"{name}: no value changed in {n_draws} draws after tuning. These draws say nothing about the posterior. "
        f"{remedy}"
    )


def hardly_moved(label: str, effective: float, n_draws: int, step_size: float | None = None) -> str:
    """Say that a chain hardly moved; `step_size` is the user's, None if it is adapted."""
    if step_size is None:
        remedy = "Reparametrize the model, give narrower priors, or compare with NUTS."
    else:
        remedy = (
            f"The probable cause is that you gave step_size={step_size:.3g}. {LEAVE_STEP_SIZE_OUT} If that does not "
            "help, reparametrize the model, give narrower priors, or compare with NUTS."
        )
    return (
        f"{label}: {n_draws} draws are worth about {max(1.0, effective):.0f} independent ones. Do not trust this "
        f"chain. {remedy}"
    )


def moved_slowly(label: str, effective: float, n_draws: int) -> str:
    """Say that a chain makes few effective draws, and what helps."""
    return (
        f"{label}: {n_draws} draws of this chain are worth about {effective:.0f} independent ones. Look at R-hat "
        'before you use them. Draw more, or try RMHMC(trajectory="nuts").'
    )


def advice_for(
    curvatures: Callable[[], set[str]], *, uses_sites: bool, prior_moves: bool, flat_priors: Sequence[str] = ()
) -> str:
    """Return what to do where a metric is hopeless: a proper prior, one for the likelihood's curvature, or NUTS."""
    if flat_priors:
        return IMPROPER.format(listed(flat_priors))
    if not uses_sites:
        return HOPELESS
    # A likelihood has a Hessian for a curvature only where that is never negative.
    if "hessian" in curvatures():
        return HOPELESS_PRIOR if prior_moves else HOPELESS
    metrics = [kind for kind in ALWAYS_POSITIVE if kind in curvatures()]
    if not metrics:
        return f"{HOPELESS_SITES}Use NUTS."
    return (
        f'{HOPELESS_SITES}Sample the latent values with RMHMC(metric="{metrics[0]}"), which leaves hyperparameters to '
        "PyMC's other steps, or use NUTS for all."
    )


type Array = NDArray[np.float64]

# Values that are watched, spread evenly over all: a chain that stands still does so in most of them.
MOST_WATCHED = 200
# Draws fewer than this say nothing.
FEWEST_DRAWS = 25
# Draws that are kept, evenly spread over all.
MOST_DRAWS = 400
# Draws that are worth fewer independent ones than this give no mean and no interval.
LEAST_EFFECTIVE = 5.0
# A chain is slow that makes fewer effective draws per draw; of the draws that are kept more than a quarter tell nothing
# of the ones between them.
SLOW, MOST_KEPT = 0.05, 0.25
# Only the values of the largest autocorrelation are judged, since an effective sample size takes a millisecond. The
# bound holds for successive draws.
SUSPICIOUS, FAINT, N_SUSPECTS = 0.8, 0.2, 3


@dataclass
class Movement:
    """What has been seen of a chain."""

    tuning: list[Array] = field(default_factory=list)  # watched values of the last tuning draws
    failures: list[Failure] = field(default_factory=list)  # of the same draws
    draws: list[Array] = field(default_factory=list)  # watched values of draws after tuning, every `stride`-th
    # `n_draws`, `n_moved`, `stride`: draws after tuning, how many of them were moves, and of how many one is kept.
    n_draws: int = 0
    n_moved: int = 0
    stride: int = 1

    def note_tuning(self, values: Array, failure: Failure) -> None:
        """Take the values (k,) after a tuning draw."""
        self.tuning.append(values[_watched(values.size)])
        self.failures.append(failure)

    def end_tuning(self) -> None:
        """Drop what only `stood_still` needs: a chain's state is stored."""
        self.tuning, self.failures = [], []

    def note_draw(self, values: Array, *, moved: bool) -> None:
        """Take the values (k,) of a draw after tuning."""
        if self.n_draws % self.stride == 0:
            self.draws.append(values[_watched(values.size)])
            if len(self.draws) == MOST_DRAWS:
                self.draws, self.stride = self.draws[::2], 2 * self.stride
        self.n_draws += 1
        self.n_moved += moved

    @property
    def stood_still(self) -> bool:
        """Whether no watched value changed in enough tuning draws."""
        draws = self.tuning
        return len(draws) >= FEWEST_DRAWS and all(np.array_equal(draws[0], other) for other in draws[1:])

    @property
    def never_moved(self) -> bool:
        """Whether there were enough draws after tuning, and none was a move."""
        return self.n_draws >= FEWEST_DRAWS and not self.n_moved

    def slowest(self, size: int) -> tuple[float, int] | None:
        """Return the effective draws of the slowest of so many values, and which it is; None where they are enough."""
        if len(self.draws) < 2 * FEWEST_DRAWS:
            return None
        draws = np.array(self.draws)
        still = np.flatnonzero(np.ptp(draws, axis=0) == 0.0)
        if still.size:  # other values may have moved
            return 1.0, int(_watched(size)[still[0]])
        suspects = _most_correlated(draws, max(FAINT, SUSPICIOUS**self.stride))
        sizes = [float(az.ess(draws[:, j][None])) for j in suspects]
        enough = max(LEAST_EFFECTIVE, min(SLOW * self.n_draws, MOST_KEPT * len(draws)))
        if not sizes or not min(sizes) < enough:
            return None
        return min(sizes), int(_watched(size)[suspects[int(np.argmin(sizes))]])


@cache
def _watched(size: int) -> NDArray[np.int64]:
    """Choose which of so many values are watched."""
    return np.unique(np.linspace(0, size - 1, min(size, MOST_WATCHED)).astype(np.int64))


def _most_correlated(draws: Array, suspicious: float) -> Sequence[int]:
    """Return the columns whose neighbours in time are most alike, if any are suspiciously so."""
    centred = draws - draws.mean(axis=0)
    variance = np.einsum("ij,ij->j", centred, centred)
    shared = np.einsum("ij,ij->j", centred[1:], centred[:-1])
    correlation = np.divide(shared, variance, out=np.zeros_like(shared), where=variance > 0.0)
    order = np.argsort(-correlation)[:N_SUSPECTS]
    return [int(j) for j in order if correlation[j] > suspicious]


@dataclass(frozen=True, slots=True)
class JudgementPolicy:
    """When a chain is stopped, and when it is spoken of."""

    enough_tuning: int = 50  # tuning draws after which a step size is judged
    # A chain that covers a smaller share of its path is stopped. The hopeless chains of
    # `tests/steps/test_hard_models.py` cover less than a tenth of it.
    least_of_path: float = 0.1
    whole_path: float = 0.9  # a chain that covers this share of its path gets no message


JUDGEMENT = JudgementPolicy()


def judge(
    name: str, path: JitteredPath | None, step_size: float, n_tuned: int, curvatures: Callable[[], set[str]], *,
    uses_sites: bool, prior_moves: bool, flat_priors: Sequence[str] = (),
) -> None:  # fmt: skip
    """Stop a chain that would hardly move at the end of tuning.

    Any acceptance is reached by steps that are short enough: sites that are hopeless show in a path that is out
    of reach.

    Raises a `SamplingError` if the trajectories cover less than a tenth of their path.
    """
    covered = part_of_path(path, step_size)
    if path is None or n_tuned < JUDGEMENT.enough_tuning or covered >= JUDGEMENT.least_of_path:
        return
    said = path_in_words(path, step_size)
    if is_cut_by_options(path, covered, JUDGEMENT.least_of_path):
        raise SamplingError(barely_moves(name, n_tuned, said, more_steps(path, step_size)))
    advice = advice_for(curvatures, uses_sites=uses_sites, prior_moves=prior_moves, flat_priors=flat_priors)
    raise SamplingError(barely_moves(name, n_tuned, said, advice + IF_SLOW))


def cut_path(name: str, path: JitteredPath | None, step_size: float, *, is_trusted: bool = True) -> str:
    """Say that `max_steps` ends trajectories early; empty where it does not."""
    covered = part_of_path(path, step_size)
    if path is None or covered >= JUDGEMENT.whole_path:
        return ""
    by_options = is_cut_by_options(path, covered, JUDGEMENT.whole_path)
    return cut_short(name, path, step_size, by_options=by_options, is_trusted=is_trusted)


def slowness(
    name: str, movement: Movement, size: int, label: Callable[[int], str], step_size: float | None = None
) -> tuple[str, bool]:
    """Say that a chain of so many values is slow or hardly moved, and whether its draws are to be trusted all the same.

    The first is empty where it moves well. `step_size` is the user's.
    """
    if movement.never_moved:
        return never_moved(name, movement.n_draws, step_size), False
    slowest = movement.slowest(size)
    if slowest is None:
        return "", True
    effective, which = slowest
    if effective < LEAST_EFFECTIVE:
        return hardly_moved(label(which), effective, movement.n_draws, step_size), False
    return moved_slowly(label(which), effective, movement.n_draws), True
