"""What a model is made of, as far as RMHMC is concerned: latent Gaussian blocks and the rest.

The reading is symbolic and evaluates nothing but what a Kronecker product comes to; `pymc_rmhmc.model.compile` turns it
into functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pymc as pm
import pytensor
from pymc.distributions.distribution import PartialObservedRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors
from pytensor.scan.op import Scan
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, UnsupportedLikelihoodError, UnsupportedModelError
from pymc_rmhmc.model.affine import predictor_node
from pymc_rmhmc.model.gaussian_vectors import GAUSSIAN_VECTORS
from pymc_rmhmc.model.graphs import reaches
from pymc_rmhmc.model.likelihoods import Likelihood, Reading, read_likelihood
from pymc_rmhmc.model.linear_normals import linear_normals
from pymc_rmhmc.model.priors import LatentVariable, gaussian_candidates, read_latent

__all__ = ["LatentBlock", "ModelStructure", "Observation", "read_structure", "resolve_variables"]


# For the words of errors.
GAUSSIAN = "gp.Latent, gp.LatentKron, MvNormal, GaussianRandomWalk, AR"
LEAVE_OUT = "leave them out of the data, and give the latent values of the others alone (f[seen])"


@dataclass(frozen=True, eq=False)
class Observation:
    """A variable whose distribution depends on a block: observed, or imputed by PyMC.

    Attributes
    ----------
    variable : TensorVariable
        The random variable.
    value : Variable
        Its data, a constant or shared variable, or its value variable if it is imputed.
    likelihood : Likelihood or None
        The registered likelihood, None for the fallback.
    reading : Reading or None
        What the likelihood made of the variable's parameters; of one that is not registered its linear predictor alone,
        or None where it reads one latent vector in any other way.
    node : TensorVariable or None
        Of a likelihood that is not registered, the linear predictor in the graph of the variable.
    """

    variable: TensorVariable
    value: Any
    likelihood: Likelihood | None
    reading: Reading | None
    node: TensorVariable | None = None

    @property
    def label(self) -> str:
        """The likelihood and link in words."""
        if self.likelihood is None:
            return f"{_distribution(self.variable)} (not registered)"
        return f"{self.likelihood.name.split('_')[0]} ({self.likelihood.link} link)"

    @property
    def kinds(self) -> tuple[str, ...]:
        """The curvatures that it gives."""
        return ("softabs",) if self.likelihood is None else self.likelihood.kinds


@dataclass(frozen=True, eq=False)
class LatentBlock:
    """Latent variables that share observations, and those observations."""

    latents: tuple[LatentVariable, ...]
    observations: tuple[Observation, ...]

    @property
    def name(self) -> str:
        """The names of the latent functions."""
        return " + ".join(latent.name for latent in self.latents)


@dataclass(frozen=True, eq=False)
class ModelStructure:
    """The blocks that RMHMC samples, and what is left to other steps.

    Attributes
    ----------
    model : pymc.Model
        The model.
    blocks : tuple of LatentBlock
        In the order of the model's variables.
    left_over : tuple of str
        Names of the free variables that are not sampled.
    reasons : dict of str to str
        For each variable left over, why.
    """

    model: pm.Model
    blocks: tuple[LatentBlock, ...]
    left_over: tuple[str, ...]
    reasons: dict[str, str]

    @property
    def variables(self) -> list[TensorVariable]:
        """The random variables of the blocks."""
        return [latent.variable for block in self.blocks for latent in block.latents]

    @property
    def value_vars(self) -> list[TensorVariable]:
        """Their value variables."""
        return [self.model.rvs_to_values[variable] for variable in self.variables]

    @property
    def rest(self) -> list[TensorVariable]:
        """Whatever has a log density and is in no block."""
        counted = {*self.variables, *(o.variable for block in self.blocks for o in block.observations)}
        return [v for v in (*self.model.basic_RVs, *self.model.potentials) if v not in counted]

    def has_own_initval(self, block: LatentBlock) -> bool:
        """Whether any variable of a block was given an `initval` in the model."""
        initial = self.model.rvs_to_initial_values
        return any(initial.get(latent.variable) is not None for latent in block.latents)


def read_structure(
    model: pm.Model, vars: Any = None, *, predictors: bool = True  # noqa: A002 - PyMC's name
) -> ModelStructure:
    """Find the latent Gaussian blocks of a model.

    Parameters
    ----------
    model : pymc.Model
        The model.
    vars : variable, name or list of them, optional
        The latent variables to sample; a whitened GP may be named by itself or by its rotated values. By
        default every vector with a covariance (an MvNormal, a walk, an autoregression, a map) and every whitened
        GP that has a likelihood; in their absence the Normals that predictors are linear in.
    predictors : bool
        Whether these may be the predictors of likelihoods that are not registered.

    Returns
    -------
    ModelStructure

    Raises
    ------
    UnsupportedModelError
        If a named variable is not latent Gaussian, or the model has no latent Gaussian block.
    UnsupportedLikelihoodError
        If a likelihood depends on a latent variable in a way that cannot be sampled.
    ConfigurationError
        In single-precision mode.
    """
    if pytensor.config.floatX != "float64":
        raise ConfigurationError(
            f"PyTensor is set to {pytensor.config.floatX}, in which the factorisations of a GP fail: "
            'set pytensor.config.floatX = "float64".'
        )
    reasons: dict[str, str] = {}
    if vars is None:
        latents = _find_latents(model, reasons) or _find_coefficients(model, reasons, predictors)
    else:
        latents = [_named_latent(model, variable) for variable in resolve_variables(model, vars)]
        _check_apart(model, latents)
    if not latents:
        raise UnsupportedModelError(_nothing_found(reasons), reasons)
    observations = _observations(model, latents)
    blocks = _connect(latents, observations)
    sampled = {latent.variable for block in blocks for latent in block.latents}
    left = tuple(str(v.name) for v in model.free_RVs if v not in sampled)
    return ModelStructure(model, tuple(blocks), left, reasons)


def _find_latents(model: pm.Model, reasons: dict[str, str]) -> list[LatentVariable]:
    """The default choice: latent Gaussian variables with a likelihood that can be sampled."""
    found = []
    candidates = gaussian_candidates(model)
    for variable in model.free_RVs:
        if variable not in candidates and type(variable.owner.op) not in GAUSSIAN_VECTORS:
            kind = _distribution(variable)
            named = " unless it is named in vars" if kind == "Normal" else ""
            article = "an" if kind.startswith(tuple("AEIOU")) else "a"
            reasons[str(variable.name)] = f"{article} {kind} is not a latent Gaussian variable{named}"
            continue
        latent = read_latent(model, variable)
        if isinstance(latent, str) or latent.form == "independent":
            independent = (
                "read as independent normals, not through one cholesky(K) @ v or a Kronecker product of such factors: "
                "name it in vars to sample it"
            )
            reasons[str(variable.name)] = latent if isinstance(latent, str) else independent
            continue
        try:
            observed = _observations(model, [latent])
        except UnsupportedModelError as error:
            reasons[str(variable.name)] = str(error)
            continue
        if observed and variable in candidates:
            found.append(latent)
        else:
            reasons[str(variable.name)] = "no likelihood depends on it"
    for latent, others in _nested(model, found):
        reasons[str(latent.variable.name)] = f"the prior of {others} depends on it"
        found.remove(latent)
    return found


def _find_coefficients(model: pm.Model, reasons: dict[str, str], predictors: bool) -> list[LatentVariable]:
    """Where there is no latent vector with a covariance: the Normals that predictors are linear in."""
    found = []
    for variable in linear_normals(model, predictors=predictors):
        latent = read_latent(model, variable)
        if not isinstance(latent, str):
            found.append(latent)
            reasons.pop(str(variable.name), None)
    return found


def _nested(model: pm.Model, latents: Sequence[LatentVariable]) -> list[tuple[LatentVariable, str]]:
    """The latents on which the prior of another depends, with the names of those others."""
    found = []
    for latent in latents:
        above = [
            other.variable
            for other in latents
            for part in other.expressions
            if reaches(part, [latent.variable], model.basic_RVs)
        ]
        if above:
            found.append((latent, _names(dict.fromkeys(above))))
    return found


def _check_apart(model: pm.Model, latents: Sequence[LatentVariable]) -> None:
    """Latents that move together must be independent a priori: a block's prior is a product."""
    for latent, others in _nested(model, latents):
        raise UnsupportedModelError(
            f"the prior of {others} depends on {latent.name}, so that one RMHMC cannot sample both: leave "
            f"{latent.name} out of vars, and PyMC will sample it with a step of its own."
        )


def _distribution(variable: TensorVariable) -> str:
    """The name of a random variable's distribution."""
    return type(variable.owner.op).__name__.removesuffix("RV")


def _nothing_found(reasons: dict[str, str]) -> str:
    listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    return (
        "The model has no latent Gaussian block that RMHMC could sample"
        + (f" ({listed})" if listed else "")
        + f". It samples {GAUSSIAN} and CAR variables with a likelihood, and Normals that a likelihood's predictor is "
        "linear in."
    )


def resolve_variables(model: pm.Model, wanted: Any) -> list[TensorVariable]:
    """Random variables from names, random variables or value variables."""
    listed = wanted if isinstance(wanted, list | tuple) else [wanted]
    by_value = {value: rv for rv, value in model.rvs_to_values.items()}
    resolved = []
    for item in listed:
        variable = item
        if isinstance(item, str):
            if item not in model.named_vars:
                raise UnsupportedModelError(f'The model has no variable "{item}".')
            variable = model.named_vars[item]
        if not isinstance(variable, Variable):
            raise UnsupportedModelError(f"vars holds {item!r}, which is neither a variable nor the name of one.")
        variable = by_value.get(variable, variable)
        assert variable is not None
        rotated = model.named_vars.get(f"{variable.name}_rotated_")
        if variable in model.deterministics and rotated is not None:
            variable = rotated
        if variable not in resolved:
            resolved.append(variable)
    return resolved


def _named_latent(model: pm.Model, variable: TensorVariable) -> LatentVariable:
    """The latent variable that a user named, or the error that says why it is none."""
    if variable not in model.free_RVs:
        raise UnsupportedModelError(
            f"{variable.name} is not a free random variable of the model. Name the latent variable itself; there "
            f"are {', '.join(str(v.name) for v in model.free_RVs)}."
        )
    if variable.dtype not in ("float64", "float32"):
        raise UnsupportedModelError(
            f"{variable.name} is discrete. RMHMC moves continuous latent Gaussian values: leave it out of vars, and "
            "PyMC will sample it with a step of its own."
        )
    latent = read_latent(model, variable)
    if isinstance(latent, str):
        raise UnsupportedModelError(
            f"{variable.name}: {latent}. RMHMC samples variables with a Gaussian prior ({GAUSSIAN}, CAR, vectors of "
            "Normals): leave it out of vars, and PyMC will sample it with a step of its own."
        )
    return latent


def _observations(model: pm.Model, latents: Sequence[LatentVariable]) -> list[Observation]:
    """Every random variable whose distribution depends on the latents directly."""
    sources = [latent.source for latent in latents]
    variables = [latent.variable for latent in latents]
    for potential in model.potentials:
        if reaches(potential, variables, model.basic_RVs):
            raise UnsupportedModelError(
                f"the Potential {potential.name} depends on {_names(variables)}; write it as an observed variable, "
                "or sample with NUTS"
            )
    found = []
    for variable in model.basic_RVs:
        if variable in variables:
            continue
        if not reaches(variable, variables, model.basic_RVs):
            continue
        found.append(_observation(model, variable, sources, variables))
    return found


def _observation(
    model: pm.Model, variable: TensorVariable, sources: list[TensorVariable], latents: list[TensorVariable]
) -> Observation:
    """How one variable depends on the latents, or the error that says why that cannot be sampled."""
    value = model.rvs_to_values[variable]
    free = variable in model.free_RVs
    if isinstance(variable.owner.op, PartialObservedRV):
        raise UnsupportedLikelihoodError(f"{variable.name} is of one distribution with missing values: {LEAVE_OUT}")
    if free and model.rvs_to_transforms.get(variable) is not None:
        if str(variable.name).endswith("_unobserved"):
            raise UnsupportedLikelihoodError(
                f"{variable.name} stands for missing values of a bounded distribution, which are transformed: "
                f"{LEAVE_OUT}"
            )
        raise UnsupportedLikelihoodError(
            f"the free variable {variable.name} depends on {_names(latents)} and is transformed; only observed "
            "variables and imputed observations can be its likelihood"
        )
    if isinstance(variable.owner.op, MinibatchRandomVariable):
        raise UnsupportedLikelihoodError(
            f"{variable.name} has a total_size, which scales its log density and is for variational inference: leave "
            "total_size out, and give all of the data"
        )
    found = read_likelihood(variable)
    if found is not None and not any(reaches(other, latents, model.basic_RVs) for other in found[1].others):
        return Observation(variable, value, *found)
    # Where another parameter reads latent values too, or it alone, the closed forms are of no use.
    read = [source for source in sources if reaches(variable, [source], model.basic_RVs)]
    node = predictor_node(variable, read, model.basic_RVs) if read else None
    if found is not None and node is None and len(read) > 1:
        raise UnsupportedLikelihoodError(
            f"{_names(latents)} enter {variable.name} by several of its parameters: sample with NUTS, or name in vars "
            "those that enter by one"
        )
    _check_unregistered(variable, read, node)
    return Observation(variable, value, None, None if node is None else Reading(node, {}), node)


def _check_unregistered(variable: TensorVariable, read: list[TensorVariable], node: TensorVariable | None) -> None:
    """What can be known of an unregistered likelihood before it is evaluated."""
    name = _distribution(variable)
    if getattr(variable.owner.op, "ndim_supp", 0) > 0:
        raise UnsupportedLikelihoodError(
            f"the likelihood {name} of {variable.name} does not factorise over its observations: sample with NUTS"
        )
    if node is None and len(read) > 1:
        raise UnsupportedLikelihoodError(
            f"the likelihood {name} of {variable.name} is not registered and reads several latent variables otherwise "
            "than through one linear combination of them: sample with NUTS"
        )
    between = ancestors([variable], blockers=read if len(read) == 1 or node is None else [node])
    if any(v.owner is not None and isinstance(v.owner.op, Scan) for v in between):
        raise UnsupportedLikelihoodError(f"the likelihood {name} of {variable.name} contains a Scan: sample with NUTS")


def _connect(latents: Sequence[LatentVariable], observations: Sequence[Observation]) -> list[LatentBlock]:
    """Latents that share an observation belong to one block."""
    groups: list[tuple[list[LatentVariable], list[Observation]]] = [([latent], []) for latent in latents]
    for observation in observations:
        touched = [
            group for group in groups if reaches(observation.variable, [latent.variable for latent in group[0]])
        ]
        merged = touched[0]
        for other in touched[1:]:
            merged[0].extend(other[0])
            merged[1].extend(other[1])
            groups.remove(other)
        merged[1].append(observation)
    return [LatentBlock(tuple(members), tuple(_as_read(members, o) for o in observed)) for members, observed in groups]


def _as_read(latents: Sequence[LatentVariable], observation: Observation) -> Observation:
    """An observation of a block; where this is one vector with a covariance, its values may serve as they are.

    They are the sites then, whatever a likelihood that is not registered makes of each.
    """
    (first, *others), registered = latents, observation.likelihood is not None
    if registered or others or first.form == "independent":
        return observation
    return replace(observation, reading=None)


def _names(variables: Iterable[TensorVariable]) -> str:
    return ", ".join(str(v.name).removesuffix("_rotated_") for v in variables)
