"""The linear form of a predictor, read off its values: ``η = c + Σ_s A_s source_s``.

A predictor's graph can take any route from the latent values to the observations: indexing, slices,
transposes, sums, products with a design matrix. Instead of following the operations one by one, the form is
found from what the graph gives for chosen inputs, and checked on random ones: a map that agrees with its
linear form at random points of very different sizes is that form.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import DataError, counted

__all__ = ["LinearForm", "NotLinear", "SourceMap", "is_affine", "read_linear_form"]

type Array = NDArray[np.float64]
type Predictor = Callable[[Sequence[Array]], Array]
# From the values of every source, (c, size) each, to η, (c, n): the predictor of c sources at once.
type Batched = Callable[[Sequence[Array]], Array]

# A predictor is evaluated in double precision: an affine map reproduces itself to a few units in the last
# place of the largest number involved, and a curved one misses by much more at one of these sizes. What is known
# to curve by its graph does not come here.
RELATIVE_TOLERANCE = 1e-8
SIZES = (1.0, 50.0, 2500.0)
# Units in the last place, of the numbers that go into it, by which what reads one value may miss it.
UNITS = 64.0
# From so many latent values on the columns of a matrix are evaluated together, in batches of so many numbers.
MANY, BATCH = 256, 2**22


class NotLinear(Exception):  # noqa: N818 - it is caught, and turned into the error that the user reads
    """A predictor is not affine in its sources."""


@dataclass(frozen=True, slots=True)
class SourceMap:
    """How a predictor reads one source of k values."""

    # Which value each observation reads (n,), -1 for none; None if an observation reads several.
    index: NDArray[np.int64] | None
    # What the value is multiplied by (n,); 0 where none is read. None with `index` None.
    scale: Array | None
    # The whole map (n, k), where it is not such a reading; None also where nobody has asked for it.
    matrix: Array | None

    @property
    def is_plain(self) -> bool:
        """Whether every observation reads exactly one value as it is."""
        return self.index is not None and self.scale is not None and bool((self.scale == 1.0).all())

    def dense(self, size: int) -> Array:
        """Return the map as an (n, k) matrix."""
        if self.matrix is not None:
            return self.matrix
        assert self.index is not None
        assert self.scale is not None
        matrix = np.zeros((self.index.size, size))
        matrix[np.arange(self.index.size), np.maximum(self.index, 0)] = self.scale
        return matrix

    def apply(self, source: Array) -> Array:
        """Apply the map to one source (k,)."""
        if self.matrix is not None:
            return self.matrix @ source
        assert self.index is not None
        assert self.scale is not None
        return self.scale * source[np.maximum(self.index, 0)]

    def magnitude(self, source: Array) -> Array:
        """Sum the absolute values of what `apply` sums, (n,): its rounding is in proportion to them."""
        scale, matrix = (None if a is None else np.abs(a) for a in (self.scale, self.matrix))
        return SourceMap(self.index, scale, matrix).apply(np.abs(source))


@dataclass(frozen=True, slots=True)
class LinearForm:
    """``η = offset + Σ_s maps[s] source_s``, with η raveled to (n,)."""

    offset: Array
    maps: tuple[SourceMap, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the matrices were read as well."""
        return all(m.index is not None or m.matrix is not None for m in self.maps)

    def apply(self, sources: Sequence[Array]) -> Array:
        """Return η for given sources."""
        return self.offset + sum(m.apply(np.ravel(s)) for m, s in zip(self.maps, sources, strict=True))

    def magnitude(self, sources: Sequence[Array]) -> Array:
        """Sum the absolute values of what `apply` sums, (n,)."""
        return np.abs(self.offset) + sum(m.magnitude(np.ravel(s)) for m, s in zip(self.maps, sources, strict=True))


def is_affine(predictor: Predictor, shapes: Sequence[tuple[int, ...]]) -> bool:
    """Return whether a predictor has a linear form, without finding it.

    A predictor that is not finite where the sources are 0 may have.
    """
    rng = np.random.default_rng(0)
    offset = np.ravel(predictor([np.zeros(shape) for shape in shapes]))
    if not np.isfinite(offset).all():
        return True
    for size in SIZES:
        one, other = ([size * rng.standard_normal(shape) for shape in shapes] for _ in range(2))
        both = [0.7 * a - 1.3 * b for a, b in zip(one, other, strict=True)]
        of_one, of_other, of_both = (np.ravel(predictor(sources)) - offset for sources in (one, other, both))
        bound = RELATIVE_TOLERANCE * (size + np.abs(offset) + np.abs(of_one) + np.abs(of_other))
        if not (np.abs(of_both - (0.7 * of_one - 1.3 * of_other)) <= bound).all():
            return False
    return True


def read_linear_form(
    predictor: Predictor, shapes: Sequence[tuple[int, ...]], batched: Batched | None = None, *, matrices: bool = True
) -> LinearForm:
    """Find the linear form of a predictor of sources of given shapes.

    Without matrices, maps that are no readings of single values are left out, and the form is not tried at random
    points: only for what is affine by its graph. Raises `NotLinear` if the predictor is not affine, and a DataError if
    it is not finite where the latent values are 0.
    """
    rng = np.random.default_rng(0)
    zeros = [np.zeros(shape) for shape in shapes]
    offset = np.ravel(predictor(zeros)).astype(np.float64)

    def part(which: int, values: Array) -> Array:
        inputs = list(zeros)
        inputs[which] = values.reshape(shapes[which])
        return np.ravel(predictor(inputs)) - offset

    lost = ~np.isfinite(offset)
    if lost.any():
        kind = " (NaN)" if np.isnan(offset).any() else ""
        raise DataError(
            f"where the latent values are 0 it is not finite{kind} for {counted(int(lost.sum()), 'observation')}, the "
            f"first at position {int(np.argmax(lost))}"
        )

    def matrix(which: int) -> Array | None:
        size = int(np.prod(shapes[which]))
        if not matrices:
            return None
        if batched is None or size < MANY:
            return np.column_stack([part(which, unit) for unit in np.eye(size)])
        return _by_batches(batched, which, [int(np.prod(shape)) for shape in shapes], offset)

    maps = tuple(
        _read_map(partial(part, s), partial(matrix, s), int(np.prod(shape)), rng, offset)
        for s, shape in enumerate(shapes)
    )
    form = LinearForm(offset, maps)
    if form.is_whole:
        _check_form(form, predictor, shapes, rng)
    return form


def _check_form(
    form: LinearForm, predictor: Predictor, shapes: Sequence[tuple[int, ...]], rng: np.random.Generator
) -> None:
    """See that a predictor has a form at random points of very different sizes; `NotLinear` if it has not."""
    zeros = [np.zeros(shape) for shape in shapes]
    # One source at a time, too: beside large numbers of another it would not be seen how it enters.
    alone = [[s] for s in range(len(shapes))] if len(shapes) > 1 else []
    for size, moved in itertools.product(SIZES, [*alone, range(len(shapes))]):
        sources = [
            size * rng.standard_normal(shape) if s in moved else zero
            for s, (shape, zero) in enumerate(zip(shapes, zeros, strict=True))
        ]
        missed = np.abs(np.ravel(predictor(sources)) - form.apply(sources))
        if not (missed <= RELATIVE_TOLERANCE * (size + form.magnitude(sources))).all():
            raise NotLinear


def _read_map(
    part: Callable[[Array], Array], matrix: Callable[[], Array | None], size: int, rng: np.random.Generator,
    offset: Array,
) -> SourceMap:  # fmt: skip
    """Read one source's map: as a reading of single values if it is one, else as a matrix.

    Each observation is held to its own rounding: one that reads a covariate of a billion reads others as well.
    """
    scale: Array = part(np.ones(size))
    rounding = UNITS * np.finfo(np.float64).eps
    # A value is read as it is, but for the rounding of the offset that was added and taken off.
    scale[np.abs(scale - 1.0) <= rounding * (2.0 + np.abs(offset))] = 1.0
    ramp_values = np.arange(1.0, size + 1.0)
    ramp = part(ramp_values)
    reads = scale != 0.0
    ratio = np.divide(ramp, scale, out=np.zeros_like(ramp), where=reads)
    index = np.where(reads, np.rint(ratio) - 1.0, -1.0)
    if not np.isfinite(index).all() or (index >= size).any() or (index < -1).any():
        return SourceMap(None, None, matrix())
    found = SourceMap(index.astype(np.int64), scale, None)
    probe: Array = rng.standard_normal(size)
    for values, given in ((ramp_values, ramp), (probe, part(probe))):
        bound = rounding * (found.magnitude(values) + found.magnitude(np.ones(size)) + np.abs(offset))
        if not (np.abs(given - found.apply(values)) <= bound).all():
            return SourceMap(None, None, matrix())
    return found


def _by_batches(batched: Batched, which: int, sizes: Sequence[int], offset: Array) -> Array:
    """Read one source's map as a matrix, many columns at a time: all else in a predictor is evaluated once per batch.

    A basis of functions would be evaluated with every column if these were asked for one by one.
    """
    size, matrix = sizes[which], np.empty((offset.size, sizes[which]))
    step = max(1, BATCH // (offset.size + sum(sizes)))
    for start in range(0, size, step):
        held = range(start, min(start + step, size))
        values = [np.zeros((len(held), each)) for each in sizes]
        values[which][np.arange(len(held)), held] = 1.0
        matrix[:, start : held.stop] = (batched(values) - offset).T
    return matrix
