"""Results side by side: effective samples, seconds, agreement, failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import arviz as az
import numpy as np
import pandas as pd

from pymc_rmhmc.diagnostics.statistics import common_variables, posterior_of, statistic
from pymc_rmhmc.errors import ConfigurationError

__all__ = ["compare", "parameter_table"]

type Timing = float | tuple[float, float]


def compare(
    results: Mapping[str, Any],
    timings: Mapping[str, Timing] | None = None,
    *,
    var_names: list[str] | None = None,
    sampler: int | None = None,
    reference: str | None = None,
) -> pd.DataFrame:
    """Compare the results of different samplers on one model.

    Parameters
    ----------
    results : mapping of str to DataTree
        Such as ``{"RMHMC": idata, "NUTS": other}``.
    timings : mapping of str to float or (float, float), optional
        Wall-clock seconds of a whole run, or of its tuning and its sampling, for results that carry no
        times of their own (nutpie's) or where yours are better.
    var_names : list of str, optional
        The variables to judge by; by default all that every result has.
    sampler : int, optional
        Which sampler of a compound to read statistics from; by default RMHMC. In a compound PyMC stacks
        shared statistics along a last dimension.
    reference : str, optional
        The result that means are held against; by default the last.

    Returns
    -------
    pandas.DataFrame
        A row for each result. Seconds are wall-clock: chains that ran side by side count once. ``ESS/s`` is
        the smallest ESS, bulk or tail, over all parameters, divided by the seconds with tuning;
        ``ESS/s (sampling)`` leaves tuning out. ``mean difference`` is the largest difference of posterior
        means from the reference, in Monte Carlo standard errors of the difference.
        ``df.attrs["notes"]`` says what could not be known.

    Raises
    ------
    ConfigurationError
        If there is nothing to compare, or the reference or a timing's name is unknown.
    DataError
        If a result has no posterior, or the results share no variable.

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization, folding, and localization:
    an improved R-hat.

    Examples
    --------
    >>> from pymc_rmhmc import compare
    >>> compare({"RMHMC": idata, "NUTS": other}, timings={"NUTS": 12.3})  # doctest: +SKIP
    """
    if not results:
        raise ConfigurationError("There is nothing to compare: give at least one result.")
    timings = dict(timings or {})
    reference = list(results)[-1] if reference is None else reference
    for name in (reference, *timings):
        if name not in results:
            raise ConfigurationError(f'"{name}" is not among the results: {", ".join(results)}.')
    posteriors = {name: posterior_of(name, idata) for name, idata in results.items()}
    names = common_variables(posteriors, var_names)
    tables = {name: parameter_table(dataset[names]) for name, dataset in posteriors.items()}
    notes: list[str] = []
    rows = {}
    for name, idata in results.items():
        tuning, sampling = _seconds(name, idata, timings.get(name), sampler, notes)
        rows[name] = _row(idata, tables[name], tables[reference], tuning, sampling, sampler)
        if name == reference:
            rows[name]["mean difference"] = np.nan
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.attrs["notes"] = notes
    return frame


def parameter_table(dataset: Any) -> pd.DataFrame:
    """Mean, Monte Carlo error, ESS and R-hat of every scalar parameter of a posterior's dataset."""
    parts = []
    for name in dataset.data_vars:
        one = dataset[[name]]
        columns = {
            "mean": one.mean(("chain", "draw")),
            "mcse": az.mcse(one),
            "bulk": az.ess(one, method="bulk"),
            "tail": az.ess(one, method="tail"),
            "rhat": az.rhat(one),
        }
        flat = {key: np.ravel(value[name].values) for key, value in columns.items()}
        labels = [f"{name}{list(map(int, i)) if i else ''}" for i in np.ndindex(one[name].shape[2:])]
        parts.append(pd.DataFrame(flat, index=labels))
    return pd.concat(parts)


def _row(
    idata: Any, table: pd.DataFrame, against: pd.DataFrame, tuning: float, sampling: float, sampler: int | None
) -> dict[str, Any]:
    """One result's figures."""
    sizes = idata["posterior"].dataset.sizes
    # A parameter that never moved (a constant) has no ESS; it is no parameter.
    ess = table[["bulk", "tail"]].min()
    smallest = float(ess.min())
    total = tuning + sampling
    error = np.hypot(table["mcse"], against["mcse"])
    difference = (table["mean"] - against["mean"]).abs() / error.where(error > 0)
    return {
        "chains": int(sizes["chain"]),
        "draws": int(sizes["draw"]),
        "seconds": total,
        "seconds (sampling)": sampling,
        "ESS bulk min": float(ess["bulk"]),
        "ESS tail min": float(ess["tail"]),
        "ESS bulk median": float(table["bulk"].median()),
        "ESS tail median": float(table["tail"].median()),
        "ESS/s": smallest / total,
        "ESS/s (sampling)": smallest / sampling,
        "R-hat max": float(table["rhat"].max()),
        "E-BFMI min": _ebfmi(statistic(idata, "energy", sampler)),
        "failures": _failures(idata, sampler),
        "mean difference": float(difference.max()),
    }


def _ebfmi(energy: np.ndarray | None) -> float:
    """The smallest energy Bayesian fraction of missing information over chains."""
    if energy is None or energy.shape[1] < 2:
        return float("nan")
    energy = energy.astype(float)
    return float((np.square(np.diff(energy, axis=1)).mean(axis=1) / energy.var(axis=1)).min())


def _failures(idata: Any, sampler: int | None) -> float:
    """Failed trajectories, or divergences of samplers that do not count failures."""
    for name in ("failure", "diverging"):
        values = statistic(idata, name, sampler)
        if values is not None:
            return int((np.nan_to_num(values.astype(float)) > 0).sum())
    return float("nan")


def _seconds(
    name: str, idata: Any, given: Timing | None, sampler: int | None, notes: list[str]
) -> tuple[float, float]:
    """Seconds of tuning and of sampling: those given, or those that PyMC recorded."""
    if given is not None:
        if isinstance(given, tuple):
            return float(given[0]), float(given[1])
        return _divided(idata, float(given), name, notes)
    start = statistic(idata, "perf_counter_start", sampler)
    length = statistic(idata, "perf_counter_diff", sampler)
    if start is None or length is None:
        notes.append(f"{name}: its result has no times of its own; give timings={{'{name}': seconds}}.")
        return float("nan"), float("nan")
    start, length = start.astype(float), length.astype(float)
    sampling = _wall(start, start + length)
    whole = idata["posterior"].attrs.get("sampling_time")
    if whole is None:
        notes.append(f"{name}: the seconds of its tuning are not known, and are not counted.")
        return 0.0, sampling
    # PyMC's own total covers tuning, sampling and what it spends between the draws.
    return max(0.0, float(whole) - sampling), sampling


def _wall(starts: np.ndarray, ends: np.ndarray) -> float:
    """Wall-clock seconds in which any chain was sampling: overlapping chains count once."""
    spans = sorted(zip(starts[:, 0].tolist(), ends[:, -1].tolist(), strict=True))
    total, reach = 0.0, -np.inf
    for begin, end in spans:
        total += max(0.0, end - max(begin, reach))
        reach = max(reach, end)
    return total


def _divided(idata: Any, seconds: float, name: str, notes: list[str]) -> tuple[float, float]:
    """A whole run's seconds, divided into tuning and sampling by their numbers of draws."""
    tuned = idata["posterior"].attrs.get("tuning_steps")
    if tuned is None:
        notes.append(f"{name}: the given seconds are counted as sampling; give (tuning, sampling) to divide them.")
        return 0.0, seconds
    draws = idata["posterior"].dataset.sizes["draw"]
    part = float(tuned) / (float(tuned) + draws)
    notes.append(f"{name}: the given seconds are divided between tuning and sampling by their draws.")
    return part * seconds, (1.0 - part) * seconds
