"""The metric of a Gaussian process and its hyperparameters in two blocks, one for each: of a dense covariance.

With s ~ N(m(θ), K(θ)), the likelihood's information W of s, and R, what everything else says of θ:

    G   = blockdiag(W + K⁻¹, G_θ),   (G_θ)ᵢⱼ = ½ tr(K⁻¹∂ᵢK K⁻¹∂ⱼK) + ∂ᵢmᵀK⁻¹∂ⱼm + Rᵢⱼ
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.metrics.processes.dense_block import DenseBar, DenseBlock
from pymc_rmhmc.metrics.processes.process_blocks import TwoBlockField
from pymc_rmhmc.metrics.processes.process_density import CentredDensity, CentredPoint, Kernel, Process
from pymc_rmhmc.metrics.processes.series_density import SeriesDensity
from pymc_rmhmc.metrics.processes.series_metric import SeriesField

__all__ = ["BlockField", "BlockMetric", "ProcessMetric"]

type Array = NDArray[np.float64]


class BlockField(TwoBlockField[Kernel, DenseBar]):
    """``G(s, θ) = blockdiag(W + K⁻¹, G_θ)`` with a dense K.

    Parameters
    ----------
    density : CentredDensity
        Of s and θ.
    """

    density: CentredDensity

    def factorize(self, kernel: Kernel, weight: Array) -> DenseBlock | Failure:
        """See `TwoBlockField`."""
        return DenseBlock.factorize(kernel, weight)

    def pull_prior(self, point: CentredPoint[Kernel], bar: DenseBar) -> Array:
        """See `TwoBlockField`: O(n²) once K's derivatives at the point are known."""
        kernel = point.kernel
        if bar.covariance is None:
            solved = kernel.solve(bar.velocity)
            return np.asarray(0.5 * (kernel.slopes @ solved) @ solved)
        return np.asarray(kernel.slopes.reshape((len(kernel.slopes), bar.covariance.size)) @ bar.covariance.ravel())

    def theta_bar(self, bar: Array) -> DenseBar:
        """See `TwoBlockField`."""
        n = self.density.process.n_process
        return DenseBar(np.zeros(n), None, np.zeros(n), bar)


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

    def bind(self, density: Process) -> Any:
        """Return the metric of a model's process and its hyperparameters.

        Raises
        ------
        ConfigurationError
            If the density is no such process, or is of a series, which the metric does not take.
        """
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
