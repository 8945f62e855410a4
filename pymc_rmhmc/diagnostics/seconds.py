"""How long a result took: seconds of tuning, of sampling and of compiling, told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.diagnostics.result_statistics import stacked
from pymc_rmhmc.errors import ConfigurationError

__all__ = ["Seconds", "Timeline", "Timing", "seconds_of", "timeline_of"]

type Array = NDArray[np.float64]
type Timing = float | Sequence[float]


@dataclass(frozen=True)
class Seconds:
    """Wall-clock seconds of a result; nan where they are not known.

    Attributes
    ----------
    whole, sampling : float
        Tuning and sampling, and sampling alone, without what was compiled meanwhile.
    compiling : float
        Before the chains and within them.
    """

    whole: float
    sampling: float
    compiling: float = float("nan")


@dataclass(frozen=True)
class Timeline:
    """When each chain made its draws, as if nothing had been compiled meanwhile.

    Chains share no processor at a time: one that began after another had ended is taken to have waited for it, and
    begins earlier by what that one compiled.

    Attributes
    ----------
    begins : (chain,) array
        When the first draw after tuning began.
    ends : (chain, draw) array
        When each draw after tuning ended.
    compiled_before : float
        Seconds of compiling before any chain began: `RMHMC()` itself.
    compiled_within : float
        Seconds that PyMC's clock has counted: of chains side by side the longest, of chains in turn the sum.
    """

    begins: Array
    ends: Array
    compiled_before: float
    compiled_within: float

    def seconds(self, n_draws: int | None = None) -> float:
        """Return the seconds in which any chain made its first draws, by default all: concurrent chains count once."""
        last = self.ends[:, -1] if n_draws is None else self.ends[:, n_draws - 1]
        total, reach = 0.0, -np.inf
        for begin, end in sorted(zip(self.begins.tolist(), last.tolist(), strict=True)):
            total += max(0.0, end - max(begin, reach))
            reach = max(reach, end)
        return total


def timeline_of(idata: Any) -> Timeline | None:
    """Return when a result's draws were made; None if it has not recorded that."""
    start, length = stacked(idata, "perf_counter_start"), stacked(idata, "perf_counter_diff")
    if start is None or length is None:
        return None
    start, end = start.astype(float), (start + length).astype(float)
    if start.ndim > 2:
        # In a compound a draw begins with its first sampler and ends with its last, whoever kept no times.
        start, end = np.nanmin(start, axis=-1), np.nanmax(end, axis=-1)
    before, whole, within = _compiled(idata, end - start)
    begins, ends = start[:, 0].copy(), end - within
    cores: list[list[float]] = []  # of each: when it is free, and what was compiled on it so far
    for chain in np.argsort(begins, kind="stable").tolist():
        core = next((c for c in cores if c[0] <= start[chain, 0]), None)
        if core is None:
            core = [0.0, 0.0]
            cores.append(core)
        earlier = core[1] + (whole[chain] - within[chain, -1])
        begins[chain] -= earlier
        ends[chain] -= earlier
        core[:] = [end[chain, -1], core[1] + whole[chain]]
    return Timeline(begins, ends, before, max(core[1] for core in cores) if np.isfinite(before) else float("nan"))


def _compiled(idata: Any, lengths: Array) -> tuple[float, Array, Array]:
    """Return seconds of compiling before all chains, in each (chain,), and up to each draw after tuning (chain, draw).

    The first is nan where none are recorded, and the others then are 0.
    """
    total, within = (_of_all_steps(idata, name) for name in ("compile_seconds", "compile_seconds_in_chain"))
    if total is None or within is None or not (np.isfinite(total).all() and np.isfinite(within).all()):
        return float("nan"), np.zeros(len(lengths)), np.zeros_like(lengths)
    # What a later chain of the same process finds compiled is no part of what came before all of them.
    before = float((total - within)[:, 0].min())
    tuned = _of_all_steps(idata, "compile_seconds_in_chain", "warmup_sample_stats")
    if tuned is not None and tuned.shape[1]:
        at_start = tuned[:, -1]
    else:
        # The first draw's is that of tuning, but for what makes the draw itself longer than others.
        excess = np.clip(lengths[:, 0] - np.median(lengths, axis=1), 0.0, None)
        at_start = within[:, 0] - np.minimum(excess, within[:, 0])
    return before, within[:, -1], within - at_start[:, None]


def _of_all_steps(idata: Any, name: str, group: str = "sample_stats") -> Array | None:
    """Sum a statistic (chain, draw) over the steps of a compound that record it; None where none does."""
    values = stacked(idata, name, group)
    if values is None:
        return None
    values = values.astype(float)
    return np.nansum(values, axis=-1) if values.ndim > 2 else values


def seconds_of(name: str, idata: Any, given: Timing | None, notes: list[str]) -> Seconds:
    """Return the seconds of a result: those given, or those that PyMC recorded."""
    timeline = timeline_of(idata)
    compiling = float("nan") if timeline is None else timeline.compiled_before + timeline.compiled_within
    if given is not None:
        tuning, sampling = _checked_timing(name, given)
        if tuning is None:
            tuning, sampling = _divided(idata, sampling, name, notes)
        return Seconds(tuning + sampling, sampling, compiling)
    whole = idata["posterior"].attrs.get("sampling_time")
    if timeline is None:
        return _without_times(name, idata, whole, notes)
    sampling = timeline.seconds()
    if whole is None:
        notes.append(f"{name}: the seconds of its tuning are not known, and are not counted.")
        return Seconds(sampling, sampling, compiling)
    # PyMC's own total covers tuning, sampling, what it spends between the draws, and compiling within chains.
    rest = float(whole) - float(np.nan_to_num(timeline.compiled_within)) - sampling
    return Seconds(sampling + max(0.0, rest), sampling, compiling)


def _without_times(name: str, idata: Any, whole: Any, notes: list[str]) -> Seconds:
    """Return PyMC's total of a result whose draws have no times."""
    unknown = float("nan")
    if whole is None:
        notes.append(f"{name}: its draws have no times; give timings={{'{name}': seconds}}.")
        return Seconds(unknown, unknown)
    library = str(idata["posterior"].attrs.get("inference_library", ""))
    with_compiling = {"nutpie": "without compiling", "numpyro": "with compiling", "blackjax": "with compiling"}
    notes.append(
        f"{name}: its draws have no times. `seconds` are PyMC's for all of it, "
        f"{with_compiling.get(library, 'perhaps with compiling')}. To tell tuning from sampling, give "
        f"timings={{'{name}': (tuning, sampling)}}."
    )
    return Seconds(float(whole), unknown)


def _checked_timing(name: str, given: Timing) -> tuple[float | None, float]:
    """Check that given seconds make sense; return (tuning, sampling), or (None, whole run)."""
    try:
        parts = np.atleast_1d(np.asarray(given, dtype=float))
    except (TypeError, ValueError):
        parts = np.array([])
    if isinstance(given, str) or parts.shape not in {(1,), (2,)} or (np.ndim(given) and parts.size == 1):
        raise ConfigurationError(f'timings["{name}"] must be seconds or (tuning, sampling), got {given!r}.')
    if not np.isfinite(parts).all() or parts.min() < 0 or parts[-1] == 0:
        raise ConfigurationError(f'timings["{name}"] must be positive, finite seconds, got {given!r}.')
    return (None if parts.size == 1 else float(parts[0])), float(parts[-1])


def _divided(idata: Any, seconds: float, name: str, notes: list[str]) -> tuple[float, float]:
    """Divide a whole run's seconds into tuning and sampling by their numbers of draws."""
    tuned = idata["posterior"].attrs.get("tuning_steps")
    if tuned is None:
        notes.append(f"{name}: the given seconds are counted as sampling; give (tuning, sampling) to divide them.")
        return 0.0, seconds
    draws = idata["posterior"].dataset.sizes["draw"]
    part = float(tuned) / (float(tuned) + draws)
    notes.append(f"{name}: the given seconds are divided between tuning and sampling by their draws.")
    return part * seconds, (1.0 - part) * seconds
