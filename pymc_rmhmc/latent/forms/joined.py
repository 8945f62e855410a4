"""Several latent vectors that are read by one matrix, as a function of (θ, z), in the size of the latent values.

``η = m + A x`` with ``x = L y``, where L has the vectors' factors on its diagonal. Where there are more observations
than latent values, the map of a sum (`pymc_rmhmc.latent.forms.summed`) is had without an (n, n) matrix: with
``M = AᵀW̄A`` and ``E = I + LᵀML``,

    y = E⁻¹ (Lᵀ Aᵀ(g + s z₂) + z₁),      g = b - W̄m,      s = sqrt(w̄).

M is made once where neither A nor the sites move. With the gradient r by η, ``p = E⁻¹LᵀAᵀr``, the mean c of y,
``a = b - W̄η + s z₂``, ``v = r - W̄ALp`` and ``d = g - W̄ALc`` the derivatives by the covariances and by A are

    K̄ = Aᵀv aᵀA + ½ Aᵀd dᵀA - ½ (M - M L E⁻¹ LᵀM),      Ā = v (Ly)ᵀ + a (Lp)ᵀ + d (Lc)ᵀ - W̄A L E⁻¹ Lᵀ,

beside that of K by L where this places the noise z₁, as in a sum. Only what K̄ has for each vector is made.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.charts.moving_sites import slope_by_multiples
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.forms.conditional import factor_in_place
from pymc_rmhmc.latent.forms.parts import Part
from pymc_rmhmc.latent.prior import PriorFailure
from pymc_rmhmc.linalg.dense import inverse_lower, solve_columns, solve_lower
from pymc_rmhmc.linalg.products import Products, is_finite, products_of

__all__ = ["JoinedConditional"]

type Array = NDArray[np.float64]


class JoinedConditional:
    """Vectors times Gaussian sites on their predictor, at one θ.

    Parameters
    ----------
    design : (n, k) array or sparse array by rows
        A.
    mean : (n,) array
        m, the predictor where every y is 0.
    parts : sequence of Part
        The vectors, which know of no matrix.
    sites : GaussianSites
        With w̄ ≥ 0.
    like : JoinedConditional, optional
        One with the same A.
    same_sites : bool
        Whether `like` has the same sites, and so the same M.
    by_design : bool
        Whether the derivative by A is wanted.

    Attributes
    ----------
    log_evidence : float
        ``log ∫ N(y; 0, I) exp(bᵀη - ½ ηᵀW̄η) dy``.

    Raises
    ------
    PriorFailure
        If something is not finite, or E has no factor.
    """

    def __init__(
        self, design: Any, mean: Array, parts: Sequence[Part], sites: GaussianSites,
        like: JoinedConditional | None = None, *, same_sites: bool = True, by_design: bool = False,
    ) -> None:  # fmt: skip
        if not (np.isfinite(mean).all() and (like is not None or is_finite(design))):
            raise PriorFailure(Failure.NON_FINITE, 0)
        self._products: Products = products_of(design) if like is None else like._products
        self._parts, self._mean, self._by_design = tuple(parts), mean, by_design
        ends = np.cumsum([0, *(part.size for part in self._parts)])
        self._slices = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
        self._n_latent = int(ends[-1])
        self._weigh(sites, like._gram if like is not None and same_sites else None)

    def _weigh(self, sites: GaussianSites, gram: Array | None) -> None:
        """What the sites make of the prior."""
        self._sites, self._precision, self._root = sites, sites.precision, np.sqrt(sites.precision)
        self._gram: Array = self._products.gram(sites.precision) if gram is None else gram
        self._rooted = self._unscale_adjoint(self._gram)
        inner = self._unscale_adjoint(self._rooted.T)
        inner.flat[:: self._n_latent + 1] += 1.0
        factor = self._factor = factor_in_place(inner)
        slope = sites.gradient(self._mean)
        self._linear = self._products.collect(slope)
        linear = self._unscale_adjoint(self._linear)
        self._centre_whitened = self._solve(linear)
        self._centre = self._mean + self.predict(self._centre_whitened)
        gained, log_determinant = float(linear @ self._centre_whitened), 2.0 * float(np.log(factor.diagonal()).sum())
        self.log_evidence = sites.log_density(self._mean) + 0.5 * (gained - log_determinant)

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each latent value, and for each site."""
        return self._n_latent + self._mean.size

    def with_sites(self, sites: GaussianSites) -> JoinedConditional:
        """The same prior times other sites."""
        other = copy.copy(self)
        other.__dict__.pop("_scaled_root", None)
        other._weigh(sites, None)
        return other

    def predict(self, whitened: Array) -> Array:
        """``A L y``, (n,)."""
        return self._products.predict(self._scale(whitened))

    def place(self, noise: Array) -> Array:
        """The sites η (n,) of z."""
        k = self._n_latent
        self._noise, self._site_noise = noise[:k], noise[k:]
        pulled = self._linear + self._products.collect(self._root * noise[k:])
        self._placed = self._solve(self._unscale_adjoint(pulled) + noise[:k])
        return self._mean + self.predict(self._placed)

    def enter(self, values: Array, noise: Array) -> Array:
        """A draw of z given the model's variables; `noise` is standard normal.

        As for coefficients (`pymc_rmhmc.latent.forms.diagonal`): ``z = z' + ((y - y(z')), s A L (y - y(z')))``.
        """
        self.place(noise)
        given = [part.from_model(values[where]) for part, where in zip(self._parts, self._slices, strict=True)]
        missing = np.concatenate(given) - self._placed
        return np.asarray(noise + np.concatenate((missing, self._root * self.predict(missing))))

    @property
    def latents(self) -> Array:
        """The model's variables for the noise that was placed last, one after another."""
        held = zip(self._parts, self._slices, strict=True)
        return np.concatenate([part.to_model(self._placed[where]) for part, where in held])

    def log_prior(self) -> float:
        """Their log density."""
        volume = sum(part.log_volume() for part in self._parts)
        return -0.5 * float(self._placed @ self._placed) - 0.5 * self._n_latent * math.log(2.0 * math.pi) - volume

    def marginals(self) -> tuple[Array, Array]:
        """Mean and variance (n,) of each predictor under the prior times the sites."""
        return self._centre, self._products.variances(self._scaled_root)

    @property
    def centre(self) -> Array:
        """The sites where z is 0, (n,)."""
        return self._centre

    @property
    def centre_whitened(self) -> Array:
        """Every y where z is 0, (k,)."""
        return self._centre_whitened

    def apply(self, noise: Array) -> Array:
        """``T z`` of the map ``η = centre + T z``, (n,); z has then been placed."""
        return self.place(noise) - self._centre

    def adjoint(self, sites: Array) -> Array:
        """``Tᵀ v``, for a v (n,)."""
        moved = self._moved(sites)
        return np.concatenate((moved, self._root * self.predict(moved)))

    def gram(self, sites: Array) -> Array:
        """``T Tᵀ v``, (n,): by the covariance of the sites under the prior times their factors."""
        return self.predict(self._moved(sites))

    def pullback(self, residual: Array) -> tuple[Array, Array, Any]:
        """The gradient of ``ψ(η) + log E`` by z, by m, and by every part's K, K_i or D, and with it by A.

        Nothing can be placed afterwards. The derivative by a sparse A is one of its entries, (nnz,).

        Parameters
        ----------
        residual : (n,) array
            ``∂ψ/∂η``.
        """
        products, precision = self._products, self._precision
        moved = self._moved(residual)
        scaled = np.array([self._scale(y) for y in (self._placed, moved, self._centre_whitened)])
        self._pushed = products.predict(scaled[1])
        eta = self._mean + products.predict(scaled[0])
        sites = np.array([
            residual - precision * self._pushed,
            self._sites.gradient(eta) + self._root * self._site_noise,
            self._sites.gradient(self._centre),
        ])  # fmt: skip
        bars = self._covariance_bars(*(products.collect(each) for each in sites))
        noise, mean_bar = np.concatenate((moved, self._root * self._pushed)), sites[0] + sites[2]
        if not self._by_design:
            return noise, mean_bar, bars
        covariance = np.asfortranarray(self._scaled_root @ self._scaled_root.T)
        return noise, mean_bar, (bars, products.bar(sites, scaled, precision, covariance))

    def _covariance_bars(self, spread: Array, dual: Array, centre: Array) -> list[Any]:
        """What every part makes of its own derivative by K; `spread`, `dual` and `centre` are v, a and d, collected."""
        half = solve_columns(self._factor, self._rooted)
        del self._rooted
        bars = []
        for part, where in zip(self._parts, self._slices, strict=True):
            columns = half[:, where]
            bar = np.outer(spread[where], dual[where]) + 0.5 * np.outer(centre[where], centre[where])
            bar -= 0.5 * (self._gram[where, where] - columns.T @ columns)
            # Its product with a symmetric ∂K is wanted: either order will do.
            bars.append(part.pullback(bar.T, spread[where], self._noise[where]))
        return bars

    def sites_pullback(self, eta: Array) -> Array:
        """The gradient of ``ψ(η) + log E`` by the logarithms of b and of w̄, (2, n), of the last pullback and its η."""
        centre, variance = self.marginals()
        return slope_by_multiples(
            self._sites.linear, self._precision, centre, self._precision * variance, self._pushed, self._site_noise, eta
        )

    @cached_property
    def _scaled_root(self) -> Array:
        """``L R⁻ᵀ`` with ``E = R Rᵀ``, (k, k): a root of the covariance of x under the prior times the sites."""
        return self._scale(np.asfortranarray(inverse_lower(self._factor).T))

    def _scale(self, whitened: Array) -> Array:
        """``L y``, of a vector or of a matrix."""
        return self._by_part(lambda part, rows: part.scale(rows), whitened)

    def _unscale_adjoint(self, values: Array) -> Array:
        """``Lᵀ v``, of a vector or of a matrix."""
        return self._by_part(lambda part, rows: part.unscale_adjoint(rows), values)

    def _by_part(self, function: Callable[[Part, Array], Array], values: Array) -> Array:
        made = np.empty(values.shape, order="F")
        for part, where in zip(self._parts, self._slices, strict=True):
            made[where] = function(part, values[where])
        return made

    def _moved(self, sites: Array) -> Array:
        """``E⁻¹ Lᵀ Aᵀ v``."""
        return self._solve(self._unscale_adjoint(self._products.collect(sites)))

    def _solve(self, vector: Array) -> Array:
        """``E⁻¹ v``."""
        return solve_lower(self._factor, solve_lower(self._factor, vector), transpose=True)
