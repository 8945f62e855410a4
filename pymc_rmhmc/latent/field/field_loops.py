"""Compiled loops over the rows of J and A of a Gaussian field, and over the precision that they make.

Columns are in the order of elimination. Two vectors per row go with each: a place in the stored precision for every
pair of the row's entries, the lower triangle of the pairs one after another.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.sparse_cholesky import factorise, select, solve

__all__ = [
    "DenseRows", "SparseRows", "add_products", "factorise_updated", "field_pullback", "filled", "multiplied",
    "multiplied_adjoint", "select_updated", "solve_updated", "variances_of_rows",
]  # fmt: skip

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]


class SparseRows(NamedTuple):
    """J with c, or A with a, as multiples of the numbers u(θ), of which the first is 1.

    Attributes
    ----------
    start : (m + 1,) array
        Where the entries of each row begin.
    column : (nnz,) array
        In the order of elimination.
    coefficient, number : (nnz,) array
        An entry is the coefficient times that number of u.
    offset, offset_number : (m,) array
        The same of c or a.
    pair_start : (m + 1,) array
        Where the pairs of each row begin.
    place : array
        Of each pair in the stored precision.
    moves : (m,) bool array
        Whether θ moves an entry of the row.
    """

    start: Indices
    column: Indices
    coefficient: Array
    number: Indices
    offset: Array
    offset_number: Indices
    pair_start: Indices
    place: Indices
    moves: NDArray[np.bool_]


class DenseRows(NamedTuple):
    """Constant rows of J with many entries, which the stored precision P₀ leaves out: ``P = P₀ + RᵀCR``.

    Attributes
    ----------
    rows : (k, n) array
        R: the rows, and then a unit vector for each grounded value.
    n_rows : (1,) int array
        How many of them are rows of J.
    offset : (n_rows,) array
        Their c.
    ground : array
        The diagonal places of values that P₀ has doubled, since it may have no inverse without the rows. C takes that
        off again.
    """

    rows: Array
    n_rows: Indices
    offset: Array
    ground: Indices


@compiled
def filled(coefficient: Array, number: Indices, numbers: Array) -> Array:  # pragma: no cover - compiled
    """Return entries as coefficients times their numbers."""
    made = np.empty(coefficient.size)
    for i in range(coefficient.size):
        made[i] = coefficient[i] * numbers[number[i]]
    return made


@compiled
def add_products(
    rows: SparseRows, entries: Array, weight: Array, moving: bool, stored: Array
) -> None:  # pragma: no cover - compiled
    """Add ``Σ w r rᵀ`` over the rows that move, or over those that do not, to the stored precision."""
    for row in range(weight.size):
        if rows.moves[row] != moving:
            continue
        pair = rows.pair_start[row]
        for i in range(rows.start[row], rows.start[row + 1]):
            weighted = weight[row] * entries[i]
            for j in range(rows.start[row], i + 1):
                stored[rows.place[pair]] += weighted * entries[j]
                pair += 1


@compiled
def multiplied(rows: SparseRows, entries: Array, values: Array) -> Array:  # pragma: no cover - compiled
    """Return the rows times values (n,), without their offset."""
    made = np.zeros(rows.offset.size)
    for row in range(made.size):
        for i in range(rows.start[row], rows.start[row + 1]):
            made[row] += entries[i] * values[rows.column[i]]
    return made


@compiled
def multiplied_adjoint(
    rows: SparseRows, entries: Array, values: Array, total: Array
) -> None:  # pragma: no cover - compiled
    """Add the transposed rows times values (m,) to a total (n,)."""
    for row in range(values.size):
        for i in range(rows.start[row], rows.start[row + 1]):
            total[rows.column[i]] += entries[i] * values[row]


@compiled
def factorise_updated(
    kind: int, index: tuple[Indices, ...], stored: Array, dense: DenseRows
) -> tuple[float, Array, Array]:  # pragma: no cover - compiled
    """Factorise P₀ in place; return ``log |P|`` or nan, ``P₀⁻¹Rᵀ`` as rows, and ``(C⁻¹ + R P₀⁻¹ Rᵀ)⁻¹``."""
    k, n_rows = dense.rows.shape[0], dense.n_rows[0]
    doubled = np.empty(dense.ground.size)
    for i in range(doubled.size):
        doubled[i] = stored[dense.ground[i]]
        stored[dense.ground[i]] += doubled[i]
    log_determinant = factorise(kind, index, stored)
    spread, core = np.empty((k, dense.rows.shape[1])), np.empty((k, k))
    if k and log_determinant == log_determinant:
        columns = np.ascontiguousarray(dense.rows.T)
        solve(kind, index, stored, columns)
        spread[:] = columns.T
        middle = np.dot(dense.rows, columns)
        for i in range(k):
            middle[i, i] += 1.0 if i < n_rows else -1.0 / doubled[i - n_rows]
        # Both C⁻¹ and this have one negative eigenvalue for each grounded value.
        log_determinant += math.log(abs(np.linalg.det(middle)))
        for i in range(doubled.size):
            log_determinant += math.log(doubled[i])
        core[:] = np.linalg.inv(middle)
    return log_determinant, spread, core


@compiled
def solve_updated(
    kind: int, index: tuple[Indices, ...], stored: Array, spread: Array, core: Array, dense: DenseRows, vectors: Array
) -> None:  # pragma: no cover - compiled
    """Replace vectors (n, r) by ``P⁻¹`` times them."""
    solve(kind, index, stored, vectors)
    if core.shape[0]:
        vectors -= np.dot(spread.T, np.dot(core, np.dot(dense.rows, vectors)))


@compiled
def select_updated(
    kind: int, index: tuple[Indices, ...], stored: Array, spread: Array, core: Array, entry_row: Indices,
    entry_column: Indices, entry_place: Indices,
) -> Array:  # pragma: no cover - compiled  # fmt: skip
    """Return the entries of P⁻¹ at the places of P₀'s pattern."""
    inverse = np.zeros(stored.size)
    select(kind, index, stored, inverse)
    k = core.shape[0]
    if k:
        weighted = np.dot(core, spread)
        for entry in range(entry_place.size):
            i, j = entry_row[entry], entry_column[entry]
            for a in range(k):
                inverse[entry_place[entry]] -= spread[a, i] * weighted[a, j]
    return inverse


@compiled
def variances_of_rows(rows: SparseRows, entries: Array, inverse: Array) -> Array:  # pragma: no cover - compiled
    """Return ``r P⁻¹ rᵀ`` of each row."""
    made = np.zeros(rows.offset.size)
    for row in range(made.size):
        pair = rows.pair_start[row]
        for i in range(rows.start[row], rows.start[row + 1]):
            for j in range(rows.start[row], i):
                made[row] += 2.0 * entries[i] * entries[j] * inverse[rows.place[pair]]
                pair += 1
            made[row] += entries[i] ** 2 * inverse[rows.place[pair]]
            pair += 1
    return made


@compiled
def field_pullback(
    rows: SparseRows, entries: Array, inverse: Array, weight: Array, by_value: Array, by_mean: Array, along: Array,
    values: Array, mean: Array, change: Array, by_offset: Array, total: Array,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Add the derivative by the numbers u of entries and offset to a total.

    Of a row r with entries r_i it is ``by_value x_i + along v_i + by_mean m_i - w (r S)_i``.

    Parameters
    ----------
    weight : (m,) array
        w, of J 1.
    by_value, by_mean, along : (m,) array
        What multiplies x, m and v.
    values, mean, change : (n,) array
        x, m and v.
    by_offset : (m,) array
        The derivative by the offset.
    """
    for row in range(weight.size):
        if rows.offset_number[row]:
            total[rows.offset_number[row]] += rows.offset[row] * by_offset[row]
        if not rows.moves[row]:
            continue
        pair, w = rows.pair_start[row], weight[row]
        for i in range(rows.start[row], rows.start[row + 1]):
            column = rows.column[i]
            slope = by_value[row] * values[column] + along[row] * change[column] + by_mean[row] * mean[column]
            for j in range(rows.start[row], i):
                covariance = w * inverse[rows.place[pair]]
                pair += 1
                slope -= entries[j] * covariance
                if rows.number[j]:
                    total[rows.number[j]] -= rows.coefficient[j] * entries[i] * covariance
            slope -= w * entries[i] * inverse[rows.place[pair]]
            pair += 1
            if rows.number[i]:
                total[rows.number[i]] += rows.coefficient[i] * slope
