"""Multifrontal Cholesky factors of sparse positive definite matrices, with solves and entries of the inverse.

Consecutive columns of the factor with nearly the same rows are one front. A front of k columns has m rows: its own k,
then r = m - k below. Its panel (k, m) holds the column j in row j, from the diagonal on. What a front takes from later
columns, its update (r, r), is added to its parent's panel and update; the parent is the front of its first row below.
A dense matrix is a single front.

Updates lie behind the panels, and are kept only along a path from a root to the front at work: each front has a place
after its parent's. The inverse goes the other way, from the roots down, and holds at the same places the inverse at a
front's rows below, which are among its parent's rows.

References
----------
Liu (1992), The multifrontal method for sparse matrix solution; Davis (2006), Direct methods for sparse linear systems,
chapters 4 and 7; Campbell and Davis (1995), Computing the sparse inverse subset: an inverse multifrontal approach.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from pymc_rmhmc.linalg.banded import log_of_product
from pymc_rmhmc.linalg.cholesky import factorise_in_place, invert_in_place
from pymc_rmhmc.linalg.compiled.blas import multiply_by_triangle, subtract_product
from pymc_rmhmc.linalg.compiled.compilation import compiled, compiled_in_any_order

__all__ = ["Fronts", "factorise_fronts", "find_fronts", "select_fronts", "solve_fronts"]

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

# What the table says of a front: its first column, its k and m, where its panel begins, its parent (-1 if none), where
# its rows below begin in the list of all, where its update begins, and its first descendant.
START, COLUMNS, ROWS, PANEL, PARENT, BELOW, WORK, FIRST = range(8)
N_FACTS = 8
# Fronts are joined while few of the joint panel's entries are zeros, or while they are small.
ZEROS, WIDEST, SMALL_COLUMNS, SMALL_ROWS = 0.25, 256, 8, 16
# Multiplications k m² from which on BLAS is faster than loops, for the factor and for the inverse.
FOR_BLAS, FOR_PRODUCTS = 6000, 20000
# Columns of an update that BLAS is given at once: it computes both triangles of where these cross the diagonal.
STRIPE = 96


@dataclass(frozen=True)
class Fronts:
    """The fronts of a pattern."""

    # (n,): the rows of the pattern in the order of elimination, children before parents.
    order: Indices
    table: Indices  # (n_fronts, N_FACTS): what the constants above name
    rows: Indices  # rows below of all fronts, each front's ascending
    in_parent: Indices  # where each of them is among the parent's rows
    # `n_panels`, `n_stored`, `n_factor`: numbers in all panels, with the updates, and entries of the factor without the
    # zeros of joint fronts.
    n_panels: int
    n_stored: int
    n_factor: int


def find_fronts(pattern: sp.csr_array, order: Indices, n_last: int = 0) -> Fronts:
    """Return the fronts of a symmetric pattern with a full diagonal, eliminated in about this order.

    The last `n_last` rows of the order, all of which must be neighbours, are a front by themselves, and remain last.
    """
    ordered = _ordered(pattern, order)
    parent = _elimination_tree(ordered.indptr, ordered.indices)
    later = _postorder(parent)  # of its children each of the last rows has the one before it as the last
    order, ordered = order[later], _ordered(ordered, later)
    parent = _relabelled(parent, later)
    pointers, rows = _factor_rows(ordered.indptr, ordered.indices, parent)
    counts = np.diff(pointers)
    starts = _join_columns(parent, counts, parent.size - n_last)
    # Within a front each column's parent is the next, so that the last column's rows are all that is below.
    n_columns = np.diff(starts, append=parent.size)
    last = starts + n_columns - 1
    n_below = counts[last] - 1
    below = np.concatenate([[0], np.cumsum(n_below)])
    rows = rows[np.repeat(pointers[last] + 1 - below[:-1], n_below) + np.arange(below[-1])]
    n_rows = n_columns + n_below
    table = np.empty((starts.size, N_FACTS), dtype=np.int64)
    table[:, START], table[:, COLUMNS], table[:, ROWS], table[:, BELOW] = starts, n_columns, n_rows, below[:-1]
    table[:, PANEL] = np.cumsum(n_columns * n_rows) - n_columns * n_rows
    table[:, PARENT] = -1
    has_parent = n_below > 0
    table[has_parent, PARENT] = np.searchsorted(starts, rows[below[:-1][has_parent]], side="right") - 1
    n_panels = int((n_columns * n_rows).sum())
    n_stored = _place_updates(table, n_panels)
    in_parent = row_in_front(table, rows, np.repeat(table[:, PARENT], n_below), rows, parent.size)
    return Fronts(order, table, rows, in_parent, n_panels, n_stored, int(pointers[-1]))


def row_in_front(table: Indices, rows: Indices, fronts: Indices, wanted: Indices, n: int) -> Indices:
    """Return where each wanted row is among a front's rows.

    Raises a `ValueError` if a front lacks it.
    """
    own = wanted - table[fronts, START]
    columns = table[fronts, COLUMNS]
    n_below = table[:, ROWS] - table[:, COLUMNS]
    # Ascending, since each front's rows are.
    keys = np.repeat(np.arange(table.shape[0]), n_below) * n + rows
    wanted_keys = fronts * n + wanted
    found = np.searchsorted(keys, wanted_keys)
    is_own = (own >= 0) & (own < columns)
    is_below = np.append(keys, -1)[found] == wanted_keys
    if not (is_own | is_below).all():
        raise ValueError("The matrix has an entry that its pattern lacks.")
    at: Indices = np.where(is_own, own, columns + found - table[fronts, BELOW])
    return at


def _ordered(pattern: sp.csr_array, order: Indices) -> sp.csr_array:
    ordered = pattern[order][:, order].tocsr()
    ordered.sort_indices()
    return ordered


@compiled
def _elimination_tree(pointers: NDArray[np.int32], indices: NDArray[np.int32]) -> Indices:  # pragma: no cover
    """Return the parent of each column: the first row below its diagonal in the factor, -1 if there is none."""
    n = pointers.size - 1
    parent, ancestor = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    for k in range(n):
        for p in range(pointers[k], pointers[k + 1]):
            i = np.int64(indices[p])
            while i != -1 and i < k:
                above = ancestor[i]
                ancestor[i] = k
                if above == -1:
                    parent[i] = k
                i = above
    return parent


@compiled
def _postorder(parent: Indices) -> Indices:  # pragma: no cover - compiled
    """Return the columns with each subtree's together, children before parents."""
    n = parent.size
    first, following = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    for j in range(n - 1, -1, -1):
        if parent[j] != -1:
            following[j] = first[parent[j]]
            first[parent[j]] = j
    order, stack, done = np.empty(n, np.int64), np.empty(n, np.int64), 0
    for root in range(n):
        if parent[root] != -1:
            continue
        depth, stack[0] = 0, root
        while depth >= 0:
            at = stack[depth]
            child = first[at]
            if child == -1:
                order[done] = at
                done += 1
                depth -= 1
            else:
                first[at] = following[child]
                depth += 1
                stack[depth] = child
    return order


def _relabelled(parent: Indices, order: Indices) -> Indices:
    """Return the tree with its columns in another order."""
    position = np.empty(order.size + 1, dtype=np.int64)
    position[order] = np.arange(order.size)
    position[-1] = -1
    relabelled: Indices = position[parent[order]]
    return relabelled


@compiled
def _factor_rows(
    pointers: NDArray[np.int32], indices: NDArray[np.int32], parent: Indices
) -> tuple[Indices, Indices]:  # pragma: no cover - compiled
    """Return where each column of the factor begins, and its rows, from the diagonal on and ascending."""
    n = parent.size
    seen, first, following = np.full(n, -1, np.int64), np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    starts, rows = np.zeros(n + 1, np.int64), np.empty(16 * n, np.int64)
    for j in range(n):
        if parent[j] != -1:
            following[j] = first[parent[j]]
            first[parent[j]] = j
        end = starts[j]
        if end + n > rows.size:
            longer = np.empty(2 * rows.size + n, np.int64)
            longer[:end] = rows[:end]
            rows = longer
        seen[j] = j
        rows[end] = j
        end += 1
        for p in range(pointers[j], pointers[j + 1]):
            i = indices[p]
            if i > j and seen[i] != j:
                seen[i] = j
                rows[end] = i
                end += 1
        child = first[j]
        while child != -1:
            for p in range(starts[child] + 1, starts[child + 1]):
                i = rows[p]
                if i > j and seen[i] != j:
                    seen[i] = j
                    rows[end] = i
                    end += 1
            child = following[child]
        rows[starts[j] + 1 : end].sort()
        starts[j + 1] = end
    return starts, rows[: starts[n]].copy()


@compiled
def _join_columns(parent: Indices, counts: Indices, apart: int) -> Indices:  # pragma: no cover - compiled
    """Return the first columns of the fronts: equal ones together, then each with its last child while that pays.

    Columns from `apart` on are joined with no earlier ones.
    """
    n = parent.size
    starts, widths, heights, zeros = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.zeros(n)
    n_fronts, end = 0, 0
    while end < n:
        start = end
        end += 1
        while end < n and end != apart and parent[end - 1] == end and counts[end - 1] == counts[end] + 1:
            end += 1
        width, height, empty = end - start, counts[start], 0.0
        while n_fronts > 0 and start < apart and parent[start - 1] == start:
            before = n_fronts - 1
            wider, higher = width + widths[before], height + widths[before]
            more = empty + zeros[before] + widths[before] * (higher - heights[before])
            is_small = wider <= SMALL_COLUMNS and higher <= SMALL_ROWS
            if not is_small and (more > ZEROS * wider * higher or wider > WIDEST):
                break
            n_fronts = before
            start, width, height, empty = starts[before], wider, higher, more
        starts[n_fronts], widths[n_fronts], heights[n_fronts], zeros[n_fronts] = start, width, height, empty
        n_fronts += 1
    return starts[:n_fronts].copy()


@compiled
def _place_updates(table: Indices, n_panels: int) -> int:  # pragma: no cover - compiled
    """Write where each update begins and each front's first descendant; return the length of all."""
    n_fronts, needed = table.shape[0], n_panels
    for s in range(n_fronts):
        table[s, FIRST] = s
    for s in range(n_fronts):
        parent = table[s, PARENT]
        if parent >= 0:
            table[parent, FIRST] = min(table[parent, FIRST], table[s, FIRST])
    for s in range(n_fronts - 1, -1, -1):
        parent = table[s, PARENT]
        table[s, WORK] = n_panels
        if parent >= 0:
            table[s, WORK] = table[parent, WORK] + (table[parent, ROWS] - table[parent, COLUMNS]) ** 2
        needed = max(needed, table[s, WORK] + (table[s, ROWS] - table[s, COLUMNS]) ** 2)
    return needed


# Loops over the smallest fronts are over indices: a part of an array takes longer to make than they to work through.


@compiled
def factorise_fronts(
    table: Indices, in_parent: Indices, n_closed: int, flat: Array
) -> float:  # pragma: no cover - compiled
    """Factorise the first fronts in place; return the log determinant, nan if the matrix is not positive definite.

    Of a last front that is not closed, the panel is left with what the others take from it.
    """
    pivots = np.ones(table[-1, START] + table[-1, COLUMNS])
    for s in range(n_closed):
        k, m, start, at = table[s, COLUMNS], table[s, ROWS], table[s, PANEL], table[s, WORK]
        r, is_leaf, is_small = m - k, table[s, FIRST] == s, k * m * m <= FOR_BLAS
        if is_leaf:
            _clear_updates(table, s, flat)
        if is_leaf and is_small and k == 1:
            is_positive = _divide_column(start, m, flat)
        else:
            panel = flat[start : start + k * m].reshape(k, m)
            is_positive = _factorise_small(panel) if is_small else factorise_in_place(panel.T)
        if not is_positive:
            return np.nan
        for j in range(k):
            pivots[table[s, START] + j] = flat[start + j * (m + 1)]
        if r > 0 and is_leaf and is_small:
            _send_leaf(table, s, in_parent, flat)
        elif r > 0:
            update = flat[at : at + r * r].reshape(r, r)
            if is_leaf:
                update[:] = 0.0
            if is_small:
                _subtract_square(panel, update)
            else:
                _subtract_stripes(panel.T[k:], update.T)
            _send_update(table, s, in_parent, flat)
    return 2.0 * log_of_product(pivots)


@compiled
def _clear_updates(table: Indices, s: int, flat: Array) -> None:  # pragma: no cover - compiled
    """Set the updates of all to 0 of whose descendants a front is the first."""
    front = table[s, PARENT]
    while front >= 0 and table[front, FIRST] == s:
        at, r = table[front, WORK], table[front, ROWS] - table[front, COLUMNS]
        flat[at : at + r * r] = 0.0
        front = table[front, PARENT]


@compiled_in_any_order
def _divide_column(start: int, m: int, flat: Array) -> bool:  # pragma: no cover - compiled
    """Find a panel's only column of the factor; return False if there is none."""
    if not 0.0 < flat[start] < np.inf:
        return False
    flat[start] = np.sqrt(flat[start])
    scale = 1.0 / flat[start]
    for i in range(start + 1, start + m):
        flat[i] *= scale
    return True


@compiled_in_any_order
def _factorise_small(panel: Array) -> bool:  # pragma: no cover - compiled
    """Find a panel's columns of the factor; return False if there are none."""
    k, m = panel.shape
    for j in range(k):
        if not 0.0 < panel[j, j] < np.inf:
            return False
        root = np.sqrt(panel[j, j])
        scale = 1.0 / root
        for i in range(j + 1, m):
            panel[j, i] *= scale
        panel[j, j] = root
        for c in range(j + 1, k):
            by = panel[j, c]
            for i in range(c, m):
                panel[c, i] -= by * panel[j, i]
    return True


@compiled_in_any_order
def _subtract_square(panel: Array, update: Array) -> None:  # pragma: no cover - compiled
    """Take from an update what a front's columns have below: row c from its diagonal on."""
    k, m = panel.shape
    for c in range(k, m):
        for j in range(0, k - 3, 4):
            by, two, three, four = panel[j, c], panel[j + 1, c], panel[j + 2, c], panel[j + 3, c]
            for i in range(c, m):
                taken = by * panel[j, i] + two * panel[j + 1, i]
                update[c - k, i - k] -= taken + three * panel[j + 2, i] + four * panel[j + 3, i]
        for j in range(k - k % 4, k):
            by = panel[j, c]
            for i in range(c, m):
                update[c - k, i - k] -= by * panel[j, i]


@compiled
def _subtract_stripes(below: Array, update: Array) -> None:  # pragma: no cover - compiled
    """Take the same by BLAS, from the lower triangle of a Fortran-ordered update."""
    r = update.shape[0]
    for first in range(0, r, STRIPE):
        last = min(first + STRIPE, r)
        subtract_product(update[first:, first:last], below[first:], below[first:last], False, True)


@compiled
def _row_of(table: Indices, front: int, row: int) -> int:  # pragma: no cover - compiled
    """Return where a row of a front's panel or update would have its first column."""
    n_columns, n_rows = table[front, COLUMNS], table[front, ROWS]
    if row < n_columns:
        return int(table[front, PANEL] + row * n_rows)
    return int(table[front, WORK] + (row - n_columns) * (n_rows - n_columns) - n_columns)


@compiled_in_any_order
def _send_leaf(table: Indices, s: int, in_parent: Indices, flat: Array) -> None:  # pragma: no cover - compiled
    """Take what a leaf's columns have below from the panel and the update of its parent."""
    k, m, start, parent = table[s, COLUMNS], table[s, ROWS], table[s, PANEL], table[s, PARENT]
    below = table[s, BELOW] - k
    for c in range(k, m):
        row = _row_of(table, parent, in_parent[below + c])
        for j in range(start, start + k * m, m):
            for i in range(c, m):
                flat[row + in_parent[below + i]] -= flat[j + c] * flat[j + i]


@compiled_in_any_order
def _send_update(table: Indices, s: int, in_parent: Indices, flat: Array) -> None:  # pragma: no cover - compiled
    """Add an update to the panel and the update of the front's parent."""
    r, at, below, parent = table[s, ROWS] - table[s, COLUMNS], table[s, WORK], table[s, BELOW], table[s, PARENT]
    for c in range(r):
        row = _row_of(table, parent, in_parent[below + c])
        for i in range(c, r):
            flat[row + in_parent[below + i]] += flat[at + c * r + i]


@compiled
def solve_fronts(
    table: Indices, rows: Indices, flat: Array, vectors: Array, forward: bool, backward: bool
) -> None:  # pragma: no cover - compiled
    """Overwrite vectors (r, n) with ``L⁻¹`` times each, then with ``L⁻ᵀ``, or either alone; two at once."""
    for t in range(0, vectors.shape[0], 2):
        second = vectors[t + 1] if t + 1 < vectors.shape[0] else np.zeros(vectors.shape[1])
        if forward:
            _forward_pair(table, rows, flat, vectors[t], second)
        if backward:
            _backward_pair(table, rows, flat, vectors[t], second)


@compiled_in_any_order
def _forward_pair(
    table: Indices, rows: Indices, flat: Array, first: Array, second: Array
) -> None:  # pragma: no cover - compiled
    """Overwrite two vectors with ``L⁻¹`` times each."""
    one, other = np.empty(first.size), np.empty(first.size)  # what a front reads, side by side
    for s in range(table.shape[0]):
        start, k, m, at = table[s, START], table[s, COLUMNS], table[s, ROWS], table[s, PANEL]
        below = table[s, BELOW] - k
        for i in range(k):
            one[i], other[i] = first[start + i], second[start + i]
        for i in range(k, m):
            one[i], other[i] = 0.0, 0.0
        for j in range(k):
            diagonal = at + j * (m + 1)
            inverse = 1.0 / flat[diagonal]
            value, also = one[j] * inverse, other[j] * inverse
            first[start + j], second[start + j] = value, also
            column, mine, its = flat[diagonal + 1 : at + (j + 1) * m], one[j + 1 : m], other[j + 1 : m]
            for i in range(column.size):
                mine[i] -= column[i] * value
                its[i] -= column[i] * also
        for i in range(k, m):
            first[rows[below + i]] += one[i]
            second[rows[below + i]] += other[i]


@compiled_in_any_order
def _backward_pair(
    table: Indices, rows: Indices, flat: Array, first: Array, second: Array
) -> None:  # pragma: no cover - compiled
    """Overwrite two vectors with ``L⁻ᵀ`` times each."""
    one, other = np.empty(first.size), np.empty(first.size)
    for s in range(table.shape[0] - 1, -1, -1):
        start, k, m, at = table[s, START], table[s, COLUMNS], table[s, ROWS], table[s, PANEL]
        below = table[s, BELOW] - k
        for i in range(k, m):
            one[i], other[i] = first[rows[below + i]], second[rows[below + i]]
        for j in range(k - 1, -1, -1):
            diagonal = at + j * (m + 1)
            value, also = first[start + j], second[start + j]
            column, mine, its = flat[diagonal + 1 : at + (j + 1) * m], one[j + 1 : m], other[j + 1 : m]
            for i in range(column.size):
                value -= column[i] * mine[i]
                also -= column[i] * its[i]
            inverse = 1.0 / flat[diagonal]
            one[j], other[j] = value * inverse, also * inverse
            first[start + j], second[start + j] = one[j], other[j]


@compiled
def select_fronts(
    table: Indices, in_parent: Indices, n_closed: int, flat: Array, inverse: Array
) -> None:  # pragma: no cover - compiled
    """Write the entries of the inverse at the places of the first fronts, given those of a last one."""
    for s in range(n_closed - 1, -1, -1):
        k, m, start, at = table[s, COLUMNS], table[s, ROWS], table[s, PANEL], table[s, WORK]
        r, end = m - k, start + k * m
        if k == 1 and table[s, FIRST] == s:
            _select_leaf(table, s, in_parent, flat, inverse)
            continue
        panel, found = flat[start:end].reshape(k, m), inverse[start:end].reshape(k, m)
        known = inverse[at : at + r * r].reshape(r, r)
        _take_known(table, s, in_parent, inverse)
        if k * m * m > FOR_PRODUCTS:
            _select_by_products(panel, known, found)
        else:
            _select_by_columns(panel, known, found)


@compiled_in_any_order
def _take_known(table: Indices, s: int, in_parent: Indices, inverse: Array) -> None:  # pragma: no cover - compiled
    """Write the inverse at a front's rows below, symmetric, from what is known of it at the parent's rows."""
    r, at, below, parent = table[s, ROWS] - table[s, COLUMNS], table[s, WORK], table[s, BELOW], table[s, PARENT]
    for c in range(r):
        row = _row_of(table, parent, in_parent[below + c])
        for i in range(c, r):
            value = inverse[row + in_parent[below + i]]
            inverse[at + c * r + i], inverse[at + i * r + c] = value, value


@compiled_in_any_order
def _select_leaf(
    table: Indices, s: int, in_parent: Indices, flat: Array, inverse: Array
) -> None:  # pragma: no cover - compiled
    """Compute the inverse at a leaf's only column from what is known of it at the parent's rows, each read once."""
    m, start, parent, below = table[s, ROWS], table[s, PANEL], table[s, PARENT], table[s, BELOW] - 1
    for i in range(start + 1, start + m):
        inverse[i] = 0.0
    for c in range(1, m):
        row, by, total = _row_of(table, parent, in_parent[below + c]), flat[start + c], 0.0
        inverse[start + c] -= by * inverse[row + in_parent[below + c]]
        for i in range(c + 1, m):
            value = inverse[row + in_parent[below + i]]
            inverse[start + i] -= by * value
            total += flat[start + i] * value
        inverse[start + c] -= total
    scale = 1.0 / flat[start]
    total = scale
    for i in range(start + 1, start + m):
        inverse[i] *= scale
        total -= flat[i] * inverse[i]
    inverse[start] = total * scale


@compiled_in_any_order
def _select_by_columns(panel: Array, known: Array, found: Array) -> None:  # pragma: no cover - compiled
    """Compute the inverse at a front's columns, from the last one: Takahashi's equations."""
    k, m = panel.shape
    for j in range(k - 1, -1, -1):
        scale = 1.0 / panel[j, j]
        for i in range(j + 1, m):
            found[j, i] = 0.0
        for a in range(j + 1, k):
            by = panel[j, a] * scale
            for i in range(j + 1, m):
                found[j, i] -= by * found[a, i]
        for a in range(m - k):
            by = panel[j, k + a] * scale
            for i in range(m - k):
                found[j, k + i] -= by * known[a, i]
            for i in range(j + 1, k):
                found[j, i] -= by * found[i, k + a]
        total = scale
        for i in range(j + 1, m):
            total -= panel[j, i] * found[j, i]
        found[j, j] = total * scale
        for i in range(j + 1, k):
            found[i, j] = found[j, i]


@compiled
def _select_by_products(panel: Array, known: Array, found: Array) -> None:  # pragma: no cover - compiled
    """Compute the same by products: with ``X = L₂₁ L₁₁⁻¹``, ``-G X`` below and ``L₁₁⁻ᵀ L₁₁⁻¹ + Xᵀ G X`` above."""
    k, m = panel.shape
    inverse = panel[:, :k].copy()
    invert_in_place(inverse.T)
    own = inverse.T.copy().T
    multiply_by_triangle(own, inverse.T, True, 1.0)
    for j in range(k):  # Numba takes four times as long to write to a part of an array
        for i in range(k):
            found[j, i] = own[i, j]
    if m > k:
        ratios = np.dot(inverse, panel[:, k:].copy())
        below = np.dot(ratios, known)
        own = np.dot(below, ratios.T)
        for j in range(k):
            for i in range(k):
                found[j, i] += own[j, i]
            for i in range(m - k):
                found[j, k + i] = -below[j, i]
