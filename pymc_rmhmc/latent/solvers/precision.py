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
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import StatedField
from pymc_rmhmc.latent.charts.moving_sites import slope_by_sites
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import LatentPlacement, Placement, Pulled
from pymc_rmhmc.latent.field.field_loops import (
    WeightedField,
    drawn,
    log_evidence_at,
    of_sites,
    predictors_at,
    pull_field,
    pushed,
    residuals_at,
    selected,
    solve_field,
    variances_of_rows,
    weigh_field,
)
from pymc_rmhmc.latent.field.field_structure import FieldStructure, structure_of
from pymc_rmhmc.latent.operators import Root
from pymc_rmhmc.linalg.cholesky import log_diagonal, solve_lower

__all__ = ["FieldRoot", "PrecisionSpace"]

type Array = NDArray[np.float64]


class FieldRoot(Root):
    """J at one θ: noise of the residuals enters x by ``Jᵀ``.

    `structure`: where its entries are.
    `field`: J and c.
    `log_normaliser`: the log density of the prior where every residual is 0.
    """

    def __init__(self, structure: FieldStructure, field: WeightedField, log_normaliser: float) -> None:
        self._structure, self._field, self._log_normaliser = structure, field, log_normaliser
        self.size = structure.maps.size

    def draw(self, whitened: Array) -> Array:
        """Return ``Jᵀ z``, (n,), in the order of elimination."""
        n_sites = self._structure.pattern.predictors.n_rows
        noise = np.concatenate((whitened, np.zeros(n_sites)))
        return np.asarray(drawn(self._structure.pattern, self._field, np.zeros(n_sites), noise))

    def draw_adjoint(self, values: Array) -> Array:
        """Return ``J v`` of values in the order of elimination."""
        return np.asarray(residuals_at(self._structure.pattern, self._field, values, 0.0))

    def displace(self, whitened: Array) -> Array:
        """Return latent values, given in the order of elimination, in the model's."""
        made = np.asarray(whitened[self._structure.place_of])
        for part, factor in self._centred():
            made[part] = factor @ made[part]
        return made

    def from_model(self, values: Array) -> Array:
        """Return the model's latent values in the order of elimination."""
        made = np.asarray(values[self._structure.layout.order])
        for part, factor in self._centred():
            made[part] = solve_lower(np.asfortranarray(factor), made[part])
        return made

    def _centred(self) -> Iterator[tuple[slice, Array]]:
        """Return where kernels are, and L, of which the model's variable is ``L y``."""
        kernels = self._structure.maps.kernels
        ends = np.cumsum([0, *(each.size for each in kernels)])
        first = self.size - int(ends[-1])
        for each, start, end in zip(kernels, ends, ends[1:], strict=False):
            if each.is_variable:
                yield slice(first + start, first + end), self._field.kernel[0, start:end, start:end].T

    def log_prior(self, whitened: Array) -> float:
        """Return the log density of latent values."""
        residuals = residuals_at(self._structure.pattern, self._field, whitened, 1.0)
        volume = sum(log_diagonal(factor) for _, factor in self._centred())
        return self._log_normaliser - volume - 0.5 * float(residuals @ residuals)


class PrecisionSpace:
    """A Gaussian field times Gaussian sites at one θ; see `Conditional`.

    Raises a `PriorFailure` if something is not finite, or P has no factor.

    `stated`: J, c, A and a as multiples of u(θ).
    `sites`: with w̄ ≥ 0.
    `like`: one of the same field, at any θ and with any sites.

    Attributes
    ----------
    constants : array
        What products of numbers are multiplied by in P.
    """

    weighted = None
    structure: FieldStructure  # what it has at every θ

    def __init__(self, stated: StatedField, sites: GaussianSites, like: PrecisionSpace | None = None) -> None:
        self._stated, self._sites = stated, sites
        numbers, normaliser = stated.numbers, stated.log_normaliser
        if not (math.isfinite(normaliser) and np.isfinite(numbers).all()):
            raise PriorFailure(Failure.NON_FINITE)
        self.structure = structure = structure_of(stated.maps)
        if like is not None and like._sites is sites:
            self.constants: Array = like.constants
        else:
            self.constants = of_sites(structure.pattern.products, sites.linear, sites.precision)
        self._field = weigh_field(structure.pattern, self.constants, numbers)
        if not math.isfinite(self._field.log_determinant):
            raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE)
        self.root = FieldRoot(structure, self._field, normaliser)
        self._site_root = np.sqrt(sites.precision)

    @cached_property
    def centre_whitened(self) -> Array:
        """The x where z is 0, (n,)."""
        return self._solve(self._field.linear)

    @cached_property
    def _at_centre(self) -> tuple[float, Array, Array]:
        """What the evidence has beyond the prior's normaliser, ``J m - c``, and the sites where z is 0."""
        sites = self._sites
        found: tuple[float, Array, Array] = log_evidence_at(
            self.structure.pattern, self._field, sites.linear, sites.precision, self.centre_whitened
        )
        if not math.isfinite(found[0]):
            raise PriorFailure(Failure.NON_FINITE)
        return found

    @property
    def log_evidence(self) -> float:
        """``log E``."""
        return self._stated.log_normaliser + self._at_centre[0]

    @property
    def centre(self) -> Array:
        """The sites where z is 0, (n_η,)."""
        return self._at_centre[2]

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each residual, and for each site."""
        return self.structure.n_noise

    @property
    def mean(self) -> Array:
        """The sites where x is 0, (n_η,)."""
        return self._multiplied(np.zeros(self._field.linear.size), 1.0)

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
        return self._multiplied(whitened, 0.0)

    def place(self, noise: Array) -> LatentPlacement:
        """Return where a z is placed."""
        moved = drawn(self.structure.pattern, self._field, self._site_root, noise)
        values = self._solve(self._field.linear + moved)
        return LatentPlacement(self._multiplied(values, 1.0), noise, moved, self.root, None, values)

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
        products = self.structure.pattern.products
        variance = variances_of_rows(products, self._field.numbers, self._inverse, self.centre.size)
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

    def matrices_of_parts(self, *, for_good: bool) -> None:
        """Return None: no matrix in the size of the sites is made."""
        return

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E`` where a z was placed, given ``∂ψ/∂η`` (n_η,)."""
        by_numbers, sites = np.zeros(self._stated.numbers.size), self._sites
        _, missed, centre = self._at_centre
        noise, predicted = pull_field(
            self.structure.pattern, self._field, self.constants, sites.linear, sites.precision, placed.noise, residual,
            placed.whitened, self.centre_whitened, placed.eta, missed, centre, self._inverse, by_numbers,
        )  # fmt: skip
        return Pulled(noise, np.zeros(0), [by_numbers], None, predicted)

    def sites_pullback(self, placed: Placement, pulled: Pulled) -> Array:
        """Return the gradient of ``ψ(η) + log E`` by b, and by the logarithms of w̄, (2, n_η)."""
        centre, variance = self.marginals()
        precision = self._sites.precision
        noise = placed.noise[self.structure.n_residuals :]
        return slope_by_sites(precision, centre, precision * variance, pulled.pushed, noise, placed.eta)

    @cached_property
    def _inverse(self) -> Array:
        """S, at the places of P's lower triangle."""
        return np.asarray(selected(self.structure.pattern, self._field))

    def _multiplied(self, values: Array, one: float) -> Array:
        """Return ``A x + a``, or A times a difference, (n_η,)."""
        return np.asarray(predictors_at(self.structure.pattern, self._field, values, one))

    def _collect(self, values: Array) -> Array:
        """Return ``Aᵀ v``, (n,)."""
        noise = np.concatenate((np.zeros(self.structure.n_residuals), values))
        return np.asarray(drawn(self.structure.pattern, self._field, np.ones(values.size), noise))

    def _push(self, values: Array) -> Array:
        """Return ``(J, s A) x``, of the size of z."""
        return np.asarray(pushed(self.structure.pattern, self._field, self._site_root, values)[0])

    def _solve(self, right: Array) -> Array:
        """Return ``P⁻¹ v``, (n,)."""
        vectors = right[None].copy()
        solve_field(self.structure.pattern, self._field, vectors)
        return np.asarray(vectors[0])
