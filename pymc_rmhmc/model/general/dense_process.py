"""A Gaussian process with a dense covariance and its hyperparameters, as functions of both.

The process is s ~ N(m(θ), K(θ)). Its prior is compiled as m and K with two derivatives by θ. Factors stay outside:
`pymc_rmhmc.metrics.processes.process_density` has them in closed form.
"""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.forms.joint_blocks import covariance_of
from pymc_rmhmc.model.forms.priors import LatentVariable
from pymc_rmhmc.model.general.latent_model import LatentModel

__all__ = ["ProcessModel"]

type Array = NDArray[np.float64]


class ProcessModel(LatentModel):
    """One vector with one covariance matrix; see `LatentModel`.

    `prior` is ``θ -> (m (n,), K (n, n), ∂m (k, n), ∂K (k, n, n))``.
    """

    _what = "the covariance"

    def _made_of(self, latent: LatentVariable) -> list[tuple[TensorVariable, tuple[int, ...]]]:
        """Return m and K, each with its shape."""
        n = self.n_process
        mean = pt.zeros(n) if latent.mean is None else latent.mean
        return [(pt.broadcast_to(mean, (n,)), (n,)), (covariance_of(latent), (n, n))]

    def _mean(self, theta: Array) -> tuple[Array, Array]:
        """See `LatentModel`."""
        mean, _, slopes, _ = self.prior(theta)
        return mean, slopes
