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
    "DenseRows", "FieldPattern", "SparseRows", "WeightedField", "drawn", "fixed_products", "log_evidence_at",
    "multiplied", "pull_field", "pushed", "residual_product", "selected", "solve_field", "variances_of_rows",
    "weigh_field",
]  # fmt: skip

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

LOG_2PI = math.log(2.0 * math.pi)
# Of the inverse of a matrix with rows and columns of size 1: more than this leaves it no digit.
SINGULAR = 1e13


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
        The diagonal places of values that P₀ has doubled, or 1 where they are 0, since it may have no inverse without
        the rows. C takes that off again.
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
        if doubled[i] == 0.0:  # dense rows alone read it
            doubled[i] = 1.0
        stored[dense.ground[i]] += doubled[i]
    log_determinant = factorise(kind, index, stored)
    spread, core = np.empty((k, dense.rows.shape[1])), np.empty((k, k))
    if k and log_determinant == log_determinant:
        columns = np.ascontiguousarray(dense.rows.T)
        solve(kind, index, stored, columns)
        spread[:] = columns.T
        middle = np.dot(dense.rows, columns)
        size = np.empty(k)
        for i in range(k):
            inverse_weight = 1.0 if i < n_rows else -1.0 / doubled[i - n_rows]
            size[i] = math.sqrt(middle[i, i] + abs(inverse_weight))
            middle[i, i] += inverse_weight
        # Both C⁻¹ and this have one negative eigenvalue for each grounded value.
        determinant = abs(np.linalg.det(middle))
        if not determinant > 0.0:
            return np.nan, spread, core
        log_determinant += math.log(determinant)
        for i in range(doubled.size):
            log_determinant += math.log(doubled[i])
        core[:] = np.linalg.inv(middle)
        if not np.abs(core * np.outer(size, size)).max() < SINGULAR:
            log_determinant = np.nan
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


class FieldPattern(NamedTuple):
    """What a field has at every θ.

    Attributes
    ----------
    kind, layout : int, tuple of arrays
        Of the layout of the stored precision.
    residuals, predictors : SparseRows
        J with c, and A with a.
    dense : DenseRows
        Constant rows of J that the stored precision leaves out.
    entry_row, entry_column, entry_place : arrays
        Of the stored precision, but for fill.
    """

    kind: int
    layout: tuple[Indices, ...]
    residuals: SparseRows
    predictors: SparseRows
    dense: DenseRows
    entry_row: Indices
    entry_column: Indices
    entry_place: Indices


class WeightedField(NamedTuple):
    """A field at one θ, times sites.

    Attributes
    ----------
    log_determinant : float
        ``log |P|``, nan if P has no factor.
    residual_entries, residual_offset : arrays
        J, of the sparse rows, and their c.
    predictor_entries, predictor_offset : arrays
        A and a.
    stored, spread, core : arrays
        P's factor, as `factorise_updated` returns it.
    linear : (n,) array
        ``Jᵀc + Aᵀ(b - W̄a)``.
    """

    log_determinant: float
    residual_entries: Array
    residual_offset: Array
    predictor_entries: Array
    predictor_offset: Array
    stored: Array
    spread: Array
    core: Array
    linear: Array


@compiled
def fixed_products(
    pattern: FieldPattern, n_stored: int, numbers: Array, precision: Array
) -> Array:  # pragma: no cover - compiled
    """Return what rows that θ does not move add to the stored precision."""
    stored = np.zeros(n_stored)
    residuals, predictors = pattern.residuals, pattern.predictors
    entries = filled(residuals.coefficient, residuals.number, numbers)
    add_products(residuals, entries, np.ones(residuals.offset.size), False, stored)
    add_products(predictors, filled(predictors.coefficient, predictors.number, numbers), precision, False, stored)
    return stored


@compiled
def weigh_field(
    pattern: FieldPattern, fixed: Array, numbers: Array, linear: Array, precision: Array
) -> WeightedField:  # pragma: no cover - compiled
    """Make P of the numbers u(θ) and factorise it; `fixed` is what `fixed_products` returns."""
    residuals, predictors, dense = pattern.residuals, pattern.predictors, pattern.dense
    of_residuals = filled(residuals.coefficient, residuals.number, numbers)
    of_predictors = filled(predictors.coefficient, predictors.number, numbers)
    c = filled(residuals.offset, residuals.offset_number, numbers)
    a = filled(predictors.offset, predictors.offset_number, numbers)
    stored = fixed.copy()
    add_products(residuals, of_residuals, np.ones(c.size), True, stored)
    add_products(predictors, of_predictors, precision, True, stored)
    log_determinant, spread, core = factorise_updated(pattern.kind, pattern.layout, stored, dense)
    right = np.zeros(dense.rows.shape[1])
    multiplied_adjoint(residuals, of_residuals, c, right)
    multiplied_adjoint(predictors, of_predictors, linear - precision * a, right)
    for k in range(dense.offset.size):
        for i in range(right.size):
            right[i] += dense.rows[k, i] * dense.offset[k]
    return WeightedField(log_determinant, of_residuals, c, of_predictors, a, stored, spread, core, right)


@compiled
def solve_field(pattern: FieldPattern, field: WeightedField, vectors: Array) -> None:  # pragma: no cover - compiled
    """Replace vectors (n, r) by ``P⁻¹`` times them."""
    solve_updated(pattern.kind, pattern.layout, field.stored, field.spread, field.core, pattern.dense, vectors)


@compiled
def drawn(
    pattern: FieldPattern, field: WeightedField, root: Array, noise: Array
) -> Array:  # pragma: no cover - compiled
    """Return ``Jᵀz₁ + Aᵀ(s z₂)``, (n,)."""
    dense, n_sparse = pattern.dense, field.residual_offset.size
    first = n_sparse + dense.offset.size
    made = np.zeros(dense.rows.shape[1])
    multiplied_adjoint(pattern.residuals, field.residual_entries, noise[:n_sparse], made)
    multiplied_adjoint(pattern.predictors, field.predictor_entries, root * noise[first:], made)
    for k in range(dense.offset.size):
        for i in range(made.size):
            made[i] += dense.rows[k, i] * noise[n_sparse + k]
    return made


@compiled
def residual_product(
    pattern: FieldPattern, field: WeightedField, values: Array
) -> Array:  # pragma: no cover - compiled
    """Return ``J v``, of sparse rows first."""
    dense, n_sparse = pattern.dense, field.residual_offset.size
    made = np.zeros(n_sparse + dense.offset.size)
    rows, entries = pattern.residuals, field.residual_entries
    for row in range(n_sparse):
        for i in range(rows.start[row], rows.start[row + 1]):
            made[row] += entries[i] * values[rows.column[i]]
    for k in range(dense.offset.size):
        for i in range(values.size):
            made[n_sparse + k] += dense.rows[k, i] * values[i]
    return made


@compiled
def pushed(
    pattern: FieldPattern, field: WeightedField, root: Array, values: Array
) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """Return ``(J, s A) v``, of the size of z, and ``A v``."""
    first = field.residual_offset.size + pattern.dense.offset.size
    made = np.empty(first + root.size)
    made[:first] = residual_product(pattern, field, values)
    predicted = multiplied(pattern.predictors, field.predictor_entries, values)
    for i in range(root.size):
        made[first + i] = root[i] * predicted[i]
    return made, predicted


@compiled
def selected(pattern: FieldPattern, field: WeightedField) -> Array:  # pragma: no cover - compiled
    """Return the entries of P⁻¹ at the places of the stored precision."""
    return select_updated(
        pattern.kind, pattern.layout, field.stored, field.spread, field.core, pattern.entry_row, pattern.entry_column,
        pattern.entry_place,
    )  # fmt: skip


@compiled
def log_evidence_at(
    pattern: FieldPattern, field: WeightedField, linear: Array, precision: Array, mean: Array
) -> tuple[float, Array, Array]:  # pragma: no cover - compiled
    """Return the log evidence less the prior's normaliser; ``J m - c`` and η at the centre m (n,)."""
    missed = residual_product(pattern, field, mean)
    n_sparse, total = field.residual_offset.size, 0.5 * (mean.size * LOG_2PI - field.log_determinant)
    for i in range(missed.size):
        missed[i] -= field.residual_offset[i] if i < n_sparse else pattern.dense.offset[i - n_sparse]
        total -= 0.5 * missed[i] * missed[i]
    centre = multiplied(pattern.predictors, field.predictor_entries, mean)
    for i in range(centre.size):
        centre[i] += field.predictor_offset[i]
        total += (linear[i] - 0.5 * precision[i] * centre[i]) * centre[i]
    return total, missed, centre


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


@compiled
def pull_field(
    pattern: FieldPattern, field: WeightedField, linear: Array, precision: Array, noise: Array, residual: Array,
    values: Array, mean: Array, eta: Array, missed: Array, centre: Array, inverse: Array, total: Array,
) -> tuple[Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """Return the derivative by z, and ``A v``; add that by the numbers u to a total.

    Of ``ψ(η) + log E`` where z was placed, given ``∂ψ/∂η`` less the sites' slope.
    """
    n_sparse, root = field.residual_offset.size, np.sqrt(precision)
    first = n_sparse + pattern.dense.offset.size
    right = np.zeros((values.size, 1))
    multiplied_adjoint(pattern.predictors, field.predictor_entries, residual, right[:, 0])
    solve_field(pattern, field, right)
    change = np.ascontiguousarray(right[:, 0])
    by_noise, predicted = pushed(pattern, field, root, change)
    along = multiplied(pattern.residuals, field.residual_entries, values)
    by_value, by_mean, by_offset = np.empty(n_sparse), np.empty(n_sparse), np.empty(n_sparse)
    for i in range(n_sparse):
        along[i] = field.residual_offset[i] + noise[i] - along[i]
        by_value[i], by_mean[i], by_offset[i] = -by_noise[i], -missed[i], by_noise[i] + missed[i]
    field_pullback(
        pattern.residuals, field.residual_entries, inverse, np.ones(n_sparse), by_value, by_mean, along, values, mean,
        change, by_offset, total,
    )  # fmt: skip
    n_sites = eta.size
    along, by_value, by_mean, by_offset = np.empty(n_sites), np.empty(n_sites), np.empty(n_sites), np.empty(n_sites)
    for i in range(n_sites):
        by_value[i] = residual[i] - precision[i] * predicted[i]
        by_mean[i] = linear[i] - precision[i] * centre[i]
        by_offset[i] = by_value[i] + by_mean[i]
        along[i] = linear[i] - precision[i] * eta[i] + root[i] * noise[first + i]
    field_pullback(
        pattern.predictors, field.predictor_entries, inverse, precision, by_value, by_mean, along, values, mean,
        change, by_offset, total,
    )  # fmt: skip
    return by_noise, predicted
