"""A model given values of its other variables: points that users write, other observed terms, and draws of latents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.typing import NDArray
from pymc.backends.arviz import coords_and_dims_for_inferencedata
from pymc.initial_point import make_initial_point_fn
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import ancestors
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError, counted, listed, shown
from pymc_rmhmc.model.compile import CompiledModel, compile_model
from pymc_rmhmc.model.graph.graphs import Evaluator, shared_inputs
from pymc_rmhmc.model.observed.observation import UNOBSERVED
from pymc_rmhmc.model.structure import ModelStructure, read_structure
from pymc_rmhmc.model.words.refusals import discrete_in_words
from pymc_rmhmc.stopwatch import COMPILING

__all__ = [
    "LatentDraws", "check_can_be_given", "check_is_observed", "compile_widest", "given_values", "log_density_of_data",
    "observed_elsewhere", "point_of",
]  # fmt: skip

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]

HOW = 'Write point={"lengthscale": 0.5}, with the names and the shapes of the free variables.'


def point_of(model: pm.Model, given: object) -> Point:
    """Return a point of all value variables: the model's initial one, but for what is given.

    Raises a `ConfigurationError` if a name is unknown, or values have another shape or are not finite.

    `model`: the model.
    `given`: values by the names of free variables, or of their value variables (``sigma_log__``). Names of
      deterministics are passed over.
    """
    if given is None:
        return model.initial_point()
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"point must be a dict of values by name, got {shown(given)}. {HOW}")
    values = {str(value.name) for value in model.value_vars}
    free = {str(variable.name) for variable in model.free_RVs}
    passed_over = {str(variable.name) for variable in model.deterministics}
    unknown = [name for name in given if name not in values | free | passed_over]
    if unknown:
        raise ConfigurationError(
            f"point names {', '.join(map(shown, unknown))}, and the model has no such free variable. It has "
            f"{listed(sorted(free))}."
        )
    shapes = model.eval_rv_shapes()
    checked = {
        name: _checked(name, value, tuple(map(int, shapes[name])))
        for name, value in given.items() if name in values | free
    }  # fmt: skip
    plain = {name: value for name, value in checked.items() if name not in values}
    # On the scale of the model's own variables, which PyMC transforms.
    point = model.initial_point() if not plain else make_initial_point_fn(model=model, overrides=plain)(None)
    point |= {name: np.asarray(value, point[name].dtype) for name, value in checked.items() if name in values}
    lost = [name for name, value in point.items() if not np.isfinite(value).all()]
    if lost:
        raise ConfigurationError(
            f"point gives {listed(lost)} a value that is not finite on the unconstrained scale. Give values inside the "
            "supports of their priors."
        )
    return point


def _checked(name: str, value: object, shape: tuple[int, ...]) -> Array:
    """Return one value as an array; raise unless it is finite and has the right shape."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigurationError(f"point[{name!r}] must hold numbers, got {shown(value)}. {HOW}") from None
    if array.shape != shape:
        raise ConfigurationError(f"point[{name!r}] has shape {array.shape}, and {name} has shape {shape}. {HOW}")
    lost = int(np.count_nonzero(~np.isfinite(array)))
    if lost:
        raise ConfigurationError(f"point[{name!r}] has {counted(lost, 'non-finite value')}. Give finite numbers.")
    return array


def check_can_be_given(model: pm.Model) -> None:
    """Raise an `UnsupportedModelError` for free variables that are discrete, or stand for missing data."""
    missing = [str(v.name) for v in model.free_RVs if str(v.name).endswith(UNOBSERVED)]
    if missing:
        raise UnsupportedModelError(
            f"{listed(missing)}: the data have missing values, which a Gaussian approximation does not impute. Leave "
            "these observations out, and predict them with pm.sample_posterior_predictive."
        )
    discrete = [str(v.name) for v in model.free_RVs if discrete_in_words(v)]
    if discrete:
        raise UnsupportedModelError(
            f"{listed(discrete)}: discrete variables have no Gaussian approximation, and the posterior given one value "
            "of them would be another model's. Sample with pm.sample(), or take them out of the model."
        )


def compile_widest(structure: ModelStructure, point: Point) -> tuple[ModelStructure, CompiledModel]:
    """Compile a model's blocks, with coefficients and intercepts among their latent values where they can be.

    Given everything else these have a Gaussian prior too, and nothing is gained by holding them.
    """
    variables, found = structure.variables, structure.coefficients
    # Rows are read apart, and with something beside them as one vector.
    if found and all(v.ndim < 2 for v in variables):
        with contextlib.suppress(UnsupportedModelError):
            wider = read_structure(structure.model, [*variables, *found], no_predictors=structure.no_predictors)
            return wider, compile_model(wider, point, with_rest=False)
    return structure, compile_model(structure, point, with_rest=False)


def observed_elsewhere(structure: ModelStructure, point: Point) -> float:
    """Return the log density of observed variables and potentials that read no block, at a point.

    What reads a block must be observed: its value at the point would count as data.
    """
    model = structure.model
    check_is_observed(model, [o.variable for o in structure.observations])
    return log_density_of_data(model, structure.rest, point)


def check_is_observed(model: pm.Model, reading: Sequence[TensorVariable]) -> None:
    """Raise an `UnsupportedModelError` where a free variable's prior reads latent values."""
    unobserved = [str(v.name) for v in reading if v in model.free_RVs]
    if unobserved:
        raise UnsupportedModelError(
            f"{listed(unobserved)}: the prior depends on the latent values, so that a value of it would count as data. "
            "Sample this model with RMHMC() or NUTS."
        )


def log_density_of_data(model: pm.Model, terms: Sequence[TensorVariable], point: Point) -> float:
    """Return the log density at a point of those of some terms that are observed, or potentials."""
    terms = [v for v in terms if v in model.observed_RVs or v in model.potentials]
    if not terms:
        return 0.0
    return float(Evaluator(model, [model.logp(vars=terms, sum=True)])(point)[0])


def given_values(model: pm.Model, latents: Sequence[TensorVariable], point: Point) -> dict[str, Array]:
    """Return the free variables other than the latent ones at a point, on the scale on which a user has them."""
    held = [v for v in model.free_RVs if v not in latents]
    values = Evaluator(model, model.replace_rvs_by_values(held))(point) if held else []
    return {str(v.name): np.asarray(value) for v, value in zip(held, values, strict=True)}


class LatentDraws:
    """From draws of latent values to draws of every free variable and deterministic, all else held at a point."""

    def __init__(self, model: pm.Model, latents: Sequence[TensorVariable], point: Point) -> None:
        self._model, self._point = model, point
        self._function: Callable[..., list[np.ndarray]] | None = None
        self._latents = [str(model.rvs_to_values[v].name) for v in latents]
        # Data as they are now, whatever is set later.
        self._data = {shared: shared.get_value() for shared in shared_inputs(self._outputs())}

    @property
    def names(self) -> list[str]:
        """Of the free variables, and then of the deterministics."""
        return [str(v.name) for v in (*self._model.free_RVs, *self._model.deterministics)]

    def __call__(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Return every variable's draws, (1, N, ...), given those of the latent value variables, (N, ...)."""
        if self._function is None:
            self._function = self._compiled()
        arrays = [values[name] for name in self._latents]
        rows = [self._function(*row) for row in zip(*arrays, strict=True)]
        return {name: np.array(column)[None] for name, column in zip(self.names, zip(*rows, strict=True), strict=True)}

    def labels(self) -> tuple[Mapping[str, object], Mapping[str, object]]:
        """Return the model's coordinates and the dimensions of its variables."""
        coords, dims = coords_and_dims_for_inferencedata(self._model)
        return coords, {name: held for name, held in dims.items() if name in self.names}

    def _outputs(self) -> list[TensorVariable]:
        """Return the free variables and deterministics as expressions of value variables."""
        return self._model.replace_rvs_by_values([*self._model.free_RVs, *self._model.deterministics])

    def _compiled(self) -> Callable[..., list[np.ndarray]]:
        """Compile the outputs as a function of the latent values alone.

        What is given is constant, and so is all that is made of it alone, such as the factor of a covariance.
        """
        model = self._model
        outputs = self._outputs()
        inputs = [value for value in model.value_vars if value.name in self._latents]
        inputs.sort(key=lambda value: self._latents.index(str(value.name)))
        held = [v for v in ancestors(outputs) if v in set(model.value_vars) and v not in inputs]
        constants = {v: pt.constant(self._point[str(v.name)], dtype=v.dtype) for v in held}
        constants |= {shared: pt.constant(value) for shared, value in self._data.items()}
        constants = {v: pt.specify_shape(c, v.type.shape) for v, c in constants.items()}
        with COMPILING.running():
            return pm.compile(inputs, clone_replace(outputs, constants), on_unused_input="ignore")
