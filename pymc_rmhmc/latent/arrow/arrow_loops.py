"""Coefficients that a design with columns apart reads, by passes over its entries; compiled.

See `pymc_rmhmc.latent.arrow.arrow_design`. Vectors of coefficients are in the arrow's order, but for D, z₁, y and their
derivatives where these come from a chart or go to one.

A loop reads local names alone: for an array that is looked up in a tuple within it Numba counts references, atomically
and at every turn. That took a quarter of a gradient with few observations a coefficient.

What the elimination leaves of C is ``C - Hᵀ D₁² E₁₁⁻¹ H``. Where a column apart is that of a single row, as an effect
of each observation is, nearly all that the row adds to C is taken off again if its site is precise: of an intercept's
sum of w̄ no more is left than that of ``w̄ / (1 + w̄ D²)``. There it is added up in this form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.linalg.cholesky import factorise_in_place, invert_in_place
from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = [
    "BY_ROOT", "BY_SITES", "ArrowPattern", "Factors", "Gram", "Index", "Passes", "Root", "Rows", "arrow_pattern",
    "begin", "collect", "covariance", "covariance_times", "entries_of", "entry_bars", "factorised", "gathered",
    "gram_of", "half_log_determinant_slope", "place_by_root", "place_by_sites", "places_of", "predict",
    "pullback_by_root", "pullback_by_sites", "remaining", "root_adjoint", "row_starts", "scattered", "solve",
    "variances",
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


class Rows(NamedTuple):
    """A by its rows; see `ArrowPattern`.

    Attributes
    ----------
    entry : (n,) array
        In 1.
    entries : (m,) array
        In 2.
    wide_at : (w,) int array
        The places of columns that `others` has not.
    wide : (w, n) array
        These.
    """

    order: Index
    column: Index
    entry: Array
    starts: Index
    others: Index
    entries: Array
    wide_at: Index
    wide: Array


class Root(NamedTuple):
    """``F = [[sqrt Δ, 0], [belowᵀ, corner]]``; (p,), (p, q), (q, r), p + r the smaller of n and k."""

    diagonal: Array
    below: Array
    corner: Array


@compiled
def gathered(order: Index, x: Array) -> Array:  # pragma: no cover - compiled
    """Coefficients in the arrow's order."""
    there = np.empty(order.size)
    for i in range(order.size):
        there[i] = x[order[i]]
    return there


@compiled
def scattered(order: Index, x: Array) -> Array:  # pragma: no cover - compiled
    """Coefficients in the model's order."""
    there = np.empty(order.size)
    for i in range(order.size):
        there[order[i]] = x[i]
    return there


@compiled
def entries_of(pattern: ArrowPattern, entries: Array) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """A's entries in 1 and in 2, of the list of all."""
    at, others_at = pattern.at, pattern.others_at
    first, others = np.zeros(at.size), np.empty(others_at.size)
    for i in range(first.size):
        if at[i] < entries.size:
            first[i] = entries[at[i]]
    for j in range(others.size):
        others[j] = entries[others_at[j]]
    return first, others


@compiled
def gram_of(rows: Rows, precision: Array, n_apart: int) -> Gram:  # pragma: no cover - compiled
    """``AᵀW̄A``."""
    column, entry = rows.column, rows.entry
    diagonal, counts = np.zeros(n_apart), np.zeros(n_apart)
    for i in range(precision.size):
        diagonal[column[i]] += precision[i] * entry[i] * entry[i]
        counts[column[i]] += entry[i] != 0.0
    alone = counts == 1.0
    cross, corner = _beside(rows, precision, n_apart)
    if not alone.any():
        return Gram(diagonal, cross, corner, alone, corner)
    others = precision.copy()
    for i in range(others.size):
        if entry[i] != 0.0 and alone[column[i]]:
            others[i] = 0.0
    return Gram(diagonal, cross, corner, alone, _beside(rows, others, n_apart)[1])


@compiled
def _beside(rows: Rows, precision: Array, n_apart: int) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """``AᵀW̄A`` in the columns that are not apart: H and C."""
    order, column, entry, starts, others, entries, wide_at, wide = rows
    p, q = np.uint64(n_apart), order.size - n_apart
    cross, corner = np.zeros((n_apart, q)), np.zeros((q, q))
    for i in range(precision.size):
        at, weighted, begin, end = column[i], precision[i] * entry[i], starts[i], starts[i + 1]
        for j in range(begin, end):
            one, each = others[j] - p, precision[i] * entries[j]
            cross[at, one] += weighted * entries[j]
            for other in range(begin, end):
                corner[one, others[other] - p] += each * entries[other]
    for j in range(wide_at.size):
        one, products = wide_at[j] - p, collect(rows, precision * wide[j])
        cross[:, one], corner[one], corner[:, one] = products[:n_apart], products[n_apart:], products[n_apart:]
    return cross, corner


@compiled
def predict(rows: Rows, x: Array) -> Array:  # pragma: no cover - compiled
    """``A x``."""
    _, column, entry, starts, others, entries, wide_at, wide = rows
    predicted = np.empty(entry.size)
    for i in range(predicted.size):
        total = entry[i] * x[column[i]]
        for j in range(starts[i], starts[i + 1]):
            total += entries[j] * x[others[j]]
        predicted[i] = total
    for j in range(wide_at.size):
        scale = x[wide_at[j]]
        for i in range(predicted.size):
            predicted[i] += scale * wide[j, i]
    return predicted


@compiled
def collect(rows: Rows, sites: Array) -> Array:  # pragma: no cover - compiled
    """``Aᵀ v``."""
    order, column, entry, starts, others, entries, wide_at, wide = rows
    collected = np.zeros(order.size)
    for i in range(sites.size):
        collected[column[i]] += entry[i] * sites[i]
        for j in range(starts[i], starts[i + 1]):
            collected[others[j]] += entries[j] * sites[i]
    for j in range(wide_at.size):
        collected[wide_at[j]] = np.dot(wide[j], sites)
    return collected


@compiled
def begin(
    rows: Rows, gram: Gram, spread: Array, slope: Array
) -> tuple[Factors, float, Array, Array, float, Array]:  # pragma: no cover - compiled
    """E and ``log|E|``, ``l = Aᵀ slope``, the mean, ``(D l)ᵀ`` mean, and ``A D`` mean."""
    factors, log_determinant = factorised(gram, gathered(rows.order, spread))
    linear = collect(rows, slope)
    scaled = factors.spread * linear
    mean = solve(factors, scaled)
    return factors, log_determinant, linear, mean, np.dot(scaled, mean), predict(rows, factors.spread * mean)


@compiled
def _place(
    rows: Rows, factors: Factors, pulled: Array, noise: Array
) -> tuple[Array, Array, Array, Array, Array]:  # pragma: no cover - compiled
    """z₁ and ``l + F z₂``, which is given, y, y in the model's order, and ``A D y``."""
    apart = gathered(rows.order, noise)
    standard = solve(factors, factors.spread * pulled + apart)
    return apart, pulled, standard, scattered(rows.order, standard), predict(rows, factors.spread * standard)


@compiled
def place_by_root(
    rows: Rows, root: Root, factors: Factors, linear: Array, noise: Array
) -> tuple[Array, Array, Array, Array, Array]:  # pragma: no cover - compiled
    """What `_place` makes of ``l + F z₂``."""
    k, p = rows.order.size, root.diagonal.size
    first, second = noise[k : k + p], noise[k + p :]
    pulled = linear.copy()
    pulled[:p] += root.diagonal * first
    pulled[p:] += np.dot(first, root.below)
    if second.size:
        pulled[p:] += np.dot(root.corner, second)
    return _place(rows, factors, pulled, noise)


@compiled
def place_by_sites(
    rows: Rows, site_root: Array, factors: Factors, linear: Array, noise: Array
) -> tuple[Array, Array, Array, Array, Array]:  # pragma: no cover - compiled
    """What `_place` makes of ``l + F z₂``."""
    pulled = linear + collect(rows, site_root * noise[rows.order.size :])
    return _place(rows, factors, pulled, noise)


@compiled
def root_adjoint(root: Root, x: Array) -> Array:  # pragma: no cover - compiled
    """``Fᵀ x``."""
    p = root.diagonal.size
    first, second = x[:p], x[p:]
    noise = np.empty(p + root.corner.shape[1])
    noise[:p] = root.diagonal * first + np.dot(root.below, second)
    if noise.size > p:
        noise[p:] = np.dot(second, root.corner)
    return noise


@compiled
def _moved(rows: Rows, factors: Factors, sites: Array) -> Array:  # pragma: no cover - compiled
    """``E⁻¹ D Aᵀ sites``."""
    return solve(factors, factors.spread * collect(rows, sites))


@compiled
def covariance_times(rows: Rows, factors: Factors, sites: Array) -> Array:  # pragma: no cover - compiled
    """``A D E⁻¹ D Aᵀ sites``."""
    return predict(rows, factors.spread * _moved(rows, factors, sites))


@compiled
def _adjoint_by_root(
    rows: Rows, root: Root, factors: Factors, sites: Array
) -> Array:  # pragma: no cover - compiled
    """The derivative by z of ``sitesᵀ A D y``."""
    moved = _moved(rows, factors, sites)
    return np.concatenate((scattered(rows.order, moved), root_adjoint(root, factors.spread * moved)))


@compiled
def _adjoint_by_sites(
    rows: Rows, site_root: Array, factors: Factors, sites: Array
) -> Array:  # pragma: no cover - compiled
    """The derivative by z of ``sitesᵀ A D y``."""
    moved = _moved(rows, factors, sites)
    return np.concatenate((scattered(rows.order, moved), site_root * predict(rows, factors.spread * moved)))


@compiled
def _pullback(
    rows: Rows, gram: Gram, factors: Factors, residual: Array, placed: tuple[Array, Array, Array, Array, Array]
) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled
    """``E⁻¹ D Aᵀ residual``, ``A D`` times it, and the derivative by D; of z₁, ``l + F z₂``, y, l and y's mean."""
    apart, pulled, standard, linear, mean = placed
    spread, collected, nothing = factors.spread, collect(rows, residual), np.zeros(apart.size)
    moved = solve(factors, spread * collected)
    spread_bar = (
        standard * remaining(gram, spread, collected, nothing, moved)
        + moved * remaining(gram, spread, pulled, apart, standard)
        + mean * remaining(gram, spread, linear, nothing, mean)
        - half_log_determinant_slope(gram, factors)
    )
    return moved, predict(rows, spread * moved), scattered(rows.order, spread_bar)


@compiled
def pullback_by_root(
    rows: Rows, gram: Gram, root: Root, factors: Factors, residual: Array,
    placed: tuple[Array, Array, Array, Array, Array],
) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """By z, ``A D E⁻¹ D Aᵀ residual``, and by D."""
    moved, predicted, spread_bar = _pullback(rows, gram, factors, residual, placed)
    noise = np.concatenate((scattered(rows.order, moved), root_adjoint(root, factors.spread * moved)))
    return noise, predicted, spread_bar


@compiled
def pullback_by_sites(
    rows: Rows, gram: Gram, site_root: Array, factors: Factors, residual: Array,
    placed: tuple[Array, Array, Array, Array, Array],
) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled  # fmt: skip
    """By z, ``A D E⁻¹ D Aᵀ residual``, and by D."""
    moved, predicted, spread_bar = _pullback(rows, gram, factors, residual, placed)
    return np.concatenate((scattered(rows.order, moved), site_root * predicted)), predicted, spread_bar


class Passes(NamedTuple):
    """What is done with z₂, a noise of which a root F of G makes what is added to ``l``."""

    place: Callable[..., tuple[Array, Array, Array, Array, Array]]
    pullback: Callable[..., tuple[Array, Array, Array]]
    adjoint: Callable[..., Array]


BY_ROOT = Passes(place_by_root, pullback_by_root, _adjoint_by_root)
BY_SITES = Passes(place_by_sites, pullback_by_sites, _adjoint_by_sites)


@compiled
def variances(rows: Rows, factors: Factors) -> Array:  # pragma: no cover - compiled
    """The diagonal of ``A D E⁻¹ D Aᵀ``."""
    (diagonal, cross, corner), (_, column, entry, starts, others, entries, wide_at, wide) = covariance(factors), rows
    p, variances = np.uint64(diagonal.size), np.empty(entry.size)
    for i in range(variances.size):
        at, begin, end = column[i], starts[i], starts[i + 1]
        total = entry[i] * entry[i] * diagonal[at]
        for j in range(begin, end):
            one = others[j] - p
            total += 2.0 * entry[i] * entries[j] * cross[at, one]
            for other in range(begin, end):
                total += entries[j] * entries[other] * corner[one, others[other] - p]
        variances[i] = total
    for j in range(wide_at.size):
        beside = np.concatenate((cross[:, wide_at[j] - p], corner[:, wide_at[j] - p]))
        variances += wide[j] * predict(rows, beside)
        for other in range(wide_at.size):
            beside[wide_at[other]] = 0.0
        # With those that are not wide from either side.
        variances += wide[j] * predict(rows, beside)
    return np.maximum(variances, 0.0)


@compiled
def entry_bars(
    pattern: ArrowPattern, rows: Rows, factors: Factors, precision: Array, left: Array, right: Array
) -> Array:  # pragma: no cover - compiled
    """``Σ leftᵀ right - W̄ A D E⁻¹ D`` at A's entries; of pairs (c, n) and (c, k)."""
    (diagonal, cross, corner), (order, column, entry, starts, others, entries, _, _) = covariance(factors), rows
    places, others_at, p, n = pattern.at, pattern.others_at, np.uint64(diagonal.size), precision.size
    bars = np.empty(entries.size + n)
    for i in range(n):
        at, begin, end = column[i], starts[i], starts[i + 1]
        total = entry[i] * diagonal[at]
        for j in range(begin, end):
            one = others[j] - p
            total += entries[j] * cross[at, one]
            below = entry[i] * cross[at, one]
            for other in range(begin, end):
                below += entries[other] * corner[others[other] - p, one]
            bar = -precision[i] * below
            for pair in range(left.shape[0]):
                bar += left[pair, i] * right[pair, order[others[j]]]
            bars[others_at[j]] = bar
        bar = -precision[i] * total
        for pair in range(left.shape[0]):
            bar += left[pair, i] * right[pair, order[at]]
        # What is said of no entry stays behind the last.
        bars[places[i]] = bar
    return bars[: pattern.n_entries]
