"""The options of `RMHMC`, checked when the step is built and settled into what a chain needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pymc_rmhmc.dynamics.integrators import GeneralizedLeapfrog, ImplicitMidpoint, RotationSplitting
from pymc_rmhmc.dynamics.option_numbers import real_number, whole_number
from pymc_rmhmc.dynamics.solvers import AndersonSolver
from pymc_rmhmc.dynamics.trajectory import FixedSteps, JitteredPath, Length
from pymc_rmhmc.errors import ConfigurationError
from pymc_rmhmc.geometry.metrics import METRICS, FlatMetric

__all__ = ["Options", "Plan", "settle"]

INTEGRATORS: dict[str, Any] = {"generalized_leapfrog": GeneralizedLeapfrog, "implicit_midpoint": ImplicitMidpoint}
INITS = ("auto", "laplace", "keep")

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
        raise ConfigurationError(f"init must be one of {', '.join(INITS)}, got {options.init!r}.")
    if options.blas_threads is not None:
        whole_number("blas_threads", options.blas_threads)
    if options.step_size is not None:
        _check_step_size(options)
    length = _length(options)
    longest = _longest_step(length, options.step_size, metric=metric, integrator=integrator)
    if options.step_size is not None:
        _check_reach(options.step_size, length)
    if options.step_size is not None and options.step_size > longest:
        raise ConfigurationError(
            f"step_size={options.step_size:g} is longer than a path of {longest:.3g}, which would be one shorter step: "
            "give a longer path_length, or n_steps."
        )
    return Plan(
        metric=metric,
        integrator=integrator,
        length=length,
        step_size=options.step_size,
        initial_step_size=1.0 if isinstance(metric, FlatMetric) else 0.25,
        max_step_size=longest,
        target_accept=_target_accept(options.target_accept, implicit=metric.needs_solver),
        held_target_accept=DEFAULT_HELD_TARGET_ACCEPT if options.target_accept is None else options.target_accept,
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
            f"step_size={step_size:g} needs {needed} steps for a path of up to "
            f"{length.path_length * (1.0 + length.jitter):.3g}, and max_steps is {length.max_steps}: give a larger "
            "max_steps, a shorter path_length, or n_steps."
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


def _check_step_size(options: Options) -> None:
    """A fixed step size is positive, and no target goes with it."""
    step_size = real_number("step_size", options.step_size)
    if not (math.isfinite(step_size) and step_size > 0.0):
        raise ConfigurationError(f"step_size must be positive and finite, got {step_size}.")
    if options.target_accept is not None:
        raise ConfigurationError(
            "target_accept tunes the step size, but step_size is given and stays fixed: leave one of them out."
        )


def _target_accept(value: float | None, *, implicit: bool) -> float:
    """The target, or the default of the kind of integrator."""
    if value is None:
        return DEFAULT_TARGET_ACCEPT["implicit" if implicit else "explicit"]
    target = real_number("target_accept", value)
    if not 0.0 < target < 1.0:
        raise ConfigurationError(f"target_accept must lie in (0, 1), got {value}.")
    return target


def _metric(metric: Any, auto_metric: str) -> Any:
    """A metric object from an object, a class or a string."""
    if isinstance(metric, str):
        name = auto_metric if metric == "auto" else metric
        if name not in METRICS:
            known = ", ".join(f'"{m}"' for m in ("auto", *METRICS))
            raise ConfigurationError(f'Unknown metric "{metric}": it must be one of {known}, or a metric object.')
        return METRICS[name]()
    if isinstance(metric, type) and metric in METRICS.values():
        return metric()
    if not hasattr(metric, "hamiltonian"):
        raise ConfigurationError(
            f"metric must be a string or a metric such as FlatMetric() or HessianMetric(), got {metric!r}."
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
    check = options.check_reversibility is None or bool(options.check_reversibility)
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
        f"Unknown integrator {integrator!r}: it must be one of {known}, GeneralizedLeapfrog() or ImplicitMidpoint()."
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
