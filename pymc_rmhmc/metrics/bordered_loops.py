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

SoftAbs of a symmetric matrix: its eigenvalues λ become ``s(λ) = λ coth(αλ)``, which is positive and smooth.

A derivative by the softened matrix becomes one by the matrix itself through the divided differences

    Jᵢⱼ = [s(λᵢ) - s(λⱼ)] / (λᵢ - λⱼ),        Jᵢᵢ = s'(λᵢ)

The quotient itself loses about ``eps s / |λᵢ - λⱼ|``. With ``a = α|λᵢ|`` and ``b = α|λⱼ|``, and ``f(x) = x coth x``,

    J = F (λᵢ + λⱼ) / (|λᵢ| + |λⱼ|),     F = [f(a) - f(b)] / (a - b)

and F has three forms, none of which cancels where it is used:

    both small       (a + b) Σₙ cₙ (a²ⁿ - b²ⁿ) / (a² - b²)       with f(x) = Σₙ cₙ x²ⁿ
    close together   ½ (coth a + coth b) - ½ (a + b) sinh(a - b) / [(a - b) sinh a sinh b]
    far apart        1 + [h(a) - h(b)] / (a - b)                 with h(x) = f(x) - x = 2x / (e²ˣ - 1)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import zeta

from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = [
    "Differences", "Factor", "Layout", "differences", "divided_difference", "log_det_bar", "quadratic_bar", "scale",
    "softabs", "soften", "solve", "sqrt_times", "times",
]  # fmt: skip

type Array = NDArray[np.float64]
type Index = NDArray[np.int64]
type Bar = tuple[Array, Array, Array]
type Differences = tuple[Array, Array]

# x coth x = 1 + Σₙ cₙ x²ⁿ from n = 1 on. Its radius is π; up to SMALL the terms left out are below 1e-16.
N_TERMS = 14
_N = np.arange(1, N_TERMS + 1)
SERIES = 2.0 * np.where(_N % 2 == 1, 1.0, -1.0) * zeta(2.0 * _N) / math.pi ** (2.0 * _N)
SMALL = 0.7
# Closer than this, the quotient of differences would lose digits.
CLOSE = 0.3
# Beyond this, x coth x is x to the last digit.
LARGE = 40.0


@compiled
def _excess(x: float) -> float:  # pragma: no cover - compiled
    """Return ``x coth x - x`` for x ≥ 0."""
    if x > LARGE:
        return 2.0 * x * math.exp(-2.0 * x) if x < 300.0 else 0.0
    return 2.0 * x / math.expm1(2.0 * x) if x > 0.0 else 1.0


@compiled
def _quotient(a: float, b: float, gap: float) -> float:  # pragma: no cover - compiled
    """Return F for a, b ≥ 0 that are not both small; `gap` is ``a - b`` without the rounding of either."""
    if min(a, b) > LARGE:
        return 1.0
    if abs(gap) >= CLOSE:
        return 1.0 + (_excess(a) - _excess(b)) / gap
    ratio = math.sinh(gap) / gap if gap != 0.0 else 1.0
    return 0.5 * (1.0 / math.tanh(a) + 1.0 / math.tanh(b)) - 0.5 * (a + b) * ratio / (math.sinh(a) * math.sinh(b))


@compiled
def soft(value: float, alpha: float) -> float:  # pragma: no cover - compiled
    """Return ``s(λ) = λ coth(αλ)``; ``1/α`` at 0."""
    return abs(value) + _excess(alpha * abs(value)) / alpha


@compiled
def divided_difference(first: float, second: float, alpha: float) -> float:  # pragma: no cover - compiled
    """Return ``[s(λ₁) - s(λ₂)] / (λ₁ - λ₂)``, and ``s'(λ)`` if both are λ."""
    a, b = alpha * abs(first), alpha * abs(second)
    if max(a, b) > SMALL:
        sign = (0.5 * first + 0.5 * second) / (0.5 * abs(first) + 0.5 * abs(second))
        return sign * _quotient(a, b, alpha * (abs(first) - abs(second)))
    total, mixed, power = 0.0, 1.0, 1.0
    for coefficient in SERIES:
        total += coefficient * mixed
        power *= b * b
        mixed = a * a * mixed + power
    return alpha * (first + second) * total


@compiled
def softabs(values: Array, alpha: float) -> Array:  # pragma: no cover - compiled
    """Return ``s(λ) = λ coth(αλ)`` for every eigenvalue, (d,)."""
    made = np.empty(values.size)
    for i in range(values.size):
        made[i] = soft(values[i], alpha)
    return made


# The derivatives by A, B and D, as `ArrowEntries` has them.
# J of the blocks, and of the border.

# Larger blocks are decomposed by LAPACK, whose call takes longer than a small block's rotations.
ROTATED = 6
MAX_SWEEPS = 30
# An entry this small beside its diagonal changes no digit of an eigenvalue or a vector.
NEGLIGIBLE = 1e-20


class Layout(NamedTuple):
    """Where the parts of a vector are, and those of the blocks; see `Partition`."""

    border: Index  # (m,), places in a vector (d,)
    inner: Index  # (n,)
    starts: Index  # (k + 1,), of the blocks within the inner part
    entry_starts: Index  # (k + 1,), of their entries


class Blocks(NamedTuple):
    """Symmetric blocks, decomposed and softened: D', or S' as one block."""

    starts: Index
    entry_starts: Index
    values: Array  # (n,), the eigenvalues
    softened: Array  # (n,), those of the softened blocks
    vectors: Array  # (e,), in columns, block after block


class Factor(NamedTuple):
    """G of one position."""

    inner: Blocks
    edge: Blocks
    half: Array  # (n, m), Y
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
    starts: Index, entry_starts: Index, blocks: Array, alpha: float
) -> Blocks:
    """Decompose and soften every block. Of a block the lower triangle is read."""
    values, vectors = np.zeros(starts[-1]), np.zeros(blocks.size)
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
    return Blocks(starts, entry_starts, values, softabs(values, alpha), vectors)


@compiled
def _turn(blocks: Blocks, rows: Array, transpose: bool) -> Array:  # pragma: no cover - compiled
    """Return ``Q rows``, or ``Qᵀ rows`` if `transpose`, for rows (n, c)."""
    starts, entry_starts, vectors = blocks.starts, blocks.entry_starts, blocks.vectors
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
def _block_differences(blocks: Blocks, alpha: float) -> Array:  # pragma: no cover - compiled
    """Return J of every block's eigenvalues."""
    starts, entry_starts, values = blocks.starts, blocks.entry_starts, blocks.values
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
    blocks: Blocks, differences: Array, left: Array, right: Array, diagonal: Array
) -> Array:
    """Return ``Q (J ∘ [left rightᵀ + diagonal]) Qᵀ`` of every block, for left and right (n, c)."""
    starts, entry_starts, vectors = blocks.starts, blocks.entry_starts, blocks.vectors
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
def _variances(blocks: Blocks) -> Array:  # pragma: no cover - compiled
    """Return the diagonal of the inverse of the softened blocks, (n,)."""
    inverse = 1.0 / blocks.softened
    made = np.empty(inverse.size)
    for b in range(blocks.starts.size - 1):
        size, first, at = blocks.starts[b + 1] - blocks.starts[b], blocks.starts[b], blocks.entry_starts[b]
        for i in range(size):
            total = 0.0
            for j in range(size):
                entry = blocks.vectors[at + i * size + j]
                total += entry * entry * inverse[first + j]
            made[first + i] = total
    return made


@compiled
def _turn_vector(blocks: Blocks, vector: Array, transpose: bool) -> Array:  # pragma: no cover - compiled
    """Return ``Q vector``, or ``Qᵀ vector`` if `transpose`, (n,)."""
    return _turn(blocks, vector.reshape(vector.size, 1), transpose).reshape(vector.size)


@compiled
def soften(  # pragma: no cover - compiled
    layout: Layout, border: Array, coupling: Array, blocks: Array, alpha: float
) -> tuple[bool, Factor]:
    """Factorise G of the entries of M; False, with a factor of no use, if they are not finite."""
    m, n = layout.border.size, layout.inner.size
    starts, entry_starts = np.array([0, m]), np.array([0, m * m])
    half = np.zeros((n, m))
    if not (np.isfinite(border.sum()) and np.isfinite(coupling.sum()) and np.isfinite(blocks.sum())):
        inner = _decompose(layout.starts, layout.entry_starts, np.zeros(blocks.size), alpha)
        return False, Factor(inner, _decompose(starts, entry_starts, np.zeros(m * m), alpha), half, math.nan, alpha)
    inner = _decompose(layout.starts, layout.entry_starts, blocks, alpha)
    turned = _turn(inner, np.ascontiguousarray(coupling.T), True)
    for i in range(n):
        for c in range(m):
            half[i, c] = turned[i, c] / inner.softened[i]
    complement = border - np.dot(turned.T, half)
    if not np.isfinite(complement.sum()):
        return False, Factor(inner, _decompose(starts, entry_starts, np.zeros(m * m), alpha), half, math.nan, alpha)
    edge = _decompose(starts, entry_starts, np.ascontiguousarray(complement).reshape(m * m), alpha)
    half_log_det = 0.5 * (np.log(inner.softened).sum() + np.log(edge.softened).sum())
    return True, Factor(inner, edge, half, half_log_det, alpha)


@compiled
def _apply_edge(edge: Blocks, weights: Array, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``Q diag(weights) Qᵀ vector`` of the border."""
    return _turn_vector(edge, weights * _turn_vector(edge, vector, True), False)


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
    inner = _turn_vector(factor.inner, vector[layout.inner], True)
    outer = vector[layout.border] - np.dot(inner, factor.half)
    border = _apply_edge(factor.edge, 1.0 / factor.edge.softened, outer)
    inner = inner / factor.inner.softened - np.dot(factor.half, border)
    return _joined(layout, _turn_vector(factor.inner, inner, False), border)


@compiled
def times(layout: Layout, factor: Factor, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``G vector``, (d,)."""
    outer = vector[layout.border]
    inner = _turn_vector(factor.inner, vector[layout.inner], True)
    inner = factor.inner.softened * (inner + np.dot(factor.half, outer))
    border = _apply_edge(factor.edge, factor.edge.softened, outer) + np.dot(inner, factor.half)
    return _joined(layout, _turn_vector(factor.inner, inner, False), border)


@compiled
def sqrt_times(layout: Layout, factor: Factor, vector: Array) -> Array:  # pragma: no cover - compiled
    """Return ``L diag(Q √s, R) vector`` with ``R Rᵀ = S'``, (d,); the vector's border comes last."""
    n = layout.inner.size
    inner = np.sqrt(factor.inner.softened) * vector[:n]
    outer = np.sqrt(factor.edge.softened) * vector[n:]
    border = _turn_vector(factor.edge, outer, False)
    border = border + np.dot(inner, factor.half)
    return _joined(layout, _turn_vector(factor.inner, inner, False), border)


@compiled
def differences(factor: Factor) -> Differences:  # pragma: no cover - compiled
    """Return J of every block's eigenvalues, and of the border's."""
    return _block_differences(factor.inner, factor.alpha), _block_differences(factor.edge, factor.alpha)


@compiled
def log_det_bar(layout: Layout, factor: Factor, found: Differences) -> Bar:  # pragma: no cover - compiled
    """Return the bar of ``½ log|G|``."""
    m = layout.border.size
    none = np.zeros((m, 0))
    edge = _block_bars(factor.edge, found[1], none, none, 0.5 / factor.edge.softened).reshape(m, m)
    spread = np.dot(factor.half, edge)
    coupling = _turn(factor.inner, spread, False)
    blocks = _block_bars(factor.inner, found[0], spread, factor.half, 0.5 / factor.inner.softened)
    return edge, np.ascontiguousarray(-2.0 * coupling.T), blocks


@compiled
def quadratic_bar(  # pragma: no cover - compiled
    layout: Layout, factor: Factor, found: Differences, velocity: Array
) -> Bar:
    """Return the bar of ``-½ uᵀGu`` at a fixed u."""
    m, n = layout.border.size, layout.inner.size
    outer = velocity[layout.border]
    inner = _turn_vector(factor.inner, velocity[layout.inner], True)
    turned = _turn_vector(factor.edge, outer, True)
    left, right = (-0.5 * turned).reshape(m, 1), turned.reshape(m, 1)
    edge = _block_bars(factor.edge, found[1], left, right, np.zeros(m)).reshape(m, m)
    spread, carried = np.dot(factor.half, edge), np.dot(factor.half, outer)
    moved, left, right = np.empty((n, m)), np.empty((n, m + 2)), np.empty((n, m + 2))
    for i in range(n):
        for c in range(m):
            moved[i, c] = -2.0 * spread[i, c] - (inner[i] + carried[i]) * outer[c]
            left[i, c], right[i, c] = spread[i, c], factor.half[i, c]
        left[i, m], right[i, m] = -0.5 * inner[i], inner[i]
        left[i, m + 1], right[i, m + 1] = 0.5 * carried[i], carried[i]
    coupling = _turn(factor.inner, moved, False)
    return edge, np.ascontiguousarray(coupling.T), _block_bars(factor.inner, found[0], left, right, np.zeros(n))


@compiled
def scale(layout: Layout, factor: Factor) -> Array:  # pragma: no cover - compiled
    """Return the roots of the diagonal of ``G⁻¹ = [[D'⁻¹ + K S'⁻¹ Kᵀ, ...], [..., S'⁻¹]]`` with ``K = Q Y``."""
    m, n = layout.border.size, layout.inner.size
    inner, border = _variances(factor.inner), _variances(factor.edge)
    root = np.empty((m, m))
    for i in range(m):
        for j in range(m):
            root[i, j] = factor.edge.vectors[i * m + j] / math.sqrt(factor.edge.softened[j])
    reached = _turn(factor.inner, np.dot(factor.half, root), False)
    for i in range(n):
        for j in range(m):
            inner[i] += reached[i, j] * reached[i, j]
    return _joined(layout, np.sqrt(inner), np.sqrt(border))
