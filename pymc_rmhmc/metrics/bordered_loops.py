"""SoftAbs of a matrix with a border and blocks, in compiled code: its cost grows with the number of blocks.

For ``M = [[D, Bᵀ], [B, A]]`` with D block diagonal, the blocks are softened first, then the Schur complement of the
border:

    D' = softabs(D),      S = A - B D'⁻¹ Bᵀ,      S' = softabs(S)
    G = L diag(D', S') Lᵀ,      L = [[1, 0], [B D'⁻¹, 1]]

G is positive definite. It is M itself where M has no eigenvalue near or below 0; elsewhere it is another matrix than
SoftAbs of all of M. With ``D = Q Λ Qᵀ`` and ``Y = s(Λ)⁻¹ Qᵀ Bᵀ``, the bar T of S and those of the two numbers that a
metric needs are

    A̅ = T,      B̅ᵀ = Q [-2 Y T - (û + k̂) u_borderᵀ],      D̅ = Q (J ∘ [Y T Yᵀ + E]) Qᵀ

    ½ log|G|      T = bar of ½ log|S'|,              E = diag(½ / s(Λ)),            no second term of B̅
    -½ uᵀGu       T = bar of -½ u_borderᵀ S' u_border,      E = ½ (k̂k̂ᵀ - ûûᵀ),      û = Qᵀ u_inner,  k̂ = Y u_border

The softened border S' is kept as the blocks are: as one block more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.linalg.compiled.compilation import compiled
from pymc_rmhmc.linalg.softabs import divided_difference, softabs

__all__ = [
    "Differences", "Factor", "Layout", "differences", "log_det_bar", "quadratic_bar", "scale", "soften", "solve",
    "sqrt_times", "times",
]  # fmt: skip

type Array = NDArray[np.float64]
type Index = NDArray[np.int64]
# The derivatives by A, B and D, as `ArrowEntries` has them.
type Bar = tuple[Array, Array, Array]
# J of the blocks, and of the border.
type Differences = tuple[Array, Array]

# Larger blocks are decomposed by LAPACK, whose call takes longer than a small block's rotations.
ROTATED = 6
MAX_SWEEPS = 30
# An entry this small beside its diagonal changes no digit of an eigenvalue or a vector.
NEGLIGIBLE = 1e-20


class Layout(NamedTuple):
    """Where the parts of a vector are, and those of the blocks; see `Partition`.

    Attributes
    ----------
    border, inner : (m,), (n,) int array
        Places in a vector (d,).
    starts, entry_starts : (k + 1,) int array
        Of the blocks within the inner part, and of their entries.
    edge_starts, edge_entry_starts : (2,) int array
        The same of the border as one block.
    """

    border: Index
    inner: Index
    starts: Index
    entry_starts: Index
    edge_starts: Index
    edge_entry_starts: Index


class Factor(NamedTuple):
    """G of one position.

    Attributes
    ----------
    values, softened : (n,) array
        The blocks' eigenvalues, and those of D'.
    vectors : (e,) array
        Their vectors, in columns, block after block.
    half : (n, m) array
        Y.
    edge_values, edge_softened : (m,) array
        The same of S and S'.
    edge_vectors : (m * m,) array
        And their vectors.
    half_log_det : float
        ``½ log|G|``.
    alpha : float
        α.
    """

    values: Array
    softened: Array
    vectors: Array
    half: Array
    edge_values: Array
    edge_softened: Array
    edge_vectors: Array
    half_log_det: float
    alpha: float


@compiled
def _rotate(matrix: Array, vectors: Array, size: int) -> None:  # pragma: no cover - compiled
    """Make a small symmetric matrix diagonal by Jacobi's rotations, in place, and collect them in the vectors."""
    for _ in range(MAX_SWEEPS):
        clean = True
        for p in range(1, size):
            for q in range(p):
                off, first, second = matrix[p, q], matrix[q, q], matrix[p, p]
                if not abs(off) > NEGLIGIBLE * (abs(first) + abs(second)):
                    continue
                clean = False
                half = 0.5 * (second - first)
                tangent = off / (half + math.copysign(math.hypot(half, off), half))
                cosine = 1.0 / math.sqrt(1.0 + tangent * tangent)
                sine = tangent * cosine
                for k in range(size):
                    one, two = matrix[k, q], matrix[k, p]
                    matrix[k, q], matrix[k, p] = cosine * one - sine * two, sine * one + cosine * two
                    one, two = vectors[k, q], vectors[k, p]
                    vectors[k, q], vectors[k, p] = cosine * one - sine * two, sine * one + cosine * two
                for k in range(size):
                    one, two = matrix[q, k], matrix[p, k]
                    matrix[q, k], matrix[p, k] = cosine * one - sine * two, sine * one + cosine * two
                matrix[q, q], matrix[p, p] = first - tangent * off, second + tangent * off
                matrix[p, q] = matrix[q, p] = 0.0
        if clean:
            break


@compiled
def _decompose(  # pragma: no cover - compiled
    starts: Index, entry_starts: Index, blocks: Array, values: Array, vectors: Array
) -> None:
    """Write every block's eigenvalues, and its eigenvectors in columns. Of a block the lower triangle is read."""
    matrix, basis = np.empty((ROTATED, ROTATED)), np.empty((ROTATED, ROTATED))
    for b in range(starts.size - 1):
        size, first, at = starts[b + 1] - starts[b], starts[b], entry_starts[b]
        if size == 1:
            values[first], vectors[at] = blocks[at], 1.0
        elif size <= ROTATED:
            for i in range(size):
                for j in range(size):
                    matrix[i, j] = blocks[at + max(i, j) * size + min(i, j)]
                    basis[i, j] = 1.0 if i == j else 0.0
            _rotate(matrix, basis, size)
            for i in range(size):
                values[first + i] = matrix[i, i]
                for j in range(size):
                    vectors[at + i * size + j] = basis[i, j]
        else:
            found = np.linalg.eigh(blocks[at : at + size * size].reshape(size, size))
            values[first : first + size] = found[0]
            vectors[at : at + size * size] = found[1].ravel()




@compiled
def _turn(  # pragma: no cover - compiled
    starts: Index, entry_starts: Index, vectors: Array, rows: Array, transpose: bool
) -> Array:
    """Return ``Q rows``, or ``Qᵀ rows`` if `transpose`, for rows (n, c)."""
    made = np.empty(rows.shape)
    for b in range(starts.size - 1):
        size, first, at = starts[b + 1] - starts[b], starts[b], entry_starts[b]
        for i in range(size):
            for c in range(rows.shape[1]):
                made[first + i, c] = 0.0
            for j in range(size):
                entry = vectors[at + j * size + i] if transpose else vectors[at + i * size + j]
                for c in range(rows.shape[1]):
                    made[first + i, c] += entry * rows[first + j, c]
    return made


@compiled
def _block_differences(  # pragma: no cover - compiled
    starts: Index, entry_starts: Index, values: Array, alpha: float
) -> Array:
    """Return J of every block's eigenvalues."""
    made = np.empty(entry_starts[-1])
    for b in range(starts.size - 1):
        size, first, at = starts[b + 1] - starts[b], starts[b], entry_starts[b]
        for i in range(size):
            for j in range(i + 1):
                found = divided_difference(values[first + i], values[first + j], alpha)
                made[at + i * size + j] = made[at + j * size + i] = found
    return made


@compiled
def _block_bars(  # pragma: no cover - compiled
    starts: Index, entry_starts: Index, vectors: Array, differences: Array, left: Array, right: Array, diagonal: Array
) -> Array:
    """Return ``Q (J ∘ [left rightᵀ + diagonal]) Qᵀ`` of every block, for left and right (n, c)."""
    made = np.empty(entry_starts[-1])
    small = np.empty((ROTATED, ROTATED))
    for b in range(starts.size - 1):
        size, first, at = starts[b + 1] - starts[b], starts[b], entry_starts[b]
        inside = small if size <= ROTATED else np.empty((size, size))
        for i in range(size):
            for j in range(size):
                total = diagonal[first + i] if i == j else 0.0
                for c in range(left.shape[1]):
                    total += left[first + i, c] * right[first + j, c]
                inside[i, j] = total * differences[at + i * size + j]
        if size == 1:
            made[at] = inside[0, 0]
        elif size <= ROTATED:
            _conjugate(vectors[at : at + size * size], inside, made[at : at + size * size], size)
        else:
            turning = vectors[at : at + size * size].reshape(size, size)
            turned = np.dot(np.dot(turning, inside), turning.T)
            for i in range(size):
                for j in range(size):
                    made[at + i * size + j] = turned[i, j]
    return made


@compiled
def _conjugate(vectors: Array, inside: Array, made: Array, size: int) -> None:  # pragma: no cover - compiled
    """Write ``Q inside Qᵀ`` of a small block into `made`, row by row; `inside` is symmetric."""
    for i in range(size):
        for j in range(i + 1):
            total = 0.0
            for k in range(size):
                for n in range(size):
                    total += vectors[i * size + k] * inside[k, n] * vectors[j * size + n]
            made[i * size + j] = made[j * size + i] = total


@compiled
def _variances(  # pragma: no cover - compiled
    starts: Index, entry_starts: Index, vectors: Array, inverse: Array
) -> Array:
    """Return the diagonal of ``Q diag(inverse) Qᵀ``, (n,)."""
    made = np.empty(inverse.size)
    for b in range(starts.size - 1):
        size, first, at = starts[b + 1] - starts[b], starts[b], entry_starts[b]
        for i in range(size):
            total = 0.0
            for j in range(size):
                entry = vectors[at + i * size + j]
                total += entry * entry * inverse[first + j]
            made[first + i] = total
    return made


@compiled
def _turn_vector(  # pragma: no cover - compiled
    starts: Index, entry_starts: Index, vectors: Array, vector: Array, transpose: bool
) -> Array:
    """Return ``Q vector``, or ``Qᵀ vector`` if `transpose`, (n,)."""
    return _turn(starts, entry_starts, vectors, vector.reshape(vector.size, 1), transpose).reshape(vector.size)


@compiled
def soften(  # pragma: no cover - compiled
    layout: Layout, border: Array, coupling: Array, blocks: Array, alpha: float
) -> tuple[bool, Factor]:
    """Factorise G of the entries of M; False, with a factor of no use, if they are not finite."""
    m, n = layout.border.size, layout.inner.size
    values, vectors = np.zeros(n), np.zeros(blocks.size)
    edge_values, edge_vectors, half = np.zeros(m), np.zeros(m * m), np.zeros((n, m))
    finite = np.isfinite(border.sum()) and np.isfinite(coupling.sum()) and np.isfinite(blocks.sum())
    if not finite:
        return False, Factor(values, values, vectors, half, edge_values, edge_values, edge_vectors, math.nan, alpha)
    _decompose(layout.starts, layout.entry_starts, blocks, values, vectors)
    softened = softabs(values, alpha)
    turned = _turn(layout.starts, layout.entry_starts, vectors, np.ascontiguousarray(coupling.T), True)
    for i in range(n):
        for c in range(m):
            half[i, c] = turned[i, c] / softened[i]
    complement = border - np.dot(turned.T, half)
    if not np.isfinite(complement.sum()):
        return False, Factor(values, softened, vectors, half, edge_values, edge_values, edge_vectors, math.nan, alpha)
    edges = np.ascontiguousarray(complement).reshape(m * m)
    _decompose(layout.edge_starts, layout.edge_entry_starts, edges, edge_values, edge_vectors)
    edge_softened = softabs(edge_values, alpha)
    half_log_det = 0.5 * (np.log(softened).sum() + np.log(edge_softened).sum())
    return True, Factor(
        values, softened, vectors, half, edge_values, edge_softened, edge_vectors, half_log_det, alpha
    )


@compiled
def _apply_edge(layout: Layout, factor: Factor, weights: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``Q diag(weights) Qᵀ vector`` of the border."""
    turned = _turn_vector(layout.edge_starts, layout.edge_entry_starts, factor.edge_vectors, vector, True)
    return _turn_vector(layout.edge_starts, layout.edge_entry_starts, factor.edge_vectors, weights * turned, False)


@compiled
def _joined(layout: Layout, inner: Array, border: Array) -> Array:  # pragma: no cover - compiled
    """Join the two parts into one vector, (d,)."""
    made = np.empty(inner.size + border.size)
    made[layout.inner] = inner
    made[layout.border] = border
    return made


@compiled
def solve(layout: Layout, factor: Factor, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``G⁻¹ vector``, (d,)."""
    inner = _turn_vector(layout.starts, layout.entry_starts, factor.vectors, vector[layout.inner], True)
    outer = vector[layout.border] - np.dot(inner, factor.half)
    border = _apply_edge(layout, factor, 1.0 / factor.edge_softened, outer)
    inner = inner / factor.softened - np.dot(factor.half, border)
    return _joined(layout, _turn_vector(layout.starts, layout.entry_starts, factor.vectors, inner, False), border)


@compiled
def times(layout: Layout, factor: Factor, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``G vector``, (d,)."""
    outer = vector[layout.border]
    inner = _turn_vector(layout.starts, layout.entry_starts, factor.vectors, vector[layout.inner], True)
    inner = factor.softened * (inner + np.dot(factor.half, outer))
    border = _apply_edge(layout, factor, factor.edge_softened, outer) + np.dot(inner, factor.half)
    return _joined(layout, _turn_vector(layout.starts, layout.entry_starts, factor.vectors, inner, False), border)


@compiled
def sqrt_times(layout: Layout, factor: Factor, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``L diag(Q √s, R) vector`` with ``R Rᵀ = S'``, (d,); the vector's border comes last."""
    n = layout.inner.size
    inner = np.sqrt(factor.softened) * vector[:n]
    outer = np.sqrt(factor.edge_softened) * vector[n:]
    border = _turn_vector(layout.edge_starts, layout.edge_entry_starts, factor.edge_vectors, outer, False)
    border = border + np.dot(inner, factor.half)
    return _joined(layout, _turn_vector(layout.starts, layout.entry_starts, factor.vectors, inner, False), border)


@compiled
def differences(layout: Layout, factor: Factor) -> Differences:  # pragma: no cover - compiled
    """Return J of every block's eigenvalues, and of the border's."""
    return (
        _block_differences(layout.starts, layout.entry_starts, factor.values, factor.alpha),
        _block_differences(layout.edge_starts, layout.edge_entry_starts, factor.edge_values, factor.alpha),
    )


@compiled
def log_det_bar(layout: Layout, factor: Factor, found: Differences) -> Bar:  # pragma: no cover - compiled
    """Return the bar of ``½ log|G|``."""
    m = layout.border.size
    none = np.zeros((m, 0))
    edge = _block_bars(
        layout.edge_starts, layout.edge_entry_starts, factor.edge_vectors, found[1], none, none,
        0.5 / factor.edge_softened,
    ).reshape(m, m)  # fmt: skip
    spread = np.dot(factor.half, edge)
    coupling = _turn(layout.starts, layout.entry_starts, factor.vectors, spread, False)
    blocks = _block_bars(
        layout.starts, layout.entry_starts, factor.vectors, found[0], spread, factor.half, 0.5 / factor.softened
    )
    return edge, np.ascontiguousarray(-2.0 * coupling.T), blocks


@compiled
def quadratic_bar(  # pragma: no cover - compiled
    layout: Layout, factor: Factor, found: Differences, velocity: Array
) -> Bar:
    """Return the bar of ``-½ uᵀGu`` at a fixed u."""
    m, n = layout.border.size, layout.inner.size
    outer = velocity[layout.border]
    inner = _turn_vector(layout.starts, layout.entry_starts, factor.vectors, velocity[layout.inner], True)
    turned = _turn_vector(layout.edge_starts, layout.edge_entry_starts, factor.edge_vectors, outer, True)
    edge = _block_bars(
        layout.edge_starts, layout.edge_entry_starts, factor.edge_vectors, found[1], (-0.5 * turned).reshape(m, 1),
        turned.reshape(m, 1), np.zeros(m),
    ).reshape(m, m)  # fmt: skip
    spread, carried = np.dot(factor.half, edge), np.dot(factor.half, outer)
    moved, left, right = np.empty((n, m)), np.empty((n, m + 2)), np.empty((n, m + 2))
    for i in range(n):
        for c in range(m):
            moved[i, c] = -2.0 * spread[i, c] - (inner[i] + carried[i]) * outer[c]
            left[i, c], right[i, c] = spread[i, c], factor.half[i, c]
        left[i, m], right[i, m] = -0.5 * inner[i], inner[i]
        left[i, m + 1], right[i, m + 1] = 0.5 * carried[i], carried[i]
    coupling = _turn(layout.starts, layout.entry_starts, factor.vectors, moved, False)
    blocks = _block_bars(
        layout.starts, layout.entry_starts, factor.vectors, found[0], left, right, np.zeros(n)
    )
    return edge, np.ascontiguousarray(coupling.T), blocks


@compiled
def scale(layout: Layout, factor: Factor) -> Array:  # pragma: no cover - compiled
    """Return the roots of the diagonal of ``G⁻¹ = [[D'⁻¹ + K S'⁻¹ Kᵀ, ...], [..., S'⁻¹]]`` with ``K = Q Y``."""
    m, n = layout.border.size, layout.inner.size
    inner = _variances(layout.starts, layout.entry_starts, factor.vectors, 1.0 / factor.softened)
    border = _variances(
        layout.edge_starts, layout.edge_entry_starts, factor.edge_vectors, 1.0 / factor.edge_softened
    )
    root = np.empty((m, m))
    for i in range(m):
        for j in range(m):
            root[i, j] = factor.edge_vectors[i * m + j] / math.sqrt(factor.edge_softened[j])
    reached = _turn(layout.starts, layout.entry_starts, factor.vectors, np.dot(factor.half, root), False)
    for i in range(n):
        for j in range(m):
            inner[i] += reached[i, j] * reached[i, j]
    return _joined(layout, np.sqrt(inner), np.sqrt(border))
