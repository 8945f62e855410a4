"""Indices of a model's density that lie outside of what they index, or are negative among codes of groups.

Compiled code does not check indices: it would read past the end of an array, and draws would be wrong in silence. A
negative code counts from the end, and a missing group would be read as the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor
from numpy.typing import NDArray
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)
from pytensor.tensor.variable import TensorVariable
from pytensor.xtensor.indexing import Index

from pymc_rmhmc.errors import DataError
from pymc_rmhmc.model.graph.graphs import Evaluator, is_of_dims
from pymc_rmhmc.model.graph.source_code import distribution_of

__all__ = ["IndexBounds"]

type Point = dict[str, np.ndarray]


class _Number:
    """The values of an expression of a model; those of constants and data are read without PyTensor."""

    def __init__(self, model: pm.Model, expression: Variable) -> None:
        self.expression = expression
        has_values = isinstance(expression, Constant | pytensor.compile.SharedVariable)
        self._evaluator = None if has_values else Evaluator(model, [expression])  # type: ignore[list-item]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The value variables that it depends on."""
        return self._evaluator.inputs if self._evaluator else ()

    @property
    def is_fixed(self) -> bool:
        """Whether it depends on constants alone."""
        return not self.inputs and not any(
            isinstance(v, pytensor.compile.SharedVariable) for v in ancestors([self.expression])
        )

    def at(self, point: Point) -> NDArray[Any]:
        """Return its values."""
        if self._evaluator:
            return np.asarray(self._evaluator(point)[0])
        held = self.expression
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

    def _from_the_end(self, indices: NDArray[Any], size: int) -> str:
        """Say that a negative code would be read as the code of a group near the end."""
        first, n_negative = int(indices[indices < 0][0]), int((indices < 0).sum())
        group = "the last" if first == -1 else f"number {first % size}"
        return (
            f"{self.term}: index {first} along axis {self.axis} with size {size} of {self.source} ({n_negative} of "
            f"{indices.size} indices{self.data}) would be read as {group}, but the other indices begin at 0. pandas "
            f"gives missing groups the code -1. Remove the rows with negative codes, give missing groups a code of "
            f"their own, or write {first % size} if {group} is meant."
        )

    def _out_of_bounds(self, indices: NDArray[Any], bad: NDArray[np.bool_], size: int) -> str:
        """Say which index is out of bounds, and what is likely meant."""
        low, high = int(indices.min()), int(indices.max())
        found, part = high if high >= size else low, f"{int(bad.sum())} of {bad.size} indices{self.data}"
        begins_at_1 = low >= 1 and high == size
        remedy = "Subtract 1 from them" if begins_at_1 else f"Correct them, or the size of {self.source}"
        return (
            f"{self.term}: index {found} is out of bounds for axis {self.axis} with size {size} of {self.source} "
            f"({part}). Indices begin at 0 and end at {size - 1}. {remedy}."
        )


def _are_codes(indices: NDArray[Any], size: int) -> bool:
    """Return whether an array holds codes of groups from 0: some are not negative, and some group is named twice.

    A selection such as ``[0, -1]`` or a shift such as ``arange(n) - 1`` names no value twice.
    """
    return bool((indices >= 0).any()) and np.unique(indices % size).size < indices.size


class IndexBounds:
    """All that indexes an array in the log density of a model, and by what.

    Parameters
    ----------
    model : pymc.Model
        The model.

    Raises
    ------
    DataError
        If an index that nothing can change is out of bounds.
    """

    def __init__(self, model: pm.Model) -> None:
        self._reads: list[_Read] = []
        self._moved: Point = {}
        for read in _reads(model):
            if all(part.is_fixed for part in read.parts):
                read.check({})
            else:
                self._reads.append(read)
        self._moving = [read for read in self._reads if read.indices.inputs]

    def check(self, point: Point) -> None:
        """Check all indices at a point, with the shared data as they are now.

        Raises
        ------
        DataError
            If one is out of bounds.
        """
        for read in self._reads:
            read.check(point)

    def check_moved(self, point: Point) -> None:
        """Check those indices that free variables give, where these have changed.

        Raises
        ------
        DataError
            If one is out of bounds.
        """
        names = {name for read in self._moving for name in read.indices.inputs}
        if all(name in self._moved and np.array_equal(self._moved[name], point[name]) for name in names):
            return
        self._moved = {name: np.array(point[name]) for name in names}
        for read in self._moving:
            read.check(point)


def _reads(model: pm.Model) -> Iterator[_Read]:
    """Yield everything in the model's log density that is indexed, inner arrays first."""
    seen: set[Apply[Any]] = set()
    names = {variable: name for name, variable in model.named_vars.items()}
    for term in (*model.basic_RVs, *model.potentials):
        for node in toposort(_formula(model, term), blockers=model.basic_RVs):
            if node not in seen:
                seen.add(node)
                yield from _read_by(model, str(term.name), node, names)


def _formula(model: pm.Model, term: TensorVariable) -> list[Any]:
    """Return the expressions in which a user may index: a term's parameters and data, or the user's own log density."""
    if term in model.potentials:
        return [term]
    if distribution_of(term) == "CustomDist":
        return list(model.logp(vars=[term], sum=False))
    observed = [model.rvs_to_values[term]] if term in model.observed_RVs else []
    return [*term.owner.inputs, *observed]


def _read_by(model: pm.Model, term: str, node: Apply[Any], names: dict[Any, str]) -> Iterator[_Read]:
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


def _entries(node: Apply[Any]) -> list[Any]:
    """Return what an operation indexes each axis by; empty for one that does not index."""
    if isinstance(node.op, Subtensor | AdvancedSubtensor):
        return list(indices_from_subtensor(node.inputs[1:], node.op.idx_list))
    if isinstance(node.op, IncSubtensor | AdvancedIncSubtensor):
        return list(indices_from_subtensor(node.inputs[2:], node.op.idx_list))
    return node.inputs[1:] if isinstance(node.op, Index) else []


def _plain(entry: Variable) -> Any:
    """Return an index as a tensor, also where it has named dimensions."""
    is_expression = is_of_dims(entry) and entry.owner is not None
    return entry.values if is_expression else entry  # type: ignore[attr-defined]


def _size(model: pm.Model, source: Any, axis: int) -> int | _Number:
    """Return the length of an axis, as a number where the type has it."""
    known = source.type.shape[axis]
    return int(known) if known is not None else _Number(model, _plain(source).shape[axis])


def _source_in_words(source: Variable, names: dict[Any, str]) -> str:
    """Name what is indexed."""
    return names.get(source) or source.name or "an array"


def _data_in_words(entry: Variable, names: dict[Any, str]) -> str:
    """Name the data and variables that indices are made of; empty if there are none."""
    found = [names[v] for v in ancestors([entry], blockers=list(names)) if v in names]
    return f" in {', '.join(dict.fromkeys(found))}" if found else ""
