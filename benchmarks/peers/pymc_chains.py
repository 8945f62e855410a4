"""``pm.sample`` with a step method, two chains one after another, stopped at a deadline."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

from benchmarks.deadline import Deadline

__all__ = ["CHAINS", "PymcRun", "Watch", "collected", "sample"]

CHAINS = 2


@dataclass
class PymcRun:
    """Two chains of PyMC.

    Attributes
    ----------
    draws : (chain, draw, n) array
        Of tuning where the deadline came before any other draw; cut to the shorter chain if one was stopped.
    tuned, drawn : dict of (draws of all chains,) arrays
        The sampler's statistics in tuning and after.
    ends : list of tuple
        Every chain's statistics themselves, (tuning, sampling).
    seconds : float
        ``pm.sample`` from beginning to end.
    stopped : str
        As in `Outcome`.
    """

    draws: np.ndarray
    tuned: dict[str, np.ndarray]
    drawn: dict[str, np.ndarray]
    ends: list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]
    seconds: float
    stopped: str


class Watch:
    """PyMC's callback: keeps the traces, and ends a chain whose part of the time is over."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._parts: dict[int, Deadline] = {}
        self.traces: dict[int, Any] = {}
        self.n_tuned: dict[int, int] = {}
        self.cut: dict[int, bool] = {}

    def __call__(self, trace: Any, draw: Any) -> None:
        chain = draw.chain
        if chain not in self._parts:
            self._parts[chain] = self._deadline.share(CHAINS - chain)
            self.traces[chain], self.n_tuned[chain], self.cut[chain] = trace, 0, False
        self.n_tuned[chain] += bool(draw.tuning)
        if self._parts[chain].passed and not draw.is_last:
            self.cut[chain] = True
            raise KeyboardInterrupt


def sample(
    step: Any, parameters: Sequence[str], draws: int, tune: int | None, seed: int, deadline: Deadline,
    names: Sequence[str], start: dict[str, np.ndarray] | None = None, first_tune: int | None = 2,
) -> PymcRun:  # fmt: skip
    """Run, in the model in context; `names` are the statistics that are wanted.

    What there is to compile is compiled in a run of `first_tune` tuning draws (None for the step's own number) before.
    """
    pm.sample(draws=2, tune=first_tune, chains=1, step=step, random_seed=0, progressbar=False)
    watch = Watch(deadline)
    deadline.begin()
    started = time.perf_counter()
    pm.sample(
        draws=draws, tune=tune, chains=CHAINS, cores=1, step=step, initvals=start, random_seed=seed,
        progressbar=False, compute_convergence_checks=False, discard_tuned_samples=False, callback=watch,
    )  # fmt: skip
    return collected(watch, parameters, names, time.perf_counter() - started)


def collected(watch: Watch, parameters: Sequence[str], names: Sequence[str], seconds: float) -> PymcRun:
    """Values and statistics from the chains' own traces, which hold them however a chain ended."""
    lengths = {chain: len(trace) - watch.n_tuned[chain] for chain, trace in watch.traces.items()}
    in_tuning = min(lengths.values()) == 0
    chains, ends = [], []
    for chain, trace in sorted(watch.traces.items()):
        n_tuned = watch.n_tuned[chain]
        columns = [np.asarray(trace.get_values(name)) for name in parameters]
        values = np.concatenate([c.reshape(c.shape[0], -1) for c in columns], axis=-1)
        chains.append(values if in_tuning else values[n_tuned:])
        held = {name: np.asarray(trace.get_sampler_stats(name)).ravel() for name in names}
        ends.append(({k: v[:n_tuned] for k, v in held.items()}, {k: v[n_tuned:] for k, v in held.items()}))
    shortest = min(len(values) for values in chains)
    stopped = "tuning" if in_tuning else "sampling" if any(watch.cut.values()) else ""
    tuned, drawn = ({name: np.concatenate([end[i][name] for end in ends]) for name in names} for i in range(2))
    return PymcRun(np.stack([values[:shortest] for values in chains]), tuned, drawn, ends, seconds, stopped)
