"""Coefficients that a design with columns apart reads, by passes over its entries; compiled.

See `pymc_rmhmc.latent.arrow.arrow_design`. Vectors of coefficients are in the arrow's order, but for D, z₁, y and their
derivatives where these come from a chart or go to one.

A loop reads local names alone: for an array that is looked up in a tuple within it Numba counts references, atomically
and at every turn. That took a quarter of a gradient with few observations a coefficient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.arrow.arrow_factors import (
    ArrowPattern,
    Factors,
    Gram,
    Index,
    covariance,
    factorised,
    half_log_determinant_slope,
    remaining,
    solve,
)
from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = [
    "BY_ROOT",
    "BY_SITES",
    "Passes",
    "Root",
    "Rows",
    "begin",
    "collect",
    "covariance_times",
    "entries_of",
    "entry_bars",
    "gathered",
    "gram_of",
    "place_by_root",
    "place_by_sites",
    "predict",
    "pullback_by_root",
    "pullback_by_sites",
    "root_adjoint",
    "scattered",
    "variances",
]

type Array = NDArray[np.float64]


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
