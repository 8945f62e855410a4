"""Factors of a positive definite band matrix with a dense border: ``L D Lᵀ`` of the band, Cholesky of what is left.

The matrix is ``[[A, B], [Bᵀ, C]]`` with A (m, m) of bandwidth p and a border of k rows. One flat array holds it:

- the band, (m, p + 1): row j has the column j of A from its diagonal down, and then zeros where A ends;
- the border, (k, m): row c has the column c of B;
- the corner C, (k, k): row j has the column j from its diagonal on; what is before it is not read.

The factor takes its place: 1/D on the diagonal of the band and L below, ``D⁻¹ L⁻¹ B`` in the border, and in the corner
the Cholesky factor of what B leaves of C. The inverse has the same places: ``A⁻¹`` on the band is Takahashi's, and the
border adds ``Y Yᵀ`` to it, a sum without differences.

References
----------
Rue and Held (2005), Gaussian Markov random fields, sections 2.4 and 2.5; Takahashi, Fagan and Chen (1973), Formation of
a sparse bus impedance matrix.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import reverse_cuthill_mckee

from pymc_rmhmc.linalg.cholesky import factorise_in_place, invert_in_place
from pymc_rmhmc.linalg.compiled.compilation import compiled, compiled_in_any_order

__all__ = ["band_order", "factorise_band", "log_of_product", "select_band", "solve_band"]

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

# A product of numbers is turned into a logarithm before it or a factor of it leaves the range of a double.
LARGE, SMALL = 1e150, 1e-150
# Cuthill and McKee order level and slope now so, now so. By where neighbours lie on average, twice, all times have one
# order: bandwidth 2 in place of 3.
N_ORDERS = 3


def band_order(pattern: sp.csr_array) -> tuple[Indices, int]:
    """Return an order of small bandwidth, the natural one or reverse Cuthill-McKee's, and its bandwidth."""
    n = pattern.shape[0]
    best = np.arange(n, dtype=np.int64)
    width = _bandwidth(pattern, best)
    if width <= 1:
        return best, width
    order = reverse_cuthill_mckee(pattern, symmetric_mode=True).astype(np.int64)
    for _ in range(N_ORDERS):
        reduced = _bandwidth(pattern, order)
        if reduced < width:
            best, width = order, reduced
        order = np.argsort(pattern @ np.argsort(order) / np.diff(pattern.indptr), kind="stable")
    return best, width


def _bandwidth(pattern: sp.csr_array, order: Indices) -> int:
    rows, columns = pattern.tocoo().coords
    position = np.argsort(order)
    return int(np.abs(position[rows] - position[columns]).max(initial=0))


@compiled
def factorise_band(size: int, width: int, border: int, flat: Array) -> float:  # pragma: no cover - compiled
    """Factorise in place, for m rows of bandwidth p and k of the border; return the log determinant, nan if none."""
    band, beside, corner = _parts(size, width, border, flat)
    if width == 1:
        positive = _factorise_tridiagonal(band)
    elif width == 2:
        positive = _factorise_pentadiagonal(band)
    else:
        positive = _factorise_wide(band)
    if not positive:
        return np.nan
    log_determinant = -log_of_product(band[:, 0])
    if border > 0:
        _forward(band, beside)
        unscaled = beside.copy()
        _scale(band, beside)
        _subtract_products(beside, unscaled, corner)
        if not factorise_in_place(corner.T):
            return np.nan
        log_determinant += 2.0 * log_of_product(np.diag(corner))
    return log_determinant if np.isfinite(log_determinant) else np.nan


@compiled
def solve_band(size: int, width: int, border: int, flat: Array, vectors: Array) -> None:  # pragma: no cover - compiled
    """Overwrite vectors (r, m + k) with the inverse times each."""
    band, beside, corner = _parts(size, width, border, flat)
    below = vectors[:, size:]
    _forward(band, vectors)
    if border > 0:
        _subtract_products(beside, vectors, below)
        _solve_corner(corner, below)
    _scale(band, vectors)
    if border > 0:
        _subtract_combinations(below, beside, vectors)
    _backward(band, vectors)


@compiled
def select_band(size: int, width: int, border: int, flat: Array, inverse: Array) -> None:  # pragma: no cover - compiled
    """Write the entries of the inverse at the places of the matrix."""
    band, beside, corner = _parts(size, width, border, flat)
    found, found_beside, found_corner = _parts(size, width, border, inverse)
    if width == 1:
        _select_tridiagonal(band, found)
    elif width == 2:
        _select_pentadiagonal(band, found)
    else:
        _select_wide(band, found)
    if border > 0:
        _select_border(band, beside, corner, found, found_beside, found_corner)


@compiled
def _parts(
    size: int, width: int, border: int, flat: Array
) -> tuple[Array, Array, Array]:  # pragma: no cover - compiled
    """Return the band, the border and the corner of a flat array."""
    start, end = size * (width + 1), size * (width + 1 + border)
    band = flat[:start].reshape(size, width + 1)
    return band, flat[start:end].reshape(border, size), flat[end:].reshape(border, border)


@compiled_in_any_order
def log_of_product(values: Array) -> float:  # pragma: no cover - compiled
    """Return the sum of the logarithms of positive numbers, by products that stay within the range of a double."""
    total, product = 0.0, 1.0
    for value in values:
        if SMALL < value < LARGE:
            product *= value
            if not SMALL < product < LARGE:
                total += np.log(product)
                product = 1.0
        else:
            total += np.log(value)
    return float(total + np.log(product))


@compiled_in_any_order
def _factorise_tridiagonal(band: Array) -> bool:  # pragma: no cover - compiled
    taken = 0.0
    for j in range(band.shape[0]):
        pivot = band[j, 0] - taken
        if not pivot > 0.0:
            return False
        below = band[j, 1]
        ratio = below / pivot
        taken = ratio * below
        band[j, 0] = 1.0 / pivot
        band[j, 1] = ratio
    return True


@compiled_in_any_order
def _factorise_pentadiagonal(band: Array) -> bool:  # pragma: no cover - compiled
    # What earlier columns take from this column's diagonal and first entry, and from the next one's diagonal.
    taken, taken_below, taken_next = 0.0, 0.0, 0.0
    for j in range(band.shape[0]):
        pivot = band[j, 0] - taken
        if not pivot > 0.0:
            return False
        first, second = band[j, 1] - taken_below, band[j, 2]
        by_first, by_second = first / pivot, second / pivot
        taken, taken_below = taken_next + by_first * first, by_first * second
        taken_next = by_second * second
        band[j, 0] = 1.0 / pivot
        band[j, 1], band[j, 2] = by_first, by_second
    return True


@compiled_in_any_order
def _factorise_wide(band: Array) -> bool:  # pragma: no cover - compiled
    size, length = band.shape
    for j in range(size):
        if not band[j, 0] > 0.0:
            return False
        inverse = 1.0 / band[j, 0]
        for a in range(1, min(length, size - j)):
            ratio = band[j, a] * inverse
            if ratio != 0.0:
                for b in range(length - a):
                    band[j + a, b] -= ratio * band[j, a + b]
        for a in range(1, length):
            band[j, a] *= inverse
        band[j, 0] = inverse
    return True


# Each number of a vector waits for the one before: two vectors at once take as long as one.


@compiled
def _forward(band: Array, vectors: Array) -> None:  # pragma: no cover - compiled
    """Overwrite what vectors have of the band with ``L⁻¹`` times each."""
    for t in range(0, vectors.shape[0], 2):
        first, second = _pair(band, vectors, t)
        if band.shape[1] == 2:
            _forward_tridiagonal(band, first, second)
        elif band.shape[1] == 3:
            _forward_pentadiagonal(band, first, second)
        else:
            _forward_wide(band, first, second)


@compiled
def _backward(band: Array, vectors: Array) -> None:  # pragma: no cover - compiled
    """Overwrite what vectors have of the band with ``L⁻ᵀ`` times each."""
    for t in range(0, vectors.shape[0], 2):
        first, second = _pair(band, vectors, t)
        if band.shape[1] == 2:
            _backward_tridiagonal(band, first, second)
        elif band.shape[1] == 3:
            _backward_pentadiagonal(band, first, second)
        else:
            _backward_wide(band, first, second)


@compiled
def _pair(band: Array, vectors: Array, t: int) -> tuple[Array, Array]:  # pragma: no cover - compiled
    """Return two vectors; 0 in place of one after the last."""
    size = band.shape[0]
    return vectors[t, :size], vectors[t + 1, :size] if t + 1 < vectors.shape[0] else np.zeros(size)


@compiled_in_any_order
def _forward_tridiagonal(band: Array, first: Array, second: Array) -> None:  # pragma: no cover - compiled
    by, one, other = 0.0, 0.0, 0.0
    for j in range(band.shape[0]):
        one, other = first[j] - by * one, second[j] - by * other
        first[j], second[j] = one, other
        by = band[j, 1]


@compiled_in_any_order
def _forward_pentadiagonal(band: Array, first: Array, second: Array) -> None:  # pragma: no cover - compiled
    # What earlier numbers take from this one, and from the next one.
    taken, taken_next, also, also_next = 0.0, 0.0, 0.0, 0.0
    for j in range(band.shape[0]):
        one, other, near, far = first[j] - taken, second[j] - also, band[j, 1], band[j, 2]
        first[j], second[j] = one, other
        taken, taken_next = taken_next + near * one, far * one
        also, also_next = also_next + near * other, far * other


@compiled_in_any_order
def _forward_wide(band: Array, first: Array, second: Array) -> None:  # pragma: no cover - compiled
    size, length = band.shape
    for j in range(size):
        end, one, other = min(length, size - j), first[j], second[j]
        below, mine, its = band[j, 1:end], first[j + 1 : j + end], second[j + 1 : j + end]
        for a in range(end - 1):
            mine[a] -= below[a] * one
            its[a] -= below[a] * other


@compiled_in_any_order
def _backward_tridiagonal(band: Array, first: Array, second: Array) -> None:  # pragma: no cover - compiled
    one, other = 0.0, 0.0
    for j in range(band.shape[0] - 1, -1, -1):
        by = band[j, 1]
        one, other = first[j] - by * one, second[j] - by * other
        first[j], second[j] = one, other


@compiled_in_any_order
def _backward_pentadiagonal(band: Array, first: Array, second: Array) -> None:  # pragma: no cover - compiled
    one, after, other, also = 0.0, 0.0, 0.0, 0.0
    for j in range(band.shape[0] - 1, -1, -1):
        near, far = band[j, 1], band[j, 2]
        one, after = first[j] - far * after - near * one, one
        other, also = second[j] - far * also - near * other, other
        first[j], second[j] = one, other


@compiled_in_any_order
def _backward_wide(band: Array, first: Array, second: Array) -> None:  # pragma: no cover - compiled
    size, length = band.shape
    for j in range(size - 1, -1, -1):
        end, one, other = min(length, size - j), first[j], second[j]
        below, mine, its = band[j, 1:end], first[j + 1 : j + end], second[j + 1 : j + end]
        for a in range(end - 1):
            one -= below[a] * mine[a]
            other -= below[a] * its[a]
        first[j], second[j] = one, other


@compiled_in_any_order
def _scale(band: Array, vectors: Array) -> None:  # pragma: no cover - compiled
    """Overwrite what vectors have of the band with ``D⁻¹`` times each."""
    for t in range(vectors.shape[0]):
        vector = vectors[t]
        for j in range(band.shape[0]):
            vector[j] *= band[j, 0]


@compiled_in_any_order
def _subtract_products(beside: Array, vectors: Array, made: Array) -> None:  # pragma: no cover - compiled
    """Take from the entries (r, k) the products of vectors and columns of a border."""
    for t in range(vectors.shape[0]):
        vector = vectors[t]
        for c in range(beside.shape[0]):
            column, total = beside[c], 0.0
            for j in range(column.size):
                total += column[j] * vector[j]
            made[t, c] -= total


@compiled_in_any_order
def _subtract_combinations(weights: Array, beside: Array, vectors: Array) -> None:  # pragma: no cover - compiled
    """Take from vectors the columns of a border times weights (r, k)."""
    for t in range(vectors.shape[0]):
        vector = vectors[t]
        for c in range(beside.shape[0]):
            column, by = beside[c], weights[t, c]
            for j in range(column.size):
                vector[j] -= by * column[j]


@compiled
def _solve_corner(corner: Array, vectors: Array) -> None:  # pragma: no cover - compiled
    """Solve with the corner's Cholesky factor, whose column j is the row j of the corner."""
    border = corner.shape[0]
    for t in range(vectors.shape[0]):
        for j in range(border):
            value = vectors[t, j] / corner[j, j]
            vectors[t, j] = value
            for i in range(j + 1, border):
                vectors[t, i] -= corner[j, i] * value
        for j in range(border - 1, -1, -1):
            value = vectors[t, j]
            for i in range(j + 1, border):
                value -= corner[j, i] * vectors[t, i]
            vectors[t, j] = value / corner[j, j]


@compiled_in_any_order
def _select_tridiagonal(band: Array, found: Array) -> None:  # pragma: no cover - compiled
    after = 0.0
    for j in range(band.shape[0] - 1, -1, -1):
        by = band[j, 1]
        found[j, 1] = -by * after
        after = band[j, 0] + by * by * after
        found[j, 0] = after


@compiled_in_any_order
def _select_pentadiagonal(band: Array, found: Array) -> None:  # pragma: no cover - compiled
    # The inverse at the next two columns: their diagonals, and the entry between them.
    near, between, far = 0.0, 0.0, 0.0
    for j in range(band.shape[0] - 1, -1, -1):
        first, second = band[j, 1], band[j, 2]
        below = -first * near - second * between
        beyond = -first * between - second * far
        far, between = near, below
        near = band[j, 0] - first * below - second * beyond
        found[j, 0], found[j, 1], found[j, 2] = near, below, beyond


@compiled_in_any_order
def _select_wide(band: Array, found: Array) -> None:  # pragma: no cover - compiled
    size, length = band.shape
    for j in range(size - 1, -1, -1):
        end = min(length, size - j)
        for a in range(length):
            found[j, a] = 0.0
        for a in range(1, end):
            by = band[j, a]
            total = by * found[j + a, 0]
            for b in range(1, end - a):
                found[j, a + b] -= by * found[j + a, b]
                total += band[j, a + b] * found[j + a, b]
            found[j, a] -= total
        total = band[j, 0]
        for a in range(1, end):
            total -= band[j, a] * found[j, a]
        found[j, 0] = total


@compiled
def _select_border(
    band: Array, beside: Array, corner: Array, found: Array, found_beside: Array, found_corner: Array
) -> None:  # pragma: no cover - compiled
    """Add to the inverse of the band what the border adds, and write the inverse at the border.

    With ``V = A⁻¹ B`` and the corner's factor R it is ``A⁻¹ + Y Yᵀ`` for ``Y = V R⁻ᵀ``, then ``-Y R⁻¹``, then
    ``R⁻ᵀ R⁻¹``.
    """
    inverse, rows = corner.copy(), np.zeros(beside.shape)
    invert_in_place(inverse.T)
    _subtract_combinations(-inverse.T, beside, rows)
    _backward(band, rows)
    _add_products(rows, found)
    for c in range(rows.shape[0]):
        found_beside[c] = 0.0
    _subtract_combinations(inverse, rows, found_beside)
    found_corner[:] = np.dot(inverse, inverse.T)


@compiled_in_any_order
def _add_products(rows: Array, found: Array) -> None:  # pragma: no cover - compiled
    """Add to the entries of a band the products of columns no further apart than its width."""
    size, length = found.shape
    for a in range(length):
        for c in range(rows.shape[0]):
            row = rows[c]
            for j in range(size - a):
                found[j, a] += row[j] * row[j + a]
