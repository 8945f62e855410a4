"""The options of `RMHMC`, checked when the step is built and settled into what a chain needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint, RotationSplitting
from pymc_rmhmc.dynamics.option_numbers import real_number, switch, whole_number
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.dynamics.trajectory import FixedSteps, JitteredPath, Length
from pymc_rmhmc.errors import ConfigurationError, shown
from pymc_rmhmc.geometry.metrics import METRICS, FlatMetric

__all__ = ["Options", "Plan", "settle"]

INTEGRATORS: dict[str, Any] = {"generalized_leapfrog": GeneralizedLeapfrog, "implicit_midpoint": ImplicitMidpoint}
INITS = ("auto", "laplace", "keep")
# What a metric of a user's own must have.
METRIC_ATTRIBUTES = ("bind", "name", "needs_solver", "takes_hyperparameters", "uses_sites")

DEFAULT_SOLVER_TOL = 1e-9
DEFAULT_SOLVER_MAX_ITER = 100
DEFAULT_MAX_STEPS = 100
# Measured on the smaller of bulk and tail ESS (benchmarks/path_length.py): in coordinates in which the
# posterior is nearly standard normal a quarter of a period makes the next draw nearly independent. A
# little more costs no step on most trajectories and makes up for those that are rejected; much more makes
# means antithetic and starves the tails.
DEFAULT_PATH_LENGTH = 1.7
DEFAULT_JITTER = 0.1
# From the same measurement: an explicit step is cheap against what PyMC spends on a draw, and a higher
# acceptance doubles the tail ESS; an implicit step costs a factorisation, and fewer of them win.
DEFAULT_TARGET_ACCEPT = {"explicit": 0.9, "implicit": 0.8}
# Of latent values that move where hyperparameters are held, and once more before a draw is done.
DEFAULT_HELD_TARGET_ACCEPT = 0.8


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for; None where nothing was said. See `RMHMC` for the meaning of each."""

    metric: Any = "auto"
    integrator: Any = None
    step_size: float | None = None
    target_accept: float | None = None
    path_length: float | None = None
    n_steps: int | None = None
    jitter: float | None = None
    max_steps: int | None = None
    init: str = "auto"
    solver_tol: float | None = None
    solver_max_iter: int | None = None
    check_reversibility: bool | None = None
    blas_threads: int | None = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Options settled for one block.

    Attributes
    ----------
    metric
        A metric, such as `FlatMetric`; a string is settled by now.
    integrator
        One that fits the metric.
    length : Length
        The rule for a trajectory's steps.
    step_size : float or None
        Fixed, or None to adapt.
    initial_step_size, max_step_size : float
        Where the search begins, and its bound.
    target_accept : float
        For the adaptation.
    held_target_accept : float
        For that of latent values which move where their hyperparameters are held.
    init : str
        "auto", "laplace" or "keep".
    covering_step_size : float
        With shorter steps the path is not covered, and a lower acceptance is enough.
    """

    metric: Any
    integrator: Any
    length: Length
    step_size: float | None
    initial_step_size: float
    max_step_size: float
    target_accept: float
    held_target_accept: float
    init: str
    covering_step_size: float


def settle(options: Options, auto_metric: str) -> Plan:
    """Check the options and fill in what was left open.

    Parameters
    ----------
    options : Options
        As the user gave them.
    auto_metric : str
        What ``metric="auto"`` means for the block.

    Raises
    ------
    ConfigurationError
        For anything unknown, out of range, contradictory, or without effect in this combination.
    """
    metric = _metric(options.metric, auto_metric)
    integrator = _integrator(options, metric)
    if options.init not in INITS:
        raise ConfigurationError(
            f"init must be one of {', '.join(INITS)}, got {shown(options.init)}. It says where a chain starts; "
            'init="auto" is the default.'
        )
    if options.blas_threads is not None:
        whole_number("blas_threads", options.blas_threads)
    step_size = _step_size(options)
    length = _length(options)
    longest = _longest_step(length, step_size, metric=metric, integrator=integrator)
    if step_size is not None:
        _check_reach(step_size, length)
    if step_size is not None and step_size > longest:
        raise ConfigurationError(
            f"step_size={step_size:.3g} is longer than a path, which is at most {longest:.3g} long. "
            "Give a smaller step_size, a longer path_length, or n_steps."
        )
    target = None if options.target_accept is None else real_number("target_accept", options.target_accept)
    default_target = DEFAULT_TARGET_ACCEPT["implicit" if metric.needs_solver else "explicit"]
    return Plan(
        metric=metric,
        integrator=integrator,
        length=length,
        step_size=step_size,
        initial_step_size=1.0 if isinstance(metric, FlatMetric) else 0.25,
        max_step_size=longest,
        target_accept=default_target if target is None else target,
        held_target_accept=DEFAULT_HELD_TARGET_ACCEPT if target is None else target,
        init=options.init,
        covering_step_size=_covering_step(options, metric, length),
    )


def _check_reach(step_size: float, length: Length) -> None:
    """Steps of a given size must be able to walk the path: cut short, all paths would be one, without jitter."""
    if not isinstance(length, JitteredPath):
        return
    needed = math.ceil(length.path_length * (1.0 + length.jitter) / step_size)
    if needed > length.max_steps:
        raise ConfigurationError(
            f"step_size={step_size:.3g} needs {shown(needed)} steps for a path of up to "
            f"{length.path_length * (1.0 + length.jitter):.3g}, and max_steps is {shown(length.max_steps)}: give a "
            "larger step_size or max_steps, a shorter path_length, or n_steps."
        )


def _longest_step(length: Length, step_size: float | None, *, metric: Any, integrator: Any) -> float:
    """The largest step size that may be found or given.

    Where the density is normal the flat metric's flow is a rotation, and a step ε of the implicit midpoint one by
    ``2 atan(ε/2)``: both are accepted whatever the angle. Past a quarter of a turn acceptance would tune the first to
    none at all, and the second to half a turn, there and back, with equations that grow harder.
    """
    tuned = step_size is None
    midpoint = isinstance(integrator, ImplicitMidpoint)
    if isinstance(length, JitteredPath):
        whole = length.path_length * (1.0 + length.jitter)
        return min(whole, DEFAULT_PATH_LENGTH) if tuned and midpoint else whole
    if isinstance(length, FixedSteps) and tuned and (midpoint or not metric.needs_solver):
        return DEFAULT_PATH_LENGTH / length.n_steps
    return math.inf


def _covering_step(options: Options, metric: Any, length: Length) -> float:
    """The step size below which a path that is cut short need not be accepted as often; 0 for none.

    None where the target or the number of steps is the user's, or where steps that are too long end in equations
    without a solution; and who asks for few steps in a path is given the few that are accepted.
    """
    if options.target_accept is not None or metric.needs_solver or not isinstance(length, JitteredPath):
        return 0.0
    return min(length.covering, length.path_length / DEFAULT_MAX_STEPS)


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


def _metric(metric: Any, auto_metric: str) -> Any:
    """A metric object from an object, a class or a string."""
    if isinstance(metric, str):
        name = auto_metric if metric == "auto" else metric
        if name not in METRICS:
            known = ", ".join(f'"{m}"' for m in ("auto", *METRICS))
            raise ConfigurationError(
                f"Unknown metric {shown(metric)}: it must be one of {known}, or a metric object such as FlatMetric()."
            )
        return METRICS[name]()
    if isinstance(metric, type) and metric in METRICS.values():
        return metric()
    missing = [name for name in METRIC_ATTRIBUTES if not hasattr(metric, name)]
    if missing or isinstance(metric, type):
        lacks = f", which lacks {', '.join(missing)}" if 0 < len(missing) < len(METRIC_ATTRIBUTES) else ""
        raise ConfigurationError(
            f"metric must be a string or a metric such as FlatMetric() or HessianMetric(), got {shown(metric)}{lacks}. "
            'Leave it out, or give metric="flat".'
        )
    return metric


def _integrator(options: Options, metric: Any) -> Any:
    """The integrator that fits the metric, with its solver."""
    solver_options = {
        "integrator": options.integrator,
        "solver_tol": options.solver_tol,
        "solver_max_iter": options.solver_max_iter,
        "check_reversibility": options.check_reversibility,
    }
    given = [name for name, value in solver_options.items() if value is not None]
    if not metric.needs_solver:
        if given:
            raise ConfigurationError(
                f"{', '.join(given)}: the {metric.name} metric's flow is integrated explicitly and needs none of "
                'these. Leave them out, or choose metric="hessian" or metric="fisher".'
            )
        return RotationSplitting()
    if isinstance(options.integrator, (GeneralizedLeapfrog, ImplicitMidpoint)):
        if len(given) > 1:
            raise ConfigurationError(
                f"{', '.join(given[1:])}: set these on the integrator itself, "
                f"{type(options.integrator).__name__}(AndersonSolver(...), check_reversibility=...), "
                "or name the integrator by a string."
            )
        return options.integrator
    solver = AndersonSolver(
        DEFAULT_SOLVER_TOL if options.solver_tol is None else options.solver_tol,
        DEFAULT_SOLVER_MAX_ITER if options.solver_max_iter is None else options.solver_max_iter,
    )
    given_check = options.check_reversibility
    check = given_check is None or switch("check_reversibility", given_check)
    return _integrator_class(options.integrator)(solver, check_reversibility=check)


def _integrator_class(integrator: Any) -> type[GeneralizedLeapfrog | ImplicitMidpoint]:
    """The class that a string or class names; the generalised leapfrog for None."""
    if integrator is None:
        return GeneralizedLeapfrog
    if isinstance(integrator, type) and integrator in INTEGRATORS.values():
        return integrator
    if isinstance(integrator, str) and integrator in INTEGRATORS:
        return INTEGRATORS[integrator]
    known = ", ".join(f'"{name}"' for name in INTEGRATORS)
    raise ConfigurationError(
        f"Unknown integrator {shown(integrator)}: it must be one of {known}, GeneralizedLeapfrog() or "
        "ImplicitMidpoint()."
    )


def _length(options: Options) -> Length:
    """The rule for a trajectory's length."""
    if options.n_steps is not None:
        others = {"path_length": options.path_length, "jitter": options.jitter, "max_steps": options.max_steps}
        given = [name for name, value in others.items() if value is not None]
        if given:
            raise ConfigurationError(
                f"n_steps fixes the number of steps, but {' and '.join(given)} would change it: leave one out."
            )
        return FixedSteps(options.n_steps)
    return JitteredPath(
        DEFAULT_PATH_LENGTH if options.path_length is None else options.path_length,
        DEFAULT_JITTER if options.jitter is None else options.jitter,
        DEFAULT_MAX_STEPS if options.max_steps is None else options.max_steps,
    )
