"""Observed variables as functions of a point: their linear predictor, parameters and data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError, UnsupportedLikelihoodError, UnsupportedModelError
from pymc_rmhmc.model.dependence import linear_inputs
from pymc_rmhmc.model.graphs import LINEAR_OPERATIONS, PYTHON_MODE, Evaluator, nonlinear_step, shared_inputs, substitute
from pymc_rmhmc.model.likelihoods import FallbackKernel, LikelihoodKernel, has_diagonal_hessian
from pymc_rmhmc.model.linear_form import LinearForm, NotLinear, SourceMap, read_linear_form
from pymc_rmhmc.model.site_likelihood import BoundTerm
from pymc_rmhmc.model.structure import Observation

__all__ = [
    "ObservationReader",
    "RegisteredReader",
    "UnregisteredReader",
    "log_density_given",
    "make_reader",
    "predictor_of",
    "predictor_of_data",
]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type SiteOf = Callable[[Sequence[SourceMap]], NDArray[np.int64]]
type Shapes = Sequence[tuple[int, ...]]

# Latent values at which an unregistered likelihood is tried, beside the model's own initial ones.
TRIED = (0.0, 1.0, -1.0, 3.0, -3.0, 10.0, -10.0, 30.0, -30.0)


def make_reader(
    model: pm.Model, observation: Observation, sources: Sequence[TensorVariable], shapes: Shapes
) -> ObservationReader:
    """The reader that fits an observation of sources with the given shapes."""
    if observation.likelihood is None:
        return UnregisteredReader(model, observation, sources, shapes)
    return RegisteredReader(model, observation, sources)


class RegisteredReader:
    """An observed variable with a registered likelihood.

    Parameters
    ----------
    model : pymc.Model
        The model.
    observation : Observation
        As it was read.
    sources : sequence of TensorVariable
        The nodes of the block's latent variables, in order.
    """

    def __init__(self, model: pm.Model, observation: Observation, sources: Sequence[TensorVariable]) -> None:
        likelihood, reading = observation.likelihood, observation.reading
        assert likelihood is not None
        assert reading is not None
        self.name = str(observation.variable.name)
        self.kernel = LikelihoodKernel(likelihood.name)
        self._likelihood = likelihood
        self._holders = {source: _placeholder(source) for source in sources}
        self._predictor = Evaluator(model, [predictor_of_data(observation)], self._holders)
        valued = predictor_of(model, observation, self._holders)
        self.linear_inputs = linear_inputs(model, valued, list(self._holders.values()))
        offset = pt.zeros(()) if reading.offset is None else reading.offset
        parameters = [reading.parameters[name] for name in likelihood.parameters]
        self._data = Evaluator(model, [observation.value, offset, *parameters])
        self.inputs = tuple(dict.fromkeys((*self._predictor.inputs, *self._data.inputs)))
        self.shared = [*self._predictor.shared, *self._data.shared]
        self._why_not_linear = _reason(self.name, reading.eta, sources)
        self._form: LinearForm | None = None

    def form(self, point: Point, shapes: Shapes) -> LinearForm:
        """The predictor's linear form at a point.

        The linear part rarely changes with the point: it is kept as long as it still gives the predictor's
        value at a probe, and found anew otherwise.

        Raises
        ------
        UnsupportedModelError
            If the predictor is not affine in the latent values.
        """

        def predictor(sources: Sequence[Array]) -> Array:
            try:
                return self._predictor(point, *sources)[0]
            except IndexError as error:
                raise DataError(_first_line(error)) from None

        try:
            self._form = self._same_form(predictor, shapes) or read_linear_form(predictor, shapes)
        except NotLinear:
            raise UnsupportedModelError(self._why_not_linear) from None
        except DataError as error:
            raise DataError(f"The linear predictor of {self.name}: {error}. Check the inputs and offsets.") from None
        return self._form

    def _same_form(self, predictor: Callable[[Sequence[Array]], Array], shapes: Shapes) -> LinearForm | None:
        """The linear form that is known, with the offset as it is now; None if it no longer holds."""
        if self._form is None:
            return None
        rng = np.random.default_rng(1)
        probe = [rng.standard_normal(shape) for shape in shapes]
        offset = np.ravel(predictor([np.zeros(shape) for shape in shapes])).astype(np.float64)
        moved = LinearForm(offset, self._form.maps)
        got = np.ravel(predictor(probe))
        holds = got.size == offset.size == self._form.offset.size and np.allclose(
            got, moved.apply(probe), rtol=1e-10, atol=1e-10 * (1.0 + np.abs(offset).max(initial=0.0))
        )
        return moved if holds else None

    def reads_values(self, point: Point, shapes: Shapes) -> bool:
        """Whether every observation reads one value of each source as it is, the same of all sources."""
        maps = self.form(point, shapes).maps
        indices = [m.index for m in maps if m.index is not None and m.is_plain]
        return len(indices) == len(maps) and all(np.array_equal(i, indices[0]) for i in indices[1:])

    def always_reads_values(self, point: Point, shapes: Shapes) -> bool:
        """Whether `reads_values` holds elsewhere too: a scale may be 1 at one point alone.

        Which value an observation reads may depend on other variables, as in ``f[z]``; of several sources it would have
        to be the same one of all.
        """
        moving = self.linear_inputs.beside_indices if len(shapes) == 1 else self.linear_inputs.values
        return not moving and self.reads_values(point, shapes)

    @property
    def predictor_inputs(self) -> tuple[str, ...]:
        """The value variables that the linear predictor depends on, the latent ones aside."""
        return self._predictor.inputs

    def bind(self, point: Point, shapes: Shapes, site_of: SiteOf, n_sites: int) -> BoundTerm:
        """The likelihood term of the observations that read a block's sites; others are left out.

        Raises
        ------
        UnsupportedModelError
            If latent values are not read as they are any more.
        DataError
            If data, parameters or offsets cannot be used.
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
        """The term of all observations, each of which is a site of its own."""
        arguments, offset = self._checked(point, self.form(point, shapes))
        return BoundTerm(self.kernel, arguments, index, offset if offset.any() else None)

    def _checked(self, point: Point, form: LinearForm) -> tuple[tuple[Array, ...], Array]:
        """Y and the parameters as vectors, and the offset; errors for what cannot be used."""
        y, offset, *parameters = self._data(point)
        n = form.offset.size
        shape = np.shape(y) if np.size(y) == n else (n,)
        vectors = [_vector(y, shape), *(_vector(p, shape) for p in parameters)]
        total = form.offset + _vector(offset, shape)
        named = dict(zip(self._likelihood.parameters, vectors[1:], strict=True))
        for name, values in {f"the data of {self.name}": vectors[0], **{
            f"the parameter {p} of {self.name}": v for p, v in named.items()
        }}.items():  # fmt: skip
            if not np.isfinite(values).all():
                raise DataError(f"{name} has {np.count_nonzero(~np.isfinite(values))} values that are not finite.")
        if np.isnan(total).any() or (total == np.inf).any():
            raise DataError(
                f"the offset or exposure of {self.name} is not finite (or negative) for "
                f"{np.count_nonzero(~(total < np.inf))} observations: check the inputs of its linear predictor."
            )
        wrong = self._likelihood.check(vectors[0], named)
        if wrong:
            raise DataError(f"the data of {self.name} {wrong}.")
        if ((total == -np.inf) & (vectors[0] > 0)).any():
            raise DataError(f"{self.name} has counts above 0 where its exposure is 0.")
        return tuple(vectors), total


def predictor_of(
    model: pm.Model, observation: Observation, holders: dict[TensorVariable, TensorVariable]
) -> TensorVariable:
    """The predictor of an observed variable as a graph of value variables, with holders in place of some nodes."""
    return substitute([predictor_of_data(observation)], holders, model)[0]


def predictor_of_data(observation: Observation) -> TensorVariable:
    """The predictor in the shape of what is observed: one may serve several observations, and is read for each."""
    assert observation.reading is not None
    return pt.second(pt.zeros_like(observation.value, dtype="float64"), observation.reading.eta)


class UnregisteredReader:
    """An observed variable with any other likelihood that factorises over one latent variable's values.

    Its kernel works on the latent values themselves, repeats and unobserved ones included: the Hessian of
    the summed log density is diagonal in them, or it is an error.
    """

    def __init__(
        self, model: pm.Model, observation: Observation, sources: Sequence[TensorVariable], shapes: Shapes
    ) -> None:
        self.name = str(observation.variable.name)
        held = set(ancestors([observation.variable]))
        (self._source,) = (i for i, source in enumerate(sources) if source in held)
        source = sources[self._source]
        flat = pt.dvector("eta")
        # The shape is a number: as an expression it would bring the source itself into the graph.
        whole = flat.reshape(shapes[self._source]) if source.ndim != 1 else flat
        log_density = log_density_given(model, observation, source, whole)
        held = set(ancestors([log_density]))
        values = [v for v in model.value_vars if v in held]
        self.inputs = tuple(str(v.name) for v in values)
        # Shared data are arguments like any other: a kernel holds nothing that `pm.set_data` could change.
        data = pt.as_tensor_variable(observation.value)
        self.shared = shared_inputs([log_density, data])
        held_data = {s: s.type(name=s.name) for s in self.shared}
        log_density, data = clone_replace([log_density, data], held_data)
        self.kernel = FallbackKernel(flat, (*values, *held_data.values()), log_density)
        # The value that the latent variable has itself, where it has one: somewhere to evaluate.
        own = model.rvs_to_values.get(source)
        self._own_value = None if own is None else str(own.name)
        self._by_observation = pytensor.function(
            [flat, *values, *held_data.values()], [log_density, data], mode=PYTHON_MODE, on_unused_input="ignore"
        )
        self._checked: tuple[Any, ...] | None = None

    def form(self, point: Point, shapes: Shapes) -> LinearForm:
        """Every latent value is a site of its own."""
        size = int(np.prod(shapes[self._source]))
        maps = tuple(
            SourceMap(np.arange(size), np.ones(size), None) if i == self._source
            else SourceMap(np.full(size, -1), np.zeros(size), None)
            for i in range(len(shapes))
        )  # fmt: skip
        return LinearForm(np.zeros(size), maps)

    def bind(self, point: Point, shapes: Shapes, site_of: SiteOf, n_sites: int) -> BoundTerm:
        """The term on all latent values.

        Raises
        ------
        UnsupportedLikelihoodError
            If an observation depends on several latent values.
        DataError
            If observations have no finite log density whatever the latent values are.
        """
        return self.bind_whole(point, shapes, None)

    def bind_whole(self, point: Point, shapes: Shapes, index: NDArray[np.int64] | None) -> BoundTerm:
        """The same, where the latent values are some of the sites."""
        data = tuple(s.get_value(borrow=True) for s in self.shared)
        arguments = tuple(np.asarray(a) for a in (*(point[name] for name in self.inputs), *data))
        # Data that are replaced are other arrays: what was checked need not be checked for every draw.
        if self._checked is None or any(a is not b for a, b in zip(self._checked, data, strict=True)):
            size = int(np.prod(shapes[self._source]))
            self._check_data(point, arguments, size)
            self._check_diagonal(arguments, size)
            self._checked = data
        return BoundTerm(self.kernel, arguments, index)

    def _check_diagonal(self, arguments: tuple[Array, ...], size: int) -> None:
        """Every observation may depend on one latent value, and must have a slope there."""
        rng = np.random.default_rng(0)
        slope = self.kernel.gradient(0.5 * np.random.default_rng(1).standard_normal(size), arguments)[1]
        lost = np.count_nonzero(np.isnan(slope))
        if lost:
            raise UnsupportedLikelihoodError(
                f"the derivative of the log density of {self.name}, as PyTensor finds it, is not a number for {lost} "
                f"of {size} latent values near 0: register it with a slope of its own (register_likelihood)."
            )
        if not has_diagonal_hessian(lambda eta: self.kernel.gradient(eta, arguments)[1], np.zeros(size), rng):
            raise UnsupportedLikelihoodError(
                f"the likelihood of {self.name} does not factorise over the latent values: an observation depends "
                "on several of them through a map that is not linear. Sample this model with NUTS."
            )

    def _check_data(self, point: Point, arguments: tuple[Array, ...], size: int) -> None:
        """Every observation must have a finite log density at some latent value out of a wide range."""
        own = np.zeros(size) if self._own_value is None else np.ravel(point[self._own_value])
        wrong: Any = True
        tried, refused = None, ""
        for eta in (own, *(np.full(size, value) for value in TRIED)):
            try:
                tried = self._by_observation(eta, *arguments)
            except ParameterValueError as error:
                refused = _first_line(error)
                continue
            except IndexError as error:
                raise DataError(f"The predictor of {self.name}: {_first_line(error)}. Check its inputs.") from None
            # Each observation by itself: what is impossible at one latent value may be likely at another.
            wrong = wrong & ~np.isfinite(tried[0])
            if not wrong.any():
                return
        if tried is None:
            raise DataError(f"a parameter of {self.name} is out of its range, whatever the latent values: {refused}.")
        raise DataError(_what_is_wrong(self.name, wrong, *tried))


type ObservationReader = RegisteredReader | UnregisteredReader


def log_density_given(
    model: pm.Model, observation: Observation, source: TensorVariable, values: TensorVariable
) -> TensorVariable:
    """The log density by observation as a graph of a source's values, in the source's shape."""
    variable = observation.variable
    values = _typed(values, source)
    # Replaced before PyMC derives the density: it copies the graphs of distributions that are made of
    # others, in which the source could not be found again.
    inputs = list(variable.owner.inputs)
    places = [i for i, value in enumerate(inputs) if isinstance(value, TensorVariable)]
    replaced = substitute([inputs[i] for i in places], {source: values}, model)
    for i, value in zip(places, replaced, strict=True):
        inputs[i] = value
    node = variable.owner.clone_with_new_inputs(inputs)
    return pm.logp(node.outputs[variable.owner.outputs.index(variable)], observation.value)


def _what_is_wrong(name: str, wrong: NDArray[np.bool_], density: Array, data: Array) -> str:
    """Observations without a finite log density, in words."""
    n = np.count_nonzero(wrong)
    held = np.broadcast_to(data, wrong.shape)[wrong]
    lost = np.count_nonzero(~np.isfinite(held))
    if lost:
        return f"the data of {name} has {lost} values that are not finite: remove them, or mask them to impute them."
    if np.isnan(density[wrong]).any():
        return (
            f"the log density of {name} is not a number for {n} observations, whatever the latent values: "
            "check its parameters and the inputs of its predictor."
        )
    return (
        f"the data of {name} is out of its distribution's support for {n} observations, which hold values such as "
        f"{np.unique(held)[:3].tolist()}: their log density is not finite whatever the latent values."
    )


def _first_line(error: Exception) -> str:
    """What an error says, without PyTensor's account of the graph."""
    return str(error).split("\n")[0]


def _placeholder(source: TensorVariable) -> TensorVariable:
    return source.type(name=f"{source.name or 'source'}_values")


def _typed(variable: TensorVariable, like: TensorVariable) -> TensorVariable:
    """A variable with another's static shape, so that it can take its place."""
    return pt.specify_shape(variable, like.type.shape)


def _vector(values: Any, shape: tuple[int, ...]) -> Array:
    """Values broadcast to the observations and raveled, contiguous and float64."""
    return np.ascontiguousarray(np.broadcast_to(np.asarray(values, dtype=np.float64), shape)).ravel()


def _reason(name: str, eta: TensorVariable, sources: Sequence[TensorVariable]) -> str:
    """Why a predictor is not affine, for the error that may be needed."""
    held = set(ancestors([eta]))
    step = next((nonlinear_step(eta, s, _is_linear) for s in sources if s in held), "unknown")
    names = ", ".join(str(s.name).removesuffix("_rotated_") for s in sources if s in held)
    return (
        f"{name}: its predictor depends on {names} through a non-linear map `{step}`. RMHMC needs a predictor that is "
        "affine in the latent values behind one of the registered links: register the likelihood with "
        "register_likelihood, or sample with NUTS."
    )


def _is_linear(op: Any) -> bool:
    scalar = getattr(op, "scalar_op", None)
    return scalar is None or type(scalar).__name__ in LINEAR_OPERATIONS
