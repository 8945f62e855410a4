"""A Gaussian series of the first order and its hyperparameters, as functions of both.

The series is ``xₜ = aₜ + ρ xₜ₋₁ + sₜ νₜ`` from ``x₀ = 0``. Its prior is compiled as a, s and ρ with two derivatives by
θ. All else is in closed form: see `pymc_rmhmc.metrics.processes.series`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable
from scipy.signal import lfilter

from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.model.forms.priors import GAUSSIAN_VECTORS, FirstOrder, LatentVariable, first_order
from pymc_rmhmc.model.general.latent_model import LatentModel
from pymc_rmhmc.model.structure import LatentBlock

__all__ = ["SeriesModel"]

type Array = NDArray[np.float64]


class SeriesModel(LatentModel):
    """One series of the first order; see `LatentModel`.

    `prior` is ``θ -> (a (n,), s (n,), ρ, ∂a (k, n), ∂s (k, n), ∂ρ (k,))``.

    Raises
    ------
    ConfigurationError
        Besides what `LatentModel` raises, if the series has no density at the point.
    """

    is_series = True
    _what = "the series"

    def __init__(
        self, model: pm.Model, block: LatentBlock, hyperparameters: Sequence[TensorVariable],
        point: dict[str, np.ndarray], metric: str,
    ) -> None:  # fmt: skip
        super().__init__(model, block, hyperparameters, point, metric)
        _, deviation, rho, *_ = self.prior(np.ascontiguousarray(self.variables.pack(point)[self.n_process :]))
        bad = np.flatnonzero(~(np.isfinite(deviation) & (deviation > 0.0)))
        if bad.size:
            why = "Standard deviations must be positive."
            name = GAUSSIAN_VECTORS[type(block.latents[0].variable.owner.op)]
            if name == "autoregression" and abs(float(rho)) >= 1.0:
                why = (
                    "An autoregression that begins with its stationary distribution needs a coefficient between -1 and "
                    "1. Give the coefficient a prior or an initval= between them, or init_dist= another distribution."
                )
            raise ConfigurationError(
                f"{self.names[0]} has no density at the start values: the standard deviation of its value "
                f"{bad[0] + 1} is {deviation[bad[0]]:g}, and its coefficient is {float(rho):g}. {why}"
            )

    def _made_of(self, latent: LatentVariable) -> list[tuple[TensorVariable, tuple[int, ...]]]:
        """Return a, s and ρ, each with its shape."""
        found, n = first_order(latent.variable), self.n_process
        assert isinstance(found, FirstOrder)
        return [(found.level, (n,)), (found.deviation, (n,)), (found.rho, ())]

    def _mean(self, theta: Array) -> tuple[Array, Array]:
        """See `LatentModel`."""
        level, _, rho, level_slopes, _, rho_slopes = self.prior(theta)
        mean = lfilter([1.0], [1.0, -float(rho)], level)
        # The coefficient moves the mean too where that is 0 at the start values alone.
        reached = np.cumsum(np.abs(level) + np.abs(level_slopes).sum(axis=0))
        before = np.concatenate(([0.0], reached[:-1]))
        return mean, np.abs(level_slopes) + np.abs(rho_slopes)[:, None] * before
