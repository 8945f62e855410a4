"""Telling a user what RMHMC would do with a model."""

from __future__ import annotations

import html
import math
import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Self

import numpy as np
import pymc as pm
from pymc.step_methods.compound import BlockedStep
from pytensor.graph.basic import Variable
from pytensor.tensor.variable import TensorVariable

from pymc_rmhmc.errors import UnsupportedModelError, counted, listed, wrapped
from pymc_rmhmc.model.compile import CompiledBlock, CompiledModel, compile_model
from pymc_rmhmc.model.field.affinity import FieldObservation
from pymc_rmhmc.model.field.field_or_other import InField
from pymc_rmhmc.model.forms.joint_model import NO_HYPERPARAMETERS, JointModel, JointPlan
from pymc_rmhmc.model.forms.priors import GAUSSIAN_VECTORS, LatentVariable
from pymc_rmhmc.model.general.blocks_or_graph import InGraphChart, blocks_or_graph, continuous_variables
from pymc_rmhmc.model.general.cost import cost_in_words, is_expensive
from pymc_rmhmc.model.general.density import GraphReading
from pymc_rmhmc.model.graph.graphs import Evaluator
from pymc_rmhmc.model.graph.source_code import distribution_of
from pymc_rmhmc.model.observed.observation import names_by_value, names_of
from pymc_rmhmc.model.structure import LatentBlock, ModelStructure
from pymc_rmhmc.model.together import (
    check_together,
    data_in_words,
    plan_together,
    read_together,
    warnings_of,
)
from pymc_rmhmc.model.words.advice import unread_rows
from pymc_rmhmc.model.words.bad_inputs import InputChecks
from pymc_rmhmc.model.words.refusals import discrete_in_words, said_once, written_as_scalars

__all__ = ["BlockDescription", "MetricDescription", "ModelDescription", "describe_in_metric", "describe_latents"]

type Point = dict[str, np.ndarray]

IN_WORDS = {
    "centred": "centred Gaussian process or MvNormal",
    "whitened": "whitened Gaussian process",
    "independent": "independent Normals",
}
ON_A_GRID = "whitened Gaussian process on a grid (Kronecker product)"
ALLOWED = "The likelihood also allows metric={}."
METRIC = 'The metric is "{}", the default: it approximates each likelihood term by a Gaussian curve.'
OTHER_METRIC = 'The metric is "{}": it depends on the position of the latent values.'
IN_METRIC = "Sampled by RMHMC, all together, in a metric that depends on the position:"
NOTHING = "RMHMC() cannot sample this model and will raise an error."
GRAPH = "Sampled by RMHMC, all together, in flat coordinates that are read from the model's graph, because {}:"
DEAR = "Their log density is dear: {}, made in tuning."
PREDICTED = "Drawn from their priors given these, since nothing observed depends on them: {}."
WIDTH = 100


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
    n_predictors : int
        How many of those numbers each observation reads; 0 if that differs.
    """

    name: str
    n_latent: int
    n_sites: int
    prior: str
    likelihoods: tuple[str, ...]
    kinds: tuple[str, ...]
    depends_on: tuple[str, ...]
    n_predictors: int = 1

    @property
    def likelihoods_by_variable(self) -> list[tuple[str, str]]:
        """Each observed variable, and its likelihood."""
        parts = [said.partition(": ") for said in self.likelihoods]
        return [(variable, likelihood) for variable, _, likelihood in parts]


@dataclass(frozen=True)
class MetricDescription:
    """A position-dependent metric of a whole model in words, and how RMHMC moves in it.

    Attributes
    ----------
    variables : tuple of str
        What is sampled.
    n_values : int
        How many values these have.
    matrix : str
        The metric, and what its matrix is made of.
    structure : str
        Which structure was found in the Hessian; empty for metrics that are not made of it.
    trajectory : str
        The trajectory, its integrator, and the step size.
    """

    variables: tuple[str, ...]
    n_values: int
    matrix: str
    structure: str
    trajectory: str

    @property
    def lines(self) -> list[str]:
        """Sentences on the metric, the structure and the trajectory."""
        return [said for said in (self.matrix, self.structure, self.trajectory) if said]


@dataclass(frozen=True)
class ModelDescription:
    """What `RMHMC` would do with a model: text when it is printed, a table where a notebook shows it.

    Blocks that differ in their names alone share a line.

    Attributes
    ----------
    blocks : tuple of BlockDescription
        What `RMHMC` samples.
    metric : str
        The metric's name; by default what ``metric="auto"`` takes.
    hyperparameters : tuple of str
        The continuous variables that `RMHMC` samples together with the blocks.
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
    charted : dict of str to str
        If the coordinates are read from the graph: every variable that is sampled, and what it is relative to.
    why : str
        Why they are.
    predicted : tuple of str
        What nothing observed depends on: drawn from its prior given the rest.
    dear : str
        What is said of a log density that an emulator stands in for; empty for others.
    in_metric : MetricDescription or None
        If a position-dependent metric of the whole model is asked for: what is sampled in it, and how.
    """

    blocks: tuple[BlockDescription, ...]
    metric: str
    hyperparameters: tuple[str, ...]
    alone: str
    left_over: dict[str, str]
    reasons: dict[str, str]
    advice: dict[str, str] = field(default_factory=dict)
    warning: str = ""
    charted: dict[str, str] = field(default_factory=dict)
    why: str = ""
    predicted: tuple[str, ...] = ()
    dear: str = ""
    in_metric: MetricDescription | None = None

    def __str__(self) -> str:
        lines = [NOTHING, *self._why_nothing()]
        if self.in_metric:
            sampled = f"- {listed(self.in_metric.variables)}: {counted(self.in_metric.n_values, 'value')}."
            lines = [IN_METRIC, sampled, *self.in_metric.lines]
        elif self.charted:
            lines = [GRAPH.format(self.why), *(f"- {names}: {said}." for names, said in said_once(self.charted))]
            lines += [self.dear] if self.dear else []
        elif self.blocks:
            lines = ["Sampled by RMHMC:"]
            lines += [f"- {self._block_line(group)}" for group in self._block_groups()]
            lines += [self._metric(), *self._allowed(), self._together()]
        if self.left_over:
            lines += ["Left to other steps:", *(f"- {self._left_line(group)}" for group in self._left_groups())]
        if self.predicted:
            lines.append(PREDICTED.format(listed(self.predicted)))
        return wrapped("\n".join([*lines, *self._advice()]), WIDTH)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        parts = [f"<p>{html.escape(line)}</p>" for line in (NOTHING, *self._why_nothing())]
        if self.in_metric:
            row = (listed(self.in_metric.variables), str(self.in_metric.n_values))
            parts = [f"<p>{html.escape(IN_METRIC)}</p>", _html_table(("sampled by RMHMC", "values"), [row])]
            parts += [f"<p>{'<br>'.join(map(html.escape, self.in_metric.lines))}</p>"]
        elif self.charted:
            parts = [f"<p>{html.escape(GRAPH.format(self.why))}</p>"]
            parts += [_html_table(("sampled by RMHMC", "how"), said_once(self.charted))]
            parts += [f"<p>{html.escape(self.dear)}</p>"] if self.dear else []
        elif self.blocks:
            heads = ("sampled by RMHMC", "values", "prior", "likelihood", "curvature", "depends on")
            parts = [_html_table(heads, [self._block_cells(group) for group in self._block_groups()])]
            parts += [f"<p>{html.escape(self._metric())}<br>{html.escape(self._together())}</p>"]
        if self.left_over:
            rows = [self._left_cells(group) for group in self._left_groups()]
            parts.append(_html_table(("left to other steps", "PyMC's step", "why"), rows))
        if self.predicted:
            parts.append(f"<p>{html.escape(PREDICTED.format(listed(self.predicted)))}</p>")
        parts += [f'<p style="white-space: pre-wrap">{html.escape(line)}</p>' for line in self._advice()]
        return "\n".join(parts)

    def _why_nothing(self) -> list[str]:
        """Return the reason why nothing is sampled, unless the lines of the variables that are left give it."""
        return [self.alone] if self.alone and not self.left_over else []

    def _advice(self) -> list[str]:
        """Return the warning, and each piece of advice that it does not hold already."""
        unsaid = {name: text for name, text in self.advice.items() if text.split(". ", 1)[-1] not in self.warning}
        lines = [f"{names}: {text}" for names, text in said_once(unsaid)]
        return [self.warning, *lines] if self.warning else lines

    def _block_groups(self) -> list[list[BlockDescription]]:
        """Group the blocks that differ in names alone."""

        def kind(block: BlockDescription) -> Hashable:
            labels = tuple(likelihood for _, likelihood in block.likelihoods_by_variable)
            sizes = block.n_latent, block.n_sites, block.n_predictors
            return sizes, block.prior, labels, block.kinds, len(block.depends_on)

        return _grouped(self.blocks, kind)

    def _left_groups(self) -> list[list[str]]:
        """Group the variables that are left by their step and, but for names, by their reason."""
        # A reason names the variables that it is about, which are others in each of many alike.
        names = [*self.left_over, *self.hyperparameters, *(n for b in self.blocks for n in _names_in(b))]
        longest_first = sorted({re.escape(n) for n in names}, key=len, reverse=True)
        named = re.compile(rf"\b({'|'.join(longest_first)})\b")

        def kind(name: str) -> Hashable:
            return self.left_over[name], named.sub("·", self.reasons.get(name, ""))

        return _grouped(list(self.left_over), kind)

    @staticmethod
    def _block_cells(group: Sequence[BlockDescription]) -> tuple[str, ...]:
        first = group[0]
        values = f"{first.n_latent}{_behind(first)}"
        observed = "; ".join(
            f"{listed(dict.fromkeys(block.likelihoods_by_variable[i][0] for block in group), '')}: {likelihood}"
            for i, (_, likelihood) in enumerate(first.likelihoods_by_variable)
        )
        above = listed(dict.fromkeys(name for block in group for name in block.depends_on), "")
        return (
            _counted([block.name for block in group], "blocks"), values + (" each" if len(group) > 1 else ""),
            first.prior, observed or "none", ", ".join(first.kinds), above or "no hyperparameters",
        )  # fmt: skip

    def _block_line(self, group: Sequence[BlockDescription]) -> str:
        name, values, prior, likelihood, _, above = self._block_cells(group)
        size, _, rest = values.partition(" ")
        noun = "value" if size == "1" else "values"
        read = f", read by {likelihood}" if group[0].likelihoods else ", which nothing reads"
        return f"{name}: {size} {noun}{rest and ' '}{rest}, {prior}{read}; depends on {above}."

    def _left_cells(self, group: Sequence[str]) -> tuple[str, ...]:
        reasons = [self.reasons.get(name, "") for name in group]
        others = f" ({group[0]}; the others likewise)" if len(set(reasons)) > 1 else ""
        return _counted(group, "variables"), self.left_over[group[0]], reasons[0] + others

    def _left_line(self, group: Sequence[str]) -> str:
        _, step, reason = self._left_cells(group)
        count = f"{len(group)} variables, " if len(group) > 1 else ""
        return f"{listed(group, '')} ({count}{step})" + (f": {reason.removesuffix('.')}." if reason else ".")

    def _metric(self) -> str:
        """Describe the metric of latent values in one sentence."""
        return (METRIC if self.metric == "flat" else OTHER_METRIC).format(self.metric)

    def _allowed(self) -> list[str]:
        """Say which position-dependent metrics every likelihood allows, unless one of them is taken."""
        if self.metric != "flat":
            return []
        kinds = [kind for kind in self.blocks[0].kinds if all(kind in block.kinds for block in self.blocks)]
        return [ALLOWED.format(" or ".join(f'"{kind}"' for kind in kinds))] if kinds else []

    def _together(self) -> str:
        """Say in one sentence which hyperparameters are sampled with the latent values, or why none is."""
        if self.hyperparameters:
            return f"Sampled together with the latent values: {listed(self.hyperparameters, '')}."
        alone = self.alone or "the model has no continuous hyperparameter"
        return f"The latent values are sampled alone: {alone}."


def describe_latents(
    model: pm.Model, metric: str, *, chart: str = "auto", alone: str = "", emulates: bool = True
) -> ModelDescription:
    """Return what RMHMC does in the flat metric, or in another one with latent values alone; nothing is compiled.

    Raises a `DataError` if data, parameters or inputs cannot be used, and an `UnsupportedModelError` if the metric
    needs a latent Gaussian block, and there is none.

    `model`: the model, without what it predicts.
    `metric`: the metric's name.
    `chart`: the chart that the metric asks for.
    `alone`: why latent values are sampled alone; empty if hyperparameters are taken in where they can be.
    `emulates`: whether an emulator may stand in for a log density that is dear.
    """
    inputs, point = InputChecks(model), model.initial_point()
    inputs.check(point)
    found = blocks_or_graph(model, point, lambda structure: _read(structure, point, alone), chart)
    if isinstance(found, InGraphChart):
        return _general(model, point, found, emulates=emulates)
    if isinstance(found, InField):
        return _field(model, metric, found)
    structure, joint, compiled = found
    by_name: dict[str, LatentBlock] = {block.name: block for block in structure.blocks}
    names = names_by_value(model)
    apart = () if structure.deviations is None else structure.deviations.variables
    described = tuple(_describe(block, by_name, point, names, apart) for block in compiled.blocks)
    together = () if isinstance(joint, str) else joint.theta.variables
    why = joint if isinstance(joint, str) else "" if together else NO_HYPERPARAMETERS
    taken = tuple(str(variable.name) for variable in together)
    left = [name for name in structure.left_over if name not in taken]
    steps = _steps_of_pymc(model, left, [model[str(v.name)] for v in (*structure.variables, *together)])
    reasons = {name: reason for name, reason in structure.reasons.items() if name in steps}
    # The reason of what is left is in its own line.
    advice = structure.explained_advice | {n: text for n, text in structure.advice.items() if n in reasons}
    return ModelDescription(
        described, metric, taken, why, _as_named(steps), _as_named(reasons), _as_named(advice),
        warnings_of(structure, joint),
    )  # fmt: skip


def describe_in_metric(
    model: pm.Model, metric: str, variables: Sequence[TensorVariable], said: MetricDescription
) -> ModelDescription:
    """Return what is said of variables that are sampled in a metric of the whole model, with what is left over."""
    steps, reasons = _left_over(model, variables)
    return ModelDescription((), metric, (), "", steps, reasons, warning=data_in_words(model), in_metric=said)


def _left_over(model: pm.Model, variables: Sequence[TensorVariable]) -> tuple[dict[str, str], dict[str, str]]:
    """Return PyMC's step for each variable other than those that are sampled, and why it is left."""
    taken = {str(v.name) for v in variables}
    steps = _steps_of_pymc(model, [str(v.name) for v in model.free_RVs if str(v.name) not in taken], variables)
    return steps, {str(v.name): discrete_in_words(v) for v in model.free_RVs if str(v.name) in steps}


def _field(model: pm.Model, metric: str, found: InField) -> ModelDescription:
    """Describe a model that is sampled as a Gaussian field."""
    plan, maps = found.read.plan, found.read.moving.maps
    choice, above = plan.choice, tuple(str(v.name) for v in plan.theta.variables)
    rows = [(v, distribution_of(v)) for v in choice.rows if v in model.observed_RVs]
    rows += [(v, "Potential") for v in choice.rows if v in model.potentials]
    said = [f"{v.name}: {kind}, of which residuals are read" for v, kind in rows]
    for each in choice.observations:
        label = f"{distribution_of(each.variable)}" if each.variable in model.basic_RVs else "Potential"
        if each.likelihood is not None:
            label = f"{each.likelihood.name.split('_')[0]} ({each.likelihood.link} link)"
        said.append(f"{each.variable.name}: {label}")
    n_sites = maps.predictors.n_rows or maps.size
    made_of = ["a sparse precision"] if len(choice.latents) > len(choice.kernels) else []
    made_of += [f"the dense covariance of {names_of(choice.kernels)}"] if choice.kernels else []
    prior = f"Gaussian field with {' and '.join(made_of)}, because {found.why}"
    name = " + ".join(names_of([v]) for v in choice.latents)
    n_predictors = _predictors_each(model, choice.observations)
    block = BlockDescription(name, maps.size, n_sites, prior, tuple(said), (), above, n_predictors)
    steps, reasons = _left_over(model, [*choice.latents, *plan.theta.variables])
    return ModelDescription((block,), metric, above, "", steps, reasons, warning=data_in_words(model))


def _predictors_each(model: pm.Model, observations: Sequence[FieldObservation]) -> int:
    """Return how many predictors each observation has; 0 if some have more of them than others."""
    found = set()
    for each in observations:
        sizes = [math.prod(shape) for shape in each.shapes]
        n_observed = max(sizes)
        if each.variable in model.observed_RVs:
            (data,) = Evaluator(model, [model.rvs_to_values[each.variable]])(model.initial_point())
            # A vector of counts is one observation.
            n_observed = math.prod(data.shape[: data.ndim - getattr(each.variable.owner.op, "ndim_supp", 0)])
        whole, rest = divmod(sum(sizes), n_observed)
        found.add(0 if rest else whole)
    return found.pop() if len(found) == 1 else int(not found)


def _general(model: pm.Model, point: Point, found: InGraphChart, *, emulates: bool) -> ModelDescription:
    """Describe a model whose coordinates are read from its graph, or say why it cannot be sampled at all."""
    error = found.error
    try:
        reading = found.reading or GraphReading(model, continuous_variables(model), point)
        reading.check_differentiable()
    except UnsupportedModelError as hopeless:
        steps = _steps_of_pymc(model, [str(v.name) for v in model.free_RVs], ())
        reasons = {name: str(hopeless) for name in steps}
        return ModelDescription((), "", (), str(hopeless), steps, reasons, {} if error is None else error.advice)
    steps, reasons = _left_over(model, reading.variables)
    advice = unread_rows(model, reading.variables) | dict(found.advice)
    advice |= written_as_scalars(model) if error is None else error.advice
    n_values = sum(map(math.prod, reading.shapes.values()))
    # There is no emulator of a density that another step changes, or on a circle.
    is_dear = emulates and not (steps or reading.periods) and is_expensive(n_values, reading.gradient_seconds)
    dear = DEAR.format(cost_in_words(reading.gradient_seconds)) if is_dear else ""
    warning, charted = data_in_words(model), _in_the_chart(reading)
    return ModelDescription((), "flat", (), "", steps, reasons, advice, warning, charted, found.why, dear=dear)


def _in_the_chart(reading: GraphReading) -> dict[str, str]:
    """Describe each variable that is sampled: its distribution, and what its coordinates are relative to."""
    charted = {each.variable: each for each in reading.charted}
    said = {}
    for variable in reading.variables:
        how = "as PyMC has it on the unconstrained scale"
        if variable in charted:
            *most, last = charted[variable].parents
            givers = f"{', '.join(most)} and {last} give" if most else f"{last} gives"
            what = "location and scale" if charted[variable].n_columns == 1 else "mean and covariance"
            how = f"relative to the {what} that {givers}"
        said[names_of([variable])] = f"{distribution_of(variable)}, {how}"
    return said


def _as_named(texts: dict[str, str]) -> dict[str, str]:
    """Return texts by the names that the user gave the variables."""
    return {name.removesuffix("_rotated_"): text for name, text in texts.items()}


def _read(
    read: ModelStructure, point: Point, alone: str
) -> tuple[ModelStructure, JointPlan | JointModel | str, CompiledModel]:
    """Return the structure, what is sampled together with it or the reason why nothing is, and the blocks."""
    structure: ModelStructure = read
    joint: JointPlan | JointModel | str = alone
    check_together(read, alone or None)
    if not alone:
        structure, joint = plan_together(read, point)
    if not isinstance(joint, str):
        try:
            GraphReading(read.model, joint.theta.variables, point).check_differentiable()
        except UnsupportedModelError:  # of what the blocks need there may be a derivative
            structure, joint = read_together(read.model, None, point, structure=read)
    return structure, joint, compile_model(structure, point, with_rest=False)


def _describe(
    block: CompiledBlock, by_name: dict[str, LatentBlock], point: Point, names: dict[str, str],
    apart: Sequence[TensorVariable],
) -> BlockDescription:  # fmt: skip
    """Describe one compiled block in words; vectors are apart that are read as deviations from their means."""
    # Rows of one variable are blocks of their own, named by their index.
    read = by_name.get(block.name) or by_name[block.name.rsplit("[", 1)[0]]
    prior = ", ".join(dict.fromkeys(_form(latent) for latent in read.latents))
    deviating = [latent.name for latent in read.latents if latent.variable in apart]
    prior += f" ({listed(deviating)} as its mean and a deviation)" if deviating else ""
    # The values of what is not observed enter the likelihood, but it is they that depend on the block.
    own = {str(o.variable.name) for o in read.observations}
    return BlockDescription(
        block.name,
        block.n_latent,
        block.n_sites,
        prior,
        tuple(f"{o.variable.name}: {o.label}{'' if o.is_observed else ', not observed'}" for o in read.observations),
        block.likelihood(point).kinds,
        tuple(dict.fromkeys(n for i in (*block.prior_inputs, *block.likelihood_inputs) if (n := names[i]) not in own)),
    )


def _form(latent: LatentVariable) -> str:
    """Describe a latent's prior in words."""
    usual = ON_A_GRID if latent.root == "kronecker" else IN_WORDS[latent.form]
    return GAUSSIAN_VECTORS.get(type(latent.variable.owner.op), usual)


class _Taken(BlockedStep):
    """A step that PyMC is given in RMHMC's place, so that it assigns steps to the other variables alone."""

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Make a step without what PyMC asks of those that sample."""
        return object.__new__(cls)

    def __init__(self, vars: list[Variable]) -> None:  # noqa: A002 - PyMC's name
        self.vars = vars

    def step(self, point: object) -> NoReturn:
        """Raise NotImplementedError: this step never samples."""
        raise NotImplementedError


def _steps_of_pymc(model: pm.Model, names: list[str], sampled: Iterable[TensorVariable]) -> dict[str, str]:
    """Return the step that PyMC's own assignment gives each variable."""
    from pymc.sampling.mcmc import assign_step_methods

    if not names:
        return {}
    taken = _Taken([model.rvs_to_values[variable] for variable in sampled])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, selected = assign_step_methods(model, step=taken)
    by_value = {value: rv for rv, value in model.rvs_to_values.items()}
    steps = {str(by_value[v].name): method.__name__ for method, held in selected.items() for v in held}
    return {name: steps.get(name, "none") for name in names}


def _grouped[T](items: Sequence[T], kind: Callable[[T], Hashable]) -> list[list[T]]:
    """Group items of one kind, in the order of each kind's first."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(kind(item), []).append(item)
    return list(groups.values())


def _behind(block: BlockDescription) -> str:
    """Say how many observations latent values are behind, and how many predictors each has, if it has several."""
    if block.n_predictors < 2:
        noun = "observation" if block.n_predictors else "predictor"
        return "" if block.n_sites == block.n_latent else f" behind {counted(block.n_sites, noun)}"
    seen = counted(block.n_sites // block.n_predictors, "observation")
    return f" behind {seen} of {block.n_predictors} predictors each"


def _names_in(block: BlockDescription) -> list[str]:
    """Return the variables that a block's description names."""
    latents = [name.split("[")[0] for name in block.name.split(" + ")]
    return [*latents, *(variable for variable, _ in block.likelihoods_by_variable), *block.depends_on]


def _counted(names: Sequence[str], kind: str) -> str:
    """List names, with their number where there are several."""
    return names[0] if len(names) == 1 else f"{listed(names, '')} ({len(names)} {kind})"


def _html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in HTML, with its text escaped."""
    left = 'style="text-align: left"'
    head = "".join(f"<th {left}>{html.escape(h)}</th>" for h in heads)
    body = "".join("<tr>" + "".join(f"<td {left}>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
