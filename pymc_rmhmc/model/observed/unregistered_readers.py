"""Observed variables whose likelihoods are not registered, as functions of a point."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.logprob.abstract import MeasurableOp
from pymc.logprob.utils import ParameterValueError
from pytensor.graph.basic import Constant
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError, UnsupportedLikelihoodError, UnsupportedModelError, counted
from pymc_rmhmc.model.graph.graphs import (
    NO_DERIVATIVE,
    Evaluator,
    NoValueThere,
    by_python,
    evaluated_there,
    first_line,
    no_derivative_in_words,
    points_elsewhere,
    shared_inputs,
    substitute,
    value_inputs,
)
from pymc_rmhmc.model.graph.linear_form import LinearForm, SourceMap
from pymc_rmhmc.model.graph.stable import stable
from pymc_rmhmc.model.likelihoods import FallbackKernel, SlopeByNumPy, has_diagonal_hessian
from pymc_rmhmc.model.observed.observation import Observation, distribution_of
from pymc_rmhmc.model.observed.observations import AffineReader, Array, Point, Shapes, SiteOf
from pymc_rmhmc.model.observed.site_likelihood import BoundTerm
from pymc_rmhmc.model.words.advice import INSTEAD_OF_SEVERAL
from pymc_rmhmc.model.words.user_arguments import nan_in_words, values_in_words

__all__ = ["PredictedReader", "UnregisteredReader", "log_density_at"]

# Latent values at which an unregistered likelihood is tried, beside the model's own initial ones.
TRIED = (0.0, 0.5, 1.0, -1.0, 3.0, -3.0, 10.0, -10.0, 30.0, -30.0)
# Distributions that take `logit_p` for the logit of a probability.
WITH_LOGIT_P = ("Bernoulli", "Binomial")


class ArgumentWords:
    """Describe a variable's arguments, for errors: which is NaN ("" if none is), and what values they have.

    A copy shares the model. A pickle leaves it out and describes nothing: the data were checked before.
    """

    def __init__(self, described: tuple[pm.Model, TensorVariable] | None = None) -> None:
        self._described = described

    def nan(self, point: Point) -> str:
        """Say which argument is NaN; empty if none is."""
        return "" if self._described is None else nan_in_words(*self._described, point)

    def values(self, point: Point) -> str:
        """Say what values the arguments have."""
        return "" if self._described is None else values_in_words(*self._described, point)

    def __deepcopy__(self, memo: object) -> ArgumentWords:
        return self

    def __reduce__(self) -> tuple[type[ArgumentWords], tuple[()]]:
        return ArgumentWords, ()


class GraphLikelihood:
    """A likelihood that is not registered as a kernel of the values of one node of its graph.

    The node is a latent vector that is read, or a linear predictor. The Hessian of the summed log density must be
    diagonal in its values, or it is an error.
    """

    def __init__(self, model: pm.Model, observation: Observation, node: TensorVariable, shape: tuple[int, ...]) -> None:
        self.name = str(observation.variable.name)
        self._words = ArgumentWords((model, observation.variable))
        self._is_binary = distribution_of(observation.variable) in WITH_LOGIT_P
        self.size = math.prod(shape)
        flat = pt.dvector("eta")
        # The shape is a number: as an expression it would bring the node itself into the graph.
        log_density = log_density_at(model, observation, {node: flat if node.ndim == 1 else flat.reshape(shape)})
        values = value_inputs(model, [log_density])
        self.inputs = tuple(str(v.name) for v in values)
        # Shared data are arguments like any other: a kernel holds nothing that `pm.set_data` could change.
        data = pt.as_tensor_variable(observation.value)
        self.shared = shared_inputs([log_density, data])
        held_data = {s: s.type(name=s.name) for s in self.shared}
        log_density, data = clone_replace([log_density, data], held_data)
        inputs = (*values, *held_data.values())
        self.kernel = FallbackKernel(flat, inputs, log_density)
        self._slope = SlopeByNumPy(flat, inputs, log_density)
        self._by_observation = by_python([flat, *inputs], [log_density, data])
        self._checked: tuple[np.ndarray, ...] | None = None

    def arguments(self, point: Point, own: Array) -> tuple[Array, ...]:
        """Return what the kernel takes after the node's values, checked where data are new.

        The node's own values are where its log density is looked at first. Raises UnsupportedLikelihoodError if an
        observation depends on several values, and DataError if some have no finite log density whatever these are.
        """
        data = tuple(s.get_value(borrow=True) for s in self.shared)
        arguments = self._arguments(point, data)
        # Data that are replaced are other arrays: what was checked need not be checked for every draw.
        if self._checked is None or any(a is not b for a, b in zip(self._checked, data, strict=True)):
            self._check_data(np.ravel(own), arguments, point)
            try:
                self._check_diagonal(point, data)
            except NO_DERIVATIVE as error:
                raise UnsupportedLikelihoodError(
                    f"{no_derivative_in_words(f'the log density of {self.name}', error)}: sample with NUTS, or "
                    "register it with a slope of its own (register_likelihood)."
                ) from None
            self._checked = data
        return arguments

    def _arguments(self, point: Point, data: tuple[np.ndarray, ...]) -> tuple[Array, ...]:
        return tuple(np.asarray(a) for a in (*(point[name] for name in self.inputs), *data))

    def _check_diagonal(self, point: Point, data: tuple[np.ndarray, ...]) -> None:
        """Check that every observation depends on at most one latent value, and has a slope there."""
        size, arguments = self.size, self._arguments(point, data)
        slope = self._slope(0.5 * np.random.default_rng(1).standard_normal(size), arguments)
        lost = np.count_nonzero(np.isnan(slope))
        if lost:
            raise UnsupportedLikelihoodError(
                f"the derivative of the log density of {self.name}, as PyTensor finds it, is not a number for {lost} "
                f"of {size} latent values near 0: register it with a slope of its own (register_likelihood)."
            )
        if not (self._is_diagonal(arguments, finite=True) and self._is_diagonal_elsewhere(point, data)):
            raise UnsupportedLikelihoodError(
                f"the likelihood of {self.name} does not factorise over the latent values: an observation depends "
                f"on several of them through a map that is not linear. {INSTEAD_OF_SEVERAL}"
            )

    def _is_diagonal(self, arguments: tuple[Array, ...], *, finite: bool) -> bool:
        def slope(eta: Array) -> Array:
            return self._slope(eta, arguments) if finite else evaluated_there(self._slope, eta, arguments)

        return has_diagonal_hessian(slope, np.zeros(self.size), np.random.default_rng(0), finite=finite)

    def _is_diagonal_elsewhere(self, point: Point, data: tuple[np.ndarray, ...]) -> bool:
        """Return whether each observation depends on at most one latent value at other points too.

        What mixes latent values may be multiplied by 0 where the model begins.
        """
        for moved in points_elsewhere(point, self.inputs):
            # An index that is out of range there says nothing of where it is not.
            with contextlib.suppress(NoValueThere):
                if not self._is_diagonal(self._arguments(moved, data), finite=False):
                    return False
        return True

    def _check_data(self, own: Array, arguments: tuple[Array, ...], point: Point) -> None:
        """Check that every observation has a finite log density at some latent value out of a wide range."""
        wrong = np.array(True)
        tried, refused = None, ""
        for eta in (own, *(np.full(self.size, value) for value in TRIED)):
            try:
                tried = self._by_observation(eta, *arguments)
            except ParameterValueError as error:
                refused = first_line(error)
                continue
            except (IndexError, ValueError, AssertionError) as error:
                raise DataError(
                    f"The density of {self.name} cannot be evaluated: {first_line(error)}. Check the shapes and "
                    "values of its data and parameters, and the inputs of its predictor."
                ) from None
            # Each observation by itself: what is impossible at one latent value may be likely at another.
            wrong = wrong & ~np.isfinite(tried[0])
            if not wrong.any():
                return
        lost = self._words.nan(point)
        if lost:
            raise DataError(
                f"{lost[0].upper()}{lost[1:]}, so that {self.name} has no log density. Look for NaN in what it is "
                "computed from."
            )
        if tried is None:
            raise DataError(self._out_of_range(refused, point))
        raise DataError(_what_is_wrong(self.name, wrong, *tried))

    def _out_of_range(self, refused: str, point: Point) -> str:
        """Say that PyMC takes no value of the parameters, and what the user's arguments are."""
        given = self._words.values(point)
        found = f" At the model's initial point it has {given}." if given else ""
        is_probability = "<= 1" in refused
        link = "a probability needs pm.math.invlogit(f)" if is_probability else "a positive one needs pm.math.exp(f)"
        if is_probability and self._is_binary:
            link = "a probability needs logit_p=f or pm.math.invlogit(f)"
        return (
            f"A parameter of {self.name} is out of its range, whatever the latent values: PyMC needs {refused}.{found} "
            f"Correct the arguments of {self.name}, or its link: {link}."
        )


class UnregisteredReader:
    """An observed variable with any other likelihood that factorises over one latent variable's values.

    Its kernel works on the latent values themselves, repeats and unobserved ones included.
    """

    def __init__(
        self, model: pm.Model, observation: Observation, sources: Sequence[TensorVariable], shapes: Shapes
    ) -> None:
        held = set(ancestors([observation.variable]))
        (self._source,) = (i for i, source in enumerate(sources) if source in held)
        source = sources[self._source]
        self._likelihood = GraphLikelihood(model, observation, source, shapes[self._source])
        self.name, self.kernel = self._likelihood.name, self._likelihood.kernel
        self.inputs, self.shared = self._likelihood.inputs, self._likelihood.shared
        # The value that the latent variable has itself, where it has one: somewhere to evaluate.
        own = model.rvs_to_values.get(source)
        self._own_value = None if own is None else str(own.name)

    def form(self, point: Point, shapes: Shapes, *, matrices: bool = False) -> LinearForm:
        """Return the linear form in which every latent value is a separate site."""
        size = int(np.prod(shapes[self._source]))
        maps = tuple(
            SourceMap(np.arange(size), np.ones(size), None) if i == self._source
            else SourceMap(np.full(size, -1), np.zeros(size), None)
            for i in range(len(shapes))
        )  # fmt: skip
        return LinearForm(np.zeros(size), maps)

    def bind(self, point: Point, shapes: Shapes, site_of: SiteOf, n_sites: int) -> BoundTerm:
        """Return the term on all latent values."""
        return self.bind_whole(point, shapes, None)

    def bind_whole(self, point: Point, shapes: Shapes, index: NDArray[np.int64] | None) -> BoundTerm:
        """Return the term on all latent values, where these are some of the sites."""
        own = np.zeros(self._likelihood.size) if self._own_value is None else point[self._own_value]
        return BoundTerm(self.kernel, self._likelihood.arguments(point, own), index)


class PredictedReader(AffineReader):
    """An observed variable with a likelihood that is not registered, and a linear predictor."""

    def __init__(
        self, model: pm.Model, observation: Observation, sources: Sequence[TensorVariable], point: Point
    ) -> None:
        super().__init__(model, observation, sources)
        assert observation.node is not None
        # Somewhere to begin with where the log density must be finite.
        (self._value,) = Evaluator(model, [observation.node])(point)
        self._likelihood = GraphLikelihood(model, observation, observation.node, np.shape(self._value))
        self.kernel = self._likelihood.kernel
        self.inputs = tuple(dict.fromkeys((*self._predictor.inputs, *self._likelihood.inputs)))
        self.shared = list(dict.fromkeys((*self._predictor.shared, *self._likelihood.shared)))

    def bind(self, point: Point, shapes: Shapes, site_of: SiteOf, n_sites: int) -> BoundTerm:
        """Return the term where each observation reads one value of every latent vector; as `RegisteredReader.bind`."""
        maps = self.form(point, shapes).maps
        index = site_of(maps) if all(m.is_plain for m in maps) else np.full(1, -1)
        if (index < 0).any():
            raise UnsupportedModelError(
                f"{self.name}: its predictor multiplies latent values by something else than 1, or reads none, which "
                "it did not where the step was built. If data have changed, build a new RMHMC."
            )
        return self.bind_whole(point, shapes, index)

    def bind_whole(self, point: Point, shapes: Shapes, index: NDArray[np.int64] | None) -> BoundTerm:
        """Return the term of all values of the predictor, each of which is a separate site."""
        offset = self.form(point, shapes).offset
        if not np.isfinite(offset).all():
            raise DataError(
                f"the linear predictor of {self.name} is not finite for {np.count_nonzero(~np.isfinite(offset))} "
                "observations: check its inputs."
            )
        arguments = self._likelihood.arguments(point, self._value)
        return BoundTerm(self.kernel, arguments, index, offset if offset.any() else None)


def log_density_at(
    model: pm.Model, observation: Observation, replacements: dict[TensorVariable, TensorVariable]
) -> TensorVariable:
    """Return the log density by observation with other values in place of some nodes of the variable's graph."""
    variable = observation.variable
    # Of the node's static shape, so that it can take its place.
    values = {node: pt.specify_shape(given, node.type.shape) for node, given in replacements.items()}
    # Replaced before PyMC derives the density: it copies the graphs of distributions that are made of
    # others, in which the source could not be found again.
    inputs = list(variable.owner.inputs)
    places = [i for i, value in enumerate(inputs) if isinstance(value, TensorVariable)]
    replaced = substitute([inputs[i] for i in places], values, model)
    for i, value in zip(places, replaced, strict=True):
        inputs[i] = _folded(value)
    node = variable.owner.clone_with_new_inputs(inputs)
    try:
        return stable(pm.logp(node.outputs[variable.owner.outputs.index(variable)], observation.value))
    except ValueError as error:
        if "shape" not in str(error):
            raise
        raise DataError(
            f"{variable.name}: the data and their distribution, {distribution_of(variable)}, have shapes that do not "
            f"fit ({first_line(error)}). Each observation needs one value of every parameter: give all the same shape, "
            "or pick the latent values that are observed with an index, f[index]."
        ) from None


def _folded(parameter: TensorVariable) -> TensorVariable:
    """Replace what is made of constants alone by a constant: PyMC tells a bound at infinity from others by that.

    Where PyMC does not recognise such a bound, the density has a derivative that is not a number.
    """
    made = list(ancestors([parameter]))
    # Of a mixture a component is a parameter, which may be random without a random number.
    is_random = any(v.owner is not None and isinstance(v.owner.op, MeasurableOp) for v in made)
    is_constant = all(isinstance(v, Constant) for v in made if v.owner is None)
    if parameter.owner is None or is_random or not is_constant:
        return parameter
    (value,) = by_python([], [parameter])()
    return pt.constant(value, dtype=parameter.dtype)


def _what_is_wrong(name: str, wrong: NDArray[np.bool_], density: Array, data: Array) -> str:
    """Say what is wrong with observations that have no finite log density."""
    n, first = int(np.count_nonzero(wrong)), int(np.argmax(np.ravel(wrong)))
    held = np.broadcast_to(data, wrong.shape)[wrong]
    lost = int(np.count_nonzero(~np.isfinite(held)))
    if lost:
        return (
            f"the data of {name} have {counted(lost, 'non-finite value')}, the first at position {first}: remove "
            "them, or mask them to impute them."
        )
    if np.isnan(density[wrong]).any():
        return (
            f"the log density of {name} is not a number for {counted(n, 'observation')}, the first at position "
            f"{first}, whatever the latent values: check its parameters and the inputs of its predictor."
        )
    return (
        f"the data of {name} are out of their distribution's support for {counted(n, 'observation')}, the first at "
        f"position {first}: no latent values can give {np.unique(held)[:3].tolist()}. Correct these, or leave them out."
    )
