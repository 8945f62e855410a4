"""One block of latents as functions of (θ, η): what all forms share, and vectors whose values are the sites."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import disconnected_grad, grad
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.interfaces.joint_density import Bound
from pymc_rmhmc.interfaces.stated import FieldMaps, StatedPrior
from pymc_rmhmc.model.forms import FORMS, form_of
from pymc_rmhmc.model.forms.components import LatentRow
from pymc_rmhmc.model.forms.priors import LatentVariable
from pymc_rmhmc.model.graph.graphs import operation_name
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters
from pymc_rmhmc.model.observed.designs import PlainReading
from pymc_rmhmc.model.observed.observed_terms import Terms, gradient_by, shift_of, summed

__all__ = [
    "Block",
    "Differentiated",
    "Places",
    "VectorBlock",
    "by_rows",
]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
# Of the entries of a matrix that moves: the direction of each, its row and its column.
type Places = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]

# Exponentials are kept from value to derivative, and each is as large as a covariance matrix.
MOST_KEPT = 4


class Differentiated:
    """Expressions of θ, and the gradient of the inner product of some of them with weights.

    Expressions and derivative share the exponentials of large matrices. Nearly every covariance function is one, and
    its derivative has the same exponential in it. Compiled code takes them one number at a time, and NumPy eight at a
    time: so the graph is cut there, and NumPy takes them, once. At n = 300 this halves what a kernel and its derivative
    cost.
    """

    def __init__(
        self, model: pm.Model, theta: TensorVariable, outputs: Sequence[TensorVariable],
        weighted: Sequence[TensorVariable],
    ) -> None:  # fmt: skip
        exponentials = _where_to_cut(outputs, theta)
        exponents = [e.owner.inputs[0] for e in exponentials]
        held = [e.type() for e in exponentials]
        cut = clone_replace([*outputs, *weighted], dict(zip(exponentials, held, strict=True)))
        values, weighted = cut[: len(outputs)], cut[len(outputs) :]
        bars = [w.type() for w in weighted]
        along = sum(((w * bar).sum() for w, bar in zip(weighted, bars, strict=True)), pt.zeros(()))
        gradient = gradient_by(along, theta)
        if exponentials:
            slopes = grad(along, held, disconnected_inputs="ignore", return_disconnected="zero")
            through = [
                (disconnected_grad(slope * e) * x).sum() for x, slope, e in zip(exponents, slopes, held, strict=True)
            ]
            gradient = gradient + gradient_by(sum(through), theta)
        self._exponents = GraphFunction(model, [theta], exponents) if exponents else None
        self._values = GraphFunction(model, [theta, *held], values)
        self._gradient = GraphFunction(model, [theta, *held, *bars], [gradient])
        self._kept: tuple[bytes, list[Array]] = (b"", [])

    def forget(self) -> None:
        """Forget the exponentials of the last θ: something else that they depend on has moved."""
        self._kept = (b"", [])

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_kept": (b"", [])}

    @property
    def functions(self) -> tuple[GraphFunction, ...]:
        """Everything that is bound to a point."""
        first = (self._exponents,) if self._exponents else ()
        return *first, self._values, self._gradient

    def __call__(self, theta: Array) -> Sequence[Array]:
        """Return the expressions at θ."""
        self._kept = (theta.tobytes(), self._exponentials(theta))
        return self._values(theta, *self._kept[1])

    def pullback(self, theta: Array, *weights: Array) -> Array:
        """Return ``Σ ∂(expression) / ∂θ · weight``, (d,)."""
        at, kept = self._kept
        self.forget()
        return self._gradient(theta, *(kept if at == theta.tobytes() else self._exponentials(theta)), *weights)[0]

    def _exponentials(self, theta: Array) -> list[Array]:
        if self._exponents is None:
            return []
        with np.errstate(over="ignore"):
            return [np.exp(x, out=None if np.may_share_memory(x, theta) else x) for x in self._exponents(theta)]


def _where_to_cut(outputs: Sequence[TensorVariable], theta: TensorVariable) -> list[TensorVariable]:
    """Find exponentials of matrices that θ moves; of one within another the outer."""
    held = [
        v
        for v in ancestors(list(outputs))
        if operation_name(v) == "Exp" and v.ndim == 2 and v.owner.inputs[0].dtype == v.dtype and theta in ancestors([v])
    ]
    inner = set(ancestors([v.owner.inputs[0] for v in held]))
    outer = [v for v in held if v not in inner]
    return outer if len(outer) <= MOST_KEPT else []


class Block(ABC):
    """What all forms share; see `pymc_rmhmc.interfaces.joint_density.JointBlock`.

    Attributes
    ----------
    name : str
        Of the latent functions.
    value_names, sizes : tuple of str, tuple of int
        The value variables, and how many values each has.
    plain : PlainReading or None
        How observations read single latent values, where they do.
    shifts_likelihoods : (d,) bool array
        Which of θ's coordinates sites follow since they shift what a likelihood makes of its predictor.
    """

    name: str
    value_names: tuple[str, ...]
    sizes: tuple[int, ...]
    n_sites: int
    design_shape: tuple[int, int] | None = None
    fixed_covariance = False
    is_sum = False
    n_residuals: int = 0
    maps: FieldMaps | None = None
    rows: NDArray[np.int64] | None = None
    plain: PlainReading | None = None
    has_moving_design = False
    shifts_likelihoods: NDArray[np.bool_]
    _prior: Differentiated
    _likelihood: GraphFunction
    _informations: tuple[GraphFunction, ...] = ()

    @abstractmethod
    def prior(self, theta: Array) -> StatedPrior:
        """Return what the latents' prior is at θ."""

    @abstractmethod
    def prior_pullback(self, theta: Array, mean_bar: Array, vector_bars: list[Any], design_bar: Any) -> Array:
        """Return the derivative by θ (d,) of a function of the prior."""

    @property
    def size(self) -> int:
        """The number of latent values."""
        return sum(self.sizes)

    @property
    def functions(self) -> tuple[GraphFunction, ...]:
        """Everything that is bound to a point."""
        return *self._prior.functions, self._likelihood, *self._informations

    def likelihood(self, theta: Array, eta: Array) -> tuple[float, Array, Array]:
        """Return ``Σ ℓ``, its slope by site (n,), and its gradient by θ (d,)."""
        total, slope, gradient = self._likelihood(theta, eta)
        return float(total), slope, gradient

    def compiled_likelihood(self) -> Bound:
        """Return the function that `likelihood` calls, and what it takes after θ and η."""
        return self._likelihood.function, self._likelihood.bound

    def bind(self, point: Point) -> None:
        """Take what is not a graph from a point and from shared data.

        Raises a DataError if observations read other latent values than they did.
        """
        self.forget()
        if self.plain is not None:
            self.plain.check(point)

    def forget(self) -> None:
        """Forget what the derivative of the prior that was asked for last would need."""
        self._prior.forget()

    @property
    def has_moving_sites(self) -> bool:
        """Whether parameters of the likelihood move the information of the sites."""
        return bool(self._informations)

    def information(self, theta: Array, eta: Array) -> Array:
        """Return the mean over two η (2, n) of the information of each site, (n,), or of all together, (1,)."""
        return self._informations[0](theta, eta)[0]

    def information_pullback(self, theta: Array, eta: Array, bar: Array) -> Array:
        """Return ``Σ ∂I/∂θ Ī``, (d,)."""
        return self._informations[1](theta, eta, bar)[0]

    def _compile_information(
        self, model: pm.Model, theta: Hyperparameters, observed: Sequence[Terms], shift: TensorVariable, *,
        together: bool = False,
    ) -> None:  # fmt: skip
        """Compile what moving sites need, where a parameter of a likelihood moves."""
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
        self, model: pm.Model, theta: Hyperparameters, observed: Sequence[Terms], shift: TensorVariable, *,
        together: bool = False,
    ) -> None:  # fmt: skip
        self.shifts_likelihoods = theta.read_by([each for o in observed for each in o.anchor.read], model)
        for follows in (o.anchor.follows for o in observed):
            if follows is not None:
                self.shifts_likelihoods |= follows
        eta = pt.dvector("eta", shape=(self.n_sites,))
        self._likelihood = GraphFunction(model, [theta.symbol, eta], summed(observed, eta, shift))
        self._compile_information(model, theta, observed, shift, together=together)


class VectorBlock(Block):
    """One latent Gaussian vector of any form, or the rows of a variable: prior and likelihood as functions of θ.

    A site is a latent value and whatever part of its predictor θ adds to it.
    """

    def __init__(
        self, model: pm.Model, name: str, latent: LatentVariable, theta: Hyperparameters, rows: Sequence[LatentRow],
        shape: tuple[int, ...], observed: Sequence[Terms],
    ) -> None:  # fmt: skip
        self.name, self.value_names = name, (str(model.rvs_to_values[latent.variable].name),)
        where = np.array([row.positions for row in rows])
        self.rows = where if len(rows) > 1 else None
        size = where.size
        self.sizes, self.n_sites, self._is_centred = (size,), size, latent.form == "centred"
        shift, self._form = shift_of(observed, theta, size), form_of(latent)
        # A mean is the variable's own, whose values are in the rows' order; one row's may serve for all.
        mean = pt.zeros(size)
        if latent.mean is not None:
            mean = pt.broadcast_to(latent.mean, shape if latent.mean.ndim > 2 else where.shape).ravel()
        matrices = [m[0] if m.ndim > 2 and len(rows) == 1 else m for m in FORMS[self._form].matrices(latent, shape)]
        mean, *matrices = theta.substitute([mean, *matrices], model)
        mean = mean + shift
        self.fixed_covariance = theta.symbol not in ancestors(matrices)
        self._prior = Differentiated(model, theta.symbol, [mean, *matrices, shift], [mean, *matrices])
        self._compile_likelihood(model, theta, observed, shift)

    def prior(self, theta: Array) -> StatedPrior:
        """Return the vector, or the rows, at θ."""
        mean, *matrices, shift = self._prior(theta)
        each = [[matrix] for matrix in matrices[0]] if matrices[0].ndim > 2 else [matrices]
        location, moves = mean - shift, not self.fixed_covariance
        vectors = [
            FORMS[self._form].state(given, location, 1.0, is_centred=self._is_centred, moves=moves) for given in each
        ]
        return StatedPrior(mean, shift, tuple(vectors))

    def prior_pullback(
        self, theta: Array, mean_bar: Array, vector_bars: list[Array | list[Array]], design_bar: None
    ) -> Array:
        """Return ``Σ ∂m/∂θ m̄ + Σ ∂K/∂θ K̄``, or that by all K_i, (d,)."""
        first = vector_bars[0]
        bars = first if isinstance(first, list) else [first if len(vector_bars) == 1 else np.stack(vector_bars)]
        return self._prior.pullback(theta, mean_bar, *map(by_rows, bars))


def by_rows(bar: Array) -> Array:
    """Return a derivative by a variance or a covariance, or by several, as compiled functions take it: in C order."""
    # K̄ is multiplied by a symmetric derivative: it may as well be transposed, at no cost.
    return bar.T if bar.ndim == 2 and bar.flags.f_contiguous else np.ascontiguousarray(bar)
