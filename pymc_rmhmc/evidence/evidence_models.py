"""From a PyMC model to the references that estimates of its evidence start from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.transforms import Interval
from pymc.logprob.transforms import CircularTransform

from pymc_rmhmc.approximation.tilted import PointwiseLikelihood
from pymc_rmhmc.chains.chain import AnyChain
from pymc_rmhmc.chains.conditional_density import Variables
from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.evidence.evidence_checks import check_continuous, omitted_constants
from pymc_rmhmc.latent.prior import FactorizedPrior
from pymc_rmhmc.metrics import FlatMetric
from pymc_rmhmc.model.predictions import predicted_variables, view_of, without
from pymc_rmhmc.model.words.bad_inputs import InputChecks
from pymc_rmhmc.sampled.blocks import BlockDensity, FoundBlocks
from pymc_rmhmc.sampled.field_chain import FoundField
from pymc_rmhmc.sampled.graph import FoundGeneral
from pymc_rmhmc.sampled.process import FoundProcess
from pymc_rmhmc.sampled.whole_model_metric import FoundRiemannian
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.steps.selection import find_with_predictions

__all__ = ["EvidenceModel", "LatentPart", "read_model", "with_bounded_angles"]

type Array = NDArray[np.float64]
type Point = dict[str, np.ndarray]
type Found = FoundBlocks | FoundField | FoundGeneral | FoundRiemannian | FoundProcess


@dataclass(frozen=True)
class LatentPart:
    """A latent Gaussian block with nothing left to sample beside it, named after its latent functions."""

    name: str
    prior: FactorizedPrior
    likelihood: PointwiseLikelihood
    variables: Variables


@dataclass(frozen=True)
class EvidenceModel:
    """A model as estimates read it: independent latent blocks, or a chain of everything."""

    model: pm.Model
    point: Point  # at which it was read
    parts: tuple[LatentPart, ...]  # blocks; empty for a whole model
    chain: AnyChain | None  # of a whole model, not begun
    n_tune: int  # how many draws tune the chain
    constant: float  # what the log density has beyond the blocks

    @property
    def sampled(self) -> pm.Model:
        """The model without what it predicts."""
        return without(self.model, predicted_variables(self.model))

    @property
    def variables(self) -> Variables:
        """All values, block after block."""
        if self.chain is not None:
            return self.chain.density.variables
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
    """Read a model in the form in which `RMHMC` samples it, with its errors; and one if a variable is discrete."""
    model = with_bounded_angles(pm.modelcontext(model))
    check_continuous(model)
    point = model.initial_point()
    InputChecks(model).check(point)
    found, plan = _found(model, point, "auto")
    if _is_left(model, found):
        found, plan = _found(model, point, FlatMetric(chart="graph"))
    chains = found.samplers(point, plan, model.initial_point())
    if isinstance(found, FoundBlocks) and isinstance(found.joint, str):
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


def _found(model: pm.Model, point: Point, metric: str | FlatMetric) -> tuple[Found, Plan]:
    plan = settle(Options(metric=metric), auto_metric="flat")
    return find_with_predictions(model, None, point, plan, None)[0], plan


def _is_left(model: pm.Model, found: Found) -> bool:
    """Return whether variables are not integrated over, but for those that are predicted and integrate to 1."""
    known = {str(model.rvs_to_values[variable].name) for variable in predicted_variables(model)}
    known |= {str(value.name) for value in found.value_vars}
    return any(str(value.name) not in known for value in model.value_vars)


def _latent_part(chain: AnyChain, point: Point) -> LatentPart:
    density = chain.density
    assert isinstance(density, BlockDensity)
    prior = FactorizedPrior(density.block.prior(point))  # a covariance without a factor has been refused
    return LatentPart(density.name, prior, density.block.likelihood(point), density.variables)
