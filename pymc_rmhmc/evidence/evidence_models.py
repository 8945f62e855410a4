"""From a PyMC model to the references that estimates of its evidence start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.transforms import Interval
from pymc.logprob.transforms import CircularTransform

from pymc_rmhmc.chains.chain import AnyChain
from pymc_rmhmc.chains.variables import Variables
from pymc_rmhmc.evidence.evidence_checks import check_continuous, omitted_constants
from pymc_rmhmc.latent.prior import FactorizedPrior
from pymc_rmhmc.metrics import FlatMetric
from pymc_rmhmc.model.predictions import predicted_variables, view_of, without
from pymc_rmhmc.model.words.bad_inputs import InputChecks
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.steps.selection import find_with_predictions

__all__ = ["EvidenceModel", "LatentPart", "read_model", "with_bounded_angles"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]


@dataclass(frozen=True)
class LatentPart:
    """A latent Gaussian block with nothing left to sample beside it.

    Attributes
    ----------
    name : str
        Of its latent functions.
    prior : FactorizedPrior
        Its prior.
    likelihood : SiteLikelihood
        Over its sites.
    variables : Variables
        Its value variables.
    """

    name: str
    prior: FactorizedPrior
    likelihood: Any
    variables: Any


@dataclass(frozen=True)
class EvidenceModel:
    """A model as estimates read it: independent latent blocks, or a chain of everything.

    Attributes
    ----------
    model : pymc.Model
        The model.
    point : dict
        At which it was read.
    parts : tuple of LatentPart
        Blocks; empty for a whole model.
    chain : Chain or None
        Of a whole model, not begun.
    n_tune : int
        How many draws tune the chain.
    constant : float
        What the log density has beyond the blocks.
    """

    model: pm.Model
    point: Point
    parts: tuple[LatentPart, ...]
    chain: AnyChain | None
    n_tune: int
    constant: float

    @property
    def sampled(self) -> pm.Model:
        """The model without what it predicts."""
        return without(self.model, predicted_variables(self.model))

    @property
    def variables(self) -> Variables:
        """All values, block after block."""
        if self.chain is not None:
            return self.chain.recipe.variables
        return Variables(tuple(each for part in self.parts for each in part.variables.slices), {})

    def columns(self, part: LatentPart) -> slice:
        """Return which of the values are a block's."""
        sizes = [each.prior.n_latent for each in self.parts]
        which = self.parts.index(part)
        return slice(sum(sizes[:which]), sum(sizes[: which + 1]))

    @property
    def whole_chain(self) -> AnyChain:
        """The chain of a whole model."""
        assert self.chain is not None
        return self.chain


def read_model(model: pm.Model | None) -> EvidenceModel:
    """Read a model in the form in which `RMHMC` samples it.

    Raises
    ------
    UnsupportedModelError
        If a variable is discrete.
    Other errors
        As `RMHMC`.
    """
    model = with_bounded_angles(pm.modelcontext(model))
    check_continuous(model)
    found, plan, point = _found(model, "auto")
    if _left(model, found):
        found, plan, point = _found(model, FlatMetric(chart="graph"))
    chains = found.samplers(point, plan, model.initial_point())
    if found.compiled.blocks and not found.hyperparameters:
        parts = tuple(_latent_part(chain, point) for chain in chains)
        constant = float(found.compiled.rest_log_density(point)) + omitted_constants(model, ())
        return EvidenceModel(model, point, parts, None, 0, constant)
    (chain,) = chains
    # Latent blocks have normalised priors; a density that is read from the graph is PyMC's.
    constant = omitted_constants(model, () if found.compiled.blocks else found.names)
    return EvidenceModel(model, point, (), chain, found.tune_steps or 300, constant)


def with_bounded_angles(model: pm.Model) -> pm.Model:
    """Return a view of a model whose angles have values that stand for an interval.

    PyMC's values of an angle go round the circle again and again, so that their density has no finite integral.
    """
    angles = [v for v in model.free_RVs if isinstance(model.rvs_to_transforms.get(v), CircularTransform)]
    if not angles:
        return model
    values, transforms, named = dict(model.rvs_to_values), dict(model.rvs_to_transforms), model.named_vars.copy()
    for angle in angles:
        transforms[angle] = interval = Interval(-np.pi, np.pi)
        named.pop(str(values[angle].name), None)
        values[angle] = value = angle.type()
        value.name = f"{angle.name}_{interval.name}__"
        named[value.name] = value
    changed = {
        "rvs_to_values": values, "values_to_rvs": {value: variable for variable, value in values.items()},
        "rvs_to_transforms": transforms, "named_vars": named,
    }  # fmt: skip
    return view_of(model, changed)


def _found(model: pm.Model, metric: Any) -> tuple[Any, Any, Point]:
    plan = settle(Options(metric=metric), auto_metric="flat")
    point = model.initial_point()
    InputChecks(model).check(point)
    found, _ = find_with_predictions(model, None, point, plan, None)
    return found, plan, point


def _left(model: pm.Model, found: Any) -> list[str]:
    """List variables that are not integrated over, but for those that are predicted and integrate to 1."""
    predicted = {str(variable.name) for variable in predicted_variables(model)}
    held = {str(value.name) for value in found.value_vars}
    values = model.rvs_to_values
    return [str(v.name) for v in model.free_RVs if v.name not in predicted and values[v].name not in held]


def _latent_part(chain: AnyChain, point: Point) -> LatentPart:
    recipe: Any = chain.recipe
    prior = FactorizedPrior(recipe.block.prior(point))  # a covariance without a factor has been refused
    return LatentPart(recipe.name, prior, recipe.block.likelihood(point), recipe.variables)
