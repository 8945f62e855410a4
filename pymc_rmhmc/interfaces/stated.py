"""What a model states of its latent vectors at one θ: one dataclass for each form of a prior.

`pymc_rmhmc.model.forms` evaluates them, and `pymc_rmhmc.latent.forms` makes an operator of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AffineRows", "FieldKernel", "FieldMaps", "StatedCoefficients", "StatedDense", "StatedField", "StatedKronecker",
    "StatedPrior", "StatedVector",
]  # fmt: skip

type Array = NDArray[np.float64]
type Indices = NDArray[np.int64]


# Not frozen, though nobody writes to them: both of these are made for every θ, and freezing triples what that takes.
@dataclass(slots=True)
class StatedDense:
    """A vector x with a dense covariance, which a predictor reads times d."""

    covariance: Array | None  # (k, k): of ``d x``, in Fortran order; None where its factor is given
    location: Array | float  # (k,): the mean of x; of rows that share a covariance, that of all of them, (N,)
    # Whether the model's variable is x itself, which a predictor then reads as it is, and not the whitened vector.
    is_variable: bool
    multiplier: Array | float = 1.0  # (k,): d, of any sign
    moves: bool = True  # whether θ moves the covariance
    # (k, k): the lower factor of the covariance, where the model gives it; its upper triangle is not read.
    factor: Array | None = None

    def variances(self) -> Array:
        """Return the variance of each value that is read, (k,): a copy, for a view would hold the matrix."""
        if self.factor is not None:
            return np.asarray((np.tril(self.factor) ** 2).sum(axis=1))
        assert self.covariance is not None
        return self.covariance.diagonal().copy()


@dataclass(frozen=True, slots=True)
class StatedKronecker:
    """A whitened vector on a grid, whose covariance is a Kronecker product."""

    covariances: tuple[Array, ...]  # tuple of (k_i, k_i) arrays: its factors, of what the predictor reads
    sign: Array | float = 1.0  # of the number that a predictor reads it times
    moves: bool = True  # whether θ moves the factors
    location: ClassVar[float] = 0.0
    is_variable: ClassVar[bool] = False

    def variances(self) -> Array:
        """Return the variance of each value that is read, (k,)."""
        variances: Array = np.ones(1)
        for each in self.covariances:
            variances = np.asarray(np.kron(variances, each.diagonal()))
        return variances


@dataclass(frozen=True, slots=True)
class StatedCoefficients:
    """Independent coefficients: ``location + deviation y``, of which ``spread y`` is read."""

    spread: Array  # (k,): of any sign
    # `location`, `deviation`: (k,), mean and standard deviation of the model's variable.
    location: Array
    deviation: Array
    is_variable: ClassVar[bool] = False

    def variances(self) -> Array:
        """Return the variance of each value that is read, (k,)."""
        return self.spread**2


@dataclass(frozen=True, slots=True, eq=False)
class AffineRows:
    """Rows of a sparse affine map of latent values, as multiples of the numbers u(θ)."""

    # `row`, `column`: (nnz,), where an entry stands.
    row: Indices
    column: Indices
    # `coefficient`, `number`: (nnz,), an entry is the coefficient times that number of u; u[0] is 1, so that 0 is for
    # what θ does not move.
    coefficient: Array
    number: Indices
    # `offset`, `offset_number`: (m,), the same of the constant of each row.
    offset: Array
    offset_number: Indices

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.offset.size

    def entries(self, numbers: Array) -> Array:
        """Return the entries (nnz,)."""
        return self.coefficient * numbers[self.number]

    def at(self, numbers: Array, values: Array, sign: float = 1.0) -> Array:
        """Return rows times values (n,), with their offset added or, by a sign of -1, taken off."""
        made = np.bincount(self.row, self.entries(numbers) * values[self.column], minlength=self.n_rows)
        return np.asarray(made + sign * self.offset * numbers[self.offset_number])


@dataclass(frozen=True, slots=True)
class FieldKernel:
    """A vector of a field with a dense covariance K and a mean of 0."""

    size: int  # the number of its values
    is_variable: bool  # whether the model's variable is the vector itself, and not the whitened one
    is_factor: bool  # whether the model gives the lower factor of K
    moves: bool = True  # whether θ moves K
    same_as: int | None = None  # an earlier kernel with the same K, and the same of the rest


@dataclass(frozen=True, slots=True, eq=False)
class FieldMaps:
    """What does not move with θ of a Gaussian field: ``e = J x - c`` is N(0, I), and sites are ``η = A x + a``."""

    size: int  # the number of latent values x, n
    residuals: AffineRows  # J, with c as its offset
    predictors: AffineRows  # A, with a as its offset
    # `dense`, `dense_offset`: (k, n), (k,) array: constant rows of J with so many entries that P would have no zeros
    # with them, and their c.
    dense: Array
    dense_offset: Array
    values: AffineRows | None = None  # the model's own values, where x are others
    # The vectors with a dense covariance: the last latent values, of which the rows read the vector itself.
    kernels: tuple[FieldKernel, ...] = ()

    @property
    def n_dense(self) -> int:
        """The number of values with a dense covariance."""
        return sum(each.size for each in self.kernels)


@dataclass(frozen=True, slots=True, eq=False)
class StatedField:
    """A Gaussian field at one θ."""

    maps: FieldMaps  # the same at every θ
    numbers: Array  # u(θ), of which the first is 1, and the last are K, or its factor, of each kernel, row by row
    log_normaliser: float  # the log density of the prior where every residual is 0, of kernels as whitened vectors


type StatedVector = StatedDense | StatedKronecker | StatedCoefficients


@dataclass(slots=True)
class StatedPrior:
    """The prior of a block's latent vectors at one θ."""

    mean: Array  # (n,): the sites where every vector is at its mean
    shift: Array  # (n,): what the sites have beyond the latent values
    vectors: tuple[StatedVector, ...]  # the vectors; of rows, one that all share, or one for each
    # The matrix that reads all vectors, (n, k); or a list with one for each vector, None for the identity; or None
    # where the only vector's values are the sites.
    design: Any = None
    field: StatedField | None = None  # in place of vectors, mean, shift and design
