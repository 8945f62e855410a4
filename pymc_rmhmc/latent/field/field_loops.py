"""Compiled loops over the rows of J and A of a Gaussian field, and over the precision that they make.

Columns are in the order of elimination. A row's constant, -c or a, is one more entry: it is in column n, where every x
has a 1. Entries lie by runs, so that a loop has no row's length to look up and no number of θ to fetch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.field.kernel_loops import (
    add_kernel_slopes,
    collapse,
    expand,
    factorise_kernels,
    select_with_kernel,
    solve_with_kernel,
    weigh_kernel,
)
from pymc_rmhmc.linalg.compiled.compilation import compiled, compiled_in_any_order
from pymc_rmhmc.linalg.sparse_cholesky import factorise

__all__ = [
    "DenseRows", "FieldPattern", "Products", "SparseRows", "WeightedField", "drawn", "log_evidence_at", "of_sites",
    "predictors_at", "pull_field", "pushed", "residuals_at", "selected", "solve_field", "variances_of_rows",
    "weigh_field",
]  # fmt: skip

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

LOG_2PI = math.log(2.0 * math.pi)
# Of the inverse of a matrix with rows and columns of size 1: more than this leaves it no digit.
SINGULAR = 1e13
# What is said of a run of entries.
FIRST_ROW, FIRST_ENTRY, N_ENTRIES, NUMBER, ONE_COLUMN = range(5)


class SparseRows(NamedTuple):
    """J with -c, or A with a, as multiples of the numbers u(θ), of which the first is 1.

    Attributes
    ----------
    n_rows : int
        m.
    run : (n_runs, 5) array
        Entries of consecutive rows that are multiples of one number: the first row, the first entry, how many there
        are, the number, and whether all are in one column.
    column, coefficient : (nnz,) array
        An entry is the coefficient times its run's number.
    """

    n_rows: int
    run: Indices
    column: Indices
    coefficient: Array


class Products(NamedTuple):
    """The precision P and ``Jᵀc + Aᵀ(b - W̄a)`` as sums of products of two numbers u times constants of the sites.

    Attributes
    ----------
    number : (n_groups, 2) array
        The two numbers of a group of terms.
    start : (n_groups + 1,) array
        Where the terms of each group begin.
    place : (n_terms,) array
        Of each term in the stored precision, behind which the vector lies.
    twice : (n_terms,) array
        How many entries of P a term is: 1 on the diagonal, 2 beside it, 0 in the vector.
    of_residuals : (n_terms,) array
        What residuals add to each constant.
    site, term, coefficient : (n_pairs,) array
        What sites add to a term: the coefficient times w̄ of this site, or b if the site is n_η more. Those in P first.
    """

    number: Indices
    start: Indices
    place: Indices
    twice: Array
    of_residuals: Array
    site: Indices
    term: Indices
    coefficient: Array


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
def extended(kernel: Array, values: Array, one: float) -> Array:  # pragma: no cover - compiled
    """Return what rows read of values (n,): the vectors of kernels in the place of whitened ones, and the constant."""
    made = np.empty(values.size + 1)
    for i in range(values.size):  # Numba takes ten times as long to write to a part of an array
        made[i] = values[i]
    made[values.size] = one
    if kernel.shape[1]:
        expand(kernel, made[: values.size].reshape(1, values.size))
    return made


@compiled
def entries_of(rows: SparseRows, run: int) -> tuple[slice, int, Array, Indices]:  # pragma: no cover - compiled
    """Return the rows of a run, their number, and coefficients and columns."""
    first, at, size = rows.run[run, FIRST_ROW], rows.run[run, FIRST_ENTRY], rows.run[run, N_ENTRIES]
    where = slice(at, at + size)
    return slice(first, first + size), rows.run[run, NUMBER], rows.coefficient[where], rows.column[where]


@compiled_in_any_order
def multiplied(rows: SparseRows, numbers: Array, read: Array) -> Array:  # pragma: no cover - compiled
    """Return the rows times what they read, (n + 1,)."""
    made = np.zeros(rows.n_rows)
    for run in range(rows.run.shape[0]):
        where, number, coefficient, column = entries_of(rows, run)
        by, total = numbers[number], made[where]
        for i in range(total.size):
            total[i] += by * coefficient[i] * read[column[i]]
    return made


@compiled_in_any_order
def multiply_adjoint(
    rows: SparseRows, numbers: Array, values: Array, total: Array
) -> None:  # pragma: no cover - compiled
    """Add the transposed rows times values (m,) to a total (n,), without their constants."""
    for run in range(rows.run.shape[0]):
        where, number, coefficient, column = entries_of(rows, run)
        by, given = numbers[number], values[where]
        if not rows.run[run, ONE_COLUMN]:
            for i in range(given.size):
                total[column[i]] += by * coefficient[i] * given[i]
        elif column[0] < total.size:
            added = 0.0  # in a register, where each of the others would wait for the last
            for i in range(given.size):
                added += coefficient[i] * given[i]
            total[column[0]] += by * added


@compiled
def factorise_updated(
    kind: int, index: tuple[Indices, ...], stored: Array, kernel: Array, dense: DenseRows
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
    if kernel.shape[1] and log_determinant == log_determinant:
        log_determinant += weigh_kernel(index, stored, kernel)
    spread, core = np.empty(dense.rows.shape), np.empty((k, k))
    if k and log_determinant == log_determinant:
        spread = dense.rows.copy()
        solve_with_kernel(kind, index, stored, kernel, spread)
        middle = np.dot(dense.rows, spread.T)
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


@compiled_in_any_order
def variances_of_rows(
    products: Products, numbers: Array, inverse: Array, n_sites: int
) -> Array:  # pragma: no cover - compiled
    """Return ``r P⁻¹ rᵀ`` of each row of A."""
    by_term, made = np.empty(products.place.size), np.zeros(n_sites)
    for group in range(products.number.shape[0]):
        by = numbers[products.number[group, 0]] * numbers[products.number[group, 1]]
        for k in range(products.start[group], products.start[group + 1]):
            by_term[k] = by * products.twice[k] * inverse[products.place[k]]
    for k in range(products.site.size):
        if products.site[k] >= n_sites:
            break
        made[products.site[k]] += products.coefficient[k] * by_term[products.term[k]]
    return made


class FieldPattern(NamedTuple):
    """What a field has at every θ.

    Attributes
    ----------
    kind, layout, n_stored : int, tuple of arrays, int
        Of the layout of the stored precision.
    residuals, predictors : SparseRows
        J with -c, and A with a.
    products : Products
        Of the entries of a row with each other.
    dense : DenseRows
        Constant rows of J that the stored precision leaves out.
    entry_row, entry_column, entry_place : arrays
        Of the stored precision, but for fill.
    kernels : (m, 2) int array
        Of each vector with a dense covariance, as `factorise_kernels` takes them.
    """

    kind: int
    layout: tuple[Indices, ...]
    n_stored: int
    residuals: SparseRows
    predictors: SparseRows
    products: Products
    dense: DenseRows
    entry_row: Indices
    entry_column: Indices
    entry_place: Indices
    kernels: Indices


class WeightedField(NamedTuple):
    """A field at one θ, times sites.

    Attributes
    ----------
    log_determinant : float
        ``log |P|``, nan if P has no factor.
    numbers : array
        u(θ).
    kernel : (3, k, k) array
        Of vectors with a dense covariance; see `pymc_rmhmc.latent.field.kernel_loops`.
    stored, spread, core : arrays
        P's factor, as `factorise_updated` returns it.
    linear : (n,) array
        ``Jᵀc + Aᵀ(b - W̄a)``.
    """

    log_determinant: float
    numbers: Array
    kernel: Array
    stored: Array
    spread: Array
    core: Array
    linear: Array


@compiled
def of_sites(products: Products, linear: Array, precision: Array) -> Array:  # pragma: no cover - compiled
    """Return the constants that products of numbers are multiplied by, (n_terms,)."""
    constants, weights = products.of_residuals.copy(), np.concatenate((precision, linear))
    for k in range(products.site.size):
        constants[products.term[k]] += weights[products.site[k]] * products.coefficient[k]
    return constants


@compiled
def weigh_field(pattern: FieldPattern, constants: Array, numbers: Array) -> WeightedField:  # pragma: no cover
    """Make P of the numbers u(θ) and factorise it; `of_sites` returns the constants."""
    products, dense = pattern.products, pattern.dense
    made = np.zeros(pattern.n_stored + dense.rows.shape[1])
    for group in range(products.number.shape[0]):
        by = numbers[products.number[group, 0]] * numbers[products.number[group, 1]]
        terms = slice(products.start[group], products.start[group + 1])
        place, constant = products.place[terms], constants[terms]
        for k in range(place.size):
            made[place[k]] += by * constant[k]
    stored, right = made[: pattern.n_stored], made[pattern.n_stored :]
    for k in range(dense.offset.size):
        right += dense.offset[k] * dense.rows[k]
    kernel = factorise_kernels(pattern.kernels, numbers)
    if kernel.shape[1]:
        collapse(kernel, right)
    log_determinant, spread, core = factorise_updated(pattern.kind, pattern.layout, stored, kernel, dense)
    return WeightedField(log_determinant, numbers, kernel, stored, spread, core, right)


@compiled
def solve_field(pattern: FieldPattern, field: WeightedField, vectors: Array) -> None:  # pragma: no cover - compiled
    """Replace vectors (r, n) by ``P⁻¹`` times each."""
    solve_with_kernel(pattern.kind, pattern.layout, field.stored, field.kernel, vectors)
    if field.core.shape[0]:
        vectors -= np.dot(np.dot(np.dot(vectors, pattern.dense.rows.T), field.core.T), field.spread)


@compiled
def drawn(
    pattern: FieldPattern, field: WeightedField, root: Array, noise: Array
) -> Array:  # pragma: no cover - compiled
    """Return ``Jᵀz₁ + Aᵀ(s z₂)``, (n,)."""
    dense, n_sparse, n_whitened = pattern.dense, pattern.residuals.n_rows, field.kernel.shape[1]
    last = n_sparse + dense.offset.size
    first = last + n_whitened
    made = np.zeros(dense.rows.shape[1])
    multiply_adjoint(pattern.residuals, field.numbers, noise[:n_sparse], made)
    multiply_adjoint(pattern.predictors, field.numbers, root * noise[first:], made)
    if n_whitened:
        collapse(field.kernel, made)
        made[made.size - n_whitened :] += noise[last:first]
    for k in range(dense.offset.size):
        made += noise[n_sparse + k] * dense.rows[k]
    return made


@compiled
def residuals_at(
    pattern: FieldPattern, field: WeightedField, values: Array, one: float
) -> Array:  # pragma: no cover - compiled
    """Return ``J v``, less c times the constant 1 of an x or 0 of a difference.

    Sparse rows come first, then dense ones, and then the whitened vectors themselves.
    """
    dense, read = pattern.dense, extended(field.kernel, values, one)
    of_dense = -one * dense.offset
    for k in range(of_dense.size):
        of_dense[k] += np.dot(dense.rows[k], values)
    whitened = values[values.size - field.kernel.shape[1] :]
    return np.concatenate((multiplied(pattern.residuals, field.numbers, read), of_dense, whitened))


@compiled
def predictors_at(
    pattern: FieldPattern, field: WeightedField, values: Array, one: float
) -> Array:  # pragma: no cover - compiled
    """Return ``A v``, and a times the constant."""
    return multiplied(pattern.predictors, field.numbers, extended(field.kernel, values, one))


@compiled
def pushed(
    pattern: FieldPattern, field: WeightedField, root: Array, values: Array
) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """Return ``(J, s A) v``, of the size of z, and ``A v``."""
    predicted = predictors_at(pattern, field, values, 0.0)
    return np.concatenate((residuals_at(pattern, field, values, 0.0), root * predicted)), predicted


@compiled
def selected(pattern: FieldPattern, field: WeightedField) -> Array:  # pragma: no cover - compiled
    """Return covariances of what rows read, at the places of the stored precision, and a 0 for each latent value."""
    inverse = np.zeros(pattern.n_stored + field.linear.size)
    made = inverse[: pattern.n_stored]
    select_with_kernel(pattern.kind, pattern.layout, field.stored, field.kernel, made)
    k = field.core.shape[0]
    if k:
        spread = field.spread.copy()
        if field.kernel.shape[1]:
            expand(field.kernel, spread)
        weighted = np.dot(field.core, spread)
        for entry in range(pattern.entry_place.size):
            i, j = pattern.entry_row[entry], pattern.entry_column[entry]
            for a in range(k):
                made[pattern.entry_place[entry]] -= spread[a, i] * weighted[a, j]
    return inverse


@compiled_in_any_order
def log_evidence_at(
    pattern: FieldPattern, field: WeightedField, linear: Array, precision: Array, mean: Array
) -> tuple[float, Array, Array]:  # pragma: no cover - compiled
    """Return the log evidence less the prior's normaliser; ``J m - c`` and η at the centre m (n,)."""
    missed = residuals_at(pattern, field, mean, 1.0)
    centre = predictors_at(pattern, field, mean, 1.0)
    total = 0.5 * (mean.size * LOG_2PI - field.log_determinant)
    for i in range(missed.size):
        total -= 0.5 * missed[i] * missed[i]
    for i in range(centre.size):
        total += (linear[i] - 0.5 * precision[i] * centre[i]) * centre[i]
    return total, missed, centre


@compiled_in_any_order
def add_slopes(
    rows: SparseRows, by_value: Array, by_mean: Array, along: Array, values: Array, mean: Array, change: Array,
    total: Array,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Add the derivative by the numbers u to a total, of what has ``by_value x + by_mean m + along v`` by an entry.

    Parameters
    ----------
    by_value, by_mean, along : (m,) array
        What multiplies x, m and v.
    values, mean, change : (n + 1,) array
        What rows read of x, m and v.
    """
    for run in range(rows.run.shape[0]):
        where, number, coefficient, column = entries_of(rows, run)
        if number == 0:
            continue
        of_value, of_mean, of_change, slope = by_value[where], by_mean[where], along[where], 0.0
        for i in range(of_value.size):
            j = column[i]
            slope += coefficient[i] * (of_value[i] * values[j] + of_mean[i] * mean[j] + of_change[i] * change[j])
        total[number] += slope


@compiled_in_any_order
def add_determinant_slopes(
    products: Products, constants: Array, numbers: Array, inverse: Array, total: Array
) -> None:  # pragma: no cover - compiled
    """Add the derivative of ``-½ log |P|`` by the numbers u to a total."""
    for group in range(products.number.shape[0]):
        first, second = products.number[group, 0], products.number[group, 1]
        if second == 0:  # the greater one
            continue
        terms, trace = slice(products.start[group], products.start[group + 1]), 0.0
        place, twice, constant = products.place[terms], products.twice[terms], constants[terms]
        for k in range(place.size):
            trace += twice[k] * constant[k] * inverse[place[k]]
        total[first] -= 0.5 * trace * numbers[second]
        total[second] -= 0.5 * trace * numbers[first]


@compiled
def pull_kernels(
    pattern: FieldPattern, field: WeightedField, precision: Array, of_residuals: tuple[Array, ...],
    of_predictors: tuple[Array, ...], vectors: tuple[Array, ...], total: Array,
) -> None:  # pragma: no cover - compiled  # fmt: skip
    """Add the derivative by each K to what a total ends with: rows have these times the vectors x, m and v."""
    n_updates, n, k = field.core.shape[0], vectors[0].size, field.kernel.shape[1]
    of_rows, whitened = np.zeros((3 + n_updates, n)), np.empty((3 + n_updates, k))
    residuals, predictors, numbers = pattern.residuals, pattern.predictors, field.numbers
    for i in range(3):
        multiply_adjoint(residuals, numbers, of_residuals[i], of_rows[i])
        multiply_adjoint(predictors, numbers, of_predictors[i], of_rows[i])
        whitened[i] = vectors[i][n - k :]
    # What dense rows take from the covariance of y with all that rows read.
    if n_updates:
        whitened[3:] = np.dot(field.core, field.spread[:, n - k :].copy())
    for a in range(n_updates):
        read = extended(field.kernel, field.spread[a], 0.0)
        multiply_adjoint(residuals, numbers, multiplied(residuals, numbers, read), of_rows[3 + a])
        multiply_adjoint(predictors, numbers, precision * multiplied(predictors, numbers, read), of_rows[3 + a])
    add_kernel_slopes(pattern.kernels, field.kernel, of_rows[:, n - k :].copy(), whitened, total)


@compiled
def pull_field(
    pattern: FieldPattern, field: WeightedField, constants: Array, linear: Array, precision: Array, noise: Array,
    residual: Array, values: Array, mean: Array, eta: Array, missed: Array, centre: Array, inverse: Array,
    total: Array,
) -> tuple[Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """Return the derivative by z, and ``A v``; add that by the numbers u to a total.

    Of ``ψ(η) + log E`` where z was placed, given ``∂ψ/∂η`` less the sites' slope.
    """
    n_sparse, root, kernel = pattern.residuals.n_rows, np.sqrt(precision), field.kernel
    first = n_sparse + pattern.dense.offset.size + kernel.shape[1]
    change = np.zeros(values.size)
    multiply_adjoint(pattern.predictors, field.numbers, residual, change)
    if kernel.shape[1]:
        collapse(kernel, change)
    solve_field(pattern, field, change.reshape(1, change.size))
    by_noise, predicted = pushed(pattern, field, root, change)
    read = extended(kernel, values, 1.0), extended(kernel, mean, 1.0), extended(kernel, change, 0.0)
    along = noise[:n_sparse] - multiplied(pattern.residuals, field.numbers, read[0])
    of_residuals = -by_noise[:n_sparse], -missed[:n_sparse], along
    add_slopes(pattern.residuals, *of_residuals, *read, total)
    along = linear - precision * eta + root * noise[first:]
    of_predictors = residual - precision * predicted, linear - precision * centre, along
    add_slopes(pattern.predictors, *of_predictors, *read, total)
    add_determinant_slopes(pattern.products, constants, field.numbers, inverse, total)
    if kernel.shape[1]:
        pull_kernels(pattern, field, precision, of_residuals, of_predictors, (values, mean, change), total)
    return by_noise, predicted
