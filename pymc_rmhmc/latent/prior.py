"""From the prior that a model states to standard normal coordinates.

A latent Gaussian block is a set of components ``x_j ~ N(μ_j, Σ_j)`` and sites ``η = c + Σ_j A_j x_j``.
With ``Σ_j = L_j L_jᵀ`` and ``x_j = μ_j + L_j ν_j`` the coordinates ν are standard normal a priori and
``η = η₀ + Φ ν`` with ``Φ = [A_1 L_1, A_2 L_2, ...]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.linalg.cholesky import cholesky, gram_lower, multiply_lower, solve_lower

__all__ = ["Component", "FactorizedPrior", "Predictor", "Prior", "PriorFailure"]

type Array = NDArray[np.float64]


class Component(Protocol):
    """One latent variable of a block, as the model states it (see `FactorizedPrior`)."""

    @property
    def mean(self) -> Array | None:
        """μ (k,); None for zero."""

    @property
    def covariance(self) -> Array | None:
        """Σ (k, k), to be factorised; None if the factor is given or is the identity."""

    @property
    def cholesky(self) -> Array | None:
        """The lower factor of Σ (k, k), where the model gives it."""

    @property
    def predictor(self) -> Array | None:
        """A (n_sites, k); None for the identity."""

    @property
    def centred(self) -> bool:
        """Whether the model's variable is x itself; if not, it is ν (a whitened parametrisation)."""


class Prior(Protocol):
    """A block's components and the part of the sites that does not depend on them."""

    @property
    def components(self) -> Sequence[Component]:
        """In the order in which their values are concatenated."""

    @property
    def offset(self) -> Array:
        """C (n_sites,)."""


class PriorFailure(Exception):  # noqa: N818 - it is caught and counted, never shown
    """A prior that cannot be used at this θ; `failure` is the cause to count."""

    def __init__(self, failure: Failure, component: int) -> None:
        super().__init__(f"{failure.name} in component {component}")
        self.failure = failure
        self.component = component


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
        """``η₀ + Φ z``, (n,)."""
        return self.offset + self.linear(z)

    def linear(self, z: Array) -> Array:
        """``Φ z``, (n,)."""
        if self.triangular:
            return multiply_lower(self.matrix, z)
        return self.matrix @ z

    def adjoint(self, sites: Array) -> Array:
        """``Φᵀ v``, (k,)."""
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


@dataclass(frozen=True)
class _Stated:
    """What is kept of a component: a covariance is as large as its factor, and not needed beside it."""

    mean: Array | None
    predictor: Array | None
    centred: bool


class FactorizedPrior:
    """The whitened chart ν of a block's prior at one θ: ``x_j = μ_j + L_j ν_j`` or ``x_j = ν_j``.

    Parameters
    ----------
    prior : Prior
        What the model states; every covariance is factorised here, once.

    Attributes
    ----------
    predictor : Predictor
        ``η = η₀ + Φ ν``.
    log_jacobian : float
        ``log |∂ν/∂x|``, so that ``log p(x) = log N(ν; 0, I) + log_jacobian``.

    Raises
    ------
    PriorFailure
        If a covariance is not positive definite or an input is not finite.
    """

    def __init__(self, prior: Prior) -> None:
        components = tuple(prior.components)
        self._factors = [_factor(component, j) for j, component in enumerate(components)]
        self._components = [_Stated(c.mean, c.predictor, c.centred) for c in components]
        self._sizes = [
            prior.offset.size if f is None and c.predictor is None else _n_columns(f, c)
            for f, c in zip(self._factors, self._components, strict=True)
        ]
        if not np.isfinite(prior.offset).all():
            raise PriorFailure(Failure.NON_FINITE, -1)
        self._offset = np.asarray(prior.offset, dtype=np.float64)
        self.predictor = self._build_predictor(components[0].covariance)
        self.log_jacobian = -sum(
            float(np.log(factor.diagonal()).sum())
            for factor, component in zip(self._factors, self._components, strict=True)
            if factor is not None and component.centred
        )

    @property
    def n_latent(self) -> int:
        """The number of latent values, all components together."""
        return sum(self._sizes)

    def log_prior(self, whitened: Array) -> float:
        """``log p(x)`` of the model's variables at ν, with every constant."""
        k = self.n_latent
        return -0.5 * float(whitened @ whitened) - 0.5 * k * math.log(2.0 * math.pi) + self.log_jacobian

    def to_model(self, whitened: Array) -> Array:
        """ν to the model's variables x, both (k,) with the components concatenated."""
        parts = []
        for part, component, factor in self._split(whitened):
            if component.centred:
                part = part if factor is None else multiply_lower(factor, part)  # noqa: PLW2901
                part = part if component.mean is None else part + component.mean  # noqa: PLW2901
            parts.append(part)
        return np.concatenate(parts)

    def from_model(self, values: Array) -> Array:
        """The inverse of `to_model`."""
        parts = []
        for part, component, factor in self._split(values):
            if component.centred:
                part = part if component.mean is None else part - component.mean  # noqa: PLW2901
                part = part if factor is None else solve_lower(factor, part)  # noqa: PLW2901
            parts.append(part)
        return np.concatenate(parts)

    def spread(self, columns: Array) -> Array:
        """The linear part of `to_model` for each column of a matrix (k, m)."""
        parts = []
        for part, component, factor in self._split(columns):
            if component.centred and factor is not None:
                part = multiply_lower(factor, np.asfortranarray(part))  # noqa: PLW2901
            parts.append(part)
        return np.vstack(parts)

    @property
    def sites_are_model_values(self) -> bool:
        """Whether ``η - c`` are the model's variables themselves (a centred GP seen at every input)."""
        only = self._components[0]
        return len(self._components) == 1 and only.centred and only.predictor is None

    @property
    def offset(self) -> Array:
        """C (n_sites,), the part of the sites that does not depend on x."""
        return self._offset

    def _split(self, values: Array) -> list[tuple[Array, _Stated, Array | None]]:
        """The concatenated values, cut into components, with what belongs to each."""
        cuts = np.cumsum(self._sizes)[:-1]
        return list(zip(np.split(values, cuts), self._components, self._factors, strict=True))

    def _build_predictor(self, first_covariance: Array | None) -> Predictor:
        """η₀ and Φ, keeping the triangle where Φ is one, and ΦΦᵀ where it is known."""
        offset = self._offset.copy()
        columns = []
        for component, factor, size in zip(self._components, self._factors, self._sizes, strict=True):
            if component.centred and component.mean is not None:
                mean = component.mean
                offset = offset + (mean if component.predictor is None else component.predictor @ mean)
            block = np.eye(size) if factor is None else factor
            columns.append(block if component.predictor is None else component.predictor @ block)
        if len(columns) == 1 and self._components[0].predictor is None:
            gram = None if first_covariance is None else _in_fortran_order(first_covariance)
            return Predictor(offset, columns[0], triangular=True, gram=gram)
        return Predictor(offset, np.hstack(columns), triangular=False)


def _in_fortran_order(symmetric: Array) -> Array:
    """A symmetric matrix in Fortran order; its transpose is itself, and costs nothing."""
    return np.asarray(symmetric.T if symmetric.flags.c_contiguous else np.asfortranarray(symmetric), dtype=np.float64)


def _n_columns(factor: Array | None, component: _Stated) -> int:
    """K of a component, from whichever of its matrices is there."""
    matrix = factor if factor is not None else component.predictor
    assert matrix is not None
    return int(matrix.shape[1])


def _factor(component: Component, index: int) -> Array | None:
    """The lower factor of a component's covariance, None for the identity."""
    if component.mean is not None and not np.isfinite(component.mean).all():
        raise PriorFailure(Failure.NON_FINITE, index)
    if component.predictor is not None and not np.isfinite(component.predictor).all():
        raise PriorFailure(Failure.NON_FINITE, index)
    if component.cholesky is not None:
        factor = np.asfortranarray(np.tril(component.cholesky), dtype=np.float64)
        if not np.isfinite(factor).all() or not (factor.diagonal() > 0.0).all():
            raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE, index)
        return factor
    if component.covariance is None:
        return None
    if not np.isfinite(component.covariance).all():
        raise PriorFailure(Failure.NON_FINITE, index)
    computed = cholesky(_in_fortran_order(component.covariance))
    if computed is None:
        raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE, index)
    return computed
