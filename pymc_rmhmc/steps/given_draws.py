"""A user's draws of a posterior, as values of the model's unconstrained variables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.basic import Constant

from pymc_rmhmc.chains.variables import Variables
from pymc_rmhmc.diagnostics.statistics import posterior_of
from pymc_rmhmc.errors import DataError, listed

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
    arrays = [np.asarray(posterior[str(v.name)].values) for v in free]
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
    """A function from the free variables to their values, in the order of the model's initial point."""
    held = {str(model.rvs_to_values[v].name): v for v in model.free_RVs}
    outputs = []
    for name in model.initial_point():
        variable = held[name]
        transform = model.rvs_to_transforms[variable]
        outputs.append(variable if transform is None else transform.forward(variable, *variable.owner.inputs))
    return pm.pytensorf.compile(model.free_RVs, outputs, on_unused_input="ignore")


def _check_data(model: pm.Model, idata: Any) -> None:
    """Raise where the observed data of the draws are others than the model's."""
    if "observed_data" not in getattr(idata, "children", {}):
        return
    held = idata["observed_data"].dataset
    for variable in model.observed_RVs:
        name = str(variable.name)
        if name not in held:
            continue
        own, theirs = _observed(model, variable), np.asarray(held[name].values)
        if own is None:
            continue
        if own.shape != theirs.shape or not np.allclose(own, theirs, equal_nan=True):
            raise DataError(
                f"draws: they were made with other data of {name} than the model has now. Sample the model again."
            )


def _observed(model: pm.Model, variable: Any) -> Array | None:
    """The data of an observed variable; None where they are not numbers at hand."""
    value = model.rvs_to_values[variable]
    if isinstance(value, Constant):
        return np.asarray(value.data)
    return np.asarray(value.get_value()) if hasattr(value, "get_value") else None
