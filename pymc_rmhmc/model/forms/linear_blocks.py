"""Vectors that predictors read through matrices, as functions of (θ, η): coefficients, and sums of vectors."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.interfaces.stated import StatedPrior
from pymc_rmhmc.model.forms import FORMS, form_of
from pymc_rmhmc.model.forms.joint_blocks import Block, Differentiated, by_rows
from pymc_rmhmc.model.forms.linear_normals import ScaledSource
from pymc_rmhmc.model.forms.priors import LatentVariable
from pymc_rmhmc.model.graph.graphs import operation_name
from pymc_rmhmc.model.hyperparameters import Hyperparameters
from pymc_rmhmc.model.observed.designs import DesignReader, Matrix, MovingDesign, SameValues
from pymc_rmhmc.model.observed.observed_terms import Terms, shift_of

__all__ = ["DesignBlock", "DesignSource", "Reader", "SumBlock"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Reader = DesignReader | SameValues | MovingDesign
# A that reads all vectors, or that of each; None for the identity.
type Design = Matrix | list[Matrix | None]

# Its square root has a derivative that is finite, and is nothing beside any other scale.
SMALLEST = 1e-200
# With so many observations to a latent value the matrices of a sum are made in the size of the latent values: theirs
# take twice the products that those in the size of the observations do.
MORE_OBSERVATIONS = 1.3


@dataclass(frozen=True, eq=False)
class DesignSource:
    """A vector of a predictor: its prior, where it is read, and the variable's shape."""

    latent: LatentVariable
    read: ScaledSource
    shape: tuple[int, ...]

    def in_a_sum(self) -> tuple[list[TensorVariable], TensorVariable, TensorVariable, TensorVariable]:
        """Return what its form says of it where it is one of several that are read; see `Form`."""
        scale = self.read.scale if self.read.is_scaled else None
        return FORMS[form_of(self.latent)].in_a_sum(self.latent, self.shape, scale)


class _LinearBlock(Block, ABC):
    """Vectors that predictors read through matrices, which are read again where shared data have been replaced.

    One matrix reads all of them, of the block's `design_shape` (n, k), or else each vector has a matrix.
    """

    _constant: Design

    def __init__(
        self, model: pm.Model, name: str, sources: Sequence[DesignSource], reader: Reader, point: Point
    ) -> None:
        self.name, self._reader = name, reader
        self._moving = reader if isinstance(reader, MovingDesign) else None
        self.has_moving_design = self._moving is not None
        self.value_names = tuple(str(model.rvs_to_values[s.latent.variable].name) for s in sources)
        self.sizes = tuple(math.prod(s.shape) for s in sources)
        self.n_sites = reader.n_rows(point)
        if not self.is_sum or self.n_sites >= MORE_OBSERVATIONS * self.size:
            self.design_shape = (self.n_sites, self.size)
        # Of an A that moves, at the last θ: itself and what it multiplies in the mean, for the derivative.
        self._last: tuple[bytes, Design | None, Array] = (b"", None, np.zeros(0))
        self._read: list[np.ndarray] | None = None
        self._read_again(point)

    def bind(self, point: Point) -> None:
        """Take what is not a graph from a point and from shared data, the matrices among them.

        Raises a DataError if observations read other latent values than they did.
        """
        super().bind(point)
        self._read_again(point)

    def forget(self) -> None:
        """Forget what the derivative of the prior that was asked for last would need."""
        super().forget()
        self._last = (b"", None, np.zeros(0))

    def _read_again(self, point: Point) -> None:
        """Read the matrices, unless the data that they were read of are still there."""
        data = [s.get_value(borrow=True) for s in self._reader.shared]
        if self._read is not None and all(a is b for a, b in zip(self._read, data, strict=True)):
            return
        if isinstance(self._reader, MovingDesign):
            if self._read is not None:
                self._reader.check(point)
        elif self.design_shape is None:
            self._constant = self._reader.parts(point, self.sizes)
        else:
            self._constant = self._reader(point)
        self._read = data

    @property
    def _directions(self) -> list[TensorVariable]:
        """What of the matrices depends on θ, as an expression of it."""
        return [] if self._moving is None else [self._moving.directions]

    def _design_bars(self, theta: Array, mean_bar: Array, bar: Array) -> list[Array]:
        """Return the derivative by the directions, from that by A and by the mean, in which A is as well."""
        assert self._moving is not None
        self._design_at(theta)
        return [self._moving.pullback(bar, mean_bar, self._last[2])]

    def _design_at(self, theta: Array) -> Design:
        """Return A at θ; one that moves is at hand for the θ of the last prior."""
        if self._moving is None:
            return self._constant
        if self._last[0] != theta.tobytes():
            self.prior(theta)
        assert self._last[1] is not None
        return self._last[1]

    @abstractmethod
    def prior(self, theta: Array) -> StatedPrior:
        """See `pymc_rmhmc.interfaces.joint_density.JointBlock`."""


class DesignBlock(_LinearBlock):
    """Coefficients that a predictor is linear in: ``η = m + A D y`` with ``y ~ N(0, I)``."""

    def __init__(
        self, model: pm.Model, name: str, sources: Sequence[DesignSource], reader: Reader, theta: Hyperparameters,
        observed: Sequence[Terms], point: Point,
    ) -> None:  # fmt: skip
        super().__init__(model, name, sources, reader, point)
        self._form, parts = form_of(sources[0].latent), [s.in_a_sum() for s in sources]
        spread, *others = (pt.concatenate(each) for each in zip(*([d, *more] for (d,), *more in parts), strict=True))
        spread, centre, location, deviation = _guard_roots(theta.substitute([spread, *others], model))
        shift = shift_of(observed, theta, self.n_sites)
        self._centre_moves = theta.symbol in ancestors([centre])
        stated = [centre, spread, location, deviation, shift, *self._directions]
        self._prior = Differentiated(model, theta.symbol, stated, [centre, spread, shift, *self._directions])
        # A power for each site would move AᵀW̄A, which is made once where A stands still.
        self._compile_likelihood(model, theta, observed, shift, together=True)

    def prior(self, theta: Array) -> StatedPrior:
        """Return the coefficients at θ."""
        centre, spread, location, deviation, shift, *directions = self._prior(theta)
        design = self._constant if self._moving is None else self._moving.matrix(*directions)
        assert not isinstance(design, list)
        if self._moving is not None:
            self._last = theta.tobytes(), design, centre
        mean = shift + design @ centre if centre.any() else shift
        vector = FORMS[self._form].state([spread], location, deviation, is_centred=True)
        return StatedPrior(mean, shift, (vector,), design)

    def prior_pullback(
        self, theta: Array, mean_bar: Array, vector_bars: list[Array], design_bar: Array | list[Array] | None
    ) -> Array:
        """Return ``Σ ∂m/∂θ m̄ + Σ ∂D/∂θ D̄ + Σ ∂A/∂θ Ā``, (d,)."""
        (spread_bar,) = vector_bars
        if isinstance(design_bar, list):
            design_bar = _at_entries(design_bar[0], self._whole(theta))
        bars = [] if design_bar is None else self._design_bars(theta, mean_bar, design_bar)
        # Coefficients with a mean of their own are rare: a product with the design is spared without them.
        centre_bar = np.asarray(self._whole(theta).T @ mean_bar) if self._centre_moves else np.zeros(self.size)
        return self._prior.pullback(theta, centre_bar, spread_bar, mean_bar, *bars)

    def _whole(self, theta: Array) -> Matrix:
        design = self._design_at(theta)
        assert not isinstance(design, list)
        return design


class SumBlock(_LinearBlock):
    """Several vectors that are read as a sum: ``η = m + Σ A_s x_s``."""

    is_sum = True

    def __init__(
        self, model: pm.Model, name: str, sources: Sequence[DesignSource], reader: Reader, theta: Hyperparameters,
        observed: Sequence[Terms], point: Point,
    ) -> None:  # fmt: skip
        super().__init__(model, name, sources, reader, point)
        self._forms = tuple((form_of(s.latent), s.latent.form == "centred") for s in sources)
        stated = [s.in_a_sum() for s in sources]
        self._counts = tuple(len(part[0]) for part in stated)
        flat = [second for part in stated for second in part[0]] + [part[i] for i in (1, 2, 3) for part in stated]
        guarded = _guard_roots(theta.substitute(flat, model))
        shift, n_seconds = shift_of(observed, theta, self.n_sites), sum(self._counts)
        seconds, centres = guarded[:n_seconds], guarded[n_seconds : n_seconds + len(sources)]
        weighted = [shift, *self._directions, *seconds, *centres]
        self._prior = Differentiated(model, theta.symbol, [shift, *self._directions, *guarded], weighted)
        self._compile_likelihood(model, theta, observed, shift)

    def prior(self, theta: Array) -> StatedPrior:
        """Return the vectors at θ."""
        shift, *stated = self._prior(theta)
        design = self._constant if self._moving is None else self._cut(self._moving.matrix(stated.pop(0)))
        n_seconds, n = sum(self._counts), len(self._forms)
        centres = stated[n_seconds : n_seconds + n]
        mean = shift + self._read_centres(design, centres)
        if self._moving is not None:
            self._last = theta.tobytes(), design, np.concatenate(centres)
        given = iter(
            second if second.ndim == 1 else second.T if second.flags.c_contiguous else np.asfortranarray(second)
            for second in stated[:n_seconds]
        )
        locations, scales = stated[n_seconds + n : n_seconds + 2 * n], stated[n_seconds + 2 * n :]
        vectors = tuple(
            FORMS[form].state([next(given) for _ in range(count)], location, scale, is_centred=is_centred)
            for (form, is_centred), count, location, scale in zip(
                self._forms, self._counts, locations, scales, strict=True
            )
        )
        return StatedPrior(mean, shift, vectors, design)

    def _cut(self, whole: Matrix) -> Design:
        """Return A of every part, or the whole where that is what is wanted."""
        if self.design_shape is not None:
            return whole
        return [whole[:, a:b] for a, b in itertools.pairwise(np.cumsum([0, *self.sizes]))]

    def _read_centres(self, design: Design, centres: Sequence[Array]) -> Array | float:
        """Return what the sites read of the vectors where y is 0; most vectors are about 0 there."""
        if not any(centre.any() for centre in centres):
            return 0.0
        if not isinstance(design, list):
            return design @ np.concatenate(centres)
        return sum(c if d is None else d @ c for d, c in zip(design, centres, strict=True) if c.any())

    def _collect(self, design: Design, sites: Array) -> list[Array]:
        """Return ``A_sᵀ v`` of every part."""
        if not isinstance(design, list):
            return np.split(np.asarray(design.T @ sites), np.cumsum(self.sizes)[:-1])
        return [sites if d is None else np.asarray(d.T @ sites) for d in design]

    def prior_pullback(
        self, theta: Array, mean_bar: Array, vector_bars: list[Array | list[Array]],
        design_bar: Array | list[Array] | None,
    ) -> Array:  # fmt: skip
        """Return ``Σ ∂m/∂θ m̄ + Σ_s ∂K_s/∂θ K̄_s + Σ_s ∂A_s/∂θ Ā_s``, (d,), with D in place of K for coefficients."""
        bars = []
        if design_bar is not None:
            whole = np.hstack(design_bar) if isinstance(design_bar, list) else design_bar
            bars = self._design_bars(theta, mean_bar, whole)
        centre_bars = self._collect(self._design_at(theta), mean_bar)
        flat = [one for bar in vector_bars for one in (bar if isinstance(bar, list) else [bar])]
        seconds = [by_rows(bar) for bar in flat]
        return self._prior.pullback(theta, np.asarray(mean_bar), *bars, *seconds, *centre_bars)


def _at_entries(bar: Array, design: Matrix) -> Array:
    """Return a derivative by A, or of a sparse A by its entries, in their order."""
    if isinstance(design, np.ndarray):
        return bar
    rows = np.repeat(np.arange(design.shape[0]), np.diff(design.indptr))
    return np.asarray(bar[rows, design.indices])


def _guard_roots(expressions: Sequence[TensorVariable]) -> list[TensorVariable]:
    """Keep square roots above 0, at which they have no derivative.

    The power spectral density of a smooth kernel is 0 in double precision for the higher functions of a basis.
    """
    guarded = {}
    for root in ancestors(list(expressions)):
        if operation_name(root) == "Sqrt":
            of = root.owner.inputs[0]
            # What is negative has no root here either.
            guarded[root] = pt.sqrt(pt.switch(pt.lt(of, 0.0), of, pt.maximum(of, SMALLEST)))
    return clone_replace(list(expressions), guarded) if guarded else list(expressions)
