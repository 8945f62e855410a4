"""The metric of a Gaussian process and its hyperparameters in two blocks, one for each: of a dense covariance.

With s ~ N(m(θ), K(θ)), the likelihood's information W of s, and R, what everything else says of θ:

    G   = blockdiag(W + K⁻¹, G_θ),   (G_θ)ᵢⱼ = ½ tr(K⁻¹∂ᵢK K⁻¹∂ⱼK) + ∂ᵢmᵀK⁻¹∂ⱼm + Rᵢⱼ

With ``D = W^½`` and ``B = I + D K D = C Cᵀ``,

    (W + K⁻¹)⁻¹ = K - K D B⁻¹ D K,   log|W + K⁻¹| = log|B| - log|K|
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.linalg.cholesky import cholesky, identity_plus_scaled, inverse_lower, multiply_lower
from pymc_rmhmc.metrics.processes.process_blocks import LatentBlock, ProcessBar, ProcessField, TwoBlockField
from pymc_rmhmc.metrics.processes.process_density import CentredDensity, CentredPoint, Kernel, Process
from pymc_rmhmc.metrics.processes.series import SeriesDensity, SeriesField

__all__ = ["BlockField", "BlockMetric", "DenseBlock", "ProcessMetric"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class DenseBar(ProcessBar):
    """The derivative of a number by G."""

    covariance: Array | None  # (n, n), by K; where there is none, that of ``-½ velocityᵀ K⁻¹ velocity``
    velocity: Array  # (n,), of s


class DenseBlock(LatentBlock[Kernel, DenseBar]):
    """``W + K⁻¹`` by the factor C of B (n, n), with W and K of one position or of two."""

    def __init__(self, kernel: Kernel, weight: Array, factor: Array) -> None:
        super().__init__(kernel, weight)
        self._root, self._inverse = np.sqrt(weight), inverse_lower(factor)
        self.root_size = 2 * weight.size
        self.half_log_det = float(np.log(factor.diagonal()).sum()) - kernel.half_log_det

    @cached_property
    def scale(self) -> Array:
        """About ``sqrt(diag((W + K⁻¹)⁻¹))``: where data say nothing, the difference is rounding."""
        variance = self.kernel.covariance.diagonal()
        left = (self._inverse**2).sum(axis=0)
        narrowed = np.divide(1.0 - left, self.weight, out=variance.copy(), where=self.weight * variance > 1e-6)
        return np.asarray(np.sqrt(narrowed))

    def solve(self, vector: Array) -> Array:
        """Return ``(W + K⁻¹)⁻¹ vector``, (n,)."""
        smoothed = self.kernel.covariance @ vector
        half = multiply_lower(self._inverse, self._root * smoothed)
        left = multiply_lower(self._inverse, half, transpose=True)
        return np.asarray(smoothed - self.kernel.covariance @ (self._root * left))

    def sqrt_times(self, vector: Array) -> Array:
        """Return ``D v₁ + L⁻ᵀ v₂`` of (2n,) numbers."""
        n = self.weight.size
        return self._root * vector[:n] + multiply_lower(self.kernel.inverse_factor, vector[n:], transpose=True)

    def log_det_bar(self, theta: Array) -> DenseBar:
        """Return the bar of ``½ log|G|``, with that of G_θ."""
        kernel = self.kernel
        scaled = self._inverse * self._root
        joined = scaled.T @ scaled  # D B⁻¹ D = (K + W⁻¹)⁻¹
        image = multiply_lower(self._inverse, np.asfortranarray(self._root[:, None] * kernel.covariance))
        spread = kernel.covariance.diagonal() - (image * image).sum(axis=0)
        return DenseBar(0.5 * spread, theta, 0.5 * (joined - kernel.inverse), np.zeros(0))

    def quadratic_bar(self, velocity: Array, theta: Array) -> DenseBar:
        """Return the bar of ``-½ uᵀGu`` at a fixed u, with that of G_θ."""
        return DenseBar(-0.5 * velocity * velocity, theta, None, velocity)


class BlockField(TwoBlockField[Kernel, DenseBar]):
    """``G(s, θ) = blockdiag(W + K⁻¹, G_θ)`` with a dense K."""

    def factorize(self, kernel: Kernel, weight: Array) -> DenseBlock | Failure:
        """See `TwoBlockField`: by the factor of B."""
        factor = cholesky(identity_plus_scaled(kernel.covariance, np.sqrt(weight)))
        return Failure.NOT_POSITIVE_DEFINITE if factor is None else DenseBlock(kernel, weight, factor)

    def pull_prior(self, point: CentredPoint[Kernel], bar: DenseBar) -> Array:
        """See `TwoBlockField`: O(n²) once K's derivatives at the point are known."""
        kernel = point.kernel
        if bar.covariance is None:
            solved = kernel.solve(bar.velocity)
            return np.asarray(0.5 * (kernel.slopes @ solved) @ solved)
        return np.asarray(kernel.slopes.reshape((len(kernel.slopes), bar.covariance.size)) @ bar.covariance.ravel())

    def theta_bar(self, bar: Array) -> DenseBar:
        """See `ProcessField`."""
        n = self.density.process.n_process
        return DenseBar(np.zeros(n), bar, None, np.zeros(n))


class ProcessMetric(ABC):
    """Base of the metrics of a process with its hyperparameters."""

    name: str
    # Whether the metric takes a series, whose precision has three bands.
    takes_series = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @abstractmethod
    def field(self, process: Process) -> ProcessField[Any, Any, Any]:
        """Return the metric of a process that it takes."""

    def bind(self, density: Process) -> ProcessField[Any, Any, Any]:
        """Return the metric of a model's process and its hyperparameters.

        Raises a `ConfigurationError` if the density is no such process, or is of a series, which the metric does not
        take.
        """
        if not hasattr(density, "prior_curvature"):
            raise ConfigurationError(
                f"The {self.name} metric needs a Gaussian process with its hyperparameters, and got a "
                f"{type(density).__name__}. Give the metric to RMHMC(metric=), which binds it."
            )
        if density.is_series and not self.takes_series:
            raise ConfigurationError(
                f'The {self.name} metric is dense, and takes no series. Give RMHMC(metric="block") or metric="flat".'
            )
        return self.field(density)


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
    them with f held, in the block ``G_θ``. Another step then samples f, such as ``RMHMC(vars=["f"], metric="fisher")``.

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
    >>> with pm.Model() as model:
    ...     ls = pm.Gamma("ls", 4.0, 8.0)
    ...     f = pm.gp.Latent(cov_func=pm.gp.cov.Matern52(1, ls=ls)).prior("f", X=np.linspace(0.0, 1.0, 8)[:, None])
    ...     y = pm.Poisson("y", mu=pm.math.exp(f), observed=np.arange(8) // 2)
    ...     step = RMHMC(metric=BlockMetric())  # for pm.sample(step=step)
    """

    name, chart, whitens = "block", "process", False
    source = "blocks"
    takes_series = True

    def field(self, process: Process) -> BlockField | SeriesField:
        """Return the metric of a process or a series."""
        return SeriesField(SeriesDensity(process)) if process.is_series else BlockField(CentredDensity(process))
