"""A latent vector on a grid, whose covariance is a Kronecker product.

With ``K = K₁ ⊗ K₂ ⊗ ...`` over the axes of a grid the factor of K is that of its factors, ``L = L₁ ⊗ L₂ ⊗ ...``: K is
never factorised, and its condition, the product of theirs, never met. ``B = I + sKs`` has no such structure where sites
differ: its factor and inverse are what an evaluation costs, n³ flops in all. The derivatives by K and by L are
contracted to those by the K_i, in O(n²) and O(n Σ n_i).

References
----------
Saatçi (2011), Scalable inference for structured Gaussian process models, chapter 5, for products with vectors; Van Loan
and Pitsianis (1993), Approximation with Kronecker products, for the rearrangement in which ``K₁ ⊗ K₂`` has rank one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.interfaces.stated import StatedKronecker
from pymc_rmhmc.latent.operators import Operator, factor_or_fail
from pymc_rmhmc.linalg.cholesky import cholesky_adjoint

__all__ = ["KroneckerOperator", "KroneckerProduct"]

type Array = NDArray[np.float64]


class KroneckerProduct:
    """``K = K₁ ⊗ K₂ ⊗ ...`` and its lower factor ``L = L₁ ⊗ L₂ ⊗ ...``, with n the product of the n_i.

    Raises a `PriorFailure` if one of them is not finite, or not positive definite.

    `covariances` of (n_i, n_i): the K_i.
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

    def factor(self) -> Array:
        """L (n, n)."""
        return _product(self._factors)

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


class KroneckerOperator(Operator):
    """A vector on a grid; the model's variable is the whitened y, or its negative where it is read times a number.

    Raises a `PriorFailure` if one of them is not finite, or not positive definite.

    `stated`: the K_i of what the predictor reads, and the number's sign.
    `like`: one with the same K_i, whose factors serve again.
    """

    def __init__(self, stated: StatedKronecker, like: KroneckerOperator | None = None) -> None:
        self._product: KroneckerProduct = KroneckerProduct(stated.covariances) if like is None else like._product
        self._sign, self._n_axes, self.moves = stated.sign, len(stated.covariances), stated.moves
        self.size = self._product.size

    def draw(self, whitened: Array) -> Array:
        """Return ``L y``."""
        return self._product.multiply(whitened)

    def draw_adjoint(self, values: Array) -> Array:
        """Return ``Lᵀ v``."""
        return self._product.multiply(values, transpose=True)

    def matrix(self) -> Array:
        """Return L, without the products that draw it."""
        return self._product.factor()

    def covariance(self) -> Array:
        """Return ``L Lᵀ``."""
        return self._product.dense()

    def displace(self, whitened: Array) -> Array:
        """Return the model's variable of a y, or of each column of a matrix."""
        return np.asarray((self._sign * whitened.T).T)

    def from_model(self, values: Array) -> Array:
        """Return the y of the model's variable."""
        return np.asarray(self._sign * values)

    def pullback(self, covariance_bar: Array, drawn_bar: Array, noise: Array) -> list[Array]:
        """Return the derivatives by the K_i."""
        by_factor = self._product.adjoint_of_product(drawn_bar, noise)
        return [a + b for a, b in zip(self._product.pullback(covariance_bar), by_factor, strict=True)]

    def no_pullback(self) -> list[Array]:
        """Return what stands for the derivatives where they are not wanted."""
        return [np.zeros((1, 1))] * self._n_axes
