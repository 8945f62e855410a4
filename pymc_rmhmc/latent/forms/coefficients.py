"""Independent coefficients: ``L = D``, a diagonal."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import lapack

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import StatedCoefficients
from pymc_rmhmc.latent.operators import Design, Operator
from pymc_rmhmc.linalg.cholesky import identity_plus_scaled, multiply_lower
from pymc_rmhmc.linalg.compiled.compilation import compiled

__all__ = ["CoefficientsOperator"]

type Array = NDArray[np.float64]

# Below this share the identity less E⁻¹ is lost in rounding.
LOST = 1e-8


@compiled
def unexplained_diagonal(
    gram: Array, half: Array, spread: Array, first: int
) -> tuple[Array, NDArray[np.bool_]]:  # pragma: no cover - compiled
    """``(1 - Σ_j half_ji²) / D_i²`` for the columns from one on, and which of them rounding has left of no use.

    `half` is lower triangular, in Fortran order.
    """
    columns, found, lost = half.T, np.zeros(spread.size), np.zeros(spread.size, dtype=np.bool_)
    for i in range(spread.size):
        at, square = first + i, spread[i] * spread[i]
        if square * gram[at, at] < LOST:
            lost[i] = True
            continue
        column, total = columns[at, at:], 0.0
        for j in range(column.size):
            total += column[j] * column[j]
        found[i] = (1.0 - total) / square
    return found, lost


class CoefficientsOperator(Operator):
    """Independent coefficients: the model's variable is ``location + deviation y``, and ``spread y`` is read.

    Raises a `PriorFailure` if a spread or a deviation is not finite.

    `stated`: D, and mean and standard deviation of the model's variable.
    """

    def __init__(self, stated: StatedCoefficients) -> None:
        spread, location, deviation = stated.spread, stated.location, stated.deviation
        if not (np.isfinite(spread).all() and np.isfinite(deviation).all()):
            raise PriorFailure(Failure.NON_FINITE)
        self.size = spread.size
        self.spread, self.location, self._deviation = spread, location, deviation

    def draw(self, whitened: Array) -> Array:
        """Return ``D y``."""
        return np.asarray((self.spread * whitened.T).T)

    def draw_adjoint(self, values: Array) -> Array:
        """Return ``D v``."""
        return self.draw(values)

    def covariance(self) -> Array:
        """Return ``D²``."""
        return np.diag(self.spread**2)

    def seen(self, design: Design | None, covariance: Array | None = None) -> Array:
        """Return ``A D² Aᵀ``, for fewer products than any matrix takes."""
        if design is None:
            return self.covariance()
        if sparse.issparse(design):
            scaled = design @ sparse.diags_array(self.spread)
            return np.asarray((scaled @ scaled.T).toarray())
        scaled = np.asarray(design * self.spread)
        return np.asarray(scaled @ scaled.T)

    def inner(self, gram: Array, rooted: Callable[[], Array]) -> Array:
        """Return the lower triangle of ``I + D M D``."""
        return identity_plus_scaled(gram, self.spread)

    def covariance_of(self, half: Array) -> Array:
        """Return the lower triangle of ``D RᵀR D``."""
        product, _ = lapack.dlauum(half, lower=1)
        return np.asarray(product * np.outer(self.spread, self.spread))

    def displace(self, whitened: Array) -> Array:
        """Return how far from `location` the model's variable of a y is, of a vector or of each column of a matrix."""
        return np.asarray((self._deviation * whitened.T).T)

    def from_model(self, values: Array) -> Array:
        """Return the y of the model's variable."""
        return (values - self.location) / self._deviation

    def log_volume(self) -> float:
        """Return ``log |∂ variable / ∂y|``."""
        return float(np.log(np.abs(self._deviation)).sum())

    def restrict(self, matrix: Array) -> Array:
        """Return the diagonal."""
        return matrix.diagonal()

    def contract(self, design: Design, matrix: Array) -> Array:
        """Return the diagonal of ``Aᵀ M A``."""
        right = np.asarray(matrix @ design)
        if sparse.issparse(design):
            entries: sparse.csr_array = design
            return np.asarray(entries.multiply(right).sum(axis=0)).ravel()
        return np.asarray(np.einsum("ij,ij->j", design, right))

    def outer(self, left: Array, right: Array) -> Array:
        """Return the diagonal of ``left rightᵀ``."""
        return left * right

    def unexplained(self, gram: Array, rooted: Callable[[], Array], half: Array, where: slice) -> Array:
        """Return the diagonal of ``M - M L E⁻¹ LᵀM``: what ``D (...) D = I - E⁻¹`` has, over D²."""
        found, lost = unexplained_diagonal(gram, half, self.spread, where.start)
        if lost.any():
            left = multiply_lower(half, np.asfortranarray(rooted()[:, where][:, lost]))
            found[lost] = gram.diagonal()[where][lost] - np.einsum("ij,ij->j", left, left)
        return np.asarray(found)

    def pullback(self, covariance_bar: Array, drawn_bar: Array, noise: Array) -> Array:
        """Return the derivative by D, (k,)."""
        return np.asarray(2.0 * self.spread * covariance_bar + drawn_bar * noise)
