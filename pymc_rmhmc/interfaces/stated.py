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
    """A vector x with a dense covariance, which a predictor reads times d.

    Attributes
    ----------
    covariance : (k, k) array or None
        Of ``d x``, in Fortran order; None where its factor is given.
    location : (k,) array or float
        The mean of x; of rows that share a covariance, that of all of them, (N,).
    is_variable : bool
        Whether the model's variable is x itself, which a predictor then reads as it is, and not the whitened vector.
    multiplier : (k,) array or float
        d, of any sign.
    moves : bool
        Whether θ moves the covariance.
    factor : (k, k) array, optional
        The lower factor of the covariance, where the model gives it; its upper triangle is not read.
    """

    covariance: Array | None
    location: Array | float
    is_variable: bool
    multiplier: Array | float = 1.0
    moves: bool = True
    factor: Array | None = None

    def variances(self) -> Array:
        """Return the variance of each value that is read, (k,): a copy, for a view would hold the matrix."""
        if self.factor is not None:
            return np.asarray((np.tril(self.factor) ** 2).sum(axis=1))
        assert self.covariance is not None
        return self.covariance.diagonal().copy()


@dataclass(frozen=True, slots=True)
class StatedKronecker:
    """A whitened vector on a grid, whose covariance is a Kronecker product.

    Attributes
    ----------
    covariances : tuple of (k_i, k_i) arrays
        Its factors, of what the predictor reads.
    sign : array or float
        Of the number that a predictor reads it times.
    moves : bool
        Whether θ moves the factors.
    """

    covariances: tuple[Array, ...]
    sign: Array | float = 1.0
    moves: bool = True
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
    """Independent coefficients: ``location + deviation y``, of which ``spread y`` is read.

    Attributes
    ----------
    spread : (k,) array
        Of any sign.
    location, deviation : (k,) array
        Mean and standard deviation of the model's variable.
    """

    spread: Array
    location: Array
    deviation: Array
    is_variable: ClassVar[bool] = False

    def variances(self) -> Array:
        """Return the variance of each value that is read, (k,)."""
        return self.spread**2


@dataclass(frozen=True, slots=True, eq=False)
class AffineRows:
    """Rows of a sparse affine map of latent values, as multiples of the numbers u(θ).

    Attributes
    ----------
    row, column : (nnz,) int array
        Where an entry stands.
    coefficient, number : (nnz,) array
        An entry is the coefficient times that number of u; u[0] is 1, so that 0 is for what θ does not move.
    offset, offset_number : (m,) array
        The same of the constant of each row.
    """

    row: Indices
    column: Indices
    coefficient: Array
    number: Indices
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
    """A vector of a field with a dense covariance K and a mean of 0.

    Attributes
    ----------
    size : int
        The number of its values.
    is_variable : bool
        Whether the model's variable is the vector itself, and not the whitened one.
    is_factor : bool
        Whether the model gives the lower factor of K.
    moves : bool
        Whether θ moves K.
    same_as : int, optional
        An earlier kernel with the same K, and the same of the rest.
    """

    size: int
    is_variable: bool
    is_factor: bool
    moves: bool = True
    same_as: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FieldMaps:
    """What does not move with θ of a Gaussian field: ``e = J x - c`` is N(0, I), and sites are ``η = A x + a``.

    Attributes
    ----------
    size : int
        The number of latent values x, n.
    residuals : AffineRows
        J, with c as its offset.
    predictors : AffineRows
        A, with a as its offset.
    dense, dense_offset : (k, n), (k,) array
        Constant rows of J with so many entries that P would have no zeros with them, and their c.
    values : AffineRows, optional
        The model's own values, where x are others.
    kernels : tuple of FieldKernel
        The vectors with a dense covariance: the last latent values, of which the rows read the vector itself.
    """

    size: int
    residuals: AffineRows
    predictors: AffineRows
    dense: Array
    dense_offset: Array
    values: AffineRows | None = None
    kernels: tuple[FieldKernel, ...] = ()

    @property
    def n_dense(self) -> int:
        """The number of values with a dense covariance."""
        return sum(each.size for each in self.kernels)


@dataclass(frozen=True, slots=True, eq=False)
class StatedField:
    """A Gaussian field at one θ.

    Attributes
    ----------
    maps : FieldMaps
        The same at every θ.
    numbers : array
        u(θ), of which the first is 1, and the last are K, or its factor, of each kernel, row by row.
    log_normaliser : float
        The log density of the prior where every residual is 0, of kernels as whitened vectors.
    """

    maps: FieldMaps
    numbers: Array
    log_normaliser: float


type StatedVector = StatedDense | StatedKronecker | StatedCoefficients


@dataclass(slots=True)
class StatedPrior:
    """The prior of a block's latent vectors at one θ.

    Attributes
    ----------
    mean : (n,) array
        The sites where every vector is at its mean.
    shift : (n,) array
        What the sites have beyond the latent values.
    vectors : tuple of StatedVector
        The vectors; of rows, one that all share, or one for each.
    field : StatedField, optional
        In place of vectors, mean, shift and design.
    design : array, sparse array, list or None
        The matrix that reads all vectors, (n, k); or a list with one for each vector, None for the identity; or None
        where the only vector's values are the sites.
    """

    mean: Array
    shift: Array
    vectors: tuple[StatedVector, ...]
    design: Any = None
    field: StatedField | None = None
