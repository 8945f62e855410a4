"""A variable whose distribution depends on latent values: how it reads them, or why that cannot be sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pymc as pm
from pymc.distributions.distribution import PartialObservedRV
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.scan.op import Scan
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedLikelihoodError, UnsupportedModelError
from pymc_rmhmc.model.forms.priors import LatentVariable
from pymc_rmhmc.model.graph.affine import bends, first_bend, predictor_node
from pymc_rmhmc.model.graph.graphs import core_op, is_of_dims, reaches
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.likelihoods import Likelihood, Reading, read_likelihood
from pymc_rmhmc.model.observed.observed_shapes import check_observed_shapes
from pymc_rmhmc.model.words.advice import NUTS, one_by_one

__all__ = [
    "LEAVE_OUT",
    "UNOBSERVED",
    "Observation",
    "curve_in_words",
    "depends_on_potential",
    "direct_readers",
    "distribution_of",
    "names_by_value",
    "names_of",
    "observation_of",
    "observations_of",
]

# How PyMC names the missing values of an observed variable.
UNOBSERVED = "_unobserved"

# For the words of errors.
LEAVE_OUT = "leave them out of the data, and their rows out of the predictor (f[seen] for a vector f)"


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
        The registered likelihood; None for the fallback, of a distribution that is not registered or in which
        latent values enter by other parameters than the one that is registered.
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
        seen: set[Variable] = set()
        waiting: list[Variable] = [reader]
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            if at in ends and at is not reader:
                readers[at].append(reader)
            elif at.owner is not None and not isinstance(core_op(at), (Shape, Shape_i)):
                waiting += at.owner.inputs
    return readers


def observations_of(
    model: pm.Model, latents: Sequence[LatentVariable], called: str | None = None
) -> list[Observation]:
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
    check_observed_shapes(variable, value)
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
