"""One block of latents as functions of (θ, η): a vector with a covariance matrix, or coefficients of a predictor."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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

from pymc_rmhmc.model.components import LatentRow
from pymc_rmhmc.model.design import DesignReader, PlainReading, SameValues
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters
from pymc_rmhmc.model.linear_normals import ScaledSource
from pymc_rmhmc.model.observed_terms import ObservedTerms, gradient_by, shift_of, summed
from pymc_rmhmc.model.priors import LatentVariable
from pymc_rmhmc.model.pullback import Differentiated

__all__ = ["Block", "CovarianceBlock", "DesignBlock", "DesignSource", "SumBlock", "SumPart"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

# Its square root has a derivative that is finite, and is nothing beside any other scale.
SMALLEST = 1e-200


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
    """

    name: str
    value_names: tuple[str, ...]
    sizes: tuple[int, ...]
    n_sites: int
    rows: NDArray[np.int64] | None = None
    plain: PlainReading | None = None
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

    def _compile_information(
        self, model: pm.Model, theta: Hyperparameters, observed: Sequence[ObservedTerms], shift: TensorVariable, *,
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
        self, model: pm.Model, theta: Hyperparameters, observed: Sequence[ObservedTerms], shift: TensorVariable
    ) -> None:
        eta = pt.dvector("eta", shape=(self.n_sites,))
        self._likelihood = GraphFunction(model, [theta.symbol, eta], summed(observed, eta, shift))


class CovarianceBlock(Block):
    """One latent Gaussian vector, or several with one covariance matrix: prior and likelihood as functions of θ.

    A site is a latent value and whatever part of its predictor θ adds to it.

    Attributes
    ----------
    design : None
        There is none.
    rows : (r, n) int array, or None
        Of several vectors, the sites of each.
    centred : bool
        Whether the value variable is the latent vector itself, and not ``L⁻¹`` of it.
    fixed_covariance : bool
        Whether K is the same at every θ.
    """

    design = None
    parts = None

    def __init__(
        self, model: pm.Model, name: str, latent: LatentVariable, theta: Hyperparameters, rows: Sequence[LatentRow],
        observed: Sequence[ObservedTerms],
    ) -> None:  # fmt: skip
        self.name, self.value_names = name, (str(model.rvs_to_values[latent.variable].name),)
        where = np.array([row.positions for row in rows])
        self.rows = where if len(rows) > 1 else None
        size = where.size
        self.sizes, self.n_sites, self.centred = (size,), size, latent.form == "centred"
        shift = shift_of(observed, theta, size)
        # A mean is the variable's own, whose values are in the rows' order; one row's may serve for all.
        mean = pt.zeros(size) if latent.mean is None else pt.broadcast_to(latent.mean, where.shape).ravel()
        mean, covariance = theta.substitute([mean, _covariance(latent)], model)
        mean = mean + shift
        self.fixed_covariance = theta.symbol not in ancestors([covariance])
        self._prior = Differentiated(model, theta.symbol, [mean, covariance, shift], [mean, covariance])
        self._compile_likelihood(model, theta, observed, shift)
        self._compile_information(model, theta, observed, shift)

    def prior(self, theta: Array) -> tuple[Array, ...]:
        """Mean (n,) and covariance (n, n) of the sites, in Fortran order, and the sites less the latents (n,)."""
        mean, covariance, shift = self._prior(theta)
        # A covariance is symmetric: its transpose is itself in Fortran order, at no cost.
        return mean, covariance.T if covariance.flags.c_contiguous else np.asfortranarray(covariance), shift

    def prior_pullback(self, theta: Array, mean_bar: Array, second_bar: Array) -> Array:
        """``Σ ∂m/∂θ m̄ + Σ ∂K/∂θ K̄``, (d,)."""
        # K̄ is multiplied by a symmetric derivative: it may as well be transposed.
        matrix = second_bar.T if second_bar.flags.f_contiguous else np.ascontiguousarray(second_bar)
        return self._prior.pullback(theta, mean_bar, matrix)


@dataclass(frozen=True, eq=False)
class DesignSource:
    """A vector of a predictor.

    Attributes
    ----------
    latent : LatentVariable
        Its prior.
    read : ScaledSource
        What predictors multiply it by, value by value, before a constant matrix.
    shape : tuple of int
        Of the variable.
    """

    latent: LatentVariable
    read: ScaledSource
    shape: tuple[int, ...]


class _LinearBlock(Block, ABC):
    """Vectors that predictors read through matrices, which are read again where shared data have been replaced."""

    centred = True
    fixed_covariance = False

    def __init__(
        self, model: pm.Model, name: str, sources: Sequence[DesignSource], reader: DesignReader | SameValues,
        point: Point,
    ) -> None:  # fmt: skip
        self.name, self._reader = name, reader
        self.value_names = tuple(str(model.rvs_to_values[s.latent.variable].name) for s in sources)
        self.sizes = tuple(math.prod(s.shape) for s in sources)
        self._read: list[Any] | None = None
        self._read_again(point)

    def bind(self, point: Point) -> None:
        """Take what is not a graph from a point and from shared data, the matrices among them."""
        super().bind(point)
        self._read_again(point)

    def _read_again(self, point: Point) -> None:
        """Read the matrices, unless the data that they were read of are still there."""
        data = [s.get_value(borrow=True) for s in self._reader.shared]
        if self._read is None or any(a is not b for a, b in zip(self._read, data, strict=True)):
            self._read = data
            self._read_matrices(point)

    @abstractmethod
    def _read_matrices(self, point: Point) -> None:
        """Take the matrices from the reader."""


class DesignBlock(_LinearBlock):
    """Coefficients that a predictor is linear in: ``η = m + A D y`` with ``y ~ N(0, I)``.

    Attributes
    ----------
    design : (n, k) array or sparse array
        A, the same at every θ.
    """

    design: Any
    parts = None

    def __init__(
        self, model: pm.Model, name: str, sources: Sequence[DesignSource], reader: DesignReader | SameValues,
        theta: Hyperparameters, observed: Sequence[ObservedTerms], point: Point,
    ) -> None:  # fmt: skip
        super().__init__(model, name, sources, reader, point)
        self.n_sites = self.design.shape[0]
        stated = [_stated(s) for s in sources]
        location, deviation, scale = (pt.concatenate([s[i] for s in stated]) for i in range(3))
        location, deviation, scale = _guard_roots(theta.substitute([location, deviation, scale], model))
        shift = shift_of(observed, theta, self.n_sites)
        spread, centre = scale * deviation, scale * location
        self._centre_moves = theta.symbol in ancestors([centre])
        stated = [centre, spread, location, deviation, shift]
        self._prior = Differentiated(model, theta.symbol, stated, [centre, spread, shift])
        self._compile_likelihood(model, theta, observed, shift)
        # A power for each site would move AᵀW̄A, which is made once.
        self._compile_information(model, theta, observed, shift, together=True)

    def _read_matrices(self, point: Point) -> None:
        self.design = self._reader(point)

    def prior(self, theta: Array) -> tuple[Array, ...]:
        """Mean (n,), D (k,), location and scale (k,) of the model's variables, and the sites less these (n,)."""
        centre, spread, location, deviation, shift = self._prior(theta)
        mean = shift + self.design @ centre if centre.any() else shift
        return mean, spread, location, deviation, shift

    def prior_pullback(self, theta: Array, mean_bar: Array, second_bar: Array) -> Array:
        """``Σ ∂m/∂θ m̄ + Σ ∂D/∂θ D̄``, (d,)."""
        # Coefficients with a mean of their own are rare: a product with the design is spared without them.
        centre_bar = np.asarray(self.design.T @ mean_bar) if self._centre_moves else np.zeros(self.size)
        return self._prior.pullback(theta, centre_bar, second_bar, mean_bar)


@dataclass(frozen=True, eq=False)
class SumPart:
    """One vector of a sum.

    Attributes
    ----------
    kind : str
        "centred", "whitened", "kronecker" (whitened, with a Kronecker product for a covariance) or "independent".
    design : (n, k) array or sparse array, or None
        A; None for the identity.
    """

    kind: str
    design: Any


class SumBlock(_LinearBlock):
    """Several vectors that are read as a sum: ``η = m + Σ A_s x_s``.

    Attributes
    ----------
    parts : tuple of SumPart
        The vectors.
    """

    design = None

    def __init__(
        self, model: pm.Model, name: str, sources: Sequence[DesignSource], reader: DesignReader | SameValues,
        theta: Hyperparameters, observed: Sequence[ObservedTerms], point: Point,
    ) -> None:  # fmt: skip
        self._kinds = tuple("kronecker" if s.latent.root == "kronecker" else s.latent.form for s in sources)
        super().__init__(model, name, sources, reader, point)
        self.n_sites = self._n_rows
        stated = [self._stated_part(s) for s in sources]
        self._counts = tuple(len(part[0]) for part in stated)
        flat = [second for part in stated for second in part[0]] + [part[i] for i in (1, 2, 3) for part in stated]
        guarded = _guard_roots(theta.substitute(flat, model))
        shift, n_seconds = shift_of(observed, theta, self.n_sites), sum(self._counts)
        seconds, centres = guarded[:n_seconds], guarded[n_seconds : n_seconds + len(sources)]
        weighted = [shift, *seconds, *centres]
        self._prior = Differentiated(model, theta.symbol, [shift, *guarded], weighted)
        self._compile_likelihood(model, theta, observed, shift)
        self._compile_information(model, theta, observed, shift)

    @staticmethod
    def _stated_part(source: DesignSource) -> tuple[Any, ...]:
        """K, all K_i or D; what the sites read where y is 0; location and scale of the model's variable."""
        latent = source.latent
        if latent.form == "independent":
            location, deviation, scale = _stated(source)
            return [scale * deviation], scale * location, location, deviation
        size = math.prod(source.shape)
        mean = pt.zeros(size) if latent.mean is None else pt.broadcast_to(latent.mean, source.shape).ravel()
        first, *others = latent.matrices if latent.root == "kronecker" else [_covariance(latent)]
        if not source.read.is_scaled:
            return [first, *others], mean, mean, pt.ones(1)
        scale = source.read.scale.ravel()
        # Of a Kronecker product one factor takes the number.
        return [scale[:, None] * first * scale[None, :], *others], scale * mean, mean, scale

    def _read_matrices(self, point: Point) -> None:
        designs = self._reader.parts(point, self.sizes)
        self._n_rows = next((d.shape[0] for d in designs if d is not None), self.sizes[0])
        self.parts = tuple(SumPart(kind, d) for kind, d in zip(self._kinds, designs, strict=True))

    def prior(self, theta: Array) -> tuple[Any, ...]:
        """Mean (n,); lists with an entry for each part, K, all K_i or D, location, scale; sites less latents (n,)."""
        shift, *stated = self._prior(theta)
        n_seconds, n = sum(self._counts), len(self.parts)
        mean = shift.copy()
        for part, centre in zip(self.parts, stated[n_seconds : n_seconds + n], strict=True):
            if centre.any():
                mean += centre if part.design is None else part.design @ centre
        given = iter(
            second if second.ndim == 1 else second.T if second.flags.c_contiguous else np.asfortranarray(second)
            for second in stated[:n_seconds]
        )
        seconds = [
            tuple(next(given) for _ in range(count)) if part.kind == "kronecker" else next(given)
            for part, count in zip(self.parts, self._counts, strict=True)
        ]
        return mean, seconds, stated[n_seconds + n : n_seconds + 2 * n], stated[n_seconds + 2 * n :], shift

    def prior_pullback(self, theta: Array, mean_bar: Array, second_bar: Any) -> Array:
        """``Σ ∂m/∂θ m̄ + Σ_s ∂K_s/∂θ K̄_s``, (d,), with D in place of K for coefficients, and a list for all K_i."""
        centre_bars = [
            mean_bar if part.design is None else np.asarray(part.design.T @ mean_bar) for part in self.parts
        ]
        flat = [one for bar in second_bar for one in (bar if isinstance(bar, list) else [bar])]
        seconds = [np.ascontiguousarray(bar) for bar in flat]
        return self._prior.pullback(theta, np.asarray(mean_bar), *seconds, *centre_bars)


def _stated(source: DesignSource) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
    """Mean, standard deviation and scale of every coefficient, (k,) each."""
    latent = source.latent
    assert latent.mean is not None
    # A mean or a scale may be one number for all.
    mean, deviation, scale = (
        pt.broadcast_to(part, source.shape).ravel() for part in (latent.mean, latent.matrix, source.read.scale)
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
    guarded = {}
    for root in roots:
        of = root.owner.inputs[0]
        # What is negative has no root here either.
        guarded[root] = pt.sqrt(pt.switch(pt.lt(of, 0.0), of, pt.maximum(of, SMALLEST)))
    return clone_replace(list(expressions), guarded) if guarded else list(expressions)


def _covariance(latent: LatentVariable) -> TensorVariable:
    """K as an expression, from whichever matrix the model gives."""
    matrix, root = latent.matrix, latent.root
    if root == "covariance":
        return matrix
    return matrix @ matrix.T if root == "cholesky" else pt.linalg.inv(matrix)
