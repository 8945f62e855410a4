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

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.charts.site import Predictor
from pymc_rmhmc.latent.solvers.dual import roots_of_sites
from pymc_rmhmc.linalg.cholesky import cholesky, identity_plus_scaled, inverse_lower, multiply_lower
from pymc_rmhmc.linalg.products import multiply_symmetric

__all__ = ["LatentMatrix", "factorise", "times_metric"]

type Array = NDArray[np.float64]

# A weight below it is none: a quotient by it would be rounding alone.
TINY = 1e-290


class LatentMatrix(ABC):
    """``G = I + ΦᵀWΦ`` with its factor; `factorise` makes one. A bar is the derivative by W, (n,)."""

    # The coordinates z have unit scale by their prior.
    scale: float | Array = 1.0

    def __init__(self, predictor: Predictor, weight: Array, inverse: Array, half_log_det: float) -> None:
        self._predictor, self._weight, self._inverse, self.half_log_det = predictor, weight, inverse, half_log_det
        self.root_size = weight.size + predictor.n_latent

    @property
    @abstractmethod
    def leverage(self) -> Array:
        """``w_i (Φ G⁻¹ Φᵀ)_ii``, (n,)."""

    @abstractmethod
    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``, (k,)."""

    @abstractmethod
    def pull(self, sites: Array) -> Array:
        """Return ``G⁻¹ Φᵀ sites``, (k,)."""

    @abstractmethod
    def spread(self, sites: Array) -> Array:
        """Return ``Φ G⁻¹ Φᵀ sites``, (n,)."""

    def times(self, vector: Array) -> Array:
        """Return ``G vector``, (k,)."""
        return times_metric(self._predictor, self._weight, vector)

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``Φᵀ(W^½ v₁) + v₂`` of (n + k,) numbers."""
        n = self._weight.size
        return self._predictor.adjoint(np.sqrt(self._weight) * vector[:n]) + vector[n:]

    def log_det_bar(self) -> Array:
        """Return ``½ (Φ G⁻¹ Φᵀ)_ii``, (n,); 0 where w is, since ∂w is 0 there too."""
        known = self._weight > TINY
        return 0.5 * np.divide(self.leverage, self._weight, out=np.zeros_like(self._weight), where=known)

    def quadratic_bar(self, velocity: Array) -> Array:
        """Return ``-½ (Φu)∘(Φu)``, (n,)."""
        along = self._predictor.linear(velocity)
        return -0.5 * along * along


class SiteFactor(LatentMatrix):
    """G by ``C⁻¹`` (n, n) of the sites' B."""

    def __init__(self, predictor: Predictor, weight: Array, inverse: Array, half_log_det: float) -> None:
        super().__init__(predictor, weight, inverse, half_log_det)
        self._root, self._weak, self._inverse_root = roots_of_sites(weight, predictor.variance)

    @property
    def leverage(self) -> Array:
        """See `LatentMatrix`."""
        return np.asarray(1.0 - np.einsum("ij,ij->j", self._inverse, self._inverse))

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``, in O(n²)."""
        return vector - self._predictor.adjoint(self._half_dual(self._root * self._predictor.linear(vector)))

    def pull(self, sites: Array) -> Array:
        """See `LatentMatrix`."""
        return self._predictor.adjoint(self._dual(sites))

    def spread(self, sites: Array) -> Array:
        """See `LatentMatrix`."""
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


class LatentFactor(LatentMatrix):
    """G by ``R⁻¹`` (k, k) of its own."""

    @property
    def leverage(self) -> Array:
        """See `LatentMatrix`."""
        half = multiply_lower(self._inverse, _scaled(self._predictor, np.sqrt(self._weight)).T)
        return np.asarray(np.einsum("ij,ij->j", half, half))

    def solve(self, vector: Array) -> Array:
        """Return ``G⁻¹ vector``, in O(k²)."""
        return multiply_lower(self._inverse, multiply_lower(self._inverse, vector), transpose=True)

    def pull(self, sites: Array) -> Array:
        """Return ``G⁻¹ Φᵀ sites``, in O(nk)."""
        return self.solve(self._predictor.adjoint(sites))

    def spread(self, sites: Array) -> Array:
        """Return ``Φ G⁻¹ Φᵀ sites``, in O(nk)."""
        return self._predictor.linear(self.pull(sites))


def factorise(predictor: Predictor, weight: Array) -> LatentMatrix | Failure:
    """Factorise G at a W (n,), or return why it has no factor; a sum of squares cannot cancel."""
    if not math.isfinite(float(weight @ weight)):
        return Failure.NON_FINITE
    if (weight < 0.0).any():
        return Failure.NOT_POSITIVE_DEFINITE
    root = np.sqrt(weight)
    of_sites = predictor.n_latent >= predictor.n_sites
    if of_sites:
        matrix = identity_plus_scaled(predictor.gram, root)
    else:
        matrix = blas.dsyrk(1.0, _scaled(predictor, root), trans=1, lower=1)
        matrix[np.diag_indices_from(matrix)] += 1.0
    factor = cholesky(matrix, overwrite=True)
    if factor is None:
        return Failure.NOT_POSITIVE_DEFINITE
    half_log_det = float(np.log(factor.diagonal()).sum())
    kind = SiteFactor if of_sites else LatentFactor
    return kind(predictor, weight, inverse_lower(factor, overwrite=True), half_log_det)


def times_metric(predictor: Predictor, weight: Array, vector: Array) -> Array:
    """Return ``(I + ΦᵀWΦ) vector``, (k,)."""
    return vector + predictor.adjoint(weight * predictor.linear(vector))


def _scaled(predictor: Predictor, root: Array) -> Array:
    """Return ``sΦ``, (n, k)."""
    return np.asfortranarray(root[:, None] * predictor.matrix)
