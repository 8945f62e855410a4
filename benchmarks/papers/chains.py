"""Chains of any of PyMC's step methods, and of nutpie: the processor's seconds, and what the draws are worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import arviz as az
import numpy as np
import pymc as pm

from benchmarks.deadline import Deadline
from benchmarks.outcome import merged
from benchmarks.papers.paper import Run
from benchmarks.peers.nuts import nutpie_chains
from benchmarks.peers.pymc_chains import CHAINS, Watch, collected

__all__ = ["measure_nutpie", "measure_step", "summary"]


class Clock(Watch):
    """Counts the processor's seconds of tuning and of draws, without compiling, and how often a step accepts."""

    def __init__(self, deadline: Deadline) -> None:
        super().__init__(deadline)
        self.seconds = [0.0, 0.0]
        self.accepted: list[float] = []
        self._before: dict[int, tuple[float, float]] = {}

    def __call__(self, trace: Any, draw: Any) -> None:
        now, reported = time.thread_time(), _reported(draw.stats)
        before, compiled = self._before.get(draw.chain, (now - reported["process_time_diff"], 0.0))
        # Seconds of compiling are those on the wall: they count by their share of the draw's.
        share = (reported["compile_seconds_in_chain"] - compiled) / max(1e-9, reported["perf_counter_diff"])
        self.seconds[not draw.tuning] += (now - before) * (1.0 - min(1.0, share))
        if not draw.tuning:
            self.accepted.append(_acceptance(draw.stats))
        self._before[draw.chain] = time.thread_time(), reported["compile_seconds_in_chain"]
        super().__call__(trace, draw)


def _reported(stats: Sequence[dict]) -> dict[str, float]:
    """Seconds of a draw that its steps report, added up; those of a step that reports none are not known."""
    names = ("process_time_diff", "perf_counter_diff", "compile_seconds_in_chain")
    return {name: float(sum(np.sum(each.get(name, 0.0)) for each in stats)) for name in names}


def _acceptance(stats: Sequence[dict]) -> float:
    """What the last of several steps says of its acceptance: a probability, or whether it has moved."""
    said = [each[n] for each in stats for n in ("mean_tree_accept", "accepted", "accept") if n in each]
    return float(np.mean(said[-1])) if said else float("nan")


def measure_step(
    model: pm.Model, make: Callable[[], Any], names: Sequence[str], run: Run, tune: int | None,
    starts: Any = None,
) -> tuple[np.ndarray, dict]:  # fmt: skip
    """Run two chains; return the draws (chain, draw, n) and a record without them.

    A run of two draws compiles before the clock starts. What a step compiles later, and reports, is not counted.
    """
    common: dict[str, Any] = {"cores": 1, "progressbar": False, "compute_convergence_checks": False}
    deadline = Deadline(run.limit)
    watch = Clock(deadline)
    with model:
        step = make()
        pm.sample(draws=2, tune=2, chains=1, step=step, random_seed=0, initvals=starts and starts[0], **common)
        deadline.begin()
        pm.sample(
            draws=run.draws, tune=tune, chains=CHAINS, step=step, random_seed=100 + run.seed, callback=watch,
            initvals=starts, discard_tuned_samples=False, **common,
        )  # fmt: skip
    made = collected(watch, names, (), float("nan"))
    tuning, sampling = watch.seconds
    return made.draws, {
        "draws": made.draws.shape[1], "tuning": tuning, "sampling": sampling, "stopped": made.stopped,
        "acceptance": float(np.mean(watch.accepted)) if watch.accepted else float("nan"),
    }  # fmt: skip


def measure_nutpie(model: pm.Model, names: Sequence[str], run: Run) -> tuple[np.ndarray, dict]:
    """Return the same of nutpie."""
    made = merged(nutpie_chains(model, tuple(names), run.seed, Deadline(run.limit), run.draws, time.process_time))
    return made.draws, {
        "draws": made.draws.shape[1], "tuning": made.tuning, "sampling": made.sampling, "stopped": made.stopped,
        "acceptance": float("nan"),
    }  # fmt: skip


def summary(draws: np.ndarray) -> dict:
    """Return each value's bulk ESS, mean, sd and error of the mean, and the largest R-hat, of (chain, draw, n)."""
    data = az.from_dict({"posterior": {"q": draws}})
    return {
        "ess": [float(v) for v in np.atleast_1d(az.ess(data, method="bulk")["q"])],
        "mean": [float(v) for v in draws.mean(axis=(0, 1))],
        "sd": [float(v) for v in draws.std(axis=(0, 1))],
        "mcse": [float(v) for v in np.atleast_1d(az.mcse(data, method="mean")["q"])],
        "rhat": float(az.rhat(data)["q"].max()),
    }  # fmt: skip
