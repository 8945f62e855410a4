"""J, c, A and a of a field as multiples of few numbers u(θ), and u as a graph.

Entries that move in proportion share one number: most models have one to four, however many entries there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor
from pytensor.tensor.variable import TensorVariable
from scipy import sparse

from pymc_rmhmc.interfaces.stated import AffineRows, FieldKernel, FieldMaps
from pymc_rmhmc.model.graph.graphs import by_python

__all__ = [
    "N_PATTERNS", "AffineExpressions", "Map", "MovingMaps", "NotSparse", "colours_of", "find_pattern", "points_about",
    "read_maps",
]  # fmt: skip

# ---------------------------------------------------- patterns

# Where an affine map of many values is not 0, found by evaluating it at a few points.
#
# A value that alone of its colour moves a row is read off: the row's answers to the colour's indicator and to the same
# times each value's index have that index as their ratio, and a third answer, to random numbers, confirms it. Rows in
# which values of one colour meet are read with other colours.

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]
# From values (n,) to the rows (m,).
type Map = Callable[[Array], Array]

# Of so many values each is moved by itself.
ONE_BY_ONE = 64
N_COLOURS, N_ROUNDS = 32, 10
TOLERANCE = 1e-6
# Of what a row has at most, an entry that is rounding alone: a sine after whole turns.
NEGLIGIBLE = 1e-9
# Rows with more entries are dense, and as many of them there may be.
LONGEST_ROW, MOST_DENSE = 64, 16
MOST_COLOURS = 64


class NotSparse(Exception):  # noqa: N818 - it is caught: another form of the model is used
    """A map has too many entries for a sparse precision."""


def find_pattern(maps: list[Map], blocks: list[slice]) -> tuple[Indices, Indices, Indices]:
    """Return rows and columns of the entries, and the rows that are dense, whose entries are left out.

    Raises a `NotSparse` if more rows are dense than a few.

    `maps`: the map at several values of what else it depends on: what is 0 at one of them may not be at another.
    `blocks`: values that are alike, as those of one variable.
    """
    size = blocks[-1].stop
    zeros = [each(np.zeros(size)) for each in maps]
    least = [_least(each, zero, blocks) for each, zero in zip(maps, zeros, strict=True)]
    n_rows, rng = zeros[0].size, np.random.default_rng(0)
    found: list[tuple[Indices, Indices]] = []
    unread = np.zeros(n_rows, bool)
    for block in blocks:
        for each, zero, small in zip(maps, zeros, least, strict=True):
            if block.stop - block.start <= ONE_BY_ONE:
                found += [_column(each, zero, j, size) for j in range(block.start, block.stop)]
            else:
                entries, left = _decoded(each, zero, small, block, size, rng)
                found += entries
                unread |= left
    pattern = _pattern(found, (n_rows, size))
    dense = np.flatnonzero(unread | (np.diff(pattern.indptr) > max(LONGEST_ROW, size // 4)))
    if dense.size > MOST_DENSE:
        raise NotSparse
    row, column = pattern.nonzero()
    kept = np.isin(row, dense, invert=True)
    return row[kept].astype(np.int64), column[kept].astype(np.int64), dense


def _column(function: Map, zero: Array, which: int, size: int) -> tuple[Indices, Indices]:
    """Return the entries of one column."""
    values = np.zeros(size)
    values[which] = 0.875
    rows = np.flatnonzero(function(values) != zero)
    return rows, np.full(rows.size, which)


def _decoded(
    function: Map, zero: Array, least: Array, block: slice, size: int, rng: np.random.Generator
) -> tuple[list[tuple[Indices, Indices]], NDArray[np.bool_]]:
    """Return the entries in a block of columns, and the rows of which some could not be told apart."""
    count = block.stop - block.start
    index, random = np.arange(1.0, count + 1.0) / count, rng.uniform(0.5, 1.5, count)
    probe = rng.uniform(0.5, 1.5, count)
    answer = _answer(function, zero, probe, block, size, least)
    unread, found = np.ones(zero.size, bool), []
    known, rest = sparse.csr_array((zero.size, count)), list[tuple[Indices, Indices, Array]]()
    for _ in range(N_ROUNDS):
        colour = rng.integers(N_COLOURS, size=count)
        entries = []
        for c in range(N_COLOURS):
            chosen = (colour == c).astype(float)
            one, at, turned = (
                _answer(function, zero, chosen * weight, block, size) for weight in (1.0, index, random)
            )
            rows = np.flatnonzero((np.abs(one) > least) & unread)
            place = np.rint(count * at[rows] / one[rows]) - 1.0
            inside = (place >= 0.0) & (place < count)
            rows, place = rows[inside], place[inside].astype(np.int64)
            fits = np.abs(turned[rows] - one[rows] * random[place]) <= TOLERANCE * np.abs(one[rows])
            fits &= np.abs(at[rows] - one[rows] * index[place]) <= TOLERANCE * np.abs(at[rows])
            entries.append((rows[fits], place[fits], one[rows[fits]]))
        row, column, value = (np.concatenate(parts) for parts in zip(*entries, *rest, strict=True))
        first = np.unique(row * count + column, return_index=True)[1]
        row, column, value = row[first], column[first], value[first]
        known = sparse.csr_array((value, (row, column)), shape=known.shape)
        # A row is read where what was found of it explains its answer to all values at once.
        missed = np.abs(known @ probe - answer)
        read = unread & (missed <= TOLERANCE * (np.abs(answer) + np.abs(known) @ probe))
        kept = read[row]
        found.append((row[kept], column[kept] + block.start))
        # The others go on with what was found of them.
        unread &= ~read
        kept = unread[row]
        rest = [(row[kept], column[kept], value[kept])]
        if not unread.any():
            break
    return found, unread


def _answer(
    function: Map, zero: Array, values: Array | float, block: slice, size: int, least: Array | float = 0.0
) -> Array:
    """Return how far rows move with the values of a block, 0 where that is no further than the least."""
    given = np.zeros(size)
    given[block] = values
    moved = function(given)
    by = np.where(moved == zero, 0.0, moved - zero)
    return np.where(np.abs(by) > least, by, 0.0)


def _least(function: Map, zero: Array, blocks: list[slice]) -> Array:
    """Return how far each row moves at least if it reads a value, (m,)."""
    answers = [np.abs(_answer(function, zero, 1.0, block, blocks[-1].stop)) for block in blocks]
    return NEGLIGIBLE * np.max(answers, axis=0)


def _pattern(found: list[tuple[Indices, Indices]], shape: tuple[int, int]) -> sparse.csr_array:
    row, column = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return sparse.csr_array((np.ones(row.size), (row, column)), shape=shape)


def colours_of(row: Indices, column: Indices, shape: tuple[int, int]) -> Indices:
    """Return a colour for each column (n,), so that no row has two entries of one.

    Raises a `NotSparse` if that takes too many colours.
    """
    pattern = sparse.csr_array((np.ones(row.size, np.int8), (row, column)), shape=shape)
    if pattern.nnz and np.diff(pattern.indptr).max() > MOST_COLOURS:
        raise NotSparse
    columns = pattern.tocsc()
    indptr, rows = columns.indptr, columns.indices
    starts, entries = pattern.indptr, pattern.indices
    colour = np.full(shape[1], -1)
    # The columns with most entries first: a mean before what it is the mean of.
    for j in np.argsort(-np.diff(indptr), kind="stable"):
        read = rows[indptr[j] : indptr[j + 1]]
        if read.size > 200:  # by whole arrays where there are many
            near = colour[pattern[read].indices]
        else:
            near = colour[np.concatenate([entries[starts[r] : starts[r + 1]] for r in read])] if read.size else read
        taken = set(near.tolist())
        own = 0
        while own in taken:
            own += 1
        if own >= MOST_COLOURS:
            raise NotSparse
        colour[j] = own
    return colour


# How far θ is moved for each point at which entries are compared, and at how many of them patterns are looked for: a
# coefficient may be 0 where a model begins, or on one side of it. The second point lies opposite the first.
SPREADS, N_PATTERNS = (0.3, 0.4, 0.1, 0.6, 1.0), 2
# Of u(θ): a factor of a kernel's covariance has a number for each entry, and no form is slower for it than this one.
# Rows of no more entries than a few may have numbers of their own, as steps that decay over times that are irregular.
MOST_NUMBERS, NUMBERS_BY_HYPERPARAMETER, FEW_ENTRIES = 64, 4, 4
STILL, DIGITS = 1e-12, 9


@dataclass(frozen=True, eq=False)
class AffineExpressions:
    """Residuals and predictors as graphs of the latent values x and of θ."""

    # `latents`, `theta`: the vectors x (n,) and θ (d,).
    latents: TensorVariable
    theta: TensorVariable
    # `residuals`, `predictors`, `values`: e, η and, where x are not the model's own values, these; vectors.
    residuals: TensorVariable
    predictors: TensorVariable
    values: TensorVariable
    as_written: list[TensorVariable]  # e and η as the model writes them, by those values
    blocks: list[slice]  # the parts of x of each variable
    # `others`, `given`: what else the graphs depend on, and its values.
    others: Sequence[TensorVariable]
    given: Sequence[np.ndarray]
    walks: list[Indices]  # which of the model's values running sums took the place of

    @property
    def rows(self) -> list[TensorVariable]:
        """All that is affine in x."""
        return [self.residuals, self.predictors, self.values]


@dataclass(frozen=True, eq=False)
class MovingMaps:
    """What does not move with θ, u(θ) as a graph, and which of the residuals are dense rows."""

    maps: FieldMaps
    numbers: TensorVariable
    dense: Indices


def read_maps(affine: AffineExpressions, theta: Array, kernels: tuple[FieldKernel, ...] = ()) -> MovingMaps:
    """Read J, c, A and a about a θ, with the last values those of `kernels`.

    Raises a `NotSparse` if they have too many entries, or a dense row moves with θ or reads a kernel's vector.
    """
    size = affine.blocks[-1].stop
    function = by_python([affine.latents, affine.theta, *affine.others], affine.rows)
    points = points_about(theta)

    def at(where: Array) -> Callable[[Array], Array]:
        return lambda values: np.concatenate([np.ravel(e) for e in function(values, where, *affine.given)])

    n_residuals, n_predictors, n_values = (e.size for e in function(np.zeros(size), theta, *affine.given))
    row, column, dense = find_pattern([at(where) for where in points[:N_PATTERNS]], affine.blocks)
    if dense.size and dense.max() >= n_residuals:
        raise NotSparse
    n_rows = n_residuals + n_predictors + n_values
    colour = colours_of(row, column, (n_rows, size))
    seeds = [(colour == c).astype(float) for c in range(int(colour.max(initial=0)) + 1)]
    entries, offsets = _values([at(where) for where in points], seeds, colour, row, column, size)
    shared = _Shared.of(np.concatenate((entries, offsets), axis=1))
    n_entries = np.bincount(row, minlength=n_rows)[np.concatenate((row, np.arange(n_rows)))[shared.first]]
    if np.sum(n_entries > FEW_ENTRIES) > MOST_NUMBERS + NUMBERS_BY_HYPERPARAMETER * theta.size:
        raise NotSparse
    if np.isin(dense, _rows_that_move(shared, row.size)).any():
        raise NotSparse
    numbers = _numbers(affine, shared, row, column, seeds, colour)
    rows, offset = _dense_rows(affine, points, dense, size)
    maps = _maps(shared, row, column, (n_residuals, n_predictors, n_values), dense, size, rows, offset)
    maps = replace(maps, kernels=kernels)
    if maps.dense[:, size - maps.n_dense :].any():
        raise NotSparse
    return MovingMaps(maps, numbers, dense)


def points_about(theta: Array) -> list[Array]:
    """Return some θ near one; at the first few of them patterns are looked for."""
    rng = np.random.default_rng(0)
    moved = [rng.standard_normal(theta.size) for _ in SPREADS]
    moved[1] = -moved[0]
    return [theta + spread * each for spread, each in zip(SPREADS, moved, strict=True)]


def _values(
    maps: Sequence[Callable[[Array], Array]], seeds: Sequence[Array], colour: Indices, row: Indices, column: Indices,
    size: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the entries and the offsets at each of the points."""
    entries, offsets = [], []
    for each in maps:
        zero = each(np.zeros(size))
        answers = np.array([each(seed) - zero for seed in seeds])
        entries.append(answers[colour[column], row])
        offsets.append(zero)
    return np.array(entries), np.array(offsets)


@dataclass(frozen=True, eq=False)
class _Shared:
    """Values as coefficients times numbers; number 0 is 1. `first` has one value of each other number."""

    coefficient: Array
    number: Indices
    first: Indices

    @classmethod
    def of(cls, values: Array) -> _Shared:
        """Compare values (p, m) at several points."""
        with np.errstate(all="ignore"):
            still = (np.abs(values - values[0]) <= STILL * (1.0 + np.abs(values[0]))).all(axis=0)
            # One that is 0 at the first point is compared with what it is elsewhere.
            row = np.where(values[0] != 0.0, 0, np.abs(np.nan_to_num(values)).argmax(axis=0))
            reference = values[row, np.arange(row.size)]
            signature = np.round(values / np.where(reference != 0.0, reference, 1.0), DIGITS).T
        moving = np.flatnonzero(~still)
        _, first, which = np.unique(signature[moving], axis=0, return_index=True, return_inverse=True)
        coefficient, number = values[0].copy(), np.zeros(values.shape[1], np.int64)
        first = moving[first]
        number[moving] = 1 + which.ravel()
        coefficient[moving] = reference[moving] / reference[first[which.ravel()]]
        return cls(coefficient, number, first)


def _rows_that_move(shared: _Shared, n_entries: int) -> Indices:
    """Return the rows whose offset moves."""
    return np.flatnonzero(shared.number[n_entries:] != 0)


def _numbers(
    affine: AffineExpressions, shared: _Shared, row: Indices, column: Indices, seeds: Sequence[Array], colour: Indices
) -> TensorVariable:
    """Return u(θ) as a graph: entries as differences from x = 0, and offsets there, of one row for each number."""
    both = pt.concatenate(affine.rows).astype("float64")
    zero = pt.zeros(seeds[0].size)
    made: list[TensorVariable] = [pt.ones(1)]
    places = np.zeros(shared.first.size, np.int64)
    length = _Lengths(affine)
    entries = np.flatnonzero(shared.first < row.size)
    start = 1
    at = colour[column[shared.first[entries]]]
    for c in np.unique(at):
        which = entries[at == c]
        part = _taken(both, row[shared.first[which]], length)
        seed = pt.constant(seeds[c])
        made.append(clone_replace([part], {affine.latents: seed})[0] - clone_replace([part], {affine.latents: zero})[0])
        places[which] = start + np.arange(which.size)
        start += which.size
    offsets = np.flatnonzero(shared.first >= row.size)
    if offsets.size:
        part = _taken(both, shared.first[offsets] - row.size, length)
        made.append(clone_replace([part], {affine.latents: zero})[0])
        places[offsets] = start + np.arange(offsets.size)
    order = np.concatenate(([0], places))
    return pt.concatenate(made)[np.ascontiguousarray(order)]


class _Lengths:
    """The lengths of vectors in a graph."""

    def __init__(self, affine: AffineExpressions) -> None:
        self._affine, self._known = affine, dict[TensorVariable, int]()

    def __call__(self, vector: TensorVariable) -> int:
        if vector not in self._known:
            affine = self._affine
            function = by_python([affine.latents, affine.theta, *affine.others], [vector.shape[0]])
            zeros = np.zeros(affine.blocks[-1].stop), np.zeros(affine.theta.type.shape[0] or 0)
            try:
                found = function(*zeros, *affine.given)[0]
            except ValueError:  # the length of θ is not known of the symbol
                raise NotSparse from None
            self._known[vector] = int(found)
        return self._known[vector]


def _taken(vector: TensorVariable, which: Indices, length: Callable[[TensorVariable], int]) -> TensorVariable:
    """Return some elements of a vector, through elementwise operations and concatenations, so that no other is made."""
    if vector.owner is None or vector.ndim != 1 or vector.type.shape == (1,):
        return vector[which]
    op, inputs = vector.owner.op, vector.owner.inputs
    if isinstance(op, Elemwise):
        return op(*[each if each.type.shape == (1,) else _taken(each, which, length) for each in inputs])
    if isinstance(op, Reshape | SpecifyShape) and inputs[0].ndim == 1:
        return _taken(inputs[0], which, length)
    if isinstance(op, Subtensor | AdvancedSubtensor) and all(isinstance(each, Constant) for each in inputs[1:]):
        size, *others = inputs[0].type.shape
        if size is not None and not others:
            (positions,) = by_python([], [op(pt.arange(size), *inputs[1:])])()
            return _taken(inputs[0], positions[which], length)
    if isinstance(op, Join):
        parts = [each for each in inputs if each.ndim == 1]
        ends = np.concatenate(([0], np.cumsum([length(each) for each in parts])))
        part = np.searchsorted(ends, which, side="right") - 1
        back = np.argsort(np.argsort(part, kind="stable"), kind="stable")
        taken = [_taken(parts[k], which[part == k] - ends[k], length) for k in np.unique(part)]
        return pt.concatenate(taken)[back]
    return vector[which]


def _dense_rows(
    affine: AffineExpressions, points: Sequence[Array], dense: Indices, size: int
) -> tuple[Array, Array]:
    """Return the dense rows of J (k, n), which must not move with θ, and their c."""
    rows, offset = np.zeros((dense.size, size)), np.zeros(dense.size)
    for i, which in enumerate(dense):
        (row,) = clone_replace([affine.residuals[int(which)]], {})
        gradient = pytensor.grad(row, affine.latents)
        function = by_python([affine.latents, affine.theta, *affine.others], [row, gradient])
        found = [function(np.zeros(size), where, *affine.given) for where in points]
        if any(not np.allclose(each[1], found[0][1], rtol=STILL, atol=0.0) for each in found):
            raise NotSparse
        offset[i], rows[i] = -found[0][0], found[0][1]
    return rows, offset


def _maps(
    shared: _Shared, row: Indices, column: Indices, sizes: tuple[int, int, int], dense: Indices, size: int,
    rows: Array, offset: Array,
) -> FieldMaps:  # fmt: skip
    """Sort what was found into J with c, A with a, and the same of the model's values."""
    n_entries, first, second = row.size, sizes[0], sizes[0] + sizes[1]
    kept = np.setdiff1d(np.arange(first), dense)
    entry_coefficient, entry_number = shared.coefficient[:n_entries], shared.number[:n_entries]
    coefficient, number = shared.coefficient[n_entries:], shared.number[n_entries:]

    def rows_of(which: Indices, sign: float) -> AffineRows:
        renumbered = np.full(sum(sizes), -1)
        renumbered[which] = np.arange(which.size)
        entries = renumbered[row] >= 0
        return AffineRows(
            renumbered[row[entries]], column[entries], entry_coefficient[entries], entry_number[entries],
            sign * coefficient[which], number[which],
        )  # fmt: skip

    predictors, values = np.arange(first, second), np.arange(second, sum(sizes))
    own = rows_of(values, 1.0) if values.size else None
    return FieldMaps(size, rows_of(kept, -1.0), rows_of(predictors, 1.0), rows, offset, own)
