"""Which latent values of a field share no observation with others, and are independent of them given sites.

A process for a mean and one for a noise meet in the likelihood alone: with a site for each predictor, prior times sites
is a product. A part that has dense covariances, and hardly more sites than values, is made in the size of its sites
(`pymc_rmhmc.latent.solvers.site_space`). All else is one sparse precision.

Vectors of the same covariance may be rotated into one another: a softmax reads contrasts of its classes, which are
orthonormal, and so is each contrast of alike processes a process of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from pymc_rmhmc.interfaces.stated import AffineRows, FieldMaps

__all__ = ["FieldParts", "Rotation", "SitePart", "SparsePart", "TermOfPart", "parts_of", "sites_of_twins"]

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]

# Sites for each value with a dense covariance, up to which matrices are of the sites' size: those of the values' take
# twice the products.
MOST_SITES = 1.3
# Of an entry over the largest of its row: what rounding leaves of a rotation.
ROUNDING = 1e-10


@dataclass(frozen=True, slots=True, eq=False)
class Rotation:
    """Vectors of one covariance, and what they are read as: ``y = R y'`` of each value.

    Attributes
    ----------
    columns : (r, k) int array
        The latent values of each vector.
    matrix : (r, r) array
        R, orthonormal.
    """

    columns: Indices
    matrix: Array

    def forward(self, values: Array) -> None:
        """Overwrite the model's values with what rows read."""
        values[self.columns] = self.matrix.T @ values[self.columns]

    def back(self, values: Array) -> None:
        """Overwrite what rows read with the model's values."""
        values[self.columns] = self.matrix @ values[self.columns]


@dataclass(frozen=True, slots=True, eq=False)
class TermOfPart:
    """A vector of a part, and where its rows read it.

    Attributes
    ----------
    kernel : int or None
        Which kernel it is; None for values with one residual each.
    columns : (k,) int array
        Its latent values.
    residuals : (k,) int array
        The entry of each one's residual in J; empty for a kernel.
    entries, row, column : (nnz,) int array
        Entries of A, and where they are in the part.
    is_read_as_it_is : bool
        Whether A is the identity.
    design : (n, k) sparse array or None
        A, where it is not, and θ does not move it.
    """

    kernel: int | None
    columns: Indices
    residuals: Indices
    entries: Indices
    row: Indices
    column: Indices
    is_read_as_it_is: bool
    design: sparse.csr_array | None


@dataclass(frozen=True, slots=True, eq=False)
class SitePart:
    """A part in the size of its sites.

    Attributes
    ----------
    sites : (n,) int array
        Its rows of A.
    terms : tuple of TermOfPart
        The vectors that they read.
    design_moves : bool
        Whether θ moves an entry of A.
    """

    sites: Indices
    terms: tuple[TermOfPart, ...]
    design_moves: bool

    @property
    def columns(self) -> Indices:
        """Its latent values, term after term."""
        return np.concatenate([term.columns for term in self.terms])


@dataclass(frozen=True, slots=True, eq=False)
class SparsePart:
    """All that has a sparse precision: a field of fewer values.

    Attributes
    ----------
    sites, columns : int arrays
        Its rows of A, and its latent values.
    kernels : tuple of int
        Those among them.
    maps : FieldMaps
        Of these alone; the numbers u(θ) are the same but for those of other kernels.
    """

    sites: Indices
    columns: Indices
    kernels: tuple[int, ...]
    maps: FieldMaps


@dataclass(frozen=True, slots=True, eq=False)
class FieldParts:
    """A field in parts.

    Attributes
    ----------
    predictors : AffineRows
        A, of vectors that are rotated.
    rotations : tuple of Rotation
        Of these.
    in_sites : tuple of SitePart
        The parts in the size of their sites.
    sparse : SparsePart or None
        The rest.
    unseen : tuple of int
        Kernels that no row reads.
    twins : tuple of tuples of int
        The first-named parts again, those together that are a vector of one covariance each, read as it is.
    """

    predictors: AffineRows
    rotations: tuple[Rotation, ...]
    in_sites: tuple[SitePart, ...]
    sparse: SparsePart | None
    unseen: tuple[int, ...]
    twins: tuple[tuple[int, ...], ...]

    @property
    def all_parts(self) -> tuple[SitePart | SparsePart, ...]:
        """Every part that has sites, as they lie in noise."""
        return self.in_sites if self.sparse is None else (*self.in_sites, self.sparse)


@lru_cache(maxsize=8)
def parts_of(maps: FieldMaps) -> FieldParts | None:
    """Return the parts of a field; None if no part is best made in the size of its sites."""
    if not maps.kernels or maps.values is not None or len(maps.dense) or not maps.predictors.n_rows:
        return None
    rotations = tuple(_rotations(maps))
    predictors = _rotated(maps.predictors, rotations, maps.size)
    label = _components(maps, predictors)
    of_kernels, in_sites, unseen = kernel_columns(maps), list[SitePart](), list[int]()
    is_taken = np.zeros(maps.size, bool)
    # What another residual reads of a kernel's vector is in its precision.
    is_tied = set(label[maps.residuals.column[maps.residuals.column >= maps.size - maps.n_dense]])
    for each in sorted({label[columns[0]] for columns in of_kernels} - is_tied):
        own = label == each
        kernels = [k for k, columns in enumerate(of_kernels) if own[columns[0]]]
        sites = np.unique(predictors.row[own[predictors.column]])
        if not sites.size:
            unseen += kernels
        elif sites.size <= MOST_SITES * sum(of_kernels[k].size for k in kernels):
            part = _site_part(maps, predictors, np.flatnonzero(own), kernels, sites)
            if part is None:
                continue
            in_sites.append(part)
        else:
            continue
        is_taken |= own
    if not in_sites:
        return None
    rest = _rest(maps, predictors, is_taken)
    if rest is not None and not rest.columns.size:  # a row that reads nothing belongs to no part
        return None
    return FieldParts(predictors, rotations, tuple(in_sites), rest, tuple(unseen), tuple(_twins(maps, in_sites)))


def sites_of_twins(maps: FieldMaps) -> list[Indices]:
    """Return the sites (r, n) of vectors that have one covariance and are read as they are."""
    parts = parts_of(maps)
    groups = () if parts is None else parts.twins
    return [np.stack([parts.in_sites[i].sites for i in group]) for group in groups if parts and len(group) > 1]


def kernel_columns(maps: FieldMaps) -> list[Indices]:
    """Return the latent values of each kernel."""
    ends = maps.size - maps.n_dense + np.cumsum([0, *(each.size for each in maps.kernels)])
    return [np.arange(a, b) for a, b in itertools.pairwise(ends)]


def _rotations(maps: FieldMaps) -> list[Rotation]:
    """Find vectors of one covariance that rows read in orthogonal directions."""
    groups: dict[int, list[int]] = {}
    for k, each in enumerate(maps.kernels):
        groups.setdefault(k if each.same_as is None else each.same_as, []).append(k)
    columns = kernel_columns(maps)
    found = (_rotation(maps, np.array([columns[k] for k in group])) for group in groups.values() if len(group) > 1)
    return [each for each in found if each is not None]


def _twins(maps: FieldMaps, parts: Sequence[SitePart]) -> list[tuple[int, ...]]:
    """Group parts by their covariance, if they are a vector that is read as it is; others are alone."""
    groups = dict[tuple[str, int], list[int]]()
    for i, part in enumerate(parts):
        term, key = part.terms[0], ("part", i)
        if len(part.terms) == 1 and term.kernel is not None and term.is_read_as_it_is:
            first = maps.kernels[term.kernel].same_as
            key = "kernel", term.kernel if first is None else first
        groups.setdefault(key, []).append(i)
    return [tuple(each) for each in groups.values()]


def _rotation(maps: FieldMaps, columns: Indices) -> Rotation | None:
    """Return an orthonormal basis of the directions in which rows read vectors (r, k); None if it is of no use."""
    rows, (which, at) = maps.predictors, _vectors_and_positions(columns, maps.size)
    read = np.flatnonzero(which[rows.column] >= 0)
    if not read.size or (which[maps.residuals.column] >= 0).any():
        return None
    row = rows.row[read]
    first = np.unique(row, return_index=True)[1]
    begin = np.searchsorted(np.unique(row), row)
    position, number = at[rows.column[read]], rows.number[read]
    if (position != position[first][begin]).any() or (number != number[first][begin]).any():
        return None  # a row that reads several values has no one direction
    direction = np.zeros((first.size, len(columns)))
    direction[begin, which[rows.column[read]]] = rows.coefficient[read]
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    distinct = direction[np.unique(np.round(direction, 9), axis=0, return_index=True)[1]]
    cosine = np.abs(distinct @ distinct.T)
    label = connected_components(cosine > ROUNDING ** 0.5)[1]
    basis = [_span(distinct[label == each]) for each in range(label.max() + 1)]
    made = np.vstack(basis)
    if len(made) > len(columns) or (label.max() == 0 and len(made) == len(columns)):
        return None
    # Directions whose cosine is next to 0 are no orthonormal basis: the one nearest to them is.
    left, _, right = np.linalg.svd(made)
    return Rotation(columns, np.vstack((left @ right[: len(made)], right[len(made) :])).T)


def _vectors_and_positions(columns: Indices, size: int) -> tuple[Indices, Indices]:
    """Return which of some vectors (r, k) each latent value is of, -1 for none, and where it is in it."""
    which, at = np.full(size, -1), np.zeros(size, np.int64)
    which[columns], at[columns] = np.arange(len(columns))[:, None], np.arange(columns.shape[1])
    return which, at


def _span(directions: Array) -> Array:
    """Return an orthonormal basis, as rows."""
    if len(directions) == 1:
        return directions / np.linalg.norm(directions)
    _, sizes, basis = np.linalg.svd(directions, full_matrices=False)
    return np.asarray(basis[sizes > ROUNDING**0.5 * sizes[0]])


def _rotated(rows: AffineRows, rotations: tuple[Rotation, ...], size: int) -> AffineRows:
    """Return rows of so many latent values as rows of rotated vectors."""
    for each in rotations:
        r, (which, at) = len(each.columns), _vectors_and_positions(each.columns, size)
        own = which[rows.column] >= 0
        turned = rows.coefficient[own, None] * each.matrix[which[rows.column[own]]]
        position, number = at[rows.column[own]], rows.number[own]
        row = np.repeat(rows.row[own], r)
        column, number = each.columns[:, position].T.ravel(), np.repeat(number, r)
        keys, place = np.unique(np.stack((row, column, number)), axis=1, return_inverse=True)
        total = np.bincount(place.ravel(), turned.ravel(), keys.shape[1])
        largest = np.zeros(rows.n_rows)
        np.maximum.at(largest, keys[0], np.abs(total))
        kept = np.abs(total) > ROUNDING * largest[keys[0]]
        rows = replace(
            rows, row=np.concatenate((rows.row[~own], keys[0][kept])),
            column=np.concatenate((rows.column[~own], keys[1][kept])),
            coefficient=np.concatenate((rows.coefficient[~own], total[kept])),
            number=np.concatenate((rows.number[~own], keys[2][kept])),
        )  # fmt: skip
    return rows


def _components(maps: FieldMaps, predictors: AffineRows) -> Indices:
    """Return which part each latent value is in: those of a kernel, of a residual or of a row are in one."""
    n, first = maps.size, 0
    row, column = [], []
    for each in (maps.residuals, predictors):
        row.append(each.row + first)
        column.append(each.column)
        first += each.n_rows
    for columns in kernel_columns(maps):
        row.append(np.full(columns.size, first))
        column.append(columns)
        first += 1
    both = np.concatenate(row), np.concatenate(column)
    pattern = sparse.csr_array((np.ones(both[0].size), both), shape=(first, n))
    return np.asarray(connected_components(sparse.block_array([[None, pattern.T], [pattern, None]]))[1][:n])


def _site_part(
    maps: FieldMaps, predictors: AffineRows, columns: Indices, kernels: list[int], sites: Indices
) -> SitePart | None:
    """Return a part in the size of its sites; None if its other values have no residual each."""
    of_kernels = kernel_columns(maps)
    others = columns[columns < maps.size - maps.n_dense]
    terms = [_term(predictors, k, of_kernels[k], sites, np.empty(0, np.int64)) for k in kernels]
    if others.size:
        own = np.flatnonzero(np.isin(maps.residuals.column, others))
        order = own[np.argsort(maps.residuals.column[own])]
        rows = maps.residuals.row[order]
        alone = np.bincount(maps.residuals.row, minlength=maps.residuals.n_rows)[rows] == 1
        if order.size != others.size or (maps.residuals.column[order] != others).any() or not alone.all():
            return None
        terms.append(_term(predictors, None, others, sites, order))
    moves = any((predictors.number[term.entries] != 0).any() for term in terms)
    return SitePart(sites, tuple(terms), moves)


def _term(
    predictors: AffineRows, kernel: int | None, columns: Indices, sites: Indices, residuals: Indices
) -> TermOfPart:
    """Return a vector, and where the rows of a part read it."""
    entries = np.flatnonzero(np.isin(predictors.column, columns))
    row, column = np.searchsorted(sites, predictors.row[entries]), np.searchsorted(columns, predictors.column[entries])
    order = np.lexsort((column, row))
    entries, row, column = entries[order], row[order], column[order]
    as_it_is = (
        sites.size == columns.size and entries.size == sites.size and bool((row == column).all())
        and bool((np.abs(predictors.coefficient[entries] - 1.0) < ROUNDING).all())
        and not predictors.number[entries].any()
    )  # fmt: skip
    design = None
    if not as_it_is and not predictors.number[entries].any():
        design = sparse.csr_array((predictors.coefficient[entries], (row, column)), shape=(sites.size, columns.size))
    return TermOfPart(kernel, columns, residuals, entries, row, column, as_it_is, design)


def _rest(maps: FieldMaps, predictors: AffineRows, is_taken: NDArray[np.bool_]) -> SparsePart | None:
    """Return what is in no other part, as a field of its own."""
    columns, of_kernels = np.flatnonzero(~is_taken), kernel_columns(maps)
    read = np.isin(np.arange(predictors.n_rows), predictors.row[is_taken[predictors.column]])
    sites = np.flatnonzero(~read)
    residual = np.isin(np.arange(maps.residuals.n_rows), maps.residuals.row[is_taken[maps.residuals.column]])
    if not columns.size and not sites.size and residual.all():
        return None
    kernels = tuple(k for k, own in enumerate(of_kernels) if not is_taken[own[0]])
    own = FieldMaps(
        columns.size, _some_rows(maps.residuals, np.flatnonzero(~residual), columns),
        _some_rows(predictors, sites, columns), np.zeros((0, columns.size)), np.zeros(0), None,
        tuple(replace(maps.kernels[k], same_as=None) for k in kernels),
    )  # fmt: skip
    return SparsePart(sites, columns, kernels, own)


def _some_rows(rows: AffineRows, chosen: Indices, columns: Indices) -> AffineRows:
    """Return some rows, which read some columns alone."""
    entries = np.flatnonzero(np.isin(rows.row, chosen))
    return AffineRows(
        np.searchsorted(chosen, rows.row[entries]), np.searchsorted(columns, rows.column[entries]),
        rows.coefficient[entries], rows.number[entries], rows.offset[chosen], rows.offset_number[chosen],
    )  # fmt: skip
