"""What a user sees of an estimate: a line while it grows, and draws as a DataTree as `pm.sample` returns it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from numpy.typing import NDArray
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations
from pymc.util import get_default_varnames
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pymc_rmhmc.chains.variables import Variables
from pymc_rmhmc.stopwatch import COMPILING

__all__ = ["DrawReader", "displayed", "in_a_line", "posterior_tree"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]


class DrawReader:
    """Reads what users see off value variables: free variables on their own scale, deterministics, and the log density.

    Parameters
    ----------
    model : pymc.Model
        The model.
    variables : Variables
        What a vector of values holds.
    complete : callable, optional
        Adds to a point what the vector does not hold, such as predictions, and changes it in place.
    """

    def __init__(self, model: pm.Model, variables: Variables, complete: Callable[[Point], None] | None = None) -> None:
        self._variables, self._complete, self._initial = variables, complete, model.initial_point()
        shown = get_default_varnames(model.unobserved_value_vars, include_transformed=False)
        self.names = tuple(str(variable.name) for variable in shown)
        with COMPILING.running():
            self._function = model.compile_fn([*shown, model.logp()], inputs=model.value_vars, on_unused_input="ignore")

    def read(self, values: Array) -> tuple[dict[str, np.ndarray], Array]:
        """Return variables by name, each (n, ...), and log densities (n,), of some values (n, k)."""
        rows = [self._row(each) for each in values]
        stacked = {name: np.array([row[i] for row in rows]) for i, name in enumerate(self.names)}
        return stacked, np.array([float(row[-1]) for row in rows])

    def _row(self, values: Array) -> Sequence[Any]:
        point = {name: np.array(value) for name, value in self._initial.items()}
        self._variables.write(values, point)
        if self._complete is not None:
            self._complete(point)
        found: Sequence[Any] = self._function(point)
        return found


def posterior_tree(
    model: pm.Model, values: Array, variables: Variables, *, reader: DrawReader | None = None,
    statistics: Mapping[str, Array] | None = None,
) -> xr.DataTree:  # fmt: skip
    """Return draws as a DataTree with posterior, sample_stats, observed_data and constant_data.

    Parameters
    ----------
    model : pymc.Model
        The model.
    values : (chains, draws, k) array
        Of the value variables.
    variables : Variables
        What the last axis holds.
    reader : DrawReader, optional
        One that has been compiled already.
    statistics : mapping of str to (chains, draws, ...) array, optional
        Goes into sample_stats, next to `lp`.
    """
    reader = DrawReader(model, variables) if reader is None else reader
    chains, draws, size = values.shape
    read, log_density = reader.read(values.reshape(-1, size))
    posterior = {name: held.reshape(chains, draws, *held.shape[1:]) for name, held in read.items()}
    stats = {"lp": log_density.reshape(chains, draws), **(statistics or {})}
    groups: dict[str, Any] = {"posterior": posterior, "sample_stats": stats}
    groups |= {"observed_data": find_observations(model), "constant_data": find_constants(model)}
    coords, dims = coords_and_dims_for_inferencedata(model)
    found: xr.DataTree = az.from_dict({name: held for name, held in groups.items() if held}, coords=coords, dims=dims)
    return found


def dims_of(model: pm.Model, shapes: Iterable[tuple[str, int]], before: Sequence[str]) -> dict[str, list[str]]:
    """Return the dims of variables, with other dims before their own, from names and numbers of dims."""
    _, known = coords_and_dims_for_inferencedata(model)
    default = {name: [f"{name}_dim_{i}" for i in range(n)] for name, n in shapes}
    return {name: [*before, *known.get(name, own)] for name, own in default.items()}


@contextlib.contextmanager
def displayed(progressbar: bool) -> Iterator[Callable[[str], None]]:
    """Give what shows a line, with the time since; without a progress bar it shows nothing."""
    if not progressbar:
        yield lambda line: None
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), transient=True) as display:
        task = display.add_task("log p(y)")
        yield lambda line: display.update(task, description=line)


def in_a_line(value: float, error: float, doing: str) -> str:
    """Return an estimate, if there is one, and what is done."""
    known = f" {value:.3f} ± {error:.3f}" if math.isfinite(value) else ""
    return f"log p(y){known}: {doing}"
