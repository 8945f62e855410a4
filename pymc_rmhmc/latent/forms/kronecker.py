"""A latent vector on a grid, whose covariance is a Kronecker product, as a function of (θ, z).

With ``K = K₁ ⊗ K₂ ⊗ ...`` over the axes of a grid the factor of K is that of its factors, ``L = L₁ ⊗ L₂ ⊗ ...``: K is
never factorised, and its condition, the product of theirs, never met. The map of z and the sites' evidence are those of
a dense covariance (`pymc_rmhmc.latent.forms.conditional`). ``B = I + sKs`` has no such structure where sites differ:
its factor and inverse are what an evaluation costs, n³ flops in all. The derivatives by K and by L are contracted to
those by the K_i, in O(n²) and O(n Σ n_i).

References
----------
Saatçi (2011), Scalable inference for structured Gaussian process models, chapter 5, for products with vectors; Van Loan
and Pitsianis (1993), Approximation with Kronecker products, for the rearrangement in which ``K₁ ⊗ K₂`` has rank one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.forms.conditional import SitesOnCovariance, factor_or_fail
from pymc_rmhmc.latent.forms.parts import Part
from pymc_rmhmc.linalg.dense import cholesky_adjoint

__all__ = ["KroneckerConditional", "KroneckerPart", "KroneckerProduct"]

type Array = NDArray[np.float64]


class KroneckerProduct:
    """``K = K₁ ⊗ K₂ ⊗ ...`` and its lower factor ``L = L₁ ⊗ L₂ ⊗ ...``, with n the product of the n_i.

    Parameters
    ----------
    covariances : sequence of (n_i, n_i) arrays
        The K_i.

    Raises
    ------
    PriorFailure
        If one of them is not finite, or not positive definite.
    """

    def __init__(self, covariances: Sequence[Array]) -> None:
        self._covariances = tuple(covariances)
        self._factors = tuple(factor_or_fail(np.asfortranarray(matrix)) for matrix in covariances)
        self._sizes = tuple(matrix.shape[0] for matrix in covariances)
        self.size = math.prod(self._sizes)

    def dense(self) -> Array:
        """K (n, n), in Fortran order."""
        # It is symmetric: its transpose is itself.
        return np.asfortranarray(_product(self._covariances).T)

    def multiply(self, values: Array, *, transpose: bool = False) -> Array:
        """``L v`` or ``Lᵀ v`` for a vector (n,), or for a matrix (n, m)."""
        return self._along_axes([f.T if transpose else f for f in self._factors], values)

    def _along_axes(self, matrices: Sequence[Array | None], values: Array) -> Array:
        """Values on the grid, of one vector or of several, times a matrix along each axis, None for the identity."""
        moved = values
        for matrix, size in zip(matrices, self._sizes, strict=True):
            # The first axis is multiplied and goes to the end: after all of them the order is the old one, behind
            # that of the vectors.
            table = moved.reshape(size, -1)
            moved = (table if matrix is None else matrix @ table).T
        return moved.ravel() if values.ndim == 1 else moved.reshape(-1, self.size).T

    def pullback(self, bar: Array) -> list[Array]:
        """The derivatives by every K_i of what has the derivative `bar` (n, n) by K."""
        n_axes = len(self._sizes)
        # Either order will do: what it is multiplied by is symmetric.
        table = (bar.T if bar.flags.f_contiguous else bar).reshape(self._sizes * 2)
        # The two indices of each axis side by side: K is then an outer product of the K_i, read as vectors.
        table = table.transpose([axis + side for axis in range(n_axes) for side in (0, n_axes)])
        bars = []
        for i, matrix in enumerate(self._covariances):
            table = table.reshape(matrix.size, -1)
            others = _product([other.reshape(1, -1) for other in self._covariances[i + 1 :]])
            bars.append((table @ others.ravel()).reshape(matrix.shape))
            table = matrix.ravel() @ table
        return bars

    def adjoint_of_product(self, left: Array, right: Array) -> list[Array]:
        """The derivatives by every K_i of ``leftᵀ L right``: lower triangles that stand for both."""
        bars = []
        for i, factor in enumerate(self._factors):
            others = [None if i == j else other for j, other in enumerate(self._factors)]
            seed = self._unfolded(left, i) @ self._unfolded(self._along_axes(others, right), i).T
            bars.append(cholesky_adjoint(factor, seed))
        return bars

    def _unfolded(self, vector: Array, axis: int) -> Array:
        """A vector on the grid as a matrix with a row for each place along one axis."""
        size = self._sizes[axis]
        table = vector.reshape(math.prod(self._sizes[:axis]), size, -1)
        return np.asarray(table.transpose(1, 0, 2).reshape(size, -1))


def _product(matrices: Sequence[Array]) -> Array:
    """The Kronecker product of matrices; 1 of none."""
    product: Array = np.ones((1, 1))
    for matrix in matrices:
        # `np.kron` takes four times as long on small ones.
        (rows, columns), (m, k) = product.shape, matrix.shape
        product = (product[:, None, :, None] * matrix[None, :, None, :]).reshape(rows * m, columns * k)
    return product


class KroneckerConditional(SitesOnCovariance):
    """The prior ``N(m, K₁ ⊗ K₂ ⊗ ...)`` of the sites, times Gaussian sites, at one θ.

    The model's variable is ``v = L⁻¹(η - m)``.

    Parameters
    ----------
    mean : (n,) array
        m.
    covariances : sequence of (n_i, n_i) arrays
        The K_i.
    sites : GaussianSites
        With w̄ ≥ 0.
    like : KroneckerConditional, optional
        One with the same K, whose factors serve again.
    by_covariance : bool
        Whether the derivatives by the K_i are wanted; if not, a single 0 stands for each.
    same_sites : bool
        Whether `like` has the same sites.

    Raises
    ------
    PriorFailure
        If m or a K_i is not finite, or a K_i or ``I + sKs`` not positive definite.
    """

    def __init__(
        self, mean: Array, covariances: Sequence[Array], sites: GaussianSites,
        like: KroneckerConditional | None = None, *, by_covariance: bool = True, same_sites: bool = True,
    ) -> None:  # fmt: skip
        self._by_covariance, self._n_axes = by_covariance, len(covariances)
        self._product: KroneckerProduct = KroneckerProduct(covariances) if like is None else like._product
        dense: Array = self._product.dense() if like is None else like.covariance
        super().__init__(mean, dense, sites, like._inner if like is not None and same_sites else None)

    def place(self, noise: Array) -> Array:
        """The sites η (n,) of z (2 n,)."""
        n = self._mean.size
        self._prior_noise = noise[:n]
        return self._place_drawn(self._product.multiply(noise[:n]), noise[n:])

    @property
    def latents(self) -> Array:
        """The model's variable v for the noise that was placed last, (n,)."""
        # η - m = L z₁ + K a, and K = L Lᵀ: nothing is divided by L.
        return self._prior_noise + self._product.multiply(self._placed_dual, transpose=True)

    def enter(self, values: Array, noise: Array) -> Array:
        """A draw of z given v (n,); `noise` is (2 n,) standard normal."""
        self.place(noise)
        missing = values - self.latents
        return np.asarray(noise + np.concatenate((missing, self._root * self._product.multiply(missing))))

    def log_prior(self) -> float:
        """The log density of v for the noise that was placed last."""
        v = self.latents
        return -0.5 * float(v @ v) - 0.5 * v.size * math.log(2.0 * math.pi)

    def pullback(self, residual: Array) -> tuple[Array, Array, list[Array]]:
        """The gradient of ``ψ(η) + log E`` by z, m and every K_i, for the values that were placed last.

        Where K moves this lets go of what another placing would need.

        Parameters
        ----------
        residual : (n,) array
            ``∂ψ/∂η``.

        Returns
        -------
        (2 n,) array, (n,) array, list of (n_i, n_i) arrays
            By z, by m, and for every K_i a matrix whose product with a symmetric ``∂K_i`` sums to the derivative along
            it.
        """
        spread, centre = self._dual(residual), self._centre_dual
        noise = self._pull_noise(spread)
        if not self._by_covariance:
            return noise, spread + centre, [np.zeros((1, 1))] * self._n_axes
        del self._covariance
        bar = np.zeros((spread.size, spread.size), order="F")
        self._add_covariance_bar(bar, spread)
        by_factor = self._product.adjoint_of_product(spread, self._prior_noise)
        pulled = zip(by_factor, self._product.pullback(bar), strict=True)
        return noise, spread + centre, [one + other for one, other in pulled]

    def _pull_noise(self, spread: Array) -> Array:
        self._pushed = self._multiply(spread)
        return np.concatenate((self._product.multiply(spread, transpose=True), self._root * self._pushed))


class KroneckerPart(Part):
    """A vector on a grid as one of a sum; the model's variable is the whitened y.

    Where the predictor reads the vector times a number, the covariances are those of what it reads, and the model's
    variable is y times the number's sign.
    """

    def __init__(self, design: Any, covariances: Sequence[Array], sign: Array | float = 1.0) -> None:
        super().__init__(design)
        self._product, self._sign = KroneckerProduct(covariances), sign
        self.size = self._product.size

    def scale(self, whitened: Array) -> Array:
        """``L y``."""
        return self._product.multiply(whitened)

    def times_covariance(self, matrix: Array) -> Array:
        """``M L Lᵀ`` for an M (n, k)."""
        return np.asarray(matrix @ self._product.dense())

    def unscale_adjoint(self, values: Array) -> Array:
        """``Lᵀ v``."""
        return self._product.multiply(values, transpose=True)

    def covariance(self) -> Array:
        """``A L Lᵀ Aᵀ``, (n, n)."""
        dense = self._product.dense()
        return dense if self.design is None else np.asarray(self.design @ (self.design @ dense).T)

    def to_model(self, whitened: Array) -> Array:
        """The model's variable for a y."""
        return np.asarray(self._sign * whitened)

    def from_model(self, values: Array) -> Array:
        """The y of the model's variable."""
        return np.asarray(self._sign * values)

    def log_volume(self) -> float:
        """``log |∂ variable / ∂y|``."""
        return 0.0

    def pullback(self, covariance_bar: Array, collected: Array, noise: Array) -> list[Array]:
        """The derivatives by the K_i."""
        by_factor = self._product.adjoint_of_product(collected, noise)
        return [a + b for a, b in zip(self._product.pullback(covariance_bar), by_factor, strict=True)]
