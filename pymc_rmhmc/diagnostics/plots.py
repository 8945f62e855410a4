"""One figure for several samplers: ranks, autocorrelation, energy, and how effective draws add up."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import arviz as az
import numpy as np
import pandas as pd
import xarray as xr
from scipy.stats import rankdata

from pymc_rmhmc.diagnostics.compare import parameter_tables
from pymc_rmhmc.diagnostics.result_statistics import common_variables, labels_of, posteriors_of, statistic, timeline_of
from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.usage import called_as

if TYPE_CHECKING:  # Matplotlib is optional
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_compare"]

# Colours that stay apart in print and for colour-blind readers (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MAX_LAG = 40
# How PyMC names the whitened values of a Gaussian process.
WHITENED = "_rotated_"


@called_as('plot_compare({"RMHMC": idata, "NUTS": other})')
def plot_compare(
    results: Mapping[str, xr.DataTree],
    *,
    var_names: list[str] | str | None = None,
    n_parameters: int = 3,
    sampler: int | None = None,
) -> Figure:
    """Draw samplers side by side.

    Parameters
    ----------
    results : mapping of str to DataTree
        Such as ``{"RMHMC": idata, "NUTS": other}``.
    var_names : str or list of str, optional
        Among which to look; by default all variables that every result has.
    n_parameters : int
        How many parameters to show: those with the smallest ESS in any result. Constants are left out, and so are
        the whitened values of a Gaussian process, and of parameters with the same ranks all but one.
    sampler : int, optional
        Which sampler of a compound to read the energy from, in the order of those that record it; by
        default as in `compare`.

    Returns
    -------
    matplotlib.figure.Figure
        For each parameter the ranks of its draws (flat if the samplers agree) and their autocorrelation;
        below them the energy, and the smallest ESS against the number of draws and against the seconds that these
        took, after tuning and without what was compiled. Results without times have no line there.

    Raises
    ------
    ConfigurationError
        If there is nothing to draw, or Matplotlib is not installed.
    DataError
        If a result has no posterior, or the results share no variable.

    Examples
    --------
    >>> from pymc_rmhmc import plot_compare
    >>> plot_compare({"RMHMC": idata, "NUTS": other}).savefig("compare.png")  # doctest: +SKIP
    """
    posteriors = posteriors_of(results)
    if not isinstance(n_parameters, numbers.Integral) or isinstance(n_parameters, bool):
        raise ConfigurationError(
            f"n_parameters must be a whole number, got {shown(n_parameters)}. It says how many parameters to show. "
            'To choose variables, give var_names="f".'
        )
    if n_parameters < 1:
        raise ConfigurationError(f"n_parameters must be at least 1, got {n_parameters}.")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError("plot_compare needs Matplotlib: pip install matplotlib.") from error
    names = common_variables(posteriors, var_names)
    if var_names is None:  # whitened values are shown by the vector that they make
        twins = {f"{name}{WHITENED}" for name in names}
        names = [name for name in names if name not in twins]
    flat = {name: _flatten(dataset, names) for name, dataset in posteriors.items()}
    tables = parameter_tables({name: d[names] for name, d in posteriors.items()})
    worst = _worst_parameters(tables, flat, n_parameters)
    figure = Figure(figsize=(11.0, 2.3 * (len(worst) + 1) + 0.6), layout="constrained")
    grid = figure.add_gridspec(len(worst) + 1, 6)
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(results)}
    for row, parameter in enumerate(worst):
        draws = {name: values[parameter] for name, values in flat.items()}
        _draw_ranks(figure.add_subplot(grid[row, :3]), draws, colours, parameter)
        _draw_autocorrelation(figure.add_subplot(grid[row, 3:]), draws, colours, parameter)
    energies = {name: statistic(idata, "energy", sampler) for name, idata in results.items()}
    _draw_energy(figure.add_subplot(grid[-1, :2]), energies, colours)
    growth = {name: _growth(np.stack([values[p] for p in worst], -1)) for name, values in flat.items()}
    by_draws = figure.add_subplot(grid[-1, 2:4])
    n_chains = {name: len(next(iter(values.values()))) for name, values in flat.items()}
    _draw_growth(by_draws, {name: (counts * n_chains[name], ess) for name, (counts, ess) in growth.items()}, colours)
    by_draws.set(title="smallest ESS (bulk or tail)\nof the parameters above", xlabel="draws, all chains")
    by_seconds, timed = figure.add_subplot(grid[-1, 4:], sharey=by_draws), _in_seconds(growth, results)
    _draw_growth(by_seconds, timed, colours)
    by_seconds.set(title="the same,\nin seconds after tuning", xlabel="seconds, without compiling")
    if len(timed) < len(growth):
        said = f"no times recorded: {', '.join(name for name in growth if name not in timed)}"
        beside = {"ha": "right", "va": "bottom", "fontsize": "small", "color": "0.4"}
        by_seconds.text(0.98, 0.04, said, transform=by_seconds.transAxes, **beside)
    handles = [by_draws.plot([], [], color=colours[name], lw=2, label=name)[0] for name in results]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure


def _flatten(dataset: xr.Dataset, names: list[str]) -> dict[str, np.ndarray]:
    """Return the draws (chain, draw) of every scalar parameter, named as in `parameter_tables`."""
    flat: dict[str, np.ndarray] = {}
    for name in names:
        values = dataset[name].values
        scalars = values.reshape(*values.shape[:2], -1)
        flat |= {label: scalars[:, :, i] for i, label in enumerate(labels_of(name, values.shape[2:]))}
    return flat


def _worst_parameters(tables: dict[str, pd.DataFrame], flat: dict[str, dict[str, np.ndarray]], count: int) -> list[str]:
    """Choose the parameters whose smallest ESS over results and kinds is smallest, worst first.

    Of those with the same ranks, such as a value and its logarithm, the one that comes first in the results.
    """
    smallest = None
    for table in tables.values():
        ess = table[["bulk", "tail"]].min(axis=1)
        smallest = ess if smallest is None else np.minimum(smallest, ess)
    assert smallest is not None
    chosen: dict[bytes, str] = {}
    for parameter in smallest.sort_values(kind="stable").index:
        if len(chosen) == count:
            break
        chosen.setdefault(_ranks_of([values[parameter] for values in flat.values()]), parameter)
    return list(chosen.values())


def _ranks_of(draws: Iterable[np.ndarray]) -> bytes:
    """Return the ranks of a parameter's pooled draws, or of their negatives, as a key."""
    ranks = rankdata(np.concatenate([values.ravel() for values in draws]))
    return bytes(min(ranks.tobytes(), (ranks.size + 1.0 - ranks).tobytes()))


def tidy(axis: Axes) -> None:
    """Draw no line above a figure, nor at its right."""
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _draw_ranks(axis: Axes, draws: dict[str, np.ndarray], colours: dict[str, str], parameter: str) -> None:
    """Plot histograms of pooled ranks, scaled so that agreement is 1 everywhere."""
    pooled = np.concatenate([values.ravel() for values in draws.values()])
    # Equal draws share a rank: taken in order, ties (discrete variables) would set agreeing samplers apart.
    order = (rankdata(pooled) - 0.5) / pooled.size
    start = 0
    for name, values in draws.items():
        part = order[start : start + values.size]
        start += values.size
        height, edges = np.histogram(part, bins=20, range=(0, 1), density=True)
        # Without a baseline: it would join the first and the last bin to 0 by a vertical line.
        axis.stairs(height, edges, baseline=None, color=colours[name], lw=1.6)
    axis.axhline(1.0, color="0.6", lw=0.8, ls=":")
    axis.set(title=f"{parameter}: ranks among all draws", ylim=(0, None), xlim=(0, 1), yticks=[0, 1])
    axis.set(xlabel="normalised rank", ylabel="relative frequency")
    tidy(axis)


def _draw_autocorrelation(axis: Axes, draws: dict[str, np.ndarray], colours: dict[str, str], parameter: str) -> None:
    """Plot the mean autocorrelation over chains."""
    for name, values in draws.items():
        lags = min(MAX_LAG, values.shape[1] - 1)
        curves = [_autocorrelation(chain, lags) for chain in values]
        axis.plot(np.arange(lags + 1), np.mean(curves, axis=0), color=colours[name], lw=1.6)
    axis.axhline(0.0, color="0.6", lw=0.8, ls=":")
    axis.set(title=f"{parameter}: autocorrelation", ylim=(-0.5, 1.05), xlim=(0, MAX_LAG))
    axis.set(xlabel="lag in draws", ylabel="autocorrelation")
    tidy(axis)


def _autocorrelation(chain: np.ndarray, lags: int) -> np.ndarray:
    centred = chain - chain.mean()
    size = 2 ** int(np.ceil(np.log2(2 * chain.size)))
    spectrum = np.abs(np.fft.rfft(centred, size)) ** 2
    covariance = np.fft.irfft(spectrum, size)[: lags + 1]
    return covariance / covariance[0] if covariance[0] > 0 else np.zeros(lags + 1)


def _draw_energy(axis: Axes, energies: dict[str, np.ndarray | None], colours: dict[str, str]) -> None:
    """Plot the energy's marginal (filled) and transitions (line): alike if the momentum's refreshment suffices."""
    shown = 0
    for name, energy in energies.items():
        if energy is None or not np.isfinite(energy.astype(float)).any():
            continue
        energy = energy.astype(float)  # noqa: PLW2901
        marginal = (energy - np.nanmean(energy)).ravel()
        steps = np.diff(energy, axis=1).ravel()
        low, high = np.nanquantile(marginal, (0.001, 0.999))
        bins = np.linspace(low, high, 40).tolist()
        axis.hist(marginal, bins=bins, density=True, color=colours[name], alpha=0.25)
        axis.hist(steps, bins=bins, density=True, histtype="step", color=colours[name], lw=1.6)
        shown += 1
    axis.set(title="energy: marginal (filled),\ntransitions (line)", yticks=[])
    axis.set(xlabel="energy, centred", ylabel="density")
    if not shown:
        axis.text(0.5, 0.5, "no energy recorded", ha="center", va="center", transform=axis.transAxes)
    tidy(axis)


def _growth(values: np.ndarray) -> tuple[np.ndarray, list[float]]:
    """Return numbers of draws per chain (k,), and the smallest ESS in as many of the (chain, draw, p) draws."""
    n = values.shape[1]
    counts = np.unique(np.linspace(min(n, max(20, n // 10)), n, 10).astype(int))
    return counts, [_smallest_ess(values[:, :count]) for count in counts]


def _draw_growth(axis: Axes, curves: dict[str, tuple[np.ndarray, list[float]]], colours: dict[str, str]) -> None:
    """Plot the smallest ESS of the parameters that are shown against what it took."""
    for name, (costs, sizes) in curves.items():
        axis.plot(costs, sizes, color=colours[name], lw=1.6, marker=".", ms=5)
    axis.set(ylabel="effective draws", ylim=(0, None), xlim=(0, None))
    tidy(axis)


def _in_seconds(
    growth: dict[str, tuple[np.ndarray, list[float]]], results: Mapping[str, xr.DataTree]
) -> dict[str, tuple[np.ndarray, list[float]]]:
    """Return seconds in place of numbers of draws per chain, of the results that have recorded times."""
    found = {}
    for name, (counts, sizes) in growth.items():
        timeline = timeline_of(results[name])
        if timeline is not None and timeline.ends.shape[1] >= counts[-1]:
            found[name] = np.array([timeline.seconds(int(count)) for count in counts]), sizes
    return found


def _smallest_ess(values: np.ndarray) -> float:
    data = az.from_dict({"posterior": {"x": values}})
    return min(float(az.ess(data, method=method)["x"].min()) for method in ("bulk", "tail"))
