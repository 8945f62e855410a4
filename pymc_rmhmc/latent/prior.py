"""A block's prior at one θ in standard normal coordinates, and as an affine map from these to its sites.

A latent Gaussian block is a set of vectors ``x_j ~ N(μ_j, Σ_j)`` and sites ``η = c + Σ_j A_j x_j``.
With ``Σ_j = L_j L_jᵀ`` and ``x_j = μ_j + L_j ν_j`` the coordinates ν are standard normal a priori and
``η = η₀ + Φ ν`` with ``Φ = [A_1 L_1, A_2 L_2, ...]``.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.interfaces.stated import StatedPrior
from pymc_rmhmc.latent.forms import operator_of
from pymc_rmhmc.latent.operators import stacked
from pymc_rmhmc.linalg.cholesky import gram_lower, multiply_lower

__all__ = ["FactorizedPrior", "Predictor"]

type Array = NDArray[np.float64]


class Predictor:
    """The affine map ``η = η₀ + Φ z`` from standard normal coordinates to the sites.

    Parameters
    ----------
    offset : (n,) array
        η₀.
    matrix : (n, k) array
        Φ.
    triangular : bool
        Whether Φ is square and lower triangular: products then cost half.
    gram : (n, n) array, optional
        ``Φ Φᵀ`` where it is known already (a GP's covariance).
    """

    def __init__(self, offset: Array, matrix: Array, *, triangular: bool, gram: Array | None = None) -> None:
        self.offset = offset
        self.matrix = np.asfortranarray(matrix)
        self.triangular = triangular
        self._gram = gram
        self.n_sites, self.n_latent = matrix.shape

    def apply(self, z: Array) -> Array:
        """Return ``η₀ + Φ z``, (n,)."""
        return self.offset + self.linear(z)

    def linear(self, z: Array) -> Array:
        """Return ``Φ z``, (n,)."""
        if self.triangular:
            return multiply_lower(self.matrix, z)
        return self.matrix @ z

    def adjoint(self, sites: Array) -> Array:
        """Return ``Φᵀ v``, (k,)."""
        if self.triangular:
            return multiply_lower(self.matrix, sites, transpose=True)
        return self.matrix.T @ sites

    @property
    def gram(self) -> Array:
        """``Φ Φᵀ`` (n, n), the prior covariance of the sites; computed once."""
        if self._gram is None:
            dense = not self.triangular
            self._gram = np.asfortranarray(self.matrix @ self.matrix.T) if dense else gram_lower(self.matrix)
        return self._gram

    @cached_property
    def variance(self) -> Array:
        """The diagonal of ``Φ Φᵀ``, (n,)."""
        return np.asarray(np.einsum("ij,ij->i", self.matrix, self.matrix))

    def forget_gram(self) -> None:
        """Let go of ``Φ Φᵀ``, which is computed again for who asks."""
        self._gram = None


class FactorizedPrior:
    """The whitened chart ν of a block's prior at one θ: ``x_j = μ_j + L_j ν_j`` or ``x_j = ν_j``.

    Raises a `PriorFailure` if a covariance is not positive definite or an input is not finite.

    Parameters
    ----------
    stated : StatedPrior
        What the model states, with a matrix for each vector, or none; every covariance is factorised here, once.

    Attributes
    ----------
    root : Root
        The L of all vectors, and the model's variables of a ν.
    predictor : Predictor
        ``η = η₀ + Φ ν``.
    shift : (n,) array
        What the sites have beyond the latent values.
    sites_are_model_values : bool
        Whether ``η - shift`` are the model's variables themselves (a centred GP seen at every input).
    """

    def __init__(self, stated: StatedPrior) -> None:
        designs = [None] * len(stated.vectors) if stated.design is None else stated.design
        inputs = [stated.mean, *(design for design in designs if design is not None)]
        if not all(np.isfinite(each).all() for each in inputs):
            raise PriorFailure(Failure.NON_FINITE)
        operators = [operator_of(vector) for vector in stated.vectors]
        self.root, self.shift = stacked(operators), stated.shift
        is_plain = len(operators) == 1 and designs[0] is None
        self.sites_are_model_values = is_plain and stated.vectors[0].is_variable
        if is_plain:
            # The covariance stays at hand for the mode alone: see `Predictor.forget_gram`.
            known = getattr(stated.vectors[0], "covariance", None)
            self.predictor = Predictor(stated.mean, operators[0].matrix(), triangular=True, gram=known)
        else:
            pairs = zip(designs, (operator.matrix() for operator in operators), strict=True)
            columns = [matrix if design is None else design @ matrix for design, matrix in pairs]
            self.predictor = Predictor(stated.mean, np.hstack(columns), triangular=False)

    @property
    def n_latent(self) -> int:
        """The number of latent values, all vectors together."""
        return self.root.size
