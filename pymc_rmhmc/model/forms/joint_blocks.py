"""One block of latents as functions of (θ, η): what all forms share, and vectors with a covariance matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.interfaces.stated import StatedDense, StatedPrior
from pymc_rmhmc.model.forms.components import LatentRow
from pymc_rmhmc.model.forms.priors import LatentVariable
from pymc_rmhmc.model.forms.pullback import Differentiated
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters
from pymc_rmhmc.model.observed.observed_terms import Terms, gradient_by, shift_of, summed
from pymc_rmhmc.model.observed.reads import PlainReading

__all__ = ["Block", "CovarianceBlock", "by_rows", "covariance_of", "covariances_of_rows"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

class Block:
    """What all forms share.

    Attributes
    ----------
    name : str
        Of the latent functions.
    value_names : tuple of str
        The value variables.
    sizes : tuple of int
        How many values each has.
    n_sites : int
        The number of sites.
    plain : PlainReading or None
        How observations read single latent values, where they do.
    has_moving_design : bool
        Whether θ moves the matrix by which a predictor reads latent values.
    shifts_likelihoods : (d,) bool array
        Which of θ's coordinates sites follow since they shift what a likelihood makes of its predictor.
    """

    name: str
    value_names: tuple[str, ...]
    sizes: tuple[int, ...]
    n_sites: int
    rows: NDArray[np.int64] | None = None
    plain: PlainReading | None = None
    has_moving_design = False
    shifts_likelihoods: NDArray[np.bool_]
    _prior: Differentiated
    _likelihood: GraphFunction
    _informations: tuple[GraphFunction, ...] = ()

    @property
    def size(self) -> int:
        """The number of latent values."""
        return sum(self.sizes)

    @property
    def functions(self) -> tuple[GraphFunction, ...]:
        """Everything that is bound to a point."""
        return *self._prior.functions, self._likelihood, *self._informations

    def likelihood(self, theta: Array, eta: Array) -> tuple[float, Array, Array]:
        """``Σ ℓ``, its slope by site (n,), and its gradient by θ (d,)."""
        total, slope, gradient = self._likelihood(theta, eta)
        return float(total), slope, gradient

    def compiled_likelihood(self) -> tuple[Callable[..., Any], tuple[np.ndarray, ...]]:
        """The function that `likelihood` calls, and what it takes after θ and η."""
        return self._likelihood.function, self._likelihood.bound

    def compiled_prior(self) -> Any:
        """None: see `pymc_rmhmc.interfaces.joint_density.JointBlock`."""
        return None

    @property
    def places(self) -> Any:
        """None: see `pymc_rmhmc.interfaces.joint_density.JointBlock`."""
        return None

    def bind(self, point: Point) -> None:
        """Take what is not a graph from a point and from shared data.

        Raises
        ------
        DataError
            If observations read other latent values than they did.
        """
        self.forget()
        if self.plain is not None:
            self.plain.check(point)

    def forget(self) -> None:
        """Let go of what the derivative of the prior that was asked for last would need."""
        self._prior.forget()

    @property
    def has_moving_sites(self) -> bool:
        """Whether parameters of the likelihood move the information of the sites."""
        return bool(self._informations)

    def information(self, theta: Array, eta: Array) -> Array:
        """The mean over two η (2, n) of the information of each site, (n,), or of all together, (1,)."""
        return self._informations[0](theta, eta)[0]

    def information_pullback(self, theta: Array, eta: Array, bar: Array) -> Array:
        """``Σ ∂I/∂θ Ī``, (d,)."""
        return self._informations[1](theta, eta, bar)[0]

    def compiled_information(self) -> Any:
        """The functions that the two call, and what they take after what is given there."""
        return tuple((each.function, each.bound) for each in self._informations)

    def _compile_information(
        self, model: pm.Model, theta: Hyperparameters, observed: Sequence[Terms], shift: TensorVariable, *,
        together: bool = False,
    ) -> None:  # fmt: skip
        """What moving sites need, where a parameter of a likelihood moves."""
        moving = [o.has_moving_parameters for o in observed]
        # One power for all sites fits those that ought to stand worse, by all that it fits the others better.
        if not (all(moving) if together else any(moving)):
            return
        eta, bar = pt.dmatrix("eta", shape=(2, self.n_sites)), pt.dvector("bar")
        information = 0.5 * sum(o.information(eta[node], shift) for o in observed for node in range(2))
        if together:
            information = information.sum(keepdims=True)
        gradient = gradient_by((information * bar).sum(), theta.symbol)
        self._informations = (
            GraphFunction(model, [theta.symbol, eta], [information]),
            GraphFunction(model, [theta.symbol, eta, bar], [gradient]),
        )

    def _compile_likelihood(
        self, model: pm.Model, theta: Hyperparameters, observed: Sequence[Terms], shift: TensorVariable
    ) -> None:
        self.shifts_likelihoods = theta.read_by([each for o in observed for each in o.anchor.read], model)
        for follows in (o.anchor.follows for o in observed):
            if follows is not None:
                self.shifts_likelihoods |= follows
        eta = pt.dvector("eta", shape=(self.n_sites,))
        self._likelihood = GraphFunction(model, [theta.symbol, eta], summed(observed, eta, shift))


class CovarianceBlock(Block):
    """One latent Gaussian vector, or the rows of a variable: prior and likelihood as functions of θ.

    A site is a latent value and whatever part of its predictor θ adds to it.

    Attributes
    ----------
    design_shape : None
        There is none.
    rows : (r, n) int array, or None
        Of several vectors, the sites of each.
    fixed_covariance : bool
        Whether K is the same at every θ.
    """

    design_shape = None
    is_sum = False

    def __init__(
        self, model: pm.Model, name: str, latent: LatentVariable, theta: Hyperparameters, rows: Sequence[LatentRow],
        shape: tuple[int, ...], observed: Sequence[Terms],
    ) -> None:  # fmt: skip
        self.name, self.value_names = name, (str(model.rvs_to_values[latent.variable].name),)
        where = np.array([row.positions for row in rows])
        self.rows = where if len(rows) > 1 else None
        size = where.size
        self.sizes, self.n_sites, self._is_centred = (size,), size, latent.form == "centred"
        shift = shift_of(observed, theta, size)
        # A mean is the variable's own, whose values are in the rows' order; one row's may serve for all.
        mean = pt.zeros(size)
        if latent.mean is not None:
            mean = pt.broadcast_to(latent.mean, shape if latent.mean.ndim > 2 else where.shape).ravel()
        covariance = covariance_of(latent)
        if covariance.ndim > 2:
            covariance = covariances_of_rows(latent, shape)
            covariance = covariance[0] if len(rows) == 1 else covariance
        mean, covariance = theta.substitute([mean, covariance], model)
        mean = mean + shift
        self.fixed_covariance = theta.symbol not in ancestors([covariance])
        self._prior = Differentiated(model, theta.symbol, [mean, covariance, shift], [mean, covariance])
        self._compile_likelihood(model, theta, observed, shift)
        self._compile_information(model, theta, observed, shift)

    def prior(self, theta: Array) -> StatedPrior:
        """Return the vector, or the rows, at θ."""
        mean, covariance, shift = self._prior(theta)
        matrices = covariance if covariance.ndim > 2 else [covariance]
        vectors = [
            StatedDense(_in_fortran_order(matrix), mean - shift, self._is_centred, moves=not self.fixed_covariance)
            for matrix in matrices
        ]
        return StatedPrior(mean, shift, tuple(vectors))

    def prior_pullback(self, theta: Array, mean_bar: Array, vector_bars: list[Array], design_bar: None) -> Array:
        """Return ``Σ ∂m/∂θ m̄ + Σ ∂K/∂θ K̄``, (d,)."""
        bar = vector_bars[0] if len(vector_bars) == 1 else np.stack(vector_bars)
        return self._prior.pullback(theta, mean_bar, by_rows(bar))


def _in_fortran_order(matrix: Array) -> Array:
    """Return a covariance in Fortran order: it is symmetric, so that its transpose is itself, at no cost."""
    return matrix.T if matrix.flags.c_contiguous else np.asfortranarray(matrix)


def by_rows(bar: Array) -> Array:
    """A derivative by a variance or a covariance, or by several, as compiled functions take it: in C order."""
    # K̄ is multiplied by a symmetric derivative: it may as well be transposed, at no cost.
    return bar.T if bar.ndim == 2 and bar.flags.f_contiguous else np.ascontiguousarray(bar)


def covariances_of_rows(latent: LatentVariable, shape: tuple[int, ...]) -> TensorVariable:
    """K of every row, (r, n, n), of a variable of this shape."""
    n = shape[-1]
    return pt.broadcast_to(covariance_of(latent), (*shape, n)).reshape((math.prod(shape[:-1]), n, n))


def covariance_of(latent: LatentVariable) -> TensorVariable:
    """K as an expression, or that of every row, from whichever matrix the model gives."""
    matrix, root = latent.matrix.astype("float64"), latent.root
    if root == "covariance":
        return matrix
    return matrix @ matrix.mT if root == "cholesky" else pt.linalg.inv(matrix)
