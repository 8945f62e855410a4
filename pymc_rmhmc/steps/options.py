"""What a user gives a step, checked when it is built: the options, settled into what a chain needs, and the rest."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from pymc.step_methods.compound import BlockedStep
from pymc.util import get_random_generator

from pymc_rmhmc.chains.conditional_density import Plan
from pymc_rmhmc.dynamics.integrators import RotationSplitting
from pymc_rmhmc.errors import ConfigurationError, counted, shown
from pymc_rmhmc.kernels.kernel import Trajectory
from pymc_rmhmc.model import model_in_context
from pymc_rmhmc.sampled.choices import (
    METRIC_NAMES,
    check_reach,
    check_step,
    choose_integrator,
    choose_metric,
    choose_trajectory,
    covering_step,
    curvature_of,
    for_blocks,
    for_hierarchies,
    is_path_free,
    longest_step,
    policy_of,
)
from pymc_rmhmc.usage import real_number, whole_number

__all__ = [
    "CheckedStep", "ModelContents", "Options", "Plan", "check_compile_kwargs", "check_point", "generator_of",
    "settle", "settle_move",
]  # fmt: skip

type Point = dict[str, np.ndarray]

INITS = ("auto", "laplace", "keep")

# Measured by benchmarks/path_length.py: an explicit step is cheap against what PyMC spends on a draw, and a higher
# acceptance doubles the tail ESS; an implicit step costs a factorisation, and fewer of them win.
DEFAULT_TARGET_ACCEPT = {"explicit": 0.9, "implicit": 0.8}
# In the time of the Hamiltonian: where the search for a step size begins.
INITIAL_STEP_SIZE = {"explicit": 1.0, "implicit": 0.25}
# Of latent values that move where hyperparameters are held, and once more before a draw is done.
DEFAULT_HELD_TARGET_ACCEPT = 0.8


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; None where nothing was said. See `RMHMC` for the meaning of each."""

    metric: Any = "auto"
    integrator: Any = None
    step_size: float | None = None
    target_accept: float | None = None
    trajectory: str = "auto"
    path_length: float | None = None
    n_steps: int | None = None
    jitter: float | None = None
    max_steps: int | None = None
    init: str = "auto"
    solver_tol: float | None = None
    solver_max_iter: int | None = None
    check_reversibility: bool | None = None
    blas_threads: int | None = 1


def settle(options: Options, auto_metric: str) -> Plan:
    """Check the options and fill in what was left open.

    Raises a `ConfigurationError` for anything unknown, out of range, contradictory, or without effect in this
    combination.

    `options`: as the user gave them.
    `auto_metric`: what ``metric="auto"`` means for the block.
    """
    metric = choose_metric(options.metric, auto_metric)
    integrator = choose_integrator(
        metric, options.integrator, options.solver_tol, options.solver_max_iter, options.check_reversibility
    )
    _check_common(options)
    step_size = _step_size(options)
    integrator.check_step_size(step_size)
    trajectory = choose_trajectory(options)
    trajectory.check_integrator(integrator)
    longest = longest_step(trajectory, step_size, integrator=integrator)
    if step_size is not None:
        check_reach(step_size, trajectory)
        check_step(step_size, trajectory, longest)
    target = None if options.target_accept is None else real_number("target_accept", options.target_accept)
    kind = "implicit" if integrator.implicit else "explicit"
    default_target = DEFAULT_TARGET_ACCEPT[kind]
    return Plan(
        metric=metric,
        policy=policy_of(metric),
        curvature=curvature_of(metric),
        integrator=integrator,
        trajectory=trajectory,
        general_trajectory=for_hierarchies(options, trajectory),
        block_trajectory=for_blocks(options, trajectory),
        may_repeat=options.n_steps is None,
        may_lengthen=step_size is None and trajectory.path is not None and is_path_free(options),
        step_size=step_size,
        initial_step_size=INITIAL_STEP_SIZE[kind],
        max_step_size=longest,
        target_accept=default_target if target is None else target,
        held_target_accept=DEFAULT_HELD_TARGET_ACCEPT if target is None else target,
        init=options.init,
        covering_step_size=covering_step(options, trajectory, integrator),
    )


def settle_move(options: Options, move: Trajectory, target_accept: float, sampler: str) -> Plan:
    """Check and fill in the options of a sampler whose draws are single moves, without an integrator.

    `options`: as the user gave them; the metric is an object.
    `move`: what makes a draw.
    `target_accept`: the acceptance to reach if the user gives none.
    `sampler`: its name, for messages.

    Raises
    ------
    ConfigurationError
        As `settle`.
    """
    _check_common(options)
    target = options.target_accept
    target_accept = target_accept if target is None else real_number("target_accept", target)
    return Plan(
        metric=options.metric,
        policy=policy_of(options.metric),
        curvature=curvature_of(options.metric),
        integrator=RotationSplitting(),
        trajectory=move,
        general_trajectory=move,
        block_trajectory=move,
        may_repeat=False,
        may_lengthen=False,
        step_size=_step_size(options),
        initial_step_size=INITIAL_STEP_SIZE["implicit"],
        max_step_size=math.inf,
        target_accept=target_accept,
        held_target_accept=target_accept,
        init=options.init,
        covering_step_size=0.0,
        sampler=sampler,
        alone=True,
    )


def _check_common(options: Options) -> None:
    """Raise for options that have nothing to do with how draws are made."""
    if options.init not in INITS:
        raise ConfigurationError(
            f"init must be one of {', '.join(INITS)}, got {shown(options.init)}. It says where a chain starts; "
            'init="auto" is the default.'
        )
    if options.blas_threads is not None:
        whole_number("blas_threads", options.blas_threads)


def _step_size(options: Options) -> float | None:
    """Return the fixed step size, with which no target goes; None to adapt."""
    if options.step_size is None:
        return None
    step_size = real_number("step_size", options.step_size)
    if options.target_accept is not None:
        raise ConfigurationError(
            "target_accept tunes the step size, but step_size is given and stays fixed: leave one of them out."
        )
    return step_size


NUMBERS = "biuf"

_LEARNED = "RMHMC learns its mass matrix in tuning: leave it out."
_TREE = (
    'Give RMHMC(trajectory="nuts", max_steps=1023): a tree of depth d has 2**d - 1 steps, so 1023 is max_treedepth=10.'
)
_ADAPTED = "RMHMC chooses it: leave it out, or fix the step size with step_size=0.1."
# What other samplers call its arguments.
NAMES_ELSEWHERE = {
    **dict.fromkeys(("delta", "adapt_delta", "target_accept_prob", "target_acceptance_rate"), "target_accept=0.95"),
    **dict.fromkeys(("epsilon", "eps", "stepsize", "step"), "step_size=0.1"),
    **dict.fromkeys(("L", "num_steps", "num_integration_steps", "n_leapfrog", "n_leapfrog_steps"), "n_steps=10"),
    **dict.fromkeys(("trajectory_length", "int_time"), "path_length=1.7"),
}
# What to write for the arguments that PyMC's NUTS and HamiltonianMC have, and RMHMC has not.
ARGUMENTS_OF_NUTS = {
    **dict.fromkeys(("max_treedepth", "max_tree_depth", "max_depth", "maxdepth", "treedepth"), _TREE),
    "early_max_treedepth": 'Give RMHMC(trajectory="nuts", max_steps=255), which holds in tuning and in draws.',
    "step_scale": "The first step size is found by a search. To fix the step size, give RMHMC(step_size=0.1).",
    "step_rand": "Path lengths vary by RMHMC(jitter=0.1), and steps with them: leave step_rand out.",
    "adapt_step_size": "The step size is adapted unless you fix it with RMHMC(step_size=0.1).",
    "Emax": "A trajectory fails where the energy rises by more than 1000, and this cannot be changed: leave it out.",
    **dict.fromkeys(("scaling", "is_cov", "potential", "mass_matrix", "inverse_mass_matrix", "inv_metric"), _LEARNED),
    **dict.fromkeys(("gamma", "k", "t0"), _ADAPTED),
    "nuts": "Give RMHMC its arguments by name, such as RMHMC(target_accept=0.95).",
}
ARGUMENTS_OF_SAMPLE = {
    "draws", "tune", "chains", "cores", "random_seed", "progressbar", "initvals", "idata_kwargs", "trace",
    "discard_tuned_samples", "compute_convergence_checks", "return_inferencedata", "callback", "mp_ctx",
}  # fmt: skip


class CheckedStep(BlockedStep):
    """A step whose model and variables are looked at before PyMC reads them.

    PyMC's `__new__` takes both first, and what it raises does not say what was expected.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Check what PyMC is about to read.

        Raises a `ConfigurationError` if there is no model, or `model` is something else, or `vars` is empty, a model or
        a metric, or an argument has a name that the step does not know.
        """
        _check_names(cls, kwargs)
        if len(args) > 1:
            raise ConfigurationError(
                f"{cls.__name__} takes the variables alone without a name, but got {len(args)} arguments. Name the "
                f'others, such as {cls.__name__}(metric="hessian").'
            )
        wanted = args[0] if args else kwargs.get("vars")
        if isinstance(wanted, pm.Model):
            raise ConfigurationError(
                f"vars is a model: the first argument of {cls.__name__} are the variables to sample. Give "
                f"{cls.__name__}(model=model)."
            )
        model = model_in_context(kwargs.get("model"), cls.__name__)
        if isinstance(wanted, str) and wanted in METRIC_NAMES and wanted not in model.named_vars:
            raise ConfigurationError(
                f'vars is "{wanted}", which is a metric, and the model has no variable of this name. Give '
                f'{cls.__name__}(metric="{wanted}").'
            )
        if isinstance(wanted, list | tuple) and not wanted:
            raise ConfigurationError(
                f"vars is empty, so there is nothing to sample. Leave it out, and {cls.__name__} takes what it can, or "
                "name latent variables, such as vars=['f']."
            )
        return super().__new__(cls, *args, **kwargs)


def _check_names(step: type, given: Mapping[str, Any]) -> None:
    """Raise for an argument that a step does not have, and say what it has instead."""
    parameters = inspect.signature(step.__init__).parameters  # type: ignore[misc]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    known = [name for name in parameters if name != "self"]
    for name in given:
        if name not in known:
            instead = _instead_of(name, known, step.__name__)
            raise ConfigurationError(f"{step.__name__} has no argument {name}. {instead}")


def _instead_of(name: str, known: Sequence[str], step: str) -> str:
    """Say what to write for an argument of PyMC's HMC or NUTS, or for one that is misspelt."""
    if name in ARGUMENTS_OF_NUTS and step == "RMHMC":
        return ARGUMENTS_OF_NUTS[name]
    if NAMES_ELSEWHERE.get(name, "").split("=")[0] in known:
        return f"Give {step}({NAMES_ELSEWHERE[name]})."
    if name in ("seed", "random_state"):
        return f"Give pm.sample the seed: pm.sample(random_seed=1, step={step}())."
    if name in ARGUMENTS_OF_SAMPLE:
        return f"Give it to pm.sample: pm.sample({name}=..., step={step}())."
    close = difflib.get_close_matches(name, known, n=1)
    return (f"Did you mean {close[0]}? " if close else "") + f"Its arguments are {', '.join(known)}."


class ModelContents:
    """The names of what a model holds, by which a change is seen.

    Names alone travel to workers: a copy of a model's graph would be as large as the model.

    `model`: the model.
    """

    def __init__(self, model: pm.Model) -> None:
        self.names = _contents(model)

    def check(self, model: pm.Model) -> None:
        """Raise where the model holds something else by now.

        Raises a `ConfigurationError` if it does; it names what is new and what is gone.
        """
        now = _contents(model)
        new = [f"{kind} {name}" for name, kind in now.items() if self.names.get(name) != kind]
        gone = [f"{kind} {name}" for name, kind in self.names.items() if now.get(name) != kind]
        said = "; ".join(
            f"{words}: {', '.join(names)}" for words, names in (("new", new), ("gone", gone)) if names
        )
        if said:
            raise ConfigurationError(
                f"The model has changed since RMHMC was built ({said}). RMHMC would sample the model as it was then. "
                "Build it again after the last change: step=RMHMC()."
            )


def _contents(model: pm.Model) -> dict[str, str]:
    """List everything in a model that has a log density, with its kind."""
    kinds = {"variable": model.free_RVs, "observed variable": model.observed_RVs, "Potential": model.potentials}
    return {str(variable.name): kind for kind, variables in kinds.items() for variable in variables}


def check_point(given: Any, initial: Point, model: pm.Model) -> Point:
    """Return values by value variable, of the types and shapes that the model has.

    Raises a `ConfigurationError` if a name or a value is none of the model's.

    `given`: as the user gave it.
    `initial`: the model's own initial point.
    `model`: the model, for the names of value variables.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            "initial_point must be a dict of value variables, such as model.initial_point(), got "
            f"{shown(given)}. This model's are {', '.join(initial)}."
        )
    unknown = [str(name) for name in given if name not in initial]
    if unknown:
        keys = [f"Give {key} in place of {name}{why}." for name in unknown for key, why in _key_for(name, model)]
        raise ConfigurationError(
            f"initial_point: {', '.join(unknown)} is no value variable of the model. These are {', '.join(initial)}. "
            + " ".join(keys)
        )
    return {name: _value(name, value, initial[name]) for name, value in given.items()}


def _key_for(name: str, model: pm.Model) -> list[tuple[str, str]]:
    """Find the value variable that holds what a name stands for, and what its values are; none for an unknown name."""
    variable = model.named_vars.get(name)
    if variable in model.free_RVs:
        return [(str(model.rvs_to_values[variable].name), ", transformed as PyMC samples it")]
    whitened = model.named_vars.get(f"{name}_rotated_")
    if variable in model.deterministics and whitened in model.free_RVs:
        key = str(model.rvs_to_values[whitened].name)
        return [(key, ", which PyMC computes from it (in pm.sample(initvals=...) too)")]
    return []


def _value(name: str, given: Any, initial: np.ndarray) -> np.ndarray:
    """Check one value of an initial point, and return it as an array."""
    wanted = f"finite numbers in an array of the shape {initial.shape}, such as model.initial_point()[{name!r}]"
    try:
        value = np.asarray(given)
    except ValueError:  # rows of several lengths
        value = np.asarray(None)
    if value.dtype.kind not in NUMBERS:
        raise ConfigurationError(f"initial_point: {name} is {shown(given)}, which holds no numbers. Give {wanted}.")
    if value.shape != initial.shape:
        raise ConfigurationError(
            f"initial_point: {name} has the shape {value.shape}, and in the model {initial.shape}. Give {wanted}."
        )
    lost = int(np.count_nonzero(~np.isfinite(value)))
    if lost:
        raise ConfigurationError(f"initial_point: {name} has {counted(lost, 'non-finite value')}. Give {wanted}.")
    return value.astype(initial.dtype)


def check_compile_kwargs(given: Any) -> None:
    """Raise a `ConfigurationError` for what cannot be keyword arguments."""
    if given is not None and not (isinstance(given, Mapping) and all(isinstance(name, str) for name in given)):
        raise ConfigurationError(
            "compile_kwargs must be a dict of arguments for pytensor.function, such as {'mode': 'NUMBA'}, got "
            f"{shown(given)}. Leave it out if you have none."
        )


def seeded(random_seed: Any) -> np.random.Generator:
    """Return the random generator of a `random_seed`.

    Raises a `ConfigurationError` if it is no seed.
    """
    return _generator("random_seed", random_seed, np.random.default_rng, "Leave it out for another result each time.")


def generator_of(rng: Any) -> np.random.Generator:
    """Return the random generator of a step's seed.

    Raises a `ConfigurationError` if it is no seed.
    """
    advice = "Leave it out: pm.sample gives each chain its own, from pm.sample(random_seed=...)."
    return _generator("rng", rng, get_random_generator, advice)


def _generator(
    name: str, given: Any, make: Callable[[Any], np.random.Generator], advice: str
) -> np.random.Generator:
    try:
        if isinstance(given, bool | str):
            raise TypeError
        return make(given)
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{name} must be an integer from 0 up or a numpy.random.Generator, got {shown(given)}. {advice}"
        ) from None
