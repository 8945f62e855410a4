"""Observed variables as functions of a point: their linear predictor, parameters and data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import ArrayLike, NDArray
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, DataError, UnsupportedModelError, shown
from pymc_rmhmc.model.graph.affine import is_linear, linear_inputs
from pymc_rmhmc.model.graph.graphs import (
    Evaluator,
    NoValueThere,
    evaluated_there,
    first_line,
    points_elsewhere,
    shared_inputs,
    substitute,
)
from pymc_rmhmc.model.graph.linear_form import LinearForm, NotLinear, SourceMap, is_affine, read_linear_form
from pymc_rmhmc.model.likelihoods import LikelihoodKernel, ParameterFault, places
from pymc_rmhmc.model.observed.observation import Observation, curve_in_words, misfit, names_of
from pymc_rmhmc.model.observed.site_likelihood import BoundTerm

__all__ = ["AffineReader", "RegisteredReader", "predictor_of", "predictor_of_data"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type SiteOf = Callable[[Sequence[SourceMap]], NDArray[np.int64]]
type Shapes = Sequence[tuple[int, ...]]

# Of the numbers that go into a predictor: what is more than the rounding of intermediate results has moved.
MOVED = 1e-12
# What ends a message on observations that have no log density.
CORRECT = "No latent value could explain these observations: correct them, or leave them out."


class AffineReader:
    """The linear predictor of an observed variable, affine in the nodes of a block's latent variables."""

    def __init__(self, model: pm.Model, observation: Observation, sources: Sequence[TensorVariable]) -> None:
        assert observation.reading is not None
        self.name = str(observation.variable.name)
        self._holders = {source: source.type(name=f"{source.name or 'source'}_values") for source in sources}
        self._predictor = Evaluator(model, [predictor_of_data(observation)], self._holders)
        valued = predictor_of(model, observation, self._holders)
        self.linear_inputs = linear_inputs(model, valued, list(self._holders.values()))
        self.shared = list(self._predictor.shared)
        self._why_not_linear = (
            f"{curve_in_words(model, observation.variable, observation.reading.eta, sources)} RMHMC needs a predictor "
            "that is affine in the latent values behind one of the registered links: register the likelihood with "
            "register_likelihood, or sample with NUTS."
        )
        self._is_affine = is_linear(observation.reading.eta, sources, model.basic_RVs)
        self._form: LinearForm | None = None
        self._seen: list[np.ndarray | None] = [None] * len(self.linear_inputs.shared)

    def form(self, point: Point, shapes: Shapes, *, matrices: bool = False) -> LinearForm:
        """Return the predictor's linear form at a point.

        The linear part rarely changes with the point: it is kept as long as it still gives the predictor's
        value at a probe, and found again otherwise. Matrices of many columns are slow to read: unless they are asked
        for they may be left out where the graph says that the predictor is affine. Raises UnsupportedModelError if the
        predictor is not affine in the latent values.
        """

        def predictor(sources: Sequence[Array]) -> Array:
            try:
                return self._predictor(point, *sources)[0]
            except (IndexError, ValueError, AssertionError) as error:
                raise DataError(first_line(error)) from None

        try:
            if self._form is None:
                self._check_elsewhere(point, shapes)
            known = self._same_form(predictor, shapes)
            if known is None or (matrices and not known.is_whole):
                batched = partial(self._predictor.many, point, shapes) if self._is_affine else None
                known = read_linear_form(predictor, shapes, batched, matrices=matrices or not self._is_affine)
            self._form = known
        except NotLinear:
            raise UnsupportedModelError(self._why_not_linear) from None
        except DataError as error:
            raise DataError(
                f"The linear predictor of {self.name}: {error}. Check the shapes and values of its inputs and offsets."
            ) from None
        return self._form

    def _check_elsewhere(self, point: Point, shapes: Shapes) -> None:
        """Raise if the predictor curves elsewhere: what curves it may be multiplied by 0 where the model begins."""
        if self._is_affine:
            return
        for moved in points_elsewhere(point, self.linear_inputs.values):

            def predictor(sources: Sequence[Array], moved: Point = moved) -> Array:
                with np.errstate(all="ignore"):
                    return evaluated_there(self._predictor, moved, *sources)[0]

            holds = True
            # An index that is out of range there says nothing of where it is not.
            with contextlib.suppress(NoValueThere):
                holds = is_affine(predictor, shapes)
            if not holds:
                raise NotLinear

    def _same_form(self, predictor: Callable[[Sequence[Array]], Array], shapes: Shapes) -> LinearForm | None:
        """Return the linear form that is known, with the offset as it is now; None if it no longer holds."""
        data = [s.get_value(borrow=True) for s in self.linear_inputs.shared]
        seen, self._seen = self._seen, data
        if self._form is None or any(a is not b for a, b in zip(data, seen, strict=True)):
            return None
        offset = np.ravel(predictor([np.zeros(shape) for shape in shapes])).astype(np.float64)
        if offset.size != self._form.offset.size:
            return None
        moved = LinearForm(offset, self._form.maps)
        if not self.linear_inputs.values:
            return moved
        if not moved.is_whole:
            return None
        rng = np.random.default_rng(1)
        probe = [rng.standard_normal(shape) for shape in shapes]
        missed = np.abs(np.ravel(predictor(probe)) - moved.apply(probe))
        return moved if (missed <= MOVED * moved.magnitude(probe)).all() else None

    def reads_values(self, point: Point, shapes: Shapes) -> bool:
        """Return whether every observation reads one value of each source as it is, the same of all sources."""
        maps = self.form(point, shapes).maps
        indices = [m.index for m in maps if m.index is not None and m.is_plain]
        return len(indices) == len(maps) and all(np.array_equal(i, indices[0]) for i in indices[1:])

    def always_reads_values(self, point: Point, shapes: Shapes) -> bool:
        """Return whether `reads_values` holds elsewhere too: a scale may be 1 at one point alone.

        Which value an observation reads may depend on other variables, as in ``f[z]``; of several sources it would have
        to be the same one of all.
        """
        moving = self.linear_inputs.beside_indices if len(shapes) == 1 else self.linear_inputs.values
        return not moving and self.reads_values(point, shapes)

    @property
    def predictor_inputs(self) -> tuple[str, ...]:
        """The value variables that the linear predictor depends on, the latent ones aside."""
        return self._predictor.inputs


class RegisteredReader(AffineReader):
    """An observed variable with a registered likelihood."""

    def __init__(self, model: pm.Model, observation: Observation, sources: Sequence[TensorVariable]) -> None:
        super().__init__(model, observation, sources)
        likelihood, reading = observation.likelihood, observation.reading
        assert likelihood is not None
        assert reading is not None
        self.kernel = LikelihoodKernel(likelihood.name)
        self._likelihood = likelihood
        offset = pt.zeros(()) if reading.offset is None else reading.offset
        parameters = [reading.parameters[name] for name in likelihood.parameters]
        self._data = Evaluator(model, [observation.value, offset, *parameters])
        # For errors: what a user would correct for each parameter.
        self._origins = {
            name: _origin(model, parameter) for name, parameter in zip(likelihood.parameters, parameters, strict=True)
        }
        self.inputs = tuple(dict.fromkeys((*self._predictor.inputs, *self._data.inputs)))
        self.shared = [*self._predictor.shared, *self._data.shared]

    def bind(self, point: Point, shapes: Shapes, site_of: SiteOf, n_sites: int) -> BoundTerm:
        """Return the likelihood term of the observations that read a block's sites; others are left out.

        Raises UnsupportedModelError if latent values are not read as they are any more, and DataError if data,
        parameters or offsets cannot be used.
        """
        form = self.form(point, shapes)
        if not all(m.is_plain for m in form.maps):
            raise UnsupportedModelError(
                f"{self.name}: its predictor multiplies latent values by something else than 1, which it did not where "
                "the step was built. If data have changed, build a new RMHMC; if an index that moves looks up latent "
                "values that are multiplied, multiply them after they are looked up."
            )
        index = site_of(form.maps)
        chosen = None if (index >= 0).all() else np.flatnonzero(index >= 0)
        arguments, offset = self._checked(point, form)
        if chosen is not None:
            index, offset = index[chosen], offset[chosen]
            arguments = tuple(np.ascontiguousarray(a[chosen]) for a in arguments)
        in_order = index.size == n_sites and np.array_equal(index, np.arange(index.size))
        return BoundTerm(self.kernel, arguments, None if in_order else index, offset if offset.any() else None)

    def bind_whole(self, point: Point, shapes: Shapes, index: NDArray[np.int64] | None) -> BoundTerm:
        """Return the term of all observations, each of which is a separate site."""
        arguments, offset = self._checked(point, self.form(point, shapes))
        return BoundTerm(self.kernel, arguments, index, offset if offset.any() else None)

    def _checked(self, point: Point, form: LinearForm) -> tuple[tuple[Array, ...], Array]:
        """Return the data and the parameters as vectors, and the offset; raise an error for what cannot be used."""
        y, offset, *parameters = self._data(point)
        n = form.offset.size
        shape = np.shape(y) if np.size(y) == n else (n,)
        # Parameters first: data may be impossible because a parameter is.
        named = dict(zip(self._likelihood.parameters, parameters, strict=True))
        vectors = {name: self._vector(values, shape, y, name) for name, values in named.items()}
        for name, values in named.items():
            self._check_finite(f"the parameter {_given_as(name)}", np.ravel(values), self._remedy(name))
        data = self._vector(y, shape, y, "its linear predictor", as_data=True)
        self._check_finite("the data", data)
        wrong = self._likelihood.check(data, vectors)
        if isinstance(wrong, ParameterFault):
            remedy = self._remedy(wrong.name, positive=wrong.words.startswith("must be positive"))
            raise DataError(f"the parameter {_given_as(wrong.name)} of {self.name} {wrong.words}. {remedy}")
        if wrong is not None and not isinstance(wrong, str):
            raise ConfigurationError(
                f"{self._likelihood.name}: `check` must return a sentence, a ParameterFault or None, "
                f"got {shown(wrong)}."
            )
        if wrong:
            raise DataError(f"the data of {self.name} {wrong}. {CORRECT}")
        factor = self._vector(offset, shape, y, "the exposure")
        total = form.offset + factor
        bad = np.isnan(total) | (total == np.inf)
        if bad.any():
            raise DataError(self._offset_in_words(bad, form.offset, factor))
        bad = (total == -np.inf) & (data > 0)
        if bad.any():
            raise DataError(f"{self.name} has counts above 0 where its exposure is 0: {places(bad, data)}. {CORRECT}")
        return (data, *vectors.values()), total

    def _vector(
        self, values: ArrayLike, shape: tuple[int, ...], y: np.ndarray, name: str, *, as_data: bool = False
    ) -> Array:
        """Return values broadcast to the observations and raveled, contiguous and float64; an error names them."""
        try:
            held = np.broadcast_to(np.asarray(values, dtype=np.float64), shape)
        except ValueError:
            raise misfit(self.name, np.shape(y), name, shape if as_data else np.shape(values), self.shared) from None
        return np.ascontiguousarray(held).ravel()

    def _remedy(self, name: str, *, positive: bool = False) -> str:
        """Say what to correct where a parameter cannot be used: a prior, data, or the argument."""
        free, data = self._origins.get(name, ("", ""))
        if free:
            prior = "a positive prior, such as pm.HalfNormal" if positive else "a prior that leaves such values out"
            if positive and ", " in free:
                return f"It is computed from {free}: take pm.math.exp(...) of its formula, or give each {prior}."
            return f"It is computed from {free}: give {free} {prior}. If only its start is wrong, give it an initval."
        if data:
            return f"It is computed from the data {data}: correct these."
        return f"Correct this argument of {self.name}."

    def _check_finite(self, what: str, values: Array, remedy: str = CORRECT) -> None:
        bad = ~np.isfinite(values)
        if bad.any():
            raise DataError(f"{what} of {self.name} has values that are not finite: {places(bad, values)}. {remedy}")

    def _offset_in_words(self, bad: NDArray[np.bool_], predictor: Array, factor: Array) -> str:
        """Say which part of a predictor cannot be used: what multiplies its exponential, or is added to latents."""
        of_exposure = np.isnan(factor) | (factor == np.inf)
        if of_exposure.any():
            with np.errstate(over="ignore"):
                where = places(of_exposure, np.exp(factor))
            return (
                f"the exposure of {self.name}, which multiplies its mean, must be finite and not negative, and is not "
                f"for {where}. {CORRECT}"
            )
        return f"the offset of {self.name} is not finite for {places(bad, predictor)}. {CORRECT}"


def predictor_of(
    model: pm.Model, observation: Observation, holders: dict[TensorVariable, TensorVariable]
) -> TensorVariable:
    """Return an observed variable's predictor as a graph of value variables, with holders in place of some nodes."""
    return substitute([predictor_of_data(observation)], holders, model)[0]


def predictor_of_data(observation: Observation) -> TensorVariable:
    """Return the predictor in the shape of what is observed: one may serve several observations, and is read for each.

    What a likelihood that is not registered makes of its predictor is its own matter.
    """
    assert observation.reading is not None
    if observation.likelihood is None:
        return observation.reading.eta
    return pt.second(pt.zeros_like(observation.value, dtype="float64"), observation.reading.eta)


def _origin(model: pm.Model, parameter: TensorVariable) -> tuple[str, str]:
    """Return the free variables and the data that a parameter is computed from, each in words; empty for none."""
    made = set(ancestors([parameter], blockers=model.free_RVs))
    free = [v for v in model.free_RVs if v in made]
    return names_of(free), names_of([data for data in shared_inputs([parameter]) if data in made])


def _given_as(name: str) -> str:
    """Return a parameter's name, with what else a user may have given in its place."""
    return f"{name} (or tau, lam)" if name == "sigma" else name
