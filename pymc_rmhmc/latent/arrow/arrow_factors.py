"""E of an arrow, ``I + D G D``, by elimination of the columns apart, and where a design's entries are; compiled.

See `pymc_rmhmc.latent.arrow.arrow_design`. Vectors of coefficients are in the arrow's order.

What the elimination leaves of C is ``C - Hᵀ D₁² E₁₁⁻¹ H``. Where a column apart is that of a single row, as an effect
of each observation is, nearly all that the row adds to C is taken off again if its site is precise: of an intercept's
sum of w̄ no more is left than that of ``w̄ / (1 + w̄ D²)``. There it is added up in this form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.linalg.cholesky import factorise_in_place, invert_in_place
from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = [
    "ArrowPattern", "Factors", "Gram", "Index", "arrow_pattern", "covariance", "factorised",
    "half_log_determinant_slope", "places_of", "remaining", "row_starts", "solve",
]  # fmt: skip

type Array = NDArray[np.float64]
type Index = NDArray[np.uint64]

class Gram(NamedTuple):
    """Δ (p,), H (p, q) and C (q, q).

    Attributes
    ----------
    alone : (p,) bool array
        Whether a column apart has a single row.
    rest : (q, q) array
        C without these rows.
    """

    diagonal: Array
    cross: Array
    corner: Array
    alone: NDArray[np.bool_]
    rest: Array


class Factors(NamedTuple):
    """E at one D.

    Attributes
    ----------
    spread : (k,) array
        D, in the arrow's order.
    pivots : (p,) array
        ``E₁₁``.
    cross, reduced : (p, q) array
        ``E₁₂``, and ``E₁₁⁻¹ E₁₂``.
    inverse : (q, q) array
        R⁻¹ of ``S = R Rᵀ``, in Fortran order.
    left : (q, q) array
        What is left of C: ``S = I + D₂ left D₂``.
    """

    spread: Array
    pivots: Array
    cross: Array
    reduced: Array
    inverse: Array
    left: Array


@compiled
def multiply(gram: Gram, x: Array) -> Array:  # pragma: no cover - compiled
    """``G x``."""
    p = gram.diagonal.size
    first, second = x[:p], x[p:]
    product = np.empty(x.size)
    product[:p] = gram.diagonal * first + np.dot(gram.cross, second)
    product[p:] = np.dot(first, gram.cross) + np.dot(gram.corner, second)
    return product


@compiled
def factorised(gram: Gram, spread: Array) -> tuple[Factors, float]:  # pragma: no cover - compiled
    """E at a D, and its log determinant, which is nan where there is no factor."""
    diagonal, beside, _, alone, rest = gram
    p, q = beside.shape
    pivots, cross, reduced, taken = np.empty(p), np.empty((p, q)), np.empty((p, q)), np.empty((p, q))
    log_determinant = 0.0
    for i in range(p):
        pivots[i] = 1.0 + spread[i] ** 2 * diagonal[i]
        log_determinant += np.log(pivots[i])
        is_alone = alone[i] and diagonal[i] > 0.0
        for j in range(q):
            cross[i, j] = spread[i] * beside[i, j] * spread[p + j]
            reduced[i, j] = cross[i, j] / pivots[i]
            own = beside[i, j] / diagonal[i] if is_alone else -beside[i, j] * spread[i] ** 2
            taken[i, j] = own / pivots[i]
    left = np.dot(beside.T, taken) + rest
    remainder = np.empty((q, q))
    for i in range(q):
        for j in range(q):
            remainder[i, j] = spread[p + i] * left[i, j] * spread[p + j]
        remainder[i, i] += 1.0
    # It is symmetric, and its order any.
    inverse = remainder.T
    if factorise_in_place(inverse):
        for i in range(q):
            log_determinant += 2.0 * np.log(inverse[i, i])
        invert_in_place(inverse)
    else:
        log_determinant = np.nan
    return Factors(spread, pivots, cross, reduced, inverse, left), log_determinant


@compiled
def solve(factors: Factors, x: Array) -> Array:  # pragma: no cover - compiled
    """``E⁻¹ x``."""
    p = factors.pivots.size
    first, second = x[:p], x[p:]
    solution = np.empty(x.size)
    lower = np.dot(np.dot(factors.inverse, second - np.dot(first, factors.reduced)), factors.inverse)
    solution[:p] = (first - np.dot(factors.cross, lower)) / factors.pivots
    solution[p:] = lower
    return solution


@compiled
def remaining(
    gram: Gram, spread: Array, pull: Array, apart: Array, solution: Array
) -> Array:  # pragma: no cover - compiled
    """``l - G D x`` of ``x = E⁻¹ (D l + a)``: that is ``(x - a) / D`` as well, and the one that loses less is taken."""
    diagonal, corner, scaled = gram.diagonal, gram.corner, spread * solution
    p, left = diagonal.size, pull - multiply(gram, scaled)
    for i in range(left.size):
        own = diagonal[i] if i < p else corner[i - p, i - p]
        if abs(spread[i]) * (abs(pull[i]) + own * abs(scaled[i])) > abs(solution[i]) + abs(apart[i]):
            left[i] = (solution[i] - apart[i]) / spread[i]
    return left


@compiled
def half_log_determinant_slope(gram: Gram, factors: Factors) -> Array:  # pragma: no cover - compiled
    """The diagonal of ``G D E⁻¹``, without a difference that D near 0 would lose."""
    (diagonal, cross, _, _, _), (spread, pivots, _, _, inverse, left) = gram, factors
    p, q = cross.shape
    slope = np.empty(p + q)
    # E⁻¹₁₁ is E₁₁⁻¹ + reduced S⁻¹ reducedᵀ, and 1 - E₁₁⁻¹ = D² Δ / E₁₁.
    half = np.dot(cross * spread[p:], inverse.T)
    for i in range(p):
        total = 0.0
        for j in range(q):
            total += half[i, j] ** 2
        slope[i] = spread[i] * (diagonal[i] - total / pivots[i]) / pivots[i]
    # G D E⁻¹ below is Hᵀ D₁ E⁻¹₁₂ + C D₂ S⁻¹, and E⁻¹₁₂ = -reduced S⁻¹: what is left of C, times D₂ S⁻¹.
    precision_inverse = np.dot(inverse.T, inverse)
    for i in range(q):
        total = 0.0
        for j in range(q):
            total += left[i, j] * spread[p + j] * precision_inverse[i, j]
        slope[p + i] = total
    return slope


@compiled
def covariance(factors: Factors) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled
    """Of ``D E⁻¹ D``: the diagonal above (p,), what is beside it (p, q), and below (q, q)."""
    spread, pivots, _, reduced, inverse, _ = factors
    p, q = reduced.shape
    corner = np.dot(inverse.T, inverse)
    cross, diagonal = np.dot(reduced, corner), np.empty(p)
    for i in range(p):
        total = 1.0 / pivots[i]
        for j in range(q):
            total += reduced[i, j] * cross[i, j]
            cross[i, j] *= -spread[i] * spread[p + j]
        diagonal[i] = spread[i] ** 2 * total
    for i in range(q):
        for j in range(q):
            corner[i, j] *= spread[p + i] * spread[p + j]
    return diagonal, cross, corner


# Without a sign: compiled code does not look then whether one counts from the end.


class ArrowPattern(NamedTuple):
    """Where A's entries are; 1 are the columns apart, 2 the others.

    Attributes
    ----------
    order : (k,) int array
        The columns, those apart first.
    column, at : (n,) int array
        Of the one entry that a row may have in 1, its place there, and that in the list of A's entries: the end of it
        for none.
    starts : (n + 1,) int array
        Where each row's entries in 2 begin in what follows.
    others, others_at : (m,) int array
        Their places in the order, and those in the list.
    n_apart, n_entries : int
        p, the number of columns apart; and that of A's entries.
    """

    order: Index
    column: Index
    at: Index
    starts: Index
    others: Index
    others_at: Index
    n_apart: int
    n_entries: int


def arrow_pattern(design: Any) -> ArrowPattern | None:
    """The pattern of a sparse A, by rows.

    None where fewer than half of its columns are apart, or none is, or the others are more than the rows.
    """
    n, k = design.shape
    columns = sparse.csr_array((np.ones(design.nnz), design.indices, design.indptr), shape=(n, k)).tocsc()
    starts, rows = columns.indptr.astype(np.int64), columns.indices.astype(np.int64)
    # Greedily, from those with the fewest entries.
    counts = np.diff(starts)
    is_apart = _taken_apart(starts, rows, np.argsort(counts, kind="stable"), np.zeros(n, dtype=np.bool_))
    if k > n:
        # A root of G has n columns, of which those apart take one each: for one without a row none can be spared.
        is_apart &= counts > 0
    n_apart = int(is_apart.sum())
    if n_apart == 0 or 2 * n_apart < k or k - n_apart > n:
        return None
    order = np.concatenate((np.flatnonzero(is_apart), np.flatnonzero(~is_apart)))
    place = np.empty(k, dtype=np.int64)
    place[order] = np.arange(k)
    row, where = np.repeat(np.arange(n), np.diff(design.indptr)), place[design.indices]
    (first,), (second,) = np.nonzero(where < n_apart), np.nonzero(where >= n_apart)
    column, at = np.zeros(n, dtype=np.int64), np.full(n, design.nnz)
    column[row[first]], at[row[first]] = where[first], first
    return ArrowPattern(
        order=places_of(order), column=places_of(column), at=places_of(at), starts=row_starts(row[second], n),
        others=places_of(where[second]), others_at=places_of(second), n_apart=n_apart, n_entries=design.nnz,
    )  # fmt: skip


def places_of(places: NDArray[Any]) -> Index:
    """Places for compiled code."""
    return places.astype(np.uint64)


def row_starts(row: NDArray[Any], n: int) -> Index:
    """Where the entries of each row begin, and where the last end, (n + 1,)."""
    return places_of(np.concatenate(([0], np.cumsum(np.bincount(row, minlength=n)))))


@compiled
def _taken_apart(
    starts: NDArray[np.int64], rows: NDArray[np.int64], order: NDArray[np.int64], held: NDArray[np.bool_]
) -> NDArray[np.bool_]:  # pragma: no cover - compiled
    """Whether each column is taken, in the order given; rows that are held already are marked."""
    taken = np.zeros(order.size, dtype=np.bool_)
    for j in order:
        inside = rows[starts[j] : starts[j + 1]]
        if not held[inside].any():
            held[inside] = True
            taken[j] = True
    return taken
