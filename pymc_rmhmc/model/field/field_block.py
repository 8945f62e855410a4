"""A Gaussian field of a model as functions of θ and η; see `pymc_rmhmc.interfaces.joint_density`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from numpy.typing import NDArray
from pytensor.gradient import disconnected_grad
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError
from pymc_rmhmc.interfaces.joint_density import Bound
from pymc_rmhmc.interfaces.stated import FieldMaps, StatedField, StatedPrior
from pymc_rmhmc.model.field.affinity import FieldObservation
from pymc_rmhmc.model.forms.joint_blocks import Block
from pymc_rmhmc.model.graph.graphs import shared_inputs
from pymc_rmhmc.model.hyperparameters import GraphFunction, Hyperparameters
from pymc_rmhmc.model.likelihoods import LikelihoodTerms
from pymc_rmhmc.model.observed.observed_terms import gradient_by

__all__ = ["FieldBlock", "PredictorTerms"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]


class PredictorTerms:
    """What one observed variable says of the predictors that it reads, as graphs of θ and of their values.

    Parameters
    ----------
    observation : FieldObservation
        With expressions of value variables.
    first : int
        Where their values begin among the sites.
    theta : Hyperparameters
        The hyperparameters.
    """

    def __init__(self, observation: FieldObservation, first: int, theta: Hyperparameters) -> None:
        self._observation, self._first, self._theta = observation, first, theta
        self.size = sum(math.prod(shape) for shape in observation.shapes)
        parameters = theta.place([p.astype("float64") for p in observation.parameters.values()])
        self._parameters = dict(zip(observation.parameters, parameters, strict=True))

    @property
    def has_moving_parameters(self) -> bool:
        """Whether θ moves a parameter of a registered likelihood."""
        return self._theta.symbol in ancestors(list(self._parameters.values()))

    def terms(self, eta: TensorVariable) -> tuple[TensorVariable, TensorVariable, TensorVariable]:
        """Return ``Σ ℓ``, its slope by site, and its gradient by θ."""
        theta = self._theta.symbol
        if self._observation.likelihood is None:
            places = dict(zip(self._observation.predictors, self._parts(eta), strict=True))
            (density,) = clone_replace([self._observation.log_density], places)
            (total,) = self._theta.place([density.astype("float64")])
            return total, pytensor.grad(total, eta, disconnected_inputs="ignore"), gradient_by(total, theta)
        read = self._read(eta)
        terms = self._registered(disconnected_grad(read))
        total = terms.logp.sum()
        slope = pytensor.grad((disconnected_grad(terms.gradient) * read).sum(), eta)
        return total, slope, gradient_by(total, theta)

    def second_derivative(self, eta: TensorVariable, direction: TensorVariable) -> TensorVariable:
        """Return the derivative of the slope by site along a direction of the predictors' values."""
        if self._observation.likelihood is None:
            slope = self.terms(eta)[1]
            return pytensor.grad((slope * direction).sum(), eta, disconnected_inputs="ignore")
        read = self._read(eta)
        along = self._read(direction) - self._read(pt.zeros_like(direction))
        return pytensor.grad((self._registered(read).gradient * along).sum(), eta)

    def information(self, eta: TensorVariable) -> TensorVariable:
        """Return a weight of each site that grows with parameters as the slope does; 0 where nothing is known."""
        if self._observation.likelihood is None:
            return pt.zeros_like(eta)
        read = self._read(eta)
        terms, held = self._registered(read), read.type()
        weight = terms.slope_weight
        if weight is None:
            weight = terms.curvature["fisher" if "fisher" in terms.curvature else "hessian"].weight
        by_site = pytensor.grad((held * read).sum(), eta)
        return clone_replace([by_site], {held: held.type.filter_variable(pt.second(read, weight))})[0]

    def _parts(self, eta: TensorVariable) -> list[TensorVariable]:
        """Return the predictors' values in their shapes."""
        made, first = [], self._first
        for node, shape in zip(self._observation.predictors, self._observation.shapes, strict=True):
            size = math.prod(shape)
            part = eta[first] if shape == () else eta[first : first + size].reshape(shape)
            made.append(pt.specify_shape(part.astype(node.dtype), node.type.shape))
            first += size
        return made

    def _read(self, eta: TensorVariable) -> TensorVariable:
        """Return the predictor of each observation."""
        (part,) = self._parts(eta)
        data = pt.as_tensor_variable(self._observation.data)
        read = part + pt.zeros_like(data, dtype="float64")
        if self._observation.offset is not None:
            read = read + self._theta.place([self._observation.offset])[0]
        return read

    def _registered(self, read: TensorVariable) -> LikelihoodTerms:
        likelihood, data = self._observation.likelihood, pt.as_tensor_variable(self._observation.data)
        assert likelihood is not None
        flat = read.flatten()
        parameters = {name: pt.second(read, value).flatten() for name, value in self._parameters.items()}
        found = likelihood.terms(flat, parameters, pt.second(read, data).astype("float64").flatten())
        shape = read.shape

        def like(each: TensorVariable) -> TensorVariable:
            return each.reshape(shape, ndim=read.ndim)

        return found._replace(
            logp=found.logp, gradient=like(found.gradient),
            curvature={k: c._replace(weight=like(c.weight)) for k, c in found.curvature.items()},
            slope_weight=None if found.slope_weight is None else like(found.slope_weight),
        )  # fmt: skip


class FieldBlock(Block):
    """Latent values with a sparse precision, and what is observed of their predictors.

    Parameters
    ----------
    model : pymc.Model
        The model.
    name : str
        Of the latent variables.
    values : dict of str to int
        The value variables in the order of x, and how many values each has.
    theta : Hyperparameters
        θ.
    maps : FieldMaps
        What does not move of J, c, A and a.
    numbers, log_normaliser : TensorVariable
        What moves, and the log density where residuals are 0, as graphs of θ.
    observed : sequence of PredictorTerms
        The likelihoods, in the order of their sites.
    read_from : sequence of TensorVariable
        What the maps were read from.
    point : dict
        Where the shapes of what the functions take besides are found.
    """

    def __init__(
        self, model: pm.Model, name: str, values: dict[str, int], theta: Hyperparameters, maps: FieldMaps,
        numbers: TensorVariable, log_normaliser: TensorVariable, observed: Sequence[PredictorTerms],
        read_from: Sequence[TensorVariable], point: Point,
    ) -> None:  # fmt: skip
        self.name, self.value_names, self.sizes = name, tuple(values), tuple(values.values())
        self.maps, self.n_sites = maps, maps.predictors.n_rows
        self.n_residuals = maps.residuals.n_rows + len(maps.dense) + maps.n_dense
        bar, symbol = pt.dvector("bar"), theta.symbol
        along = log_normaliser + (numbers * bar).sum()
        self._numbers = GraphFunction(model, [symbol], [log_normaliser, numbers], point)
        self._pullback = GraphFunction(model, [symbol, bar], [gradient_by(along, symbol)], point)
        self._shared = [(each, np.array(each.get_value())) for each in shared_inputs([log_normaliser, *read_from])]
        self.shifts_likelihoods = np.zeros(theta.size, bool)
        eta = pt.dvector("eta", shape=(self.n_sites,))
        terms = [each.terms(eta) for each in observed]
        zero = [pt.zeros(()), pt.zeros_like(eta), pt.zeros_like(theta.symbol)]
        self._likelihood = GraphFunction(
            model, [symbol, eta], [sum((t[i] for t in terms), start=zero[i]) for i in range(3)], point
        )
        self._compile_field_information(model, theta, observed, point)

    def _compile_field_information(
        self, model: pm.Model, theta: Hyperparameters, observed: Sequence[PredictorTerms], point: Point
    ) -> None:
        """Compile what moving sites need, where a parameter of a likelihood moves."""
        if not any(each.has_moving_parameters for each in observed):
            return
        eta, bar = pt.dmatrix("eta", shape=(2, self.n_sites)), pt.dvector("bar")
        information = 0.5 * sum(each.information(eta[node]) for each in observed for node in range(2))
        gradient = gradient_by((information * bar).sum(), theta.symbol)
        self._informations = (
            GraphFunction(model, [theta.symbol, eta], [information], point),
            GraphFunction(model, [theta.symbol, eta, bar], [gradient], point),
        )

    @property
    def functions(self) -> tuple[GraphFunction, ...]:
        """Everything that is bound to a point."""
        return self._numbers, self._pullback, self._likelihood, *self._informations

    def forget(self) -> None:
        """Do nothing: no derivative needs what its value has made."""

    def compiled_functions(self) -> tuple[Bound, ...]:
        """Return u(θ) with the log normaliser, its derivative, and the likelihood, and what each takes besides.

        Then, where sites follow parameters of likelihoods, their information and its derivative.
        """
        return tuple((each.function, each.bound) for each in self.functions)

    def prior(self, theta: Array) -> StatedPrior:
        """Return the field at θ."""
        log_normaliser, numbers = self._numbers(theta)
        assert self.maps is not None
        empty = np.zeros(0)
        return StatedPrior(empty, empty, (), None, StatedField(self.maps, numbers, float(log_normaliser)))

    def prior_pullback(self, theta: Array, mean_bar: Array, vector_bars: list[Array], design_bar: None) -> Array:
        """Return the derivative by θ (d,) of what has these by u(θ), and 1 by the normaliser."""
        return self._pullback(theta, vector_bars[0])[0]

    def bind(self, point: Point) -> None:
        """See `Block`; raises a DataError where data that rows were read from have changed."""
        self.forget()
        changed = [str(each.name) for each, known in self._shared if not np.array_equal(each.get_value(), known)]
        if changed:
            raise DataError(
                f"{', '.join(changed)} has other values than when RMHMC read the model, and {self.name} enters with "
                "them. Build RMHMC() again after pm.set_data."
            )
