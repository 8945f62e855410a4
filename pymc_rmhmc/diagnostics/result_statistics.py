"""Reading statistics out of results, whatever sampler made them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from pymc_rmhmc.errors import ConfigurationError, DataError

__all__ = [
    "common_variables",
    "one_group_in_words",
    "posterior_of",
    "posteriors_of",
    "sampler_unknown",
    "stacked",
    "statistic",
    "statistics_held",
]


def one_group_in_words(idata: Any) -> str:
    """Say that the whole result is needed where one of its groups is given; empty for anything else."""
    is_group = isinstance(idata, xr.DataTree) and not idata.children and bool(idata.data_vars)
    if is_group or isinstance(idata, xr.Dataset | xr.DataArray):
        return "It is one group of a result, such as idata.posterior: give the whole idata."
    return ""


def posterior_of(name: str, idata: Any) -> Any:
    """Return a result's posterior as a dataset, truths as 0 and 1, or raise the error that says what is missing."""
    children = getattr(idata, "children", {})
    if "posterior" not in children:
        group = one_group_in_words(idata) or "Give a DataTree such as pm.sample returns."
        raise DataError(f"{name} has no posterior group. {group}")
    dataset = idata["posterior"].dataset
    truths = [variable for variable in dataset.data_vars if dataset[variable].dtype == bool]
    return dataset.assign({variable: dataset[variable].astype(float) for variable in truths})


def posteriors_of(results: Any) -> dict[str, Any]:
    """Return the posteriors' datasets of all results by name, or raise the error that says what is wrong."""
    # A DataTree is a mapping too, of its groups.
    if not isinstance(results, Mapping) or isinstance(results, xr.DataTree | xr.Dataset):
        raise ConfigurationError(
            f'Results are given by name, such as {{"RMHMC": idata, "NUTS": other}}; got {type(results).__name__}.'
        )
    if not results:
        raise ConfigurationError("There is nothing to compare: give at least one result.")
    return {name: posterior_of(name, idata) for name, idata in results.items()}


def statistic(idata: Any, name: str, sampler: int | None = None, group: str = "sample_stats") -> np.ndarray | None:
    """Return one statistic (chain, draw) of a result; None if it has none.

    Parameters
    ----------
    idata : DataTree
        A result.
    name : str
        ArviZ's name of the statistic.
    sampler : int, optional
        In a compound PyMC stacks a statistic that several samplers record along a last dimension, in the
        order of those samplers: which to take. By default the one that reports `failure`, if that is
        stacked of as many; else the first. (A `failure` that only one sampler records has lost that dimension,
        and with it which sampler it was: see `sampler_unknown`.)
    group : str
        "sample_stats" or "warmup_sample_stats".
    """
    values = stacked(idata, name, group)
    if values is None or values.ndim == 2:
        return values
    index = _samplers_held(idata, values.shape[-1], group)[0] if sampler is None else sampler
    if not 0 <= index < values.shape[-1]:
        raise ConfigurationError(f"sampler={sampler}: the result has the samplers 0 to {values.shape[-1] - 1}.")
    return values[..., index]


def statistics_held(idata: Any, name: str) -> list[np.ndarray]:
    """Return one statistic (chain, draw) of each sampler that reports `failure`, or of the first if none is known."""
    values = stacked(idata, name)
    if values is None:
        return []
    if values.ndim == 2:
        return [values]
    return [values[..., i] for i in _samplers_held(idata, values.shape[-1], "sample_stats")]


def stacked(idata: Any, name: str, group: str = "sample_stats") -> np.ndarray | None:
    """Return a statistic as PyMC left it, (chain, draw) or with a last dimension of samplers; None if there is none."""
    if group not in idata.children or name not in idata[group].dataset:
        return None
    return np.asarray(idata[group].dataset[name].values)


def sampler_unknown(idata: Any, name: str) -> bool:
    """Return whether a statistic is stacked over samplers and nothing says which of them is RMHMC."""
    if "sample_stats" not in idata.children:
        return False
    dataset = idata["sample_stats"].dataset
    if name not in dataset or dataset[name].ndim < 3:
        return False
    return "failure" not in dataset or dataset["failure"].shape[2:] != dataset[name].shape[2:]


def _samplers_held(idata: Any, n_samplers: int, group: str) -> list[int]:
    """Return the samplers of a compound that report failures; the first if none does."""
    dataset = idata[group].dataset
    # PyMC stacks what several samplers record, and these alone: of other numbers of them the places differ.
    if "failure" not in dataset or dataset["failure"].shape[2:] != (n_samplers,):
        return [0]
    failures = dataset["failure"].values.astype(float)
    return [i for i in range(n_samplers) if not np.isnan(failures[..., i]).all()] or [0]


def common_variables(posteriors: dict[str, Any], var_names: list[str] | str | None) -> list[str]:
    """Choose the variables to compare: those asked for, or all that every result has; their shapes must agree."""
    if isinstance(var_names, str):
        var_names = [var_names]
    names = list(var_names) if var_names is not None else list(next(iter(posteriors.values())).data_vars)
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
