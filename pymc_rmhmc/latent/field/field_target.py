"""The joint target of one Gaussian field, which makes the steps of a trajectory at once where its functions allow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import spsolve

from pymc_rmhmc.errors import Failure
from pymc_rmhmc.interfaces.joint_density import Bound, JointBlock, JointDensity
from pymc_rmhmc.interfaces.stated import AffineRows
from pymc_rmhmc.latent.charts.marginal import MarginalChart
from pymc_rmhmc.latent.charts.moving_sites import MovingSites
from pymc_rmhmc.latent.conditional import LatentPlacement
from pymc_rmhmc.latent.field.field_loops import FieldPattern
from pymc_rmhmc.latent.field.field_parts import parts_of
from pymc_rmhmc.latent.field.field_path import (
    FieldFunctions,
    FieldSites,
    FieldState,
    evaluate_field,
    follow_field,
)
from pymc_rmhmc.latent.joint_target import JointPoint, JointTarget
from pymc_rmhmc.latent.latent_blocks import Sites
from pymc_rmhmc.latent.solvers.precision import FieldRoot, PrecisionSpace
from pymc_rmhmc.linalg.compiled.native import (
    NativeFunction,
    call_for_value_and_slope,
    call_for_value_and_two_slopes,
    call_for_vector,
    native_function,
)

__all__ = ["FieldTarget"]

type Array = NDArray[np.float64]
type Arguments = tuple[FieldPattern, FieldFunctions, MarginalChart, FieldSites]
# What PyTensor's compiled functions raise where a matrix has no factor, or an operation no value.
RAISED = (ArithmeticError, ValueError)
FAILURES = (Failure.NONE, Failure.NON_FINITE, Failure.NOT_POSITIVE_DEFINITE)
NOTHING: tuple[Array, NDArray[np.int64]] = (np.zeros(0), np.zeros(0, np.int64))


class FieldModel(JointDensity, Protocol):
    """A density whose only block is a field."""

    def compiled_rest(self) -> Bound:
        """Return the function that `rest` calls, and what it takes after θ."""


class FieldFunctionsOf(JointBlock, Protocol):
    """A field, with its functions for compiled code."""

    def compiled_functions(self) -> tuple[Bound, ...]:
        """Return u(θ) with the log normaliser, its derivative, the likelihood, and what moves its sites."""


class FieldTarget(JointTarget):
    """`JointTarget` of one Gaussian field.

    Parameters
    ----------
    density : FieldModel
        The model.
    sites : sequence of GaussianSites or MovingSites
        Of the only block.
    chart : MarginalChart
        For θ.
    holds_long : bool, optional
        Whether the latent values make several trajectories at each ϑ.
    """

    def __init__(
        self, density: FieldModel, sites: Sequence[Sites], chart: MarginalChart, *, holds_long: bool = False
    ) -> None:
        super().__init__(density, sites, chart, holds_long=holds_long)
        self._compiled: Arguments | None = None
        self._is_looked_for = False

    def __getstate__(self) -> dict[str, object]:
        # An address is of this process alone.
        return super().__getstate__() | {"_compiled": None, "_is_looked_for": False}

    def at(self, position: Array) -> JointPoint:
        """Evaluate the log density and its gradient; a failure is a value."""
        arguments = self._arguments()
        if arguments is None:
            return super().at(position)
        try:
            state = evaluate_field(*arguments, position)
        except RAISED:
            return super().at(position)
        return self._point(position, FieldState(*state))

    def advance(
        self, point: JointPoint, momentum: Array, n_steps: int, step_size: float
    ) -> tuple[int, tuple[JointPoint, Array] | None, Failure]:
        """Make so many steps: return how many were made, and the point and momentum at the end, or None and why."""
        arguments = self._arguments()
        assert arguments is not None
        assert point.gradient is not None
        try:
            made, position, momentum, state = follow_field(
                *arguments, point.position, momentum, point.gradient, n_steps, step_size
            )
        except RAISED:
            return 1, None, Failure.NOT_POSITIVE_DEFINITE
        end = self._point(position, FieldState(*state))
        return (made, None, end.failure) if end.failure else (made, (end, momentum), Failure.NONE)

    @property
    def advances(self) -> bool:
        """Whether `advance` can be asked for."""
        return self._arguments() is not None

    def enter(self, theta: Array, values: Sequence[Array], rng: np.random.Generator) -> Array:
        """See `JointTarget`: x is what has these values of the model."""
        rows, numbers = self._model_values(theta)
        if rows is not None:
            matrix = sparse.csc_array((rows.entries(numbers), (rows.row, rows.column)))
            constant = rows.at(numbers, np.zeros(rows.n_rows))
            values = [np.asarray(spsolve(matrix, each - constant)) for each in values]
        return super().enter(theta, values, rng)

    def latents(self, point: JointPoint) -> list[Array]:
        """See `JointTarget`: x are not the model's values where it is written with running sums."""
        latents = super().latents(point)
        rows, numbers = self._model_values(point.theta)
        return latents if rows is None else [rows.at(numbers, each) for each in latents]

    def _model_values(self, theta: Array) -> tuple[AffineRows | None, Array]:
        """Return the model's values as rows of x, None where they are x, and u(θ)."""
        block = self.density.blocks[0]
        assert block.maps is not None
        if block.maps.values is None:
            return None, theta
        stated = block.prior(theta).field
        assert stated is not None
        return block.maps.values, stated.numbers

    def _point(self, position: Array, state: FieldState) -> JointPoint:
        """Return what compiled code found as a point."""
        failure = FAILURES[state.status]
        point = JointPoint(position, state.theta, failure=failure)
        if failure is Failure.NOT_POSITIVE_DEFINITE:
            self.refused = state.theta
        if failure:
            return point
        root = FieldRoot(self._structure, state.field, state.log_normaliser)
        noise = position[self.n_theta :]
        point.eta, point.slope = [state.eta], [state.slope]
        point.placed = [LatentPlacement(state.eta, noise, state.values, root, None, state.values)]
        point.log_given = state.log_rest + state.log_likelihood
        point.log_density, point.gradient = state.log_density, state.gradient
        return point

    def _arguments(self) -> Arguments | None:
        """Return what compiled code takes besides the position; None where a function is not compiled."""
        if not self._is_looked_for:
            self._compiled, self._is_looked_for = self._find(), True
        return self._compiled

    def _find(self) -> Arguments | None:
        theta = self.chart.place(np.zeros(self.n_theta)).theta
        held, block = self.sites[0], self.density.blocks[0]
        assert block.maps is not None
        functions = None if parts_of(block.maps) else self._functions(theta)
        if functions is None:
            return None
        space = cast("PrecisionSpace", self.conditional(0, theta, held.sites, derivative=False))
        self._structure = space.structure
        empty, d = np.zeros(0), self.n_theta
        eta, information, trend = np.zeros((2, 0)), np.ones(1), held.trend
        if held.moves:
            moving = cast("MovingSites", held)
            information = moving.information
            eta = moving.eta if block.has_moving_sites else eta
        centre, exponents, log_most = np.zeros(d), np.zeros((2, d)), np.zeros(2)
        which, tilt = np.zeros(0, np.int64), np.zeros((0, eta.shape[1]))
        if trend is not None:
            centre, exponents, log_most = trend.centre, trend.exponents, trend.log_most
        if held.moves and moving.tilt is not None:
            centre, which, tilt = moving.tilt.centre, moving.tilt.which, moving.tilt.slopes
        sites = FieldSites(
            held.sites.linear, held.sites.precision, empty if held.moves else space.constants, eta, information, centre,
            exponents, log_most, which, tilt,
        )  # fmt: skip
        return space.structure.pattern, functions, self.chart, sites

    def _functions(self, theta: Array) -> FieldFunctions | None:
        """Return the model's functions for compiled code; None if Numba has not compiled one."""
        density, block = cast("FieldModel", self.density), cast("FieldFunctionsOf", self.density.blocks[0])
        numbers, pullback, likelihood, *informations = block.compiled_functions()
        eta, by_site = np.zeros((2, block.n_sites)), np.zeros(block.n_sites)
        found = native_function(likelihood[0], (theta, by_site), likelihood[1], call_for_value_and_two_slopes)
        bar = np.zeros(np.size(numbers[0](theta, *numbers[1])[1]))
        vectors = [((theta, bar), pullback), *zip(((theta, eta), (theta, eta, by_site)), informations, strict=False)]
        both = numbers, density.compiled_rest()
        values = [native_function(f, (theta,), bound, call_for_value_and_slope) for f, bound in both]
        others = [native_function(f, given, bound, call_for_vector) for given, (f, bound) in vectors]
        first, rest = values
        second, *moving = others
        if found is None or first is None or rest is None or second is None or None in moving:
            return None
        nothing = NativeFunction(0, NOTHING)
        known = [each for each in moving if each is not None] or [nothing, nothing]
        return FieldFunctions(first, second, rest, found, *known)
