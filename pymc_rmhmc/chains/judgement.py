"""What is said of a chain: that it would hardly move when tuning ends, and afterwards what makes it slow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from pymc_rmhmc.chains.movement import LEAST_EFFECTIVE, Movement
from pymc_rmhmc.errors import SamplingError
from pymc_rmhmc.kernels.trajectories import JitteredPath

__all__ = ["JUDGEMENT", "JudgementPolicy", "cut_path", "judge", "slowness"]


@dataclass(frozen=True, slots=True)
class JudgementPolicy:
    """When a chain is stopped, and when it is spoken of.

    Attributes
    ----------
    enough_tuning : int
        Tuning draws after which a step size is judged.
    least_of_path : float
        A chain that covers a smaller share of its path is stopped. The hopeless chains of
        `tests/steps/test_hard_models.py` cover less than a tenth of it.
    whole_path : float
        A chain that covers this share of its path gets no message.
    """

    enough_tuning: int = 50
    least_of_path: float = 0.1
    whole_path: float = 0.9


JUDGEMENT = JudgementPolicy()


def judge(
    name: str, path: JitteredPath | None, step_size: float, n_tuned: int, curvatures: Callable[[], set[str]], *,
    uses_sites: bool, prior_moves: bool, flat_priors: Sequence[str] = (),
) -> None:  # fmt: skip
    """Stop a chain that would hardly move at the end of tuning.

    Any acceptance is reached by steps that are short enough: sites that are hopeless show in a path that is out
    of reach.

    Raises
    ------
    SamplingError
        If the trajectories cover less than a tenth of their path.
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
