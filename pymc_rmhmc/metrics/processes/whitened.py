"""The Fisher metric of a whitened Gaussian process and its hyperparameters together.

With ``s = m(θ) + L(θ) ν``, the information (W, C, R) of everything but the process's prior about s, s with θ, and θ:

    J = [L, ∂s/∂θ],   G(ν, θ) = Jᵀ W J + blockdiag(I, R) + Jᵀ[0, C] + [0, C]ᵀJ

The derivative of a number by G is ``c U Uᵀ``: with ``c = ½`` and ``U = L_G⁻ᵀ`` for ``½ log|G|``, and with ``c = -½``
and ``U = u`` for ``-½ uᵀGu``. With ``Y = J U`` the derivatives by W, C, R, L and ∂s/∂θ are products of Y with U.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.linalg.cholesky import multiply_lower
from pymc_rmhmc.metrics.field import FactorizedMatrix
from pymc_rmhmc.metrics.processes.block import ProcessMetric
from pymc_rmhmc.metrics.processes.process_blocks import ProcessField
from pymc_rmhmc.metrics.processes.process_density import Process, WhitenedDensity, WhitenedPoint

__all__ = ["WhitenedField", "WhitenedFisherMetric"]

type Array = NDArray[np.float64]


@dataclass(slots=True)
class SquareBar:
    """The derivative ``factor · U Uᵀ`` of a number by G, of a root U (n + d, r)."""

    factor: float
    root: Array


class WhitenedMatrix(FactorizedMatrix):
    """G at one point, factorised; see `pymc_rmhmc.dynamics.hamiltonian.MetricMatrix`."""

    def log_det_bar(self) -> SquareBar:
        """Return the bar of ``½ log|G|``."""
        return SquareBar(0.5, self.inverse_factor.T)

    def quadratic_bar(self, velocity: Array) -> SquareBar:
        """Return the bar of ``-½ uᵀGu`` at a fixed u."""
        return SquareBar(-0.5, velocity[:, None])


class WhitenedField(ProcessField[WhitenedPoint, SquareBar, SquareBar]):
    """``G(ν, θ) = Jᵀ W J + blockdiag(I, R)`` with what the likelihood's own parameters add."""

    def at(self, point: WhitenedPoint) -> WhitenedMatrix | Failure:
        """Factorise G at a point of the density."""
        if point.kernel.factor is None:
            return Failure.NOT_POSITIVE_DEFINITE
        return WhitenedMatrix.factorize(self._matrix(point))

    def product(self, point: WhitenedPoint, vector: Array) -> Array:
        """Return ``G vector``, (n + d,), without a factor of G."""
        kernel = point.kernel
        if kernel.factor is None:
            return np.full_like(vector, np.nan)
        weight, cross, own = point.information
        n, moving = weight.size, self.density.process.moving
        nu, theta = vector[:n], vector[n:]
        image = multiply_lower(kernel.factor, nu) + point.moved @ theta[moving]
        pushed = weight * image + cross @ theta
        found = np.concatenate((nu + multiply_lower(kernel.factor, pushed, transpose=True), own @ theta))
        found[n:] += cross.T @ image
        found[n + moving] += point.moved.T @ pushed
        return found

    def pullback(self, point: WhitenedPoint, bar: SquareBar) -> Array:
        """Return ``Σ bar ∘ ∂G/∂(ν, θ)``, (n + d,): O(n²) for one vector, once L's derivatives there are known."""
        process, kernel = self.density.process, point.kernel
        if kernel.factor is None:
            return np.full_like(point.position, np.nan)
        weight, cross, _ = point.information
        n, moving = weight.size, process.moving
        root, twice = bar.root, 2.0 * bar.factor
        nu, theta = root[:n], root[n:]
        image = multiply_lower(kernel.factor, np.asfortranarray(nu)) + point.moved @ theta[moving]
        image_bar = twice * (weight[:, None] * image + cross @ theta)
        # By L and by ∂s/∂θ, which are ν and θ of every column.
        factor_bar, moved_bar = image_bar @ nu.T, image_bar @ theta[moving].T
        found = np.array(point.pull_information(
            bar.factor * (image * image).sum(axis=1), twice * image @ theta.T, bar.factor * theta @ theta.T
        ))  # fmt: skip
        values_bar, slopes = found[:n], kernel.factor_slopes
        by_theta = point.moved.T @ values_bar + slopes.reshape((moving.size, n * n)) @ factor_bar.ravel()
        for (i, j), change in zip(process.pairs, point.moved_twice, strict=True):
            by_theta[i] += moved_bar[:, j] @ change
            if i != j:
                by_theta[j] += moved_bar[:, i] @ change
        by_nu = multiply_lower(kernel.factor, values_bar, transpose=True)
        for slope, column in zip(slopes, moved_bar.T, strict=True):
            by_nu += column @ slope
        found[n + moving] += by_theta
        found[:n] = by_nu
        return found

    def _matrix(self, point: WhitenedPoint) -> Array:
        """Return G, (n + d, n + d)."""
        kernel = point.kernel
        assert kernel.factor is not None
        weight = point.information[0]
        _, pushed = self._moved(point)
        n, size = weight.size, point.position.size
        found = np.empty((size, size))
        scaled = np.sqrt(weight)[:, None] * kernel.factor
        found[:n, :n] = scaled.T @ scaled
        found[np.arange(n), np.arange(n)] += 1.0
        found[:n, n:] = multiply_lower(kernel.factor, np.asfortranarray(pushed), transpose=True)
        found[n:, :n] = found[:n, n:].T
        found[n:, n:] = self.theta_block(point)
        return found

    def theta_block(self, point: WhitenedPoint) -> Array:
        """Return the corner of θ, (d, d): what all but the prior of s says of θ if ν is held."""
        _, cross, own = point.information
        moved, pushed = self._moved(point)
        corner = moved.T @ pushed + cross.T @ moved + own
        return np.asarray(0.5 * (corner + corner.T))

    def theta_matrix(self, point: WhitenedPoint) -> WhitenedMatrix | Failure:
        """Factorise the corner of θ: the metric of θ where ν is held."""
        return WhitenedMatrix.factorize(self.theta_block(point))

    def theta_bar(self, bar: SquareBar) -> SquareBar:
        """Turn a derivative by the corner of θ into one by G."""
        n = self.density.process.n_process
        return SquareBar(bar.factor, np.vstack((np.zeros((n, bar.root.shape[1])), bar.root)))

    def _moved(self, point: WhitenedPoint) -> tuple[Array, Array]:
        """Return ``∂s/∂θ`` and ``W ∂s/∂θ + C``, (n, d)."""
        weight, cross, _ = point.information
        moved = np.zeros_like(cross)
        moved[:, self.density.process.moving] = point.moved
        return moved, weight[:, None] * moved + cross


class WhitenedFisherMetric(ProcessMetric):
    """Fisher metric of a whitened Gaussian process and its hyperparameters together, with all that they share.

    RMHMC moves ν and the hyperparameters θ, with the process ``f = m(θ) + L(θ) ν`` and ``L Lᵀ = K(θ)``, whether the
    model has ``pm.gp.Latent.prior(reparameterize=True)``, ``reparameterize=False`` or `pm.MvNormal`.

    Raises
    ------
    ConfigurationError, UnsupportedModelError
        When RMHMC is built: if the model has no single latent Gaussian vector with a dense covariance and
        hyperparameters, if it has more than 500 latent values, or if the information of a variable is not known.

    Notes
    -----
    ``G(ν, θ) = JᵀWJ + blockdiag(I, P)`` with ``J = [L, ∂(m + Lν)/∂θ]`` and the Fisher information W of the likelihood.
    P is the negative second derivative of ``log π(θ)`` on the unconstrained scale, in SoftAbs form unless the prior is
    Normal. Parameters of the likelihood add their information, and what they share with f.

    Name hyperparameters alone, ``RMHMC(vars=["ls"], metric="whitened_fisher")``, to sample them with ν held, in the
    corner of G that belongs to them. f then follows ``m(θ) + L(θ) ν``, also where the model's own variable is f.
    Another step samples f, such as ``RMHMC(vars=["f"], metric="fisher")``.

    `BlockMetric` drops the coupling between f and θ, which this metric keeps. Both store d derivatives of the
    covariance, ``8 d n²`` bytes.

    References
    ----------
    Filippone (2010), comment on Girolami and Calderhead, whose closing question it answers. Girolami and Calderhead
    (2011), section 5.

    Examples
    --------
    >>> from pymc_rmhmc import WhitenedFisherMetric
    >>> WhitenedFisherMetric()  # for pm.sample(step=RMHMC(metric=WhitenedFisherMetric()))
    WhitenedFisherMetric()
    """

    name, chart, whitens = "whitened_fisher", "process", True
    source = "whitened"

    def field(self, process: Process) -> WhitenedField:
        """Return the metric of a process."""
        return WhitenedField(WhitenedDensity(process))
