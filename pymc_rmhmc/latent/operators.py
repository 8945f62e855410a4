"""Priors at one θ as linear operators: ``x = L y`` with ``y ~ N(0, I)``, and L as a form of prior has it.

Each form is a file of `pymc_rmhmc.latent.forms`. The solvers ask an operator for products alone, and hand the
derivatives by its covariance back to it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from pymc_rmhmc.errors import Failure, PriorFailure
from pymc_rmhmc.linalg.cholesky import cholesky, multiply_lower
from pymc_rmhmc.linalg.products import congruence, contraction

__all__ = ["Design", "Operator", "Root", "factor_in_place", "factor_or_fail", "places_of", "stacked", "without_factor"]

type Array = NDArray[np.float64]
type Design = Array | sparse.csr_array


class Root(ABC):
    """L of a prior, and the model's variable of a y."""

    size: int  # k, the number of latent values
    location: Array | float = 0.0  # (k,): the model's variable where y is 0

    @abstractmethod
    def draw(self, whitened: Array) -> Array:
        """Return ``L y`` for a vector (k,), or for each column of a matrix (k, m)."""

    @abstractmethod
    def draw_adjoint(self, values: Array) -> Array:
        """Return ``Lᵀ v`` for a vector (k,), or for each column of a matrix (k, m)."""

    @abstractmethod
    def displace(self, whitened: Array) -> Array:
        """Return how far from `location` the model's variable of a y is, of a vector or of each column of a matrix."""

    def to_model(self, whitened: Array) -> Array:
        """Return the model's variable of a y, (k,)."""
        return np.asarray(self.location + self.displace(whitened))

    @abstractmethod
    def from_model(self, values: Array) -> Array:
        """Return the y of the model's variable."""

    def log_volume(self) -> float:
        """Return ``log |∂ variable / ∂y|``."""
        return 0.0

    def log_prior(self, whitened: Array) -> float:
        """Return the log density of the model's variable of a y."""
        return -0.5 * float(whitened @ whitened) - 0.5 * self.size * math.log(2.0 * math.pi) - self.log_volume()

    def undraw(self, values: Array) -> Array | None:
        """Return ``L⁻¹ v``, or None where that costs more than a product."""
        return None

    def inner(self, gram: Array, rooted: Callable[[], Array]) -> Array:
        """Return ``I + LᵀM L`` for M and ``LᵀM`` (k, k), in Fortran order; its lower triangle is read."""
        inner = np.asfortranarray(self.draw_adjoint(rooted().T))
        inner.flat[:: self.size + 1] += 1.0
        return inner

    def covariance_of(self, half: Array) -> Array:
        """Return ``L RᵀR Lᵀ`` for a lower R (k, k), in Fortran order; its lower triangle is read."""
        root = self.draw(np.asfortranarray(half.T))
        return np.asarray((root @ root.T).T)


class Operator(Root):
    """The prior of one latent vector: its L, and the derivative by what L is made of."""

    moves: bool = True  # whether θ moves what L is made of, so that the derivative by it is wanted

    def matrix(self) -> Array:
        """Return L, (k, k)."""
        return self.draw(np.eye(self.size))

    @abstractmethod
    def covariance(self) -> Array:
        """Return ``L Lᵀ``, (k, k)."""

    def seen(self, design: Design | None, covariance: Array | None = None) -> Array:
        """Return ``A L Lᵀ Aᵀ``, (n, n), or without an A ``L Lᵀ``, which may be at hand."""
        covariance = self.covariance() if covariance is None else covariance
        return covariance if design is None else congruence(design, covariance)

    def restrict(self, matrix: Array) -> Array:
        """Return what `pullback` takes of a derivative by ``L Lᵀ``, (k, k)."""
        return matrix

    def contract(self, design: Design, matrix: Array) -> Array:
        """Return what `pullback` takes of ``Aᵀ M A``, for a derivative M (n, n) by ``A L Lᵀ Aᵀ``."""
        return contraction(design, matrix)

    def outer(self, left: Array, right: Array) -> Array:
        """Return what `pullback` takes of ``left rightᵀ``, for two vectors (k,)."""
        return np.outer(left, right)

    def unexplained(self, gram: Array, rooted: Callable[[], Array], half: Array, where: slice) -> Array:
        """Return what `pullback` takes of ``M - M L E⁻¹ LᵀM`` where this vector is one of several.

        `gram` (K, K): M, of all vectors.
        `rooted`: what gives ``LᵀM``.
        `half` (K, K): the inverse of E's lower factor.
        `where`: the places of this vector.
        """
        columns = multiply_lower(half, np.asfortranarray(rooted()[:, where]))
        return np.asarray(gram[where, where] - columns.T @ columns)

    @abstractmethod
    def pullback(self, covariance_bar: Array, drawn_bar: Array, noise: Array) -> Any:
        """Return the derivative by what L is made of.

        `covariance_bar`: by ``L Lᵀ``, as `restrict` or `contract` leaves it: its product with a symmetric matrix is
          what counts.
        `drawn_bar`, `noise` (k,): by ``L z``, and z.
        """

    def pullback_of_draw(self, drawn_bar: Array, noise: Array) -> Array | None:
        """Return a derivative by ``L Lᵀ`` (k, k) that stands for one by ``L z``; None where L has no such K.

        `drawn_bar`, `noise` (k,) or (k, m): of a draw, or of several.
        """
        return None

    def no_pullback(self) -> Any:
        """Return what stands for the derivative where it is not wanted."""
        return np.zeros((1, 1))


class _Stack(Root):
    """Several vectors, one after another: L has theirs on its diagonal."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self._operators, self._slices = operators, places_of(operators)
        self.size = self._slices[-1].stop

    def draw(self, whitened: Array) -> Array:
        """Return ``L y`` for a vector (k,), or for each column of a matrix (k, m)."""
        return self._each(lambda operator, part: operator.draw(part), whitened)

    def draw_adjoint(self, values: Array) -> Array:
        """Return ``Lᵀ v`` for a vector (k,), or for each column of a matrix (k, m)."""
        return self._each(lambda operator, part: operator.draw_adjoint(part), values)

    def displace(self, whitened: Array) -> Array:
        """Return how far from `location` the model's variables of all y are."""
        return self._each(lambda operator, part: operator.displace(part), whitened)

    def to_model(self, whitened: Array) -> Array:
        """Return the model's variables of all y."""
        return self._each(lambda operator, part: operator.to_model(part), whitened)

    def from_model(self, values: Array) -> Array:
        """Return the y of the model's variables."""
        return self._each(lambda operator, part: operator.from_model(part), values)

    def log_volume(self) -> float:
        """Return ``log |∂ variables / ∂y|``."""
        return sum(operator.log_volume() for operator in self._operators)

    def _each(self, method: Callable[[Operator, Array], Array], values: Array) -> Array:
        made = np.empty(values.shape, order="F")
        for operator, where in zip(self._operators, self._slices, strict=True):
            made[where] = method(operator, values[where])
        return made


def stacked(operators: Sequence[Operator]) -> Root:
    """Return the L of several vectors, one after another."""
    return operators[0] if len(operators) == 1 else _Stack(operators)


def places_of(operators: Sequence[Operator]) -> list[slice]:
    """Return where each vector's values are among those of all."""
    found, first = [], 0
    for operator in operators:
        found.append(slice(first, first + operator.size))
        first += operator.size
    return found


def factor_or_fail(matrix: Array) -> Array:
    """Return the lower Cholesky factor, or raise the failure to count."""
    factor = cholesky(matrix)
    if factor is None:
        raise without_factor(matrix)
    return factor


def factor_in_place(matrix: Array) -> Array:
    """Return the lower Cholesky factor in place of a matrix, or raise the failure to count."""
    # What is not finite is not to be seen any more afterwards.
    finite = bool(np.isfinite(matrix).all())
    factor = cholesky(matrix, overwrite=True) if finite else None
    if factor is None:
        raise PriorFailure(Failure.NOT_POSITIVE_DEFINITE if finite else Failure.NON_FINITE)
    return factor


def without_factor(matrix: Array) -> PriorFailure:
    """Return why a matrix, or what was made of it, has no factor."""
    finite = bool(np.isfinite(matrix).all())
    return PriorFailure(Failure.NOT_POSITIVE_DEFINITE if finite else Failure.NON_FINITE)
