"""Results side by side: effective samples, seconds, agreement, failures."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr

from pymc_rmhmc.diagnostics.result_statistics import (
    Seconds,
    Timing,
    common_variables,
    four_digits,
    labels_of,
    posteriors_of,
    sampler_unknown,
    seconds_of,
    stacked,
    statistic,
    statistics_held,
)
from pymc_rmhmc.errors import ConfigurationError, DataError
from pymc_rmhmc.usage import called_as

__all__ = ["ComparisonTable", "compare", "parameter_tables"]


# Draws a chain, of which ArviZ makes an ESS or an R-hat.
FEWEST_DRAWS = 4


@called_as('compare({"RMHMC": idata, "NUTS": other})')
def compare(
    results: Mapping[str, xr.DataTree],
    timings: Mapping[str, Timing] | None = None,
    *,
    var_names: list[str] | str | None = None,
    sampler: int | None = None,
    reference: str | None = None,
) -> ComparisonTable:
    """Compare the results of different samplers on one model.

    Parameters
    ----------
    results : mapping of str to DataTree
        Such as ``{"RMHMC": idata, "NUTS": other}``.
    timings : mapping of str to float or (float, float), optional
        Wall-clock seconds of a whole run, or of its tuning and its sampling, for results whose draws carry no
        times (nutpie's) or where yours are better.
    var_names : str or list of str, optional
        The variables to judge by; by default all that every result has.
    sampler : int, optional
        Which sampler of a compound to read E-BFMI and failures from. PyMC stacks a statistic that several
        samplers record along a last dimension, in the order of those samplers. By default those whose
        `failure` is not missing, or the first where `failure` is not stacked (a note says so); failures
        are then those of all samplers.
    reference : str, optional
        The result that means are held against; by default the last.

    Returns
    -------
    pandas.DataFrame
        A row for each result. Printed, it has four digits, the notes below, and where it would be too wide for a
        terminal, a column for each result. ``seconds (sampling)`` is the wall-clock
        time in which any chain drew after its tuning: chains side by side count once, chains one after another
        add up. ``seconds`` is PyMC's own time for the whole run, which adds tuning, starting the processes and
        the storing of draws. ``seconds (compiling)`` are what RMHMC compiled, in ``RMHMC()`` and since; they are
        in no other figure. (What PyMC and nutpie compile for their own samplers comes before their clocks start, and
        is not recorded: nan. Samplers that run in JAX compile while PyMC's clock runs, and a note says so.) ``ESS/s``
        is the smallest ESS, bulk or tail, over all parameters, divided by the seconds with tuning; ``ESS/s
        (sampling)`` leaves tuning out. A parameter that never moved has ESS 0, unless it moved in no result: it is
        then a constant, and left out. ``ESS bulk min`` to ``ESS tail median`` are the smallest and the median over
        parameters, ``R-hat max`` the largest, ``E-BFMI min`` the smallest over chains and samplers (below about 0.3
        is a bad sign). ``failures`` are RMHMC's failed trajectories after tuning, or divergences where none are
        recorded.
        ``mean difference`` is the largest difference of posterior means from the reference, in Monte Carlo
        standard errors of the difference. What could not be known is nan, and ``df.attrs["notes"]`` says
        why.

    Raises
    ------
    ConfigurationError
        If there is nothing to compare, the reference or a timing's name is unknown, or a timing is no
        time.
    DataError
        If a result has no posterior, or the results share no variable, disagree on its shape, or hold
        constants alone.

    References
    ----------
    Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization, folding, and localization:
    an improved R-hat.

    Examples
    --------
    >>> from pymc_rmhmc import compare
    >>> compare({"RMHMC": idata, "NUTS": other}, timings={"NUTS": 12.3})  # doctest: +SKIP
    """
    posteriors = posteriors_of(results)
    timings = dict(timings or {})
    reference = list(results)[-1] if reference is None else reference
    for argument, name in (("reference", reference), *(("timings", name) for name in timings)):
        if name not in results:
            raise ConfigurationError(
                f'{argument}: "{name}" is not among the results. Give one of these names: {", ".join(results)}.'
            )
    names = common_variables(posteriors, var_names)
    tables = parameter_tables({name: dataset[names] for name, dataset in posteriors.items()})
    notes: list[str] = []
    rows = {}
    for name, idata in results.items():
        seconds = seconds_of(name, idata, timings.get(name), notes)
        _note_draws(name, tables[name], notes)
        if sampler is None and sampler_unknown(idata, "energy"):
            notes.append(f"{name}: E-BFMI is of the first sampler that records energy; sampler= takes another.")
        rows[name] = _row(idata, tables[name], tables[reference], seconds, sampler)
        _note_unknown(name, rows[name], notes)
        if name == reference:
            rows[name]["mean difference"] = np.nan
    frame = ComparisonTable(pd.DataFrame.from_dict(rows, orient="index"))
    frame.attrs["notes"] = notes
    return frame


def parameter_tables(datasets: Mapping[str, xr.Dataset]) -> dict[str, pd.DataFrame]:
    """Return every result's table of scalar parameters, without those that moved in no result (constants)."""
    tables = {name: _parameter_table(dataset) for name, dataset in datasets.items()}
    means = np.array([table["mean"] for table in tables.values()])
    # Samplers that are stuck, each at a place of its own, are no constant.
    varies = np.any([table["moved"] for table in tables.values()], axis=0) | (means != means[0]).any(axis=0)
    if not varies.any():
        raise DataError("No parameter moved in any result: there is nothing to compare.")
    return {name: table[varies] for name, table in tables.items()}


def _parameter_table(dataset: xr.Dataset) -> pd.DataFrame:
    """Compute mean, Monte Carlo error, ESS and R-hat of every scalar parameter, and whether it moved."""
    parts = []
    for name in dataset.data_vars:
        one = dataset[[name]]
        columns = {
            "mean": one.mean(("chain", "draw"), skipna=False),
            "mcse": az.mcse(one),
            "bulk": az.ess(one, method="bulk"),
            "tail": az.ess(one, method="tail"),
            "rhat": az.rhat(one),
        }
        flat = {key: np.ravel(value[name].values) for key, value in columns.items()}
        values = one[name].values
        flat["moved"] = np.ravel((values != values[:, :1]).any(axis=(0, 1)))
        # ArviZ calls draws that never moved independent: they say nothing.
        flat.update({key: np.where(flat["moved"], flat[key], 0.0) for key in ("bulk", "tail")})
        parts.append(pd.DataFrame(flat, index=labels_of(str(name), one[name].shape[2:])))
    return pd.concat(parts)


def _note_draws(name: str, table: pd.DataFrame, notes: list[str]) -> None:
    """Say which parameters cannot be judged."""
    stuck, broken = table.index[~table["moved"]], table.index[~np.isfinite(table["mean"])]
    if len(stuck):
        notes.append(f"{name}: {_counted(stuck)} never moved, so its ESS is 0.")
    if len(broken):
        notes.append(f"{name}: {_counted(broken)} has draws that are not finite.")


def _counted(parameters: pd.Index) -> str:
    """Name the first of some parameters, and say of how many."""
    n = len(parameters)
    return str(parameters[0]) if n == 1 else f"each of {n} parameters ({parameters[0]} first)"


def _note_unknown(name: str, row: Mapping[str, float], notes: list[str]) -> None:
    """Say why a figure is not known that no draw, and no time, is to blame for."""
    draws = row["draws"]
    if draws < FEWEST_DRAWS:
        notes.append(f"{name}: ESS, R-hat and errors take {FEWEST_DRAWS} draws per chain, of which it has {draws}.")
    elif row["chains"] == 1:
        notes.append(f"{name}: R-hat takes two chains, of which it has one.")
    if np.isnan(row["E-BFMI min"]):
        notes.append(f"{name}: E-BFMI takes energies of two draws in every chain, which it has not recorded.")
    if np.isnan(row["failures"]):
        notes.append(f"{name}: it has recorded neither failures nor divergences.")


def _row(
    idata: xr.DataTree, table: pd.DataFrame, against: pd.DataFrame, seconds: Seconds, sampler: int | None
) -> dict[str, float]:
    """Compute one result's figures."""
    sizes = idata.children["posterior"].dataset.sizes
    # A parameter whose ESS is unknown makes the smallest unknown: leaving it out would flatter the sampler.
    ess = table[["bulk", "tail"]].min(skipna=False)
    smallest = float(ess.min(skipna=False))
    error = np.hypot(table["mcse"], against["mcse"])
    gap = (table["mean"] - against["mean"]).abs()
    difference = (gap / error).mask((gap == 0) & (error == 0), 0.0)
    return {
        "chains": int(sizes["chain"]),
        "draws": int(sizes["draw"]),
        "seconds": seconds.whole,
        "seconds (sampling)": seconds.sampling,
        "seconds (compiling)": seconds.compiling,
        "ESS bulk min": float(ess["bulk"]),
        "ESS tail min": float(ess["tail"]),
        "ESS bulk median": float(table["bulk"].median(skipna=False)),
        "ESS tail median": float(table["tail"].median(skipna=False)),
        "ESS/s": smallest / seconds.whole,
        "ESS/s (sampling)": smallest / seconds.sampling,
        "R-hat max": float(table["rhat"].max(skipna=False)),
        "E-BFMI min": _ebfmi(statistics_held(idata, "energy", sampler)),
        "failures": _failures(idata, sampler),
        "mean difference": float(difference.max(skipna=False)),
    }


def _ebfmi(energies: Sequence[np.ndarray]) -> float:
    """Return the smallest energy Bayesian fraction of missing information over chains and samplers.

    A draw that another step has made impossible has no energy, and is left out.
    """
    if not energies or energies[0].shape[1] < 2:
        return float("nan")
    energy = np.ma.masked_invalid(np.concatenate(energies).astype(float))
    fractions = np.square(np.diff(energy, axis=1)).mean(axis=1) / energy.var(axis=1)
    return float(np.ma.filled(fractions, np.nan).min())


def _failures(idata: xr.DataTree, sampler: int | None) -> float:
    """Count failed trajectories, or divergences of samplers that do not count failures.

    Of a sampler that is chosen its divergences, where failures are those of one alone and nothing says which.
    """
    names = ["failure", "diverging"]
    if sampler is not None and sampler_unknown(idata, "diverging"):
        names.reverse()
    for name in names:
        values = stacked(idata, name) if sampler is None else statistic(idata, name, sampler)
        if values is not None:
            return int((np.nan_to_num(values.astype(float)) > 0).sum())
    return float("nan")


# Letters in a line: a wider table is turned.
WIDTH = 80


class ComparisonTable(pd.DataFrame):
    """What `compare` returns: a `pandas.DataFrame` that shows four digits, and ``attrs["notes"]`` below.

    The values keep all their digits, and so do tables that are made of it (``.T``, some of its columns).
    """

    @property
    def _constructor(self) -> type[ComparisonTable]:
        return ComparisonTable

    def _shown(self) -> pd.DataFrame:
        """Return the same table with text in it."""
        return pd.DataFrame(self.map(four_digits).to_numpy(dtype=object), index=self.index, columns=self.columns)

    @property
    def _notes(self) -> list[str]:
        return list(self.attrs.get("notes", ()))

    def __repr__(self) -> str:
        # Pandas would leave columns out of a wide table, and wrap it only in a terminal.
        table = self._shown()
        text = table.to_string()
        if text.find("\n") > WIDTH:
            turned = table.T if len(table) < len(table.columns) else table
            text = turned.to_string(line_width=WIDTH)
        return "\n".join([text, *(f"Note: {note}" for note in self._notes)])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        # Pandas returns nothing where a notebook is not to have HTML.
        table = self._shown()._repr_html_() or ""
        notes = "<br>".join(html.escape(f"Note: {note}") for note in self._notes)
        return f"{table}\n<p>{notes}</p>" if notes else table

