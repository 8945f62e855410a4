"""SoftAbs of a matrix with a border and blocks, at a cost that grows with the number of blocks.

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
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.geometry.compilation import compiled
from pymc_rmhmc.geometry.general.sparsity import ArrowEntries, Index, Partition
from pymc_rmhmc.geometry.metrics.softabs import SoftAbsMatrix, divided_difference, softabs

__all__ = ["ArrowSoftAbsMatrix"]

type Array = NDArray[np.float64]

# Larger blocks are decomposed by LAPACK, whose call takes longer than a small block's rotations.
ROTATED = 6
MAX_SWEEPS = 30
# An entry this small beside its diagonal changes no digit of an eigenvalue or a vector.
NEGLIGIBLE = 1e-20


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
def _decompose_small(  # pragma: no cover - compiled
    starts: Index, entry_starts: Index, blocks: Array, values: Array, vectors: Array
) -> None:
    """The eigenvalues of every small block, and its vectors, in columns."""
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


def _decompose(partition: Partition, blocks: Array) -> tuple[Array, Array]:
    """The eigenvalues of every block, (n,), and its vectors, in columns."""
    values, vectors = np.empty(partition.inner.size), np.empty(blocks.size)
    _decompose_small(partition.starts, partition.entry_starts, blocks, values, vectors)
    if partition.n_places > ROTATED:
        for b in np.flatnonzero(partition.sizes > ROTATED):
            size, places = partition.sizes[b], slice(*partition.entry_starts[b : b + 2])
            found = np.linalg.eigh(blocks[places].reshape(size, size))
            values[partition.starts[b] : partition.starts[b + 1]] = found[0]
            vectors[places] = found[1].ravel()
    return values, vectors


@compiled
def _turn(  # pragma: no cover - compiled
    starts: Index, entry_starts: Index, vectors: Array, rows: Array, transpose: bool
) -> Array:
    """``Q rows`` or ``Qᵀ rows`` for rows (n, c)."""
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
    """J of every block's eigenvalues."""
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
    """``Q (J ∘ [left rightᵀ + diagonal]) Qᵀ`` of every block, for left and right (n, c)."""
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
    """``Q inside Qᵀ`` of a small block, row by row; `inside` is symmetric."""
    for i in range(size):
        for j in range(i + 1):
            total = 0.0
            for k in range(size):
                for n in range(size):
                    total += vectors[i * size + k] * inside[k, n] * vectors[j * size + n]
            made[i * size + j] = made[j * size + i] = total


class ArrowSoftAbsMatrix:
    """A positive definite matrix ``G = L diag(D', S') Lᵀ`` of softened blocks and a border; `soften` makes one.

    Parameters
    ----------
    partition : Partition
        Which parameters are the border, and which blocks the others fall into.
    blocks : tuple of array
        The eigenvalues of all blocks, (n,), and their vectors.
    half : (n, m) array
        Y.
    border : SoftAbsMatrix
        S'.
    alpha : float
        α.

    Attributes
    ----------
    half_log_det : float
        ``½ log|G|``.
    scale : (d,) array
        ``sqrt(diag(G⁻¹))``.

    Notes
    -----
    A bar is the derivative of a number by the entries of M, not of G: see `ArrowEntries` and `Probes.pull_back`.
    """

    def __init__(
        self, partition: Partition, blocks: tuple[Array, Array, Array], half: Array, border: SoftAbsMatrix, alpha: float
    ) -> None:
        self._partition, self._alpha = partition, alpha
        self._values, self._vectors, self._softened = blocks
        self._half, self._border = half, border
        self.half_log_det = 0.5 * float(np.log(self._softened).sum()) + border.half_log_det
        self.scale: float | Array = self._scale()

    @classmethod
    def soften(cls, entries: ArrowEntries, partition: Partition, alpha: float) -> ArrowSoftAbsMatrix | Failure:
        """Decompose M of its entries, or say why it cannot be. Of a block or a border the lower triangle is read."""
        if not all(np.isfinite(part).all() for part in entries):
            return Failure.NON_FINITE
        try:
            values, vectors = _decompose(partition, entries.blocks)
        except np.linalg.LinAlgError:
            return Failure.NON_FINITE
        softened = softabs(values, alpha)
        turned = _turned(partition, vectors, entries.coupling.T, transpose=True)
        half = turned / softened[:, None]
        border = SoftAbsMatrix.soften(entries.border - turned.T @ half, alpha)
        if isinstance(border, Failure):
            return border
        return cls(partition, (values, vectors, softened), half, border, alpha)

    @property
    def root_size(self) -> int:
        """The size of a vector that `sqrt_times` takes: d."""
        return self._partition.size

    def solve(self, vector: Array) -> Array:
        """``G⁻¹ vector``, (d,)."""
        inner = self._turn(vector[self._partition.inner], transpose=True)
        border = self._border.solve(vector[self._partition.border] - inner @ self._half)
        return self._joined(self._turn(inner / self._softened - self._half @ border), border)

    def times(self, vector: Array) -> Array:
        """``G vector``, (d,)."""
        border = vector[self._partition.border]
        inner = self._turn(vector[self._partition.inner], transpose=True)
        inner = self._softened * (inner + self._half @ border)
        return self._joined(self._turn(inner), self._border.times(border) + inner @ self._half)

    def sqrt_times(self, vector: Array) -> Array:
        """``L diag(Q sqrt(s), R) vector`` with ``R Rᵀ = S'``, (d,); the vector's border comes last."""
        n = self._partition.inner.size
        inner = np.sqrt(self._softened) * vector[:n]
        return self._joined(self._turn(inner), self._border.sqrt_times(vector[n:]) + inner @ self._half)

    def log_det_bar(self) -> ArrowEntries:
        """The bar of ``½ log|G|``."""
        border = self._border.log_det_bar()
        spread = self._half @ border
        coupling = -2.0 * self._turn(spread).T
        return ArrowEntries(border, coupling, self._block_bars(spread, self._half, 0.5 / self._softened))

    def quadratic_bar(self, velocity: Array) -> ArrowEntries:
        """The bar of ``-½ uᵀGu`` at a fixed u."""
        outer = velocity[self._partition.border]
        inner = self._turn(velocity[self._partition.inner], transpose=True)
        border = self._border.quadratic_bar(outer)
        spread, carried = self._half @ border, self._half @ outer
        coupling = -self._turn(2.0 * spread + np.multiply.outer(inner + carried, outer)).T
        left = np.column_stack((spread, -0.5 * inner, 0.5 * carried))
        right = np.column_stack((self._half, inner, carried))
        return ArrowEntries(border, coupling, self._block_bars(left, right, np.zeros(inner.size)))

    def _scale(self) -> Array:
        """Square roots of the diagonal of ``G⁻¹ = [[D'⁻¹ + K S'⁻¹ Kᵀ, ...], [..., S'⁻¹]]`` with ``K = Q Y``."""
        part = self._partition
        inner = 1.0 / self._softened
        if part.n_places > 1:
            inner = _variances(part.starts, part.entry_starts, self._vectors, inner)
        root = self._turn(self._half @ self._border.inverse_root)
        return self._joined(np.sqrt(inner + np.einsum("ij,ij->i", root, root)), np.asarray(self._border.scale))

    def _joined(self, inner: Array, border: Array) -> Array:
        """A vector of both parts, (d,)."""
        made = np.empty(self._partition.size)
        made[self._partition.inner], made[self._partition.border] = inner, border
        return made

    def _turn(self, rows: Array, *, transpose: bool = False) -> Array:
        return _turned(self._partition, self._vectors, rows, transpose=transpose)

    def _block_bars(self, left: Array, right: Array, diagonal: Array) -> Array:
        part = self._partition
        return _block_bars(part.starts, part.entry_starts, self._vectors, self._differences, left, right, diagonal)

    @cached_property
    def _differences(self) -> Array:
        """J of every block."""
        part = self._partition
        return _block_differences(part.starts, part.entry_starts, self._values, self._alpha)


@compiled
def _variances(  # pragma: no cover - compiled
    starts: Index, entry_starts: Index, vectors: Array, inverse: Array
) -> Array:
    """The diagonal of ``Q diag(inverse) Qᵀ``, (n,)."""
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


def _turned(partition: Partition, vectors: Array, rows: Array, *, transpose: bool) -> Array:
    """``Q rows`` or ``Qᵀ rows`` for rows (n,) or (n, c); Q is 1 if every block has one parameter."""
    if partition.n_places <= 1:
        return rows
    columns = np.ascontiguousarray(rows if rows.ndim == 2 else rows[:, None])
    made = _turn(partition.starts, partition.entry_starts, vectors, columns, transpose)
    return made.reshape(rows.shape)
