"""How a Gaussian field and its hyperparameters are sampled, in the joint site chart with a sparse precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pymc as pm
from numpy.typing import NDArray
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.approximation.joint_mode import moving_sites, sites_from_nothing
from pymc_rmhmc.chains.chain import AnyChain, Chain
from pymc_rmhmc.chains.conditional_density import Plan, Point
from pymc_rmhmc.errors import counted, listed
from pymc_rmhmc.latent.charts import GaussianSites, MovingSites
from pymc_rmhmc.latent.field.field_target import FieldTarget
from pymc_rmhmc.latent.latent_blocks import conditional_of
from pymc_rmhmc.model import names_by_value
from pymc_rmhmc.model.compile import CompiledModel
from pymc_rmhmc.model.field.field_model import ReadField
from pymc_rmhmc.model.field.field_or_other import InField
from pymc_rmhmc.model.forms.joint_model import JointModel
from pymc_rmhmc.model.observed.observation import names_of
from pymc_rmhmc.model.structure import has_own_initval
from pymc_rmhmc.model.together import data_in_words
from pymc_rmhmc.model.words.density_terms import DensityTerms
from pymc_rmhmc.sampled.joint import JointBlocksDensity, JointCoordinates
from pymc_rmhmc.sampled.whole_model import check_whole_model, left_in_words
from pymc_rmhmc.tuning.joint_adapter import JointTuning

__all__ = ["FieldDensity", "FoundField"]

type Array = NDArray[np.float64]
type Sites = GaussianSites | MovingSites

# Draws in which sites and the hyperparameters' chart are learned, by default.
TUNE = 400


class FieldDensity(JointBlocksDensity):
    """A Gaussian field and its hyperparameters; see `JointBlocksDensity`."""

    def __init__(self, model: JointModel, plan: Plan, labels: Mapping[str, str], terms: DensityTerms) -> None:
        super().__init__(model, (), plan, labels, terms)

    def joint_coordinates(self, tuned: JointTuning) -> JointCoordinates:
        """See `JointBlocksDensity`: steps are compiled from end to end."""
        assert tuned.marginals is not None
        target = FieldTarget(self.model, tuned.sites, tuned.marginals, holds_long=tuned.moves_between)
        return JointCoordinates.at_target(target, self.plan)

    def curvatures(self, values: Array) -> set[str]:
        """See `ConditionalDensity`: none is asked for."""
        return set()

    def _first_sites(self, theta: Array) -> list[GaussianSites]:
        return [sites_from_nothing(block, theta) for block in self.model.blocks]

    def _rehearsed_sites(self, theta: Array) -> Iterator[Sites]:
        for block in self.model.blocks:
            sites = GaussianSites(np.zeros(block.n_sites), np.ones(block.n_sites))
            block.likelihood(theta, np.zeros(block.n_sites))
            yield moving_sites(block, theta, sites, *conditional_of(block, theta, sites).marginals())


@dataclass(frozen=True)
class FoundField:
    """What is sampled."""

    model: pm.Model  # the model
    read: ReadField  # how its field was read
    joint: JointModel  # the field with its hyperparameters
    why: str  # why it is sampled so

    @classmethod
    def of(cls, model: pm.Model, found: InField, compile_kwargs: dict[str, object] | None) -> FoundField:
        """Build the functions of a field that was read.

        Raises a `ConfigurationError` or `DataError` if compile_kwargs are given, or data and parameters have shapes
        that do not fit.
        """
        check_whole_model(model, found.read.plan.graphs.point, compile_kwargs)
        return cls(model, found.read, found.read.build(), found.why)

    @property
    def compiled(self) -> CompiledModel:
        """No block, and nothing left of the log density."""
        return CompiledModel((), (), (), lambda point: 0.0)

    @property
    def latents(self) -> list[TensorVariable]:
        """The variables of the field."""
        return self.read.plan.choice.latents

    @property
    def value_vars(self) -> list[TensorVariable]:
        """The value variables that are sampled."""
        values = self.model.rvs_to_values
        return [values[v] for v in (*self.joint.theta.variables, *self.latents)]

    @property
    def hyperparameters(self) -> list[str]:
        """Those that are sampled with the field."""
        return [str(v.name) for v in self.joint.theta.variables]

    @property
    def names(self) -> list[str]:
        """The variables that are sampled."""
        return [*(names_of([v]) for v in self.latents), *self.hyperparameters]

    def followers(self, plan: Plan) -> tuple[str, ...]:
        """Return the value variables that the step changes, although another one samples them."""
        return ()

    @property
    def data_names(self) -> frozenset[str]:
        """The shared data that are read."""
        return frozenset(str(shared.name) for f in self.joint.functions for shared in f.shared)

    @property
    def tune_steps(self) -> int:
        """How many draws tuning takes by default."""
        return max(TUNE, 3 * self.joint.theta.size)

    def samplers(self, point: Point, plan: Plan, initial: Point) -> list[AnyChain]:
        """Return one chain of all of them."""
        self.joint.bind(point)
        own = has_own_initval(self.model, [*self.joint.theta.variables, *self.latents])
        density = FieldDensity(self.joint, plan, names_by_value(self.model), DensityTerms(self.model))
        return [Chain(density, plan, density.variables.read(initial), own)]

    def announcement(self, plan: Plan) -> str:
        """Say in one line what is sampled how, and what is left to other steps."""
        (block,) = self.joint.blocks
        said = f"{listed([names_of([v]) for v in self.latents])} ({counted(block.size, 'value')})"
        together = f" together with {listed(self.hyperparameters)}" if self.hyperparameters else ""
        rest = left_in_words(self.model, self.names)
        sampled = f"the Gaussian field {said}{together}"
        return f"{plan.sampler}: {plan.metric.name} metric for {sampled}, because {self.why}{rest}"

    def warning(self) -> str:
        """Say what a user should know before waiting for draws; empty if there is nothing."""
        return data_in_words(self.model)
