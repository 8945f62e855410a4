"""Data and constants that leave a model without a density: not finite, out of range, or indices past an end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.data import MinibatchIndexRV, MinibatchOp
from pytensor.graph.basic import Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError, UnsupportedModelError, listed
from pymc_rmhmc.model.graph.graphs import Evaluator, constant_arrays, formula_of, reaches_by_value, shared_inputs
from pymc_rmhmc.model.words.argument_ranges import ArgumentRanges
from pymc_rmhmc.model.words.index_bounds import IndexBounds

__all__ = ["InputChecks", "not_finite_in_words"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
# A symbol, what a user calls it, and its values.
type Input = tuple[Variable, str, Array]


class InputChecks:
    """The checks of data and constants: at once of what nothing can change.

    Parameters
    ----------
    model : pymc.Model
        The model.

    Raises
    ------
    DataError
        If an argument is out of its range, or an index out of bounds.
    UnsupportedModelError
        If data are a random subset, drawn anew for each gradient, or a Potential holds random draws.
    """

    def __init__(self, model: pm.Model) -> None:
        _check_fixed(model)
        _check_potentials(model)
        self._model, self._bounds, self._ranges = model, IndexBounds(model), ArgumentRanges(model)
        self._ranges.check()

    def check(self, point: Point) -> None:
        """Check everything, with the shared data as they are now.

        Raises
        ------
        DataError
            With the name of the data, and what is wrong with them.
        """
        self._ranges.check()
        self._bounds.check(point)
        _check_finite(self._model, point)

    def check_moved(self, point: Point) -> None:
        """Check indices that free variables give, where these have changed.

        Raises
        ------
        DataError
            If one is out of bounds.
        """
        self._bounds.check_moved(point)


def _check_fixed(model: pm.Model) -> None:
    """Raise for data that are a random subset."""
    for variable in (*model.basic_RVs, *model.potentials):
        made = [model.rvs_to_values[variable]] if variable in model.observed_RVs else []
        made += [variable] if variable in model.potentials else variable.owner.inputs
        found = ancestors(made, blockers=[v for v in model.basic_RVs if v is not variable])
        if any(v.owner is not None and isinstance(v.owner.op, MinibatchOp | MinibatchIndexRV) for v in found):
            raise UnsupportedModelError(
                f"{variable.name} reads a pm.Minibatch: each gradient would be of another random subset of the data, "
                "so that no draw is of the posterior. Give it all the data and leave total_size out, or fit an "
                "approximation with pm.fit()."
            )


def _check_potentials(model: pm.Model) -> None:
    """Raise for a Potential that holds draws of random variables in place of their values."""
    for potential in model.potentials:
        made = ancestors([potential], blockers=model.basic_RVs)
        drawn = [v for v in made if v.owner is not None and isinstance(v.owner.op, RandomVariable)]
        drawn = [v for v in drawn if v not in model.basic_RVs and reaches_by_value(potential, [v], {})]
        if drawn:
            names = sorted(str(v.name).removesuffix("_lifted") for v in drawn if v.name)
            of = f"random draws of {listed(names)} in place of the values" if names else "random draws"
            raise UnsupportedModelError(
                f"The Potential {potential.name} holds {of}, so that each evaluation gives another log density. PyMC "
                "makes such draws, and warns, in pm.logp() of a distribution that is made of another one, as of "
                "pm.Censored.dist(). Write the distribution with observed=, as in pm.Censored(..., observed=data), or "
                "give pm.logp() what model.replace_rvs_by_values([distribution]) returns."
            )


def _check_finite(model: pm.Model, point: Point) -> None:
    """Look for data and constants that are not finite, such as a covariate with an infinity.

    An infinity may be meant, as a bound that is none. So it counts only where a finite number in its place gives the
    density a number. Priors of vectors have checks of their own.
    """
    univariate = [v for v in model.free_RVs if getattr(v.owner.op, "ndim_supp", 0) == 0]
    for variable in (*model.observed_RVs, *model.potentials, *univariate):
        bad = list(_bad_inputs(model, variable))
        if bad and _is_lost_by(model, variable, bad, point):
            _, name, values = bad[0]
            raise DataError(
                f"{name} {not_finite_in_words(values)}, so that {variable.name} has no finite log density. Remove or "
                "impute these values."
            )


def _bad_inputs(model: pm.Model, variable: TensorVariable) -> Iterator[Input]:
    """Yield the inputs of a variable's formula that are not finite."""
    parts = [variable] if variable in model.potentials else list(variable.owner.inputs)
    # What a covariance is computed from has a check of its own.
    made = formula_of(model, parts)
    for shared in shared_inputs(parts):
        values = shared.get_value(borrow=True)
        if shared in made and values.dtype.kind == "f" and not np.isfinite(values).all():
            yield shared, f"The data {shared.name}", values
    for constant in constant_arrays(parts):
        if constant in made and not np.isfinite(constant.data).all():
            yield constant, f"Constants in the formula of {variable.name}", constant.data


def _is_lost_by(model: pm.Model, variable: TensorVariable, bad: list[Input], point: Point) -> bool:
    """Return whether a log density is not finite at a point, and would be if inputs were finite."""
    (term,) = model.logp(vars=[variable], sum=False)
    finite = {symbol: symbol.type.make_constant(_mended(values)) for symbol, _, values in bad}
    (mended,) = clone_replace([term], finite)
    return _is_finite(model, mended, point) and not _is_finite(model, term, point)


def _is_finite(model: pm.Model, term: TensorVariable, point: Point) -> bool:
    """Return whether a log density is finite; a failure for other reasons has a separate message."""
    try:
        with np.errstate(all="ignore"):
            return bool(np.isfinite(Evaluator(model, [term])(point)[0]).all())
    except Exception:  # noqa: BLE001 - a density without a number fails in many ways
        return False


def _mended(values: Array) -> Array:
    """Replace values that are not finite by the median of the others."""
    known = values[np.isfinite(values)]
    return np.where(np.isfinite(values), values, np.median(known) if known.size else 1.0).astype(values.dtype)


def not_finite_in_words(values: Array) -> str:
    """Say that values are not finite, how many, and where the first is."""
    bad = np.argwhere(~np.isfinite(values))
    first = tuple(map(int, bad[0]))
    where = "row {}, column {}".format(*first) if len(first) == 2 else f"position {', '.join(map(str, first))}"
    at = f", the first at {where} ({values[first]:.4g})" if first else f" ({values:.4g})"
    return f"are not finite in {len(bad)} of {values.size} values{at}"
