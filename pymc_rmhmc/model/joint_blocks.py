"""One block of latents as functions of (θ, η): a vector with a covariance matrix, or coefficients of a predictor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Sqrt
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.design import DesignReader, SameValues
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters
from pymc_rmhmc.model.observed_terms import ObservedTerms, gradient_by, summed
from pymc_rmhmc.model.priors import LatentVariable

__all__ = ["CovarianceBlock", "DesignBlock", "DesignSource"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

# Its square root has a derivative that is finite, and is nothing beside any other scale.
SMALLEST = 1e-200


class _Block:
    """What both forms share.

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
    """

    name: str
    value_names: tuple[str, ...]
    sizes: tuple[int, ...]
    n_sites: int
    _prior: GraphFunction
    _pullback: GraphFunction
    _likelihood: GraphFunction

    @property
    def size(self) -> int:
        """The number of latent values."""
        return sum(self.sizes)

    @property
    def functions(self) -> tuple[GraphFunction, ...]:
        """Everything that is bound to a point."""
        return self._prior, self._pullback, self._likelihood

    def likelihood(self, theta: Array, eta: Array) -> tuple[float, Array, Array]:
        """``Σ ℓ``, its slope by site (n,), and its gradient by θ (d,)."""
        total, slope, gradient = self._likelihood(theta, eta)
        return float(total), slope, gradient

    def bind(self, point: Point) -> None:
        """Take what is not a graph from a point and from shared data."""

    def _compile_likelihood(
        self, model: pm.Model, theta: Hyperparameters, observed: Sequence[ObservedTerms], shift: TensorVariable
    ) -> None:
        eta = pt.dvector("eta", shape=(self.n_sites,))
        self._likelihood = GraphFunction(model, [theta.symbol, eta], summed(observed, eta, shift))


class CovarianceBlock(_Block):
    """One latent Gaussian vector: its prior and likelihood as functions of θ.

    A site is a latent value and whatever part of its predictor θ adds to it.

    Attributes
    ----------
    design : None
        There is none.
    centred : bool
        Whether the value variable is the latent vector itself, and not ``L⁻¹`` of it.
    fixed_covariance : bool
        Whether K is the same at every θ.
    """

    design = None

    def __init__(
        self, model: pm.Model, name: str, latent: LatentVariable, theta: Hyperparameters, size: int,
        observed: Sequence[ObservedTerms],
    ) -> None:  # fmt: skip
        self.name, self.value_names = name, (str(model.rvs_to_values[latent.variable].name),)
        self.sizes, self.n_sites, self.centred = (size,), size, latent.form == "centred"
        shift = _shift(observed, theta, size)
        mean = pt.zeros(size) if latent.mean is None else pt.second(pt.zeros(size), latent.mean.ravel())
        mean, covariance = theta.substitute([mean, _covariance(latent)], model)
        mean = mean + shift
        self.fixed_covariance = theta.symbol not in ancestors([covariance])
        self._prior = GraphFunction(model, [theta.symbol], [mean, covariance, shift])
        mean_bar, covariance_bar = pt.dvector("mean_bar"), pt.dmatrix("covariance_bar")
        along = (mean * mean_bar).sum() + (covariance * covariance_bar).sum()
        gradient = gradient_by(along, theta.symbol)
        self._pullback = GraphFunction(model, [theta.symbol, mean_bar, covariance_bar], [gradient])
        self._compile_likelihood(model, theta, observed, shift)

    def prior(self, theta: Array) -> tuple[Array, ...]:
        """Mean (n,) and covariance (n, n) of the sites, in Fortran order, and the sites less the latents (n,)."""
        mean, covariance, shift = self._prior(theta)
        # A covariance is symmetric: its transpose is itself in Fortran order, at no cost.
        return mean, covariance.T if covariance.flags.c_contiguous else np.asfortranarray(covariance), shift

    def prior_pullback(self, theta: Array, mean_bar: Array, second_bar: Array) -> Array:
        """``Σ ∂m/∂θ m̄ + Σ ∂K/∂θ K̄``, (d,)."""
        # K̄ is multiplied by a symmetric derivative: it may as well be transposed.
        matrix = second_bar.T if second_bar.flags.f_contiguous else np.ascontiguousarray(second_bar)
        return self._pullback(theta, mean_bar, matrix)[0]


@dataclass(frozen=True, eq=False)
class DesignSource:
    """Coefficients of a predictor.

    Attributes
    ----------
    latent : LatentVariable
        Independent Normals.
    scale : TensorVariable
        What predictors multiply them by, value by value, before a constant matrix.
    shape : tuple of int
        Of the variable.
    """

    latent: LatentVariable
    scale: TensorVariable
    shape: tuple[int, ...]


class DesignBlock(_Block):
    """Coefficients that a predictor is linear in: ``η = m + A D y`` with ``y ~ N(0, I)``.

    Attributes
    ----------
    design : (n, k) array or sparse array
        A, the same at every θ.
    """

    design: Any
    centred = True
    fixed_covariance = False

    def __init__(
        self, model: pm.Model, name: str, sources: Sequence[DesignSource], reader: DesignReader | SameValues,
        theta: Hyperparameters, observed: Sequence[ObservedTerms], point: Point,
    ) -> None:  # fmt: skip
        self.name, self._reader = name, reader
        self._read: list[Any] | None = None
        self.bind(point)
        self.value_names = tuple(str(model.rvs_to_values[s.latent.variable].name) for s in sources)
        self.sizes, self.n_sites = tuple(math.prod(s.shape) for s in sources), self.design.shape[0]
        stated = [_stated(s) for s in sources]
        location, deviation, scale = (pt.concatenate([s[i] for s in stated]) for i in range(3))
        location, deviation, scale = _guard_roots(theta.substitute([location, deviation, scale], model))
        shift = _shift(observed, theta, self.n_sites)
        spread, centre = scale * deviation, scale * location
        self._prior = GraphFunction(model, [theta.symbol], [centre, spread, location, deviation, shift])
        self._centre_moves = theta.symbol in ancestors([centre])
        centre_bar, spread_bar = pt.dvector("centre_bar"), pt.dvector("spread_bar")
        mean_bar = pt.dvector("mean_bar")
        along = (centre * centre_bar).sum() + (spread * spread_bar).sum() + (shift * mean_bar).sum()
        inputs = [theta.symbol, centre_bar, spread_bar, mean_bar]
        self._pullback = GraphFunction(model, inputs, [gradient_by(along, theta.symbol)])
        self._compile_likelihood(model, theta, observed, shift)

    def bind(self, point: Point) -> None:
        """Read the design again where shared data have been replaced."""
        data = [s.get_value(borrow=True) for s in self._reader.shared]
        if self._read is None or any(a is not b for a, b in zip(self._read, data, strict=True)):
            self.design, self._read = self._reader(point), data

    def prior(self, theta: Array) -> tuple[Array, ...]:
        """Mean (n,), D (k,), location and scale (k,) of the model's variables, and the sites less these (n,)."""
        centre, spread, location, deviation, shift = self._prior(theta)
        mean = shift + self.design @ centre if centre.any() else shift
        return mean, spread, location, deviation, shift

    def prior_pullback(self, theta: Array, mean_bar: Array, second_bar: Array) -> Array:
        """``Σ ∂m/∂θ m̄ + Σ ∂D/∂θ D̄``, (d,)."""
        # Coefficients with a mean of their own are rare: a product with the design is spared without them.
        centre_bar = np.asarray(self.design.T @ mean_bar) if self._centre_moves else np.zeros(self.size)
        return self._pullback(theta, centre_bar, second_bar, mean_bar)[0]


def _stated(source: DesignSource) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
    """Mean, standard deviation and scale of every coefficient, (k,) each."""
    latent = source.latent
    assert latent.mean is not None
    # A mean or a scale may be one number for all.
    mean, deviation, scale = (
        pt.broadcast_to(part, source.shape).ravel() for part in (latent.mean, latent.matrix, source.scale)
    )
    return mean, deviation, scale


def _guard_roots(expressions: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Square roots kept above 0, at which they have no derivative.

    The power spectral density of a smooth kernel is 0 in double precision for the higher functions of a basis.
    """
    roots = [
        v
        for v in ancestors(list(expressions))
        if isinstance(v, TensorVariable) and v.owner is not None and isinstance(v.owner.op, Elemwise)
        and isinstance(v.owner.op.scalar_op, Sqrt)
    ]  # fmt: skip
    guarded = {root: pt.sqrt(pt.maximum(root.owner.inputs[0], SMALLEST)) for root in roots}
    return clone_replace(list(expressions), guarded) if guarded else list(expressions)


def _covariance(latent: LatentVariable) -> TensorVariable:
    """K as an expression, from whichever matrix the model gives."""
    matrix, root = latent.matrix, latent.root
    if root == "covariance":
        return matrix
    return matrix @ matrix.T if root == "cholesky" else pt.linalg.inv(matrix)


def _shift(observed: Sequence[ObservedTerms], theta: Hyperparameters, size: int) -> TensorVariable:
    """What θ adds to the latent values in the predictors that read them, (n,).

    Sites are anchored in the predictor: a level that is added there then moves the prior's mean under them, as one
    in the prior's mean function does. Where several observations of a site add different things, the first counts.
    """
    shift = pt.zeros(size)
    for each in observed:
        if theta.symbol in ancestors([each.added]):
            which, first = np.unique(each.index, return_index=True)
            shift = pt.set_subtensor(shift[which], each.added[first])
    return shift
