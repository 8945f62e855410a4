"""Telling a user what was found in a model."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field
from typing import Any

import pymc as pm
from rich.console import Console
from rich.table import Table

from pymc_rmhmc.errors import UnsupportedModelError
from pymc_rmhmc.model.compile import CompiledBlock, CompiledModel, compile_model
from pymc_rmhmc.model.gaussian_vectors import GAUSSIAN_VECTORS
from pymc_rmhmc.model.joint import JointModel
from pymc_rmhmc.model.priors import LatentVariable
from pymc_rmhmc.model.refusals import Predictors, said_once
from pymc_rmhmc.model.structure import LatentBlock, ModelStructure, model_in_context
from pymc_rmhmc.model.together import crowd_of_hyperparameters, read_together, with_predictors_or_without

__all__ = ["BlockDescription", "ModelDescription", "describe"]

FORMS = {
    "centred": "centred Gaussian process or MvNormal",
    "whitened": "whitened Gaussian process",
    "independent": "independent normals",
}
ON_A_GRID = "whitened Gaussian process on a grid (Kronecker product)"


@dataclass(frozen=True)
class BlockDescription:
    """One latent Gaussian block in words.

    Attributes
    ----------
    name : str
        The latent functions.
    n_latent, n_sites : int
        How many latent values, and how many numbers the likelihood reads.
    prior : str
        Of the latent values.
    likelihoods : tuple of str
        With their links.
    kinds : tuple of str
        The curvatures that they give, which are position-dependent metrics.
    depends_on : tuple of str
        The hyperparameters that enter.
    """

    name: str
    n_latent: int
    n_sites: int
    prior: str
    likelihoods: tuple[str, ...]
    kinds: tuple[str, ...]
    depends_on: tuple[str, ...]


@dataclass(frozen=True)
class ModelDescription:
    """What RMHMC makes of a model; its string is the table that `describe` prints.

    Attributes
    ----------
    blocks : tuple of BlockDescription
        What `RMHMC()` samples.
    metric : str
        What ``metric="auto"`` takes.
    hyperparameters : tuple of str
        The continuous variables that `RMHMC()` samples together with the blocks.
    alone : str
        Why it samples the blocks alone; empty if it takes hyperparameters in.
    left_over : dict of str to str
        Free variables that are left to other steps, and the step that PyMC would give each.
    reasons : dict of str to str
        Why each is left.
    advice : dict of str to str
        What to write for variables that would be sampled better in another form.
    warning : str
        What to know before waiting for draws; empty if there is nothing.
    """

    blocks: tuple[BlockDescription, ...]
    metric: str
    hyperparameters: tuple[str, ...]
    alone: str
    left_over: dict[str, str]
    reasons: dict[str, str]
    advice: dict[str, str] = field(default_factory=dict)
    warning: str = ""

    def __str__(self) -> str:
        stream = io.StringIO()
        console = Console(file=stream, width=100, color_system=None)
        console.print(self._block_table() if self.blocks else "No latent Gaussian block was found.")
        if self.blocks:
            console.print(
                f'metric="auto" takes "{self.metric}": constant sites and an exact Gaussian flow, the fastest exact '
                "choice for latent Gaussian blocks."
            )
            console.print(self._together())
        if self.left_over:
            console.print(self._left_table())
        # As it is: code has brackets, and its lines must not be folded.
        for line in self._advice():
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        return stream.getvalue().rstrip()

    __repr__ = __str__

    def _advice(self) -> list[str]:
        unsaid = {name: text for name, text in self.advice.items() if text.split(". ", 1)[-1] not in self.warning}
        lines = [f"{names}: {text}" for names, text in said_once(unsaid)]
        return [self.warning, *lines] if self.warning else lines

    def _together(self) -> str:
        """One sentence on the hyperparameters."""
        if self.hyperparameters:
            return f"Sampled together with the latent values, in one chain: {', '.join(self.hyperparameters)}."
        return f"The latent values are sampled alone: {self.alone}."

    def _block_table(self) -> Table:
        table = Table(title="Sampled by RMHMC", title_justify="left")
        for heading in ("block", "values", "sites", "prior", "likelihood", "curvature", "depends on"):
            table.add_column(heading, overflow="fold")
        for block in self.blocks:
            table.add_row(
                block.name,
                str(block.n_latent),
                str(block.n_sites),
                block.prior,
                "; ".join(block.likelihoods) or "none",
                ", ".join(block.kinds),
                ", ".join(block.depends_on) or "constants",
            )
        return table

    def _left_table(self) -> Table:
        table = Table(title="Left to other steps", title_justify="left")
        for heading in ("variable", "PyMC's step", "why"):
            table.add_column(heading, overflow="fold")
        for name, step in self.left_over.items():
            table.add_row(name, step, self.reasons.get(name, ""))
        return table


def describe(model: pm.Model | None = None) -> ModelDescription:
    """Print what `RMHMC()` finds in a model, and return it.

    A position-dependent metric takes the latent values that have a covariance; coefficients beside them are left.

    Parameters
    ----------
    model : pymc.Model, optional
        By default the model in context.

    Returns
    -------
    ModelDescription
        Blocks and sizes, priors, likelihoods, links and curvatures, the metric that "auto" takes, the
        hyperparameters that are sampled with the blocks or the reason why none are, and what is left over and
        which step of PyMC's would sample it.

    Examples
    --------
    >>> import numpy as np, pymc as pm
    >>> from pymc_rmhmc import describe
    >>> with pm.Model() as model:
    ...     f = pm.MvNormal("f", np.zeros(3), cov=np.eye(3))
    ...     y = pm.Poisson("y", mu=pm.math.exp(f), observed=[1, 0, 2])
    >>> description = describe(model)  # doctest: +ELLIPSIS
    Sampled by RMHMC...
    >>> description.blocks[0].n_latent
    3
    """
    model = model_in_context(model, "describe")
    point = model.initial_point()

    def read(predictors: Predictors) -> tuple[ModelStructure, JointModel | str, CompiledModel]:
        structure, joint = read_together(model, None, point, predictors=predictors)
        return structure, joint, compile_model(structure, point, with_rest=False)

    try:
        structure, joint, compiled = with_predictors_or_without(read)
    except UnsupportedModelError as error:
        left = _steps_of_pymc(model, [str(v.name) for v in model.free_RVs])
        reason = "no latent Gaussian block was found"
        reasons = {name: error.reasons.get(name, str(error)) for name in left}
        description = ModelDescription((), "", (), reason, left, reasons, error.advice)
    else:
        by_name: dict[str, LatentBlock] = {block.name: block for block in structure.blocks}
        names = {str(value.name): str(rv.name) for rv, value in model.rvs_to_values.items()}
        described = tuple(_describe(block, by_name, point, names) for block in compiled.blocks)
        taken, alone = _hyperparameters(joint)
        left = _steps_of_pymc(model, [name for name in structure.left_over if name not in taken])
        reasons = {name: reason for name, reason in structure.reasons.items() if name in left}
        description = ModelDescription(
            described, "flat", taken, alone, left, reasons, structure.explained_advice,
            crowd_of_hyperparameters(structure, joint),
        )  # fmt: skip
    print(description)
    return description


def _hyperparameters(joint: JointModel | str) -> tuple[tuple[str, ...], str]:
    """The variables that are sampled together with the blocks, or why there are none."""
    if isinstance(joint, str):
        return (), joint
    return tuple(str(variable.name) for variable in joint.theta.variables), ""


def _describe(
    block: CompiledBlock, by_name: dict[str, LatentBlock], point: dict[str, Any], names: dict[str, str]
) -> BlockDescription:
    """One compiled block in words."""
    # Rows of one variable are blocks of their own, named by their index.
    read = by_name.get(block.name) or by_name[block.name.rsplit("[", 1)[0]]
    prior = ", ".join(dict.fromkeys(_form(latent) for latent in read.latents))
    return BlockDescription(
        block.name,
        block.n_latent,
        block.n_sites,
        prior,
        tuple(f"{o.variable.name}: {o.label}" for o in read.observations),
        block.likelihood(point).kinds,
        tuple(dict.fromkeys(names[i] for i in (*block.prior_inputs, *block.likelihood_inputs))),
    )


def _form(latent: LatentVariable) -> str:
    """A latent's prior in words."""
    usual = ON_A_GRID if latent.root == "kronecker" else FORMS[latent.form]
    return GAUSSIAN_VECTORS.get(type(latent.variable.owner.op), usual)


def _steps_of_pymc(model: pm.Model, names: list[str]) -> dict[str, str]:
    """The step that PyMC's own assignment gives each variable."""
    from pymc.sampling.mcmc import assign_step_methods

    if not names:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, selected = assign_step_methods(model, step=None)
    by_value = {value: rv for rv, value in model.rvs_to_values.items()}
    steps = {str(by_value[v].name): method.__name__ for method, held in selected.items() for v in held}
    return {name: steps.get(name, "none") for name in names}
