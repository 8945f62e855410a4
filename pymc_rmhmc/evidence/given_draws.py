"""A user's draws of a posterior, as values of the model's unconstrained variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.pytensorf import extract_obs_data

from pymc_rmhmc.chains.variables import Variables
from pymc_rmhmc.diagnostics.result_statistics import posterior_of
from pymc_rmhmc.errors import DataError, listed
from pymc_rmhmc.model.graph.graphs import as_value

__all__ = ["values_of_draws"]

type Array = NDArray[np.float64]

FEWEST = 100


def values_of_draws(model: pm.Model, idata: Any, variables: Variables) -> Array:
    """Return the values (chains, draws, k) of some value variables at every draw of a result.

    Parameters
    ----------
    model : pymc.Model
        The model that was sampled.
    idata : DataTree
        With a group `posterior`.
    variables : Variables
        Which values, in which order.

    Raises
    ------
    DataError
        If the draws are of another model, or of other data.
    """
    posterior = posterior_of("draws", idata)
    free = model.free_RVs
    missing = [str(v.name) for v in free if v.name not in posterior]
    if missing:
        raise DataError(
            f"draws: the posterior has no {listed(missing)}, which the model has: it is of another model, or was "
            "sampled with var_names. Sample this model, with all of its variables."
        )
    _check_data(model, idata)
    arrays = [_in_order(model, str(v.name), posterior[str(v.name)]) for v in free]
    point = model.initial_point()
    n_chains, n_draws = arrays[0].shape[:2]
    if n_chains * n_draws < FEWEST:
        raise DataError(f"draws: there are {n_chains * n_draws} draws, and at least {FEWEST} are needed.")
    transform = _to_unconstrained(model)
    found = []
    for chain in range(n_chains):
        for draw in range(n_draws):
            given = [_shaped(v, a[chain, draw]) for v, a in zip(free, arrays, strict=True)]
            values = transform(*given)
            found.append(variables.read(dict(zip(point, values, strict=True))))
    made = np.array(found).reshape(n_chains, n_draws, -1)
    if not np.isfinite(made).all():
        raise DataError(
            "draws: some values are outside the support of their prior in this model, or not finite. They are draws "
            "of another model."
        )
    return made


def _shaped(variable: Any, value: Array) -> Array:
    if value.ndim != variable.ndim:
        raise DataError(
            f"draws: {variable.name} has the shape {value.shape}, and in the model {variable.ndim} dimensions. Sample "
            "this model."
        )
    return value.astype(variable.dtype)


def _to_unconstrained(model: pm.Model) -> Any:
    """Compile a function from the free variables to their values, in the order of the model's initial point."""
    held = {str(model.rvs_to_values[v].name): v for v in model.free_RVs}
    outputs = [as_value(model, held[name], held[name]) for name in model.initial_point()]
    return pm.pytensorf.compile(model.free_RVs, outputs, on_unused_input="ignore")


def _in_order(model: pm.Model, name: str, held: Any) -> Array:
    """Return a variable's draws (chain, draw, ...), with labels in the model's order."""
    labels = {dim: list(model.coords[dim]) for dim in model.named_vars_to_dims.get(name, ()) if model.coords.get(dim)}
    for dim, wanted in labels.items():
        if dim not in held.coords or list(held.coords[dim].values) == wanted:
            continue
        if set(held.coords[dim].values) != set(wanted):
            raise DataError(
                f"draws: {name} has other labels along {dim} than in the model: they are draws of another model, or of "
                "other data. Sample this model."
            )
        held = held.sel({dim: wanted})
    return np.asarray(held.transpose("chain", "draw", ...).values)


def _check_data(model: pm.Model, idata: Any) -> None:
    """Raise where the data of the draws are others than the model's."""
    groups = getattr(idata, "children", {})
    observed = {str(v.name): model.rvs_to_values[v] for v in model.observed_RVs}
    shared = {str(v.name): v for v in model.data_vars}
    for group, values in (("observed_data", observed), ("constant_data", shared)):
        held = idata[group].dataset if group in groups else {}
        for name, value in values.items():
            own = _numbers(value) if name in held else None
            if own is None:
                continue
            theirs = np.asarray(held[name].values)
            if own.shape != theirs.shape or not np.array_equal(own, theirs, equal_nan=own.dtype.kind == "f"):
                raise DataError(
                    f"draws: they were made with other data of {name} than the model has now. Sample the model again."
                )


def _numbers(value: Any) -> Array | None:
    """Return the data that a variable holds; None where they are not at hand, as when values are partly missing."""
    try:
        return np.asarray(extract_obs_data(value))
    except TypeError:
        return None
