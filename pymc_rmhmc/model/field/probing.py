"""Where an affine map of many values is not 0, found by evaluating it at a few points.

A value that alone of its colour moves a row is read off: the row's answers to the colour's indicator and to the same
times each value's index have that index as their ratio, and a third answer, to random numbers, confirms it. Rows in
which values of one colour meet are read with other colours.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

__all__ = ["Map", "NotSparse", "colours_of", "find_pattern"]

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

    Parameters
    ----------
    maps : list of callables
        The map at several values of what else it depends on: what is 0 at one of them may not be at another.
    blocks : list of slice
        Values that are alike, as those of one variable.
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
