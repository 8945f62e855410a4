"""A variable whose distribution depends on latent values: how it reads them, or why that cannot be sampled.

That includes data and parameters whose shapes do not fit one another.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
from pymc.distributions.distribution import PartialObservedRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors, walk
from pytensor.scan.op import Scan
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import DataError, UnsupportedLikelihoodError, UnsupportedModelError
from pymc_rmhmc.model.forms.priors import LatentVariable
from pymc_rmhmc.model.graph.affine import bends, first_bend, predictor_node
from pymc_rmhmc.model.graph.graphs import Evaluator, core_op, is_of_dims, reaches, shared_inputs
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.likelihoods import Likelihood, Reading, read_likelihood
from pymc_rmhmc.model.words.advice import NUTS, one_by_one

__all__ = [
    "LEAVE_OUT",
    "UNOBSERVED",
    "Observation",
    "check_shapes_at",
    "curve_in_words",
    "depends_on_potential",
    "direct_readers",
    "distribution_of",
    "misfit",
    "names_by_value",
    "names_of",
    "observation_of",
    "observations_of",
]

type KnownShape = tuple[int | None, ...]

# Where parameters of an operation are not those that its users give.
GIVEN_AS = {"NegativeBinomial": ["alpha", "mu"]}
# How PyMC names the missing values of an observed variable.
UNOBSERVED = "_unobserved"

# For the words of errors.
LEAVE_OUT = "leave them out of the data, and their rows out of the predictor (f[seen] for a vector f)"


@dataclass(frozen=True, eq=False)
class Observation:
    """A variable whose distribution depends on a block: observed, or imputed by PyMC.

    Attributes
    ----------
    value : Variable
        Its data, a constant or shared variable, or its value variable if it is imputed.
    likelihood : Likelihood or None
        None for the fallback, of a distribution that is not registered or in which latent values enter by other
        parameters than the one that is registered.
    reading : Reading or None
        What the likelihood made of the variable's parameters; of one that is not registered its linear predictor alone,
        or None where it reads one latent vector in any other way.
    node : TensorVariable or None
        Of a likelihood that is not registered, the linear predictor in the graph of the variable.
    """

    variable: TensorVariable
    value: Variable
    likelihood: Likelihood | None
    reading: Reading | None
    node: TensorVariable | None = None

    @property
    def label(self) -> str:
        """The likelihood and link in words."""
        if self.likelihood is None:
            return f"{distribution_of(self.variable)} (through PyTensor's derivatives)"
        return f"{self.likelihood.name.split('_')[0]} ({self.likelihood.link} link)"

    @property
    def is_observed(self) -> bool:
        """Whether its value is data, and not a variable that a step samples."""
        return isinstance(self.value, Constant | SharedVariable) or self.value.owner is not None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The curvatures that it gives."""
        return ("softabs_curvature",) if self.likelihood is None else self.likelihood.kinds


def direct_readers(model: pm.Model) -> dict[TensorVariable, list[TensorVariable]]:
    """Return the random variables and potentials that depend on each random variable, through no other one.

    This takes one walk over the graph, where `reaches` would take one for each pair of variables.
    """
    ends = set(model.basic_RVs)
    readers: dict[TensorVariable, list[TensorVariable]] = {variable: [] for variable in model.basic_RVs}
    for reader in (*model.basic_RVs, *model.potentials):
        others = ends - {reader}

        def inputs(at: Variable, others: set[TensorVariable] = others) -> list[Variable]:
            is_end = at in others or at.owner is None or isinstance(core_op(at), (Shape, Shape_i))
            return [] if is_end else at.owner.inputs

        for at in others.intersection(walk([reader], inputs)):
            readers[at].append(reader)
    return readers


def observations_of(model: pm.Model, latents: Sequence[LatentVariable], called: str | None = None) -> list[Observation]:
    """Read every random variable whose distribution depends on the latents directly.

    `called` is what an error calls the latents, by default their names.
    """
    sources = [latent.source for latent in latents]
    variables = [latent.variable for latent in latents]
    called = called or names_of(variables)
    for potential in model.potentials:
        if reaches(potential, variables, model.basic_RVs):
            raise UnsupportedModelError(depends_on_potential(potential, called))
    found = []
    for variable in model.basic_RVs:
        if variable in variables:
            continue
        if not reaches(variable, variables, model.basic_RVs):
            continue
        found.append(observation_of(model, variable, sources, variables, called))
    return found


def depends_on_potential(potential: TensorVariable, called: str) -> str:
    """Say that a Potential depends on latent values, and what to do."""
    return (
        f"the Potential {potential.name} depends on {called}: write it as a prior or an observed variable "
        f"(pm.Censored for censored data), or {NUTS}"
    )


def observation_of(
    model: pm.Model, variable: TensorVariable, sources: list[TensorVariable], latents: list[TensorVariable],
    called: str,
) -> Observation:  # fmt: skip
    """Read how one variable depends on the latents, or raise the error that says why that cannot be sampled.

    `called` is what the error calls the latents.
    """
    value = model.rvs_to_values[variable]
    free = variable in model.free_RVs
    if is_of_dims(variable):
        raise UnsupportedLikelihoodError(
            f"{variable.name} is of pymc.dims, whose distributions are not read: write it with one of pymc, whose axes "
            "dims= names as well, or sample with NUTS"
        )
    if isinstance(variable.owner.op, PartialObservedRV):
        raise UnsupportedLikelihoodError(f"{variable.name} is of one distribution with missing values: {LEAVE_OUT}")
    if free and model.rvs_to_transforms.get(variable) is not None:
        if str(variable.name).endswith(UNOBSERVED):
            raise UnsupportedLikelihoodError(
                f"{variable.name} stands for missing values of a bounded distribution, which are transformed: "
                f"{LEAVE_OUT}"
            )
        raise UnsupportedLikelihoodError(
            f"the free variable {variable.name} depends on {called} and is transformed; only observed "
            "variables and imputed observations can be its likelihood"
        )
    if isinstance(variable.owner.op, MinibatchRandomVariable):
        raise UnsupportedLikelihoodError(
            f"{variable.name} has a total_size, which scales its log density and is for variational inference: leave "
            "total_size out, and give all of the data"
        )
    _check_known_shapes(variable, value)
    read = [source for source in sources if reaches(variable, [source], model.basic_RVs)]
    found, apart, curved = read_likelihood(variable), False, False
    if found is not None:
        apart = any(reaches(other, latents, model.basic_RVs) for other in found[1].others)
        curved = bends(found[1].eta, read, model.basic_RVs)
        if not (apart or curved):
            return Observation(variable, value, *found)
    # Where another parameter reads latent values too, or it alone, or where a predictor is not affine in them, the
    # closed forms are of no use.
    node = predictor_node(variable, read, model.basic_RVs) if read else None
    if node is None and len(read) > 1 and apart:
        raise UnsupportedLikelihoodError(
            f"{called} enter {variable.name} by several of its parameters: sample with NUTS, or name in "
            "vars those that enter by one"
        )
    if node is None and len(read) > 1 and found is not None:
        raise UnsupportedModelError(f"{curve_in_words(model, variable, found[1].eta, read)} Sample with NUTS")
    _check_unregistered(model, variable, read, node)
    return Observation(variable, value, None, None if node is None else Reading(node, {}), node)


def _check_unregistered(
    model: pm.Model, variable: TensorVariable, read: list[TensorVariable], node: TensorVariable | None
) -> None:
    """Refuse an unregistered likelihood for reasons that are known before it is evaluated."""
    name = distribution_of(variable)
    if getattr(variable.owner.op, "ndim_supp", 0) > 0:
        raise UnsupportedLikelihoodError(
            f"the likelihood {name} of {variable.name} does not factorise into one for each observation: "
            f"{one_by_one(model, variable)}"
        )
    if node is None and len(read) > 1:
        raise UnsupportedLikelihoodError(
            f"the likelihood {name} of {variable.name} is not registered and reads several latent variables otherwise "
            "than through one linear combination of them: sample with NUTS"
        )
    between = ancestors([variable], blockers=read if len(read) == 1 or node is None else [node])
    if any(v.owner is not None and isinstance(v.owner.op, Scan) for v in between):
        raise UnsupportedLikelihoodError(f"the likelihood {name} of {variable.name} contains a Scan: sample with NUTS")


def curve_in_words(
    model: pm.Model, variable: TensorVariable, eta: TensorVariable, sources: Sequence[TensorVariable]
) -> str:
    """Say in a sentence that a predictor is not affine in the sources that it reads."""
    read = [source for source in sources if reaches(eta, [source])]
    names, bend = ", ".join(_name_of(model, source) for source in read), first_bend(eta, read)
    through = f"a non-linear map `{bend}`" if bend else "a map that is linear but for too large an error of rounding"
    return f"{variable.name}: its predictor depends on {names} through {through}."


def _name_of(model: pm.Model, source: TensorVariable) -> str:
    """Return a source's own name, or the names of the whitened values that it is made of."""
    if source.name is not None:
        return names_of([source])
    held = set(ancestors([source]))
    within = [v for v in model.free_RVs if v in held]
    return names_of([v for v in within if str(v.name).endswith("_rotated_")] or within)


def names_by_value(model: pm.Model) -> dict[str, str]:
    """Return the names that a user gave the variables, by those of their value variables."""
    return {str(value.name): names_of([rv]) for rv, value in model.rvs_to_values.items()}


def names_of(variables: Iterable[TensorVariable]) -> str:
    """List variables by the names that their user gave them, for a sentence."""
    return ", ".join(str(v.name).removesuffix("_rotated_") for v in variables)


def _check_known_shapes(variable: TensorVariable, value: Variable) -> None:
    """Raise a DataError if a parameter does not fit the data, as far as shapes are known by the graph."""
    shapes = {name: _known_shape(parameter) for name, parameter in _parameters(variable)}
    _check_fit(variable, value, _known_shape(value), shapes)


def check_shapes_at(model: pm.Model, variable: TensorVariable, point: dict[str, np.ndarray]) -> None:
    """Raise a DataError if a parameter of the distribution does not fit the data at a point."""
    parameters = dict(list(_parameters(variable))[:-1])
    if not parameters:
        return
    value = model.rvs_to_values[variable]
    try:
        data, *found = (np.shape(v) for v in Evaluator(model, [value, *parameters.values()])(point))
    except ValueError:  # data that do not fit within a parameter, as PyTensor says where it evaluates them
        return
    _check_fit(variable, value, data, dict(zip(parameters, found, strict=True)))


def _check_fit(variable: TensorVariable, value: Variable, data: KnownShape, shapes: dict[str, KnownShape]) -> None:
    for name, shape in shapes.items():
        if not _fit(data, shape):
            raise misfit(str(variable.name), data, name, shape, shared_inputs([value, variable]))


def misfit(
    observed: str, data: KnownShape, name: str, shape: KnownShape, shared: Iterable[SharedVariable] = ()
) -> DataError:
    """Return the error of data and a parameter, or a predictor, whose shapes do not fit; `shared` are pm.Data."""
    held = ", ".join(dict.fromkeys(f"{s.name} {np.shape(s.get_value(borrow=True))}" for s in shared))
    after = f" If pm.set_data changed one of these, change the others too: {held}." if "," in held else ""
    return DataError(
        f"{observed}: the data have the shape {data}, and {name} has {shape}. Each observation needs one value of "
        f"{name}: give both the same shape, or pick the latent values that are observed with an index, f[index]."
        + after
    )


def _fit(data: KnownShape, shape: KnownShape) -> bool:
    """Return whether one of two shapes can be broadcast to the other, as far as they are known.

    A column (n, 1) and a vector (n,) would make n² observations of n.
    """
    pairs = list(itertools.zip_longest(reversed(data), reversed(shape), fillvalue=1))
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    can_be = all(a == b or 1 in (a, b) for a, b in known)
    return can_be and not (any(a < b for a, b in known) and any(a > b for a, b in known))


def _known_shape(variable: Variable) -> KnownShape:
    if isinstance(variable, SharedVariable):
        return tuple(variable.get_value(borrow=True).shape)
    if isinstance(variable, Constant):
        return tuple(variable.data.shape)
    return tuple(variable.type.shape)


def _parameters(variable: TensorVariable) -> Iterator[tuple[str, TensorVariable]]:
    """Yield the parameters that give one value for an observation, by name, and then the variable itself."""
    op = variable.owner.op
    of_vectors = getattr(op, "ndim_supp", 0) or any(getattr(op, "ndims_params", None) or ())
    if hasattr(op, "dist_params") and not of_vectors:
        parameters = op.dist_params(variable.owner)
        yield from zip(_parameter_names(op, len(parameters)), parameters, strict=True)
    yield "its distribution", variable


def _arguments(log_density: Callable[..., object] | None) -> list[str]:
    """Return the names of what a log density takes after the value."""
    known = {} if log_density is None else inspect.signature(log_density).parameters
    return [name for name in known if name != "value"]


def _parameter_names(op: Op, n_parameters: int) -> list[str]:
    """Return a distribution's names of its parameters, or their numbers where they are not known."""
    for distribution in vars(pm.distributions).values():
        if getattr(distribution, "rv_op", None) is op or type(op) is getattr(distribution, "rv_type", None):
            names = GIVEN_AS.get(distribution.__name__) or _arguments(getattr(distribution, "logp", None))
            if len(names) == n_parameters:
                return names
    return [f"its parameter {i + 1}" for i in range(n_parameters)]
