"""``G = I + ΦᵀWΦ``, factorised in the size of the sites or of the latent values, whichever is smaller.

With ``s = sqrt(w)``, n sites and k latent values:

    of the sites          B = I + s ΦΦᵀ s = C Cᵀ    G⁻¹ v = v - Φᵀ s B⁻¹ s Φ v    w_i (Φ G⁻¹ Φᵀ)_ii = 1 - (B⁻¹)_ii
    of the latent values  G = I + (sΦ)ᵀ(sΦ) = R Rᵀ  G⁻¹ v = R⁻ᵀ R⁻¹ v             w_i (Φ G⁻¹ Φᵀ)_ii = |R⁻¹ (sΦ)_i|²

Either has one Cholesky and one triangular inverse, of order n or k, and |B| = |G|. The second makes G itself, in nk²
operations, and the same again for its last column. ``G⁻¹Φᵀ`` is ``Φᵀ (I + WΦΦᵀ)⁻¹`` of the sites, in the form that
`pymc_rmhmc.latent.solvers.dual` gives it: what an implicit equation is solved to must not be lost in strong sites.

References
----------
Rasmussen and Williams (2006), Gaussian Processes for Machine Learning, section 3.4.3, for B.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from pymc_rmhmc.latent.prior import Predictor
from pymc_rmhmc.latent.solvers.dual import roots_of_sites
from pymc_rmhmc.linalg.cholesky import cholesky, identity_plus_scaled, inverse_lower, multiply_lower
from pymc_rmhmc.linalg.products import multiply_symmetric

__all__ = ["LatentFactor", "SiteFactor", "factorise"]

type Array = NDArray[np.float64]


class SiteFactor:
    """G by a factor of the sites' B.

    Parameters
    ----------
    predictor : Predictor
        Φ.
    weight : (n,) array
        W.
    inverse : (n, n) array
        C⁻¹, lower.
    half_log_det : float
        ``½ log|G|``.
    """

    def __init__(self, predictor: Predictor, weight: Array, inverse: Array, half_log_det: float) -> None:
        self._predictor, self._inverse = predictor, inverse
        self._root, self._weak, self._inverse_root = roots_of_sites(weight, predictor.variance)
        self.half_log_det = half_log_det

    @property
    def leverage(self) -> Array:
        """``w_i (Φ G⁻¹ Φᵀ)_ii``, (n,)."""
        return np.asarray(1.0 - np.einsum("ij,ij->j", self._inverse, self._inverse))

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ v``, (k,), in O(n²)."""
        return vector - self._predictor.adjoint(self._half_dual(self._root * self._predictor.linear(vector)))

    def pull(self, sites: Array) -> Array:
        """Return ``G⁻¹ Φᵀ v``, (k,)."""
        return self._predictor.adjoint(self._dual(sites))

    def spread(self, sites: Array) -> Array:
        """Return ``Φ G⁻¹ Φᵀ v``, (n,)."""
        return multiply_symmetric(self._predictor.gram, self._dual(sites))

    def _dual(self, sites: Array) -> Array:
        """Return ``(I + W ΦΦᵀ)⁻¹ v``."""
        kept, divided = self._weak * sites, self._inverse_root * sites
        if self._weak.any():
            divided -= self._root * multiply_symmetric(self._predictor.gram, kept)
        return np.asarray(kept + self._half_dual(divided))

    def _half_dual(self, divided: Array) -> Array:
        """Return ``s B⁻¹ v``."""
        half = multiply_lower(self._inverse, divided)
        return np.asarray(self._root * multiply_lower(self._inverse, half, transpose=True))


class LatentFactor:
    """G by a factor of its own; as `SiteFactor`.

    Parameters
    ----------
    predictor : Predictor
        Φ.
    scaled : (n, k) array
        sΦ.
    inverse : (k, k) array
        R⁻¹, lower.
    half_log_det : float
        ``½ log|G|``.
    """

    def __init__(self, predictor: Predictor, scaled: Array, inverse: Array, half_log_det: float) -> None:
        self._predictor, self._scaled, self._inverse = predictor, scaled, inverse
        self.half_log_det = half_log_det

    @property
    def leverage(self) -> Array:
        """``w_i (Φ G⁻¹ Φᵀ)_ii``, (n,)."""
        half = multiply_lower(self._inverse, self._scaled.T)
        return np.asarray(np.einsum("ij,ij->j", half, half))

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ v``, (k,), in O(k²)."""
        return multiply_lower(self._inverse, multiply_lower(self._inverse, vector), transpose=True)

    def pull(self, sites: Array) -> Array:
        """Return ``G⁻¹ Φᵀ v``, (k,), in O(nk)."""
        return self.solve(self._predictor.adjoint(sites))

    def spread(self, sites: Array) -> Array:
        """Return ``Φ G⁻¹ Φᵀ v``, (n,), in O(nk)."""
        return self._predictor.linear(self.pull(sites))


def factorise(predictor: Predictor, weight: Array) -> SiteFactor | LatentFactor | None:
    """Factorise G at a W (n,); None where it has no factor."""
    root = np.sqrt(weight)
    of_sites = predictor.n_latent >= predictor.n_sites
    if of_sites:
        matrix = identity_plus_scaled(predictor.gram, root)
    else:
        scaled = np.asfortranarray(root[:, None] * predictor.matrix)
        matrix = blas.dsyrk(1.0, scaled, trans=1, lower=1)
        matrix[np.diag_indices_from(matrix)] += 1.0
    factor = cholesky(matrix, overwrite=True)
    if factor is None:
        return None
    half_log_det = float(np.log(factor.diagonal()).sum())
    inverse = inverse_lower(factor, overwrite=True)
    if of_sites:
        return SiteFactor(predictor, weight, inverse, half_log_det)
    return LatentFactor(predictor, scaled, inverse, half_log_det)
