"""A latent vector on a grid as a function of (θ, η): its covariance is a Kronecker product, and stays one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.graph.traversal import ancestors

from pymc_rmhmc.interfaces.stated import StatedKronecker, StatedPrior
from pymc_rmhmc.model.forms.joint_blocks import Block, by_rows
from pymc_rmhmc.model.forms.priors import LatentVariable
from pymc_rmhmc.model.forms.pullback import Differentiated
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observed.observed_terms import Terms, shift_of

__all__ = ["KroneckerBlock"]

type Array = NDArray[np.float64]


class KroneckerBlock(Block):
    """One latent vector ``(L₁ ⊗ L₂ ⊗ ...) v`` of whitened values: its prior and likelihood as functions of θ.

    A site is a value of the vector and whatever part of its predictor θ adds to it. What is compiled is of the size
    of the K_i, and not of their product.

    Attributes
    ----------
    design_shape : None
        There are none.
    fixed_covariance : bool
        Whether every K_i is the same at every θ.
    """

    design_shape = None
    is_sum = False

    def __init__(
        self, model: pm.Model, name: str, latent: LatentVariable, theta: Hyperparameters, size: int,
        observed: Sequence[Terms],
    ) -> None:  # fmt: skip
        self.name, self.value_names = name, (str(model.rvs_to_values[latent.variable].name),)
        self.sizes, self.n_sites = (size,), size
        covariances = theta.substitute(latent.matrices, model)
        self.fixed_covariance = theta.symbol not in ancestors(covariances)
        shift = shift_of(observed, theta, size)
        stated = [shift, *covariances]
        self._prior = Differentiated(model, theta.symbol, stated, stated)
        self._compile_likelihood(model, theta, observed, shift)
        self._compile_information(model, theta, observed, shift)

    def prior(self, theta: Array) -> StatedPrior:
        """Return the vector at θ."""
        shift, *covariances = self._prior(theta)
        return StatedPrior(shift, shift, (StatedKronecker(tuple(covariances), moves=not self.fixed_covariance),))

    def prior_pullback(
        self, theta: Array, mean_bar: Array, vector_bars: list[Sequence[Array]], design_bar: None
    ) -> Array:
        """Return ``Σ ∂m/∂θ m̄ + Σ_i ∂K_i/∂θ K̄_i``, (d,)."""
        return self._prior.pullback(theta, mean_bar, *map(by_rows, vector_bars[0]))
