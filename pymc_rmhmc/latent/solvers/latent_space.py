"""Latent vectors times Gaussian sites by (k, k) matrices, k the number of latent values.

``η = m + A x`` with ``x = L y``, where L has the vectors' factors on its diagonal. With more observations than latent
values the map of z needs no (n, n) matrix: with ``M = AᵀW̄A = F Fᵀ`` and ``E = I + LᵀM L``,

    y = E⁻¹(Lᵀ(l + F z₂) + z₁),      l = Aᵀ(b - W̄m).

With the gradient r by η, ``p = E⁻¹LᵀAᵀr``, the mean c of y, ``u = Aᵀr - M L p``, ``a = l + F z₂ - M L y`` and
``d = l - M L c`` the derivatives by the covariances and, where F is ``Aᵀ√W̄``, by A are

    K̄ = u aᵀ + ½ d dᵀ - ½ (M - M L E⁻¹ LᵀM),      Ā = v (Ly)ᵀ + v_y (Lp)ᵀ + v_c (Lc)ᵀ - W̄A L E⁻¹ Lᵀ,

with the sites' slopes ``v = r - W̄ALp``, ``v_y = b - W̄η + s z₂`` and ``v_c = b - W̄η(c)``. K̄ has another part through L,
where this draws the noise z₁: ``Lᵀ``'s own derivative by ``u z₁ᵀ``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.latent.charts.moving_sites import slope_by_sites
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.conditional import LatentPlacement, Placement, Pulled
from pymc_rmhmc.latent.operators import Operator, factor_in_place, places_of, stacked
from pymc_rmhmc.linalg.cholesky import inverse_lower, solve_lower
from pymc_rmhmc.linalg.products import Products, is_finite, multiply_symmetric, products_of

__all__ = ["LatentSpace", "MovingWeights", "StandingWeights", "Weights"]

# ---------------------------------------------------- the design and the weights of its sites

# A design A with the weights w̄ of its sites: products, ``M = AᵀW̄A``, and a root F of M by which noise is drawn.
#
# Where A is constant and w̄ moves by a common multiple alone, M and its root are made once; F has then at most k
# columns. Otherwise ``F = Aᵀ s``, s = √w̄, which has a derivative by both.

type Array = NDArray[np.float64]


class Weights(Protocol):
    """A and w̄ at one θ."""

    products: Products  # with A
    gram: Array  # (k, k): M, in Fortran order
    n_noise: int  # the number of F's columns
    by_multiple: bool  # whether all w̄ move by one multiple

    def at(self, sites: GaussianSites) -> Weights:
        """Return those of the same A and other sites."""

    def root(self, noise: Array) -> Array:
        """Return ``F z₂``, (k,)."""

    def root_adjoint(self, values: Array) -> Array:
        """Return ``Fᵀ v``."""


class StandingWeights:
    """A constant A, and w̄ that move by a common multiple alone.

    Raises a `PriorFailure` if A is not finite, or the multiple no positive number.

    `design` (n, k) array or sparse array: A.
    `sites`: with w̄ ≥ 0.
    `like`: one with the same A; M serves again if the sites have the same w̄ but for a multiple.
    """

    by_multiple = True

    def __init__(self, design: Any, sites: GaussianSites, like: StandingWeights | None = None) -> None:
        standing, multiple = sites.standing
        self.products: Products = _products(design) if like is None else like.products
        is_known = like is not None and like._whole.precision is standing.precision
        self._whole: _Gram = like._whole if is_known and like else _Gram(self.products, standing.precision)
        self._multiple, self.n_noise = multiple, min(self._whole.gram.shape[0], standing.precision.size)
        self.gram: Array = self._whole.gram if multiple == 1.0 else multiple * self._whole.gram

    def at(self, sites: GaussianSites) -> StandingWeights:
        """Return those of the same A and other sites."""
        return StandingWeights(None, sites, self)

    def root(self, noise: Array) -> Array:
        """Return ``F z₂``, (k,)."""
        return np.asarray(self._whole.root @ (math.sqrt(self._multiple) * noise))

    def root_adjoint(self, values: Array) -> Array:
        """Return ``Fᵀ v``, (k,)."""
        return np.asarray(math.sqrt(self._multiple) * (self._whole.root.T @ values))


class _Gram:
    """M of constant w̄."""

    def __init__(self, products: Products, precision: Array) -> None:
        self.precision, self.gram = precision, products.gram(precision)

    @cached_property
    def root(self) -> Array:
        """F, which a search for a mode has no use for."""
        values, vectors = np.linalg.eigh(self.gram)
        # The largest are last, and no more of them than there are sites are not 0.
        first = max(0, values.size - self.precision.size)
        return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0)))[:, first:])


class MovingWeights:
    """An A or w̄ that move with θ, or both.

    Raises a `PriorFailure` if A is not finite.

    `design` (n, k) array or sparse array: A.
    `sites`: with w̄ ≥ 0.
    `like`: one with the same A; M serves again if the sites' w̄ are the same array.
    """

    by_multiple = False

    def __init__(self, design: Any, sites: GaussianSites, like: MovingWeights | None = None) -> None:
        self.products: Products = _products(design) if like is None else like.products
        self._precision, self._site_root, self.n_noise = sites.precision, np.sqrt(sites.precision), sites.precision.size
        same = like is not None and like._precision is sites.precision
        self.gram: Array = like.gram if same and like is not None else self.products.gram(sites.precision)

    def at(self, sites: GaussianSites) -> MovingWeights:
        """Return those of the same A and other sites."""
        return MovingWeights(None, sites, self)

    def root(self, noise: Array) -> Array:
        """Return ``F z₂``, (k,)."""
        return self.products.collect(self._site_root * noise)

    def root_adjoint(self, values: Array) -> Array:
        """Return ``Fᵀ v``, (n,)."""
        return np.asarray(self._site_root * self.products.predict(values))


def _products(design: Any) -> Products:
    """Return products with an A whose entries are numbers."""
    if not is_finite(design):
        raise PriorFailure(Failure.NON_FINITE)
    return products_of(sparse.csr_array(design) if sparse.issparse(design) else design)


class LatentSpace:
    """Vectors that one matrix reads, times Gaussian sites, at one θ.

    Raises a `PriorFailure` if something is not finite, or E has no factor.

    `weights`: A and w̄.
    `mean` (n,): m, the sites where every y is 0.
    `operators`: the vectors.
    `sites`: with the same w̄ ≥ 0.
    `by_design`: whether the derivative by A is wanted.
    """

    def __init__(
        self, weights: Weights, mean: Array, operators: Sequence[Operator], sites: GaussianSites, *,
        by_design: bool = False,
    ) -> None:  # fmt: skip
        if not np.isfinite(mean).all():
            raise PriorFailure(Failure.NON_FINITE)
        self._operators = tuple(operators)
        self._stack = stacked(self._operators)
        self.weights, self.mean, self._sites, self._by_design = weights, mean, sites, by_design
        self._slices = places_of(self._operators)
        self._factor = factor_in_place(self._stack.inner(weights.gram, lambda: self._rooted))
        slope = sites.gradient(mean)
        self._linear = weights.products.collect(slope)
        linear = self._stack.draw_adjoint(self._linear)
        self.centre_whitened: Array = self._solve(linear)
        explained = self.predict(self.centre_whitened)
        self.centre: Array = mean + explained
        self._centre_slope = slope - sites.precision * explained
        gained, log_determinant = float(linear @ self.centre_whitened), float(np.log(self._factor.diagonal()).sum())
        self.log_evidence = sites.log_density(mean) + 0.5 * gained - log_determinant

    @property
    def n_noise(self) -> int:
        """The size of z: a normal number for each latent value, and for each column of F."""
        return self._stack.size + self.weights.n_noise

    @property
    def weighted(self) -> None:
        """None: compiled code has no form for this."""
        return None

    def with_sites(self, sites: GaussianSites) -> LatentSpace:
        """Return the same prior times other sites."""
        weights = self.weights.at(sites)
        return LatentSpace(weights, self.mean, self._operators, sites, by_design=self._by_design)

    def mode(self, sites: GaussianSites) -> Array | None:
        """Return the y (k,) that is most likely with other sites; None if E has no factor."""
        try:
            return self.with_sites(sites).centre_whitened
        except PriorFailure:
            return None

    def predict(self, whitened: Array) -> Array:
        """Return ``A L y``, (n,)."""
        return self.weights.products.predict(self._stack.draw(whitened))

    def place(self, noise: Array) -> LatentPlacement:
        """Return where a z is placed."""
        k, stack = self._stack.size, self._stack
        pulled = self._linear + self.weights.root(noise[k:])
        whitened = self._solve(stack.draw_adjoint(pulled) + noise[:k])
        return LatentPlacement(self.mean + self.predict(whitened), noise, pulled, stack, None, whitened)

    def enter(self, values: Array, noise: Array) -> Array:
        """Draw a z given the model's variables, from standard normal noise.

        With z' any noise and T the linear part of the map, ``z = z' + Tᵀ(TTᵀ)⁻¹ (y - y(z'))``, where ``TTᵀ = E⁻¹`` and
        ``TᵀE = (I, FᵀL)``.
        """
        missing = self._stack.from_model(values) - self.place(noise).whitened
        return np.asarray(noise + np.concatenate((missing, self.weights.root_adjoint(self._stack.draw(missing)))))

    def shifted(self, noise: Array, missing: Array) -> None:
        """Return None: the sites do not tell y."""
        return

    def marginals(self) -> tuple[Array, Array]:
        """Return mean and variance (n,) of each site under the prior times the sites' factors."""
        root = self._stack.draw(np.asfortranarray(self._half.T))
        return self.centre, self.weights.products.variances(root)

    def apply(self, noise: Array) -> Array:
        """Return ``T z`` of the map ``η = centre + T z``, (n,)."""
        return self.place(noise).eta - self.centre

    def adjoint(self, sites: Array) -> Array:
        """Return ``Tᵀ v`` for a v (n,)."""
        return self._pull_noise(self._moved(self.weights.products.collect(sites)))

    def gram(self, sites: Array) -> Array:
        """Return ``T Tᵀ v``, (n,)."""
        return self.predict(self._moved(self.weights.products.collect(sites)))

    def matrices_of_parts(self, *, for_good: bool) -> None:
        """Return None: no matrix in the size of the sites is made."""
        return

    def pullback(self, placed: Placement, residual: Array) -> Pulled:
        """Return the gradient of ``ψ(η) + log E`` where a z was placed, given ``∂ψ/∂η`` (n,)."""
        collected = self.weights.products.collect(residual)
        moved = self._moved(collected)
        pushed = self.predict(moved)
        spread = residual - self._sites.precision * pushed
        vectors = self._bars(placed, collected, moved)
        design = self._design_bar(placed, moved, spread) if self._by_design else None
        return Pulled(self._pull_noise(moved), spread + self._centre_slope, vectors, design, pushed)

    def sites_pullback(self, placed: Placement, pulled: Pulled) -> Array:
        """Return the gradient of ``ψ(η) + log E`` by b and by log w̄, (2, n); or by the logarithms of both multiples."""
        k, half, (linear, precision) = self._stack.size, self._half, (self._sites.linear, self._sites.precision)
        if not self.weights.by_multiple:
            centre, variance = self.marginals()
            return slope_by_sites(
                precision, centre, precision * variance, pulled.pushed, placed.noise[k:], placed.eta
            )
        eta, pushed = placed.eta, pulled.pushed
        by_linear = linear @ (self.centre + pushed - eta)
        # Sites explain tr(M L E⁻¹ Lᵀ) = tr(I - E⁻¹) of all variances.
        explained = k - np.einsum("ij,ij->", half, half)
        drawn = self._stack.draw(pulled.noise[:k]) @ (placed.pulled - self._linear)
        by_precision = 0.5 * (precision @ (eta**2 - self.centre**2) - explained + drawn) - (precision * eta) @ pushed
        return np.array([[by_linear], [by_precision]])

    @cached_property
    def _rooted(self) -> Array:
        """``LᵀM``, which not every operator asks for."""
        return self._stack.draw_adjoint(self.weights.gram)

    @cached_property
    def _half(self) -> Array:
        """The inverse of E's factor."""
        return inverse_lower(self._factor)

    def _bars(self, placed: Placement, collected: Array, moved: Array) -> list[Any]:
        """Return the derivatives by the operators."""
        stack, gram, k = self._stack, self.weights.gram, self._stack.size
        by_draw, by_dual, by_centre = (
            given - multiply_symmetric(gram, stack.draw(y))
            for given, y in (
                (collected, moved), (placed.pulled, placed.whitened), (self._linear, self.centre_whitened),
            )
        )  # fmt: skip
        bars, noise = [], placed.noise[:k]
        for operator, where in zip(self._operators, self._slices, strict=True):
            bar = operator.outer(by_draw[where], by_dual[where])
            unexplained = operator.unexplained(gram, lambda: self._rooted, self._half, where)
            bar += 0.5 * (operator.outer(by_centre[where], by_centre[where]) - unexplained)
            bars.append(operator.pullback(bar.T, by_draw[where], noise[where]))
        return bars

    def _design_bar(self, placed: Placement, moved: Array, spread: Array) -> Array:
        """Return the derivative by A, of a sparse one by its entries."""
        stack, sites, k = self._stack, self._sites, self._stack.size
        scaled = np.stack([stack.draw(y) for y in (placed.whitened, moved, self.centre_whitened)])
        slope = sites.gradient(placed.eta) + np.sqrt(sites.precision) * placed.noise[k:]
        left = np.stack((spread, slope, self._centre_slope))
        return self.weights.products.bar(left, scaled, sites.precision, stack.covariance_of(self._half))

    def _moved(self, collected: Array) -> Array:
        """Return ``E⁻¹ Lᵀ v`` of a v (k,)."""
        return self._solve(self._stack.draw_adjoint(collected))

    def _pull_noise(self, moved: Array) -> Array:
        """Return the derivative by z, from that by ``Lᵀ F z₂ + z₁``."""
        return np.concatenate((moved, self.weights.root_adjoint(self._stack.draw(moved))))

    def _solve(self, vector: Array) -> Array:
        """Return ``E⁻¹ v``."""
        return solve_lower(self._factor, solve_lower(self._factor, vector), transpose=True)
