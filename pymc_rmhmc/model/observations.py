"""Observed variables as functions of a point: their linear predictor, parameters and data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError, UnsupportedLikelihoodError, UnsupportedModelError
from pymc_rmhmc.model.graphs import Evaluator, nonlinear_step, shared_inputs, substitute
from pymc_rmhmc.model.likelihoods import FallbackKernel, LikelihoodKernel, has_diagonal_hessian
from pymc_rmhmc.model.linear_form import LinearForm, NotLinear, SourceMap, read_linear_form
from pymc_rmhmc.model.site_likelihood import BoundTerm
from pymc_rmhmc.model.structure import Observation

__all__ = ["ObservationReader", "RegisteredReader", "UnregisteredReader", "make_reader"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type SiteOf = Callable[[Sequence[SourceMap]], NDArray[np.int64]]
type Shapes = Sequence[tuple[int, ...]]

LINEAR_OPERATIONS = {"Add", "Sub", "Neg", "Identity", "Cast", "Second"}


def make_reader(model: pm.Model, observation: Observation, sources: Sequence[TensorVariable]) -> ObservationReader:
    """The reader that fits an observation."""
    kind = UnregisteredReader if observation.likelihood is None else RegisteredReader
    return kind(model, observation, sources)


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

    site_level = False

    def __init__(self, model: pm.Model, observation: Observation, sources: Sequence[TensorVariable]) -> None:
        likelihood, reading = observation.likelihood, observation.reading
        assert likelihood is not None
        assert reading is not None
        self.name = str(observation.variable.name)
        self.kernel = LikelihoodKernel(likelihood.name)
        self._likelihood = likelihood
        self._holders = {source: _placeholder(source) for source in sources}
        # One predictor may serve several observations: it is read once for each.
        eta = pt.second(pt.zeros_like(observation.value, dtype="float64"), reading.eta)
        self._predictor = Evaluator(model, [eta], self._holders)
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
            return self._predictor(point, *sources)[0]

        if self._form is not None:
            rng = np.random.default_rng(1)
            probe = [rng.standard_normal(shape) for shape in shapes]
            offset = np.ravel(predictor([np.zeros(shape) for shape in shapes])).astype(np.float64)
            moved = LinearForm(offset, self._form.maps)
            got = np.ravel(predictor(probe))
            if got.size == offset.size == self._form.offset.size and np.allclose(
                got, moved.apply(probe), rtol=1e-10, atol=1e-10 * (1.0 + np.abs(offset).max(initial=0.0))
            ):
                self._form = moved
                return moved
        try:
            self._form = read_linear_form(predictor, shapes)
        except NotLinear:
            raise UnsupportedModelError(self._why_not_linear) from None
        except DataError as error:
            raise DataError(f"The linear predictor of {self.name}: {error}. Check the inputs and offsets.") from None
        return self._form

    def reads_values(self, point: Point, shapes: Shapes) -> bool:
        """Whether every observation reads one value of each source as it is, the same of all sources."""
        maps = self.form(point, shapes).maps
        indices = [m.index for m in maps if m.index is not None and m.is_plain]
        return len(indices) == len(maps) and all(np.array_equal(i, indices[0]) for i in indices[1:])

    @property
    def predictor_inputs(self) -> tuple[str, ...]:
        """The value variables that the linear predictor depends on, the latent ones aside."""
        return self._predictor.inputs

    def bind(self, point: Point, shapes: Shapes, site_of: SiteOf, n_sites: int) -> BoundTerm:
        """The likelihood term of the observations that read a block's sites; others are left out."""
        form = self.form(point, shapes)
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


class UnregisteredReader:
    """An observed variable with any other likelihood that factorises over one latent variable's values.

    Its kernel works on the latent values themselves, repeats and unobserved ones included: the Hessian of
    the summed log density is diagonal in them, or it is an error.
    """

    site_level = True

    def __init__(self, model: pm.Model, observation: Observation, sources: Sequence[TensorVariable]) -> None:
        self.name = str(observation.variable.name)
        held = set(ancestors([observation.variable]))
        (self._source,) = (i for i, source in enumerate(sources) if source in held)
        source = sources[self._source]
        log_density = pm.logp(observation.variable, observation.value)
        flat = pt.dvector("eta")
        whole = flat.reshape(source.shape) if source.ndim != 1 else flat
        log_density = substitute([log_density], {source: _typed(whole, source)}, model)[0]
        held = set(ancestors([log_density]))
        values = [v for v in model.value_vars if v in held]
        self.inputs = tuple(str(v.name) for v in values)
        # Shared data are arguments like any other: a kernel holds nothing that `pm.set_data` could change.
        self.shared = shared_inputs([log_density])
        held_data = {s: s.type(name=s.name) for s in self.shared}
        (log_density,) = clone_replace([log_density], held_data)
        self.kernel = FallbackKernel(flat, (*values, *held_data.values()), log_density)
        self._checked = False

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
        """
        data = (s.get_value(borrow=True) for s in self.shared)
        arguments = tuple(np.asarray(a) for a in (*(point[name] for name in self.inputs), *data))
        if not self._checked:
            size = int(np.prod(shapes[self._source]))
            rng = np.random.default_rng(0)
            diagonal = has_diagonal_hessian(
                lambda eta: self.kernel.gradient(eta, arguments)[1], np.zeros(size), rng
            )
            if not diagonal:
                raise UnsupportedLikelihoodError(
                    f"the likelihood of {self.name} does not factorise over the latent values: an observation depends "
                    "on several of them through a map that is not linear. Sample this model with NUTS."
                )
            self._checked = True
        return BoundTerm(self.kernel, arguments)

    def bind_whole(self, point: Point, shapes: Shapes, index: NDArray[np.int64] | None) -> BoundTerm:
        """An unregistered likelihood has no linear predictor that could be taken apart."""
        raise UnsupportedLikelihoodError(
            f"the likelihood of {self.name} is not registered, and its latent variable has other observations that "
            "read it through more than a gather: register it with register_likelihood."
        )


type ObservationReader = RegisteredReader | UnregisteredReader


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
    step = next(
        (nonlinear_step(eta, s, _is_linear) for s in sources if s in held), "unknown"
    )
    names = ", ".join(str(s.name).removesuffix("_rotated_") for s in sources if s in held)
    return (
        f"{name}: its predictor depends on {names} through a non-linear map `{step}`. RMHMC needs a predictor that is "
        "affine in the latent values behind one of the registered links: register the likelihood with "
        "register_likelihood, or sample with NUTS."
    )


def _is_linear(op: Any) -> bool:
    scalar = getattr(op, "scalar_op", None)
    return scalar is None or type(scalar).__name__ in LINEAR_OPERATIONS
