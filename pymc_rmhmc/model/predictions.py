"""Free variables that a model predicts: nothing observed depends on them, so each draw of the rest gives one of them.

Such is the `f_new` of a `gp.conditional` that was added before sampling. The rest of the model is sampled as if they
were not there, and they are drawn from their priors given the rest: together that is an exact draw of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomDistRV, default_not_implemented
from pymc.distributions.multivariate import ICARRV
from pymc.distributions.transforms import Interval, _default_transform
from pymc.logprob.transforms import Transform
from pytensor.graph.basic import equal_computations
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, DataError, listed, unread_in_words
from pymc_rmhmc.model.graph.graphs import Evaluator, as_value, inlined, reaches, value_inputs
from pymc_rmhmc.model.observed.observation import UNOBSERVED, direct_readers
from pymc_rmhmc.stopwatch import COMPILING

__all__ = ["Predictions", "check_improper_priors", "is_default_transform", "predicted_variables", "without"]

type Point = dict[str, np.ndarray]

# Seeds of the generators that draw a prediction.
SEEDS = 2**63


def predicted_variables(model: pm.Model, sampled: Iterable[TensorVariable] = ()) -> list[TensorVariable]:
    """Return the free variables that the rest of a model predicts, in its order.

    Where some variables are to be sampled in any case, the predictions are those that depend on these. By default every
    free variable that depends on another may be one.
    """
    named = list(sampled)
    empty = [v for v in model.free_RVs if _is_empty(model, v)]
    if empty:
        _check_some_data(model, empty)
        found = predicted_variables(without(model, empty), [v for v in named if v not in empty])
        return [v for v in model.free_RVs if v in empty or v in found]
    held = [v for v in model.free_RVs if v in named or _is_sampled_in_any_case(model, v)]
    found = _unneeded(model, held, named)
    undrawn = [v for v in found if not _can_be_drawn(model, v)]
    return _unneeded(model, [*held, *undrawn], named) if undrawn else found


def _unneeded(
    model: pm.Model, held: Sequence[TensorVariable], named: Sequence[TensorVariable]
) -> list[TensorVariable]:
    """Find the free variables that depend on others, and on which nothing observed or held depends."""
    known: list[TensorVariable] = [*model.observed_RVs, *model.potentials]
    if not known:
        return []
    # A variable is needed if an observed one, or one that is needed, depends on it.
    readers, ends = direct_readers(model), {*known, *held}
    while more := {v for v in model.free_RVs if v not in ends and not ends.isdisjoint(readers[v])}:
        ends |= more
    needed = ends.difference(known)
    above = named or list(needed)
    return [v for v in model.free_RVs if v not in needed and reaches(v, above)]


def _is_sampled_in_any_case(model: pm.Model, variable: TensorVariable) -> bool:
    """Check whether a variable is missing or censored data: these are sampled with what explains the others."""
    return str(variable.name).endswith(UNOBSERVED) or _is_restricted(model, variable)


def _can_be_drawn(model: pm.Model, variable: TensorVariable) -> bool:
    """Check whether PyMC can draw a variable given the others, and the components that it is made of."""
    others = [v for v in model.basic_RVs if v is not variable]
    made = inlined([variable], others)
    return not any(_has_no_draws(v.owner.op) for v in ancestors(made, blockers=others) if v.owner is not None)


def _has_no_draws(op: Op) -> bool:
    """Check whether an operation has only a density, as improper distributions and a CustomDist without `random` do."""
    if isinstance(op, CustomDistRV):
        return str(getattr(op._random_fn, "__qualname__", "")).startswith(default_not_implemented.__name__)
    return isinstance(op, ICARRV | FlatRV | HalfFlatRV)


def is_default_transform(variable: TensorVariable, transform: Transform) -> bool:
    """Return whether PyMC gives the variable this transform, which leaves all of its support."""
    default = _default_transform(variable.owner.op, variable)
    if type(default) is not type(transform):
        return False
    if not isinstance(transform, Interval):
        return True
    own, given = (list(each.args_fn(*variable.owner.inputs)) for each in (default, transform))
    return all(
        a is b or (a is not None and b is not None and equal_computations([a], [b]))
        for a, b in zip(own, given, strict=True)
    )


def _is_restricted(model: pm.Model, variable: TensorVariable) -> bool:
    """Check whether a transform of the user's own may hold a variable within a part of its support.

    Then its density need not integrate to 1: PyMC's recipe for censored data imputes them by
    ``pm.Normal(..., transform=Interval(1.0, None))``, whose integral is their likelihood.
    """
    transform = model.rvs_to_transforms.get(variable)
    return transform is not None and not is_default_transform(variable, transform)


def _is_empty(model: pm.Model, variable: TensorVariable) -> bool:
    """Check whether a variable has no values, as one of the shape (2, 0): it is a constant in all that reads it."""
    dims = model.named_vars_to_dims.get(variable.name, ())
    return 0 in variable.type.shape or any(model.dim_lengths[d].eval() == 0 for d in dims if d in model.dim_lengths)


def _check_some_data(model: pm.Model, empty: Sequence[TensorVariable]) -> None:
    """Raise where variables are empty because all data are: probably a selection that has left nothing."""
    data = [model.rvs_to_values[v] for v in model.observed_RVs]
    if data and all(0 in shape for shape in Evaluator(model, [d.shape for d in data])(model.initial_point())):
        names = [str(v.name).removesuffix("_rotated_") for v in empty]
        raise DataError(
            f"{listed(names)}: no latent values, and no observations either. Check the inputs and the data, which are "
            "empty."
        )


def _no_values(model: pm.Model, symbol: TensorVariable) -> TensorVariable:
    """Return the constant that replaces an empty variable or its value variable."""
    (shape,) = Evaluator(model, [symbol.shape])(model.initial_point())
    return pt.constant(np.empty(shape, symbol.dtype))


def check_improper_priors(model: pm.Model) -> None:
    """Raise a `ConfigurationError` for a Flat or HalfFlat variable on which no data depend: it has no posterior."""
    ends = [*model.observed_RVs, *model.potentials, *(v for v in model.free_RVs if _is_sampled_in_any_case(model, v))]
    for variable in model.free_RVs:
        if isinstance(variable.owner.op, FlatRV | HalfFlatRV):
            others = [end for end in ends if end is not variable]
            if not any(reaches(end, [variable]) for end in others):
                raise ConfigurationError(unread_in_words(str(variable.name)))


def without(model: pm.Model, predicted: Sequence[TensorVariable]) -> pm.Model:
    """Return a view of a model as if some variables were not there: nothing else depends on them, or they are empty."""
    if not predicted:
        return model
    empty = {v: _no_values(model, v) for v in predicted if _is_empty(model, v)}
    proper = [v for v in predicted if v not in empty]
    gone = {*predicted, *(d for d in model.deterministics if reaches(d, proper))}
    values = {variable: value for variable, value in model.rvs_to_values.items() if variable not in gone}
    changed: dict[str, object] = {
        "free_RVs": _kept(model.free_RVs, gone),
        "deterministics": _kept(model.deterministics, gone),
        "rvs_to_values": values | empty,
        "rvs_to_transforms": {v: transform for v, transform in model.rvs_to_transforms.items() if v not in gone},
        "values_to_rvs": {value: variable for variable, value in values.items()},
        "named_vars": _same_kind(model.named_vars, gone),
    }
    return view_of(model, changed)


def view_of(model: pm.Model, changed: dict[str, object]) -> pm.Model:
    """Return a model with the same variables, but for some of its attributes.

    PyMC's own copy makes new variables, and a step must name those of the user's model: this is what pickling restores.
    """
    view = cast("pm.Model", object.__new__(type(model)))
    view.__setstate__(model.__getstate__() | changed)
    return view


def _kept(variables: list[TensorVariable], gone: set[TensorVariable]) -> list[TensorVariable]:
    """Return a list as PyMC keeps it, without some variables."""
    kept = variables.copy()
    kept[:] = [v for v in variables if v not in gone]
    return kept


def _same_kind(named: dict[str, TensorVariable], gone: set[TensorVariable]) -> dict[str, TensorVariable]:
    """Return a mapping of a model's names without those of some variables."""
    kept = named.copy()
    for variable in gone:
        kept.pop(variable.name, None)
    return kept


class Predictions:
    """Draws of the variables that a whole model predicts, from `predicted_variables`, given its other values."""

    def __init__(self, model: pm.Model, variables: Sequence[TensorVariable]) -> None:
        proper = [v for v in variables if not _is_empty(model, v)]
        self.names = tuple(str(v.name) for v in proper)
        self.value_vars = [model.rvs_to_values[v] for v in variables]
        self.value_names = tuple(str(value.name) for value in self.value_vars)
        view = without(model, variables)
        draws = [as_value(model, old, new) if old in proper else _no_values(model, model.rvs_to_values[old])
                 for old, new in zip(variables, view.replace_rvs_by_values(list(variables)), strict=True)]  # fmt: skip
        log_density = model.logp(vars=proper) if proper else pt.zeros(())
        total = graph_replace([log_density], dict(zip(self.value_vars, draws, strict=True)), strict=False)[0]
        outputs = [*draws, total]
        givens = value_inputs(view, outputs)
        self.inputs = tuple(str(value.name) for value in givens)
        generators = [v for v in graph_inputs(outputs) if isinstance(v.type, RandomGeneratorType)]
        handed = [generator.type() for generator in generators]
        outputs = graph_replace(outputs, dict(zip(generators, handed, strict=True)), strict=False)
        self._n_generators = len(generators)
        with COMPILING.running():
            self._function = pm.compile([*givens, *handed], outputs, on_unused_input="ignore")

    def draw(self, point: Point, rng: np.random.Generator) -> tuple[Point, float]:
        """Return values of the predicted variables given the rest of a point, and their log density."""
        generators = [np.random.default_rng(int(seed)) for seed in rng.integers(SEEDS, size=self._n_generators)]
        *drawn, log_density = self._function(*(point[name] for name in self.inputs), *generators)
        return dict(zip(self.value_names, drawn, strict=True)), float(log_density)
