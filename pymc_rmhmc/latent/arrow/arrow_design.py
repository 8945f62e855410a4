"""A design most of whose columns have no row in common, as the indicators of a mixed model's groups: E is an arrow.

With these columns first, ``G = [[Δ, H], [Hᵀ, C]]`` with a diagonal Δ, and ``E = I + D G D`` is factorised by
eliminating them one by one: what is left, ``S = E₂₂ - E₂₁ E₁₁⁻¹ E₁₂``, has the size of the other columns, and is empty
for groups alone. So it is for the persons of a test, whose items are the other columns. An evaluation is a few passes
over A's entries, each less than what NumPy takes to begin with it: so they are compiled, and vectors of coefficients
are in the arrow's order between the first and the last of them.

The map of z is that of `latent.solvers.latent_space` with ``L = D``. Sites that follow θ have one multiple for all b,
r, and one for all w̄, ρ: b, W̄ and m, D are then ``(r/√ρ) b``, W̄ and ``√ρ m``, ``√ρ D`` for a predictor that is
measured in units of ``1/√ρ``. M and F stay, and the derivative by ρ is that by the unit, which the others contain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.latent.arrow import arrow_loops as loops
from pymc_rmhmc.latent.arrow.arrow_loops import ArrowPattern, places_of, row_starts
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import LatentPlacement, Placement, Pulled
from pymc_rmhmc.latent.forms.coefficients import CoefficientsOperator
from pymc_rmhmc.latent.operators import Operator

__all__ = [
    "Arrow", "ArrowConditional", "ArrowInner", "MovingArrow",
]  # fmt: skip

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


@dataclass(slots=True)
class ArrowPlacement(LatentPlacement):
    """Where a noise is placed, and what the loops had on the way."""

    drawn: tuple[Array, ...] = ()


class ArrowConditional:
    """Independent coefficients times Gaussian sites on their predictor, at one θ.

    Parameters
    ----------
    arrow : Arrow or MovingArrow
        A and the weights at θ̂.
    mean : (n,) array
        m, the predictor where y is 0.
    operator : Operator
        D.
    sites : GaussianSites
        With w̄ ≥ 0; where they follow θ by one power for all.

    Raises
    ------
    PriorFailure
        If something is not finite, or E has no factor.
    """

    def __init__(
        self, arrow: Arrow | MovingArrow, mean: Array, operator: Operator, sites: GaussianSites
    ) -> None:
        standing, multiple = sites.standing
        if not np.isfinite(mean).all():
            raise PriorFailure(Failure.NON_FINITE)
        self.arrow, self.mean, self._operator = arrow, mean, operator
        spread = cast("CoefficientsOperator", operator).spread
        root = self._root_multiple = math.sqrt(multiple)
        self._unit_mean, self._spread, self._precision = root * mean, root * spread, standing.precision
        self._sites = sites if root == 1.0 else GaussianSites(sites.linear / root, self._precision)
        slope = self._sites.gradient(self._unit_mean)
        inner = self._inner = arrow.inner(self._spread, slope)
        self._slope, self._centre_slope = slope, slope - self._precision * inner.explained
        self._unit_centre = self._unit_mean + inner.explained
        self.log_evidence = self._sites.log_density(self._unit_mean) + 0.5 * (inner.gained - inner.log_determinant)

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each coefficient, and for each column of F."""
        return self._spread.size + self.arrow.n_noise

    @property
    def weighted(self) -> None:
        """None: compiled code has no form for this."""
        return None

    @property
    def centre(self) -> Array:
        """The predictor where z is 0, (n,)."""
        return self._unit_centre / self._root_multiple

    @property
    def centre_whitened(self) -> Array:
        """The y where z is 0, (k,)."""
        return self._inner.centre

    def with_sites(self, sites: GaussianSites) -> ArrowConditional:
        """Return the same coefficients times the same sites, but for their multiples."""
        return ArrowConditional(self.arrow.at(sites), self.mean, self._operator, sites)

    def mode(self, sites: GaussianSites) -> Array | None:
        """Return the y (k,) that is most likely with other sites; None if E has no factor."""
        try:
            return self.with_sites(sites).centre_whitened
        except (PriorFailure, np.linalg.LinAlgError):
            return None

    def predict(self, whitened: Array) -> Array:
        """Return ``A D y``, (n,)."""
        return self.arrow.predict(self._spread * whitened) / self._root_multiple

    def place(self, noise: Array) -> ArrowPlacement:
        """Return where a z is placed."""
        drawn, whitened, predicted = self._inner.place(noise)
        eta = (self._unit_mean + predicted) / self._root_multiple
        return ArrowPlacement(eta, noise, predicted, self._operator, None, whitened, drawn)

    def enter(self, values: Array, noise: Array) -> Array:
        """Draw a z given the model's variables, from standard normal noise: see `LatentSpace.enter`."""
        missing = self._operator.from_model(values) - self.place(noise).whitened
        return np.asarray(noise + np.concatenate((missing, self.arrow.root_adjoint(self._spread * missing))))

    def shifted(self, noise: Array, missing: Array) -> None:
        """Return None: the sites do not tell y."""
        return

    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (n,) of each predictor under the prior times the sites."""
        return self.centre, self._inner.variances() / self._root_multiple**2

    def apply(self, noise: Array) -> Array:
        """Return ``T z`` of the map ``η = centre + T z``, (n,)."""
        return self.place(noise).eta - self.centre

    def adjoint(self, sites: Array) -> Array:
        """Return ``Tᵀ v`` for a v (n,)."""
        return self._inner.adjoint(sites / self._root_multiple)

    def gram(self, sites: Array) -> Array:
        """Return ``T Tᵀ v``, (n,)."""
        return self._inner.gram(sites) / self._root_multiple**2

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E`` where a z was placed, given ``∂ψ/∂η`` (n,)."""
        root, drawn = self._root_multiple, cast("ArrowPlacement", placed).drawn
        unit_residual = residual / root
        noise, pushed, spread_bar = self._inner.pullback(drawn, unit_residual)
        by_eta = unit_residual - self._precision * pushed
        design = None
        if self.arrow.by_design:
            arrow, k = cast("MovingArrow", self.arrow), self._spread.size
            slope = self._slope + arrow.root * placed.noise[k:] - self._precision * placed.pulled
            left = np.stack((by_eta, slope, self._centre_slope))
            right = np.stack((placed.whitened, noise[:k], self._inner.centre)) * self._spread
            design = arrow.design_bar(self._inner, left, right)
        return Pulled(noise, root * (by_eta + self._centre_slope), [root * spread_bar], design, pushed / root)

    def sites_pullback(self, placed: Placement, pulled: Pulled) -> Array:
        """Return the derivative of ``ψ(η) + log E`` by log r and by log ρ, (2, 1).

        The second is half of that by log √ρ, along which m and D grow and b falls, and ψ is one of ``η/√ρ``.
        """
        root, linear = self._root_multiple, self._sites.linear
        eta, pushed, residual = root * placed.eta, root * pulled.pushed, pulled.mean / root - self._centre_slope
        residual = residual + self._precision * pushed
        linear_bar = self._unit_centre + pushed
        by_unit = self._unit_mean @ pulled.mean / root + self._spread @ pulled.vectors[0] / root - linear @ linear_bar
        by_precision = 0.5 * (by_unit - residual @ eta + self._precision @ eta**2)
        return np.array([[linear @ (linear_bar - eta)], [by_precision]])
