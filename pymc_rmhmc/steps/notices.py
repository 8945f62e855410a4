"""What is said once a run, in whichever process its chains are."""

from __future__ import annotations

import multiprocessing
from collections.abc import Container, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm

from pymc_rmhmc.errors import listed

__all__ = ["WATCHED", "RunNotices", "followers_of", "moved_by_others", "moved_twice", "too_short_tuning"]

type Point = dict[str, np.ndarray]

# PyMC names its worker processes so, with the chain's number.
WORKER, FIRST_WORKER = "worker_chain_", "worker_chain_0"
# Draws of a chain at which its point is looked at: another step that moves a variable moves it by then.
WATCHED = 50
# What `followers_of` has found, of each model.
_FOLLOWERS: WeakKeyDictionary[pm.Model, set[str]] = WeakKeyDictionary()
# A part of the default tuning, below which a step size is no more than a guess.
LEAST_PART = 0.25


class RunNotices:
    """Sentences that the first chain of a run says, each once.

    PyMC runs chains one after another with one step, or each in a process with a copy of it.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._waiting: list[str] = []

    def begin_run(self) -> None:
        """Let everything be said again."""
        self._said.clear()

    def add(self, subject: str, words: str) -> None:
        """Say something of a subject with the next draw, unless it has been said, or another chain says it."""
        process = multiprocessing.current_process().name
        if words and subject not in self._said and (not process.startswith(WORKER) or process == FIRST_WORKER):
            self._said.add(subject)
            self._waiting.append(words)

    def take(self) -> str:
        """Return what is to be said now; empty as a rule."""
        said, self._waiting = "\n".join(self._waiting), []
        return said


def too_short_tuning(tune: int, needed: int, sampler: str = "RMHMC") -> str:
    """Say that a tuning is too short to learn from; empty if it is not."""
    if tune >= LEAST_PART * needed:
        return ""
    learned = "its step size and its approximation of the posterior" if sampler == "RMHMC" else "its step size"
    return (
        f"{sampler}: tune={tune} is too short. {sampler} learns {learned} in tuning, and without "
        f"{'them' if sampler == 'RMHMC' else 'it'} draws are slow or hardly move. Leave tune out, or give "
        f"tune={needed} or more."
    )


def followers_of(model: pm.Model) -> set[str]:
    """Return the value variables that follow a step's own ones, while another step samples them: one set per model.

    Every step of the model holds this set, to which a step adds when it is built, and takes it along to a worker.
    """
    return _FOLLOWERS.setdefault(model, set())


def moved_by_others(samplers: Iterable[Any], point: Point, followers: Container[str] = ()) -> list[str]:
    """Return the value variables that are not where samplers left them in the draw before, but for followers."""
    return [name for sampler in samplers if sampler.state.started for name in _moved(sampler, point, followers)]


def _moved(sampler: Any, point: Point, followers: Container[str]) -> list[str]:
    moved, start, first = [], 0, sampler.recipe.own.start or 0
    for name, part in sampler.slices:
        held = sampler.state.values[start : start + part.stop - part.start]
        start += held.size
        if start <= first or name in followers:
            continue
        if not np.array_equal(np.ravel(point[name])[part], held):
            moved.append(name)
    return moved


def moved_twice(moved: Iterable[str], names: Mapping[str, str]) -> str:
    """Say that another step moves variables too; empty if none does."""
    twice = listed(dict.fromkeys(names[name] for name in moved))
    if not twice:
        return ""
    return (
        f"RMHMC: another step moves {twice} too, so that a draw moves it twice. The draws are right, but take the "
        f"time of both steps. Leave {twice} out of the other step: PyMC itself finds a step for what RMHMC leaves."
    )
