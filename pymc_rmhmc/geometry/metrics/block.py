"""The metric of a Gaussian process and its hyperparameters in two blocks, one for each: of a dense covariance.

With s ~ N(m(θ), K(θ)), the likelihood's information W of s, and R, what everything else says of θ:

    G   = blockdiag(W + K⁻¹, G_θ),   (G_θ)ᵢⱼ = ½ tr(K⁻¹∂ᵢK K⁻¹∂ⱼK) + ∂ᵢmᵀK⁻¹∂ⱼm + Rᵢⱼ
    B   = I + D K D = C Cᵀ with D = W^½
    (W + K⁻¹)⁻¹ = K - K D B⁻¹ D K,   log|W + K⁻¹| = log|B| - log|K|
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.geometry.general.matrix_density import MatrixDensity
from pymc_rmhmc.geometry.general.process_density import CentredDensity, CentredPoint, Kernel, Process
from pymc_rmhmc.geometry.general.series_density import SeriesDensity
from pymc_rmhmc.geometry.linalg import cholesky, identity_plus_scaled, inverse_lower, multiply_lower
from pymc_rmhmc.geometry.metrics.dense import DenseMatrix
from pymc_rmhmc.geometry.metrics.graph import MatrixField
from pymc_rmhmc.geometry.metrics.process_blocks import TwoBlockField, TwoBlockMatrix
from pymc_rmhmc.geometry.metrics.series import SeriesField

__all__ = ["BlockBar", "BlockField", "BlockMatrix", "BlockMetric", "ProcessMetric"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class BlockBar:
    """The derivative of a number by G.

    Attributes
    ----------
    weight : (n,) array
        By W.
    covariance : (n, n) array or None
        By K; where there is none, that of ``-½ velocityᵀ K⁻¹ velocity``.
    velocity : (n,) array
        Of s.
    theta : (d, d) array
        By G_θ.
    """

    weight: Array
    covariance: Array | None
    velocity: Array
    theta: Array


class BlockMatrix(TwoBlockMatrix[BlockBar]):
    """G at one point, factorised.

    Parameters
    ----------
    kernel : Kernel
        Of K, which is positive definite.
    weight : (n,) array
        W.
    factor : (n, n) array
        C.
    theta : DenseMatrix
        G_θ.
    """

    def __init__(self, kernel: Kernel, weight: Array, factor: Array, theta: DenseMatrix) -> None:
        self._kernel, self._weight, self._root = kernel, weight, np.sqrt(weight)
        self._inverse = inverse_lower(factor)
        variance = kernel.covariance.diagonal()
        left = (self._inverse**2).sum(axis=0)
        # About diag((W + K⁻¹)⁻¹): where data say nothing, the difference is rounding.
        narrowed = np.divide(1.0 - left, weight, out=variance.copy(), where=weight * variance > 1e-6)
        half_log_det = float(np.log(factor.diagonal()).sum()) - kernel.half_log_det
        super().__init__(np.sqrt(narrowed), half_log_det, 2 * weight.size, theta)

    def own_solve(self, vector: Array) -> Array:
        """``(W + K⁻¹)⁻¹ vector``, (n,)."""
        smoothed = self._kernel.covariance @ vector
        half = multiply_lower(self._inverse, self._root * smoothed)
        left = multiply_lower(self._inverse, half, transpose=True)
        return np.asarray(smoothed - self._kernel.covariance @ (self._root * left))

    def own_times(self, vector: Array) -> Array:
        """``(W + K⁻¹) vector``, (n,)."""
        return self._weight * vector + self._kernel.solve(vector)

    def own_root_times(self, vector: Array) -> Array:
        """``D v₁ + L⁻ᵀ v₂`` of (2n,) numbers."""
        turned = multiply_lower(self._kernel.inverse_factor, vector[self._n :], transpose=True)
        return np.asarray(self._root * vector[: self._n] + turned)

    def log_det_bar(self) -> BlockBar:
        """The bar of ``½ log|G|``."""
        scaled = self._inverse * self._root
        joined = scaled.T @ scaled  # D B⁻¹ D = (K + W⁻¹)⁻¹
        kernel = self._kernel
        spread = kernel.covariance.diagonal() - np.einsum(
            "ij,ij->j", kernel.covariance, joined @ kernel.covariance
        )
        return BlockBar(0.5 * spread, 0.5 * (joined - kernel.inverse), np.zeros(0), self._theta.log_det_bar())

    def quadratic_bar(self, velocity: Array) -> BlockBar:
        """The bar of ``-½ uᵀGu`` at a fixed u."""
        own, theta = velocity[: self._n], velocity[self._n :]
        return BlockBar(-0.5 * own * own, None, own, self._theta.quadratic_bar(theta))


class BlockField(TwoBlockField[Kernel, BlockBar]):
    """``G(s, θ) = blockdiag(W + K⁻¹, G_θ)`` with a dense K.

    Parameters
    ----------
    density : CentredDensity
        Of s and θ.
    """

    density: CentredDensity

    def factorize(self, point: CentredPoint[Kernel], weight: Array, theta: DenseMatrix) -> BlockMatrix | Failure:
        """See `TwoBlockField`."""
        factor = cholesky(identity_plus_scaled(point.kernel.covariance, np.sqrt(weight)))
        return Failure.NOT_POSITIVE_DEFINITE if factor is None else BlockMatrix(point.kernel, weight, factor, theta)

    def pull_prior(self, point: CentredPoint[Kernel], bar: BlockBar) -> Array:
        """See `TwoBlockField`: O(n²) once K's derivatives at the point are known."""
        kernel = point.kernel
        if bar.covariance is None:
            solved = kernel.solve(bar.velocity)
            return np.asarray(0.5 * (kernel.slopes @ solved) @ solved)
        return np.asarray(kernel.slopes.reshape((len(kernel.slopes), -1)) @ bar.covariance.ravel())


class ProcessMetric:
    """Base of the metrics of a process with its hyperparameters.

    Attributes
    ----------
    field, coordinates : class
        The metric of a density of the process, and that density.
    of_series : tuple of these two, or None
        Of a series; None if the metric takes none.
    """

    name: str
    field: Any
    coordinates: Any
    of_series: tuple[Any, Any] | None = None

    @property
    def takes_series(self) -> bool:
        """Whether the metric takes a series, whose precision has three bands."""
        return self.of_series is not None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def bind(self, density: Process | MatrixDensity) -> Any:
        """Return the metric of a model's process, or of its hyperparameters alone.

        Raises
        ------
        ConfigurationError
            If the density is neither, or is of a series, which the metric does not take.
        """
        if isinstance(density, MatrixDensity):
            return MatrixField(density)
        if not hasattr(density, "prior_curvature"):
            raise ConfigurationError(
                f"The {self.name} metric needs a Gaussian process with its hyperparameters, and got a "
                f"{type(density).__name__}. Give the metric to RMHMC(metric=), which binds it."
            )
        if not density.is_series:
            return self.field(self.coordinates(density))
        if self.of_series is None:
            raise ConfigurationError(
                f'The {self.name} metric is dense, and takes no series. Give RMHMC(metric="block") or metric="flat".'
            )
        field, coordinates = self.of_series
        return field(coordinates(density))


class BlockMetric(ProcessMetric):
    """Metric of a Gaussian process f and its hyperparameters θ in two blocks: ``blockdiag(W + K⁻¹, G_θ)``.

    RMHMC then moves f and all hyperparameters together, in the process's centred form, whether the model has
    ``pm.gp.Latent.prior(reparameterize=True)``, ``reparameterize=False`` or `pm.MvNormal`. W is the Fisher information
    of the likelihood. G_θ is the expected information of f's prior and of the likelihood about θ, with the curvature of
    θ's own prior.

    In the place of a process the model may have one series: a `pm.GaussianRandomWalk`, or a `pm.AR` of order 1. Its
    precision ``K⁻¹`` has three bands. No dense matrix is made, a step takes time in proportion to the length of the
    series, and the series may be as long as you like.

    Raises
    ------
    ConfigurationError, UnsupportedModelError
        When RMHMC is built: if the model has no single series and no single latent Gaussian vector with a dense
        covariance, if there are no hyperparameters, if a dense covariance has more than 500 rows, if the information of
        a variable is not known, or if a series has no density at the start values.

    Notes
    -----
    With ``m`` and ``K`` the mean and covariance of f, ``(G_θ)ᵢⱼ = ½ tr(K⁻¹∂ᵢK K⁻¹∂ⱼK) + ∂ᵢmᵀK⁻¹∂ⱼm + Iᵢⱼ + Pᵢⱼ``. I is
    the information of the likelihood in its own parameters and in constants of its predictor, and P the negative second
    derivative of ``log π(θ)`` on the unconstrained scale, in SoftAbs form unless the prior is Normal.

    The blocks drop what f and θ share: ``-K⁻¹∂m`` if the mean depends on θ, and the likelihood's information about f
    and its own parameters together. `describe` says which. Draws are exact all the same.

    A process that is written with ``reparameterize=True`` moves without its mean function, which the likelihood then
    reads as a constant of its predictor. Name hyperparameters alone, ``RMHMC(vars=["ls"], metric="block")``, to sample
    them with f held, if f is written with ``reparameterize=False``.

    With a dense covariance, the metric stores d derivatives of it, ``8 d n²`` bytes.

    Of a series ``xₜ = aₜ + ρ xₜ₋₁ + sₜ νₜ`` the first term of G_θ, that of its prior, is the sum over t of

        ``[2 ∂ᵢsₜ ∂ⱼsₜ + (∂ᵢaₜ + mₜ₋₁ ∂ᵢρ)(∂ⱼaₜ + mₜ₋₁ ∂ⱼρ) + vₜ₋₁ ∂ᵢρ ∂ⱼρ] / sₜ²``

    with the mean m and the variance v of each value.

    References
    ----------
    Filippone (2010), comment on Girolami and Calderhead, for the joint metric. Girolami and Calderhead (2011), section
    8, for a series, and section 9, for the blocks by themselves.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_rmhmc import RMHMC, BlockMetric
    >>> x = np.linspace(0.0, 1.0, 8)[:, None]
    >>> with pm.Model() as model:
    ...     ls = pm.Gamma("ls", 4.0, 8.0)
    ...     gp = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls))
    ...     f = gp.prior("f", X=x)
    ...     y = pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(8) // 2)
    ...     idata = pm.sample(
    ...         draws=20, tune=20, chains=1, step=RMHMC(metric=BlockMetric()), progressbar=False, random_seed=1
    ...     )
    >>> idata.posterior["f"].shape
    (1, 20, 8)
    """

    name, chart, whitens = "block", "process", False
    source = "blocks"
    field, coordinates = BlockField, CentredDensity
    of_series = SeriesField, SeriesDensity
