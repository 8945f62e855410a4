"""A block's latent values as a function of (θ, z): standard normal noise, placed by prior and sites.

Sites ``exp(bᵀη - ½ ηᵀW̄η)`` stand in for the likelihood, and are constant. For every θ the prior times the
sites is a Gaussian of the latent values, and z ~ N(0, I) is mapped onto it: z is nearly standard normal under the
posterior *whatever θ is*. What the map leaves to the target is

    φ(θ, z) = Σ ℓ(η) - sites(η) + log E(θ),     log E(θ) = log ∫ prior(η; θ) exp sites(η) dη.

The map is that of perturbation sampling: with ``h ~ N(0, K)`` from z₁ and noise ``s z₂`` on the sites,

    a = (I + W̄K)⁻¹ (b - W̄(m + h) + s z₂),      η = m + h + K a,        s = sqrt(w̄).

It is linear in z, with twice as many z as latent values. Two Choleskys, one inverse (of ``I + sKs``, for the derivative
of its determinant) and one Cholesky adjoint (of L) are 2n³ flops for value and gradient, where the square map
``L R⁻ᵀ z`` takes two adjoints and more. No inverse of K is formed.

References
----------
Papandreou and Yuille (2010), Gaussian sampling by local perturbations, for the map; Murray (2016), Differentiation
of the Cholesky decomposition, for the adjoint; Rasmussen and Williams (2006), section 3.6, for sites and B.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.latent.charts.moving_sites import slope_by_multiples
from pymc_rmhmc.latent.charts.site import GaussianSites
from pymc_rmhmc.latent.forms.dual import (
    adjoint,
    apply,
    centre_of_sites,
    dual,
    gram,
    place,
    place_noise,
    roots_of_sites,
    shift_noise,
    variances_of_sites,
    weigh,
)
from pymc_rmhmc.latent.prior import PriorFailure
from pymc_rmhmc.linalg.dense import (
    cholesky,
    cholesky_adjoint_of_product,
    inverse_of_product,
    multiply_lower,
    solve_lower,
)
from pymc_rmhmc.linalg.passes import add_covariance_terms, log_diagonal
from pymc_rmhmc.linalg.symmetric import multiply_symmetric

__all__ = ["DenseConditional", "SitesOnCovariance", "factor_in_place", "factor_or_fail"]

type Array = NDArray[np.float64]


class SitesOnCovariance(ABC):
    """Sites with a prior ``N(m, Q)``, times their Gaussian factors: what does not depend on how Q is factorised.

    Parameters
    ----------
    mean : (n,) array
        m.
    covariance : (n, n) array
        Q, in Fortran order.
    sites : GaussianSites
        With w̄ ≥ 0.
    inner : (n, n) array, optional
        The factor of ``B = I + sQs``, if it is known.

    Raises
    ------
    PriorFailure
        If m or Q is not finite, or B not positive definite.
    """

    _covariance: Array | None
    _remake: Callable[[], Array]

    def __init__(self, mean: Array, covariance: Array, sites: GaussianSites, inner: Array | None = None) -> None:
        covariance = np.asfortranarray(covariance)
        self._mean, self._covariance = mean, covariance
        self._site_linear, self._precision = sites.linear, sites.precision
        if inner is None:
            has_factor, self._inner, self._roots, found, self.log_evidence = weigh(
                covariance, mean, sites.linear, sites.precision
            )
            if not has_factor:
                raise without_factor(covariance if np.isfinite(self._roots).all() else self._roots)
        else:
            self._inner, self._roots = inner, roots_of_sites(sites.precision, covariance.diagonal())
            found, self.log_evidence = centre_of_sites(*self.weighted, mean, sites.linear, sites.precision)
        # What is not finite in a mean leaves no number of what it makes.
        if not (math.isfinite(self.log_evidence) or np.isfinite(mean).all()):
            raise PriorFailure(Failure.NON_FINITE, 0)
        self._linear: Array = found[0]
        self._centre_dual: Array = found[1]
        self._centre: Array = found[2]
        self._inner_inverse: Array | None = None
        self._pushed = self._site_noise = self._placed_dual = np.zeros(0)

    @property
    def n_noise(self) -> int:
        """The size of z: one normal number for a latent value, and one for its site."""
        return 2 * self._mean.size

    def with_sites(self, sites: GaussianSites) -> Self:
        """The same prior times other sites: a factor of B is all that is made anew."""
        other = copy.copy(self)
        SitesOnCovariance.__init__(other, self._mean, self.covariance, sites)
        return other

    def release(self, remake: Callable[[], Array]) -> None:
        """Free Q, which is as large as its factor; `remake` makes the same matrix when it is next needed."""
        self._covariance, self._remake = None, remake

    @property
    def covariance(self) -> Array:
        """Q, (n, n) in Fortran order."""
        if self._covariance is None:
            self._covariance = np.asfortranarray(self._remake())
        return self._covariance

    def marginals(self) -> tuple[Array, Array]:
        """Mean and variance (n,) of each site under the prior times the sites' factors."""
        return self._centre, variances_of_sites(*self.weighted)

    @property
    def centre(self) -> Array:
        """The sites where z is 0, (n,)."""
        return self._centre

    @abstractmethod
    def place(self, noise: Array) -> Array:
        """The sites η (n,) of z."""

    def apply(self, noise: Array) -> Array:
        """``T z`` of the map ``η = centre + T z``, (n,); z has then been placed."""
        return self.place(noise) - self._centre

    def adjoint(self, sites: Array) -> Array:
        """``Tᵀ v``, for a v (n,)."""
        return self._pull_noise(self._dual(sites))

    def gram(self, sites: Array) -> Array:
        """``T Tᵀ v``, (n,): by the covariance of the sites under the prior times their factors."""
        return gram(*self.weighted, sites)

    @abstractmethod
    def _pull_noise(self, spread: Array) -> Array:
        """The gradient by z, from that of the residual in the dual."""

    def sites_pullback(self, eta: Array) -> Array:
        """The gradient of ``ψ(η) + log E`` by the logarithms of b and of w̄, (2, n), of the last pullback and its η."""
        if self._inner_inverse is None:
            self._invert_inner()
        assert self._inner_inverse is not None
        # w̄ S_ii = 1 - (B⁻¹)_ii for the covariance S of prior times sites.
        return slope_by_multiples(
            self._site_linear, self._precision, self._centre, 1.0 - self._inner_inverse, self._pushed,
            self._site_noise, eta,
        )  # fmt: skip

    def _place_drawn(self, drawn: Array, site_noise: Array) -> Array:
        """The sites (n,) of a draw of the prior, about its mean, and of the sites' noise."""
        self._site_noise = site_noise
        self._placed_dual, placed = place(
            *self.weighted, self._mean, self._linear, self._precision, drawn, site_noise
        )
        return placed

    def _invert_inner(self, *, overwrite: bool = False) -> Array:
        """The lower triangle of B⁻¹, in place of B's factor if that is not needed any more."""
        inverse = inverse_of_product(self._inner, overwrite=overwrite)
        self._inner_inverse = inverse.diagonal().copy()
        return inverse

    def _add_covariance_bar(self, total: Array, spread: Array) -> None:
        """Add the derivative by Q, but for what goes through its root, to an (n, n) array in Fortran order.

        B's factor is overwritten: nothing can be placed afterwards.
        """
        inverse = self._invert_inner(overwrite=True)
        add_covariance_terms(total, spread, self._placed_dual, self._centre_dual, inverse, self._root)
        del self._inner

    def _multiply(self, vector: Array) -> Array:
        """``Q v``."""
        return multiply_symmetric(self.covariance, vector)

    def _dual(self, vector: Array) -> Array:
        """``(I + W̄Q)⁻¹ v``."""
        return dual(*self.weighted, vector)

    @property
    def weighted(self) -> tuple[Array, Array, Array]:
        """Q, B's factor, and the roots, as what is compiled has them."""
        return self.covariance, self._inner, self._roots

    @property
    def _root(self) -> Array:
        """s, (n,)."""
        root: Array = self._roots[0]
        return root


class DenseConditional(SitesOnCovariance):
    """The prior ``N(m, K)`` of the sites themselves, times Gaussian sites, at one θ.

    Two Choleskys to begin with; O(n²) to place noise; an inverse and a Cholesky adjoint for the derivative.

    Parameters
    ----------
    mean : (n,) array
        m.
    covariance : (n, n) array
        K, in Fortran order.
    sites : GaussianSites
        With w̄ ≥ 0.
    shift : (n,) array or float
        What the sites have beyond the model's latent values.
    centred : bool
        Whether the model's variable is the latent values themselves, and not ``L⁻¹(η - m)``.
    by_covariance : bool
        Whether the derivative by K is wanted; if not, a single 0 stands for it.
    same_sites : bool
        Whether `like` has the same sites.
    like : DenseConditional, optional
        One with the same K, whose factors serve again.

    Attributes
    ----------
    log_evidence : float
        ``log ∫ N(η; m, K) exp(bᵀη - ½ ηᵀW̄η) dη``.

    Raises
    ------
    PriorFailure
        If m or K is not finite, or K or ``I + sKs`` not positive definite.
    """

    def __init__(
        self, mean: Array, covariance: Array, sites: GaussianSites, like: DenseConditional | None = None, *,
        shift: Array | float = 0.0, centred: bool = True, by_covariance: bool = True, same_sites: bool = True,
    ) -> None:  # fmt: skip
        self._shift, self._centred, self._by_covariance = shift, centred, by_covariance
        self._factor: Array = factor_or_fail(covariance) if like is None else like._factor
        super().__init__(mean, covariance, sites, like._inner if like is not None and same_sites else None)

    def place(self, noise: Array) -> Array:
        """The latent values η (n,) of z (2 n,)."""
        n = self._mean.size
        self._prior_noise, self._site_noise = noise[:n], noise[n:]
        self._placed_dual, self._placed, self._square = place_noise(
            *self.weighted, self._mean, self._linear, self._precision, self._factor, noise
        )
        return self._placed

    def apply(self, noise: Array) -> Array:
        """``T z`` of the map ``η = centre + T z``, (n,); what was placed stays."""
        moved: Array = apply(*self.weighted, self._precision, self._factor, noise)
        return moved

    def adjoint(self, sites: Array) -> Array:
        """``Tᵀ v``, for a v (n,)."""
        noise: Array = adjoint(*self.weighted, self._factor, sites)
        return noise

    def enter(self, values: Array, noise: Array) -> Array:
        """A draw of z given the model's variable (n,); `noise` is (2 n,) standard normal."""
        return self.recover(values + self._shift if self._centred else self.unwhiten(values), noise)

    @property
    def latents(self) -> Array:
        """The model's variable for the noise that was placed last, (n,)."""
        return self._placed - self._shift if self._centred else self.whiten(self._placed)

    def recover(self, values: Array, noise: Array) -> Array:
        """A draw of z given η, of the noise that `place` maps there; `noise` is (2 n,) standard normal.

        With z' any noise and T the linear part of the map, ``z = z' + Tᵀ(TTᵀ)⁻¹ (η - place(z'))`` and
        ``(TTᵀ)⁻¹ = K⁻¹ + W̄``.
        """
        return self.shifted(noise, values - self.place(noise))

    def shifted(self, noise: Array, missing: Array) -> Array:
        """The z nearest to one (2 n,) whose η is this much (n,) further: what η does not see of it stays."""
        shifted: Array = shift_noise(self._factor, self._root, noise, missing)
        return shifted

    def whiten(self, values: Array) -> Array:
        """``L⁻¹(η - m)``, (n,)."""
        return solve_lower(self._factor, values - self._mean)

    def unwhiten(self, whitened: Array) -> Array:
        """``m + Lν``, (n,)."""
        return self._mean + multiply_lower(self._factor, whitened)

    def log_prior(self) -> float:
        """The log density of the model's variable for the noise that was placed last."""
        volume = log_diagonal(self._factor) if self._centred else 0.0
        return -0.5 * self._square - 0.5 * self._mean.size * math.log(2.0 * math.pi) - volume

    def pullback(self, residual: Array) -> tuple[Array, Array, Array]:
        """The gradient of ``ψ(η) + log E`` by z, m and K, for the values that were placed last.

        Where K moves this lets go of what another placing would need.

        Parameters
        ----------
        residual : (n,) array
            ``∂ψ/∂η``.

        Returns
        -------
        (2 n,) array, (n,) array, (n, n) array
            By z, by m, and a matrix whose product with a symmetric ``∂K`` sums to the derivative along it: it
            is not symmetric itself.
        """
        spread, centre = self._dual(residual), self._centre_dual
        noise = self._pull_noise(spread)
        if not self._by_covariance:
            return noise, spread + centre, np.zeros((1, 1), order="F")
        # A chain keeps several points, and each of these arrays is as large as K.
        del self._covariance
        covariance_bar = cholesky_adjoint_of_product(self._factor, spread, self._prior_noise)
        self._add_covariance_bar(covariance_bar, spread)
        return noise, spread + centre, covariance_bar

    def _pull_noise(self, spread: Array) -> Array:
        self._pushed = self._multiply(spread)
        return np.concatenate((multiply_lower(self._factor, spread, transpose=True), self._root * self._pushed))


def factor_or_fail(matrix: Array) -> Array:
    """The lower Cholesky factor, or the failure to count."""
    factor = cholesky(matrix)
    if factor is None:
        raise without_factor(matrix)
    return factor


def factor_in_place(matrix: Array) -> Array:
    """The same of a matrix that may be overwritten."""
    # What is not finite is not to be seen any more afterwards.
    finite = bool(np.isfinite(matrix).all())
    factor = cholesky(matrix, overwrite=True) if finite else None
    if factor is None:
        raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE if finite else Failure.NON_FINITE, 0)
    return factor


def without_factor(matrix: Array) -> PriorFailure:
    """Why a matrix, or what was made of it, has no factor."""
    finite = bool(np.isfinite(matrix).all())
    return PriorFailure(Failure.NOT_POSITIVE_DEFINITE if finite else Failure.NON_FINITE, 0)
