"""What a model gives to the rooms that sample it: latent blocks and the rest of its density, as functions of θ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pymc_rmhmc.interfaces.stated import FieldMaps, StatedPrior

__all__ = ["Bound", "JointBlock", "JointDensity"]

type Array = NDArray[np.float64]
# A function that may be compiled, and what it takes after what it is given.
type Bound = tuple[Callable[..., Any], tuple[np.ndarray, ...]]


class JointBlock(Protocol):
    """Latent Gaussian variables that are read together, as functions of θ."""

    @property
    def design_shape(self) -> tuple[int, int] | None:
        """Of the A by which all latent values are read, (n, k).

        None for one vector with a covariance matrix, whose values are sites, and for a sum whose vectors have a matrix
        each.
        """

    @property
    def has_moving_design(self) -> bool:
        """Whether A, of coefficients or of the vectors of a sum, moves with θ."""

    @property
    def n_sites(self) -> int:
        """The number of sites, n."""

    @property
    def size(self) -> int:
        """The number of latent values."""

    @property
    def fixed_covariance(self) -> bool:
        """Whether the covariance matrix is the same at every θ."""

    @property
    def rows(self) -> NDArray[np.int64] | None:
        """Of several vectors that are independent given θ, the sites of each (r, n); None for one vector."""

    @property
    def is_sum(self) -> bool:
        """Whether several vectors are read, by one matrix or each by its own."""

    @property
    def maps(self) -> FieldMaps | None:
        """What does not move with θ of a field; None of another block."""

    @property
    def n_residuals(self) -> int:
        """The number of a field's residuals; 0 of another."""

    @property
    def has_moving_sites(self) -> bool:
        """Whether parameters of the likelihood move the information of the sites."""

    def information(self, theta: Array, eta: Array) -> Array:
        """The mean over two η (2, n) of each site's information, (n,), or with a design of all, (1,).

        That is what the likelihood's slope at a site grows by with θ, and needed where sites move.
        """

    def information_pullback(self, theta: Array, eta: Array, bar: Array) -> Array:
        """``Σ ∂I/∂θ Ī``, (d,)."""

    def prior(self, theta: Array) -> StatedPrior:
        """Return what the latents' prior is at θ."""

    def forget(self) -> None:
        """Let go of what the derivative of the prior that was asked for last would need: there will be none."""

    def prior_pullback(self, theta: Array, mean_bar: Array, vector_bars: list[Any], design_bar: Any) -> Array:
        """Return the derivative by θ (d,) of a function of the prior.

        `theta` (d,): θ.
        `mean_bar` (n,): the derivative by the mean.
        `vector_bars`: by what each vector states: a matrix whose product with a symmetric ``∂K`` is summed, a list of
          these for the factors of a Kronecker product, or by the spread (k,).
        `design_bar`: by the matrix that reads all vectors, of a sparse one by its entries where that is given; or a
          list with that by each vector's matrix; None where these are constant.
        """

    def likelihood(self, theta: Array, eta: Array) -> tuple[float, Array, Array]:
        """``Σ ℓ``, its slope by site (n,), and its gradient by θ (d,)."""

    def compiled_likelihood(self) -> Bound:
        """The function that `likelihood` calls, and what it takes after θ and η."""


class JointDensity(Protocol):
    """The blocks, and what else of the log density depends on θ."""

    @property
    def blocks(self) -> Sequence[JointBlock]:
        """Independent of one another given θ."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The value variables besides θ and the latents that any of it depends on."""

    @property
    def of_likelihoods(self) -> NDArray[np.int64]:
        """The coordinates of θ that likelihoods read and priors do not: the sites may stand still while they move."""

    def to_model(self, theta: Array, latents: list[Array]) -> list[Array]:
        """Return the values of the model's variables, of those that each block has."""

    def from_model(self, theta: Array, values: Sequence[Array]) -> Sequence[Array]:
        """Return the values that each block has, of those of the model's variables."""

    def rest(self, theta: Array) -> tuple[float, Array]:
        """The log density beyond the blocks' priors and likelihoods, and its gradient (d,)."""
