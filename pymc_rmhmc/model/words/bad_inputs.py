"""Data and constants that leave a model without a density, or say nothing: not finite, out of range, of no class.

Compiled code does not check indices: it would read past the end of an array, and draws would be wrong in silence. A
negative code counts from the end, and a missing group would be read as the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.data import MinibatchIndexRV, MinibatchOp
from pymc.distributions.multivariate import DirichletMultinomialRV
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.random.basic import CategoricalRV, MultinomialRV
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)
from pytensor.tensor.variable import TensorVariable
from pytensor.xtensor.indexing import Index

from pymc_rmhmc.errors import DataError, UnsupportedModelError, listed
from pymc_rmhmc.model.graph.graphs import (
    Evaluator,
    constant_arrays,
    core_op,
    formula_of,
    is_of_dims,
    reaches,
    reaches_by_value,
    shared_inputs,
)
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.observed.observation import names_of
from pymc_rmhmc.model.words.user_arguments import ArgumentRanges

__all__ = ["OF_CLASSES", "IndexBounds", "InputChecks", "classes_in_words", "not_finite_in_words"]

# One observation is of a class, or counts them.
OF_CLASSES = (CategoricalRV, DirichletMultinomialRV, MultinomialRV)

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
# A symbol, what a user calls it, and its values.
type Input = tuple[Variable, str, Array]


class InputChecks:
    """The checks of data and constants: at once of what nothing can change.

    Raises a `DataError` if an argument is out of its range, or an index out of bounds, and an `UnsupportedModelError`
    if data are a random subset, drawn anew for each gradient, or a Potential holds random draws.
    """

    def __init__(self, model: pm.Model) -> None:
        _check_fixed(model)
        _check_potentials(model)
        self._model, self.bounds, self._ranges = model, IndexBounds(model), ArgumentRanges(model)
        self._ranges.check()

    def check(self, point: Point) -> None:
        """Raise a `DataError` that says what is wrong with which data, with the shared data as they are now."""
        self._ranges.check()
        self.bounds.check(point)
        _check_finite(self._model, point)


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


def classes_in_words(model: pm.Model) -> str:
    """Say which likelihoods of classes have a single one, or a class that nobody observed; empty if none has."""
    said = [_unseen_in_words(model, v) for v in model.observed_RVs if isinstance(core_op(v), OF_CLASSES)]
    return " ".join(filter(None, said))


def _unseen_in_words(model: pm.Model, variable: TensorVariable) -> str:
    """Say what a likelihood of classes says nothing of, where values that are not bounded move its probabilities."""
    p, value = variable.owner.op.dist_params(variable.owner)[-1], model.rvs_to_values[variable]
    # Probabilities that are free themselves, as those with a Dirichlet prior, do not run away.
    open_ended = [v for v in model.free_RVs if v.dtype.startswith("float") and model.rvs_to_transforms[v] is None]
    moving = [v for v in open_ended if reaches(p, [v], model.basic_RVs)]
    if not moving:
        return ""
    size, data = Evaluator(model, [p.shape[-1], value])(model.initial_point())
    n_classes, name = int(size), str(variable.name)
    if n_classes == 1:
        return (
            f"{name} has a single class, so that its likelihood is 1 for any {listed([names_of([v]) for v in moving])},"
            f' and says nothing. If two outcomes are meant, write pm.Bernoulli("{name}", logit_p=...); if more are, '
            "give p or logit_p a column for each class."
        )
    is_counted = getattr(variable.owner.op, "ndim_supp", 0) == 1
    seen = np.flatnonzero(data.reshape(-1, n_classes).any(axis=0)) if is_counted else np.unique(data)
    unseen = [str(k) for k in np.setdiff1d(np.arange(n_classes), seen)]
    if not unseen:
        return ""
    classes, its = ("class", "its probability") if len(unseen) == 1 else ("classes", "their probabilities")
    return (
        f"No observation of {name} is in {classes} {listed(unseen)}, of 0 to {n_classes - 1}: the data push {its} to "
        f"0, and the priors alone say how near. Leave the {classes} out, or see that all that moves {its} has a proper "
        "prior."
    )


def not_finite_in_words(values: Array) -> str:
    """Say that values are not finite, how many, and where the first is."""
    bad = np.argwhere(~np.isfinite(values))
    first = tuple(map(int, bad[0]))
    where = "row {}, column {}".format(*first) if len(first) == 2 else f"position {', '.join(map(str, first))}"
    at = f", the first at {where} ({values[first]:.4g})" if first else f" ({values:.4g})"
    return f"are not finite in {len(bad)} of {values.size} values{at}"


class _Number:
    """The values of an expression of a model; those of constants and data are read without PyTensor.

    Attributes
    ----------
    inputs : tuple of str
        The value variables that it depends on.
    is_fixed : bool
        Whether it depends on constants alone.
    """

    def __init__(self, model: pm.Model, expression: Variable) -> None:
        self._expression = expression
        has_values = isinstance(expression, Constant | SharedVariable)
        self._evaluator = None if has_values else Evaluator(model, [expression])  # type: ignore[list-item]
        self.inputs: tuple[str, ...] = () if self._evaluator is None else self._evaluator.inputs
        self.is_fixed = not self.inputs and not any(isinstance(v, SharedVariable) for v in ancestors([expression]))

    def at(self, point: Point) -> np.ndarray:
        """Return its values."""
        if self._evaluator:
            return np.asarray(self._evaluator(point)[0])
        held = self._expression
        return np.asarray(held.data if isinstance(held, Constant) else held.get_value(borrow=True))


@dataclass(frozen=True)
class _Read:
    """One axis of an array, or several for a mask, and what indexes it."""

    term: str
    source: str
    indices: _Number
    data: str
    axis: int
    sizes: tuple[int | _Number, ...]

    @property
    def parts(self) -> list[_Number]:
        """What must be evaluated."""
        return [self.indices, *(size for size in self.sizes if isinstance(size, _Number))]

    def check(self, point: Point) -> None:
        """Raise a `DataError` if an index is out of bounds."""
        try:
            indices = self.indices.at(point)
            sizes = tuple(size if isinstance(size, int) else int(size.at(point)) for size in self.sizes)
        except Exception:  # noqa: BLE001 - what has no value for other reasons has messages of its own
            return
        if indices.dtype == bool:
            if indices.shape != sizes:
                raise DataError(
                    f"{self.term}: the mask{self.data} has the shape {indices.shape}, and {self.source} has {sizes}. "
                    "Give both the same shape."
                )
            return
        (size,) = sizes
        bad = (indices < -size) | (indices >= size)
        if bad.any():
            raise DataError(self._out_of_bounds(indices, bad, size))
        if not self.indices.inputs and _are_codes(indices, size) and (indices < 0).any():
            raise DataError(self._from_the_end(indices, size))

    def _from_the_end(self, indices: np.ndarray, size: int) -> str:
        """Say that a negative code would be read as the code of a group near the end."""
        first, n_negative = int(indices[indices < 0][0]), int((indices < 0).sum())
        group = "the last" if first == -1 else f"number {first % size}"
        return (
            f"{self.term}: index {first} along axis {self.axis} with size {size} of {self.source} ({n_negative} of "
            f"{indices.size} indices{self.data}) would be read as {group}, but the other indices begin at 0. pandas "
            f"gives missing groups the code -1. Remove the rows with negative codes, give missing groups a code of "
            f"their own, or write {first % size} if {group} is meant."
        )

    def _out_of_bounds(self, indices: np.ndarray, bad: NDArray[np.bool_], size: int) -> str:
        """Say which index is out of bounds, and what is likely meant."""
        low, high = int(indices.min()), int(indices.max())
        found, part = high if high >= size else low, f"{int(bad.sum())} of {bad.size} indices{self.data}"
        begins_at_1 = low >= 1 and high == size
        remedy = "Subtract 1 from them" if begins_at_1 else f"Correct them, or the size of {self.source}"
        return (
            f"{self.term}: index {found} is out of bounds for axis {self.axis} with size {size} of {self.source} "
            f"({part}). Indices begin at 0 and end at {size - 1}. {remedy}."
        )


def _are_codes(indices: np.ndarray, size: int) -> bool:
    """Return whether an array holds codes of groups from 0: some are not negative, and some group is named twice.

    A selection such as ``[0, -1]`` or a shift such as ``arange(n) - 1`` names no value twice.
    """
    return bool((indices >= 0).any()) and np.unique(indices % size).size < indices.size


class IndexBounds:
    """All that indexes an array in the log density of a model, and by what.

    An index that nothing can change is checked at once, with a `DataError` if it is out of bounds. `moving` are those
    that free variables give.
    """

    def __init__(self, model: pm.Model) -> None:
        self._reads: list[_Read] = []
        self._moved: Point = {}
        for read in _reads(model):
            if all(part.is_fixed for part in read.parts):
                read.check({})
            else:
                self._reads.append(read)
        self.moving = [read for read in self._reads if read.indices.inputs]

    def check(self, point: Point) -> None:
        """Raise a `DataError` if an index is out of bounds at a point, with the shared data as they are now."""
        for read in self._reads:
            read.check(point)

    def check_moved(self, point: Point) -> None:
        """Raise a `DataError` if an index that free variables give is out of bounds, where these have changed."""
        names = {name for read in self.moving for name in read.indices.inputs}
        if all(name in self._moved and np.array_equal(self._moved[name], point[name]) for name in names):
            return
        self._moved = {name: np.array(point[name]) for name in names}
        for read in self.moving:
            read.check(point)


def _reads(model: pm.Model) -> Iterator[_Read]:
    """Yield everything in the model's log density that is indexed, inner arrays first."""
    seen: set[Apply] = set()
    names = {variable: name for name, variable in model.named_vars.items()}
    for term in (*model.basic_RVs, *model.potentials):
        for node in toposort(_formula(model, term), blockers=model.basic_RVs):
            if node not in seen:
                seen.add(node)
                yield from _read_by(model, str(term.name), node, names)


def _formula(model: pm.Model, term: TensorVariable) -> list[Variable]:
    """Return the expressions in which a user may index: a term's parameters and data, or the user's own log density."""
    if term in model.potentials:
        return [term]
    if distribution_of(term) == "CustomDist":
        return list(model.logp(vars=[term], sum=False))
    observed = [model.rvs_to_values[term]] if term in model.observed_RVs else []
    return [*term.owner.inputs, *observed]


def _read_by(model: pm.Model, term: str, node: Apply, names: dict[Variable, str]) -> Iterator[_Read]:
    """Yield the axes that an operation indexes."""
    axis, source = 0, node.inputs[0]
    for entry in _entries(node):
        dtype = getattr(getattr(entry, "type", None), "dtype", None)  # a slice has none
        n_axes = entry.type.ndim if dtype == "bool" else 1
        if dtype is not None:
            sizes = tuple(_size(model, source, axis + i) for i in range(n_axes))
            data = _data_in_words(entry, names)
            yield _Read(term, _source_in_words(source, names), _Number(model, _plain(entry)), data, axis, sizes)
        axis += n_axes


def _entries(node: Apply) -> list[Variable]:
    """Return what an operation indexes each axis by; empty for one that does not index."""
    if isinstance(node.op, Subtensor | AdvancedSubtensor):
        return list(indices_from_subtensor(node.inputs[1:], node.op.idx_list))
    if isinstance(node.op, IncSubtensor | AdvancedIncSubtensor):
        return list(indices_from_subtensor(node.inputs[2:], node.op.idx_list))
    return node.inputs[1:] if isinstance(node.op, Index) else []


def _plain(entry: Variable) -> TensorVariable:
    """Return an index as a tensor, also where it has named dimensions."""
    is_expression = is_of_dims(entry) and entry.owner is not None
    return entry.values if is_expression else entry  # type: ignore[attr-defined]


def _size(model: pm.Model, source: Variable, axis: int) -> int | _Number:
    """Return the length of an axis, as a number where the type has it."""
    known = source.type.shape[axis]
    return int(known) if known is not None else _Number(model, _plain(source).shape[axis])


def _source_in_words(source: Variable, names: dict[Variable, str]) -> str:
    """Name what is indexed."""
    return names.get(source) or source.name or "an array"


def _data_in_words(entry: Variable, names: dict[Variable, str]) -> str:
    """Name the data and variables that indices are made of; empty if there are none."""
    found = [names[v] for v in ancestors([entry], blockers=list(names)) if v in names]
    return f" in {', '.join(dict.fromkeys(found))}" if found else ""
