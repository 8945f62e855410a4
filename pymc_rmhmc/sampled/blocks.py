"""What one RMHMC samples of a model: blocks, with or without their hyperparameters, and a sampler for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

from pymc_rmhmc.chains.chain import Chain
from pymc_rmhmc.chains.plan import Plan
from pymc_rmhmc.errors import ConfigurationError, counted, listed
from pymc_rmhmc.latent.latent_blocks import theta_requires_refactorization
from pymc_rmhmc.model import (
    CompiledBlock,
    CompiledModel,
    JointModel,
    ModelStructure,
    compile_model,
    names_by_value,
    read_structure,
    read_together,
    said_once,
    warnings_of,
    with_predictors_or_without,
)
from pymc_rmhmc.model.forms.joint_model import NO_HYPERPARAMETERS
from pymc_rmhmc.model.structure import has_own_initval
from pymc_rmhmc.model.words.density_terms import DensityTerms
from pymc_rmhmc.model.words.refusals import step_in_words
from pymc_rmhmc.sampled.block_recipe import BlockRecipe
from pymc_rmhmc.sampled.checks import check_block
from pymc_rmhmc.sampled.joint_recipe import JointRecipe

__all__ = ["FoundBlocks", "alone_in_words", "build_blocks", "find_blocks"]

type Point = dict[str, np.ndarray]


@dataclass(frozen=True)
class FoundBlocks:
    """What is sampled.

    Attributes
    ----------
    structure : ModelStructure
        The latent Gaussian blocks.
    compiled : CompiledModel
        The blocks as functions of a point.
    joint : JointModel or str
        The blocks with their hyperparameters; or, where only the blocks are sampled, the reason.
    """

    structure: ModelStructure
    compiled: CompiledModel
    joint: JointModel | str

    @property
    def value_vars(self) -> list[Any]:
        """The value variables that are sampled."""
        held = list(self.structure.value_vars)
        if isinstance(self.joint, str):
            return held
        values = self.structure.model.rvs_to_values
        return [*(values[variable] for variable in self.joint.theta.variables), *held]

    @property
    def names(self) -> list[str]:
        """The variables that are sampled, latent functions by the names that the user gave them."""
        latents = [latent.name for block in self.structure.blocks for latent in block.latents]
        return latents + self.hyperparameters

    @property
    def hyperparameters(self) -> list[str]:
        """Those that are sampled with the latents."""
        return [] if isinstance(self.joint, str) else [str(variable.name) for variable in self.joint.theta.variables]

    def followers(self, plan: Plan) -> tuple[str, ...]:
        """Return the value variables that the step changes, although another one samples them."""
        return ()

    @property
    def data_names(self) -> frozenset[str]:
        """The shared data that are read."""
        return frozenset(name for block in self.compiled.blocks for name in block.shapes())

    @property
    def tune_steps(self) -> int | None:
        """How many draws tuning takes by default; None for as many as of latent values alone."""
        return None if isinstance(self.joint, str) else _draws_to_tune(self.joint)

    def samplers(self, point: Point, plan: Plan, initial: Point) -> list[Chain]:
        """Return a chain for each block, or one for all of them with their hyperparameters.

        The model is evaluated at the point; a chain that begins at the model's initial one has a start nobody chose.
        """
        blocks = self.compiled.blocks
        for block in blocks:
            check_block(block, point, plan)
        terms = DensityTerms(self.structure.model)
        labels, recipes = names_by_value(self.structure.model), list[tuple[BlockRecipe | JointRecipe, bool]]()
        if isinstance(self.joint, str):
            for block, own in zip(blocks, self.compiled.own_initval, strict=True):
                recipes.append((BlockRecipe(block, plan, labels, terms), own))
        else:
            own = any(self.compiled.own_initval) or has_own_initval(self.structure.model, self.joint.theta.variables)
            recipes.append((JointRecipe(self.joint, blocks, plan, labels, terms), own))
        return [Chain(recipe, plan, recipe.variables.read(initial), own) for recipe, own in recipes]

    def announcement(self, plan: Plan) -> str:
        """Say in one line what is sampled how and what is left to other steps, and what to write to change that."""
        said = listed([_in_words(block) for block in self.compiled.blocks], "blocks")
        left = list(self.structure.left_over)
        if not isinstance(self.joint, str):
            left = [name for name in left if name not in self.hyperparameters]
            said += f" together with {listed(self.hyperparameters)}"
        rest = f"; left to other steps: {self._left(left)}" if left else ""
        return f"{plan.sampler}: {plan.metric.name} metric for {said}{rest}{self._advice()}"

    def _left(self, names: Sequence[str]) -> str:
        """Name the variables that are left, and say why: those that could be hyperparameters since none are sampled."""
        model, reasons = self.structure.model, dict.fromkeys(names, "") | self.structure.reasons
        if isinstance(self.joint, str) and self.joint != NO_HYPERPARAMETERS:
            reasons |= {name: self.joint for name in names if model[name].dtype.startswith("float")}
        by_step = {name: step_in_words(model[name]) for name in names}
        groups = said_once({name: reasons[name] + by_step[name] for name in names})
        return ", ".join(f"{held} ({why})" if why else held for held, why in groups)

    def _advice(self) -> str:
        """Say what to write for variables that are not sampled as latent ones, a paragraph each."""
        advice, warning = self.structure.explained_advice, self.warning()
        unsaid = {name: text for name, text in advice.items() if self.structure.advice[name] not in warning}
        return "".join(f"\n{names}: {text}" for names, text in said_once(unsaid))

    def warning(self) -> str:
        """Say what a user should know before waiting for draws; empty if there is nothing."""
        return warnings_of(self.structure, self.joint)


def _in_words(block: CompiledBlock) -> str:
    """Name a block's latent functions and give its size."""
    values = counted(block.n_latent, "value")
    return f"{listed(block.name.split(' + '), 'variables', ' + ')} ({values})"


def find_blocks(
    model: pm.Model, vars: Any, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None  # noqa: A002
) -> FoundBlocks:
    """Read and compile what ``RMHMC(vars)`` samples.

    The flat metric takes hyperparameters in wherever it can; the others sample latents given them.

    Raises
    ------
    UnsupportedModelError, UnsupportedLikelihoodError, ConfigurationError, CovarianceError, DataError
        As `RMHMC`.
    """
    if vars is None:
        return with_predictors_or_without(model, lambda read: build_blocks(read, point, plan, compile_kwargs))
    if plan.takes_hyperparameters:
        return _compiled(*read_together(model, vars, point), point, compile_kwargs)
    return _compiled(read_structure(model, vars), alone_in_words(plan), point, compile_kwargs)


def build_blocks(
    structure: ModelStructure, point: Point, plan: Plan, compile_kwargs: dict[str, Any] | None
) -> FoundBlocks:
    """Return the same of a whole model, whose structure has been read."""
    if plan.takes_hyperparameters:
        return _compiled(*read_together(structure.model, None, point, structure=structure), point, compile_kwargs)
    return _compiled(structure, alone_in_words(plan), point, compile_kwargs)


def alone_in_words(plan: Plan) -> str:
    """Say why a metric samples the blocks without hyperparameters."""
    taker = f"the {plan.metric.name} metric" if plan.sampler == "RMHMC" else plan.sampler
    if plan.policy is not None and plan.policy.sites != "fitted":
        taker += " with prior_expected sites"
    return f"{taker} takes latent values alone"


def _compiled(
    structure: ModelStructure, joint: JointModel | str, point: Point, compile_kwargs: dict[str, Any] | None
) -> FoundBlocks:
    """Compile the blocks."""
    if compile_kwargs and not isinstance(joint, str):
        raise ConfigurationError(
            f"compile_kwargs={compile_kwargs!r} has no effect here: RMHMC samples hyperparameters together with the "
            "latent values, and compiles all of that with Numba. Remove it, or name latent variables alone in vars=."
        )
    compiled = compile_model(structure, point, compile_kwargs, with_rest=isinstance(joint, str))
    if compile_kwargs and not compiled.rest_inputs:
        raise ConfigurationError(
            f"compile_kwargs={compile_kwargs!r} has no effect here: no other step method updates any term that RMHMC "
            "compiles. Remove it."
        )
    return FoundBlocks(structure, compiled, joint)


def _draws_to_tune(joint: JointModel) -> int:
    """Return from how many draws the hyperparameters' chart is learned by default.

    It takes longer to learn than sites do: half as many leave the steps shorter for good, and so does a dense mass
    matrix of more dimensions than a hundred. Where no emulator makes up for what the draws have not seen of a scale's
    tail, and draws are cheap, there are twice as many: on mixed models of 100 and 400 groups two of six runs made a
    third to a half as many effective draws of the scale after 300, and none of six after 600.
    """
    is_expensive = any(map(theta_requires_refactorization, joint.blocks))
    return max(300 if is_expensive else 600, 3 * joint.theta.size)
