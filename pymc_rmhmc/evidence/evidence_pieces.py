"""Independent repetitions of an estimate of the evidence, on any executor."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from scipy import stats

from pymc_rmhmc.errors import EvidenceError
from pymc_rmhmc.evidence.evidence_methods import Settings, estimates_of
from pymc_rmhmc.evidence.evidence_models import read_model
from pymc_rmhmc.evidence.methods.estimate import Estimate
from pymc_rmhmc.gathering import check_executor, gather
from pymc_rmhmc.steps.executors import pack
from pymc_rmhmc.steps.threads import BlasThreads

__all__ = ["REPETITIONS", "repeated"]

type Array = NDArray[np.float64]
type Found = list[tuple[str, str, Estimate]]

REPETITIONS, ATTEMPTS = 4, 3
# Repetitions that differ by more than their errors so rarely do so for a reason.
LEAST_PROBABLE = 1e-4


def estimate_once(blob: bytes, number: int, seed: int) -> Found:
    """Estimate once in a worker.

    Parameters
    ----------
    blob : bytes
        Model, settings and draws, pickled.
    number : int
        Of the repetition.
    seed : int
        Its seed.
    """
    model, settings, options = pickle.loads(blob)  # noqa: S301 - what this very run has packed
    threads = BlasThreads(1)
    threads.hold()
    try:
        with np.errstate(all="ignore"):
            return estimates_of(read_model(model), settings, options["draws"], np.random.default_rng(seed), None)
    finally:
        threads.release()


def repeated(
    model: pm.Model, settings: Settings, draws: Array | None, seeds: Sequence[int], executor: Any,
    say: Callable[[str], None],
) -> Found:  # fmt: skip
    """Estimate as many times as there are seeds, each with an error that the mean may have, and take the mean.

    Raises
    ------
    EvidenceError
        If the repetitions differ by more than their errors.
    Other errors
        As one estimate, and as `pymc_rmhmc.gathering.gather`.
    """
    pools = check_executor(executor)
    each = replace(settings, target_error=settings.target_error * math.sqrt(len(seeds)))
    blob, finished = pack(model, each, {"draws": draws}), []

    def on_finished(number: int, result: Any) -> None:
        finished.append(number)
        say(f"{len(finished)} of {len(seeds)} repetitions")

    tasks = [(blob, number, seed) for number, seed in enumerate(seeds)]
    results = gather(pools, estimate_once, tasks, attempts=ATTEMPTS, noun="repetition", on_finished=on_finished)
    return [_merged(parts) for parts in zip(*results, strict=True)]


def _merged(parts: Sequence[tuple[str, str, Estimate]]) -> tuple[str, str, Estimate]:
    """Average repetitions; raise an error if they differ by more than their errors."""
    name, method, first = parts[0]
    values, errors = (np.array([getattr(e, n) for *_, e in parts]) for n in ("log_evidence", "standard_error"))
    distance = float((((values - values.mean()) / np.maximum(errors, 1e-12)) ** 2).sum())
    if stats.chi2(len(parts) - 1).sf(distance) < LEAST_PROBABLE:
        shown = ", ".join(f"{v:.2f} ± {e:.2f}" for v, e in zip(values, errors, strict=True))
        raise EvidenceError(
            f"Repetitions of the estimate differ by more than their errors: {shown}. The posterior may have several "
            'modes: give method="tempering", or draws= of a long run.'
        )
    diagnostics: dict[str, Any] = {
        key: float(np.mean([e.diagnostics[key] for *_, e in parts]))
        for key, value in first.diagnostics.items()
        if np.ndim(value) == 0 and all(key in e.diagnostics for *_, e in parts)
    }
    diagnostics |= {"repetition_estimate": values, "repetition_error": errors}
    return name, method, Estimate(float(values.mean()), float(np.sqrt((errors**2).sum())) / len(parts), diagnostics)
