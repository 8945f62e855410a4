"""What is reported of draws, with the names and types of PyMC's NUTS and our own, and what is said once a run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Container, Iterable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pymc as pm
from pymc.stats.convergence import SamplerWarning, WarningType

from pymc_rmhmc.diagnostics.failures import failure_advice
from pymc_rmhmc.errors import Failure, listed
from pymc_rmhmc.kernels.kernel import Transition

__all__ = [
    "STATISTICS", "WATCHED", "FailureCount", "RunNotices", "block_statistics", "followers_of", "moved_by_others",
    "moved_twice", "too_short_tuning",
]  # fmt: skip

type Point = dict[str, np.ndarray]

# A key that NUTS has too must have its dtype: in a compound PyMC stacks them.
STATISTICS: dict[str, tuple[Any, Any]] = {
    "mean_tree_accept": (np.float64, []),
    "tree_size": (np.float64, []),
    "model_logp": (np.float64, []),
    "energy": (np.float64, []),
    "energy_error": (np.float64, []),
    "diverging": (bool, []),
    "step_size": (np.float64, []),
    "step_size_bar": (np.float64, []),
    "perf_counter_start": (np.float64, []),
    "perf_counter_diff": (np.float64, []),
    "process_time_diff": (np.float64, []),
    "compile_seconds": (np.float64, []),
    "compile_seconds_in_chain": (np.float64, []),
    "failure": (np.int64, []),
    "n_failures": (np.int64, []),
    "reversal_error": (np.float64, []),
    "n_solver_iter": (np.int64, []),
    "n_metric_evals": (np.int64, []),
    "n_emulator_divergences": (np.int64, []),
    "log_weight": (np.float64, []),
    "accepted": (np.float64, []),  # as Metropolis has it
    "warning": (SamplerWarning, None),
}

# These speak of the posterior's geometry, and PyMC's advice on divergences fits them.
ALWAYS_DIVERGING = {Failure.ENERGY, Failure.NON_FINITE, Failure.NON_REVERSIBLE}
# The others (a solver that gave up, a metric without a factor) are rejections like any other while rare.
ALARM_RATE = 0.05
ALARM_MIN_DRAWS = 20


def block_statistics(outcome: Transition[Any]) -> dict[str, Any]:
    """Return the statistics of one draw of all blocks."""
    return {
        "mean_tree_accept": outcome.acceptance,
        "tree_size": float(outcome.n_steps),
        "energy": outcome.energy,
        "energy_error": outcome.energy_error,
        "failure": int(outcome.failure),
        "reversal_error": outcome.reversal_error,
        "n_solver_iter": outcome.n_solver_iter,
        "n_metric_evals": outcome.n_metric_evals,
        "n_emulator_divergences": outcome.n_emulator_divergences,
        "accepted": float(outcome.accepted),
    }


class FailureCount:
    """Failures of the draws after tuning, by cause, and the summary at the end of the chain."""

    def __init__(self) -> None:
        self.n_draws = self.total = 0  # after tuning, and how many of them failed
        self.counts: dict[Failure, int] = {}

    def add(self, failure: Failure) -> None:
        """Count one draw after tuning."""
        self.n_draws += 1
        if failure:
            self.total += 1
            self.counts[failure] = self.counts.get(failure, 0) + 1

    def diverging(self, failure: Failure) -> bool:
        """Return whether a draw that failed is a divergence: see `ALWAYS_DIVERGING` and `ALARM_RATE`."""
        if failure in ALWAYS_DIVERGING:
            return True
        return self.n_draws >= ALARM_MIN_DRAWS and self.counts.get(failure, 0) > ALARM_RATE * self.n_draws

    def warning(
        self, refused: str = "", remarks: str = "", step_size: float | None = None
    ) -> SamplerWarning | None:
        """Return the message for the end of a chain; None if all went well.

        `refused`: where a covariance was last not positive definite.
        `remarks`: further messages, on causes of slow sampling.
        `step_size`: the step size that the user gave; None if it is adapted.
        """
        advice = failure_advice(self.counts, self.n_draws, step_size)
        level = "info" if advice is None and not remarks else "warn"
        lost = self.counts.get(Failure.NOT_POSITIVE_DEFINITE, 0)
        if advice is None and lost:
            advice = (
                f"RMHMC: {lost} of {self.n_draws} trajectories failed because a covariance or metric was not positive "
                "definite. This is harmless while it is rare."
            )
        if advice is not None and refused and lost:
            advice += f" The covariance was last not positive definite at {refused}."
        said = "\n".join(filter(None, (advice, remarks)))
        return SamplerWarning(WarningType.BAD_PARAMS, said, level) if said else None


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
        self.waiting: list[str] = []

    def begin_run(self) -> None:
        """Let everything be said again."""
        self._said.clear()

    def add(self, subject: str, words: str) -> None:
        """Say something of a subject with the next draw, unless it has been said, or another chain says it."""
        process = multiprocessing.current_process().name
        if words and subject not in self._said and (not process.startswith(WORKER) or process == FIRST_WORKER):
            self._said.add(subject)
            self.waiting.append(words)

    def take(self) -> str:
        """Return what is to be said now."""
        said, self.waiting = "\n".join(self.waiting), []
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
    moved, start, first = [], 0, sampler.density.own.start or 0
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
