"""A design most of whose columns have no row in common, as the indicators of a mixed model's groups: E is an arrow.

With these columns first, ``G = [[Δ, H], [Hᵀ, C]]`` with a diagonal Δ, and ``E = I + D G D`` is factorised by
eliminating them one by one: what is left, ``S = E₂₂ - E₂₁ E₁₁⁻¹ E₁₂``, has the size of the other columns, and is empty
for groups alone. So it is for the persons of a test, whose items are the other columns. An evaluation is a few passes
over A's entries, each less than what NumPy takes to begin with it: so they are compiled, and vectors of coefficients
are in the arrow's order between the first and the last of them.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.latent.arrow import arrow_loops as loops
from pymc_rmhmc.latent.arrow.arrow_factors import ArrowPattern, places_of, row_starts
from pymc_rmhmc.latent.charts.site import GaussianSites

__all__ = ["Arrow", "ArrowInner", "MovingArrow"]

type Array = NDArray[np.float64]

# Of a constant A, a column with entries in more rows than this share of them is multiplied as it is.
WIDE_SHARE = 0.25


def _widened(rows: loops.Rows) -> loops.Rows:
    """With columns apart from the others that have many entries."""
    n, places = rows.entry.size, rows.others.astype(np.int64)
    row = np.repeat(np.arange(n), np.diff(rows.starts).astype(np.int64))
    counts = np.bincount(places, minlength=rows.order.size)
    (wide_at,) = np.nonzero(counts > WIDE_SHARE * n)
    wide, is_wide = np.zeros((wide_at.size, n)), np.isin(places, wide_at)
    wide[np.searchsorted(wide_at, places[is_wide]), row[is_wide]] = rows.entries[is_wide]
    return rows._replace(
        starts=row_starts(row[~is_wide], n), others=rows.others[~is_wide],
        entries=rows.entries[~is_wide], wide_at=places_of(wide_at), wide=wide,
    )  # fmt: skip


def _rows(pattern: ArrowPattern, entries: Array) -> loops.Rows:
    """A by its rows, of the list of its entries."""
    entry, others = loops.entries_of(pattern, entries)
    order, column, starts = pattern.order, pattern.column, pattern.starts
    nothing_wide = np.zeros(0, dtype=np.uint64), np.zeros((0, entry.size))
    return loops.Rows(order, column, entry, starts, pattern.others, others, *nothing_wide)


class _Arrow:
    """A with columns apart, and its weights.

    Parameters
    ----------
    pattern : ArrowPattern
        Where A's entries are.
    entries : (nnz,) array
        A's entries.
    precision : (n,) array
        w̄ ≥ 0.

    Raises
    ------
    PriorFailure
        If an entry is no number.
    """

    rows: loops.Rows

    def __init__(self, pattern: ArrowPattern, entries: Array, precision: Array) -> None:
        if not np.isfinite(entries).all():
            raise PriorFailure(Failure.NON_FINITE)
        self.pattern, self.entries, self.precision = pattern, entries, precision

    def at(self, sites: GaussianSites) -> Self:
        """Return A with the weights of other sites, of which these may be a multiple."""
        precision = sites.standing[0].precision
        return self if precision is self.precision else type(self)(self.pattern, self.entries, precision)

    def predict(self, coefficients: Array) -> Array:
        """Return ``A x``, (n,)."""
        return np.asarray(loops.predict(self.rows, coefficients[self.pattern.order]))

    def inner(self, spread: Array, slope: Array) -> ArrowInner:
        """Return coefficients at a D (k,) and a slope (n,)."""
        return ArrowInner(self, spread, slope)


class Arrow(_Arrow):
    """A constant A."""

    by_design = False

    def __init__(self, pattern: ArrowPattern, entries: Array, precision: Array) -> None:
        super().__init__(pattern, entries, precision)
        self.rows = _widened(_rows(pattern, entries))
        self.gram = loops.gram_of(self.rows, precision, pattern.n_apart)
        roots = np.sqrt(self.gram.diagonal)
        below = self.gram.cross / np.where(roots > 0.0, roots, 1.0)[:, None]
        several = below[~self.gram.alone]
        values, vectors = np.linalg.eigh(self.gram.rest - several.T @ several)
        corner = vectors * np.sqrt(np.maximum(values, 0.0))
        # The largest are last, and no more of them are not 0 than rows are left.
        self.passes, self.n_noise = loops.BY_ROOT, min(pattern.order.size, precision.size)
        n_left = self.n_noise - roots.size
        self.root = loops.Root(roots, below, np.ascontiguousarray(corner[:, corner.shape[1] - n_left :]))

    def root_adjoint(self, vector: Array) -> Array:
        """Return ``Fᵀ v``, (k,)."""
        return np.asarray(loops.root_adjoint(self.root, vector[self.pattern.order]))


class MovingArrow(_Arrow):
    """An A that θ moves, with ``F = Aᵀ s``, ``s = sqrt(w̄)``, for a root of M."""

    by_design = True

    def __init__(self, pattern: ArrowPattern, entries: Array, precision: Array) -> None:
        super().__init__(pattern, entries, precision)
        self.rows = _rows(pattern, entries)
        self.gram = loops.gram_of(self.rows, precision, pattern.n_apart)
        self.root = np.sqrt(precision)
        self.passes, self.n_noise = loops.BY_SITES, precision.size

    def root_adjoint(self, vector: Array) -> Array:
        """Return ``Fᵀ v``, (n,)."""
        return np.asarray(self.root * self.predict(vector))

    def design_bar(self, inner: ArrowInner, left: Array, right: Array) -> Array:
        """Return Ā at A's entries (nnz,), from the pairs of which it is the sum and what the determinant adds."""
        return np.asarray(loops.entry_bars(self.pattern, self.rows, inner.factors, self.precision, left, right))


class ArrowInner:
    """The coefficients y at one D: ``N(E⁻¹ D l, E⁻¹)`` with ``l = Aᵀ slope``.

    Attributes
    ----------
    log_determinant : float
        Of E.
    gained : float
        ``(D l)ᵀ E⁻¹ D l``.
    explained : (n,) array
        ``A D`` times the mean of y.

    Raises
    ------
    PriorFailure
        If E is not finite, or not positive definite.
    """

    def __init__(self, whole: Any, spread: Array, slope: Array) -> None:
        self._whole, gram = whole, whole.gram
        self.factors, self.log_determinant, self._linear, self._mean, self.gained, self.explained = loops.begin(
            whole.rows, gram, spread, slope
        )
        if not np.isfinite(self.log_determinant):
            corner = self.factors.spread[gram.diagonal.size :] ** 2 * gram.corner.diagonal()
            finite = bool(np.isfinite(self.factors.pivots).all() and np.isfinite(corner).all())
            raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE if finite else Failure.NON_FINITE)

    @property
    def centre(self) -> Array:
        """The mean of y, (k,)."""
        return np.asarray(loops.scattered(self._whole.pattern.order, self._mean))

    def place(self, noise: Array) -> tuple[tuple[Array, ...], Array, Array]:
        """Return what `pullback` takes, y (k,) and ``A D y`` (n,) of ``y = E⁻¹ (D (l + F z₂) + z₁)``."""
        whole = self._whole
        *drawn, whitened, predicted = whole.passes.place(whole.rows, whole.root, self.factors, self._linear, noise)
        return tuple(drawn), whitened, predicted

    def pullback(self, drawn: tuple[Array, ...], residual: Array) -> tuple[Array, Array, Array]:
        """Return the derivative by z, ``A D E⁻¹ D Aᵀ residual``, and the derivative by D."""
        whole, placed = self._whole, (*drawn, self._linear, self._mean)
        pulled: tuple[Array, Array, Array] = whole.passes.pullback(
            whole.rows, whole.gram, whole.root, self.factors, residual, placed
        )
        return pulled

    def adjoint(self, sites: Array) -> Array:
        """The derivative by z of ``sitesᵀ A D y``."""
        whole = self._whole
        return np.asarray(whole.passes.adjoint(whole.rows, whole.root, self.factors, sites))

    def gram(self, sites: Array) -> Array:
        """``A D E⁻¹ D Aᵀ sites``, (n,)."""
        return np.asarray(loops.covariance_times(self._whole.rows, self.factors, sites))

    def variances(self) -> Array:
        """The diagonal of ``A D E⁻¹ D Aᵀ``, (n,)."""
        return np.asarray(loops.variances(self._whole.rows, self.factors))
