"""The metric of a Gaussian process and its hyperparameters in two blocks, one for each.

With s ~ N(m(θ), K(θ)), the likelihood's information W of s, and R, what everything else says of θ:

    G   = blockdiag(W + K⁻¹, G_θ),   (G_θ)ᵢⱼ = ½ tr(K⁻¹∂ᵢK K⁻¹∂ⱼK) + ∂ᵢmᵀK⁻¹∂ⱼm + Rᵢⱼ
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import ConfigurationError, Failure
from pymc_rmhmc.geometry.general.process_density import CentredDensity, CentredPoint, Process
from pymc_rmhmc.geometry.metrics.block_drift import BlockDrift
from pymc_rmhmc.geometry.metrics.block_matrix import BlockBar, BlockMatrix, LatentBlock
from pymc_rmhmc.geometry.metrics.dense import DenseMatrix
from pymc_rmhmc.geometry.metrics.field import FieldPoint, MetricFieldBase

__all__ = ["BlockField", "BlockMetric", "ProcessMetric"]

type Array = NDArray[np.float64]


class BlockField(MetricFieldBase[CentredPoint, BlockBar]):
    """``G(s, θ) = blockdiag(W + K⁻¹, G_θ)``.

    Parameters
    ----------
    density : CentredDensity
        Of s and θ.
    """

    density: CentredDensity

    def at(self, point: CentredPoint) -> BlockMatrix | Failure:
        """G at a point of the density, factorised."""
        latent = LatentBlock.factorize(point.kernel, point.information[0])
        if isinstance(latent, Failure):
            return latent
        theta = DenseMatrix.factorize(self.theta_block(point))
        return theta if isinstance(theta, Failure) else BlockMatrix(latent, theta)

    def drift_equation(self, point: FieldPoint[CentredPoint, BlockBar], velocity: Array, time: float) -> BlockDrift:
        """See `MetricFieldBase`: the blocks are solved one after the other."""
        return BlockDrift(self, point, velocity, time)

    def product(self, point: CentredPoint, vector: Array) -> Array:
        """``G vector``, (n + d,), without a factor of G."""
        if point.kernel.factor is None:
            return np.full_like(vector, np.nan)
        weight, _, _ = point.information
        own, theta = vector[: weight.size], vector[weight.size :]
        return np.concatenate((weight * own + point.kernel.solve(own), self.theta_block(point) @ theta))

    def pullback(self, point: CentredPoint, bar: BlockBar) -> Array:
        """``Σ bar ∘ ∂G/∂(s, θ)``, (n + d,): O(n²) once K's derivatives at the point are known."""
        process, kernel = self.density.process, point.kernel
        if kernel.factor is None:
            return np.full_like(point.position, np.nan)
        n, moving = process.n_process, process.moving
        found = np.array(point.pull_information(bar.weight, np.zeros((n, process.n_theta)), bar.theta))
        if bar.covariance is None:
            solved = kernel.solve(bar.velocity)
            by_covariance = 0.5 * (kernel.slopes @ solved) @ solved
        else:
            by_covariance = kernel.slopes.reshape((moving.size, n * n)) @ bar.covariance.ravel()
        own = bar.theta[np.ix_(moving, moving)]
        found[n + moving] += by_covariance + np.einsum("kij,ij->k", kernel.information_slopes, own)
        return found

    def theta_block(self, point: CentredPoint) -> Array:
        """G_θ, (d, d)."""
        moving = self.density.process.moving
        found = np.array(point.information[2])
        found[np.ix_(moving, moving)] += point.kernel.information
        return found

    def theta_matrix(self, point: CentredPoint) -> DenseMatrix | Failure:
        """G_θ factorised: the metric of θ where s is held."""
        return DenseMatrix.factorize(self.theta_block(point))

    def theta_bar(self, bar: Array) -> BlockBar:
        """A derivative by G of one by G_θ."""
        n = self.density.process.n_process
        return BlockBar(np.zeros(n), None, np.zeros(n), bar)


class ProcessMetric:
    """Base of the metrics of a process with its hyperparameters.

    Attributes
    ----------
    field, coordinates : class
        The metric of a density of the process, and that density.
    """

    name: str
    field: Any
    coordinates: Any

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def bind(self, density: Process) -> Any:
        """Return the metric of a model's process and its hyperparameters.

        Raises
        ------
        ConfigurationError
            If the density is no such process.
        """
        if not hasattr(density, "prior_curvature"):
            raise ConfigurationError(
                f"The {self.name} metric needs a Gaussian process with its hyperparameters, and got a "
                f"{type(density).__name__}. Give the metric to RMHMC(metric=), which binds it."
            )
        return self.field(self.coordinates(density))


class BlockMetric(ProcessMetric):
    """Metric of a Gaussian process f and its hyperparameters θ in two blocks: ``blockdiag(W + K⁻¹, G_θ)``.

    RMHMC then moves f and all hyperparameters together, in the process's centred form, whether the model has
    ``pm.gp.Latent.prior(reparameterize=True)``, ``reparameterize=False`` or `pm.MvNormal`. W is the Fisher information
    of the likelihood. G_θ is the expected information of f's prior and of the likelihood about θ, with the curvature of
    θ's own prior.

    Raises
    ------
    ConfigurationError, UnsupportedModelError
        When RMHMC is built: if the model has no single latent Gaussian vector with a dense covariance and
        hyperparameters, if it has more than 500 latent values, or if the information of a variable is not known.

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

    The metric stores d derivatives of the covariance, ``8 d n²`` bytes.

    References
    ----------
    Filippone (2010), comment on Girolami and Calderhead, for the joint metric. Girolami and Calderhead (2011), section
    9, for the blocks by themselves.

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
