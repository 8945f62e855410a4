"""Vectors as deviations from means that are latent: of ``h ~ N(μ(f), K)`` a view of the model has ``r = h - μ(f)``.

Two vectors, of which one is the other's mean, have no prior that is a product, and hardly move one by one. r has h's
covariance and does not depend on f, and predictors read the sum ``μ(f) + r``. No volume is added: r moves as h does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.tensor.random.basic import MvNormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.model.forms.priors import gaussian_candidates
from pymc_rmhmc.model.graph.graphs import Evaluator, is_of_dims, reaches, replaced
from pymc_rmhmc.model.predictions import view_of

__all__ = ["Deviations", "LatentMeans", "about_means"]

type Point = dict[str, np.ndarray]


class LatentMeans:
    """Means of latent vectors as functions of the model's values.

    Parameters
    ----------
    model : pymc.Model
        The user's model.
    variables : sequence of TensorVariable
        Its vectors, in an order in which a mean depends on earlier ones alone.
    """

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable]) -> None:
        self._means = [(str(model.rvs_to_values[v].name), Evaluator(model, [_mean_of(v)])) for v in variables]
        self.inputs = tuple(dict.fromkeys(name for _, mean in self._means for name in mean.inputs))
        point = model.initial_point()
        self._shapes = {name: point[name].shape for name in (*self.inputs, *(name for name, _ in self._means))}

    def add(self, point: Point) -> None:
        """Put the vectors in the place of their deviations, in the arrays of a point, which may be raveled."""
        shaped = self._shaped(point)
        for name, mean in self._means:
            shaped[name] += mean(shaped)[0]

    def subtract(self, point: Point) -> None:
        """Put deviations in the place of the vectors, in the arrays of a point, which may be raveled."""
        shaped = self._shaped(point)
        for name, mean in reversed(self._means):
            shaped[name] -= mean(shaped)[0]

    def _shaped(self, point: Point) -> Point:
        return {name: point[name].reshape(shape) for name, shape in self._shapes.items()}


class Deviations:
    """A model, and its view with deviations from means in the place of some vectors.

    Attributes
    ----------
    model, view : pymc.Model
        In the view a vector's deviations have its name and its value variable.
    variables : tuple of TensorVariable
        The deviations.
    """

    def __init__(self, model: pm.Model, vectors: Sequence[TensorVariable]) -> None:
        self.model, self._vectors = model, tuple(vectors)
        old = [*model.basic_RVs, *model.potentials, *model.deterministics]
        new = list(old)
        for place in map(old.index, vectors):
            vector = new[place]
            deviation = _about_zero(model, old[place], vector)
            new = replaced(new, {vector: vector.type.filter_variable(deviation + _mean_of(vector))})
            new[place] = deviation
        places = {o: n for o, n in zip(old, new, strict=True) if n is not o}
        self.view, self.variables = _with_variables(model, places), tuple(places[vector] for vector in vectors)

    def means(self) -> LatentMeans:
        """Return the means as functions of the model's values."""
        return LatentMeans(self.model, self._vectors)


def about_means(model: pm.Model, named: Iterable[TensorVariable] | None = None) -> Deviations | None:
    """Return the view of a model in which MvNormals about other latent vectors are deviations; None if there is none.

    If some variables are named, it is of vectors among them about others among them.
    """
    among = set(model.free_RVs if named is None else named)
    centred = [v for v in model.free_RVs if v in among and _may_move(model, v)]
    above = [v for v in gaussian_candidates(model) if v in among] if centred else []
    found = [v for v in centred if reaches(_mean_of(v), above, model.basic_RVs)]
    return Deviations(model, found) if found else None


def _may_move(model: pm.Model, variable: TensorVariable) -> bool:
    """Check whether a variable is an MvNormal whose values are its own."""
    is_plain = isinstance(variable.owner.op, MvNormalRV) and model.rvs_to_transforms.get(variable) is None
    return is_plain and not is_of_dims(variable)


def _mean_of(variable: TensorVariable) -> TensorVariable:
    mean: TensorVariable = variable.owner.op.dist_params(variable.owner)[0]
    return mean


def _about_zero(model: pm.Model, original: TensorVariable, variable: TensorVariable) -> TensorVariable:
    """Return a vector about 0 with the covariance that one of a model's has in a rewritten graph."""
    node, mean = variable.owner, _mean_of(variable)
    (shape,) = Evaluator(model, [_mean_of(original).shape])(model.initial_point())
    zero = pt.constant(np.zeros(tuple(shape)), dtype=mean.dtype)
    made: TensorVariable = node.op.make_node(*(zero if each is mean else each for each in node.inputs)).default_output()
    return made


def _with_variables(model: pm.Model, places: dict[TensorVariable, TensorVariable]) -> pm.Model:
    """Return a view of a model with other variables in the place of its own, which have their names and values."""
    named = model.named_vars.copy()
    for old, new in places.items():
        new.name = old.name
        named[str(old.name)] = new
    values = {places.get(v, v): value for v, value in model.rvs_to_values.items()}
    changed: dict[str, object] = {
        "free_RVs": _replaced(model.free_RVs, places),
        "observed_RVs": _replaced(model.observed_RVs, places),
        "potentials": _replaced(model.potentials, places),
        "deterministics": _replaced(model.deterministics, places),
        "rvs_to_values": values,
        "values_to_rvs": {value: variable for variable, value in values.items()},
        "rvs_to_transforms": {places.get(v, v): each for v, each in model.rvs_to_transforms.items()},
        "rvs_to_initial_values": {places.get(v, v): each for v, each in model.rvs_to_initial_values.items()},
        "named_vars": named,
    }
    return view_of(model, changed)


def _replaced(variables: list[TensorVariable], places: dict[TensorVariable, TensorVariable]) -> list[TensorVariable]:
    """Return a list as PyMC keeps it, with some variables replaced."""
    made = variables.copy()
    made[:] = [places.get(v, v) for v in variables]
    return made
