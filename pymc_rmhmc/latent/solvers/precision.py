"""Latent values with a sparse precision times Gaussian sites, at one θ.

Residuals ``e = J x - c`` are N(0, I) a priori, and sites are ``η = A x + a``. With sites b, w̄ and s = √w̄

    P = JᵀJ + AᵀW̄A,      x = P⁻¹(Jᵀ(c + z₁) + Aᵀ(b - W̄a + s z₂)),

so that x is N(m, P⁻¹) where z is standard normal, with m the x of z = 0. The evidence is taken at m, since
``½ cᵀc - ½ mᵀP m`` would cancel:

    log E = log p(e = 0) - ½ |J m - c|² + Σ [b η(m) - ½ w̄ η(m)²] - ½ log |P| + ½ n log 2π.

With the gradient r by η less that of the sites, ``v = P⁻¹Aᵀr`` and S the entries of P⁻¹ where P has some, the
derivatives by J and by A are

    (c + z₁ - J x) vᵀ - (J v) xᵀ - (J m - c) mᵀ - J S,
    (r - W̄ A v) xᵀ + (b + s z₂ - W̄ η) vᵀ + (b - W̄ η(m)) mᵀ - W̄ A S,

and no adjoint of a factorisation is needed.

References
----------
Rue and Held (2005), Gaussian Markov Random Fields, chapter 2, for the factorisation; Papandreou and Yuille (2010) for
the map; Takahashi, Fagan and Chin (1973) for S.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import StatedField
from pymc_rmhmc.latent.charts.moving_sites import slope_by_multiples
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import LatentPlacement, Placement, Pulled
from pymc_rmhmc.latent.field.field_loops import (
    add_products,
    factorise_updated,
    field_pullback,
    filled,
    multiplied,
    multiplied_adjoint,
    select_updated,
    solve_updated,
    variances_of_rows,
)
from pymc_rmhmc.latent.field.structure import FieldStructure
from pymc_rmhmc.latent.operators import Root

__all__ = ["PrecisionSpace"]

type Array = NDArray[np.float64]

LOG_2PI = math.log(2.0 * math.pi)


class FieldRoot(Root):
    """J at one θ: noise of the residuals enters x by ``Jᵀ``.

    Parameters
    ----------
    structure : FieldStructure
        Where its entries are.
    numbers : array
        u(θ).
    log_normaliser : float
        The log density of the prior where every residual is 0.
    """

    def __init__(self, structure: FieldStructure, numbers: Array, log_normaliser: float) -> None:
        self._structure, self._log_normaliser = structure, log_normaliser
        rows, self.size = structure.residuals, structure.maps.size
        self.entries: Array = filled(rows.coefficient, rows.number, numbers)
        sparse_offset = filled(rows.offset, rows.offset_number, numbers)
        self.offset: Array = np.concatenate((sparse_offset, structure.dense.offset))

    def draw(self, whitened: Array) -> Array:
        """Return ``Jᵀ z``, (n,), in the order of elimination."""
        rows, dense = self._structure.residuals, self._structure.dense
        n_sparse, total = rows.offset.size, np.zeros(self.size)
        multiplied_adjoint(rows, self.entries, whitened[:n_sparse], total)
        if dense.offset.size:
            total += dense.rows[: dense.offset.size].T @ whitened[n_sparse:]
        return total

    def draw_adjoint(self, values: Array) -> Array:
        """Return ``J v`` of values in the order of elimination."""
        rows, dense = self._structure.residuals, self._structure.dense
        made: Array = multiplied(rows, self.entries, values)
        if dense.offset.size:
            made = np.concatenate((made, dense.rows[: dense.offset.size] @ values))
        return made

    def displace(self, whitened: Array) -> Array:
        """Return latent values, given in the order of elimination, in the model's."""
        return np.asarray(whitened[self._structure.place_of])

    def from_model(self, values: Array) -> Array:
        """Return the model's latent values in the order of elimination."""
        return np.asarray(values[self._structure.layout.order])

    def log_prior(self, whitened: Array) -> float:
        """Return the log density of latent values."""
        residuals = self.draw_adjoint(whitened) - self.offset
        return self._log_normaliser - 0.5 * float(residuals @ residuals)


class PrecisionSpace:
    """A Gaussian field times Gaussian sites at one θ; see `Conditional`.

    Parameters
    ----------
    stated : StatedField
        J, c, A and a as multiples of u(θ).
    sites : GaussianSites
        With w̄ ≥ 0.
    like : PrecisionSpace, optional
        One of the same field, at any θ and with any sites.

    Raises
    ------
    PriorFailure
        If something is not finite, or P has no factor.
    """

    weighted = None
    structure: FieldStructure

    def __init__(self, stated: StatedField, sites: GaussianSites, like: PrecisionSpace | None = None) -> None:
        self._stated, self._sites = stated, sites
        numbers, normaliser = stated.numbers, stated.log_normaliser
        if not (math.isfinite(normaliser) and np.isfinite(numbers).all()):
            raise PriorFailure(Failure.NON_FINITE)
        self.structure = structure = FieldStructure(stated.maps) if like is None else like.structure
        self.root = root = FieldRoot(structure, numbers, normaliser)
        rows = structure.predictors
        self._entries: Array = filled(rows.coefficient, rows.number, numbers)
        self._offset: Array = filled(rows.offset, rows.offset_number, numbers)
        self._site_root = np.sqrt(sites.precision)
        self._fixed = self._fixed_products(like)
        log_determinant = self._factorise()
        self._linear = root.draw(root.offset) + self._collect(sites.linear - sites.precision * self._offset)
        self.centre_whitened = self._solve(self._linear)
        self.centre = self.predict(self.centre_whitened) + self._offset
        self._missed = root.draw_adjoint(self.centre_whitened) - root.offset
        self.log_evidence = (
            normaliser - 0.5 * float(self._missed @ self._missed) + sites.log_density(self.centre)
            - 0.5 * log_determinant + 0.5 * root.size * LOG_2PI
        )  # fmt: skip
        if not math.isfinite(self.log_evidence):
            raise PriorFailure(Failure.NON_FINITE)

    def _fixed_products(self, like: PrecisionSpace | None) -> Array:
        """Return what rows that θ does not move add to P; of other sites it is made again."""
        if like is not None and like._sites.precision is self._sites.precision:
            return like._fixed
        stored, structure = np.zeros(self.structure.layout.n_stored), self.structure
        add_products(structure.residuals, self.root.entries, np.ones(structure.residuals.offset.size), False, stored)
        add_products(structure.predictors, self._entries, self._sites.precision, False, stored)
        return stored

    def _factorise(self) -> float:
        """Make P and its factor; return its log determinant."""
        structure, self._stored = self.structure, self._fixed.copy()
        n_sparse = structure.residuals.offset.size
        add_products(structure.residuals, self.root.entries, np.ones(n_sparse), True, self._stored)
        add_products(structure.predictors, self._entries, self._sites.precision, True, self._stored)
        found, self._spread, self._core = factorise_updated(
            structure.layout.kind, structure.layout.index, self._stored, structure.dense
        )
        if not math.isfinite(found):
            raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE)
        return float(found)

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each residual, and for each site."""
        return self.structure.n_noise

    @property
    def mean(self) -> Array:
        """The sites where x is 0, (n_η,)."""
        return self._offset

    def with_sites(self, sites: GaussianSites) -> PrecisionSpace:
        """Return the same field times other sites."""
        return PrecisionSpace(self._stated, sites, self)

    def mode(self, sites: GaussianSites) -> Array | None:
        """Return the x (n,) that is most likely with other sites; None if P has no factor."""
        try:
            return self.with_sites(sites).centre_whitened
        except PriorFailure:
            return None

    def predict(self, whitened: Array) -> Array:
        """Return ``A x``, (n_η,)."""
        return np.asarray(multiplied(self.structure.predictors, self._entries, whitened))

    def place(self, noise: Array) -> LatentPlacement:
        """Return where a z is placed."""
        n_residuals = self.structure.n_residuals
        moved = self.root.draw(noise[:n_residuals]) + self._collect(self._site_root * noise[n_residuals:])
        values = self.centre_whitened + self._solve(moved)
        return LatentPlacement(self.predict(values) + self._offset, noise, moved, self.root, None, values)

    def enter(self, values: Array, noise: Array) -> Array:
        """Draw a z given the model's variables, from standard normal noise.

        With z' any noise, ``z = z' + (J, s A)(x - x(z'))``.
        """
        missing = self.root.from_model(values) - self.place(noise).whitened
        return noise + self._push(missing)

    def shifted(self, noise: Array, missing: Array) -> None:
        """Return None: the sites do not tell x."""
        return

    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (n_η,) of each site under the prior times the sites' factors."""
        variance = variances_of_rows(self.structure.predictors, self._entries, self._inverse)
        return self.centre, np.maximum(variance, 0.0)

    def apply(self, noise: Array) -> Array:
        """Return ``T z`` of the map ``η = centre + T z``, (n_η,)."""
        return self.place(noise).eta - self.centre

    def adjoint(self, sites: Array) -> Array:
        """Return ``Tᵀ v`` for a v (n_η,)."""
        return self._push(self._solve(self._collect(sites)))

    def gram(self, sites: Array) -> Array:
        """Return ``T Tᵀ v``, (n_η,)."""
        return self.predict(self._solve(self._collect(sites)))

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E`` where a z was placed, given ``∂ψ/∂η`` (n_η,)."""
        change = self._solve(self._collect(residual))
        noise = self._push(change)
        pushed = self.predict(change)
        by_numbers = np.zeros(self._stated.numbers.size)
        self._pull_residuals(placed, change, noise, by_numbers)
        self._pull_predictors(placed, change, residual - self._sites.precision * pushed, by_numbers)
        return Pulled(noise, np.zeros(0), [by_numbers], None, pushed)

    def sites_pullback(self, placed: Placement, pulled: Pulled) -> Array:
        """Return the gradient of ``ψ(η) + log E`` by the logarithms of b and of w̄, (2, n_η)."""
        centre, variance = self.marginals()
        linear, precision = self._sites.linear, self._sites.precision
        noise = placed.noise[self.structure.n_residuals :]
        return slope_by_multiples(linear, precision, centre, precision * variance, pulled.pushed, noise, placed.eta)

    def _pull_residuals(self, placed: Placement, change: Array, by_noise: Array, total: Array) -> None:
        """Add the derivative by what J and c are made of."""
        rows, root = self.structure.residuals, self.root
        n_sparse, values = rows.offset.size, placed.whitened
        pushed = by_noise[:n_sparse]
        along = root.offset[:n_sparse] + placed.noise[:n_sparse] - multiplied(rows, root.entries, values)
        missed = self._missed[:n_sparse]
        field_pullback(
            rows, root.entries, self._inverse, np.ones(n_sparse), -pushed, -missed, along, values,
            self.centre_whitened, change, pushed + missed, total,
        )  # fmt: skip

    def _pull_predictors(self, placed: Placement, change: Array, spread: Array, total: Array) -> None:
        """Add the derivative by what A and a are made of."""
        sites, rows = self._sites, self.structure.predictors
        at_centre = sites.gradient(self.centre)
        along = sites.gradient(placed.eta) + self._site_root * placed.noise[self.structure.n_residuals :]
        field_pullback(
            rows, self._entries, self._inverse, sites.precision, spread, at_centre, along, placed.whitened,
            self.centre_whitened, change, spread + at_centre, total,
        )  # fmt: skip

    @cached_property
    def _inverse(self) -> Array:
        """S, at the places of P's lower triangle."""
        layout = self.structure.layout
        return np.asarray(
            select_updated(layout.kind, layout.index, self._stored, self._spread, self._core, *self.structure.entries)
        )

    def _collect(self, values: Array) -> Array:
        """Return ``Aᵀ v``, (n,)."""
        total = np.zeros(self.root.size)
        multiplied_adjoint(self.structure.predictors, self._entries, values, total)
        return total

    def _push(self, values: Array) -> Array:
        """Return ``(J, s A) x``, of the size of z."""
        return np.concatenate((self.root.draw_adjoint(values), self._site_root * self.predict(values)))

    def _solve(self, right: Array) -> Array:
        """Return ``P⁻¹ v``, (n,)."""
        layout, vectors = self.structure.layout, right[:, None].copy()
        solve_updated(
            layout.kind, layout.index, self._stored, self._spread, self._core, self.structure.dense, vectors
        )
        return np.asarray(vectors[:, 0])
