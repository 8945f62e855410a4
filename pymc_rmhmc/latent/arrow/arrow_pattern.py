"""Where the entries of a design are, most of whose columns have no row in common.

See `pymc_rmhmc.latent.arrow.arrow_design`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = ["ArrowPattern", "Index", "arrow_pattern", "places_of", "row_starts"]

# Without a sign: compiled code does not look then whether one counts from the end.
type Index = NDArray[np.uint64]


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
