"""Whether a chain moves, in its last tuning draws and afterwards, and what is said of one that hardly does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import arviz as az
import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.chains.messages import (
    IF_SLOW,
    advice_for,
    barely_moves,
    cut_short,
    hardly_moved,
    is_cut_by_options,
    more_steps,
    moved_slowly,
    never_moved,
    part_of_path,
    path_in_words,
)
from pymc_rmhmc.errors import Failure, SamplingError
from pymc_rmhmc.kernels.trajectories import JitteredPath

__all__ = ["JUDGEMENT", "JudgementPolicy", "Movement", "cut_path", "judge", "slowness"]

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
