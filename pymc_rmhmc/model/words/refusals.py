"""Why a variable is not sampled as a latent one, and what is said of a model that has none, or scalars in a loop."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pymc as pm
from pytensor.tensor.random.basic import NormalRV
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError, listed
from pymc_rmhmc.model.graph.affine import first_bend, is_linear, predictor_node
from pymc_rmhmc.model.graph.graphs import is_of_dims, operation_name, reaches
from pymc_rmhmc.model.graph.source_code import UNKNOWN, code_of, distribution_of
from pymc_rmhmc.model.likelihoods import read_likelihood
from pymc_rmhmc.model.likelihoods.links import strip
from pymc_rmhmc.model.observed.observation import (
    UNOBSERVED,
    depends_on_potential,
    direct_readers,
    names_of,
    observation_of,
)
from pymc_rmhmc.model.words.advice import AS_IT_IS, INSTEAD_OF_SEVERAL, NUTS

__all__ = [
    "GAUSSIAN", "Choice", "discrete_in_words", "nothing_found", "said_once", "step_in_words", "why_above",
    "why_not_latent", "written_as_scalars",
]  # fmt: skip

# For the words of errors.
GAUSSIAN = "gp.Latent, gp.LatentKron, MvNormal, GaussianRandomWalk, AR"
# The beginnings of reasons that are said together, whatever the distributions are.
NOT_GAUSSIAN = "not Gaussian"
NOT_READ = "Gaussian, but not in a form that is read"


@dataclass(frozen=True)
class Choice:
    """What a choice of latent variables is made by: `direct_readers`, `unread_forms`, and whether predictors are read.

    `no_predictors` says why those of likelihoods that are not registered are not read; empty if they are.
    """

    model: pm.Model
    no_predictors: str
    readers: Mapping[TensorVariable, Sequence[TensorVariable]]
    unread: Mapping[str, str]


def why_not_latent(choice: Choice, variable: TensorVariable) -> str:
    """Say why a free variable is not sampled as latent; empty if only variables in its place prevent it."""
    model = choice.model
    if is_of_dims(variable):
        return "it is of pymc.dims, whose distributions are not read"
    if str(variable.name) in choice.unread:
        return f"its prior, {distribution_of(variable)}, is {NOT_READ}"
    if distribution_of(variable) == "CustomDist":
        return "a CustomDist is not read, whatever it is made of"
    discrete = discrete_in_words(variable)
    if discrete:
        return discrete
    if not isinstance(variable.owner.op, NormalRV):
        return f"{NOT_GAUSSIAN} ({distribution_of(variable)})"
    transform = model.rvs_to_transforms.get(variable)
    if transform is not None:
        return f"its values are transformed ({type(transform).__name__}), and what is sampled then is not Gaussian"
    whys = (_why_not_read_by(choice, reader, variable) for reader in choice.readers[variable])
    return why_above(choice, variable) or next(filter(None, whys), "")


def discrete_in_words(variable: TensorVariable) -> str:
    """Say that a variable is discrete, and whether it stands for missing data; empty for a continuous one."""
    if variable.dtype.startswith("float"):
        return ""
    name = str(variable.name)
    what = f"missing observations of {name.removesuffix(UNOBSERVED)}, " if name.endswith(UNOBSERVED) else ""
    return f"{what}discrete ({distribution_of(variable)})"


def step_in_words(variable: TensorVariable) -> str:
    """Say which step of PyMC's samples a discrete variable; empty for a continuous one."""
    if variable.dtype.startswith("float"):
        return ""
    step = max(pm.STEP_METHODS, key=lambda method: method._competence(variable, False))
    return f", sampled by {step.__name__}"


def why_above(choice: Choice, variable: TensorVariable) -> str:
    """Say that a variable is in the prior of others, or in nothing at all; empty if a likelihood alone reads it."""
    readers, free = choice.readers[variable], choice.model.free_RVs
    priors = [names_of([v]) for v in readers if v in free and not str(v.name).endswith(UNOBSERVED)]
    if not readers:
        return "no likelihood depends on it"
    return f"the prior of {listed(priors)} depends on it" if priors else ""


def _why_not_read_by(choice: Choice, reader: TensorVariable, variable: TensorVariable) -> str:
    """Say why a likelihood, or a Potential, does not read a Normal as a latent one; empty if it does."""
    model = choice.model
    if reader in model.potentials:
        return depends_on_potential(reader, "it")
    try:
        observation = observation_of(model, reader, [variable], [variable], "it")
    except UnsupportedModelError as error:
        return str(error)
    found = read_likelihood(reader)
    if observation.likelihood is not None:
        return ""
    if found is not None:
        if any(reaches(other, [variable], model.basic_RVs) for other in found[1].others):
            return f"it enters {reader.name} by another parameter than the predictor"
        return f"the predictor of {reader.name} is not linear in it{_through(found[1].eta, variable)}"
    if predictor_node(reader, [variable], model.basic_RVs) is not None:
        return choice.no_predictors
    parameters = [i for i in reader.owner.inputs if isinstance(i, TensorVariable) and reaches(i, [variable])]
    through = _through(parameters[0], variable) if parameters else ""
    kind = distribution_of(reader)
    return f"the likelihood {kind} of {reader.name} has no predictor that is linear in it{through}"


def _through(expression: TensorVariable, variable: TensorVariable) -> str:
    bend = first_bend(expression, [variable])
    return f" (`{bend}`)" if bend else ""


def said_once(texts: Mapping[str, str]) -> list[tuple[str, str]]:
    """Group texts by name into pairs of the names in short and the text that they share."""
    by_text: dict[str, list[str]] = {}
    for name, text in texts.items():
        by_text.setdefault(text, []).append(name.removesuffix("_rotated_"))
    return [(listed(names), text) for text, names in by_text.items()]


def nothing_found(model: pm.Model, reasons: Mapping[str, str], advice: Mapping[str, str]) -> UnsupportedModelError:
    """Return the error of a model in which there is nothing to sample.

    Causes come first, each once, and what to write instead; then the variables that are not Gaussian, in one line.
    """
    reasons = {**_why_of_likelihoods(model, reasons), **reasons}
    others = [name for name, why in reasons.items() if why.startswith(NOT_GAUSSIAN)]
    lines = [f"{names}: {why}" for names, why in said_once({n: w for n, w in reasons.items() if n not in others})]
    if others:
        kinds = said_once({n: reasons[n].removeprefix(NOT_GAUSSIAN).strip(" ()") for n in others})
        lines.append(f"{NOT_GAUSSIAN}: " + "; ".join(f"{names} ({kind})" for names, kind in kinds))
    said = "\n".join(f"- {_without_nuts(line)}." for line in lines)
    forms = "".join(f"\n{names}: {text}" for names, text in said_once(advice))
    return UnsupportedModelError(
        f"The model has no latent Gaussian block that RMHMC could sample:\n{said}{forms}\n"
        "As it is, sample the model with RMHMC(), which needs no such block, or with NUTS: pm.sample() without step=. "
        f"A block is a Gaussian vector with a likelihood ({GAUSSIAN}, CAR, ICAR), or Normals that a likelihood's "
        "predictor is linear in.",
        dict(reasons), dict(advice),
    )  # fmt: skip


def _without_nuts(line: str) -> str:
    """Cut from a reason what the end of the message says for all of them."""
    for ending in (f". {INSTEAD_OF_SEVERAL}", f": {NUTS}", f", or {NUTS}", f", and {NUTS}"):
        line = line.removesuffix(ending)
    return line


def _why_of_likelihoods(model: pm.Model, reasons: Mapping[str, str]) -> dict[str, str]:
    """Return what is in the way of each likelihood that no variable's reason names yet."""
    found = {}
    for variable in model.observed_RVs:
        named = any(f" {variable.name} " in f"{why} " for why in reasons.values())
        if not named and getattr(variable.owner.op, "ndim_supp", 0) > 0:
            try:
                observation_of(model, variable, [], [], "it")
            except UnsupportedModelError as error:
                found[str(variable.name)] = str(error)
    return found


# Scalars of which each is the mean of the next: fewer may be levels of a hierarchy.
SHORTEST_CHAIN = 5
# As many values after it a value of a series may be in the means of.
MOST_FOLLOWERS = 3
# Scalars that differ by a number in their names: fewer are named each for what it is.
FEWEST_SCALARS = 20


def written_as_scalars(
    model: pm.Model, readers: Mapping[TensorVariable, Sequence[TensorVariable]] | None = None
) -> dict[str, str]:
    """Say what to write for a walk of scalar Normals, each the mean of the next, or for many scalars.

    It is the same advice for each of the scalars, by its name. The readers are those of `direct_readers`, if known.
    """
    readers = direct_readers(model) if readers is None else readers
    scalars = [
        v for v in model.free_RVs
        if v.ndim == 0 and isinstance(v.owner.op, NormalRV) and model.rvs_to_transforms.get(v) is None
    ]  # fmt: skip
    advice: dict[str, str] = {}
    for chain in _chains(scalars, readers):
        text = _as_a_walk(model, chain)
        advice |= {str(v.name): text for v in chain}
    by_stem: dict[str, list[TensorVariable]] = {}
    for scalar in scalars:
        if str(scalar.name) not in advice:
            by_stem.setdefault(_stem(scalar), []).append(scalar)
    for stem, alike in by_stem.items():
        if stem and len(alike) >= FEWEST_SCALARS:
            text = _as_a_vector(model, stem, alike)
            advice |= {str(v.name): text for v in alike}
    return advice


def _chains(
    scalars: Sequence[TensorVariable], readers: Mapping[TensorVariable, Sequence[TensorVariable]]
) -> list[list[TensorVariable]]:
    """Find scalars that are connected by their means, where one leads to the next at least `SHORTEST_CHAIN` times."""
    known = set(scalars)
    followers = {v: [r for r in readers[v] if r in known and _follows(r, v, scalars)] for v in scalars}
    # A drift, a coefficient or a common mean is in the means of many.
    followers = {v: after if len(after) <= MOST_FOLLOWERS else [] for v, after in followers.items()}
    chain_of: dict[TensorVariable, list[TensorVariable]] = {v: [v] for v in scalars}
    depth = dict.fromkeys(scalars, 1)
    for scalar in scalars:  # in the order of the model, where what is read comes first
        for reader in followers[scalar]:
            depth[reader] = max(depth[reader], depth[scalar] + 1)
            mine, other = chain_of[scalar], chain_of[reader]
            if mine is not other:
                mine += other
                for each in other:
                    chain_of[each] = mine
    found = {id(chain): chain for chain in chain_of.values() if max(depth[v] for v in chain) >= SHORTEST_CHAIN}
    return list(found.values())


def _follows(after: TensorVariable, before: TensorVariable, scalars: Sequence[TensorVariable]) -> bool:
    """Return whether a scalar is in another's mean."""
    return reaches(after.owner.op.dist_params(after.owner)[0], [before], scalars)


def _as_a_walk(model: pm.Model, chain: Sequence[TensorVariable]) -> str:
    """Write a chain of scalars as a walk or an autoregression, if it is one."""
    first, *rest = chain
    name, n = _stem(first), len(chain)
    steps = [_step(model, before, after) for before, after in zip(chain, rest, strict=False)]
    kinds = {step if step is None else step[0] for step in steps}
    if not name.isidentifier() or len(kinds) != 1 or None in kinds:
        return (
            "A series in scalars is not read as one. Write it as vectors: pm.GaussianRandomWalk and pm.AR are read, "
            "and so is pm.math.cumsum of a vector of Normals."
        )
    (kind,) = {step[0] for step in steps if step}
    sigmas = {code_of(model, v.owner.op.dist_params(v.owner)[1]) for v in rest}
    others = {step[1] for step in steps if step}
    sigma, other = (each.pop() if len(each) == 1 else UNKNOWN for each in (sigmas, others))
    moves = {"AR": f"rho=[{other}], ", "GaussianRandomWalk": "" if other == "0" else f"mu={other}, "}[kind]
    start = ", ".join(code_of(model, p) for p in first.owner.op.dist_params(first.owner))
    written = (
        f"A series in scalars is not read as one. Write a vector, with {name}[0] in the place of {first.name}:\n"
        f'    {name} = pm.{kind}("{name}", {moves}sigma={sigma}, init_dist=pm.Normal.dist({start}), shape={n})'
    )
    return written + (AS_IT_IS if UNKNOWN in written else "")


def _step(model: pm.Model, before: TensorVariable, after: TensorVariable) -> tuple[str, str] | None:
    """Say how one value follows another: the kind of series, and code for its drift or its coefficient."""
    mean = strip(after.owner.op.dist_params(after.owner)[0])
    if mean is before:
        return "GaussianRandomWalk", "0"
    if mean.owner is None or not reaches(mean, [before]) or not is_linear(mean, [before]):
        return None
    others = [i for i in mean.owner.inputs if strip(i) is not before]
    if len(others) != 1 or len(mean.owner.inputs) != 2 or reaches(others[0], [before]):
        return None
    kind = {"Add": "GaussianRandomWalk", "Mul": "AR"}.get(operation_name(mean))
    return None if kind is None else (kind, code_of(model, others[0]))


def _as_a_vector(model: pm.Model, stem: str, alike: Sequence[TensorVariable]) -> str:
    """Write scalars of one kind as one vector."""
    laws = {tuple(code_of(model, p) for p in v.owner.op.dist_params(v.owner)) for v in alike}
    mean, sigma = laws.pop() if len(laws) == 1 else (UNKNOWN, UNKNOWN)
    written = (
        "Write them as one vector, which compiles much faster:\n"
        f'    {stem} = pm.Normal("{stem}", {mean}, {sigma}, shape={len(alike)})'
    )
    return written + (AS_IT_IS if UNKNOWN in written else "")


def _stem(variable: TensorVariable) -> str:
    """Return a name without the number at its end: x of x_3, x[3] and x3."""
    return re.sub(r"[\W_]*\d+\W*$", "", str(variable.name))
