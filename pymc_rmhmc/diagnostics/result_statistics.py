"""Reading results, whatever sampler made them: statistics, variables, and seconds of tuning, sampling and compiling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from pymc_rmhmc.errors import ConfigurationError, DataError

__all__ = [
    "LARGEST_RHAT", "Seconds", "Timeline", "Timing", "common_variables", "four_digits", "labels_of",
    "one_group_in_words", "posterior_of", "posteriors_of", "sampler_unknown", "seconds_of", "stacked", "statistic",
    "statistics_held", "timeline_of",
]  # fmt: skip

type Array = NDArray[np.float64]
type Timing = float | Sequence[float]

# Above it chains differ, and what is made of them is not trusted.
LARGEST_RHAT = 1.05
# From here on all digits before the point are shown.
LARGE = 1000.0


def one_group_in_words(idata: object) -> str:
    """Say that the whole result is needed where one of its groups is given; empty for anything else."""
    is_group = isinstance(idata, xr.DataTree) and not idata.children and bool(idata.data_vars)
    if is_group or isinstance(idata, xr.Dataset | xr.DataArray):
        return "It is one group of a result, such as idata.posterior: give the whole idata."
    return ""


def posterior_of(name: str, idata: xr.DataTree) -> xr.Dataset:
    """Return a result's posterior as a dataset, truths as 0 and 1, or raise the error that says what is missing."""
    children = getattr(idata, "children", {})
    if "posterior" not in children:
        group = one_group_in_words(idata) or "Give a DataTree such as pm.sample returns."
        raise DataError(f"{name} has no posterior group. {group}")
    dataset = idata.children["posterior"].dataset
    truths = [variable for variable in dataset.data_vars if dataset[variable].dtype == bool]
    return dataset.assign({variable: dataset[variable].astype(float) for variable in truths})


def posteriors_of(results: Mapping[str, xr.DataTree]) -> dict[str, xr.Dataset]:
    """Return the posteriors' datasets of all results by name, or raise the error that says what is wrong."""
    # A DataTree is a mapping too, of its groups.
    if not isinstance(results, Mapping) or isinstance(results, xr.DataTree | xr.Dataset):
        raise ConfigurationError(
            f'Results are given by name, such as {{"RMHMC": idata, "NUTS": other}}; got {type(results).__name__}.'
        )
    if not results:
        raise ConfigurationError("There is nothing to compare: give at least one result.")
    return {name: posterior_of(name, idata) for name, idata in results.items()}


def statistic(idata: xr.DataTree, name: str, sampler: int | None = None) -> np.ndarray | None:
    """Return one statistic (chain, draw) of a result, of the first of `statistics_held`; None if it has none."""
    return next(iter(statistics_held(idata, name, sampler)), None)


def statistics_held(idata: xr.DataTree, name: str, sampler: int | None = None) -> list[np.ndarray]:
    """Return one statistic (chain, draw) of each RMHMC of a result; empty if it has none.

    In a compound PyMC stacks a statistic that several samplers record along a last dimension, in the order of those
    samplers. `sampler` says which to take. By default these are the ones that report `failure`, if that is stacked of
    as many; else the first. (A `failure` that only one sampler records has lost that dimension, and with it which
    sampler it was: see `sampler_unknown`.)
    """
    values = stacked(idata, name)
    if values is None or values.ndim == 2:
        return [] if values is None else [values]
    n_samplers = values.shape[-1]
    if sampler is not None and not 0 <= sampler < n_samplers:
        raise ConfigurationError(f"sampler={sampler}: the result has the samplers 0 to {n_samplers - 1}.")
    if sampler is not None:
        return [values[..., sampler]]
    # PyMC stacks what several samplers record, and these alone: of other numbers of them the places differ.
    failures = None if sampler_unknown(idata, name) else stacked(idata, "failure")
    if failures is None:
        return [values[..., 0]]
    reports = np.flatnonzero(~np.isnan(failures.astype(float)).all(axis=(0, 1)))
    return [values[..., i] for i in reports.tolist() or [0]]


def stacked(idata: xr.DataTree, name: str, group: str = "sample_stats") -> np.ndarray | None:
    """Return a statistic as PyMC left it, (chain, draw) or with a last dimension of samplers; None if there is none."""
    if group not in idata.children or name not in idata.children[group].dataset:
        return None
    return np.asarray(idata.children[group].dataset[name].values)


def sampler_unknown(idata: xr.DataTree, name: str) -> bool:
    """Return whether a statistic is stacked over samplers and nothing says which of them is RMHMC."""
    values, failures = stacked(idata, name), stacked(idata, "failure")
    if values is None or values.ndim < 3:
        return False
    return failures is None or failures.shape[2:] != values.shape[2:]


def labels_of(name: str, shape: Sequence[int]) -> list[str]:
    """Name every scalar of a variable of this shape."""
    return [f"{name}{list(map(int, index)) if index else ''}" for index in np.ndindex(*shape)]


def common_variables(posteriors: dict[str, xr.Dataset], var_names: list[str] | str | None) -> list[str]:
    """Choose the variables to compare: those asked for, or all that every result has; their shapes must agree."""
    if isinstance(var_names, str):
        var_names = [var_names]
    names = list(var_names) if var_names is not None else list(map(str, next(iter(posteriors.values())).data_vars))
    kept = []
    for name in names:
        missing = [result for result, dataset in posteriors.items() if name not in dataset]
        if missing and var_names is not None:
            held = ", ".join(map(str, posteriors[missing[0]].data_vars))
            raise DataError(
                f'var_names: the posterior of {", ".join(missing)} has no variable "{name}". {missing[0]} has {held}.'
            )
        shapes = {dataset[name].shape[2:] for dataset in posteriors.values() if name in dataset}
        if len(shapes) > 1:
            raise DataError(f"{name} has different shapes in the results: {', '.join(map(str, sorted(shapes)))}.")
        if not missing:
            kept.append(name)
    if not kept:
        raise DataError("The results have no variable in common.")
    return kept


@dataclass(frozen=True)
class Seconds:
    """Wall-clock seconds of a result; nan where they are not known.

    They are those of tuning and sampling, and of sampling alone, without what was compiled meanwhile; and those of
    compiling before the chains and within them.
    """

    whole: float
    sampling: float
    compiling: float = float("nan")


@dataclass(frozen=True)
class Timeline:
    """When each chain made its draws, as if nothing had been compiled meanwhile.

    Chains share no processor at a time: one that began after another had ended is taken to have waited for it, and
    begins earlier by what that one compiled.
    """

    begins: Array  # (chain,): when the first draw after tuning began
    ends: Array  # (chain, draw): when each draw after tuning ended
    compiled_before: float  # seconds of compiling before any chain began: `RMHMC()` itself
    # Seconds that PyMC's clock has counted: of chains side by side the longest, of chains in turn the sum.
    compiled_within: float

    def seconds(self, n_draws: int | None = None) -> float:
        """Return the seconds in which any chain made its first draws, by default all: concurrent chains count once."""
        last = self.ends[:, -1] if n_draws is None else self.ends[:, n_draws - 1]
        total, reach = 0.0, -np.inf
        for begin, end in sorted(zip(self.begins.tolist(), last.tolist(), strict=True)):
            total += max(0.0, end - max(begin, reach))
            reach = max(reach, end)
        return total


def timeline_of(idata: xr.DataTree) -> Timeline | None:
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


def _compiled(idata: xr.DataTree, lengths: Array) -> tuple[float, Array, Array]:
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


def _of_all_steps(idata: xr.DataTree, name: str, group: str = "sample_stats") -> Array | None:
    """Sum a statistic (chain, draw) over the steps of a compound that record it; None where none does."""
    values = stacked(idata, name, group)
    if values is None:
        return None
    values = values.astype(float)
    return np.nansum(values, axis=-1) if values.ndim > 2 else values


def seconds_of(name: str, idata: xr.DataTree, given: Timing | None, notes: list[str]) -> Seconds:
    """Return the seconds of a result: those given, or those that PyMC recorded."""
    timeline = timeline_of(idata)
    compiling = float("nan") if timeline is None else timeline.compiled_before + timeline.compiled_within
    if given is not None:
        tuning, sampling = _checked_timing(name, given)
        if tuning is None:
            tuning, sampling = _divided(idata, sampling, name, notes)
        return Seconds(tuning + sampling, sampling, compiling)
    whole = idata.children["posterior"].attrs.get("sampling_time")
    if timeline is None:
        return _without_times(name, idata, whole, notes)
    sampling = timeline.seconds()
    if whole is None:
        notes.append(f"{name}: the seconds of its tuning are not known, and are not counted.")
        return Seconds(sampling, sampling, compiling)
    # PyMC's own total covers tuning, sampling, what it spends between the draws, and compiling within chains.
    rest = float(whole) - float(np.nan_to_num(timeline.compiled_within)) - sampling
    return Seconds(sampling + max(0.0, rest), sampling, compiling)


def _without_times(name: str, idata: xr.DataTree, whole: float | None, notes: list[str]) -> Seconds:
    """Return PyMC's total of a result whose draws have no times."""
    unknown = float("nan")
    if whole is None:
        notes.append(f"{name}: its draws have no times; give timings={{'{name}': seconds}}.")
        return Seconds(unknown, unknown)
    library = str(idata.children["posterior"].attrs.get("inference_library", ""))
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


def _divided(idata: xr.DataTree, seconds: float, name: str, notes: list[str]) -> tuple[float, float]:
    """Divide a whole run's seconds into tuning and sampling by their numbers of draws."""
    tuned = idata.children["posterior"].attrs.get("tuning_steps")
    if tuned is None:
        notes.append(f"{name}: the given seconds are counted as sampling; give (tuning, sampling) to divide them.")
        return 0.0, seconds
    draws = idata.children["posterior"].dataset.sizes["draw"]
    part = float(tuned) / (float(tuned) + draws)
    notes.append(f"{name}: the given seconds are divided between tuning and sampling by their draws.")
    return part * seconds, (1.0 - part) * seconds


def four_digits(value: object) -> str:
    """Write a value as text: whole numbers whole, others with four digits, and large ones without an exponent."""
    if not isinstance(value, float | np.floating) or not math.isfinite(value):
        return str(value)
    number = float(value)
    return f"{number:.0f}" if abs(number) >= LARGE else f"{number:.4g}"
