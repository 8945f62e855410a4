"""Figures of estimates of the evidence: how they settle, and the densities between reference and posterior."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from pymc_rmhmc.diagnostics.plots import COLOURS, tidy
from pymc_rmhmc.errors import ConfigurationError, DataError, shown
from pymc_rmhmc.evidence.methods.estimate import FEWEST_DRAWS, LEAST_ACCEPTED
from pymc_rmhmc.usage import called_as

if TYPE_CHECKING:  # it need not be installed
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

__all__ = ["plot_evidence", "plot_rungs"]

# Approximations that a result may hold besides its estimate.
APPROXIMATIONS = {"laplace": "Laplace", "ep": "EP", "ep_second_order": "EP, second order"}
BOUNDS = {"lower_bound": "^", "upper_bound": "v"}
# The band's half width, in standard errors.
BAND = 2.0
# The axis of seconds is logarithmic where the last are so many times the first.
WIDE = 3.0
# What is drawn by rung, where a result has it: a title, and the least value that is trusted.
PANELS = {
    "acceptance": ("acceptance", LEAST_ACCEPTED),
    "phi_ess": ("effective draws of φ", FEWEST_DRAWS),
    "phi_sd": ("standard deviation of φ", None),
    "local_barrier": ("local barrier", None),
}
# The axis of other values is logarithmic where the largest is so many times the smallest or the least that is trusted.
MANIFOLD = 5.0
# With a β between 0 and the first, the axis of β shows β to a power, which spreads small values apart.
SMALL_BETA, POWER, BETAS = 0.1, 0.25, (0.0, 0.001, 0.01, 0.1, 1.0)


@called_as('plot_evidence({"bridge": found, "annealing": other})')
def plot_evidence(
    results: Mapping[str, xr.Dataset] | xr.Dataset, *, truth: float | None = None, ax: Axes | None = None
) -> Figure | SubFigure:
    """Plot estimates of the evidence against the seconds that they took.

    Parameters
    ----------
    results : mapping of str to xarray.Dataset, or one xarray.Dataset
        As `log_evidence` returns them, by name. One alone is named after its method.
    truth : float, optional
        A known value, for a horizontal line.
    ax : matplotlib.axes.Axes, optional
        Where to draw. By default in a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        For each result a line of its estimates, in a band of two standard errors. Seconds include the tuning of a chain
        where `log_evidence` tunes one. A result without estimates on the way, such as that of several independent
        blocks, is a point at all of its seconds. Triangles are the bounds of annealing. Dotted lines are the
        approximations by Laplace, EP, and EP with its second-order correction, if any result has them.

    Raises
    ------
    ConfigurationError
        If there is nothing to draw, `truth` is no number, `ax` no axes, or Matplotlib is not installed.
    DataError
        If a result is not one of `log_evidence`.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from pymc_rmhmc import plot_evidence
    >>> found = xr.Dataset(
    ...     {
    ...         "log_evidence": -38.2,
    ...         "standard_error": 0.04,
    ...         "estimate": ("update", [-38.4, -38.2]),
    ...         "error": ("update", [0.2, 0.04]),
    ...     },
    ...     {"seconds": ("update", [0.5, 2.0])},
    ... )
    >>> plot_evidence({"bridge": found}, truth=-38.21).savefig("evidence.png")  # doctest: +SKIP
    """
    found = _results(results)
    known = None if truth is None else _known(truth)
    axis = _axis("plot_evidence", ax)
    ends = []
    for i, (name, result) in enumerate(found.items()):
        if math.isfinite(float(result["standard_error"])):
            ends.append(_draw_estimates(axis, name, result, COLOURS[i % len(COLOURS)]))
    _draw_approximations(axis, found)
    if known is not None:
        axis.axhline(known, color="black", lw=0.9, label="known value", zorder=1)
    if ends and min(first for first, _ in ends) * WIDE < max(last for _, last in ends):
        _logarithmic(axis)
    axis.set(xlabel="seconds", ylabel="log p(y)")
    tidy(axis)
    axis.legend(frameon=False, fontsize="small")
    return axis.figure


@called_as("plot_rungs(found)")
def plot_rungs(result: xr.Dataset) -> Figure:
    """Plot how well each density of a bridge, of annealing or of tempering was sampled.

    Parameters
    ----------
    result : xarray.Dataset
        As `log_evidence` returns it with ``method="bridge"``, "annealing" or "tempering".

    Returns
    -------
    matplotlib.figure.Figure
        Against the inverse temperature β, from 0, the normal approximation, to 1, the posterior: the share of
        trajectories that are accepted; and for a bridge the effective draws and the standard deviation of φ, the log
        density's distance from the approximation; for tempering the local barrier, which is high where temperatures
        must be close. Dotted lines are the least values that `log_evidence` accepts. With
        several independent blocks each has a line.

    Raises
    ------
    ConfigurationError
        If Matplotlib is not installed.
    DataError
        If this is no result of `log_evidence`, or its method has no densities between.

    Examples
    --------
    >>> import xarray as xr
    >>> from pymc_rmhmc import plot_rungs
    >>> found = xr.Dataset(
    ...     {
    ...         "log_evidence": -38.2,
    ...         "standard_error": 0.04,
    ...         "beta": ("rung", [0.0, 0.2, 1.0]),
    ...         "acceptance": ("rung", [1.0, 0.9, 0.8]),
    ...     }
    ... )
    >>> plot_rungs(found).savefig("rungs.png")  # doctest: +SKIP
    """
    _check_result("result", result)
    if "beta" not in result:
        method = result.attrs.get("method", "its method")
        raise DataError(
            f"plot_rungs: this result has no densities between the approximation and the posterior, because {method} "
            'needs none. Give a result of log_evidence(model, method="bridge"), "annealing" or "tempering".'
        )
    figure = _new_figure("plot_rungs")
    panels = [name for name in PANELS if name in result and result[name].dims == ("rung",)]
    figure.set_size_inches(0.8 + 3.4 * len(panels), 2.9)
    for axis, name in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        _draw_rungs(axis, result, name)
    return figure


def _results(results: object) -> dict[str, xr.Dataset]:
    """Return the results by name, or raise the error for one of them."""
    if isinstance(results, xr.Dataset):
        _check_result("results", results)
        return {str(results.attrs.get("method", "estimate")): results}
    if not isinstance(results, Mapping) or isinstance(results, xr.DataTree):
        raise ConfigurationError(
            'Results are given by name, such as {"bridge": found, "annealing": other}, or one alone; got '
            f"{type(results).__name__}."
        )
    if not results:
        raise ConfigurationError("There is nothing to draw: give at least one result of log_evidence.")
    for name, result in results.items():
        _check_result(str(name), result)
    return {str(name): result for name, result in results.items()}


def _check_result(name: str, result: object) -> None:
    if isinstance(result, xr.Dataset) and {"log_evidence", "standard_error"} <= set(result.data_vars):
        return
    is_dataset = isinstance(result, xr.Dataset)
    what = "a Dataset without log_evidence or standard_error" if is_dataset else type(result).__name__
    raise DataError(
        f"{name}: this is no result of log_evidence, but {what}. Give the Dataset that log_evidence(model) returns."
    )


def _known(truth: float) -> float:
    try:
        value = math.nan if isinstance(truth, bool) else float(truth)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ConfigurationError(f"truth must be a finite number, got {shown(truth)}. Leave it out if it is unknown.")
    return value


def _axis(function: str, ax: Axes | None) -> Axes:
    if ax is None:
        figure = _new_figure(function)
        figure.set_size_inches(6.6, 3.8)
        return figure.add_subplot()
    if not (hasattr(ax, "axhline") and hasattr(ax, "figure")):
        raise ConfigurationError(f"ax must be axes of Matplotlib, got {shown(ax)}. Leave it out for a new figure.")
    return ax


def _new_figure(function: str) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(f"{function} needs Matplotlib: pip install matplotlib.") from error
    return Figure(layout="constrained")


def _draw_estimates(axis: Axes, name: str, result: xr.Dataset, colour: str) -> tuple[float, float]:
    """Draw a result's estimates; return the first and last of their seconds."""
    if "estimate" in result:
        seconds, values, errors = (np.asarray(result[key].values) for key in ("seconds", "estimate", "error"))
        fine = np.isfinite(values) & np.isfinite(errors)
        seconds, values, errors = seconds[fine], values[fine], errors[fine]
    else:
        seconds = np.array([float(result.attrs.get("seconds", 1.0))])
        values, errors = np.array([float(result["log_evidence"])]), np.array([float(result["standard_error"])])
    label = f"{name}: {_in_words(float(result['log_evidence']), float(result['standard_error']))}"
    axis.errorbar(
        seconds, values, BAND * errors, color=colour, lw=1.6, elinewidth=0.9, marker=".", ms=7, capsize=2, label=label
    )
    axis.fill_between(seconds, values - BAND * errors, values + BAND * errors, color=colour, alpha=0.15, lw=0)
    for bound, marker in BOUNDS.items():
        if bound in result and seconds.size:
            axis.plot(seconds[-1], float(result[bound]), marker, color=colour, ms=6, mfc="none")
    return (float(seconds[0]), float(seconds[-1])) if seconds.size else (1.0, 1.0)


def _in_words(value: float, error: float) -> str:
    """Return an estimate and its error in words, with two digits of the error."""
    digits = min(6, max(0, 1 - math.floor(math.log10(error)))) if error > 0.0 else 2
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def _draw_approximations(axis: Axes, found: Mapping[str, xr.Dataset]) -> None:
    """Draw results that are approximations, and those that others hold; equal ones once."""
    lines: dict[tuple[str, float], str] = {}
    for name, result in found.items():
        if not math.isfinite(float(result["standard_error"])):
            method = str(result.attrs.get("method", name))
            lines[method, round(float(result["log_evidence"]), 6)] = name
    for result in found.values():
        for key, label in APPROXIMATIONS.items():
            if key in result:
                lines.setdefault((key, round(float(result[key]), 6)), label)
    for i, ((_, value), label) in enumerate(lines.items()):
        axis.axhline(value, color=str(0.25 + 0.17 * (i % 4)), ls=":", lw=1.6, label=label, zorder=1)


def _draw_rungs(axis: Axes, result: xr.Dataset, name: str) -> None:
    title, least = PANELS[name]
    betas, values = result["beta"].values, result[name].values
    blocks = np.asarray(result["block"].values) if "block" in result.coords else np.zeros(betas.size)
    names = list(dict.fromkeys(blocks.tolist()))
    for i, block in enumerate(names):
        held = blocks == block
        colour = COLOURS[i % len(COLOURS)]
        axis.plot(betas[held], values[held], color=colour, lw=1.4, marker=".", ms=6, label=str(block))
    if least is not None:
        axis.axhline(least, color="0.5", lw=1.0, ls=":")
    if betas[betas > 0.0].min() < SMALL_BETA:
        spread = (lambda beta: np.maximum(beta, 0.0) ** POWER, lambda x: x ** (1.0 / POWER))
        axis.set_xscale("function", functions=spread)
        axis.set_xticks(BETAS, [f"{beta:g}" for beta in BETAS])
        axis.set_xlim(0.0, 1.1)
    if name == "acceptance":
        axis.set_ylim(0.0, 1.03)
    elif values.min() > 0.0 and min(values.min(), least or math.inf) * MANIFOLD < values.max():
        axis.set_yscale("log")
    axis.set(title=title, xlabel="β")
    tidy(axis)
    if len(names) > 1:
        axis.legend(frameon=False, fontsize="small")


def _logarithmic(axis: Axes) -> None:
    """Make the axis of seconds logarithmic, with seconds as ordinary numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
