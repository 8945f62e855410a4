"""From a PyMC model to the references that estimates of its evidence start from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.custom import CustomDistRV
from pymc.distributions.multivariate import CARRV, ICARRV
from pymc.distributions.transforms import Interval, Ordered
from pymc.logprob.transforms import CircularTransform, Transform
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant, Variable
from pytensor.tensor import TensorVariable
from scipy.sparse import issparse
from scipy.sparse.csgraph import connected_components

from pymc_rmhmc.approximation.tilted import PointwiseLikelihood
from pymc_rmhmc.chains.chain import AnyChain
from pymc_rmhmc.chains.conditional_density import Plan, Variables
from pymc_rmhmc.errors import ConfigurationError, EvidenceError, UnsupportedModelError, listed
from pymc_rmhmc.latent.charts.site import FactorizedPrior
from pymc_rmhmc.metrics import FlatMetric
from pymc_rmhmc.model.predictions import is_default_transform, predicted_variables, view_of, without
from pymc_rmhmc.model.words.bad_inputs import InputChecks
from pymc_rmhmc.sampled.blocks import BlockDensity, FoundBlocks
from pymc_rmhmc.sampled.field_chain import FoundField
from pymc_rmhmc.sampled.graph import FoundGeneral
from pymc_rmhmc.sampled.process import FoundProcess
from pymc_rmhmc.sampled.whole_model_metric import FoundRiemannian
from pymc_rmhmc.steps.options import Options, settle
from pymc_rmhmc.steps.selection import find_with_predictions

__all__ = [
    "EvidenceModel", "LatentPart", "check_continuous", "check_proper", "convention_in_words", "no_effect",
    "omitted_constants", "read_model", "with_bounded_angles",
]  # fmt: skip

# ---------------------------------------------------- checks

# What keeps a model from having an evidence, and what must be said of the one that it has.

type Array = NDArray[np.float64]

ALL_CONSTANTS = (
    "log p(y), the natural logarithm, with all constants of the model's distributions: the normalising constants of "
    "priors, and terms such as log y! of Poisson counts."
)

# Draws of a prior that tell how much of it its transform leaves.
DRAWS = 4000
# How far from 0 the density of a prior is asked whether it falls faster than 1/r, and what rounding may add.
NEAR, FAR, ROUNDING = 1e6, 1e8, 0.02


def no_effect(option: str, method: str, reason: str) -> ConfigurationError:
    """Return the error for an option of `log_evidence` that a method does not use."""
    return ConfigurationError(f'{option}= has no effect with method="{method}", {reason}. Leave {option} out.')


def check_proper(model: pm.Model) -> None:
    """Raise for priors that are no distributions, and for models without data."""
    flat = [str(v.name) for v in model.free_RVs if isinstance(v.owner.op, FlatRV | HalfFlatRV)]
    if flat:
        raise EvidenceError(
            f"The evidence does not exist: the prior of {listed(flat)} is flat, and has no finite integral. Give a "
            f"proper prior, such as pm.Normal({flat[0]!r}, 0, 10)."
        )
    check_own_priors(model)
    if not model.observed_RVs and not model.potentials:
        raise EvidenceError(
            "The model has no observed data, so that there is no evidence: give observed= to a variable of the model."
        )


def check_continuous(model: pm.Model) -> None:
    """Raise for discrete variables, over which trajectories cannot integrate, but for those that are predicted."""
    predicted = predicted_variables(model)
    kinds = ("int", "uint", "bool")
    discrete = [str(v.name) for v in model.free_RVs if v.dtype.startswith(kinds) and v not in predicted]
    if discrete:
        raise UnsupportedModelError(
            f"{listed(discrete)}: a discrete variable has no trajectories by which it could be moved and integrated "
            "over. Sum over its values instead, with pm.Mixture or pymc_extras.marginalize."
        )


def omitted_constants(model: pm.Model, names: Iterable[str]) -> float:
    """Return what PyMC's densities of some variables, and of data, lack: those of CAR and ICAR are not normalised.

    Of an ICAR whose scale is sampled that depends on the scale, and there is an error.
    """
    held = set(names)
    total = 0.0
    for variable in [*(v for v in model.free_RVs if str(v.name) in held), *model.observed_RVs]:
        if isinstance(variable.owner.op, CARRV):
            total += _of_car(variable)
        elif isinstance(variable.owner.op, ICARRV):
            total += _of_icar(variable)
    return total


def _of_car(variable: TensorVariable) -> float:
    degrees = _adjacency(variable, variable.owner.op.dist_params(variable.owner)[1]).sum(axis=0)
    count = int(np.prod(variable.shape.eval()))
    rows = count // degrees.size
    return -0.5 * count * float(np.log(2.0 * np.pi)) + 0.5 * rows * float(np.log(degrees).sum())


def _of_icar(variable: TensorVariable) -> float:
    weights, scale, zero_sum = variable.owner.op.dist_params(variable.owner)
    adjacency, n = _adjacency(variable, weights), int(variable.shape.eval()[-1])
    if connected_components(adjacency, directed=False)[0] > 1:
        raise EvidenceError(
            f"The evidence does not exist: the map of {variable.name} falls in several parts, so that its ICAR prior "
            "has no finite integral. Give each part an ICAR of its own."
        )
    sigma, stdev = float(_constant(variable, scale, "sigma")), float(_constant(variable, zero_sum, "zero_sum_stdev"))
    precision = (np.diag(adjacency.sum(axis=0)) - adjacency) / sigma**2 + np.ones((n, n)) / (stdev * n) ** 2
    half = 0.5 * float(np.linalg.slogdet(precision)[1])
    return half - 0.5 * (n - 1) * float(np.log(2.0 * np.pi)) + float(np.log(stdev * n))


def _adjacency(variable: TensorVariable, argument: Variable) -> Array:
    """Return W (n, n), which several rows share."""
    found = _constant(variable, argument, "W")
    return found.reshape(found.shape[-2:])


def _constant(variable: TensorVariable, argument: Variable, name: str) -> Array:
    if not isinstance(argument, Constant):
        from pytensor.graph.traversal import ancestors

        if any(node.owner is not None and hasattr(node.owner.op, "rng_param") for node in ancestors([argument])):
            raise EvidenceError(
                f"{variable.name}: PyMC's density of this {variable.owner.op.name} lacks a factor that depends on "
                f"{name}, which is sampled, so that it is no prior distribution. Scale the variable instead: "
                f"{variable.name} = {name} * pm.ICAR(..., W=W)."
            )
    found = argument.eval()
    return np.asarray(found.toarray() if issparse(found) else found, dtype=float)


def convention_in_words(model: pm.Model) -> str:
    """Say which constants are in the evidence of a model."""
    said = [ALL_CONSTANTS]
    if model.potentials:
        names = listed([str(v.name) for v in model.potentials], "Potentials")
        said.append(
            f"The Potential of {names} is taken as it stands: the evidence is that of a normalised model only if the "
            "Potential is the logarithm of a normalised density."
        )
    ordered = [str(v.name) for v in model.free_RVs if isinstance(model.rvs_to_transforms.get(v), Ordered)]
    if ordered:
        said.append(
            f"The prior of {listed(ordered)} is that of PyMC on the ordered values alone: of k independent values of "
            "one law it integrates to 1/k!, so that log k! is to be added for a prior that is normalised there."
        )
    said += restricted_priors(model)
    if written := _own_priors(model):
        said.append(
            f"The density of {listed(written)} is taken as it stands: the evidence is that of a normalised model only "
            "if this density integrates to 1."
        )
    areal = [str(v.name) for v in [*model.free_RVs, *model.observed_RVs] if isinstance(v.owner.op, CARRV | ICARRV)]
    if areal:
        said.append(
            f"PyMC's density of {listed(areal)} lacks constants; here it is normalised, that of the multivariate "
            "normal with this precision."
        )
    return " ".join(said)


def _own_priors(model: pm.Model) -> list[str]:
    """Return the names of the free variables whose density a user has written."""
    return [str(v.name) for v in model.free_RVs if isinstance(v.owner.op, CustomDistRV)]


def check_own_priors(model: pm.Model) -> None:
    """Raise where a density that a user has written has no finite integral: it falls no faster than 1/r on a side."""
    names = _own_priors(model)
    point = model.initial_point() if names else {}
    for name in names:
        value = str(model.rvs_to_values[model[name]].name)
        log_density = model.compile_logp(vars=[model[name]])
        for sign in (-1.0, 1.0):
            ends = [
                float(log_density(point | {value: np.full_like(point[value], sign * far)})) for far in (NEAR, FAR)
            ]
            falls = (ends[0] - ends[1]) / (math.log(FAR / NEAR) * max(1, point[value].size))
            if falls < 1.0 + ROUNDING:
                raise EvidenceError(
                    f"The evidence does not exist: the density of {name} falls no faster than 1/|x|, so that this "
                    f"prior has no finite integral. Give a proper prior, such as pm.Normal({name!r}, 0, 10)."
                )


def restricted_priors(model: pm.Model) -> Iterator[str]:
    """Say of which priors a transform leaves a part, and how large it is."""
    for variable in model.free_RVs:
        transform = model.rvs_to_transforms.get(variable)
        if transform is None or isinstance(transform, Ordered) or is_default_transform(variable, transform):
            continue
        share = _share_left(variable, transform)
        if share == 1.0:
            continue
        if share is None:
            yield (
                f"Whether the transform of {variable.name} leaves out a part of its prior is not known, since it "
                "has no random draws; if it does, the prior is not normalised on the rest."
            )
            continue
        part = f"about {share:.3g}" if share else f"less than {1.0 / DRAWS:.2g}"
        lacking = f"about {-math.log(share):.3g}" if share else f"more than {math.log(DRAWS):.2g}"
        yield (
            f"The transform of {variable.name} leaves {part} of its prior, which is not normalised there: {lacking} is "
            "to be added to log p(y) for a prior that is."
        )


def _share_left(variable: TensorVariable, transform: Transform) -> float | None:
    """Return the share of a prior's draws that the transform brings back unchanged; None where there are no draws."""
    inputs = variable.owner.inputs
    back = transform.backward(transform.forward(variable, *inputs), *inputs)
    try:
        with np.errstate(all="ignore"):
            # Without rewrites, which take the way there and back for the number itself, wherever it is.
            drawn, returned = pm.draw([variable, back], DRAWS, random_seed=0, mode=Mode("py", None))
    except (NotImplementedError, ValueError, TypeError):
        return None
    same = np.isclose(drawn, returned, rtol=1e-6, atol=1e-9).reshape(DRAWS, -1).all(axis=1)
    return float(same.mean())


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
