"""What a model is made of, as far as RMHMC is concerned: latent Gaussian blocks and the rest.

The reading is symbolic, and evaluates no more than what a product with a Cholesky factor and a Kronecker product come
to; `pymc_rmhmc.model.compile` turns it into functions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pymc as pm
import pytensor
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import ConfigurationError, UnsupportedModelError, listed, shown
from pymc_rmhmc.model.deviations import Deviations
from pymc_rmhmc.model.forms.components import LatentReader
from pymc_rmhmc.model.forms.linear_normals import linear_normals, scaled_source
from pymc_rmhmc.model.forms.priors import GAUSSIAN_VECTORS, LatentVariable, gaussian_candidates, read_latent
from pymc_rmhmc.model.graph.affine import goes_one_by_one, multipliers, predictor_node
from pymc_rmhmc.model.graph.graphs import inlined, is_of_dims, reaches
from pymc_rmhmc.model.graph.scales import is_never_zero, scales_first
from pymc_rmhmc.model.likelihoods import read_likelihood
from pymc_rmhmc.model.observed.observation import Observation, direct_readers, names_by_value, names_of, observations_of
from pymc_rmhmc.model.observed.observations import RegisteredReader
from pymc_rmhmc.model.words.advice import unread_forms
from pymc_rmhmc.model.words.refusals import (
    GAUSSIAN,
    Choice,
    nothing_found,
    why_above,
    why_not_latent,
    written_as_scalars,
)

__all__ = [
    "BY_ANOTHER", "LatentBlock", "ModelStructure", "check_is_continuous", "has_own_initval", "model_in_context",
    "read_structure", "resolve_variables",
]  # fmt: skip

# For the words of reasons, of vectors that another RMHMC could sample.
BY_ANOTHER = "another parameter than other latent values"


@dataclass(frozen=True, eq=False)
class LatentBlock:
    """Latent variables that share observations, and those observations.

    What reads them is made once: a plan and what is compiled of a block ask the same.
    """

    latents: tuple[LatentVariable, ...]
    observations: tuple[Observation, ...]
    _of_latents: dict[LatentVariable, LatentReader] = field(default_factory=dict)
    _of_observations: dict[tuple[Variable | Observation, ...], RegisteredReader] = field(default_factory=dict)

    def latent_readers(self, model: pm.Model) -> list[LatentReader]:
        """Return the reader of each latent variable."""
        for latent in self.latents:
            if latent not in self._of_latents:
                self._of_latents[latent] = LatentReader(model, latent)
        return [self._of_latents[latent] for latent in self.latents]

    def registered_reader(
        self, model: pm.Model, observation: Observation, sources: Sequence[TensorVariable]
    ) -> RegisteredReader:
        """Return the reader of an observation with a registered likelihood."""
        key = (observation, *sources)
        if key not in self._of_observations:
            self._of_observations[key] = RegisteredReader(model, observation, sources)
        return self._of_observations[key]

    @property
    def name(self) -> str:
        """The names of the latent functions."""
        return " + ".join(latent.name for latent in self.latents)


@dataclass(frozen=True, eq=False)
class ModelStructure:
    """The blocks that RMHMC samples, in the order of the model's variables, and what is left to other steps.

    Attributes
    ----------
    left_over, reasons
        Names of the free variables that are not sampled, and why each is not.
    advice : dict of str to str
        For variables that are not read as they could be, what to write: the same text for those that belong together.
    no_predictors : str
        Why the predictors of likelihoods that are not registered were not read; empty if they were.
    deviations : Deviations or None
        Of which model this one is a view, with deviations from their means in the place of vectors.
    """

    model: pm.Model
    blocks: tuple[LatentBlock, ...]
    left_over: tuple[str, ...]
    reasons: dict[str, str]
    advice: dict[str, str] = field(default_factory=dict)
    no_predictors: str = ""
    deviations: Deviations | None = None

    @property
    def given_model(self) -> pm.Model:
        """The user's model, of which the structure's may be a view."""
        return self.model if self.deviations is None else self.deviations.model

    @property
    def latents(self) -> list[LatentVariable]:
        """The latent variables of all blocks."""
        return [latent for block in self.blocks for latent in block.latents]

    @property
    def observations(self) -> list[Observation]:
        """The observations of all blocks."""
        return [observation for block in self.blocks for observation in block.observations]

    @property
    def variables(self) -> list[TensorVariable]:
        """The random variables of the blocks."""
        return [latent.variable for latent in self.latents]

    @property
    def coefficients(self) -> list[TensorVariable]:
        """The Normals that predictors read linearly, and that are in no block."""
        found = linear_normals(self.model, self.variables, predictors=not self.no_predictors)
        return [v for v in found if v not in self.variables]

    @property
    def value_vars(self) -> list[TensorVariable]:
        """Their value variables."""
        return [self.model.rvs_to_values[variable] for variable in self.variables]

    @property
    def rest(self) -> list[TensorVariable]:
        """Whatever has a log density and is in no block."""
        counted = {*self.variables, *(o.variable for o in self.observations)}
        return [v for v in (*self.model.basic_RVs, *self.model.potentials) if v not in counted]

    @property
    def explained_advice(self) -> dict[str, str]:
        """The advice, after the reason why it is needed where that is the same for all that it is for."""
        texts: dict[str, str] = {}
        for text in dict.fromkeys(self.advice.values()):
            names = [name for name, each in self.advice.items() if each == text]
            reasons = {self.reasons.get(name, "") for name in names}
            (reason,) = reasons if len(reasons) == 1 else ("",)
            texts |= dict.fromkeys(names, f"{reason}. {text}" if reason else text)
        return texts


def has_own_initval(model: pm.Model, variables: Iterable[TensorVariable]) -> bool:
    """Check whether a model gives any of some variables an `initval`."""
    return any(model.rvs_to_initial_values.get(variable) is not None for variable in variables)


def read_structure(
    model: pm.Model, vars: object = None, *, no_predictors: str = ""  # noqa: A002 - PyMC's name
) -> ModelStructure:
    """Find the latent Gaussian blocks of a model.

    `vars` names the latent variables to sample; a whitened GP may be named by itself or by its rotated values. By
    default these are every vector with a covariance (an MvNormal, a walk, an autoregression, a map) and every whitened
    GP that has a likelihood; in their absence the Normals that predictors are linear in. `no_predictors` says why these
    may not be the predictors of likelihoods that are not registered; empty if they may.

    Raises
    ------
    UnsupportedModelError
        If a named variable is not latent Gaussian, or the model has no latent Gaussian block.
    UnsupportedLikelihoodError
        If a likelihood depends on a latent variable in a way that cannot be sampled.
    ConfigurationError
        If `vars` holds what is no free variable of the model, or in single-precision mode.
    """
    if pytensor.config.floatX != "float64":
        raise ConfigurationError(
            f"PyTensor is set to {pytensor.config.floatX}, in which the factorisations of a GP fail: "
            'set pytensor.config.floatX = "float64".'
        )
    reasons: dict[str, str] = {}
    advice: dict[str, str] = {}
    if vars is None:
        latents, advice = _found(model, no_predictors, reasons)
    else:
        named = resolve_variables(model, vars)
        latents = [_named_latent(model, variable, named) for variable in named]
        _check_apart(model, latents)
    observations = observations_of(model, latents)
    blocks = _connect(model, latents, observations)
    sampled = {latent.variable for block in blocks for latent in block.latents}
    left = tuple(str(v.name) for v in model.free_RVs if v not in sampled)
    return ModelStructure(model, tuple(blocks), left, reasons, advice, no_predictors)


def _found(
    model: pm.Model, no_predictors: str, reasons: dict[str, str]
) -> tuple[list[LatentVariable], dict[str, str]]:
    """Find the latents that nobody named, and advice on how to rewrite what is not read; add to `reasons`."""
    choice = Choice(model, no_predictors, direct_readers(model), unread_forms(model, model.free_RVs))
    latents = _find_latents(choice, reasons) or _find_coefficients(choice, reasons)
    _explain(choice, latents, reasons)
    advice = {**choice.unread, **written_as_scalars(model, choice.readers)}
    if not latents:
        raise nothing_found(model, reasons, advice)
    return latents, advice


def _find_latents(choice: Choice, reasons: dict[str, str]) -> list[LatentVariable]:
    """Find the latents sampled by default: Gaussian variables with a likelihood that can be sampled."""
    model, found = choice.model, []
    candidates = gaussian_candidates(model)
    vectors = [v for v in model.free_RVs if v in candidates or type(v.owner.op) in GAUSSIAN_VECTORS]
    for variable in model.free_RVs:
        if is_of_dims(variable) or variable not in vectors:
            continue
        latent = _vector(choice, variable, is_candidate=variable in candidates)
        if isinstance(latent, str):
            reasons[str(variable.name)] = latent
        else:
            found.append(latent)
    for latent, others in _nested(model, found):
        reasons[str(latent.variable.name)] = f"the prior of {others} depends on it"
        found.remove(latent)
    for latent, reason in _besides(model, found):
        reasons[str(latent.variable.name)] = reason
        found.remove(latent)
    return found


def _vector(choice: Choice, variable: TensorVariable, *, is_candidate: bool) -> LatentVariable | str:
    """Read a vector with a covariance, or return why it is not sampled."""
    latent = read_latent(choice.model, variable)
    if isinstance(latent, str):
        return latent
    if latent.form == "independent":
        return (
            "read as independent normals, not through one cholesky(K) @ v or a Kronecker product of such factors: "
            "name it in vars to sample it"
        )
    try:
        observed = observations_of(choice.model, [latent], "it")
    except UnsupportedModelError as error:
        return str(error)
    if observed and is_candidate:
        return latent
    return why_above(choice, variable) or f"it enters by {BY_ANOTHER}"


def _explain(choice: Choice, latents: Sequence[LatentVariable], reasons: dict[str, str]) -> None:
    """Add why each variable that is not among the latents is not, unless it is known."""
    chosen = {latent.variable for latent in latents}
    names = listed([names_of([latent.variable]) for latent in latents])
    if not latents:
        otherwise = "no likelihood reads it linearly"
    elif all(latent.form == "independent" for latent in latents):
        otherwise = f"no predictor is linear in it and {names} together"
    else:
        otherwise = f"next to {names} it is sampled as a latent variable only if vars names them all"
    for variable in choice.model.free_RVs:
        if variable not in chosen and str(variable.name) not in reasons:
            reasons[str(variable.name)] = why_not_latent(choice, variable) or otherwise


def _besides(model: pm.Model, latents: Sequence[LatentVariable]) -> list[tuple[LatentVariable, str]]:
    """Find the latents that enter a registered likelihood by other parameters than the rest, and not in one sum."""
    dropped: dict[LatentVariable, str] = {}
    for variable in model.observed_RVs:
        found = read_likelihood(variable)
        read = [each for each in latents if each not in dropped and reaches(variable, [each.variable])]
        if found is None or len(read) < 2:
            continue
        by_others = [
            each for each in read if any(reaches(o, [each.variable], model.basic_RVs) for o in found[1].others)
        ]
        if by_others and predictor_node(variable, [each.source for each in read], model.basic_RVs) is None:
            # Of those that all enter by several parameters one can be sampled.
            these = by_others if len(by_others) < len(read) else by_others[1:]
            dropped |= dict.fromkeys(these, f"it enters {variable.name} by {BY_ANOTHER}")
    return list(dropped.items())


def _find_coefficients(choice: Choice, reasons: dict[str, str]) -> list[LatentVariable]:
    """Find the Normals that predictors are linear in, for a model without a latent vector that has a covariance."""
    model, found = choice.model, []
    for variable in linear_normals(model, predictors=not choice.no_predictors, readers=choice.readers):
        latent = read_latent(model, variable)
        if not isinstance(latent, str):
            found.append(latent)
            reasons.pop(str(variable.name), None)
    return found


def _nested(model: pm.Model, latents: Sequence[LatentVariable]) -> list[tuple[LatentVariable, str]]:
    """Find the latents on which the prior of another depends, with the names of those others."""
    found = []
    for latent in latents:
        above = [
            other.variable for other in latents
            if any(reaches(part, [latent.variable], model.basic_RVs) for part in other.expressions)
        ]
        if above:
            found.append((latent, names_of(dict.fromkeys(above))))
    return found


def model_in_context(model: object, asked_by: str) -> pm.Model:
    """Return a model that was given, or the one in context.

    Raises
    ------
    ConfigurationError
        If there is none, or what was given is something else.
    """
    if model is not None and not isinstance(model, pm.Model):
        raise ConfigurationError(
            f"model must be a pymc.Model, got {shown(model)}. Give {asked_by}(model=model), or leave it out within "
            "`with model:`."
        )
    found = pm.Model.get_context(error_if_none=False) if model is None else model
    if found is None:
        raise ConfigurationError(
            f"{asked_by} reads a model, and there is none in context. Call it within `with model:`, or give "
            f"{asked_by}(model=model)."
        )
    return found


def _check_apart(model: pm.Model, latents: Sequence[LatentVariable]) -> None:
    """Raise if the prior of a latent depends on another latent: a block's prior is a product."""
    for latent, others in _nested(model, latents):
        raise UnsupportedModelError(
            f"the prior of {others} depends on {latent.name}, so that one RMHMC cannot sample both: leave "
            f"{latent.name} out of vars, and PyMC will sample it with a step of its own."
        )


def resolve_variables(model: pm.Model, wanted: object) -> list[TensorVariable]:
    """Return the random variables that a user gave by name, as random variables or as value variables.

    Raises
    ------
    ConfigurationError
        If one is no free variable of the model.
    """
    listed = wanted if isinstance(wanted, list | tuple) else [wanted]
    by_value = {value: rv for rv, value in model.rvs_to_values.items()}
    resolved = []
    for item in listed:
        variable = item
        if isinstance(item, str):
            if item not in model.named_vars:
                meant = _meant_by(model, item)
                raise ConfigurationError(f'vars: the model has no variable "{item}". {meant}{_free_variables(model)}')
            variable = model.named_vars[item]
        if not isinstance(variable, Variable):
            raise ConfigurationError(
                f"vars holds {shown(item)}, which is neither a variable nor the name of one. Give one, or a list. "
                f"{_free_variables(model)}"
            )
        variable = by_value.get(variable, variable)
        assert variable is not None
        rotated = model.named_vars.get(f"{variable.name}_rotated_")
        if variable in model.deterministics and rotated is not None:
            variable = rotated
        _check_is_free(model, variable)
        if variable not in resolved:
            resolved.append(variable)
    return resolved


def _meant_by(model: pm.Model, name: str) -> str:
    """Ask whether an unknown name is a slip for a free variable of the model; return an empty text if none is close.

    Names of transformed values are those of their variables.
    """
    names = {value.lower(): given for value, given in names_by_value(model).items()}
    names |= {given.lower(): given for given in names.values()}
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return f'Did you mean "{names[close[0]]}"? ' if close else ""


def _free_variables(model: pm.Model) -> str:
    """Return a sentence that lists the names that `vars` may hold."""
    return f"The free variables of the model are {names_of(model.free_RVs)}."


def _check_is_free(model: pm.Model, variable: Variable) -> None:
    """Raise a `ConfigurationError` for what no step of the model samples."""
    if variable in model.free_RVs:
        return
    own = model.named_vars.get(variable.name)
    if own is not None and own is not variable:
        raise ConfigurationError(
            f'vars holds the {variable.name} of another model. Give vars=["{variable.name}"], or build RMHMC '
            "with the model that it is of."
        )
    raise ConfigurationError(
        f"vars holds {variable.name or shown(variable)}, which is not a free random variable of the model, and only "
        f"those are sampled. Name the latent variable itself. {_free_variables(model)}"
    )


def check_is_continuous(variable: TensorVariable) -> None:
    """Raise an `UnsupportedModelError` for a discrete variable that a user named."""
    if not variable.dtype.startswith("float"):
        raise UnsupportedModelError(
            f"{variable.name} is discrete, and RMHMC moves continuous variables: leave it out of vars, and PyMC will "
            "sample it with a step of its own."
        )


def _named_latent(model: pm.Model, variable: TensorVariable, named: Sequence[TensorVariable]) -> LatentVariable:
    """Read the latent variable that a user named, or raise the error that says why it is none."""
    check_is_continuous(variable)
    latent = read_latent(model, variable)
    if isinstance(latent, str):
        advice = unread_forms(model, [variable])
        given = [names_of([v]) for v in named]
        above = [] if advice else _latents_above(model, variable)
        if above and not set(above) & set(given):
            together = ", ".join(f'"{name}"' for name in (*above, *given))
            raise UnsupportedModelError(
                f"{variable.name}: {latent}. It is a hyperparameter, and RMHMC samples these only together with latent "
                f"vectors. Leave vars out, or name the latent vectors too: RMHMC(vars=[{together}])."
            )
        raise UnsupportedModelError(
            f"{variable.name}: {latent}. " + "".join(f"{text}\n" for text in advice.values())
            + f"RMHMC samples variables with a Gaussian prior ({GAUSSIAN}, CAR, ICAR, vectors of Normals): leave it "
            "out of vars, and PyMC will sample it with a step of its own.", advice=advice,
        )  # fmt: skip
    return latent


def _latents_above(model: pm.Model, variable: TensorVariable) -> list[str]:
    """Find the latent vectors of a model whose prior or likelihood depends on a variable."""
    try:
        structure = read_structure(model)
    except UnsupportedModelError:
        return []
    return [
        latent.name for block in structure.blocks for latent in block.latents
        if any(reaches(v, [variable]) for v in (*latent.expressions, *(o.variable for o in block.observations)))
    ]


def _connect(
    model: pm.Model, latents: Sequence[LatentVariable], observations: Sequence[Observation]
) -> list[LatentBlock]:
    """Group latents into blocks: those that share an observation belong to one block."""
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
    return [LatentBlock(tuple(members), _as_read(model, members, observed)) for members, observed in groups]


def _as_read(
    model: pm.Model, latents: Sequence[LatentVariable], observations: Sequence[Observation]
) -> tuple[Observation, ...]:
    """Return a block's observations; where it is one vector with a covariance, its values may serve as they are.

    They are the sites then, whatever a likelihood that is not registered makes of each. Behind a scale that moves they
    are not, for sites would not follow it.
    """
    first, *others = latents
    if others or first.form == "independent" or _is_behind_a_scale(model, first, observations):
        return tuple(observations)
    return tuple(
        replace(o, reading=None)
        if o.likelihood is None and (o.node is None or goes_one_by_one(o.node, first.source)) else o
        for o in observations
    )  # fmt: skip


def _is_behind_a_scale(model: pm.Model, latent: LatentVariable, observations: Sequence[Observation]) -> bool:
    """Check whether all observations read a vector as it is, but for one scale that they share."""
    nodes = [o.node for o in observations if o.likelihood is None]
    if not nodes or latent.variable.ndim != 1:
        return False
    if not all(node is not None and _reads_scaled(model, node, latent.source) for node in nodes):
        return False
    etas = [o.reading.eta for o in observations if o.reading is not None]
    moved = scales_first(model, inlined(etas, [latent.source, *model.basic_RVs]), [latent.source])
    return scaled_source(latent.source, moved, [latent.variable], lambda factor: is_never_zero(model, factor)).is_scaled


def _reads_scaled(model: pm.Model, node: TensorVariable, source: TensorVariable) -> bool:
    """Check whether each value of a predictor reads one of a source, multiplied by what moves and is never 0."""
    scales = multipliers(node, source)
    return bool(scales) and all(is_never_zero(model, scale) for scale in scales)
